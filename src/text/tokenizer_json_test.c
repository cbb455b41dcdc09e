/* Tests of tokenizer.json on small files made here; the ids were given by the reference. That real files give
 * equal ids on megabytes of text is shown by tests/text. */
#include "text/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"

#define SPECIAL(id, text) ADDED(id, text, "\"special\":true")
#define ADDED(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\"," more "}"
#define MARK "\xE2\x96\x81"

/* Characters with byte fallback, as in vocabularies that come from SentencePiece. {x} is put in. */
#define CHARS(x)                                                                                             \
    "{\"added_tokens\":[" SPECIAL(0, "<unk>") "," SPECIAL(1, "<s>") "," SPECIAL(2, "</s>")                   \
    "," ADDED(12, "\\n\\n", "\"special\":false") "],"                                                        \
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"},"         \
    "\"pre_tokenizer\":null,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["                \
    "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"        \
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"                       \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\""      \
    MARK "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"                           \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"                                       \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true," x        \
    "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4,\"" MARK "\":5,\"ab\":6,\"" MARK "a\":7,"   \
    "\"<0xC3>\":8,\"<0xA9>\":9,\"<0xE2>\":10,\"abb\":11},"                                                   \
    "\"merges\":[\"a b\",[\"" MARK "\",\"a\"],\"ab b\"]}}"

static ig_status make(ig_tokenizer **out, const char *json, const ig_tokenizer_facts *facts, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_status st = ig_json_parse(&doc, json, strlen(json), (ig_json_limits){1 << 22, 64}, err);
    if (!st) st = ig_tokenizer_from_json(out, yyjson_doc_get_root(doc), facts, err);
    yyjson_doc_free(doc);
    return st;
}

static ig_tokenizer *made(const char *json, const ig_tokenizer_facts *facts) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    CHECK_MSG(make(&t, json, facts, &err) == IG_OK, "%s", err.msg);
    return t;
}

static bool gives(const ig_tokenizer *t, const char *text, bool around, const char *want) {
    ig_tokens got = {0};
    ig_buf b = ig_buf_init(1000);
    ig_encode_options opt = {.parse_special = true, .add_bos = around};
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of(text), opt, &got, NULL) == IG_OK);
    for (size_t i = 0; i < got.n; i++) ig_buf_addf(&b, "%s%u", i ? " " : "", got.v[i]);
    bool same = ig_slice_eq_str((ig_slice){b.n ? b.p : "", b.n}, want);
    if (!same) fprintf(stderr, "\"%s\" gave %s, not %s\n", text, b.n ? b.p : "", want);
    ig_buf_free(&b);
    ig_tokens_free(&got);
    return same;
}

static bool decodes(const ig_tokenizer *t, const uint32_t *id, int n, const char *want) {
    ig_detok d = ig_detok_init(t);
    ig_buf out = ig_buf_init(1000);
    for (int i = 0; i < n; i++) CHECK(ig_detok_add(&d, id[i], &out));
    CHECK(ig_detok_finish(&d, &out));
    bool same = ig_slice_eq_str((ig_slice){out.n ? out.p : "", out.n}, want);
    if (!same) fprintf(stderr, "got \"%s\"\n", out.n ? out.p : "");
    ig_buf_free(&out);
    return same;
}
#define DECODES(t, want, ...)                                                                                \
    CHECK(decodes(t, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4, want))

TEST(characters_without_a_token_are_bytes_or_one_unknown) {
    ig_tokenizer *t = made(CHARS(""), NULL);
    CHECK(gives(t, "abb ab", false, "11 5 6"));
    CHECK(gives(t, "ab a", false, "6 7"));
    CHECK(gives(t, "\xC3\xA9", false, "8 9"));
    CHECK(gives(t, "axyb", false, "3 0 4"));                /* x and y fuse */
    CHECK(gives(t, "x\xC3\xA9y", false, "8 9 0")); /* what falls back comes first: so does the reference */
    CHECK(gives(t, "a\n\n\nb", false, "3 12 0 4"));
    CHECK(gives(t, "</s>a", false, "2 3"));
    ig_tokenizer_free(t);
}

TEST(what_is_put_around_a_text_follows_the_post_processor_and_the_other_files) {
    ig_tokenizer *t = made(CHARS(""), NULL);
    CHECK(gives(t, "a", true, "1 3") && gives(t, "", true, "1"));
    CHECK(gives(t, "<s>a", true, "1 3") &&
          gives(t, "<s><s>a", true, "1 1 3")); /* never a second one of ours */
    CHECK(ig_tokenizer_adds_bos(t) && ig_tokenizer_bos(t) == IG_TOKEN_NONE);
    ig_tokenizer_free(t);
    ig_tokenizer_facts facts = {.bos = ig_slice_of("<s>"), .eos = ig_slice_of("</s>"), .add_bos = 0};
    t = made(CHARS(""), &facts);
    CHECK(gives(t, "a", true, "3") && !ig_tokenizer_adds_bos(t) && ig_tokenizer_bos(t) == 1);
    ig_tokenizer_free(t);
    uint32_t eos[] = {2, 4, 4000};
    facts = (ig_tokenizer_facts){.bos = ig_slice_of("</s>"), .eos = ig_slice_of("</s>"), .add_bos = 1,
                                 .eos_id = eos, .n_eos = 3};
    t = made(CHARS(""), &facts);
    CHECK(gives(t, "a", true, "2 1 3"));
    int n = 0;
    const uint32_t *end = ig_tokenizer_eos(t, &n);
    CHECK(n == 2 && end[0] == 2 && end[1] == 4);
    ig_tokenizer_free(t);
}

TEST(decoding_drops_one_blank_at_the_beginning_where_the_file_says_so) {
    ig_tokenizer *t = made(CHARS(""), NULL);
    DECODES(t, "a a", 7, 7);
    DECODES(t, "a a", 1, 7, 7);
    DECODES(t, " a", 5, 7);
    DECODES(t, "\xC3\xA9 ", 8, 9, 5);
    DECODES(t, "\xEF\xBF\xBD" "a", 8, 3);
    DECODES(t, "", 5);
    ig_tokenizer_free(t);
}

/* The reference's tables are those of Unicode 9: U+07FD, a mark since version 11, is nothing there. */
TEST(characters_younger_than_the_references_tables_are_not_normalized) {
    ig_normal *n = ig_normal_make();
    ig_buf held = ig_buf_init(0);
    ig_slice out;
    CHECK(ig_normal_add_nfc(n, NULL) == IG_OK);
    static const struct { const char *text, *want; } v[] = {
        {"a\xCC\x96\xCC\x81", "\xC3\xA1\xCC\x96"},   /* U+0316 is below: the acute reaches the letter */
        {"a\xDF\xBD\xCC\x81", "a\xDF\xBD\xCC\x81"},
        {"\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"},
        {"e\xCC\x81\xDF\xBD" "e\xCC\x81", "\xC3\xA9\xDF\xBD\xC3\xA9"},
        {"\xE1\x84\x80\xE1\x85\xA1", "\xEA\xB0\x80"},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        ig_buf_clear(&held);
        CHECK(ig_normal_apply(n, NULL, ig_slice_of(v[i].text), &held, &out, NULL) == IG_OK);
        CHECK_MSG(ig_slice_eq_str(out, v[i].want), "%zu: %.*s", i, (int)out.n, out.p);
    }
    ig_buf_free(&held);
    ig_normal_free(n);
}

TEST(a_word_that_is_a_token_is_that_token_where_merges_are_ignored) {
    ig_tokenizer *t = made(CHARS("\"ignore_merges\":true,"), NULL);
    CHECK(gives(t, "abb", false, "11") && gives(t, "abba", false, "11 3"));
    ig_tokenizer_free(t);
}

#define LETTERS(added)                                                                                       \
    "{\"added_tokens\":[" added "],\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":"     \
    "\"WhitespaceSplit\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\","  \
    "\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"c\":3},\"merges\":[]}}"

TEST(added_tokens_take_blanks_stand_alone_or_are_found_in_normal_text) {
    ig_tokenizer *t =
        made(LETTERS(ADDED(4, "<L>", "\"lstrip\":true") "," ADDED(5, "<R>", "\"rstrip\":true") "," ADDED(
                 6, "bb", "\"single_word\":true") "," ADDED(7, "CA", "\"normalized\":true")),
             NULL);
    CHECK(gives(t, "a <L> b", false, "1 4 2") && gives(t, "a <R> b", false, "1 5 2"));
    CHECK(gives(t, "bb abb bb-bb", false, "6 1 2 2 6 0 6"));
    CHECK(gives(t, "xcab CA", false, "0 7 2 7"));
    CHECK(gives(t, "ABC", false, "1 2 3"));
    ig_tokenizer_free(t);
}

TEST(a_control_token_in_normal_text_is_text_where_a_plain_range_touches) {
    ig_tokenizer *t = made(LETTERS(ADDED(4, "CC", "\"special\":true,\"normalized\":true")), NULL);
    ig_text_range plain = {2, 4};
    ig_encode_options opt = {.parse_special = true, .plain = &plain, .n_plain = 1};
    ig_tokens out = {0};
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("a cc"), opt, &out, NULL) == IG_OK);
    CHECK(out.n == 3 && out.v[1] == 3 && out.v[2] == 3);
    ig_tokens_free(&out);
    CHECK(gives(t, "a cc", false, "1 4"));
    ig_tokenizer_free(t);
}

static void refused(const char *json, const char *word) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    ig_status st = make(&t, json, NULL, &err);
    CHECK_MSG(st == IG_EFORMAT && !t && strstr(err.msg, word), "wanted \"%s\", got %d \"%s\"", word, st,
              err.msg);
    ig_tokenizer_free(t);
}

#define MODEL(x) "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{" x "}}"
#define WITH(x) "{" x ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}"
#define DECODER(x) WITH("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" x "]}")

TEST(hostile_files_are_refused_by_name) {
    refused("[]", "not an object");
    refused("{}", "no model");
    refused("{\"model\":3}", "no model");
    refused(MODEL("\"type\":\"Unigram\""), "\"Unigram\"");
    refused(MODEL("\"type\":\"BPE\",\"vocab\":[]"), "no vocab");
    refused(MODEL("\"type\":\"BPE\",\"vocab\":{\"a\":0}"), "no merges");
    refused(MODEL("\"vocab\":{},\"merges\":[]"), "is empty");
    refused(MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), "not a number");
    refused(MODEL("\"vocab\":{\"a\":0.5},\"merges\":[]"), "not a number");
    refused(MODEL("\"vocab\":{\"a\":18446744073709551615},\"merges\":[]"), "id 18446744073709551615");
    refused(MODEL("\"vocab\":{\"a\":4000000000},\"merges\":[]"), "id 4000000000 with 1");
    refused(MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), "0 is both \"a\" and \"b\"");
    refused(MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), "0 and 1 are both \"a\"");
    refused(MODEL("\"vocab\":{\"\":0},\"merges\":[]"), "token 0 is empty");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[\"ab\"]"), "merges[0] is not a pair");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "merges[0] is not a pair");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]"), "merges[0] is not a pair");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[3]"), "merges[0] is not a pair");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), "the joined text is not a token");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1"), "dropout");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\""), "\"u\" is not a token");
    refused(MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1"), "byte_fallback is not a bool");
    refused(WITH("\"decoder\":null"), "no decoder");
    refused(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), "\"WordPiece\"");
    refused(WITH("\"added_tokens\":{}"), "not a list");
    refused(WITH("\"added_tokens\":[3]"), "no id");
    refused(WITH("\"added_tokens\":[{\"id\":1}]"), "no content");
    refused(WITH("\"added_tokens\":[{\"id\":0,\"content\":\"b\"}]"), "0 is both");
    refused(WITH("\"added_tokens\":[{\"id\":1,\"content\":\"b\",\"special\":3}]"), "special is not a bool");
    refused(WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), "\"Precompiled\"");
    refused(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"a\"}"),
            "empty");
    refused(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"a\"}"),
            "parenthesis");
    refused(WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), "\"BertProcessing\"");
    refused(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"), "no place");
    refused(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                 "\"x\"}}]}"), "no ids of \"x\"");
    refused(DECODER("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"), "ByteFallback at this place");
    refused(DECODER("{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"), "Strip at this place");
    refused(DECODER("{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}"),
            "this Strip");
    refused(DECODER("{\"type\":\"ByteLevel\"},{\"type\":\"Fuse\"}"), "Fuse at this place");
}

/* Each piece looks its name up among the others: a few megabytes of them took minutes. */
TEST(a_post_processor_of_many_pieces_is_refused) {
    ig_buf b = ig_buf_init(1 << 20);
    ig_buf_add_str(&b, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},"
                       "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    for (int i = 0; i < 64; i++) ig_buf_add_str(&b, "{\"SpecialToken\":{\"id\":\"s\"}},");
    ig_buf_add_str(&b, "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[]}}}}");
    ig_buf_add(&b, "", 1);
    refused(b.p, "65 pieces, limit 64");
    ig_buf_free(&b);
}

/* 16 steps that each make 256 bytes of one would make a gigabyte of a letter. */
TEST(a_normalizer_makes_no_giant_of_a_word) {
    ig_buf b = ig_buf_init(1 << 20);
    ig_tokens got = {0};
    ig_err err = {0};
    ig_buf_add_str(&b, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},"
                       "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 16; i++)
        ig_buf_addf(&b, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}",
                    i ? "," : "");
    ig_buf_add_str(&b, "]}}");
    ig_buf_add(&b, "", 1);
    ig_tokenizer *t = made(b.p, NULL);
    ig_slice text = ig_slice_of("aa");
    ig_status st = t ? ig_tokenizer_encode(t, NULL, text, (ig_encode_options){0}, &got, &err) : IG_OK;
    CHECK_MSG(st == IG_ELIMIT && strstr(err.msg, "normalized text over 65568 bytes"), "%d %s", st, err.msg);
    ig_tokenizer_free(t);
    ig_tokens_free(&got);
    ig_buf_free(&b);
}
