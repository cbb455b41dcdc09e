/* pretok: text to words. BPE merges inside a word only, so this decides what merges may happen.
 * Owns:    the compiled pattern of one tokenizer.
 * Threads: read-only; the match data and the JIT stack are the caller's scratch.
 * Memory:  PCRE2's, small and fixed.
 * Why the white space is spelt out: \s of PCRE2 also takes U+180E, which the tokenizers' own engine does
 * not. Why one pattern for smollm: its two steps (every digit alone, then GPT-2's pattern on what lies
 * between) are the same as one pattern that takes digits first and looks for them after blanks. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/inside.h"

#include <pcre2.h>
#include <stdlib.h>

struct ig_pretok {
    const struct rule *rule;
    pcre2_code *code;
    bool jit;
};

struct ig_pretok_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

enum { JIT_STACK_MIN_BYTES = 32 * 1024, JIT_STACK_MAX_BYTES = 1024 * 1024 };

/* White_Space of Unicode; inside brackets. */
#define WS                                                                                                   \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define BLANKS "[" WS "]+(?![^" WS "])|[" WS "]+"
#define SHORT_FORMS "'(?:[sdmt]|ll|ve|re)"
#define SHORT_FORMS_ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MARKS "[^" WS "\\p{L}\\p{N}]+"
#define LATER(digits) /* what came after GPT-2 */                                                            \
    SHORT_FORMS_ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" MARKS "[\\r\\n]*|[" WS               \
                         "]*[\\r\\n]+|" BLANKS

static const struct rule {
    const char *name, *pattern;
    bool ignore_merges, normalize;
} rules[] = {
    {"smollm", SHORT_FORMS "|\\p{N}| ?\\p{L}+| ?" MARKS "|[" WS "]++(?=\\p{N})|" BLANKS, false, false},
    {"gpt-2", SHORT_FORMS "| ?\\p{L}+| ?\\p{N}+| ?" MARKS "|" BLANKS, false, false},
    {"llama-bpe", LATER("\\p{N}{1,3}"), true, false},
    {"qwen2", LATER("\\p{N}"), false, true},
};

ig_status ig_pretok_make(ig_pretok **out, ig_slice name, ig_err *err) {
    const struct rule *rule = NULL;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (ig_slice_eq_str(name, rules[i].name)) rule = &rules[i];
    if (!rule)
        return ig_fail(err, IG_EFORMAT,
                       "tokenizer.ggml.pre \"%.*s\" is not supported (smollm, gpt-2, llama-bpe, qwen2 are)",
                       (int)(name.n < 64 ? name.n : 64), name.p);

    int code = 0;
    PCRE2_SIZE at = 0;
    ig_pretok *p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "pre-tokenizer: no memory");
    p->rule = rule;
    p->code = pcre2_compile((PCRE2_SPTR)rule->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    if (!p->code) {
        free(p);
        return ig_fail(err, IG_ELIMIT, "pre-tokenizer %s: PCRE2 error %d at %zu", rule->name, code,
                       (size_t)at);
    }
    /* Refused where no page may be executable; the interpreter does it then. */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    *out = p;
    return IG_OK;
}

void ig_pretok_free(ig_pretok *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    free(p);
}

bool ig_pretok_ignores_merges(const ig_pretok *p) {
    return p->rule->ignore_merges;
}

bool ig_pretok_normalizes(const ig_pretok *p) {
    return p->rule->normalize;
}

void ig_pretok_stop_jit(ig_pretok *p) {
    p->jit = false;
}

ig_pretok_scratch *ig_pretok_scratch_make(void) {
    ig_pretok_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!s->match || !s->context) {
        ig_pretok_scratch_free(s);
        return NULL;
    }
    /* These patterns walk each word once, but by steps that the limits count: a run of a million
     * letters is one word. Time is bounded by the text, not by a limit that a long run would meet. */
    pcre2_set_match_limit(s->context, UINT32_MAX);
    pcre2_set_depth_limit(s->context, UINT32_MAX);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void ig_pretok_scratch_free(ig_pretok_scratch *s) {
    if (!s) return;
    if (s->stack) pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->context);
    pcre2_match_data_free(s->match);
    free(s);
}

ig_status ig_pretok_next(const ig_pretok *p, ig_pretok_scratch *s, ig_slice text, size_t at, size_t *end,
                         ig_err *err) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text.p;
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (p->jit) n = pcre2_jit_match(p->code, subject, text.n, at, PCRE2_NO_UTF_CHECK, s->match, s->context);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH) /* no JIT, or it ran out of stack: the interpreter uses the heap */
        n = pcre2_match(p->code, subject, text.n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match,
                        s->context);
    if (n == PCRE2_ERROR_NOMATCH) {
        *end = text.n; /* what no alternative takes is a word of its own, never dropped */
        return IG_OK;
    }
    if (n < 0) return ig_fail(err, IG_ELIMIT, "pre-tokenizer: PCRE2 error %d at byte %zu", n, at);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
    *end = span[0] > at ? span[0] : span[1] > at ? span[1] : text.n;
    return IG_OK;
}
