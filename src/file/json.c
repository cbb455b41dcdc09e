/* json: yyjson with our limits and our messages.
 * Threads: any. Memory: yyjson's malloc, at most a small multiple of the text; one more copy of the text
 *          only when it holds a lone surrogate escape.
 * Why a scan before the parser: it bounds the depth, so that whoever walks the document may recurse, and
 * it finds the lone surrogates, which JSON.parse and Python accept and yyjson does not. \udXXX and \uFFFD
 * have the same length, so offsets in messages stay true. */
#include "file/file.h"

#include <stdlib.h>
#include <string.h>

static int hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The UTF-16 unit escaped at p ("\uXXXX"), -1 when there is none. */
static int unit_at(const char *p, const char *end) {
    return end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? hex4(p + 2) : -1;
}

/* Walks the string whose opening quote is before p. Returns the place after its closing quote (or end);
 * the lone surrogates are counted in *n_lone, and overwritten when `fix` is the same text, writable. */
static const char *skip_string(const char *p, const char *end, const char *text, char *fix, size_t *n_lone) {
    while (p < end && *p != '"') {
        if (*p != '\\') {
            p++;
            continue;
        }
        int unit = unit_at(p, end);
        if (unit < 0xd800 || unit > 0xdfff) {
            p += end - p >= 2 ? 2 : 1;
            continue;
        }
        int next = unit < 0xdc00 ? unit_at(p + 6, end) : -1;
        if (next >= 0xdc00 && next <= 0xdfff) {
            p += 12;
            continue;
        }
        ++*n_lone;
        if (fix) memcpy(fix + (p - text), "\\uFFFD", 6);
        p += 6;
    }
    return p < end ? p + 1 : end;
}

/* False: deeper than depth_max, *at says where. */
static bool scan(const char *text, size_t n, int depth_max, char *fix, size_t *n_lone, size_t *at) {
    const char *p = text, *end = text + n;
    int depth = 0;
    while (p < end) {
        switch (*p++) {
        case '"': p = skip_string(p, end, text, fix, n_lone); break;
        case '[':
        case '{':
            if (++depth > depth_max) {
                *at = (size_t)(p - 1 - text);
                return false;
            }
            break;
        case ']':
        case '}': depth--; break;
        default: break;
        }
    }
    return true;
}

ig_status ig_json_parse(yyjson_doc **out, const char *text, size_t n, ig_json_limits limits, ig_err *err) {
    char *fixed = NULL;
    size_t n_lone = 0, at = 0, bom = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    yyjson_read_err why;

    if (n > limits.bytes_max)
        return ig_fail(err, IG_ELIMIT, "JSON of %zu bytes, limit %zu", n, limits.bytes_max);
    if (n == bom) return ig_fail(err, IG_EFORMAT, "JSON: empty");
    text += bom;
    n -= bom;
    if (!scan(text, n, limits.depth_max, NULL, &n_lone, &at))
        return ig_fail(err, IG_EFORMAT, "JSON: nested deeper than %d at byte %zu", limits.depth_max,
                       at + bom);
    if (n_lone) {
        fixed = malloc(n);
        if (!fixed) return ig_fail(err, IG_ELIMIT, "JSON: no memory for %zu bytes", n);
        memcpy(fixed, text, n);
        scan(text, n, limits.depth_max, fixed, &n_lone, &at);
    }
    /* Without YYJSON_READ_INSITU the text is only read; the cast is the library's signature. */
    yyjson_doc *doc =
        yyjson_read_opts(fixed ? fixed : (char *)(uintptr_t)text, n, YYJSON_READ_NOFLAG, NULL, &why);
    free(fixed);
    if (!doc && why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return ig_fail(err, IG_ELIMIT, "JSON: no memory for a text of %zu bytes", n);
    if (!doc) return ig_fail(err, IG_EFORMAT, "JSON: %s at byte %zu", why.msg, why.pos + bom);
    *out = doc;
    return IG_OK;
}

/* yyjson says for every part that is added whether there was memory for it; one look at the end is enough. */
static void *noting(void *p, void *lost) {
    if (!p) *(bool *)lost = true;
    return p;
}
static void *alc_malloc(void *lost, size_t n) {
    return noting(malloc(n), lost);
}
static void *alc_realloc(void *lost, void *p, size_t n_before, size_t n) {
    (void)n_before;
    return noting(realloc(p, n), lost);
}
static void alc_free(void *lost, void *p) {
    (void)lost;
    free(p);
}

yyjson_mut_doc *ig_json_doc_make(bool *lost) {
    const yyjson_alc alc = {alc_malloc, alc_realloc, alc_free, lost};
    *lost = false;
    return yyjson_mut_doc_new(&alc);
}

yyjson_mut_val *ig_json_bytes(yyjson_mut_doc *doc, const char *p, size_t n) {
    static const char replacement[] = "\xef\xbf\xbd";
    size_t bad = 0;
    if (ig_slice_utf8_valid((ig_slice){p, n}, &bad)) return yyjson_mut_strncpy(doc, p, n);
    if (n > SIZE_MAX / 4) return NULL;
    ig_buf out = ig_buf_init(3 * n);
    bool good = ig_buf_reserve(&out, 3 * n);
    while (good && n > 0) {
        bool valid = ig_slice_utf8_valid((ig_slice){p, n}, &bad);
        size_t n_good = valid ? n : bad, n_bad = valid ? 0 : 1;
        good = ig_buf_add(&out, p, n_good) && (valid || ig_buf_add_str(&out, replacement));
        p += n_good + n_bad;
        n -= n_good + n_bad;
    }
    yyjson_mut_val *made = good ? yyjson_mut_strncpy(doc, out.p, out.n) : NULL;
    ig_buf_free(&out);
    return made;
}

bool ig_json_add_bytes(yyjson_mut_doc *doc, yyjson_mut_val *obj, const char *key, const char *text) {
    return yyjson_mut_obj_add_val(doc, obj, key, ig_json_bytes(doc, text, strlen(text)));
}

yyjson_val *ig_json_get(yyjson_val *obj, const char *key) {
    yyjson_val *found = NULL, *name;
    size_t n = strlen(key), i, count;
    yyjson_val *value;
    if (!yyjson_is_obj(obj)) return NULL;
    yyjson_obj_foreach(obj, i, count, name, value) {
        if (yyjson_equals_strn(name, key, n)) found = value;
    }
    return yyjson_is_null(found) ? NULL : found;
}

bool ig_json_number(yyjson_val *v, double *out) {
    static const struct {
        const char *text;
        double value;
    } tagged[] = {{"Infinity", __builtin_inf()}, {"-Infinity", -__builtin_inf()}, {"NaN", __builtin_nan("")}};
    if (yyjson_is_num(v)) {
        *out = yyjson_get_num(v);
        return true;
    }
    yyjson_val *tag = ig_json_get(v, "__float__");
    for (size_t i = 0; tag && i < sizeof tagged / sizeof *tagged; i++) {
        if (!yyjson_equals_str(tag, tagged[i].text)) continue;
        *out = tagged[i].value;
        return true;
    }
    return false;
}
