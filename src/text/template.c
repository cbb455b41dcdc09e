/* template: chat templates, compiled and rendered by the Rust crate.
 * Owns:    the compiled template, a copy of its source, and the one for tools.
 * Threads: read-only after it was made.
 * Memory:  the crate's; a render is bounded by its fuel (see guide/src/template.rs).
 * Why not Jinja in C: 74 of 75 real templates came out byte-equal to transformers with this engine. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "text/guide.h"
#include "text/inside.h"

struct ig_template {
    ig_guide_template *compiled;
    ig_template *for_tools; /* or NULL: the same */
    size_t n;
    char source[];
};

static ig_status status_of(int code) {
    switch (code) {
    case IG_GUIDE_OK: return IG_OK;
    case IG_GUIDE_SYNTAX: return IG_EFORMAT;
    case IG_GUIDE_LIMIT:
    case IG_GUIDE_MEMORY: return IG_ELIMIT;
    default: return IG_EINVAL;
    }
}

/* Without one there was no memory for it. */
static const char *words(const ig_guide_text *text) {
    return text->p ? text->p : "no memory";
}

ig_status ig_template_make(ig_template **out, ig_slice source, ig_err *err) {
    ig_guide_template *compiled = NULL;
    ig_guide_text text = {0};
    int code = ig_guide_template_make(&compiled, source.p, source.n, &text);
    if (code != IG_GUIDE_OK) { /* but for memory, the template is at fault */
        ig_status st = code == IG_GUIDE_MEMORY ? IG_ELIMIT : IG_EFORMAT;
        st = ig_fail(err, st, "chat template: %s", words(&text));
        ig_guide_text_free(&text);
        return st;
    }
    ig_guide_text_free(&text);
    ig_template *t = malloc(sizeof *t + source.n);
    if (!t) {
        ig_guide_template_free(compiled);
        return ig_fail(err, IG_ELIMIT, "chat template: no memory");
    }
    t->compiled = compiled;
    t->for_tools = NULL;
    t->n = source.n;
    if (source.n > 0) memcpy(t->source, source.p, source.n);
    *out = t;
    return IG_OK;
}

void ig_template_set_for_tools(ig_template *t, ig_template *for_tools) {
    ig_template_free(t->for_tools);
    t->for_tools = for_tools;
}

const ig_template *ig_template_for(const ig_template *t, bool tools) {
    return tools && t->for_tools ? t->for_tools : t;
}

void ig_template_free(ig_template *t) {
    if (!t) return;
    ig_template_free(t->for_tools);
    ig_guide_template_free(t->compiled);
    free(t);
}

ig_slice ig_template_source(const ig_template *t) {
    return (ig_slice){t->source, t->n};
}

ig_status ig_template_render(const ig_template *t, ig_slice context_json, int64_t now_s, ig_buf *out,
                             ig_err *err) {
    ig_guide_text text = {0};
    ig_status st = IG_OK;
    int code = ig_guide_template_render(t->compiled, context_json.p, context_json.n, now_s, &text);
    if (code == IG_GUIDE_RAISED)
        st = ig_fail(err, IG_EINVAL, "the chat template refuses these messages: %s", words(&text));
    else if (code != IG_GUIDE_OK)
        st = ig_fail(err, status_of(code), "chat template: %s", words(&text));
    else if (!ig_buf_add(out, text.p, text.n))
        st = ig_fail(err, IG_ELIMIT, "prompt of %zu bytes, limit %zu", text.n, out->n_max);
    ig_guide_text_free(&text);
    return st;
}
