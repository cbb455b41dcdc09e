/* Tests of the pre-tokenizer: the words of small texts, and that no text is too long for it. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

static const char *const names[] = {"smollm", "gpt-2",    "llama-bpe", "qwen2",
                                    "qwen35", "minicpm5", "tekken",    "default"};

/* Of tokenizer.json files whose patterns are known to be linear. */
#define CUT(regex)                                                                                           \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define CAPITAL "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SMALL "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char *const files[] = {
    CUT("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" CAPITAL "*" SMALL "+" SHORT "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" CAPITAL
        "+" SMALL "*" SHORT "|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|"
        "\\\\s+(?!\\\\S)|\\\\s+"),
    CUT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?"
        "[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
};

static ig_status join(void *with, ig_slice word, ig_err *err) {
    ig_buf *got = with;
    (void)err;
    ig_buf_addf(got, "%s%.*s", got->n ? "/" : "", (int)word.n, word.p);
    return IG_OK;
}

/* The words of `text` joined by '/', which no text here holds. */
static void check_words(ig_pretok *p, const char *name, const char *text, const char *want) {
    ig_regex_scratch *s = ig_regex_scratch_make();
    ig_buf got = ig_buf_init(1000);
    CHECK(ig_pretok_words(p, s, ig_slice_of(text), true, join, &got, NULL) == IG_OK);
    CHECK_MSG(ig_slice_eq_str((ig_slice){got.n ? got.p : "", got.n}, want), "%s gave %s", name, got.p);
    ig_buf_free(&got);
    ig_regex_scratch_free(s);
}

static void words(const char *name, const char *text, const char *want) {
    ig_pretok *p = NULL;
    if (!CHECK(ig_pretok_make(&p, ig_slice_of(name), NULL) == IG_OK)) return;
    check_words(p, name, text, want);
    ig_pretok_free(p);
}

static ig_status from_json(ig_pretok **out, const char *json, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_status st = ig_json_parse(&doc, json, strlen(json), (ig_json_limits){1 << 20, 16}, err);
    if (!st) st = ig_pretok_from_json(out, yyjson_doc_get_root(doc), err);
    yyjson_doc_free(doc);
    return st;
}

static void json_words(const char *json, const char *text, const char *want) {
    ig_pretok *p = NULL;
    ig_err err = {0};
    if (!CHECK_MSG(from_json(&p, json, &err) == IG_OK, "%s: %s", json, err.msg)) return;
    check_words(p, json, text, want);
    ig_pretok_free(p);
}

TEST(each_name_cuts_as_its_model_was_trained) {
    words("smollm", "It's 1984,  isn't it?\n\n x", "It/'s/ /1/9/8/4/,/ / isn/'t/ it/?/\n\n/ x");
    words("gpt-2", "It's 1984,  isn't it?\n\n x", "It/'s/ 1984/,/ / isn/'t/ it/?/\n\n/ x");
    words("llama-bpe", "It's 1984,  isn't it?\n\n x", "It/'s/ /198/4/,/ / isn/'t/ it/?\n\n/ x");
    words("qwen2", "It'S 1984 (ab)", "It/'S/ /1/9/8/4/ (/ab/)");
    words("qwen35", "a\xCC\x81\xCC\x81 12 a", "a\xCC\x81\xCC\x81/ /1/2/ a"); /* marks are of the word */
    words("qwen2", "a\xCC\x81 a", "a/\xCC\x81/ a");
    words("minicpm5", "ab1234567 x\r\n", "ab/123/456/7/ x/\r\n");
    words("tekken", "HelloWORLDs a/b//\n 12", "Hello/WORLDs/ a//b///\n/ /1/2");
    words("default", "It's 12345, (ok)?!", "It/'/s/ /123/45/,/ /(/ok/)?!");
    words("smollm", "It'S", "It/'/S");
    words("qwen2", "it'\xC5\xBFx", "it/'\xC5\xBFx"); /* a long s is an s only where the case is folded */
    words("smollm", "a \xE2\x80\x83 b", "a/ \xE2\x80\x83/ b");             /* an em space is a blank */
    words("smollm", "a \xE1\xA0\x8E b", "a/ \xE1\xA0\x8E/ b");             /* U+180E is not */
    words("smollm", "\xD9\xA1\xD9\xA2 \xC2\xBD", "\xD9\xA1/\xD9\xA2/ /\xC2\xBD"); /* digits of any script */
}

struct ends {
    const char *text;
    uint32_t *at;
    size_t n, cap;
};

static ig_status note_end(void *with, ig_slice word, ig_err *err) {
    struct ends *e = with;
    (void)err;
    ig_assert(e->n < e->cap);
    e->at[e->n++] = (uint32_t)(word.p + word.n - e->text);
    return IG_OK;
}

/* Words of the whole text with the JIT compiler and without must end at the same places. */
static void long_text(ig_slice text) {
    const size_t n_names = sizeof names / sizeof *names;
    for (size_t i = 0; i < n_names + sizeof files / sizeof *files; i++) {
        ig_pretok *p = NULL;
        ig_err err = {0};
        ig_regex_scratch *s = ig_regex_scratch_make();
        struct ends jit = {text.p, malloc(text.n * 4), 0, text.n},
                    plain = {text.p, malloc(text.n * 4), 0, text.n};
        const char *name = i < n_names ? names[i] : files[i - n_names];
        CHECK(i < n_names ? ig_pretok_make(&p, ig_slice_of(name), NULL) == IG_OK
                          : from_json(&p, name, NULL) == IG_OK);
        CHECK_MSG(!ig_pretok_words(p, s, text, true, note_end, &jit, &err), "%s: %s", name, err.msg);
        ig_pretok_stop_jit(p);
        CHECK_MSG(!ig_pretok_words(p, s, text, true, note_end, &plain, &err), "%s: %s", name, err.msg);
        CHECK(jit.n == plain.n && jit.n > 0 && memcmp(jit.at, plain.at, jit.n * 4) == 0);
        CHECK(jit.at[jit.n - 1] == text.n);
        free(jit.at);
        free(plain.at);
        ig_regex_scratch_free(s);
        ig_pretok_free(p);
    }
}

TEST(runs_of_a_megabyte_meet_no_limit) {
    enum { N = 1 << 20 };
    static const char *const unit[] = {"a",           " ", "!", "\n", "\t \n", "\xCC\x81", "\xE4\xB8\xAD",
                                       "\xE2\x80\x83"};
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

/* What the reference gives for each step and behavior. */
TEST(steps_of_a_json_file_cut_as_the_reference_does) {
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Removed\",\"invert\":false}",
               "-a--b-c-", "a/b/c");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Removed\",\"invert\":true}",
               "-a--b-c-", "-/-/-/-/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Isolated\",\"invert\":false}",
               "-a--b-c-", "-/a/-/-/b/-/c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Isolated\",\"invert\":true}",
               "-a--b-c-", "-/a/-/-/b/-/c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"MergedWithPrevious\",\"invert\":false}",
               "-a--b-c-", "-/a-/-/b-/c-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"MergedWithPrevious\",\"invert\":true}",
               "-a--b-c-", "-a/-/-b/-c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"MergedWithNext\",\"invert\":false}",
               "-a--b-c-", "-a/-/-b/-c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"MergedWithNext\",\"invert\":true}",
               "-a--b-c-", "-/a-/-/b-/c-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Contiguous\",\"invert\":false}",
               "-a--b-c-", "-/a/--/b/-/c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"}"
               ",\"behavior\":\"Contiguous\",\"invert\":true}",
               "-a--b-c-", "-/a/--/b/-/c/-");
    json_words("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x*\"}"
               ",\"behavior\":\"Isolated\",\"invert\":false}",
               "axxb", "a/xx/b");
    json_words("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\d+\"}"
               ",\"behavior\":\"Removed\",\"invert\":false}",
               "a12b3", "a/b");
    json_words("{\"type\":\"Digits\",\"individual_digits\":true}",
               "a12b3", "a/1/2/b/3");
    json_words("{\"type\":\"Digits\",\"individual_digits\":false}",
               "12ab34", "12/ab/34");
    json_words("{\"type\":\"WhitespaceSplit\"}",
               " a  b\xE3\x80\x80" "c\n", "a/b/c");
    json_words("{\"type\":\"Metaspace\",\"replacement\":\"_\""
               ",\"prepend_scheme\":\"always\",\"split\":true}",
               "a b  c_d", "_a/_b/_/_c/_d");
    json_words("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true}",
               " a b", "_a/_b");
    json_words("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\",\"split\":true}",
               "a b", "a/_b");
    json_words("{\"type\":\"Metaspace\",\"replacement\":\"_\""
               ",\"prepend_scheme\":\"first\",\"split\":false}",
               "a b", "_a_b");
    json_words("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whites"
               "paceSplit\"}, {\"type\":\"Digits\",\"individual_digits\":true}]}",
               "ab1 c23", "ab/1/c/2/3");
    json_words("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+|[^\\\\w\\\\s]+\"}"
               ",\"behavior\":\"Removed\",\"invert\":true}",
               "Hi, you!", "Hi/,/you/!");
}

static void refused(const char *json, const char *word) {
    ig_pretok *p = NULL;
    ig_err err = {0};
    ig_status st = from_json(&p, json, &err);
    CHECK_MSG(st == IG_EFORMAT && !p && strstr(err.msg, word), "%s: %d \"%s\"", json, st, err.msg);
}

#define SPLIT(regex) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"}"

TEST(what_cannot_be_run_is_refused_by_name) {
    refused("{}", "without a type");
    refused("[]", "without a type");
    refused("{\"type\":\"UnicodeScripts\"}", "\"UnicodeScripts\"");
    refused("{\"type\":\"Sequence\"}", "no list");
    refused("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Mixed\"}", "\"Mixed\"");
    refused("{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}", "0 bytes");
    refused("{\"type\":\"Split\",\"pattern\":3,\"behavior\":\"Isolated\"}", "no pattern");
    refused("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}",
            "after ByteLevel");
    refused(SPLIT("(a"), "missing closing parenthesis");
    refused(SPLIT("[a"), "[ without ]");
    refused(SPLIT("[]"), "empty class");
    refused(SPLIT("[a[b]]"), "[ inside");
    refused(SPLIT("[a&&b]"), "&&");
    refused(SPLIT("(?R)"), "kind of group");
    refused(SPLIT("(*ACCEPT)"), "kind of group");
    refused(SPLIT("(a)\\\\1"), "escape");
    refused(SPLIT("\\\\K"), "\\K");
    refused(SPLIT("a{2}+"), "}+");
    refused(SPLIT("((((((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))))))))"), "nested");
    refused(SPLIT("((((((a{999}){999}){999}){999}){999}){999})"), "too large");
}

TEST(a_pattern_that_explodes_meets_a_limit) {
    static const char *const bad[] = {SPLIT("(a+)+$"), SPLIT("(?:a|a)*[bd]"), SPLIT("a*[bd]")};
    size_t n = 200 * 1000;
    char *text = malloc(n);
    memset(text, 'a', n);
    text[n - 1] = 'c';
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ig_pretok *p = NULL;
        ig_regex_scratch *s = ig_regex_scratch_make();
        ig_err err = {0};
        struct ends e = {text, malloc(n * 4), 0, n};
        if (!CHECK_MSG(from_json(&p, bad[i], &err) == IG_OK, "%s", err.msg)) return;
        CHECK_MSG(ig_pretok_words(p, s, (ig_slice){text, n}, true, note_end, &e, &err) == IG_ELIMIT, "%s",
                  bad[i]);
        CHECK(strstr(err.msg, "pattern of the tokenizer"));
        free(e.at);
        ig_regex_scratch_free(s);
        ig_pretok_free(p);
    }
    free(text);
}
