/* library: the models of this machine by name, and what is in them, for the verbs.
 * Threads: main's. Memory: malloc, bounded by the list of hub/.
 * The registry file spares opening every header at every `ingle ls`; it is written whole each time that
 * something new was looked at, and a failure to write it costs nothing but that time. */
#include "app/library.h"
#include "app/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

void ig_places_find(ig_places *p) {
    char *own = ig_models_cache_dir();
    *p = (ig_places){.cache = ""};
    if (!ig_hub_cache_dir(p->cache, sizeof p->cache)) p->cache[0] = 0;
    if (!ig_hub_state_dir(p->state, sizeof p->state)) p->state[0] = 0;
    if (own && strlen(own) < sizeof p->models - 32) {
        snprintf(p->models, sizeof p->models, "%s/models", own);
        snprintf(p->registry, sizeof p->registry, "%s/registry.json", own);
    }
    free(own);
}

int ig_library_list(ig_hub_items *out, const ig_places *p, bool all_revisions) {
    ig_err err;
    if (ig_hub_list(out, *p->cache ? p->cache : NULL, *p->models ? p->models : NULL, all_revisions, &err))
        return ig_app_fail(&err);
    if (*out->warning) ig_app_say(0, "%s", out->warning);
    return IG_EXIT_OK;
}

/* ---- names --------------------------------------------------------------------------------------------- */

int ig_library_check_name(const char *arg) {
    if (arg[strspn(arg, " \t\r\n")]) return IG_EXIT_OK;
    return ig_app_say(IG_EXIT_USAGE, "the name of the model is empty");
}

bool ig_library_has_words(const char *name, const char *words) {
    char word[256];
    while (*words) {
        size_t skip = strspn(words, " \t"), n = strcspn(words + skip, " \t");
        if (n >= sizeof word) return false;
        memcpy(word, words + skip, n);
        word[n] = 0;
        if (n && !strcasestr(name, word)) return false;
        words += skip + n;
    }
    return true;
}

bool ig_library_is_name(const char *name, const char *arg) {
    size_t n = strlen(arg);
    return strcasecmp(name, arg) == 0 ||
           (strlen(name) == n + 5 && strncasecmp(name, arg, n) == 0 && strcasecmp(name + n, ".gguf") == 0);
}

/* Lower is likelier; -1: not what is meant. */
static int likelihood(const ig_hub_item *item, const char *pick) {
    ig_hub_gguf g;
    if (!item->gguf) return *pick ? -1 : 0;
    if (!ig_hub_gguf_of(&g, item->path)) return -1;
    if (!*pick) return 1 + ig_hub_quant_rank(g.quant);
    size_t n = strlen(item->path), m = strlen(pick);
    if (n > m && item->path[n - m - 1] == '/' && strcmp(item->path + n - m, pick) == 0) return 0;
    return strcasecmp(g.quant, pick) == 0 ? 1 : ig_hub_quant_is(g.quant, pick) ? 2 : -1;
}

int ig_library_repo_item(const ig_hub_items *l, const ig_hub_name *name) {
    int best = -1, least = 0;
    for (int i = 0; i < l->n; i++) {
        if (!l->v[i].repo || strcasecmp(l->v[i].repo, name->repo) != 0 || !l->v[i].current) continue;
        int rank = likelihood(&l->v[i], name->pick);
        if (rank < 0 || (best >= 0 && rank >= least)) continue;
        best = i;
        least = rank;
    }
    return best;
}

/* ---- what is in them ----------------------------------------------------------------------------------- */

void ig_library_look(ig_hub_facts *out, const ig_hub_item *item) {
    ig_gguf *gguf = NULL;
    ig_snapshot *snapshot = NULL;
    ig_model_info info = {.family = NULL};
    ig_err err = {.msg = ""};
    *out = (ig_hub_facts){.bits = 0};
    ig_status st = ig_load_files(&gguf, &snapshot, item->path, &err);
    if (!st) st = ig_model_inspect(&info, (ig_checkpoint){gguf, snapshot}, &err);
    if (info.architecture.p)
        snprintf(out->architecture, sizeof out->architecture, "%.*s", (int)info.architecture.n,
                 info.architecture.p);
    ig_text_calm(out->architecture, false);
    if (info.n_params) out->bits = 8.0 * (double)item->bytes / (double)info.n_params;
    if (!st && info.family) out->n_ctx = (uint64_t)info.config.n_ctx_train;
    out->runs = !st && info.family;
    if (!out->runs) snprintf(out->why, sizeof out->why, "%.255s", err.msg);
    ig_text_calm(out->why, false); /* it may have been cut within a character */
    if (!out->runs && !*out->why) snprintf(out->why, sizeof out->why, "not a family that runs here");
    ig_gguf_close(gguf);
    ig_snapshot_close(snapshot);
}

ig_hub_facts *ig_library_facts(const ig_hub_items *l, const ig_places *p, bool fresh, ig_err *unsaved) {
    int n_looked = 0;
    ig_hub_registry *known = NULL;
    ig_hub_facts *facts = calloc((size_t)l->n + 1, sizeof *facts);
    *unsaved = (ig_err){.code = IG_OK};
    if (!facts) return NULL;
    if (*p->registry && !fresh && ig_hub_registry_open(&known, p->registry, NULL)) known = NULL;
    for (int i = 0; i < l->n; i++) {
        if (l->v[i].unfinished) {
            snprintf(facts[i].why, sizeof facts[i].why,
                     "its download is not finished; `ingle get %.160s` goes on with it", l->v[i].repo);
            continue;
        }
        if (known && ig_hub_registry_get(known, &l->v[i], &facts[i])) continue;
        ig_library_look(&facts[i], &l->v[i]);
        n_looked += ig_hub_registry_keeps(&l->v[i]);
    }
    ig_hub_registry_close(known);
    char *slash = strrchr(p->registry, '/');
    if (n_looked && slash) {
        char folder[sizeof p->registry];
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - p->registry), p->registry);
        if (!ig_file_make_dirs(folder, unsaved)) ig_hub_registry_save(p->registry, l, facts, unsaved);
    }
    return facts;
}
