/* inside: what the files of engine/ share. Nobody else includes it.
 *
 * The engine sees the model through ig_backend only: the simulation runs the same scheduler, the same KV
 * pool and the same sampler on a model of thirty lines and a clock that it turns by hand. */
#ifndef IG_ENGINE_INSIDE_H
#define IG_ENGINE_INSIDE_H

#include <pthread.h>

#include "engine/engine.h"
#include "tier/tier.h"

enum {
    SLOTS_MAX = 64,
    EOS_MAX = 16,
    TOP_LOGPROBS_MAX = 20,
    MLX_CHUNK_TOKENS = 2048,  /* of mlx-lm's prefill */
    LOGITS_ROWS = 32,         /* rows of ig_engine_logits that one step carries */
    ALLOWANCE_TOKENS = 4096,  /* of a request's length that admission sets memory aside for */
    KEPT_WINDOWS = 4,         /* of a slot, cached beside the one that it runs on */
    ALIKE_TOKENS = 256,       /* a beginning this long that is being computed now is worth waiting for */
    SLICE_ROWS = 16,          /* a prefill slice is a multiple of it, and at least it */
    CHUNK_ROWS_MIN = 96,      /* and at least this when nobody decodes */
    WAIT_STEPS_MAX = 2,       /* steps that a prefill may be passed over */
    RESERVE_BYTES = 64 << 20  /* of the plan: stacks, requests, what we did not think of */
};

typedef struct ig_backend {
    void *ud;
    /* Of rows->want the last n_hidden give vectors. */
    ig_status (*forward)(void *ud, ig_arena *arena, const ig_rows *rows, float *logits, float *hidden, int n_hidden,
                         ig_err *err);
    size_t (*plan)(void *ud, int n_rows, int n_logits, int n_hidden, int n_ctx);
    ig_argmax_fn *argmax;
    ig_exp_fn *exp;
    int n_vocab, n_ctx, n_threads;
    int width;    /* of a vector */
    bool no_head; /* vectors only */
    ig_kv_shape kv; /* as the pool keeps it (ig_kv_kept) */
    bool two_parts; /* as the model multiplies: only told on */
    const ig_fmt *number; /* tier l1: what logits are rounded to; else NULL */
    uint64_t weights_bytes;
} ig_backend;

/* ---- sample.c --------------------------------------------------------------------------------------- */

enum { SAMPLE_NOT_FINITE = -1, SAMPLE_NONE = -2, SAMPLE_TOO_COLD = -3, SELECT_BINS = 2048 };

/* Scratch for one row at a time. */
typedef struct ig_sampler {
    ig_argmax_fn *argmax;
    ig_exp_fn *exp;
    ig_round_fn *round;     /* tier l1; NULL: tier l3 */
    int n_vocab;
    uint32_t *rank;         /* [n_vocab] a logit as a number that is smaller the larger the logit is */
    int32_t *id, *some;     /* [n_vocab] tokens that are left, ascending; those of one bin */
    float *x, *weight;      /* [n_vocab] logit - max; e to that. l1: log-probabilities; those that are left */
    float *prob;            /* [n_vocab] l1 only */
    double bin[SELECT_BINS];
} ig_sampler;

void ig_sampler_lay_out(ig_sampler *s, ig_arena *a); /* n_vocab is set */
/* Bias and penalties, on the row itself; ids are those of the prompt and of the answer so far. (penalty.c) */
void ig_sample_penalize(ig_sampler *s, float *logits, const ig_sampling *p, const uint32_t *ids, int n_ids);
/* The token of one row; step counts the request's tokens from 0. */
int ig_sample(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t step);
/* Log-softmax of the raw logits: the sampled token's, and the n_top largest. */
void ig_sample_logprobs(ig_sampler *s, const float *logits, uint32_t id, int n_top, ig_logprob *own,
                        ig_logprob *top);
/* Of n items with ranks and weights (NULL: 1 each), the largest rank r such that the items of smaller rank
 * weigh less than `limit` together; *before is their weight. UINT32_MAX when all together weigh less. */
uint32_t ig_sample_select(ig_sampler *s, const uint32_t *rank, const float *weight, int n, double limit,
                          double *before);
uint32_t ig_sample_rank(float logit);
/* The n_top largest of x[n], descending, the lower id first; x as .logprob. Behind the last: UINT32_MAX. */
void ig_sample_top(const float *x, int n, int n_top, ig_logprob *top);

/* ---- sample_mlx.c: tier l1 --------------------------------------------------------------------------- */

/* Sets round and exp. NULL, tier l3: no round, and exp stays. */
void ig_sampler_set_number(ig_sampler *s, const ig_fmt *number);
/* As ig_sample; `key` is the request's random state, ig_sample_key at first. Leaves log-probabilities in x. */
int ig_sample_mlx(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]);
void ig_sample_key(uint32_t key[2], uint64_t seed, int n_drawn);
void ig_threefry(uint32_t out[2], const uint32_t key[2], uint32_t a, uint32_t b);

/* ---- request.c -------------------------------------------------------------------------------------- */

struct ig_gen {
    /* Set at submit, read by anyone. */
    int n_prompt, max_tokens, n_eos, top_logprobs;
    bool use_prefix_cache;
    uint32_t eos[EOS_MAX];
    ig_sampling sampling;   /* what it points to is in this block */
    void (*notify)(void *ud);
    void *notify_ud;
    uint64_t submit_ns;
    int width;              /* of a vector; 0: tokens are wanted */
    float *last_logits;     /* ig_engine_logits: [n_last][n_vocab] of the waiting caller; else NULL */
    int n_last;

    /* Engine thread only. */
    ig_gen *next;           /* in the waiting list, or in the list of the dead */
    ig_kv_seq *seq;         /* while running */
    int n_ids;              /* prompt + tokens so far */
    int n_take;             /* rows of this step */
    int n_waited;           /* steps that passed this prefill over */
    bool begun;             /* was admitted before */
    uint32_t key[2];        /* tier l1: where its random stream is */
    ig_token_bias *bias;    /* sampling.logit_bias and .xtc_special */
    uint32_t *special;

    /* Written by the engine thread; n_tokens and finish are what readers wait for. */
    uint32_t *ids;          /* [n_prompt + max_tokens] */
    float *vector;          /* [width] */
    double *sum;            /* [width] of rows so far: mean; else NULL */
    ig_logprob *own, *top;  /* [max_tokens], [max_tokens][top_logprobs] */
    char error[160];        /* before finish */
    _Atomic int n_tokens, finish, state, n_cached, n_prefilled;
    _Atomic uint64_t admit_ns, first_ns, last_ns;

    /* Between threads. */
    _Atomic int n_refs;
    _Atomic bool cancel;
    _Atomic uint32_t news, n_sleepers; /* futex word; who sleeps on it */
    _Atomic bool released, notifying;
};

/* One block; NULL: no memory. width: of the vector that is wanted, 0: none. */
ig_gen *ig_gen_make(const ig_gen_params *p, int max_tokens, int n_prompt, int width, bool is_mean);
/* The prompt is all: no token comes after it. */
static inline bool ig_gen_is_one_pass(const ig_gen *g) {
    return g->last_logits || g->width > 0;
}
void ig_gen_free(ig_gen *g);
void ig_gen_tell(ig_gen *g); /* engine thread: something became visible */

/* ---- the engine ------------------------------------------------------------------------------------- */

/* metrics.c: a histogram's numbers. */
typedef struct ig_engine_spread {
    _Atomic uint64_t n[IG_HISTOGRAM_BOUNDS + 1], sum;
} ig_engine_spread;
void ig_spread_note(ig_engine_spread *s, const uint64_t bound[IG_HISTOGRAM_BOUNDS], uint64_t value);
extern const uint64_t ig_bounds_ns[IG_HISTOGRAM_BOUNDS], ig_bounds_rows[IG_HISTOGRAM_BOUNDS];

/* Written by the engine thread, read by anyone, each number by itself. */
typedef struct ig_engine_counts {
    _Atomic int n_running, n_prefilling, stage, n_step_rows, n_free[IG_KV_GROUPS_MAX], n_cached[IG_KV_GROUPS_MAX];
    _Atomic uint64_t n_steps, n_rows, n_prompt_tokens, n_cached_tokens, n_generated_tokens, n_canceled,
        n_failed, n_done, n_paused, n_lookup_tokens, n_hit_tokens, n_evicted, n_hits, n_misses, prefill_ns, decode_ns;
    ig_engine_spread step_rows, first_token_ns, between_tokens_ns, queue_ns;
} ig_engine_counts;

/* What a step costs: row_ns for a row and key_ns for a key that it sees in one layer, by least squares over the
 * last steps; the sums fade. */
typedef struct step_cost {
    double rr, rk, kk, rt, kt, row_ns, key_ns;
    double least_ns; /* the cheapest row of any step, keys and all; 0: none yet */
} step_cost;

struct ig_engine {
    ig_backend model;
    ig_engine_config config;
    ig_engine_plan plan;

    /* Engine thread. */
    ig_kv_pool *kv;
    void *map;              /* step memory and tables */
    size_t map_bytes;
    ig_arena arena;
    float *logits;          /* [n_logits_max][n_vocab] */
    float *hidden;          /* [n_hidden_max][width] */
    int n_logits_max, n_hidden_max, n_hidden; /* of this step: the last rows wanted */
    ig_sampler sampler;
    int n_rows_max, n_want_max;
    uint32_t *row_token;    /* [n_rows_max], and so on: the step's ig_rows */
    int *row_pos, *row_seq, *want;
    ig_kv_seq **row_kv;     /* [n_slots] */
    ig_gen **want_gen;      /* [n_want_max]: whose row it is */
    ig_gen **running;       /* [n_slots], oldest first; older than all that wait */
    ig_gen **batch;         /* [n_slots], those with rows in this step */
    int n_running, n_batch;
    ig_gen *waiting;        /* oldest first; those that were paused are in front */
    step_cost cost;

    /* Between threads. */
    ig_queue *inbox;        /* ig_gen *; closed at stop */
    _Atomic int n_queued;   /* submitted and not yet begun */
    _Atomic int n_open;     /* submitted and not yet ended, wherever they are */
    _Atomic(ig_gen *) dead; /* the last reference was the engine's: freed by the next caller */
    _Atomic bool stopping;
    ig_engine_counts counts;
    pthread_t thread;
};

ig_backend ig_engine_backend(const ig_model *m);

/* engine.c; without a thread, for tests: make, submit, turn, free. */
ig_status ig_engine_plan_on(ig_engine_plan *out, const ig_backend *b, const ig_engine_config *c, ig_err *err);
ig_status ig_engine_fit_on(ig_engine_fit *out, const ig_backend *b, const ig_engine_config *c, ig_err *err);
ig_status ig_engine_make_on(ig_engine **out, const ig_backend *b, const ig_engine_config *c, ig_err *err);
ig_status ig_engine_start_on(ig_engine **out, const ig_backend *b, const ig_engine_config *c, ig_err *err);
void ig_engine_free(ig_engine *e); /* nothing runs or waits any more */
void ig_engine_count(ig_engine *e); /* puts the numbers where readers look */

/* sched.c */
void ig_sched_measure(ig_engine *e, const ig_rows *rows, uint64_t ns); /* a step took so long */
void ig_sched_accept(ig_engine *e, ig_gen *g);  /* to the end of the waiting list */
void ig_sched_cancel(ig_engine *e, bool all);   /* ends those that were cancelled */
void ig_sched_admit(ig_engine *e);
void ig_sched_choose(ig_engine *e);             /* n_take of each that runs */
bool ig_sched_reserve(ig_engine *e);            /* blocks for them; the youngest are paused when short */
void ig_sched_finish(ig_engine *e, ig_gen *g, ig_finish how, const char *error);
/* Puts the first n_tokens that g computed where others find them, if it wants that. False: they are bad. */
bool ig_sched_remember(ig_engine *e, ig_gen *g, int n_tokens);

/* batch.c */
void ig_batch_fill(ig_engine *e, ig_gen *const *gens, int n, ig_rows *out);

/* step.c */
bool ig_engine_turn(ig_engine *e); /* one step; false: nothing to do */

#endif
