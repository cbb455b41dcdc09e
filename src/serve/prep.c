/* prep: the body of a request becomes a generation in the engine, on a thread of its own.
 * Owns:    the prep thread and its tokenizer scratch.
 * Threads: push from net; the rest is the prep thread's. A job is this thread's from push to `prepared`.
 * Memory:  bounded by the body and by TOKENS_MAX.
 * Everything that can be refused is refused here, before the first byte of an answer. One thread: rendering
 * and tokenizing a full context takes milliseconds, and requests stay in order. A text that cannot fit is
 * refused by its length, before anything is done with it: nobody waits for what will be refused. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/inside.h"

enum {
    TOKENS_MAX = 1 << 20,
    PROMPT_MAX_BYTES = 64 * 1024 * 1024,
    TOKENIZE_MAX_BYTES = 1024 * 1024,
    COMPLETION_TOKENS = 512,
    CHAT_TOKENS = 65536,
    EOS_MAX = 16
};

struct ig_serve_prep {
    ig_serve *s;
    ig_queue *queue; /* of ig_serve_conn * */
    ig_tokenizer_scratch *scratch;
    size_t longest; /* bytes of the longest token: n_ctx of them is the longest text that can fit */
    pthread_t thread;
};

/* ---- text to tokens ------------------------------------------------------------------------------------ */

static bool refuse_limit(ig_serve_job *job, size_t n_tokens, const char *param) {
    int n_ctx = job->s->n_ctx;
    ig_serve_refuse(&job->error, "context_length_exceeded", param,
                    "the prompt has %s%zu tokens and the context holds %d, one of them for the answer; "
                    "shorten it by %zu or more",
                    n_tokens >= TOKENS_MAX ? "at least " : "", n_tokens, n_ctx, n_tokens - (size_t)n_ctx + 1);
    job->error.n_prompt_tokens = (int64_t)n_tokens;
    job->error.n_ctx = n_ctx;
    return false;
}

static bool fits(const ig_serve_prep *p, ig_serve_job *job, size_t n_bytes, const char *param) {
    if (n_bytes / p->longest < (size_t)job->s->n_ctx) return true;
    size_t least = n_bytes / p->longest + 1;
    ig_serve_refuse(&job->error, "context_length_exceeded", param,
                    "the prompt has %zu bytes, so at least %zu tokens, and the context holds %d; shorten it",
                    n_bytes, least, job->s->n_ctx);
    job->error.n_prompt_tokens = (int64_t)least;
    job->error.n_ctx = job->s->n_ctx;
    return false;
}

/* Every message is a token at least, and its text as many as its bytes need. */
static bool messages_fit(const ig_serve_prep *p, ig_serve_job *job) {
    size_t i, n, n_bytes = 0;
    yyjson_val *message;
    if (yyjson_arr_size(job->req.messages) > (size_t)job->s->n_ctx)
        return ig_serve_refuse(&job->error, "context_length_exceeded", "messages",
                               "there are %zu messages and the context holds %d tokens",
                               yyjson_arr_size(job->req.messages), job->s->n_ctx);
    yyjson_arr_foreach(job->req.messages, i, n, message) n_bytes +=
        yyjson_get_len(ig_json_get(message, "content"));
    return fits(p, job, n_bytes, "messages");
}

static bool encode(ig_serve_prep *p, ig_serve_job *job, ig_slice text, ig_encode_options opt, ig_tokens *out,
                   const char *param) {
    ig_err err = {0};
    out->n_max = TOKENS_MAX;
    ig_status st = ig_tokenizer_encode(job->s->tokenizer, p->scratch, text, opt, out, &err);
    if (st == IG_OK) return true;
    if (st == IG_ELIMIT && text.n >= TOKENS_MAX) return refuse_limit(job, TOKENS_MAX, param);
    return ig_serve_refuse(&job->error, st == IG_EINVAL ? "invalid_value" : "server_error", param, "%.400s",
                           err.msg);
}

/* As the template wants it, then without the member that it may not know, then with repaired roles. */
static bool render(ig_serve_job *job, ig_buf *text, ig_text_range **plain, size_t *n_plain) {
    ig_chat_request *r = &job->req;
    ig_err err = {0};
    if (!job->s->template)
        return ig_serve_refuse(
            &job->error, "template_error", NULL,
            "this model has no chat template: start the server with --chat-template FILE, or "
            "let it go on with a text through /v1/completions");
    ig_chat_input in = {.messages = r->messages,
                        .kwargs = r->kwargs,
                        .add_generation_prompt = !r->continue_final,
                        .continue_final = r->continue_final,
                        .now_s = job->created_s};
    ig_status st = ig_chat_render(job->s->template, job->s->tokenizer, &in, text, plain, n_plain, &err);
    if (st != IG_OK && r->has_effort) {
        in.kwargs = NULL;
        ig_buf_clear(text);
        st = ig_chat_render(job->s->template, job->s->tokenizer, &in, text, plain, n_plain, NULL);
        if (st != IG_OK) in.kwargs = r->kwargs;
    }
    if (st != IG_OK && (in.messages = ig_serve_request_repaired(r)) != NULL) {
        ig_buf_clear(text);
        st = ig_chat_render(job->s->template, job->s->tokenizer, &in, text, plain, n_plain, NULL);
    }
    if (st != IG_OK) return ig_serve_refuse(&job->error, "template_error", "messages", "%.400s", err.msg);
    return true;
}

/* The template writes BOS itself where the model wants one. */
static bool chat_tokens(ig_serve_prep *p, ig_serve_job *job, ig_tokens *out) {
    ig_buf text = ig_buf_init(PROMPT_MAX_BYTES);
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    bool ok =
        messages_fit(p, job) && render(job, &text, &plain, &n_plain) && fits(p, job, text.n, "messages") &&
        encode(
            p, job, (ig_slice){text.n ? text.p : "", text.n},
            (ig_encode_options){.parse_special = true, .plain = plain, .n_plain = n_plain},
            out, "messages");
    free(plain);
    ig_buf_free(&text);
    return ok;
}

static bool ids_to_tokens(ig_serve_job *job, yyjson_val *ids, ig_tokens *out, const char *param) {
    size_t i, n;
    yyjson_val *id;
    yyjson_arr_foreach(ids, i, n, id) {
        uint64_t value = 0;
        bool is_id = ig_serve_token_id(id, &value);
        ig_assert(is_id); /* the parser has looked at all of them */
        if (value >= (uint64_t)job->s->n_vocab)
            return ig_serve_refuse(&job->error, "invalid_value", param,
                                   "%s: token id %llu, the vocabulary has %d", param,
                                   (unsigned long long)value, job->s->n_vocab);
        if (!ig_tokens_add(out, (uint32_t)value))
            return ig_serve_refuse(&job->error, "server_error", NULL, "no memory for this request");
    }
    return true;
}

static bool prompt_tokens(ig_serve_prep *p, ig_serve_job *job, int index, ig_tokens *out) {
    if (job->kind != IG_SERVE_COMPLETION) return chat_tokens(p, job, out);
    yyjson_val *prompt = job->req.prompts[index];
    if (yyjson_is_arr(prompt)) return ids_to_tokens(job, prompt, out, "prompt");
    ig_slice text = {yyjson_get_str(prompt), yyjson_get_len(prompt)};
    if (text.n == 0) { /* the start of any text, if the model has a token for that */
        uint32_t bos = ig_tokenizer_bos(job->s->tokenizer);
        return (bos != IG_TOKEN_NONE && ig_tokens_add(out, bos)) ||
               ig_serve_refuse(&job->error, "empty_prompt", "prompt", "prompt is empty");
    }
    return fits(p, job, text.n, "prompt") &&
           encode(p, job, text, (ig_encode_options){.add_bos = true, .parse_special = true}, out, "prompt");
}

/* ---- generations --------------------------------------------------------------------------------------- */

/* A name that is not ours is served all the same, and the answer says by what. */
static bool names_us(const ig_serve *s, ig_slice model) {
    static const char *const any[] = {"", "local", "default"};
    if (!model.p) return true;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        if (ig_slice_eq_str(model, any[i])) return true;
    return ig_slice_eq_str(model, s->config.model_id);
}

int ig_serve_retry_after_s(ig_serve *s) {
    ig_engine_stats st = ig_engine_stats_of(s->engine);
    uint64_t us = atomic_load(&s->mean_job_us) * (uint64_t)(st.n_queued + 1) /
                  (uint64_t)(st.n_slots > 0 ? st.n_slots : 1);
    uint64_t whole = us / 1000000 + 1;
    return whole > 600 ? 600 : (int)whole;
}

static bool submit(ig_serve_conn *c, ig_serve_job *job, int index, const ig_tokens *prompt) {
    ig_serve *s = job->s;
    ig_chat_request *r = &job->req;
    ig_serve_choice *choice = &job->choices[index];
    ig_err err = {0};
    const char *param = job->kind == IG_SERVE_COMPLETION ? "prompt" : "messages";
    if (prompt->n == 0)
        return ig_serve_refuse(&job->error, "empty_prompt", param, "the prompt has no tokens");
    if (prompt->n >= (size_t)s->n_ctx) return refuse_limit(job, prompt->n, param);

    for (int i = 0; i < r->sampling.n_logit_bias; i++)
        if (r->sampling.logit_bias[i].id >= (uint32_t)s->n_vocab)
            return ig_serve_refuse(&job->error, "invalid_value", "logit_bias",
                                   "logit_bias is for token %u, the vocabulary has %d",
                                   r->sampling.logit_bias[i].id, s->n_vocab);
    int n_eos;
    const uint32_t *eos = ig_tokenizer_eos(s->tokenizer, &n_eos);
    int most = r->max_tokens                      ? r->max_tokens
               : s->config.default_max_tokens > 0 ? s->config.default_max_tokens
               : job->kind == IG_SERVE_COMPLETION ? COMPLETION_TOKENS
                                                  : CHAT_TOKENS;
    int room = s->n_ctx - (int)prompt->n;
    ig_gen_params params = {
        .prompt = prompt->v,
        .n_prompt = (int)prompt->n,
        .max_tokens = most < room ? most : room,
        .sampling = r->sampling,
        .eos = eos,
        .n_eos = n_eos < EOS_MAX ? n_eos : EOS_MAX,
        .use_prefix_cache = r->cache_prompt,
        .top_logprobs = r->logprobs == IG_SERVE_LOGPROBS_NONE ? -1 : r->top_logprobs,
        .notify = ig_serve_ring,
        .notify_ud = ig_serve_ring_slot(s->watch, c->index),
    };
    uint32_t breaks[IG_XTC_SPECIAL_MAX];
    if (r->sampling.xtc_probability > 0) {
        params.sampling.xtc_special = breaks;
        params.sampling.n_xtc_special = ig_tokenizer_breaks(s->tokenizer, breaks, IG_XTC_SPECIAL_MAX);
    }
    choice->max_tokens = params.max_tokens;
    choice->detok = ig_detok_init(s->tokenizer);
    if (r->n_stops && ig_stop_make(&choice->stop, r->stops, r->n_stops, &err) != IG_OK)
        return ig_serve_refuse(&job->error, "invalid_value", "stop", "%.400s", err.msg);
    ig_status st = ig_engine_submit(s->engine, &params, &choice->gen, &err);
    if (st == IG_OK) return true;
    choice->gen = NULL;
    if (st == IG_EINVAL) return ig_serve_refuse(&job->error, "invalid_value", NULL, "%.400s", err.msg);
    int wait_s = ig_serve_retry_after_s(s);
    ig_serve_refuse(&job->error, st == IG_ELIMIT ? "queue_full" : "engine_failed", NULL,
                    "%.400s; try again in %d s", err.msg, wait_s);
    job->error.retry_after_s = wait_s;
    return false;
}

static bool start(ig_serve_prep *p, ig_serve_conn *c, ig_serve_job *job) {
    ig_chat_request *r = &job->req;
    job->substituted = !names_us(job->s, r->model);
    if (!r->has_seed)
        r->sampling.seed = ig_rng_fresh_seed() >> 10; /* 53 bits: a page can send it back unharmed */
    for (int i = 0; i < r->n_stops; i++) { /* a stop that is a special token's text never shows up as text */
        uint32_t id = ig_tokenizer_find_special(job->s->tokenizer, r->stops[i]);
        job->stop_ids[i] = id == IG_TOKEN_NONE ? -1 : (int)id;
    }
    int n = job->kind == IG_SERVE_COMPLETION ? r->n_prompts : 1;
    for (int i = 0; i < n; i++) {
        ig_tokens prompt = {0};
        if (atomic_load(&c->flags) & IG_CONN_GONE) return false; /* nobody waits for the rest of them */
        bool ok = prompt_tokens(p, job, i, &prompt) && submit(c, job, i, &prompt);
        ig_tokens_free(&prompt);
        if (!ok) return false; /* those that were submitted are cancelled with the job */
    }
    job->n_choices = n;
    job->submitted_ns = ig_clock_ns();
    ig_serve_log_accepted(c, job);
    return true;
}

/* ---- helper routes ------------------------------------------------------------------------------------- */

static bool count(ig_serve_prep *p, ig_serve_job *job) {
    ig_tokens tokens = {0};
    bool ok = chat_tokens(p, job, &tokens);
    ok = ok &&
         (ig_buf_addf(&job->reply,
                      job->kind == IG_SERVE_COUNT
                          ? "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}"
                          : "{\"input_tokens\":%zu}",
                      tokens.n) ||
          ig_serve_refuse(&job->error, "server_error", NULL, "no memory for the answer"));
    ig_tokens_free(&tokens);
    return ok;
}

static bool apply_template(ig_serve_prep *p, ig_serve_job *job) {
    ig_buf text = ig_buf_init(PROMPT_MAX_BYTES);
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    bool ok = messages_fit(p, job) && render(job, &text, &plain, &n_plain);
    ok = ok && ((ig_buf_add_str(&job->reply, "{\"prompt\":") &&
                 ig_serve_put_string(&job->reply, text.n ? text.p : "", text.n) &&
                 ig_buf_add_str(&job->reply, "}")) ||
                ig_serve_refuse(&job->error, "server_error", NULL, "no memory for the answer"));
    free(plain);
    ig_buf_free(&text);
    return ok;
}

/* A piece is a text, or its bytes where it is a part of a character: so the pieces joined are the text. */
static bool put_piece(ig_buf *out, ig_slice bytes) {
    bool ok = true;
    if (ig_slice_utf8_valid(bytes, NULL)) return ig_serve_put_string(out, bytes.p, bytes.n);
    for (size_t i = 0; ok && i < bytes.n; i++) ok = ig_buf_addf(out, "%s%u", i ? "," : "[", (uint8_t)bytes.p[i]);
    return ok && ig_buf_add(out, "]", 1);
}

static bool put_tokens(ig_serve_job *job, const ig_tokens *tokens) {
    ig_buf *out = &job->reply;
    bool ok = ig_buf_add_str(out, "{\"tokens\":[");
    for (size_t i = 0; ok && i < tokens->n; i++) {
        if (i) ok = ig_buf_add(out, ",", 1);
        if (!job->req.with_pieces)
            ok = ok && ig_buf_addf(out, "%u", tokens->v[i]);
        else
            ok = ok && ig_buf_addf(out, "{\"id\":%u,\"piece\":", tokens->v[i]) &&
                 put_piece(out, ig_tokenizer_bytes(job->s->tokenizer, tokens->v[i])) && ig_buf_add(out, "}", 1);
    }
    return ok && ig_buf_add_str(out, "]}");
}

static bool tokenize(ig_serve_prep *p, ig_serve_job *job) {
    ig_tokens tokens = {0};
    ig_encode_options opt = {.add_bos = job->req.add_special, .parse_special = job->req.parse_special};
    if (job->req.text.n > TOKENIZE_MAX_BYTES)
        return ig_serve_refuse(&job->error, "invalid_value", "content",
                               "content has %zu bytes, at most %d are taken", job->req.text.n,
                               TOKENIZE_MAX_BYTES);
    bool ok = encode(p, job, job->req.text, opt, &tokens, "content");
    if (!ok && job->error.n_ctx) /* no context is meant here, only our own bound */
        ig_serve_refuse(&job->error, "invalid_value", "content", "content has more than %d tokens",
                        TOKENS_MAX);
    ok = ok && (put_tokens(job, &tokens) ||
                ig_serve_refuse(&job->error, "server_error", NULL, "no memory for the answer"));
    ig_tokens_free(&tokens);
    return ok;
}

static bool detokenize(ig_serve_job *job) {
    ig_tokens tokens = {0};
    ig_buf text = ig_buf_init(PROMPT_MAX_BYTES);
    ig_detok d = ig_detok_init(job->s->tokenizer);
    d.show_special = true;
    bool ok = ids_to_tokens(job, job->req.tokens, &tokens, "tokens");
    if (ok) {
        for (size_t i = 0; ok && i < tokens.n; i++) ok = ig_detok_add(&d, tokens.v[i], &text);
        ok = ok && ig_detok_finish(&d, &text) && ig_buf_add_str(&job->reply, "{\"content\":") &&
             ig_serve_put_string(&job->reply, text.n ? text.p : "", text.n) &&
             ig_buf_add_str(&job->reply, "}");
        if (!ok) ig_serve_refuse(&job->error, "server_error", NULL, "no memory for the answer");
    }
    ig_buf_free(&text);
    ig_tokens_free(&tokens);
    return ok;
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void prepare(ig_serve_prep *p, ig_serve_conn *c) {
    ig_serve_job *job = c->job;
    ig_serve_request_defaults d = {.sampling = p->s->config.sampling, .seed_fixed = p->s->config.seed_fixed};
    if (atomic_load(&c->flags) & IG_CONN_GONE)
        return; /* nobody waits: the net thread will see the same flag */
    if (atomic_load(&p->s->draining)) {
        ig_serve_refuse_ending(p->s, &job->error);
        return;
    }
    if (!ig_serve_request_parse(&job->req, job->kind, job->body.p, job->body.n, &d, &job->error)) return;
    switch (job->kind) {
    case IG_SERVE_CHAT:
    case IG_SERVE_MESSAGES:
    case IG_SERVE_COMPLETION: start(p, c, job); break;
    case IG_SERVE_MESSAGES_COUNT:
    case IG_SERVE_COUNT: count(p, job); break;
    case IG_SERVE_APPLY_TEMPLATE: apply_template(p, job); break;
    case IG_SERVE_TOKENIZE: tokenize(p, job); break;
    case IG_SERVE_DETOKENIZE: detokenize(job); break;
    case IG_SERVE_EMBEDDINGS:
        job->substituted = !names_us(job->s, job->req.model);
        ig_serve_embed_begin(job, p->scratch, p->longest, ig_serve_ring_slot(p->s->watch, c->index));
        break;
    case IG_SERVE_N_KINDS: break;
    }
}

static void *prep_main(void *arg) {
    ig_serve_prep *p = arg;
    ig_serve_conn *c;
    while (ig_queue_pop(p->queue, &c, -1)) {
        void *slot = ig_serve_ring_slot(p->s->watch, c->index);
        prepare(p, c);
        atomic_store(&c->job->prepared, true);
        atomic_fetch_and(&c->flags, ~(uint32_t)IG_CONN_HELD); /* from here on the job may be freed */
        ig_serve_ring(slot);
    }
    return NULL;
}

bool ig_serve_prep_push(ig_serve_prep *p, ig_serve_conn *c) {
    return ig_queue_push(p->queue, &c);
}

ig_status ig_serve_prep_start(ig_serve_prep **out, ig_serve *s, int n_max, ig_err *err) {
    ig_status st = IG_OK;
    ig_serve_prep *p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "no memory for the prep thread");
    p->s = s;
    p->longest = 1;
    for (uint32_t id = 0; id < ig_tokenizer_n_vocab(s->tokenizer); id++) {
        size_t n_bytes = ig_tokenizer_bytes(s->tokenizer, id).n;
        if (n_bytes > p->longest) p->longest = n_bytes;
    }
    p->scratch = ig_tokenizer_scratch_make();
    if (!p->scratch) {
        st = ig_fail(err, IG_ELIMIT, "no memory for the tokenizer");
        goto fail;
    }
    st = ig_queue_make(&p->queue, n_max, sizeof(ig_serve_conn *), err);
    if (st != IG_OK) goto fail;
    int code = pthread_create(&p->thread, NULL, prep_main, p);
    if (code) {
        st = ig_fail(err, IG_EIO, "start the prep thread: %s", strerror(code));
        goto fail;
    }
    *out = p;
    return IG_OK;
fail:
    if (p->queue) ig_queue_free(p->queue);
    ig_tokenizer_scratch_free(p->scratch);
    free(p);
    return st;
}

void ig_serve_prep_stop(ig_serve_prep *p) {
    if (!p) return;
    ig_queue_close(p->queue);
    pthread_join(p->thread, NULL);
    ig_queue_free(p->queue);
    ig_tokenizer_scratch_free(p->scratch);
    free(p);
}
