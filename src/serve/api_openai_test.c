/* Requests as bytes: what is understood, what is refused, and what the refusal names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/test.h"
#include "serve/inside.h"

static const ig_serve_request_defaults defaults = {.sampling = {.temperature = 0.7}};

static bool parse(ig_chat_request *r, ig_serve_kind kind, const char *body, ig_http_error *e) {
    memset(e, 0, sizeof *e);
    return ig_serve_request_parse(r, kind, body, strlen(body), &defaults, e);
}

/* `members` go into an object after a valid messages or prompt. */
static bool parse_with(ig_chat_request *r, ig_serve_kind kind, const char *members, ig_http_error *e) {
    char body[8192];
    snprintf(body, sizeof body, "{%s%s%s}",
             kind == IG_SERVE_COMPLETION ? "\"prompt\":\"a\""
                                         : "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]",
             members[0] ? "," : "", members);
    return parse(r, kind, body, e);
}

TEST(the_smallest_chat_gets_the_defaults) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse_with(&r, IG_SERVE_CHAT, "", &e));
    CHECK(!r.stream && r.max_tokens == 0 && r.sampling.temperature == 0.7 && !r.has_seed && r.cache_prompt);
    CHECK(r.logprobs == IG_SERVE_LOGPROBS_NONE && r.n_stops == 0 && !r.continue_final);
    ig_serve_request_clear(&r);
}

TEST(null_is_the_same_as_absent_and_unknown_fields_are_ignored) {
    static const char *const keys[] = {
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "stream", "logprobs", "top_logprobs",
        "max_tokens", "max_completion_tokens", "tools", "tool_choice", "response_format", "logit_bias",
        "presence_penalty", "audio", "stream_options", "chat_template_kwargs", "reasoning_effort", "model",
        "frobnicate"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char member[128];
        ig_chat_request r;
        ig_http_error e;
        snprintf(member, sizeof member, "\"%s\":null", keys[i]);
        CHECK_MSG(parse_with(&r, IG_SERVE_CHAT, member, &e), "%s: %s", member, e.message);
        ig_serve_request_clear(&r);
    }
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse_with(&r, IG_SERVE_CHAT, "\"frobnicate\":{\"a\":[1,2]},\"user\":7,\"metadata\":[]", &e));
    ig_serve_request_clear(&r);
}

static const struct refusal {
    ig_serve_kind kind;
    const char *members, *code, *param;
} refusals[] = {
    {IG_SERVE_CHAT, "\"temperature\":-1", "invalid_value", "temperature"},
    {IG_SERVE_CHAT, "\"temperature\":5.01", "invalid_value", "temperature"},
    {IG_SERVE_CHAT, "\"temperature\":\"1\"", "invalid_value", "temperature"},
    {IG_SERVE_CHAT, "\"temperature\":true", "invalid_value", "temperature"},
    {IG_SERVE_CHAT, "\"top_p\":2", "invalid_value", "top_p"},
    {IG_SERVE_CHAT, "\"top_p\":-0.1", "invalid_value", "top_p"},
    {IG_SERVE_CHAT, "\"min_p\":1.1", "invalid_value", "min_p"},
    {IG_SERVE_CHAT, "\"top_k\":-5", "invalid_value", "top_k"},
    {IG_SERVE_CHAT, "\"top_k\":1.5", "invalid_value", "top_k"},
    {IG_SERVE_CHAT, "\"max_tokens\":0", "invalid_value", "max_tokens"},
    {IG_SERVE_CHAT, "\"max_tokens\":-1", "invalid_value", "max_tokens"},
    {IG_SERVE_CHAT, "\"max_tokens\":1.5", "invalid_value", "max_tokens"},
    {IG_SERVE_CHAT, "\"max_tokens\":\"5\"", "invalid_value", "max_tokens"},
    {IG_SERVE_CHAT, "\"max_tokens\":9223372036854775808", "invalid_value", "max_tokens"},
    {IG_SERVE_CHAT, "\"max_completion_tokens\":0", "invalid_value", "max_completion_tokens"},
    {IG_SERVE_CHAT, "\"seed\":1.5", "invalid_value", "seed"},
    {IG_SERVE_CHAT, "\"seed\":18446744073709551616", "invalid_value", "seed"},
    {IG_SERVE_CHAT, "\"seed\":\"7\"", "invalid_value", "seed"},
    {IG_SERVE_CHAT, "\"stream\":1", "invalid_value", "stream"},
    {IG_SERVE_CHAT, "\"stream_options\":[]", "invalid_value", "stream_options"},
    {IG_SERVE_CHAT, "\"stream_options\":{\"include_usage\":1}", "invalid_value", "include_usage"},
    {IG_SERVE_CHAT, "\"n\":0", "invalid_value", "n"},
    {IG_SERVE_CHAT, "\"n\":1000000", "invalid_value", "n"},
    {IG_SERVE_CHAT, "\"n\":2", "unsupported_parameter", "n"},
    {IG_SERVE_CHAT, "\"stop\":\"\"", "invalid_value", "stop"},
    {IG_SERVE_CHAT, "\"stop\":[1]", "invalid_value", "stop"},
    {IG_SERVE_CHAT, "\"stop\":{}", "invalid_value", "stop"},
    {IG_SERVE_CHAT,
     "\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"," //
     "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]",
     "invalid_value", "stop"},
    {IG_SERVE_CHAT, "\"logprobs\":1", "invalid_value", "logprobs"},
    {IG_SERVE_CHAT, "\"logprobs\":true,\"top_logprobs\":21", "invalid_value", "top_logprobs"},
    {IG_SERVE_CHAT, "\"logprobs\":true,\"top_logprobs\":-2", "invalid_value", "top_logprobs"},
    {IG_SERVE_CHAT, "\"logprobs\":true,\"top_logprobs\":1e300", "invalid_value", "top_logprobs"},
    {IG_SERVE_CHAT, "\"top_logprobs\":3", "invalid_value", "top_logprobs"},
    {IG_SERVE_CHAT, "\"tools\":[{}]", "unsupported_parameter", "tools"},
    {IG_SERVE_CHAT, "\"tool_choice\":\"required\"", "invalid_value", "tool_choice"},
    {IG_SERVE_CHAT, "\"response_format\":{\"type\":\"json_object\"}", "unsupported_parameter",
     "response_format"},
    {IG_SERVE_CHAT, "\"response_format\":\"json\"", "invalid_value", "response_format"},
    {IG_SERVE_CHAT, "\"logit_bias\":7", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":[1]", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"\":1}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"-1\":1}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"4294967296\":1}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"99999999999999999999999\":1}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"5\":\"1\"}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"logit_bias\":{\"5\":101}", "invalid_value", "logit_bias"},
    {IG_SERVE_CHAT, "\"presence_context_size\":-1", "invalid_value", "presence_context_size"},
    {IG_SERVE_CHAT, "\"presence_penalty\":3", "invalid_value", "presence_penalty"},
    {IG_SERVE_CHAT, "\"frequency_penalty\":-2.1", "invalid_value", "frequency_penalty"},
    {IG_SERVE_CHAT, "\"frequency_context_size\":1.5", "invalid_value", "frequency_context_size"},
    {IG_SERVE_CHAT, "\"repetition_context_size\":\"20\"", "invalid_value", "repetition_context_size"},
    {IG_SERVE_CHAT, "\"repeat_penalty\":1.1", "unsupported_parameter", "repeat_penalty"},
    {IG_SERVE_CHAT, "\"repetition_penalty\":-1", "invalid_value", "repetition_penalty"},
    {IG_SERVE_CHAT, "\"xtc_threshold\":0.6", "invalid_value", "xtc_threshold"},
    {IG_SERVE_CHAT, "\"min_tokens_to_keep\":-1", "invalid_value", "min_tokens_to_keep"},
    {IG_SERVE_CHAT, "\"xtc_probability\":2", "invalid_value", "xtc_probability"},
    {IG_SERVE_CHAT, "\"modalities\":[\"text\",\"audio\"]", "unsupported_parameter", "modalities"},
    {IG_SERVE_CHAT, "\"audio\":{\"voice\":\"x\"}", "unsupported_parameter", "audio"},
    {IG_SERVE_CHAT, "\"background\":true", "unsupported_parameter", "background"},
    {IG_SERVE_CHAT, "\"dry_run\":true", "unsupported_parameter", "dry_run"},
    {IG_SERVE_CHAT, "\"chat_template\":\"x\"", "unsupported_parameter", "chat_template"},
    {IG_SERVE_CHAT, "\"chat_template_kwargs\":[]", "invalid_value", "chat_template_kwargs"},
    {IG_SERVE_CHAT, "\"adapter\":\"x\"", "adapter_not_found", "adapter"},
    {IG_SERVE_CHAT, "\"model\":7", "invalid_value", "model"},
    {IG_SERVE_CHAT, "\"messages\":[]", "empty_prompt", "messages"},
    {IG_SERVE_CHAT, "\"messages\":7", "invalid_value", "messages"},
    {IG_SERVE_CHAT, "\"messages\":[7]", "invalid_value", "messages"},
    {IG_SERVE_CHAT, "\"messages\":[{\"content\":\"a\"}]", "missing_required_parameter", "messages[0].role"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]", "invalid_value",
     "messages[0].role"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\"}]",
     "missing_required_parameter", "messages[1].content"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":7}]", "invalid_value",
     "messages[0].content"},
    {IG_SERVE_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
     "vision_not_supported", "messages[0].content"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]", "invalid_value",
     "messages[0].content"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]", "missing_required_parameter",
     "messages[0].tool_call_id"},
    {IG_SERVE_CHAT, "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "invalid_value",
     "messages[0].tool_calls"},
    {IG_SERVE_COMPLETION, "\"prompt\":[]", "empty_prompt", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[[]]", "empty_prompt", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[-1]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[1,\"a\"]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[\"a\",[1]]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":{}", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":null", "missing_required_parameter", "prompt"},
    {IG_SERVE_COMPLETION, "\"suffix\":\"b\"", "unsupported_parameter", "suffix"},
    {IG_SERVE_COMPLETION, "\"echo\":true", "unsupported_parameter", "echo"},
    {IG_SERVE_COMPLETION, "\"best_of\":3", "unsupported_parameter", "best_of"},
    {IG_SERVE_COMPLETION, "\"logprobs\":21", "invalid_value", "logprobs"},
    {IG_SERVE_COMPLETION, "\"prompt\":[1.5]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[4294967296]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[4294967296.0]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[-1.0]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"prompt\":[true]", "invalid_value", "prompt"},
    {IG_SERVE_COMPLETION, "\"chat_template_kwargs\":{\"a\":1}", "unsupported_parameter",
     "chat_template_kwargs"},
    {IG_SERVE_COMPLETION, "\"reasoning_effort\":\"low\"", "unsupported_parameter", "reasoning_effort"},
    {IG_SERVE_COMPLETION, "\"chat_template\":\"x\"", "unsupported_parameter", "chat_template"},
    {IG_SERVE_COMPLETION, "\"thinking_budget\":9", "unsupported_parameter", "thinking_budget"},
    {IG_SERVE_COMPLETION, "\"add_generation_prompt\":false", "unsupported_parameter",
     "add_generation_prompt"},
    {IG_SERVE_COMPLETION, "\"continue_final_message\":true", "unsupported_parameter",
     "continue_final_message"},
};

TEST(each_refusal_names_its_parameter) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *t = &refusals[i];
        ig_chat_request r;
        ig_http_error e;
        bool ok = parse_with(&r, t->kind, t->members, &e);
        CHECK_MSG(!ok && !strcmp(e.code, t->code) && !strcmp(e.param, t->param), "%s: %s %s \"%s\"",
                  t->members, ok ? "accepted" : e.code, e.param, e.message);
        ig_serve_request_clear(&r);
    }
}

static const struct accepted {
    ig_serve_kind kind;
    const char *members;
} off_values[] = {
    {IG_SERVE_CHAT, "\"tools\":[],\"tool_choice\":\"none\",\"parallel_tool_calls\":false"},
    {IG_SERVE_CHAT, "\"n\":1,\"presence_penalty\":0,\"frequency_penalty\":0.0,\"repetition_penalty\":1.0"},
    {IG_SERVE_CHAT, "\"response_format\":{\"type\":\"text\"},\"logit_bias\":{},\"modalities\":[\"text\"]"},
    {IG_SERVE_CHAT, "\"top_k\":-1,\"top_p\":1,\"min_p\":0,\"temperature\":0,\"min_tokens_to_keep\":1"},
    {IG_SERVE_CHAT, "\"max_tokens\":3.0,\"seed\":-1,\"top_logprobs\":0"},
    {IG_SERVE_CHAT, "\"adapter\":\"none\",\"adapters\":[],\"draft\":true,\"store\":true,\"user\":\"u\""},
    {IG_SERVE_CHAT, "\"stop\":[],\"logprobs\":true,\"top_logprobs\":20"},
    {IG_SERVE_COMPLETION,
     "\"chat_template_kwargs\":{},\"add_generation_prompt\":true,"
     "\"suffix\":\"\",\"echo\":false,\"best_of\":1,\"logprobs\":0,\"messages\":7,\"tools\":[1]"},
};

TEST(values_that_mean_off_are_accepted) {
    for (size_t i = 0; i < sizeof off_values / sizeof *off_values; i++) {
        ig_chat_request r;
        ig_http_error e;
        CHECK_MSG(parse_with(&r, off_values[i].kind, off_values[i].members, &e), "%s: %s",
                  off_values[i].members, e.message);
        ig_serve_request_clear(&r);
    }
}

TEST(what_changes_logits_and_filters_arrives_as_it_was_said) {
    ig_serve_request_defaults d = {.sampling = ig_sampling_defaults()};
    ig_token_bias base = {7, 1.0f};
    ig_chat_request r;
    ig_http_error e = {0};
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":0.8,\"min_p\":0.05,"
                       "\"min_tokens_to_keep\":3,\"xtc_probability\":0.5,\"xtc_threshold\":0.2,"
                       "\"repetition_penalty\":1.1,\"repetition_context_size\":64,\"presence_penalty\":-0.5,"
                       "\"frequency_penalty\":2,\"logit_bias\":{\"13\":-100,\"5\":0.25,\"13\":-99.5}}";
    d.sampling.logit_bias = &base, d.sampling.n_logit_bias = 1;
    CHECK_MSG(ig_serve_request_parse(&r, IG_SERVE_CHAT, body, strlen(body), &d, &e), "%s", e.message);
    const ig_sampling *s = &r.sampling;
    CHECK(s->temperature == 0.8 && s->min_p == 0.05 && s->min_tokens_to_keep == 3); /* doubles: all their digits */
    CHECK(s->xtc_probability == 0.5 && s->xtc_threshold == 0.2 && s->repetition_penalty == 1.1);
    CHECK(s->repetition_context_size == 64 && s->presence_context_size == 20 && s->frequency_context_size == 20);
    CHECK(s->presence_penalty == -0.5 && s->frequency_penalty == 2);
    CHECK(s->n_logit_bias == 2 && s->logit_bias[0].id == 13 && s->logit_bias[0].bias == -99.5f);
    CHECK(s->logit_bias[1].id == 5 && s->logit_bias[1].bias == 0.25f);
    ig_serve_request_clear(&r);
    body = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    CHECK(ig_serve_request_parse(&r, IG_SERVE_CHAT, body, strlen(body), &d, &e));
    CHECK(r.sampling.n_logit_bias == 1 && r.sampling.logit_bias == &base && r.sampling.xtc_threshold == 0.1);
    ig_serve_request_clear(&r);
}

TEST(too_many_biases_are_refused_with_the_bound) {
    static char body[1 << 16];
    ig_serve_request_defaults d = {.sampling = ig_sampling_defaults()};
    for (int extra = 0; extra < 2; extra++) {
        ig_chat_request r;
        ig_http_error e = {0};
        int at = snprintf(body, sizeof body, "{\"prompt\":\"a\",\"logit_bias\":{\"0\":1");
        for (int i = 1; i < IG_LOGIT_BIAS_MAX + extra; i++)
            at += snprintf(body + at, sizeof body - (size_t)at, ",\"%d\":1", i);
        at += snprintf(body + at, sizeof body - (size_t)at, "}}");
        bool ok = ig_serve_request_parse(&r, IG_SERVE_COMPLETION, body, (size_t)at, &d, &e);
        CHECK(ok == (extra == 0) && (ok || (strstr(e.message, "1025") && strstr(e.message, "1024"))));
        ig_serve_request_clear(&r);
    }
}

TEST(seeds_are_exact_to_64_bits) {
    static const struct {
        const char *text;
        uint64_t seed;
    } seeds[] = {{"18446744073709551615", UINT64_MAX},
                 {"-1", UINT64_MAX},
                 {"9007199254740993", 9007199254740993u},
                 {"0", 0},
                 {"3.0", 3},
                 {"-9223372036854775808", 1ull << 63}};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        char member[64];
        ig_chat_request r;
        ig_http_error e;
        snprintf(member, sizeof member, "\"seed\":%s", seeds[i].text);
        CHECK_MSG(parse_with(&r, IG_SERVE_CHAT, member, &e) && r.has_seed && r.sampling.seed == seeds[i].seed,
                  "seed %s", seeds[i].text);
        ig_serve_request_clear(&r);
    }
}

TEST(duplicate_keys_take_the_last_and_max_completion_tokens_wins) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse_with(&r, IG_SERVE_CHAT,
                     "\"temperature\":9,\"temperature\":1,\"max_tokens\":7,\"max_completion_tokens\":8", &e));
    CHECK(r.sampling.temperature == 1 && r.max_tokens == 8);
    ig_serve_request_clear(&r);
}

static bool message_is(yyjson_val *messages, size_t i, const char *role, const char *content) {
    yyjson_val *m = yyjson_arr_get(messages, i);
    return yyjson_equals_str(ig_json_get(m, "role"), role) &&
           yyjson_equals_str(ig_json_get(m, "content"), content);
}

TEST(messages_become_what_templates_read) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse(&r, IG_SERVE_CHAT,
                "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                "{\"type\":\"input_text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"},"
                "{\"role\":\"assistant\",\"content\":null,\"thinking\":\"t\",\"tool_calls\":"
                "[{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"q\\\":1}\"}}]},"
                "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"d\"},"
                "{\"role\":\"function\",\"name\":\"f\",\"content\":\"e\"}]}",
                &e));
    CHECK(yyjson_arr_size(r.messages) == 5);
    CHECK(message_is(r.messages, 0, "system", "ab") && message_is(r.messages, 1, "user", "c"));
    CHECK(message_is(r.messages, 2, "assistant", "") && message_is(r.messages, 3, "tool", "d"));
    CHECK(message_is(r.messages, 4, "tool", "e"));
    yyjson_val *m = yyjson_arr_get(r.messages, 2), *call = yyjson_arr_get_first(ig_json_get(m, "tool_calls"));
    yyjson_val *args = ig_json_get(ig_json_get(call, "function"), "arguments");
    CHECK(yyjson_equals_str(ig_json_get(m, "reasoning_content"), "t"));
    CHECK(yyjson_is_obj(args) && yyjson_get_int(ig_json_get(args, "q")) == 1);
    ig_serve_request_clear(&r);
}

TEST(a_last_assistant_message_is_continued_unless_told_not_to) {
    const char *body =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]%s}";
    char with[256];
    ig_chat_request r;
    ig_http_error e;
    snprintf(with, sizeof with, body, "");
    CHECK(parse(&r, IG_SERVE_CHAT, with, &e) && r.continue_final);
    ig_serve_request_clear(&r);
    snprintf(with, sizeof with, body, ",\"prefill_assistant\":false");
    CHECK(parse(&r, IG_SERVE_CHAT, with, &e) && !r.continue_final);
    ig_serve_request_clear(&r);
}

TEST(repair_joins_neighbours_and_moves_system_to_the_front) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(
        parse(&r, IG_SERVE_CHAT,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"s\"},"
              "{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"}]}",
              &e));
    yyjson_val *repaired = ig_serve_request_repaired(&r);
    CHECK(repaired && yyjson_arr_size(repaired) == 3);
    CHECK(message_is(repaired, 0, "system", "s") && message_is(repaired, 1, "user", "a\n\nb") &&
          message_is(repaired, 2, "assistant", "c"));
    ig_serve_request_clear(&r);
    CHECK(parse_with(&r, IG_SERVE_CHAT, "", &e) && !ig_serve_request_repaired(&r));
    ig_serve_request_clear(&r);
}

TEST(reasoning_effort_goes_to_the_template_and_kwargs_win) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse_with(
        &r, IG_SERVE_CHAT,
        "\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"x\":[1],\"enable_thinking\":true}", &e));
    CHECK(r.has_effort && yyjson_is_true(ig_json_get(r.kwargs, "enable_thinking")));
    CHECK(yyjson_equals_str(ig_json_get(r.kwargs, "reasoning_effort"), "none") &&
          yyjson_is_arr(ig_json_get(r.kwargs, "x")));
    ig_serve_request_clear(&r);
}

TEST(bad_json_is_told_with_its_offset) {
    static const char *const bodies[] = {
        "", "{", "[]", "7", "null", "{\"a\":}", "{\"messages\":[}", "{\"a\":1}x", "{\"a\":1e400}",
        "{\"a\":\"\xff\"}", "{\"a\":\"\xc3\"}", "{\"a\":\"\xed\xa0\x80\"}", "{'a':1}", "{\"a\":01}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        ig_chat_request r;
        ig_http_error e;
        CHECK_MSG(!parse(&r, IG_SERVE_CHAT, bodies[i], &e) && !strcmp(e.code, "invalid_json"), "body %zu: %s",
                  i, e.message);
        ig_serve_request_clear(&r);
    }
}

TEST(nesting_beyond_the_limit_is_refused_and_at_the_limit_is_not) {
    for (int depth = 126; depth <= 130; depth++) {
        ig_buf b = ig_buf_init(4096);
        ig_chat_request r;
        ig_http_error e;
        ig_buf_add_str(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"x\":");
        for (int i = 0; i < depth - 1; i++) ig_buf_add_str(&b, "[");
        for (int i = 0; i < depth - 1; i++) ig_buf_add_str(&b, "]");
        ig_buf_add_str(&b, "}");
        bool ok = ig_serve_request_parse(&r, IG_SERVE_CHAT, b.p, b.n, &defaults, &e);
        CHECK_MSG(ok == (depth <= IG_SERVE_JSON_DEPTH_MAX), "depth %d: %d", depth, ok);
        ig_serve_request_clear(&r);
        ig_buf_free(&b);
    }
}

TEST(a_body_of_many_members_is_refused_quickly) {
    ig_buf b = ig_buf_init(1 << 20);
    ig_chat_request r;
    ig_http_error e;
    ig_buf_add_str(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]");
    for (int i = 0; i < 5000; i++) ig_buf_addf(&b, ",\"k%d\":1", i);
    ig_buf_add_str(&b, "}");
    CHECK(!ig_serve_request_parse(&r, IG_SERVE_CHAT, b.p, b.n, &defaults, &e) &&
          !strcmp(e.code, "invalid_value"));
    ig_serve_request_clear(&r);
    ig_buf_free(&b);
}

TEST(prompts_are_strings_or_ids_alone_or_many) {
    static const struct {
        const char *prompt;
        int n;
    } prompts[] = {{"\"a\"", 1}, {"\"\"", 1}, {"[1,2]", 1}, {"[\"a\",\"b\"]", 2}, {"[[1],[2,3],[4]]", 3}};
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        char member[128];
        ig_chat_request r;
        ig_http_error e;
        snprintf(member, sizeof member, "\"prompt\":%s", prompts[i].prompt);
        CHECK_MSG(parse_with(&r, IG_SERVE_COMPLETION, member, &e) && r.n_prompts == prompts[i].n, "%s",
                  member);
        ig_serve_request_clear(&r);
    }
}

TEST(helper_routes_read_their_few_fields) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(parse(&r, IG_SERVE_TOKENIZE, "{\"content\":\"a\",\"add_special\":true}", &e) && r.add_special &&
          r.parse_special);
    ig_serve_request_clear(&r);
    CHECK(!parse(&r, IG_SERVE_TOKENIZE, "{}", &e) && !strcmp(e.param, "content"));
    ig_serve_request_clear(&r);
    CHECK(parse(&r, IG_SERVE_DETOKENIZE, "{\"tokens\":[]}", &e) && yyjson_arr_size(r.tokens) == 0);
    ig_serve_request_clear(&r);
    CHECK(!parse(&r, IG_SERVE_DETOKENIZE, "{\"tokens\":[1.5]}", &e));
    ig_serve_request_clear(&r);
}

TEST(token_ids_may_be_written_as_whole_reals) {
    ig_chat_request r;
    ig_http_error e;
    uint64_t id = 0;
    CHECK(parse(&r, IG_SERVE_COMPLETION, "{\"prompt\":[1.0,7,4294967295.0]}", &e) && r.n_prompts == 1);
    CHECK(ig_serve_token_id(yyjson_arr_get(r.prompts[0], 0), &id) && id == 1);
    CHECK(ig_serve_token_id(yyjson_arr_get(r.prompts[0], 2), &id) && id == UINT32_MAX);
    ig_serve_request_clear(&r);
}

TEST(a_bad_token_of_detokenize_is_told_under_its_own_name) {
    ig_chat_request r;
    ig_http_error e;
    CHECK(!parse(&r, IG_SERVE_DETOKENIZE, "{\"tokens\":[1,\"a\"]}", &e));
    CHECK(!strcmp(e.param, "tokens") && strstr(e.message, "tokens: element 1"));
    ig_serve_request_clear(&r);
    CHECK(parse(&r, IG_SERVE_DETOKENIZE, "{\"tokens\":[]}", &e));
    ig_serve_request_clear(&r);
}

TEST(a_seed_has_64_bits_and_the_refusal_says_so) {
    static const struct {
        const char *in;
        uint64_t seed;
    } good[] = {{"0", 0},
                {"-1", UINT64_MAX},
                {"18446744073709551615", UINT64_MAX},
                {"-9223372036854775808", 1ull << 63},
                {"3.0", 3},
                {"-3.0", (uint64_t)-3}};
    static const char *const bad[] = {
        "18446744073709551616", "-9223372036854775809", "1.5", "\"1\"", "true", "1e300"};
    char member[64];
    ig_chat_request r;
    ig_http_error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(member, sizeof member, "\"seed\":%s", good[i].in);
        CHECK_MSG(parse_with(&r, IG_SERVE_CHAT, member, &e) && r.has_seed && r.sampling.seed == good[i].seed,
                  "%s", member);
        ig_serve_request_clear(&r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(member, sizeof member, "\"seed\":%s", bad[i]);
        CHECK_MSG(!parse_with(&r, IG_SERVE_CHAT, member, &e) && !strcmp(e.param, "seed"), "%s", member);
        CHECK(strstr(e.message, "-9223372036854775808 to 18446744073709551615"));
        ig_serve_request_clear(&r);
    }
}
