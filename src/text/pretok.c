/* pretok: text to words. BPE merges inside a word only, so this decides what merges may happen.
 * Owns:    the steps of one tokenizer: each cuts the pieces of the one before.
 * Threads: read-only; match data is the caller's scratch.
 * Memory:  small and fixed; where a step changes a piece (a blank before it, another sign for blanks), a
 *          copy of the piece for as long as its words are given.
 * Why one pattern for smollm: its two steps (every digit alone, then GPT-2's pattern on what lies between)
 * are the same as one pattern that takes digits first and looks for them after blanks. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { STEPS_MAX = 8, DEPTH_MAX = 4, CONTENT_BYTES_MAX = 64 };

enum kind { SPLIT_MATCHES, SPLIT_TEXT, DIGITS, BLANKS, METASPACE, BYTE_LEVEL };
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum prepend { NEVER, FIRST, ALWAYS };

struct step {
    enum kind kind;
    enum behavior behavior;
    bool invert;
    ig_regex *regex;     /* SPLIT_MATCHES, BYTE_LEVEL: or NULL, no cuts */
    char text[CONTENT_BYTES_MAX]; /* SPLIT_TEXT; METASPACE: what stands for a blank */
    size_t n_text;
    enum prepend prepend; /* METASPACE; BYTE_LEVEL: ALWAYS or NEVER, a blank */
    bool splits;          /* METASPACE */
};

struct ig_pretok {
    struct step step[STEPS_MAX];
    int n;
    bool byte_level, ignore_merges, normalize;
};

/* ---- by name ---------------------------------------------------------------------------------------- */

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LATER(letters, digits, marks)                                                                        \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits   \
    "| ?[^\\s" marks "]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}|"          \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WS                                                                                                   \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SMOLLM                                                                                               \
    "'(?:[sdmt]|ll|ve|re)|\\p{N}| ?\\p{L}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]++(?=\\p{N})|[" WS "]+(?![^" WS  \
    "])|[" WS "]+"

/* What the format's own readers do; not always what the model's first file said: 's followed by U+017F is
 * one word in tokenizer.json and two here. */
static const struct rule {
    const char *name, *trusted, *pattern[4];
    bool ignore_merges, normalize;
} rules[] = {
    {"smollm", SMOLLM, {0}, false, false},
    {"gpt-2", NULL, {GPT2}, false, false},
    {"llama-bpe", NULL, {LATER("\\p{L}", "\\p{N}{1,3}", "\\p{L}\\p{N}")}, true, false},
    {"qwen2", NULL, {LATER("\\p{L}", "\\p{N}", "\\p{L}\\p{N}")}, false, true},
    {"qwen35", NULL, {LATER("[\\p{L}\\p{M}]", "\\p{N}", "\\p{L}\\p{M}\\p{N}")}, false, true},
    {"minicpm5", NULL, {"\\p{N}{1,3}", LATER("\\p{L}", "\\p{N}+", "\\p{L}\\p{N}")}, true, false},
    {"tekken", NULL, {TEKKEN}, true, false},
    {"default", NULL, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
};
static const struct { const char *name, *means; } aliases[] = {
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"mpt", "gpt-2"},
    {"olmo", "gpt-2"},       {"deepseek-r1-qwen", "qwen2"},
};

static ig_status add_pattern(ig_pretok *p, const char *pattern, bool trusted, ig_err *err) {
    struct step *s = &p->step[p->n];
    ig_status st = trusted ? ig_regex_make_trusted(&s->regex, pattern, err)
                           : ig_regex_make(&s->regex, ig_slice_of(pattern), err);
    if (st) return st;
    s->kind = SPLIT_MATCHES;
    s->behavior = ISOLATED;
    p->n++;
    return IG_OK;
}

ig_status ig_pretok_make(ig_pretok **out, ig_slice name, ig_err *err) {
    const struct rule *rule = NULL;
    ig_slice wanted = name;
    ig_status st = IG_OK;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (ig_slice_eq_str(name, aliases[i].name)) wanted = ig_slice_of(aliases[i].means);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (ig_slice_eq_str(wanted, rules[i].name)) rule = &rules[i];
    if (!rule)
        return ig_fail(
            err, IG_EFORMAT,
            "tokenizer.ggml.pre \"%.*s\" is not supported (smollm, gpt-2, llama-bpe, qwen2, qwen35, "
            "minicpm5, tekken, default are)",
            (int)(name.n < 64 ? name.n : 64), name.p);
    ig_pretok *p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "pre-tokenizer: no memory");
    p->byte_level = true;
    p->ignore_merges = rule->ignore_merges;
    p->normalize = rule->normalize;
    if (rule->trusted) st = add_pattern(p, rule->trusted, true, err);
    for (int i = 0; i < 4 && !st && rule->pattern[i]; i++) st = add_pattern(p, rule->pattern[i], false, err);
    if (st) ig_pretok_free(p);
    else *out = p;
    return st;
}

ig_status ig_pretok_make_lines(ig_pretok **out, ig_err *err) {
    ig_pretok *p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "pre-tokenizer: no memory");
    ig_status st = add_pattern(p, "[^\\n]+|[\\n]+", true, err);
    if (st) ig_pretok_free(p);
    else *out = p;
    return st;
}

void ig_pretok_free(ig_pretok *p) {
    if (!p) return;
    for (int i = 0; i < STEPS_MAX; i++) ig_regex_free(p->step[i].regex);
    free(p);
}

bool ig_pretok_ignores_merges(const ig_pretok *p) {
    return p->ignore_merges;
}

bool ig_pretok_normalizes(const ig_pretok *p) {
    return p->normalize;
}

bool ig_pretok_is_byte_level(const ig_pretok *p) {
    return p->byte_level;
}

void ig_pretok_stop_jit(ig_pretok *p) {
    for (int i = 0; i < p->n; i++)
        if (p->step[i].regex) ig_regex_stop_jit(p->step[i].regex);
}

/* ---- from JSON -------------------------------------------------------------------------------------- */

static ig_slice string_of(yyjson_val *v) {
    return yyjson_is_str(v) ? (ig_slice){yyjson_get_str(v), yyjson_get_len(v)} : (ig_slice){0};
}

static ig_status take_text(struct step *s, ig_slice text, const char *what, ig_err *err) {
    if (text.n == 0 || text.n > CONTENT_BYTES_MAX)
        return ig_fail(err, IG_EFORMAT, "pre_tokenizer %s: text of %zu bytes, must be 1 to %d", what, text.n,
                       CONTENT_BYTES_MAX);
    memcpy(s->text, text.p, text.n);
    s->n_text = text.n;
    return IG_OK;
}

static ig_status take_split(struct step *s, yyjson_val *v, ig_err *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    yyjson_val *pattern = ig_json_get(v, "pattern");
    ig_slice text = string_of(ig_json_get(pattern, "String")),
             regex = string_of(ig_json_get(pattern, "Regex"));
    ig_slice behavior = string_of(ig_json_get(v, "behavior"));
    int found = -1;
    for (int i = 0; i < 5; i++)
        if (ig_slice_eq_str(behavior, names[i])) found = i;
    if (found < 0)
        return ig_fail(err, IG_EFORMAT, "pre_tokenizer Split: behavior \"%.*s\" is not supported",
                       (int)(behavior.n < 64 ? behavior.n : 64), behavior.p ? behavior.p : "");
    s->behavior = (enum behavior)found;
    s->invert = yyjson_is_true(ig_json_get(v, "invert"));
    s->kind = text.p ? SPLIT_TEXT : SPLIT_MATCHES;
    if (text.p) return take_text(s, text, "Split", err);
    if (!regex.p) return ig_fail(err, IG_EFORMAT, "pre_tokenizer Split: no pattern");
    return ig_regex_make(&s->regex, regex, err);
}

static ig_status take_metaspace(struct step *s, yyjson_val *v, ig_err *err) {
    ig_slice scheme = string_of(ig_json_get(v, "prepend_scheme"));
    yyjson_val *prefix = ig_json_get(v, "add_prefix_space"), *split = ig_json_get(v, "split");
    s->kind = METASPACE;
    s->behavior = MERGED_WITH_NEXT;
    s->splits = !split || yyjson_is_true(split);
    s->prepend = ALWAYS;
    if (ig_slice_eq_str(scheme, "never") || (!scheme.p && yyjson_is_false(prefix))) s->prepend = NEVER;
    else if (ig_slice_eq_str(scheme, "first")) s->prepend = FIRST;
    else if (scheme.p && !ig_slice_eq_str(scheme, "always"))
        return ig_fail(err, IG_EFORMAT, "pre_tokenizer Metaspace: prepend_scheme \"%.*s\" is not supported",
                       (int)(scheme.n < 64 ? scheme.n : 64), scheme.p);
    return take_text(s, string_of(ig_json_get(v, "replacement")), "Metaspace", err);
}

static ig_status take_byte_level(ig_pretok *p, struct step *s, yyjson_val *v, ig_err *err) {
    yyjson_val *use = ig_json_get(v, "use_regex");
    s->kind = BYTE_LEVEL;
    s->behavior = ISOLATED;
    s->prepend = yyjson_is_true(ig_json_get(v, "add_prefix_space")) ? ALWAYS : NEVER;
    p->byte_level = true;
    return !use || yyjson_is_true(use) ? ig_regex_make(&s->regex, ig_slice_of(GPT2), err) : IG_OK;
}

static ig_status add_json(ig_pretok *p, yyjson_val *v, int depth, ig_err *err) {
    ig_slice type = string_of(ig_json_get(v, "type"));
    if (!type.p) return ig_fail(err, IG_EFORMAT, "pre_tokenizer without a type");
    if (ig_slice_eq_str(type, "Sequence")) {
        yyjson_val *list = ig_json_get(v, "pretokenizers"), *item;
        size_t i, max;
        if (!yyjson_is_arr(list)) return ig_fail(err, IG_EFORMAT, "pre_tokenizer Sequence: no list");
        if (depth == DEPTH_MAX) return ig_fail(err, IG_EFORMAT, "pre_tokenizer: Sequences too deep");
        yyjson_arr_foreach(list, i, max, item) {
            ig_status st = add_json(p, item, depth + 1, err);
            if (st) return st;
        }
        return IG_OK;
    }
    if (p->n == STEPS_MAX) return ig_fail(err, IG_EFORMAT, "pre_tokenizer of over %d steps", STEPS_MAX);
    if (p->byte_level)
        return ig_fail(err, IG_EFORMAT, "pre_tokenizer \"%.*s\" after ByteLevel is not supported",
                       (int)(type.n < 64 ? type.n : 64), type.p);
    struct step *s = &p->step[p->n++];
    s->behavior = ISOLATED;
    if (ig_slice_eq_str(type, "Split")) return take_split(s, v, err);
    if (ig_slice_eq_str(type, "Metaspace")) return take_metaspace(s, v, err);
    if (ig_slice_eq_str(type, "ByteLevel")) return take_byte_level(p, s, v, err);
    if (ig_slice_eq_str(type, "Digits")) {
        s->kind = DIGITS;
        if (!yyjson_is_true(ig_json_get(v, "individual_digits"))) s->behavior = CONTIGUOUS;
        return IG_OK;
    }
    if (ig_slice_eq_str(type, "WhitespaceSplit")) {
        s->kind = BLANKS;
        s->behavior = REMOVED;
        return IG_OK;
    }
    return ig_fail(err, IG_EFORMAT, "pre_tokenizer \"%.*s\" is not supported",
                   (int)(type.n < 64 ? type.n : 64), type.p);
}

ig_status ig_pretok_from_json(ig_pretok **out, yyjson_val *pre_tokenizer, ig_err *err) {
    ig_pretok *p = calloc(1, sizeof *p);
    if (!p) return ig_fail(err, IG_ELIMIT, "pre-tokenizer: no memory");
    ig_status st = pre_tokenizer ? add_json(p, pre_tokenizer, 0, err) : IG_OK;
    if (st) ig_pretok_free(p);
    else *out = p;
    return st;
}

/* ---- cutting ---------------------------------------------------------------------------------------- */

struct cutting {
    const ig_pretok *p;
    ig_regex_scratch *s;
    ig_word_fn *give;
    void *with;
    ig_err *err;
};

static ig_status run(const struct cutting *c, int i, ig_slice piece, bool first);

/* The pieces of one step as they come: one waits, because the next may belong to it. */
struct joiner {
    const struct cutting *c;
    int step;
    ig_slice whole;
    bool first;
    size_t from, to; /* what waits; empty: nothing */
    bool is_match;   /* of the piece before */
};

static ig_status pass(struct joiner *j) {
    size_t from = j->from, to = j->to;
    j->from = j->to;
    if (from == to) return IG_OK;
    return run(j->c, j->step + 1, (ig_slice){j->whole.p + from, to - from}, j->first && from == 0);
}

static ig_status add_piece(struct joiner *j, size_t from, size_t to, bool is_match) {
    const struct step *s = &j->c->p->step[j->step];
    bool before = j->is_match, together = false;
    ig_status st = IG_OK;
    is_match = is_match != s->invert;
    j->is_match = is_match;
    switch (s->behavior) {
    case REMOVED: together = false; break;
    case ISOLATED: together = false; break;
    case MERGED_WITH_PREVIOUS: together = is_match && !before; break;
    case MERGED_WITH_NEXT: together = !is_match && before; break;
    case CONTIGUOUS: together = is_match == before; break;
    }
    if (!together) {
        st = pass(j);
        j->from = from;
    }
    j->to = to;
    if (s->behavior == REMOVED && is_match) j->from = to;
    return st;
}

static bool is_number(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* The next match of a step: [*from, *to), or *from is SIZE_MAX. */
static ig_status next_match(const struct cutting *c, const struct step *s, ig_slice text, size_t at,
                            size_t *from, size_t *to) {
    if (s->kind == SPLIT_MATCHES || s->kind == BYTE_LEVEL)
        return ig_regex_find(s->regex, c->s, text, at, from, to, c->err);
    *from = SIZE_MAX;
    if (s->kind == SPLIT_TEXT || s->kind == METASPACE) {
        const char *hit = ig_find_text(text.p + at, text.p + text.n, (ig_slice){s->text, s->n_text});
        if (hit) *from = (size_t)(hit - text.p);
        if (hit) *to = *from + s->n_text;
        return IG_OK;
    }
    for (size_t len; at < text.n; at += len) {
        (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
        uint32_t ch = ig_char_at((const uint8_t *)text.p + at, len);
        if (!(s->kind == DIGITS ? is_number(ch) : ig_utf8_is_blank(ch))) continue;
        *from = at;
        *to = at + len;
        return IG_OK;
    }
    return IG_OK;
}

static ig_status cut(const struct cutting *c, int i, ig_slice text, bool first) {
    const struct step *s = &c->p->step[i];
    struct joiner j = {.c = c, .step = i, .whole = text, .first = first};
    size_t done = 0, at = 0, from, to;
    bool any = false;
    ig_status st;
    while (at <= text.n) {
        if ((st = next_match(c, s, text, at, &from, &to))) return st;
        if (from == SIZE_MAX) break;
        bool follows = from == to && any && from == done; /* an empty match right behind another is none */
        if (!follows) {
            if (from > done && (st = add_piece(&j, done, from, false))) return st;
            if ((st = add_piece(&j, from, to, true))) return st;
            any = true;
            done = to;
        }
        at = to;
        if (from == to) {
            size_t len = 1;
            if (at < text.n) (void)ig_utf8_next((const uint8_t *)text.p + at, text.n - at, &len);
            at += len;
        }
    }
    if (done < text.n && (st = add_piece(&j, done, text.n, false))) return st;
    return pass(&j);
}

static ig_status cut_changed(const struct cutting *c, int i, ig_buf *made, bool good, bool first) {
    ig_status st = good ? IG_OK : ig_fail(c->err, IG_ELIMIT, "pre-tokenizer: no memory");
    ig_slice text = {made->p, made->n};
    const struct step *s = &c->p->step[i];
    bool cuts = s->kind == METASPACE ? s->splits : s->regex != NULL;
    if (!st) st = cuts ? cut(c, i, text, first) : run(c, i + 1, text, first);
    ig_buf_free(made);
    return st;
}

static ig_status metaspace(const struct cutting *c, int i, ig_slice text, bool first) {
    const struct step *s = &c->p->step[i];
    ig_buf made = ig_buf_init((text.n + 1) * CONTENT_BYTES_MAX);
    const char *at = text.p, *end = text.p + text.n;
    bool begins =
        (text.n > 0 && *text.p == ' ') || (text.n >= s->n_text && !memcmp(text.p, s->text, s->n_text));
    bool good = true;
    if (!begins && (s->prepend == ALWAYS || (s->prepend == FIRST && first)))
        good = ig_buf_add(&made, s->text, s->n_text);
    while (good && at < end) {
        const char *hit = memchr(at, ' ', (size_t)(end - at));
        if (!hit) hit = end;
        good = ig_buf_add(&made, at, (size_t)(hit - at)) &&
               (hit == end || ig_buf_add(&made, s->text, s->n_text));
        at = hit == end ? end : hit + 1;
    }
    return cut_changed(c, i, &made, good, first);
}

static ig_status byte_level(const struct cutting *c, int i, ig_slice text, bool first) {
    const struct step *s = &c->p->step[i];
    if (s->prepend == ALWAYS && *text.p != ' ') {
        ig_buf made = ig_buf_init(text.n + 1);
        bool good = ig_buf_add(&made, " ", 1) && ig_buf_add(&made, text.p, text.n);
        return cut_changed(c, i, &made, good, first);
    }
    return s->regex ? cut(c, i, text, first) : run(c, i + 1, text, first);
}

/* A piece through step i and those after it. As deep as there are steps. */
static ig_status run(const struct cutting *c, int i, ig_slice piece, bool first) {
    if (piece.n == 0) return IG_OK;
    if (i == c->p->n) return c->give(c->with, piece, c->err);
    switch (c->p->step[i].kind) {
    case METASPACE: return metaspace(c, i, piece, first);
    case BYTE_LEVEL: return byte_level(c, i, piece, first);
    default: return cut(c, i, piece, first);
    }
}

ig_status ig_pretok_words(const ig_pretok *p, ig_regex_scratch *s, ig_slice text, bool first,
                          ig_word_fn *give, void *with, ig_err *err) {
    struct cutting c = {p, s, give, with, err};
    return run(&c, 0, text, first);
}
