/* http: one GET by libcurl: redirects, ranges, limits, and what a failure means.
 * Threads: an ig_hub_http belongs to one thread. Memory: curl's, a header list, no body is kept.
 * Why redirects are followed here and not by libcurl: the token may go to the endpoint's own scheme, host and
 * port only, an https address may not send us to http, and a hub's own headers (commit, hash) count only
 * while it is the hub that speaks. HTTP/1.1, because files in parallel then have a connection each. */
#include "hub/inside.h"

#include <ctype.h>
#include <curl/curl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    REDIRECTS_MAX = 8,
    HEAD_BYTES_MAX = 128 * 1024,
    CONNECT_MS = 15000,
    STALL_BYTES_PER_S = 64, /* less than this over the whole time limit is no transfer */
    RETRY_AFTER_MAX_S = 120,
    WAIT_DOUBLINGS = 4
};

struct ig_hub_http {
    const ig_hub_config *c;
    CURL *curl;
    /* of the request that runs */
    const ig_hub_request *r;
    ig_hub_answer *a;
    bool own_host; /* it is the hub itself that answers */
    bool begun;    /* head() was called */
    size_t head_bytes;
    ig_status st; /* of head() and body() */
    ig_err err;
};

bool ig_hub_stopped(const ig_hub_config *c) {
    return c->stop && __atomic_load_n(c->stop, __ATOMIC_RELAXED); /* threads ask, a signal handler answers */
}

bool ig_hub_sleep(const ig_hub_config *c, double seconds) {
    const struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
    uint64_t until = ig_clock_ns() + (uint64_t)(seconds * 1e9);
    while (!ig_hub_stopped(c) && ig_clock_ns() < until) nanosleep(&slice, NULL);
    return !ig_hub_stopped(c);
}

bool ig_hub_url_add(ig_buf *b, const char *text, bool keep_slashes) {
    for (const char *p = text; *p; p++) {
        unsigned char ch = (unsigned char)*p;
        bool plain = (ch < 0x80 && isalnum(ch)) || strchr("-._~", ch) || (keep_slashes && ch == '/');
        if (plain ? !ig_buf_add(b, p, 1) : !ig_buf_addf(b, "%%%02X", ch)) return false;
    }
    return true;
}

/* ---- the head ------------------------------------------------------------------------------------------ */

/* The value of the header `name` in a line of n bytes, without blanks around it; false: another header. */
static bool header(char *out, size_t cap, const char *name, const char *line, size_t n) {
    size_t m = strlen(name);
    if (n <= m || line[m] != ':' || strncasecmp(line, name, m) != 0) return false;
    line += m + 1, n -= m + 1;
    while (n && isspace((unsigned char)line[n - 1])) n--;
    while (n && isspace((unsigned char)*line)) line++, n--;
    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), line);
    return true;
}

/* A number of digits only, so that no sign and no blank slips in. */
static bool number(const char *p, const char **end, uint64_t *out) {
    uint64_t v = 0;
    if (!isdigit((unsigned char)*p)) return false;
    for (; isdigit((unsigned char)*p); p++) {
        if (v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(*p - '0');
    }
    *end = p;
    *out = v;
    return true;
}

/* "bytes 0-99/200" or "bytes 0-99/" and a star. */
static void read_range(ig_hub_answer *a, const char *p) {
    uint64_t from, last, total;
    a->has_range = false;
    if (strncasecmp(p, "bytes ", 6) != 0 || !number(p + 6, &p, &from) || *p++ != '-' ||
        !number(p, &p, &last) || *p++ != '/' || last < from || last == UINT64_MAX)
        return;
    a->range_total = -1;
    if (*p != '*') {
        if (!number(p, &p, &total) || *p || total > INT64_MAX) return;
        a->range_total = (int64_t)total;
    }
    a->range_from = from;
    a->range_end = last + 1;
    a->has_range = true;
}

/* "abc", W/"abc" or abc, when it is a hash; else nothing. */
static void read_hash(char *out, size_t cap, const char *value) {
    if (strncmp(value, "W/", 2) == 0) value += 2;
    if (*value == '"') value++;
    size_t n = strcspn(value, "\"");
    if (n < cap && ig_hub_hash_good((ig_slice){value, n})) snprintf(out, cap, "%.*s", (int)n, value);
}

static void read_own_header(ig_hub_answer *a, const char *line, size_t n) {
    char value[256];
    if (header(value, sizeof value, "x-linked-etag", line, n)) {
        a->hash[0] = 0;
        read_hash(a->hash, sizeof a->hash, value);
    } else if (header(value, sizeof value, "x-repo-commit", line, n)) {
        read_hash(a->commit, sizeof a->commit, value);
    } else if (header(value, sizeof value, "x-error-code", line, n)) {
        snprintf(a->error, sizeof a->error, "%.39s", value);
        ig_text_calm(a->error, false);
    } else if (header(value, sizeof value, "x-error-message", line, n)) {
        snprintf(a->message, sizeof a->message, "%.199s", value);
        ig_text_calm(a->message, false);
    }
}

static void clear_head(ig_hub_answer *a) {
    a->status = 0;
    a->has_range = false;
    a->content_bytes = -1;
    a->range_total = -1;
    a->retry_after_s = -1;
    a->error[0] = a->message[0] = 0;
}

static size_t take_header(char *line, size_t size, size_t n, void *ud) {
    ig_hub_http *h = ud;
    ig_hub_answer *a = h->a;
    char value[256];
    const char *end;
    uint64_t v;
    (void)size;
    h->head_bytes += n;
    if (h->head_bytes > HEAD_BYTES_MAX) {
        h->st = ig_fail(&h->err, IG_ENETWORK, "its headers are longer than %d bytes", HEAD_BYTES_MAX);
        return 0;
    }
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* a new head: after 100 Continue, or of the next hop */
        clear_head(a);
        const char *blank = memchr(line, ' ', n);
        if (blank && number(blank + 1, &end, &v) && v < 1000) a->status = (int)v;
    } else if (header(value, sizeof value, "content-length", line, n)) {
        a->content_bytes = number(value, &end, &v) && !*end && v <= INT64_MAX ? (int64_t)v : -1;
    } else if (header(value, sizeof value, "content-range", line, n)) {
        read_range(a, value);
    } else if (header(value, sizeof value, "retry-after", line, n)) {
        time_t date;
        if (number(value, &end, &v) && !*end)
            a->retry_after_s = (double)v;
        else if ((date = curl_getdate(value, NULL)) > 0)
            a->retry_after_s = fmax(0, difftime(date, time(NULL)));
    } else if (h->own_host) {
        read_own_header(a, line, n);
    }
    return n;
}

/* ---- the body ------------------------------------------------------------------------------------------ */

static size_t take_body(char *p, size_t size, size_t n, void *ud) {
    ig_hub_http *h = ud;
    (void)size;
    if (h->a->status != 200 && h->a->status != 206) return n; /* a page that nobody reads */
    if (!h->begun) {
        h->begun = true;
        h->st = h->r->head(h->r->ud, h->a, &h->err);
    }
    if (!h->st) h->st = h->r->body(h->r->ud, (const uint8_t *)p, n, &h->err);
    return h->st ? 0 : n;
}

static int look(void *ud, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return ig_hub_stopped(((const ig_hub_http *)ud)->c);
}

/* ---- addresses ----------------------------------------------------------------------------------------- */

typedef struct origin {
    char scheme[8], host[256], port[8];
} origin;

static bool part(CURLU *u, CURLUPart what, char *out, size_t cap) {
    char *v = NULL;
    bool good = curl_url_get(u, what, &v, what == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) == CURLUE_OK &&
                (size_t)snprintf(out, cap, "%s", v) < cap;
    curl_free(v);
    return good;
}

static bool origin_of(origin *o, const char *url) {
    CURLU *u = curl_url();
    bool good = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                part(u, CURLUPART_SCHEME, o->scheme, sizeof o->scheme) &&
                part(u, CURLUPART_HOST, o->host, sizeof o->host) &&
                part(u, CURLUPART_PORT, o->port, sizeof o->port) &&
                (strcasecmp(o->scheme, "https") == 0 || strcasecmp(o->scheme, "http") == 0);
    curl_url_cleanup(u);
    return good;
}

static bool same_origin(const origin *a, const origin *b) {
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}

static bool is_secret_safe(const origin *o) {
    return strcasecmp(o->scheme, "https") == 0 || strcmp(o->host, "localhost") == 0 ||
           strcmp(o->host, "[::1]") == 0 || strncmp(o->host, "127.", 4) == 0;
}

/* ---- one hop ------------------------------------------------------------------------------------------- */

static bool is_again(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2: return true;
    default: return false;
    }
}

static ig_status say_curl(ig_hub_http *h, CURLcode code, const char *detail, const char *host,
                          const char *what, ig_err *err) {
    if (h->st) return ig_fail(err, h->err.code, "%s: %s", what, h->err.msg);
    if (ig_hub_stopped(h->c)) return ig_fail(err, IG_ECANCELED, "stopped");
    h->a->again = is_again(code);
    h->a->unreachable = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
                        code == CURLE_COULDNT_CONNECT;
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return ig_fail(err, IG_ENETWORK,
                       "%s: the certificate of %s cannot be trusted (%s); a company's own goes "
                       "into SSL_CERT_FILE",
                       what, host, *detail ? detail : curl_easy_strerror(code));
    if (code == CURLE_OPERATION_TIMEDOUT)
        return ig_fail(err, IG_ENETWORK, "%s: nothing came from %s for %d s", what, host, h->c->timeout_s);
    if (code == CURLE_PARTIAL_FILE) return ig_fail(err, IG_ENETWORK, "%s: %s broke off", what, host);
    return ig_fail(err, IG_ENETWORK, "%s: %s", what, *detail ? detail : curl_easy_strerror(code));
}

/* What a status other than 2xx and 3xx means to a person. */
static ig_status say_status(ig_hub_http *h, const char *host, const char *what, ig_err *err) {
    ig_hub_answer *a = h->a;
    const char *dot = *a->message ? ": " : "";
    const bool token = h->c->token[0] != 0;
    switch (a->status) {
    case 401:
    case 403:
        if (strcmp(a->error, "RepoNotFound") == 0 && token) break;
        if (strcmp(a->error, "GatedRepo") == 0 || a->status == 403)
            return ig_fail(err, IG_ENETWORK,
                           "%s: access is restricted%s%s. Ask for it on %s/%s in a browser, then %s", what,
                           dot, a->message, h->c->endpoint, h->r->repo,
                           token ? "try again: your token (HF_TOKEN) must be of that account"
                                 : "set HF_TOKEN to a token of that account");
        return ig_fail(err, IG_ENETWORK,
                       token ? "%s: the hub does not accept the token (HF_TOKEN)%s%s"
                             : "%s: there is no such repository, or it is private: then set HF_TOKEN%s%s",
                       what, dot, a->message);
    case 404: break;
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
        a->again = true;
        return ig_fail(err, IG_ENETWORK, "%s: %s says %d%s%s%s", what, host, a->status,
                       a->status == 429 ? ", too many requests" : "", dot, a->message);
    default: return ig_fail(err, IG_ENETWORK, "%s: %s says %d%s%s", what, host, a->status, dot, a->message);
    }
    if (strcmp(a->error, "RevisionNotFound") == 0)
        return ig_fail(err, IG_ENOTFOUND, "%s has no such revision", what);
    if (strcmp(a->error, "EntryNotFound") == 0)
        return ig_fail(err, IG_ENOTFOUND, "%s: the file is listed, but the hub does not have it", what);
    return ig_fail(err, IG_ENOTFOUND, "%s: not on %s%s", what, h->c->endpoint,
                   token ? ", or this token may not see it" : "; if it is private, set HF_TOKEN");
}

static struct curl_slist *headers_for(const ig_hub_http *h, const origin *to, bool own) {
    struct curl_slist *list = curl_slist_append(NULL, "Accept-Encoding: identity"), *more;
    char line[sizeof h->c->token + 32];
    if (!list || !h->c->token[0] || !own || !is_secret_safe(to)) return list;
    snprintf(line, sizeof line, "Authorization: Bearer %s", h->c->token);
    more = curl_slist_append(list, line);
    explicit_bzero(line, sizeof line);
    if (!more) curl_slist_free_all(list);
    return more;
}

static void set_limits(const ig_hub_http *h) {
    const ig_hub_request *r = h->r;
    char range[64];
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, r->from, r->end ? r->end - 1 : 0);
    curl_easy_setopt(h->curl, CURLOPT_RANGE, r->ranged ? range : NULL);
    curl_easy_setopt(h->curl, CURLOPT_TIMEOUT, (long)r->total_s);
    curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(h->c->timeout_s * 1000 < CONNECT_MS ? h->c->timeout_s * 1000 : CONNECT_MS));
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_PER_S);
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, (long)h->c->timeout_s);
}

/* One request. *next is malloc'd when the answer is a redirect. */
static ig_status hop(ig_hub_http *h, const char *url, const origin *to, char **next, const char *what,
                     ig_err *err) {
    char detail[CURL_ERROR_SIZE] = "", *location = NULL;
    struct curl_slist *headers = headers_for(h, to, h->own_host);
    if (!headers) return ig_fail(err, IG_ELIMIT, "no memory");
    h->st = IG_OK;
    h->begun = false;
    h->head_bytes = 0;
    clear_head(h->a);
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, detail);
    set_limits(h);
    CURLcode code = curl_easy_perform(h->curl);
    curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    ig_text_calm(detail, false);
    if (code != CURLE_OK) return say_curl(h, code, detail, to->host, what, err);
    const int status = h->a->status;
    if (status == 200 || status == 206) {
        if (!h->begun) h->st = h->r->head(h->r->ud, h->a, &h->err); /* a body of no bytes */
        return h->st ? ig_fail(err, h->err.code, "%s: %s", what, h->err.msg) : IG_OK;
    }
    if (status >= 300 && status < 400) {
        curl_easy_getinfo(h->curl, CURLINFO_REDIRECT_URL, &location);
        if (!location) return ig_fail(err, IG_ENETWORK, "%s: %s redirects to nowhere", what, to->host);
        *next = strdup(location);
        return *next ? IG_OK : ig_fail(err, IG_ELIMIT, "no memory");
    }
    return say_status(h, to->host, what, err);
}

ig_status ig_hub_http_get(ig_hub_http *h, const ig_hub_request *r, ig_hub_answer *a, const char *what,
                          ig_err *err) {
    origin own, to, before;
    ig_status st = IG_OK;
    char *url = strdup(r->url), *next = NULL;
    h->r = r;
    h->a = a;
    *a = (ig_hub_answer){.status = 0};
    if (!url) return ig_fail(err, IG_ELIMIT, "no memory");
    if (!origin_of(&own, h->c->endpoint) || !origin_of(&to, url)) {
        free(url);
        return ig_fail(err, IG_EINVAL, "%s is no address", h->c->endpoint);
    }
    for (int i = 0;; i++) {
        h->own_host = same_origin(&own, &to);
        st = hop(h, url, &to, &next, what, err);
        free(url);
        url = next;
        if (st || !next) break;
        next = NULL;
        before = to;
        if (i == REDIRECTS_MAX) {
            st = ig_fail(err, IG_ENETWORK, "%s: more than %d redirects", what, REDIRECTS_MAX);
        } else if (!origin_of(&to, url)) {
            st = ig_fail(err, IG_ENETWORK, "%s: %s redirects to something that is not http", what,
                         before.host);
        } else if (strcasecmp(before.scheme, "https") == 0 && strcasecmp(to.scheme, "https") != 0) {
            st = ig_fail(err, IG_ENETWORK, "%s: %s redirects from https to http", what, before.host);
        }
        if (st) {
            free(url);
            break;
        }
    }
    return st;
}

ig_status ig_hub_http_wait(const ig_hub_config *c, const ig_hub_answer *a, int failures,
                           void (*note)(void *ud, const char *text), void *ud, ig_err *err) {
    char text[IG_ERR_BYTES + 64];
    int doublings = failures - 1 < WAIT_DOUBLINGS ? failures - 1 : WAIT_DOUBLINGS;
    double wait_s = ldexp(c->retry_wait_s, doublings);
    if (failures > c->retries) return err->code;
    if (a->retry_after_s > RETRY_AFTER_MAX_S) {
        memcpy(text, err->msg, sizeof err->msg);
        return ig_fail(err, err->code, "%.400s; it wants us to come back in %.0f s", text, a->retry_after_s);
    }
    if (a->retry_after_s >= 0) wait_s = a->retry_after_s;
    snprintf(text, sizeof text, "%s; again in %.3g s (%d of %d)", err->msg, wait_s, failures, c->retries);
    if (note) note(ud, text);
    return ig_hub_sleep(c, wait_s) ? IG_OK : ig_fail(err, IG_ECANCELED, "stopped");
}

/* ---- open and close ------------------------------------------------------------------------------------ */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode begun;

static void begin(void) {
    begun = curl_global_init(CURL_GLOBAL_DEFAULT);
}

ig_status ig_hub_http_open(ig_hub_http **out, const ig_hub_config *c, ig_err *err) {
    pthread_once(&once, begin);
    ig_hub_http *h = begun == CURLE_OK ? calloc(1, sizeof *h) : NULL;
    CURL *curl = h ? curl_easy_init() : NULL;
    if (!curl) {
        free(h);
        return ig_fail(err, IG_ELIMIT, "libcurl cannot start");
    }
    h->c = c;
    h->curl = curl;
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "ingle");
    if (c->ca_file[0]) curl_easy_setopt(curl, CURLOPT_CAINFO, c->ca_file);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, h);
    *out = h;
    return IG_OK;
}

void ig_hub_http_close(ig_hub_http *h) {
    if (!h) return;
    curl_easy_cleanup(h->curl);
    free(h);
}
