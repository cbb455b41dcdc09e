/* Tests of grammars: what a mask allows, what is refused and where, and that nothing is left behind. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

/* Token i < 256 is that byte; then a few words, and the end. */
enum { N_WORDS = 3, END = 256 + N_WORDS, N_TOKENS = END + 1 };

static ig_tokenizer *byte_tokenizer(void) {
    static const char *const more[] = {"{\"a\":", "true", "\": "};
    static char names[256][4];
    ig_slice tokens[N_TOKENS];
    int32_t types[N_TOKENS];
    ig_tokenizer *t = NULL;
    for (int i = 0; i < 256; i++) { /* the byte alphabet: those that print stand for themselves, others from U+0100 on */
        static int shifted;
        bool prints = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        unsigned c = prints ? (unsigned)i : 256u + (unsigned)shifted++;
        size_t n = 0;
        if (c < 128) names[i][n++] = (char)c;
        else names[i][n++] = (char)(0xc0 | c >> 6), names[i][n++] = (char)(0x80 | (c & 63));
        tokens[i] = (ig_slice){names[i], n};
        types[i] = IG_TYPE_NORMAL;
    }
    for (int i = 0; i < N_WORDS; i++) {
        tokens[256 + i] = ig_slice_of(i == 2 ? "\":\xc4\xa0" : more[i]);
        types[256 + i] = IG_TYPE_NORMAL;
    }
    tokens[END] = ig_slice_of("<end>");
    types[END] = IG_TYPE_CONTROL;
    ig_tokenizer_parts parts = {.model = ig_slice_of("gpt2"), .pre = ig_slice_of("gpt-2"), .tokens = tokens,
                                .n_tokens = N_TOKENS, .types = types, .n_types = N_TOKENS,
                                .role = {IG_TOKEN_NONE, END, IG_TOKEN_NONE, IG_TOKEN_NONE, IG_TOKEN_NONE,
                                         IG_TOKEN_NONE}};
    ig_err err = {0};
    CHECK_MSG(ig_tokenizer_make(&t, &parts, &err) == IG_OK, "%s", err.msg);
    return t;
}

static bool has(const uint32_t *mask, uint32_t id) {
    return mask[id / 32] >> (id % 32) & 1;
}

/* How many bytes of `text` the grammar takes, and whether it may end there. */
static size_t taken(ig_grammar *g, const char *text, bool *may_end) {
    ig_guided *guided = NULL;
    const char *why = NULL;
    size_t n = 0;
    CHECK(ig_guided_make(&guided, g, NULL) == IG_OK);
    const uint32_t *mask = ig_guided_allowed(guided, &why);
    while (mask && text[n] && has(mask, (uint8_t)text[n])) {
        ig_guided_take(guided, (uint8_t)text[n++]);
        mask = ig_guided_allowed(guided, &why);
    }
    CHECK_MSG(mask != NULL, "%s: %s", text, why);
    *may_end = mask && has(mask, END);
    ig_guided_done(guided);
    return n;
}

static void takes(ig_grammars *gs, ig_grammar_kind kind, const char *source, const char *text, size_t n, bool end) {
    ig_grammar *g = NULL;
    ig_err err = {0};
    bool may_end = false;
    ig_status st = ig_grammar_make(&g, gs, kind, ig_slice_of(source), false, NULL, &err);
    CHECK_MSG(st == IG_OK, "%s: %s", source, err.msg);
    if (st) return;
    size_t got = taken(g, text, &may_end);
    CHECK_MSG(got == n && may_end == end, "%s on %s: %zu bytes, end %d", source, text, got, may_end);
    ig_grammar_free(g);
}

static void refuses(ig_grammars *gs, ig_grammar_kind kind, const char *source, ig_status want, const char *word) {
    ig_grammar *g = NULL;
    ig_err err = {0};
    ig_status st = ig_grammar_make(&g, gs, kind, ig_slice_of(source), true, NULL, &err);
    CHECK_MSG(st == want && strstr(err.msg, word), "%.80s gave %d \"%s\", wanted \"%s\"", source, st, err.msg, word);
    ig_grammar_free(g);
}

TEST(a_mask_allows_what_goes_on_with_the_text_and_the_end_where_it_may_end) {
    ig_tokenizer *t = byte_tokenizer();
    ig_grammars *gs = NULL;
    const char *object = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"],"
                         "\"additionalProperties\":false}";
    CHECK(ig_grammars_make(&gs, t, NULL) == IG_OK);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, object, "{\"a\": true}", 11, true);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, object, "{\"a\": true", 10, false);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, object, "{\"b\": true}", 2, false);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, object, "{\"a\":  true}", 6, false); /* a blank more than one */
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, "{\"enum\":[\"\xc3\xa4\",2]}", "\"\xc3\xa4\"", 4, true);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":10,\"maximum\":12}", "13", 1, false);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"nullable\":true}", "null", 4, true);
    takes(gs, IG_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/l\",\"$defs\":{\"l\":{\"type\":\"array\",\"items\":"
                                      "{\"$ref\":\"#/$defs/l\"}}}}", "[[],[[]]]", 9, true);
    takes(gs, IG_GRAMMAR_REGEX, "[a-c]+d?", "abcdx", 4, true);
    takes(gs, IG_GRAMMAR_LARK, "start: \"(\" start \")\" | \"x\"", "((x)))", 5, true);

    /* Tokens of several bytes are allowed whole, and control tokens are not, whatever they are spelled like. */
    ig_grammar *g = NULL;
    ig_guided *guided = NULL;
    const char *why = NULL;
    CHECK(ig_grammar_make(&g, gs, IG_GRAMMAR_JSON_SCHEMA, ig_slice_of(object), false, NULL, NULL) == IG_OK);
    CHECK(ig_guided_make(&guided, g, NULL) == IG_OK);
    const uint32_t *mask = ig_guided_allowed(guided, &why);
    CHECK(mask && has(mask, 256) && !has(mask, 257) && has(mask, '{') && !has(mask, ' ') && !has(mask, END));
    ig_guided_take(guided, 256);
    mask = ig_guided_allowed(guided, &why);
    CHECK(mask && has(mask, 257) && has(mask, ' ') && !has(mask, 256));
    ig_guided_take(guided, 0xff); /* not allowed: this text fails, and says so */
    mask = ig_guided_allowed(guided, &why);
    CHECK(!mask && why && why[0]);
    ig_guided_done(guided);
    ig_grammar_free(g);
    takes(gs, IG_GRAMMAR_REGEX, "<end>", "<end>", 5, true);
    ig_grammars_release(gs);
    ig_tokenizer_free(t);
}

TEST(what_is_wrong_with_a_grammar_is_told_with_its_place) {
    ig_tokenizer *t = byte_tokenizer();
    ig_grammars *gs = NULL;
    CHECK(ig_grammars_make(&gs, t, NULL) == IG_OK);
    static const struct {
        const char *schema, *word;
        ig_status st;
    } bad[] = {
        {"{\"properties\":{\"a/b\":{\"type\":7}}}", "#/properties/a~1b/type", IG_EINVAL},
        {"{\"items\":{\"not\":{}}}", "#/items/not", IG_EINVAL},
        {"{\"format\":\"telephone\"}", "#/format: the format telephone", IG_EINVAL},
        {"{\"pattern\":\"a(\"}", "#/pattern", IG_EINVAL},
        {"{\"minLength\":3,\"maxLength\":2}", "#/minLength: minLength 3 is more than maxLength 2", IG_EINVAL},
        {"{\"maxItems\":1000000000}", "at most 1000000", IG_ELIMIT},
        {"{\"maxItems\":-1}", "#/maxItems", IG_EINVAL},
        {"{\"multipleOf\":999983}", "#/multipleOf", IG_ELIMIT},
        {"{\"multipleOf\":0}", "#/multipleOf", IG_EINVAL},
        {"{\"anyOf\":[]}", "#/anyOf", IG_EINVAL},
        {"{\"enum\":[]}", "#/enum", IG_EINVAL},
        {"{\"$ref\":\"http://127.0.0.1/x\"}", "leaves the schema", IG_EINVAL},
        {"{\"$ref\":\"#/$defs/none\"}", "names nothing", IG_EINVAL},
        {"{\"$ref\":\"#\"}", "no text satisfies it", IG_EINVAL},
        {"{\"x-guidance\":{\"lenient\":true}}", "#/x-guidance", IG_EINVAL},
        {"[1]", "an array", IG_EINVAL},
        {"{", "EOF", IG_EINVAL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(gs, IG_GRAMMAR_JSON_SCHEMA, bad[i].schema, bad[i].st, bad[i].word);
    refuses(gs, IG_GRAMMAR_REGEX, "(", IG_EINVAL, "unclosed group");
    refuses(gs, IG_GRAMMAR_LARK, "start: nothing", IG_EINVAL, "nothing");

    ig_grammar *g = NULL;
    ig_buf ignored = ig_buf_init(4096);
    ig_slice source = ig_slice_of("{\"properties\":{\"a\":{\"uniqueItems\":true,\"title\":\"A\"}}}");
    CHECK(ig_grammar_make(&g, gs, IG_GRAMMAR_JSON_SCHEMA, source, false, &ignored, NULL) == IG_OK);
    CHECK(ig_slice_eq_str((ig_slice){ignored.p, ignored.n}, "[\"#/properties/a/uniqueItems\"]"));
    ig_grammar_free(g);
    ig_buf_free(&ignored);
    ig_grammars_release(gs);
    ig_tokenizer_free(t);
}
