/* family_gemma3: Gemma 3, text. Norms on both sides of attention and MLP, RMS norms of every query and key
 * head, a GELU gate, scaled embeddings, and of every six layers five that see a window only, with a rope base
 * of their own. GGUF files hold norm weights with the 1 already added, snapshots without it; the rows of q and
 * k are in their natural order in both.
 * The embedding scale is sqrt(width) rounded to bf16, as the checkpoints were trained. */
#include "model/inside.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"gemma3", NULL};

static const ig_weight_spec layer_rows[] = {
    {.name = "blk.%d.attn_norm.weight",
     .hf = "model.layers.%d.input_layernorm.weight",
     .less_one = true,
     .vector = true,
     .slot = IG_V_ATTN_NORM,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_q.weight",
     .hf = "model.layers.%d.self_attn.q_proj.weight",
     .slot = IG_W_Q,
     .rows = IG_DIM_Q,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_k.weight",
     .hf = "model.layers.%d.self_attn.k_proj.weight",
     .slot = IG_W_K,
     .rows = IG_DIM_KV,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_v.weight",
     .hf = "model.layers.%d.self_attn.v_proj.weight",
     .slot = IG_W_V,
     .rows = IG_DIM_KV,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.attn_q_norm.weight",
     .hf = "model.layers.%d.self_attn.q_norm.weight",
     .less_one = true,
     .vector = true,
     .slot = IG_V_Q_NORM,
     .cols = IG_DIM_HEAD},
    {.name = "blk.%d.attn_k_norm.weight",
     .hf = "model.layers.%d.self_attn.k_norm.weight",
     .less_one = true,
     .vector = true,
     .slot = IG_V_K_NORM,
     .cols = IG_DIM_HEAD},
    {.name = "blk.%d.attn_output.weight",
     .hf = "model.layers.%d.self_attn.o_proj.weight",
     .slot = IG_W_O,
     .rows = IG_DIM_WIDTH,
     .cols = IG_DIM_Q},
    {.name = "blk.%d.post_attention_norm.weight",
     .hf = "model.layers.%d.post_attention_layernorm.weight",
     .less_one = true,
     .vector = true,
     .slot = IG_V_POST_ATTN_NORM,
     .cols = IG_DIM_WIDTH},
    {.name = "blk.%d.ffn_norm.weight",
     .hf = "model.layers.%d.pre_feedforward_layernorm.weight",
     .less_one = true,
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
    {.name = "blk.%d.post_ffw_norm.weight",
     .hf = "model.layers.%d.post_feedforward_layernorm.weight",
     .less_one = true,
     .vector = true,
     .slot = IG_V_POST_FFN_NORM,
     .cols = IG_DIM_WIDTH},
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
     .less_one = true,
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

/* A number that may be missing. */
static ig_status number(double *out, const ig_gguf *g, const char *key, ig_err *err) {
    ig_status st = ig_gguf_get_f64(g, key, out, err);
    return st == IG_ENOTFOUND ? IG_OK : st;
}

static ig_status rope(ig_model_config *c, const ig_gguf *g, ig_err *err) {
    ig_slice kind;
    ig_status st;
    c->rope_base = 1e6, c->window_rope_base = 1e4, c->rope_factor = 1.0;
    if ((st = number(&c->rope_base, g, "gemma3.rope.freq_base", err)) != IG_OK) return st;
    if ((st = number(&c->window_rope_base, g, "gemma3.rope.freq_base_swa", err)) != IG_OK) return st;
    st = ig_gguf_get_string(g, "gemma3.rope.scaling.type", &kind, err);
    if (st == IG_ENOTFOUND || (st == IG_OK && ig_slice_eq_str(kind, "none"))) return IG_OK;
    if (st != IG_OK) return st;
    if (!ig_slice_eq_str(kind, "linear"))
        return ig_fail(err, IG_EFORMAT,
                       "%s: gemma3.rope.scaling.type \"%.*s\" is not supported (none, linear)",
                       ig_gguf_path(g), (int)(kind.n < 40 ? kind.n : 40), kind.p);
    return number(&c->rope_factor, g, "gemma3.rope.scaling.factor", err);
}

/* Softcaps change the numbers and no Gemma 3 has one: refused, never ignored. */
static ig_status refuse_variants(const ig_gguf *g, ig_err *err) {
    static const char *const caps[] = {"gemma3.attn_logit_softcapping", "gemma3.final_logit_softcapping"};
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        double cap = 0;
        ig_status st = number(&cap, g, caps[i], err);
        if (st != IG_OK) return st;
        if (cap != 0)
            return ig_fail(err, IG_EFORMAT, "%s: %s = %g is not supported", ig_gguf_path(g), caps[i], cap);
    }
    return IG_OK;
}

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    ig_model_config c = {0};
    const char *path = ig_gguf_path(g);
    int value_dim = 0, pattern = 0;
    double eps = 0;
    const struct {
        int *to;
        const char *key;
        int low, high, or_else;
    } ints[] = {
        {&c.n_layers, "block_count", 1, IG_LAYERS_MAX, -1},
        {&c.width, "embedding_length", 8, 1 << 17, -1},
        {&c.ffn_width, "feed_forward_length", 8, 1 << 19, -1},
        {&c.n_heads, "attention.head_count", 1, 1024, -1},
        {&c.n_kv_heads, "attention.head_count_kv", 1, 1024, -1},
        {&c.head_dim, "attention.key_length", 1, 1 << 16, 256},
        {&value_dim, "attention.value_length", 0, 1 << 16, 0},
        {&c.n_ctx_train, "context_length", 1, 1 << 24, -1},
        {&c.window, "attention.sliding_window", 1, 1 << 24, -1},
        {&pattern, "attention.sliding_window_pattern", 1, IG_LAYERS_MAX, 6},
    };
    ig_status st = refuse_variants(g, err);
    for (size_t i = 0; i < sizeof ints / sizeof *ints && st == IG_OK; i++)
        st = ig_config_int(ints[i].to, g, "gemma3", ints[i].key, ints[i].low, ints[i].high, ints[i].or_else,
                           err);
    if (st != IG_OK) return st;
    if (value_dim != 0 && value_dim != c.head_dim)
        return ig_fail(err, IG_EFORMAT, "%s: keys of %d and values of %d dimensions are not supported", path,
                       c.head_dim, value_dim);
    if ((st = ig_gguf_get_f64(g, "gemma3.attention.layer_norm_rms_epsilon", &eps, err)) != IG_OK) return st;
    if ((st = rope(&c, g, err)) != IG_OK) return st;
    c.norm_eps = (float)eps;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    /* the 27B alone divides by the width of a head in the residual and not by its own */
    c.attention_scale =
        1.0f / sqrtf(c.n_layers == 62 ? (float)c.width / (float)c.n_heads : (float)c.head_dim);
    for (int i = 0; i < c.n_layers; i++) c.windowed[i] = (i + 1) % pattern != 0;
    if ((st = ig_config_check(&c, path, err)) != IG_OK) return st;
    *out = c;
    return IG_OK;
}

/* ---- the same from config.json ------------------------------------------------------------------------- */

static const ig_hf_type hf_types[] = {
    {.name = "gemma3_text"}, {.name = "gemma3", .wrapper = true}, {.name = NULL}};

/* What a wrapper holds for images. */
static const char *const hf_drop[] = {"vision_tower.*",
                                      "multi_modal_projector.*",
                                      "model.vision_tower.*",
                                      "model.multi_modal_projector.*",
                                      "*.self_attn.rotary_emb.inv_freq",
                                      NULL};

static const ig_hf_only hf_only[] = {
    {.key = "attention_bias"},
    {.key = "hidden_activation", .text = "gelu_pytorch_tanh"},
    {.key = "hidden_act", .text = "gelu_pytorch_tanh"},
    {.key = "attn_logit_softcapping"},
    {.key = "final_logit_softcapping"},
    {.key = "use_bidirectional_attention"},
    {.key = "rope_traditional"},
    {.key = NULL},
};

/* Settings that a file leaves out are those of the family's first text model; wrappers leave out more, and
 * mean the 4B. */
static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.rope_base = 1e6, .window_rope_base = 1e4, .rope_factor = 1.0};
    const ig_hf_rope full = {"full_attention", "rope_theta", true},
                     window = {"sliding_attention", "rope_local_base_freq", false};
    const bool wrapper = h->wrapper;
    double eps = 0, query_scalar = 0, window_factor = 1;
    int pattern = 0;
    const struct {
        int *to;
        const char *key;
        int low, high, or_else;
    } sizes[] = {
        {&c.n_layers, "num_hidden_layers", 1, IG_LAYERS_MAX, 26},
        {&c.width, "hidden_size", 8, 1 << 17, 1152},
        {&c.ffn_width, "intermediate_size", 8, 1 << 19, 6912},
        {&c.n_heads, "num_attention_heads", 1, 1024, wrapper ? 8 : 4},
        {&c.n_kv_heads, "num_key_value_heads", 1, 1024, wrapper ? 4 : 1},
        {&c.head_dim, "head_dim", 1, 1 << 16, 256},
        {&c.n_vocab, "vocab_size", 1, 1 << 24, wrapper ? 262208 : 262144},
        {&c.n_ctx_train, "max_position_embeddings", 1, 1 << 24, 131072},
        {&c.window, "sliding_window", 1, 1 << 24, 512},
        {&pattern, "_sliding_window_pattern", 1, IG_LAYERS_MAX, 6},
        {&pattern, "sliding_window_pattern", 1, IG_LAYERS_MAX, 0}, /* the older spelling; 0: keep the above */
    };
    ig_status st = ig_hf_refuse(h, hf_only, err);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && st == IG_OK; i++) {
        int v = 0;
        st = ig_hf_int(&v, h, sizes[i].key, sizes[i].low, sizes[i].high, sizes[i].or_else, err);
        if (v) *sizes[i].to = v;
    }
    if (!st) st = ig_hf_real(&eps, h, "rms_norm_eps", 1e-30, 0.5, 1e-6, err);
    if (!st) st = ig_hf_real(&query_scalar, h, "query_pre_attn_scalar", 1e-4, 1e6, 256, err);
    if (!st) st = ig_hf_read_rope(&c.rope_base, &c.rope_factor, h, &full, err);
    if (!st) st = ig_hf_read_rope(&c.window_rope_base, &window_factor, h, &window, err);
    if (!st) st = ig_hf_read_layers(&c, h, pattern, err);
    if (st) return st;
    if (window_factor != 1)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: scaled rope in windowed layers is not supported",
                       h->path);
    c.norm_eps = (float)eps;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    c.attention_scale = 1.0f / sqrtf((float)query_scalar);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
}

static ig_tensor *layer(ig_run *r, const ig_model_config *c, const ig_layer *l, const ig_rope *rope_of,
                        const ig_rows *rows, ig_tensor *h, ig_carry *carry) {
    (void)carry; /* nothing is read again */
    const ig_weight *w = l->w;
    const float eps = c->norm_eps;
    ig_tensor *x = op_norm(r, h, l->v[IG_V_ATTN_NORM], eps, op_eats(w, IG_W_Q, IG_W_K, IG_W_V), NULL, 0);
    ig_qkv qkv = op_qkv(r, &l->attention, &w[IG_W_Q], &w[IG_W_K], &w[IG_W_V], x, rope_of, rows);
    x = op_attention(r, &l->attention, qkv, rows, (int)w[IG_W_O].fmt->act);
    x = op_linear(r, &w[IG_W_O], x);
    h = op_norm_add(r, x, l->v[IG_V_POST_ATTN_NORM], eps, h);
    x = op_norm(r, h, l->v[IG_V_FFN_NORM], eps, op_eats(w, IG_W_GATE, IG_W_UP, IG_W_UP), NULL, 0);
    x = op_glu(r, IG_GLU_GELU, &w[IG_W_GATE], &w[IG_W_UP], x, (int)w[IG_W_DOWN].fmt->act);
    x = op_linear(r, &w[IG_W_DOWN], x);
    return op_norm_add(r, x, l->v[IG_V_POST_FFN_NORM], eps, h);
}

extern const ig_family ig_family_gemma3;
const ig_family ig_family_gemma3 = {.name = "gemma3",
                                    .gguf = names,
                                    .config = config,
                                    .hf = hf_types,
                                    .hf_config = hf_config,
                                    .hf_drop = hf_drop,
                                    .hf_head_by_tensor = true,
                                    .layer_rows = layer_rows,
                                    .top_rows = top_rows,
                                    .layer = layer};
