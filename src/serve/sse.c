/* sse: tokens of the engine become text, frames, and bytes for MHD; pings while nothing else flows.
 * Owns:    jobs (the memory of one POST).
 * Threads: net; prep only before `prepared`.
 * Memory:  a stream's out buffer stops taking tokens at OUT_PAUSE_BYTES. The engine holds all tokens of a
 *          request anyway, so a slow reader costs nothing more, and nobody waits for it.
 * Back-pressure is MHD's pull: it asks for bytes when the socket has taken the last ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/inside.h"

enum { OUT_PAUSE_BYTES = 64 * 1024, OUT_MAX_BYTES = 4 * 1024 * 1024, TEXT_MAX_BYTES = 64 * 1024 * 1024 };

/* ---- jobs ---------------------------------------------------------------------------------------------- */

ig_serve_job *ig_serve_job_make(ig_serve *s, ig_serve_kind kind) {
    ig_serve_job *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    job->s = s;
    job->kind = kind;
    job->created_s = time(NULL);
    job->started_ns = ig_clock_ns();
    job->body = ig_buf_init(s->config.body_max_bytes);
    job->reply = ig_buf_init(TEXT_MAX_BYTES);
    job->out = ig_buf_init(OUT_MAX_BYTES);
    job->scratch = ig_buf_init(OUT_MAX_BYTES);
    job->piece = ig_buf_init(OUT_MAX_BYTES);
    snprintf(job->id, sizeof job->id, "%s-%016llx%016llx", kind == IG_SERVE_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)ig_rng_fresh_seed(), (unsigned long long)ig_rng_fresh_seed());
    if (kind == IG_SERVE_MESSAGES)
        snprintf(job->id, sizeof job->id, "msg_%016llx%08x", (unsigned long long)ig_rng_fresh_seed(),
                 (unsigned)ig_rng_fresh_seed());
    for (int i = 0; i < IG_SERVE_CHOICES_MAX; i++) {
        ig_serve_choice *c = &job->choices[i];
        c->stopped_by = -1;
        c->text = ig_buf_init(TEXT_MAX_BYTES);
        c->lp_content = ig_buf_init(TEXT_MAX_BYTES);
        c->lp_values = ig_buf_init(TEXT_MAX_BYTES);
        c->lp_tops = ig_buf_init(TEXT_MAX_BYTES);
        c->lp_offsets = ig_buf_init(TEXT_MAX_BYTES);
    }
    return job;
}

void ig_serve_job_free(ig_serve_job *job) {
    if (!job) return;
    for (int i = 0; i < IG_SERVE_CHOICES_MAX; i++) {
        ig_serve_choice *c = &job->choices[i];
        if (c->gen) {
            ig_gen_cancel(c->gen);
            ig_gen_release(c->gen);
        }
        ig_stop_free(c->stop);
        ig_buf_free(&c->text);
        ig_buf_free(&c->lp_content);
        ig_buf_free(&c->lp_values);
        ig_buf_free(&c->lp_tops);
        ig_buf_free(&c->lp_offsets);
    }
    ig_serve_embed_free(job->embed);
    ig_serve_request_clear(&job->req);
    ig_buf_free(&job->body);
    ig_buf_free(&job->reply);
    ig_buf_free(&job->out);
    ig_buf_free(&job->scratch);
    ig_buf_free(&job->piece);
    free(job);
}

/* ---- tokens to text ------------------------------------------------------------------------------------ */

static bool is_end_token(const ig_tokenizer *t, uint32_t id) {
    int n;
    const uint32_t *eos = ig_tokenizer_eos(t, &n);
    for (int i = 0; i < n; i++)
        if (eos[i] == id) return true;
    return false;
}

static size_t count_chars(const ig_buf *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) n += ((uint8_t)b->p[i] & 0xc0) != 0x80;
    return n;
}

static void stop_here(ig_serve_choice *c, int which) {
    c->finish = IG_FINISH_STOP;
    c->stopped_by = which;
    ig_gen_cancel(c->gen); /* nothing, when it has ended by itself */
}

/* job->piece holds decoded text: what the stop matcher lets go of is added to c->text. */
static bool release(ig_serve_job *job, ig_serve_choice *c) {
    int which = 0;
    if (job->piece.n == 0) return true;
    if (!c->stop) return ig_buf_add(&c->text, job->piece.p, job->piece.n);
    if (!ig_buf_reserve(&c->text, job->piece.n + IG_STOP_BYTES_MAX)) return false;
    if (ig_stop_feed(c->stop, (ig_slice){job->piece.p, job->piece.n}, &c->text, &which)) {
        c->text_ended = true;
        stop_here(c, which);
    }
    return true;
}

/* One token. False: no memory. */
static bool take_token(ig_serve_job *job, ig_serve_choice *c) {
    int index = c->n_seen;
    uint32_t id = ig_gen_token(c->gen, index);
    c->n_seen = index + 1;
    if (is_end_token(job->s->tokenizer, id)) {
        if (c->finish == IG_FINISH_NONE) stop_here(c, -1);
        return true;
    }
    if (!ig_openai_note_logprob(job, c, index, id)) return false;
    for (int i = 0; i < job->req.n_stops; i++)
        if (job->stop_ids[i] >= 0 && (uint32_t)job->stop_ids[i] == id) {
            stop_here(c, i);
            return true;
        }
    ig_buf_clear(&job->piece);
    if (!ig_detok_add(&c->detok, id, &job->piece)) return false;
    c->n_chars += count_chars(&job->piece);
    return release(job, c);
}

/* The end: bytes and text that were held back come out, but after a stop string nothing does. */
static bool flush(ig_serve_job *job, ig_serve_choice *c) {
    if (c->text_ended) return true;
    ig_buf_clear(&job->piece);
    if (!ig_detok_finish(&c->detok, &job->piece) || !release(job, c)) return false;
    if (!c->stop || c->text_ended) return true;
    if (!ig_buf_reserve(&c->text, IG_STOP_BYTES_MAX)) return false;
    ig_stop_finish(c->stop, &c->text);
    return true;
}

static bool fail(ig_serve_job *job, const ig_http_error *e) {
    for (int i = 0; i < job->n_choices; i++) ig_gen_cancel(job->choices[i].gen);
    job->error = *e;
    return false;
}

static bool fail_memory(ig_serve_job *job) {
    ig_http_error e;
    ig_serve_refuse(&e, "generation_failed", NULL, "no memory for the answer");
    return fail(job, &e);
}

static bool put_head(ig_serve_job *job) {
    if (job->head_sent) return true;
    job->head_sent = true;
    return job->kind == IG_SERVE_MESSAGES ? ig_anthropic_head(job) : ig_openai_head(job);
}

static bool put_chunk(ig_serve_job *job, int index) {
    return put_head(job) &&
           (job->kind == IG_SERVE_MESSAGES ? ig_anthropic_chunk(job) : ig_openai_chunk(job, index));
}

static bool put_finish(ig_serve_job *job, int index, bool is_last) {
    if (!put_head(job)) return false;
    if (job->kind == IG_SERVE_MESSAGES) return ig_anthropic_finish(job);
    return ig_openai_finish(job, index, is_last) && (!is_last || ig_openai_tail(job));
}

/* Takes one token or the end of one choice. *moved: there was something. False: the job has failed. */
static bool step(ig_serve_job *job, int index, bool *moved) {
    ig_serve_choice *c = &job->choices[index];
    if (c->finish_sent) return true;
    if (job->cancelled && c->finish == IG_FINISH_NONE) stop_here(c, -1);
    ig_finish engine = ig_gen_finish(c->gen); /* before the count: final once this is set */
    if (c->finish == IG_FINISH_NONE && c->n_seen < ig_gen_n_tokens(c->gen)) {
        if (!take_token(job, c)) return fail_memory(job);
    } else if (c->finish == IG_FINISH_NONE && engine == IG_FINISH_NONE) {
        return true;
    } else if (c->finish == IG_FINISH_NONE && (engine == IG_FINISH_FAILED || engine == IG_FINISH_CANCELED)) {
        ig_http_error e;
        if (engine == IG_FINISH_FAILED)
            ig_serve_refuse(&e, "generation_failed", NULL, "%.400s", ig_gen_error(c->gen));
        else
            ig_serve_refuse(&e, "shutting_down", NULL, "the server is shutting down");
        return fail(job, &e);
    } else if (c->finish == IG_FINISH_NONE) {
        c->finish = engine;
    }
    if (c->finish != IG_FINISH_NONE && !flush(job, c)) return fail_memory(job);
    *moved = true;
    if (job->req.stream && c->text.n > 0 && !put_chunk(job, index)) return fail_memory(job);
    if (c->finish == IG_FINISH_NONE) return true;

    c->finish_sent = true;
    bool is_last = true;
    for (int i = 0; i < job->n_choices; i++) is_last = is_last && job->choices[i].finish_sent;
    if (!job->req.stream) return true;
    return put_finish(job, index, is_last) || fail_memory(job);
}

static void check_waiting(ig_serve_job *job) {
    ig_http_error e;
    int timeout_s = job->s->config.queue_timeout_s;
    if (atomic_load(&job->s->ending)) {
        ig_serve_refuse_ending(job->s, &e);
        if (atomic_load(&job->s->engine_lost)) e.status = 500; /* this one was the engine's */
        fail(job, &e);
    } else if (ig_gen_state_of(job->choices[0].gen) == IG_GEN_QUEUED && timeout_s > 0 &&
               ig_clock_ns() - job->started_ns > (uint64_t)timeout_s * 1000000000u) {
        ig_serve_refuse(&e, "queue_timeout", NULL, "no place became free in %d seconds", timeout_s);
        e.retry_after_s = ig_serve_retry_after_s(job->s);
        fail(job, &e);
    }
}

bool ig_serve_pump(ig_serve_job *job) {
    bool moved = true, all = false;
    while (moved && !job->error.status &&
           !(job->req.stream && job->out.n - job->out_from >= OUT_PAUSE_BYTES)) {
        moved = false;
        all = true;
        for (int i = 0; i < job->n_choices && !job->error.status; i++) {
            if (!step(job, i, &moved)) break;
            all = all && job->choices[i].finish_sent;
        }
    }
    if (!all && !job->error.status) check_waiting(job);
    return all || job->error.status;
}

/* ---- the stream ---------------------------------------------------------------------------------------- */

/* After the first byte an error can only be said in the stream. No finish_reason and no [DONE] follow. */
static bool put_error_frame(ig_serve_job *job) {
    if (job->kind == IG_SERVE_MESSAGES)
        return ig_buf_add_str(&job->out, "event: error\ndata: ") &&
               ig_anthropic_error_json(&job->out, &job->error, NULL) && ig_buf_add_str(&job->out, "\n\n");
    return ig_buf_add_str(&job->out, "data: ") && ig_serve_error_json(&job->out, &job->error) &&
           ig_buf_add_str(&job->out, "\n\n");
}

static bool put_ping(ig_serve_job *job) {
    if (job->kind == IG_SERVE_MESSAGES && job->head_sent) return ig_anthropic_ping(job);
    const ig_gen *g = job->choices[0].gen;
    ig_gen_stats st = ig_gen_stats_of(g);
    if (ig_gen_state_of(g) == IG_GEN_PREFILL)
        return ig_buf_addf(&job->out, ": prefill %d/%d\n\n", st.n_prefilled, st.n_prompt);
    int position = ig_serve_queue_position(job);
    if (position && !ig_buf_addf(&job->out, ": queued %d\n\n", position)) return false;
    return ig_buf_add_str(&job->out, ": ping\n\n");
}

static ssize_t give(ig_serve_job *job, char *to, size_t n) {
    size_t left = job->out.n - job->out_from;
    n = n < left ? n : left;
    memcpy(to, job->out.p + job->out_from, n);
    job->out_from += n;
    if (job->out_from == job->out.n) {
        job->out_from = 0;
        ig_buf_clear(&job->out);
    }
    return (ssize_t)n;
}

ssize_t ig_serve_stream_read(void *conn, uint64_t pos, char *to, size_t n) {
    (void)pos;
    ig_serve_conn *c = conn;
    ig_serve_job *job = c->job;
    atomic_store(&c->waits, false);
    uint32_t flags = atomic_fetch_and(&c->flags, ~(uint32_t)(IG_CONN_NEWS | IG_CONN_PING));
    if (flags & IG_CONN_GONE) return MHD_CONTENT_READER_END_WITH_ERROR;

    /* The head of a message says how much of its prompt was cached, which is known once it has a place. */
    bool waits = job->kind == IG_SERVE_MESSAGES && ig_gen_state_of(job->choices[0].gen) == IG_GEN_QUEUED;
    if (!waits && !put_head(job)) fail_memory(job);
    if (!job->ended && ig_serve_pump(job)) {
        job->ended = true;
        job->end_is_error = job->error.status != 0;
        if (job->end_is_error && !put_error_frame(job)) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (job->out.n == job->out_from && !job->ended && (flags & IG_CONN_PING)) {
        atomic_store(&c->pinged, true);
        if (!put_ping(job)) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (job->out.n > job->out_from) {
        atomic_store(&c->news_ns, ig_clock_ns());
        return give(job, to, n);
    }
    if (job->ended)
        return job->end_is_error ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    atomic_store(&c->waits, true);
    ig_serve_conn_nap(c);
    return 0;
}
