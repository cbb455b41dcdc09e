/* A whole job against a server in this process, so that the sanitizers see every thread and every byte of it. The
 * many ways in which a hub can misbehave are in tests/e2e/test_get.py. */
#include "base/test.h"
#include "hub/inside.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHA "0123456789abcdef0123456789abcdef01234567"
enum { N_FILES = 6, BIG = 3 * (1 << 20) + 17, REQUEST_MAX = 8192 };

/* ---- the server ---------------------------------------------------------------------------------------- */

typedef struct server {
    int fd, port;
    pthread_t thread;
    uint8_t *bytes[N_FILES];
    size_t n_bytes[N_FILES];
    _Atomic int n_requests;
    _Atomic size_t cut_after;    /* bytes of a body before the connection breaks; 0: never */
    _Atomic int n_cuts, n_flips; /* how often; n_flips: a bit of a body is wrong */
    _Atomic int listing_bad;
} server;

static void hex_of(char out[IG_HUB_HASH_BYTES], const uint8_t *p, size_t n) {
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned m = 0;
    if (EVP_Digest(p, n, sum, &m, EVP_sha256(), NULL) != 1) abort();
    for (unsigned i = 0; i < m; i++) snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static bool send_all(int fd, const void *p, size_t n) {
    for (const char *at = p; n > 0;) {
        ssize_t put = send(fd, at, n, MSG_NOSIGNAL);
        if (put <= 0) return false;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

static bool take_one(_Atomic int *left) {
    int n = atomic_load(left);
    while (n > 0)
        if (atomic_compare_exchange_weak(left, &n, n - 1)) return true;
    return false;
}

static void send_list(server *s, int fd) {
    ig_buf b = ig_buf_init(65536), head = ig_buf_init(1024);
    ig_buf_addf(&b, "{\"sha\":\"%s\",\"siblings\":[", atomic_load(&s->listing_bad) ? "x" : SHA);
    for (int i = 0; i < N_FILES; i++) {
        char hash[IG_HUB_HASH_BYTES];
        hex_of(hash, s->bytes[i], s->n_bytes[i]);
        ig_buf_addf(&b, "%s{\"rfilename\":\"%s%d.safetensors\",\"lfs\":{\"sha256\":\"%s\",\"size\":%zu}}",
                    i ? "," : "", i == 1 ? "sub/f" : "f", i, hash, s->n_bytes[i]);
    }
    ig_buf_add_str(&b, "]}");
    ig_buf_addf(&head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", b.n);
    if (send_all(fd, head.p, head.n)) send_all(fd, b.p, b.n);
    ig_buf_free(&head);
    ig_buf_free(&b);
}

static bool send_file(server *s, int fd, int i, const char *request) {
    const char *range = strcasestr(request, "\r\nRange: bytes=");
    size_t from = range ? strtoul(range + 15, NULL, 10) : 0, n = s->n_bytes[i];
    char head[256];
    if (from >= n && n) return false;
    size_t m = snprintf(head, sizeof head,
                        range ? "HTTP/1.1 206 Part\r\nContent-Length: %zu\r\nContent-Range: bytes "
                                "%zu-%zu/%zu\r\n\r\n"
                              : "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                        n - from, from, n - 1, n);
    if (!send_all(fd, head, m)) return false;
    size_t cut = atomic_load(&s->cut_after), part = n - from;
    bool cuts = cut && part > cut && take_one(&s->n_cuts);
    if (cuts) part = cut;
    uint8_t *copy = malloc(part + 1);
    if (!copy) abort();
    if (part) memcpy(copy, s->bytes[i] + from, part);
    if (part > 1000 && take_one(&s->n_flips)) copy[part / 2] ^= 4;
    bool good = send_all(fd, copy, part) && !cuts;
    free(copy);
    return good;
}

typedef struct guest {
    server *s;
    int fd;
} guest;

static void *serve_one(void *arg) {
    guest g = *(guest *)arg;
    char request[REQUEST_MAX + 1];
    size_t n = 0;
    free(arg);
    for (bool good = true; good;) {
        ssize_t got = recv(g.fd, request + n, REQUEST_MAX - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        request[n] = 0;
        if (!strstr(request, "\r\n\r\n")) continue;
        n = 0;
        atomic_fetch_add(&g.s->n_requests, 1);
        const char *file = strstr(request, "/resolve/");
        const char *digit = file ? strstr(file, ".safetensors") : NULL;
        if (!file)
            send_list(g.s, g.fd);
        else
            good = digit && send_file(g.s, g.fd, digit[-1] - '0', request);
    }
    close(g.fd);
    return NULL;
}

static void *serve(void *arg) {
    server *s = arg;
    for (int fd; (fd = accept(s->fd, NULL, NULL)) >= 0;) {
        pthread_t t;
        guest *g = malloc(sizeof *g);
        if (!g) abort();
        *g = (guest){s, fd};
        if (pthread_create(&t, NULL, serve_one, g) != 0) abort();
        pthread_detach(t);
    }
    return NULL;
}

static bool start(server *s) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *s = (server){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (bind(s->fd, (struct sockaddr *)&a, sizeof a) || listen(s->fd, 16) ||
        getsockname(s->fd, (struct sockaddr *)&a, &n))
        return false;
    s->port = ntohs(a.sin_port);
    for (int i = 0; i < N_FILES; i++) {
        s->n_bytes[i] = i == 0 ? BIG : i == 2 ? 0 : 1000u * (unsigned)i;
        s->bytes[i] = malloc(s->n_bytes[i] + 1);
        if (!s->bytes[i]) abort();
        for (size_t k = 0; k < s->n_bytes[i]; k++)
            s->bytes[i][k] = (uint8_t)ig_rng_word(7, (uint32_t)k, (uint32_t)i, 0);
    }
    return pthread_create(&s->thread, NULL, serve, s) == 0;
}

static void stop(server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    for (int i = 0; i < N_FILES; i++) free(s->bytes[i]);
}

/* ---- a job --------------------------------------------------------------------------------------------- */

typedef struct rig {
    server s;
    ig_hub_config c;
    ig_hub_repo r;
    volatile sig_atomic_t stopped;
    int stop_after; /* events; 0: never */
    int n_events, n_files, n_notes;
    uint64_t last_done;
    bool backwards;
} rig;

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static void on_event(void *ud, const ig_hub_event *e) {
    rig *g = ud;
    g->n_files += e->kind == IG_HUB_EVENT_FILE;
    g->n_notes += e->kind == IG_HUB_EVENT_NOTE;
    if (e->kind == IG_HUB_EVENT_PROGRESS) {
        g->backwards = g->backwards || e->done_bytes < g->last_done || e->done_bytes > e->total_bytes;
        g->last_done = e->done_bytes;
    }
    if (g->stop_after && ++g->n_events >= g->stop_after) __atomic_store_n(&g->stopped, 1, __ATOMIC_RELAXED);
}

static bool make_rig(rig *g) {
    *g = (rig){.n_events = 0};
    if (!start(&g->s)) return false;
    g->c = (ig_hub_config){.timeout_s = 20, .retries = 3, .retry_wait_s = 0.001, .stop = &g->stopped};
    snprintf(g->c.endpoint, sizeof g->c.endpoint, "http://127.0.0.1:%d", g->s.port);
    snprintf(g->c.cache, sizeof g->c.cache, "/tmp/ig-fetch-XXXXXX");
    return mkdtemp(g->c.cache) != NULL;
}

static void drop_rig(rig *g) {
    stop(&g->s);
    ig_hub_repo_clear(&g->r);
    nftw(g->c.cache, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static ig_status ask(rig *g, ig_err *err) {
    ig_hub_repo_clear(&g->r);
    ig_status st = ig_hub_repo_ask(&g->r, &g->c, "o/n", "main", NULL, NULL, err);
    for (int i = 0; i < g->r.n; i++) g->r.v[i].wanted = true;
    return st;
}

static ig_status fetch(rig *g, ig_err *err) {
    const ig_hub_fetch o = {.n_jobs = 4, .event = on_event, .ud = g};
    return ig_hub_fetch_run(&g->c, &g->r, &o, err);
}

static void check_whole(const rig *g) {
    for (int i = 0; i < g->r.n; i++) {
        char *path = ig_hub_snapshot_path(g->c.cache, &g->r, g->r.v[i].path), hash[IG_HUB_HASH_BYTES] = "";
        FILE *f = path ? fopen(path, "rb") : NULL;
        uint8_t *p = malloc(BIG + 1);
        size_t n = f && p ? fread(p, 1, BIG + 1, f) : 0;
        if (f && p) hex_of(hash, p, n);
        CHECK_MSG(f && n == g->r.v[i].bytes && strcmp(hash, g->r.v[i].hash) == 0, "%s: %zu bytes",
                  g->r.v[i].path, n);
        if (f) fclose(f);
        free(p);
        free(path);
    }
    char commit[41], *repo = ig_hub_repo_path(g->c.cache, "o/n", NULL);
    CHECK(repo && ig_hub_ref_read(commit, repo, "main") && strcmp(commit, SHA) == 0);
    free(repo);
}

TEST(a_job_of_many_files_ends_with_all_of_them_right) {
    rig g;
    ig_err err = {.msg = ""};
    uint64_t bytes;
    int n;
    if (!make_rig(&g)) SKIP("no loopback to listen on");
    if (CHECK_MSG(!ask(&g, &err) && g.r.n == N_FILES, "%s", err.msg)) {
        ig_hub_missing(&bytes, &n, &g.c, &g.r);
        CHECK(n == N_FILES && bytes == BIG + 13000);
        CHECK_MSG(!fetch(&g, &err), "%s", err.msg);
        CHECK(g.n_files == N_FILES && !g.backwards && g.last_done == bytes);
        check_whole(&g);
        ig_hub_missing(&bytes, &n, &g.c, &g.r);
        CHECK(n == 0 && bytes == 0);
        int before = atomic_load(&g.s.n_requests);
        CHECK(!fetch(&g, &err) && atomic_load(&g.s.n_requests) == before);
    }
    drop_rig(&g);
}

TEST(cuts_and_wrong_bits_cost_retries_and_not_the_file) {
    rig g;
    ig_err err = {.msg = ""};
    if (!make_rig(&g)) SKIP("no loopback to listen on");
    atomic_store(&g.s.cut_after, 300001);
    atomic_store(&g.s.n_cuts, 7);
    atomic_store(&g.s.n_flips, 1);
    CHECK_MSG(!ask(&g, &err) && !fetch(&g, &err), "%s", err.msg);
    CHECK(g.n_notes >= 8 && !g.backwards);
    check_whole(&g);
    drop_rig(&g);
}

TEST(a_job_that_is_stopped_at_any_event_goes_on_later) {
    rig g;
    ig_err err = {.msg = ""};
    if (!make_rig(&g)) SKIP("no loopback to listen on");
    CHECK_MSG(!ask(&g, &err), "%s", err.msg);
    for (int i = 1; i <= 4; i++) {
        g.stop_after = i;
        g.n_events = 0;
        ig_status st = fetch(&g, &err);
        CHECK_MSG(!st || st == IG_ECANCELED, "%s", err.msg);
        __atomic_store_n(&g.stopped, 0, __ATOMIC_RELAXED);
    }
    g.stop_after = 0;
    CHECK_MSG(!fetch(&g, &err), "%s", err.msg);
    check_whole(&g);
    drop_rig(&g);
}

TEST(wrong_bytes_to_the_end_and_a_wrong_list_are_refused) {
    rig g;
    ig_err err = {.msg = ""};
    if (!make_rig(&g)) SKIP("no loopback to listen on");
    CHECK_MSG(!ask(&g, &err), "%s", err.msg);
    atomic_store(&g.s.n_flips, 1 << 20);
    CHECK(fetch(&g, &err) == IG_EFORMAT && strstr(err.msg, "SHA-256"));
    char commit[41], *repo = ig_hub_repo_path(g.c.cache, "o/n", NULL);
    CHECK(repo && !ig_hub_ref_read(commit, repo, "main"));
    free(repo);
    atomic_store(&g.s.listing_bad, 1);
    CHECK(ask(&g, &err) == IG_EFORMAT && strstr(err.msg, "commit"));
    drop_rig(&g);
}
