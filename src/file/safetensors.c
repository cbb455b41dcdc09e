/* safetensors: reads the header of a safetensors file and checks all of it before anyone uses a byte: 8 bytes
 * of length, that much JSON, then the tensors' bytes, which must lie one after the other to the file's end.
 * Owns:    the file descriptor, the header's JSON (names point into it), the tensors sorted by name.
 * Threads: read-only once open; tensor bytes come by pread, so readers share nothing.
 * Memory:  a small multiple of the header, which is at most the file and IG_SAFETENSORS_HEADER_MAX.
 * Why holes are refused: the format forbids them, because bytes that no tensor owns hide things. */
#include "file/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are loaded as they lie in the file");

enum { LENGTH_BYTES = 8, TENSORS_MAX = 1 << 17, DEPTH_MAX = 8 };

struct ig_safetensors {
    int fd;
    uint64_t file_bytes, data_at;
    char *path;
    char shown[IG_SHOWN_PATH_BYTES];
    yyjson_doc *head;
    ig_safetensor *tensors;
    int n_tensors;
};

static const struct {
    const char *name;
    int n_bytes;
} dtypes[] = {
    [IG_DTYPE_F64] = {"F64", 8},   [IG_DTYPE_F32] = {"F32", 4},         [IG_DTYPE_F16] = {"F16", 2},
    [IG_DTYPE_BF16] = {"BF16", 2}, [IG_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [IG_DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [IG_DTYPE_I64] = {"I64", 8},   [IG_DTYPE_I32] = {"I32", 4},         [IG_DTYPE_I16] = {"I16", 2},
    [IG_DTYPE_I8] = {"I8", 1},     [IG_DTYPE_U64] = {"U64", 8},         [IG_DTYPE_U32] = {"U32", 4},
    [IG_DTYPE_U16] = {"U16", 2},   [IG_DTYPE_U8] = {"U8", 1},           [IG_DTYPE_BOOL] = {"BOOL", 1},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

const char *ig_dtype_name(ig_dtype d) {
    ig_assert((unsigned)d < N_DTYPES);
    return dtypes[d].name;
}

int ig_dtype_bytes(ig_dtype d) {
    ig_assert((unsigned)d < N_DTYPES);
    return dtypes[d].n_bytes;
}

/* ---- the header ---------------------------------------------------------------------------------------- */

static ig_status read_header(ig_safetensors *s, ig_err *err) {
    uint8_t length[LENGTH_BYTES];
    uint64_t n;
    char *text = NULL;
    ig_file_part part = {s->fd, s->path, {"header", 6}, 0, LENGTH_BYTES};
    if (s->file_bytes < LENGTH_BYTES + 2)
        return ig_fail(err, IG_EFORMAT, "%s: %" PRIu64 " bytes are no safetensors file", s->shown,
                       s->file_bytes);
    ig_status st = ig_file_read_part(length, sizeof length, &part, 0, err);
    if (st) return st;
    memcpy(&n, length, sizeof n);
    if (n < 2 || n > s->file_bytes - LENGTH_BYTES || n > IG_SAFETENSORS_HEADER_MAX) {
        const char *is = ig_file_guess(length);
        if (is) return ig_fail(err, IG_EFORMAT, "%s: %s", s->shown, is);
        return ig_fail(err, IG_EFORMAT,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64 " (at least 2, at most %d): "
                       "truncated, or not a safetensors file",
                       s->shown, n, s->file_bytes, IG_SAFETENSORS_HEADER_MAX);
    }
    text = malloc((size_t)n);
    if (!text) return ig_fail(err, IG_ELIMIT, "%s: no memory for a header of %" PRIu64 " bytes", s->shown, n);
    part.at = LENGTH_BYTES, part.n_bytes = n;
    st = ig_file_read_part(text, (size_t)n, &part, 0, err);
    if (!st && text[0] != '{')
        st = ig_fail(err, IG_EFORMAT, "%s: the header starts with byte %02x and not with {", s->shown,
                     (unsigned char)text[0]);
    if (!st) {
        ig_err why = {0};
        const ig_json_limits limits = {IG_SAFETENSORS_HEADER_MAX, DEPTH_MAX};
        st = ig_json_parse(&s->head, text, (size_t)n, limits, &why);
        if (st) st = ig_fail(err, st, "%s: header: %.300s", s->shown, why.msg);
    }
    free(text);
    s->data_at = LENGTH_BYTES + n;
    return st;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static ig_status take_name(ig_safetensor *t, const ig_safetensors *s, yyjson_val *name, ig_err *err) {
    t->name = (ig_slice){yyjson_get_str(name), yyjson_get_len(name)};
    if (t->name.n == 0 || t->name.n > IG_SAFETENSORS_NAME_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: tensor name %s is %zu bytes long, limit 1..%d", s->shown,
                       ig_file_show(t->name).s, t->name.n, IG_SAFETENSORS_NAME_MAX);
    if (memchr(t->name.p, 0, t->name.n))
        return ig_fail(err, IG_EFORMAT, "%s: tensor name %s holds a NUL byte", s->shown,
                       ig_file_show(t->name).s);
    return IG_OK;
}

static ig_status take_dtype(ig_safetensor *t, const ig_safetensors *s, yyjson_val *v, ig_err *err) {
    for (int d = 0; d < N_DTYPES; d++) {
        if (!yyjson_equals_str(v, dtypes[d].name)) continue;
        t->dtype = (ig_dtype)d;
        return IG_OK;
    }
    const ig_slice got = {yyjson_get_str(v), yyjson_get_len(v)};
    return ig_fail(err, IG_EFORMAT, "%s: tensor %s has dtype %s, which is not one of those we know", s->shown,
                   ig_file_show(t->name).s, got.p ? ig_file_show(got).s : "that is no string");
}

static ig_status take_shape(ig_safetensor *t, const ig_safetensors *s, yyjson_val *v, ig_err *err) {
    const uint64_t values_max = s->file_bytes / (uint64_t)ig_dtype_bytes(t->dtype);
    uint64_t n_values = 1;
    size_t n = yyjson_arr_size(v);
    for (int d = 0; d < IG_SAFETENSORS_DIMS_MAX; d++) t->dim[d] = 1;
    if (!yyjson_is_arr(v) || n > IG_SAFETENSORS_DIMS_MAX)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %s: shape is not a list of at most %d numbers", s->shown,
                       ig_file_show(t->name).s, IG_SAFETENSORS_DIMS_MAX);
    t->n_dims = (int)n;
    for (size_t d = 0; d < n; d++) {
        yyjson_val *x = yyjson_arr_get(v, d);
        if (!yyjson_is_uint(x))
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s: shape[%zu] is not a whole number", s->shown,
                           ig_file_show(t->name).s, d);
        t->dim[d] = yyjson_get_uint(x);
        if (t->dim[d] && n_values > values_max / t->dim[d])
            return ig_fail(err, IG_EFORMAT,
                           "%s: tensor %s: shape[%zu] = %" PRIu64 " makes it larger than the file", s->shown,
                           ig_file_show(t->name).s, d, t->dim[d]);
        n_values *= t->dim[d];
    }
    t->n_bytes = n_values * (uint64_t)ig_dtype_bytes(t->dtype);
    return IG_OK;
}

static ig_status take_offsets(ig_safetensor *t, const ig_safetensors *s, yyjson_val *v, ig_err *err) {
    const uint64_t data_bytes = s->file_bytes - s->data_at;
    yyjson_val *a = yyjson_arr_get(v, 0), *b = yyjson_arr_get(v, 1);
    if (yyjson_arr_size(v) != 2 || !yyjson_is_uint(a) || !yyjson_is_uint(b))
        return ig_fail(err, IG_EFORMAT, "%s: tensor %s: data_offsets are not two whole numbers", s->shown,
                       ig_file_show(t->name).s);
    uint64_t from = yyjson_get_uint(a), to = yyjson_get_uint(b);
    if (from > to || to > data_bytes)
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %s: bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64
                       " bytes of data: truncated?",
                       s->shown, ig_file_show(t->name).s, from, to, data_bytes);
    if (to - from != t->n_bytes)
        return ig_fail(err, IG_EFORMAT,
                       "%s: tensor %s: %" PRIu64 " bytes by its offsets, %" PRIu64 " by its shape and dtype",
                       s->shown, ig_file_show(t->name).s, to - from, t->n_bytes);
    t->offset = s->data_at + from;
    return IG_OK;
}

static ig_status take_tensor(ig_safetensor *t, const ig_safetensors *s, yyjson_val *name, yyjson_val *v,
                             ig_err *err) {
    t->file = s;
    ig_status st = take_name(t, s, name, err);
    if (st) return st;
    yyjson_val *dtype = ig_json_get(v, "dtype"), *shape = ig_json_get(v, "shape"),
               *offsets = ig_json_get(v, "data_offsets");
    /* exactly these three, each once: what another reader might see differently is not read at all */
    if (yyjson_obj_size(v) != 3 || !dtype || !shape || !offsets)
        return ig_fail(err, IG_EFORMAT, "%s: tensor %s is not {dtype, shape, data_offsets}", s->shown,
                       ig_file_show(t->name).s);
    if ((st = take_dtype(t, s, dtype, err))) return st;
    if ((st = take_shape(t, s, shape, err))) return st;
    return take_offsets(t, s, offsets, err);
}

static int by_place(const void *a, const void *b) {
    const ig_safetensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); /* the empty ones first */
}

static int by_name(const void *a, const void *b) {
    return ig_file_name_order(((const ig_safetensor *)a)->name, ((const ig_safetensor *)b)->name);
}

/* Every byte of the data belongs to one tensor; every name is there once. Leaves them sorted by name. */
static ig_status check_places(ig_safetensors *s, ig_err *err) {
    uint64_t end = s->data_at;
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_place);
    for (int i = 0; i < s->n_tensors; i++) {
        const ig_safetensor *t = &s->tensors[i];
        if (t->offset != end)
            return ig_fail(err, IG_EFORMAT,
                           "%s: tensor %s starts at byte %" PRIu64 " of the data, expected %" PRIu64 " (%s)",
                           s->shown, ig_file_show(t->name).s, t->offset - s->data_at, end - s->data_at,
                           t->offset < end ? "it overlaps another" : "a hole before it");
        end = t->offset + t->n_bytes;
    }
    if (end != s->file_bytes)
        return ig_fail(err, IG_EFORMAT, "%s: %" PRIu64 " bytes after the last tensor belong to none",
                       s->shown, s->file_bytes - end);
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
    for (int i = 1; i < s->n_tensors; i++)
        if (by_name(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s is there twice", s->shown,
                           ig_file_show(s->tensors[i].name).s);
    return IG_OK;
}

static ig_status check_metadata(const ig_safetensors *s, yyjson_val *v, ig_err *err) {
    size_t i, n;
    yyjson_val *key, *value;
    bool ok = yyjson_is_obj(v);
    yyjson_obj_foreach(v, i, n, key, value) ok = ok && yyjson_is_str(value);
    return ok ? IG_OK
              : ig_fail(err, IG_EFORMAT, "%s: __metadata__ is not a map from strings to strings", s->shown);
}

static ig_status take_tensors(ig_safetensors *s, ig_err *err) {
    yyjson_val *root = yyjson_doc_get_root(s->head), *key, *value;
    size_t i, n = yyjson_obj_size(root);
    ig_status st = IG_OK;
    if (n > TENSORS_MAX)
        return ig_fail(err, IG_ELIMIT, "%s: %zu tensors, limit %d", s->shown, n, TENSORS_MAX);
    s->tensors = calloc(n + 1, sizeof *s->tensors);
    if (!s->tensors) return ig_fail(err, IG_ELIMIT, "%s: no memory for %zu tensors", s->shown, n);
    yyjson_obj_foreach(root, i, n, key, value) {
        if (yyjson_equals_str(key, "__metadata__"))
            st = check_metadata(s, value, err);
        else
            st = take_tensor(&s->tensors[s->n_tensors++], s, key, value, err);
        if (st) return st;
    }
    return check_places(s, err);
}

/* ---- the handle ---------------------------------------------------------------------------------------- */

ig_status ig_safetensors_open(ig_safetensors **out, const char *path, ig_err *err) {
    ig_safetensors *s = calloc(1, sizeof *s);
    ig_status st;
    if (!s) return ig_fail(err, IG_ELIMIT, "no memory to open a model file");
    s->fd = -1;
    s->path = strdup(path);
    if (!s->path) {
        st = ig_fail(err, IG_ELIMIT, "no memory to open a model file");
        goto out;
    }
    ig_file_show_path(s->shown, path);
    if ((st = ig_file_open_regular(&s->fd, &s->file_bytes, path, "a safetensors file", err))) goto out;
    if ((st = read_header(s, err))) goto out;
    if ((st = take_tensors(s, err))) goto out;
    *out = s;
    s = NULL;
out:
    ig_safetensors_close(s);
    return st;
}

void ig_safetensors_close(ig_safetensors *s) {
    if (!s) return;
    free(s->tensors);
    yyjson_doc_free(s->head);
    free(s->path);
    if (s->fd >= 0) close(s->fd);
    free(s);
}

const char *ig_safetensors_path(const ig_safetensors *s) {
    return s->path;
}

uint64_t ig_safetensors_file_bytes(const ig_safetensors *s) {
    return s->file_bytes;
}

int ig_safetensors_n_tensors(const ig_safetensors *s) {
    return s->n_tensors;
}

const ig_safetensor *ig_safetensors_tensor_at(const ig_safetensors *s, int i) {
    ig_assert(i >= 0 && i < s->n_tensors);
    return &s->tensors[i];
}

const ig_safetensor *ig_safetensors_find(const ig_safetensors *s, const char *name) {
    const ig_safetensor wanted = {.name = ig_slice_of(name)};
    return bsearch(&wanted, s->tensors, (size_t)s->n_tensors, sizeof wanted, by_name);
}

ig_status ig_safetensor_read(const ig_safetensor *t, uint64_t from, void *out, size_t n, ig_err *err) {
    const ig_file_part part = {t->file->fd, t->file->path, t->name, t->offset, t->n_bytes};
    return ig_file_read_part(out, n, &part, from, err);
}
