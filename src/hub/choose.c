/* choose: which files of a repository make the model that a person means.
 * Threads: any. Memory: malloc, one entry a quantization.
 * Without a wish: what a snapshot needs, by patterns, and of other formats nothing. A repository of GGUF
 * files only holds one model many times: one quantization is taken, Q4_K_M where there is one, as other
 * programs do, and whoever calls can say so with the list of all. */
#include "hub/hub.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of a snapshot, at its top: what reads and runs it, and what says whose it is. */
static const char *const parts[] = {"*.safetensors",
                                    "*.json",
                                    "*.model",
                                    "*.jinja",
                                    "merges.txt",
                                    "vocab.txt",
                                    "*.tiktoken",
                                    "LICENSE*",
                                    "*_Pooling/config.json",
                                    "additional_chat_templates/*.jinja"};

static bool has_ending(const char *path, const char *ending) {
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

static bool matches(const char *path, const char *const *patterns) {
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, path, 0) == 0) return true;
    return false;
}

static const ig_hub_file *find(const ig_hub_repo *r, const char *path) {
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->v[i].path, path) == 0) return &r->v[i];
    return NULL;
}

/* ---- quantizations ------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    const ig_hub_variant *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->path, y->path);
}

static bool is_same_set(const char *a, const ig_hub_gguf *x, const char *b, const ig_hub_gguf *y) {
    return x->n_stem == y->n_stem && x->n_parts == y->n_parts && strncmp(a, b, x->n_stem) == 0;
}

/* Files are sorted by path, so the parts of one model follow each other, first part first. */
static ig_status list_variants(ig_hub_choice *c, const ig_hub_repo *r, ig_err *err) {
    ig_hub_gguf g, last;
    c->variant = calloc((size_t)r->n + 1, sizeof *c->variant);
    if (!c->variant) return ig_fail(err, IG_ELIMIT, "no memory");
    for (int i = 0; i < r->n; i++) {
        const ig_hub_file *f = &r->v[i];
        if (!ig_hub_gguf_of(&g, f->path) || !g.is_model) continue;
        ig_hub_variant *v = c->n_variants ? &c->variant[c->n_variants - 1] : NULL;
        if (!v || !ig_hub_gguf_of(&last, v->path) || !is_same_set(v->path, &last, f->path, &g)) {
            v = &c->variant[c->n_variants++];
            *v = (ig_hub_variant){.path = f->path};
            memcpy(v->quant, g.quant, sizeof v->quant);
        }
        v->bytes += f->bytes;
        v->n_files++;
    }
    if (c->n_variants) qsort(c->variant, (size_t)c->n_variants, sizeof *c->variant, by_size);
    return IG_OK;
}

/* All parts of it, or a word about the first that is not there. */
static ig_status take_variant(ig_hub_choice *c, ig_hub_repo *r, ig_hub_variant *v, ig_err *err) {
    ig_hub_gguf first, g;
    int next = 1;
    ig_hub_gguf_of(&first, v->path);
    for (int i = 0; i < r->n; i++) {
        if (!ig_hub_gguf_of(&g, r->v[i].path) || !is_same_set(v->path, &first, r->v[i].path, &g)) continue;
        r->v[i].wanted = true;
        if (g.part != next) break;
        next++;
    }
    if (next - 1 != first.n_parts)
        return ig_fail(err, IG_EFORMAT, "part %d of %d of %.*s is not in the repository", next, first.n_parts,
                       (int)first.n_stem, v->path);
    v->taken = true;
    c->gguf = v->path;
    return IG_OK;
}

/* The one that nobody would be surprised by. */
static ig_hub_variant *default_variant(ig_hub_choice *c) {
    ig_hub_variant *best = NULL;
    for (int i = 0; i < c->n_variants; i++)
        if (!best || ig_hub_quant_rank(c->variant[i].quant) < ig_hub_quant_rank(best->quant))
            best = &c->variant[i];
    return best;
}

static ig_status pick(ig_hub_choice *c, ig_hub_repo *r, const char *what, ig_err *err) {
    ig_hub_gguf g, v;
    ig_hub_variant *found = NULL;
    if (ig_hub_gguf_of(&g, what) && find(r, what)) { /* a part stands for all of them */
        for (int i = 0; i < c->n_variants; i++)
            if (ig_hub_gguf_of(&v, c->variant[i].path) && is_same_set(what, &g, c->variant[i].path, &v))
                found = &c->variant[i];
    }
    for (int whole = 1; whole >= 0 && !found; whole--) {
        for (int i = 0; i < c->n_variants; i++) {
            const char *quant = c->variant[i].quant;
            if (whole ? strcasecmp(quant, what) != 0 : !ig_hub_quant_is(quant, what)) continue;
            if (found)
                return ig_fail(err, IG_ENOTFOUND, "%s is in %s and in %s; name the file", what, found->path,
                               c->variant[i].path);
            found = &c->variant[i];
        }
    }
    if (found) return take_variant(c, r, found, err);
    for (int i = 0; i < r->n; i++) {
        if (strcmp(r->v[i].path, what) != 0) continue;
        r->v[i].wanted = true;
        if (ig_hub_gguf_of(&g, what)) c->gguf = r->v[i].path;
        return IG_OK;
    }
    return ig_fail(err, IG_ENOTFOUND, "the repository has no file and no quantization \"%.200s\"", what);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static bool is_top(const char *path) {
    return !strchr(path, '/');
}

/* Some makers put the same weights a second time under a name of their own. */
static bool is_double(const ig_hub_repo *r, const char *path) {
    return strncmp(path, "consolidated", 12) == 0 && has_ending(path, ".safetensors") &&
           (find(r, "model.safetensors") || find(r, "model.safetensors.index.json"));
}

static bool has_snapshot(const ig_hub_repo *r) {
    for (int i = 0; i < r->n; i++)
        if (is_top(r->v[i].path) && has_ending(r->v[i].path, ".safetensors")) return true;
    return false;
}

static void take_snapshot(ig_hub_repo *r) {
    for (int i = 0; i < r->n; i++) {
        const char *path = r->v[i].path;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (fnmatch(parts[k], path, FNM_PATHNAME) == 0 && path[0] != '.' && !is_double(r, path))
                r->v[i].wanted = true;
    }
}

static ig_status choose_default(ig_hub_choice *c, ig_hub_repo *r, ig_err *err) {
    if (has_snapshot(r)) {
        take_snapshot(r);
        return IG_OK;
    }
    if (!c->n_variants) {
        bool pickled = false;
        for (int i = 0; i < r->n; i++)
            pickled = pickled || has_ending(r->v[i].path, ".bin") || has_ending(r->v[i].path, ".pt") ||
                      has_ending(r->v[i].path, ".pth");
        return ig_fail(err, IG_ENOTFOUND,
                       "the repository has neither safetensors nor GGUF files%s; --include fetches others",
                       pickled ? ", only pickled weights, which are programs and are not run here" : "");
    }
    c->by_default = c->n_variants > 1;
    return take_variant(c, r, default_variant(c), err);
}

ig_status ig_hub_choose(ig_hub_choice *out, ig_hub_repo *r, const ig_hub_want *want, ig_err *err) {
    *out = (ig_hub_choice){.n_files = 0};
    for (int i = 0; i < r->n; i++) r->v[i].wanted = false;
    ig_status st = list_variants(out, r, err);
    if (st) return st;
    if (want->pick && *want->pick)
        st = pick(out, r, want->pick, err);
    else if (want->include && *want->include)
        for (int i = 0; i < r->n; i++) r->v[i].wanted = matches(r->v[i].path, want->include);
    else
        st = choose_default(out, r, err);
    if (st) return st;
    for (int i = 0; i < r->n; i++) {
        if (want->exclude && matches(r->v[i].path, want->exclude)) r->v[i].wanted = false;
        out->n_files += r->v[i].wanted;
        out->bytes += r->v[i].wanted ? r->v[i].bytes : 0;
    }
    if (!out->n_files) return ig_fail(err, IG_ENOTFOUND, "nothing in the repository fits the patterns");
    return IG_OK;
}

void ig_hub_choice_clear(ig_hub_choice *c) {
    free(c->variant);
    *c = (ig_hub_choice){.n_files = 0};
}
