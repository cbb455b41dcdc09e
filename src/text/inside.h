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

/* ---- pretok.c ---------------------------------------------------------------------------------------- */

typedef struct ig_pretok ig_pretok;
typedef struct ig_pretok_scratch ig_pretok_scratch;

/* By the name in `tokenizer.ggml.pre`. IG_EFORMAT: not one that we run; the message names it. */
ig_status ig_pretok_make(ig_pretok **out, ig_slice name, ig_err *err);
void ig_pretok_free(ig_pretok *p);
bool ig_pretok_ignores_merges(const ig_pretok *p); /* a word that is a token is that token */
bool ig_pretok_normalizes(const ig_pretok *p);     /* NFC first */

void ig_pretok_stop_jit(ig_pretok *p);             /* tests: the interpreter from now on */

ig_pretok_scratch *ig_pretok_scratch_make(void);
void ig_pretok_scratch_free(ig_pretok_scratch *s);

/* The word of `text` (valid UTF-8) that begins at `at` < text.n; sets where it ends. */
ig_status ig_pretok_next(const ig_pretok *p, ig_pretok_scratch *s, ig_slice text, size_t at, size_t *end,
                         ig_err *err);

/* ---- tokenizer.c ------------------------------------------------------------------------------------- */

/* Ids that a file names. IG_TOKEN_NONE: it does not. */
typedef enum ig_token_role {
    IG_ROLE_BOS, IG_ROLE_EOS, IG_ROLE_EOT, IG_ROLE_EOM, IG_ROLE_UNK, IG_ROLE_PAD, IG_ROLE_COUNT
} ig_token_role;

/* Types of tokens as numbered in the format. */
enum { IG_TYPE_NORMAL = 1, IG_TYPE_UNKNOWN = 2, IG_TYPE_CONTROL = 3, IG_TYPE_USER = 4, IG_TYPE_LAST = 6 };

/* What a tokenizer is made from: nothing of it is kept, nothing of it is trusted. */
typedef struct ig_tokenizer_parts {
    ig_slice model, pre;
    const ig_slice *tokens;
    uint64_t n_tokens;
    const int32_t *types; /* NULL: all normal */
    uint64_t n_types;
    const ig_slice *merges;
    uint64_t n_merges;
    uint64_t role[IG_ROLE_COUNT]; /* IG_TOKEN_NONE: not named */
    bool add_bos;
} ig_tokenizer_parts;

ig_status ig_tokenizer_make(ig_tokenizer **out, const ig_tokenizer_parts *parts, ig_err *err);
uint32_t ig_tokenizer_role(const ig_tokenizer *t, ig_token_role role);

/* The longest special token that begins at text[at], or IG_TOKEN_NONE. Control tokens must end at or
 * before control_end (0: none wanted); user-defined ones may end anywhere. */
uint32_t ig_tokenizer_match_special(const ig_tokenizer *t, ig_slice text, size_t at, size_t control_end,
                                    size_t *end);

/* ---- template.c -------------------------------------------------------------------------------------- */

ig_slice ig_template_source(const ig_template *t);
/* context_json: the object of variables. Appends what was rendered. */
ig_status ig_template_render(const ig_template *t, ig_slice context_json, int64_t now_s, ig_buf *out,
                             ig_err *err);

#endif
