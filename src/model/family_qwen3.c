/* family_qwen3: Qwen3. Llama without biases and with an RMS norm of every query and key head before rope; the size of
 * a head is a setting of its own. Rows of q and k are in their natural order in GGUF files, too. Qwen3-Embedding is
 * this with rows after the last norm for a result (model.h, ig_model_hidden); its snapshots hold the bare model,
 * whose names have no "model." before them, and no head. */
#include "model/inside.h"

#include <math.h>

static const char *const names[] = {"qwen3", NULL};

static const ig_weight_spec layer_rows[] = {
    IG_ROW_NORM("attn_norm", "input_layernorm", IG_V_ATTN_NORM, IG_DIM_WIDTH, ),
    IG_ROW_MATRIX("attn_q", "self_attn.q_proj", IG_W_Q, IG_DIM_Q, IG_DIM_WIDTH, ),
    IG_ROW_MATRIX("attn_k", "self_attn.k_proj", IG_W_K, IG_DIM_KV, IG_DIM_WIDTH, ),
    IG_ROWS_V_O,
    IG_ROW_NORM("attn_q_norm", "self_attn.q_norm", IG_V_Q_NORM, IG_DIM_HEAD, ),
    IG_ROW_NORM("attn_k_norm", "self_attn.k_norm", IG_V_K_NORM, IG_DIM_HEAD, ),
    IG_ROW_NORM("ffn_norm", "post_attention_layernorm", IG_V_FFN_NORM, IG_DIM_WIDTH, ),
    IG_ROWS_MLP,
    IG_ROWS_END,
};
static const ig_weight_spec top_rows[] = {IG_ROWS_TOP(), IG_ROWS_END};

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    return ig_gguf_read_plain(out, g, "qwen3", err);
}

/* ---- the same from config.json ------------------------------------------------------------------------- */

static const ig_hf_type hf_types[] = {{.name = "qwen3"}, {.name = NULL}};
static const char *const hf_drop[] = {"*.self_attn.rotary_emb.inv_freq", NULL};
static const ig_hf_only hf_only[] = {{.key = "hidden_act", .text = "silu"},
                                     {.key = "attention_bias"},
                                     {.key = "mlp_bias"},
                                     {.key = NULL}};

static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.embed_scale = 1.0f, .rope[IG_ROPE_FULL].base = 0}; /* 0: it must be there */
    const ig_hf_rope rope_key = {"full_attention", "rope_theta", .scaled = true, .mlx_nested = true};
    ig_status st = ig_hf_refuse(h, hf_only, err);
    if (!st) st = ig_hf_read_sizes(&c, h, IG_REQUIRED, 32768, err);
    if (!st && !ig_hf_get(h, "tie_word_embeddings"))
        st = ig_fail(err, IG_EFORMAT, "%.200s/config.json: tie_word_embeddings is missing", h->path);
    if (!st) st = ig_hf_read_qwen_window(&c, h, err);
    if (!st) st = ig_hf_read_rope(&c.rope[IG_ROPE_FULL], h, &rope_key, err);
    if (!st) st = ig_hf_read_layers(&c, h, err);
    if (st) return st;
    c.attention_scale = 1.0f / sqrtf((float)c.head_dim);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
}

extern const ig_family ig_family_qwen3;
const ig_family ig_family_qwen3 = {.name = "qwen3",
                                   .gguf = names,
                                   .config = config,
                                   .hf = hf_types,
                                   .hf_config = hf_config,
                                   .hf_drop = hf_drop,
                                   .mlx_sees_all = true,
                                   .layer_rows = layer_rows,
                                   .top_rows = top_rows,
                                   .layer = ig_layer_pre_norm};
