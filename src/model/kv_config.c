/* kv_config: which layers keep keys and values in affine groups, as mlx-optiq's kv_config.json says it: a list of
 *     {"layer_idx": 3, "bits": 4, "group_size": 64}
 * group_size may be absent; of two entries for a layer the later counts; other keys mean nothing. What the reference
 * would pass over or read in its own way, an entry for no layer or a number in a string, is refused here. */
#include "model/inside.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = 1 << 20, DEPTH_MAX = 128, ENTRIES_MAX = 4096, GROUP_UNSAID = 64 };

/* A whole number of an entry, lo .. hi; `unsaid` when it is absent and may be: 0, it may not. */
static ig_status whole(int *out, yyjson_val *entry, int i, const char *key, int lo, int hi, int unsaid, ig_err *err) {
    yyjson_val *v = ig_json_get(entry, key);
    *out = unsaid;
    if (!v && unsaid) return IG_OK;
    if (!v) return ig_fail(err, IG_EFORMAT, "entry %d has no %s", i, key);
    if (!yyjson_is_int(v))
        return ig_fail(err, IG_EFORMAT, "entry %d: %s is no whole number (%d..%d)", i, key, lo, hi);
    const bool above = yyjson_is_uint(v) && yyjson_get_uint(v) > INT32_MAX;
    const int64_t n = above ? INT64_MAX : yyjson_get_sint(v);
    if (n < lo || n > hi)
        return ig_fail(err, IG_EFORMAT, "entry %d: %s = %lld is outside %d..%d", i, key, (long long)n, lo, hi);
    *out = (int)n;
    return IG_OK;
}

static ig_status read_entry(ig_kv_config *c, yyjson_val *entry, int i, ig_err *err) {
    int layer, bits, group;
    if (!yyjson_is_obj(entry)) return ig_fail(err, IG_EFORMAT, "entry %d is no object", i);
    ig_status st = whole(&layer, entry, i, "layer_idx", 0, IG_LAYERS_MAX - 1, 0, err);
    if (!st) st = whole(&bits, entry, i, "bits", 2, 8, 0, err);
    if (!st) st = whole(&group, entry, i, "group_size", 32, 128, GROUP_UNSAID, err);
    if (st) return st;
    if (bits == 7) return ig_fail(err, IG_EFORMAT, "entry %d: bits = 7; 2, 3, 4, 5, 6 or 8 expected", i);
    if (group != 32 && group != 64 && group != 128)
        return ig_fail(err, IG_EFORMAT, "entry %d: group_size = %d; 32, 64 or 128 expected", i, group);
    c->bits[layer] = (uint8_t)bits, c->group[layer] = (uint8_t)group;
    if (layer >= c->n_layers) c->n_layers = layer + 1;
    return IG_OK;
}

ig_status ig_kv_config_parse(ig_kv_config *c, const char *text, size_t n, ig_err *err) {
    yyjson_doc *doc = NULL;
    yyjson_val *entry;
    size_t i, n_entries;
    *c = (ig_kv_config){.n_layers = 0};
    ig_status st = ig_json_parse(&doc, text, n, (ig_json_limits){BYTES_MAX, DEPTH_MAX}, err);
    if (st) return st;
    yyjson_val *list = yyjson_doc_get_root(doc);
    if (!yyjson_is_arr(list)) st = ig_fail(err, IG_EFORMAT, "a list of layers is expected");
    else if (yyjson_arr_size(list) > ENTRIES_MAX)
        st = ig_fail(err, IG_ELIMIT, "%zu entries, limit %d", yyjson_arr_size(list), ENTRIES_MAX);
    if (!st)
        yyjson_arr_foreach(list, i, n_entries, entry) {
            if ((st = read_entry(c, entry, (int)i, err)) != IG_OK) break;
        }
    yyjson_doc_free(doc);
    return st;
}

ig_status ig_kv_config_read(ig_kv_config *c, const char *path, ig_err *err) {
    char *text = NULL;
    size_t n = 0;
    ig_err why = {0};
    ig_status st = ig_file_slurp(&text, &n, path, BYTES_MAX, err);
    if (st) return st;
    st = ig_kv_config_parse(c, text, n, &why);
    free(text);
    return st ? ig_fail(err, st, "%s: %.300s", path, why.msg) : IG_OK;
}

ig_status ig_kv_config_check(const ig_kv_config *c, const ig_model_config *m, ig_err *err) {
    if (c->n_layers > m->n_layers)
        return ig_fail(err, IG_EINVAL, "kv_config: layer_idx = %d is outside 0..%d", c->n_layers - 1, m->n_layers - 1);
    if (c->n_layers > 0 && m->attention_softcap > 0.0f)
        return ig_fail(err, IG_EINVAL, "kv_config: scores with a cap (%g) over quantized keys have no reference",
                       (double)m->attention_softcap);
    for (int i = 0; i < c->n_layers; i++)
        if (c->bits[i] && m->head_dim % c->group[i] != 0)
            return ig_fail(err, IG_EINVAL, "kv_config: layer_idx = %d: group_size = %d does not divide heads of %d", i,
                           c->group[i], m->head_dim);
    return IG_OK;
}
