/* inside.h: what the files of serve share. Nobody outside this folder includes it, but for the fuzzers.
 *
 * A connection (ig_serve_conn) is a slot of a table made at start. The net thread owns it while MHD holds
 * the connection; the watcher owns its second file descriptor. Between the two there are one atomic word
 * for the phase, one for the flags, and the watcher's command queue.
 * A job (ig_serve_job) is one POST: its body, what was parsed from it, its generations, its output. It
 * belongs to the net thread, and to the prep thread from `ig_serve_prep_push` until `prepared` is set. */
#ifndef IG_SERVE_INSIDE_H
#define IG_SERVE_INSIDE_H

#include <microhttpd.h>
#include <pthread.h>

#include "serve/serve.h"

/* ---- wire.c: errors, typed look-ups in JSON from outside, JSON out ------------------------------------- */

typedef struct ig_http_error {
    int status;
    const char *type, *code; /* static */
    char param[64];          /* "": null */
    char message[IG_ERR_BYTES];
    int64_t n_prompt_tokens, n_ctx; /* of context_length_exceeded; else 0 */
    int retry_after_s;              /* 0: no such header */
} ig_http_error;

/* Fills *e from the table of errors by `code` and returns false, so that a refusal is one statement. */
bool ig_serve_refuse(ig_http_error *e, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool ig_serve_error_json(ig_buf *out, const ig_http_error *e);

/* A member that is absent or null leaves *out alone. A wrong type or range refuses with the key as param. */
bool ig_serve_get_bool(yyjson_val *obj, const char *key, bool *out, ig_http_error *e);
bool ig_serve_get_number(yyjson_val *obj, const char *key, double lo, double hi, double *out,
                         ig_http_error *e);
bool ig_serve_get_int(yyjson_val *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                      ig_http_error *e);
bool ig_serve_token_id(yyjson_val *v, uint64_t *out); /* 32 bits; 7.0 is 7 */
bool ig_serve_get_string(yyjson_val *obj, const char *key, ig_slice *out, ig_http_error *e);

/* A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
bool ig_serve_put_string(ig_buf *out, const char *p, size_t n);
bool ig_serve_put_cstr(ig_buf *out, const char *s);

/* ---- api_openai.c: wire JSON to a request, events to wire JSON ----------------------------------------- */

enum {
    IG_SERVE_CHOICES_MAX = 16,
    IG_SERVE_STOPS_MAX = IG_STOP_STRINGS_MAX,
    IG_SERVE_LOGPROBS_MAX = 20,
    IG_SERVE_JSON_DEPTH_MAX = 128
};

typedef enum ig_serve_kind {
    IG_SERVE_CHAT,
    IG_SERVE_COMPLETION,
    IG_SERVE_COUNT, /* .../input_tokens */
    IG_SERVE_APPLY_TEMPLATE,
    IG_SERVE_TOKENIZE,
    IG_SERVE_DETOKENIZE,
    IG_SERVE_EMBEDDINGS,
    IG_SERVE_MESSAGES, /* Anthropic's shape, in and out */
    IG_SERVE_MESSAGES_COUNT,
    IG_SERVE_N_KINDS
} ig_serve_kind;

static inline bool ig_serve_generates(ig_serve_kind k) {
    return k == IG_SERVE_CHAT || k == IG_SERVE_COMPLETION || k == IG_SERVE_MESSAGES;
}

typedef enum ig_serve_logprobs {
    IG_SERVE_LOGPROBS_NONE,
    IG_SERVE_LOGPROBS_CONTENT,
    IG_SERVE_LOGPROBS_LEGACY
} ig_serve_logprobs;

typedef struct ig_chat_request {
    ig_serve_kind kind;
    yyjson_doc *doc;      /* the body; slices below point into it */
    yyjson_doc *chat_doc; /* messages as templates want them, and kwargs */
    yyjson_doc *repaired_doc;
    yyjson_val *messages, *kwargs; /* in chat_doc */
    bool has_effort;               /* kwargs hold reasoning_effort, which a template may refuse */
    bool continue_final;

    ig_slice model;
    bool stream, include_usage, cache_prompt;
    int max_tokens; /* 0: not said */
    ig_sampling sampling; /* its biases are `bias`, or those of the defaults */
    ig_token_bias bias[IG_LOGIT_BIAS_MAX];
    bool has_seed;
    int n_stops;
    ig_slice stops[IG_SERVE_STOPS_MAX];
    ig_serve_logprobs logprobs;
    int top_logprobs;

    int n_prompts; /* completions: strings, or arrays of token ids */
    yyjson_val *prompts[IG_SERVE_CHOICES_MAX];

    ig_slice text; /* tokenize */
    bool add_special, parse_special, with_pieces;
    yyjson_val *tokens; /* detokenize */

    yyjson_val *inputs; /* embeddings: a string, ids, or an array of n_inputs of one of them */
    int n_inputs, dimensions; /* 0: all */
    bool base64, is_query, truncate;
    ig_slice instruction;
} ig_chat_request;

/* What a request that does not say gets. */
typedef struct ig_serve_request_defaults {
    ig_sampling sampling;
    bool seed_fixed;
} ig_serve_request_defaults;

/* Bytes in, request or refusal out; touches nothing else. Cleared by ig_serve_request_clear in both cases. */
bool ig_serve_request_parse(ig_chat_request *r, ig_serve_kind kind, const char *body, size_t n,
                            const ig_serve_request_defaults *d, ig_http_error *e);
void ig_serve_request_clear(ig_chat_request *r);
/* For templates that want roles to alternate: neighbours of one role joined, a stray system message moved
 * to the front. NULL: nothing to repair, or no memory. */
yyjson_val *ig_serve_request_repaired(ig_chat_request *r);

/* ---- a job and its generations ------------------------------------------------------------------------- */

typedef struct ig_serve_choice {
    ig_gen *gen;
    ig_detok detok;
    ig_stop *stop;
    ig_finish finish;                      /* ours: a stop string ends before the engine does */
    int stopped_by;                        /* index in req.stops, or -1 */
    int max_tokens;                        /* as the engine was told */
    int n_seen;                            /* tokens consumed; all of them are counted in usage */
    ig_buf text;                           /* released, and when streaming not sent yet */
    size_t n_chars;                        /* characters decoded so far, for text_offset */
    ig_buf lp_content;                     /* entries, or legacy: tokens */
    ig_buf lp_values, lp_tops, lp_offsets; /* legacy only */
    bool text_ended;                       /* a stop string has matched: nothing that was held comes out */
    bool finish_sent;
} ig_serve_choice;

typedef struct ig_serve_embed ig_serve_embed;

typedef struct ig_serve_job {
    ig_serve *s;
    ig_serve_kind kind;
    char id[48]; /* the client sees it in every answer */
    int64_t created_s;
    uint64_t started_ns, submitted_ns; /* 0: the engine has not got it yet */
    bool cancelled;                    /* by somebody else's request; net thread */
    ig_buf body;
    size_t body_reserved_bytes;

    _Atomic bool prepared; /* written by prep, once: everything below was made */
    ig_http_error error;   /* status 0: none */
    ig_chat_request req;
    bool substituted;
    int stop_ids[IG_SERVE_STOPS_MAX]; /* token of which stops[i] is the text, or -1 */
    ig_buf reply;                     /* of the helper routes: ready JSON */
    ig_serve_embed *embed;            /* of /v1/embeddings, whose reply grows */
    int n_choices;
    ig_serve_choice choices[IG_SERVE_CHOICES_MAX];

    bool queued;  /* handed to prep */
    bool counted; /* in s->n_jobs */
    ig_buf out;   /* stream: frames not yet given to MHD */
    size_t out_from;
    bool head_sent, ended, end_is_error;
    ig_buf scratch, piece;
} ig_serve_job;

ig_serve_job *ig_serve_job_make(ig_serve *s, ig_serve_kind kind);
void ig_serve_job_free(ig_serve_job *job); /* cancels what still runs */

/* Wire JSON of a job. False: no memory. */
bool ig_openai_chunk(ig_serve_job *job, int index); /* text and logprobs of a choice, then forgotten */
bool ig_openai_head(ig_serve_job *job);             /* first chunks of a stream */
bool ig_openai_finish(ig_serve_job *job, int index, bool is_last);
bool ig_openai_tail(ig_serve_job *job);               /* usage chunk and [DONE] */
bool ig_openai_whole(ig_serve_job *job, ig_buf *out); /* the answer that is not streamed */
bool ig_openai_note_logprob(ig_serve_job *job, ig_serve_choice *c, int token_index, uint32_t id);
/* The older API's {"token":logprob, ...}, likeliest first; n <= IG_SERVE_LOGPROBS_MAX. */
bool ig_openai_put_tops(ig_buf *out, const ig_tokenizer *t, const ig_logprob *top, int n);
/* Where in the text, in characters, a token begins that d is given next: n_chars came out of d so far. */
size_t ig_openai_text_offset(const ig_detok *d, size_t n_chars, uint32_t id);
/* ---- api_anthropic.c ----------------------------------------------------------------------------------- */

static inline bool ig_anthropic_is(ig_serve_kind k) {
    return k == IG_SERVE_MESSAGES || k == IG_SERVE_MESSAGES_COUNT;
}
/* r->doc, a JSON object, is written anew with the names of the chat route. */
bool ig_anthropic_translate(ig_chat_request *r, ig_http_error *e);
bool ig_anthropic_error_json(ig_buf *out, const ig_http_error *e, const char *request_id); /* NULL: none */
bool ig_anthropic_head(ig_serve_job *job);
bool ig_anthropic_ping(ig_serve_job *job);
bool ig_anthropic_chunk(ig_serve_job *job);
bool ig_anthropic_finish(ig_serve_job *job);
bool ig_anthropic_whole(ig_serve_job *job, ig_buf *out);

/* Predicted seconds until a place is free. */
int ig_serve_retry_after_s(ig_serve *s);

bool ig_serve_check_ids(yyjson_val *ids, const char *param, ig_http_error *e);

/* ---- embed.c ------------------------------------------------------------------------------------------- */

bool ig_serve_embed_parse(ig_chat_request *r, yyjson_val *root, ig_http_error *e);
bool ig_serve_embed_begin(ig_serve_job *job, ig_tokenizer_scratch *scratch, size_t longest, void *slot); /* prep */
bool ig_serve_embed_pump(ig_serve_job *job); /* net; true: job->error, or the reply is whole */
void ig_serve_embed_free(ig_serve_embed *m);

/* ---- sse.c --------------------------------------------------------------------------------------------- */

/* Moves what the engine has made into text and frames. True when every choice has ended. */
bool ig_serve_pump(ig_serve_job *job);
ssize_t ig_serve_stream_read(void *conn, uint64_t pos, char *to, size_t n);

/* ---- prep.c -------------------------------------------------------------------------------------------- */

typedef struct ig_serve_prep ig_serve_prep;
struct ig_serve_conn;
ig_status ig_serve_prep_start(ig_serve_prep **out, ig_serve *s, int n_max, ig_err *err);
bool ig_serve_prep_push(ig_serve_prep *p, struct ig_serve_conn *c);
void ig_serve_prep_stop(ig_serve_prep *p); /* finishes what is queued */

/* ---- http.c and hangup.c: connections ------------------------------------------------------------------ */

typedef enum ig_serve_phase {
    IG_PHASE_FREE,
    IG_PHASE_HEADERS, /* a request is being read; deadline */
    IG_PHASE_IDLE,    /* kept alive between requests; deadline */
    IG_PHASE_BODY,    /* deadline and least rate */
    IG_PHASE_BUSY,    /* ours or MHD's turn */
    IG_PHASE_KILLED   /* the watcher has shut the socket */
} ig_serve_phase;

enum {                        /* ig_serve_conn.flags */
       IG_CONN_SUSPENDED = 1, /* whoever clears it resumes */
       IG_CONN_NEWS = 2,
       IG_CONN_GONE = 4, /* the peer has left */
       IG_CONN_PING = 8,
       IG_CONN_HELD = 16, /* prep has the job: nobody resumes, because MHD may close what it resumes at once */
       IG_CONN_END = 32   /* the peer sends no more: it has left, or it only said so (half-close) */
};

typedef struct ig_serve_route ig_serve_route;

typedef struct ig_serve_conn {
    ig_serve *s;
    int index;
    struct MHD_Connection *mhd;
    _Atomic uint64_t phase; /* since_ns << 3 | ig_serve_phase, so that one compare checks both */
    _Atomic uint32_t flags;
    _Atomic uint64_t body_bytes; /* received in this phase */
    _Atomic uint64_t news_ns;    /* when the stream last gave bytes: pings count from here */
    _Atomic bool waits;          /* suspended for a generation: the watcher may ping it */
    _Atomic bool pinged;         /* the first ping comes early, to say what is waited for */
    _Atomic bool end_is_gone;    /* of this request: IG_CONN_END means IG_CONN_GONE */

    /* the watcher's */
    int fd;                   /* a dup of the socket, -1: none */
    uint64_t gone_ns;         /* when the peer was seen to leave; 0: it is there */
    uint64_t linger_until_ns; /* 0: open */

    /* the net thread's, one request */
    bool began, uri_too_long, uri_cut, discard, linger;
    const ig_serve_route *route;
    ig_serve_job *job;
    ig_http_error refusal; /* status 0: none */
    int status;            /* of the answer, once there is one */
    uint64_t upload_bytes; /* Content-Length; MHD_SIZE_UNKNOWN: chunked */
    char request_id[65];
    char origin[256]; /* allowed cross origin: CORS headers go out; "": none */
    const char *arg;  /* what follows a prefix route */
} ig_serve_conn;

static inline ig_serve_phase ig_serve_phase_of(uint64_t word) {
    return (ig_serve_phase)(word & 7);
}
static inline uint64_t ig_serve_phase_since_ns(uint64_t word) {
    return word >> 3;
}
void ig_serve_phase_set(ig_serve_conn *c, ig_serve_phase p);
/* False: the watcher has killed the connection meanwhile. */
bool ig_serve_phase_move(ig_serve_conn *c, ig_serve_phase p);

/* Net thread: suspends until somebody wakes the connection; news that came meanwhile resume it at once. */
void ig_serve_conn_nap(ig_serve_conn *c);
/* Net thread: does the end of what the peer sends end this request? */
void ig_serve_end_means(ig_serve_conn *c, bool gone);

typedef struct ig_serve_watch ig_serve_watch;
ig_status ig_serve_watch_start(ig_serve_watch **out, ig_serve *s, ig_err *err);
void ig_serve_watch_stop(ig_serve_watch *w);
void ig_serve_watch_open(ig_serve_watch *w, ig_serve_conn *c, int fd); /* takes fd, -1: none */
void ig_serve_watch_close(ig_serve_watch *w, ig_serve_conn *c); /* the slot comes back by s->free_slots */
void ig_serve_watch_wake_all(ig_serve_watch *w);

/* What the engine is given as notify: any thread, no lock, at most one write to an eventfd. It outlives the
 * server, because the engine may still call it for a generation that was let go. */
void ig_serve_ring(void *slot);
void *ig_serve_ring_slot(ig_serve_watch *w, int index);

/* Net thread: answers on the socket, where MHD takes no answer; MHD_NO, which ends the connection. */
enum MHD_Result ig_serve_answer_raw(ig_serve_conn *c, const ig_http_error *e);

/* ---- route.c ------------------------------------------------------------------------------------------- */

enum { IG_GET = 1, IG_POST = 2, IG_HEAD = 4, IG_OPTIONS = 8, IG_DELETE = 16, IG_OTHER_METHOD = 32 };

struct ig_serve_route {
    const char *path;
    bool is_prefix;
    unsigned methods;
    bool open;          /* no key asked */
    ig_serve_kind kind; /* of a POST */
    enum MHD_Result (*run)(ig_serve_conn *c); /* of all others */
};

unsigned ig_serve_method(const char *name);
/* NULL: no such path. *arg: what follows a prefix route. */
const ig_serve_route *ig_serve_route_find(const char *path, const char **arg);
int ig_serve_route_index(const ig_serve_route *r);
const ig_serve_route *ig_serve_route_at(int i); /* NULL: there are no more */
void ig_serve_allow_header(const ig_serve_route *r, char *out, size_t n);

bool ig_serve_host_allowed(const char *host, const char *bind_host, const char *const *allowed);
bool ig_serve_host_is_loopback(const char *host);
typedef enum ig_serve_origin {
    IG_ORIGIN_NONE,
    IG_ORIGIN_SAME,
    IG_ORIGIN_LISTED,
    IG_ORIGIN_FOREIGN
} ig_serve_origin;
ig_serve_origin ig_serve_origin_of(const char *origin, const char *host, const char *fetch_site,
                                   const char *const *listed);
bool ig_serve_key_allowed(const char *const *keys, const char *authorization, const char *x_api_key);
bool ig_serve_request_id_valid(const char *id);
void ig_serve_make_request_id(ig_serve_conn *c);

/* Host, Origin, key, method, path, length, type: everything that headers decide. Fills c->route. */
bool ig_serve_admit(ig_serve_conn *c, const char *url, const char *method, ig_http_error *e);
const char *ig_serve_header(ig_serve_conn *c, const char *name); /* NULL: absent */

/* ---- requests.c ---------------------------------------------------------------------------------------- */

int ig_serve_queue_position(const ig_serve_job *job); /* 1: the next; 0: it does not wait for a place */
enum MHD_Result ig_serve_get_requests(ig_serve_conn *c);
enum MHD_Result ig_serve_delete_request(ig_serve_conn *c);                   /* c->arg names it */
void ig_serve_log_accepted(const ig_serve_conn *c, const ig_serve_job *job); /* prep thread */
void ig_serve_log_refused(const ig_serve_conn *c, const ig_http_error *e);   /* before there was a job */
void ig_serve_log_finished(const ig_serve_conn *c, const ig_serve_job *job, bool sent);

/* ---- mhd_errors.c -------------------------------------------------------------------------------------- */

enum MHD_Result ig_serve_queue(struct MHD_Connection *m, int status,
                               struct MHD_Response *r); /* MHD's, for us */

/* ---- route.c: answers ---------------------------------------------------------------------------------- */

/* Takes the bytes of *body. content_type NULL: JSON. */
struct MHD_Response *ig_serve_response(ig_buf *body, const char *content_type);
/* There may be no memory for a header. Nothing is sent then: an answer without its policy is worse. */
void ig_serve_put_header(struct MHD_Response *r, const char *name, const char *value);
/* Adds what every answer carries, queues, gives the response up. */
enum MHD_Result ig_serve_send(ig_serve_conn *c, int status, struct MHD_Response *r);
enum MHD_Result ig_serve_send_error(ig_serve_conn *c, const ig_http_error *e);
bool ig_serve_refuse_ending(const ig_serve *s, ig_http_error *e); /* false; any thread */
/* Sends what was built, or 500 when it did not fit in memory. */
enum MHD_Result ig_serve_send_json(ig_serve_conn *c, bool built, ig_buf *body);
enum MHD_Result ig_serve_get_page(ig_serve_conn *c);
enum MHD_Result ig_serve_send_options(ig_serve_conn *c);

/* ---- metrics.c ----------------------------------------------------------------------------------------- */

enum { IG_SERVE_ROUTES_MAX = 96, IG_SERVE_STATUSES = 21, IG_SERVE_ENDS = 4, IG_SERVE_REJECTED = 3 };
void ig_serve_count_answer(ig_serve *s, const ig_serve_route *route, int status); /* net thread, as all of them */
void ig_serve_count_end(ig_serve *s, const ig_serve_job *job, bool sent);
enum MHD_Result ig_serve_get_metrics(ig_serve_conn *c);

/* ---- the server ---------------------------------------------------------------------------------------- */

/* http.c: how many connections `limit` open files allow; 0: none. */
typedef struct ig_serve_room {
    int connections; /* more are answered 503 */
    int spare;       /* still accepted, for that answer */
    int linger;      /* closed by us, and read away until the peer closes too */
} ig_serve_room;
ig_serve_room ig_serve_room_for(uint64_t limit, int wanted);

struct ig_serve {
    ig_serve_config config;
    ig_engine *engine;
    const ig_tokenizer *tokenizer;
    const ig_template *template;
    struct MHD_Daemon *daemon;
    int port;
    char fingerprint[24];
    time_t started_s;
    uint64_t started_ns;
    int n_ctx, n_vocab, width;

    ig_serve_conn *conns; /* [n_conns] */
    int n_conns;
    ig_serve_room room;
    ig_queue *free_slots; /* of int: indexes of conns */
    _Atomic int n_open;
    _Atomic int n_jobs; /* POSTs between their last body byte and the end of their answer */
    _Atomic bool draining, ending, engine_lost;
    ig_serve_watch *watch;
    ig_serve_prep *prep;
    uint64_t body_budget_bytes, body_used_bytes; /* net thread */
    _Atomic uint64_t mean_job_us;
    uint64_t n_answers[IG_SERVE_ROUTES_MAX + 1][IG_SERVE_STATUSES]; /* net thread, as the next two; metrics.c */
    uint64_t n_ended[IG_SERVE_ENDS], n_rejected[IG_SERVE_REJECTED];
    _Atomic uint64_t last_ttft_us, last_prefill_mtps, last_decode_mtps; /* milli-tokens a second */
};

#endif
