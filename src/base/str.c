/* str: slices, growable buffers with a maximum, token lists.
 * Owns:    the memory of a buffer or list, from its first add to its free.
 * Threads: one buffer, one thread.
 * Memory:  malloc, at least doubled on growth, never past the maximum the buffer was born with.
 * Why a failed add changes nothing: the caller reports the limit and can still use what was there. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ig_slice_eq(ig_slice a, ig_slice b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool ig_slice_eq_str(ig_slice a, const char *s) {
    return ig_slice_eq(a, ig_slice_of(s));
}

/* Length of the well-formed sequence at s (Unicode table 3-7), or 0. The second byte's range is what
 * keeps out overlong forms (E0, F0), surrogates (ED) and values past U+10FFFF (F4). */
static size_t utf8_sequence(const uint8_t *s, size_t n) {
    uint8_t lead = s[0], lo = 0x80, hi = 0xBF;
    size_t len = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;

    if (len < 2) return len;
    if (len > n) return 0;
    if (lead == 0xE0) lo = 0xA0;
    if (lead == 0xED) hi = 0x9F;
    if (lead == 0xF0) lo = 0x90;
    if (lead == 0xF4) hi = 0x8F;
    if (s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < len; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return len;
}

bool ig_slice_utf8_valid(ig_slice s, size_t *bad_at) {
    const uint8_t *p = (const uint8_t *)s.p;
    size_t i = 0;
    while (i < s.n) {
        uint64_t word; /* text is mostly ASCII: eight bytes at a time */
        if (s.n - i >= sizeof word) {
            memcpy(&word, p + i, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof word;
                continue;
            }
        }
        size_t len = utf8_sequence(p + i, s.n - i);
        if (len == 0) {
            if (bad_at) *bad_at = i;
            return false;
        }
        i += len;
    }
    return true;
}

/* In UTF-8 all of these are three bytes that begin with E2: U+2028 and U+2029 end lines, U+202A..202E and
 * U+2066..2069 make what follows read backwards, so that a name can look like another. */
static bool is_separator_or_turn(const uint8_t *s) {
    return s[0] == 0xE2 &&
           ((s[1] == 0x80 && s[2] >= 0xA8 && s[2] <= 0xAE) || (s[1] == 0x81 && s[2] >= 0xA6 && s[2] <= 0xA9));
}

size_t ig_utf8_printable(const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    size_t len = utf8_sequence(p, n);
    if (len == 1) return p[0] >= 0x20 && p[0] != 0x7F;
    if (len == 2 && p[0] == 0xC2 && p[1] < 0xA0) return 0;
    return len == 3 && is_separator_or_turn(p) ? 0 : len;
}

void ig_text_calm(char *text, bool keep_newlines) {
    const char *from = text, *end = text + strlen(text);
    char *to = text;
    while (from < end) {
        size_t left = (size_t)(end - from), len = utf8_sequence((const uint8_t *)from, left);
        if (ig_utf8_printable(from, left)) {
            memmove(to, from, len);
            to += len;
        } else {
            bool is_newline = *from == '\n', is_blank = is_newline || *from == '\t' || *from == '\r';
            *to++ = is_newline && keep_newlines ? '\n' : is_blank ? ' ' : '?';
        }
        from += len > 0 ? len : 1;
    }
    *to = '\0';
}

bool ig_buf_reserve(ig_buf *b, size_t more) {
    if (more > b->n_max - b->n) return false;
    size_t need = b->n + more;
    if (need == SIZE_MAX) return false;
    if (need < b->cap) return true;

    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap <= need) cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
    if (cap - 1 > b->n_max) cap = b->n_max + 1;
    char *p = realloc(b->p, cap);
    if (!p) return false;
    b->p = p;
    b->cap = cap;
    return true;
}

bool ig_buf_add(ig_buf *b, const void *bytes, size_t n) {
    if (!ig_buf_reserve(b, n)) return false;
    if (n > 0) memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = '\0';
    return true;
}

bool ig_buf_add_str(ig_buf *b, const char *s) {
    return ig_buf_add(b, s, strlen(s));
}

bool ig_buf_addf(ig_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !ig_buf_reserve(b, (size_t)n)) return false;

    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return true;
}

void ig_buf_clear(ig_buf *b) {
    b->n = 0;
    if (b->p) b->p[0] = '\0';
}

void ig_buf_free(ig_buf *b) {
    free(b->p);
    *b = ig_buf_init(b->n_max);
}

bool ig_tokens_add(ig_tokens *t, uint32_t id) {
    size_t n_max = t->n_max ? t->n_max : SIZE_MAX / sizeof *t->v;
    if (t->n >= n_max) return false;
    if (t->n == t->cap) {
        size_t cap = t->cap > n_max / 2 ? n_max : t->cap < 32 ? 64 : t->cap * 2;
        if (cap > n_max) cap = n_max;
        uint32_t *v = cap > SIZE_MAX / sizeof *v ? NULL : realloc(t->v, cap * sizeof *v);
        if (!v) return false;
        t->v = v;
        t->cap = cap;
    }
    t->v[t->n++] = id;
    return true;
}

void ig_tokens_free(ig_tokens *t) {
    free(t->v);
    *t = (ig_tokens){.n_max = t->n_max};
}

ig_size_text ig_size_text_of(uint64_t bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    ig_size_text t;
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    snprintf(t.s, sizeof t.s,
             u == 0 || v >= 99.95 ? "%.0f %s"
             : v >= 9.995         ? "%.1f %s"
                                  : "%.2f %s",
             v, units[u]);
    return t;
}
