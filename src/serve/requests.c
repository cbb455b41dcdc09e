/* requests: what is being answered, told to people and programs: the list, the cancel, the lines of the log.
 * Owns:    nothing. The table of connections is the one record of what runs, and the engine's readers are the
 *          one source of its figures.
 * Threads: net, but for ig_serve_log_accepted (prep). The table is the net thread's, so a walk needs no lock;
 *          a job that prep holds shows its name only.
 * Memory:  the answer's buffer.
 * Not a word of a prompt or of an answer is told here. */
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

enum { LIST_MAX_BYTES = 64 * 1024 * 1024 };

/* The sum of a job's generations; times are the first one's. */
typedef struct figures {
    const char *state;
    int n_prompt, n_prefilled, n_cached, n_tokens, max_tokens;
    uint64_t queue_ns, prefill_ns, decode_ns;
    double prefill_tps, decode_tps;
} figures;

static double per_second(int n, uint64_t ns) {
    return ns > 0 && n > 0 ? n * 1e9 / (double)ns : 0;
}

static figures figures_of(const ig_serve_job *job) {
    static const char *const names[] = {[IG_GEN_QUEUED] = "queued",
                                        [IG_GEN_PREFILL] = "prefill",
                                        [IG_GEN_DECODE] = "decode",
                                        [IG_GEN_DONE] = "done"};
    figures f = {.state = "preparing"};
    ig_gen_state first = IG_GEN_DONE; /* the least advanced: of what the client still waits for */
    for (int i = 0; i < job->n_choices; i++) {
        ig_gen_state state = ig_gen_state_of(job->choices[i].gen);
        ig_gen_stats st = ig_gen_stats_of(job->choices[i].gen);
        if (state < first) first = state;
        f.n_prompt += st.n_prompt;
        f.n_prefilled += st.n_prefilled;
        f.n_cached += st.n_cached;
        f.n_tokens += st.n_tokens;
        f.max_tokens += job->choices[i].max_tokens;
    }
    if (!job->n_choices) return f;
    ig_gen_stats st = ig_gen_stats_of(job->choices[0].gen);
    uint64_t age_ns = ig_clock_ns() - job->submitted_ns;
    f.state = names[first];
    f.queue_ns = first == IG_GEN_QUEUED ? age_ns : st.queue_ns;
    f.prefill_ns = first == IG_GEN_PREFILL && age_ns > st.queue_ns ? age_ns - st.queue_ns : st.prefill_ns;
    f.decode_ns = st.decode_ns;
    f.prefill_tps = per_second(st.n_prefilled - st.n_cached, f.prefill_ns);
    f.decode_tps = per_second(st.n_tokens - 1, f.decode_ns);
    return f;
}

/* ---- the queue ----------------------------------------------------------------------------------------- */

/* Has the engine taken none of its generations yet? */
static bool is_waiting(const ig_serve_job *job) {
    bool waits = job && atomic_load(&job->prepared) && job->n_choices > 0;
    for (int i = 0; waits && i < job->n_choices; i++)
        waits = ig_gen_state_of(job->choices[i].gen) == IG_GEN_QUEUED;
    return waits;
}

int ig_serve_queue_position(const ig_serve_job *job) {
    const ig_serve *s = job->s;
    int position = 1;
    if (!is_waiting(job)) return 0;
    for (int i = 0; i < s->n_conns; i++) {
        const ig_serve_job *other = s->conns[i].job;
        if (is_waiting(other) && other->submitted_ns < job->submitted_ns) position++;
    }
    return position;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

/* A generation that the server has whole, and whose answer has not ended. */
static bool is_listed(const ig_serve_conn *c) {
    const ig_serve_job *job = c->job;
    if (!job || !job->queued || !ig_serve_generates(job->kind))
        return false;
    return !atomic_load(&job->prepared) || job->n_choices > 0;
}

static bool put_row(ig_buf *out, const ig_serve_conn *c) {
    static const ig_serve_job nothing_known;
    const ig_serve_job *job = c->job, *known = atomic_load(&job->prepared) ? job : &nothing_known;
    figures f = figures_of(known);
    return ig_buf_addf(out, "%s{\"id\":\"%s\",\"request_id\":\"%s\",\"route\":\"%s\",\"model\":",
                       out->p[out->n - 1] == '[' ? "" : ",", job->id, c->request_id, c->route->path) &&
           ig_serve_put_cstr(out, c->s->config.model_id) &&
           ig_buf_addf(out,
                       ",\"adapter\":null,\"state\":\"%s\",\"queue_position\":%d,\"stream\":%s,\"client_gone\":%s,\"cancelled\":%s,"
                       "\"age_ms\":%llu,\"prompt_tokens\":%d,\"prefilled_tokens\":%d,\"cached_tokens\":%d,"
                       "\"generated_tokens\":%d,\"max_tokens\":%d,",
                       f.state, known == job ? ig_serve_queue_position(job) : 0, known->req.stream ? "true" : "false",
                       atomic_load(&c->flags) & IG_CONN_GONE ? "true" : "false",
                       job->cancelled ? "true" : "false",
                       (unsigned long long)((ig_clock_ns() - job->started_ns) / 1000000), f.n_prompt,
                       f.n_prefilled, f.n_cached, f.n_tokens, f.max_tokens) &&
           ig_buf_addf(out,
                       "\"queue_ms\":%llu,\"prefill_ms\":%llu,\"decode_ms\":%llu,\"prefill_tps\":%.1f,"
                       "\"decode_tps\":%.1f}",
                       (unsigned long long)(f.queue_ns / 1000000),
                       (unsigned long long)(f.prefill_ns / 1000000),
                       (unsigned long long)(f.decode_ns / 1000000), f.prefill_tps, f.decode_tps);
}

enum MHD_Result ig_serve_get_requests(ig_serve_conn *c) {
    ig_serve *s = c->s;
    ig_buf body = ig_buf_init(LIST_MAX_BYTES);
    bool ok = ig_buf_add_str(&body, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; ok && i < s->n_conns; i++)
        if (is_listed(&s->conns[i])) ok = put_row(&body, &s->conns[i]);
    return ig_serve_send_json(c, ok && ig_buf_add_str(&body, "]}"), &body);
}

/* ---- the cancel ---------------------------------------------------------------------------------------- */

/* The answer ends as if the model had stopped, and says that it was cancelled. A reader that is slow has its
 * end later; the engine is free at once. */
static void cancel(ig_serve_conn *c) {
    ig_serve_job *job = c->job;
    job->cancelled = true;
    if (!atomic_load(&job->prepared)) return; /* its first look at the engine will be its last */
    for (int i = 0; i < job->n_choices; i++) ig_gen_cancel(job->choices[i].gen);
    ig_serve_ring(ig_serve_ring_slot(c->s->watch, c->index));
}

/* An id of ours names one; x-request-id is the client's choice, and names all that carry it. */
enum MHD_Result ig_serve_delete_request(ig_serve_conn *c) {
    ig_serve *s = c->s;
    int n_found = 0;
    for (int i = 0; i < s->n_conns; i++) {
        ig_serve_conn *other = &s->conns[i];
        if (!is_listed(other) || (strcmp(other->job->id, c->arg) && strcmp(other->request_id, c->arg)))
            continue;
        cancel(other);
        n_found++;
    }
    if (!n_found) {
        ig_http_error e;
        ig_serve_refuse(&e, "not_found", NULL, "no request %.80s runs or waits here", c->arg);
        return ig_serve_send_error(c, &e);
    }
    ig_buf body = ig_buf_init(4096);
    bool ok = ig_buf_add_str(&body, "{\"id\":") && ig_serve_put_cstr(&body, c->arg) &&
              ig_buf_addf(&body, ",\"object\":\"request\",\"cancelled\":%d}", n_found);
    return ig_serve_send_json(c, ok, &body);
}

/* ---- the log ------------------------------------------------------------------------------------------- */

/* What a client chose stands in quotes: in JSON it is a string whatever it looks like. */
void ig_serve_log_accepted(const ig_serve_conn *c, const ig_serve_job *job) {
    figures f = figures_of(job);
    ig_log(IG_LOG_INFO, "accepted id=%s request=\"%s\" route=%s stream=%d prompt=%d max=%d", job->id,
           c->request_id, c->route->path, job->req.stream, f.n_prompt, f.max_tokens);
}

void ig_serve_log_refused(const ig_serve_conn *c, const ig_http_error *e) {
    ig_log(IG_LOG_INFO, "refused request=\"%s\" route=%s status=%d end=%s", c->request_id,
           c->route ? c->route->path : "-", e->status, e->code);
}

static const char *end_of(const ig_serve_job *job, bool sent) {
    static const char *const names[] = {"none", "stop", "length", "canceled", "failed"};
    if (job->error.status) return job->error.code;
    if (job->cancelled) return "canceled";
    if (!sent) return "gone";
    return job->n_choices ? names[job->choices[0].finish] : "ok";
}

void ig_serve_log_finished(const ig_serve_conn *c, const ig_serve_job *job, bool sent) {
    figures f = figures_of(job);
    uint64_t ms = (ig_clock_ns() - job->started_ns) / 1000000;
    bool is_helper = !ig_serve_generates(job->kind) && job->kind != IG_SERVE_EMBEDDINGS;
    if (!job->n_choices) {
        ig_log(is_helper && c->status == 200 ? IG_LOG_DEBUG : IG_LOG_INFO,
               "finished id=%s request=\"%s\" route=%s status=%d end=%s gone=%d ms=%llu", job->id,
               c->request_id, c->route->path, c->status, end_of(job, sent), !sent, (unsigned long long)ms);
        return;
    }
    int n_tokens = 0; /* as `usage` counts: what came after a stop string does not */
    for (int i = 0; i < job->n_choices; i++) n_tokens += job->choices[i].n_seen;
    ig_log(IG_LOG_INFO,
           "finished id=%s request=\"%s\" route=%s status=%d end=%s gone=%d stream=%d prompt=%d cached=%d "
           "tokens=%d queue_ms=%llu prefill_ms=%llu decode_ms=%llu ms=%llu prefill_tps=%.1f decode_tps=%.1f",
           job->id, c->request_id, c->route->path, c->status, end_of(job, sent), !sent, job->req.stream,
           f.n_prompt, f.n_cached, n_tokens, (unsigned long long)(f.queue_ns / 1000000),
           (unsigned long long)(f.prefill_ns / 1000000), (unsigned long long)(f.decode_ns / 1000000),
           (unsigned long long)ms, f.prefill_tps, f.decode_tps);
}
