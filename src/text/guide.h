/* guide.h: the functions of the Rust crate in guide/, as C sees them.
 *
 * Owns:    compiled chat templates (minijinja); vocabularies, compiled grammars and where texts stand in them
 *          (llguidance).
 * Threads: a template is immutable; any number of threads may render it. Each call runs on a thread of
 *          its own with a deep stack, and returns when that ends. So does ig_guide_grammar_make. A vocabulary
 *          and a grammar may be used by any thread; a state by one at a time.
 * Memory:  texts given out are freed by ig_guide_text_free, also after a failure.
 * Fails:   a code; the text is then the message. A panic inside is caught and is IG_GUIDE_FAILED. */
#ifndef IG_TEXT_GUIDE_H
#define IG_TEXT_GUIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    IG_GUIDE_OK = 0,
    IG_GUIDE_SYNTAX = 1, /* the template, or the grammar, does not parse */
    IG_GUIDE_RAISED = 2, /* it called raise_exception: the text is what it said */
    IG_GUIDE_FAILED = 3, /* it cannot be rendered with these variables */
    IG_GUIDE_LIMIT = 4,  /* steps, output, depth, what it may use of memory */
    IG_GUIDE_MEMORY = 5  /* the system had none, or no thread */
};

typedef struct ig_guide_template ig_guide_template;

/* NUL-terminated one past n. p NULL: there was no memory for it, and the code is no IG_GUIDE_OK. */
typedef struct ig_guide_text {
    char *p;
    size_t n;
} ig_guide_text;

int ig_guide_template_make(ig_guide_template **out, const char *source, size_t n, ig_guide_text *text);
/* context: a JSON object of variables. The text is what was rendered. */
int ig_guide_template_render(const ig_guide_template *t, const char *context, size_t n, int64_t now_s,
                             ig_guide_text *text);
void ig_guide_template_free(ig_guide_template *t); /* NULL is fine */
void ig_guide_text_free(ig_guide_text *text);

typedef struct ig_guide_vocab ig_guide_vocab;
typedef struct ig_guide_grammar ig_guide_grammar;
typedef struct ig_guide_state ig_guide_state;
enum { IG_GUIDE_JSON, IG_GUIDE_REGEX, IG_GUIDE_LARK };

/* Token i is lens[i] of the bytes, one behind the other; none: no text has it. An end token stands for the end. */
int ig_guide_vocab_make(ig_guide_vocab **out, const uint32_t *lens, size_t n, const char *bytes,
                        const uint32_t *ends, size_t n_ends, ig_guide_text *text);
void ig_guide_vocab_free(ig_guide_vocab *v); /* grammars of it live on; NULL is fine */
/* strict: a JSON schema with a part that cannot be kept to is refused; else the text is a JSON list of pointers
 * to those that were left out. */
int ig_guide_grammar_make(ig_guide_grammar **out, const ig_guide_vocab *v, int kind, const char *source,
                          size_t n, bool strict, ig_guide_text *text);
void ig_guide_grammar_free(ig_guide_grammar *g);
int ig_guide_state_make(ig_guide_state **out, const ig_guide_grammar *g, ig_guide_text *text);
/* Bit i of word i / 32: token i may come next. After a failure the state is good for nothing but freeing. */
int ig_guide_state_mask(ig_guide_state *s, uint32_t *mask, size_t n_words, ig_guide_text *text);
int ig_guide_state_take(ig_guide_state *s, uint32_t token, ig_guide_text *text);
void ig_guide_state_free(ig_guide_state *s);

#endif
