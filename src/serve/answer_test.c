/* Tests of what the older API says of tokens, on a vocabulary of single bytes. */
#include <stdio.h>

#include "base/test.h"
#include "serve/inside.h"

/* 0 is <|end|>; 1 "a", 2 "b"; from 3 on the bytes E2 80 94 F0 9F C3; 9 and 10 both become a blank. */
static ig_tokenizer *make(void) {
    static const char json[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<|end|>\",\"special\":true}],\"decoder\":{\"type\":"
        "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
        "\"vocab\":{\"<|end|>\":0,\"a\":1,\"b\":2,\"<0xE2>\":3,\"<0x80>\":4,\"<0x94>\":5,\"<0xF0>\":6,"
        "\"<0x9F>\":7,\"<0xC3>\":8,\"_\":9,\" \":10,\"\\\"\":11},\"merges\":[]}}";
    ig_tokenizer *t = NULL;
    yyjson_doc *doc = NULL;
    ig_err err = {0};
    CHECK(ig_json_parse(&doc, json, sizeof json - 1, (ig_json_limits){1 << 20, 16}, &err) == IG_OK);
    CHECK_MSG(ig_tokenizer_from_json(&t, yyjson_doc_get_root(doc), NULL, &err) == IG_OK, "%s", err.msg);
    yyjson_doc_free(doc);
    return t;
}

static bool gives(const ig_tokenizer *t, const uint32_t *id, int n, const char *want) {
    ig_logprob top[IG_SERVE_LOGPROBS_MAX];
    ig_buf out = ig_buf_init(1 << 16);
    for (int i = 0; i < n; i++) top[i] = (ig_logprob){.id = id[i], .logprob = -(float)(i + 1)};
    CHECK(ig_openai_put_tops(&out, t, top, n));
    bool same = ig_slice_eq_str((ig_slice){out.p, out.n}, want);
    if (!same) fprintf(stderr, "got %.*s\n", (int)out.n, out.p);
    ig_buf_free(&out);
    return same;
}
#define GIVES(want, ...)                                                                                     \
    CHECK(gives(t, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4, want))

TEST(no_name_stands_twice_among_the_likeliest_tokens) {
    ig_tokenizer *t = make();
    GIVES("{\"a\":-1,\"bytes:\\\\xe2\":-2,\"bytes:\\\\x80\":-3,\"bytes:\\\\xf0\":-4}", 1, 3, 4, 6);
    GIVES("{\" \":-1,\"b\":-3}", 9, 10, 2); /* the same text: the likelier */
    GIVES("{\" \":-1,\"\\\"\":-3,\"a\":-5}", 10, 9, 11, 10, 1);
    GIVES("{\"<|end|>\":-1}", 0);
    CHECK(gives(t, NULL, 0, "{}"));
    ig_tokenizer_free(t);
}

/* Offsets against the text itself: a token that begins a character is where that character is. */
TEST(offsets_count_the_characters_of_the_text_that_is_sent) {
    static const struct {
        uint32_t id[6];
        size_t offset[6];
        int n;
    } cases[] = {
        {{1, 3, 4, 5, 2, 1}, {0, 1, 1, 1, 2, 3}, 6}, /* a—ba */
        {{3, 1, 2}, {0, 1, 2}, 3},                   /* U+FFFD, a, b */
        {{3, 4, 1}, {0, 0, 1}, 3},                   /* one U+FFFD for the two */
        {{3, 3, 4, 5}, {0, 1, 1, 1}, 4},
        {{6, 4, 1}, {0, 1, 2}, 3}, /* F0 80 is none: two of them */
        {{3, 0, 4, 5, 1}, {0, 0, 0, 0, 1}, 5}, /* what prints nothing does not end a character */
        {{5, 1}, {0, 1}, 2},
    };
    ig_tokenizer *t = make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ig_detok d = ig_detok_init(t);
        ig_buf out = ig_buf_init(1 << 10);
        for (int k = 0; k < cases[i].n; k++) {
            size_t n_chars = 0;
            for (size_t j = 0; j < out.n; j++) n_chars += ((uint8_t)out.p[j] & 0xC0) != 0x80;
            size_t got = ig_openai_text_offset(&d, n_chars, cases[i].id[k]);
            CHECK_MSG(got == cases[i].offset[k], "case %zu, token %d: %zu", i, k, got);
            CHECK(ig_detok_add(&d, cases[i].id[k], &out));
        }
        ig_buf_free(&out);
    }
    ig_tokenizer_free(t);
}
