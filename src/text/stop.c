/* stop: finds stop strings in text that comes in pieces.
 * Owns:    the strings, their failure tables and how far each has matched.
 * Threads: one matcher, one thread.
 * Memory:  one malloc, at most 16 strings of 512 bytes and a table of as many 16-bit numbers.
 * Why sixteen Knuth-Morris-Pratt machines and not one Aho-Corasick: no table over the alphabet for each
 * request, the bytes held back are the string itself, and requests have one or two strings. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    const char *p;
    const uint16_t *fail; /* fail[k]: longest proper prefix that is also a suffix of the first k bytes */
    uint16_t n, matched;
};

struct ig_stop {
    int n;
    int held; /* the pattern whose matched prefix is held back; -1: nothing is */
    bool done;
    struct pattern pattern[IG_STOP_STRINGS_MAX];
};

static void fill_fail(uint16_t *fail, const char *p, size_t n) {
    size_t k = 0;
    fail[0] = fail[1] = 0;
    for (size_t i = 1; i < n; i++) {
        while (k > 0 && p[i] != p[k]) k = fail[k];
        if (p[i] == p[k]) k++;
        fail[i + 1] = (uint16_t)k;
    }
}

ig_status ig_stop_make(ig_stop **out, const ig_slice *strings, int n, ig_err *err) {
    if (n < 0 || n > IG_STOP_STRINGS_MAX)
        return ig_fail(err, IG_EINVAL, "stop: %d strings, limit %d", n, IG_STOP_STRINGS_MAX);
    size_t n_bytes = 0;
    for (int i = 0; i < n; i++) {
        if (strings[i].n == 0 || strings[i].n > IG_STOP_BYTES_MAX)
            return ig_fail(err, IG_EINVAL, "stop[%d]: %zu bytes, must be 1 to %d", i, strings[i].n,
                           IG_STOP_BYTES_MAX);
        if (!ig_slice_utf8_valid(strings[i], NULL))
            return ig_fail(err, IG_EINVAL, "stop[%d] is not valid UTF-8", i);
        n_bytes += strings[i].n;
    }
    size_t n_fail = n_bytes + (size_t)n;
    ig_stop *s = malloc(sizeof *s + n_fail * sizeof(uint16_t) + n_bytes);
    if (!s) return ig_fail(err, IG_ELIMIT, "stop: no memory");
    *s = (ig_stop){.n = n, .held = -1};
    uint16_t *fail = (uint16_t *)(s + 1);
    char *bytes = (char *)(fail + n_fail);
    for (int i = 0; i < n; i++) {
        size_t len = strings[i].n;
        memcpy(bytes, strings[i].p, len);
        fill_fail(fail, bytes, len);
        s->pattern[i] = (struct pattern){.p = bytes, .fail = fail, .n = (uint16_t)len};
        bytes += len;
        fail += len + 1;
    }
    *out = s;
    return IG_OK;
}

void ig_stop_free(ig_stop *s) {
    free(s);
}

static size_t n_held(const ig_stop *s) {
    return s->held < 0 ? 0 : s->pattern[s->held].matched;
}

/* Moves every pattern on by one byte. The one that is complete (the longest of them) or -1; *longest is
 * the pattern with most bytes matched, or -1. */
static int step(ig_stop *s, char c, int *longest) {
    int hit = -1;
    *longest = -1;
    for (int i = 0; i < s->n; i++) {
        struct pattern *q = &s->pattern[i];
        size_t k = q->matched;
        while (k > 0 && q->p[k] != c) k = q->fail[k];
        if (q->p[k] == c) k++;
        q->matched = (uint16_t)k;
        if (k == q->n && (hit < 0 || q->n > s->pattern[hit].n)) hit = i;
        if (k > 0 && (*longest < 0 || k > s->pattern[*longest].matched)) *longest = i;
    }
    return hit;
}

bool ig_stop_feed(ig_stop *s, ig_slice text, ig_buf *out, int *which) {
    if (s->done) return true;
    if (s->n == 0) {
        ig_buf_add(out, text.p, text.n);
        return false;
    }
    size_t from = 0; /* text[from, i) is neither released nor held */
    for (size_t i = 0; i < text.n; i++) {
        int was_held = s->held;
        size_t n_was = n_held(s), longest_n;
        int longest, hit = step(s, text.p[i], &longest);
        longest_n = hit >= 0 ? s->pattern[hit].n : longest >= 0 ? s->pattern[longest].matched : 0;
        /* Pending: n_was held bytes, then text[from, i]. All but the last longest_n can go. */
        size_t pending = n_was + (i + 1 - from), go = pending - longest_n;
        if (hit >= 0 || longest_n > 0 || n_was > 0) {
            size_t of_held = go < n_was ? go : n_was;
            if (of_held > 0) ig_buf_add(out, s->pattern[was_held].p, of_held);
            if (go > of_held) ig_buf_add(out, text.p + from, go - of_held);
            from = i + 1;
        }
        s->held = longest;
        if (hit >= 0) {
            s->done = true;
            s->held = -1;
            if (which) *which = hit;
            return true;
        }
    }
    if (from < text.n) ig_buf_add(out, text.p + from, text.n - from);
    return false;
}

void ig_stop_finish(ig_stop *s, ig_buf *out) {
    if (s->held >= 0 && !s->done) ig_buf_add(out, s->pattern[s->held].p, n_held(s));
    s->held = -1;
    for (int i = 0; i < s->n; i++) s->pattern[i].matched = 0;
}
