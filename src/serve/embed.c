/* embed: /v1/embeddings. Texts become prompts without answers, some at a time, in the same steps as everybody's.
 * Owns:    ig_serve_embed of a job: ids of all texts, vectors that are done, generations that run.
 * Threads: the parser is pure; begin runs on prep; the rest on net, at every wake, and never waits.
 * Memory:  ids and vectors of at most INPUTS_MAX texts; the answer grows as texts end, in their order.
 * One slot of the engine is left for others where there are two: so a chat that comes waits for no text to end. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/inside.h"

enum { INPUTS_MAX = 2048, DIMENSIONS_LEAST = 32, RUNNING_MAX = 16, TOKENS_MAX = 8 << 20 };

struct ig_serve_embed {
    void *slot; /* of the connection, for the engine's news */
    int n, n_dims, next, n_told, n_places;
    ig_tokens ids;
    size_t *begin;  /* [n + 1] of each text in ids */
    float *vectors; /* [n][n_dims] */
    bool *done;     /* [n] */
    struct {
        ig_gen *gen;
        int text;
    } running[RUNNING_MAX];
};

/* ---- the request ---------------------------------------------------------------------------------------- */

static bool parse_inputs(ig_chat_request *r, yyjson_val *input, ig_http_error *e) {
    yyjson_val *first = yyjson_arr_get_first(input), *v;
    size_t i, n;
    if (!input) return ig_serve_refuse(e, "missing_required_parameter", "input", "input is missing");
    r->inputs = input;
    r->n_inputs = 1;
    if (yyjson_is_str(input))
        return yyjson_get_len(input) > 0 || ig_serve_refuse(e, "empty_prompt", "input", "input is empty");
    if (!yyjson_is_arr(input))
        return ig_serve_refuse(e, "invalid_value", "input",
                               "input must be a string, an array of strings, an array of token ids, or an array of those");
    if (!first) return ig_serve_refuse(e, "empty_prompt", "input", "input is empty");
    if (yyjson_is_num(first)) return ig_serve_check_ids(input, "input", e);
    if (yyjson_arr_size(input) > INPUTS_MAX)
        return ig_serve_refuse(e, "invalid_value", "input", "input has %zu texts; at most %d are allowed",
                               yyjson_arr_size(input), INPUTS_MAX);
    yyjson_arr_foreach(input, i, n, v) {
        if (yyjson_get_type(v) != yyjson_get_type(first) || (!yyjson_is_str(v) && !yyjson_is_arr(v)))
            return ig_serve_refuse(e, "invalid_value", "input",
                                   "input: element %zu must be a string or an array of token ids, as the first", i);
        if (yyjson_get_len(v) == 0) return ig_serve_refuse(e, "empty_prompt", "input", "input: element %zu is empty", i);
        if (yyjson_is_arr(v) && !ig_serve_check_ids(v, "input", e)) return false;
    }
    r->n_inputs = (int)n;
    return true;
}

bool ig_serve_embed_parse(ig_chat_request *r, yyjson_val *root, ig_http_error *e) {
    ig_slice format = {"float", 5}, type = {"document", 8};
    int64_t n_dims = 0;
    if (!ig_serve_get_string(root, "model", &r->model, e) || !parse_inputs(r, ig_json_get(root, "input"), e) ||
        !ig_serve_get_string(root, "encoding_format", &format, e) ||
        !ig_serve_get_string(root, "input_type", &type, e) ||
        !ig_serve_get_string(root, "instruction", &r->instruction, e) ||
        !ig_serve_get_int(root, "dimensions", 1, INT_MAX, &n_dims, e) ||
        !ig_serve_get_bool(root, "truncate", &r->truncate, e))
        return false;
    r->base64 = ig_slice_eq_str(format, "base64");
    if (!r->base64 && !ig_slice_eq_str(format, "float"))
        return ig_serve_refuse(e, "invalid_value", "encoding_format", "encoding_format is %.*s; it is float or base64",
                               (int)(format.n < 40 ? format.n : 40), format.p);
    r->is_query = ig_slice_eq_str(type, "query");
    if (!r->is_query && !ig_slice_eq_str(type, "document"))
        return ig_serve_refuse(e, "invalid_value", "input_type", "input_type is %.*s; it is query or document",
                               (int)(type.n < 40 ? type.n : 40), type.p);
    r->dimensions = (int)n_dims;
    return true;
}

/* ---- texts to ids (prep) ---------------------------------------------------------------------------------- */

static bool no_memory(ig_serve_job *job) {
    return ig_serve_refuse(&job->error, "server_error", NULL, "no memory for this request");
}

static bool too_many(ig_serve_job *job, const ig_tokens *ids) {
    if (ids->n < ids->n_max) return no_memory(job);
    return ig_serve_refuse(&job->error, "invalid_value", "input", "input has more than %d tokens in all", TOKENS_MAX);
}

static bool add_ids(ig_serve_job *job, yyjson_val *ids, ig_tokens *out) {
    const uint32_t end = ig_embedding_end(job->s->tokenizer);
    size_t i, n;
    yyjson_val *id;
    uint64_t value = 0;
    yyjson_arr_foreach(ids, i, n, id) {
        bool is_id = ig_serve_token_id(id, &value);
        ig_assert(is_id); /* the parser has looked at all of them */
        if (value >= (uint64_t)job->s->n_vocab)
            return ig_serve_refuse(&job->error, "invalid_value", "input", "input: token id %llu, the vocabulary has %d",
                                   (unsigned long long)value, job->s->n_vocab);
        if (!ig_tokens_add(out, (uint32_t)value)) return too_many(job, out);
    }
    return end == IG_TOKEN_NONE || value == end || ig_tokens_add(out, end) || too_many(job, out);
}

/* Qwen3-Embedding's own words for a query of which nothing else is said. */
static const char default_task[] = "Given a web search query, retrieve relevant passages that answer the query";

static bool add_text(ig_serve_job *job, ig_tokenizer_scratch *scratch, yyjson_val *v, int index, size_t longest,
                     ig_tokens *out) {
    const ig_chat_request *r = &job->req;
    const int n_ctx = job->s->n_ctx;
    const size_t from = out->n;
    ig_err err = {0};
    ig_slice text = {yyjson_get_str(v), yyjson_get_len(v)}, task = r->instruction;
    if (!task.n && r->is_query) task = (ig_slice){default_task, sizeof default_task - 1};
    if (yyjson_is_arr(v)) {
        if (!add_ids(job, v, out)) return false;
    } else {
        if (!r->truncate && text.n / longest >= (size_t)n_ctx) /* refused by its length, before any work */
            return ig_serve_refuse(&job->error, "context_length_exceeded", "input",
                                   "input %d has %zu bytes, so more than %d tokens; shorten it, or send truncate", index,
                                   text.n, n_ctx);
        ig_status st = ig_embedding_encode(job->s->tokenizer, scratch, text, task, out, &err);
        if (st == IG_ELIMIT) return too_many(job, out);
        if (st)
            return ig_serve_refuse(&job->error, st == IG_EINVAL ? "invalid_value" : "server_error", "input", "%.400s",
                                   err.msg);
    }
    const size_t n = out->n - from;
    if (n == 0) return ig_serve_refuse(&job->error, "empty_prompt", "input", "input %d has no tokens", index);
    if (n <= (size_t)n_ctx) return true;
    if (!r->truncate) {
        ig_serve_refuse(&job->error, "context_length_exceeded", "input",
                        "input %d has %zu tokens and the context holds %d; shorten it by %zu or more, or send truncate",
                        index, n, n_ctx, n - (size_t)n_ctx);
        job->error.n_prompt_tokens = (int64_t)n;
        job->error.n_ctx = n_ctx;
        return false;
    }
    out->v[from + (size_t)n_ctx - 1] = out->v[out->n - 1]; /* the last one is what the vector is taken from */
    out->n = from + (size_t)n_ctx;
    return true;
}

/* ---- generations ------------------------------------------------------------------------------------------ */

/* As many as there are places. False: the engine takes none, and none runs. */
static bool submit_more(ig_serve_job *job) {
    ig_serve_embed *m = job->embed;
    ig_err err = {0};
    int n_running = 0;
    for (int i = 0; i < m->n_places; i++) {
        if (!m->running[i].gen && m->next < m->n) {
            const int t = m->next;
            const ig_gen_params p = {.prompt = m->ids.v + m->begin[t],
                                     .n_prompt = (int)(m->begin[t + 1] - m->begin[t]),
                                     .vector = true,
                                     .top_logprobs = -1,
                                     .notify = ig_serve_ring,
                                     .notify_ud = m->slot};
            ig_status st = ig_engine_submit(job->s->engine, &p, &m->running[i].gen, &err);
            if (st == IG_OK) {
                m->running[i].text = m->next++;
            } else {
                m->running[i].gen = NULL;
                for (int k = i + 1; k < m->n_places; k++) n_running += m->running[k].gen != NULL;
                if (n_running) return true; /* when one of them ends it is tried again */
                if (st == IG_EINVAL) return ig_serve_refuse(&job->error, "invalid_value", "input", "%.400s", err.msg);
                int wait_s = ig_serve_retry_after_s(job->s);
                ig_serve_refuse(&job->error, st == IG_ELIMIT ? "queue_full" : "engine_failed", NULL,
                                "%.400s; try again in %d s", err.msg, wait_s);
                job->error.retry_after_s = wait_s;
                return false;
            }
        }
        n_running += m->running[i].gen != NULL;
    }
    return true;
}

bool ig_serve_embed_begin(ig_serve_job *job, ig_tokenizer_scratch *scratch, size_t longest, void *slot) {
    ig_serve *s = job->s;
    const ig_chat_request *r = &job->req;
    const int least = s->width < DIMENSIONS_LEAST ? s->width : DIMENSIONS_LEAST, n_slots = ig_engine_plan_of(s->engine).n_slots;
    if (s->config.pooling == IG_POOLING_NONE)
        return ig_serve_refuse(&job->error, "embeddings_not_supported", NULL,
                               "this model was not made to give vectors: serve one that was, such as Qwen3-Embedding, or "
                               "start the server with --embeddings last or --embeddings mean");
    if (r->dimensions && (r->dimensions < least || r->dimensions > s->width))
        return ig_serve_refuse(&job->error, "invalid_value", "dimensions", "dimensions is %d, limit %d..%d", r->dimensions,
                               least, s->width);
    ig_serve_embed *m = calloc(1, sizeof *m);
    if (!m) return no_memory(job);
    job->embed = m;
    m->slot = slot;
    m->n = r->n_inputs;
    m->n_dims = r->dimensions ? r->dimensions : s->width;
    m->n_places = n_slots > RUNNING_MAX ? RUNNING_MAX : n_slots > 1 ? n_slots - 1 : 1;
    m->begin = calloc((size_t)m->n + 1, sizeof *m->begin);
    m->done = calloc((size_t)m->n, sizeof *m->done);
    m->vectors = calloc((size_t)m->n * (size_t)m->n_dims, sizeof *m->vectors);
    m->ids.n_max = TOKENS_MAX;
    if (!m->begin || !m->done || !m->vectors) return no_memory(job);
    const bool many = yyjson_is_arr(r->inputs) && !yyjson_is_num(yyjson_arr_get_first(r->inputs));
    yyjson_val *v = many ? yyjson_arr_get_first(r->inputs) : r->inputs;
    for (int i = 0; i < m->n; i++, v = many ? unsafe_yyjson_get_next(v) : v) {
        if (!add_text(job, scratch, v, i, longest, &m->ids)) return false;
        m->begin[i + 1] = m->ids.n;
    }
    return ig_buf_add_str(&job->reply, "{\"object\":\"list\",\"data\":[") ? submit_more(job) : no_memory(job);
}

/* ---- the answer (net) --------------------------------------------------------------------------------------- */

static bool put_base64(ig_buf *out, const float *v, int n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n_bytes = (size_t)n * 4;
    if (!ig_buf_add(out, "\"", 1)) return false;
    for (size_t at = 0; at < n_bytes; at += 3) {
        uint32_t three = 0;
        char four[4];
        for (size_t k = 0; k < 3; k++) {
            uint32_t bits = 0;
            if (at + k < n_bytes) memcpy(&bits, &v[(at + k) / 4], sizeof bits);
            three = three << 8 | (bits >> 8 * ((at + k) % 4) & 255u); /* the low byte first, on every machine */
        }
        for (size_t k = 0; k < 4; k++) four[k] = at + k > n_bytes ? '=' : digits[three >> (18 - 6 * k) & 63u];
        if (!ig_buf_add(out, four, 4)) return false;
    }
    return ig_buf_add(out, "\"", 1);
}

/* %.9g brings an f32 back bit for bit. */
static bool put_vector(ig_serve_job *job, int text) {
    const ig_serve_embed *m = job->embed;
    const float *v = m->vectors + (size_t)text * (size_t)m->n_dims;
    ig_buf *out = &job->reply;
    bool ok = ig_buf_addf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", text ? "," : "", text);
    if (job->req.base64) return ok && put_base64(out, v, m->n_dims) && ig_buf_add(out, "}", 1);
    for (int i = 0; ok && i < m->n_dims; i++) ok = ig_buf_addf(out, "%s%.9g", i ? "," : "[", (double)v[i]);
    return ok && ig_buf_add(out, "]}", 2);
}

/* A generation that has ended. False: so has the job. */
static bool take(ig_serve_job *job, int place) {
    ig_serve_embed *m = job->embed;
    ig_gen *g = m->running[place].gen;
    const int text = m->running[place].text;
    const ig_finish how = ig_gen_finish(g);
    float *to = m->vectors + (size_t)text * (size_t)m->n_dims;
    ig_err err = {0};
    int width;
    bool ok = how == IG_FINISH_LENGTH;
    if (ok) {
        memcpy(to, ig_gen_vector(g, &width), (size_t)m->n_dims * sizeof *to);
        ok = ig_embedding_finish(to, m->n_dims, &err) == IG_OK;
        if (!ok) ig_serve_refuse(&job->error, "generation_failed", "input", "input %d: %.400s", text, err.msg);
    } else if (how == IG_FINISH_FAILED) {
        ig_serve_refuse(&job->error, "generation_failed", "input", "input %d: %.400s", text, ig_gen_error(g));
    } else {
        ig_serve_refuse_ending(job->s, &job->error);
    }
    ig_gen_release(g);
    m->running[place].gen = NULL;
    m->done[text] = ok;
    return ok;
}

static void check_waiting(ig_serve_job *job) {
    const ig_serve_embed *m = job->embed;
    const int timeout_s = job->s->config.queue_timeout_s;
    bool begun = m->n_told > 0;
    for (int i = 0; i < m->n_places; i++)
        begun = begun || (m->running[i].gen && ig_gen_state_of(m->running[i].gen) != IG_GEN_QUEUED);
    if (atomic_load(&job->s->ending)) {
        ig_serve_refuse_ending(job->s, &job->error);
        if (atomic_load(&job->s->engine_lost)) job->error.status = 500; /* this one was the engine's */
    } else if (!begun && timeout_s > 0 && ig_clock_ns() - job->started_ns > (uint64_t)timeout_s * 1000000000u) {
        ig_serve_refuse(&job->error, "queue_timeout", NULL, "no place became free in %d seconds", timeout_s);
        job->error.retry_after_s = ig_serve_retry_after_s(job->s);
    }
}

bool ig_serve_embed_pump(ig_serve_job *job) {
    ig_serve_embed *m = job->embed;
    for (int i = 0; i < m->n_places; i++)
        if (m->running[i].gen && ig_gen_finish(m->running[i].gen) != IG_FINISH_NONE && !take(job, i)) return true;
    if (!submit_more(job)) return true;
    while (m->n_told < m->n && m->done[m->n_told])
        if (!put_vector(job, m->n_told++)) {
            no_memory(job);
            return true;
        }
    if (m->n_told < m->n) {
        check_waiting(job);
        return job->error.status != 0;
    }
    bool ok = ig_buf_add_str(&job->reply, "],\"model\":") && ig_serve_put_cstr(&job->reply, job->s->config.model_id) &&
              ig_buf_addf(&job->reply, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", m->ids.n, m->ids.n);
    if (!ok) no_memory(job);
    return true;
}

void ig_serve_embed_free(ig_serve_embed *m) {
    if (!m) return;
    for (int i = 0; i < RUNNING_MAX; i++)
        if (m->running[i].gen) {
            ig_gen_cancel(m->running[i].gen);
            ig_gen_release(m->running[i].gen);
        }
    ig_tokens_free(&m->ids);
    free(m->begin), free(m->done), free(m->vectors), free(m);
}
