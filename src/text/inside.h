/* inside.h: what the files of text share, and the seams their tests reach through. Nobody outside text
 * includes it. */
#ifndef IG_TEXT_INSIDE_H
#define IG_TEXT_INSIDE_H

#include "text/text.h"

/* ---- utf8: one sequence at s, n > 0 bytes there ------------------------------------------------------ */

typedef enum ig_utf8_kind {
    IG_UTF8_WHOLE,   /* *len bytes are a character */
    IG_UTF8_BROKEN,  /* *len bytes are a maximal subpart of nothing: one U+FFFD stands for them */
    IG_UTF8_PARTIAL  /* all n bytes begin a character whose rest is not here */
} ig_utf8_kind;

ig_utf8_kind ig_utf8_next(const uint8_t *s, size_t n, size_t *len);

/* The character before text[at], at > 0, of valid UTF-8; and where it begins. */
uint32_t ig_utf8_before(ig_slice text, size_t at, size_t *from);
bool ig_utf8_is_blank(uint32_t c); /* White_Space */

/* ---- regex.c: patterns of tokenizer files on PCRE2 ---------------------------------------------------- */

typedef struct ig_regex ig_regex;
typedef struct ig_regex_scratch ig_regex_scratch; /* match data, the JIT's stack; one thread at a time */

/* A pattern as tokenizer.json has it: what means something else in PCRE2 is rewritten, what cannot be is
 * refused by name. The well-known ones are replaced by equal ones that are proven to be linear. */
ig_status ig_regex_make(ig_regex **out, ig_slice pattern, ig_err *err);
/* One of ours, in PCRE2's own words; trusted to be linear. */
ig_status ig_regex_make_trusted(ig_regex **out, const char *pattern, ig_err *err);
void ig_regex_free(ig_regex *r);
void ig_regex_stop_jit(ig_regex *r); /* tests: the interpreter from now on */

ig_regex_scratch *ig_regex_scratch_make(void);
void ig_regex_scratch_free(ig_regex_scratch *s);
void ig_regex_scratch_start(ig_regex_scratch *s); /* a new text: its time begins */

/* The first match in `text` (valid UTF-8) at or after `at` <= text.n: [*from, *to). None: *from is SIZE_MAX.
 * IG_ELIMIT: it takes too long. */
ig_status ig_regex_find(const ig_regex *r, ig_regex_scratch *s, ig_slice text, size_t at, size_t *from,
                        size_t *to, ig_err *err);

/* ---- normalize.c ------------------------------------------------------------------------------------- */

typedef struct ig_normal ig_normal;

ig_normal *ig_normal_make(void); /* no steps; NULL: no memory */
void ig_normal_free(ig_normal *n);
ig_status ig_normal_add_nfc(ig_normal *n, ig_err *err);
ig_status ig_normal_add_prepend(ig_normal *n, ig_slice text, ig_err *err);
ig_status ig_normal_add_replace(ig_normal *n, ig_slice from, ig_slice to, ig_err *err);
ig_status ig_normal_add_json(ig_normal *n, yyjson_val *normalizer, ig_err *err);
/* *out is `text` itself where nothing changes, else the bytes of *held: free that buffer. */
ig_status ig_normal_apply(const ig_normal *n, ig_regex_scratch *s, ig_slice text, ig_buf *held, ig_slice *out,
                          ig_err *err);

/* ---- pretok.c ---------------------------------------------------------------------------------------- */

typedef struct ig_pretok ig_pretok;

/* By the name in `tokenizer.ggml.pre`. IG_EFORMAT: not one that we run; the message names it. */
ig_status ig_pretok_make(ig_pretok **out, ig_slice name, ig_err *err);
/* Lines, and the runs of line ends between them; the words' symbols are characters. */
ig_status ig_pretok_make_lines(ig_pretok **out, ig_err *err);
/* From the pre_tokenizer of tokenizer.json; NULL: no steps, a text is a word. */
ig_status ig_pretok_from_json(ig_pretok **out, yyjson_val *pre_tokenizer, ig_err *err);
void ig_pretok_free(ig_pretok *p);
bool ig_pretok_ignores_merges(const ig_pretok *p); /* by name: a word that is a token is that token */
bool ig_pretok_normalizes(const ig_pretok *p);     /* by name: NFC first */
bool ig_pretok_is_byte_level(const ig_pretok *p);  /* the words' symbols are bytes */

void ig_pretok_stop_jit(ig_pretok *p);             /* tests: the interpreter from now on */

/* Cuts `text` (valid UTF-8) and gives each word; `first`: it is the beginning of the whole text. A word is
 * gone when the call for it returns. The callback's failure ends it. */
typedef ig_status ig_word_fn(void *with, ig_slice word, ig_err *err);
ig_status ig_pretok_words(const ig_pretok *p, ig_regex_scratch *s, ig_slice text, bool first,
                          ig_word_fn *give, void *with, ig_err *err);

/* ---- tokenizer.c ------------------------------------------------------------------------------------- */

/* Ids that a file names. IG_TOKEN_NONE: it does not. */
typedef enum ig_token_role {
    IG_ROLE_BOS, IG_ROLE_EOS, IG_ROLE_EOT, IG_ROLE_EOM, IG_ROLE_UNK, IG_ROLE_PAD, IG_ROLE_COUNT
} ig_token_role;

/* Types of tokens as numbered in the format. */
enum {
    IG_TYPE_NORMAL = 1, IG_TYPE_UNKNOWN, IG_TYPE_CONTROL, IG_TYPE_USER, IG_TYPE_UNUSED, IG_TYPE_BYTE,
    IG_TYPE_LAST = IG_TYPE_BYTE
};

/* A token that is looked for in the text before anything else. */
typedef struct ig_added_token {
    ig_slice text;
    uint32_t id;
    bool special;        /* a control token: recognised when asked for, not printed */
    bool normalized;     /* looked for in the normalised text, itself normalised */
    bool lstrip, rstrip; /* takes the blanks beside it */
    bool single_word;    /* only between characters that are not of words */
} ig_added_token;

enum { IG_DECODER_REPLACES = 8, IG_AROUND_MAX = 8 };

/* How ids become text. */
typedef struct ig_decoder {
    bool byte_level;    /* letters of the byte alphabet to bytes; nothing else then */
    struct { ig_slice from, to; } replace[IG_DECODER_REPLACES];
    int n_replace;
    bool byte_fallback; /* <0xXX> is a byte */
    int n_strip;        /* so many blanks at the beginning of the whole text are dropped */
    bool first_strips;  /* the first token loses all its blanks (Metaspace) */
} ig_decoder;

/* What a tokenizer is made from: nothing of it is kept, nothing of it is trusted. */
typedef struct ig_tokenizer_parts {
    ig_slice model, pre; /* "gpt2" and its pre; "llama"; "gemma4"; "BPE": tokenizer.json */
    const ig_slice *tokens; /* BPE: .p NULL where no token has that id */
    uint64_t n_tokens;
    const int32_t *types; /* NULL: all normal */
    uint64_t n_types;
    const ig_slice *merges; /* gpt2, gemma4: "left right" */
    const ig_slice *pairs;  /* BPE: left and right of each */
    uint64_t n_merges;
    const float *scores;    /* llama */
    uint64_t n_scores;
    uint64_t role[IG_ROLE_COUNT]; /* IG_TOKEN_NONE: not named */
    bool add_bos, add_eos;
    bool add_space_prefix; /* llama */

    /* BPE. The two pointers are taken over, whatever comes of it. */
    ig_normal *normal;
    ig_pretok *pretok;
    bool byte_fallback, fuse_unk, ignore_merges;
    uint32_t unk;
    const ig_added_token *added;
    uint64_t n_added;
    ig_decoder decoder;
    const uint32_t *eos; /* the end set */
    int n_eos;
    uint32_t before[IG_AROUND_MAX], after[IG_AROUND_MAX]; /* put around a text */
    int n_before, n_after;
} ig_tokenizer_parts;

ig_status ig_tokenizer_make(ig_tokenizer **out, const ig_tokenizer_parts *parts, ig_err *err);
uint32_t ig_tokenizer_role(const ig_tokenizer *t, ig_token_role role);
const ig_decoder *ig_tokenizer_decoder(const ig_tokenizer *t);

/* The longest special token that begins at text[at], or IG_TOKEN_NONE. Control tokens must end at or
 * before control_end (0: none wanted); user-defined ones may end anywhere. */
uint32_t ig_tokenizer_match_special(const ig_tokenizer *t, ig_slice text, size_t at, size_t control_end,
                                    size_t *end);

/* ---- template.c -------------------------------------------------------------------------------------- */

ig_slice ig_template_source(const ig_template *t);
/* The one that renders messages with tools, or without. */
const ig_template *ig_template_for(const ig_template *t, bool tools);
/* context_json: the object of variables. Appends what was rendered. */
ig_status ig_template_render(const ig_template *t, ig_slice context_json, int64_t now_s, ig_buf *out,
                             ig_err *err);

#endif
