/* engine: many requests to batches to tokens. It knows tokens, never text.
 *
 * Owns:    the engine thread, the KV pool and its prefix tree, the scheduler, the step memory, a table of
 *          request slots.
 * Takes:   token ids and sampling parameters (ig_gen_params, copied at submit).
 * Gives:   tokens, appended to the request as they are made; a finish reason; counts and times.
 * Threads: submit, cancel, the readers of a request and stats may be called from any thread. The model is
 *          touched by the engine thread only. The engine thread never waits for a consumer: a request's
 *          output has room for all its tokens from the start.
 * Memory:  everything is taken at start from the plan; a request takes its slot's arrays at submit (on
 *          the submitting thread). After start the engine thread does not call malloc.
 * Fails:   start: IG_ELIMIT with the numbers when the plan does not fit. Submit: IG_EINVAL (parameter),
 *          IG_ELIMIT (queue full, context). A row whose logits are not finite fails alone.
 * Not here: tokenizing, stop strings, JSON (serve/, text/).
 *
 * Exact:   a request's tokens depend on its prompt, parameters and seed only: not on who else runs, how
 *          its prompt was cut, what was cached, or how many threads there are. */
#ifndef IG_ENGINE_H
#define IG_ENGINE_H

#include "model/model.h"

typedef struct ig_token_bias {
    uint32_t id;
    float bias;
} ig_token_bias;

enum { IG_LOGIT_BIAS_MAX = 1024, IG_XTC_SPECIAL_MAX = 32 };

/* In the order in which they act. Reals are doubles because tier l1 takes 1 / temperature and log(min_p) in
 * double. A context size is how many of the last tokens, prompt and answer, a penalty looks at; 0: all. What
 * pointers name is copied at submit. */
typedef struct ig_sampling {
    const ig_token_bias *logit_bias; /* added to logits */
    int n_logit_bias;                /* <= IG_LOGIT_BIAS_MAX */
    double repetition_penalty; /* 0 or 1: off; a logit that was seen is divided by it, a negative one multiplied */
    double presence_penalty;   /* 0: off; taken from a logit that was seen, once */
    double frequency_penalty;  /* 0: off; as often as it was seen */
    int repetition_context_size, presence_context_size, frequency_context_size;
    double temperature;     /* 0: argmax, lowest id wins a tie; what follows does nothing then */
    double top_p;           /* 0 or 1: off */
    double min_p;           /* 0: off */
    int min_tokens_to_keep; /* by min_p; 0 is 1 */
    double xtc_probability; /* 0: off; with it, of tokens above xtc_threshold only the least likely is left */
    double xtc_threshold;   /* 0..0.5 */
    const uint32_t *xtc_special; /* what it never takes out */
    int n_xtc_special;           /* <= IG_XTC_SPECIAL_MAX */
    int top_k;              /* 0: off */
    uint64_t seed;
    int n_drawn; /* tier l1: numbers that the reference has drawn from the seed before its first token */
} ig_sampling;

/* What a request that says nothing gets, but for its seed. */
static inline ig_sampling ig_sampling_defaults(void) {
    return (ig_sampling){.repetition_context_size = 20,
                         .presence_context_size = 20,
                         .frequency_context_size = 20,
                         .temperature = 0.7,
                         .xtc_threshold = 0.1};
}

typedef enum ig_finish {
    IG_FINISH_NONE = 0,  /* still going */
    IG_FINISH_STOP,      /* an end token */
    IG_FINISH_LENGTH,    /* max_tokens, or the context is full */
    IG_FINISH_CANCELED,
    IG_FINISH_FAILED     /* see ig_gen_error */
} ig_finish;

typedef enum ig_gen_state { IG_GEN_QUEUED, IG_GEN_PREFILL, IG_GEN_DECODE, IG_GEN_DONE } ig_gen_state;

typedef struct ig_gen_params {
    const uint32_t *prompt; /* [n_prompt], copied */
    int n_prompt;           /* 1 .. context - 1 */
    int max_tokens;         /* >= 1; clamped to the room left in the context */
    ig_sampling sampling;
    const uint32_t *eos;    /* end tokens, copied; n_eos <= 16 */
    int n_eos;
    bool use_prefix_cache;
    bool vector;            /* the prompt's vector instead of tokens (ig_engine_config.pooling); sampling counts for nothing */
    int top_logprobs;       /* -1: none; 0..20: record the sampled token's log-probability and this many */
    /* Called on the engine thread after new tokens or the end became visible; must be quick, must not
     * allocate, and must not call back into the engine (the readers below are fine). Not called any more
     * once ig_gen_release has returned. May be NULL (then poll, or ig_gen_wait). */
    void (*notify)(void *ud);
    void *notify_ud;
} ig_gen_params;

typedef struct ig_engine_config {
    int n_slots;             /* sequences that run together, 1..64 */
    int n_ctx;               /* tokens of one sequence; 0: the model's */
    uint64_t kv_budget_bytes; /* 0: chosen from what is free */
    uint64_t memory_budget_bytes; /* 0: 75 % of what is available */
    int prefill_chunk;       /* rows of a prefill step when nobody decodes: 512 */
    int prefill_chunk_ms;    /* and its longest time, for those who cancel or come: 240; 0: no limit */
    int prefill_slice_ms;    /* longest step while somebody decodes: 120 */
    int queue_max;           /* waiting requests: 64 */
    ig_pooling pooling;      /* of vectors: LAST or MEAN; NONE: there are none */
} ig_engine_config;

ig_engine_config ig_engine_defaults(void);

/* What a configuration needs, before anything is taken: IG_ELIMIT with all the numbers and the largest
 * context that would fit, when it does not. Chosen for kv: a context for each slot, at most 40 % of what
 * is usable, at least one whole context. Of layers with a window a slot needs what a running request holds,
 * and gets as much again for windows of prompts and answers that will be asked to go on. */
typedef struct ig_engine_plan {
    uint64_t weights_bytes, step_bytes, kv_bytes, table_bytes, total_bytes, usable_bytes;
    int n_ctx, n_slots;
    ig_kv_room room; /* blocks of each group; kv_bytes are theirs */
    ig_kv_kind kv_kind;
    bool two_parts; /* of int8 activations */
    bool fits; /* always true in a plan that was given out */
} ig_engine_plan;

ig_status ig_engine_plan_make(ig_engine_plan *out, const ig_model *m, const ig_engine_config *c,
                              ig_err *err);

/* What n_slots requests of n_ctx tokens each need at once, whether it fits or not (plan.fits), by the arithmetic of the
 * plan that start makes; and the largest context with which so many fit, up to the model's: 0, none does. */
typedef struct ig_engine_fit {
    ig_engine_plan plan;
    uint64_t reserve_bytes; /* a part of the total: stacks, requests */
    int n_ctx_max;
} ig_engine_fit;
ig_status ig_engine_fit_make(ig_engine_fit *out, const ig_model *m, const ig_engine_config *c, ig_err *err);

typedef struct ig_engine ig_engine;
typedef struct ig_gen ig_gen; /* one generation; counted references: submit gives one to the caller */

/* Starts the engine thread. The model is lent until ig_engine_stop returns. */
ig_status ig_engine_start(ig_engine **out, ig_model *m, const ig_engine_config *c, ig_err *err);
/* Cancels what runs, joins the thread, frees. */
void ig_engine_stop(ig_engine *e);

ig_status ig_engine_submit(ig_engine *e, const ig_gen_params *p, ig_gen **out, ig_err *err);
void ig_gen_cancel(ig_gen *g);  /* any time, any thread, any number of times */
/* The caller's reference; does not cancel. Waits for a notify that is running now: hold no lock that it
 * takes. Fine after ig_engine_stop. */
void ig_gen_release(ig_gen *g);

/* Readers, any thread. Tokens [0, n) of the return value are final; the end token is included and counted. */
int ig_gen_n_tokens(const ig_gen *g);
uint32_t ig_gen_token(const ig_gen *g, int i);
ig_finish ig_gen_finish(const ig_gen *g); /* when not NONE, ig_gen_n_tokens is final too (read it after) */
ig_gen_state ig_gen_state_of(const ig_gen *g);
const char *ig_gen_error(const ig_gen *g); /* after IG_FINISH_FAILED */
/* Sleeps until there are more than n_seen tokens or the end; for callers without notify. False: timeout
 * (negative: none). */
bool ig_gen_wait(ig_gen *g, int n_seen, int64_t timeout_ns);

/* Of a request for a vector that has ended with IG_FINISH_LENGTH: [*width], the pooled row after the final norm, as long
 * as the request lives. Any prompt of 1 to a whole context of tokens; no cached prefix is used and none is left. */
const float *ig_gen_vector(const ig_gen *g, int *width);

typedef struct ig_logprob {
    uint32_t id;
    float logprob;
} ig_logprob;
/* Token i's own and the top alternatives (descending, then id ascending). n_top as asked. */
const ig_logprob *ig_gen_logprobs(const ig_gen *g, int i, ig_logprob *own, int *n_top);

typedef struct ig_gen_stats {
    int n_prompt, n_cached, n_tokens; /* n_cached: prompt tokens that were not computed again */
    int n_prefilled;                  /* prompt tokens done so far, cached ones included */
    uint64_t queue_ns, prefill_ns, first_token_ns, decode_ns; /* first_token: from submit */
} ig_gen_stats;
ig_gen_stats ig_gen_stats_of(const ig_gen *g);

typedef enum ig_engine_stage { IG_STAGE_SCHEDULE, IG_STAGE_FORWARD, IG_STAGE_SAMPLE } ig_engine_stage;

typedef struct ig_engine_stats {
    int n_open; /* submitted and not yet ended: counted at both doors, so true even while the engine hangs */
    int n_running, n_queued, n_prefilling, n_slots, n_ctx, n_threads;
    uint64_t n_steps, n_rows, n_prompt_tokens, n_cached_tokens, n_generated_tokens;
    uint64_t n_canceled, n_failed, n_done;
    uint64_t n_hits, n_misses; /* requests that found a part of their prompt computed, and those that did not */
    ig_engine_stage stage;    /* where in the step the engine is, */
    int n_step_rows;          /* and with how many rows */
    ig_kv_stats kv;
} ig_engine_stats;
ig_engine_stats ig_engine_stats_of(ig_engine *e);
ig_engine_plan ig_engine_plan_of(const ig_engine *e);

/* How values were spread since the start: n[i] of them were at most bound[i] and more than the one before, the
 * last n more than all. Any thread; each number is right by itself. */
enum { IG_HISTOGRAM_BOUNDS = 15 };
typedef struct ig_histogram {
    const uint64_t *bound; /* [IG_HISTOGRAM_BOUNDS] */
    uint64_t n[IG_HISTOGRAM_BOUNDS + 1], sum;
} ig_histogram;
typedef struct ig_engine_metrics {
    ig_histogram step_rows;         /* of each step */
    ig_histogram first_token_ns;    /* of each request that got one: from submit */
    ig_histogram between_tokens_ns; /* of each token behind the first */
    ig_histogram queue_ns;          /* of each request that began */
    uint64_t prefill_ns, decode_ns; /* of all requests together: from their begin to their first token; from there on */
} ig_engine_metrics;
ig_engine_metrics ig_engine_metrics_of(const ig_engine *e);

/* The logits of the last n_last rows of `prompt` (at most a whole context), [n_last][n_vocab]. It queues like
 * a request and shares its steps with the others; no cached prefix is used and none is left. Waits until it
 * is done. For evaluation programs and tests. */
ig_status ig_engine_logits(ig_engine *e, const uint32_t *prompt, int n_prompt, int n_last, float *logits,
                           ig_err *err);

#endif
