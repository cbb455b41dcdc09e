/* Bodies of /v1/messages: what they become, and what a refusal names. */
#include <string.h>

#include "base/test.h"
#include "serve/inside.h"

static bool parse(ig_chat_request *r, ig_serve_kind kind, const char *body, ig_http_error *e) {
    static const ig_serve_request_defaults defaults = {.sampling = {.temperature = 0.7}};
    memset(e, 0, sizeof *e);
    return ig_serve_request_parse(r, kind, body, strlen(body), &defaults, e);
}

static const char *content(const ig_chat_request *r, size_t i) {
    return yyjson_get_str(ig_json_get(yyjson_arr_get(r->messages, i), "content"));
}

TEST(a_message_becomes_a_chat_with_its_system_first) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse(&r, IG_SERVE_MESSAGES,
                "{\"max_tokens\":7,\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],"
                "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}],"
                "\"stop_sequences\":[\"x\"],\"top_k\":3,\"stop\":7,\"metadata\":{\"user_id\":\"u\"},"
                "\"thinking\":{\"type\":\"disabled\"}}",
                &e));
    CHECK(yyjson_arr_size(r.messages) == 2 && !strcmp(content(&r, 0), "a\n\nb") && !strcmp(content(&r, 1), "c"));
    CHECK(r.max_tokens == 7 && r.n_stops == 1 && ig_slice_eq_str(r.stops[0], "x") && r.sampling.top_k == 3);
    CHECK(yyjson_is_false(ig_json_get(r.kwargs, "enable_thinking")));
    ig_serve_request_clear(&r);
}

TEST(what_a_message_cannot_have_is_refused_by_name) {
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define BLOCK(b) "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[" b "]}]}"
    static const struct {
        const char *body, *code, *param;
    } cases[] = {
        {"{" USER "}", "missing_required_parameter", "max_tokens"},
        {"{\"max_tokens\":0," USER "}", "invalid_value", "max_tokens"},
        {"{\"max_tokens\":1}", "missing_required_parameter", "messages"},
        {"{\"max_tokens\":1,\"messages\":[]}", "empty_prompt", "messages"},
        {"{\"max_tokens\":1,\"messages\":[7]}", "invalid_value", "messages[0].role"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "invalid_value",
         "messages[0].role"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\"}]}", "missing_required_parameter",
         "messages[0].content"},
        {BLOCK("{\"type\":\"image\"}"), "vision_not_supported", "messages[0].content"},
        {BLOCK("{\"type\":\"tool_result\"}"), "unsupported_parameter", "messages[0].content"},
        {BLOCK("{\"type\":\"odd\"}"), "invalid_value", "messages[0].content"},
        {BLOCK("{\"type\":\"text\"}"), "invalid_value", "messages[0].content"},
        {BLOCK("7"), "invalid_value", "messages[0].content"},
        {"{\"max_tokens\":1,\"system\":7," USER "}", "invalid_value", "system"},
        {"{\"max_tokens\":1,\"tools\":[{\"name\":\"a\"}]," USER "}", "unsupported_parameter", "tools"},
        {"{\"max_tokens\":1,\"tool_choice\":{\"type\":\"any\"}," USER "}", "unsupported_parameter", "tool_choice"},
        {"{\"max_tokens\":1,\"thinking\":{\"type\":\"enabled\"}," USER "}", "unsupported_parameter", "thinking"},
        {"{\"max_tokens\":1,\"stop_sequences\":\"a\"," USER "}", "invalid_value", "stop_sequences"},
        {"{\"max_tokens\":1,\"stop_sequences\":[\"\"]," USER "}", "invalid_value", "stop_sequences"},
        {"{\"max_tokens\":1,\"temperature\":9," USER "}", "invalid_value", "temperature"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ig_chat_request r;
        ig_http_error e;
        CHECK_MSG(!parse(&r, IG_SERVE_MESSAGES, cases[i].body, &e) && !strcmp(e.code, cases[i].code) &&
                      !strcmp(e.param, cases[i].param),
                  "%s: %s %s", cases[i].body, e.code ? e.code : "taken", e.param);
        ig_serve_request_clear(&r);
    }
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse(&r, IG_SERVE_MESSAGES_COUNT, "{" USER "}", &e)); /* max_tokens is not needed to count */
    ig_serve_request_clear(&r);
}
