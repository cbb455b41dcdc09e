/* config_gguf: the settings that families share, as a GGUF file's metadata has them under "<arch>.".
 * Threads: any. Memory: none. Whatever changes the numbers is read or refused, never passed over. */
#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct full_key {
    char s[128];
} full_key;

static full_key key_of(const char *arch, const char *key) {
    full_key k;
    snprintf(k.s, sizeof k.s, "%s.%s", arch, key);
    return k;
}

/* An array whose items are bools or whole numbers; of any other kind: an error. *found: there is an array. */
static ig_status get_array(ig_gguf_array *a, bool *found, const ig_gguf *g, const char *key, ig_err *err) {
    *found = ig_gguf_get_array(g, key, a, NULL) == IG_OK;
    if (*found && (a->kind == IG_GGUF_STRING || a->kind == IG_GGUF_F32 || a->kind == IG_GGUF_F64))
        return ig_fail(err, IG_EFORMAT, "%s: %s is an array of %s, not of whole numbers", ig_gguf_path(g),
                       key, a->kind == IG_GGUF_STRING ? "strings" : "floats");
    return IG_OK;
}

/* A number, or an array with a number for every layer, all of them alike. */
static ig_status get_u64(uint64_t *out, const ig_gguf *g, const char *key, ig_err *err) {
    ig_gguf_array a;
    bool found;
    ig_status st = get_array(&a, &found, g, key, err);
    if (st) return st;
    if (!found || a.n == 0) return ig_gguf_get_u64(g, key, out, err);
    const uint64_t v = ig_gguf_array_u64(&a, 0);
    for (uint64_t i = 1; i < a.n; i++)
        if (ig_gguf_array_u64(&a, i) != v)
            return ig_fail(
                err, IG_EFORMAT, "%s: %s differs from layer to layer (%llu, %llu), which is not supported",
                ig_gguf_path(g), key, (unsigned long long)v, (unsigned long long)ig_gguf_array_u64(&a, i));
    *out = v;
    return IG_OK;
}

ig_status ig_gguf_ints(const ig_gguf *g, const char *arch, const ig_int_row *rows, ig_err *err) {
    for (; rows->to; rows++) {
        const full_key key = key_of(arch, rows->key);
        uint64_t v = 0;
        ig_status st = get_u64(&v, g, key.s, err);
        if (st == IG_ENOTFOUND && rows->or_else == IG_REQUIRED)
            return ig_fail(err, IG_EFORMAT, "%s: metadata %s is missing", ig_gguf_path(g), key.s);
        if (st == IG_ENOTFOUND) {
            *rows->to = rows->or_else;
            continue;
        }
        if (st) return st;
        if (v < (uint64_t)rows->low || v > (uint64_t)rows->high)
            return ig_fail(err, IG_EFORMAT, "%s: %s = %llu is outside %d..%d", ig_gguf_path(g), key.s,
                           (unsigned long long)v, rows->low, rows->high);
        *rows->to = (int)v;
    }
    return IG_OK;
}

ig_status ig_gguf_real(double *out, const ig_gguf *g, const char *arch, const char *key, ig_err *err) {
    const full_key full = key_of(arch, key);
    ig_status st = ig_gguf_get_f64(g, full.s, out, err);
    return st == IG_ENOTFOUND ? IG_OK : st;
}

ig_status ig_gguf_read_sizes(ig_model_config *c, const ig_gguf *g, const char *arch, ig_err *err) {
    int value_dim = 0, rope_dims = 0, n_experts = 0, pooling = 0;
    double eps = 0, cap[2] = {0, 0};
    const ig_int_row rows[] = {
        {&c->n_layers, "block_count", 1, IG_LAYERS_MAX, IG_REQUIRED},
        {&c->width, "embedding_length", 8, 1 << 17, IG_REQUIRED},
        {&c->ffn_width, "feed_forward_length", 8, 1 << 19, IG_REQUIRED},
        {&c->n_heads, "attention.head_count", 1, 1024, IG_REQUIRED},
        {&c->n_kv_heads, "attention.head_count_kv", 1, 1024, 0},
        {&c->head_dim, "attention.key_length", 1, 1 << 16, c->head_dim},
        {&value_dim, "attention.value_length", 1, 1 << 16, 0},
        {&rope_dims, "rope.dimension_count", 1, 1 << 16, 0},
        {&c->n_ctx_train, "context_length", 1, 1 << 24, IG_REQUIRED},
        {&pooling, "pooling_type", 0, IG_POOLING_RANK, IG_POOLING_NONE},
        {&n_experts, "expert_count", 0, 1 << 16, 0},
        {.to = NULL},
    };
    const char *path = ig_gguf_path(g);
    ig_status st = ig_gguf_ints(g, arch, rows, err);
    if (st) return st;
    c->pooling = (ig_pooling)pooling;
    if (!c->n_kv_heads) c->n_kv_heads = c->n_heads;
    if (!c->head_dim) c->head_dim = c->width / c->n_heads;
    if (n_experts)
        return ig_fail(err, IG_EFORMAT, "%s: %s.expert_count = %d: mixtures of experts are not supported",
                       path, arch, n_experts);
    if ((rope_dims && rope_dims != c->head_dim) || (value_dim && value_dim != c->head_dim))
        return ig_fail(err, IG_EFORMAT,
                       "%s: rope over %d and values of %d dimensions of a head of %d are not supported", path,
                       rope_dims ? rope_dims : c->head_dim, value_dim ? value_dim : c->head_dim, c->head_dim);
    if ((st = ig_gguf_get_f64(g, key_of(arch, "attention.layer_norm_rms_epsilon").s, &eps, err))) return st;
    c->norm_eps = (float)eps;
    cap[0] = (double)c->attention_softcap, cap[1] = (double)c->final_softcap;
    if ((st = ig_gguf_real(&cap[0], g, arch, "attn_logit_softcapping", err))) return st;
    if ((st = ig_gguf_real(&cap[1], g, arch, "final_logit_softcapping", err))) return st;
    c->attention_softcap = (float)cap[0], c->final_softcap = (float)cap[1];
    return IG_OK;
}

/* ---- rope ---------------------------------------------------------------------------------------------- */

static ig_status read_yarn(ig_rope_settings *r, const ig_gguf *g, const char *arch, ig_err *err) {
    double log_mul = 0, ext = 1, attn = 1;
    ig_status st = ig_gguf_real(&r->beta_fast, g, arch, "rope.scaling.yarn_beta_fast", err);
    if (!st) st = ig_gguf_real(&r->beta_slow, g, arch, "rope.scaling.yarn_beta_slow", err);
    if (!st) st = ig_gguf_real(&attn, g, arch, "rope.scaling.yarn_attn_factor", err);
    if (!st) st = ig_gguf_real(&ext, g, arch, "rope.scaling.yarn_ext_factor", err);
    if (!st) st = ig_gguf_real(&log_mul, g, arch, "rope.scaling.yarn_log_multiplier", err);
    if (st) return st;
    if (ext != 1 || log_mul != 0)
        return ig_fail(
            err, IG_EFORMAT,
            "%s: yarn with an extrapolation of %g and a log multiplier of %g is not supported (1, 0)",
            ig_gguf_path(g), ext, log_mul);
    r->scale *= attn * ig_rope_yarn_scale(r->factor, 1.0);
    return IG_OK;
}

ig_status ig_gguf_read_rope(ig_model_config *c, const ig_gguf *g, const char *arch, ig_err *err) {
    ig_rope_settings *r = &c->rope[IG_ROPE_FULL];
    double factor = 0, original = c->n_ctx_train;
    double attn = 1;
    ig_slice kind = {NULL, 0};
    ig_status st = ig_gguf_real(&r->base, g, arch, "rope.freq_base", err);
    if (!st) st = ig_gguf_real(&factor, g, arch, "rope.scale_linear", err); /* the older spelling */
    if (!st) st = ig_gguf_real(&factor, g, arch, "rope.scaling.factor", err);
    if (!st) st = ig_gguf_real(&original, g, arch, "rope.scaling.original_context_length", err);
    if (!st) st = ig_gguf_real(&attn, g, arch, "rope.scaling.attn_factor", err);
    if (st) return st;
    st = ig_gguf_get_string(g, key_of(arch, "rope.scaling.type").s, &kind, err);
    if (st && st != IG_ENOTFOUND) return st;
    if (factor == 0) factor = 1;
    r->type = IG_ROPE_PLAIN, r->factor = factor, r->original = original;
    r->scale = 1, r->beta_fast = 32, r->beta_slow = 1;
    const bool linear = st == IG_ENOTFOUND || ig_slice_eq_str(kind, "linear");
    if (attn != 1 && (linear || ig_slice_eq_str(kind, "none")))
        return ig_fail(err, IG_EFORMAT, "%s: %s.rope.scaling.attn_factor = %g without yarn or longrope",
                       ig_gguf_path(g), arch, attn);
    if (linear) {
        if (factor != 1) r->type = IG_ROPE_LINEAR;
        return IG_OK;
    }
    r->scale = attn;
    if (ig_slice_eq_str(kind, "yarn")) {
        r->type = IG_ROPE_YARN;
        return read_yarn(r, g, arch, err);
    }
    if (ig_slice_eq_str(kind, "longrope")) {
        r->type = IG_ROPE_LONGROPE;
        return IG_OK;
    }
    if (!ig_slice_eq_str(kind, "none"))
        return ig_fail(err, IG_EFORMAT,
                       "%s: %s.rope.scaling.type \"%.*s\" is not supported (none, linear, yarn, longrope)",
                       ig_gguf_path(g), arch, (int)(kind.n < 40 ? kind.n : 40), kind.p);
    r->scale = r->factor = 1;
    return IG_OK;
}

/* ---- windows ------------------------------------------------------------------------------------------- */

ig_status ig_gguf_read_window(ig_model_config *c, const ig_gguf *g, const char *arch, int or_else, int every,
                              ig_err *err) {
    const full_key key = key_of(arch, "attention.sliding_window_pattern");
    const ig_int_row window[] = {{&c->window, "attention.sliding_window", 0, 1 << 24, or_else}, {.to = NULL}};
    const ig_int_row pattern[] = {{&every, "attention.sliding_window_pattern", 0, IG_LAYERS_MAX, every},
                                  {.to = NULL}};
    ig_gguf_array a;
    bool found;
    ig_status st = ig_gguf_ints(g, arch, window, err);
    if (!st) st = get_array(&a, &found, g, key.s, err);
    if (st) return st;
    if (found) { /* true: a layer with a window */
        if (a.n != (uint64_t)c->n_layers)
            return ig_fail(err, IG_EFORMAT, "%s: %s has %llu entries for %d layers", ig_gguf_path(g), key.s,
                           (unsigned long long)a.n, c->n_layers);
        for (int i = 0; i < c->n_layers; i++) {
            const uint64_t v = ig_gguf_array_u64(&a, (uint64_t)i);
            if (v > 1)
                return ig_fail(err, IG_EFORMAT, "%s: %s[%d] is neither 0 nor 1", ig_gguf_path(g), key.s, i);
            c->windowed[i] = v != 0;
        }
    } else {
        if ((st = ig_gguf_ints(g, arch, pattern, err))) return st;
        for (int i = 0; i < c->n_layers; i++) c->windowed[i] = every == 0 || (i + 1) % every != 0;
    }
    for (int i = 0; i < c->n_layers && !c->window; i++) c->windowed[i] = 0;
    return IG_OK;
}

ig_status ig_gguf_read_plain(ig_model_config *out, const ig_gguf *g, const char *arch, ig_err *err) {
    ig_model_config c = {.embed_scale = 1.0f, .rope[IG_ROPE_FULL].base = 10000.0};
    ig_status st = ig_gguf_read_sizes(&c, g, arch, err);
    if (!st) st = ig_gguf_read_rope(&c, g, arch, err);
    if (!st) st = ig_gguf_read_window(&c, g, arch, 0, 0, err);
    if (st) return st;
    c.attention_scale = 1.0f / sqrtf((float)c.head_dim);
    if ((st = ig_config_check(&c, ig_gguf_path(g), err))) return st;
    *out = c;
    return IG_OK;
}
