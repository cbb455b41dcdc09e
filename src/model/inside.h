/* inside: what the files of model/ share: a family's table, a layer's weights, the model. */
#ifndef IG_MODEL_INSIDE_H
#define IG_MODEL_INSIDE_H

#include "model/model.h"
#include "tier/tier.h"

/* Matrices of a layer, and its norm weights. A family uses those that it has. */
enum { IG_W_Q, IG_W_K, IG_W_V, IG_W_O, IG_W_GATE, IG_W_UP, IG_W_DOWN, IG_LAYER_WEIGHTS_MAX };
enum {
    IG_V_ATTN_NORM, IG_V_POST_ATTN_NORM, IG_V_FFN_NORM, IG_V_POST_FFN_NORM, IG_V_Q_NORM, IG_V_K_NORM,
    IG_LAYER_VECTORS_MAX
};
typedef struct ig_layer {
    ig_weight w[IG_LAYER_WEIGHTS_MAX];
    const float *v[IG_LAYER_VECTORS_MAX]; /* malloc'd; NULL: the family has none */
    const float *bias[IG_LAYER_WEIGHTS_MAX]; /* malloc'd: those of w */
    ig_attention attention;
    int rope;
} ig_layer;

/* A dimension of a tensor, by what it counts. */
typedef enum ig_dim {
    IG_DIM_NONE, IG_DIM_WIDTH, IG_DIM_FFN, IG_DIM_Q, IG_DIM_KV, IG_DIM_HEAD, IG_DIM_HALF_HEAD, IG_DIM_VOCAB
} ig_dim;

/* When a tensor of the table must be there; at other times it is one too many. */
typedef enum ig_when {
    IG_ALWAYS,
    IG_WHEN_UNTIED,         /* the head is not the embedding */
    IG_WHEN_ATTENTION_BIAS, /* a snapshot's settings say so; in a GGUF file: layer 0 has it */
    IG_WHEN_MLP_BIAS,
    IG_WHEN_THERE,          /* it says by itself what it is for */
    IG_WHEN_LONGROPE
} ig_when;

/* One row of a family's weight table. */
typedef struct ig_weight_spec {
    const char *name; /* "blk.%d.attn_q.weight": %d is the layer; without it: once in the model */
    const char *hf;   /* the same in a snapshot: "model.layers.%d.self_attn.q_proj.weight"; NULL: in none */
    bool vector;      /* slot of ig_layer.v, else of ig_layer.w */
    bool bias;        /* a vector that belongs to w[slot], whose row stands before */
    int slot;
    ig_dim rows, cols; /* rows is NONE for a vector */
    ig_row_order order;
    bool interleaved; /* rows of a GGUF file hold rope pairs side by side: 2i and 2i + 1 of a head */
    bool less_one;    /* a snapshot holds the vector minus 1 */
    ig_when when;
} ig_weight_spec;

/* Slots of the weights that are there once. */
enum { IG_TOP_EMBED, IG_TOP_HEAD };
enum { IG_TOP_NORM, IG_TOP_ROPE_FREQS, IG_TOP_ROPE_LONG, IG_TOP_ROPE_SHORT };

/* Rows of tables: names as both kinds of checkpoints have them, then slot and shape. */
#define IG_ROW_MATRIX(gguf_, hf_, slot_, rows_, cols_, ...)                                                  \
    {.name = "blk.%d." gguf_ ".weight", .hf = "model.layers.%d." hf_ ".weight", .slot = (slot_),             \
     .rows = (rows_), .cols = (cols_), __VA_ARGS__}
#define IG_ROW_NORM(gguf_, hf_, slot_, cols_, ...)                                                           \
    {.name = "blk.%d." gguf_ ".weight", .hf = "model.layers.%d." hf_ ".weight", .vector = true,              \
     .slot = (slot_), .cols = (cols_), __VA_ARGS__}
#define IG_ROW_BIAS(gguf_, hf_, slot_, cols_, ...)                                                           \
    {.name = "blk.%d." gguf_ ".bias", .hf = "model.layers.%d." hf_ ".bias", .vector = true, .bias = true,    \
     .slot = (slot_), .cols = (cols_), __VA_ARGS__}
/* What every family has. */
#define IG_ROWS_V_O                                                                                          \
    IG_ROW_MATRIX("attn_v", "self_attn.v_proj", IG_W_V, IG_DIM_KV, IG_DIM_WIDTH),                            \
        IG_ROW_MATRIX("attn_output", "self_attn.o_proj", IG_W_O, IG_DIM_WIDTH, IG_DIM_Q)
#define IG_ROWS_MLP                                                                                          \
    IG_ROW_MATRIX("ffn_gate", "mlp.gate_proj", IG_W_GATE, IG_DIM_FFN, IG_DIM_WIDTH),                         \
        IG_ROW_MATRIX("ffn_up", "mlp.up_proj", IG_W_UP, IG_DIM_FFN, IG_DIM_WIDTH),                           \
        IG_ROW_MATRIX("ffn_down", "mlp.down_proj", IG_W_DOWN, IG_DIM_WIDTH, IG_DIM_FFN)
#define IG_ROWS_TOP(...)                                                                                     \
    {.name = "token_embd.weight", .hf = "model.embed_tokens.weight", .slot = IG_TOP_EMBED,                   \
     .rows = IG_DIM_VOCAB, .cols = IG_DIM_WIDTH},                                                            \
        {.name = "output_norm.weight", .hf = "model.norm.weight", .vector = true, .slot = IG_TOP_NORM,       \
         .cols = IG_DIM_WIDTH, __VA_ARGS__},                                                                 \
        {.name = "output.weight", .hf = "lm_head.weight", .slot = IG_TOP_HEAD, .rows = IG_DIM_VOCAB,         \
         .cols = IG_DIM_WIDTH, .when = IG_WHEN_UNTIED},                                                      \
        {.name = "rope_freqs.weight", .vector = true, .slot = IG_TOP_ROPE_FREQS,                             \
         .cols = IG_DIM_HALF_HEAD, .when = IG_WHEN_THERE},                                                   \
        {.name = "rope_factors_long.weight", .vector = true, .slot = IG_TOP_ROPE_LONG,                       \
         .cols = IG_DIM_HALF_HEAD, .when = IG_WHEN_LONGROPE},                                                \
        {.name = "rope_factors_short.weight", .vector = true, .slot = IG_TOP_ROPE_SHORT,                     \
         .cols = IG_DIM_HALF_HEAD, .when = IG_WHEN_LONGROPE}
#define IG_ROWS_END {.name = NULL}

/* A value of model_type. The settings of a wrapper are in text_config, its tensors have a prefix. */
typedef struct ig_hf_type {
    const char *name;
    bool wrapper;
} ig_hf_type;

typedef struct ig_hf ig_hf;

struct ig_family {
    const char *name;
    const char *const *gguf; /* values of general.architecture, NULL-ended */
    ig_status (*config)(ig_model_config *out, const ig_gguf *g, ig_err *err);
    const ig_hf_type *hf; /* ended by a NULL name */
    ig_status (*hf_config)(ig_model_config *out, const ig_hf *h, ig_err *err);
    const char *const *hf_drop; /* tensors of snapshots that are not read, one * in each; NULL-ended */
    bool hf_head_by_tensor;     /* lm_head.weight says whether the head is tied; else tie_word_embeddings */
    bool mlx_rounds_scale;      /* mlx-lm's embedding scale is sqrt(width) in the checkpoint's type, else in bf16 always */
    bool mlx_makes_head;        /* mlx-lm makes a head, though the embedding is it */
    bool mlx_sees_all;          /* mlx-lm knows no window in this family */
    bool hf_tied_by_default;    /* ... without which lm_head.weight says it, or, if this is set, it is tied */
    const ig_weight_spec *layer_rows; /* ended by a NULL name */
    const ig_weight_spec *top_rows;
    /* The paper in op calls: h [T][width], which is carry->h, through one layer; gives the new h. What later
     * layers read again goes into the carry. */
    ig_tensor *(*layer)(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                        const ig_rows *rows, ig_tensor *h, ig_carry *carry);
};

struct ig_model {
    const ig_family *family;
    ig_model_config config;
    ig_layer *layers;
    ig_layer top;     /* IG_TOP_... */
    double *inv_freq[IG_ROPES]; /* [head_dim / 2]; NULL: no layer uses it */
    double rope_scale[IG_ROPES];
    ig_kv_config kv_config; /* tier l2 */
    const ig_fmt *number; /* tier l1: what activations are rounded to; else NULL */
    float *mlx_freq[IG_ROPES], mlx_step[IG_ROPES], mlx_before[IG_ROPES]; /* and its ropes (ig_rope_mlx) */
    ig_kv_shape kv;
    ig_kern_table kern;
    ig_tier tier_max;
    bool two_parts;
    uint32_t cpu;
    ig_pool *pool;
    uint8_t *panels; /* all matrices, one mapping */
    size_t panels_bytes;
    void *shapes; /* of tensors while a plan counts */
    ig_trace_fn *watch; /* of forwards; or NULL */
    void *watch_ud;
    ig_tap_fn *tap; /* likewise */
    void *tap_ud;
    uint64_t n_params, decode_bytes;
};

ig_status ig_model_make_shapes(ig_model *m, ig_err *err); /* plan.c */

/* ---- source.c: the tensors of a checkpoint ------------------------------------------------------------ */

typedef struct ig_source_tensor {
    ig_slice name;
    const ig_fmt *fmt; /* rows are read in its file layout */
    int n_rows, n_cols; /* a vector is one row */
    uint64_t n_bytes;   /* of all rows as read */
    const ig_gguf_tensor *gguf;
    const ig_safetensor *part[3]; /* the values; or codes, scales and, of affine ones, biases */
    float tensor_scale;           /* of NVFP4 with f32 scales: what an E4M3 scale is multiplied by */
} ig_source_tensor;

typedef struct ig_source {
    ig_checkpoint from;
    const char *path;         /* for messages */
    int n_tensors;
    bool *used;               /* by number of the tensor */
    const char *body, *outer; /* what stands for "model." in names, and before other names */
    yyjson_val *quantization; /* the map of config.json; NULL: none */
    int n_strange;            /* matrices whose shapes and map disagree */
} ig_source;

/* Settles how names look; refuses quantization methods that are not ours. */
ig_status ig_source_open(ig_source *s, ig_checkpoint c, const ig_hf *h, ig_err *err);
void ig_source_close(ig_source *s);
/* The name of a row of the table. layer is ignored when the row has no %d. */
enum { IG_TENSOR_NAME_BYTES = 160 };
void ig_source_name(char out[static IG_TENSOR_NAME_BYTES], const ig_source *s, const ig_weight_spec *spec,
                    int layer);
bool ig_source_has(const ig_source *s, const char *name);
uint64_t ig_source_n_rows(const ig_source *s, const char *name); /* of a matrix; 0: there is none */
/* A matrix [rows][cols], or a vector [cols], and marks it as used. Missing, of another shape or in a format
 * that we have no kernels for: IG_EFORMAT. */
ig_status ig_source_find(ig_source_tensor *out, ig_source *s, const char *name, bool vector, int rows,
                         int cols, ig_err *err);
/* Rows row .. row + n - 1 in the layout of t->fmt. scratch: as many bytes as out. */
ig_status ig_source_read(const ig_source *s, const ig_source_tensor *t, int row, int n, void *out,
                         void *scratch, ig_err *err);
/* What nobody used and the family does not drop: an error that names it. */
/* Does it fit this model? */
ig_status ig_kv_config_check(const ig_kv_config *c, const ig_model_config *m, ig_err *err);

/* Tier l1: what mlx-lm's activations are rounded to, by the type of `name`, a vector. IG_EINVAL: another than f16 and
 * bf16. GGUF: bf16, since mlx-lm reads none. */
ig_status ig_source_number(const ig_fmt **out, const ig_source *s, const char *name, ig_err *err);
/* ... and whether tensor t is of that type: mlx-lm would go on in f32 from where two types meet. */
ig_status ig_source_check_number(const ig_source *s, const ig_source_tensor *t, const ig_fmt *number, ig_err *err);
ig_status ig_source_check_used(const ig_source *s, const ig_family *f, bool tied_head, ig_err *err);

/* ---- rope.c, config_gguf.c, config_hf.c: the settings ------------------------------------------------- */

/* inv_freq[head_dim / 2], radians a position. divisor: the file's own of each pair, or NULL. */
ig_status ig_rope_inv_freq(double *inv_freq, const ig_rope_settings *s, int head_dim, const float *divisor,
                           ig_err *err);
/* Tier l1: angle = ((float)pos * step) * freq[i]; what is turned is multiplied by `before` first. */
ig_status ig_rope_mlx(float *freq, float *step, float *before, const ig_rope_settings *s, int head_dim, ig_err *err);
ig_status ig_rope_check(const ig_rope_settings *s, int head_dim, const char *what, ig_err *err);
double ig_rope_yarn_scale(double factor, double mscale); /* 1 + 0.1 mscale ln(factor) */

/* What a family's config found, against what we can run: sizes that divide, heads, rope and window. `what`
 * names the source in messages. */
ig_status ig_config_check(const ig_model_config *c, const char *what, ig_err *err);

/* A whole number of a config, in [low, high]. Absent it is or_else, or an error with its name. */
enum { IG_REQUIRED = -1 };
typedef struct ig_int_row {
    int *to;
    const char *key;
    int low, high, or_else;
} ig_int_row;
/* Rows end with a NULL `to`. */
ig_status ig_gguf_ints(const ig_gguf *g, const char *arch, const ig_int_row *rows, ig_err *err);
/* Stays as it is when absent. */
ig_status ig_gguf_real(double *out, const ig_gguf *g, const char *arch, const char *key, ig_err *err);
/* Sizes, epsilon and caps, all under "<arch>."; head_dim and the caps stay as they are when absent, a head_dim of
 * 0 becomes width / heads. Refuses experts and partial rope. */
ig_status ig_gguf_read_sizes(ig_model_config *c, const ig_gguf *g, const char *arch, ig_err *err);
/* The rope of the layers that see all; an absent base stays. After the sizes. */
ig_status ig_gguf_read_rope(ig_model_config *c, const ig_gguf *g, const char *arch, ig_err *err);
/* window (absent: or_else) and windowed: from the file's pattern, else every `every`-th layer sees all, 0: none. */
ig_status ig_gguf_read_window(ig_model_config *c, const ig_gguf *g, const char *arch, int or_else, int every,
                              ig_err *err);
/* All three and the check, for a family with none of its own scales: Llama and those with its settings. */
ig_status ig_gguf_read_plain(ig_model_config *out, const ig_gguf *g, const char *arch, ig_err *err);

/* config.json: text is where the text model's settings are, root itself unless it is a wrapper. */
struct ig_hf {
    const char *path; /* of the folder */
    const char *type; /* model_type */
    yyjson_val *root, *text;
    bool wrapper;
};

/* A key of `text`, or of `root` for the few that wrappers keep there; NULL: absent or null. */
yyjson_val *ig_hf_get(const ig_hf *h, const char *key);
ig_status ig_hf_ints(const ig_hf *h, const ig_int_row *rows, ig_err *err);
/* Sizes and epsilon as most families name them: all required but the number of kv heads (absent: as many as
 * heads), head_dim (0: width / heads; IG_REQUIRED) and the context (n_ctx). */
ig_status ig_hf_read_sizes(ig_model_config *c, const ig_hf *h, int head_dim, int n_ctx, ig_err *err);
/* Qwen's: sliding_window counts with use_sliding_window only, in layers from max_window_layers on. */
ig_status ig_hf_read_qwen_window(ig_model_config *c, const ig_hf *h, ig_err *err);
/* A number in [low, high]; absent: `or_else` when it is not below low. */
ig_status ig_hf_real(double *out, const ig_hf *h, const char *key, double low, double high, double or_else,
                     ig_err *err);
/* Absent: `or_else`. */
ig_status ig_hf_bool(bool *out, const ig_hf *h, const char *key, bool or_else, ig_err *err);
/* A cap on logits: absent `or_else`, null or 0 none. */
ig_status ig_hf_cap(float *out, const ig_hf *h, const char *key, double or_else, ig_err *err);

/* A setting that changes the numbers: absent, null, false and `number` are fine, and `text` when it is not
 * NULL; anything else is refused. `yes`: only absent, null and true are fine. */
typedef struct ig_hf_only {
    const char *key, *text;
    double number;
    bool yes;
} ig_hf_only;
ig_status ig_hf_refuse(const ig_hf *h, const ig_hf_only *rows, ig_err *err); /* ended by a NULL key */

/* The rope of a kind of layers ("full_attention") in any spelling: rope_parameters, flat or by kind of layer,
 * or theta_key and, when `scaled`, rope_scaling. An absent base stays as it is, which 0 makes an error. */
typedef struct ig_hf_rope {
    const char *layers, *theta_key;
    bool scaled;
    bool mlx_nested, mlx_unscaled; /* mlx-lm reads rope_parameters, too; it reads no rope_scaling */
} ig_hf_rope;
ig_status ig_hf_read_rope(ig_rope_settings *out, const ig_hf *h, const ig_hf_rope *kind, ig_err *err);
/* windowed[i] from layer_types; without it it stays. No windowed layer, no window. */
ig_status ig_hf_read_layers(ig_model_config *c, const ig_hf *h, ig_err *err);

/* ---- config_rest.c: what else changes the numbers ------------------------------------------------------ */

/* After a family has read its settings: refuses those of others, by name, unless they say what is done anyway. */
ig_status ig_gguf_refuse_rest(const ig_model_config *c, const ig_gguf *g, ig_slice arch, ig_err *err);
ig_status ig_hf_refuse_rest(const ig_model_config *c, const ig_hf *h, ig_err *err);
/* Logs how many keys "<arch>." there are that nobody knows. */
void ig_gguf_tell_unknown(const ig_gguf *g);

/* ---- layers.c ------------------------------------------------------------------------------------------ */

typedef ig_tensor *ig_layer_fn(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                               const ig_rows *rows, ig_tensor *h, ig_carry *carry);
ig_layer_fn ig_layer_pre_norm, ig_layer_two_norms;

/* ---- bind.c, forward.c -------------------------------------------------------------------------------- */

/* Finds every tensor of the table, checks shapes and formats, refuses what is left over, lays out memory,
 * and repacks over the pool. */
ig_status ig_model_bind(ig_model *m, ig_source *s, const ig_model_options *o, ig_err *err);

/* The forward under any ig_run: serve, train or plan. */
typedef struct ig_model_out {
    float *logits, *hidden; /* NULL in a plan, which has no memory and still counts */
    int n_hidden;           /* the last of rows->want, which give vectors; those before them give logits */
} ig_model_out;
void ig_model_run(const ig_model *m, ig_run *r, const ig_rows *rows, ig_model_out out);

#endif
