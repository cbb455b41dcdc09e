/* source: the tensors of a checkpoint, whatever holds them, as matrices of rows in a format of kern/.
 * Owns:    the marks of what was used. The files belong to the caller.
 * Threads: finding by one; reading by any number at once.
 * MLX keeps a quantized matrix in three tensors: X.weight (codes, u32), X.scales and X.biases. The shapes say
 * bits and group, as mlx-lm itself does; the map in config.json is only compared, because its paths are
 * known to be written with and without a prefix. A row is handed out as its codes, its scales, its biases. */
#include "model/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEFTOVERS_SHOWN = 20, COMPARE_BYTES = 64 * 1024, MAP_ENTRIES_MAX = 1 << 14 };

/* ---- names --------------------------------------------------------------------------------------------- */

/* Where the text model is: in wrappers, alone, bare. */
static const struct {
    const char *body, *outer;
} prefixes[] = {
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
    {"model.", ""},
    {"", ""}, /* the bare model, as embedding models are kept */
};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes, IN_A_WRAPPER = 2 /* those before it */ };

void ig_source_name(char out[static IG_TENSOR_NAME_BYTES], const ig_source *s, const ig_weight_spec *spec,
                    int layer) {
    const char *name = s->from.gguf ? spec->name : spec->hf, *before = "";
    if (s->from.snapshot) {
        const bool body = strncmp(name, "model.", 6) == 0;
        before = body ? s->body : s->outer;
        name += body ? 6 : 0;
    }
    const char *mark = strstr(name, "%d");
    if (mark)
        snprintf(out, IG_TENSOR_NAME_BYTES, "%s%.*s%d%s", before, (int)(mark - name), name, layer, mark + 2);
    else
        snprintf(out, IG_TENSOR_NAME_BYTES, "%s%s", before, name);
}

bool ig_source_has(const ig_source *s, const char *name) {
    return s->from.gguf ? ig_gguf_find(s->from.gguf, name) != NULL
                        : ig_snapshot_find(s->from.snapshot, name) != NULL;
}

uint64_t ig_source_n_rows(const ig_source *s, const char *name) {
    if (s->from.gguf) {
        const ig_gguf_tensor *t = ig_gguf_find(s->from.gguf, name);
        return t && t->n_dims == 2 ? t->dim[1] : 0;
    }
    const ig_safetensor *t = ig_snapshot_find(s->from.snapshot, name);
    return t && t->n_dims == 2 ? t->dim[0] : 0;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static ig_status take_quantization(ig_source *s, const ig_hf *h, ig_err *err) {
    yyjson_val *own = ig_hf_get(h, "quantization"), *other = ig_hf_get(h, "quantization_config");
    const char *method = yyjson_get_str(ig_json_get(other, "quant_method"));
    if (method) {
        char clean[40];
        size_t n = 0;
        for (; method[n] && n < sizeof clean - 1; n++)
            clean[n] = method[n] > 0x20 && method[n] < 0x7f ? method[n] : '?';
        clean[n] = 0;
        return ig_fail(err, IG_EFORMAT, "%s: weights quantized by %s are not supported (MLX affine ones are)",
                       s->path, clean);
    }
    s->quantization = own ? own : other;
    if (yyjson_obj_size(s->quantization) > MAP_ENTRIES_MAX)
        return ig_fail(err, IG_ELIMIT, "%s: the quantization map has %zu entries, limit %d", s->path,
                       yyjson_obj_size(s->quantization), MAP_ENTRIES_MAX);
    return IG_OK;
}

ig_status ig_source_open(ig_source *s, ig_checkpoint c, const ig_hf *h, ig_err *err) {
    ig_assert(!c.gguf != !c.snapshot);
    *s = (ig_source){.from = c, .body = "model.", .outer = ""};
    s->path = c.gguf ? ig_gguf_path(c.gguf) : ig_snapshot_path(c.snapshot);
    s->n_tensors = c.gguf ? ig_gguf_n_tensors(c.gguf) : ig_snapshot_n_tensors(c.snapshot);
    if (c.snapshot) {
        ig_status st = take_quantization(s, h, err);
        if (st) return st;
        for (int i = h->wrapper ? 0 : IN_A_WRAPPER; i < N_PREFIXES; i++) {
            char name[IG_TENSOR_NAME_BYTES];
            snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i].body);
            if (!ig_source_has(s, name)) continue;
            s->body = prefixes[i].body, s->outer = prefixes[i].outer;
            break;
        }
    }
    s->used = calloc((size_t)s->n_tensors + 1, sizeof *s->used);
    return s->used ? IG_OK : ig_fail(err, IG_ELIMIT, "no memory for the marks of %d tensors", s->n_tensors);
}

void ig_source_close(ig_source *s) {
    free(s->used);
    s->used = NULL;
}

/* ---- finding: GGUF ------------------------------------------------------------------------------------- */

/* The block types we read, by their names in GGUF. */
static void list_formats(char *out, size_t cap) {
    const ig_fmt *f;
    size_t n = 0;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL && n < cap; i++)
        if (f->gguf_type >= 0)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "",
                                  ig_gguf_type_of((uint32_t)f->gguf_type)->name);
}

static ig_status find_gguf(ig_source_tensor *out, ig_source *s, const char *name, int rows, int cols,
                           ig_err *err) {
    const ig_gguf_tensor *t = ig_gguf_find(s->from.gguf, name);
    if (!t) return ig_fail(err, IG_EFORMAT, "%s: tensor %s is missing", s->path, name);
    if (t->dim[0] != (uint64_t)cols || t->dim[1] != (uint64_t)rows || t->dim[2] != 1 || t->dim[3] != 1)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %s is [%llu, %llu, %llu, %llu], expected [%d, %d]",
                       s->path, name, (unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
                       (unsigned long long)t->dim[2], (unsigned long long)t->dim[3], cols, rows);
    const ig_fmt *f = ig_fmt_of_gguf(t->type);
    const ig_gguf_type *type = ig_gguf_type_of(t->type);
    if (!f) {
        char known[200] = "";
        list_formats(known, sizeof known);
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %s has block type %s, which is not supported (supported: %s)", s->path,
                       name, type ? type->name : "?", known);
    }
    s->used[t - ig_gguf_tensor_at(s->from.gguf, 0)] = true;
    *out = (ig_source_tensor){
        .name = t->name, .fmt = f, .n_rows = rows, .n_cols = cols, .n_bytes = t->n_bytes, .gguf = t};
    return IG_OK;
}

/* ---- finding: safetensors ------------------------------------------------------------------------------ */

typedef struct shape_text {
    char s[96];
} shape_text;

static shape_text shape_of(const ig_safetensor *t) {
    shape_text out;
    size_t n = (size_t)snprintf(out.s, sizeof out.s, "[");
    for (int d = 0; d < t->n_dims && n < sizeof out.s; d++)
        n += (size_t)snprintf(out.s + n, sizeof out.s - n, "%s%llu", d ? ", " : "",
                              (unsigned long long)t->dim[d]);
    if (n < sizeof out.s) snprintf(out.s + n, sizeof out.s - n, "]");
    return out;
}

static const ig_fmt *fmt_of_dtype(ig_dtype d) {
    static const struct {
        ig_dtype dtype;
        const char *fmt;
    } same[] = {{IG_DTYPE_F32, "f32"}, {IG_DTYPE_F16, "f16"}, {IG_DTYPE_BF16, "bf16"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        for (int k = 0; same[i].dtype == d && ig_fmt_at(k); k++)
            if (strcmp(ig_fmt_at(k)->name, same[i].fmt) == 0) return ig_fmt_at(k);
    return NULL;
}

/* What the map says about a module: *is_out false, or bits and group (0: it does not say). */
typedef struct map_entry {
    bool is_off;
    int bits, group;
    const char *mode; /* NULL: affine */
} map_entry;

static map_entry map_of(const ig_source *s, const char *module) {
    static const char prefix[] = "language_model.";
    map_entry e = {0};
    yyjson_val *own = ig_json_get(s->quantization, module);
    if (!own && strncmp(module, prefix, sizeof prefix - 1) == 0)
        own = ig_json_get(s->quantization, module + sizeof prefix - 1);
    if (!own) {
        char longer[sizeof prefix + IG_TENSOR_NAME_BYTES];
        snprintf(longer, sizeof longer, "%s%s", prefix, module);
        own = ig_json_get(s->quantization, longer);
    }
    e.is_off = yyjson_is_false(own);
    const char *const keys[] = {"bits", "group_size"};
    int *const to[] = {&e.bits, &e.group};
    for (int i = 0; i < 2; i++) {
        yyjson_val *v = ig_json_get(own, keys[i]);
        if (!v) v = ig_json_get(s->quantization, keys[i]);
        if (yyjson_is_int(v)) *to[i] = yyjson_get_int(v);
    }
    yyjson_val *mode = ig_json_get(own, "mode");
    if (!mode) mode = ig_json_get(s->quantization, "mode");
    e.mode = yyjson_get_str(mode);
    return e;
}

static const ig_safetensor *find_part(ig_source *s, const char *module, const char *part) {
    char name[IG_TENSOR_NAME_BYTES + 16];
    snprintf(name, sizeof name, "%s.%s", module, part);
    const ig_safetensor *t = ig_snapshot_find(s->from.snapshot, name);
    if (t) s->used[ig_snapshot_place(s->from.snapshot, t)] = true;
    return t;
}

static ig_status check_affine_shapes(const ig_source *s, const ig_source_tensor *t, ig_err *err) {
    const ig_safetensor *w = t->part[0], *scales = t->part[1], *biases = t->part[2];
    if (biases->dtype != scales->dtype || !fmt_of_dtype(scales->dtype))
        return ig_fail(err, IG_EFORMAT,
                       "%s: scales and biases of %.*s are %s and %s; two of F32, F16, BF16 expected", s->path,
                       (int)t->name.n, t->name.p, ig_dtype_name(scales->dtype), ig_dtype_name(biases->dtype));
    const uint64_t rows = (uint64_t)t->n_rows, cols = (uint64_t)t->n_cols, groups = scales->dim[1];
    const bool fits = w->n_dims == 2 && scales->n_dims == 2 && biases->n_dims == 2 && w->dim[0] == rows &&
                      scales->dim[0] == rows && biases->dim[0] == rows && biases->dim[1] == groups &&
                      groups > 0 && cols % groups == 0 && w->dim[1] > 0 && w->dim[1] * 32 % cols == 0;
    if (!fits)
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %.*s is %s with scales %s and biases %s, expected [%d, %d]", s->path,
                       (int)t->name.n, t->name.p, shape_of(w).s, shape_of(scales).s, shape_of(biases).s,
                       t->n_rows, t->n_cols);
    return IG_OK;
}

static ig_status find_affine(ig_source_tensor *t, ig_source *s, const char *module, ig_err *err) {
    const map_entry map = map_of(s, module);
    t->part[1] = find_part(s, module, "scales");
    t->part[2] = find_part(s, module, "biases");
    if (!t->part[1])
        return ig_fail(err, IG_EFORMAT, "%s: %s.weight is U32, and %s.scales is missing", s->path, module,
                       module);
    if (!t->part[2] || t->part[1]->dtype == IG_DTYPE_U8 || (map.mode && strcmp(map.mode, "affine") != 0))
        return ig_fail(err, IG_EFORMAT, "%s: %s is quantized in a mode other than affine%s", s->path, module,
                       t->part[2] ? "" : " (it has no biases: mxfp4, nvfp4, mxfp8)");
    ig_status st = check_affine_shapes(s, t, err);
    if (st) return st;
    const uint64_t bits = t->part[0]->dim[1] * 32 / (uint64_t)t->n_cols;
    const int group = t->n_cols / (int)t->part[1]->dim[1];
    t->fmt = bits <= 8 ? ig_fmt_of_affine((int)bits, group, t->part[1]->dtype != IG_DTYPE_BF16) : NULL;
    if (!t->fmt)
        return ig_fail(err, IG_EFORMAT,
                       "%s: %s is quantized to %llu bits in groups of %d, which is not supported", s->path,
                       module, (unsigned long long)bits, group);
    if (s->quantization && (map.is_off || map.bits != (int)bits || map.group != group) && s->n_strange++ == 0)
        ig_log(IG_LOG_WARN, "model.quantization module=%s map=%d/%d shapes=%llu/%d taken=shapes", module,
               map.is_off ? 0 : map.bits, map.is_off ? 0 : map.group, (unsigned long long)bits, group);
    return IG_OK;
}

static ig_status find_hf(ig_source_tensor *out, ig_source *s, const char *name, bool vector, int rows,
                         int cols, ig_err *err) {
    const ig_safetensor *t = ig_snapshot_find(s->from.snapshot, name);
    if (!t) return ig_fail(err, IG_EFORMAT, "%s: tensor %s is missing", s->path, name);
    s->used[ig_snapshot_place(s->from.snapshot, t)] = true;
    ig_source_tensor found = {.name = t->name, .n_rows = rows, .n_cols = cols, .part = {t}};
    const char *dot = strrchr(name, '.');
    if (!vector && t->dtype == IG_DTYPE_U32 && dot && strcmp(dot, ".weight") == 0) {
        char module[IG_TENSOR_NAME_BYTES];
        snprintf(module, sizeof module, "%.*s", (int)(dot - name), name);
        ig_status st = find_affine(&found, s, module, err);
        if (st) return st;
    } else {
        const bool fits = vector
                              ? t->n_dims == 1 && t->dim[0] == (uint64_t)cols
                              : t->n_dims == 2 && t->dim[0] == (uint64_t)rows && t->dim[1] == (uint64_t)cols;
        if (!fits && vector)
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s is %s, expected [%d]", s->path, name,
                           shape_of(t).s, cols);
        if (!fits)
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s is %s, expected [%d, %d]", s->path, name,
                           shape_of(t).s, rows, cols);
        found.fmt = fmt_of_dtype(t->dtype);
        if (!found.fmt)
            return ig_fail(err, IG_EFORMAT,
                           "%s: tensor %s is %s, which is not supported (F32, F16, BF16, MLX affine)",
                           s->path, name, ig_dtype_name(t->dtype));
    }
    found.n_bytes = (uint64_t)ig_fmt_row_bytes(found.fmt, cols) * (uint64_t)rows;
    *out = found;
    return IG_OK;
}

ig_status ig_source_find(ig_source_tensor *out, ig_source *s, const char *name, bool vector, int rows,
                         int cols, ig_err *err) {
    if (vector) rows = 1;
    return s->from.gguf ? find_gguf(out, s, name, rows, cols, err)
                        : find_hf(out, s, name, vector, rows, cols, err);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void put_scales(uint8_t *out, const uint8_t *in, ig_dtype dtype, uint64_t n) {
    if (dtype != IG_DTYPE_F16) {
        memcpy(out, in, (size_t)n * (size_t)ig_dtype_bytes(dtype));
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, in + 2 * i, 2);
        float f = ig_f16_to_f32(h);
        memcpy(out + 4 * i, &f, 4);
    }
}

static ig_status read_affine(const ig_source_tensor *t, int row, int n, uint8_t *out, uint8_t *scratch,
                             ig_err *err) {
    const size_t row_bytes = ig_fmt_row_bytes(t->fmt, t->n_cols);
    size_t at = 0; /* in a row of out */
    for (int p = 0; p < 3; p++) {
        const ig_safetensor *part = t->part[p];
        const size_t bytes = (size_t)part->dim[1] * (size_t)ig_dtype_bytes(part->dtype);
        ig_status st = ig_safetensor_read(part, (uint64_t)row * bytes, scratch, (size_t)n * bytes, err);
        if (st) return st;
        for (int r = 0; r < n; r++)
            put_scales(out + (size_t)r * row_bytes + at, scratch + (size_t)r * bytes, part->dtype,
                       part->dim[1]);
        at += part->dtype == IG_DTYPE_F16 ? 2 * bytes : bytes;
    }
    ig_assert(at == row_bytes);
    return IG_OK;
}

ig_status ig_source_read(const ig_source *s, const ig_source_tensor *t, int row, int n, void *out,
                         void *scratch, ig_err *err) {
    const size_t row_bytes = ig_fmt_row_bytes(t->fmt, t->n_cols);
    ig_assert(row >= 0 && n >= 0 && row <= t->n_rows - n);
    if (t->gguf)
        return ig_gguf_read(s->from.gguf, t->gguf, (uint64_t)row * row_bytes, out, (size_t)n * row_bytes,
                            err);
    if (t->part[1]) return read_affine(t, row, n, out, scratch, err);
    return ig_safetensor_read(t->part[0], (uint64_t)row * row_bytes, out, (size_t)n * row_bytes, err);
}

/* ---- what is left over --------------------------------------------------------------------------------- */

/* Does a pattern with at most one * cover the name? */
static bool covers(const char *pattern, ig_slice name) {
    const char *star = strchr(pattern, '*');
    const size_t n = strlen(pattern), head = star ? (size_t)(star - pattern) : n,
                 tail = star ? n - head - 1 : 0;
    return (star ? name.n >= head + tail : name.n == n) && memcmp(name.p, pattern, head) == 0 &&
           memcmp(name.p + name.n - tail, pattern + n - tail, tail) == 0;
}

/* A head that the settings call tied is not read; one that differs from the embedding is worth a word. */
static void compare_head(const ig_source *s) {
    char name[2][IG_TENSOR_NAME_BYTES];
    snprintf(name[0], sizeof name[0], "%slm_head.weight", s->outer);
    snprintf(name[1], sizeof name[1], "%sembed_tokens.weight", s->body);
    const ig_safetensor *head = ig_snapshot_find(s->from.snapshot, name[0]),
                        *embed = ig_snapshot_find(s->from.snapshot, name[1]);
    if (!head || !embed) return;
    bool same = head->dtype == embed->dtype && head->n_bytes == embed->n_bytes;
    uint8_t *buffer = malloc((size_t)2 * COMPARE_BYTES);
    for (uint64_t at = 0; same && buffer && at < head->n_bytes; at += COMPARE_BYTES) {
        const size_t n = head->n_bytes - at < COMPARE_BYTES ? (size_t)(head->n_bytes - at) : COMPARE_BYTES;
        same = ig_safetensor_read(head, at, buffer, n, NULL) == IG_OK &&
               ig_safetensor_read(embed, at, buffer + COMPARE_BYTES, n, NULL) == IG_OK &&
               memcmp(buffer, buffer + COMPARE_BYTES, n) == 0;
    }
    free(buffer);
    if (!same) ig_log(IG_LOG_WARN, "model.head tensor=%s tied=1 differs=embedding taken=embedding", name[0]);
}

static bool is_dropped(const ig_source *s, const ig_family *f, bool tied_head, ig_slice name) {
    static const char *const head[] = {"lm_head.weight", "lm_head.scales", "lm_head.biases"};
    if (!s->from.snapshot) return false;
    for (const char *const *p = f->hf_drop; p && *p; p++)
        if (covers(*p, name)) return true;
    const size_t n = strlen(s->outer);
    for (size_t i = 0; tied_head && i < sizeof head / sizeof *head; i++)
        if (name.n == n + strlen(head[i]) && memcmp(name.p, s->outer, n) == 0 &&
            memcmp(name.p + n, head[i], name.n - n) == 0)
            return true;
    return false;
}

ig_status ig_source_check_used(const ig_source *s, const ig_family *f, bool tied_head, ig_err *err) {
    char names[320];
    size_t n = 0;
    int count = 0;
    for (int i = 0; i < s->n_tensors; i++) {
        if (s->used[i]) continue;
        const ig_slice name = s->from.gguf ? ig_gguf_tensor_at(s->from.gguf, i)->name
                                           : ig_snapshot_tensor_at(s->from.snapshot, i)->name;
        if (is_dropped(s, f, tied_head, name)) continue;
        if (count++ < LEFTOVERS_SHOWN && n + name.n + 3 < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%.*s", n ? ", " : "", (int)name.n, name.p);
    }
    if (count > 0)
        return ig_fail(err, IG_EFORMAT, "%s: %d tensors are not part of the %s family: %s", s->path, count,
                       f->name, n ? names : "(long names)");
    if (s->n_strange > 1)
        ig_log(IG_LOG_WARN, "model.quantization modules=%d map=disagrees taken=shapes", s->n_strange);
    if (s->from.snapshot && tied_head) compare_head(s);
    return IG_OK;
}
