/* repl_edit: keys to a text, and the text to a screen.
 * Owns:    the text, the kill buffer and the history of one editor.
 * Threads: one. Memory: malloc; the text is bounded by IG_EDIT_TEXT_MAX, the history by its count.
 * Drawing always starts at the first row that was drawn before and writes everything again: a terminal is
 * quick, and an editor that patches its screen is wrong sooner or later.
 * Why not a library: readline's licence does not fit, and libedit knows neither pasted lines nor text of
 * several lines, which is what people paste into a chat. */
#include "app/repl.h"

#include <stdlib.h>
#include <string.h>

enum { TAB_COLUMNS = 4, INDENT = 2, KILL_MAX = IG_EDIT_TEXT_MAX };

void ig_edit_init(ig_edit *e) {
    *e = (ig_edit){.text = ig_buf_init(IG_EDIT_TEXT_MAX), .killed = ig_buf_init(KILL_MAX),
                   .draft = ig_buf_init(IG_EDIT_TEXT_MAX)};
}

void ig_edit_free(ig_edit *e) {
    ig_buf_free(&e->text);
    ig_buf_free(&e->killed);
    ig_buf_free(&e->draft);
    for (int i = 0; i < e->n_history; i++) free(e->history[i]);
    *e = (ig_edit){0};
}

static ig_slice slice_of(const ig_buf *b) {
    return (ig_slice){b->p ? b->p : "", b->n};
}

/* ---- moving ------------------------------------------------------------------------------------------- */

static bool is_tail(const ig_edit *e, size_t at) {
    return at < e->text.n && ((uint8_t)e->text.p[at] & 0xc0) == 0x80;
}

/* A step passes characters that take no room too (accents, joiners), with the one they belong to. */
static bool is_narrow(const ig_edit *e, size_t at) {
    size_t n;
    if (at >= e->text.n || e->text.p[at] == '\n' || e->text.p[at] == '\t') return false;
    return ig_print_columns_of(ig_print_code_at(slice_of(&e->text), at, &n)) == 0;
}

static size_t before(const ig_edit *e, size_t at) {
    while (at > 0) {
        at--;
        if (!is_tail(e, at) && !is_narrow(e, at)) break;
    }
    return at;
}

static size_t after(const ig_edit *e, size_t at) {
    while (at < e->text.n) {
        at++;
        if (!is_tail(e, at) && !is_narrow(e, at)) break;
    }
    return at;
}

static size_t line_start(const ig_edit *e, size_t at) {
    while (at > 0 && e->text.p[at - 1] != '\n') at--;
    return at;
}

static size_t line_end(const ig_edit *e, size_t at) {
    while (at < e->text.n && e->text.p[at] != '\n') at++;
    return at;
}

static bool is_gap(char c) {
    return c == ' ' || c == '\n' || c == '\t';
}

static size_t word_before(const ig_edit *e, size_t at) {
    while (at > 0 && is_gap(e->text.p[at - 1])) at--;
    while (at > 0 && !is_gap(e->text.p[at - 1])) at--;
    return at;
}

static size_t word_after(const ig_edit *e, size_t at) {
    while (at < e->text.n && is_gap(e->text.p[at])) at++;
    while (at < e->text.n && !is_gap(e->text.p[at])) at++;
    return at;
}

/* ---- changing ----------------------------------------------------------------------------------------- */

static void insert(ig_edit *e, const char *s, size_t n) {
    size_t old = e->text.n;
    if (!ig_buf_add(&e->text, s, n)) return; /* full: the key does nothing */
    memmove(e->text.p + e->cursor + n, e->text.p + e->cursor, old - e->cursor);
    memcpy(e->text.p + e->cursor, s, n);
    e->cursor += n;
}

static void cut(ig_edit *e, size_t from, size_t to, bool keep) {
    if (from >= to) return;
    if (keep) {
        ig_buf_clear(&e->killed);
        ig_buf_add(&e->killed, e->text.p + from, to - from);
    }
    memmove(e->text.p + from, e->text.p + to, e->text.n - to);
    e->text.n -= to - from;
    e->text.p[e->text.n] = 0;
    e->cursor = from;
}

static void set_text(ig_edit *e, ig_slice s) {
    ig_buf_clear(&e->text);
    e->cursor = 0;
    insert(e, s.p, s.n);
}

void ig_edit_clear(ig_edit *e) {
    ig_buf_clear(&e->text);
    ig_buf_clear(&e->draft);
    e->cursor = 0;
    e->at = e->n_history;
    e->n_esc = e->n_part = 0;
    e->pasting = false;
}

bool ig_edit_remember(ig_edit *e, ig_slice text) {
    e->at = e->n_history;
    if (!text.n || text.n > IG_EDIT_ENTRY_MAX || text.p[0] == ' ') return false;
    if (e->n_history && ig_slice_eq_str(text, e->history[e->n_history - 1])) return false;
    char *copy = malloc(text.n + 1);
    if (!copy) return false;
    memcpy(copy, text.p, text.n);
    copy[text.n] = 0;
    if (e->n_history == IG_EDIT_HISTORY_MAX) {
        free(e->history[0]);
        memmove(e->history, e->history + 1, sizeof e->history[0] * (IG_EDIT_HISTORY_MAX - 1));
        e->n_history--;
    }
    e->history[e->n_history++] = copy;
    e->at = e->n_history;
    return true;
}

static void go_history(ig_edit *e, int by) {
    int to = e->at + by;
    if (to < 0 || to > e->n_history) return;
    if (e->at == e->n_history) {
        ig_buf_clear(&e->draft);
        ig_buf_add(&e->draft, e->text.p ? e->text.p : "", e->text.n);
    }
    e->at = to;
    set_text(e, to == e->n_history ? slice_of(&e->draft) : ig_slice_of(e->history[to]));
}

/* Up and down: inside a text of several lines first, beyond it through the history. */
static void go_line(ig_edit *e, int by) {
    size_t start = line_start(e, e->cursor), end = line_end(e, e->cursor), to;
    if (by < 0 ? start == 0 : end == e->text.n) {
        go_history(e, by);
        return;
    }
    int column = 0;
    for (size_t i = start; i < e->cursor; i = after(e, i)) column++;
    to = by < 0 ? line_start(e, start - 1) : end + 1;
    for (end = line_end(e, to); column > 0 && to < end; column--) to = after(e, to);
    e->cursor = to;
}

bool ig_edit_is_open(ig_slice text) {
    if (text.n && text.p[text.n - 1] == '\\') return true;
    int n_fences = 0;
    bool at_start = true;
    for (size_t i = 0; i < text.n; i++) {
        if (at_start && text.n - i >= 3 && memcmp(text.p + i, "```", 3) == 0) n_fences++;
        at_start = text.p[i] == '\n' || (at_start && text.p[i] == ' ');
    }
    return n_fences % 2 != 0;
}

static ig_edit_event enter(ig_edit *e) {
    if (e->pasting) {
        insert(e, "\n", 1);
        return IG_EDIT_MORE;
    }
    if (ig_edit_is_open(slice_of(&e->text))) {
        bool mark = e->cursor == e->text.n && e->text.p[e->cursor - 1] == '\\';
        if (mark) cut(e, e->cursor - 1, e->cursor, false);
        insert(e, "\n", 1);
        return IG_EDIT_MORE;
    }
    return IG_EDIT_SUBMIT;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

typedef enum edit_key {
    KEY_UP, KEY_DOWN, KEY_RIGHT, KEY_LEFT, KEY_HOME, KEY_END, KEY_DELETE, KEY_WORD_LEFT, KEY_WORD_RIGHT,
    KEY_WORD_DELETE, KEY_NEWLINE, KEY_PASTE_ON, KEY_PASTE_OFF
} edit_key;

/* What follows the Escape, as terminals send it. */
static const struct {
    const char *bytes;
    edit_key key;
} sequences[] = {
    {"[A", KEY_UP},     {"[B", KEY_DOWN},    {"[C", KEY_RIGHT},          {"[D", KEY_LEFT},
    {"OA", KEY_UP},     {"OB", KEY_DOWN},    {"OC", KEY_RIGHT},          {"OD", KEY_LEFT},
    {"[H", KEY_HOME},   {"[F", KEY_END},     {"OH", KEY_HOME},           {"OF", KEY_END},
    {"[1~", KEY_HOME},  {"[4~", KEY_END},    {"[7~", KEY_HOME},          {"[8~", KEY_END},
    {"[3~", KEY_DELETE}, {"[1;5D", KEY_WORD_LEFT}, {"[1;5C", KEY_WORD_RIGHT}, {"[1;3D", KEY_WORD_LEFT},
    {"[1;3C", KEY_WORD_RIGHT}, {"b", KEY_WORD_LEFT}, {"f", KEY_WORD_RIGHT}, {"\x7f", KEY_WORD_DELETE},
    {"\r", KEY_NEWLINE}, {"[200~", KEY_PASTE_ON}, {"[201~", KEY_PASTE_OFF},
};

static void press(ig_edit *e, edit_key key) {
    if (e->pasting && key != KEY_PASTE_OFF) return; /* a paste is text, whatever it holds */
    switch (key) {
    case KEY_UP: go_line(e, -1); break;
    case KEY_DOWN: go_line(e, 1); break;
    case KEY_RIGHT: e->cursor = after(e, e->cursor); break;
    case KEY_LEFT: e->cursor = before(e, e->cursor); break;
    case KEY_HOME: e->cursor = line_start(e, e->cursor); break;
    case KEY_END: e->cursor = line_end(e, e->cursor); break;
    case KEY_DELETE: cut(e, e->cursor, after(e, e->cursor), false); break;
    case KEY_WORD_LEFT: e->cursor = word_before(e, e->cursor); break;
    case KEY_WORD_RIGHT: e->cursor = word_after(e, e->cursor); break;
    case KEY_WORD_DELETE: cut(e, word_before(e, e->cursor), e->cursor, true); break;
    case KEY_NEWLINE: insert(e, "\n", 1); break;
    case KEY_PASTE_ON: e->pasting = true; break;
    case KEY_PASTE_OFF: e->pasting = false; break;
    }
}

/* Does the byte belong to the sequence that has begun? Control characters and half characters do not: they
 * end it and are themselves. So no sequence that stays open can keep Ctrl-C or the end of a paste from us. */
static bool goes_on(const ig_edit *e, uint8_t byte) {
    if (e->n_esc == 1) return byte >= 0x20 || byte == '\r'; /* Alt-Enter */
    return byte >= 0x20 && byte < 0x7f;
}

/* A byte after an Escape. A sequence that we do not know is eaten whole. */
static void feed_escape(ig_edit *e, uint8_t byte) {
    if (e->n_esc < (int)sizeof e->esc - 1) e->esc[e->n_esc++] = byte;
    bool csi = e->esc[1] == '[' || e->esc[1] == 'O';
    if (csi && (e->n_esc == 2 || byte < 0x40 || byte > 0x7e)) return;
    e->esc[e->n_esc] = 0;
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++)
        if (strcmp((const char *)e->esc + 1, sequences[i].bytes) == 0) press(e, sequences[i].key);
    e->n_esc = 0;
}

void ig_edit_lone_escape(ig_edit *e) {
    e->n_esc = 0;
}

static ig_edit_event feed_control(ig_edit *e, uint8_t byte) {
    switch (byte) {
    case 'A' - 64: press(e, KEY_HOME); break;
    case 'B' - 64: press(e, KEY_LEFT); break;
    case 'C' - 64:
        e->was_empty = !e->text.n;
        e->was_pasting = e->pasting;
        ig_edit_clear(e);
        return IG_EDIT_INTERRUPT;
    case 'D' - 64:
        if (!e->text.n) return IG_EDIT_EOF;
        press(e, KEY_DELETE);
        break;
    case 'E' - 64: press(e, KEY_END); break;
    case 'F' - 64: press(e, KEY_RIGHT); break;
    case 'H' - 64:
    case 0x7f: cut(e, before(e, e->cursor), e->cursor, false); break;
    case 'J' - 64: insert(e, "\n", 1); break;
    case 'K' - 64: {
        size_t end = line_end(e, e->cursor);
        cut(e, e->cursor, end == e->cursor && end < e->text.n ? end + 1 : end, true);
        break;
    }
    case 'L' - 64: return IG_EDIT_REDRAW;
    case 'M' - 64: return enter(e);
    case 'N' - 64: go_history(e, 1); break;
    case 'P' - 64: go_history(e, -1); break;
    case 'U' - 64: cut(e, line_start(e, e->cursor), e->cursor, true); break;
    case 'W' - 64: press(e, KEY_WORD_DELETE); break;
    case 'Y' - 64:
        if (e->killed.n) insert(e, e->killed.p, e->killed.n);
        break;
    case 'Z' - 64: return IG_EDIT_SUSPEND;
    default: break;
    }
    return IG_EDIT_MORE;
}

ig_edit_event ig_edit_feed(ig_edit *e, uint8_t byte) {
    if (e->n_esc && goes_on(e, byte)) {
        feed_escape(e, byte);
        return IG_EDIT_MORE;
    }
    e->n_esc = 0;
    if (byte == 0x1b) {
        e->esc[e->n_esc++] = byte;
        return IG_EDIT_MORE;
    }
    if (byte < 0x20 || byte == 0x7f) {
        e->n_part = 0;
        /* A paste whose end got lost must not be the end of everything. */
        if (!e->pasting || byte == 'C' - 64) return feed_control(e, byte);
        if (byte == '\r' || byte == '\n') insert(e, "\n", 1);
        if (byte == '\t') insert(e, "\t", 1);
        return IG_EDIT_MORE;
    }
    /* A character may come in several reads. Bytes that make none are dropped. */
    if (byte < 0x80 || (byte & 0xc0) != 0x80) e->n_part = 0;
    else if (!e->n_part) return IG_EDIT_MORE;
    e->part[e->n_part++] = byte;
    int need = e->part[0] < 0x80 ? 1 : e->part[0] < 0xe0 ? 2 : e->part[0] < 0xf0 ? 3 : 4;
    if (e->n_part < need) return IG_EDIT_MORE;
    ig_slice s = {(const char *)e->part, (size_t)e->n_part};
    size_t n;
    if (ig_slice_utf8_valid(s, NULL) && ig_print_columns_of(ig_print_code_at(s, 0, &n)) >= 0)
        insert(e, s.p, s.n);
    e->n_part = 0;
    return IG_EDIT_MORE;
}

/* ---- drawing ------------------------------------------------------------------------------------------ */

typedef struct edit_layout {
    int width;             /* columns for text */
    int n_rows, row, column; /* of the text; where the cursor is */
} edit_layout;

/* Walks the text in rows. With `out`, writes rows [first, last). */
static edit_layout lay_out(const ig_edit *e, int columns, bool colour, int first, int last, ig_buf *out) {
    edit_layout l = {.width = columns - INDENT - 1};
    if (l.width < 8) l.width = 8;
    int row = 0, column = 0;
    bool begin = true;
    ig_slice s = slice_of(&e->text);
    for (size_t i = 0, n = 1;; i += n) {
        uint32_t c = 0;
        int w = 0;
        n = 1;
        if (i < s.n) {
            c = ig_print_code_at(s, i, &n);
            w = c == '\n' ? 0 : c == '\t' ? TAB_COLUMNS : ig_print_columns_of(c);
            if (w < 0) w = 1;
        }
        if (column + w > l.width) {
            row++;
            column = 0;
            begin = true;
        }
        bool shown = out && row >= first && row < last;
        if (begin && shown) {
            if (row > first) ig_buf_add_str(out, "\r\n");
            ig_buf_add_str(out, row > 0 ? "  " : colour ? "\x1b[1;38;5;166m>\x1b[0m " : "> ");
        }
        begin = false;
        if (i == e->cursor) {
            l.row = row;
            l.column = column;
        }
        if (i >= s.n) break;
        if (c == '\n') {
            row++;
            column = 0;
            begin = true;
            continue;
        }
        if (shown) {
            if (c == '\t') ig_buf_add(out, "        ", TAB_COLUMNS);
            else ig_buf_add(out, s.p + i, n);
        }
        column += w;
    }
    l.n_rows = row + 1;
    return l;
}

void ig_edit_draw(ig_edit *e, int columns, int rows, bool colour, const char *hint, ig_buf *out) {
    edit_layout l = lay_out(e, columns, colour, 0, 0, NULL);
    int shown = l.n_rows < rows ? l.n_rows : rows, first = 0;
    if (shown < 1) shown = 1;
    if (l.row >= shown) first = l.row - shown + 1;
    if (e->drawn_row > 0) ig_buf_addf(out, "\x1b[%dA", e->drawn_row);
    ig_buf_add_str(out, "\r\x1b[J");
    lay_out(e, columns, colour, first, first + shown, out);
    int columns_of_hint = hint ? (int)strlen(hint) : 0;
    if (!e->text.n && hint && columns_of_hint <= l.width) ig_buf_addf(out, "\x1b[2m%s\x1b[0m", hint);
    e->drawn_row = l.row - first;
    if (shown - 1 > e->drawn_row) ig_buf_addf(out, "\x1b[%dA", shown - 1 - e->drawn_row);
    ig_buf_addf(out, "\r\x1b[%dC", INDENT + l.column);
}

void ig_edit_draw_final(ig_edit *e, int columns, int rows, bool colour, ig_buf *out) {
    e->cursor = e->text.n;
    ig_edit_draw(e, columns, rows, colour, NULL, out);
    ig_buf_add_str(out, "\r\n");
    e->drawn_row = 0;
}
