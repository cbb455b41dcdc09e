/* config_hf: the settings of config.json, as families read them.
 * Threads: any. Memory: none.
 * Why so strict: a setting that we do not know how to honour changes every number and nothing crashes. Two
 * generations of writers spell rope differently; both are read, in every family. */
#include "model/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

yyjson_val *ig_hf_get(const ig_hf *h, const char *key) {
    /* what wrappers keep outside of text_config */
    static const char *const shared[] = {"vocab_size", "tie_word_embeddings", "quantization",
                                         "quantization_config"};
    yyjson_val *v = ig_json_get(h->text, key);
    if (v || h->text == h->root) return v;
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (strcmp(key, shared[i]) == 0) return ig_json_get(h->root, key);
    return NULL;
}

/* A value for a message: short, and nothing that a terminal would obey. */
typedef struct shown {
    char s[64];
} shown;

static shown show(yyjson_val *v) {
    shown out = {"?"};
    size_t n = 0;
    char *text = yyjson_val_write(v, YYJSON_WRITE_ESCAPE_UNICODE | YYJSON_WRITE_ALLOW_INF_AND_NAN, &n);
    if (!text) return out;
    if (n >= sizeof out.s) n = sizeof out.s - 1;
    memcpy(out.s, text, n);
    out.s[n] = 0;
    free(text);
    return out;
}

ig_status ig_hf_ints(const ig_hf *h, const ig_int_row *rows, ig_err *err) {
    for (; rows->to; rows++) {
        yyjson_val *v = ig_hf_get(h, rows->key);
        if (!v && rows->or_else == IG_REQUIRED)
            return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s is missing", h->path, rows->key);
        if (!v) {
            *rows->to = rows->or_else;
            continue;
        }
        if (!yyjson_is_int(v) || yyjson_get_sint(v) < rows->low ||
            (yyjson_is_uint(v) && yyjson_get_uint(v) > (uint64_t)rows->high))
            return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not a whole number in %d..%d",
                           h->path, rows->key, show(v).s, rows->low, rows->high);
        *rows->to = (int)yyjson_get_sint(v);
    }
    return IG_OK;
}

static ig_status real_of(double *out, const ig_hf *h, const char *key, yyjson_val *v, double low, double high,
                         ig_err *err) {
    double got;
    if (!v) return IG_OK;
    if (!ig_json_number(v, &got))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not a number", h->path, key,
                       show(v).s);
    if (!(got >= low && got <= high))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %g is not in %g..%g", h->path, key, got,
                       low, high);
    *out = got;
    return IG_OK;
}

ig_status ig_hf_real(double *out, const ig_hf *h, const char *key, double low, double high, double or_else,
                     ig_err *err) {
    yyjson_val *v = ig_hf_get(h, key);
    if (!v && or_else < low)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s is missing", h->path, key);
    *out = or_else;
    return real_of(out, h, key, v, low, high, err);
}

ig_status ig_hf_bool(bool *out, const ig_hf *h, const char *key, bool or_else, ig_err *err) {
    yyjson_val *v = ig_hf_get(h, key);
    if (v && !yyjson_is_bool(v))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s is neither true nor false", h->path, key);
    *out = v ? yyjson_get_bool(v) : or_else;
    return IG_OK;
}

ig_status ig_hf_cap(float *out, const ig_hf *h, const char *key, double or_else, ig_err *err) {
    double cap = yyjson_is_null(yyjson_obj_get(h->text, key)) ? 0 : or_else;
    ig_status st = real_of(&cap, h, key, ig_hf_get(h, key), 0, 1e6, err);
    if (!st) *out = (float)cap;
    return st;
}

ig_status ig_hf_refuse(const ig_hf *h, const ig_hf_only *rows, ig_err *err) {
    for (; rows->key; rows++) {
        double number;
        yyjson_val *v = ig_hf_get(h, rows->key);
        if (!v || (rows->yes ? yyjson_is_true(v) : yyjson_is_false(v))) continue;
        if (rows->text && yyjson_equals_str(v, rows->text)) continue;
        if (!rows->yes && ig_json_number(v, &number) && number == rows->number) continue;
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not supported%s%s", h->path,
                       rows->key, show(v).s, rows->text ? ", only " : "", rows->text ? rows->text : "");
    }
    return IG_OK;
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

ig_status ig_hf_read_sizes(ig_model_config *c, const ig_hf *h, int head_dim, int n_ctx, ig_err *err) {
    double eps = 0;
    const ig_int_row rows[] = {
        {&c->n_layers, "num_hidden_layers", 1, IG_LAYERS_MAX, IG_REQUIRED},
        {&c->width, "hidden_size", 8, 1 << 17, IG_REQUIRED},
        {&c->ffn_width, "intermediate_size", 8, 1 << 19, IG_REQUIRED},
        {&c->n_heads, "num_attention_heads", 1, 1024, IG_REQUIRED},
        {&c->n_kv_heads, "num_key_value_heads", 1, 1024, 0},
        {&c->head_dim, "head_dim", 1, 1 << 16, head_dim},
        {&c->n_vocab, "vocab_size", 1, 1 << 24, IG_REQUIRED},
        {&c->n_ctx_train, "max_position_embeddings", 1, 1 << 24, n_ctx},
        {.to = NULL},
    };
    ig_status st = ig_hf_ints(h, rows, err);
    if (!st) st = ig_hf_real(&eps, h, "rms_norm_eps", 1e-30, 0.5, -1, err);
    if (st) return st;
    if (!c->n_kv_heads) c->n_kv_heads = c->n_heads;
    if (!c->head_dim) c->head_dim = c->width / c->n_heads;
    c->norm_eps = (float)eps;
    return IG_OK;
}

ig_status ig_hf_read_qwen_window(ig_model_config *c, const ig_hf *h, ig_err *err) {
    int first = 0;
    bool used = false;
    const ig_int_row rows[] = {{&c->window, "sliding_window", 0, 1 << 24, 0},
                               {&first, "max_window_layers", 0, 1 << 24, 28},
                               {.to = NULL}};
    ig_status st = ig_hf_bool(&used, h, "use_sliding_window", false, err);
    if (!st) st = ig_hf_ints(h, rows, err);
    if (st) return st;
    if (!used) c->window = 0; /* the key is written all the same */
    for (int i = first; i < c->n_layers && c->window; i++) c->windowed[i] = 1;
    return IG_OK;
}

/* ---- rope ---------------------------------------------------------------------------------------------- */

/* Outside of these no model was ever made: what is there is a slip, or meant to break us. */
static const double base_low = 1.001, base_high = 1e12, factor_low = 1, factor_high = 1e6,
                    tokens_high = 1 << 24;

/* A number of a rope object: absent `or_else`, or when that is negative an error. */
static ig_status number(double *out, const ig_hf *h, yyjson_val *o, const char *key, double low, double high,
                        double or_else, ig_err *err) {
    char what[64];
    snprintf(what, sizeof what, "rope %s", key);
    yyjson_val *v = ig_json_get(o, key);
    if (!v && or_else < 0)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s rope without %s", h->path,
                       show(ig_json_get(o, ig_json_get(o, "rope_type") ? "rope_type" : "type")).s, key);
    *out = or_else;
    return real_of(out, h, what, v, low, high, err);
}

static ig_status read_llama3(ig_rope_settings *r, const ig_hf *h, yyjson_val *o, ig_err *err) {
    ig_status st = number(&r->low, h, o, "low_freq_factor", 1e-6, 1e6, 1, err);
    if (!st) st = number(&r->high, h, o, "high_freq_factor", 1e-6, 1e6, 4, err);
    if (!st) st = number(&r->original, h, o, "original_max_position_embeddings", 1, tokens_high, 8192, err);
    return st;
}

static ig_status read_yarn(ig_rope_settings *r, const ig_hf *h, yyjson_val *o, ig_err *err) {
    double mscale = 1, all_dim = 0;
    ig_status st = number(&r->original, h, o, "original_max_position_embeddings", 1, tokens_high, -1, err);
    if (!st) st = number(&r->beta_fast, h, o, "beta_fast", 1e-6, 1e6, 32, err);
    if (!st) st = number(&r->beta_slow, h, o, "beta_slow", 1e-6, 1e6, 1, err);
    if (!st) st = number(&mscale, h, o, "mscale", 0, 100, 1, err);
    if (!st) st = number(&all_dim, h, o, "mscale_all_dim", 0, 100, 0, err);
    if (st) return st;
    if (yyjson_is_false(ig_json_get(o, "truncate")))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope truncate = false is not supported",
                       h->path);
    const double scale = ig_rope_yarn_scale(r->factor, mscale) / ig_rope_yarn_scale(r->factor, all_dim);
    st = number(&r->scale, h, o, "attention_factor", 1e-3, 99, scale, err);
    r->mlx_differs |= r->scale != scale; /* it knows no attention_factor */
    return st;
}

/* Models of a longer context than the original one take the long divisors, others the short ones, for any text. */
static ig_status read_longrope(ig_rope_settings *r, const ig_hf *h, yyjson_val *o, ig_err *err) {
    double most = 0;
    yyjson_val *of = ig_json_get(o, "original_max_position_embeddings") ? o : h->text;
    ig_status st = real_of(&most, h, "max_position_embeddings", ig_hf_get(h, "max_position_embeddings"), 1,
                           tokens_high, err);
    if (!st) st = number(&r->original, h, of, "original_max_position_embeddings", 2, tokens_high, -1, err);
    if (st) return st;
    const bool longer = most > r->original;
    yyjson_val *list = ig_json_get(o, longer ? "long_factor" : "short_factor");
    if (!yyjson_is_arr(list) || yyjson_arr_size(list) == 0 || yyjson_arr_size(list) > IG_HEAD_DIM_MAX / 2)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: longrope without a %s of 1 to %d numbers",
                       h->path, longer ? "long_factor" : "short_factor", IG_HEAD_DIM_MAX / 2);
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(list, i, n, v) if ((st = real_of(&r->divisor[i], h, "a longrope factor", v, 1e-3,
                                                        factor_high, err))) return st;
    r->n_divisors = (int)yyjson_arr_size(list);
    r->factor = 1; /* when it is there it is the ratio again, and only the scale is made of it */
    const double ratio = longer ? most / r->original : 1;
    const double scale = sqrt(1.0 + ig_math_log(ratio) / ig_math_log(r->original));
    st = number(&r->scale, h, o, "long_mscale", 1e-3, 99, scale, err);
    if (!st) st = number(&r->scale, h, o, "attention_factor", 1e-3, 99, r->scale, err);
    /* mlx-lm takes the long divisors always, makes the scale itself and looks nowhere else */
    r->mlx_differs |= !longer || r->scale != scale || of != o;
    return st;
}

/* `o` is rope_scaling, or the rope_parameters of one kind of layers. */
static ig_status read_scaling(ig_rope_settings *r, const ig_hf *h, yyjson_val *o, ig_err *err) {
    static const struct {
        const char *name;
        ig_rope_type type;
        ig_status (*rest)(ig_rope_settings *r, const ig_hf *h, yyjson_val *o, ig_err *err);
    } types[] = {{"default", IG_ROPE_PLAIN, NULL},       {"none", IG_ROPE_PLAIN, NULL},
                 {"mrope", IG_ROPE_PLAIN, NULL}, /* of text all its sections are one position */
                 {"linear", IG_ROPE_LINEAR, NULL},       {"llama3", IG_ROPE_LLAMA3, read_llama3},
                 {"yarn", IG_ROPE_YARN, read_yarn},      {"longrope", IG_ROPE_LONGROPE, read_longrope},
                 {"su", IG_ROPE_LONGROPE, read_longrope}};
    enum { N_TYPES = sizeof types / sizeof *types };
    yyjson_val *type = ig_json_get(o, "rope_type");
    if (!type) type = ig_json_get(o, "type");
    r->type = IG_ROPE_PLAIN, r->factor = 1, r->scale = 1;
    if (!type && ig_json_get(o, "factor"))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: a rope factor without a rope type", h->path);
    if (!type) return IG_OK;
    if (yyjson_equals_str(type, "dynamic")) /* its base changes with the length: cached keys would be wrong */
        return ig_fail(
            err, IG_EFORMAT,
            "%.200s/config.json: rope type \"dynamic\" is not supported: a token's key would depend "
            "on how long its text gets",
            h->path);
    size_t i = 0;
    while (i < N_TYPES && !yyjson_equals_str(type, types[i].name)) i++;
    if (i == N_TYPES)
        return ig_fail(
            err, IG_EFORMAT,
            "%.200s/config.json: rope type %s is not supported (default, linear, llama3, yarn, longrope)",
            h->path, show(type).s);
    r->type = types[i].type;
    yyjson_val *older = ig_json_get(o, "type"); /* mlx-lm prefers it, and does not know every name */
    r->mlx_differs = yyjson_equals_str(type, "su") || yyjson_equals_str(type, "none") ||
                     (older && !yyjson_equals(older, type));
    if (r->type == IG_ROPE_PLAIN) return IG_OK;
    ig_status st = number(&r->factor, h, o, "factor", factor_low, factor_high,
                          r->type == IG_ROPE_LONGROPE ? 1 : -1, err);
    return st || !types[i].rest ? st : types[i].rest(r, h, o, err);
}

static bool same_rope(const ig_rope_settings *a, const ig_rope_settings *b) {
    return a->type == b->type && a->factor == b->factor && a->original == b->original && a->low == b->low &&
           a->high == b->high && a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->scale == b->scale && a->n_divisors == b->n_divisors &&
           memcmp(a->divisor, b->divisor, sizeof a->divisor) == 0;
}

/* mlx-lm reads the key of the base, else its default, and rope_scaling; rope_parameters in one family only, and there
 * after those. `r`: what is meant, read from rope_scaling if there is one. */
static bool mlx_differs(const ig_rope_settings *r, double base, double or_else, const ig_hf *h, const ig_hf_rope *kind,
                        yyjson_val *own, yyjson_val *scaling) {
    const bool flat = own && own == ig_hf_get(h, "rope_parameters");
    yyjson_val *nested = kind->mlx_nested && flat ? own : NULL;
    double mlx_base = or_else;
    if (!ig_json_number(ig_hf_get(h, kind->theta_key), &mlx_base))
        (void)ig_json_number(ig_json_get(nested, "rope_theta"), &mlx_base);
    if (mlx_base != base) return true;
    if (kind->mlx_unscaled || !(scaling || nested)) return r->type != IG_ROPE_PLAIN;
    return r->mlx_differs;
}

ig_status ig_hf_read_rope(ig_rope_settings *out, const ig_hf *h, const ig_hf_rope *kind, ig_err *err) {
    yyjson_val *all = ig_hf_get(h, "rope_parameters"), *own = ig_json_get(all, kind->layers);
    const bool by_kind = ig_json_get(all, "full_attention") || ig_json_get(all, "sliding_attention");
    /* a flat one describes the layers whose rope can be scaled; the others have a key of their own */
    if (!by_kind && kind->scaled) own = all;
    if (own && !yyjson_is_obj(own))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope_parameters of %s are not an object",
                       h->path, kind->layers);
    yyjson_val *scaling = kind->scaled ? ig_hf_get(h, "rope_scaling") : NULL;
    if (scaling && !yyjson_is_obj(scaling))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope_scaling = %s is not an object", h->path,
                       show(scaling).s);
    double base = out->base, partial = 1;
    ig_rope_settings r = {0}, from_scaling = {0};
    ig_status st =
        real_of(&base, h, kind->theta_key, ig_hf_get(h, kind->theta_key), base_low, base_high, err);
    if (!st) st = real_of(&base, h, "rope_theta", ig_json_get(own, "rope_theta"), base_low, base_high, err);
    if (!st)
        st = real_of(&partial, h, "partial_rotary_factor of rope_parameters",
                     ig_json_get(own, "partial_rotary_factor"), 1, 1, err);
    if (!st) st = read_scaling(&r, h, own, err);
    if (!st) st = read_scaling(&from_scaling, h, scaling, err);
    if (st) return st;
    if (base == 0)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s is missing", h->path, kind->theta_key);
    /* both generations side by side: readers differ in which one they believe, so they must agree */
    if (own && scaling && !same_rope(&r, &from_scaling))
        return ig_fail(
            err, IG_EFORMAT,
            "%.200s/config.json: rope_scaling is %s with a factor of %g and rope_parameters %s with %g, "
            "or they differ in other numbers",
            h->path, ig_rope_type_name(from_scaling.type), from_scaling.factor, ig_rope_type_name(r.type),
            r.factor);
    if (scaling) r = from_scaling;
    r.mlx_differs = mlx_differs(&r, base, out->base, h, kind, own, scaling);
    *out = r;
    out->base = base;
    return IG_OK;
}

/* ---- kinds of layers ----------------------------------------------------------------------------------- */

ig_status ig_hf_read_layers(ig_model_config *c, const ig_hf *h, ig_err *err) {
    yyjson_val *types = ig_hf_get(h, "layer_types");
    if (types && (!yyjson_is_arr(types) || yyjson_arr_size(types) != (size_t)c->n_layers))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: layer_types has %zu entries for %d layers",
                       h->path, yyjson_arr_size(types), c->n_layers);
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(types, i, n, v) {
        const bool windowed = yyjson_equals_str(v, "sliding_attention");
        if ((!windowed && !yyjson_equals_str(v, "full_attention")) || (windowed && !c->window))
            return ig_fail(err, IG_EFORMAT, "%.200s/config.json: layer_types[%zu] = %s is not supported%s",
                           h->path, i, show(v).s, windowed ? " without a sliding_window" : "");
        c->windowed[i] = windowed;
    }
    bool any = false;
    for (int l = 0; l < c->n_layers; l++) any |= c->windowed[l] != 0;
    if (!any) c->window = 0;
    return IG_OK;
}
