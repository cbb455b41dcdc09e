/* Tests of the decoder: whole characters only, and any order of pieces gives the same text. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

/* A vocabulary of raw bytes: ids 0..255, as far as the alphabet can write them, then a control token. */
static ig_tokenizer *bytes_only(void) {
    static char letter[256][3];
    static ig_slice token[257];
    static int32_t type[257];
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int c = plain ? b : b < 33 ? 256 + b : b < 161 ? 256 + b - 94 : 256 + 67;
        size_t n = 0;
        if (c >= 0x80) letter[b][n++] = (char)(0xC0 | c >> 6);
        letter[b][n++] = (char)(c < 0x80 ? c : 0x80 | (c & 63));
        token[b] = (ig_slice){letter[b], n};
        type[b] = IG_TYPE_NORMAL;
    }
    token[256] = ig_slice_of("<|x|>");
    type[256] = IG_TYPE_CONTROL;
    ig_tokenizer_parts parts = {.model = ig_slice_of("gpt2"), .pre = ig_slice_of("gpt-2"), .tokens = token,
                                .n_tokens = 257, .types = type, .n_types = 257};
    for (int i = 0; i < IG_ROLE_COUNT; i++) parts.role[i] = IG_TOKEN_NONE;
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_tokenizer_make(&t, &parts, &err) == IG_OK, "%s", err.msg);
    return t;
}

static bool decodes(const ig_tokenizer *t, const char *bytes, size_t n, const char *want, bool special) {
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(1000);
    d.show_special = special;
    for (size_t i = 0; i < n; i++) {
        CHECK(ig_detok_add(&d, (uint8_t)bytes[i] == 0xFF ? 256 : (uint8_t)bytes[i], &out));
        CHECK(ig_slice_utf8_valid((ig_slice){out.p, out.n}, NULL));
    }
    CHECK(ig_detok_finish(&d, &out));
    bool same = ig_slice_eq_str((ig_slice){out.p, out.n}, want);
    ig_buf_free(&out);
    return same;
}
#define DECODES(bytes, want) CHECK(decodes(t, bytes, sizeof(bytes) - 1, want, false))
#define FFFD "\xEF\xBF\xBD"

TEST(broken_bytes_become_one_mark_for_each_maximal_subpart) {
    ig_tokenizer *t = bytes_only();
    DECODES("abc", "abc");
    DECODES("\xC3\xA9", "\xC3\xA9");
    DECODES("\xC3", FFFD);
    DECODES("\xC3" "a", FFFD "a");
    DECODES("\x80\x80", FFFD FFFD);
    DECODES("\xE2\x82\xAC", "\xE2\x82\xAC");
    DECODES("\xE2\x82", FFFD);
    DECODES("\xE2\x82" "a", FFFD "a");
    DECODES("\xE0\x80\x80", FFFD FFFD FFFD); /* overlong: E0 takes no 80 */
    DECODES("\xED\xA0\x80", FFFD FFFD FFFD); /* a surrogate */
    DECODES("\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80");
    DECODES("\xF0\x9F\x98", FFFD);
    DECODES("\xF0\x9F\x98\xF0\x9F\x98\x80", FFFD "\xF0\x9F\x98\x80");
    DECODES("\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD); /* past the last character */
    DECODES("\xC0\xAF\xFE", FFFD FFFD FFFD);
    /* The example of the Unicode standard, section 3.9. */
    DECODES("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
            "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d");
    ig_tokenizer_free(t);
}

TEST(control_tokens_are_shown_only_when_asked) {
    ig_tokenizer *t = bytes_only();
    CHECK(decodes(t, "a\xFF" "b", 3, "ab", false)); /* FF stands for the control token here */
    CHECK(decodes(t, "a\xFF" "b", 3, "a<|x|>b", true));
    CHECK(decodes(t, "\xC3\xFF\xA9", 3, "\xC3\xA9", false)); /* what is not shown does not cut a character */
    CHECK(decodes(t, "\xC3\xFF\xA9", 3, FFFD "<|x|>" FFFD, true));
    ig_tokenizer_free(t);
}

TEST(a_full_buffer_is_told) {
    ig_tokenizer *t = bytes_only();
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(2);
    CHECK(ig_detok_add(&d, 'a', &out) && ig_detok_add(&d, 0xC3, &out) && out.n == 1);
    CHECK(!ig_detok_add(&d, 0xA9, &out));
    ig_buf_free(&out);
    ig_tokenizer_free(t);
}

/* One-shot reference: the same rule, from a whole text. */
static void repair(ig_buf *out, const uint8_t *s, size_t n) {
    for (size_t at = 0, len; at < n; at += len) {
        ig_utf8_kind kind = ig_utf8_next(s + at, n - at, &len);
        if (kind == IG_UTF8_PARTIAL) len = n - at;
        if (kind == IG_UTF8_WHOLE) ig_buf_add(out, s + at, len);
        else ig_buf_add_str(out, FFFD);
    }
}

TEST(random_ids_in_steps_give_the_text_of_all_at_once) {
    ig_tokenizer *t = bytes_only();
    /* Bytes that start, continue and break characters, more often than chance would. */
    static const uint8_t pool[] = "ab\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x80\xBF\xED\xA0\xF4\x90\xC0\xFE";
    for (uint32_t round = 0; round < 3000; round++) {
        uint8_t bytes[24];
        size_t n = ig_rng_word(1, round, 0, 0) % sizeof bytes;
        ig_detok d = ig_detok_init(t);
        ig_buf got = ig_buf_init(1000), want = ig_buf_init(1000);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = pool[ig_rng_word(1, round, (uint32_t)i + 1, 0) % (sizeof pool - 1)];
            CHECK(ig_detok_add(&d, bytes[i], &got) && d.n_held <= 3);
        }
        CHECK(ig_detok_finish(&d, &got));
        repair(&want, bytes, n);
        CHECK(got.n == want.n && (got.n == 0 || memcmp(got.p, want.p, got.n) == 0));
        ig_buf_free(&got);
        ig_buf_free(&want);
    }
    ig_tokenizer_free(t);
}
