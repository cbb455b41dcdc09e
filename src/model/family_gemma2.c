/* family_gemma2: Gemma 2. Norms on both sides of attention and MLP, a GELU gate, scaled embeddings; scores and
 * logits are capped, and every other layer, beginning with the first, sees a window. GGUF files hold norm weights
 * with the 1 already added, snapshots without it; the rows of q and k are in their natural order in both. */
#include "model/inside.h"

#include <math.h>

static const char *const names[] = {"gemma2", NULL};

static const ig_weight_spec layer_rows[] = {
    IG_ROW_NORM("attn_norm", "input_layernorm", IG_V_ATTN_NORM, IG_DIM_WIDTH, .less_one = true),
    IG_ROW_MATRIX("attn_q", "self_attn.q_proj", IG_W_Q, IG_DIM_Q, IG_DIM_WIDTH, .order = IG_ROWS_ROPE),
    IG_ROW_MATRIX("attn_k", "self_attn.k_proj", IG_W_K, IG_DIM_KV, IG_DIM_WIDTH, .order = IG_ROWS_ROPE),
    IG_ROWS_V_O,
    IG_ROW_NORM("post_attention_norm", "post_attention_layernorm", IG_V_POST_ATTN_NORM, IG_DIM_WIDTH,
                .less_one = true),
    IG_ROW_NORM("ffn_norm", "pre_feedforward_layernorm", IG_V_FFN_NORM, IG_DIM_WIDTH, .less_one = true),
    IG_ROWS_MLP,
    IG_ROW_NORM("post_ffw_norm", "post_feedforward_layernorm", IG_V_POST_FFN_NORM, IG_DIM_WIDTH,
                .less_one = true),
    IG_ROWS_END,
};
static const ig_weight_spec top_rows[] = {IG_ROWS_TOP(.less_one = true), IG_ROWS_END};

/* The 27B alone divides by the width of a head in the residual and not by its own. */
enum { LAYERS_OF_27B = 46, WINDOW = 4096 };
static const float attention_cap = 50.0f, final_cap = 30.0f; /* of all that were published */

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    ig_model_config c = {.attention_softcap = attention_cap, .final_softcap = final_cap};
    c.rope[IG_ROPE_FULL].base = 10000.0;
    ig_status st = ig_gguf_read_sizes(&c, g, "gemma2", err);
    if (!st) st = ig_gguf_read_rope(&c, g, "gemma2", err);
    if (!st) st = ig_gguf_read_window(&c, g, "gemma2", WINDOW, 2, err);
    if (st) return st;
    const int n_d = c.n_layers == LAYERS_OF_27B ? c.width / c.n_heads : c.head_dim;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    c.attention_scale = 1.0f / sqrtf((float)n_d);
    if ((st = ig_config_check(&c, ig_gguf_path(g), err))) return st;
    *out = c;
    return IG_OK;
}

/* ---- the same from config.json ------------------------------------------------------------------------- */

static const ig_hf_type hf_types[] = {{.name = "gemma2"}, {.name = NULL}};
static const char *const hf_drop[] = {"*.self_attn.rotary_emb.inv_freq", NULL};
static const ig_hf_only hf_only[] = {
    {.key = "attention_bias"},
    {.key = "hidden_activation", .text = "gelu_pytorch_tanh"},
    {.key = "hidden_act", .text = "gelu_pytorch_tanh"},
    {.key = NULL},
};

/* The scale of queries has no default: the usual readers have different ones. */
static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.rope[IG_ROPE_FULL].base = 10000.0};
    const ig_hf_rope rope_key = {"full_attention", "rope_theta", .scaled = true, .mlx_unscaled = true};
    const ig_int_row window[] = {{&c.window, "sliding_window", 1, 1 << 24, WINDOW}, {.to = NULL}};
    double query_scalar = 0;
    ig_status st = ig_hf_refuse(h, hf_only, err);
    if (!st) st = ig_hf_read_sizes(&c, h, IG_REQUIRED, 8192, err);
    if (!st) st = ig_hf_ints(h, window, err);
    if (!st) st = ig_hf_real(&query_scalar, h, "query_pre_attn_scalar", 1e-4, 1e6, -1, err);
    if (!st) st = ig_hf_cap(&c.attention_softcap, h, "attn_logit_softcapping", (double)attention_cap, err);
    if (!st) st = ig_hf_cap(&c.final_softcap, h, "final_logit_softcapping", (double)final_cap, err);
    if (!st) st = ig_hf_read_rope(&c.rope[IG_ROPE_FULL], h, &rope_key, err);
    for (int i = 0; i < c.n_layers; i++) c.windowed[i] = i % 2 == 0;
    if (!st) st = ig_hf_read_layers(&c, h, err);
    if (st) return st;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    c.attention_scale = 1.0f / sqrtf((float)query_scalar);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
}

extern const ig_family ig_family_gemma2;
const ig_family ig_family_gemma2 = {.name = "gemma2",
                                    .gguf = names,
                                    .config = config,
                                    .hf = hf_types,
                                    .hf_config = hf_config,
                                    .hf_drop = hf_drop,
                                    .hf_tied_by_default = true,
                                    .mlx_sees_all = true,
                                    .mlx_rounds_scale = true,
                                    .layer_rows = layer_rows,
                                    .top_rows = top_rows,
                                    .layer = ig_layer_two_norms};
