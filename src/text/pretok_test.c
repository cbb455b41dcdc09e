/* Tests of the pre-tokenizer: the words of small texts, and that no text is too long for it. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

static const char *const names[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};

/* The words of `text` joined by '/', which no text here holds. */
static void words(const char *name, const char *text, const char *want) {
    ig_pretok *p = NULL;
    ig_pretok_scratch *s = ig_pretok_scratch_make();
    ig_buf got = ig_buf_init(1000);
    ig_slice all = ig_slice_of(text);
    if (!CHECK(ig_pretok_make(&p, ig_slice_of(name), NULL) == IG_OK)) return;
    for (size_t at = 0, end; at < all.n; at = end) {
        CHECK(ig_pretok_next(p, s, all, at, &end, NULL) == IG_OK && end > at);
        ig_buf_addf(&got, "%s%.*s", at ? "/" : "", (int)(end - at), text + at);
    }
    CHECK_MSG(ig_slice_eq_str((ig_slice){got.p, got.n}, want), "%s gave %s", name, got.p);
    ig_buf_free(&got);
    ig_pretok_scratch_free(s);
    ig_pretok_free(p);
}

TEST(each_name_cuts_as_its_model_was_trained) {
    words("smollm", "It's 1984,  isn't it?\n\n x", "It/'s/ /1/9/8/4/,/ / isn/'t/ it/?/\n\n/ x");
    words("gpt-2", "It's 1984,  isn't it?\n\n x", "It/'s/ 1984/,/ / isn/'t/ it/?/\n\n/ x");
    words("llama-bpe", "It's 1984,  isn't it?\n\n x", "It/'s/ /198/4/,/ / isn/'t/ it/?\n\n/ x");
    words("qwen2", "It'S 1984 (ab)", "It/'S/ /1/9/8/4/ (/ab/)");
    words("smollm", "It'S", "It/'/S");
    words("smollm", "a \xE2\x80\x83 b", "a/ \xE2\x80\x83/ b");             /* an em space is a blank */
    words("smollm", "a \xE1\xA0\x8E b", "a/ \xE1\xA0\x8E/ b");             /* U+180E is not */
    words("smollm", "\xD9\xA1\xD9\xA2 \xC2\xBD", "\xD9\xA1/\xD9\xA2/ /\xC2\xBD"); /* digits of any script */
}

/* Words of the whole text with the JIT compiler and without must end at the same places. */
static void long_text(ig_slice text) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ig_pretok *jit = NULL, *plain = NULL;
        ig_pretok_scratch *s = ig_pretok_scratch_make();
        CHECK(ig_pretok_make(&jit, ig_slice_of(names[i]), NULL) == IG_OK);
        CHECK(ig_pretok_make(&plain, ig_slice_of(names[i]), NULL) == IG_OK);
        ig_pretok_stop_jit(plain);
        for (size_t at = 0, end = 0, other = 0; at < text.n; at = end) {
            ig_err err = {0};
            CHECK_MSG(ig_pretok_next(jit, s, text, at, &end, &err) == IG_OK, "%s: %s", names[i], err.msg);
            CHECK_MSG(ig_pretok_next(plain, s, text, at, &other, &err) == IG_OK, "%s: %s", names[i], err.msg);
            if (!CHECK(end == other && end > at)) break;
        }
        ig_pretok_scratch_free(s);
        ig_pretok_free(jit);
        ig_pretok_free(plain);
    }
}

TEST(runs_of_a_megabyte_meet_no_limit) {
    enum { N = 1 << 20 };
    static const char *const unit[] = {"a", " ", "!", "\n", "\t \n", "\xCC\x81", "\xE4\xB8\xAD", "\xE2\x80\x83"};
    char *text = malloc(N);
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        size_t n_unit = strlen(unit[i]), n = N / n_unit * n_unit;
        for (size_t at = 0; at < n; at += n_unit) memcpy(text + at, unit[i], n_unit);
        long_text((ig_slice){text, n});
        if (n > 2) { /* the same run, with something else behind it */
            text[n - 1 - (n - 1) % n_unit] = 'x';
            long_text((ig_slice){text, n - (n - 1) % n_unit});
        }
    }
    free(text);
}
