/* metrics: GET /metrics, figures as Prometheus reads them (text format 0.0.4).
 * Owns:    counts of answers, cancels and refusals, in ig_serve.
 * Threads: net, which alone counts and alone tells; figures of the engine are read, never asked for.
 * Memory:  the answer's buffer, bounded by BYTES_MAX.
 * Labels are words of ours: paths of the table of routes, statuses, codes. Nothing that a client chose is one, so
 * neither a text nor a name of a prompt gets here, and the number of series has an end. */
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

enum { BYTES_MAX = 1024 * 1024 };

/* 0: the client left before an answer; the last: whatever is not in the list. */
static const int statuses[IG_SERVE_STATUSES] = {0,   200, 204, 400, 401, 403, 404, 405, 408, 409, 411,
                                                413, 414, 415, 429, 431, 500, 501, 503, 505, -1};
static const char *const ends[IG_SERVE_ENDS] = {"gone", "asked", "queue_timeout", "shutdown"};
static const char *const rejected[IG_SERVE_REJECTED] = {"context_length_exceeded", "context_over_budget", "queue_full"};

/* ---- counting ------------------------------------------------------------------------------------------ */

void ig_serve_count_answer(ig_serve *s, const ig_serve_route *route, int status) {
    int i = 0;
    while (i < IG_SERVE_STATUSES - 1 && statuses[i] != status) i++;
    s->n_answers[route ? ig_serve_route_index(route) : IG_SERVE_ROUTES_MAX][i]++;
}

void ig_serve_count_end(ig_serve *s, const ig_serve_job *job, bool sent) {
    const char *code = job->error.status ? job->error.code : "";
    for (int i = 0; i < IG_SERVE_REJECTED; i++) s->n_rejected[i] += !strcmp(code, rejected[i]);
    if (!strcmp(code, "queue_timeout")) s->n_ended[2]++;
    else if (!strcmp(code, "shutting_down")) s->n_ended[3]++;
    else if (job->cancelled) s->n_ended[1]++;
    else if (!sent && !job->error.status) s->n_ended[0]++;
}

/* ---- telling ------------------------------------------------------------------------------------------- */

static bool put_head(ig_buf *out, const char *name, const char *type, const char *help) {
    return ig_buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static bool put_one(ig_buf *out, const char *name, const char *type, const char *help, double value) {
    return put_head(out, name, type, help) && ig_buf_addf(out, "%s %.17g\n", name, value);
}

static bool put_counter(ig_buf *out, const char *name, const char *help, uint64_t value) {
    return put_head(out, name, "counter", help) && ig_buf_addf(out, "%s %llu\n", name, (unsigned long long)value);
}

/* per: what a unit of the histogram is in units of the name, 1e9 for nanoseconds told as seconds. */
static bool put_histogram(ig_buf *out, const char *name, const char *help, const ig_histogram *h, double per) {
    unsigned long long n = 0;
    bool ok = put_head(out, name, "histogram", help);
    for (int i = 0; ok && i < IG_HISTOGRAM_BOUNDS; i++) {
        n += h->n[i];
        ok = ig_buf_addf(out, "%s_bucket{le=\"%.9g\"} %llu\n", name, (double)h->bound[i] / per, n);
    }
    n += h->n[IG_HISTOGRAM_BOUNDS];
    return ok && ig_buf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.17g\n%s_count %llu\n", name, n, name,
                             (double)h->sum / per, name, n);
}

static bool put_answers(ig_buf *out, const ig_serve *s) {
    bool ok = put_head(out, "ingle_requests_total", "counter",
                       "Requests that have ended, by route and status; gone: the client left before an answer.");
    for (int r = 0; ok && r <= IG_SERVE_ROUTES_MAX; r++) {
        const ig_serve_route *route = ig_serve_route_at(r);
        for (int i = 0; ok && i < IG_SERVE_STATUSES; i++) {
            char status[16] = "gone";
            if (!s->n_answers[r][i]) continue;
            if (statuses[i] > 0) snprintf(status, sizeof status, "%d", statuses[i]);
            else if (statuses[i] < 0) snprintf(status, sizeof status, "other");
            ok = ig_buf_addf(out, "ingle_requests_total{route=\"%s%s\",status=\"%s\"} %llu\n",
                             route ? route->path : "other", route && route->is_prefix ? "{id}" : "", status,
                             (unsigned long long)s->n_answers[r][i]);
        }
    }
    return ok;
}

static bool put_ends(ig_buf *out, const ig_serve *s) {
    bool ok = put_head(out, "ingle_cancelled_total", "counter",
                       "Requests that ended before their answer did: the client left, somebody asked for it, no place "
                       "became free in time, or the server shut down.");
    for (int i = 0; ok && i < IG_SERVE_ENDS; i++)
        ok = ig_buf_addf(out, "ingle_cancelled_total{why=\"%s\"} %llu\n", ends[i], (unsigned long long)s->n_ended[i]);
    ok = ok && put_head(out, "ingle_admission_rejected_total", "counter", "Requests for which there was no room, by code.");
    for (int i = 0; ok && i < IG_SERVE_REJECTED; i++)
        ok = ig_buf_addf(out, "ingle_admission_rejected_total{code=\"%s\"} %llu\n", rejected[i],
                         (unsigned long long)s->n_rejected[i]);
    return ok;
}

static bool put_engine(ig_buf *out, const ig_engine_stats *st, const ig_engine_metrics *m) {
    int n_blocks = 0, n_free = 0, n_cached = 0;
    for (int g = 0; g < st->kv.n_groups; g++)
        n_blocks += st->kv.group[g].n_blocks, n_free += st->kv.group[g].n_free, n_cached += st->kv.group[g].n_cached;
    return put_counter(out, "ingle_prompt_tokens_total", "Tokens of prompts that were begun, cached ones included.",
                       st->n_prompt_tokens) &&
           put_counter(out, "ingle_cached_tokens_total", "Tokens of prompts that were not computed again.",
                       st->n_cached_tokens) &&
           put_counter(out, "ingle_generated_tokens_total", "Tokens that were generated.", st->n_generated_tokens) &&
           put_one(out, "ingle_prefill_seconds_total", "counter",
                   "Seconds from a request's begin to its first token, of all requests together.",
                   (double)m->prefill_ns / 1e9) &&
           put_one(out, "ingle_decode_seconds_total", "counter",
                   "Seconds from a request's first token to its last, of all requests together.",
                   (double)m->decode_ns / 1e9) &&
           put_counter(out, "ingle_steps_total", "Steps of the engine.", st->n_steps) &&
           put_one(out, "ingle_requests_running", "gauge", "Requests that the engine computes now.", st->n_running) &&
           put_one(out, "ingle_requests_queued", "gauge", "Requests that wait for a place.", st->n_queued) &&
           put_histogram(out, "ingle_batch_rows", "Rows of a step: one for each token of a prompt or an answer.",
                         &m->step_rows, 1) &&
           put_histogram(out, "ingle_ttft_seconds", "From a request's arrival at the engine to its first token.",
                         &m->first_token_ns, 1e9) &&
           put_histogram(out, "ingle_itl_seconds", "From one token of an answer to the next.", &m->between_tokens_ns,
                         1e9) &&
           put_histogram(out, "ingle_queue_seconds", "Wait of a request for its place.", &m->queue_ns, 1e9) &&
           put_head(out, "ingle_kv_blocks", "gauge",
                    "Blocks of keys and values: free, kept for prompts that come again, or in use.") &&
           ig_buf_addf(out,
                       "ingle_kv_blocks{state=\"free\"} %d\ningle_kv_blocks{state=\"cached\"} %d\n"
                       "ingle_kv_blocks{state=\"used\"} %d\n",
                       n_free, n_cached, n_blocks - n_free - n_cached) &&
           put_counter(out, "ingle_prompt_cache_hits_total", "Requests that found a part of their prompt computed.",
                       st->n_hits) &&
           put_counter(out, "ingle_prompt_cache_misses_total", "Requests that looked and found nothing.", st->n_misses) &&
           put_counter(out, "ingle_prompt_cache_hit_tokens_total", "Tokens that were looked for and found.",
                       st->kv.n_hit_tokens) &&
           put_counter(out, "ingle_prompt_cache_lookup_tokens_total", "Tokens that were looked for.",
                       st->kv.n_lookup_tokens) &&
           put_counter(out, "ingle_prompt_cache_evictions_total", "Blocks that were given up for others.",
                       st->kv.n_evicted);
}

enum MHD_Result ig_serve_get_metrics(ig_serve_conn *c) {
    ig_serve *s = c->s;
    ig_http_error e;
    if (s->config.no_metrics) {
        ig_serve_refuse(&e, "not_found", NULL, "this server was started with --no-metrics");
        return ig_serve_send_error(c, &e);
    }
    ig_engine_stats st = ig_engine_stats_of(s->engine);
    ig_engine_metrics m = ig_engine_metrics_of(s->engine);
    ig_buf out = ig_buf_init(BYTES_MAX);
    bool ok = put_head(&out, "ingle_build_info", "gauge", "1; what runs stands in the labels.") &&
              ig_buf_addf(&out, "ingle_build_info{version=\"%s\",isa=\"%s\",tier=\"%s\"} 1\n", s->config.version,
                          s->config.isa, s->config.tier) &&
              put_one(&out, "ingle_start_time_seconds", "gauge", "When the server started, since 1970.",
                      (double)s->started_s) &&
              put_one(&out, "ingle_rss_bytes", "gauge", "Memory of the process that is resident.",
                      (double)ig_memory_resident_bytes()) &&
              put_one(&out, "ingle_connections", "gauge", "Open connections.", atomic_load(&s->n_open)) &&
              put_one(&out, "ingle_requests_active", "gauge",
                      "Requests whose body is there and whose answer has not ended.", atomic_load(&s->n_jobs)) &&
              put_engine(&out, &st, &m) && put_answers(&out, s) && put_ends(&out, s);
    struct MHD_Response *r = ok ? ig_serve_response(&out, "text/plain; version=0.0.4; charset=utf-8") : NULL;
    if (!r) return ig_serve_send_json(c, false, &out);
    ig_serve_put_header(r, "Cache-Control", "no-store");
    return ig_serve_send(c, 200, r);
}
