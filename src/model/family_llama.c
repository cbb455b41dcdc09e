/* family_llama: Llama 2 and 3 without rope scaling, SmolLM2, and what else calls itself "llama" in GGUF and
 * has these tensors and no others. GGUF files of this family hold the rows of q and k with rope pairs side
 * by side; the row map of the repacking undoes it. */
#include "model/inside.h"

#include <math.h>
#include <string.h>

enum { Q, K, V, O, GATE, UP, DOWN }; /* ig_layer.w */
enum { ATTN_NORM, FFN_NORM };        /* ig_layer.v */

static const char *const names[] = {"llama", NULL};

static const ig_weight_spec layer_rows[] = {
    {.name = "blk.%d.attn_norm.weight", .vector = true, .slot = ATTN_NORM, .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_q.weight",
     .slot = Q,
     .rows = IG_DIM_Q,
     .cols = IG_DIM_WIDTH,
     .order = IG_ROWS_ROPE,
     .interleaved = true},
    {.name = "blk.%d.attn_k.weight",
     .slot = K,
     .rows = IG_DIM_KV,
     .cols = IG_DIM_WIDTH,
     .order = IG_ROWS_ROPE,
     .interleaved = true},
    {.name = "blk.%d.attn_v.weight", .slot = V, .rows = IG_DIM_KV, .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_output.weight", .slot = O, .rows = IG_DIM_WIDTH, .cols = IG_DIM_Q},
    {.name = "blk.%d.ffn_norm.weight", .vector = true, .slot = FFN_NORM, .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_gate.weight", .slot = GATE, .rows = IG_DIM_FFN, .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_up.weight", .slot = UP, .rows = IG_DIM_FFN, .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_down.weight", .slot = DOWN, .rows = IG_DIM_WIDTH, .cols = IG_DIM_FFN},
    {.name = NULL},
};

static const ig_weight_spec top_rows[] = {
    {.name = "token_embd.weight", .slot = IG_TOP_EMBED, .rows = IG_DIM_VOCAB, .cols = IG_DIM_WIDTH},
    {.name = "output_norm.weight", .vector = true, .slot = IG_TOP_NORM, .cols = IG_DIM_WIDTH},
    {.name = "output.weight",
     .slot = IG_TOP_HEAD,
     .rows = IG_DIM_VOCAB,
     .cols = IG_DIM_WIDTH,
     .optional = true},
    {.name = NULL},
};

/* What changes the numbers and is not built: refused, never ignored. */
static ig_status refuse_variants(const ig_gguf *g, ig_err *err) {
    static const char *const counts[] = {"llama.expert_count", "llama.attention.sliding_window"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint64_t n = 0;
        ig_status st = ig_gguf_get_u64(g, counts[i], &n, err);
        if (st != IG_OK && st != IG_ENOTFOUND) return st;
        if (st == IG_OK && n != 0)
            return ig_fail(err, IG_EFORMAT, "%s: %s = %llu is not supported", ig_gguf_path(g), counts[i],
                           (unsigned long long)n);
    }
    ig_slice kind;
    ig_status st = ig_gguf_get_string(g, "llama.rope.scaling.type", &kind, err);
    if (st != IG_OK && st != IG_ENOTFOUND) return st;
    if (st == IG_OK && !ig_slice_eq_str(kind, "none"))
        return ig_fail(err, IG_EFORMAT, "%s: llama.rope.scaling.type \"%.*s\" is not supported (only none)",
                       ig_gguf_path(g), (int)(kind.n < 40 ? kind.n : 40), kind.p);
    return IG_OK;
}

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    ig_model_config c = {.rope_base = 10000.0};
    ig_status st;
    int rope_dims;
    double eps;
    if ((st = refuse_variants(g, err)) != IG_OK) return st;
    if ((st = ig_config_int(&c.n_layers, g, "llama", "block_count", 1, IG_LAYERS_MAX, -1, err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&c.width, g, "llama", "embedding_length", 8, 1 << 17, -1, err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&c.ffn_width, g, "llama", "feed_forward_length", 8, 1 << 19, -1, err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&c.n_heads, g, "llama", "attention.head_count", 1, 1024, -1, err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&c.n_kv_heads, g, "llama", "attention.head_count_kv", 1, 1024, c.n_heads, err)) !=
        IG_OK)
        return st;
    if ((st = ig_config_int(&c.head_dim, g, "llama", "attention.key_length", 1, 1 << 16, c.width / c.n_heads,
                            err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&c.n_ctx_train, g, "llama", "context_length", 1, 1 << 24, -1, err)) != IG_OK)
        return st;
    if ((st = ig_config_int(&rope_dims, g, "llama", "rope.dimension_count", 1, 1 << 16, c.head_dim, err)) !=
        IG_OK)
        return st;
    int value_dim;
    if ((st = ig_config_int(&value_dim, g, "llama", "attention.value_length", 1, 1 << 16, c.head_dim, err)) !=
        IG_OK)
        return st;
    st = ig_gguf_get_f64(g, "llama.rope.freq_base", &c.rope_base, err);
    if (st != IG_OK && st != IG_ENOTFOUND) return st;
    if ((st = ig_gguf_get_f64(g, "llama.attention.layer_norm_rms_epsilon", &eps, err)) != IG_OK) return st;
    c.norm_eps = (float)eps;

    const char *path = ig_gguf_path(g);
    if (!(eps > 0.0 && eps < 1.0))
        return ig_fail(err, IG_EFORMAT, "%s: llama.attention.layer_norm_rms_epsilon %g is not in (0, 1)",
                       path, eps);
    if (!(c.rope_base > 1.0 && c.rope_base < 1e12))
        return ig_fail(err, IG_EFORMAT, "%s: llama.rope.freq_base %g is not in (1, 1e12)", path, c.rope_base);
    if (c.n_heads % c.n_kv_heads != 0 || c.n_heads / c.n_kv_heads > IG_ATTENTION_QUERIES_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: %d heads over %d kv heads: must divide, at most %d to one", path,
                       c.n_heads, c.n_kv_heads, IG_ATTENTION_QUERIES_MAX);
    if (c.head_dim % IG_PANEL_ROWS != 0 || c.head_dim > IG_HEAD_DIM_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: head size %d is not supported (multiples of %d up to %d)", path,
                       c.head_dim, IG_PANEL_ROWS, IG_HEAD_DIM_MAX);
    if (rope_dims != c.head_dim || value_dim != c.head_dim)
        return ig_fail(err, IG_EFORMAT,
                       "%s: rope over %d and values of %d dimensions of a head of %d are not supported", path,
                       rope_dims, value_dim, c.head_dim);
    *out = c;
    return IG_OK;
}

static ig_tensor *layer(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                        const ig_rows *rows, int i, ig_tensor *h) {
    const ig_weight *w = l->w;
    const float scale = 1.0f / sqrtf((float)c->head_dim);
    ig_tensor *x = op_norm(r, h, l->v[ATTN_NORM], c->norm_eps, op_eats(w, Q, K, V), NULL, 0);
    ig_tensor *q = op_qkv(r, &w[Q], &w[K], &w[V], x, rope, scale, rows, i);
    ig_tensor *a = op_attention(r, q, rows, i, c->n_heads, c->n_kv_heads, c->head_dim, op_eats(w, O, O, O));
    h = op_linear_add(r, &w[O], a, h);
    x = op_norm(r, h, l->v[FFN_NORM], c->norm_eps, op_eats(w, GATE, UP, UP), NULL, 0);
    x = op_swiglu(r, &w[GATE], &w[UP], x, op_eats(w, DOWN, DOWN, DOWN));
    return op_linear_add(r, &w[DOWN], x, h);
}

extern const ig_family ig_family_llama;
const ig_family ig_family_llama = {.name = "llama",
                                   .gguf = names,
                                   .config = config,
                                   .layer_rows = layer_rows,
                                   .top_rows = top_rows,
                                   .layer = layer};
