/* UTF-8 against every character there is; buffers and lists at their limits. */
#include "base/test.h"

#include <stdio.h>
#include <string.h>

TEST(slices_compare_by_bytes_and_length) {
    CHECK(ig_slice_eq(ig_slice_of("abc"), (ig_slice){"abcd", 3}));
    CHECK(!ig_slice_eq(ig_slice_of("abc"), ig_slice_of("abcd")));
    CHECK(!ig_slice_eq(ig_slice_of("abc"), ig_slice_of("abd")));
    CHECK(ig_slice_eq((ig_slice){NULL, 0}, ig_slice_of("")));
    CHECK(ig_slice_eq((ig_slice){"a\0b", 3}, (ig_slice){"a\0b", 3}));
    CHECK(!ig_slice_eq((ig_slice){"a\0b", 3}, (ig_slice){"a\0c", 3}));
    CHECK(ig_slice_eq_str(ig_slice_of("x"), "x") && !ig_slice_eq_str(ig_slice_of("x"), ""));
}

static size_t encode(uint8_t out[4], uint32_t c) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    if (c < 0x800) return out[0] = (uint8_t)(0xC0 | c >> 6), out[1] = (uint8_t)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (c & 63));
    return 4;
}

static bool valid(const uint8_t *p, size_t n) {
    return ig_slice_utf8_valid((ig_slice){(const char *)p, n}, NULL);
}

TEST(every_character_is_valid_and_no_cut_of_one_is) {
    for (uint32_t c = 0; c < 0x120000; c++) {
        uint8_t s[4];
        size_t n = encode(s, c);
        bool is_character = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
        if (!CHECK_MSG(valid(s, n) == is_character, "U+%X", c)) return;
        for (size_t cut = 1; cut < n; cut++)
            if (!CHECK_MSG(!valid(s, cut), "U+%X cut to %zu", c, cut)) return;
    }
}

/* No sequence may be valid but those that spell characters: count them all, so that an overlong form
 * cannot hide. */
TEST(of_all_byte_strings_as_many_are_valid_as_characters_make) {
    const uint32_t ascii = 128, two = 0x800 - 0x80, three = 0x10000 - 0x800 - 0x800;
    uint32_t n_valid = 0;
    for (uint32_t i = 0; i < 1u << 16; i++) {
        uint8_t s[2] = {(uint8_t)(i >> 8), (uint8_t)i};
        n_valid += valid(s, 2);
    }
    CHECK_MSG(n_valid == ascii * ascii + two, "%u of two bytes", n_valid);

    n_valid = 0;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        uint8_t s[3] = {(uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        n_valid += valid(s, 3);
    }
    CHECK_MSG(n_valid == ascii * ascii * ascii + 2 * ascii * two + three, "%u of three bytes", n_valid);

    n_valid = 0;
    for (uint32_t i = 0; i < 16u << 16; i++) { /* a lead of four, all seconds, thirds; the last is fixed */
        uint8_t s[4] = {(uint8_t)(0xF0 | i >> 16), (uint8_t)(i >> 8), (uint8_t)i, 0x80};
        n_valid += valid(s, 4);
    }
    CHECK_MSG(n_valid == 0x100000 / 64, "%u of four bytes", n_valid);
}

TEST(the_first_bad_byte_is_named_wherever_it_is) {
    for (size_t n = 1; n < 40; n++) {
        for (size_t at = 0; at < n; at++) {
            char s[40];
            size_t bad = 999;
            memset(s, 'a', n);
            CHECK(ig_slice_utf8_valid((ig_slice){s, n}, &bad) && bad == 999);
            s[at] = (char)0xFF;
            CHECK_MSG(!ig_slice_utf8_valid((ig_slice){s, n}, &bad) && bad == at, "%zu of %zu", at, n);
        }
    }
    size_t bad = 0;
    CHECK(!ig_slice_utf8_valid(ig_slice_of("na\xC3\xAFve \xE2\x82"), &bad) && bad == 7);
    CHECK(ig_slice_utf8_valid((ig_slice){NULL, 0}, &bad));
}

TEST(a_buffer_grows_to_its_maximum_and_no_further) {
    ig_buf b = ig_buf_init(100);
    CHECK(b.p == NULL);
    for (size_t i = 0; i < 100; i++) {
        CHECK(ig_buf_add(&b, "x", 1));
        CHECK(b.n == i + 1 && b.p[b.n] == '\0' && b.cap <= 101);
    }
    CHECK(!ig_buf_add(&b, "y", 1) && !ig_buf_add_str(&b, "y") && !ig_buf_addf(&b, "%d", 1));
    CHECK(b.n == 100 && strlen(b.p) == 100 && !strchr(b.p, 'y'));
    CHECK(ig_buf_add(&b, "", 0));
    ig_buf_free(&b);
}

TEST(a_failed_add_leaves_the_content_as_it_was) {
    for (size_t n_max = 0; n_max < 12; n_max++) {
        ig_buf b = ig_buf_init(n_max);
        bool first = ig_buf_add_str(&b, "hello"), second = ig_buf_addf(&b, "%s%d", " wor", 42);
        CHECK_MSG(first == (n_max >= 5) && second == (n_max >= (first ? 11u : 6u)), "maximum %zu", n_max);
        const char *want = first && second ? "hello wor42" : first ? "hello" : second ? " wor42" : "";
        CHECK_MSG(b.n == strlen(want) && (!b.p || strcmp(b.p, want) == 0), "maximum %zu", n_max);
        ig_buf_free(&b);
    }
}

TEST(an_absurd_add_is_refused_and_not_wrapped) {
    ig_buf b = ig_buf_init(SIZE_MAX);
    CHECK(ig_buf_add_str(&b, "abc"));
    CHECK(!ig_buf_add(&b, "", SIZE_MAX) && !ig_buf_add(&b, "", SIZE_MAX - 3));
    CHECK(b.n == 3 && strcmp(b.p, "abc") == 0);
    ig_buf_free(&b);
}

TEST(a_buffer_holds_any_byte_and_can_be_used_again) {
    ig_buf b = ig_buf_init(1000);
    CHECK(ig_buf_add(&b, "a\0b", 3) && b.n == 3 && b.p[1] == '\0' && b.p[2] == 'b');
    size_t cap = b.cap;
    ig_buf_clear(&b);
    CHECK(b.n == 0 && b.cap == cap && b.p[0] == '\0');
    CHECK(ig_buf_addf(&b, "%s", "again") && strcmp(b.p, "again") == 0);
    ig_buf_free(&b);
    CHECK(b.p == NULL && b.n == 0 && b.cap == 0 && b.n_max == 1000);
    ig_buf_free(&b);
}

TEST(a_token_list_keeps_order_and_its_bound) {
    ig_tokens t = {.n_max = 1000};
    for (uint32_t i = 0; i < 1000; i++) CHECK(ig_tokens_add(&t, i * 7));
    CHECK(!ig_tokens_add(&t, 1) && t.n == 1000 && t.cap == 1000);
    for (uint32_t i = 0; i < 1000; i++) CHECK(t.v[i] == i * 7);
    ig_tokens_free(&t);
    CHECK(t.v == NULL && t.n == 0 && t.n_max == 1000);
}

TEST(a_token_list_without_a_bound_grows) {
    ig_tokens t = {0};
    for (uint32_t i = 0; i < 100000; i++)
        if (!CHECK(ig_tokens_add(&t, i))) break;
    CHECK(t.n == 100000 && t.v[99999] == 99999);
    ig_tokens_free(&t);
}

TEST(calm_text_moves_no_cursor_and_keeps_what_people_write) {
    static const struct {
        const char *in, *line, *lines;
    } cases[] = {
        {"plain \xC3\xA4 \xF0\x9F\x98\x80 \xE2\x82\xAC", NULL, NULL},
        {"a\nb\tc\r", "a b c ", "a\nb c "},
        {"\x1b[2Jx\x7f", "?[2Jx?", "?[2Jx?"},
        {"\xC2\x9B"
         "2J",
         "?2J", "?2J"}, /* C1 in UTF-8: one "?" a character */
        {"\x9B"
         "2J\xFF",
         "?2J?", "?2J?"}, /* and as the bare byte */
        {"a\xE2\x80\xAE"
         "fdp.exe",
         "a?fdp.exe", "a?fdp.exe"}, /* U+202E: reads "exe.pdf" */
        {"\xE2\x80\xAA\xE2\x81\xA6\xE2\x81\xA9", "???", "???"},
        {"a\xE2\x80\xA8"
         "b\xE2\x80\xA9",
         "a?b?", "a?b?"}, /* U+2028, U+2029: new lines */
        {"\xE2\x80\xA7\xE2\x80\xAF\xE2\x81\xA5\xE2\x81\xAA", NULL,
         NULL}, /* the neighbours of those are text */
        {"\xC2\xA0\xC2", "\xC2\xA0?", "\xC2\xA0?"},
        {"\xE2\x80", "??", "??"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[64], lines[64];
        snprintf(line, sizeof line, "%s", cases[i].in);
        snprintf(lines, sizeof lines, "%s", cases[i].in);
        ig_text_calm(line, false);
        ig_text_calm(lines, true);
        CHECK_MSG(!strcmp(line, cases[i].line ? cases[i].line : cases[i].in), "case %zu: %s", i, line);
        CHECK_MSG(!strcmp(lines, cases[i].lines ? cases[i].lines : cases[i].in), "case %zu: %s", i, lines);
    }
}

TEST(any_bytes_become_calm_text_of_no_more_bytes) {
    for (unsigned seed = 0; seed < 20000; seed++) {
        char text[32];
        size_t n = seed % 31, left;
        for (size_t i = 0; i < n; i++) /* mostly from the corners */
            text[i] = (char)(1 + ig_rng_word(seed, (uint32_t)i, 0, 0) % 255);
        for (size_t i = 0; i + 2 < n; i += 5) memcpy(text + i, "\xE2\x80", 2);
        text[n] = '\0';
        ig_text_calm(text, false);
        left = strlen(text);
        CHECK(left <= n && ig_slice_utf8_valid((ig_slice){text, left}, NULL));
        for (size_t i = 0, len; i < left; i += len) {
            len = ig_utf8_printable(text + i, left - i);
            if (!CHECK(len > 0)) return;
        }
    }
}

TEST(what_was_reserved_is_there_and_no_more_than_the_maximum_is) {
    ig_buf b = ig_buf_init(100);
    CHECK(ig_buf_reserve(&b, 60) && b.n == 0 && b.cap > 60);
    const char *at = b.p;
    CHECK(ig_buf_add(&b, "0123456789012345678901234567890123456789012345678901234567890", 60) && b.p == at);
    CHECK(ig_buf_reserve(&b, 40) && !ig_buf_reserve(&b, 41) && b.n == 60);
    ig_buf_free(&b);
}
