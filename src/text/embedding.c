/* embedding: a text as the tokens of which a model makes one vector: a query with its instruction before it, and the
 * token whose row the vector is at the end. Models that pool the last row were trained on an <|endoftext|> there,
 * whether the tokenizer's file adds it or not. */
#include "text/text.h"

uint32_t ig_embedding_end(const ig_tokenizer *t) {
    static const char end_name[] = "<|endoftext|>";
    uint32_t end = ig_tokenizer_find_special(t, (ig_slice){end_name, sizeof end_name - 1});
    int n_eos = 0;
    const uint32_t *eos = ig_tokenizer_eos(t, &n_eos);
    return end == IG_TOKEN_NONE && n_eos > 0 ? eos[0] : end;
}

ig_status ig_embedding_encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text, ig_slice task,
                              ig_tokens *out, ig_err *err) {
    const size_t begun = out->n;
    ig_buf whole = ig_buf_init(text.n + task.n + 64);
    ig_slice all = text;
    ig_status st = IG_OK;
    if (task.n) {
        if (!ig_buf_addf(&whole, "Instruct: %.*s\nQuery:", (int)task.n, task.p) ||
            !ig_buf_add(&whole, text.n ? text.p : "", text.n))
            st = ig_fail(err, IG_ELIMIT, "no memory for a text of %zu bytes", text.n);
        all = (ig_slice){whole.p, whole.n};
    }
    if (!st) st = ig_tokenizer_encode(t, s, all, (ig_encode_options){.add_bos = true}, out, err);
    ig_buf_free(&whole);
    if (st) return st;
    const uint32_t end = ig_embedding_end(t);
    if (end == IG_TOKEN_NONE || (out->n > begun && out->v[out->n - 1] == end)) return IG_OK;
    if (ig_tokens_add(out, end)) return IG_OK;
    out->n = begun;
    return ig_fail(err, IG_ELIMIT, "no memory for a text of %zu bytes", text.n);
}
