/* Tests of the four forms, against utf8proc's own map where that can do it in time. */
#include "text/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/test.h"

static const struct { const char *name; int flags; } forms[] = {
    {"NFC", UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static ig_normal *make(const char *name) {
    char json[64];
    yyjson_doc *doc = NULL;
    ig_normal *n = ig_normal_make();
    snprintf(json, sizeof json, "{\"type\":\"%s\"}", name);
    CHECK(ig_json_parse(&doc, json, strlen(json), (ig_json_limits){1 << 10, 4}, NULL) == IG_OK);
    CHECK(n && ig_normal_add_json(n, yyjson_doc_get_root(doc), NULL) == IG_OK);
    yyjson_doc_free(doc);
    return n;
}

static void add(ig_buf *b, uint32_t c) {
    utf8proc_uint8_t s[4];
    CHECK(ig_buf_add(b, s, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, s)));
}

static bool same_as_map(int form, const ig_normal *n, ig_slice text, ig_buf *held) {
    utf8proc_uint8_t *want = NULL;
    ig_slice got = {0};
    ig_buf_clear(held);
    ig_status st = ig_normal_apply(n, NULL, text, held, &got, NULL);
    utf8proc_ssize_t n_want = utf8proc_map((const utf8proc_uint8_t *)text.p, (utf8proc_ssize_t)text.n, &want,
                                           forms[form].flags | UTF8PROC_STABLE);
    bool same = !st && n_want >= 0 && got.n == (size_t)n_want && memcmp(got.p, want, got.n) == 0;
    free(want);
    return same;
}

/* Letters with parts, marks of many classes and of one, Hangul in parts, starters that compose. All are older
 * than Unicode 9: younger ones are left alone, and have a test of their own. */
static const uint32_t some[] = {
    'a',    'q',    0xC0,   0x1E69, 0x300,  0x301,  0x323,  0x316,  0x327,   0x345,   0x5B0,  0x5B1,  0x64B,
    0x94D,  0x9BE,  0x9C7,  0x9D7,  0xDD9,  0xDCF,  0xDCA,  0x1100, 0x1161,  0x11A8,  0xAC00, 0xAC01, 0x1E9B,
    0xFDFA, 0x2126, 0xF73,  0x344,  0x3099, 0x304B, 0x302A, 0x20D0, 0x1D165, 0x1D16D, 0x0334, 0x0F71, 0x1FB7,
};
enum { N_SOME = sizeof some / sizeof *some };

TEST(every_form_gives_what_utf8proc_gives) {
    ig_buf text = ig_buf_init(1 << 20), held = ig_buf_init(0);
    ig_normal *n[N_FORMS];
    for (int f = 0; f < N_FORMS; f++) n[f] = make(forms[f].name);
    for (uint32_t round = 0; round < 1500 && !ig_test_failed(); round++) {
        /* every third has runs of hundreds of marks: they are sorted in another way than the few */
        uint32_t many = round % 3 == 0 ? 700 : 12, first = round % 7 == 0 ? 4 : 0;
        uint32_t chars = ig_rng_word(1, round, 0, 0) % many + 1;
        ig_buf_clear(&text);
        for (uint32_t i = 0; i < chars; i++) {
            uint32_t k = ig_rng_word(2, round, i, 0);
            add(&text, k % 50 == 0 ? k >> 8 & 0x7F : some[first + (k >> 8) % (first ? 9 : N_SOME)]);
        }
        for (int f = 0; f < N_FORMS; f++)
            CHECK_MSG(same_as_map(f, n[f], (ig_slice){text.p, text.n}, &held), "%s differs in round %u",
                      forms[f].name, round);
    }
    ig_buf_free(&text);
    ig_buf_free(&held);
    for (int f = 0; f < N_FORMS; f++) ig_normal_free(n[f]);
}

/* Texts go out in pieces of some thousand characters, which end before a letter. */
TEST(a_text_of_many_pieces_gives_what_utf8proc_gives) {
    ig_buf text = ig_buf_init(1 << 20), held = ig_buf_init(0);
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t k = ig_rng_word(3, i, 0, 0);
        add(&text, k % 8 == 0 ? 'a' + k / 8 % 26 : some[k / 8 % N_SOME]);
    }
    for (int f = 0; f < N_FORMS; f++) {
        ig_normal *n = make(forms[f].name);
        CHECK_MSG(same_as_map(f, n, (ig_slice){text.p, text.n}, &held), "%s differs", forms[f].name);
        ig_normal_free(n);
    }
    ig_buf_free(&text);
    ig_buf_free(&held);
}

/* By exchanges of neighbours this takes a quarter of an hour. */
TEST(a_megabyte_of_marks_is_put_in_order) {
    enum { PAIRS = 1 << 18 };
    ig_buf text = ig_buf_init(4 << 20), want = ig_buf_init(4 << 20), held = ig_buf_init(0);
    for (int f = 0; f < N_FORMS; f++) {
        ig_slice got = {0};
        ig_normal *n = make(forms[f].name);
        ig_buf_clear(&text);
        ig_buf_clear(&want);
        ig_buf_clear(&held);
        ig_buf_add_str(&text, "q"); /* composes with neither */
        ig_buf_add_str(&want, "q");
        for (int i = 0; i < PAIRS; i++) ig_buf_add_str(&text, "\xCC\x81\xCC\xA3");
        for (int i = 0; i < PAIRS; i++) ig_buf_add_str(&want, "\xCC\xA3"); /* below comes first */
        for (int i = 0; i < PAIRS; i++) ig_buf_add_str(&want, "\xCC\x81");
        CHECK(ig_normal_apply(n, NULL, (ig_slice){text.p, text.n}, &held, &got, NULL) == IG_OK);
        CHECK_MSG(ig_slice_eq(got, (ig_slice){want.p, want.n}), "%s", forms[f].name);
        ig_normal_free(n);
    }
    ig_buf_free(&text);
    ig_buf_free(&want);
    ig_buf_free(&held);
}
