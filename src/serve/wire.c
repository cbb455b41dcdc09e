/* wire: errors as the protocol names them, look-ups in JSON from outside, JSON out.
 * Owns:    nothing.
 * Threads: any; every function is pure.
 * Memory:  the caller's buffer, bounded by its maximum.
 * The table below is the only place where an error's HTTP status and type are written down. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

static const struct {
    const char *code;
    int status;
    const char *type;
} errors[] = {
    {"invalid_json", 400, "invalid_request_error"},
    {"invalid_value", 400, "invalid_request_error"},
    {"invalid_request", 400, "invalid_request_error"},
    {"missing_required_parameter", 400, "invalid_request_error"},
    {"unsupported_parameter", 400, "invalid_request_error"},
    {"empty_prompt", 400, "invalid_request_error"},
    {"template_error", 400, "invalid_request_error"},
    {"adapter_not_found", 400, "invalid_request_error"},
    {"vision_not_supported", 400, "invalid_request_error"},
    {"context_length_exceeded", 400, "invalid_request_error"},
    {"embeddings_not_supported", 400, "invalid_request_error"},
    {"invalid_api_key", 401, "authentication_error"},
    {"host_not_allowed", 403, "permission_error"},
    {"origin_not_allowed", 403, "permission_error"},
    {"model_not_found", 404, "not_found_error"},
    {"not_found", 404, "not_found_error"},
    {"method_not_allowed", 405, "invalid_request_error"},
    {"request_timeout", 408, "invalid_request_error"},
    {"length_required", 411, "invalid_request_error"},
    {"request_too_large", 413, "invalid_request_error"},
    {"uri_too_long", 414, "invalid_request_error"},
    {"unsupported_media_type", 415, "invalid_request_error"},
    {"headers_too_large", 431, "invalid_request_error"},
    {"queue_full", 429, "rate_limit_error"},
    {"generation_failed", 500, "server_error"},
    {"server_error", 500, "server_error"},
    {"not_supported", 501, "not_supported_error"},
    {"http_version_not_supported", 505, "invalid_request_error"},
    {"shutting_down", 503, "unavailable_error"},
    {"overloaded", 503, "unavailable_error"},
    {"queue_timeout", 503, "unavailable_error"},
    {"engine_failed", 503, "unavailable_error"},
};

bool ig_serve_refuse(ig_http_error *e, const char *code, const char *param, const char *fmt, ...) {
    memset(e, 0, sizeof *e);
    for (size_t i = 0; i < sizeof errors / sizeof *errors && !e->status; i++)
        if (!strcmp(errors[i].code, code)) {
            e->code = errors[i].code;
            e->status = errors[i].status;
            e->type = errors[i].type;
        }
    ig_assert(e->status != 0);
    if (param) snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

bool ig_serve_error_json(ig_buf *out, const ig_http_error *e) {
    bool ok = ig_buf_add_str(out, "{\"error\":{\"message\":") && ig_serve_put_cstr(out, e->message) &&
              ig_buf_addf(out, ",\"type\":\"%s\",\"param\":", e->type) &&
              (e->param[0] ? ig_serve_put_cstr(out, e->param) : ig_buf_add_str(out, "null")) &&
              ig_buf_addf(out, ",\"code\":\"%s\"", e->code);
    if (ok && e->n_ctx > 0)
        ok = ig_buf_addf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)e->n_prompt_tokens,
                         (long long)e->n_ctx);
    return ok && ig_buf_add_str(out, "}}");
}

/* ---- typed look-ups ------------------------------------------------------------------------------------ */

static const char *type_name(yyjson_val *v) {
    return yyjson_is_bool(v)  ? "a boolean"
           : yyjson_is_num(v) ? "a number"
           : yyjson_is_str(v) ? "a string"
           : yyjson_is_arr(v) ? "an array"
           : yyjson_is_obj(v) ? "an object"
                              : "null";
}

bool ig_serve_get_bool(yyjson_val *obj, const char *key, bool *out, ig_http_error *e) {
    yyjson_val *v = ig_json_get(obj, key);
    if (!v) return true;
    if (!yyjson_is_bool(v))
        return ig_serve_refuse(e, "invalid_value", key, "%s must be of type bool, not %s", key, type_name(v));
    *out = yyjson_get_bool(v);
    return true;
}

bool ig_serve_get_number(yyjson_val *obj, const char *key, double lo, double hi, double *out,
                         ig_http_error *e) {
    yyjson_val *v = ig_json_get(obj, key);
    if (!v) return true;
    if (!yyjson_is_num(v))
        return ig_serve_refuse(e, "invalid_value", key, "%s must be a number, not %s", key, type_name(v));
    double x = yyjson_get_num(v);
    if (!(x >= lo && x <= hi))
        return ig_serve_refuse(e, "invalid_value", key, "%s is %g; it must be between %g and %g", key, x, lo,
                               hi);
    *out = x;
    return true;
}

bool ig_serve_get_int(yyjson_val *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                      ig_http_error *e) {
    yyjson_val *v = ig_json_get(obj, key);
    if (!v) return true;
    if (!yyjson_is_num(v))
        return ig_serve_refuse(e, "invalid_value", key, "%s must be of type int, not %s", key, type_name(v));
    int64_t x;
    if (yyjson_is_real(v)) { /* 3.0 is three; beyond 2^53 a double no longer says which integer it was */
        double d = yyjson_get_real(v);
        if (!(fabs(d) <= 9007199254740992.0) || d != floor(d))
            return ig_serve_refuse(e, "invalid_value", key,
                                   "%s is %g; it must be a whole number between %lld and %lld", key, d,
                                   (long long)lo, (long long)hi);
        x = (int64_t)d;
    } else if (yyjson_is_uint(v) && yyjson_get_uint(v) > INT64_MAX) {
        return ig_serve_refuse(e, "invalid_value", key, "%s is %llu; it must be between %lld and %lld", key,
                               (unsigned long long)yyjson_get_uint(v), (long long)lo, (long long)hi);
    } else {
        x = yyjson_get_sint(v);
    }
    if (x < lo || x > hi)
        return ig_serve_refuse(e, "invalid_value", key, "%s is %lld; it must be between %lld and %lld", key,
                               (long long)x, (long long)lo, (long long)hi);
    *out = x;
    return true;
}

bool ig_serve_token_id(yyjson_val *v, uint64_t *out) {
    double d = yyjson_is_real(v) ? yyjson_get_real(v) : 0;
    if (!(d >= 0 && d <= UINT32_MAX) || d != floor(d) || !(yyjson_is_uint(v) || yyjson_is_real(v)))
        return false;
    uint64_t id = yyjson_is_real(v) ? (uint64_t)d : yyjson_get_uint(v);
    if (id > UINT32_MAX) return false;
    *out = id;
    return true;
}

bool ig_serve_get_string(yyjson_val *obj, const char *key, ig_slice *out, ig_http_error *e) {
    yyjson_val *v = ig_json_get(obj, key);
    if (!v) return true;
    if (!yyjson_is_str(v))
        return ig_serve_refuse(e, "invalid_value", key, "%s must be a string, not %s", key, type_name(v));
    *out = (ig_slice){yyjson_get_str(v), yyjson_get_len(v)};
    return true;
}

/* ---- strings out --------------------------------------------------------------------------------------- */

/* Bytes of the well-formed UTF-8 character at p, 0 when there is none. */
static size_t utf8_char(const uint8_t *p, size_t n) {
    if (p[0] < 0x80) return 1;
    size_t len = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                 : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                : 0;
    if (!len || len > n) return 0;
    uint8_t lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < lo || p[1] > hi) return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return len;
}

bool ig_serve_put_string(ig_buf *out, const char *text, size_t n) {
    const uint8_t *p = (const uint8_t *)text;
    size_t from = 0, i = 0; /* [from, i) goes out as it is */
    if (!ig_buf_add(out, "\"", 1)) return false;
    while (i < n) {
        size_t len = utf8_char(p + i, n - i);
        if (len > 1 || (len == 1 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0x7f)) {
            i += len;
            continue;
        }
        if (!ig_buf_add(out, p + from, i - from)) return false;
        const char *name = p[i] == '"'    ? "\\\""
                           : p[i] == '\\' ? "\\\\"
                           : p[i] == '\n' ? "\\n"
                           : p[i] == '\r' ? "\\r"
                           : p[i] == '\t' ? "\\t"
                           : len == 0     ? "\xef\xbf\xbd"
                                          : NULL;
        if (!(name ? ig_buf_add_str(out, name) : ig_buf_addf(out, "\\u%04x", p[i]))) return false;
        from = ++i;
    }
    return ig_buf_add(out, p + from, n - from) && ig_buf_add(out, "\"", 1);
}

bool ig_serve_put_cstr(ig_buf *out, const char *s) {
    return ig_serve_put_string(out, s, strlen(s));
}
