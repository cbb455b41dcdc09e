#include "app/repl.h"
#include "base/test.h"

#include <stdlib.h>
#include <string.h>

static ig_edit_event type(ig_edit *e, const char *keys) {
    ig_edit_event last = IG_EDIT_MORE;
    for (; *keys; keys++) last = ig_edit_feed(e, (uint8_t)*keys);
    return last;
}

static bool holds(const ig_edit *e, const char *text) {
    return strcmp(e->text.p ? e->text.p : "", text) == 0;
}

/* What a terminal of so many columns shows, rows joined by '|'. Knows the few sequences that we send. */
typedef struct screen { /* cells are bytes */
    char cell[64][96];
    int row, column, columns;
} screen;

static void show(screen *s, const ig_buf *out) {
    for (size_t i = 0; i < out->n; i++) {
        char c = out->p[i];
        int n = 0;
        if (c == '\r') s->column = 0;
        else if (c == '\n') s->row++;
        else if (c == 0x1b) {
            for (i += 2; (out->p[i] >= '0' && out->p[i] <= '9') || strchr(";?", out->p[i]); i++)
                if (out->p[i] != ';') n = n * 10 + out->p[i] - '0';
            if (out->p[i] == 'A') s->row -= n;
            if (out->p[i] == 'C') s->column += n;
            if (out->p[i] == 'D') s->column -= n;
            if (out->p[i] == 'J') {
                memset(s->cell[s->row] + s->column, 0, sizeof s->cell[0] - (size_t)s->column);
                for (int r = s->row + 1; r < 64; r++) memset(s->cell[r], 0, sizeof s->cell[r]);
            }
        } else if (CHECK(s->row >= 0 && s->row < 64 && s->column >= 0 && s->column < s->columns)) {
            s->cell[s->row][s->column++] = c;
        }
    }
}

static bool shows(const screen *s, const char *want) {
    char got[4096] = "";
    size_t n = 0;
    int last = 63;
    while (last > 0 && !s->cell[last][0]) last--;
    for (int r = 0; r <= last; r++) {
        if (r) got[n++] = '|';
        size_t w = strlen(s->cell[r]);
        memcpy(got + n, s->cell[r], w);
        n += w;
    }
    got[n] = 0;
    return CHECK_MSG(strcmp(got, want) == 0, "the screen shows \"%s\", not \"%s\"", got, want);
}

static void draw(ig_edit *e, screen *s, int rows) {
    ig_buf out = ig_buf_init(1 << 20);
    ig_edit_draw(e, s->columns, rows, false, NULL, &out);
    show(s, &out);
    ig_buf_free(&out);
}

TEST(letters_make_a_text_and_enter_sends_it) {
    ig_edit e;
    ig_edit_init(&e);
    CHECK(type(&e, "hello") == IG_EDIT_MORE);
    CHECK(type(&e, "\r") == IG_EDIT_SUBMIT);
    CHECK(holds(&e, "hello"));
    ig_edit_free(&e);
}

TEST(keys_move_and_delete_whole_characters) {
    ig_edit e;
    ig_edit_init(&e);
    type(&e, "a\xc3\xa9\xf0\x9f\x94\xa5z");  /* a, e acute, fire, z */
    type(&e, "\x1b[D\x7f");                   /* left, backspace: the fire goes */
    CHECK(holds(&e, "a\xc3\xa9z"));
    type(&e, "\x01\x1b[C\x1b[3~");            /* home, right, delete: the e goes */
    CHECK(holds(&e, "az"));
    type(&e, "\x05!");
    CHECK(holds(&e, "az!"));
    ig_edit_clear(&e);
    type(&e, "e\xcc\x81x\x1b[D\x7f");         /* e with a combining accent is one step */
    CHECK(holds(&e, "x"));
    ig_edit_free(&e);
}

TEST(words_and_lines_are_cut_and_put_back) {
    ig_edit e;
    ig_edit_init(&e);
    type(&e, "one two three\x17");
    CHECK(holds(&e, "one two "));
    type(&e, "\x15");
    CHECK(holds(&e, ""));
    type(&e, "\x19!");
    CHECK(holds(&e, "one two !"));
    type(&e, "\x1b" "b\x1b[1;5D\x0b"); /* two words back, kill to the end */
    CHECK(holds(&e, "one "));
    ig_edit_free(&e);
}

TEST(bytes_that_are_no_text_are_dropped) {
    ig_edit e;
    ig_edit_init(&e);
    type(&e, "a\xff\xc3(\x80" "b\xed\xa0\x80" "c\xc2\x9b" "d"); /* a C1 control is an escape in disguise */
    CHECK(holds(&e, "a(bcd"));
    type(&e, "\x1b[1;2Q\x1bOP\x1b[999;999~e"); /* keys that we do not know */
    CHECK(holds(&e, "a(bcde"));
    for (int i = 0; i < 100; i++) type(&e, "\x1b[1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1~");
    CHECK(holds(&e, "a(bcde"));
    ig_edit_free(&e);
}

TEST(a_backslash_and_a_fence_keep_the_text_open) {
    ig_edit e;
    ig_edit_init(&e);
    CHECK(type(&e, "one\\\r") == IG_EDIT_MORE && holds(&e, "one\n"));
    CHECK(type(&e, "two\r") == IG_EDIT_SUBMIT && holds(&e, "one\ntwo"));
    ig_edit_clear(&e);
    CHECK(type(&e, "```c\r") == IG_EDIT_MORE);
    CHECK(type(&e, "x;\r") == IG_EDIT_MORE);
    CHECK(type(&e, "```\r") == IG_EDIT_SUBMIT);
    CHECK(holds(&e, "```c\nx;\n```"));
    ig_edit_free(&e);
    CHECK(!ig_edit_is_open(ig_slice_of("use ``` inside")));
    CHECK(!ig_edit_is_open(ig_slice_of("")));
    CHECK(ig_edit_is_open(ig_slice_of("\\")));
}

TEST(a_paste_is_text_whatever_it_holds) {
    ig_edit e;
    ig_edit_init(&e);
    CHECK(type(&e, "\x1b[200~line one\rline two\x1a\x04\x1b[A\x1b[31mred\ttab\x1b[201~") == IG_EDIT_MORE);
    CHECK(holds(&e, "line one\nline twored\ttab"));
    CHECK(type(&e, "\r") == IG_EDIT_SUBMIT);
    ig_edit_free(&e);
}

TEST(arrows_go_through_lines_first_and_then_the_history) {
    ig_edit e;
    ig_edit_init(&e);
    CHECK(ig_edit_remember(&e, ig_slice_of("first")));
    CHECK(ig_edit_remember(&e, ig_slice_of("second\nline")));
    CHECK(!ig_edit_remember(&e, ig_slice_of("second\nline"))); /* the same again */
    CHECK(!ig_edit_remember(&e, ig_slice_of(" secret")));
    CHECK(!ig_edit_remember(&e, ig_slice_of("")));
    type(&e, "draft\x1b[A");
    CHECK(holds(&e, "second\nline"));
    type(&e, "\x1b[A");                    /* up inside the text */
    CHECK(holds(&e, "second\nline") && e.cursor == 4);
    type(&e, "\x1b[A");
    CHECK(holds(&e, "first"));
    type(&e, "\x1b[A");
    CHECK(holds(&e, "first"));             /* the end of the history */
    type(&e, "\x0e\x0e");
    CHECK(holds(&e, "draft"));
    ig_edit_free(&e);
}

TEST(the_history_keeps_its_newest) {
    ig_edit e;
    char text[16];
    ig_edit_init(&e);
    for (int i = 0; i < IG_EDIT_HISTORY_MAX + 5; i++) {
        text[0] = 'a';
        for (int k = 4, rest = i; k > 0; k--, rest /= 10) text[k] = (char)('0' + rest % 10);
        text[5] = 0;
        ig_edit_remember(&e, ig_slice_of(text));
    }
    CHECK(e.n_history == IG_EDIT_HISTORY_MAX);
    CHECK(strcmp(e.history[0], "a0005") == 0);
    type(&e, "\x10");
    CHECK(holds(&e, "a1004"));
    ig_edit_free(&e);
}

TEST(control_keys_say_what_happened) {
    ig_edit e;
    ig_edit_init(&e);
    CHECK(type(&e, "\x04") == IG_EDIT_EOF);
    CHECK(type(&e, "ab\x02\x04") == IG_EDIT_MORE && holds(&e, "a")); /* on a text it deletes */
    CHECK(type(&e, "\x03") == IG_EDIT_INTERRUPT && holds(&e, "") && !e.was_empty);
    CHECK(type(&e, "\x03") == IG_EDIT_INTERRUPT && e.was_empty);
    CHECK(type(&e, "\x1a") == IG_EDIT_SUSPEND);
    CHECK(type(&e, "\x0c") == IG_EDIT_REDRAW);
    ig_edit_free(&e);
}

TEST(the_screen_shows_the_text_and_the_cursor) {
    ig_edit e;
    screen s = {.columns = 20};
    ig_edit_init(&e);
    type(&e, "hello");
    draw(&e, &s, 10);
    shows(&s, "> hello");
    CHECK(s.row == 0 && s.column == 7);
    type(&e, " worlds, again and\x0a" "again"); /* 17 columns of text in a row */
    draw(&e, &s, 10);
    shows(&s, "> hello worlds, aga|  in and|  again");
    CHECK(s.row == 2 && s.column == 7);
    type(&e, "\x1b[A\x1b[A");
    draw(&e, &s, 10);
    CHECK(s.row == 0 && s.column == 7);
    type(&e, "\x15");
    draw(&e, &s, 10);
    shows(&s, ">  worlds, again an|  d|  again");
    type(&e, "\x03");
    draw(&e, &s, 10);
    shows(&s, "> ");
    ig_edit_free(&e);
}

TEST(a_text_taller_than_the_screen_shows_the_part_around_the_cursor) {
    ig_edit e;
    screen s = {.columns = 20};
    ig_edit_init(&e);
    for (char c = 'a'; c <= 'h'; c++) {
        ig_edit_feed(&e, (uint8_t)c);
        ig_edit_feed(&e, '\n');
        draw(&e, &s, 4);
    }
    shows(&s, "  f|  g|  h|  ");
    CHECK(s.row == 3);
    for (int i = 0; i < 8; i++) type(&e, "\x1b[A");
    draw(&e, &s, 4);
    shows(&s, "> a|  b|  c|  d");
    CHECK(s.row == 0);
    ig_edit_free(&e);
}

TEST(any_keys_leave_a_valid_text_and_a_screen_within_its_width) {
    ig_edit e;
    screen s = {.columns = 24};
    uint64_t seed = 7;
    static const uint8_t likely[] = {0x1b, '[', '2', '0', '0', '1', '~', 'A', 'B',
                                     'C',  'D', '\r', '\n', '\\', '`', 3,   0x7f};
    ig_edit_init(&e);
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t w = ig_rng_word(seed, i, 0, 0);
        uint8_t byte = w & 1 ? (uint8_t)(w >> 8) : likely[(w >> 8) % sizeof likely];
        ig_edit_event event = ig_edit_feed(&e, byte);
        if (event == IG_EDIT_SUBMIT) {
            ig_edit_remember(&e, (ig_slice){e.text.p, e.text.n});
            ig_edit_clear(&e);
        }
        if (e.text.n > 400) ig_edit_clear(&e);
        CHECK(e.cursor <= e.text.n);
        if (i % 64 == 0) {
            ig_slice t = {e.text.p ? e.text.p : "", e.text.n};
            if (!CHECK(ig_slice_utf8_valid(t, NULL))) break;
            CHECK(e.cursor == e.text.n || ((uint8_t)e.text.p[e.cursor] & 0xc0) != 0x80);
            s.row = s.column = 0;
            e.drawn_row = 0;
            ig_buf out = ig_buf_init(1 << 20);
            ig_edit_draw(&e, s.columns, 60, false, NULL, &out);
            CHECK(out.n > 0 && ig_slice_utf8_valid((ig_slice){out.p, out.n}, NULL));
            ig_buf_free(&out);
        }
    }
    ig_edit_free(&e);
}

/* Feeds the bytes with a pause, which makes an Escape a key of its own, after those whose bit is set. */
static ig_edit_event type_in_parts(ig_edit *e, const char *keys, uint32_t pauses) {
    ig_edit_event last = IG_EDIT_MORE;
    for (int i = 0; keys[i]; i++) {
        last = ig_edit_feed(e, (uint8_t)keys[i]);
        if (pauses >> i & 1 && e->n_esc) ig_edit_lone_escape(e);
    }
    return last;
}

TEST(a_paste_ends_whatever_stood_before_its_end) {
    static const struct {
        const char *keys, *text;
    } pastes[] = {
        {"\x1b[200~abc\x1b[201~", "abc"},          {"\x1b[200~abc\x1b\x1b[201~", "abc"},
        {"\x1b[200~abc\x1b[\x1b[201~", "abc"},     {"\x1b\x1b[200~abc\x1b[201~", "abc"},
        {"\x1b[200~abc\x1b[20\x1b[201~", "abc"},   {"\x1b[200~abc\x1bO\x1b[201~", "abc"},
        {"\x1b[200~a\x1b[\r\x1b[201~", "a\n"},     {"\x1b[200~a\x1b[1\xc3\xa9\x1b[201~", "a\xc3\xa9"},
        {"\x1b[200~a\x1b[1\x7f\x1b[201~", "a"},
    };
    for (size_t i = 0; i < sizeof pastes / sizeof *pastes; i++) {
        ig_edit e;
        ig_edit_init(&e);
        type(&e, pastes[i].keys);
        CHECK_MSG(!e.pasting && holds(&e, pastes[i].text), "paste %zu is \"%s\"", i, e.text.p);
        CHECK(type(&e, "\r") == IG_EDIT_SUBMIT);
        ig_edit_free(&e);
    }
}

TEST(ctrl_c_and_ctrl_d_work_after_any_broken_paste_in_any_parts) {
    static const char *const begun[] = {
        "\x1b[200~ab\x1b",        "\x1b[200~abc\x1b\x1b[2", "\x1b[200~a\x1b[\xc3",
        "\x1b[200~a\x1bO\x1b[",   "\x1b[1;1;1;1;1;",        "\x1b\x1b[200~\x1bO5"};
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        for (uint32_t pauses = 0; pauses < 1u << strlen(begun[i]); pauses++) {
            ig_edit e;
            ig_edit_init(&e);
            type_in_parts(&e, begun[i], pauses);
            bool good = ig_edit_feed(&e, 3) == IG_EDIT_INTERRUPT && !e.text.n && !e.pasting && !e.n_esc;
            good = good && ig_edit_feed(&e, 3) == IG_EDIT_INTERRUPT && e.was_empty && !e.was_pasting;
            good = good && ig_edit_feed(&e, 26) == IG_EDIT_SUSPEND && ig_edit_feed(&e, 4) == IG_EDIT_EOF;
            if (!CHECK_MSG(good, "keys %zu with pauses %x", i, pauses)) break;
            ig_edit_free(&e);
        }
    }
}

TEST(any_keys_and_then_ctrl_c_twice_and_ctrl_d_end_the_editor) {
    static const char *const likely[] = {"\x1b", "[", "O", "200~", "201~", "\x1b[200~", "\x1b[201~", "\r",
                                         "\xc3", "\xe2\x82", "a", "1;", "\\", "```", "\x7f", "\x1a"};
    for (uint32_t round = 0; round < 3000; round++) {
        ig_edit e;
        ig_edit_init(&e);
        for (uint32_t i = 0; i < 40; i++) {
            uint32_t w = ig_rng_word(11, round, i, 0);
            if (w & 1) type(&e, likely[(w >> 8) % (sizeof likely / sizeof *likely)]);
            else if (ig_edit_feed(&e, (uint8_t)(w >> 8)) == IG_EDIT_SUBMIT) ig_edit_clear(&e);
            if ((w >> 16) % 8 == 0) ig_edit_lone_escape(&e);
        }
        bool good = ig_edit_feed(&e, 3) == IG_EDIT_INTERRUPT && ig_edit_feed(&e, 3) == IG_EDIT_INTERRUPT;
        if (!CHECK_MSG(good && ig_edit_feed(&e, 4) == IG_EDIT_EOF, "round %u does not end", round)) return;
        ig_edit_free(&e);
    }
}
