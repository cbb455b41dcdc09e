/* guide.h: the functions of the Rust crate in guide/, as C sees them.
 *
 * Owns:    compiled chat templates (minijinja).
 * Threads: a template is immutable; any number of threads may render it. Each call runs on a thread of
 *          its own with a deep stack, and returns when that ends.
 * Memory:  texts given out are freed by ig_guide_text_free, also after a failure.
 * Fails:   a code; the text is then the message. A panic inside is caught and is IG_GUIDE_FAILED. */
#ifndef IG_TEXT_GUIDE_H
#define IG_TEXT_GUIDE_H

#include <stddef.h>
#include <stdint.h>

enum {
    IG_GUIDE_OK = 0,
    IG_GUIDE_SYNTAX = 1, /* the template does not parse */
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

#endif
