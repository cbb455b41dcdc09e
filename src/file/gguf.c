/* gguf: reads the header of a GGUF file and checks all of it before anyone uses a byte. A model split into files
 * is one ig_gguf: the first part's, which has the metadata, with the tensors of all.
 * Owns:    the file descriptor, the header's bytes, an index of keys and one of tensors; the other parts.
 * Threads: read-only once open; tensor bytes come by pread, so readers share nothing.
 * Memory:  one malloc of min(file, IG_GGUF_HEADER_MAX) that is touched only as far as the header goes;
 *          a count in the file is compared with the bytes that are left before anything is allocated
 *          for it, so memory follows the real size of the file and never a claim.
 * Why sorted indexes and not hash tables: the names come from outside, a sorted array has no bad case,
 *          and it finds duplicates for free. */
#include "file/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are loaded as they lie in the file");

enum {
    ALIGN_DEFAULT = 32,
    ALIGN_MIN = 8, /* the format asks for a multiple of 8 */
    ALIGN_MAX = 1 << 20,
    KEY_BYTES_MAX = 65535,
    KEYS_MAX = 1 << 16,
    TENSORS_MAX = 1 << 17,
    KEY_BYTES_LEAST = 8 + 1 + 4 + 1,            /* length, name, kind, value */
    TENSOR_BYTES_LEAST = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, one dim, type, offset */
    READ_STEP_BYTES = 256 * 1024,
    PARTS_MAX = 1000
};

typedef struct meta {
    ig_slice name;
    ig_gguf_kind kind;
    uint32_t index;       /* place in the file */
    const uint8_t *value; /* of a string: its bytes; of an array: its items */
    uint64_t n;           /* of a string: bytes; of an array: items */
    ig_gguf_kind item;    /* of an array */
    ig_slice *strings;    /* of an array of strings */
} meta;

struct ig_gguf {
    int fd;
    uint64_t file_bytes;
    char *path;
    char shown[IG_SHOWN_PATH_BYTES]; /* the path, its middle cut out when long, for messages */
    uint8_t *head;
    size_t head_cap, n_read;
    meta *keys;
    const meta **key_by_name;
    ig_gguf_tensor *tensors;
    const ig_gguf_tensor **tensor_by_name;
    int n_keys, n_tensors;
    uint64_t split_no, split_count, split_tensors; /* of a part; a whole model has a count of 1 */
    struct ig_gguf **parts;                        /* the second to the last; their tensors are in ours */
    int n_parts;                                   /* in parts */
};

/* ---- block types --------------------------------------------------------------------------------------- */

/* A size of 0: the name is known, the layout is not; such a tensor is refused when the file is opened. */
static const ig_gguf_type types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [4] = {"Q4_2", 0, 0},        [5] = {"Q4_3", 0, 0},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [8] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},        [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [30] = {"BF16", 1, 2},       [31] = {"Q4_0_4_4", 0, 0},   [32] = {"Q4_0_4_8", 0, 0},
    [33] = {"Q4_0_8_8", 0, 0},   [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},
    [36] = {"IQ4_NL_4_4", 0, 0}, [37] = {"IQ4_NL_4_8", 0, 0}, [38] = {"IQ4_NL_8_8", 0, 0},
    [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},    [41] = {"Q1_0", 0, 0},
    [42] = {"Q2_0", 0, 0},
};

const ig_gguf_type *ig_gguf_type_of(uint32_t type) {
    return type < sizeof types / sizeof *types ? &types[type] : NULL;
}

/* ---- the cursor: every byte of the header comes through take() ----------------------------------------- */

/* What is being read, for messages: `label`, the number (-1: none), the name (empty: none). */
typedef struct cursor {
    ig_gguf *g;
    uint64_t at;
    const char *label;
    int64_t number;
    ig_slice name;
    ig_err *err;
    ig_status st; /* of the first failure */
} cursor;

static void reading(cursor *c, const char *label, int64_t number, ig_slice name) {
    c->label = label;
    c->number = number;
    c->name = name;
}

static const char *what(const cursor *c, char buf[static 256]) {
    char number[24] = "";
    if (c->number >= 0) snprintf(number, sizeof number, " %" PRId64, c->number);
    snprintf(buf, 256, "%s%s%s%s", c->label, number, c->name.n ? " " : "", ig_file_show(c->name).s);
    return buf;
}

#define refuse(c, code, ...) ((c)->st = ig_fail((c)->err, (code), __VA_ARGS__))

/* Makes head[0, upto) valid. upto <= head_cap. */
static bool fill(cursor *c, size_t upto) {
    ig_gguf *g = c->g;
    size_t goal = 2 * g->n_read + READ_STEP_BYTES;
    if (goal < upto) goal = upto;
    if (goal > g->head_cap) goal = g->head_cap;
    while (g->n_read < goal) {
        ssize_t got = pread(g->fd, g->head + g->n_read, goal - g->n_read, (off_t)g->n_read);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            refuse(c, IG_EIO, "%s: read at byte %zu: %s", g->shown, g->n_read, strerror(errno));
            return false;
        }
        if (got == 0) {
            refuse(c, IG_EIO, "%s: ends at byte %zu now, had %" PRIu64 " bytes when opened", g->shown,
                   g->n_read, g->file_bytes);
            return false;
        }
        g->n_read += (size_t)got;
    }
    return true;
}

/* The next n bytes, or NULL with the error set. */
static const uint8_t *take(cursor *c, uint64_t n) {
    ig_gguf *g = c->g;
    char buf[256];
    if (n > g->file_bytes - c->at) {
        refuse(c, IG_EFORMAT,
               "%s: truncated at byte %" PRIu64 " while reading %s (%" PRIu64 " bytes at %" PRIu64 ")",
               g->shown, g->file_bytes, what(c, buf), n, c->at);
        return NULL;
    }
    if (n > g->head_cap - c->at) {
        refuse(c, IG_ELIMIT, "%s: header goes past %d bytes at %s", g->shown, IG_GGUF_HEADER_MAX,
               what(c, buf));
        return NULL;
    }
    if (c->at + n > g->n_read && !fill(c, (size_t)(c->at + n))) return NULL;
    const uint8_t *p = g->head + c->at;
    c->at += n;
    return p;
}

static bool take_u32(cursor *c, uint32_t *out) {
    const uint8_t *p = take(c, 4);
    if (p) memcpy(out, p, 4);
    return p != NULL;
}

static bool take_u64(cursor *c, uint64_t *out) {
    const uint8_t *p = take(c, 8);
    if (p) memcpy(out, p, 8);
    return p != NULL;
}

static bool take_string(cursor *c, ig_slice *out) {
    uint64_t n;
    size_t bad = 0;
    if (!take_u64(c, &n)) return false;
    const uint8_t *p = take(c, n);
    if (!p) return false;
    ig_slice s = {(const char *)p, (size_t)n};
    if (!ig_slice_utf8_valid(s, &bad)) {
        char buf[256];
        refuse(c, IG_EFORMAT, "%s: %s: invalid UTF-8 at byte %" PRIu64, c->g->shown, what(c, buf),
               c->at - n + bad);
        return false;
    }
    *out = s;
    return true;
}

/* A key or a tensor name: not empty, not long, no NUL (names end up in C strings and messages). */
static bool take_name(cursor *c, ig_slice *out, size_t bytes_max) {
    char buf[256];
    ig_slice s;
    if (!take_string(c, &s)) return false;
    if (s.n == 0 || s.n > bytes_max) {
        refuse(c, IG_EFORMAT, "%s: %s is %zu bytes long, limit 1..%zu", c->g->shown, what(c, buf), s.n,
               bytes_max);
        return false;
    }
    if (memchr(s.p, 0, s.n)) {
        refuse(c, IG_EFORMAT, "%s: %s holds a NUL byte", c->g->shown, what(c, buf));
        return false;
    }
    *out = s;
    return true;
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

/* Bytes of a value of this kind; 0: not of a fixed size. */
static const uint8_t kind_bytes[] = {
    [IG_GGUF_U8] = 1,  [IG_GGUF_I8] = 1,  [IG_GGUF_U16] = 2,  [IG_GGUF_I16] = 2,    [IG_GGUF_U32] = 4,
    [IG_GGUF_I32] = 4, [IG_GGUF_F32] = 4, [IG_GGUF_BOOL] = 1, [IG_GGUF_STRING] = 0, [IG_GGUF_ARRAY] = 0,
    [IG_GGUF_U64] = 8, [IG_GGUF_I64] = 8, [IG_GGUF_F64] = 8,
};
enum { N_KINDS = sizeof kind_bytes };

static const char *const kind_names[N_KINDS] = {
    [IG_GGUF_U8] = "u8",         [IG_GGUF_I8] = "i8",       [IG_GGUF_U16] = "u16", [IG_GGUF_I16] = "i16",
    [IG_GGUF_U32] = "u32",       [IG_GGUF_I32] = "i32",     [IG_GGUF_F32] = "f32", [IG_GGUF_BOOL] = "bool",
    [IG_GGUF_STRING] = "string", [IG_GGUF_ARRAY] = "array", [IG_GGUF_U64] = "u64", [IG_GGUF_I64] = "i64",
    [IG_GGUF_F64] = "f64",
};

static bool check_bools(cursor *c, const uint8_t *v, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (v[i] <= 1) continue;
        char buf[256];
        refuse(c, IG_EFORMAT, "%s: %s: a bool is 0 or 1, not %u", c->g->shown, what(c, buf), v[i]);
        return false;
    }
    return true;
}

static bool take_array(cursor *c, meta *m) {
    char buf[256];
    uint32_t item;
    if (!take_u32(c, &item) || !take_u64(c, &m->n)) return false;
    if (item == IG_GGUF_ARRAY || item >= N_KINDS) {
        refuse(c, IG_EFORMAT,
               item == IG_GGUF_ARRAY ? "%s: %s: arrays of arrays are not read (kind %u)"
                                     : "%s: %s: array of unknown kind %u",
               c->g->shown, what(c, buf), item);
        return false;
    }
    m->item = (ig_gguf_kind)item;
    uint64_t item_bytes = item == IG_GGUF_STRING ? 8 : kind_bytes[item];
    uint64_t left = c->g->file_bytes - c->at;
    if (m->n > left / item_bytes) {
        refuse(c, IG_EFORMAT,
               "%s: truncated at byte %" PRIu64 " while reading %s (%" PRIu64 " items of %" PRIu64
               " bytes or more at %" PRIu64 ")",
               c->g->shown, c->g->file_bytes, what(c, buf), m->n, item_bytes, c->at);
        return false;
    }
    if (item != IG_GGUF_STRING) {
        m->value = take(c, m->n * item_bytes);
        return m->value && (item != IG_GGUF_BOOL || check_bools(c, m->value, m->n));
    }
    m->value = c->g->head + c->at;
    if (m->n == 0) return true;
    m->strings = malloc((size_t)m->n * sizeof *m->strings);
    if (!m->strings) {
        refuse(c, IG_ELIMIT, "%s: %s: no memory for %" PRIu64 " strings", c->g->shown, what(c, buf), m->n);
        return false;
    }
    for (uint64_t i = 0; i < m->n; i++)
        if (!take_string(c, &m->strings[i])) return false;
    return true;
}

static bool take_key(cursor *c, meta *m) {
    char buf[256];
    uint32_t kind;
    reading(c, "key", m->index, (ig_slice){NULL, 0});
    if (!take_name(c, &m->name, KEY_BYTES_MAX)) return false;
    reading(c, "key", -1, m->name);
    if (!take_u32(c, &kind)) return false;
    if (kind >= N_KINDS) {
        refuse(c, IG_EFORMAT, "%s: %s has the unknown kind %u", c->g->shown, what(c, buf), kind);
        return false;
    }
    m->kind = (ig_gguf_kind)kind;
    if (kind == IG_GGUF_ARRAY) return take_array(c, m);
    if (kind == IG_GGUF_STRING) {
        ig_slice s;
        if (!take_string(c, &s)) return false;
        m->value = (const uint8_t *)s.p;
        m->n = s.n;
        return true;
    }
    m->value = take(c, kind_bytes[kind]);
    return m->value && (kind != IG_GGUF_BOOL || check_bools(c, m->value, 1));
}

static int by_key_name(const void *a, const void *b) {
    return ig_file_name_order((*(const meta *const *)a)->name, (*(const meta *const *)b)->name);
}

static bool index_keys(cursor *c) {
    ig_gguf *g = c->g;
    for (int i = 0; i < g->n_keys; i++) g->key_by_name[i] = &g->keys[i];
    qsort(g->key_by_name, (size_t)g->n_keys, sizeof *g->key_by_name, by_key_name);
    for (int i = 1; i < g->n_keys; i++) {
        if (ig_file_name_order(g->key_by_name[i - 1]->name, g->key_by_name[i]->name) != 0) continue;
        refuse(c, IG_EFORMAT, "%s: key %s is there twice", g->shown, ig_file_show(g->key_by_name[i]->name).s);
        return false;
    }
    return true;
}

static const meta *find_name(const ig_gguf *g, ig_slice name) {
    for (int lo = 0, hi = g->n_keys; lo < hi;) {
        int mid = lo + (hi - lo) / 2, d = ig_file_name_order(name, g->key_by_name[mid]->name);
        if (d == 0) return g->key_by_name[mid];
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static const meta *find_key(const ig_gguf *g, const char *key) {
    return find_name(g, ig_slice_of(key));
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static bool take_tensor(cursor *c, ig_gguf_tensor *t, int index) {
    ig_gguf *g = c->g;
    uint32_t n_dims;
    reading(c, "tensor", index, (ig_slice){NULL, 0});
    if (!take_name(c, &t->name, IG_GGUF_NAME_MAX)) return false;
    reading(c, "tensor", -1, t->name);
    if (!take_u32(c, &n_dims)) return false;
    if (n_dims < 1 || n_dims > IG_GGUF_DIMS_MAX) {
        refuse(c, IG_EFORMAT, "%s: tensor %s has %u dimensions, limit 1..%d", g->shown,
               ig_file_show(t->name).s, n_dims, IG_GGUF_DIMS_MAX);
        return false;
    }
    t->n_dims = (int)n_dims;
    uint64_t n_values = 1;
    for (int d = 0; d < IG_GGUF_DIMS_MAX; d++) {
        t->dim[d] = 1;
        if (d >= t->n_dims) continue;
        if (!take_u64(c, &t->dim[d])) return false;
        if (t->dim[d] == 0 || t->dim[d] > (uint64_t)INT64_MAX / n_values) {
            refuse(c, IG_EFORMAT, "%s: tensor %s: dimension %d is %" PRIu64 ", which %s", g->shown,
                   ig_file_show(t->name).s, d, t->dim[d],
                   t->dim[d] ? "makes more than 2^63 values" : "leaves no values");
            return false;
        }
        n_values *= t->dim[d];
    }
    if (!take_u32(c, &t->type) || !take_u64(c, &t->offset)) return false;
    const ig_gguf_type *type = ig_gguf_type_of(t->type);
    if (!type || type->n_values == 0) {
        refuse(c, IG_EFORMAT, "%s: tensor %s has block type %u (%s), which is not one of those we know",
               g->shown, ig_file_show(t->name).s, t->type, type ? type->name : "unknown");
        return false;
    }
    if (t->dim[0] % type->n_values) {
        refuse(c, IG_EFORMAT, "%s: tensor %s: rows of %" PRIu64 " values are not whole %s blocks of %u",
               g->shown, ig_file_show(t->name).s, t->dim[0], type->name, type->n_values);
        return false;
    }
    uint64_t n_blocks = n_values / type->n_values;
    if (n_blocks > g->file_bytes / type->n_bytes) {
        refuse(c, IG_EFORMAT, "%s: tensor %s: %" PRIu64 " blocks of %u bytes in a file of %" PRIu64 " bytes",
               g->shown, ig_file_show(t->name).s, n_blocks, type->n_bytes, g->file_bytes);
        return false;
    }
    t->n_bytes = n_blocks * type->n_bytes;
    return true;
}

static int by_tensor_name(const void *a, const void *b) {
    return ig_file_name_order((*(const ig_gguf_tensor *const *)a)->name,
                              (*(const ig_gguf_tensor *const *)b)->name);
}

static int by_tensor_offset(const void *a, const void *b) {
    uint64_t x = (*(const ig_gguf_tensor *const *)a)->offset, y = (*(const ig_gguf_tensor *const *)b)->offset;
    return (x > y) - (x < y);
}

/* Turns offsets from the data's start into offsets in the file and checks that every tensor has bytes of
 * its own inside the file. */
static bool place_tensors(cursor *c, uint64_t align) {
    ig_gguf *g = c->g;
    uint64_t data_start = (c->at + align - 1) / align * align;
    for (int i = 0; i < g->n_tensors; i++) {
        ig_gguf_tensor *t = &g->tensors[i];
        if (t->offset % align) {
            refuse(c, IG_EFORMAT,
                   "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, g->shown,
                   ig_file_show(t->name).s, t->offset, align);
            return false;
        }
        if (data_start > g->file_bytes || t->offset > g->file_bytes - data_start ||
            t->n_bytes > g->file_bytes - data_start - t->offset) {
            refuse(c, IG_EFORMAT,
                   "%s: truncated at byte %" PRIu64 " while reading tensor %s (%" PRIu64
                   " bytes at offset %" PRIu64 " of the data, which starts at %" PRIu64 ")",
                   g->shown, g->file_bytes, ig_file_show(t->name).s, t->n_bytes, t->offset, data_start);
            return false;
        }
        t->offset += data_start;
        t->file = g;
        g->tensor_by_name[i] = t;
    }
    /* One array serves both orders: first by place, to see overlaps, then by name for good. */
    qsort(g->tensor_by_name, (size_t)g->n_tensors, sizeof *g->tensor_by_name, by_tensor_offset);
    for (int i = 1; i < g->n_tensors; i++) {
        const ig_gguf_tensor *a = g->tensor_by_name[i - 1], *b = g->tensor_by_name[i];
        if (b->offset - a->offset >= a->n_bytes) continue;
        refuse(c, IG_EFORMAT, "%s: tensors %s and %s overlap at byte %" PRIu64, g->shown,
               ig_file_show(a->name).s, ig_file_show(b->name).s, b->offset);
        return false;
    }
    qsort(g->tensor_by_name, (size_t)g->n_tensors, sizeof *g->tensor_by_name, by_tensor_name);
    for (int i = 1; i < g->n_tensors; i++) {
        if (ig_file_name_order(g->tensor_by_name[i - 1]->name, g->tensor_by_name[i]->name) != 0) continue;
        refuse(c, IG_EFORMAT, "%s: tensor %s is there twice", g->shown,
               ig_file_show(g->tensor_by_name[i]->name).s);
        return false;
    }
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static bool take_preamble(cursor *c, uint64_t *n_tensors, uint64_t *n_keys) {
    ig_gguf *g = c->g;
    const ig_slice none = {NULL, 0};
    uint32_t version;

    reading(c, "the magic", -1, none);
    const uint8_t *p = take(c, 4);
    if (!p) return false;
    if (memcmp(p, "GGUF", 4) != 0) {
        const char *is = ig_file_guess(p);
        if (is)
            refuse(c, IG_EFORMAT, "%s: %s", g->shown, is);
        else
            refuse(c, IG_EFORMAT, "%s: not a GGUF file (starts with %02x %02x %02x %02x)", g->shown, p[0],
                   p[1], p[2], p[3]);
        return false;
    }
    reading(c, "the version", -1, none);
    if (!take_u32(c, &version)) return false;
    if (version != 2 && version != 3) {
        if (__builtin_bswap32(version) <= 3)
            refuse(c, IG_EFORMAT, "%s: a big-endian GGUF file; only little-endian ones are read", g->shown);
        else
            refuse(c, IG_EFORMAT, "%s: GGUF version %u; 2 and 3 are read", g->shown, version);
        return false;
    }
    reading(c, "the number of tensors", -1, none);
    if (!take_u64(c, n_tensors)) return false;
    reading(c, "the number of keys", -1, none);
    if (!take_u64(c, n_keys)) return false;
    uint64_t left = g->file_bytes - c->at;
    if (*n_keys > left / KEY_BYTES_LEAST) {
        refuse(c, IG_EFORMAT,
               "%s: truncated at byte %" PRIu64 ": %" PRIu64 " keys claimed, %" PRIu64 " bytes left",
               g->shown, g->file_bytes, *n_keys, left);
        return false;
    }
    if (*n_tensors > left / TENSOR_BYTES_LEAST) {
        refuse(c, IG_EFORMAT,
               "%s: truncated at byte %" PRIu64 ": %" PRIu64 " tensors claimed, %" PRIu64 " bytes left",
               g->shown, g->file_bytes, *n_tensors, left);
        return false;
    }
    if (*n_keys > KEYS_MAX || *n_tensors > TENSORS_MAX) {
        refuse(c, IG_ELIMIT, "%s: %" PRIu64 " keys and %" PRIu64 " tensors, limit %d and %d", g->shown,
               *n_keys, *n_tensors, KEYS_MAX, TENSORS_MAX);
        return false;
    }
    return true;
}

static bool take_alignment(cursor *c, uint64_t *align) {
    const meta *m = find_key(c->g, "general.alignment");
    uint32_t v = ALIGN_DEFAULT;
    if (m && m->kind != IG_GGUF_U32) {
        refuse(c, IG_EFORMAT, "%s: general.alignment is of kind %s, not u32", c->g->shown,
               kind_names[m->kind]);
        return false;
    }
    if (m) memcpy(&v, m->value, sizeof v);
    if (v < ALIGN_MIN || v > ALIGN_MAX || (v & (v - 1))) {
        refuse(c, IG_EFORMAT, "%s: general.alignment is %u, limit %d..%d and a power of two", c->g->shown, v,
               ALIGN_MIN, ALIGN_MAX);
        return false;
    }
    *align = v;
    return true;
}

/* The keys of a part; absent: a whole model. */
static bool take_split(cursor *c) {
    static const char *const keys[] = {"split.no", "split.tensors.count"};
    ig_gguf *g = c->g;
    uint64_t *const to[] = {&g->split_no, &g->split_tensors};
    g->split_count = 1;
    if (!find_key(g, "split.count")) return true;
    if ((c->st = ig_gguf_get_u64(g, "split.count", &g->split_count, c->err))) return false;
    if (g->split_count <= 1) return true;
    for (int i = 0; i < 2; i++) {
        c->st = ig_gguf_get_u64(g, keys[i], to[i], c->err);
        if (c->st == IG_ENOTFOUND)
            refuse(c, IG_EFORMAT, "%s: one of %" PRIu64 " parts of a model, and has no key %s", g->shown,
                   g->split_count, keys[i]);
        if (c->st) return false;
    }
    if (g->split_count > PARTS_MAX || g->split_no >= g->split_count) {
        refuse(c, IG_EFORMAT, "%s: split.no is %" PRIu64 " and split.count %" PRIu64 ", limit %d", g->shown,
               g->split_no, g->split_count, PARTS_MAX);
        return false;
    }
    return true;
}

static bool parse(cursor *c) {
    ig_gguf *g = c->g;
    uint64_t n_tensors, n_keys, align;

    if (!take_preamble(c, &n_tensors, &n_keys)) return false;
    g->keys = calloc((size_t)n_keys + 1, sizeof *g->keys);
    g->key_by_name = calloc((size_t)n_keys + 1, sizeof *g->key_by_name);
    g->tensors = calloc((size_t)n_tensors + 1, sizeof *g->tensors);
    g->tensor_by_name = calloc((size_t)n_tensors + 1, sizeof *g->tensor_by_name);
    if (!g->keys || !g->key_by_name || !g->tensors || !g->tensor_by_name) {
        refuse(c, IG_ELIMIT, "%s: no memory for %" PRIu64 " keys and %" PRIu64 " tensors", g->shown, n_keys,
               n_tensors);
        return false;
    }
    for (uint64_t i = 0; i < n_keys; i++) {
        g->keys[i].index = (uint32_t)i;
        g->n_keys = (int)i + 1; /* so that close frees what a half-read key took */
        if (!take_key(c, &g->keys[i])) return false;
    }
    if (!index_keys(c) || !take_alignment(c, &align) || !take_split(c)) return false;
    for (uint64_t i = 0; i < n_tensors; i++)
        if (!take_tensor(c, &g->tensors[i], (int)i)) return false;
    g->n_tensors = (int)n_tensors;
    return place_tensors(c, align);
}

static ig_status open_file(ig_gguf **out, const char *path, ig_err *err) {
    ig_status st = IG_OK;
    ig_gguf *g = calloc(1, sizeof *g);
    if (!g) return ig_fail(err, IG_ELIMIT, "no memory to open a model file");

    g->fd = -1;
    g->path = strdup(path);
    if (!g->path) {
        st = ig_fail(err, IG_ELIMIT, "no memory to open a model file");
        goto out;
    }
    ig_file_show_path(g->shown, g->path);
    if ((st = ig_file_open_regular(&g->fd, &g->file_bytes, path, "a GGUF file", err)) != IG_OK) goto out;
    g->head_cap = g->file_bytes < IG_GGUF_HEADER_MAX ? (size_t)g->file_bytes : IG_GGUF_HEADER_MAX;
    g->head = malloc(g->head_cap ? g->head_cap : 1);
    if (!g->head) {
        st = ig_fail(err, IG_ELIMIT, "%s: no memory for a header of up to %zu bytes", g->shown, g->head_cap);
        goto out;
    }
    cursor c = {.g = g, .number = -1, .label = "", .err = err};
    if (!parse(&c)) {
        ig_assert(c.st != IG_OK);
        st = c.st;
        goto out;
    }
    *out = g;
    g = NULL;
out:
    ig_gguf_close(g);
    return st;
}

/* ---- models in parts ----------------------------------------------------------------------------------- */

/* "<stem>-00002-of-00003.gguf": the stem's length and the two numbers. */
static bool is_part_name(const char *path, size_t *stem, uint64_t *number, uint64_t *count) {
    static const char pattern[] = "-00000-of-00000.gguf";
    const size_t n = strlen(path), tail = sizeof pattern - 1;
    const char *slash = strrchr(path, '/'), *p;
    if (n < tail || (slash && slash + 1 > path + n - tail)) return false;
    p = path + n - tail;
    for (size_t i = 0; i < tail; i++)
        if (pattern[i] == '0' ? p[i] < '0' || p[i] > '9' : p[i] != pattern[i]) return false;
    *stem = n - tail;
    *number = strtoull(p + 1, NULL, 10);
    *count = strtoull(p + 10, NULL, 10);
    return true;
}

static bool same_value(const meta *a, const meta *b) {
    if (a->kind != b->kind || a->item != b->item || a->n != b->n) return false;
    if (a->kind == IG_GGUF_STRING) return memcmp(a->value, b->value, (size_t)a->n) == 0;
    if (a->kind != IG_GGUF_ARRAY) return memcmp(a->value, b->value, kind_bytes[a->kind]) == 0;
    if (a->item != IG_GGUF_STRING) return memcmp(a->value, b->value, (size_t)a->n * kind_bytes[a->item]) == 0;
    bool same = true;
    for (uint64_t i = 0; i < a->n && same; i++) same = ig_slice_eq(a->strings[i], b->strings[i]);
    return same;
}

/* Later parts have keys of their own about the file they are; what else they say is what the first one says. */
static ig_status check_same_keys(const ig_gguf *g, const ig_gguf *first, ig_err *err) {
    for (int i = 0; i < g->n_keys; i++) {
        const meta *m = &g->keys[i];
        if (m->name.n > 6 && memcmp(m->name.p, "split.", 6) == 0) continue;
        if (ig_slice_eq_str(m->name, "general.alignment")) continue;
        const meta *its = find_name(first, m->name);
        if (!its || !same_value(m, its))
            return ig_fail(err, IG_EFORMAT, "%s: from another model than %s: key %s %s there", g->shown,
                           first->shown, ig_file_show(m->name).s, its ? "is another" : "is not");
    }
    return IG_OK;
}

/* Part i of the set that the first part, once there, describes; `one` is any part of it. */
static ig_status open_part(ig_gguf **out, const ig_gguf *first, const ig_gguf *one, size_t stem, uint64_t i,
                           ig_err *err) {
    char *path = NULL;
    ig_gguf *g = NULL;
    if (asprintf(&path, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)stem, one->path, i + 1,
                 one->split_count) < 0)
        return ig_fail(err, IG_ELIMIT, "no memory for a path");
    ig_status st = open_file(&g, path, err);
    if (st == IG_ENOTFOUND)
        st = ig_fail(err, IG_ENOTFOUND, "%s: part %" PRIu64 " of %" PRIu64 " is missing: %s", one->shown,
                     i + 1, one->split_count, path);
    free(path);
    if (st) return st;
    const ig_gguf *other = first ? first : one;
    if (g->split_no != i)
        st = ig_fail(err, IG_EFORMAT, "%s: by its name part %" PRIu64 ", inside part %" PRIu64, g->shown, i + 1,
                     g->split_no + 1);
    else if (g->split_count != other->split_count)
        st = ig_fail(err, IG_EFORMAT, "%s: one of %" PRIu64 " parts by split.count, of %" PRIu64 " by its name",
                     g->shown, g->split_count, other->split_count);
    else if (g->split_tensors != other->split_tensors)
        st = ig_fail(err, IG_EFORMAT,
                     "%s: from another model than %s: split.tensors.count is %" PRIu64 " and not %" PRIu64,
                     g->shown, other->shown, g->split_tensors, other->split_tensors);
    else if (first)
        st = check_same_keys(g, first, err);
    if (st)
        ig_gguf_close(g);
    else
        *out = g;
    return st;
}

/* All tensors into the first part, which then is the model. */
static ig_status join_parts(ig_gguf *g, ig_err *err) {
    uint64_t n = (uint64_t)g->n_tensors;
    for (int i = 0; i < g->n_parts; i++) n += (uint64_t)g->parts[i]->n_tensors;
    if (n != g->split_tensors || n > TENSORS_MAX)
        return ig_fail(err, IG_EFORMAT,
                       "%s: its %" PRIu64 " parts have %" PRIu64 " tensors, split.tensors.count is %" PRIu64
                       ", limit %d",
                       g->shown, g->split_count, n, g->split_tensors, TENSORS_MAX);
    ig_gguf_tensor *all = calloc((size_t)n + 1, sizeof *all);
    const ig_gguf_tensor **by_name = calloc((size_t)n + 1, sizeof *by_name);
    if (!all || !by_name) {
        free(all), free(by_name);
        return ig_fail(err, IG_ELIMIT, "%s: no memory for %" PRIu64 " tensors", g->shown, n);
    }
    memcpy(all, g->tensors, (size_t)g->n_tensors * sizeof *all);
    for (int i = 0; i < g->n_parts; i++) {
        memcpy(all + g->n_tensors, g->parts[i]->tensors, (size_t)g->parts[i]->n_tensors * sizeof *all);
        g->n_tensors += g->parts[i]->n_tensors;
    }
    free(g->tensors), free(g->tensor_by_name);
    g->tensors = all, g->tensor_by_name = by_name;
    for (int i = 0; i < g->n_tensors; i++) by_name[i] = &all[i];
    qsort(by_name, (size_t)g->n_tensors, sizeof *by_name, by_tensor_name);
    for (int i = 1; i < g->n_tensors; i++)
        if (by_tensor_name(&by_name[i - 1], &by_name[i]) == 0)
            return ig_fail(err, IG_EFORMAT, "%s: tensor %s is also in %s", by_name[i]->file->shown,
                           ig_file_show(by_name[i]->name).s, by_name[i - 1]->file->shown);
    return IG_OK;
}

/* `one` is any part. */
static ig_status open_parts(ig_gguf **out, const ig_gguf *one, ig_err *err) {
    size_t stem = 0;
    uint64_t number = 0, count = 0;
    ig_gguf *g = NULL;
    if (!is_part_name(one->path, &stem, &number, &count))
        return ig_fail(err, IG_EFORMAT,
                       "%s: part %" PRIu64 " of %" PRIu64 " of a model, whose names must end in "
                       "-%05" PRIu64 "-of-%05" PRIu64 ".gguf for the parts to find each other",
                       one->shown, one->split_no + 1, one->split_count, one->split_no + 1, one->split_count);
    if (count != one->split_count || number != one->split_no + 1)
        return ig_fail(err, IG_EFORMAT,
                       "%s: by its name part %" PRIu64 " of %" PRIu64 ", inside part %" PRIu64 " of %" PRIu64,
                       one->shown, number, count, one->split_no + 1, one->split_count);
    ig_status st = open_part(&g, NULL, one, stem, 0, err);
    if (st) return st;
    g->parts = calloc((size_t)count, sizeof *g->parts);
    if (!g->parts) st = ig_fail(err, IG_ELIMIT, "%s: no memory for %" PRIu64 " parts", g->shown, count);
    for (uint64_t i = 1; !st && i < count; i++) {
        st = open_part(&g->parts[g->n_parts], g, one, stem, i, err);
        if (!st) g->n_parts++;
    }
    if (!st) st = join_parts(g, err);
    if (st)
        ig_gguf_close(g);
    else
        *out = g;
    return st;
}

ig_status ig_gguf_open(ig_gguf **out, const char *path, ig_err *err) {
    ig_gguf *g = NULL;
    ig_status st = open_file(&g, path, err);
    if (!st && g->split_count > 1) {
        ig_gguf *one = g;
        g = NULL;
        st = open_parts(&g, one, err);
        ig_gguf_close(one);
    }
    if (!st) *out = g;
    return st;
}

void ig_gguf_close(ig_gguf *g) {
    if (!g) return;
    for (int i = 0; i < g->n_parts; i++) ig_gguf_close(g->parts[i]);
    free(g->parts);
    for (int i = 0; i < g->n_keys; i++) free(g->keys[i].strings);
    free(g->keys);
    free(g->key_by_name);
    free(g->tensors);
    free(g->tensor_by_name);
    free(g->head);
    free(g->path);
    if (g->fd >= 0) close(g->fd);
    free(g);
}

const char *ig_gguf_path(const ig_gguf *g) {
    return g->path;
}

uint64_t ig_gguf_file_bytes(const ig_gguf *g) {
    uint64_t n = g->file_bytes;
    for (int i = 0; i < g->n_parts; i++) n += g->parts[i]->file_bytes;
    return n;
}

int ig_gguf_n_files(const ig_gguf *g) {
    return 1 + g->n_parts;
}

/* ---- asking for metadata ------------------------------------------------------------------------------- */

/* Item i of values of a number kind: whole ones as u64 (two's complement), others as f64. */
static bool load_whole(ig_gguf_kind kind, const uint8_t *v, uint64_t i, uint64_t *out) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
    } x;
    switch (kind) {
    case IG_GGUF_U8:
    case IG_GGUF_BOOL: *out = v[i]; return true;
    case IG_GGUF_I8:
        memcpy(&x, v + i, 1);
        *out = (uint64_t)(int64_t)x.i8;
        return true;
    case IG_GGUF_U16:
        memcpy(&x, v + 2 * i, 2);
        *out = x.u16;
        return true;
    case IG_GGUF_I16:
        memcpy(&x, v + 2 * i, 2);
        *out = (uint64_t)(int64_t)x.i16;
        return true;
    case IG_GGUF_U32:
        memcpy(&x, v + 4 * i, 4);
        *out = x.u32;
        return true;
    case IG_GGUF_I32:
        memcpy(&x, v + 4 * i, 4);
        *out = (uint64_t)(int64_t)x.i32;
        return true;
    case IG_GGUF_U64:
    case IG_GGUF_I64:
        memcpy(&x, v + 8 * i, 8);
        *out = x.u64;
        return true;
    default: return false;
    }
}

static bool is_signed(ig_gguf_kind kind) {
    return kind == IG_GGUF_I8 || kind == IG_GGUF_I16 || kind == IG_GGUF_I32 || kind == IG_GGUF_I64;
}

static bool load_real(ig_gguf_kind kind, const uint8_t *v, uint64_t i, double *out) {
    uint64_t whole;
    float f;
    if (kind == IG_GGUF_F32) {
        memcpy(&f, v + 4 * i, 4);
        *out = (double)f;
        return true;
    }
    if (kind == IG_GGUF_F64) {
        memcpy(out, v + 8 * i, 8);
        return true;
    }
    if (kind == IG_GGUF_BOOL || !load_whole(kind, v, i, &whole)) return false;
    *out = is_signed(kind) ? (double)(int64_t)whole : (double)whole;
    return true;
}

static ig_status want_key(const ig_gguf *g, const char *key, const meta **out, ig_err *err) {
    *out = find_key(g, key);
    return *out ? IG_OK : ig_fail(err, IG_ENOTFOUND, "%s: no key %s", g->shown, key);
}

static ig_status wrong_kind(const ig_gguf *g, const meta *m, const char *wanted, ig_err *err) {
    return ig_fail(err, IG_EFORMAT, "%s: key %s is of kind %s, not %s", g->shown, ig_file_show(m->name).s,
                   kind_names[m->kind], wanted);
}

ig_status ig_gguf_get_u64(const ig_gguf *g, const char *key, uint64_t *out, ig_err *err) {
    const meta *m;
    uint64_t v;
    ig_status st = want_key(g, key, &m, err);
    if (st) return st;
    if (m->kind == IG_GGUF_BOOL || !load_whole(m->kind, m->value, 0, &v))
        return wrong_kind(g, m, "a whole number", err);
    if (is_signed(m->kind) && (int64_t)v < 0)
        return ig_fail(err, IG_EFORMAT, "%s: key %s is %" PRId64 ", which is negative", g->shown, key,
                       (int64_t)v);
    *out = v;
    return IG_OK;
}

ig_status ig_gguf_get_f64(const ig_gguf *g, const char *key, double *out, ig_err *err) {
    const meta *m;
    ig_status st = want_key(g, key, &m, err);
    if (st) return st;
    return load_real(m->kind, m->value, 0, out) ? IG_OK : wrong_kind(g, m, "a number", err);
}

ig_status ig_gguf_get_bool(const ig_gguf *g, const char *key, bool *out, ig_err *err) {
    const meta *m;
    ig_status st = want_key(g, key, &m, err);
    if (st) return st;
    if (m->kind != IG_GGUF_BOOL) return wrong_kind(g, m, "bool", err);
    *out = m->value[0] != 0;
    return IG_OK;
}

ig_status ig_gguf_get_string(const ig_gguf *g, const char *key, ig_slice *out, ig_err *err) {
    const meta *m;
    ig_status st = want_key(g, key, &m, err);
    if (st) return st;
    if (m->kind != IG_GGUF_STRING) return wrong_kind(g, m, "string", err);
    *out = (ig_slice){(const char *)m->value, (size_t)m->n};
    return IG_OK;
}

ig_status ig_gguf_get_array(const ig_gguf *g, const char *key, ig_gguf_array *out, ig_err *err) {
    const meta *m;
    ig_status st = want_key(g, key, &m, err);
    if (st) return st;
    if (m->kind != IG_GGUF_ARRAY) return wrong_kind(g, m, "array", err);
    *out = (ig_gguf_array){.kind = m->item, .n = m->n, .bytes = m->value, .strings = m->strings};
    return IG_OK;
}

uint64_t ig_gguf_array_u64(const ig_gguf_array *a, uint64_t i) {
    uint64_t v;
    ig_assert(i < a->n);
    return load_whole(a->kind, a->bytes, i, &v) ? v : UINT64_MAX;
}

double ig_gguf_array_f64(const ig_gguf_array *a, uint64_t i) {
    double v;
    ig_assert(i < a->n);
    return load_real(a->kind, a->bytes, i, &v) ? v : __builtin_nan("");
}

int ig_gguf_n_keys(const ig_gguf *g) {
    return g->n_keys;
}

ig_slice ig_gguf_key(const ig_gguf *g, int i, ig_gguf_kind *kind) {
    ig_assert(i >= 0 && i < g->n_keys);
    if (kind) *kind = g->keys[i].kind;
    return g->keys[i].name;
}

/* ---- asking for tensors -------------------------------------------------------------------------------- */

int ig_gguf_n_tensors(const ig_gguf *g) {
    return g->n_tensors;
}

const ig_gguf_tensor *ig_gguf_tensor_at(const ig_gguf *g, int i) {
    ig_assert(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

const ig_gguf_tensor *ig_gguf_find(const ig_gguf *g, const char *name) {
    ig_slice wanted = ig_slice_of(name);
    for (int lo = 0, hi = g->n_tensors; lo < hi;) {
        int mid = lo + (hi - lo) / 2, d = ig_file_name_order(wanted, g->tensor_by_name[mid]->name);
        if (d == 0) return g->tensor_by_name[mid];
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

ig_status ig_gguf_read(const ig_gguf *g, const ig_gguf_tensor *t, uint64_t from, void *out, size_t n,
                       ig_err *err) {
    (void)g;
    const ig_file_part part = {t->file->fd, t->file->path, t->name, t->offset, t->n_bytes};
    return ig_file_read_part(out, n, &part, from, err);
}
