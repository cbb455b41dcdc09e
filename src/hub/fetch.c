/* fetch: a job of many files: threads take one after the other, the caller hears how it goes.
 * Order:   all bytes are there and right before the first link is made; config.json is linked last and the
 *          ref written after it. So whatever ends the job, no name leads to half a model.
 * Threads: n_jobs of ours, each with its own connection; they talk to the caller's by a queue and by counters
 *          that only one of them writes. The caller's thread calls event().
 * Memory:  one MiB a thread; a word a file. */
#include "hub/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { JOBS_MAX = 32, NOTES_MAX = 256, EVENT_EVERY_MS = 200, RATE_SAMPLES = 26 /* 5 s of events, and one */ };

typedef struct news {
    const ig_hub_file *whole; /* NULL: text is for people */
    char text[IG_ERR_BYTES];
} news;

typedef struct job {
    const ig_hub_config *c;
    const ig_hub_repo *r;
    const ig_hub_fetch *o;
    char *blobs;
    const ig_hub_file **todo; /* each hash once, large ones first */
    int n_todo;
    _Atomic int next, stop;
    _Atomic uint64_t *done; /* bytes of todo[i] */
    ig_queue *queue;
} job;

typedef struct worker {
    job *j;
    pthread_t thread;
    bool started;
    ig_status st;
    ig_err err;
} worker;

/* ---- a thread ------------------------------------------------------------------------------------------ */

static void note(void *ud, const char *text) {
    job *j = ud;
    news n = {.whole = NULL};
    snprintf(n.text, sizeof n.text, "%s", text);
    ig_queue_push(j->queue, &n); /* full: so much is going on that one more line helps nobody */
}

static void tell_whole(job *j, const ig_hub_file *f) {
    news n = {.whole = f};
    while (!ig_queue_push(j->queue, &n) && ig_hub_sleep(j->c, 0.01)) {
    }
}

static void *work(void *arg) {
    worker *w = arg;
    job *j = w->j;
    ig_hub_http *http = NULL;
    w->st = ig_hub_http_open(&http, j->c, &w->err);
    while (!w->st && !atomic_load(&j->stop)) {
        int i = atomic_fetch_add(&j->next, 1);
        if (i >= j->n_todo) break;
        const ig_hub_blob b = {.config = j->c,
                               .http = http,
                               .repo = j->r->name,
                               .commit = j->r->commit,
                               .folder = j->blobs,
                               .file = j->todo[i],
                               .force = j->o->force,
                               .verify = j->o->verify,
                               .done_bytes = &j->done[i],
                               .note = note,
                               .ud = j};
        w->st = ig_hub_blob_get(&b, &w->err);
        if (!w->st) tell_whole(j, j->todo[i]);
    }
    if (w->st) atomic_store(&j->stop, 1);
    ig_hub_http_close(http);
    return NULL;
}

/* ---- how it goes --------------------------------------------------------------------------------------- */

typedef struct meter {
    uint64_t ns[RATE_SAMPLES], bytes[RATE_SAMPLES];
    int n; /* ever taken */
    uint64_t shown;
} meter;

static uint64_t done_bytes(const job *j, const ig_hub_file **largest) {
    uint64_t sum = 0, most = 0;
    *largest = NULL;
    for (int i = 0; i < j->n_todo; i++) {
        uint64_t done = atomic_load(&j->done[i]), left = j->todo[i]->bytes - done;
        sum += done;
        if (i < atomic_load(&j->next) && left > most) most = left, *largest = j->todo[i];
    }
    return sum;
}

static void report(const job *j, meter *m, int n_whole, uint64_t total) {
    const ig_hub_file *largest;
    uint64_t now = ig_clock_ns(), done = done_bytes(j, &largest);
    if (done < m->shown) done = m->shown; /* a damaged MiB is fetched again: no step back for that */
    m->shown = done;
    m->ns[m->n % RATE_SAMPLES] = now;
    m->bytes[m->n % RATE_SAMPLES] = done;
    int oldest = m->n < RATE_SAMPLES ? 0 : (m->n + 1) % RATE_SAMPLES;
    double s = (double)(now - m->ns[oldest]) / 1e9;
    m->n++;
    const ig_hub_event e = {.kind = IG_HUB_EVENT_PROGRESS,
                            .file = largest ? largest->path : NULL,
                            .file_bytes = largest ? largest->bytes : 0,
                            .done_bytes = done,
                            .total_bytes = total,
                            .done_files = n_whole,
                            .total_files = j->n_todo,
                            .bytes_per_s = s > 0.1 ? (double)(done - m->bytes[oldest]) / s : 0};
    if (j->o->event) j->o->event(j->o->ud, &e);
}

static void tell(const job *j, const news *n) {
    const ig_hub_file *f = n->whole;
    const ig_hub_event e = {.kind = f ? IG_HUB_EVENT_FILE : IG_HUB_EVENT_NOTE,
                            .text = f ? NULL : n->text,
                            .file = f ? f->path : NULL,
                            .file_bytes = f ? f->bytes : 0};
    if (j->o->event) j->o->event(j->o->ud, &e);
}

/* Until no thread works any more: each that ends is one news less to wait for. */
static void follow(job *j, worker *w, int n_workers, uint64_t total) {
    meter m = {.n = 0};
    int n_whole = 0, running = n_workers;
    uint64_t last_ns = 0;
    while (running) {
        news n;
        if (ig_queue_pop(j->queue, &n, (int64_t)EVENT_EVERY_MS * 1000000)) {
            n_whole += n.whole != NULL;
            tell(j, &n);
        }
        for (int i = 0; i < n_workers; i++) {
            if (!w[i].started || pthread_tryjoin_np(w[i].thread, NULL) != 0) continue;
            w[i].started = false;
            running--;
        }
        if (running && ig_clock_ns() - last_ns < (uint64_t)EVENT_EVERY_MS * 1000000) continue;
        last_ns = ig_clock_ns();
        if (!running) {
            while (ig_queue_pop(j->queue, &n, 0)) {
                n_whole += n.whole != NULL;
                tell(j, &n);
            }
        }
        report(j, &m, n_whole, total);
    }
}

/* ---- what is to be done -------------------------------------------------------------------------------- */

static bool is_there(const char *blobs, const ig_hub_file *f) {
    char path[4096];
    struct stat info;
    return (size_t)snprintf(path, sizeof path, "%s/%s", blobs, f->hash) < sizeof path &&
           stat(path, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size == f->bytes;
}

static uint64_t part_bytes(const char *blobs, const ig_hub_file *f) {
    char path[4096];
    struct stat info;
    if ((size_t)snprintf(path, sizeof path, "%s/%s.incomplete", blobs, f->hash) >= sizeof path ||
        stat(path, &info) != 0)
        return 0;
    return (uint64_t)info.st_size < f->bytes ? (uint64_t)info.st_size : f->bytes;
}

static int by_hash(const void *a, const void *b) {
    const ig_hub_file *const *x = a, *const *y = b;
    int order = strcmp((*x)->hash, (*y)->hash);
    return order ? order : *x < *y ? -1 : *x > *y;
}

/* The wanted files, each hash once: files of one hash are one in the cache. malloc'd, NULL: no memory. */
static const ig_hub_file **list_wanted(const ig_hub_repo *r, int *n) {
    const ig_hub_file **v = calloc((size_t)r->n + 1, sizeof *v);
    int all = 0;
    *n = 0;
    for (int i = 0; v && i < r->n; i++)
        if (r->v[i].wanted) v[all++] = &r->v[i];
    if (all) qsort(v, (size_t)all, sizeof *v, by_hash);
    for (int i = 0; i < all; i++)
        if (*n == 0 || strcmp(v[*n - 1]->hash, v[i]->hash) != 0) v[(*n)++] = v[i];
    return v;
}

void ig_hub_missing(uint64_t *bytes, int *n_files, const ig_hub_config *c, const ig_hub_repo *r) {
    int n = 0;
    char *blobs = ig_hub_repo_path(c->cache, r->name, "blobs");
    const ig_hub_file **v = list_wanted(r, &n);
    *bytes = 0;
    *n_files = 0;
    for (int i = 0; blobs && v && i < n; i++) {
        if (is_there(blobs, v[i])) continue;
        *bytes += v[i]->bytes - part_bytes(blobs, v[i]);
        ++*n_files;
    }
    free(v);
    free(blobs);
}

static ig_status check_space(const job *j, ig_err *err) {
    struct statvfs fs;
    uint64_t bytes;
    int n;
    ig_hub_missing(&bytes, &n, j->c, j->r);
    if (j->o->force)
        for (int i = bytes = 0; i < j->n_todo; i++) bytes += j->todo[i]->bytes;
    if (statvfs(j->c->cache, &fs) != 0) return ig_fail(err, IG_EIO, "%s: %s", j->c->cache, strerror(errno));
    const uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize, need = bytes + bytes / 100;
    if (need <= free_bytes) return IG_OK;
    return ig_fail(err, IG_EIO, "%s needs %" PRIu64 " MB more, %s has %" PRIu64 " MB free", j->r->name,
                   need / 1000000 + 1, j->c->cache, free_bytes / 1000000);
}

/* The largest first, so that the end is not one large file alone. */
static int by_size(const void *a, const void *b) {
    const ig_hub_file *const *x = a, *const *y = b;
    if ((*x)->bytes != (*y)->bytes) return (*x)->bytes < (*y)->bytes ? 1 : -1;
    return *x < *y ? -1 : *x > *y;
}

static ig_status list_todo(job *j, ig_err *err) {
    j->todo = list_wanted(j->r, &j->n_todo);
    j->done = calloc((size_t)j->n_todo + 1, sizeof *j->done);
    if (!j->todo || !j->done) return ig_fail(err, IG_ELIMIT, "no memory for %d files", j->r->n);
    if (j->n_todo) qsort(j->todo, (size_t)j->n_todo, sizeof *j->todo, by_size);
    return IG_OK;
}

static ig_status run_workers(job *j, ig_err *err) {
    worker w[JOBS_MAX];
    int n = j->o->n_jobs < 1 ? 1 : j->o->n_jobs > JOBS_MAX ? JOBS_MAX : j->o->n_jobs, started = 0;
    uint64_t total = 0;
    for (int i = 0; i < j->n_todo; i++) total += j->todo[i]->bytes;
    if (n > j->n_todo) n = j->n_todo > 0 ? j->n_todo : 1;
    for (; started < n; started++) {
        w[started] = (worker){.j = j};
        w[started].started = pthread_create(&w[started].thread, NULL, work, &w[started]) == 0;
        if (!w[started].started) break;
    }
    if (!started) return ig_fail(err, IG_ELIMIT, "no thread can be started");
    follow(j, w, started, total);
    /* A stop is the reason of whoever noticed it first; what the others say then is its consequence. */
    for (int i = 0; i < started; i++)
        if (w[i].st && w[i].st != IG_ECANCELED) return ig_fail(err, w[i].st, "%s", w[i].err.msg);
    for (int i = 0; i < started; i++)
        if (w[i].st) return ig_fail(err, w[i].st, "%s", w[i].err.msg);
    return IG_OK;
}

static bool is_config(const char *path) {
    return strcmp(path, "config.json") == 0;
}

static ig_status link_all(const job *j, ig_err *err) {
    ig_status st = IG_OK;
    char *top = ig_hub_repo_path(j->c->cache, j->r->name, NULL);
    if (!top) return ig_fail(err, IG_ELIMIT, "no memory");
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < j->r->n && !st; i++)
            if (j->r->v[i].wanted && is_config(j->r->v[i].path) == last)
                st = ig_hub_link(top, j->r->commit, j->r->v[i].path, j->r->v[i].hash, err);
    if (!st) st = ig_hub_ref_write(top, j->r->revision, j->r->commit, err);
    free(top);
    return st;
}

char *ig_hub_snapshot_path(const char *cache, const ig_hub_repo *r, const char *path) {
    char below[64 + IG_HUB_PATH_BYTES];
    snprintf(below, sizeof below, "snapshots/%s%s%s", r->commit, path ? "/" : "", path ? path : "");
    return ig_hub_repo_path(cache, r->name, below);
}

ig_status ig_hub_fetch_run(const ig_hub_config *c, const ig_hub_repo *r, const ig_hub_fetch *o, ig_err *err) {
    job j = {.c = c, .r = r, .o = o};
    ig_hub_lock lock = {-1, NULL};
    ig_err own;
    int holder;
    if (!err) err = &own;
    ig_status st = list_todo(&j, err);
    j.blobs = ig_hub_repo_path(c->cache, r->name, "blobs");
    if (!st && !j.blobs) st = ig_fail(err, IG_ELIMIT, "no memory");
    if (!st) st = ig_hub_make_dirs(j.blobs, err);
    if (!st)
        st = ig_hub_lock_try(&lock, c->cache, r->name, IG_HUB_JOB_LOCK, IG_HUB_LOCK_SHARED, &holder, err);
    if (!st) st = check_space(&j, err);
    if (!st) st = ig_queue_make(&j.queue, NOTES_MAX, sizeof(news), err);
    if (!st) st = run_workers(&j, err);
    if (!st) st = link_all(&j, err);
    ig_queue_free(j.queue);
    ig_hub_lock_end(&lock);
    free(j.blobs);
    free(j.done);
    free(j.todo);
    return st;
}
