/* family_gemma3: Gemma 3, text. Norms on both sides of attention and MLP, RMS norms of every query and key
 * head, a GELU gate, scaled embeddings, and of every six layers five that see a window only, with a rope base
 * of their own. GGUF files hold norm weights with the 1 already added, snapshots without it; the rows of q and
 * k are in their natural order in both.
 * The embedding scale is sqrt(width) rounded to bf16, as the checkpoints were trained. No model that was published
 * caps its logits; a config that does is honoured. */
#include "model/inside.h"

#include <math.h>

static const char *const names[] = {"gemma3", NULL};

static const ig_weight_spec layer_rows[] = {
    IG_ROW_NORM("attn_norm", "input_layernorm", IG_V_ATTN_NORM, IG_DIM_WIDTH, .less_one = true),
    IG_ROW_MATRIX("attn_q", "self_attn.q_proj", IG_W_Q, IG_DIM_Q, IG_DIM_WIDTH, ),
    IG_ROW_MATRIX("attn_k", "self_attn.k_proj", IG_W_K, IG_DIM_KV, IG_DIM_WIDTH, ),
    IG_ROWS_V_O,
    IG_ROW_NORM("attn_q_norm", "self_attn.q_norm", IG_V_Q_NORM, IG_DIM_HEAD, .less_one = true),
    IG_ROW_NORM("attn_k_norm", "self_attn.k_norm", IG_V_K_NORM, IG_DIM_HEAD, .less_one = true),
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
enum { LAYERS_OF_27B = 62 };

static ig_status config(ig_model_config *out, const ig_gguf *g, ig_err *err) {
    ig_model_config c = {.head_dim = 256, .own_window_rope = true};
    ig_rope_settings *full = &c.rope[IG_ROPE_FULL], *window = &c.rope[IG_ROPE_WINDOW];
    *window = (ig_rope_settings){.base = 1e4, .factor = 1, .scale = 1};
    full->base = 1e6;
    ig_status st = ig_gguf_read_sizes(&c, g, "gemma3", err);
    if (!st) st = ig_gguf_read_rope(&c, g, "gemma3", err);
    if (!st) st = ig_gguf_real(&window->base, g, "gemma3", "rope.freq_base_swa", err);
    if (!st) st = ig_gguf_read_window(&c, g, "gemma3", IG_REQUIRED, 6, err);
    if (st) return st;
    const int n_d = c.n_layers == LAYERS_OF_27B ? c.width / c.n_heads : c.head_dim;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    c.attention_scale = 1.0f / sqrtf((float)n_d);
    if ((st = ig_config_check(&c, ig_gguf_path(g), err))) return st;
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
    {.key = NULL},
};

/* Settings that a file leaves out are those of the family's first text model; wrappers leave out more, and
 * mean the 4B. */
static ig_status hf_config(ig_model_config *out, const ig_hf *h, ig_err *err) {
    ig_model_config c = {.own_window_rope = true};
    const ig_hf_rope full = {"full_attention", "rope_theta", .scaled = true},
                     window = {"sliding_attention", "rope_local_base_freq", .scaled = false};
    const bool wrapper = h->wrapper;
    double eps = 0, query_scalar = 0;
    int pattern = 0, older = 0;
    const ig_int_row rows[] = {
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
        {&older, "sliding_window_pattern", 1, IG_LAYERS_MAX, 0},
        {.to = NULL},
    };
    c.rope[IG_ROPE_FULL].base = 1e6, c.rope[IG_ROPE_WINDOW].base = 1e4;
    ig_status st = ig_hf_refuse(h, hf_only, err);
    if (!st) st = ig_hf_ints(h, rows, err);
    if (st) return st;
    if (older) pattern = older;
    for (int i = 0; i < c.n_layers; i++) c.windowed[i] = (i + 1) % pattern != 0;
    st = ig_hf_real(&eps, h, "rms_norm_eps", 1e-30, 0.5, 1e-6, err);
    if (!st) st = ig_hf_real(&query_scalar, h, "query_pre_attn_scalar", 1e-4, 1e6, 256, err);
    if (!st) st = ig_hf_cap(&c.attention_softcap, h, "attn_logit_softcapping", 0, err);
    if (!st) st = ig_hf_cap(&c.final_softcap, h, "final_logit_softcapping", 0, err);
    if (!st) st = ig_hf_read_rope(&c.rope[IG_ROPE_FULL], h, &full, err);
    if (!st) st = ig_hf_read_rope(&c.rope[IG_ROPE_WINDOW], h, &window, err);
    if (!st) st = ig_hf_read_layers(&c, h, err);
    if (st) return st;
    /* mlx-lm reads neither layer_types nor _sliding_window_pattern, and no caps */
    for (int i = 0; i < c.n_layers; i++)
        if ((c.windowed[i] != 0) != ((i + 1) % (older ? older : 6) != 0)) c.mlx_differs = "sliding_window_pattern";
    if (c.attention_softcap > 0.0f) c.mlx_differs = "attn_logit_softcapping";
    if (c.final_softcap > 0.0f) c.mlx_differs = "final_logit_softcapping";
    c.norm_eps = (float)eps;
    c.embed_scale = ig_bf16_to_f32(ig_f32_to_bf16(sqrtf((float)c.width)));
    c.attention_scale = 1.0f / sqrtf((float)query_scalar);
    if ((st = ig_config_check(&c, h->path, err))) return st;
    *out = c;
    return IG_OK;
}

extern const ig_family ig_family_gemma3;
const ig_family ig_family_gemma3 = {.name = "gemma3",
                                    .gguf = names,
                                    .config = config,
                                    .hf = hf_types,
                                    .hf_config = hf_config,
                                    .hf_drop = hf_drop,
                                    .hf_head_by_tensor = true,
                                    .mlx_makes_head = true,
                                    .layer_rows = layer_rows,
                                    .top_rows = top_rows,
                                    .layer = ig_layer_two_norms};
