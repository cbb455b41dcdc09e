/* model: weights bound to a family's table, and the one forward.
 *
 * Owns:    repacked weights, the family's numbers (ig_model_config), the kernels chosen.
 * Takes:   a checkpoint (an open ig_gguf or ig_snapshot) and a compute pool. The checkpoint may be closed
 *          after ig_model_open.
 * Gives:   logits of the rows asked for, or those rows after the final norm; K and V written into the blocks of the rows' sequences.
 * Threads: ig_model_forward by one thread at a time, which lends the pool; ig_model_plan and _trace likewise.
 * Memory:  weights: one mapping of exactly the planned size. A forward takes everything else from the
 *          caller's arena; ig_model_plan says how much.
 * Fails:   IG_EFORMAT by name: architecture, block type, a missing, misshapen or surplus tensor, a
 *          setting out of range or one that changes the numbers and is not built. IG_ELIMIT: does not fit
 *          in memory_budget_bytes.
 * Training: a forward in steps, ig_model_embed, ig_model_layers over ranges, ig_model_loss, with an ig_run
 *          whose `train` is set; carry.c keeps what passes from a range of layers to the next.
 * Not here: who runs when (engine/), tokens' text (text/), where to cut and what to train (train/). */
#ifndef IG_MODEL_H
#define IG_MODEL_H

#include "file/file.h"
#include "op/op.h"

typedef struct ig_family ig_family;

enum { IG_LAYERS_MAX = 1024 };

/* How rope is stretched over longer texts than those of the first training; rope.c has the formulas. */
typedef enum ig_rope_type {
    IG_ROPE_PLAIN,
    IG_ROPE_LINEAR,
    IG_ROPE_LLAMA3,
    IG_ROPE_YARN,
    IG_ROPE_LONGROPE
} ig_rope_type;
typedef struct ig_rope_settings {
    ig_rope_type type;
    double base, factor;
    double original;             /* positions before the stretching; llama3, yarn, longrope */
    double low, high;            /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double scale;                /* of cosines and sines: yarn, longrope; else 1 */
    int n_divisors;              /* longrope of a config.json: those that apply */
    double divisor[IG_HEAD_DIM_MAX / 2];
    bool mlx_differs;           /* of a config.json: mlx-lm reads another rope out of it, or none */
} ig_rope_settings;
const char *ig_rope_type_name(ig_rope_type t);

/* Windowed layers may have a rope of their own. */
enum { IG_ROPE_FULL, IG_ROPE_WINDOW, IG_ROPES };

/* What a checkpoint says makes a vector of a text's rows. Numbers are GGUF's. */
typedef enum ig_pooling {
    IG_POOLING_NONE, /* it does not say */
    IG_POOLING_MEAN, IG_POOLING_CLS, IG_POOLING_LAST, IG_POOLING_RANK
} ig_pooling;
const char *ig_pooling_name(ig_pooling p);

typedef struct ig_model_config {
    int n_layers, n_heads, n_kv_heads, head_dim, width, ffn_width, n_vocab;
    int n_ctx_train; /* tokens the model was made for */
    float norm_eps;
    float embed_scale, attention_scale;     /* of embedding rows; of queries */
    float attention_softcap, final_softcap; /* of scores, of logits; 0: none */
    ig_rope_settings rope[IG_ROPES];
    bool own_window_rope; /* else rope[IG_ROPE_WINDOW] means nothing */
    bool tied_head;
    bool tied_unsaid;                /* there is a head, and no setting that says whether it counts */
    bool no_head;                    /* a bare model: rows after the last norm, and no logits */
    ig_pooling pooling;
    bool attention_bias, mlp_bias;   /* of a snapshot: the settings; in GGUF files the tensors say it */
    const char *mlx_differs;         /* of a config.json: a setting that mlx-lm does not read, or reads otherwise; or NULL */
    bool window_implied;             /* by the name of the model, not by a setting of layers */
    int window;                      /* positions, the row's own included; 0: no layer has one */
    uint8_t windowed[IG_LAYERS_MAX]; /* 1: layer i sees a window only */
} ig_model_config;

typedef struct ig_model ig_model;

/* Where a model comes from: one of the two, the other NULL. */
typedef struct ig_checkpoint {
    const ig_gguf *gguf;
    const ig_snapshot *snapshot;
} ig_checkpoint;

/* Tier l2: layers that keep keys and values in affine groups too, kv_config.c. */
typedef struct ig_kv_config {
    int n_layers;                                        /* 0: none; layers from there on are not listed */
    uint8_t bits[IG_LAYERS_MAX], group[IG_LAYERS_MAX]; /* bits 0: not listed */
    bool at_once; /* softmax over all keys, as mlx-lm alone does it; false: in tiles where mlx-optiq has some */
} ig_kv_config;
/* IG_EFORMAT, IG_ELIMIT: says which entry, its value and the bound. */
ig_status ig_kv_config_parse(ig_kv_config *c, const char *text, size_t n, ig_err *err);
ig_status ig_kv_config_read(ig_kv_config *c, const char *path, ig_err *err);

typedef struct ig_model_options {
    ig_pool *pool;                /* for repacking and for the forward; NULL: one thread */
    ig_tier tier_max;             /* 0: l3 */
    uint32_t cpu;                 /* 0: ig_cpu_features() */
    ig_kv_kind kv_kind;           /* what the pool keeps: F16 or 8 */
    const ig_kv_config *kv_config; /* of tier l2: a copy is made; NULL: none */
    bool two_parts;               /* int8 activations, if any weight eats them, as sums of two (ig_run) */
    uint64_t memory_budget_bytes; /* for the weights; 0: no bound */
    bool plan_only;               /* no weight is read: what comes can be planned with, and nothing else */
    void (*progress)(void *ud, uint64_t done_bytes, uint64_t total_bytes); /* or NULL; any thread */
    void *progress_ud;
} ig_model_options;

ig_status ig_model_open(ig_model **out, ig_checkpoint c, const ig_model_options *o, ig_err *err);
void ig_model_close(ig_model *m);
const ig_model_config *ig_model_config_of(const ig_model *m);
const char *ig_model_family(const ig_model *m); /* "llama" */
ig_kv_shape ig_model_kv_shape(const ig_model *m);
ig_tier ig_model_tier(const ig_model *m); /* the ceiling it was opened with */
/* Tiers l1 and l2: what activations and logits are rounded to, ig_fmt_bf16 or ig_fmt_f16; else NULL. */
const ig_fmt *ig_model_number(const ig_model *m);
/* How many random numbers mlx_lm.generate has drawn from its seed before the first token: it seeds, then loads. */
int ig_model_mlx_draws(const ig_model *m);
bool ig_model_two_parts(const ig_model *m);
uint64_t ig_model_weights_bytes(const ig_model *m); /* repacked, in memory */
uint64_t ig_model_decode_bytes(const ig_model *m);  /* weight bytes read for one decoded token */
uint64_t ig_model_n_params(const ig_model *m);
ig_pool *ig_model_pool(const ig_model *m);
const ig_kern_table *ig_model_kernels(const ig_model *m);

/* Arena bytes of a forward of at most n_rows rows, n_want of them with logits, contexts up to n_ctx. */
size_t ig_model_plan(const ig_model *m, int n_rows, int n_want, int n_ctx);

/* One step: embeds, runs all layers, writes K/V of every row, and puts the logits of rows->want into
 * logits [n_want][n_vocab] (may be NULL when n_want is 0). IG_EINVAL: a model without a head. The arena is
 * rewound at the end. The sequences' blocks are reserved by the caller, who also moves n_tokens on. */
ig_status ig_model_forward(ig_model *m, ig_arena *arena, const ig_rows *rows, float *logits, ig_err *err);

/* ---- vectors of texts ---------------------------------------------------------------------------------- */

/* The same step for rows->want after the final norm instead of logits: hidden [n_want][width]. A text's vector is
 * the row of its last token (Qwen3-Embedding: an <|endoftext|> that the caller puts there) through
 * ig_embedding_finish. Equal by bits alone, in a batch and in chunks, as logits are. */
ig_status ig_model_hidden(ig_model *m, ig_arena *arena, const ig_rows *rows, float *hidden, ig_err *err);
/* One step for both: of rows->want the last n_hidden give vectors, and those before them logits. */
ig_status ig_model_step(ig_model *m, ig_arena *arena, const ig_rows *rows, float *logits, float *hidden, int n_hidden,
                        ig_err *err);
/* Arena bytes of such a step, of at most n_logits and n_hidden rows wanted. */
size_t ig_model_plan_step(const ig_model *m, int n_rows, int n_logits, int n_hidden, int n_ctx);
/* Ids of a text. */
typedef struct ig_token_list {
    const uint32_t *v;
    int n;
} ig_token_list;
/* Runs texts through ig_model_hidden, n_slots at a time, in steps of at most `chunk` rows; one thread at a time. */
typedef struct ig_embedder ig_embedder;
ig_status ig_embedder_make(ig_embedder **out, ig_model *m, int n_slots, int n_ctx, int chunk, ig_err *err);
void ig_embedder_free(ig_embedder *e); /* NULL is fine */
/* vectors [n][width]: the last row of each text. IG_EINVAL: a text of 0 or more than n_ctx tokens, an id that is
 * not in the vocabulary. */
ig_status ig_embedder_run(ig_embedder *e, const ig_token_list *texts, int n, float *vectors, ig_err *err);
/* The first n values of such a row, made a vector of length 1 in place; squares are summed in double, ascending.
 * IG_EINVAL: the row holds a number that is not finite, or nothing but zeros. */
ig_status ig_embedding_finish(float *v, int n, ig_err *err);

/* ---- training: ranges of layers ----------------------------------------------------------------------- */

/* What passes from layer to layer: the hidden state, and tensors that later layers read again. */
enum { IG_CARRY_SHARED_MAX = 8 };
typedef struct ig_carry {
    ig_tensor *h;
    /* Serving, in the last layer: only rows->want go on once their keys and values are written. `picked`: they are
     * what h holds; `rows` then describes them. */
    bool last, picked;
    ig_rows rows;
    int n_shared;
    struct {
        const char *name;
        ig_tensor *t;
        bool saved; /* a leaf with a gradient of its own: some edge kept it */
    } shared[IG_CARRY_SHARED_MAX];
} ig_carry;
/* By a layer: gives `t` to those after it; the last one of that name, NULL when there is none. */
void ig_carry_share(ig_carry *c, const char *name, ig_tensor *t);
ig_tensor *ig_carry_find(const ig_carry *c, const char *name);

/* An edge between two segments of layers. Copies of h, and of what is shared and not yet saved, become
 * leaves in the run's arena, below the marks of the segments. `carry` goes on with the saved ones, so that
 * all segments read one copy and add to one gradient. g_of_h: room for h's gradient, free again when the
 * segment below the edge has been walked (two buffers in turn do); NULL when needs_g is false. */
void ig_carry_save(ig_run *r, ig_carry *carry, ig_carry *edge, bool needs_g, float *g_of_h);
/* After a segment was run again from its edge to `out`: its outputs take the gradients that segments above
 * left at `next`, the edge where it ends. Then op_backward leaves those of its own edge. */
void ig_carry_seed(const ig_carry *out, const ig_carry *next);

/* Cosines and sines of a batch, for all layers. */
typedef struct ig_model_ropes {
    const ig_rope *v[IG_ROPES]; /* NULL: no layer uses it */
} ig_model_ropes;
ig_model_ropes ig_model_ropes_of(const ig_model *m, ig_run *r, const ig_rows *rows);
/* Embedding rows. No gradient passes; with needs_g they are a leaf that keeps its own. */
ig_carry ig_model_embed(const ig_model *m, ig_run *r, const ig_rows *rows, bool needs_g);
/* Layers [first, last). With a tape all that they made stays in the arena; without one h alone does, in
 * place, and layers that share something. rows, ropes and what they point to live until the walk is over. */
void ig_model_layers(const ig_model *m, ig_run *r, const ig_rows *rows, const ig_model_ropes *ropes,
                     int first, int last, ig_carry *carry);
/* Final norm of the rows in rows->want and the loss of their targets [n_want]. NULL: the run has failed. */
ig_loss *ig_model_loss(const ig_model *m, ig_run *r, const ig_rows *rows, const ig_carry *carry,
                       const uint32_t *target, ig_head_kind kind, bool grad);

/* The list of (op, kernel, tier) that a forward runs, in order, one call for each. */
void ig_model_trace(const ig_model *m, ig_trace_fn *trace, void *ud);
/* The same calls from the forwards that follow, while they run: for profiles. NULL ends it. */
void ig_model_watch(ig_model *m, ig_trace_fn *trace, void *ud);
/* Every intermediate of the forwards that follow (op.h); the trace says of which op. NULL ends it. */
void ig_model_tap(ig_model *m, ig_tap_fn *tap, void *ud);

/* What the checkpoint holds, without loading it: for `show`. */
typedef struct ig_model_info {
    ig_slice architecture; /* or model_type, as the checkpoint says */
    ig_slice name;
    const ig_family *family; /* NULL: not one of ours */
    ig_model_config config;  /* when family is set */
    uint64_t n_params, file_bytes; /* of quantized snapshots an estimate */
} ig_model_info;
ig_status ig_model_inspect(ig_model_info *out, ig_checkpoint c, ig_err *err);
/* What a tensor of a snapshot is: its dtype, or for one of the tensors of an MLX matrix the matrix's format
 * ("affine4g64"). *is_part: scales and the like, which count to the tensor of the codes. */
const char *ig_model_format_of(const ig_snapshot *s, const ig_safetensor *t, bool *is_part);
const char *ig_model_families(void); /* "llama": names for messages, comma separated */

#endif
