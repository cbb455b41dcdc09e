/* repl_print: an answer on a screen, as it comes.
 * Owns:    nothing but where the line stands. Threads: one. Memory: the caller's buffer.
 * A word is printed at once, letter by letter, and taken back to the next line when it turns out not to
 * fit: a reader sees no delay, and no word is cut in two. The last column stays free, because terminals
 * differ in where the cursor is after it was written. */
#include "app/repl.h"

#include <string.h>
#include <utf8proc.h>

uint32_t ig_print_code_at(ig_slice s, size_t at, size_t *n) {
    utf8proc_int32_t c = -1;
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)s.p + at;
    utf8proc_ssize_t got = utf8proc_iterate(p, (utf8proc_ssize_t)(s.n - at), &c);
    *n = got > 0 ? (size_t)got : 1;
    return got > 0 ? (uint32_t)c : 0xfffd;
}

int ig_print_columns_of(uint32_t code) {
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return -1; /* escape sequences begin here */
    /* Marks that change the direction of what follows can make a text say something else. */
    if ((code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) return -1;
    if (code < 0x300) return 1;
    return utf8proc_charwidth((utf8proc_int32_t)code);
}

static bool new_line(ig_print *p, ig_buf *out) {
    p->column = p->n_word = p->word_columns = 0;
    return ig_buf_add_str(out, "\n");
}

/* The next character takes w columns that the line does not have. */
static bool break_line(ig_print *p, bool gap, ig_buf *out) {
    bool take = !gap && p->n_word > 0 && p->word_columns < p->column && p->word_columns <= p->columns / 2;
    char word[IG_PRINT_WORD_MAX];
    int n = p->n_word, columns = p->word_columns;
    if (!take) return new_line(p, out);
    memcpy(word, p->word, (size_t)n);
    if (!ig_buf_addf(out, "\x1b[%dD\x1b[K", columns) || !new_line(p, out)) return false;
    p->n_word = n;
    p->word_columns = p->column = columns;
    return ig_buf_add(out, word, (size_t)n);
}

static void see_line(ig_print *p, uint32_t c) {
    if (p->n_line >= 3 || (c == ' ' && !p->n_line)) return;
    p->line[p->n_line++] = c < 0x80 ? (char)c : '?';
    if (p->n_line == 3 && memcmp(p->line, "```", 3) == 0) p->in_code = !p->in_code;
}

/* Bytes of the colour sequence at s[at], 0: none. */
static size_t colour_bytes(ig_slice s, size_t at) {
    size_t n = 2;
    if (s.n - at < 3 || s.p[at] != 0x1b || s.p[at + 1] != '[') return 0;
    while (at + n < s.n && strchr("0123456789;", s.p[at + n]) && s.p[at + n]) n++;
    return at + n < s.n && s.p[at + n] == 'm' ? n + 1 : 0;
}

bool ig_print_text(ig_print *p, ig_slice text, ig_buf *out) {
    if (!p->columns) return ig_buf_add(out, text.p, text.n);
    int width = p->columns > 9 ? p->columns - 1 : 8;
    for (size_t i = 0, n; i < text.n; i += n) {
        uint32_t c = ig_print_code_at(text, i, &n);
        if (c == '\n') {
            p->n_line = 0;
            if (!new_line(p, out)) return false;
            continue;
        }
        size_t n_colour = p->colours ? colour_bytes(text, i) : 0;
        if (n_colour) {
            n = n_colour;
            if (!ig_buf_add(out, text.p + i, n)) return false;
            continue;
        }
        see_line(p, c);
        bool gap = c == ' ' || c == '\t';
        int w = c == '\t' ? 4 - p->column % 4 : ig_print_columns_of(c);
        const char *bytes = c == '\t' ? "    " : text.p + i;
        size_t n_bytes = c == '\t' ? (size_t)w : n;
        if (w < 0) {
            w = 1;
            bytes = "\xef\xbf\xbd";
            n_bytes = 3;
        }
        if (p->column + w > width) {
            if (p->in_code) {
                if (!new_line(p, out)) return false;
            } else {
                if (!break_line(p, gap, out)) return false;
                if (gap) continue; /* a line does not begin with the blank that ended the last one */
            }
        }
        if (!ig_buf_add(out, bytes, n_bytes)) return false;
        p->column += w;
        /* Scripts without blanks have wide letters: a line may end after each. */
        bool fits = p->n_word + (int)n_bytes <= IG_PRINT_WORD_MAX;
        if (gap || w == 2 || !fits) p->n_word = p->word_columns = 0;
        else {
            memcpy(p->word + p->n_word, bytes, n_bytes);
            p->n_word += (int)n_bytes;
            p->word_columns += w;
        }
    }
    return true;
}
