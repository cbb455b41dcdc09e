/* fuzz_http: any bytes as the body of a POST, on every route. A request that is understood holds only what
 * its limits allow; one that is not has a status, a code and a message, and all of it is JSON. */
#include "serve/inside.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check_request(ig_chat_request *r) {
    ig_assert(r->n_stops >= 0 && r->n_stops <= IG_SERVE_STOPS_MAX && r->max_tokens >= 0);
    for (int i = 0; i < r->n_stops; i++) ig_assert(r->stops[i].n >= 1 && r->stops[i].n <= IG_STOP_BYTES_MAX);
    ig_assert(r->sampling.temperature >= 0 && r->sampling.temperature <= 5 && r->sampling.top_k >= 0);
    ig_assert(r->sampling.top_p >= 0 && r->sampling.top_p <= 1 && r->sampling.min_p >= 0 &&
              r->sampling.min_p <= 1);
    const ig_sampling *s = &r->sampling;
    ig_assert(s->xtc_threshold >= 0 && s->xtc_threshold <= 0.5 && s->repetition_penalty >= 0);
    ig_assert(s->repetition_context_size >= 0 && s->min_tokens_to_keep >= 0);
    ig_assert(s->n_logit_bias >= 0 && s->n_logit_bias <= IG_LOGIT_BIAS_MAX);
    for (int i = 0; i < s->n_logit_bias; i++)
        ig_assert(s->logit_bias[i].bias >= -100 && s->logit_bias[i].bias <= 100);
    ig_assert(r->top_logprobs >= -1 && r->top_logprobs <= IG_SERVE_LOGPROBS_MAX);
    if (r->kind == IG_SERVE_EMBEDDINGS) ig_assert(r->inputs && r->n_inputs >= 1 && r->n_inputs <= 2048 && r->dimensions >= 0);
    if (r->kind == IG_SERVE_COMPLETION) ig_assert(r->n_prompts >= 1 && r->n_prompts <= IG_SERVE_CHOICES_MAX);
    if (r->kind != IG_SERVE_CHAT && r->kind != IG_SERVE_COUNT && r->kind != IG_SERVE_APPLY_TEMPLATE &&
        !ig_anthropic_is(r->kind))
        return;
    size_t i, n;
    yyjson_val *m;
    ig_assert(yyjson_arr_size(r->messages) >= 1 && yyjson_is_obj(r->kwargs));
    yyjson_arr_foreach(r->messages, i, n, m) {
        ig_assert(yyjson_is_str(yyjson_obj_get(m, "role")) && yyjson_is_str(yyjson_obj_get(m, "content")));
    }
    yyjson_val *repaired = ig_serve_request_repaired(r);
    if (repaired)
        ig_assert(yyjson_arr_size(repaired) >= 1 &&
                  yyjson_arr_size(repaired) <= yyjson_arr_size(r->messages));
}

static void check_refusal(const ig_http_error *e) {
    ig_buf b = ig_buf_init(1 << 16);
    ig_assert(e->status >= 400 && e->status < 600 && e->code && e->type && e->message[0]);
    ig_assert(ig_serve_error_json(&b, e));
    yyjson_doc *doc = yyjson_read(b.p, b.n, 0);
    ig_assert(doc != NULL);
    yyjson_doc_free(doc);
    ig_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const ig_serve_request_defaults defaults = {.sampling = {.temperature = 0.7f}};
    for (int kind = 0; kind < IG_SERVE_N_KINDS; kind++) {
        ig_chat_request r;
        ig_http_error e = {0};
        if (ig_serve_request_parse(&r, (ig_serve_kind)kind, (const char *)p, n, &defaults, &e))
            check_request(&r);
        else
            check_refusal(&e);
        ig_serve_request_clear(&r);
    }
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
