/* JSON out is JSON, whatever bytes go in; errors have OpenAI's shape. */
#include <string.h>

#include "base/test.h"
#include "serve/inside.h"

static yyjson_doc *put(const char *bytes, size_t n) {
    ig_buf b = ig_buf_init(1 << 16);
    yyjson_doc *doc = ig_serve_put_string(&b, bytes, n) ? yyjson_read(b.p, b.n, 0) : NULL;
    ig_buf_free(&b);
    return doc;
}

TEST(every_valid_string_comes_back_as_it_was) {
    static const char text[] = "a\"\\\n\r\t\x01\x1f\x7f \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 </script>\0z";
    yyjson_doc *doc = put(text, sizeof text - 1);
    yyjson_val *v = yyjson_doc_get_root(doc);
    CHECK(doc && yyjson_get_len(v) == sizeof text - 1 && !memcmp(yyjson_get_str(v), text, sizeof text - 1));
    yyjson_doc_free(doc);
}

TEST(every_pair_of_bytes_gives_json) {
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char bytes[2] = {(char)a, (char)b};
            yyjson_doc *doc = put(bytes, 2);
            if (!CHECK_MSG(doc != NULL, "bytes %02x %02x", a, b)) return;
            yyjson_doc_free(doc);
        }
}

TEST(a_full_buffer_refuses) {
    for (size_t max = 0; max < 12; max++) {
        ig_buf b = ig_buf_init(max);
        bool ok = ig_serve_put_string(&b, "ab\n\"\xff", 5);
        CHECK_MSG(ok == (max >= 11), "max %zu", max);
        ig_buf_free(&b);
    }
}

TEST(errors_have_four_members_and_context_errors_two_more) {
    ig_http_error e;
    ig_buf b = ig_buf_init(4096);
    CHECK(!ig_serve_refuse(&e, "invalid_value", "top_p", "top_p \"%d\"", 7) && e.status == 400);
    CHECK(ig_serve_error_json(&b, &e));
    CHECK(!strcmp(
        b.p,
        "{\"error\":{\"message\":\"top_p \\\"7\\\"\",\"type\":\"invalid_request_error\",\"param\":\"top_p\","
        "\"code\":\"invalid_value\"}}"));
    ig_buf_clear(&b);
    ig_serve_refuse(&e, "context_length_exceeded", NULL, "long");
    e.n_prompt_tokens = 9;
    e.n_ctx = 8;
    CHECK(ig_serve_error_json(&b, &e) && strstr(b.p, "\"param\":null") &&
          strstr(b.p, "\"n_prompt_tokens\":9,\"n_ctx\":8"));
    ig_buf_free(&b);
}
