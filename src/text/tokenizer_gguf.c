/* tokenizer_gguf: a tokenizer from the arrays of a GGUF file.
 * Owns:    nothing; what is made owns copies, so the file may be closed.
 * Threads: any.
 * Memory:  malloc, a few bytes a token while it reads. */
#include "text/inside.h"

#include <inttypes.h>
#include <stdlib.h>

static ig_status string_array(const ig_gguf *g, const char *key, ig_gguf_array *a, ig_err *err) {
    ig_status st = ig_gguf_get_array(g, key, a, err);
    if (!st && a->kind != IG_GGUF_STRING) st = ig_fail(err, IG_EFORMAT, "%s: not an array of strings", key);
    return st;
}

/* A key that may be absent: *found says whether it is there. */
static ig_status optional(ig_status st, bool *found) {
    *found = st == IG_OK;
    return st == IG_ENOTFOUND ? IG_OK : st;
}

static ig_status role_ids(const ig_gguf *g, ig_tokenizer_parts *parts, ig_err *err) {
    static const char *const key[IG_ROLE_COUNT] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"};
    for (int i = 0; i < IG_ROLE_COUNT; i++) {
        bool found;
        ig_status st = optional(ig_gguf_get_u64(g, key[i], &parts->role[i], err), &found);
        if (st) return st;
        if (!found || parts->role[i] == IG_TOKEN_NONE) parts->role[i] = IG_TOKEN_NONE;
    }
    return IG_OK;
}

/* Per-token arrays: as many as there are tokens. NULL: the file has none. */
static ig_status types_of(const ig_gguf *g, uint64_t n, int32_t **out, ig_err *err) {
    ig_gguf_array a;
    bool found;
    ig_status st = optional(ig_gguf_get_array(g, "tokenizer.ggml.token_type", &a, err), &found);
    if (st || !found) return st;
    if (a.kind != IG_GGUF_I32 && a.kind != IG_GGUF_U32)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.token_type: not an array of 32-bit integers");
    if (a.n != n)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.token_type: %" PRIu64 " for %" PRIu64 " tokens", a.n,
                       n);
    int32_t *type = malloc((n ? n : 1) * sizeof *type);
    if (!type) return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for %" PRIu64 " types", n);
    for (uint64_t i = 0; i < n; i++) type[i] = (int32_t)ig_gguf_array_u64(&a, i);
    *out = type;
    return IG_OK;
}

static ig_status scores_of(const ig_gguf *g, uint64_t n, bool wanted, float **out, ig_err *err) {
    ig_gguf_array a;
    bool found;
    ig_status st = optional(ig_gguf_get_array(g, "tokenizer.ggml.scores", &a, err), &found);
    if (!st && !found && wanted) st = ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores is missing");
    if (st || !found) return st;
    if (a.n != n)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores: %" PRIu64 " for %" PRIu64 " tokens", a.n, n);
    if (!wanted) return IG_OK;
    if (a.kind != IG_GGUF_F32)
        return ig_fail(err, IG_EFORMAT, "tokenizer.ggml.scores: not an array of 32-bit floats");
    float *score = malloc((n ? n : 1) * sizeof *score);
    if (!score) return ig_fail(err, IG_ELIMIT, "tokenizer: no memory for %" PRIu64 " scores", n);
    for (uint64_t i = 0; i < n; i++) score[i] = (float)ig_gguf_array_f64(&a, i);
    *out = score;
    return IG_OK;
}

static ig_status flag(const ig_gguf *g, const char *key, bool otherwise, bool *out, ig_err *err) {
    bool found;
    ig_status st = optional(ig_gguf_get_bool(g, key, out, err), &found);
    if (!st && !found) *out = otherwise;
    return st;
}

static ig_status from_gguf(ig_tokenizer **out, const ig_gguf *g, ig_err *err) {
    ig_tokenizer_parts parts = {0};
    ig_gguf_array tokens, merges;
    int32_t *type = NULL;
    float *score = NULL;
    ig_status st;

    if ((st = ig_gguf_get_string(g, "tokenizer.ggml.model", &parts.model, err))) return st;
    bool by_score = ig_slice_eq_str(parts.model, "llama"), gpt2 = ig_slice_eq_str(parts.model, "gpt2");
    bool gemma4 = ig_slice_eq_str(parts.model, "gemma4");
    if (!by_score && !gpt2 && !gemma4) return ig_tokenizer_make(out, &parts, err); /* refuses it */
    if ((st = string_array(g, "tokenizer.ggml.tokens", &tokens, err))) return st;
    parts.tokens = tokens.strings;
    parts.n_tokens = tokens.n;
    if (gpt2) {
        bool found;
        if ((st = optional(ig_gguf_get_string(g, "tokenizer.ggml.pre", &parts.pre, err), &found))) return st;
        if (!found) { /* files from before there was such a key */
            ig_log(IG_LOG_WARN, "tokenizer.pre missing=tokenizer.ggml.pre taken=default words=may_differ");
            parts.pre = ig_slice_of("default");
        }
    }
    if (!by_score) {
        if ((st = string_array(g, "tokenizer.ggml.merges", &merges, err))) return st;
        parts.merges = merges.strings;
        parts.n_merges = merges.n;
    }
    if ((st = role_ids(g, &parts, err))) return st;
    if (by_score) { /* what the format says where the file does not */
        static const uint32_t usual[IG_ROLE_COUNT] = {1, 2, IG_TOKEN_NONE, IG_TOKEN_NONE, 0, IG_TOKEN_NONE};
        for (int i = 0; i < IG_ROLE_COUNT; i++)
            if (parts.role[i] == IG_TOKEN_NONE && usual[i] < tokens.n) parts.role[i] = usual[i];
    }
    bool adds = by_score || ig_slice_eq_str(parts.pre, "llama-bpe") || ig_slice_eq_str(parts.pre, "llama3") ||
                ig_slice_eq_str(parts.pre, "llama-v3") || ig_slice_eq_str(parts.pre, "tekken");
    if ((st = flag(g, "tokenizer.ggml.add_bos_token", adds, &parts.add_bos, err))) return st;
    parts.add_bos |= gemma4; /* the first files say false, and the model is lost without it */
    if ((st = flag(g, "tokenizer.ggml.add_eos_token", false, &parts.add_eos, err))) return st;
    if ((st = flag(g, "tokenizer.ggml.add_space_prefix", by_score, &parts.add_space_prefix, err))) return st;
    st = types_of(g, tokens.n, &type, err);
    if (!st) st = scores_of(g, tokens.n, by_score, &score, err);
    parts.types = type;
    parts.n_types = type ? tokens.n : 0;
    parts.scores = score;
    parts.n_scores = score ? tokens.n : 0;
    if (!st) st = ig_tokenizer_make(out, &parts, err);
    free(type);
    free(score);
    return st;
}

ig_status ig_tokenizer_from_gguf(ig_tokenizer **out, const ig_gguf *g, ig_err *err) {
    ig_status st = from_gguf(out, g, err);
    if (st != IG_ENOTFOUND) return st;
    if (err) err->code = IG_EFORMAT; /* the file is there; a key that it needs is not */
    return IG_EFORMAT;
}
