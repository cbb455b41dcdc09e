/* config_hf: the settings of config.json, as families read them.
 * Threads: any. Memory: none.
 * Why so strict: a setting that we do not know how to honour changes every number and nothing crashes. Two
 * generations of writers spell rope differently; both are read, in every family. */
#include "model/inside.h"

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

ig_status ig_hf_int(int *out, const ig_hf *h, const char *key, int low, int high, int or_else, ig_err *err) {
    yyjson_val *v = ig_hf_get(h, key);
    if (!v && or_else >= 0) {
        *out = or_else;
        return IG_OK;
    }
    if (!v) return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s is missing", h->path, key);
    if (!yyjson_is_int(v) || yyjson_get_sint(v) < low ||
        (yyjson_is_uint(v) && yyjson_get_uint(v) > (uint64_t)high))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not a whole number in %d..%d",
                       h->path, key, show(v).s, low, high);
    *out = (int)yyjson_get_sint(v);
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

ig_status ig_hf_refuse(const ig_hf *h, const ig_hf_only *rows, ig_err *err) {
    for (; rows->key; rows++) {
        double number;
        yyjson_val *v = ig_hf_get(h, rows->key);
        if (!v || yyjson_is_false(v)) continue;
        if (rows->text && yyjson_equals_str(v, rows->text)) continue;
        if (ig_json_number(v, &number) && number == rows->number) continue;
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not supported%s%s", h->path,
                       rows->key, show(v).s, rows->text ? ", only " : "", rows->text ? rows->text : "");
    }
    return IG_OK;
}

/* ---- rope ---------------------------------------------------------------------------------------------- */

/* Outside of these no model was ever made: what is there is a slip, or meant to break us. */
static const double base_low = 1.001, base_high = 1e12, factor_low = 1, factor_high = 1e6;

/* `o` is rope_scaling, or the rope_parameters of one kind of layers. */
static ig_status read_scaling(double *factor, const ig_hf *h, yyjson_val *o, ig_err *err) {
    yyjson_val *type = ig_json_get(o, "rope_type");
    if (!type) type = ig_json_get(o, "type");
    if (!type && ig_json_get(o, "factor"))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: a rope factor without a rope type", h->path);
    if (!type || yyjson_equals_str(type, "default") || yyjson_equals_str(type, "none")) return IG_OK;
    if (!yyjson_equals_str(type, "linear"))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope type %s is not supported (default, linear)",
                       h->path, show(type).s);
    yyjson_val *v = ig_json_get(o, "factor");
    if (!v) return ig_fail(err, IG_EFORMAT, "%.200s/config.json: linear rope without a factor", h->path);
    return real_of(factor, h, "rope factor", v, factor_low, factor_high, err);
}

ig_status ig_hf_read_rope(double *base, double *factor, const ig_hf *h, const ig_hf_rope *kind, ig_err *err) {
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
    double partial = 1, from_own = 1, from_scaling = 1;
    ig_status st = real_of(base, h, kind->theta_key, ig_hf_get(h, kind->theta_key), base_low, base_high, err);
    if (!st) st = real_of(base, h, "rope_theta", ig_json_get(own, "rope_theta"), base_low, base_high, err);
    if (!st)
        st = real_of(&partial, h, "partial_rotary_factor of rope_parameters",
                     ig_json_get(own, "partial_rotary_factor"), 1, 1, err);
    if (!st) st = read_scaling(&from_own, h, own, err);
    if (!st) st = read_scaling(&from_scaling, h, scaling, err);
    if (st) return st;
    /* both generations side by side: readers differ in which one they believe, so they must agree */
    if (own && scaling && from_own != from_scaling)
        return ig_fail(err, IG_EFORMAT,
                       "%.200s/config.json: rope_scaling has a factor of %g and rope_parameters one of %g",
                       h->path, from_scaling, from_own);
    *factor = own ? from_own : from_scaling;
    return IG_OK;
}

/* ---- kinds of layers ----------------------------------------------------------------------------------- */

ig_status ig_hf_read_layers(ig_model_config *c, const ig_hf *h, int pattern, ig_err *err) {
    yyjson_val *types = ig_hf_get(h, "layer_types");
    for (int i = 0; i < c->n_layers; i++) c->windowed[i] = pattern && (i + 1) % pattern != 0;
    if (!types) return IG_OK;
    if (!yyjson_is_arr(types) || yyjson_arr_size(types) != (size_t)c->n_layers)
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: layer_types has %zu entries for %d layers",
                       h->path, yyjson_arr_size(types), c->n_layers);
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(types, i, n, v) {
        const bool windowed = yyjson_equals_str(v, "sliding_attention");
        if ((!windowed && !yyjson_equals_str(v, "full_attention")) || (windowed && !c->window))
            return ig_fail(err, IG_EFORMAT, "%.200s/config.json: layer_types[%zu] = %s is not supported",
                           h->path, i, show(v).s);
        c->windowed[i] = windowed;
    }
    return IG_OK;
}
