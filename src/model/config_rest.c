/* config_rest: settings that no family of ours has and that change the numbers: each must say what is done
 * anyway. Threads: any. Memory: none.
 * Why lists of other families' settings: a model that was changed, or made by a program that knows more, keeps
 * the name of its family and says the difference in a key. Passed over, it runs and answers nonsense. A key of a
 * GGUF file that nobody here knows is told when the model opens. */
#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- GGUF ---------------------------------------------------------------------------------------------- */

/* Read elsewhere, or of no effect on what we compute: sizes that tensors say too, marks of a converter. */
static const char *const known[] = {
    "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "context_length", "pooling_type", "expert_count", "attention.layer_norm_rms_epsilon",
    "attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base", "rope.freq_base_swa",
    "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier", "attention.sliding_window",
    "attention.sliding_window_pattern", "vocab_size", "tensor_data_layout",
    "attention.layer_norm_epsilon", "rope.dimension_sections",
};

/* A number that must be off, which 0 is for all of them, or have the value that does nothing. */
static const struct only_number {
    const char *key;
    double fine;
} numbers[] = {
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.output_scale", 1},
    {"attention.value_scale", 1},
    {"attention.temperature_scale", 0},
    {"attention.temperature_length", 0},
    {"attention.shared_kv_layers", 0},
    {"router_logit_softcapping", 0},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"logit_scale", 1},
    {"rope.scaling.alpha", 1},
    {"swiglu_clamp_exp", 0},
    {"swiglu_clamp_shexp", 0},
    {"activation.situ_beta", 0},
    {"activation.situ_linear_beta", 0},
    {"attn_res.block_size", 0},
    {"num_loops", 1},
    {"nextn_predict_layers", 0},
    {"adapters.count", 0},
    {"leading_dense_block_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"expert_group_count", 0},
    {"expert_group_used_count", 0},
    {"expert_feed_forward_length", 0},
    {"expert_shared_feed_forward_length", 0},
};

static const struct only_bool {
    const char *key;
    bool fine;
} bools[] = {
    {"attention.causal", true},
    {"use_parallel_residual", false},
    {"swin_norm", false},
    {"hrm.prefix_lm", false},
};

/* The number of "<arch>.<key>"; *found: it is there. */
static ig_status find_number(double *out, bool *found, const ig_gguf *g, ig_slice arch, const char *key,
                             ig_err *err) {
    char full[160];
    snprintf(full, sizeof full, "%.*s.%s", (int)arch.n, arch.p, key);
    ig_status st = ig_gguf_get_f64(g, full, out, err);
    *found = st == IG_OK;
    return st == IG_ENOTFOUND ? IG_OK : st;
}

static ig_status refuse(const ig_gguf *g, ig_slice arch, const char *key, double is, double fine,
                        ig_err *err) {
    return ig_fail(err, IG_EFORMAT, "%s: %.*s.%s = %g is not supported, only %g", ig_gguf_path(g),
                   (int)arch.n, arch.p, key, is, fine);
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-5 * fabs(b);
}

static ig_status refuse_bools(const ig_gguf *g, ig_slice arch, ig_err *err) {
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++) {
        char full[160];
        bool is = bools[i].fine;
        snprintf(full, sizeof full, "%.*s.%s", (int)arch.n, arch.p, bools[i].key);
        ig_status st = ig_gguf_get_bool(g, full, &is, err);
        if (st && st != IG_ENOTFOUND) return st;
        if (is != bools[i].fine)
            return ig_fail(err, IG_EFORMAT, "%s: %s = %s is not supported", ig_gguf_path(g), full,
                           is ? "true" : "false");
    }
    return IG_OK;
}

/* What has to agree with the settings that were read. */
static ig_status compare(const ig_model_config *c, const ig_gguf *g, ig_slice arch, ig_err *err) {
    const struct only_number same[] = {
        {"attention.scale", (double)c->attention_scale},
        {"attention.key_length_swa", c->head_dim},
        {"attention.value_length_swa", c->head_dim},
        {"rope.dimension_count_swa", c->head_dim},
        {"embedding_length_out", c->width},
    };
    double is;
    bool found;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        ig_status st = find_number(&is, &found, g, arch, same[i].key, err);
        if (st) return st;
        if (found && is != 0 && !near(is, same[i].fine))
            return refuse(g, arch, same[i].key, is, same[i].fine, err);
    }
    ig_status st = find_number(&is, &found, g, arch, "rope.freq_base_swa", err);
    if (!st && found && c->window && !c->own_window_rope && !near(is, c->rope[IG_ROPE_FULL].base))
        st = refuse(g, arch, "rope.freq_base_swa", is, c->rope[IG_ROPE_FULL].base, err);
    return st;
}

static ig_status refuse_activation(const ig_gguf *g, ig_slice arch, ig_err *err) {
    const bool gelu = arch.n >= 5 && memcmp(arch.p, "gemma", 5) == 0;
    static const char *const fine[2][2] = {{"silu", "swiglu"}, {"gelu_pytorch_tanh", "gelu"}};
    char full[160];
    ig_slice is;
    snprintf(full, sizeof full, "%.*s.hidden_activation", (int)arch.n, arch.p);
    ig_status st = ig_gguf_get_string(g, full, &is, err);
    if (st) return st == IG_ENOTFOUND ? IG_OK : st;
    if (ig_slice_eq_str(is, fine[gelu][0]) || ig_slice_eq_str(is, fine[gelu][1])) return IG_OK;
    return ig_fail(err, IG_EFORMAT, "%s: %s \"%.*s\" is not supported, only %s", ig_gguf_path(g), full,
                   (int)(is.n < 40 ? is.n : 40), is.p, fine[gelu][0]);
}

ig_status ig_gguf_refuse_rest(const ig_model_config *c, const ig_gguf *g, ig_slice arch, ig_err *err) {
    ig_status st = refuse_bools(g, arch, err);
    for (size_t i = 0; !st && i < sizeof numbers / sizeof *numbers; i++) {
        double is;
        bool found;
        st = find_number(&is, &found, g, arch, numbers[i].key, err);
        if (!st && found && is != 0 && is != numbers[i].fine)
            st = refuse(g, arch, numbers[i].key, is, numbers[i].fine, err);
    }
    if (!st) st = refuse_activation(g, arch, err);
    return st ? st : compare(c, g, arch, err);
}

static bool is_known(ig_slice key) {
    static const char *const compared[] = {"attention.scale",      "attention.key_length_swa",
                                           "embedding_length_out", "attention.value_length_swa",
                                           "hidden_activation",    "rope.dimension_count_swa"};
    bool yes = false;
#define LOOK_IN(list, name)                                                                                  \
    for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) yes |= ig_slice_eq_str(key, (list)[i] name)
    LOOK_IN(known, );
    LOOK_IN(compared, );
    LOOK_IN(numbers, .key);
    LOOK_IN(bools, .key);
#undef LOOK_IN
    return yes;
}

void ig_gguf_tell_unknown(const ig_gguf *g) {
    ig_slice arch, first = {0};
    int n = 0;
    if (ig_gguf_get_string(g, "general.architecture", &arch, NULL) != IG_OK) return;
    for (int i = 0; i < ig_gguf_n_keys(g); i++) {
        ig_slice key = ig_gguf_key(g, i, NULL);
        if (key.n <= arch.n + 1 || memcmp(key.p, arch.p, arch.n) != 0 || key.p[arch.n] != '.') continue;
        if (is_known((ig_slice){key.p + arch.n + 1, key.n - arch.n - 1})) continue;
        if (n++ == 0) first = key;
    }
    if (n > 0)
        ig_log(IG_LOG_WARN, "model.settings unknown=%d first=%.*s", n, (int)(first.n < 80 ? first.n : 80),
               first.p);
}

/* ---- config.json --------------------------------------------------------------------------------------- */

static const ig_hf_only only[] = {
    {.key = "is_causal", .yes = true},
    {.key = "use_bidirectional_attention"},
    {.key = "is_encoder_decoder"},
    {.key = "add_cross_attention"},
    {.key = "rope_traditional"},
    {.key = "partial_rotary_factor", .number = 1},
    {.key = "rotary_pct", .number = 1},
    {.key = "no_rope_layers"},
    {.key = "no_rope_layer_interval"},
    {.key = "alibi"},
    {.key = "use_alibi"},
    {.key = "clip_qkv"},
    {.key = "parallel_attn"},
    {.key = "use_parallel_residual"},
    {.key = "attention_chunk_size"},
    {.key = "attn_output_gate"},
    {.key = "attn_temperature_tuning"},
    {.key = "embedding_multiplier", .number = 1},
    {.key = "residual_multiplier", .number = 1},
    {.key = "logits_scaling", .number = 1},
    {.key = "logit_scale", .number = 1},
    {.key = "scale_emb", .number = 1},
    {.key = "scale_depth"},
    {.key = "num_experts"},
    {.key = "num_local_experts"},
    {.key = "n_routed_experts"},
    {.key = "num_kv_shared_layers"},
    {.key = "hidden_size_per_layer_input"},
    {.key = NULL},
};

ig_status ig_hf_refuse_rest(const ig_model_config *c, const ig_hf *h, ig_err *err) {
    const struct {
        const char *key;
        double want;
        bool root; /* its square root is one over this */
    } same[] = {
        {"attention_multiplier", (double)c->attention_scale, false},
        {"query_pre_attn_scalar", (double)c->attention_scale, true},
        {"attn_logit_softcapping", (double)c->attention_softcap, false},
        {"final_logit_softcapping", (double)c->final_softcap, false},
    };
    ig_hf outer = *h; /* a wrapper's own settings may say it, too */
    outer.text = h->root;
    ig_status st = ig_hf_refuse(h, only, err);
    if (!st && h->text != h->root) st = ig_hf_refuse(&outer, only, err);
    for (size_t i = 0; !st && i < sizeof same / sizeof *same; i++) {
        double is = 0;
        if (!ig_hf_get(h, same[i].key)) continue;
        st = ig_hf_real(&is, h, same[i].key, -1e30, 1e30, 0, err);
        const double got = same[i].root ? 1 / sqrt(is) : is;
        if (!st && !near(got, same[i].want))
            st = ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %g is not supported in this family",
                         h->path, same[i].key, is);
    }
    return st;
}
