/* answer: what a job has made becomes OpenAI's JSON: the whole answer, or the chunks of a stream.
 * Owns:    nothing; appends to the job's buffers.
 * Threads: net.
 * Memory:  the buffers' maxima; a frame that does not fit ends the job with an error.
 * One chunk a token that releases text: transcripts then do not depend on timing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/inside.h"

static const char *finish_name(ig_finish f) {
    return f == IG_FINISH_LENGTH ? "length" : "stop";
}

static bool is_chat(const ig_serve_job *job) {
    return job->kind == IG_SERVE_CHAT;
}

/* {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":.., and a comma */
static bool put_head(ig_serve_job *job, ig_buf *out) {
    const char *object = !is_chat(job)     ? "text_completion"
                         : job->req.stream ? "chat.completion.chunk"
                                           : "chat.completion";
    return ig_buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", job->id, object,
                       (long long)job->created_s) &&
           ig_serve_put_cstr(out, job->s->config.model_id) &&
           ig_buf_addf(out, ",\"system_fingerprint\":\"%s\",", job->s->fingerprint);
}

/* ---- logprobs ------------------------------------------------------------------------------------------ */

static double finite_logprob(float x) {
    return isfinite(x) ? (double)x : -9999.0; /* JSON has no infinity */
}

static bool put_comma(ig_buf *b) {
    return b->n == 0 || ig_buf_add(b, ",", 1);
}

static bool put_entry(ig_buf *out, const ig_tokenizer *t, ig_logprob p) {
    ig_slice bytes = ig_tokenizer_bytes(t, p.id);
    if (!ig_buf_addf(out, "{\"id\":%u,\"token\":", p.id) || !ig_serve_put_string(out, bytes.p, bytes.n) ||
        !ig_buf_add_str(out, ",\"bytes\":["))
        return false;
    for (size_t i = 0; i < bytes.n; i++)
        if (!ig_buf_addf(out, i ? ",%u" : "%u", (uint8_t)bytes.p[i])) return false;
    return ig_buf_addf(out, "],\"logprob\":%.9g", finite_logprob(p.logprob));
}

bool ig_openai_note_logprob(ig_serve_job *job, ig_serve_choice *c, int index, uint32_t id) {
    const ig_tokenizer *t = job->s->tokenizer;
    if (job->req.logprobs == IG_SERVE_LOGPROBS_NONE) return true;
    ig_logprob own = {.id = id};
    int n_top = 0;
    const ig_logprob *top = ig_gen_logprobs(c->gen, index, &own, &n_top);
    if (!top) n_top = 0;
    if (n_top > job->req.top_logprobs) n_top = job->req.top_logprobs;

    if (job->req.logprobs == IG_SERVE_LOGPROBS_CONTENT) {
        if (!put_comma(&c->lp_content) || !put_entry(&c->lp_content, t, own) ||
            !ig_buf_add_str(&c->lp_content, ",\"top_logprobs\":["))
            return false;
        for (int i = 0; i < n_top; i++)
            if ((i && !ig_buf_add(&c->lp_content, ",", 1)) || !put_entry(&c->lp_content, t, top[i]) ||
                !ig_buf_add(&c->lp_content, "}", 1))
                return false;
        return ig_buf_add_str(&c->lp_content, "]}");
    }
    ig_slice bytes = ig_tokenizer_bytes(t, id);
    bool ok = put_comma(&c->lp_content) && ig_serve_put_string(&c->lp_content, bytes.p, bytes.n) &&
              put_comma(&c->lp_values) && ig_buf_addf(&c->lp_values, "%.9g", finite_logprob(own.logprob)) &&
              put_comma(&c->lp_offsets) && ig_buf_addf(&c->lp_offsets, "%zu", c->n_chars) &&
              put_comma(&c->lp_tops) && ig_buf_add(&c->lp_tops, "{", 1);
    for (int i = 0; ok && i < n_top; i++) {
        bytes = ig_tokenizer_bytes(t, top[i].id);
        ok = (i == 0 || ig_buf_add(&c->lp_tops, ",", 1)) &&
             ig_serve_put_string(&c->lp_tops, bytes.p, bytes.n) &&
             ig_buf_addf(&c->lp_tops, ":%.9g", finite_logprob(top[i].logprob));
    }
    return ok && ig_buf_add(&c->lp_tops, "}", 1);
}

static bool add_buf(ig_buf *out, const ig_buf *b) {
    return b->n == 0 || ig_buf_add(out, b->p, b->n);
}

/* The entries that were noted since the last call. */
static bool put_logprobs(ig_serve_job *job, ig_serve_choice *c, ig_buf *out) {
    bool ok;
    if (job->req.logprobs == IG_SERVE_LOGPROBS_NONE || (job->req.stream && c->lp_content.n == 0))
        return ig_buf_add_str(out, "null");
    if (job->req.logprobs == IG_SERVE_LOGPROBS_CONTENT)
        ok = ig_buf_add_str(out, "{\"content\":[") && add_buf(out, &c->lp_content) &&
             ig_buf_add_str(out, "],\"refusal\":null}");
    else
        ok = ig_buf_add_str(out, "{\"tokens\":[") && add_buf(out, &c->lp_content) &&
             ig_buf_add_str(out, "],\"token_logprobs\":[") && add_buf(out, &c->lp_values) &&
             ig_buf_add_str(out, "],\"top_logprobs\":[") && add_buf(out, &c->lp_tops) &&
             ig_buf_add_str(out, "],\"text_offset\":[") && add_buf(out, &c->lp_offsets) &&
             ig_buf_add_str(out, "]}");
    ig_buf_clear(&c->lp_content);
    ig_buf_clear(&c->lp_values);
    ig_buf_clear(&c->lp_tops);
    ig_buf_clear(&c->lp_offsets);
    return ok;
}

/* ---- usage and statistics ------------------------------------------------------------------------------ */

static bool put_usage(ig_serve_job *job, ig_buf *out) {
    long long prompt = 0, cached = 0, completion = 0;
    for (int i = 0; i < job->n_choices; i++) {
        ig_gen_stats st = ig_gen_stats_of(job->choices[i].gen);
        prompt += st.n_prompt;
        cached += st.n_cached;
        completion += job->choices[i].n_seen;
    }
    return ig_buf_addf(out,
                       "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                       "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
                       "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
                       prompt, completion, prompt + completion, cached);
}

static double per_second(double n, uint64_t ns) {
    return ns > 0 && n > 0 ? n * 1e9 / (double)ns : 0;
}

static bool put_statistics(ig_serve_job *job, ig_buf *out) {
    const ig_serve_choice *c = &job->choices[0];
    ig_gen_stats st = ig_gen_stats_of(c->gen);
    double prefill = per_second(st.n_prompt - st.n_cached, st.prefill_ns);
    double decode = per_second(st.n_tokens - 1, st.decode_ns);
    if (st.n_tokens > 0) { /* one that was cancelled in the queue says nothing about speed */
        atomic_store(&job->s->last_ttft_us, st.first_token_ns / 1000);
        atomic_store(&job->s->last_prefill_mtps, (uint64_t)(prefill * 1000));
        atomic_store(&job->s->last_decode_mtps, (uint64_t)(decode * 1000));
    }
    bool ok = ig_buf_addf(
        out,
        "{\"seed\":%llu,\"queue_ms\":%llu,\"ttft_ms\":%llu,\"prefill_tps\":%.1f,\"decode_tps\":%.1f,"
        "\"stop\":",
        (unsigned long long)job->req.sampling.seed, (unsigned long long)(st.queue_ns / 1000000),
        (unsigned long long)(st.first_token_ns / 1000000), prefill, decode);
    if (c->stopped_by >= 0)
        ok = ok && ig_serve_put_string(out, job->req.stops[c->stopped_by].p, job->req.stops[c->stopped_by].n);
    else
        ok = ok && ig_buf_add_str(out, "null");
    if (job->cancelled) ok = ok && ig_buf_add_str(out, ",\"cancelled\":true");
    return ok && ig_buf_add_str(out, ",\"tier\":\"L3\"}");
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

static bool begin_chunk(ig_serve_job *job) {
    return ig_buf_add_str(&job->out, "data: ") && put_head(job, &job->out);
}

/* "usage":null on every chunk but the last of its kind, when the client asked for the extra chunk. */
static bool end_chunk(ig_serve_job *job) {
    return ig_buf_add_str(&job->out, job->req.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

bool ig_openai_head(ig_serve_job *job) {
    bool ok = true;
    for (int i = 0; ok && is_chat(job) && i < job->n_choices; i++)
        ok = begin_chunk(job) &&
             ig_buf_addf(&job->out,
                         "\"choices\":[{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                         "\"logprobs\":null,\"finish_reason\":null}]",
                         i) &&
             end_chunk(job);
    return ok;
}

bool ig_openai_chunk(ig_serve_job *job, int index) {
    ig_serve_choice *c = &job->choices[index];
    ig_buf *out = &job->out;
    bool ok = begin_chunk(job) &&
              ig_buf_addf(out,
                          is_chat(job) ? "\"choices\":[{\"index\":%d,\"delta\":{\"content\":"
                                       : "\"choices\":[{\"index\":%d,\"text\":",
                          index) &&
              ig_serve_put_string(out, c->text.p, c->text.n) &&
              ig_buf_add_str(out, is_chat(job) ? "},\"logprobs\":" : ",\"logprobs\":") &&
              put_logprobs(job, c, out) && ig_buf_add_str(out, ",\"finish_reason\":null}]") && end_chunk(job);
    ig_buf_clear(&c->text);
    return ok;
}

bool ig_openai_finish(ig_serve_job *job, int index, bool is_last) {
    ig_serve_choice *c = &job->choices[index];
    ig_buf *out = &job->out;
    bool ok = begin_chunk(job) &&
              ig_buf_addf(out,
                          is_chat(job) ? "\"choices\":[{\"index\":%d,\"delta\":{},\"logprobs\":"
                                       : "\"choices\":[{\"index\":%d,\"text\":\"\",\"logprobs\":",
                          index) &&
              put_logprobs(job, c, out) &&
              ig_buf_addf(out, ",\"finish_reason\":\"%s\"}]", finish_name(c->finish));
    if (ok && is_last) ok = ig_buf_add_str(out, ",\"ingle\":") && put_statistics(job, out);
    if (ok && is_last && !job->req.include_usage)
        return ig_buf_add_str(out, ",\"usage\":") && put_usage(job, out) && ig_buf_add_str(out, "}\n\n");
    return ok && end_chunk(job);
}

bool ig_openai_tail(ig_serve_job *job) {
    ig_buf *out = &job->out;
    if (job->req.include_usage && !(begin_chunk(job) && ig_buf_add_str(out, "\"choices\":[],\"usage\":") &&
                                    put_usage(job, out) && ig_buf_add_str(out, "}\n\n")))
        return false;
    return ig_buf_add_str(out, "data: [DONE]\n\n");
}

/* ---- the whole answer ---------------------------------------------------------------------------------- */

bool ig_openai_whole(ig_serve_job *job, ig_buf *out) {
    bool ok = put_head(job, out) && ig_buf_add_str(out, "\"choices\":[");
    for (int i = 0; ok && i < job->n_choices; i++) {
        ig_serve_choice *c = &job->choices[i];
        ok = ig_buf_addf(out,
                         is_chat(job) ? "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":"
                                      : "%s{\"index\":%d,\"text\":",
                         i ? "," : "", i) &&
             ig_serve_put_string(out, c->text.p, c->text.n) &&
             ig_buf_add_str(out, is_chat(job) ? ",\"refusal\":null},\"logprobs\":" : ",\"logprobs\":") &&
             put_logprobs(job, c, out) &&
             ig_buf_addf(out, ",\"finish_reason\":\"%s\"}", finish_name(c->finish));
    }
    return ok && ig_buf_add_str(out, "],\"usage\":") && put_usage(job, out) &&
           ig_buf_add_str(out, ",\"ingle\":") && put_statistics(job, out) && ig_buf_add_str(out, "}");
}
