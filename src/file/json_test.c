#include "base/test.h"
#include "file/file.h"

#include <stdlib.h>
#include <string.h>

static const ig_json_limits limits = {.bytes_max = 1 << 20, .depth_max = 128};

static ig_status parse(yyjson_doc **doc, const char *text, ig_err *err) {
    *doc = NULL;
    return ig_json_parse(doc, text, strlen(text), limits, err);
}

static void refuses(const char *text, size_t n, const char *says) {
    yyjson_doc *doc = NULL;
    ig_err err = {0};
    ig_status st = ig_json_parse(&doc, text, n, limits, &err);
    CHECK_MSG(st == IG_EFORMAT && strstr(err.msg, says), "\"%.40s\": %d \"%s\", expected \"%s\"", text, st,
              err.msg, says);
    yyjson_doc_free(doc);
}

TEST(a_member_is_the_last_of_its_name_and_null_is_absent) {
    yyjson_doc *doc;
    if (!CHECK(parse(&doc, "{\"a\":1,\"b\":null,\"a\":2,\"c\":3,\"c\":null}", NULL) == IG_OK)) return;
    yyjson_val *root = yyjson_doc_get_root(doc);
    CHECK(yyjson_get_int(ig_json_get(root, "a")) == 2);
    CHECK(!ig_json_get(root, "b") && !ig_json_get(root, "c") && !ig_json_get(root, "d"));
    CHECK(!ig_json_get(ig_json_get(root, "a"), "a") && !ig_json_get(NULL, "a")); /* not objects */
    yyjson_doc_free(doc);
}

TEST(errors_give_the_byte) {
    refuses("{\"a\":tru}", 9, "at byte 5");
    refuses("\xef\xbb\xbf{\"a\":tru}", 12, "at byte 8"); /* the BOM counts */
    refuses("[\"ab\xff\"]", 7, "at byte 4");
    refuses("[\"\xed\xa0\x80\"]", 7, "at byte 2"); /* a surrogate in UTF-8 */
    refuses("{} x", 4, "at byte 3");
    refuses("{}\0", 3, "at byte 2");
    refuses("[1e400]", 7, "at byte 1");
    refuses("[NaN]", 5, "at byte 1");
    refuses("[1,]", 4, "at byte");
    refuses("[\"\\u12\"]", 8, "at byte");
    refuses("[\"\\ud800", 8, "at byte");
    refuses("[\"abc", 5, "at byte");
    refuses("", 0, "empty");
    refuses("\xef\xbb\xbf", 3, "empty");
    refuses("   ", 3, "at byte");
}

TEST(depth_is_bounded_and_brackets_in_strings_do_not_count) {
    enum { N = 1000000 };
    char *deep = malloc(N + 1);
    memset(deep, '[', N);
    refuses(deep, N, "nested deeper than 128 at byte 128");
    memset(deep + 128, ']', 128);
    yyjson_doc *doc = NULL;
    CHECK(ig_json_parse(&doc, deep, 256, limits, NULL) == IG_OK); /* the control: just allowed */
    yyjson_doc_free(doc);
    memset(deep, '[', N);
    deep[0] = '"';
    deep[1] = '\\';
    deep[2] = '"';
    deep[N - 1] = '"';
    doc = NULL;
    CHECK(ig_json_parse(&doc, deep, N, limits, NULL) == IG_OK);
    yyjson_doc_free(doc);
    free(deep);
}

TEST(too_many_bytes_are_a_limit) {
    yyjson_doc *doc = NULL;
    ig_err err = {0};
    CHECK(ig_json_parse(&doc, "[1,2]", 5, (ig_json_limits){4, 8}, &err) == IG_ELIMIT &&
          strstr(err.msg, "limit 4"));
    CHECK(ig_json_parse(&doc, "[1,2]", 5, (ig_json_limits){5, 8}, &err) == IG_OK);
    yyjson_doc_free(doc);
}

TEST(lone_surrogates_become_the_replacement_character_and_pairs_stay) {
    static const char *const cases[][2] = {
        {"\"\\ud800\"", "\xef\xbf\xbd"},
        {"\"a\\uDFFFz\"", "a\xef\xbf\xbdz"},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"},
        {"\"\\ud83d\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\"\\ude00\\ud83d\"", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\"\\ud83dx\\ude00\"", "\xef\xbf\xbdx\xef\xbf\xbd"},
        {"\"\\ud83d\\n\"", "\xef\xbf\xbd\n"},
        {"\"\\\\ud800\"", "\\ud800"}, /* an escaped backslash, then plain letters */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        yyjson_doc *doc;
        ig_err err = {0};
        char *text = strdup(cases[i][0]); /* heap: the sanitizer sees an overrun; and it must stay as it is */
        CHECK_MSG(parse(&doc, text, &err) == IG_OK, "%s: %s", text, err.msg);
        const char *got = yyjson_get_str(yyjson_doc_get_root(doc));
        CHECK_MSG(got && strcmp(got, cases[i][1]) == 0, "%s gives \"%s\"", text, got ? got : "nothing");
        CHECK(strcmp(text, cases[i][0]) == 0);
        yyjson_doc_free(doc);
        free(text);
    }
}

TEST(zero_escapes_keep_their_length_and_big_integers_stay_exact) {
    yyjson_doc *doc;
    if (!CHECK(parse(&doc, "{\"s\":\"a\\u0000b\",\"a\\u0000\":1,\"n\":18446744073709551615}", NULL) == IG_OK))
        return;
    yyjson_val *root = yyjson_doc_get_root(doc), *s = ig_json_get(root, "s");
    CHECK(yyjson_get_len(s) == 3 && memcmp(yyjson_get_str(s), "a\0b", 3) == 0);
    CHECK(!ig_json_get(root, "a")); /* "a" is not "a\0" */
    CHECK(yyjson_get_uint(ig_json_get(root, "n")) == UINT64_MAX);
    yyjson_doc_free(doc);
}

TEST(any_bytes_can_be_written_and_those_that_are_no_utf8_are_replaced) {
    static const char *const cases[][2] = {
        {"", ""},
        {"plain", "plain"},
        {"\xc3\xa9", "\xc3\xa9"},
        {"a\xff", "a\xef\xbf\xbd"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"x\xe2\x82", "x\xef\xbf\xbd\xef\xbf\xbd"}, /* half a character */
        {"\xed\xa0\x80y", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdy"},
        {"\xc0\xafz", "\xef\xbf\xbd\xef\xbf\xbdz"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool lost;
        yyjson_mut_doc *doc = ig_json_doc_make(&lost);
        yyjson_mut_val *root = yyjson_mut_obj(doc);
        yyjson_mut_doc_set_root(doc, root);
        char *text = strdup(cases[i][0]); /* heap: the sanitizer sees an overrun */
        CHECK(ig_json_add_bytes(doc, root, "name", text));
        free(text);
        char *json = yyjson_mut_write(doc, 0, NULL), wanted[64];
        snprintf(wanted, sizeof wanted, "{\"name\":\"%s\"}", cases[i][1]);
        CHECK_MSG(json && strcmp(json, wanted) == 0, "%zu gives %s", i, json ? json : "nothing");
        free(json);
        yyjson_mut_doc_free(doc);
    }
    CHECK(!ig_json_bytes(NULL, "x", 1));
}
