/* blob: one file, whole and right, under its hash in the cache.
 * How:     HASH.incomplete grows from its start; HASH.incomplete.chunks beside it holds the XXH3 of every
 *          finished MiB. A later try reads both: a chunk that disagrees is damaged and alone fetched again.
 *          A chunk whose beginning another process wrote is not vouched for (0 in the list).
 *          Whole but of the wrong hash: chunks nobody vouches for are fetched again, then all; what
 *          differs is replaced; then it is given up. fsync, rename, fsync of the folder.
 * Threads: one a blob; the lock keeps other processes (Python's too) away.
 * Memory:  one chunk, and 8 bytes for each.
 * Why XXH3 for the chunks: they guard against disks and cables. Against people there is the hub's SHA-256. */
#include "hub/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 1 << 20,
    HEAD_BYTES = 32,
    FILE_MODE = 0666,
    URL_MAX = 8192,
    REPAIRS_MAX = 4,        /* of one file, whatever the server sends */
    PROGRESS_BYTES = 65536, /* a connection that brought this much was no failure */
    BUSY_POLL_MS = 200,
    BUSY_MAX_S = 600 /* the other process has added nothing for so long */
};
static const char magic[8] = {'i', 'g', 'c', 'h', 'u', 'n', 'k', '1'};

typedef struct work {
    const ig_hub_blob *b;
    char *whole, *part, *list; /* HASH, HASH.incomplete, HASH.incomplete.chunks */
    char *url;
    int fd, list_fd;
    uint64_t *hash; /* of each chunk; 0: nobody vouches for it */
    uint64_t n_chunks;
    uint8_t *buf; /* the chunk that is filling */
    EVP_MD_CTX *md;
    bool no_range; /* the server does not know ranges */
    /* of the request that runs */
    uint64_t at, end, skip; /* the next byte to come is `at`, the last wanted one before `end`; skip first */
    uint64_t n_buf;
    bool append;   /* else: compare, and replace what differs */
    bool vouched;  /* the whole chunk in buf came from one process */
    bool over;     /* more came than was wanted: enough */
    bool hopeless; /* trying again is of no use */
    uint64_t n_replaced;
} work;

static uint64_t chunk_from(uint64_t i) {
    return i * CHUNK_BYTES;
}
static uint64_t chunk_end(const work *w, uint64_t i) {
    uint64_t end = (i + 1) * CHUNK_BYTES;
    return end < w->b->file->bytes ? end : w->b->file->bytes;
}

/* 0 means that nobody vouches, so no hash is 0. */
static uint64_t hash_of(const uint8_t *p, uint64_t n) {
    uint64_t h = ig_hash64(p, n, 0);
    return h ? h : 1;
}

/* ---- disk ---------------------------------------------------------------------------------------------- */

static ig_status put(const work *w, const uint8_t *p, uint64_t n, uint64_t at, ig_err *err) {
    while (n > 0) {
        ssize_t done = pwrite(w->fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return ig_fail(err, IG_EIO, "%s: write: %s", w->part,
                           done ? strerror(errno) : "nothing was written");
        p += done, at += (uint64_t)done, n -= (uint64_t)done;
    }
    return IG_OK;
}

/* Whole or an error. */
static ig_status get(const work *w, uint8_t *p, uint64_t n, uint64_t at, ig_err *err) {
    while (n > 0) {
        ssize_t done = pread(w->fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return ig_fail(err, IG_EIO, "%s: read: %s", w->part, done ? strerror(errno) : "it shrank");
        p += done, at += (uint64_t)done, n -= (uint64_t)done;
    }
    return IG_OK;
}

/* The list is a help and no more: what cannot be written down is not vouched for at the next try. */
static void drop_list(work *w) {
    close(w->list_fd);
    w->list_fd = -1;
    unlink(w->list);
}

static void vouch(work *w, uint64_t i, uint64_t hash) {
    w->hash[i] = hash;
    if (w->list_fd >= 0 && pwrite(w->list_fd, &hash, sizeof hash, (off_t)(HEAD_BYTES + 8 * i)) != sizeof hash)
        drop_list(w);
}

typedef struct list_head {
    char magic[8];
    uint64_t chunk_bytes, file_bytes, zero;
} list_head;
_Static_assert(sizeof(list_head) == HEAD_BYTES, "as written to disk");

/* The hashes of an earlier try, when it was about the same file; else a fresh list. */
static ig_status open_list(work *w, ig_err *err) {
    const uint64_t n_bytes = w->n_chunks * sizeof *w->hash;
    list_head want = {.chunk_bytes = CHUNK_BYTES, .file_bytes = w->b->file->bytes}, head;
    memcpy(want.magic, magic, sizeof magic);
    w->list_fd = open(w->list, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (w->list_fd < 0) return ig_fail(err, IG_EIO, "%s: %s", w->list, strerror(errno));
    if (pread(w->list_fd, &head, sizeof head, 0) == sizeof head && memcmp(&head, &want, sizeof head) == 0) {
        ssize_t got = n_bytes ? pread(w->list_fd, w->hash, n_bytes, HEAD_BYTES) : 0;
        /* What was not written yet stays 0. */
        if (got >= 0) memset((uint8_t *)w->hash + got / 8 * 8, 0, n_bytes - (uint64_t)got / 8 * 8);
        return IG_OK;
    }
    if (ftruncate(w->list_fd, 0) != 0 || pwrite(w->list_fd, &want, sizeof want, 0) != sizeof want)
        drop_list(w);
    return IG_OK;
}

/* ---- the sum of everything ----------------------------------------------------------------------------- */

static bool is_git(const work *w) {
    return strlen(w->b->file->hash) == 40;
}

static ig_status sum_begin(work *w, ig_err *err) {
    char head[48];
    int n = snprintf(head, sizeof head, "blob %" PRIu64, w->b->file->bytes) + 1; /* with its NUL */
    if (EVP_DigestInit_ex(w->md, is_git(w) ? EVP_sha1() : EVP_sha256(), NULL) != 1 ||
        (is_git(w) && EVP_DigestUpdate(w->md, head, (size_t)n) != 1))
        return ig_fail(err, IG_EIO, "libcrypto has no %s", is_git(w) ? "SHA-1" : "SHA-256");
    return IG_OK;
}

static void sum_add(work *w, const uint8_t *p, uint64_t n) {
    int good = EVP_DigestUpdate(w->md, p, n);
    ig_assert(good == 1);
}

static void sum_end(work *w, char out[IG_HUB_HASH_BYTES]) {
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int good = EVP_DigestFinal_ex(w->md, sum, &n);
    ig_assert(good == 1 && 2 * n < IG_HUB_HASH_BYTES);
    for (unsigned i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static void said(const work *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void said(const work *w, const char *fmt, ...) {
    char text[IG_ERR_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (w->b->note) w->b->note(w->b->ud, text);
}

static void set_done(const work *w, uint64_t bytes) {
    atomic_store(w->b->done_bytes, bytes);
}

/* ---- what comes ---------------------------------------------------------------------------------------- */

/* The chunk in buf is full, or the last one. */
static ig_status chunk_done(work *w, ig_err *err) {
    const uint64_t i = (w->at - w->n_buf) / CHUNK_BYTES;
    const uint64_t now = hash_of(w->buf, w->n_buf);
    if (w->append) {
        vouch(w, i, w->vouched ? now : 0);
    } else {
        uint8_t *old = malloc(CHUNK_BYTES);
        if (!old) return ig_fail(err, IG_ELIMIT, "no memory");
        ig_status st = get(w, old, w->n_buf, chunk_from(i), err);
        bool same = !st && memcmp(old, w->buf, w->n_buf) == 0;
        free(old);
        if (st) return st;
        /* Twice the same from the network: that is what the hub has. Else the newer, and no word for it. */
        if (!same) st = put(w, w->buf, w->n_buf, chunk_from(i), err);
        if (st) return st;
        vouch(w, i, same ? now : 0);
        w->n_replaced += !same;
    }
    w->n_buf = 0;
    w->vouched = true;
    return IG_OK;
}

static ig_status take(void *ud, const uint8_t *p, size_t n, ig_err *err) {
    work *w = ud;
    if (w->skip) { /* the server sends from the start, although it was asked for a part */
        uint64_t m = n < w->skip ? n : w->skip;
        w->skip -= m, p += m, n -= m;
    }
    while (n > 0) {
        if (w->at == w->end) {
            w->over = true;
            return ig_fail(err, IG_ENETWORK, "more bytes come than were asked for");
        }
        const uint64_t i = w->at / CHUNK_BYTES;
        uint64_t stop = chunk_end(w, i) < w->end ? chunk_end(w, i) : w->end;
        uint64_t m = stop - w->at < n ? stop - w->at : n;
        memcpy(w->buf + w->n_buf, p, m);
        if (w->append) {
            ig_status st = put(w, p, m, w->at, err);
            if (st) return st;
            sum_add(w, p, m);
        }
        w->n_buf += m, w->at += m, p += m, n -= m;
        if (w->append) set_done(w, w->at);
        if (w->at == chunk_end(w, i)) {
            ig_status st = chunk_done(w, err);
            if (st) return st;
        }
    }
    return IG_OK;
}

/* Is it the answer to what was asked, about the file that was told of? */
static ig_status check_head(void *ud, const ig_hub_answer *a, ig_err *err) {
    work *w = ud;
    const ig_hub_file *f = w->b->file;
    if ((a->commit[0] && strcmp(a->commit, w->b->commit) != 0) ||
        (a->hash[0] && strlen(a->hash) == strlen(f->hash) && strcmp(a->hash, f->hash) != 0)) {
        w->hopeless = true;
        return ig_fail(err, IG_ENETWORK, "the file on the hub has changed meanwhile; please run this again");
    }
    if (a->status == 206) {
        if (!a->has_range || a->range_from != w->at || a->range_end > w->end ||
            (a->range_total >= 0 && (uint64_t)a->range_total != f->bytes)) {
            w->hopeless = w->no_range;
            w->no_range = true; /* once more, for the whole */
            return ig_fail(err, IG_ENETWORK,
                           "asked for bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64
                           ", the server sends others",
                           w->at, w->end, f->bytes);
        }
        w->skip = 0;
        return IG_OK;
    }
    if (a->content_bytes >= 0 && (uint64_t)a->content_bytes != f->bytes) {
        w->hopeless = true;
        return ig_fail(err, IG_ENETWORK, "the server sends %" PRId64 " bytes, the hub told of %" PRIu64,
                       a->content_bytes, f->bytes);
    }
    w->skip = w->at; /* 200: all of it */
    return IG_OK;
}

/* Bytes [from, end), with as many connections as it takes. `append`: they follow what is summed already. */
static ig_status fetch(work *w, uint64_t from, uint64_t end, bool append, ig_err *err) {
    const ig_hub_config *c = w->b->config;
    ig_hub_answer a;
    ig_status st = IG_OK;
    if (!append) w->n_buf = 0, w->vouched = true;
    w->at = from;
    w->end = end;
    w->append = append;
    for (int failures = 0; !st && w->at < end;) {
        const uint64_t before = w->at;
        ig_hub_request r = {.url = w->url,
                            .repo = w->b->repo,
                            .ranged = !w->no_range && (w->at > 0 || end < w->b->file->bytes),
                            .from = w->at,
                            .end = end,
                            .head = check_head,
                            .body = take,
                            .ud = w};
        w->skip = 0;
        w->hopeless = w->over = false;
        st = ig_hub_http_get(w->b->http, &r, &a, w->b->file->path, err);
        if ((!st || w->over) && w->at == end) return IG_OK; /* whether they are right the sum will say */
        if (!st) {
            st = ig_fail(err, IG_ENETWORK, "%s: %" PRIu64 " of %" PRIu64 " bytes came", w->b->file->path,
                         w->at, end);
            a.again = true;
        }
        if (st == IG_ECANCELED || w->hopeless) break;
        if (a.status == 416 && !w->no_range) { /* it denies what it told of: ask for all of it */
            w->no_range = a.again = true;
        } else if (a.status == 200 || a.status == 206) {
            a.again = st == IG_ENETWORK;
        }
        if (!a.again) break;
        if (!append) w->at -= w->n_buf, w->n_buf = 0; /* a chunk is compared whole */
        if (w->at >= before + PROGRESS_BYTES) failures = 0;
        st = ig_hub_http_wait(c, &a, ++failures, w->b->note, w->b->ud, err);
    }
    return st;
}

/* ---- what is there ------------------------------------------------------------------------------------- */

/* Reads chunks [0, n_bytes) and sums them. Damaged ones (their hash in the list disagrees) lose that hash and
 * are counted, and with the first of them the summing ends. */
static ig_status read_over(work *w, uint64_t n_bytes, uint64_t *n_damaged, ig_err *err) {
    ig_status st = sum_begin(w, err);
    *n_damaged = 0;
    for (uint64_t at = 0; !st && at < n_bytes;) {
        const uint64_t i = at / CHUNK_BYTES, end = chunk_end(w, i) < n_bytes ? chunk_end(w, i) : n_bytes;
        if (ig_hub_stopped(w->b->config)) return ig_fail(err, IG_ECANCELED, "stopped");
        st = get(w, w->buf, end - at, at, err);
        if (st) break;
        if (end == chunk_end(w, i) && w->hash[i] && w->hash[i] != hash_of(w->buf, end - at)) {
            w->hash[i] = 0;
            ++*n_damaged;
        }
        sum_add(w, w->buf, end - at);
        if (!*n_damaged) set_done(w, end);
        at = end;
        w->n_buf = end == chunk_end(w, i) ? 0 : end - chunk_from(i);
    }
    return st;
}

/* Fetches again: chunks below n_bytes that nobody vouches for, or all. Neighbours in one request. */
static ig_status fetch_again(work *w, uint64_t n_bytes, bool all, ig_err *err) {
    ig_status st = IG_OK;
    const uint64_t n = (n_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    for (uint64_t i = 0, j; !st && i < n; i = j) {
        for (j = i; j < n && (all || !w->hash[j]); j++) {
        }
        if (j > i)
            st = fetch(w, chunk_from(i), chunk_end(w, j - 1), false, err);
        else
            j++;
    }
    return st;
}

static uint64_t count_unvouched(const work *w, uint64_t n_bytes) {
    uint64_t n = 0;
    for (uint64_t i = 0; chunk_from(i) < n_bytes; i++) n += w->hash[i] == 0;
    return n;
}

/* Only whole chunks can be damaged or vouched for; the rest of an earlier try is kept, unvouched. */
static ig_status resume(work *w, uint64_t *have, ig_err *err) {
    struct stat info;
    uint64_t n_damaged;
    if (fstat(w->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return ig_fail(err, IG_EIO, "%s is not a file of ours", w->part);
    *have = (uint64_t)info.st_size;
    if (*have > w->b->file->bytes) { /* what is too much came from nowhere that we know */
        *have = w->b->file->bytes;
        if (ftruncate(w->fd, (off_t)*have) != 0)
            return ig_fail(err, IG_EIO, "%s: %s", w->part, strerror(errno));
    }
    ig_status st = read_over(w, *have, &n_damaged, err);
    for (int i = 0; !st && n_damaged; i++) {
        if (i == REPAIRS_MAX)
            return ig_fail(err, IG_EIO, "%s: the disk does not keep what is written", w->part);
        said(w, "%s: %" PRIu64 " MiB of what was here are damaged; fetching those again", w->b->file->path,
             n_damaged);
        /* Their hashes are 0 now, as are those that nobody ever vouched for; both are fetched. */
        st = fetch_again(
            w, *have / CHUNK_BYTES * CHUNK_BYTES + (*have == w->b->file->bytes ? *have % CHUNK_BYTES : 0),
            false, err);
        if (!st) st = read_over(w, *have, &n_damaged, err);
    }
    w->vouched = w->n_buf == 0;
    return st;
}

/* ---- from nothing to a name ---------------------------------------------------------------------------- */

static void forget(const work *w) {
    unlink(w->part);
    unlink(w->list);
}

/* All bytes are there and their sum is in md. */
static ig_status check_sum(work *w, ig_err *err) {
    const ig_hub_file *f = w->b->file;
    char sum[IG_HUB_HASH_BYTES];
    bool all_seen = false;
    for (int i = 0;; i++) {
        uint64_t n_damaged = 1;
        ig_status st = IG_OK;
        sum_end(w, sum);
        if (strcmp(sum, f->hash) == 0) return IG_OK;
        uint64_t n_open = count_unvouched(w, f->bytes);
        if (i == REPAIRS_MAX || (all_seen && !n_open)) {
            forget(w);
            return ig_fail(err, IG_EFORMAT,
                           "%s: its %s is %s, the hub says %s; fetched again it is the same, so "
                           "the hub's copy is damaged, or something in between changes it",
                           f->path, is_git(w) ? "git hash" : "SHA-256", sum, f->hash);
        }
        said(w, "%s: wrong checksum; fetching %s again", f->path, n_open ? "a part" : "it");
        w->n_replaced = 0;
        /* What was vouched for came like that; with nothing else to doubt, the network is doubted. */
        st = fetch_again(w, f->bytes, n_open == 0, err);
        all_seen = all_seen || n_open == 0;
        while (!st && n_damaged) st = read_over(w, f->bytes, &n_damaged, err);
        if (st) return st;
        if (w->n_replaced) said(w, "%s: %" PRIu64 " MiB were wrong", f->path, w->n_replaced);
    }
}

/* The list goes first: behind the name nothing may be left over, whenever this ends. */
static ig_status finish(work *w, ig_err *err) {
    if (fsync(w->fd) != 0) return ig_fail(err, IG_EIO, "%s: sync: %s", w->part, strerror(errno));
    unlink(w->list);
    if (rename(w->part, w->whole) != 0)
        return ig_fail(err, IG_EIO, "%s: rename: %s", w->part, strerror(errno));
    return ig_hub_sync_dir(w->b->folder, err);
}

static bool is_there(const work *w) {
    struct stat info;
    return !w->b->force && stat(w->whole, &info) == 0 && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size == w->b->file->bytes;
}

/* Has the finished file the bytes that it should have? One that has not stays until there is a right one. */
static ig_status is_right(work *w, bool *right, ig_err *err) {
    char sum[IG_HUB_HASH_BYTES];
    uint64_t n_damaged;
    w->fd = open(w->whole, O_RDONLY | O_CLOEXEC);
    if (w->fd < 0) return ig_fail(err, IG_EIO, "%s: %s", w->whole, strerror(errno));
    ig_status st = read_over(w, w->b->file->bytes, &n_damaged, err);
    if (!st) {
        sum_end(w, sum);
        *right = strcmp(sum, w->b->file->hash) == 0;
        if (!*right) said(w, "%s: what is here is damaged; fetching it again", w->b->file->path);
    }
    close(w->fd);
    w->fd = -1;
    set_done(w, 0);
    return st;
}

static uint64_t size_now(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

/* Another process may be at the same file: then it is waited for, as long as it gets on. */
static ig_status lock(const work *w, ig_hub_lock *l, ig_err *err) {
    uint64_t size = size_now(w->part), since = ig_clock_ns();
    for (bool told = false;;) {
        int holder;
        ig_status st = ig_hub_lock_try(l, w->b->config->cache, w->b->repo, w->b->file->hash,
                                       IG_HUB_LOCK_WHOLE, &holder, err);
        if (st != IG_EBUSY) return st;
        if (!told) said(w, "%s: %s fetches it; waiting", w->b->file->path, ig_hub_process_text(holder).s);
        told = true;
        if (!ig_hub_sleep(w->b->config, BUSY_POLL_MS / 1e3)) return ig_fail(err, IG_ECANCELED, "stopped");
        uint64_t now = size_now(w->part);
        if (now != size) size = now, since = ig_clock_ns();
        set_done(w, now < w->b->file->bytes ? now : w->b->file->bytes);
        if (ig_clock_ns() - since > (uint64_t)BUSY_MAX_S * 1000000000u)
            return ig_fail(err, IG_EBUSY, "%s: %s holds it and has not got on for %d s",
                           w->b->file->path, ig_hub_process_text(holder).s, BUSY_MAX_S);
    }
}

static ig_status prepare(work *w, ig_err *err) {
    const ig_hub_blob *b = w->b;
    ig_buf url = ig_buf_init(URL_MAX);
    w->n_chunks = (b->file->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    w->hash = calloc(w->n_chunks ? w->n_chunks : 1, sizeof *w->hash);
    w->buf = malloc(CHUNK_BYTES);
    w->md = EVP_MD_CTX_new();
    bool good = w->hash && w->buf && w->md && asprintf(&w->whole, "%s/%s", b->folder, b->file->hash) >= 0 &&
                asprintf(&w->part, "%s.incomplete", w->whole) >= 0 &&
                asprintf(&w->list, "%s.chunks", w->part) >= 0 &&
                ig_buf_addf(&url, "%s/%s/resolve/%s/", b->config->endpoint, b->repo, b->commit) &&
                ig_hub_url_add(&url, b->file->path, true);
    w->url = url.p;
    return good ? IG_OK : ig_fail(err, IG_ELIMIT, "%s: no memory", b->file->path);
}

ig_status ig_hub_blob_get(const ig_hub_blob *b, ig_err *err) {
    work w = {.b = b, .fd = -1, .list_fd = -1, .vouched = true};
    ig_hub_lock l = {-1, NULL};
    uint64_t have = 0;
    ig_err own;
    if (!err) err = &own;
    ig_status st = prepare(&w, err);
    bool right = !b->verify;
    if (!st && right && is_there(&w)) goto there;
    if (!st) st = lock(&w, &l, err);
    if (!st && !right && is_there(&w)) st = is_right(&w, &right, err);
    if (!st && right && is_there(&w)) goto there;
    if (!st && b->force) forget(&w);
    if (!st && (w.fd = open(w.part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE)) < 0)
        st = ig_fail(err, IG_EIO, "%s: %s", w.part, strerror(errno));
    if (!st) st = open_list(&w, err);
    if (!st) st = resume(&w, &have, err);
    if (!st) st = fetch(&w, have, b->file->bytes, true, err);
    if (!st) st = check_sum(&w, err);
    if (!st) st = finish(&w, err);
there:
    if (!st) set_done(&w, b->file->bytes);
    if (w.fd >= 0) close(w.fd);
    if (w.list_fd >= 0) close(w.list_fd);
    ig_hub_lock_end(&l);
    EVP_MD_CTX_free(w.md);
    free(w.url);
    free(w.list);
    free(w.part);
    free(w.whole);
    free(w.buf);
    free(w.hash);
    return st;
}
