/* inside: what the files of model/ share: a family's table, a layer's weights, the model. */
#ifndef IG_MODEL_INSIDE_H
#define IG_MODEL_INSIDE_H

#include "model/model.h"

/* Matrices of a layer, and its norm weights. A family uses those that it has. */
enum { IG_W_Q, IG_W_K, IG_W_V, IG_W_O, IG_W_GATE, IG_W_UP, IG_W_DOWN, IG_LAYER_WEIGHTS_MAX };
enum {
    IG_V_ATTN_NORM, IG_V_POST_ATTN_NORM, IG_V_FFN_NORM, IG_V_POST_FFN_NORM, IG_V_Q_NORM, IG_V_K_NORM,
    IG_LAYER_VECTORS_MAX
};
typedef struct ig_layer {
    ig_weight w[IG_LAYER_WEIGHTS_MAX];
    const float *v[IG_LAYER_VECTORS_MAX]; /* NULL: the family has none */
    ig_attention attention;
    int rope;
} ig_layer;

/* A dimension of a tensor, by what it counts. */
typedef enum ig_dim {
    IG_DIM_NONE, IG_DIM_WIDTH, IG_DIM_FFN, IG_DIM_Q, IG_DIM_KV, IG_DIM_HEAD, IG_DIM_VOCAB
} ig_dim;

/* One row of a family's weight table. */
typedef struct ig_weight_spec {
    const char *name; /* "blk.%d.attn_q.weight": %d is the layer; without it: once in the model */
    bool vector;      /* slot of ig_layer.v, else of ig_layer.w */
    int slot;
    ig_dim rows, cols; /* rows is NONE for a vector */
    ig_row_order order;
    bool interleaved; /* rows of the file hold rope pairs side by side: 2i and 2i + 1 of a head */
    bool optional;
} ig_weight_spec;

/* Slots of the weights that are there once. */
enum { IG_TOP_EMBED, IG_TOP_HEAD, IG_TOP_NORM = 0 };

struct ig_family {
    const char *name;
    const char *const *gguf; /* values of general.architecture, NULL-ended */
    ig_status (*config)(ig_model_config *out, const ig_gguf *g, ig_err *err);
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
    ig_kv_shape kv;
    ig_kern_table kern;
    ig_tier tier_max;
    uint32_t cpu;
    ig_pool *pool;
    uint8_t *panels; /* all matrices, one mapping */
    size_t panels_bytes;
    float *vectors;
    uint64_t n_params, decode_bytes;
};

const ig_family *ig_family_of_gguf(ig_slice architecture); /* NULL: none */

/* Finds every tensor of the table, checks shapes and formats, refuses what is left over, lays out memory,
 * and repacks over the pool. */
ig_status ig_model_bind(ig_model *m, const ig_gguf *g, const ig_model_options *o, ig_err *err);

/* The forward under any ig_run: serve, train or plan. */
void ig_model_run(const ig_model *m, ig_run *r, const ig_rows *rows, float *logits);

/* What a family's config found, against what we can run: sizes that divide, heads, rope and window. `what`
 * names the source in messages. */
ig_status ig_config_check(const ig_model_config *c, const char *what, ig_err *err);

/* Metadata "<arch>.<key>" as a number in [low, high]; absent: `or_else` when it is not negative. */
ig_status ig_config_int(int *out, const ig_gguf *g, const char *arch, const char *key, int low, int high,
                        int or_else, ig_err *err);

#endif
