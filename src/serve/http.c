/* http: libmicrohttpd, and the life of a request from its first byte to its last.
 * Owns:    the daemon, the listening socket, the table of connections.
 * Threads: every callback runs on MHD's one epoll thread (net); start, drain and stop on the caller's.
 * Memory:  MHD's pool a connection (POOL_BYTES); bodies up to body_max_bytes each, BODIES_MAX_BYTES together.
 * A connection waits suspended: for prep, then for the engine. It is woken by the watcher only. What MHD
 * cannot do while a body arrives, answering, is done by hand on the socket: see answer_raw. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serve/inside.h"

enum {
    URI_MAX_BYTES = 8 * 1024,
    POOL_BYTES = 96 * 1024, /* headers may have 64 KiB, and MHD keeps a struct for each */
    POOL_STEP_BYTES =
        32 * 1024, /* MHD scans a line from its start after every step: 1 KiB steps cost 0.7 s */
    CONNECTIONS_CAP = 65536,
    CONNECTIONS_SPARE = 64, /* accepted beyond the limit, to be answered 503 */
    LINGER_SPARE = 256,
    SLOT_WAIT_NS = 10 * 1000 * 1000, /* the watcher may be about to give slots back: many came and went at once */
    IDLE_TIMEOUT_S = 75,
    WRITE_TIMEOUT_S = 60,
    SWALLOW_BYTES = 64 * 1024, /* a refused body up to here is read, and the connection stays */
    STREAM_BLOCK_BYTES = 8 * 1024,
    FDS_OTHER = 128,
    FDS_PROCESS = 32, /* what the program itself has open, at most */
    FDS_LEAST = 64
};
#define BODIES_MAX_BYTES (256ull * 1024 * 1024) /* all bodies together, or twice the largest one */
#define BODY_CAP_BYTES (1ull << 30)

ig_serve_config ig_serve_defaults(void) {
    return (ig_serve_config){
        .host = "127.0.0.1",
        .port = 8080,
        .model_id = "local",
        .version = "unknown",
        .tier = "unknown",
        .tier_sampled = "unknown",
        .isa = "unknown",
        .body_max_bytes = 32u << 20,
        .connections_max = 512,
        .sse_ping_s = 15,
        .drain_timeout_s = 10,
        .queue_timeout_s = 600,
        .sampling = ig_sampling_defaults(),
    };
}

/* ---- connections --------------------------------------------------------------------------------------- */

static int socket_of(struct MHD_Connection *m) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static void on_connection(void *cls, struct MHD_Connection *m, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    ig_serve *s = cls;
    int index;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *slot = NULL;
        if (!ig_queue_pop(s->free_slots, &index, 0) && !ig_queue_pop(s->free_slots, &index, SLOT_WAIT_NS)) {
            shutdown(socket_of(m), SHUT_RDWR); /* nobody would end it, and MHD counts it */
            return;
        }
        ig_serve_conn *c = &s->conns[index];
        c->mhd = m;
        c->linger = c->began = false;
        c->job = NULL;
        c->route = NULL;
        c->request_id[0] = 0;
        atomic_store(&c->flags, 0);
        atomic_store(&c->waits, false);
        atomic_store(&c->end_is_gone, false);
        ig_serve_phase_set(c, IG_PHASE_HEADERS);
        atomic_fetch_add(&s->n_open, 1);
        *slot = c;
        ig_serve_watch_open(s->watch, c, fcntl(socket_of(m), F_DUPFD_CLOEXEC, 3));
    } else if (*slot) {
        ig_serve_conn *c = *slot;
        atomic_fetch_sub(&s->n_open, 1);
        ig_serve_phase_move(c, IG_PHASE_BUSY); /* no deadline on what is gone */
        ig_serve_watch_close(s->watch, c);
        *slot = NULL;
    }
}

/* The request line has been read: a request begins. What we return is *context of the other callbacks. */
static void *on_uri(void *cls, const char *uri, struct MHD_Connection *m) {
    (void)cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    ig_serve_conn *c = info ? info->socket_context : NULL;
    if (!c) return NULL;
    c->began = c->discard = false;
    c->uri_too_long = strlen(uri) > URI_MAX_BYTES;
    c->uri_cut = strstr(uri, "%00") != NULL; /* decoded, it would end the path early */
    c->route = NULL;
    c->arg = NULL;
    c->status = 0;
    c->origin[0] = 0;
    c->request_id[0] = 0;
    memset(&c->refusal, 0, sizeof c->refusal);
    ig_serve_phase_move(c, IG_PHASE_HEADERS);
    return c;
}

/* ---- answers of generations ---------------------------------------------------------------------------- */

static void add_generation_headers(ig_serve_job *job, struct MHD_Response *r) {
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)job->req.sampling.seed);
    ig_serve_put_header(r, "x-ingle-seed", seed);
    if (job->substituted) ig_serve_put_header(r, "x-ingle-model-substituted", "1");
}

static enum MHD_Result send_stream(ig_serve_conn *c) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                               ig_serve_stream_read, c, NULL);
    if (!r) return MHD_NO;
    ig_serve_put_header(r, "Content-Type", "text/event-stream; charset=utf-8");
    ig_serve_put_header(r, "Cache-Control", "no-cache");
    ig_serve_put_header(r, "X-Accel-Buffering", "no");
    add_generation_headers(c->job, r);
    atomic_store(&c->news_ns, ig_clock_ns());
    atomic_store(&c->pinged, false);
    MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)WRITE_TIMEOUT_S);
    return ig_serve_send(c, 200, r);
}

static enum MHD_Result send_whole(ig_serve_conn *c) {
    ig_serve_job *job = c->job;
    ig_buf out = ig_buf_init(SIZE_MAX / 2);
    bool ok = job->kind == IG_SERVE_MESSAGES ? ig_anthropic_whole(job, &out) : ig_openai_whole(job, &out);
    struct MHD_Response *r = ok ? ig_serve_response(&out, NULL) : NULL;
    if (!r) {
        ig_buf_free(&out);
        return MHD_NO;
    }
    add_generation_headers(job, r);
    return ig_serve_send(c, 200, r);
}

static enum MHD_Result nap(ig_serve_conn *c) {
    ig_serve_conn_nap(c);
    return MHD_YES;
}

/* The body is complete: called again after every wake until an answer is queued. */
static enum MHD_Result run_job(ig_serve_conn *c) {
    ig_serve *s = c->s;
    ig_serve_job *job = c->job;
    uint32_t flags = atomic_fetch_and(&c->flags, ~(uint32_t)(IG_CONN_NEWS | IG_CONN_PING));
    atomic_store(&c->waits, false);
    if (!job->queued) {
        /* Counted before `ending` is read, and ig_serve_stop does it the other way round: one of the two sees
         * the other, so that nobody is suspended when MHD stops. */
        job->queued = job->counted = true;
        atomic_fetch_add(&s->n_jobs, 1);
        atomic_fetch_or(&c->flags, IG_CONN_HELD);
        if (atomic_load(&s->ending) || !ig_serve_prep_push(s->prep, c)) {
            atomic_fetch_and(&c->flags, ~(uint32_t)IG_CONN_HELD);
            ig_serve_refuse_ending(s, &job->error);
            atomic_store(&job->prepared, true);
        }
    }
    if (!atomic_load(&job->prepared)) return nap(c);
    if (flags & IG_CONN_GONE) return MHD_NO;
    if (job->error.status) return ig_serve_send_error(c, &job->error);
    if (job->embed && !ig_serve_embed_pump(job)) {
        atomic_store(&c->news_ns, ig_clock_ns());
        atomic_store(&c->waits, true);
        return nap(c);
    }
    if (job->error.status) return ig_serve_send_error(c, &job->error);
    if (!job->n_choices) {
        struct MHD_Response *r = ig_serve_response(&job->reply, NULL);
        if (!r) return MHD_NO;
        if (job->substituted) ig_serve_put_header(r, "x-ingle-model-substituted", "1");
        return ig_serve_send(c, 200, r);
    }
    if (job->req.stream) return send_stream(c);
    if (!ig_serve_pump(job)) {
        atomic_store(&c->news_ns, ig_clock_ns());
        atomic_store(&c->waits, true);
        return nap(c);
    }
    return job->error.status ? ig_serve_send_error(c, &job->error) : send_whole(c);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* MHD takes no answer while a body arrives. Nothing else has been written for this request, and the
 * connection ends after it, so writing on the socket ourselves does no harm. */
enum MHD_Result ig_serve_answer_raw(ig_serve_conn *c, const ig_http_error *e) {
    ig_buf body = ig_buf_init(4096), head = ig_buf_init(4096);
    if (!c->request_id[0]) ig_serve_make_request_id(c);
    if (ig_serve_error_json(&body, e) &&
        ig_buf_addf(&head,
                    "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                    "x-request-id: %s\r\nContent-Length: %zu\r\n\r\n",
                    e->status, MHD_get_reason_phrase_for((unsigned)e->status), c->request_id, body.n) &&
        ig_buf_add(&head, body.p, body.n))
        (void)!send(socket_of(c->mhd), head.p, head.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    ig_buf_free(&body);
    ig_buf_free(&head);
    c->status = e->status;
    c->linger = true;
    if (c->job)
        c->job->error = *e; /* the line of its end says it */
    else
        ig_serve_log_refused(c, e);
    return MHD_NO;
}

static bool reserve_body(ig_serve_conn *c, uint64_t bytes, ig_http_error *e) {
    ig_serve *s = c->s;
    if (bytes > s->body_budget_bytes - s->body_used_bytes) {
        ig_serve_refuse(e, "overloaded", NULL, "too many large requests at once; try again");
        e->retry_after_s = 1;
        return false;
    }
    s->body_used_bytes += bytes;
    c->job->body_reserved_bytes += bytes;
    return true;
}

static bool too_large(ig_serve *s, ig_http_error *e) {
    return ig_serve_refuse(e, "request_too_large", NULL, "the body has more than %zu bytes",
                           s->config.body_max_bytes);
}

/* The headers are there. Refuses, or makes ready for the body. */
static bool admit(ig_serve_conn *c, const char *url, const char *method, ig_http_error *e) {
    ig_serve *s = c->s;
    if (!ig_serve_admit(c, url, method, e)) return false;
    if (ig_serve_method(method) != IG_POST) return true;
    if (atomic_load(&s->draining)) return ig_serve_refuse_ending(s, e);
    if (c->upload_bytes != MHD_SIZE_UNKNOWN && c->upload_bytes > s->config.body_max_bytes)
        return too_large(s, e);
    c->job = ig_serve_job_make(s, c->route->kind);
    if (!c->job) return ig_serve_refuse(e, "overloaded", NULL, "no memory for this request");
    bool generates = ig_serve_generates(c->job->kind) || c->job->kind == IG_SERVE_EMBEDDINGS;
    ig_serve_end_means(c, generates && !s->config.tolerate_half_close);
    return c->upload_bytes == MHD_SIZE_UNKNOWN || reserve_body(c, c->upload_bytes, e);
}

static enum MHD_Result begin(ig_serve_conn *c, const char *url, const char *method) {
    c->began = true;
    bool ok = admit(c, url, method, &c->refusal);
    bool is_post = c->job != NULL;
    if (ok && !is_post && c->upload_bytes > SWALLOW_BYTES) ok = too_large(c->s, &c->refusal);
    if (!ok || !is_post) {
        /* Framing that two readers may see differently must not be read past; and a body that is too big to
         * swallow is not. Both close. */
        bool must_close = !ok && !strcmp(c->refusal.code, "invalid_request");
        if (!ok && (must_close || c->upload_bytes > SWALLOW_BYTES)) {
            c->linger = true;
            if (!ig_serve_phase_move(c, IG_PHASE_BUSY)) return MHD_NO;
            return ig_serve_send_error(c, &c->refusal);
        }
        c->discard = true;
    }
    atomic_store(&c->body_bytes, 0);
    atomic_store(&c->news_ns, ig_clock_ns());
    return ig_serve_phase_move(c, c->upload_bytes ? IG_PHASE_BODY : IG_PHASE_BUSY) ? MHD_YES : MHD_NO;
}

static enum MHD_Result take_body(ig_serve_conn *c, const char *bytes, size_t n) {
    ig_http_error e;
    atomic_fetch_add(&c->body_bytes, n);
    atomic_store(&c->news_ns, ig_clock_ns());
    if (c->discard) return MHD_YES;
    ig_serve_job *job = c->job;
    if (n > job->body.n_max - job->body.n) {
        too_large(c->s, &e);
        return ig_serve_answer_raw(c, &e);
    }
    if (c->upload_bytes == MHD_SIZE_UNKNOWN && !reserve_body(c, n, &e)) return ig_serve_answer_raw(c, &e);
    if (!ig_buf_add(&job->body, bytes, n)) {
        ig_serve_refuse(&e, "overloaded", NULL, "no memory for this request");
        return ig_serve_answer_raw(c, &e);
    }
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *m, const char *url, const char *method,
                                  const char *version, const char *bytes, size_t *n, void **context) {
    (void)cls, (void)m, (void)version;
    ig_serve_conn *c = *context;
    if (!c) return MHD_NO;
    if (!c->began) return begin(c, url, method);
    if (*n) {
        size_t taken = *n;
        *n = 0;
        return take_body(c, bytes, taken);
    }
    if (ig_serve_phase_of(atomic_load(&c->phase)) != IG_PHASE_BUSY && !ig_serve_phase_move(c, IG_PHASE_BUSY))
        return MHD_NO;
    if (c->refusal.status) return ig_serve_send_error(c, &c->refusal);
    if (c->job) return run_job(c);
    if (ig_serve_method(method) == IG_OPTIONS) return ig_serve_send_options(c);
    return c->route->run(c);
}

static void end_job(ig_serve_conn *c, bool sent) {
    ig_serve *s = c->s;
    ig_serve_job *job = c->job;
    ig_serve_log_finished(c, job, sent);
    ig_serve_count_end(s, job, sent);
    if (job->n_choices) {
        uint64_t us = (ig_clock_ns() - job->started_ns) / 1000, mean = atomic_load(&s->mean_job_us);
        atomic_store(&s->mean_job_us, mean ? (mean * 7 + us) / 8 : us);
    }
    s->body_used_bytes -= job->body_reserved_bytes;
    if (job->counted) atomic_fetch_sub(&s->n_jobs, 1);
    ig_serve_job_free(job);
    c->job = NULL;
}

static void on_completed(void *cls, struct MHD_Connection *m, void **context,
                         enum MHD_RequestTerminationCode how) {
    (void)cls;
    ig_serve_conn *c = *context;
    if (!c) return;
    *context = NULL;
    if (c->job) end_job(c, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    ig_serve_count_answer(c->s, c->route, c->status);
    c->route = NULL; /* the next request may break before it has a line */
    c->request_id[0] = 0;
    atomic_store(&c->waits, false);
    ig_serve_end_means(c, false);
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        MHD_set_connection_option(m, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S);
        ig_serve_phase_move(c, IG_PHASE_IDLE);
    }
}

static void on_log(void *cls, const char *fmt, va_list ap) {
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof line, fmt, ap);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == '"' || *p == 0x7f) *p = ' ';
    ig_log(IG_LOG_DEBUG, "http message=\"%s\"", line);
}

/* ---- start and stop ------------------------------------------------------------------------------------ */

static ig_status listen_on(const ig_serve_config *config, int *out, int *port, ig_err *err) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    ig_status st = IG_OK;
    int fd = -1, on = 1;
    snprintf(service, sizeof service, "%d", config->port);
    int code = getaddrinfo(config->host, service, &hints, &found);
    if (code) return ig_fail(err, IG_EINVAL, "host %s: %s", config->host, gai_strerror(code));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        st = ig_fail(err, IG_EIO, "socket: %s", strerror(errno));
        goto fail;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
        st = ig_fail(err, errno == EADDRINUSE ? IG_EBUSY : IG_EIO, "listen on %s port %d: %s", config->host,
                     config->port, strerror(errno));
        goto fail;
    }
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        st = ig_fail(err, IG_EIO, "getsockname: %s", strerror(errno));
        goto fail;
    }
    *port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                           : ((struct sockaddr_in *)&at)->sin_port);
    *out = fd;
    fd = -1;
fail:
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return st;
}

/* Shares of `limit` descriptors: two for each connection, two for each one beyond the maximum (it is answered
 * 503), one for each that lingers. Where the limit is low all three are, and below FDS_LEAST nothing can be
 * served. */
ig_serve_room ig_serve_room_for(uint64_t limit, int wanted) {
    ig_serve_room full = {wanted, CONNECTIONS_SPARE, LINGER_SPARE};
    if (limit >= 2 * ((uint64_t)wanted + CONNECTIONS_SPARE) + LINGER_SPARE + FDS_OTHER) return full;
    if (limit < FDS_LEAST) return (ig_serve_room){0};
    int share = (int)limit - FDS_PROCESS; /* the full room fits an int, so less than it does */
    ig_serve_room r = {share / 4, share / 16, share / 4};
    if (r.connections > full.connections) r.connections = full.connections;
    if (r.spare > full.spare) r.spare = full.spare;
    if (r.linger > full.linger) r.linger = full.linger;
    return r;
}

/* A lower limit of open files lowers the number of connections. */
static ig_status fit_connections(ig_serve *s, ig_err *err) {
    int wanted = s->config.connections_max;
    uint64_t limit = UINT64_MAX;
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
        rlim_t need = (rlim_t)(2 * (wanted + CONNECTIONS_SPARE) + LINGER_SPARE + FDS_OTHER);
        if (lim.rlim_cur < need) {
            lim.rlim_cur = lim.rlim_max < need ? lim.rlim_max : need;
            setrlimit(RLIMIT_NOFILE, &lim);
            getrlimit(RLIMIT_NOFILE, &lim);
        }
        limit = lim.rlim_cur;
    }
    s->room = ig_serve_room_for(limit, wanted);
    if (!s->room.connections)
        return ig_fail(err, IG_EIO,
                       "this process may open %llu files; the server needs %d or more (ulimit -n)",
                       (unsigned long long)limit, FDS_LEAST);
    if (s->room.connections < wanted)
        ig_log(IG_LOG_WARN, "connections wanted=%d fit=%d reason=\"limit of open files\"", wanted,
               s->room.connections);
    return IG_OK;
}

/* Same numbers, same weights, same file: then the same request with the same seed gives the same tokens. */
static void make_fingerprint(ig_serve *s) {
    char text[512];
    ig_engine_plan plan = ig_engine_plan_of(s->engine);
    int n = snprintf(text, sizeof text, "%s %s %s %lld %llu %d %d %d %d", s->config.version, s->config.tier, s->config.model_id,
                     (long long)s->config.model_created_s, (unsigned long long)plan.weights_bytes, s->n_vocab,
                     s->n_ctx, (int)plan.kv_kind, plan.two_parts);
    size_t len = n < (int)sizeof text ? (size_t)n : sizeof text - 1;
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%016llx",
             (unsigned long long)ig_hash64(text, len, 0));
}

static void release_all(ig_serve *s) {
    ig_serve_prep_stop(s->prep);
    ig_serve_watch_stop(s->watch);
    if (s->free_slots) ig_queue_free(s->free_slots);
    free(s->conns);
    free(s);
}

static ig_status make_table(ig_serve *s, ig_err *err) {
    s->n_conns = s->room.connections + s->room.spare + s->room.linger;
    s->conns = calloc((size_t)s->n_conns, sizeof *s->conns);
    if (!s->conns) return ig_fail(err, IG_ELIMIT, "no memory for %d connections", s->n_conns);
    ig_status st = ig_queue_make(&s->free_slots, s->n_conns, sizeof(int), err);
    for (int i = 0; st == IG_OK && i < s->n_conns; i++) {
        s->conns[i] = (ig_serve_conn){.s = s, .index = i, .fd = -1};
        ig_queue_push(s->free_slots, &i);
    }
    return st;
}

static ig_status check_config(const ig_serve_config *c, ig_err *err) {
    if (c->port < 0 || c->port > 65535)
        return ig_fail(err, IG_EINVAL, "port %d is not within 0 and 65535", c->port);
    if (c->connections_max < 1 || c->connections_max > CONNECTIONS_CAP)
        return ig_fail(err, IG_EINVAL, "connections %d is not within 1 and %d", c->connections_max,
                       CONNECTIONS_CAP);
    if (c->body_max_bytes < 1024 || c->body_max_bytes > BODY_CAP_BYTES)
        return ig_fail(err, IG_EINVAL, "largest body %zu is not within 1024 and %llu bytes",
                       c->body_max_bytes, BODY_CAP_BYTES);
    if (!ig_serve_host_is_loopback(c->host) && !(c->api_keys && c->api_keys[0]) && !c->no_auth)
        return ig_fail(
            err, IG_EINVAL,
            "host %s is reachable from other machines: give an API key, or say that none is wanted", c->host);
    return IG_OK;
}

ig_status ig_serve_start(ig_serve **out, const ig_serve_config *config, ig_engine *e, const ig_tokenizer *t,
                         const ig_template *tpl, ig_err *err) {
    int fd = -1;
    ig_status st = check_config(config, err);
    if (st != IG_OK) return st;
    ig_serve *s = calloc(1, sizeof *s);
    if (!s) return ig_fail(err, IG_ELIMIT, "no memory for the server");
    s->config = *config;
    s->engine = e;
    s->tokenizer = t;
    s->template = tpl;
    s->n_ctx = ig_engine_plan_of(e).n_ctx;
    s->n_vocab = (int)ig_tokenizer_n_vocab(t);
    s->width = config->width;
    s->started_s = time(NULL);
    s->started_ns = ig_clock_ns();
    s->body_budget_bytes = 2 * (uint64_t)config->body_max_bytes;
    if (s->body_budget_bytes < BODIES_MAX_BYTES) s->body_budget_bytes = BODIES_MAX_BYTES;
    make_fingerprint(s);

    /* Signals are for the caller's thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if ((st = fit_connections(s, err)) != IG_OK) goto fail;
    if ((st = listen_on(config, &fd, &s->port, err)) != IG_OK) goto fail;
    if ((st = make_table(s, err)) != IG_OK) goto fail;
    if ((st = ig_serve_watch_start(&s->watch, s, err)) != IG_OK) goto fail;
    if ((st = ig_serve_prep_start(&s->prep, s, s->n_conns, err)) != IG_OK) goto fail;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(s->room.connections + s->room.spare),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
        (size_t)POOL_STEP_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_URI_LOG_CALLBACK, on_uri, s, MHD_OPTION_END);
    if (!s->daemon) {
        st = ig_fail(err, IG_EIO, "start the HTTP library on %s port %d: %s", config->host, s->port,
                     strerror(errno));
        goto fail;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *out = s;
    return IG_OK;
fail:
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (fd >= 0) close(fd);
    release_all(s);
    return st;
}

int ig_serve_port(const ig_serve *s) {
    return s->port;
}

static bool wait_jobs(ig_serve *s, uint64_t ns, const volatile int *hurry) {
    uint64_t until = ig_clock_ns() + ns;
    struct timespec nap_time = {.tv_nsec = 10 * 1000000};
    while (atomic_load(&s->n_jobs) > 0 && ig_clock_ns() < until && !(hurry && *hurry))
        nanosleep(&nap_time, NULL);
    return atomic_load(&s->n_jobs) == 0;
}

void ig_serve_drain(ig_serve *s, const volatile int *hurry) {
    atomic_store(&s->draining, true);
    if (!wait_jobs(s, (uint64_t)s->config.drain_timeout_s * 1000000000ull, hurry)) {
        atomic_store(&s->ending, true);
        ig_serve_watch_wake_all(s->watch);
        wait_jobs(s, 1000000000ull, NULL);
    }
}

void ig_serve_give_up(ig_serve *s, int wait_ms) {
    atomic_store(&s->engine_lost, true);
    atomic_store(&s->draining, true);
    atomic_store(&s->ending, true); /* whoever waits for the engine looks up, and sees the first */
    ig_serve_watch_wake_all(s->watch);
    wait_jobs(s, (uint64_t)wait_ms * 1000000u, NULL);
}

void ig_serve_stop(ig_serve *s) {
    if (!s) return;
    atomic_store(&s->draining, true);
    atomic_store(&s->ending, true);
    /* MHD refuses to stop with suspended connections: each is woken, sees `ending`, and ends. Prep may hold
     * one for as long as it takes to tokenize. A client that does not read is not suspended. */
    ig_serve_watch_wake_all(s->watch);
    while (atomic_load(&s->n_jobs) > 0 && !wait_jobs(s, 100000000ull, NULL)) {
        bool any = false;
        for (int i = 0; i < s->n_conns; i++)
            any = any || (atomic_load(&s->conns[i].flags) & IG_CONN_SUSPENDED);
        if (!any) break;
        ig_serve_watch_wake_all(s->watch);
    }
    MHD_stop_daemon(s->daemon);
    release_all(s);
}
