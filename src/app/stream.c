/* stream: messages to tokens, and one generation to text as it comes.
 * Threads: the caller's; the engine runs beside it and is only read.
 * Memory:  malloc, bounded by the text. */
#include "app/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS = 50 * 1000 * 1000, TEXT_BYTES_MAX = 1 << 20 };

/* ---- prompts ------------------------------------------------------------------------------------------- */

static yyjson_doc *messages_doc(const ig_message *v, int n) {
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *list = yyjson_mut_arr(doc);
    yyjson_mut_doc_set_root(doc, list);
    for (int i = 0; i < n; i++) {
        yyjson_mut_val *m = yyjson_mut_arr_add_obj(doc, list);
        yyjson_mut_obj_add_str(doc, m, "role", v[i].role);
        yyjson_mut_obj_add_strn(doc, m, "content", v[i].content.n ? v[i].content.p : "", v[i].content.n);
    }
    yyjson_doc *done = lost ? NULL : yyjson_mut_doc_imut_copy(doc, NULL);
    yyjson_mut_doc_free(doc);
    return done;
}

static ig_status with_messages(const ig_loaded *l, const ig_message *v, int n, yyjson_doc **doc,
                               ig_chat_input *in, ig_err *err) {
    if (!l->chat) {
        if (err) *err = l->chat_err;
        return l->chat_err.code;
    }
    for (int i = 0; i < n; i++) {
        size_t bad;
        if (!ig_slice_utf8_valid(v[i].content, &bad))
            return ig_fail(err, IG_EINVAL, "the %s text is not valid UTF-8 at byte %zu", v[i].role, bad);
    }
    *doc = messages_doc(v, n);
    if (!*doc) return ig_fail(err, IG_ELIMIT, "no memory for %d messages", n);
    *in = (ig_chat_input){.messages = yyjson_doc_get_root(*doc),
                          .add_generation_prompt = true,
                          .now_s = (int64_t)time(NULL)};
    return IG_OK;
}

ig_status ig_messages_encode(const ig_loaded *l, const ig_message *v, int n, ig_tokens *out, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_chat_input in;
    ig_status st = with_messages(l, v, n, &doc, &in, err);
    if (!st) st = ig_chat_encode(l->chat, l->tokenizer, NULL, &in, out, err);
    yyjson_doc_free(doc);
    return st;
}

ig_status ig_messages_render(const ig_loaded *l, const ig_message *v, int n, ig_buf *out, ig_err *err) {
    yyjson_doc *doc = NULL;
    ig_text_range *plain = NULL;
    size_t n_plain = 0;
    ig_chat_input in;
    ig_status st = with_messages(l, v, n, &doc, &in, err);
    if (!st) st = ig_chat_render(l->chat, l->tokenizer, &in, out, &plain, &n_plain, err);
    free(plain);
    yyjson_doc_free(doc);
    return st;
}

ig_status ig_text_encode(const ig_loaded *l, ig_slice text, ig_tokens *out, ig_err *err) {
    return ig_tokenizer_encode(l->tokenizer, NULL, text, (ig_encode_options){.add_bos = true}, out, err);
}

/* ---- one generation ------------------------------------------------------------------------------------ */

typedef struct stream {
    const ig_stream *s;
    ig_stop *stop;
    ig_detok detok;
    ig_buf decoded, out; /* what the tokens say; what may be shown of it */
    int matched;         /* stop string, -1 none */
    bool refused;        /* the caller wants no more */
    bool no_memory;
} stream;

static bool give(stream *r) {
    bool go = r->out.n == 0 || r->s->text(r->s->ud, (ig_slice){r->out.p, r->out.n});
    ig_buf_clear(&r->out);
    if (!go) r->refused = true;
    return go;
}

/* False: enough, by a stop string or by the caller. */
static bool feed(stream *r) {
    int which;
    ig_slice text = {r->decoded.p, r->decoded.n};
    r->no_memory = r->no_memory || !ig_buf_reserve(&r->out, text.n + IG_STOP_BYTES_MAX);
    if (r->no_memory) return false;
    bool stopped = text.n && ig_stop_feed(r->stop, text, &r->out, &which);
    ig_buf_clear(&r->decoded);
    if (stopped) r->matched = which;
    return give(r) && !stopped;
}

/* Follows the generation to its end, or to a reason of ours to end it. */
static void follow(stream *r, ig_gen *g) {
    int n_seen = 0;
    for (;;) {
        ig_gen_wait(g, n_seen, POLL_NS);
        ig_finish finish = ig_gen_finish(g); /* before the count: with a finish the count is final */
        for (int n = ig_gen_n_tokens(g); n_seen < n; n_seen++) {
            r->no_memory = !ig_detok_add(&r->detok, ig_gen_token(g, n_seen), &r->decoded);
            if (!feed(r)) return;
        }
        if (finish != IG_FINISH_NONE) break;
        if (r->s->interrupted && *r->s->interrupted) break; /* what was held back is still shown */
    }
    r->no_memory = !ig_detok_finish(&r->detok, &r->decoded);
    if (!feed(r)) return;
    ig_stop_finish(r->stop, &r->out);
    give(r);
}

ig_status ig_stream_run(const ig_loaded *l, const ig_stream *s, ig_stream_result *out, ig_err *err) {
    ig_gen *g = NULL;
    uint64_t started_ns = ig_clock_ns();
    stream r = {.s = s,
                .detok = ig_detok_init(l->tokenizer),
                .decoded = ig_buf_init(TEXT_BYTES_MAX),
                .out = ig_buf_init(TEXT_BYTES_MAX),
                .matched = -1};
    ig_gen_params p = {.prompt = s->prompt,
                       .n_prompt = s->n_prompt,
                       .max_tokens = s->max_tokens > 0 ? s->max_tokens : l->plan.n_ctx,
                       .sampling = s->sampling,
                       .use_prefix_cache = true,
                       .top_logprobs = -1};
    uint32_t breaks[IG_XTC_SPECIAL_MAX];
    p.eos = ig_tokenizer_eos(l->tokenizer, &p.n_eos);
    if (s->sampling.xtc_probability > 0) {
        p.sampling.xtc_special = breaks;
        p.sampling.n_xtc_special = ig_tokenizer_breaks(l->tokenizer, breaks, IG_XTC_SPECIAL_MAX);
    }

    ig_status st = ig_stop_make(&r.stop, s->stops, s->n_stops, err);
    if (st) goto out;
    if ((st = ig_engine_submit(l->engine, &p, &g, err))) goto out;
    follow(&r, g);
    ig_finish finish = ig_gen_finish(g);
    if (finish == IG_FINISH_NONE) {
        ig_gen_cancel(g);
        /* Wakes for every token that still comes; the end is at most a step away. */
        while (ig_gen_finish(g) == IG_FINISH_NONE) ig_gen_wait(g, ig_gen_n_tokens(g), POLL_NS);
        finish = r.matched >= 0 ? IG_FINISH_STOP : IG_FINISH_CANCELED;
    } else if (r.matched >= 0) {
        finish = IG_FINISH_STOP;
    }
    if (r.no_memory) {
        st = ig_fail(err, IG_ELIMIT, "no memory for the answer");
        goto out;
    }
    if (finish == IG_FINISH_FAILED) {
        st = ig_fail(err, IG_EIO, "%s", ig_gen_error(g));
        goto out;
    }
    *out = (ig_stream_result){.finish = finish,
                              .stop = r.matched,
                              .stats = ig_gen_stats_of(g),
                              .total_ns = ig_clock_ns() - started_ns};
out:
    if (g) ig_gen_release(g);
    ig_stop_free(r.stop);
    ig_buf_free(&r.decoded);
    ig_buf_free(&r.out);
    return st;
}

void ig_stream_say_cut(const ig_loaded *l, int max_tokens, const ig_stream_result *r) {
    fflush(stdout);
    if (max_tokens && r->stats.n_tokens >= max_tokens)
        fprintf(stderr, "ingle: cut at %d token%s; -n N allows more, -n 0 what the context holds\n", max_tokens,
                max_tokens == 1 ? "" : "s");
    else
        fprintf(stderr, "ingle: cut where the context of %d tokens was full\n", l->plan.n_ctx);
}
