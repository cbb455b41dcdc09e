/* family_llama: Llama 2 and 3, Mistral, SmolLM2, MiniCPM5, and what else calls itself "llama" in GGUF and has these
 * tensors and no others. GGUF files of this family hold the rows of q and k (and of their biases) with rope pairs
 * side by side; the row map of the repacking undoes it.
 * Biases: in a snapshot attention_bias and mlp_bias say it; in GGUF files each of them may be there.
 * Windows: a "mistral" with a sliding_window has one in every layer, as it was trained; any other model has them
 * where its layer_types say so. */
#include "model/inside.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"llama", NULL};

static const ig_weight_spec layer_rows[] = {
    IG_ROW_NORM("attn_norm", "input_layernorm", IG_V_ATTN_NORM, IG_DIM_WIDTH, ),
    IG_ROW_MATRIX("attn_q", "self_attn.q_proj", IG_W_Q, IG_DIM_Q, IG_DIM_WIDTH, .order = IG_ROWS_ROPE,
                  .interleaved = true),
    IG_ROW_MATRIX("attn_k", "self_attn.k_proj", IG_W_K, IG_DIM_KV, IG_DIM_WIDTH, .order = IG_ROWS_ROPE,
                  .interleaved = true),
    IG_ROWS_V_O,
    IG_ROW_BIAS("attn_q", "self_attn.q_proj", IG_W_Q, IG_DIM_Q, .when = IG_WHEN_ATTENTION_BIAS,
                .interleaved = true),
    IG_ROW_BIAS("attn_k", "self_attn.k_proj", IG_W_K, IG_DIM_KV, .when = IG_WHEN_ATTENTION_BIAS,
                .interleaved = true),
    IG_ROW_BIAS("attn_v", "self_attn.v_proj", IG_W_V, IG_DIM_KV, .when = IG_WHEN_ATTENTION_BIAS),
    IG_ROW_BIAS("attn_output", "self_attn.o_proj", IG_W_O, IG_DIM_WIDTH, .when = IG_WHEN_ATTENTION_BIAS),
    IG_ROW_NORM("ffn_norm", "post_attention_layernorm", IG_V_FFN_NORM, IG_DIM_WIDTH, ),
    IG_ROWS_MLP,
    IG_ROW_BIAS("ffn_gate", "mlp.gate_proj", IG_W_GATE, IG_DIM_FFN, .when = IG_WHEN_MLP_BIAS),
    IG_ROW_BIAS("ffn_up", "mlp.up_proj", IG_W_UP, IG_DIM_FFN, .when = IG_WHEN_MLP_BIAS),
    IG_ROW_BIAS("ffn_down", "mlp.down_proj", IG_W_DOWN, IG_DIM_WIDTH, .when = IG_WHEN_MLP_BIAS),
    IG_ROWS_END,
};
static const ig_weight_spec top_rows[] = {IG_ROWS_TOP(), IG_ROWS_END};

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    return ig_gguf_read_plain(out, g, "llama", err);
}

/* ---- the same from config.json ------------------------------------------------------------------------- */

static const ig_hf_type hf_types[] = {
    {.name = "llama"}, {.name = "mistral"}, {.name = "iquestcoder"}, {.name = "xverse"}, {.name = NULL}};

static const char *const hf_drop[] = {"*.self_attn.rotary_emb.inv_freq", NULL};

static const ig_hf_only hf_only[] = {
    {.key = "hidden_act", .text = "silu"},
    {.key = "use_qk_norm"},
    {.key = "qk_norm"},
    {.key = "qk_layernorm"},
    {.key = NULL},
};

static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.embed_scale = 1.0f, .rope[IG_ROPE_FULL].base = 10000.0};
    const ig_hf_rope rope_key = {"full_attention", "rope_theta", .scaled = true};
    const ig_int_row window[] = {{&c.window, "sliding_window", 1, 1 << 24, 0}, {.to = NULL}};
    ig_status st = ig_hf_refuse(h, hf_only, err);
    if (!st) st = ig_hf_read_sizes(&c, h, 0, 2048, err);
    if (!st) st = ig_hf_ints(h, window, err);
    if (st) return st;
    c.window_implied = c.window && strcmp(h->type, "mistral") == 0 && !ig_hf_get(h, "layer_types");
    if (c.window_implied) memset(c.windowed, 1, (size_t)c.n_layers);
    st = ig_hf_bool(&c.attention_bias, h, "attention_bias", false, err);
    if (!st) st = ig_hf_bool(&c.mlp_bias, h, "mlp_bias", false, err);
    if (!st) st = ig_hf_read_rope(&c.rope[IG_ROPE_FULL], h, &rope_key, err);
    if (!st) st = ig_hf_read_layers(&c, h, err);
    if (st) return st;
    c.attention_scale = 1.0f / sqrtf((float)c.head_dim);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
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
                                   .layer = ig_layer_pre_norm};
