/* regex: the patterns of tokenizer files, run by PCRE2 with its JIT.
 * Owns:    the compiled pattern.
 * Threads: read-only; the match data and the JIT stack are the caller's scratch.
 * Memory:  PCRE2's; bounded by the pattern's length and by a heap limit.
 * Those files are written for Oniguruma. \s of PCRE2 also takes U+180E, \w and \h are other classes, so they
 * are spelt out; what cannot be said in both is refused by name. A pattern from a file can be made to
 * explode: it is tried place by place, each try has a step limit, all together a limit in processor time.
 * The well-known ones are linear, and a run of a million letters would meet a limit: they have none. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/inside.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ig_regex {
    pcre2_code *code;
    bool jit, trusted;
};

struct ig_regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context, *bounded;
    pcre2_jit_stack *stack;
    int64_t start_ns; /* of this thread's processor time; 0: not asked yet */
    uint32_t n_tries;
};

enum {
    JIT_STACK_MIN_BYTES = 32 * 1024,
    JIT_STACK_MAX_BYTES = 1024 * 1024,
    PATTERN_BYTES_MAX = 4096,
    NEST_MAX = 32,
    STEPS_MAX = 1000 * 1000,   /* of one try of a foreign pattern */
    HEAP_KIB_MAX = 64 * 1024,
    LOOK_EVERY = 64            /* tries between two looks at the clock */
};
#define CPU_MAX_NS (INT64_C(2) * 1000 * 1000 * 1000)

/* ---- the well-known patterns ------------------------------------------------------------------------ */

/* White_Space of Unicode; inside brackets. */
#define WS                                                                                                   \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define BLANKS "[" WS "]+(?![^" WS "])|[" WS "]+"
#define MARKS "[^" WS "\\p{L}\\p{N}]+"

/* 's and its like. Where the case is folded, U+017F is an s; GGUF's rules write both cases out. */
#define FOLDED "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BOTH_CASES "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

#define LATER(shorts, letters, digits, marks, ws, blanks)                                                    \
    shorts "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits "| ?[^" ws marks "]+[\\r\\n]*|" blanks
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(shorts, digits, ws, blanks)                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" shorts "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" shorts \
    "|" digits "| ?[^" ws "\\p{L}\\p{N}]+[\\r\\n/]*|" blanks
#define DEEPSEEK(blanks)                                                                                     \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"        \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|" blanks
#define THEIR_BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OUR_BLANKS "[" WS "]*[\\r\\n]+|" BLANKS
#define HAN_KANA "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"

/* As the files have them, and in PCRE2's words. */
static const struct known {
    const char *theirs, *ours;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?" MARKS "|" BLANKS},
#define LATERS(letters, digits, marks)                                                                       \
    {LATER(FOLDED, letters, digits, marks, "\\s", THEIR_BLANKS),                                             \
     LATER(FOLDED, letters, digits, marks, WS, OUR_BLANKS)},                                                 \
    {LATER(BOTH_CASES, letters, digits, marks, "\\s", THEIR_BLANKS),                                         \
     LATER(BOTH_CASES, letters, digits, marks, WS, OUR_BLANKS)}
    LATERS("\\p{L}", "\\p{N}", "\\p{L}\\p{N}"),
    LATERS("\\p{L}", "\\p{N}{1,3}", "\\p{L}\\p{N}"),
    LATERS("\\p{L}", "\\p{N}+", "\\p{L}\\p{N}"),
    LATERS("[\\p{L}\\p{M}]", "\\p{N}", "\\p{L}\\p{M}\\p{N}"),
    {CASED("", "\\p{N}", "\\s", THEIR_BLANKS), CASED("", "\\p{N}", WS, OUR_BLANKS)},
    {CASED(FOLDED "?", "\\p{N}{1,3}", "\\s", THEIR_BLANKS), CASED(FOLDED "?", "\\p{N}{1,3}", WS, OUR_BLANKS)},
    {DEEPSEEK("\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), DEEPSEEK(OUR_BLANKS)},
#define SAME(pattern) {pattern, pattern}
    SAME(HAN_KANA),
    SAME("\\p{N}"),
    SAME("\\p{N}+"),
    SAME("\\p{N}{1,3}"),
    SAME("[0-9][0-9][0-9]"),
    SAME("[\\p{P}\\$\\+<=>\\^~\\|]+"),
};

static const char *known_pattern(ig_slice pattern) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (ig_slice_eq_str(pattern, known[i].theirs)) return known[i].ours;
    return NULL;
}

/* ---- foreign patterns into PCRE2's words ------------------------------------------------------------ */

struct rewrite {
    const char *p, *end;
    ig_buf *out;
    ig_err *err;
    bool in_class, class_is_empty;
};

static ig_status refuse(struct rewrite *r, const char *what) {
    return ig_fail(r->err, IG_EFORMAT, "pattern: %s is not supported", what);
}

static ig_status put(struct rewrite *r, const char *s, size_t n) {
    return ig_buf_add(r->out, s, n) ? IG_OK
                                    : ig_fail(r->err, IG_ELIMIT, "pattern over %d bytes", PATTERN_BYTES_MAX);
}

/* A class that a letter stands for: inside brackets its ranges, alone a class of its own. */
static ig_status put_class(struct rewrite *r, const char *ranges, bool negated) {
    if (r->in_class && negated) return refuse(r, "a negated class inside brackets");
    if (!r->in_class && put(r, negated ? "[^" : "[", negated ? 2 : 1)) return IG_ELIMIT;
    if (put(r, ranges, strlen(ranges))) return IG_ELIMIT;
    return r->in_class ? IG_OK : put(r, "]", 1);
}

/* {...} behind \p, \P or \x: letters, digits and a few signs. */
static ig_status put_braced(struct rewrite *r) {
    const char *close = r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p)) : NULL;
    if (!close || close - r->p > 64) return refuse(r, "an escape without {...}");
    for (const char *c = r->p + 1; c < close; c++)
        if (!((*c | 32) >= 'a' && (*c | 32) <= 'z') && !(*c >= '0' && *c <= '9') && !strchr("_-^ ", *c))
            return refuse(r, "a sign inside {...}");
    const char *from = r->p;
    r->p = close + 1;
    return put(r, from, (size_t)(r->p - from));
}

static ig_status rewrite_escape(struct rewrite *r) {
    if (r->p == r->end) return refuse(r, "\\ at the end");
    char c = *r->p++, name[3] = {'\\', c};
    switch (c) {
    case 's': return put_class(r, WS, false);
    case 'S': return put_class(r, WS, true);
    case 'w': return put_class(r, WORD, false);
    case 'W': return put_class(r, WORD, true);
    case 'h': return put_class(r, "0-9A-Fa-f", false);
    case 'd': return put_class(r, "\\p{Nd}", false);
    case 'D': return put_class(r, "\\p{Nd}", true);
    case 'p':
    case 'P': {
        ig_status st = put(r, name, 2);
        return st ? st : put_braced(r);
    }
    case 'x': {
        ig_status st = put(r, name, 2);
        if (st) return st;
        if (r->p < r->end && *r->p == '{') return put_braced(r);
        for (int i = 0; i < 2; i++, r->p++)
            if (r->p == r->end || !strchr("0123456789abcdefABCDEF", *r->p) || !*r->p)
                return refuse(r, "\\x without two digits");
        return put(r, r->p - 2, 2);
    }
    case 'r':
    case 'n':
    case 't':
    case 'f': return put(r, name, 2);
    case 'v': return put(r, "\\x0b", 4);
    default:
        if ((c | 32) >= 'a' && (c | 32) <= 'z') return refuse(r, name);
        if ((c >= '0' && c <= '9') || (unsigned char)c >= 0x80 || c < ' ') return refuse(r, "this escape");
        return put(r, name, 2);
    }
}

static ig_status rewrite_group(struct rewrite *r) {
    static const char *const begins[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    r->p--;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t n = strlen(begins[i]);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, begins[i], n) != 0) continue;
        r->p += n;
        return put(r, begins[i], n);
    }
    if (r->end - r->p > 1 && (r->p[1] == '?' || r->p[1] == '*')) return refuse(r, "this kind of group");
    r->p++;
    return put(r, "(?:", 3); /* what a group caught is never asked for */
}

static ig_status rewrite_step(struct rewrite *r) {
    char c = *r->p++;
    bool class_was_empty = r->class_is_empty;
    r->class_is_empty = false;
    if (c == '\0') return refuse(r, "a zero byte");
    if (c == '\\') return rewrite_escape(r);
    if (r->in_class) {
        if (c == '[') return refuse(r, "[ inside brackets");
        if (c == '&' && r->p < r->end && *r->p == '&') return refuse(r, "&& inside brackets");
        if (c == ']' && class_was_empty) return refuse(r, "an empty class");
        if (c == ']') r->in_class = false;
        return put(r, &c, 1);
    }
    switch (c) {
    case '[':
        r->in_class = r->class_is_empty = true;
        if (r->p == r->end || *r->p != '^') return put(r, "[", 1);
        r->p++;
        return put(r, "[^", 2);
    case '(': return rewrite_group(r);
    case '}': /* {2}+ is possessive in one and repeats in the other */
        if (r->p < r->end && *r->p == '+') return refuse(r, "}+");
        return put(r, &c, 1);
    default: return put(r, &c, 1);
    }
}

static ig_status rewrite(ig_buf *out, ig_slice pattern, ig_err *err) {
    struct rewrite r = {.p = pattern.p, .end = pattern.p + pattern.n, .out = out, .err = err};
    ig_status st = IG_OK;
    while (!st && r.p < r.end) st = rewrite_step(&r);
    if (!st && r.in_class) st = refuse(&r, "[ without ]");
    return st;
}

/* ---- compiling -------------------------------------------------------------------------------------- */

static ig_status compile(ig_regex **out, ig_slice pattern, bool trusted, ig_err *err) {
    int code = 0;
    PCRE2_SIZE at = 0;
    ig_regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context) {
        pcre2_set_parens_nest_limit(context, NEST_MAX);
        /* Multiline because ^ and $ always are so where these patterns come from. */
        uint32_t how = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE;
        if (!trusted) how |= PCRE2_ANCHORED;
        if (r) r->code = pcre2_compile((PCRE2_SPTR)pattern.p, pattern.n, how, &code, &at, context);
    }
    pcre2_compile_context_free(context);
    if (!r || !r->code) {
        char why[128] = "no memory";
        if (code) pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        free(r);
        const bool no_memory = code == 0 || code == PCRE2_ERROR_HEAP_FAILED;
        return ig_fail(err, no_memory ? IG_ELIMIT : IG_EFORMAT, "pattern: %s (at byte %zu)", why, (size_t)at);
    }
    /* Refused where no page may be executable; the interpreter does it then. */
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    r->trusted = trusted;
    *out = r;
    return IG_OK;
}

ig_status ig_regex_make_trusted(ig_regex **out, const char *pattern, ig_err *err) {
    return compile(out, ig_slice_of(pattern), true, err);
}

ig_status ig_regex_make(ig_regex **out, ig_slice pattern, ig_err *err) {
    const char *ours = known_pattern(pattern);
    if (ours) return ig_regex_make_trusted(out, ours, err);
    if (pattern.n == 0 || pattern.n > PATTERN_BYTES_MAX)
        return ig_fail(err, IG_EFORMAT, "pattern of %zu bytes, must be 1 to %d", pattern.n,
                       PATTERN_BYTES_MAX);
    ig_buf b = ig_buf_init(PATTERN_BYTES_MAX * 8);
    ig_status st = ig_slice_utf8_valid(pattern, NULL) ? rewrite(&b, pattern, err)
                                                      : ig_fail(err, IG_EFORMAT, "pattern is not UTF-8");
    if (!st) st = compile(out, (ig_slice){b.p, b.n}, false, err);
    ig_buf_free(&b);
    return st;
}

void ig_regex_free(ig_regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

void ig_regex_stop_jit(ig_regex *r) {
    r->jit = false;
}

/* ---- matching --------------------------------------------------------------------------------------- */

ig_regex_scratch *ig_regex_scratch_make(void) {
    ig_regex_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->bounded = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!s->match || !s->context || !s->bounded) {
        ig_regex_scratch_free(s);
        return NULL;
    }
    /* Trusted patterns walk each word once, but by steps that the limits count. */
    pcre2_set_match_limit(s->context, UINT32_MAX);
    pcre2_set_depth_limit(s->context, UINT32_MAX);
    pcre2_set_match_limit(s->bounded, STEPS_MAX);
    pcre2_set_depth_limit(s->bounded, STEPS_MAX);
    pcre2_set_heap_limit(s->bounded, HEAP_KIB_MAX);
    if (s->stack) {
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
        pcre2_jit_stack_assign(s->bounded, NULL, s->stack);
    }
    return s;
}

void ig_regex_scratch_free(ig_regex_scratch *s) {
    if (!s) return;
    if (s->stack) pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->context);
    pcre2_match_context_free(s->bounded);
    pcre2_match_data_free(s->match);
    free(s);
}

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000 * 1000 * 1000 + t.tv_nsec;
}

void ig_regex_scratch_start(ig_regex_scratch *s) {
    s->start_ns = 0;
    s->n_tries = 0;
}

static bool out_of_time(ig_regex_scratch *s) {
    if (s->n_tries++ % LOOK_EVERY != 0) return false;
    int64_t now_ns = cpu_ns();
    if (s->start_ns == 0) s->start_ns = now_ns;
    return now_ns - s->start_ns > CPU_MAX_NS;
}

static int match(const ig_regex *r, ig_regex_scratch *s, ig_slice text, size_t at) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text.p;
    pcre2_match_context *context = r->trusted ? s->context : s->bounded;
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (r->jit) n = pcre2_jit_match(r->code, subject, text.n, at, PCRE2_NO_UTF_CHECK, s->match, context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* no JIT, or it ran out of stack: the interpreter uses the heap */
        n = pcre2_match(r->code, subject, text.n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, context);
    return n;
}

ig_status ig_regex_find(const ig_regex *r, ig_regex_scratch *s, ig_slice text, size_t at, size_t *from,
                        size_t *to, ig_err *err) {
    int n;
    if (r->trusted) {
        n = match(r, s, text, at);
    } else {
        for (;;) {
            size_t len;
            if (out_of_time(s))
                return ig_fail(err, IG_ELIMIT, "a pattern of the tokenizer takes over %d s on this text",
                               (int)(CPU_MAX_NS / 1000 / 1000 / 1000));
            n = match(r, s, text, at);
            if (n != PCRE2_ERROR_NOMATCH || at >= text.n) break;
            (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
            at += len;
        }
    }
    *from = *to = SIZE_MAX;
    if (n == PCRE2_ERROR_NOMATCH) return IG_OK;
    if (n < 0) {
        char why[128] = "";
        pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
        return ig_fail(err, IG_ELIMIT, "a pattern of the tokenizer fails at byte %zu: %s", at, why);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
    *from = span[0];
    *to = span[1] > span[0] ? span[1] : span[0];
    return IG_OK;
}
