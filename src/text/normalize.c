/* normalize: what a tokenizer does to a text before it is cut into words.
 * Owns:    the steps.
 * Threads: read-only once made.
 * Memory:  malloc; a text may grow by a step, to TEXT_BYTES_MAX at most.
 * A step that finds nothing to do does not copy: most text is in normal form already. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    STEPS_MAX = 16,
    CONTENT_BYTES_MAX = 256,
    TEXT_BYTES_MAX = 1 << 30,
    /* To how many times its length a text may grow, and what is always allowed: a form makes at most 11 bytes
     * of one, a blank becomes 3 bytes. Steps that multiply could make a gigabyte of a word. */
    GROWTH_MAX = 16,
    GROWTH_BYTES_FREE = 64 << 10,
    MARKS_FROM = 0x300, /* no mark, nor what composes with the character before it, is below */
    PARTS_FROM = 0xA0,  /* nor, below this one, anything that has parts */
    PARTS_MAX = 32,     /* of one character; 18 is the most there is */
    CLASSES = 256,      /* combining classes */
    FEW_MARKS = 32,
    PIECE_CHARS = 4096  /* gathered before they go out, at the next good place */
};

enum kind { FORM, PREPEND, REPLACE, REPLACE_MATCHES, LOWERCASE, STRIP };

struct step {
    enum kind kind;
    int form;       /* UTF8PROC_ flags */
    ig_slice a, b;  /* PREPEND: a; REPLACE: a by b; owned */
    ig_regex *regex;
    bool left, right;
};

struct ig_normal {
    struct step step[STEPS_MAX];
    int n;
};

ig_normal *ig_normal_make(void) {
    return calloc(1, sizeof(ig_normal));
}

void ig_normal_free(ig_normal *n) {
    if (!n) return;
    for (int i = 0; i < n->n; i++) {
        free((char *)n->step[i].a.p);
        free((char *)n->step[i].b.p);
        ig_regex_free(n->step[i].regex);
    }
    free(n);
}

/* ---- making ----------------------------------------------------------------------------------------- */

static ig_status copy_text(ig_slice *out, ig_slice text, const char *what, ig_err *err) {
    if (text.n > CONTENT_BYTES_MAX)
        return ig_fail(err, IG_EFORMAT, "normalizer %s: text of %zu bytes, limit %d", what, text.n,
                       CONTENT_BYTES_MAX);
    char *p = malloc(text.n + 1);
    if (!p) return ig_fail(err, IG_ELIMIT, "normalizer: no memory");
    if (text.n > 0) memcpy(p, text.p, text.n);
    *out = (ig_slice){p, text.n};
    return IG_OK;
}

/* A step of that kind, counted at once so that what it owns is freed with the rest. */
static struct step *next_step(ig_normal *n, enum kind kind, ig_err *err) {
    if (n->n == STEPS_MAX) {
        ig_fail(err, IG_EFORMAT, "normalizer of over %d steps", STEPS_MAX);
        return NULL;
    }
    struct step *s = &n->step[n->n++];
    s->kind = kind;
    return s;
}

static ig_status add_form(ig_normal *n, int form, ig_err *err) {
    struct step *s = next_step(n, FORM, err);
    if (!s) return IG_EFORMAT;
    s->form = form | UTF8PROC_STABLE;
    return IG_OK;
}

ig_status ig_normal_add_nfc(ig_normal *n, ig_err *err) {
    return add_form(n, UTF8PROC_COMPOSE, err);
}

ig_status ig_normal_add_prepend(ig_normal *n, ig_slice text, ig_err *err) {
    struct step *s = next_step(n, PREPEND, err);
    return s ? copy_text(&s->a, text, "Prepend", err) : IG_EFORMAT;
}

ig_status ig_normal_add_replace(ig_normal *n, ig_slice from, ig_slice to, ig_err *err) {
    if (from.n == 0) return ig_fail(err, IG_EFORMAT, "normalizer Replace: an empty pattern");
    struct step *s = next_step(n, REPLACE, err);
    if (!s) return IG_EFORMAT;
    ig_status st = copy_text(&s->a, from, "Replace", err);
    return st ? st : copy_text(&s->b, to, "Replace", err);
}

static ig_slice string_of(yyjson_val *v) {
    return yyjson_is_str(v) ? (ig_slice){yyjson_get_str(v), yyjson_get_len(v)} : (ig_slice){0};
}

static ig_status add_replace(ig_normal *n, yyjson_val *v, ig_err *err) {
    yyjson_val *pattern = ig_json_get(v, "pattern"), *content = ig_json_get(v, "content");
    ig_slice text = string_of(ig_json_get(pattern, "String")),
             regex = string_of(ig_json_get(pattern, "Regex"));
    if (!yyjson_is_str(content)) return ig_fail(err, IG_EFORMAT, "normalizer Replace: no content");
    if (text.p) return ig_normal_add_replace(n, text, string_of(content), err);
    if (!regex.p) return ig_fail(err, IG_EFORMAT, "normalizer Replace: no pattern");
    struct step *s = next_step(n, REPLACE_MATCHES, err);
    if (!s) return IG_EFORMAT;
    ig_status st = copy_text(&s->b, string_of(content), "Replace", err);
    return st ? st : ig_regex_make(&s->regex, regex, err);
}

static ig_status add_strip(ig_normal *n, yyjson_val *v, ig_err *err) {
    struct step *s = next_step(n, STRIP, err);
    if (!s) return IG_EFORMAT;
    s->left = yyjson_is_true(ig_json_get(v, "strip_left"));
    s->right = yyjson_is_true(ig_json_get(v, "strip_right"));
    return IG_OK;
}

static ig_status add_json(ig_normal *n, yyjson_val *v, int depth, ig_err *err) {
    static const struct { const char *name; int form; } forms[] = {
        {"NFC", UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    ig_slice type = string_of(ig_json_get(v, "type"));
    if (!type.p) return ig_fail(err, IG_EFORMAT, "normalizer without a type");
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (ig_slice_eq_str(type, forms[i].name)) return add_form(n, forms[i].form, err);
    if (ig_slice_eq_str(type, "Replace")) return add_replace(n, v, err);
    if (ig_slice_eq_str(type, "Strip")) return add_strip(n, v, err);
    if (ig_slice_eq_str(type, "Lowercase")) return next_step(n, LOWERCASE, err) ? IG_OK : IG_EFORMAT;
    if (ig_slice_eq_str(type, "Prepend")) {
        ig_slice text = string_of(ig_json_get(v, "prepend"));
        if (!text.p) return ig_fail(err, IG_EFORMAT, "normalizer Prepend: nothing to prepend");
        return ig_normal_add_prepend(n, text, err);
    }
    if (ig_slice_eq_str(type, "Sequence")) {
        yyjson_val *list = ig_json_get(v, "normalizers"), *item;
        size_t i, max;
        ig_status st = IG_OK;
        if (!yyjson_is_arr(list)) return ig_fail(err, IG_EFORMAT, "normalizer Sequence: no list");
        if (depth == 4) return ig_fail(err, IG_EFORMAT, "normalizer: Sequences too deep");
        yyjson_arr_foreach(list, i, max, item)
            if ((st = add_json(n, item, depth + 1, err))) return st;
        return st;
    }
    return ig_fail(err, IG_EFORMAT, "normalizer \"%.*s\" is not supported",
                   (int)(type.n < 64 ? type.n : 64), type.p);
}

ig_status ig_normal_add_json(ig_normal *n, yyjson_val *normalizer, ig_err *err) {
    return add_json(n, normalizer, 0, err);
}

/* ---- the steps -------------------------------------------------------------------------------------- */

static ig_status full(const ig_buf *out, ig_err *err) {
    return ig_fail(err, IG_ELIMIT, "normalized text over %zu bytes, or no memory", out->n_max);
}

/* Characters that Unicode 9 does not normalise and later versions do, with the neighbours that none does: all
 * that 18.0 knows. By Unicode's own promise nothing else has changed since. */
static const struct { uint32_t from, to; } late[] = {
    {0x4FA, 0x586},     {0x588, 0x590},     {0x5C8, 0x60F},     {0x7F4, 0x815},     {0x85C, 0x8D3},
    {0x9E0, 0xA32},     {0xBD8, 0xC47},     {0xCD7, 0xD3D},     {0xEBA, 0xEC7},     {0xFAD, 0xFB8},
    {0x1715, 0x1733},   {0x1ABE, 0x1B05},   {0x1DF6, 0x1DFA},   {0x209D, 0x20A7},   {0x32FF, 0x32FF},
    {0xA771, 0xA7F7},   {0xA807, 0xA8C3},   {0xAB60, 0xABEC},   {0x1037B, 0x10A0C}, {0x10AE7, 0x11045},
    {0x11047, 0x1107E}, {0x112EB, 0x1133B}, {0x11375, 0x11441}, {0x11447, 0x114AF}, {0x1172C, 0x11C3E},
    {0x11C40, 0x16AEF}, {0x16B37, 0x1BC9D}, {0x1BC9F, 0x1D15D}, {0x1D245, 0x1D3FF}, {0x1D6A6, 0x1D6A7},
    {0x1D800, 0x1DFFF}, {0x1E02B, 0x1E8CF}, {0x1F16C, 0x1F18F}, {0x1F252, 0x2F7FF},
};
enum { N_LATE = sizeof late / sizeof *late, LATE_LEAD = 0xD3 /* of the first of them in UTF-8 */ };

static bool is_late(uint32_t c) {
    size_t low = 0, high = N_LATE;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > late[middle].to) low = middle + 1;
        else high = middle;
    }
    return low < N_LATE && c >= late[low].from;
}

/* Where the first late character at or after `at` begins; *next: where it ends. None: text.n for both. */
static size_t find_late(ig_slice text, size_t at, size_t *next) {
    size_t len;
    for (; at < text.n; at += len) {
        len = 1;
        if ((uint8_t)text.p[at] < LATE_LEAD) continue;
        (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
        *next = at + len;
        if (is_late(ig_char_at((const uint8_t *)text.p + at, len))) return at;
    }
    return *next = text.n;
}

/* Characters of a text on their way into a form. */
struct chars {
    utf8proc_int32_t *c, *spare; /* one more than cap: utf8proc ends a text with a NUL */
    size_t n, cap, cap_spare;
};

static void chars_free(struct chars *a) {
    free(a->c);
    free(a->spare);
}

static bool chars_reserve(utf8proc_int32_t **c, size_t *cap, size_t n) {
    if (n <= *cap) return true;
    size_t more = *cap * 2 > n ? *cap * 2 : n;
    utf8proc_int32_t *grown = realloc(*c, (more + 1) * sizeof *grown);
    if (!grown) return false;
    *c = grown;
    *cap = more;
    return true;
}

static int class_of(utf8proc_int32_t c) {
    return c < MARKS_FROM ? 0 : utf8proc_get_property(c)->combining_class;
}

/* A few marks: each goes behind the last one of its class or a lower one. */
static void sort_few(utf8proc_int32_t *c, size_t n) {
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t moved = c[i];
        int of = class_of(moved);
        size_t at = i;
        for (; at > 0 && class_of(c[at - 1]) > of; at--) c[at] = c[at - 1];
        c[at] = moved;
    }
}

/* Many: by counting. Both keep the order within a class. */
static void sort_many(utf8proc_int32_t *c, size_t n, utf8proc_int32_t *spare) {
    size_t place[CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++) place[class_of(c[i]) + 1]++;
    for (int i = 0; i < CLASSES; i++) place[i + 1] += place[i];
    for (size_t i = 0; i < n; i++) spare[place[class_of(c[i])]++] = c[i];
    memcpy(c, spare, n * sizeof *c);
}

/* Unicode's canonical ordering. utf8proc has it too, but exchanges neighbours: n * n steps for n marks, minutes
 * for a megabyte. */
static bool sort_marks(struct chars *a) {
    for (size_t at = 0, end; at < a->n; at = end + 1) {
        for (end = at; end < a->n && class_of(a->c[end]) != 0;) end++;
        if (end - at <= FEW_MARKS) {
            sort_few(a->c + at, end - at);
        } else {
            if (!chars_reserve(&a->spare, &a->cap_spare, end - at)) return false;
            sort_many(a->c + at, end - at, a->spare);
        }
    }
    return true;
}

/* What was gathered goes out in its form. */
static bool add_chars(struct chars *a, int form, ig_buf *out) {
    if (a->n == 0) return true;
    if (!sort_marks(a)) return false;
    utf8proc_ssize_t n = utf8proc_reencode(a->c, (utf8proc_ssize_t)a->n, form);
    a->n = 0;
    return n >= 0 && ig_buf_add(out, a->c, (size_t)n);
}

static bool decompose(struct chars *a, utf8proc_int32_t c, int form) {
    if (!chars_reserve(&a->c, &a->cap, a->n + PARTS_MAX)) return false;
    if (c < PARTS_FROM) {
        a->c[a->n++] = c;
        return true;
    }
    utf8proc_ssize_t n = utf8proc_decompose_char(c, a->c + a->n, PARTS_MAX, form, NULL);
    if (n < 0 || n > PARTS_MAX) return false;
    a->n += (size_t)n;
    return true;
}

/* Characters below MARKS_FROM begin anew: nothing is reordered or composed across the place before one. */
static bool add_form_of(struct chars *a, int form, ig_slice text, ig_buf *out) {
    for (size_t at = 0, len; at < text.n; at += len) {
        (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
        uint32_t c = ig_char_at((const uint8_t *)text.p + at, len);
        if (c < MARKS_FROM && a->n >= PIECE_CHARS && !add_chars(a, form, out)) return false;
        if (!decompose(a, (utf8proc_int32_t)c, form)) return false;
    }
    return add_chars(a, form, out);
}

/* Each step appends its result to *out, or leaves *same: nothing changes.
 * The reference normalises by the tables of Unicode 9, and merges were learnt on what it gave. So a late
 * character stands as it is and, being no mark there, ends what can be reordered or composed. */
static ig_status form(const struct step *s, ig_slice text, ig_buf *out, bool *same, ig_err *err) {
    /* Composing changes nothing below U+0300, compatibility below U+00A0, decomposing below U+00C0. */
    uint8_t low = !(s->form & UTF8PROC_COMPAT) ? (s->form & UTF8PROC_COMPOSE ? 0xCC : 0xC3) : 0xC2;
    *same = true;
    for (size_t i = 0; i < text.n && *same; i++) *same = (uint8_t)text.p[i] < low;
    if (*same) return IG_OK;
    struct chars a = {0};
    bool good = true;
    for (size_t at = 0, from, to; good && at < text.n; at = to) {
        from = find_late(text, at, &to);
        good = add_form_of(&a, s->form, (ig_slice){text.p + at, from - at}, out) &&
               ig_buf_add(out, text.p + from, to - from);
    }
    chars_free(&a);
    return good ? IG_OK : full(out, err);
}

static ig_status replace(const struct step *s, ig_slice text, ig_buf *out, bool *same, ig_err *err) {
    const char *at = text.p, *end = text.p + text.n;
    const char *hit = ig_find_text(at, end, s->a);
    *same = !hit;
    if (!hit) return IG_OK;
    for (; hit; hit = ig_find_text(at, end, s->a)) {
        if (!ig_buf_add(out, at, (size_t)(hit - at)) || !ig_buf_add(out, s->b.p, s->b.n))
            return full(out, err);
        at = hit + s->a.n;
    }
    return ig_buf_add(out, at, (size_t)(end - at)) ? IG_OK : full(out, err);
}

static ig_status replace_matches(const struct step *s, ig_regex_scratch *scratch, ig_slice text, ig_buf *out,
                                 bool *same, ig_err *err) {
    size_t done = 0, at = 0, from, to;
    *same = true;
    while (at <= text.n) {
        ig_status st = ig_regex_find(s->regex, scratch, text, at, &from, &to, err);
        if (st) return st;
        if (from == SIZE_MAX) break;
        bool follows = from == to && from == done && !*same; /* an empty match right behind another is none */
        if (!follows) {
            *same = false;
            if (!ig_buf_add(out, text.p + done, from - done) || !ig_buf_add(out, s->b.p, s->b.n))
                return full(out, err);
            done = to;
        }
        at = to;
        if (from == to) {
            size_t len = 1;
            if (at < text.n) (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
            at += len;
        }
    }
    if (*same) return IG_OK;
    return ig_buf_add(out, text.p + done, text.n - done) ? IG_OK : full(out, err);
}

static ig_status lowercase(ig_slice text, ig_buf *out, bool *same, ig_err *err) {
    *same = false;
    for (size_t at = 0, len; at < text.n; at += len) {
        (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
        uint32_t c = ig_char_at((const uint8_t *)text.p + at, len);
        utf8proc_uint8_t low[5];
        bool good;
        if (c == 0x130) { /* the one letter whose lower case is two characters */
            good = ig_buf_add(out, "i\xCC\x87", 3);
        } else {
            utf8proc_ssize_t n = utf8proc_encode_char(utf8proc_tolower((utf8proc_int32_t)c), low);
            good = ig_buf_add(out, low, (size_t)n);
        }
        if (!good) return full(out, err);
    }
    return IG_OK;
}

static ig_slice strip(const struct step *s, ig_slice text) {
    size_t len, from;
    while (s->left && text.n > 0) {
        (void)ig_utf8_next((const uint8_t *)text.p, text.n, &len);
        if (!ig_utf8_is_blank(ig_char_at((const uint8_t *)text.p, len))) break;
        text = (ig_slice){text.p + len, text.n - len};
    }
    while (s->right && text.n > 0 && ig_utf8_is_blank(ig_utf8_before(text, text.n, &from))) text.n = from;
    return text;
}

static ig_status prepend(const struct step *s, ig_slice text, ig_buf *out, bool *same, ig_err *err) {
    *same = text.n == 0;
    if (*same) return IG_OK;
    return ig_buf_add(out, s->a.p, s->a.n) && ig_buf_add(out, text.p, text.n) ? IG_OK : full(out, err);
}

ig_status ig_normal_apply(const ig_normal *n, ig_regex_scratch *scratch, ig_slice text, ig_buf *held,
                          ig_slice *out, ig_err *err) {
    const size_t n_max = text.n < TEXT_BYTES_MAX / GROWTH_MAX ? text.n * GROWTH_MAX + GROWTH_BYTES_FREE
                                                              : TEXT_BYTES_MAX;
    ig_buf made = ig_buf_init(n_max); /* the text is here, in *held, or the caller's */
    ig_status st = IG_OK;
    held->n_max = n_max;
    for (int i = 0; i < n->n && !st; i++) {
        const struct step *s = &n->step[i];
        bool same = true;
        ig_buf_clear(&made);
        switch (s->kind) {
        case FORM: st = form(s, text, &made, &same, err); break;
        case PREPEND: st = prepend(s, text, &made, &same, err); break;
        case REPLACE: st = replace(s, text, &made, &same, err); break;
        case REPLACE_MATCHES: st = replace_matches(s, scratch, text, &made, &same, err); break;
        case LOWERCASE: st = lowercase(text, &made, &same, err); break;
        case STRIP: text = strip(s, text); break;
        }
        if (same || st) continue;
        ig_buf swap = *held;
        *held = made;
        made = swap;
        text = (ig_slice){held->n ? held->p : "", held->n};
    }
    ig_buf_free(&made);
    *out = text;
    return st;
}
