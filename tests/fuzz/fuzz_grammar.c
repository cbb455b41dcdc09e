/* fuzz_grammar: any bytes as a JSON schema, a regex or a Lark grammar, and what is then written in it.
 *
 * Input: a letter (j, s for a strict schema, r, l), the source, a zero byte, bytes that choose among the tokens
 * allowed. A failure says why; every token of a mask is one that the grammar takes. */
#include "text/inside.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { N_TOKENS = 96, STEPS = 64 };

static ig_grammars *grammars(void) {
    static ig_grammars *gs;
    static char names[N_TOKENS][2];
    ig_slice token[N_TOKENS];
    int32_t type[N_TOKENS];
    ig_tokenizer *t = NULL;
    if (gs) return gs;
    for (int i = 0; i < N_TOKENS - 1; i++) {
        names[i][0] = (char)(33 + i);
        token[i] = (ig_slice){names[i], 1};
        type[i] = IG_TYPE_NORMAL;
    }
    token[N_TOKENS - 2] = ig_slice_of("\xc4\xa0"); /* a blank */
    token[N_TOKENS - 1] = ig_slice_of("<end>");
    type[N_TOKENS - 1] = IG_TYPE_CONTROL;
    ig_tokenizer_parts parts = {.model = ig_slice_of("gpt2"), .pre = ig_slice_of("gpt-2"), .tokens = token,
                                .n_tokens = N_TOKENS, .types = type, .n_types = N_TOKENS,
                                .role = {IG_TOKEN_NONE, N_TOKENS - 1, IG_TOKEN_NONE, IG_TOKEN_NONE, IG_TOKEN_NONE,
                                         IG_TOKEN_NONE}};
    ig_assert(ig_tokenizer_make(&t, &parts, NULL) == IG_OK);
    ig_assert(ig_grammars_make(&gs, t, NULL) == IG_OK);
    return gs;
}

static void write_in(ig_grammar *g, const uint8_t *choose, size_t n) {
    ig_guided *guided = NULL;
    const char *why = NULL;
    const uint32_t *mask;
    ig_assert(ig_guided_make(&guided, g, NULL) == IG_OK);
    for (size_t i = 0; (mask = ig_guided_allowed(guided, &why)) && i < n && i < STEPS; i++) {
        uint32_t id = choose[i] % (N_TOKENS - 1), tries = 0;
        while (tries++ < N_TOKENS && !(mask[id / 32] >> (id % 32) & 1)) id = (id + 1) % (N_TOKENS - 1);
        if (tries > N_TOKENS) break; /* the end, or nothing, is left */
        ig_guided_take(guided, id);
    }
    ig_assert(mask || why[0]);
    ig_guided_done(guided);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    if (n < 2) return 0;
    const uint8_t *zero = memchr(p + 1, 0, n - 1);
    ig_slice source = {(const char *)p + 1, zero ? (size_t)(zero - p) - 1 : n - 1};
    ig_grammar_kind kind = *p == 'r'   ? IG_GRAMMAR_REGEX
                           : *p == 'l' ? IG_GRAMMAR_LARK
                                       : IG_GRAMMAR_JSON_SCHEMA;
    ig_grammar *g = NULL;
    ig_buf ignored = ig_buf_init(1 << 20);
    ig_err err = {0};
    if (ig_grammar_make(&g, grammars(), kind, source, *p == 's', &ignored, &err) != IG_OK)
        ig_assert(err.msg[0] && !g && !ignored.n);
    else if (zero)
        write_in(g, zero + 1, n - source.n - 2);
    ig_grammar_free(g);
    ig_buf_free(&ignored);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
