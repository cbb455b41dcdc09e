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

/* A token as a text: what is not UTF-8 by itself, a part of a character, is written as `bytes:\xe2\x80`. */
static bool put_token(ig_buf *out, ig_slice bytes) {
    if (ig_slice_utf8_valid(bytes, NULL)) return ig_serve_put_string(out, bytes.p, bytes.n);
    bool ok = ig_buf_add_str(out, "\"bytes:");
    for (size_t i = 0; ok && i < bytes.n; i++) ok = ig_buf_addf(out, "\\\\x%02x", (uint8_t)bytes.p[i]);
    return ok && ig_buf_add(out, "\"", 1);
}

/* Of two tokens with the same text the first, which is the likelier: a name stands in an object once. */
bool ig_openai_put_tops(ig_buf *out, const ig_tokenizer *t, const ig_logprob *top, int n) {
    size_t at[IG_SERVE_LOGPROBS_MAX + 1] = {0}; /* of their names, one behind the other */
    int n_put = 0;
    ig_buf names = ig_buf_init(1 << 20);
    bool ok = ig_buf_add(out, "{", 1);
    ig_assert(n <= IG_SERVE_LOGPROBS_MAX);
    for (int i = 0; ok && i < n; i++) {
        names.n = at[n_put]; /* one that was there already is written over */
        if (!put_token(&names, ig_tokenizer_bytes(t, top[i].id))) ok = false;
        ig_slice name = {names.p + at[n_put], names.n - at[n_put]};
        bool is_new = true;
        for (int k = 0; ok && k < n_put; k++)
            is_new &= !ig_slice_eq(name, (ig_slice){names.p + at[k], at[k + 1] - at[k]});
        if (!ok || !is_new) continue;
        ok = (n_put == 0 || ig_buf_add(out, ",", 1)) && ig_buf_add(out, name.p, name.n) &&
             ig_buf_addf(out, ":%.9g", finite_logprob(top[i].logprob));
        at[++n_put] = names.n;
    }
    ig_buf_free(&names);
    return ok && ig_buf_add(out, "}", 1);
}

/* Does the byte go on with the character that the held ones begin? */
static bool goes_on(const ig_detok *d, uint8_t byte) {
    uint8_t low = 0x80, high = 0xBF, lead = d->held[0];
    if (d->n_held == 1 && lead == 0xE0) low = 0xA0;
    if (d->n_held == 1 && lead == 0xED) high = 0x9F;
    if (d->n_held == 1 && lead == 0xF0) low = 0x90;
    if (d->n_held == 1 && lead == 0xF4) high = 0x8F;
    return byte >= low && byte <= high;
}

size_t ig_openai_text_offset(const ig_detok *d, size_t n_chars, uint32_t id) {
    ig_slice bytes = ig_tokenizer_bytes(d->t, id);
    bool prints = d->show_special || !ig_tokenizer_is_special(d->t, id);
    if (d->n_held == 0 || !prints || bytes.n == 0 || goes_on(d, (uint8_t)bytes.p[0])) return n_chars;
    return n_chars + 1; /* what is held becomes U+FFFD and is before it */
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
    size_t offset = ig_openai_text_offset(&c->detok, c->n_chars, id);
    return put_comma(&c->lp_content) && put_token(&c->lp_content, bytes) && put_comma(&c->lp_values) &&
           ig_buf_addf(&c->lp_values, "%.9g", finite_logprob(own.logprob)) && put_comma(&c->lp_offsets) &&
           ig_buf_addf(&c->lp_offsets, "%zu", offset) && put_comma(&c->lp_tops) &&
           ig_openai_put_tops(&c->lp_tops, t, top, n_top);
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

static const char *tier_of(const ig_serve_job *job) {
    const ig_serve_config *c = &job->s->config;
    return job->req.sampling.temperature > 0.0f ? c->tier_sampled : c->tier;
}

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
                       "\"completion_tokens_details\":{\"reasoning_tokens\":0},\"tier\":\"%s\"}",
                       prompt, completion, prompt + completion, cached, tier_of(job));
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
    return ok && ig_buf_addf(out, ",\"tier\":\"%s\"}", tier_of(job));
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
