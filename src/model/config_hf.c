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

static ig_status real_of(double *out, const ig_hf *h, const char *key, yyjson_val *v, ig_err *err) {
    if (!v || ig_json_number(v, out)) return IG_OK;
    return ig_fail(err, IG_EFORMAT, "%.200s/config.json: %s = %s is not a number", h->path, key, show(v).s);
}

ig_status ig_hf_real(double *out, const ig_hf *h, const char *key, ig_err *err) {
    return real_of(out, h, key, ig_hf_get(h, key), err);
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

/* `o` is rope_scaling, or the rope_parameters of one kind of layers. */
static ig_status read_scaling(double *factor, const ig_hf *h, yyjson_val *o, ig_err *err) {
    yyjson_val *type = ig_json_get(o, "rope_type");
    if (!type) type = ig_json_get(o, "type");
    if (!type || yyjson_equals_str(type, "default") || yyjson_equals_str(type, "none")) return IG_OK;
    if (!yyjson_equals_str(type, "linear"))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope type %s is not supported (default, linear)",
                       h->path, show(type).s);
    yyjson_val *v = ig_json_get(o, "factor");
    if (!v) return ig_fail(err, IG_EFORMAT, "%.200s/config.json: linear rope without a factor", h->path);
    return real_of(factor, h, "rope factor", v, err);
}

ig_status ig_hf_read_rope(double *base, double *factor, const ig_hf *h, const ig_hf_rope *kind, ig_err *err) {
    yyjson_val *all = ig_hf_get(h, "rope_parameters"), *own = ig_json_get(all, kind->layers);
    const bool by_kind = ig_json_get(all, "full_attention") || ig_json_get(all, "sliding_attention");
    /* a flat one describes the layers whose rope can be scaled; the others have a key of their own */
    if (!by_kind && kind->scaled) own = all;
    if (own && !yyjson_is_obj(own))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope_parameters of %s are not an object",
                       h->path, kind->layers);
    ig_status st = real_of(base, h, kind->theta_key, ig_hf_get(h, kind->theta_key), err);
    if (!st) st = real_of(base, h, "rope_theta", ig_json_get(own, "rope_theta"), err);
    if (!st && own) {
        double partial = 1;
        st = real_of(&partial, h, "partial_rotary_factor", ig_json_get(own, "partial_rotary_factor"), err);
        if (!st && partial != 1)
            st = ig_fail(err, IG_EFORMAT, "%.200s/config.json: partial_rotary_factor = %g is not supported",
                         h->path, partial);
        return st ? st : read_scaling(factor, h, own, err);
    }
    if (st || !kind->scaled) return st;
    yyjson_val *scaling = ig_hf_get(h, "rope_scaling");
    if (scaling && !yyjson_is_obj(scaling))
        return ig_fail(err, IG_EFORMAT, "%.200s/config.json: rope_scaling = %s is not an object", h->path,
                       show(scaling).s);
    return read_scaling(factor, h, scaling, err);
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
