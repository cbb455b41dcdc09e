/* api_anthropic: the body of a POST /v1/messages as the chat request that it asks for, and answers in that shape.
 * Owns:    nothing; what it makes belongs to the request or the job.
 * Threads: the translation is pure, bytes in and a document out; the answers are the net thread's.
 * Memory:  yyjson documents, bounded by the body; the buffers' maxima.
 * The request is written anew with the names of the chat route, so that one parser holds all ranges. */
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

/* ---- the request --------------------------------------------------------------------------------------- */

static bool no_memory(ig_http_error *e) {
    return ig_serve_refuse(e, "server_error", NULL, "no memory for this request");
}

/* A string, or blocks of text joined by `joint`. */
static bool add_text(yyjson_mut_doc *doc, yyjson_mut_val *to, yyjson_val *content, const char *where,
                     const char *joint, ig_http_error *e) {
    if (!content) return ig_serve_refuse(e, "missing_required_parameter", where, "%s is missing", where);
    if (yyjson_is_str(content))
        return yyjson_mut_obj_add_strncpy(doc, to, "content", yyjson_get_str(content), yyjson_get_len(content)) ||
               no_memory(e);
    if (!yyjson_is_arr(content))
        return ig_serve_refuse(e, "invalid_value", where, "%s must be a string or an array of blocks", where);
    size_t i, n;
    yyjson_val *block;
    ig_buf joined = ig_buf_init(SIZE_MAX / 2);
    bool ok = true;
    yyjson_arr_foreach(content, i, n, block) {
        yyjson_val *type = yyjson_is_obj(block) ? ig_json_get(block, "type") : NULL;
        yyjson_val *text = yyjson_is_obj(block) ? ig_json_get(block, "text") : NULL;
        if (!yyjson_is_str(type))
            ok = ig_serve_refuse(e, "invalid_value", where, "%s[%zu] must be an object with a type", where, i);
        else if (yyjson_equals_str(type, "image"))
            ok = ig_serve_refuse(e, "vision_not_supported", where, "%s[%zu] is an image; this model reads text",
                                 where, i);
        else if (yyjson_equals_str(type, "tool_use") || yyjson_equals_str(type, "tool_result") ||
                 yyjson_equals_str(type, "thinking") || yyjson_equals_str(type, "redacted_thinking") ||
                 yyjson_equals_str(type, "document"))
            ok = ig_serve_refuse(e, "unsupported_parameter", where, "%s[%zu]: blocks of type %s are not supported",
                                 where, i, yyjson_get_str(type));
        else if (!yyjson_equals_str(type, "text"))
            ok = ig_serve_refuse(e, "invalid_value", where, "%s[%zu] has the unknown type %.40s", where, i,
                                 yyjson_get_str(type));
        else if (!yyjson_is_str(text))
            ok = ig_serve_refuse(e, "invalid_value", where, "%s[%zu].text must be a string", where, i);
        else
            ok = ((i == 0 || ig_buf_add_str(&joined, joint)) &&
                  ig_buf_add(&joined, yyjson_get_str(text), yyjson_get_len(text))) ||
                 no_memory(e);
        if (!ok) break;
    }
    ok = ok && (yyjson_mut_obj_add_strncpy(doc, to, "content", joined.n ? joined.p : "", joined.n) || no_memory(e));
    ig_buf_free(&joined);
    return ok;
}

static bool add_messages(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *in, ig_http_error *e) {
    yyjson_val *system = ig_json_get(in, "system"), *messages = ig_json_get(in, "messages"), *m;
    yyjson_mut_val *list = yyjson_mut_obj_add_arr(doc, root, "messages"), *to;
    size_t i, n;
    if (!list) return no_memory(e);
    if (!messages) return ig_serve_refuse(e, "missing_required_parameter", "messages", "messages is missing");
    if (!yyjson_is_arr(messages))
        return ig_serve_refuse(e, "invalid_value", "messages", "messages must be an array");
    if (yyjson_arr_size(messages) == 0) return ig_serve_refuse(e, "empty_prompt", "messages", "messages is empty");
    if (system && !(yyjson_is_arr(system) && yyjson_arr_size(system) == 0)) {
        to = yyjson_mut_arr_add_obj(doc, list);
        if (!to || !yyjson_mut_obj_add_str(doc, to, "role", "system")) return no_memory(e);
        if (!add_text(doc, to, system, "system", "\n\n", e)) return false;
    }
    yyjson_arr_foreach(messages, i, n, m) {
        char where[64];
        yyjson_val *role = yyjson_is_obj(m) ? ig_json_get(m, "role") : NULL;
        const char *name = yyjson_equals_str(role, "user")        ? "user"
                           : yyjson_equals_str(role, "assistant") ? "assistant"
                           : yyjson_equals_str(role, "system")    ? "system"
                                                                  : NULL;
        snprintf(where, sizeof where, "messages[%zu].role", i);
        if (!name) return ig_serve_refuse(e, "invalid_value", where, "%s must be user or assistant", where);
        to = yyjson_mut_arr_add_obj(doc, list);
        if (!to || !yyjson_mut_obj_add_str(doc, to, "role", name)) return no_memory(e);
        snprintf(where, sizeof where, "messages[%zu].content", i);
        if (!add_text(doc, to, ig_json_get(m, "content"), where, "", e)) return false;
    }
    return true;
}

static bool add_rest(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *in, ig_http_error *e) {
    /* Under the same name on both routes. */
    static const char *const same[] = {
        "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stream", "seed", "logit_bias", "tools",
        "xtc_probability", "xtc_threshold", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "repetition_context_size", "presence_context_size", "frequency_context_size", "min_tokens_to_keep",
        "cache_prompt", "adapter", "hlg"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        yyjson_val *v = ig_json_get(in, same[i]);
        if (v && !yyjson_mut_obj_add_val(doc, root, same[i], yyjson_val_mut_copy(doc, v))) return no_memory(e);
    }
    static const char *const refused[] = {"output_config", "output_format", "mcp_servers"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (ig_json_get(in, refused[i]))
            return ig_serve_refuse(e, "unsupported_parameter", refused[i],
                                   "%s is not supported here; leave it out", refused[i]);
    yyjson_val *stops = ig_json_get(in, "stop_sequences"), *choice = ig_json_get(in, "tool_choice");
    if (stops && !yyjson_is_arr(stops))
        return ig_serve_refuse(e, "invalid_value", "stop_sequences", "stop_sequences must be an array of strings");
    if (stops && !yyjson_mut_obj_add_val(doc, root, "stop", yyjson_val_mut_copy(doc, stops))) return no_memory(e);
    yyjson_val *type = yyjson_is_obj(choice) ? ig_json_get(choice, "type") : NULL;
    if (choice && !yyjson_equals_str(type, "none") && !yyjson_equals_str(type, "auto"))
        return ig_serve_refuse(e, "unsupported_parameter", "tool_choice",
                               "tool_choice without tools can only be of type none or auto");
    yyjson_val *thinking = ig_json_get(in, "thinking");
    if (!thinking) return true;
    if (!yyjson_is_obj(thinking) || !yyjson_equals_str(ig_json_get(thinking, "type"), "disabled"))
        return ig_serve_refuse(e, "unsupported_parameter", "thinking",
                               "thinking is not supported here; only the type disabled is");
    yyjson_mut_val *kwargs = yyjson_mut_obj_add_obj(doc, root, "chat_template_kwargs");
    return (kwargs && yyjson_mut_obj_add_bool(doc, kwargs, "enable_thinking", false)) || no_memory(e);
}

bool ig_anthropic_translate(ig_chat_request *r, ig_http_error *e) {
    yyjson_val *in = yyjson_doc_get_root(r->doc);
    if (r->kind == IG_SERVE_MESSAGES && !ig_json_get(in, "max_tokens"))
        return ig_serve_refuse(e, "missing_required_parameter", "max_tokens", "max_tokens is missing");
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL;
    bool ok = root || no_memory(e);
    if (root) yyjson_mut_doc_set_root(doc, root);
    ok = ok && add_messages(doc, root, in, e) && add_rest(doc, root, in, e);
    if (ok) {
        yyjson_doc *made = yyjson_mut_doc_imut_copy(doc, NULL);
        ok = made || no_memory(e);
        if (made) {
            yyjson_doc_free(r->doc);
            r->doc = made;
        }
    }
    yyjson_mut_doc_free(doc);
    return ok;
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

bool ig_anthropic_error_json(ig_buf *out, const ig_http_error *e, const char *request_id) {
    const char *type = e->status == 401                       ? "authentication_error"
                       : e->status == 403                     ? "permission_error"
                       : e->status == 404                     ? "not_found_error"
                       : e->status == 413                     ? "request_too_large"
                       : e->status == 429                     ? "rate_limit_error"
                       : e->status == 503                     ? "overloaded_error"
                       : e->status >= 500 && e->status != 501 ? "api_error"
                                                              : "invalid_request_error";
    bool ok = ig_buf_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type) &&
              ig_serve_put_cstr(out, e->message) && ig_buf_add_str(out, "}");
    if (ok && request_id)
        ok = ig_buf_add_str(out, ",\"request_id\":") && ig_serve_put_cstr(out, request_id);
    return ok && ig_buf_add_str(out, "}");
}

static bool put_usage(const ig_serve_job *job, ig_buf *out) {
    ig_gen_stats st = ig_gen_stats_of(job->choices[0].gen);
    return ig_buf_addf(out,
                       "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,"
                       "\"output_tokens\":%d}",
                       (int)(st.n_prompt - st.n_cached), (int)st.n_cached, job->choices[0].n_seen);
}

static bool put_stop(const ig_serve_job *job, ig_buf *out) {
    const ig_serve_choice *c = &job->choices[0];
    const char *reason = c->stopped_by >= 0                ? "stop_sequence"
                         : c->finish == IG_FINISH_LENGTH ? "max_tokens"
                                                           : "end_turn";
    if (!ig_buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason)) return false;
    if (c->stopped_by < 0) return ig_buf_add_str(out, "null");
    return ig_serve_put_string(out, job->req.stops[c->stopped_by].p, job->req.stops[c->stopped_by].n);
}

static bool put_message(const ig_serve_job *job, ig_buf *out) {
    return ig_buf_addf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", job->id) &&
           ig_serve_put_cstr(out, job->s->config.model_id) && ig_buf_add_str(out, ",\"content\":[");
}

bool ig_anthropic_head(ig_serve_job *job) {
    ig_buf *out = &job->out;
    return ig_buf_add_str(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":") &&
           put_message(job, out) &&
           ig_buf_add_str(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":") && put_usage(job, out) &&
           ig_buf_add_str(out, "}}\n\n") && ig_anthropic_ping(job) &&
           ig_buf_add_str(out, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
                               "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n");
}

bool ig_anthropic_ping(ig_serve_job *job) {
    return ig_buf_add_str(&job->out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

bool ig_anthropic_chunk(ig_serve_job *job) {
    ig_buf *text = &job->choices[0].text;
    bool ok = ig_buf_add_str(&job->out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\","
                                        "\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":") &&
              ig_serve_put_string(&job->out, text->p, text->n) && ig_buf_add_str(&job->out, "}}\n\n");
    ig_buf_clear(text);
    return ok;
}

bool ig_anthropic_finish(ig_serve_job *job) {
    ig_buf *out = &job->out;
    return ig_buf_add_str(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
                               "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{") &&
           put_stop(job, out) && ig_buf_add_str(out, "},\"usage\":") && put_usage(job, out) &&
           ig_buf_add_str(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

bool ig_anthropic_whole(ig_serve_job *job, ig_buf *out) {
    const ig_buf *text = &job->choices[0].text;
    return put_message(job, out) && ig_buf_add_str(out, "{\"type\":\"text\",\"text\":") &&
           ig_serve_put_string(out, text->n ? text->p : "", text->n) && ig_buf_add_str(out, "}],") &&
           put_stop(job, out) && ig_buf_add_str(out, ",\"usage\":") && put_usage(job, out) &&
           ig_buf_add_str(out, "}");
}
