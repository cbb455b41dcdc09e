/* source: the tensors of a checkpoint, whatever holds them, as matrices of rows in a format of kern/.
 * Owns:    the marks of what was used. The files belong to the caller.
 * Threads: finding by one; reading by any number at once.
 * MLX keeps a quantized matrix in several tensors: X.weight (codes, u32), X.scales, and X.biases in affine mode;
 * NVFP4 may have X.global_scale. The shapes say bits and group, their types the mode, as mlx-lm itself infers
 * them; the map in config.json is only compared, because its paths are known to be written with and without a
 * prefix. A row is handed out as its codes, its scales, its biases. */
#include "model/inside.h"

#include <math.h>
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

/* Methods of others, in whatever key they write. */
static ig_status refuse_method(const ig_source *s, yyjson_val *map, ig_err *err) {
    static const char *const switches[][2] = {{"load_in_4bit", "bitsandbytes"}, {"load_in_8bit", "bitsandbytes"}};
    const char *method = yyjson_get_str(ig_json_get(map, "quant_method"));
    if (!method) method = yyjson_get_str(ig_json_get(map, "quant_algo")); /* ModelOpt */
    for (size_t i = 0; i < sizeof switches / sizeof *switches && !method; i++)
        if (yyjson_is_true(ig_json_get(map, switches[i][0]))) method = switches[i][1];
    if (!method) return IG_OK;
    char clean[40];
    size_t n = 0;
    for (; method[n] && n < sizeof clean - 1; n++)
        clean[n] = method[n] > 0x20 && method[n] < 0x7f ? method[n] : '?';
    clean[n] = 0;
    return ig_fail(err, IG_EFORMAT,
                   "%s: weights quantized by %s are not read. Take the model's original weights, or the model as "
                   "GGUF or in a format of MLX",
                   s->path, clean);
}

/* `quantization` is MLX's own key and wins, as it does in mlx-lm; writers of MLX mirror it in
 * `quantization_config`, which is where others have theirs. */
static ig_status take_quantization(ig_source *s, const ig_hf *h, ig_err *err) {
    static const char *const keys[] = {"quantization", "quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        yyjson_val *v = ig_hf_get(h, keys[i]);
        if (!v) v = ig_json_get(h->root, keys[i]);
        if (!v) continue;
        if (!yyjson_is_obj(v))
            return ig_fail(err, IG_EFORMAT, "%s/config.json: %s is not an object", s->path, keys[i]);
        if (yyjson_obj_size(v) > MAP_ENTRIES_MAX)
            return ig_fail(err, IG_ELIMIT, "%s: the quantization map has %zu entries, limit %d", s->path,
                           yyjson_obj_size(v), MAP_ENTRIES_MAX);
        ig_status st = refuse_method(s, v, err);
        if (st) return st;
        s->quantization = v;
        return IG_OK;
    }
    /* ModelOpt writes a document of its own */
    yyjson_doc *doc = NULL;
    if (ig_snapshot_json(&doc, s->from.snapshot, "hf_quant_config.json", NULL) != IG_OK) return IG_OK;
    ig_status st = refuse_method(s, ig_json_get(yyjson_doc_get_root(doc), "quantization"), err);
    yyjson_doc_free(doc);
    return st;
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

static const struct {
    const char *name;
    ig_mlx_mode mode;
    int bits, group; /* what tells the modes with u8 scales apart */
} modes[] = {{"affine", IG_MLX_AFFINE, 0, 0},
             {"mxfp4", IG_MLX_MXFP4, 4, 32},
             {"nvfp4", IG_MLX_NVFP4, 4, 16},
             {"mxfp8", IG_MLX_MXFP8, 8, 32}};
enum { N_MODES = sizeof modes / sizeof *modes };

static const char *mode_name(ig_mlx_mode mode) {
    return mode == IG_MLX_NONE ? "none" : modes[mode - 1].name;
}

/* What the map says about a module. */
typedef struct map_entry {
    bool is_own; /* by its path, not by what holds for all */
    bool is_off; /* false: not quantized */
    int bits, group; /* 0: it does not say */
    const char *mode; /* NULL: affine */
} map_entry;

/* The module's own entry, its path in any of the spellings of a prefix. `rest` is the path without one. */
static yyjson_val *own_entry(const ig_source *s, const char *module) {
    char name[IG_TENSOR_NAME_BYTES + 64];
    const size_t body = strlen(s->body), outer = strlen(s->outer);
    yyjson_val *own = ig_json_get(s->quantization, module);
    const bool in_body = strncmp(module, s->body, body) == 0;
    const char *rest = module + (in_body ? body : strncmp(module, s->outer, outer) == 0 ? outer : 0);
    for (int i = 0; i < N_PREFIXES && !own; i++) {
        snprintf(name, sizeof name, "%s%s", in_body ? prefixes[i].body : prefixes[i].outer, rest);
        own = ig_json_get(s->quantization, name);
    }
    return own ? own : ig_json_get(s->quantization, rest);
}

static map_entry map_of(const ig_source *s, const char *module) {
    yyjson_val *own = own_entry(s, module);
    map_entry e = {.is_off = yyjson_is_false(own), .is_own = yyjson_is_obj(own)};
    const char *const keys[] = {"bits", "group_size"};
    int *const to[] = {&e.bits, &e.group};
    for (int i = 0; i < 2; i++) {
        yyjson_val *v = ig_json_get(own, keys[i]);
        if (!v) v = ig_json_get(s->quantization, keys[i]);
        if (yyjson_is_int(v)) *to[i] = yyjson_get_int(v);
    }
    /* an entry of its own that names no mode is affine, whatever the others are */
    e.mode = yyjson_get_str(ig_json_get(e.is_own ? own : s->quantization, "mode"));
    return e;
}

static const ig_safetensor *find_part(const ig_source *s, const char *module, const char *part) {
    char name[IG_TENSOR_NAME_BYTES + 16];
    snprintf(name, sizeof name, "%s.%s", module, part);
    return ig_snapshot_find(s->from.snapshot, name);
}

/* Mode, bits and group as the tensors have them, and the format for that; NULL: none of ours. */
typedef struct mlx_kind {
    ig_mlx_mode mode; /* NONE: a mix that no mode has */
    uint64_t bits, group;
    const ig_fmt *fmt;
} mlx_kind;

static mlx_kind kind_of(const ig_safetensor *w, const ig_safetensor *scales, const ig_safetensor *biases,
                        bool tensor_scale, uint64_t cols) {
    mlx_kind k = {.bits = w->dim[1] * 32 / cols, .group = cols / scales->dim[1]};
    const bool u8 = scales->dtype == IG_DTYPE_U8;
    for (int i = 0; i < N_MODES; i++)
        if (u8 ? !biases && k.bits == (uint64_t)modes[i].bits && k.group == (uint64_t)modes[i].group
               : biases && modes[i].mode == IG_MLX_AFFINE)
            k.mode = modes[i].mode;
    const bool wide = u8 ? tensor_scale && k.mode == IG_MLX_NVFP4 : scales->dtype != IG_DTYPE_BF16;
    if (k.mode && k.bits <= 8 && k.group <= 128) k.fmt = ig_fmt_of_mlx(k.mode, (int)k.bits, (int)k.group, wide);
    return k;
}

/* Do codes, scales and biases belong to a matrix [rows][cols]? */
static bool mlx_shapes_fit(const ig_safetensor *const part[3], uint64_t rows, uint64_t cols) {
    const uint64_t groups = part[1]->dim[1];
    for (int i = 0; i < 3; i++)
        if (part[i] && (part[i]->n_dims != 2 || part[i]->dim[0] != rows || (i && part[i]->dim[1] != groups)))
            return false;
    const uint64_t words = part[0]->dim[1];
    return groups > 0 && cols % groups == 0 && words > 0 && words <= cols && words * 32 % cols == 0;
}

static ig_status check_mlx(const ig_source *s, const ig_source_tensor *t, ig_err *err) {
    const ig_safetensor *scales = t->part[1], *biases = t->part[2];
    const char *name = t->name.p;
    const int n = (int)t->name.n;
    if (!mlx_shapes_fit(t->part, (uint64_t)t->n_rows, (uint64_t)t->n_cols))
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %.*s is %s with scales %s and biases %s, expected [%d, %d]", s->path, n, name,
                       shape_of(t->part[0]).s, shape_of(scales).s, biases ? shape_of(biases).s : "none",
                       t->n_rows, t->n_cols);
    if (scales->dtype != IG_DTYPE_U8 && !fmt_of_dtype(scales->dtype))
        return ig_fail(err, IG_EFORMAT, "%s: the scales of %.*s are %s; U8, F32, F16 or BF16 expected", s->path, n,
                       name, ig_dtype_name(scales->dtype));
    if (biases && biases->dtype != scales->dtype)
        return ig_fail(err, IG_EFORMAT, "%s: the scales of %.*s are %s and its biases %s; twice the same expected",
                       s->path, n, name, ig_dtype_name(scales->dtype), ig_dtype_name(biases->dtype));
    if (!biases && scales->dtype != IG_DTYPE_U8)
        return ig_fail(err, IG_EFORMAT, "%s: %.*s has %s scales and no biases", s->path, n, name,
                       ig_dtype_name(scales->dtype));
    return IG_OK;
}

/* The scale of a whole NVFP4 tensor: its largest value, which stands for 448 * 6. */
static ig_status take_tensor_scale(ig_source_tensor *t, const ig_source *s, const ig_safetensor *v, ig_err *err) {
    float x = 0;
    if (v->dtype != IG_DTYPE_F32 || v->n_bytes != sizeof x)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %.*s is %s %s, one F32 expected", s->path, (int)v->name.n,
                       v->name.p, ig_dtype_name(v->dtype), shape_of(v).s);
    ig_status st = ig_safetensor_read(v, 0, &x, sizeof x, err);
    if (st) return st;
    if (!(x > 0.0f && isfinite(x)))
        return ig_fail(err, IG_EFORMAT, "%s: tensor %.*s is %g; a number above 0 expected", s->path,
                       (int)v->name.n, v->name.p, (double)x);
    t->tensor_scale = x / 2688.0f;
    return IG_OK;
}

/* Shapes win over the map; the first that differs is told, the others are counted. */
static void compare_map(ig_source *s, const char *module, const mlx_kind *k) {
    const map_entry map = map_of(s, module);
    const char *mode = map.mode ? map.mode : "affine";
    if (!s->quantization) return;
    if (!map.is_off && map.bits == (int)k->bits && map.group == (int)k->group &&
        strcmp(mode, mode_name(k->mode)) == 0)
        return;
    if (s->n_strange++ > 0) return;
    if (map.is_off)
        ig_log(IG_LOG_WARN, "model.quantization module=%s map=false shapes=%s/%llu/%llu taken=shapes", module,
               mode_name(k->mode), (unsigned long long)k->bits, (unsigned long long)k->group);
    else
        ig_log(IG_LOG_WARN, "model.quantization module=%s map=%.16s/%d/%d shapes=%s/%llu/%llu taken=shapes", module,
               mode, map.bits, map.group, mode_name(k->mode), (unsigned long long)k->bits,
               (unsigned long long)k->group);
}

static ig_status find_mlx(ig_source_tensor *t, ig_source *s, const char *module, ig_err *err) {
    static const char *const parts[] = {"weight", "scales", "biases", "global_scale"};
    const ig_safetensor *tensor_scale = find_part(s, module, parts[3]);
    for (int i = 1; i < 4; i++) {
        const ig_safetensor *p = find_part(s, module, parts[i]);
        if (i < 3) t->part[i] = p;
        if (p) s->used[ig_snapshot_place(s->from.snapshot, p)] = true;
    }
    if (!t->part[1])
        return ig_fail(err, IG_EFORMAT, "%s: %s.weight is U32, and %s.scales is missing", s->path, module,
                       module);
    ig_status st = check_mlx(s, t, err);
    if (st) return st;
    const mlx_kind k =
        kind_of(t->part[0], t->part[1], t->part[2], tensor_scale != NULL, (uint64_t)t->n_cols);
    if (!k.fmt)
        return ig_fail(err, IG_EFORMAT,
                       "%s: %s is quantized to %llu bits in groups of %llu (%s), which is not supported: affine of "
                       "2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128, mxfp4, nvfp4 and mxfp8 are",
                       s->path, module, (unsigned long long)k.bits, (unsigned long long)k.group,
                       t->part[2] ? "affine" : "u8 scales");
    if (t->n_cols % k.fmt->group)
        return ig_fail(err, IG_EFORMAT, "%s: %s has %d inputs in %s, a multiple of %d expected", s->path, module,
                       t->n_cols, mode_name(k.mode), k.fmt->group);
    if (tensor_scale && k.mode != IG_MLX_NVFP4)
        return ig_fail(err, IG_EFORMAT, "%s: %s has a global_scale, which %s does not know", s->path, module,
                       mode_name(k.mode));
    if (tensor_scale && (st = take_tensor_scale(t, s, tensor_scale, err))) return st;
    t->fmt = k.fmt;
    compare_map(s, module, &k);
    return IG_OK;
}

/* A tensor that is missing, in the words of who wrote the checkpoint. */
static ig_status refuse_missing(const ig_source *s, const char *name, ig_err *err) {
    static const struct {
        const char *part, *method;
    } marks[] = {{"qweight", "AWQ or GPTQ"}, {"weight_packed", "compressed-tensors"}, {"weight_blocks", "MXFP4 of OpenAI"}};
    const char *dot = strrchr(name, '.');
    char module[IG_TENSOR_NAME_BYTES];
    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : 0, name);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (find_part(s, module, marks[i].part))
            return ig_fail(err, IG_EFORMAT,
                           "%s: %s is there as %s.%s: weights quantized by %s are not read. Take the model's "
                           "original weights, or the model as GGUF or in a format of MLX",
                           s->path, name, module, marks[i].part, marks[i].method);
    return ig_fail(err, IG_EFORMAT, "%s: tensor %s is missing", s->path, name);
}

ig_status ig_source_number(const ig_fmt **out, const ig_source *s, const char *name, ig_err *err) {
    *out = &ig_fmt_bf16;
    if (s->from.gguf) return IG_OK;
    const ig_safetensor *t = ig_snapshot_find(s->from.snapshot, name);
    if (!t) return ig_fail(err, IG_EFORMAT, "%s: tensor %s is missing", s->path, name);
    if (t->dtype == IG_DTYPE_F16) *out = &ig_fmt_f16;
    if (t->dtype == IG_DTYPE_F16 || t->dtype == IG_DTYPE_BF16) return IG_OK;
    return ig_fail(err, IG_EINVAL, "%s: %s is %s, and --l1 is for checkpoints in BF16 or F16", s->path, name,
                   ig_dtype_name(t->dtype));
}

ig_status ig_source_check_number(const ig_source *s, const ig_source_tensor *t, const ig_fmt *number, ig_err *err) {
    if (s->from.gguf) return IG_OK;
    const ig_dtype want = number == &ig_fmt_f16 ? IG_DTYPE_F16 : IG_DTYPE_BF16;
    const ig_safetensor *p = t->fmt->mlx ? t->part[1] : t->part[0];
    const bool u8 = t->fmt->mlx && t->fmt->mlx != IG_MLX_AFFINE;
    if (u8 && number == &ig_fmt_f16)
        return ig_fail(err, IG_EINVAL, "%s: %.*s is %s in a model of F16, of which mlx-lm makes F32; --l1 is for BF16 there",
                       s->path, (int)t->name.n, t->name.p, t->fmt->name);
    if (u8 && t->tensor_scale != 0.0f)
        return ig_fail(err, IG_EINVAL, "%s: %.*s has a scale of its whole tensor, which --l1 has no reference for", s->path,
                       (int)t->name.n, t->name.p);
    if (u8 || p->dtype == want) return IG_OK;
    return ig_fail(err, IG_EINVAL, "%s: %.*s is %s in a model of %s; --l1 is for checkpoints of one type", s->path,
                   (int)p->name.n, p->name.p, ig_dtype_name(p->dtype), ig_dtype_name(want));
}

static ig_status find_hf(ig_source_tensor *out, ig_source *s, const char *name, bool vector, int rows,
                         int cols, ig_err *err) {
    const ig_safetensor *t = ig_snapshot_find(s->from.snapshot, name);
    if (!t) return refuse_missing(s, name, err);
    s->used[ig_snapshot_place(s->from.snapshot, t)] = true;
    ig_source_tensor found = {.name = t->name, .n_rows = rows, .n_cols = cols, .part = {t}};
    const char *dot = strrchr(name, '.');
    char module[IG_TENSOR_NAME_BYTES] = "";
    if (!vector && dot && strcmp(dot, ".weight") == 0)
        snprintf(module, sizeof module, "%.*s", (int)(dot - name), name);
    if (module[0] && t->dtype == IG_DTYPE_U32) {
        ig_status st = find_mlx(&found, s, module, err);
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
                           "%s: tensor %s is %s, which is not read: F32, F16, BF16 and the formats of MLX are. Convert "
                           "the model to BF16 first, or take it as GGUF",
                           s->path, name, ig_dtype_name(t->dtype));
        /* a module is quantized when its scales are there, whatever the map says of it */
        if (module[0] && map_of(s, module).is_own && s->n_strange++ == 0)
            ig_log(IG_LOG_WARN, "model.quantization module=%s map=quantized tensor=%s taken=tensor", module,
                   ig_dtype_name(t->dtype));
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

/* One row of a part as the format has it: f16 as f32, E4M3 scales times that of the tensor as f32. */
static size_t put_part(uint8_t *out, const uint8_t *in, const ig_source_tensor *t, const ig_safetensor *part) {
    const uint64_t n = part->dim[1];
    const bool is_scale = part != t->part[0];
    if (!is_scale || !t->fmt->f32_scales || part->dtype == IG_DTYPE_F32) {
        const size_t bytes = (size_t)n * (size_t)ig_dtype_bytes(part->dtype);
        memcpy(out, in, bytes);
        return bytes;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h = 0;
        if (part->dtype == IG_DTYPE_F16) memcpy(&h, in + 2 * i, 2);
        const float f = part->dtype == IG_DTYPE_F16 ? ig_f16_to_f32(h) : ig_e4m3_to_f32(in[i]) * t->tensor_scale;
        memcpy(out + 4 * i, &f, 4);
    }
    return (size_t)n * 4;
}

/* NaN among small floats: in scales 2^255 or E4M3's, in MXFP8 codes E4M3's. No quantizer writes one. */
static bool holds_nan(const uint8_t *p, size_t n, const ig_source_tensor *t, int part) {
    const bool e4m3 = t->fmt->mlx == IG_MLX_NVFP4 || part == 0;
    bool found = false;
    if (t->fmt->mlx == IG_MLX_AFFINE || (part == 0 && t->fmt->mlx != IG_MLX_MXFP8)) return false;
    for (size_t i = 0; i < n; i++) found |= e4m3 ? (p[i] & 0x7f) == 0x7f : p[i] == 0xff;
    return found;
}

static ig_status read_mlx(const ig_source_tensor *t, int row, int n, uint8_t *out, uint8_t *scratch,
                          ig_err *err) {
    const size_t row_bytes = ig_fmt_row_bytes(t->fmt, t->n_cols);
    size_t at = 0; /* in a row of out */
    for (int p = 0; p < 3 && t->part[p]; p++) {
        const ig_safetensor *part = t->part[p];
        const size_t bytes = (size_t)part->dim[1] * (size_t)ig_dtype_bytes(part->dtype);
        size_t put = 0;
        ig_status st = ig_safetensor_read(part, (uint64_t)row * bytes, scratch, (size_t)n * bytes, err);
        if (st) return st;
        if (holds_nan(scratch, (size_t)n * bytes, t, p))
            return ig_fail(err, IG_EFORMAT, "%s: tensor %.*s holds a NaN in rows %d to %d",
                           ig_safetensors_path(part->file), (int)part->name.n, part->name.p, row, row + n - 1);
        for (int r = 0; r < n; r++)
            put = put_part(out + (size_t)r * row_bytes + at, scratch + (size_t)r * bytes, t, part);
        at += put;
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
    if (t->part[1]) return read_mlx(t, row, n, out, scratch, err);
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

static bool same_bytes(const ig_safetensor *a, const ig_safetensor *b) {
    if (!a || !b) return !a && !b;
    bool same = a->dtype == b->dtype && a->n_bytes == b->n_bytes;
    uint8_t *buffer = malloc((size_t)2 * COMPARE_BYTES);
    for (uint64_t at = 0; same && buffer && at < a->n_bytes; at += COMPARE_BYTES) {
        const size_t n = a->n_bytes - at < COMPARE_BYTES ? (size_t)(a->n_bytes - at) : COMPARE_BYTES;
        same = ig_safetensor_read(a, at, buffer, n, NULL) == IG_OK &&
               ig_safetensor_read(b, at, buffer + COMPARE_BYTES, n, NULL) == IG_OK &&
               memcmp(buffer, buffer + COMPARE_BYTES, n) == 0;
    }
    free(buffer);
    return same;
}

/* A head that the settings call tied is not read; one that differs from the embedding is worth a word. */
static void compare_head(const ig_source *s) {
    static const char *const parts[] = {"weight", "scales", "biases"};
    char head[IG_TENSOR_NAME_BYTES], embed[IG_TENSOR_NAME_BYTES];
    snprintf(head, sizeof head, "%slm_head", s->outer);
    snprintf(embed, sizeof embed, "%sembed_tokens", s->body);
    if (!find_part(s, head, parts[0])) return;
    bool same = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && same; i++)
        same = same_bytes(find_part(s, head, parts[i]), find_part(s, embed, parts[i]));
    if (!same)
        ig_log(IG_LOG_WARN, "model.head tensor=%s.weight tied=1 differs=embedding taken=embedding", head);
}

static bool is_dropped(const ig_source *s, const ig_family *f, bool tied_head, ig_slice name) {
    static const char *const head[] = {"lm_head.weight", "lm_head.scales", "lm_head.biases", "lm_head.global_scale"};
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

/* ---- for those who show a folder ----------------------------------------------------------------------- */

const char *ig_model_format_of(const ig_snapshot *snapshot, const ig_safetensor *t, bool *is_part) {
    static const char *const ends[] = {".weight", ".scales", ".biases", ".global_scale"};
    const ig_source s = {.from = {.snapshot = snapshot},
                         .body = "model.",
                         .outer = "",
                         .quantization = ig_json_get(ig_snapshot_config(snapshot), "quantization")};
    char module[IG_TENSOR_NAME_BYTES];
    *is_part = false;
    for (int i = 0; i < 4; i++) {
        const size_t n = strlen(ends[i]);
        if (t->name.n <= n || t->name.n - n >= sizeof module) continue;
        if (memcmp(t->name.p + t->name.n - n, ends[i], n) != 0) continue;
        snprintf(module, sizeof module, "%.*s", (int)(t->name.n - n), t->name.p);
        const ig_safetensor *w = find_part(&s, module, "weight"), *scales = find_part(&s, module, "scales");
        if (!w || !scales || w->dtype != IG_DTYPE_U32 || w->n_dims != 2 || scales->n_dims != 2) break;
        /* the shapes give bits * group; the map splits it, and the only split for u8 scales is the mode's */
        const map_entry map = map_of(&s, module);
        const bool u8 = scales->dtype == IG_DTYPE_U8;
        for (int k = u8 ? 1 : 0; k < (u8 ? N_MODES : 1) && scales->dim[1]; k++) {
            const uint64_t bits = (uint64_t)(u8 ? modes[k].bits : map.bits), cols = bits ? w->dim[1] * 32 / bits : 0;
            const ig_safetensor *const part[3] = {w, scales, find_part(&s, module, "biases")};
            if (bits < 1 || bits > 8 || !cols || !mlx_shapes_fit(part, w->dim[0], cols)) continue;
            const mlx_kind kind =
                kind_of(w, scales, part[2], find_part(&s, module, "global_scale") != NULL, cols);
            if (!kind.fmt || kind.mode != modes[k].mode || (!u8 && kind.group != (uint64_t)map.group)) continue;
            *is_part = i > 0;
            return kind.fmt->name;
        }
        break;
    }
    return ig_dtype_name(t->dtype);
}
