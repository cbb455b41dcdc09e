/* api_openai: the body of an OpenAI-shaped request becomes an ig_chat_request, or a refusal.
 * Owns:    what an ig_chat_request points to, until ig_serve_request_clear.
 * Threads: any; pure: bytes in, struct out. The fuzzer calls it directly.
 * Memory:  yyjson documents, bounded by the body, which the connection has bounded.
 * A field that would change the answer is honoured or refused by name, never ignored: `fields` below lists
 * those that we know and do not have, with the values that mean "off". Fields that nobody knows are ignored,
 * because clients send each other's. null is the same as absent everywhere. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

enum { MEMBERS_MAX = 4096, KWARGS_MAX = 256 }; /* look-ups walk the members */

/* ---- known and not supported --------------------------------------------------------------------------- */

typedef enum off {
    OFF_NEVER,    /* any value but null is refused */
    OFF_FALSE,    /* false */
    OFF_ZERO,     /* a number equal to .off */
    OFF_ZERO_ONE, /* 0 or 1 */
    OFF_EMPTY,    /* an empty array, object or string */
    OFF_TRUE      /* true */
} off;

enum {
    FOR_CHAT = 1 << IG_SERVE_CHAT | 1 << IG_SERVE_COUNT | 1 << IG_SERVE_APPLY_TEMPLATE |
               1 << IG_SERVE_MESSAGES | 1 << IG_SERVE_MESSAGES_COUNT,
    FOR_TEXT = 1 << IG_SERVE_COMPLETION,
    FOR_BOTH = FOR_CHAT | FOR_TEXT
};

static const struct field {
    const char *key;
    int routes;
    off off;
    double value; /* of OFF_ZERO */
} fields[] = {
    {"tools", FOR_CHAT, OFF_EMPTY, 0},
    {"functions", FOR_CHAT, OFF_EMPTY, 0},
    {"function_call", FOR_CHAT, OFF_NEVER, 0},
    {"audio", FOR_CHAT, OFF_NEVER, 0},
    {"web_search_options", FOR_CHAT, OFF_NEVER, 0},
    {"prediction", FOR_BOTH, OFF_NEVER, 0},
    {"background", FOR_BOTH, OFF_FALSE, 0},
    {"thinking_budget", FOR_BOTH, OFF_NEVER, 0},
    {"hlg", FOR_BOTH, OFF_NEVER, 0},
    {"dry_run", FOR_BOTH, OFF_FALSE, 0},
    {"return_prompt", FOR_BOTH, OFF_FALSE, 0},
    {"chat_template", FOR_BOTH, OFF_NEVER, 0},
    {"add_generation_prompt", FOR_BOTH, OFF_TRUE, 0},
    {"continue_final_message", FOR_BOTH, OFF_FALSE, 0},
    {"chat_template_kwargs", FOR_TEXT, OFF_EMPTY, 0},
    {"reasoning_effort", FOR_TEXT, OFF_NEVER, 0},
    {"repeat_penalty", FOR_BOTH, OFF_ZERO_ONE, 0},
    {"typical_p", FOR_BOTH, OFF_ZERO_ONE, 0},
    {"top_n_sigma", FOR_BOTH, OFF_ZERO, -1},
    {"dry_multiplier", FOR_BOTH, OFF_ZERO, 0},
    {"dynatemp_range", FOR_BOTH, OFF_ZERO, 0},
    {"mirostat", FOR_BOTH, OFF_ZERO, 0},
    {"min_tokens", FOR_BOTH, OFF_ZERO, 0},
    {"ignore_eos", FOR_BOTH, OFF_FALSE, 0},
    {"stop_token_ids", FOR_BOTH, OFF_EMPTY, 0},
    {"bad_words", FOR_BOTH, OFF_EMPTY, 0},
    {"allowed_token_ids", FOR_BOTH, OFF_NEVER, 0},
    {"logits_processors", FOR_BOTH, OFF_EMPTY, 0},
    {"truncate_prompt_tokens", FOR_BOTH, OFF_NEVER, 0},
    {"use_beam_search", FOR_BOTH, OFF_FALSE, 0},
    {"include_stop_str_in_output", FOR_BOTH, OFF_FALSE, 0},
    {"prompt_logprobs", FOR_BOTH, OFF_NEVER, 0},
    {"rng", FOR_BOTH, OFF_NEVER, 0},
    {"grammar", FOR_BOTH, OFF_EMPTY, 0},
    {"json_schema", FOR_BOTH, OFF_NEVER, 0},
    {"guided_json", FOR_BOTH, OFF_NEVER, 0},
    {"guided_regex", FOR_BOTH, OFF_NEVER, 0},
    {"guided_choice", FOR_BOTH, OFF_NEVER, 0},
    {"guided_grammar", FOR_BOTH, OFF_NEVER, 0},
    {"structured_outputs", FOR_BOTH, OFF_NEVER, 0},
    {"suffix", FOR_TEXT, OFF_EMPTY, 0},
    {"echo", FOR_TEXT, OFF_FALSE, 0},
};

static bool is_off(yyjson_val *v, const struct field *f) {
    switch (f->off) {
    case OFF_NEVER: return false;
    case OFF_FALSE: return yyjson_is_false(v);
    case OFF_TRUE: return yyjson_is_true(v);
    case OFF_ZERO: return yyjson_is_num(v) && yyjson_get_num(v) == f->value;
    case OFF_ZERO_ONE: return yyjson_is_num(v) && (yyjson_get_num(v) == 0 || yyjson_get_num(v) == 1);
    case OFF_EMPTY:
        return (yyjson_is_ctn(v) && yyjson_get_len(v) == 0) || (yyjson_is_str(v) && yyjson_get_len(v) == 0);
    }
    return false;
}

static bool refuse_unsupported(yyjson_val *root, ig_serve_kind kind, ig_http_error *e) {
    double unused; /* a value that no server takes is told as wrong and not as missing here */
    if (!ig_serve_get_number(root, "repeat_penalty", 0, 1e6, &unused, e)) return false;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        yyjson_val *v = f->routes & 1 << kind ? ig_json_get(root, f->key) : NULL;
        if (v && !is_off(v, f))
            return ig_serve_refuse(e, "unsupported_parameter", f->key,
                                   "%s is not supported here; leave it out", f->key);
    }

    yyjson_val *v;
    int64_t n = 1, best_of = 1;
    if (!ig_serve_get_int(root, "n", 1, IG_SERVE_CHOICES_MAX, &n, e)) return false;
    if (n > 1)
        return ig_serve_refuse(e, "unsupported_parameter", "n",
                               "n is %lld; this server gives one choice a request", (long long)n);
    if (kind == IG_SERVE_COMPLETION) {
        if (!ig_serve_get_int(root, "best_of", 1, IG_SERVE_CHOICES_MAX, &best_of, e)) return false;
        if (best_of > 1)
            return ig_serve_refuse(e, "unsupported_parameter", "best_of",
                                   "best_of is %lld; only 1 is supported", (long long)best_of);
    }

    v = ig_json_get(root, "response_format");
    if (v) {
        yyjson_val *type = yyjson_is_obj(v) ? ig_json_get(v, "type") : NULL;
        if (!yyjson_is_str(type))
            return ig_serve_refuse(e, "invalid_value", "response_format",
                                   "response_format must be an object with a type");
        if (!yyjson_equals_str(type, "text"))
            return ig_serve_refuse(e, "unsupported_parameter", "response_format",
                                   "response_format %.40s is not supported; only text is",
                                   yyjson_get_str(type));
    }
    v = ig_json_get(root, "modalities");
    if (v) {
        if (!yyjson_is_arr(v))
            return ig_serve_refuse(e, "invalid_value", "modalities", "modalities must be an array");
        size_t i, len;
        yyjson_val *m;
        yyjson_arr_foreach(v, i, len, m) if (!yyjson_equals_str(m, "text")) return ig_serve_refuse(
            e, "unsupported_parameter", "modalities", "only the modality text is supported");
    }
    v = ig_json_get(root, "tool_choice");
    if (v && kind != IG_SERVE_COMPLETION && !yyjson_equals_str(v, "none") && !yyjson_equals_str(v, "auto"))
        return ig_serve_refuse(e, "invalid_value", "tool_choice",
                               "tool_choice without tools can only be none or auto");

    ig_slice adapter = {"", 0};
    if (!ig_serve_get_string(root, "adapter", &adapter, e)) return false;
    if (adapter.n && !ig_slice_eq_str(adapter, "none") && !ig_slice_eq_str(adapter, "base") &&
        !ig_slice_eq_str(adapter, "off"))
        return ig_serve_refuse(e, "adapter_not_found", "adapter", "no adapter %.*s is mounted",
                               (int)(adapter.n < 100 ? adapter.n : 100), adapter.p);
    v = ig_json_get(root, "adapters");
    if (v && !(yyjson_is_ctn(v) || yyjson_is_str(v)))
        return ig_serve_refuse(e, "invalid_value", "adapters", "adapters must be a string or an array");
    if (v && yyjson_get_len(v) > 0)
        return ig_serve_refuse(e, "adapter_not_found", "adapters", "no adapter is mounted");
    return true;
}

/* ---- sampling, stops, logprobs ------------------------------------------------------------------------- */

/* 64 bits, signed or not: a negative one stands for the same bits. */
static bool parse_seed(ig_chat_request *r, yyjson_val *seed, ig_http_error *e) {
    double d = yyjson_is_real(seed) ? yyjson_get_real(seed) : 0;
    if (!seed) return true;
    if (!yyjson_is_num(seed) || !(fabs(d) <= 9007199254740992.0) || d != floor(d))
        return ig_serve_refuse(
            e, "invalid_value", "seed",
            "seed must be a whole number from -9223372036854775808 to 18446744073709551615");
    r->sampling.seed = yyjson_is_real(seed)   ? (uint64_t)(int64_t)d
                       : yyjson_is_uint(seed) ? yyjson_get_uint(seed)
                                              : (uint64_t)yyjson_get_sint(seed);
    r->has_seed = true;
    return true;
}

/* {"13": -5}: an id in decimal and what is added to its logit. An id that comes again counts as last said. */
static bool parse_bias(ig_chat_request *r, yyjson_val *biases, ig_http_error *e) {
    size_t i, n;
    yyjson_val *key, *value;
    if (!biases || (yyjson_is_arr(biases) && yyjson_get_len(biases) == 0)) return true; /* what clients send for none */
    if (!yyjson_is_obj(biases))
        return ig_serve_refuse(e, "invalid_value", "logit_bias", "logit_bias must be a dict of int to float");
    if (yyjson_get_len(biases) > IG_LOGIT_BIAS_MAX)
        return ig_serve_refuse(e, "invalid_value", "logit_bias", "logit_bias has %zu tokens; at most %d are allowed",
                               yyjson_get_len(biases), IG_LOGIT_BIAS_MAX);
    r->sampling.logit_bias = r->bias;
    r->sampling.n_logit_bias = 0;
    yyjson_obj_foreach(biases, i, n, key, value) {
        const char *digits = yyjson_get_str(key);
        uint64_t id = 0;
        size_t len = yyjson_get_len(key);
        for (size_t k = 0; k < len && id <= UINT32_MAX; k++)
            id = digits[k] >= '0' && digits[k] <= '9' ? id * 10 + (uint64_t)(digits[k] - '0') : UINT64_MAX;
        double x = yyjson_get_num(value);
        if (len == 0 || id > UINT32_MAX)
            return ig_serve_refuse(e, "invalid_value", "logit_bias", "logit_bias: %.40s is not a token id", digits);
        if (!yyjson_is_num(value) || !(x >= -100 && x <= 100))
            return ig_serve_refuse(e, "invalid_value", "logit_bias",
                                   "logit_bias of token %llu must be a number between -100 and 100",
                                   (unsigned long long)id);
        int at = 0;
        while (at < r->sampling.n_logit_bias && r->bias[at].id != (uint32_t)id) at++;
        if (at == r->sampling.n_logit_bias) r->sampling.n_logit_bias++;
        r->bias[at] = (ig_token_bias){(uint32_t)id, (float)x};
    }
    return true;
}

static bool parse_sampling(ig_chat_request *r, yyjson_val *root, const ig_serve_request_defaults *d,
                           ig_http_error *e) {
    ig_sampling *s = &r->sampling;
    const struct {
        const char *key;
        double lo, hi, *to;
    } reals[] = {{"temperature", 0, 5, &s->temperature},
                 {"top_p", 0, 1, &s->top_p},
                 {"min_p", 0, 1, &s->min_p},
                 {"xtc_probability", 0, 1, &s->xtc_probability},
                 {"xtc_threshold", 0, 0.5, &s->xtc_threshold},
                 {"repetition_penalty", 0, 100, &s->repetition_penalty},
                 {"presence_penalty", -2, 2, &s->presence_penalty},
                 {"frequency_penalty", -2, 2, &s->frequency_penalty}};
    const struct {
        const char *key;
        int64_t lo;
        int *to;
    } counts[] = {{"top_k", -1, &s->top_k},
                  {"min_tokens_to_keep", 0, &s->min_tokens_to_keep},
                  {"repetition_context_size", 0, &s->repetition_context_size},
                  {"presence_context_size", 0, &s->presence_context_size},
                  {"frequency_context_size", 0, &s->frequency_context_size}};
    *s = d->sampling;
    r->has_seed = d->seed_fixed;
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!ig_serve_get_number(root, reals[i].key, reals[i].lo, reals[i].hi, reals[i].to, e)) return false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t n = *counts[i].to;
        if (!ig_serve_get_int(root, counts[i].key, counts[i].lo, INT_MAX, &n, e)) return false;
        *counts[i].to = n < 0 ? 0 : (int)n;
    }
    if (!parse_bias(r, ig_json_get(root, "logit_bias"), e)) return false;
    if (!parse_seed(r, ig_json_get(root, "seed"), e)) return false;

    int64_t most = 0, most_completion = 0;
    if (!ig_serve_get_int(root, "max_tokens", 1, INT_MAX, &most, e) ||
        !ig_serve_get_int(root, "max_completion_tokens", 1, INT_MAX, &most_completion, e))
        return false;
    r->max_tokens = (int)(most_completion ? most_completion : most);

    return ig_serve_get_bool(root, "stream", &r->stream, e) &&
           ig_serve_get_bool(root, "cache_prompt", &r->cache_prompt, e);
}

static bool parse_stops(ig_chat_request *r, yyjson_val *root, ig_http_error *e) {
    yyjson_val *stop = ig_json_get(root, "stop");
    const char *name = ig_anthropic_is(r->kind) ? "stop_sequences" : "stop"; /* as the client wrote it */
    if (!stop) return true;
    if (!yyjson_is_str(stop) && !yyjson_is_arr(stop))
        return ig_serve_refuse(e, "invalid_value", name, "stop must be a string or an array of strings");
    size_t n = yyjson_is_str(stop) ? 1 : yyjson_arr_size(stop);
    if (n > IG_SERVE_STOPS_MAX)
        return ig_serve_refuse(e, "invalid_value", name, "%s has %zu strings; at most %d are allowed", name, n,
                               IG_SERVE_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        yyjson_val *v = yyjson_is_str(stop) ? stop : yyjson_arr_get(stop, i);
        size_t len = yyjson_get_len(v);
        if (!yyjson_is_str(v))
            return ig_serve_refuse(e, "invalid_value", name, "%s[%zu] must be a string", name, i);
        if (len < 1 || len > IG_STOP_BYTES_MAX)
            return ig_serve_refuse(e, "invalid_value", name,
                                   "%s[%zu] is %zu bytes long; 1 to %d are allowed", name, i, len,
                                   IG_STOP_BYTES_MAX);
        r->stops[r->n_stops++] = (ig_slice){yyjson_get_str(v), len};
    }
    return true;
}

static bool parse_top_logprobs(yyjson_val *root, int64_t *out, ig_http_error *e) {
    yyjson_val *v = ig_json_get(root, "top_logprobs");
    if (!v) return true;
    /* These sentences are matched by clients of mlx-lm. */
    if (!yyjson_is_num(v) || (yyjson_is_real(v) && yyjson_get_real(v) != floor(yyjson_get_real(v))))
        return ig_serve_refuse(e, "invalid_value", "top_logprobs", "top_logprobs must be of type int");
    if (yyjson_get_num(v) < -1)
        return ig_serve_refuse(e, "invalid_value", "top_logprobs", "top_logprobs must be at least 0");
    if (yyjson_get_num(v) > IG_SERVE_LOGPROBS_MAX)
        return ig_serve_refuse(e, "invalid_value", "top_logprobs", "top_logprobs must be at most %d",
                               IG_SERVE_LOGPROBS_MAX);
    *out = (int64_t)yyjson_get_num(v);
    return true;
}

static bool parse_logprobs(ig_chat_request *r, yyjson_val *root, ig_http_error *e) {
    int64_t top = -1;
    yyjson_val *v = ig_json_get(root, "logprobs");
    r->top_logprobs = -1;
    if (r->kind == IG_SERVE_COMPLETION && v && yyjson_is_num(v)) {
        int64_t n = 0;
        if (!ig_serve_get_int(root, "logprobs", 0, IG_SERVE_LOGPROBS_MAX, &n, e)) return false;
        r->logprobs = IG_SERVE_LOGPROBS_LEGACY;
        r->top_logprobs = (int)n;
        return true;
    }
    if (v && !yyjson_is_bool(v))
        return ig_serve_refuse(e, "invalid_value", "logprobs", "logprobs must be of type bool");
    if (!parse_top_logprobs(root, &top, e)) return false;
    if (yyjson_is_true(v)) {
        r->logprobs = IG_SERVE_LOGPROBS_CONTENT;
        r->top_logprobs = top < 0 ? 0 : (int)top;
    } else if (top > 0) {
        return ig_serve_refuse(e, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    }
    return true;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* Builds the array that templates read: contents are strings, roles are those that templates know. */
struct building {
    yyjson_mut_doc *doc;
    yyjson_mut_val *message;
    ig_http_error *e;
    size_t index;
    char where[64];
};

static const char *at(struct building *b, const char *member) {
    snprintf(b->where, sizeof b->where, "messages[%zu].%s", b->index, member);
    return b->where;
}

static bool no_memory(ig_http_error *e) {
    return ig_serve_refuse(e, "server_error", NULL, "no memory for this request");
}

static bool put_str(struct building *b, const char *key, const char *p, size_t n) {
    return yyjson_mut_obj_put(b->message, yyjson_mut_str(b->doc, key), yyjson_mut_strn(b->doc, p, n)) ||
           no_memory(b->e);
}

/* One string of a content's parts, joined without a separator. */
static bool join_parts(struct building *b, yyjson_val *parts) {
    size_t i, n, bytes = 0;
    yyjson_val *part;
    ig_buf joined = ig_buf_init(SIZE_MAX / 2);
    bool ok = false;
    yyjson_arr_foreach(parts, i, n, part) {
        yyjson_val *type = yyjson_is_obj(part) ? ig_json_get(part, "type") : NULL;
        if (!yyjson_is_str(type)) {
            ig_serve_refuse(b->e, "invalid_value", at(b, "content"), "%s[%zu] must be an object with a type",
                            b->where, i);
            goto out;
        }
        if (yyjson_equals_str(type, "image_url") || yyjson_equals_str(type, "input_image")) {
            ig_serve_refuse(b->e, "vision_not_supported", at(b, "content"),
                            "this model reads text; it cannot see images");
            goto out;
        }
        if (yyjson_equals_str(type, "input_audio")) {
            ig_serve_refuse(b->e, "unsupported_parameter", at(b, "content"),
                            "this model reads text; it cannot hear audio");
            goto out;
        }
        bool refusal = yyjson_equals_str(type, "refusal");
        if (!refusal && !yyjson_equals_str(type, "text") && !yyjson_equals_str(type, "input_text")) {
            ig_serve_refuse(b->e, "invalid_value", at(b, "content"), "%s[%zu] has the unknown type %.40s",
                            b->where, i, yyjson_get_str(type));
            goto out;
        }
        yyjson_val *text = ig_json_get(part, refusal ? "refusal" : "text");
        if (!yyjson_is_str(text)) {
            ig_serve_refuse(b->e, "invalid_value", at(b, "content"), "%s[%zu].%s must be a string", b->where,
                            i, refusal ? "refusal" : "text");
            goto out;
        }
        bytes += yyjson_get_len(text);
        if (!ig_buf_add(&joined, yyjson_get_str(text), yyjson_get_len(text))) {
            no_memory(b->e);
            goto out;
        }
    }
    yyjson_mut_val *copy = yyjson_mut_strncpy(b->doc, bytes ? joined.p : "", bytes);
    ok = yyjson_mut_obj_put(b->message, yyjson_mut_str(b->doc, "content"), copy) || no_memory(b->e);
out:
    ig_buf_free(&joined);
    return ok;
}

/* Arguments come as JSON in a string; templates want the object. What does not parse stays a string. */
static yyjson_mut_val *decoded_arguments(yyjson_mut_doc *doc, yyjson_val *v) {
    if (!v) return yyjson_mut_obj(doc);
    if (!yyjson_is_str(v)) return yyjson_val_mut_copy(doc, v);
    if (yyjson_get_len(v) == 0) return yyjson_mut_obj(doc);
    yyjson_doc *parsed = NULL;
    ig_json_limits limits = {.bytes_max = yyjson_get_len(v), .depth_max = 64};
    if (ig_json_parse(&parsed, yyjson_get_str(v), yyjson_get_len(v), limits, NULL) != IG_OK)
        return yyjson_val_mut_copy(doc, v);
    yyjson_mut_val *copy = yyjson_val_mut_copy(doc, yyjson_doc_get_root(parsed));
    yyjson_doc_free(parsed);
    return copy;
}

static bool add_tool_calls(struct building *b, yyjson_val *calls) {
    if (!yyjson_is_arr(calls))
        return ig_serve_refuse(b->e, "invalid_value", at(b, "tool_calls"), "%s must be an array", b->where);
    yyjson_mut_val *list = yyjson_mut_arr(b->doc);
    size_t i, n;
    yyjson_val *call;
    yyjson_arr_foreach(calls, i, n, call) {
        yyjson_val *fn = yyjson_is_obj(call) ? ig_json_get(call, "function") : NULL;
        yyjson_val *name = yyjson_is_obj(fn) ? ig_json_get(fn, "name") : NULL;
        if (!yyjson_is_str(name))
            return ig_serve_refuse(b->e, "invalid_value", at(b, "tool_calls"),
                                   "%s[%zu].function.name must be a string", b->where, i);
        yyjson_mut_val *to = yyjson_mut_obj(b->doc), *to_fn = yyjson_mut_obj(b->doc);
        yyjson_val *id = ig_json_get(call, "id");
        if (yyjson_is_str(id))
            yyjson_mut_obj_add_strn(b->doc, to, "id", yyjson_get_str(id), yyjson_get_len(id));
        bool ok =
            yyjson_mut_obj_add_str(b->doc, to, "type", "function") &&
            yyjson_mut_obj_add_strn(b->doc, to_fn, "name", yyjson_get_str(name), yyjson_get_len(name)) &&
            yyjson_mut_obj_add_val(b->doc, to_fn, "arguments",
                                   decoded_arguments(b->doc, ig_json_get(fn, "arguments"))) &&
            yyjson_mut_obj_add_val(b->doc, to, "function", to_fn) && yyjson_mut_arr_append(list, to);
        if (!ok) return no_memory(b->e);
    }
    return yyjson_mut_obj_add_val(b->doc, b->message, "tool_calls", list) || no_memory(b->e);
}

static const struct role {
    const char *wire, *rendered;
} roles[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
             {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};

static bool add_message(struct building *b, yyjson_mut_val *list, yyjson_val *in) {
    if (!yyjson_is_obj(in))
        return ig_serve_refuse(b->e, "invalid_value", "messages", "messages[%zu] must be an object",
                               b->index);
    yyjson_val *role = ig_json_get(in, "role"), *content = ig_json_get(in, "content");
    const struct role *known = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !known; i++)
        if (yyjson_equals_str(role, roles[i].wire)) known = &roles[i];
    if (!role)
        return ig_serve_refuse(b->e, "missing_required_parameter", at(b, "role"), "%s is missing", b->where);
    if (!known)
        return ig_serve_refuse(b->e, "invalid_value", at(b, "role"),
                               "%s must be system, developer, user, assistant, tool or function", b->where);
    bool is_assistant = !strcmp(known->rendered, "assistant");
    b->message = yyjson_mut_obj(b->doc);
    if (!b->message || !put_str(b, "role", known->rendered, strlen(known->rendered))) return no_memory(b->e);

    yyjson_val *calls = is_assistant ? ig_json_get(in, "tool_calls") : NULL;
    if (yyjson_is_arr(calls) && yyjson_arr_size(calls) == 0) calls = NULL;
    if (!content && !calls)
        return ig_serve_refuse(b->e, "missing_required_parameter", at(b, "content"), "%s is missing",
                               b->where);
    if (yyjson_is_str(content)) {
        if (!put_str(b, "content", yyjson_get_str(content), yyjson_get_len(content))) return false;
    } else if (yyjson_is_arr(content)) {
        if (!join_parts(b, content)) return false;
    } else if (content) {
        return ig_serve_refuse(b->e, "invalid_value", at(b, "content"),
                               "%s must be a string or an array of parts", b->where);
    } else if (!put_str(b, "content", "", 0)) {
        return false;
    }
    if (calls && !add_tool_calls(b, calls)) return false;

    if (yyjson_equals_str(role, "tool") && !yyjson_is_str(ig_json_get(in, "tool_call_id")))
        return ig_serve_refuse(b->e, "missing_required_parameter", at(b, "tool_call_id"),
                               "%s is missing: a tool message names the call that it answers", b->where);
    static const char *const kept[] = {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        ig_slice text = {NULL, 0};
        yyjson_val *v = ig_json_get(in, kept[i]);
        if (!v) continue;
        if (!yyjson_is_str(v))
            return ig_serve_refuse(b->e, "invalid_value", at(b, kept[i]), "%s must be a string", b->where);
        text = (ig_slice){yyjson_get_str(v), yyjson_get_len(v)};
        const char *key = i < 2 ? kept[i] : "reasoning_content";
        if (i > 2 && yyjson_mut_obj_get(b->message, "reasoning_content")) continue;
        if (!put_str(b, key, text.p, text.n)) return false;
    }
    return yyjson_mut_arr_append(list, b->message) || no_memory(b->e);
}

/* reasoning_effort, then chat_template_kwargs over it. */
static bool add_kwargs(ig_chat_request *r, yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *in,
                       ig_http_error *e) {
    yyjson_mut_val *kwargs = yyjson_mut_obj(doc);
    ig_slice effort = {NULL, 0};
    if (!ig_serve_get_string(in, "reasoning_effort", &effort, e)) return false;
    yyjson_val *given = ig_json_get(in, "chat_template_kwargs");
    if (given && !yyjson_is_obj(given))
        return ig_serve_refuse(e, "invalid_value", "chat_template_kwargs",
                               "chat_template_kwargs must be an object");
    if (yyjson_get_len(given) > KWARGS_MAX)
        return ig_serve_refuse(e, "invalid_value", "chat_template_kwargs",
                               "chat_template_kwargs has %zu members; at most %d are allowed",
                               yyjson_get_len(given), KWARGS_MAX);
    if (effort.p) {
        bool on = !ig_slice_eq_str(effort, "none") && !ig_slice_eq_str(effort, "minimal");
        r->has_effort = true;
        if (!yyjson_mut_obj_add_strn(doc, kwargs, "reasoning_effort", effort.p, effort.n) ||
            !yyjson_mut_obj_add_bool(doc, kwargs, "enable_thinking", on))
            return no_memory(e);
    }
    size_t i, n;
    yyjson_val *key, *val;
    if (given) {
        yyjson_obj_foreach(given, i, n, key, val) {
            yyjson_mut_val *k = yyjson_val_mut_copy(doc, key), *v = yyjson_val_mut_copy(doc, val);
            if (!k || !v || !yyjson_mut_obj_put(kwargs, k, v)) return no_memory(e);
        }
    }
    return yyjson_mut_obj_add_val(doc, root, "kwargs", kwargs) || no_memory(e);
}

static bool parse_messages(ig_chat_request *r, yyjson_val *in, ig_http_error *e) {
    yyjson_val *messages = ig_json_get(in, "messages");
    if (!messages) return ig_serve_refuse(e, "missing_required_parameter", "messages", "messages is missing");
    if (!yyjson_is_arr(messages))
        return ig_serve_refuse(e, "invalid_value", "messages", "messages must be an array");
    if (yyjson_arr_size(messages) == 0)
        return ig_serve_refuse(e, "empty_prompt", "messages", "messages is empty");

    bool ok = false, prefill = true;
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL, *list = doc ? yyjson_mut_arr(doc) : NULL;
    if (!root || !list || !yyjson_mut_obj_add_val(doc, root, "messages", list)) {
        no_memory(e);
        goto out;
    }
    yyjson_mut_doc_set_root(doc, root);
    struct building b = {.doc = doc, .e = e};
    yyjson_val *message;
    size_t n;
    yyjson_arr_foreach(messages, b.index, n, message) if (!add_message(&b, list, message)) goto out;
    if (!add_kwargs(r, doc, root, in, e)) goto out;
    if (!ig_serve_get_bool(in, "prefill_assistant", &prefill, e)) goto out;

    r->chat_doc = yyjson_mut_doc_imut_copy(doc, NULL);
    if (!r->chat_doc) {
        no_memory(e);
        goto out;
    }
    r->messages = ig_json_get(yyjson_doc_get_root(r->chat_doc), "messages");
    r->kwargs = ig_json_get(yyjson_doc_get_root(r->chat_doc), "kwargs");
    yyjson_val *last = yyjson_arr_get_last(r->messages);
    r->continue_final = prefill && yyjson_equals_str(ig_json_get(last, "role"), "assistant") &&
                        !ig_json_get(last, "tool_calls");
    ok = true;
out:
    yyjson_mut_doc_free(doc);
    return ok;
}

/* Ends the run of messages that `joined` holds: `run` is a copy of its first. */
static bool end_run(yyjson_mut_doc *doc, yyjson_mut_val *list, yyjson_mut_val *run, const ig_buf *joined) {
    if (!run) return true;
    yyjson_mut_val *text = yyjson_mut_strncpy(doc, joined->n ? joined->p : "", joined->n);
    return text && yyjson_mut_obj_put(run, yyjson_mut_str(doc, "content"), text) &&
           yyjson_mut_arr_append(list, run);
}

yyjson_val *ig_serve_request_repaired(ig_chat_request *r) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *list = doc ? yyjson_mut_arr(doc) : NULL, *run = NULL;
    yyjson_val *run_role = NULL, *out = NULL; /* run_role NULL: nothing may join this run */
    ig_buf joined = ig_buf_init(SIZE_MAX / 2);
    bool changed = false, ok = list != NULL;

    /* System messages first, in order; then the rest, where neighbours of one role become one message. */
    for (int pass = 0; pass < 2; pass++) {
        size_t i, n;
        yyjson_val *m;
        yyjson_arr_foreach(r->messages, i, n, m) {
            yyjson_val *role = ig_json_get(m, "role"), *text = ig_json_get(m, "content");
            bool is_system = yyjson_equals_str(role, "system");
            bool plain = !ig_json_get(m, "tool_calls") && !yyjson_equals_str(role, "tool");
            if (!ok || is_system != (pass == 0)) continue;
            if (plain && run_role && yyjson_equals(role, run_role)) {
                ok = ig_buf_add(&joined, "\n\n", 2);
                changed = true;
            } else {
                ok = end_run(doc, list, run, &joined);
                run = yyjson_val_mut_copy(doc, m);
                run_role = plain ? role : NULL;
                ig_buf_clear(&joined);
                ok = ok && run;
            }
            ok = ok && ig_buf_add(&joined, yyjson_get_str(text), yyjson_get_len(text));
            changed = changed || (is_system && i > 0);
        }
    }
    if (ok && changed && end_run(doc, list, run, &joined)) {
        yyjson_mut_doc_set_root(doc, list);
        r->repaired_doc = yyjson_mut_doc_imut_copy(doc, NULL);
        out = yyjson_doc_get_root(r->repaired_doc);
    }
    ig_buf_free(&joined);
    yyjson_mut_doc_free(doc);
    return out;
}

/* ---- prompts of /v1/completions ------------------------------------------------------------------------ */

bool ig_serve_check_ids(yyjson_val *ids, const char *param, ig_http_error *e) {
    size_t i, n;
    yyjson_val *id;
    uint64_t value;
    if (yyjson_arr_size(ids) == 0)
        return ig_serve_refuse(e, "empty_prompt", param, "%s has no tokens", param);
    yyjson_arr_foreach(ids, i, n, id) {
        if (!ig_serve_token_id(id, &value))
            return ig_serve_refuse(e, "invalid_value", param, "%s: element %zu is not a token id", param, i);
    }
    return true;
}

static bool parse_prompts(ig_chat_request *r, yyjson_val *root, ig_http_error *e) {
    yyjson_val *prompt = ig_json_get(root, "prompt"), *first = yyjson_arr_get_first(prompt);
    if (!prompt) return ig_serve_refuse(e, "missing_required_parameter", "prompt", "prompt is missing");
    if (!yyjson_is_str(prompt) && !yyjson_is_arr(prompt))
        return ig_serve_refuse(
            e, "invalid_value", "prompt",
            "prompt must be a string, an array of strings, an array of token ids, or an array of those");
    if (yyjson_is_str(prompt) || yyjson_is_num(first)) {
        if (yyjson_is_arr(prompt) && !ig_serve_check_ids(prompt, "prompt", e)) return false;
        r->prompts[r->n_prompts++] = prompt;
        return true;
    }
    size_t n = yyjson_arr_size(prompt);
    if (n == 0) return ig_serve_refuse(e, "empty_prompt", "prompt", "prompt is empty");
    if (n > IG_SERVE_CHOICES_MAX)
        return ig_serve_refuse(e, "invalid_value", "prompt",
                               "%zu prompts in one request; at most %d are allowed", n, IG_SERVE_CHOICES_MAX);
    for (size_t i = 0; i < n; i++) {
        yyjson_val *p = yyjson_arr_get(prompt, i);
        if (yyjson_get_type(p) != yyjson_get_type(first) || (!yyjson_is_str(p) && !yyjson_is_arr(p)))
            return ig_serve_refuse(
                e, "invalid_value", "prompt",
                "prompt: element %zu must be a string or an array of token ids, as the first", i);
        if (yyjson_is_arr(p) && !ig_serve_check_ids(p, "prompt", e)) return false;
        r->prompts[r->n_prompts++] = p;
    }
    return true;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static bool parse_helper(ig_chat_request *r, yyjson_val *root, ig_http_error *e) {
    if (r->kind == IG_SERVE_DETOKENIZE) {
        r->tokens = ig_json_get(root, "tokens");
        if (!r->tokens)
            return ig_serve_refuse(e, "missing_required_parameter", "tokens", "tokens is missing");
        if (!yyjson_is_arr(r->tokens))
            return ig_serve_refuse(e, "invalid_value", "tokens", "tokens must be an array");
        return yyjson_arr_size(r->tokens) == 0 || ig_serve_check_ids(r->tokens, "tokens", e);
    }
    r->parse_special = true;
    ig_slice text = {NULL, 0};
    if (!ig_serve_get_string(root, "text", &text, e) || !ig_serve_get_string(root, "content", &text, e))
        return false;
    if (!text.p) return ig_serve_refuse(e, "missing_required_parameter", "content", "content is missing");
    r->text = text;
    return ig_serve_get_bool(root, "add_special", &r->add_special, e) &&
           ig_serve_get_bool(root, "parse_special", &r->parse_special, e) &&
           ig_serve_get_bool(root, "with_pieces", &r->with_pieces, e);
}

bool ig_serve_request_parse(ig_chat_request *r, ig_serve_kind kind, const char *body, size_t n,
                            const ig_serve_request_defaults *d, ig_http_error *e) {
    ig_err err = {0};
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->cache_prompt = true;
    r->top_logprobs = -1;
    ig_json_limits limits = {.bytes_max = n, .depth_max = IG_SERVE_JSON_DEPTH_MAX};
    if (n == 0) return ig_serve_refuse(e, "invalid_json", NULL, "the body is empty; JSON is expected");
    if (ig_json_parse(&r->doc, body, n, limits, &err) != IG_OK)
        return ig_serve_refuse(e, "invalid_json", NULL, "%.400s", err.msg);
    yyjson_val *root = yyjson_doc_get_root(r->doc);
    if (!yyjson_is_obj(root))
        return ig_serve_refuse(e, "invalid_json", NULL, "the body must be a JSON object");
    if (yyjson_obj_size(root) > MEMBERS_MAX)
        return ig_serve_refuse(e, "invalid_value", NULL, "the body has %zu members; at most %d are allowed",
                               yyjson_obj_size(root), MEMBERS_MAX);
    if (kind == IG_SERVE_TOKENIZE || kind == IG_SERVE_DETOKENIZE) return parse_helper(r, root, e);
    if (kind == IG_SERVE_EMBEDDINGS) return ig_serve_embed_parse(r, root, e);
    if (ig_anthropic_is(kind)) {
        if (!ig_anthropic_translate(r, e)) return false;
        root = yyjson_doc_get_root(r->doc);
    }

    if (!ig_serve_get_string(root, "model", &r->model, e) || !refuse_unsupported(root, kind, e) ||
        !parse_sampling(r, root, d, e) || !parse_stops(r, root, e) || !parse_logprobs(r, root, e))
        return false;
    yyjson_val *options = ig_json_get(root, "stream_options");
    if (options && !yyjson_is_obj(options))
        return ig_serve_refuse(e, "invalid_value", "stream_options", "stream_options must be an object");
    if (options && !ig_serve_get_bool(options, "include_usage", &r->include_usage, e)) return false;
    return kind == IG_SERVE_COMPLETION ? parse_prompts(r, root, e) : parse_messages(r, root, e);
}

void ig_serve_request_clear(ig_chat_request *r) {
    yyjson_doc_free(r->doc);
    yyjson_doc_free(r->chat_doc);
    yyjson_doc_free(r->repaired_doc);
    memset(r, 0, sizeof *r);
}
