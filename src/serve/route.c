/* route: the table of paths, what headers decide, and the answers that need no engine.
 * Owns:    nothing.
 * Threads: net. Nothing here waits: figures of the engine are read, not asked for.
 * The checks are functions of strings so that tests can walk their whole matrix. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "serve/inside.h"

enum { HEADERS_MAX_BYTES = 64 * 1024 };

/* ---- answers ------------------------------------------------------------------------------------------- */

struct MHD_Response *ig_serve_response(ig_buf *body, const char *content_type) {
    struct MHD_Response *r = body->n
                                 ? MHD_create_response_from_buffer(body->n, body->p, MHD_RESPMEM_MUST_FREE)
                                 : MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (!r) return NULL;
    if (body->n) *body = ig_buf_init(body->n_max); /* MHD frees it */
    ig_serve_put_header(r, "Content-Type", content_type ? content_type : "application/json");
    if (!content_type) ig_serve_put_header(r, "Cache-Control", "no-store");
    return r;
}

static _Thread_local bool headers_lost; /* of the response that is being made */

void ig_serve_put_header(struct MHD_Response *r, const char *name, const char *value) {
    if (MHD_add_response_header(r, name, value) != MHD_YES) headers_lost = true;
}

enum MHD_Result ig_serve_send(ig_serve_conn *c, int status, struct MHD_Response *r) {
    ig_serve_put_header(r, "x-request-id", c->request_id);
    if (c->route && ig_anthropic_is(c->route->kind)) ig_serve_put_header(r, "request-id", c->request_id);
    ig_serve_put_header(r, "X-Content-Type-Options", "nosniff");
    ig_serve_put_header(r, "Vary", "Origin");
    if (c->origin[0]) {
        ig_serve_put_header(r, "Access-Control-Allow-Origin", c->origin);
        ig_serve_put_header(r, "Access-Control-Expose-Headers",
                                "x-request-id, x-ingle-seed, retry-after");
    }
    if (atomic_load(&c->s->draining)) ig_serve_put_header(r, "Connection", "close");
    c->status = status;
    enum MHD_Result ok = headers_lost ? MHD_NO : ig_serve_queue(c->mhd, status, r);
    headers_lost = false;
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result ig_serve_send_error(ig_serve_conn *c, const ig_http_error *e) {
    ig_buf body = ig_buf_init(8192);
    bool theirs = c->route && ig_anthropic_is(c->route->kind);
    bool ok = theirs ? ig_anthropic_error_json(&body, e, c->request_id) : ig_serve_error_json(&body, e);
    struct MHD_Response *r = ok ? ig_serve_response(&body, NULL) : NULL;
    char text[64];
    if (!r) {
        ig_buf_free(&body);
        return MHD_NO;
    }
    if (e->retry_after_s > 0) {
        snprintf(text, sizeof text, "%d", e->retry_after_s);
        ig_serve_put_header(r, "Retry-After", text);
    }
    if (e->status == 401) ig_serve_put_header(r, "WWW-Authenticate", "Bearer");
    if (e->status == 405 && c->route) {
        ig_serve_allow_header(c->route, text, sizeof text);
        ig_serve_put_header(r, "Allow", text);
    }
    if (!c->job) ig_serve_log_refused(c, e); /* else the line of its end says it */
    return ig_serve_send(c, theirs && e->status == 503 ? 529 : e->status, r);
}

enum MHD_Result ig_serve_send_json(ig_serve_conn *c, bool built, ig_buf *body) {
    struct MHD_Response *r = built ? ig_serve_response(body, NULL) : NULL;
    if (r) return ig_serve_send(c, 200, r);
    ig_buf_free(body);
    ig_http_error e;
    ig_serve_refuse(&e, "server_error", NULL, "no memory for the answer");
    return ig_serve_send_error(c, &e);
}

enum MHD_Result ig_serve_send_options(ig_serve_conn *c) {
    ig_buf none = ig_buf_init(1);
    struct MHD_Response *r = ig_serve_response(&none, "text/plain");
    char allow[64];
    if (!r) return MHD_NO;
    ig_serve_allow_header(c->route, allow, sizeof allow);
    ig_serve_put_header(r, "Allow", allow);
    if (c->origin[0]) {
        const char *asked = ig_serve_header(c, "Access-Control-Request-Headers");
        ig_serve_put_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Allow-Headers", asked && asked[0] ? asked : "*");
        ig_serve_put_header(r, "Access-Control-Max-Age", "600");
    }
    return ig_serve_send(c, 204, r);
}

bool ig_serve_refuse_ending(const ig_serve *s, ig_http_error *e) {
    if (atomic_load(&s->engine_lost))
        return ig_serve_refuse(e, "engine_failed", NULL, "the engine does not answer; the server ends");
    ig_serve_refuse(e, "shutting_down", NULL, "the server is shutting down");
    e->retry_after_s = 5;
    return false;
}

/* ---- routes of GET ------------------------------------------------------------------------------------- */

static enum MHD_Result get_health(ig_serve_conn *c) {
    ig_buf body = ig_buf_init(256);
    bool draining = atomic_load(&c->s->draining), lost = atomic_load(&c->s->engine_lost);
    if (!ig_buf_addf(&body, "{\"status\": \"%s\"}", lost ? "engine_failed" : draining ? "shutting_down" : "ok"))
        return ig_serve_send_json(c, false, &body);
    struct MHD_Response *r = ig_serve_response(&body, NULL);
    if (!r) return MHD_NO;
    if (draining) ig_serve_put_header(r, "Retry-After", "5");
    return ig_serve_send(c, draining ? 503 : 200, r);
}

static bool put_model(ig_serve *s, ig_buf *out) {
    ig_engine_plan plan = ig_engine_plan_of(s->engine);
    return ig_buf_add_str(out, "{\"id\":") && ig_serve_put_cstr(out, s->config.model_id) &&
           ig_buf_addf(
               out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"ingle\",\"context_window\":%d,"
               "\"max_safe_context\":%d,\"chat_template\":%s,\"embeddings\":%s,\"vision\":false,\"reasoning\":false,"
               "\"tools\":false,\"loaded\":true,\"size_bytes\":%llu,\"adapters\":[]}",
               (long long)s->config.model_created_s, plan.n_ctx, plan.n_ctx, s->template ? "true" : "false",
               s->config.pooling ? "true" : "false",
               (unsigned long long)plan.weights_bytes);
}

static enum MHD_Result get_models(ig_serve_conn *c) {
    ig_buf body = ig_buf_init(16384);
    bool ok = ig_buf_add_str(&body, "{\"object\":\"list\",\"data\":[") && put_model(c->s, &body) &&
              ig_buf_add_str(&body, "]}");
    return ig_serve_send_json(c, ok, &body);
}

static enum MHD_Result get_model(ig_serve_conn *c) {
    ig_buf body = ig_buf_init(16384);
    if (strcmp(c->arg, c->s->config.model_id) != 0) {
        ig_http_error e;
        ig_serve_refuse(&e, "model_not_found", "model", "there is no model %.100s here", c->arg);
        return ig_serve_send_error(c, &e);
    }
    return ig_serve_send_json(c, put_model(c->s, &body), &body);
}

static enum MHD_Result get_stats(ig_serve_conn *c) {
    ig_serve *s = c->s;
    ig_engine_stats st = ig_engine_stats_of(s->engine);
    ig_engine_plan plan = ig_engine_plan_of(s->engine);
    ig_buf body = ig_buf_init(16384);
    char started[32];
    struct tm tm;
    gmtime_r(&s->started_s, &tm);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &tm);
    int n_blocks = 0, n_free = 0, n_cached = 0;
    unsigned long long held_bytes = 0, cached_bytes = 0;
    for (int g = 0; g < st.kv.n_groups; g++) {
        const struct ig_kv_group_stats k = st.kv.group[g];
        n_blocks += k.n_blocks, n_free += k.n_free, n_cached += k.n_cached;
        held_bytes += (unsigned long long)(k.n_blocks - k.n_free) * k.block_bytes;
        cached_bytes += (unsigned long long)k.n_cached * k.block_bytes;
    }
    bool ok =
        ig_buf_add_str(&body, "{\"server\":{\"owner\":\"serve\",\"model\":") &&
        ig_serve_put_cstr(&body, s->config.model_id) && ig_buf_add_str(&body, ",\"version\":") &&
        ig_serve_put_cstr(&body, s->config.version) &&
        ig_buf_addf(
            &body,
            ",\"started_at\":\"%s\",\"uptime_s\":%llu,\"tier\":\"%s\",\"threads\":%d,\"connections\":%d,"
            "\"rss_bytes\":%llu},",
            started, (unsigned long long)((ig_clock_ns() - s->started_ns) / 1000000000ull), s->config.tier, st.n_threads,
            atomic_load(&s->n_open), (unsigned long long)ig_memory_resident_bytes()) &&
        ig_buf_addf(
            &body,
            "\"prompt_cache\":{\"blocks\":%d,\"bytes\":%llu,\"hits\":%llu,\"misses\":%llu,\"hit_tokens\":%llu,"
            "\"lookup_tokens\":%llu,\"evictions\":%llu},",
            n_cached, cached_bytes, (unsigned long long)st.n_hits, (unsigned long long)st.n_misses,
            (unsigned long long)st.kv.n_hit_tokens, (unsigned long long)st.kv.n_lookup_tokens,
            (unsigned long long)st.kv.n_evicted) &&
        ig_buf_addf(&body,
                    "\"kv\":{\"blocks_total\":%d,\"blocks_free\":%d,\"bytes\":%llu,\"budget_bytes\":%llu},",
                    n_blocks, n_free, held_bytes,
                    (unsigned long long)plan.kv_bytes) &&
        ig_buf_addf(
            &body, "\"admission\":{\"max_safe_context\":%d,\"usable_bytes\":%llu,\"weights_bytes\":%llu},",
            plan.n_ctx, (unsigned long long)plan.usable_bytes, (unsigned long long)plan.weights_bytes) &&
        ig_buf_addf(&body,
                    "\"batch\":{\"configured\":%d,\"batched\":true,\"active_rows\":%d,\"pending_rows\":%d,"
                    "\"prefilling_rows\":%d,\"steps\":%llu,\"mean_rows\":%.2f},",
                    st.n_slots, st.n_running, st.n_queued, st.n_prefilling, (unsigned long long)st.n_steps,
                    st.n_steps ? (double)st.n_rows / (double)st.n_steps : 0.0) &&
        ig_buf_addf(&body,
                    "\"requests\":{\"active\":%d,\"done\":%llu,\"canceled\":%llu,\"failed\":%llu,"
                    "\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"generated_tokens\":%llu},",
                    atomic_load(&s->n_jobs), (unsigned long long)st.n_done, (unsigned long long)st.n_canceled,
                    (unsigned long long)st.n_failed, (unsigned long long)st.n_prompt_tokens,
                    (unsigned long long)st.n_cached_tokens, (unsigned long long)st.n_generated_tokens) &&
        ig_buf_addf(&body,
                    "\"adapters\":[],\"last\":{\"ttft_ms\":%llu,\"prefill_tps\":%.1f,\"decode_tps\":%.1f}}",
                    (unsigned long long)(atomic_load(&s->last_ttft_us) / 1000),
                    (double)atomic_load(&s->last_prefill_mtps) / 1000,
                    (double)atomic_load(&s->last_decode_mtps) / 1000);
    return ig_serve_send_json(c, ok, &body);
}

static enum MHD_Result get_v1(ig_serve_conn *c);

/* ---- the table ----------------------------------------------------------------------------------------- */

#define GET(p, fn, is_open)                                                                                  \
    { .path = p, .methods = IG_GET | IG_HEAD, .open = is_open, .run = fn }
#define POST(p, k)                                                                                           \
    { .path = p, .methods = IG_POST, .kind = k }

static const ig_serve_route routes[] = {
    GET("/", ig_serve_get_page, true),
    GET("/health", get_health, true),
    GET("/stats", get_stats, false),
    GET("/v1", get_v1, false),
    GET("/v1/models", get_models, false),
    GET("/api/requests", ig_serve_get_requests, false),
    GET("/v1/requests", ig_serve_get_requests, false),
    {.path = "/api/requests/", .is_prefix = true, .methods = IG_DELETE, .run = ig_serve_delete_request},
    {.path = "/v1/requests/", .is_prefix = true, .methods = IG_DELETE, .run = ig_serve_delete_request},
    {.path = "/v1/models/", .is_prefix = true, .methods = IG_GET | IG_HEAD, .run = get_model},
    POST("/v1/chat/completions", IG_SERVE_CHAT),
    POST("/chat/completions", IG_SERVE_CHAT),
    POST("/v1/chat/completions/input_tokens", IG_SERVE_COUNT),
    POST("/chat/completions/input_tokens", IG_SERVE_COUNT),
    POST("/v1/completions", IG_SERVE_COMPLETION),
    POST("/completions", IG_SERVE_COMPLETION),
    POST("/tokenize", IG_SERVE_TOKENIZE),
    POST("/detokenize", IG_SERVE_DETOKENIZE),
    POST("/apply-template", IG_SERVE_APPLY_TEMPLATE),
    POST("/v1/embeddings", IG_SERVE_EMBEDDINGS),
    POST("/embeddings", IG_SERVE_EMBEDDINGS),
    GET("/metrics", ig_serve_get_metrics, false),
    POST("/v1/messages", IG_SERVE_MESSAGES),
    POST("/messages", IG_SERVE_MESSAGES),
    POST("/v1/messages/count_tokens", IG_SERVE_MESSAGES_COUNT),
    POST("/messages/count_tokens", IG_SERVE_MESSAGES_COUNT),
};
enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert((int)N_ROUTES <= (int)IG_SERVE_ROUTES_MAX, "every route has a place where its answers are counted");

int ig_serve_route_index(const ig_serve_route *r) {
    return (int)(r - routes);
}

const ig_serve_route *ig_serve_route_at(int i) {
    return i < N_ROUTES ? &routes[i] : NULL;
}

static enum MHD_Result get_v1(ig_serve_conn *c) {
    ig_buf body = ig_buf_init(16384);
    bool ok = ig_buf_add_str(&body, "{\"name\":\"ingle\",\"version\":") &&
              ig_serve_put_cstr(&body, c->s->config.version) && ig_buf_add_str(&body, ",\"model\":") &&
              ig_serve_put_cstr(&body, c->s->config.model_id) && ig_buf_add_str(&body, ",\"endpoints\":[");
    for (int i = 0; ok && i < N_ROUTES; i++)
        ok = ig_buf_addf(&body, "%s\"%s %s%s\"", i ? "," : "",
                         routes[i].methods & IG_POST     ? "POST"
                         : routes[i].methods & IG_DELETE ? "DELETE"
                                                         : "GET",
                         routes[i].path, routes[i].is_prefix ? "{id}" : "");
    return ig_serve_send_json(c, ok && ig_buf_add_str(&body, "]}"), &body);
}

unsigned ig_serve_method(const char *name) {
    static const struct {
        const char *name;
        unsigned bit;
    } methods[] = {{"GET", IG_GET},
                   {"POST", IG_POST},
                   {"HEAD", IG_HEAD},
                   {"OPTIONS", IG_OPTIONS},
                   {"DELETE", IG_DELETE}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(name, methods[i].name)) return methods[i].bit;
    return IG_OTHER_METHOD;
}

const ig_serve_route *ig_serve_route_find(const char *path, const char **arg) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; /* a trailing slash is tolerated */
    *arg = NULL;
    for (int i = 0; i < N_ROUTES; i++) {
        const ig_serve_route *r = &routes[i];
        size_t len = strlen(r->path);
        if (r->is_prefix ? n > len && !memcmp(path, r->path, len) : n == len && !memcmp(path, r->path, n)) {
            if (r->is_prefix) *arg = path + len;
            return r;
        }
    }
    return NULL;
}

void ig_serve_allow_header(const ig_serve_route *r, char *out, size_t n) {
    snprintf(out, n, "%s%s%s, OPTIONS", r->methods & IG_GET ? "GET, HEAD" : "",
             r->methods & IG_POST ? "POST" : "", r->methods & IG_DELETE ? "DELETE" : "");
}

/* ---- who may call -------------------------------------------------------------------------------------- */

/* "name", "name:port", "[v6]:port" -> the name without port and brackets. False: not of that form. */
static bool host_name(const char *host, char *out, size_t n_out) {
    const char *from = host, *end;
    if (*host == '[') {
        from = host + 1;
        end = strchr(from, ']');
        if (!end || (end[1] && end[1] != ':')) return false;
        for (const char *p = end[1] ? end + 2 : end + 1; *p; p++)
            if (*p < '0' || *p > '9') return false;
    } else {
        end = strchr(host, ':');
        if (!end) end = host + strlen(host);
        for (const char *p = *end ? end + 1 : end; *p; p++)
            if (*p < '0' || *p > '9') return false;
    }
    size_t n = (size_t)(end - from);
    if (n == 0 || n >= n_out) return false;
    memcpy(out, from, n);
    out[n] = 0;
    return true;
}

bool ig_serve_host_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcasecmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool is_address(const char *name) {
    struct in6_addr any;
    return inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;
}

/* A page that rebinds a name of its own to this address still says that name in Host: so names must be ours.
 * On a wildcard bind an address is fine too: no name can be rebound to look like one. */
bool ig_serve_host_allowed(const char *host, const char *bind_host, const char *const *allowed) {
    char name[256];
    if (!host_name(host, name, sizeof name)) return false;
    if (!strcasecmp(name, "localhost") || !strcmp(name, "127.0.0.1") || !strcmp(name, "::1")) return true;
    if (!strcasecmp(name, bind_host)) return true;
    if ((!strcmp(bind_host, "0.0.0.0") || !strcmp(bind_host, "::")) && is_address(name)) return true;
    for (size_t i = 0; allowed && allowed[i]; i++)
        if (!strcmp(allowed[i], "*") || !strcasecmp(allowed[i], name) || !strcasecmp(allowed[i], host))
            return true;
    return false;
}

ig_serve_origin ig_serve_origin_of(const char *origin, const char *host, const char *fetch_site,
                                   const char *const *listed) {
    bool cross = fetch_site && !strcasecmp(fetch_site, "cross-site");
    if (!origin) return cross ? IG_ORIGIN_FOREIGN : IG_ORIGIN_NONE;
    for (size_t i = 0; listed && listed[i]; i++)
        if (!strcmp(listed[i], "*") || !strcasecmp(listed[i], origin)) return IG_ORIGIN_LISTED;
    if (cross) return IG_ORIGIN_FOREIGN;
    const char *at = !strncasecmp(origin, "http://", 7)    ? origin + 7
                     : !strncasecmp(origin, "https://", 8) ? origin + 8
                                                           : NULL;
    return at && host && !strcasecmp(at, host) ? IG_ORIGIN_SAME : IG_ORIGIN_FOREIGN;
}

/* Time depends on the lengths only, and every key is looked at. */
static bool same_secret(const char *given, const char *key) {
    size_t n_given = strlen(given), n_key = strlen(key);
    unsigned differ = n_given != n_key;
    for (size_t i = 0; i < n_given; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)(n_key ? key[i % n_key] : 0);
    return differ == 0;
}

bool ig_serve_key_allowed(const char *const *keys, const char *authorization, const char *x_api_key) {
    const char *given = "";
    bool found = false;
    if (!keys || !keys[0]) return true;
    if (authorization && !strncasecmp(authorization, "Bearer ", 7)) {
        given = authorization + 7;
        while (*given == ' ') given++;
    } else if (x_api_key) {
        given = x_api_key;
    }
    for (size_t i = 0; keys[i]; i++) found |= same_secret(given, keys[i]) && keys[i][0];
    return found;
}

bool ig_serve_request_id_valid(const char *id) {
    size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n >= 1 && n <= 64 && id[n] == 0;
}

/* ---- what headers decide ------------------------------------------------------------------------------- */

const char *ig_serve_header(ig_serve_conn *c, const char *name) {
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

struct header_sums {
    size_t bytes;
    int n_length, n_host, n_coding, n_odd;
};

/* A name that is not a token ("Content-Length :") is read in two ways by two servers. */
static bool is_token(const char *name) {
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~");
    return n > 0 && name[n] == 0;
}

static enum MHD_Result sum_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    struct header_sums *h = arg;
    h->bytes += strlen(name) + (value ? strlen(value) : 0) + 4;
    h->n_length += !strcasecmp(name, "Content-Length");
    h->n_host += !strcasecmp(name, "Host");
    h->n_coding += !strcasecmp(name, "Transfer-Encoding");
    h->n_odd += !is_token(name);
    return MHD_YES;
}

/* How long the body is, and that there is only one way to read that. */
static bool check_framing(ig_serve_conn *c, const struct header_sums *h, ig_http_error *e) {
    const char *length = ig_serve_header(c, "Content-Length"),
               *coding = ig_serve_header(c, "Transfer-Encoding");
    c->upload_bytes = coding ? MHD_SIZE_UNKNOWN : length ? strtoull(length, NULL, 10) : 0;
    if (!coding && c->upload_bytes == MHD_SIZE_UNKNOWN) c->upload_bytes--; /* a length all the same */
    if (h->n_length + h->n_coding > 1)
        return ig_serve_refuse(e, "invalid_request", NULL,
                               "Content-Length and Transfer-Encoding: exactly one of them, and once");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return ig_serve_refuse(e, "invalid_request", NULL, "Transfer-Encoding: only chunked is understood");
    if (h->n_odd)
        return ig_serve_refuse(e, "invalid_request", NULL, "a header has a name with odd characters");
    if (h->n_host > 1) return ig_serve_refuse(e, "invalid_request", NULL, "more than one Host header");
    return true;
}

static bool check_callers(ig_serve_conn *c, unsigned method, ig_http_error *e) {
    const ig_serve_config *config = &c->s->config;
    const char *host = ig_serve_header(c, "Host"), *origin = ig_serve_header(c, "Origin");
    if (host && !ig_serve_host_allowed(host, config->host, config->allowed_hosts))
        return ig_serve_refuse(
            e, "host_not_allowed", NULL,
            "Host %.100s is not a name of this server; start it with --allowed-host to add one", host);
    ig_serve_origin kind =
        ig_serve_origin_of(origin, host, ig_serve_header(c, "Sec-Fetch-Site"), config->cors_origins);
    if (kind == IG_ORIGIN_FOREIGN && !(method & (IG_GET | IG_HEAD)))
        return ig_serve_refuse(
            e, "origin_not_allowed", NULL,
            "pages of another origin may not call this server; start it with --cors-origin to allow one");
    if (kind == IG_ORIGIN_LISTED && strlen(origin) < sizeof c->origin)
        snprintf(c->origin, sizeof c->origin, "%s", origin);
    return true;
}

static bool check_type(ig_serve_conn *c, ig_http_error *e) {
    const char *type = ig_serve_header(c, "Content-Type");
    static const char json[] = "application/json";
    if (!ig_serve_header(c, "Origin")) return true; /* tools send what they like */
    size_t n = sizeof json - 1;
    if (type && !strncasecmp(type, json, n) && (type[n] == 0 || type[n] == ';' || type[n] == ' '))
        return true;
    return ig_serve_refuse(e, "unsupported_media_type", NULL, "Content-Type must be application/json");
}

void ig_serve_make_request_id(ig_serve_conn *c) {
    snprintf(c->request_id, sizeof c->request_id, "req-%016llx", (unsigned long long)ig_rng_fresh_seed());
}

static void take_request_id(ig_serve_conn *c) {
    const char *given = ig_serve_header(c, "x-request-id");
    if (given && ig_serve_request_id_valid(given))
        snprintf(c->request_id, sizeof c->request_id, "%s", given);
    else
        ig_serve_make_request_id(c);
}

bool ig_serve_admit(ig_serve_conn *c, const char *url, const char *method_name, ig_http_error *e) {
    unsigned method = ig_serve_method(method_name);
    struct header_sums h = {0};
    take_request_id(c);
    MHD_get_connection_values(c->mhd, MHD_HEADER_KIND, sum_header, &h);
    if (!check_framing(c, &h, e)) return false;
    if (c->uri_too_long)
        return ig_serve_refuse(e, "uri_too_long", NULL, "the request line is longer than 8 KiB");
    if (h.bytes > HEADERS_MAX_BYTES)
        return ig_serve_refuse(e, "headers_too_large", NULL, "the headers have %zu bytes; %d are allowed",
                               h.bytes, HEADERS_MAX_BYTES);
    if (!check_callers(c, method, e)) return false;

    if (c->uri_cut) return ig_serve_refuse(e, "not_found", NULL, "not found");
    if (!strncasecmp(url, "http://", 7))
        url = strchr(url + 7, '/') ? strchr(url + 7, '/') : "/"; /* absolute form */
    c->route = ig_serve_route_find(url, &c->arg);
    if (!c->route)
        return ig_serve_refuse(e, "not_found", NULL, "nothing is served at this path; GET /v1 lists what there is");
    bool is_open = c->route->open || method == IG_OPTIONS;
    if (!is_open && !ig_serve_key_allowed(c->s->config.api_keys, ig_serve_header(c, "Authorization"),
                                          ig_serve_header(c, "x-api-key")))
        return ig_serve_refuse(e, "invalid_api_key", NULL,
                               "a valid API key is needed: Authorization: Bearer KEY");
    if (method != IG_OPTIONS && !(method & c->route->methods))
        return ig_serve_refuse(e, "method_not_allowed", NULL, "%.20s is not allowed here", method_name);
    if (atomic_load(&c->s->n_open) > c->s->room.connections && c->route->run != get_health) {
        ig_serve_refuse(e, "overloaded", NULL, "more than %d connections", c->s->room.connections);
        e->retry_after_s = 1;
        return false;
    }
    if (method != IG_POST) return true;
    if (!h.n_length && !h.n_coding)
        return ig_serve_refuse(e, "length_required", NULL, "a body with Content-Length or chunked is needed");
    return check_type(c, e);
}
