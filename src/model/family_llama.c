/* family_llama: Llama 2 and 3 without rope scaling, SmolLM2, and what else calls itself "llama" in GGUF and
 * has these tensors and no others. GGUF files of this family hold the rows of q and k with rope pairs side
 * by side; the row map of the repacking undoes it. */
#include "model/inside.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"llama", NULL};

static const ig_weight_spec layer_rows[] = {
    {.name = "blk.%d.attn_norm.weight",
     .hf = "model.layers.%d.input_layernorm.weight",
     .vector = true,
     .slot = IG_V_ATTN_NORM,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_q.weight",
     .hf = "model.layers.%d.self_attn.q_proj.weight",
     .slot = IG_W_Q,
     .rows = IG_DIM_Q,
     .cols = IG_DIM_WIDTH,
     .order = IG_ROWS_ROPE,
     .interleaved = true},
    {.name = "blk.%d.attn_k.weight",
     .hf = "model.layers.%d.self_attn.k_proj.weight",
     .slot = IG_W_K,
     .rows = IG_DIM_KV,
     .cols = IG_DIM_WIDTH,
     .order = IG_ROWS_ROPE,
     .interleaved = true},
    {.name = "blk.%d.attn_v.weight",
     .hf = "model.layers.%d.self_attn.v_proj.weight",
     .slot = IG_W_V,
     .rows = IG_DIM_KV,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_output.weight",
     .hf = "model.layers.%d.self_attn.o_proj.weight",
     .slot = IG_W_O,
     .rows = IG_DIM_WIDTH,
     .cols = IG_DIM_Q},
    {.name = "blk.%d.ffn_norm.weight",
     .hf = "model.layers.%d.post_attention_layernorm.weight",
     .vector = true,
     .slot = IG_V_FFN_NORM,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_gate.weight",
     .hf = "model.layers.%d.mlp.gate_proj.weight",
     .slot = IG_W_GATE,
     .rows = IG_DIM_FFN,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_up.weight",
     .hf = "model.layers.%d.mlp.up_proj.weight",
     .slot = IG_W_UP,
     .rows = IG_DIM_FFN,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_down.weight",
     .hf = "model.layers.%d.mlp.down_proj.weight",
     .slot = IG_W_DOWN,
     .rows = IG_DIM_WIDTH,
     .cols = IG_DIM_FFN},
    {.name = NULL},
};

static const ig_weight_spec top_rows[] = {
    {.name = "token_embd.weight",
     .hf = "model.embed_tokens.weight",
     .slot = IG_TOP_EMBED,
     .rows = IG_DIM_VOCAB,
     .cols = IG_DIM_WIDTH},
    {.name = "output_norm.weight",
     .hf = "model.norm.weight",
     .vector = true,
     .slot = IG_TOP_NORM,
     .cols = IG_DIM_WIDTH},
    {.name = "output.weight",
     .hf = "lm_head.weight",
     .slot = IG_TOP_HEAD,
     .rows = IG_DIM_VOCAB,
     .cols = IG_DIM_WIDTH,
     .head = true},
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
    ig_model_config c = {.embed_scale = 1.0f, .rope_base = 10000.0, .rope_factor = 1.0};
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
    c.attention_scale = 1.0f / sqrtf((float)c.head_dim);
    if ((st = ig_config_check(&c, path, err)) != IG_OK) return st;
    if (rope_dims != c.head_dim || value_dim != c.head_dim)
        return ig_fail(err, IG_EFORMAT,
                       "%s: rope over %d and values of %d dimensions of a head of %d are not supported", path,
                       rope_dims, value_dim, c.head_dim);
    *out = c;
    return IG_OK;
}

/* ---- the same from config.json ------------------------------------------------------------------------- */

static const ig_hf_type hf_types[] = {
    {.name = "llama"}, {.name = "mistral"}, {.name = "iquestcoder"}, {.name = "xverse"}, {.name = NULL}};

static const char *const hf_drop[] = {"*.self_attn.rotary_emb.inv_freq", NULL};

static const ig_hf_only hf_only[] = {
    {.key = "attention_bias"},
    {.key = "mlp_bias"},
    {.key = "hidden_act", .text = "silu"},
    {.key = "rope_traditional"},
    {.key = "sliding_window"},
    {.key = "partial_rotary_factor", .number = 1},
    {.key = "clip_qkv"},
    {.key = NULL},
};

static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.embed_scale = 1.0f, .rope_base = 10000.0, .rope_factor = 1.0};
    const ig_hf_rope rope_key = {"full_attention", "rope_theta", true};
    double eps = 0;
    ig_status st = ig_hf_refuse(h, hf_only, err);
    const struct {
        int *to;
        const char *key;
        int low, high, or_else;
    } sizes[] = {
        {&c.n_layers, "num_hidden_layers", 1, IG_LAYERS_MAX, -1},
        {&c.width, "hidden_size", 8, 1 << 17, -1},
        {&c.ffn_width, "intermediate_size", 8, 1 << 19, -1},
        {&c.n_heads, "num_attention_heads", 1, 1024, -1},
        {&c.n_vocab, "vocab_size", 1, 1 << 24, -1},
        {&c.n_ctx_train, "max_position_embeddings", 1, 1 << 24, 2048},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && st == IG_OK; i++)
        st = ig_hf_int(sizes[i].to, h, sizes[i].key, sizes[i].low, sizes[i].high, sizes[i].or_else, err);
    if (!st) st = ig_hf_int(&c.n_kv_heads, h, "num_key_value_heads", 1, 1024, c.n_heads, err);
    if (!st) st = ig_hf_int(&c.head_dim, h, "head_dim", 1, 1 << 16, c.width / c.n_heads, err);
    if (!st) st = ig_hf_real(&eps, h, "rms_norm_eps", 1e-30, 0.5, -1, err);
    if (!st) st = ig_hf_read_rope(&c.rope_base, &c.rope_factor, h, &rope_key, err);
    if (!st) st = ig_hf_read_layers(&c, h, 0, err);
    if (st) return st;
    c.norm_eps = (float)eps;
    c.attention_scale = 1.0f / sqrtf((float)c.head_dim);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
}

static ig_tensor *layer(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope,
                        const ig_rows *rows, ig_tensor *h, ig_carry *carry) {
    (void)carry; /* nothing is read again */
    const ig_weight *w = l->w;
    ig_tensor *x =
        op_norm(r, h, l->v[IG_V_ATTN_NORM], c->norm_eps, op_eats(w, IG_W_Q, IG_W_K, IG_W_V), NULL, 0);
    ig_qkv qkv = op_qkv(r, &l->attention, &w[IG_W_Q], &w[IG_W_K], &w[IG_W_V], x, rope, rows);
    ig_tensor *a = op_attention(r, &l->attention, qkv, rows, (int)w[IG_W_O].fmt->act);
    h = op_linear_add(r, &w[IG_W_O], a, h);
    x = op_norm(r, h, l->v[IG_V_FFN_NORM], c->norm_eps, op_eats(w, IG_W_GATE, IG_W_UP, IG_W_UP), NULL, 0);
    x = op_glu(r, IG_GLU_SILU, &w[IG_W_GATE], &w[IG_W_UP], x, (int)w[IG_W_DOWN].fmt->act);
    return op_linear_add(r, &w[IG_W_DOWN], x, h);
}

extern const ig_family ig_family_llama;
const ig_family ig_family_llama = {.name = "llama",
                                   .gguf = names,
                                   .config = config,
                                   .hf = hf_types,
                                   .hf_config = hf_config,
                                   .hf_drop = hf_drop,
                                   .layer_rows = layer_rows,
                                   .top_rows = top_rows,
                                   .layer = layer};
