/* grammar: texts that have to be of a grammar: which tokens may come next.
 *
 * Owns:    the vocabulary that grammars are compiled against, compiled grammars, the texts, one thread.
 * Threads: grammars are made on any thread. The mask of a text is found on the thread here, from the moment that
 *          its last token is known; whoever wants it waits for that. One thread: a mask takes well under a
 *          millisecond, and the step of a model that it runs beside takes many.
 * Memory:  the crate's, which counts what each text holds; a mask is a bit a token. A text is freed by the thread.
 * Why everything ends by counted references: the engine may hold a text for a step longer than the server lives. */
#include "text/text.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/guide.h"

enum { STACK_BYTES = 64 << 20, WHY_BYTES = 160, VOCAB_MAX_BYTES = 256 << 20 };

struct ig_guided {
    ig_grammars *gs;
    ig_guided *next; /* in the list of those with work */
    ig_guide_state *state; /* the thread's */
    size_t n_words;
    /* Under the lock. */
    bool listed, ready, failed, done;
    uint32_t token; /* IG_TOKEN_NONE: the beginning */
    char why[WHY_BYTES];
    uint32_t mask[];
};

struct ig_grammars {
    const ig_tokenizer *tokenizer;
    uint32_t n_tokens;
    pthread_mutex_t making; /* of the vocabulary */
    ig_guide_vocab *vocab;

    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    ig_guided *first, **last; /* with work */
    int n_refs;               /* the owner's, and one a text */
};

struct ig_grammar {
    ig_grammars *gs;
    ig_guide_grammar *compiled;
};

static const char *words(const ig_guide_text *text) {
    return text->p ? text->p : "no memory";
}

static ig_status fail(int code, ig_guide_text *text, ig_err *err) {
    ig_status st = code == IG_GUIDE_LIMIT ? IG_ELIMIT : code == IG_GUIDE_MEMORY ? IG_EBUSY : IG_EINVAL;
    st = ig_fail(err, st, "%.400s", words(text));
    ig_guide_text_free(text);
    return st;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void list(ig_guided *g) { /* the lock is held */
    if (g->listed) return;
    g->listed = true;
    g->next = NULL;
    *g->gs->last = g;
    g->gs->last = &g->next;
    pthread_cond_signal(&g->gs->work);
}

static void find_mask(ig_guided *g) {
    ig_guide_text text = {0};
    int code = IG_GUIDE_OK;
    if (g->token != IG_TOKEN_NONE) code = ig_guide_state_take(g->state, g->token, &text);
    if (code == IG_GUIDE_OK) code = ig_guide_state_mask(g->state, g->mask, g->n_words, &text);
    if (code != IG_GUIDE_OK) {
        snprintf(g->why, sizeof g->why, "grammar: %.140s", words(&text));
        g->failed = true; /* nobody reads it before `ready` */
    }
    ig_guide_text_free(&text);
}

static void destroy(ig_grammars *gs) {
    ig_guide_vocab_free(gs->vocab);
    pthread_mutex_destroy(&gs->making);
    pthread_mutex_destroy(&gs->lock);
    pthread_cond_destroy(&gs->work);
    pthread_cond_destroy(&gs->ready);
    free(gs);
}

static void *thread_main(void *arg) {
    ig_grammars *gs = arg;
    pthread_setname_np(pthread_self(), "masks");
    pthread_mutex_lock(&gs->lock);
    while (gs->n_refs > 0) {
        ig_guided *g = gs->first;
        if (!g) {
            pthread_cond_wait(&gs->work, &gs->lock);
            continue;
        }
        gs->first = g->next;
        if (!gs->first) gs->last = &gs->first;
        bool done = g->done;
        pthread_mutex_unlock(&gs->lock);
        if (done) {
            ig_guide_state_free(g->state);
            free(g);
        } else {
            find_mask(g);
        }
        pthread_mutex_lock(&gs->lock);
        if (done) {
            gs->n_refs--;
            continue;
        }
        g->listed = false;
        g->ready = true;
        if (g->done) list(g); /* meanwhile */
        pthread_cond_broadcast(&gs->ready);
    }
    pthread_mutex_unlock(&gs->lock);
    destroy(gs);
    return NULL;
}

ig_status ig_grammars_make(ig_grammars **out, const ig_tokenizer *t, ig_err *err) {
    pthread_t thread;
    pthread_attr_t attr;
    ig_grammars *gs = calloc(1, sizeof *gs);
    if (!gs) return ig_fail(err, IG_ELIMIT, "no memory for grammars");
    gs->tokenizer = t;
    gs->n_tokens = ig_tokenizer_n_vocab(t);
    gs->last = &gs->first;
    gs->n_refs = 1;
    pthread_mutex_init(&gs->making, NULL);
    pthread_mutex_init(&gs->lock, NULL);
    pthread_cond_init(&gs->work, NULL);
    pthread_cond_init(&gs->ready, NULL);

    sigset_t all, before; /* signals are for others */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int code = pthread_create(&thread, &attr, thread_main, gs);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        destroy(gs);
        return ig_fail(err, IG_EIO, "start the thread of masks: %s", strerror(code));
    }
    *out = gs;
    return IG_OK;
}

void ig_grammars_release(ig_grammars *gs) {
    if (!gs) return;
    pthread_mutex_lock(&gs->lock);
    gs->n_refs--;
    pthread_cond_signal(&gs->work);
    pthread_mutex_unlock(&gs->lock);
}

/* ---- grammars ---------------------------------------------------------------------------------------- */

/* Control tokens have no bytes: no text has them inside. */
static ig_status make_vocab(ig_grammars *gs, ig_err *err) {
    int n_ends;
    const uint32_t *ends = ig_tokenizer_eos(gs->tokenizer, &n_ends);
    ig_guide_text text = {0};
    ig_buf bytes = ig_buf_init(VOCAB_MAX_BYTES);
    uint32_t *lens = calloc(gs->n_tokens, sizeof *lens);
    bool ok = lens != NULL;
    for (uint32_t id = 0; ok && id < gs->n_tokens; id++) {
        bool is_end = ig_tokenizer_is_special(gs->tokenizer, id);
        for (int i = 0; i < n_ends; i++) is_end = is_end || ends[i] == id;
        if (is_end) continue;
        ig_slice token = ig_tokenizer_bytes(gs->tokenizer, id);
        lens[id] = (uint32_t)token.n;
        ok = token.n == 0 || ig_buf_add(&bytes, token.p, token.n);
    }
    ig_status st = ok ? IG_OK : ig_fail(err, IG_EBUSY, "no memory for the tokens of a grammar");
    if (!st) {
        int code = ig_guide_vocab_make(&gs->vocab, lens, gs->n_tokens, bytes.p, ends, (size_t)n_ends, &text);
        if (code != IG_GUIDE_OK) st = fail(code, &text, err);
    }
    ig_guide_text_free(&text);
    ig_buf_free(&bytes);
    free(lens);
    return st;
}

ig_status ig_grammar_make(ig_grammar **out, ig_grammars *gs, ig_grammar_kind kind, ig_slice source, bool strict,
                          ig_buf *ignored, ig_err *err) {
    static const int kinds[] = {[IG_GRAMMAR_JSON_SCHEMA] = IG_GUIDE_JSON,
                                [IG_GRAMMAR_REGEX] = IG_GUIDE_REGEX,
                                [IG_GRAMMAR_LARK] = IG_GUIDE_LARK};
    ig_guide_text text = {0};
    pthread_mutex_lock(&gs->making);
    ig_status st = gs->vocab ? IG_OK : make_vocab(gs, err);
    pthread_mutex_unlock(&gs->making);
    if (st) return st;

    ig_grammar *g = calloc(1, sizeof *g);
    if (!g) return ig_fail(err, IG_EBUSY, "no memory for a grammar");
    g->gs = gs;
    int code = ig_guide_grammar_make(&g->compiled, gs->vocab, kinds[kind], source.p, source.n, strict, &text);
    if (code != IG_GUIDE_OK) {
        free(g);
        return fail(code, &text, err);
    }
    bool told = !ignored || ig_buf_add_str(ignored, words(&text));
    ig_guide_text_free(&text);
    if (!told) {
        ig_grammar_free(g);
        return ig_fail(err, IG_EBUSY, "no memory for a grammar");
    }
    *out = g;
    return IG_OK;
}

void ig_grammar_free(ig_grammar *g) {
    if (!g) return;
    ig_guide_grammar_free(g->compiled);
    free(g);
}

/* ---- texts ------------------------------------------------------------------------------------------- */

ig_status ig_guided_make(ig_guided **out, ig_grammar *grammar, ig_err *err) {
    ig_grammars *gs = grammar->gs;
    ig_guide_text text = {0};
    size_t n_words = ((size_t)gs->n_tokens + 31) / 32;
    ig_guided *g = calloc(1, sizeof *g + n_words * sizeof *g->mask);
    if (!g) return ig_fail(err, IG_EBUSY, "no memory for a text of a grammar");
    g->gs = gs;
    g->n_words = n_words;
    g->token = IG_TOKEN_NONE;
    int code = ig_guide_state_make(&g->state, grammar->compiled, &text);
    if (code != IG_GUIDE_OK) {
        free(g);
        return fail(code, &text, err);
    }
    pthread_mutex_lock(&gs->lock);
    gs->n_refs++;
    list(g);
    pthread_mutex_unlock(&gs->lock);
    *out = g;
    return IG_OK;
}

int ig_guided_n_tokens(const ig_guided *g) {
    return (int)g->gs->n_tokens;
}

const uint32_t *ig_guided_allowed(void *guided, const char **why) {
    ig_guided *g = guided;
    pthread_mutex_lock(&g->gs->lock);
    while (!g->ready) pthread_cond_wait(&g->gs->ready, &g->gs->lock);
    pthread_mutex_unlock(&g->gs->lock);
    if (!g->failed) return g->mask;
    *why = g->why;
    return NULL;
}

void ig_guided_take(void *guided, uint32_t token) {
    ig_guided *g = guided;
    if (g->failed) return; /* allowed has said so */
    pthread_mutex_lock(&g->gs->lock);
    g->token = token;
    g->ready = false;
    list(g);
    pthread_mutex_unlock(&g->gs->lock);
}

void ig_guided_done(void *guided) {
    ig_guided *g = guided;
    pthread_mutex_lock(&g->gs->lock);
    g->done = true;
    list(g);
    pthread_mutex_unlock(&g->gs->lock);
}
