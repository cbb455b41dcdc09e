/* serve: sockets to requests to events. It knows HTTP, JSON and text, and no tensor.
 *
 * Owns:    the listening socket, connections, request arenas, the prep thread, the embedded page.
 * Takes:   an engine, a tokenizer, a chat template (may be NULL: chat is then refused with the reason).
 * Gives:   OpenAI-compatible answers.
 * Threads: libmicrohttpd's epoll thread (net), one prep thread (template and tokenizer), one watcher that
 *          notices clients that leave and resumes streams that have news. Handlers never wait for the engine.
 * Memory:  bounded by flags: connections x (body + output buffer).
 * Fails:   start: IG_EIO when the address is taken (code is IG_EBUSY for "port taken", so that the
 *          program can exit 7). A bad request is answered, never logged as an error of ours.
 * Not here: batching (engine/), tokenizing (text/). */
#ifndef IG_SERVE_H
#define IG_SERVE_H

#include "engine/engine.h"
#include "text/text.h"

typedef struct ig_serve_config {
    const char *host;            /* "127.0.0.1" */
    int port;                    /* 0: any free one */
    const char *model_id;        /* the name that /v1/models shows */
    const char *version;         /* the program's, for /v1 and /stats */
    const char *tier, *tier_sampled; /* whose numbers answers are, "l3": at temperature 0, and above */
    const char *const *allowed_hosts; /* NULL-ended; or NULL */
    const char *const *cors_origins;  /* NULL-ended; or NULL */
    const char *const *api_keys;      /* NULL-ended; or NULL */
    bool no_auth;                /* bind beyond loopback without a key */
    bool tolerate_half_close;    /* a client that sends no more may wait for a generation all the same */
    size_t body_max_bytes;       /* 32 MiB */
    int connections_max;         /* 512 */
    int sse_ping_s;              /* 15 */
    int drain_timeout_s;         /* 10 */
    int queue_timeout_s;         /* 600: longest wait for a place; 0: no limit */
    int default_max_tokens;      /* 0: what fits */
    ig_pooling pooling;          /* of /v1/embeddings, as the engine's; NONE: refused */
    int width;                   /* of a vector */
    bool no_metrics;             /* /metrics is 404 */
    const char *isa;             /* of the kernels that do most of the work, for /metrics */
    ig_sampling sampling;        /* defaults of a request that does not say */
    bool seed_fixed;             /* sampling.seed for every request (tests) */
    int64_t model_created_s;     /* mtime of the file */
} ig_serve_config;

ig_serve_config ig_serve_defaults(void);

typedef struct ig_serve ig_serve;

ig_status ig_serve_start(ig_serve **out, const ig_serve_config *c, ig_engine *e, const ig_tokenizer *t,
                         const ig_template *tpl, ig_err *err);
int ig_serve_port(const ig_serve *s);
/* No new work: /health and every POST answer 503. Running requests get drain_timeout_s, then are cancelled
 * and told so. Ends early when *hurry becomes non-zero. */
void ig_serve_drain(ig_serve *s, const volatile int *hurry);
/* The engine does not answer any more: /health and every request say so (503, engine_failed), and those that
 * run are told (500), for wait_ms at most. A line of the log for each. The server cannot be stopped in order
 * after it. */
void ig_serve_give_up(ig_serve *s, int wait_ms);
/* Ends what still runs. Before ig_engine_stop. */
void ig_serve_stop(ig_serve *s);

#endif
