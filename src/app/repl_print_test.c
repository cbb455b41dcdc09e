#include "app/repl.h"
#include "base/test.h"

#include <string.h>

/* The text in pieces of `step` bytes (never inside a character), as a terminal would show it: what is taken
 * back is taken back. */
static bool prints(const char *text, int columns, size_t step, const char *want) {
    ig_print p = {.columns = columns};
    ig_buf out = ig_buf_init(1 << 20), shown = ig_buf_init(1 << 20);
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t to = i + step < n ? i + step : n;
        while (to < n && ((uint8_t)text[to] & 0xc0) == 0x80) to++;
        ig_print_text(&p, (ig_slice){text + i, to - i}, &out);
        i = to;
    }
    for (size_t i = 0; i < out.n; i++) {
        if (out.p[i] != 0x1b) {
            ig_buf_add(&shown, out.p + i, 1);
            continue;
        }
        size_t back = 0; /* only ESC [ n D ESC [ K */
        for (i += 2; out.p[i] != 'D'; i++) back = back * 10 + (size_t)(out.p[i] - '0');
        i += 3;
        while (back--) {
            while (((uint8_t)shown.p[shown.n - 1] & 0xc0) == 0x80) shown.n--;
            shown.n--;
        }
    }
    ig_buf_add(&shown, "", 1);
    bool same = strcmp(shown.p, want) == 0;
    CHECK_MSG(same, "in %d columns by %zu: \"%s\", not \"%s\"", columns, step, shown.p, want);
    ig_buf_free(&out);
    ig_buf_free(&shown);
    return same;
}

TEST(lines_break_between_words_however_the_text_arrives) {
    for (size_t step = 1; step < 12; step++) {
        prints("the quick brown fox", 11, step, "the quick \nbrown fox");
        prints("a longish sentence here", 10, step, "a longish\nsentence \nhere");
        prints("caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9", 10, step, "caf\xc3\xa9 caf\xc3\xa9\ncaf\xc3\xa9");
    }
}

TEST(a_word_longer_than_a_line_is_cut) {
    prints("abcdefghijklmnop", 11, 3, "abcdefghij\nklmnop");
}

TEST(wide_letters_break_anywhere) {
    prints("\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab", 11, 1,
           "\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\xe7\x81\xab\n\xe7\x81\xab");
}

TEST(code_is_left_alone_but_for_the_width) {
    prints("```\nint a = b;\n```\nthe quick brown", 11, 2, "```\nint a = b;\n```\nthe quick \nbrown");
    prints("```\nint abcd = bcd;", 11, 2, "```\nint abcd =\n bcd;");
}

TEST(control_characters_never_reach_a_terminal) {
    ig_print p = {.columns = 40};
    ig_buf out = ig_buf_init(1 << 12);
    static const char text[] = "a\x1b]0;title\x07" "b\x1b[2J\rc\x7f\xc2\x9b" "31m\xe2\x80\xaeg";
    ig_print_text(&p, ig_slice_of(text), &out);
    for (size_t i = 0; i < out.n; i++) CHECK((uint8_t)out.p[i] >= 0x20 && out.p[i] != 0x7f);
    CHECK(strstr(out.p, "\xc2\x9b") == NULL && strstr(out.p, "\xe2\x80\xae") == NULL);
    ig_buf_free(&out);
}

TEST(our_own_colours_pass_and_nothing_else_does) {
    ig_print p = {.columns = 11, .colours = true};
    ig_buf out = ig_buf_init(1 << 12);
    ig_print_text(&p, ig_slice_of("\x1b[1;38;5;166mab cd\x1b[0m efgh\x1b[2J\x1b[" "1"), &out);
    CHECK(strncmp(out.p, "\x1b[1;38;5;166mab cd\x1b[0m efgh", 27) == 0);
    CHECK(strstr(out.p, "\x1b[2J") == NULL && strstr(out.p, "\xef\xbf\xbd") != NULL);
    ig_buf_free(&out);
}

TEST(without_a_terminal_the_text_is_as_it_is) {
    prints("a very long line\twith what is in it", 0, 5, "a very long line\twith what is in it");
}
