/* models: from what a person calls a model to the path of its file or folder.
 * Threads: main's. Memory: malloc; the list of a folder is bounded by MODELS_MAX.
 * Why substrings: a name like SmolLM2-135M-Instruct.Q4_1.gguf is not for typing; "smol" is. A name with a
 * slash is org/name on a hub, taken whole; what is not here is never fetched without a question. */
#include "app/library.h"
#include "app/load.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODELS_MAX = 4096 };

typedef struct list {
    char **v;
    int n;
} list;

static void list_free(list *l) {
    for (int i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (list){NULL, 0};
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_gguf(const char *name) {
    size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

/* A part of a split model other than the first, "...-00002-of-00003.gguf": the model is listed by its first. */
static bool is_later_part(const char *name) {
    const size_t n = strlen(name), tail = sizeof "-00002-of-00003.gguf" - 1;
    const char *p = name + n - tail;
    return n > tail && p[0] == '-' && strspn(p + 1, "0123456789") == 5 && strncmp(p + 6, "-of-", 4) == 0 &&
           strspn(p + 10, "0123456789") == 5 && strncmp(p + 1, "00001", 5) != 0;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Is folder/name a snapshot: a folder with a config.json? */
static bool is_snapshot(const char *folder, const char *name) {
    char *path = NULL;
    bool yes = asprintf(&path, "%s/%s/config.json", folder, name) >= 0 && access(path, F_OK) == 0;
    free(path);
    return yes;
}

/* The .gguf files and the snapshots of a folder, sorted. A folder that is not there is an empty one. */
static list list_folder(const char *folder) {
    list l = {NULL, 0};
    DIR *d = opendir(folder);
    if (!d) return l;
    l.v = calloc(MODELS_MAX, sizeof *l.v);
    for (struct dirent *e; l.v && l.n < MODELS_MAX && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !(is_gguf(e->d_name) || is_snapshot(folder, e->d_name))) continue;
        if (is_gguf(e->d_name) && is_later_part(e->d_name)) continue;
        if (!(l.v[l.n] = strdup(e->d_name))) break;
        l.n++;
    }
    closedir(d);
    if (l.n) qsort(l.v, (size_t)l.n, sizeof *l.v, by_name);
    return l;
}

char *ig_models_cache_dir(void) {
    char *dir = NULL;
    const char *own = getenv("INGLE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return strdup(own);
    if (xdg && *xdg) return asprintf(&dir, "%s/ingle", xdg) < 0 ? NULL : dir;
    if (home && *home) return asprintf(&dir, "%s/.cache/ingle", home) < 0 ? NULL : dir;
    return NULL;
}

/* ---- what a person says -------------------------------------------------------------------------------- */

/* A file of a snapshot stands for its folder. */
static char *path_of(const char *arg) {
    static const char *const parts[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    const char *slash = strrchr(arg, '/'), *name = slash ? slash + 1 : arg;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(name, parts[i]) == 0)
            return slash == arg ? strdup("/") : slash ? strndup(arg, (size_t)(slash - arg)) : strdup(".");
    return strdup(arg);
}

bool ig_models_gguf_in(char *out, size_t cap, const char *folder) {
    list l = list_folder(folder);
    bool found = false;
    for (int i = 0; i < l.n && !found; i++)
        if ((found = is_gguf(l.v[i]))) snprintf(out, cap, "%s", l.v[i]);
    list_free(&l);
    return found;
}

/* Weights alone name no model: config and tokenizer lie beside them, and often more weights. */
static bool is_part(const char *path) {
    static const char ending[] = ".safetensors";
    size_t n = strlen(path), n_ending = sizeof ending - 1;
    return n > n_ending && strcmp(path + n - n_ending, ending) == 0 && !is_folder(path);
}

void ig_models_name(char *out, size_t cap, const char *path) {
    static const char before[] = "/models--", after[] = "/snapshots/";
    char whole[PATH_MAX];
    const bool folder = is_folder(path);
    const char *p = folder && realpath(path, whole) ? whole : path;
    const char *repo = folder ? strstr(p, before) : NULL, *end = repo ? strstr(repo, after) : NULL;
    const char *org = repo ? repo + sizeof before - 1 : NULL, *dashes = org ? strstr(org, "--") : NULL;
    if (end && dashes && dashes < end && !strchr(end + sizeof after - 1, '/')) {
        snprintf(out, cap, "%.*s/%.*s", (int)(dashes - org), org, (int)(end - dashes - 2), dashes + 2);
        return;
    }
    const char *slash = strrchr(p, '/');
    snprintf(out, cap, "%s", slash && slash[1] ? slash + 1 : p);
    size_t n = strlen(out);
    if (n > 5 && is_gguf(out)) out[n - 5] = 0;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static int say_none(const char *dir, const char *arg, const ig_hub_items *there) {
    enum { SHOWN = 20 };
    char calm[PATH_MAX];
    snprintf(calm, sizeof calm, "%s", *dir ? dir : "INGLE_CACHE/models");
    ig_text_calm(calm, false);
    if (arg)
        ig_app_say(IG_EXIT_NOT_FOUND,
                   "no model \"%.200s\": it is not a file, and no name on this machine holds it", arg);
    else
        ig_app_say(IG_EXIT_NOT_FOUND, "no model in %s", calm);
    for (int i = 0; i < there->n && i < SHOWN; i++) ig_app_list_name("there is ", there->v[i].name);
    if (there->n > SHOWN) fprintf(stderr, "  and %d more; `ingle ls` lists them\n", there->n - SHOWN);
    fprintf(
        stderr,
        "  `ingle get org/name` downloads one, `./run` in the source folder fetches the starter model; any\n"
        "  GGUF file or snapshot folder can be given by its path, or be put into %s\n",
        calm);
    return IG_EXIT_NOT_FOUND;
}

/* Of some items: those of the models folder, when `local`; whose names hold the words, when `arg`. */
typedef struct filter {
    bool local;
    const char *arg;
} filter;

static bool passes(const ig_hub_item *item, filter f) {
    return item->current && (!f.local || !item->repo) && (!f.arg || ig_library_has_words(item->name, f.arg));
}

static int count(const ig_hub_items *l, filter f, int *last) {
    int n = 0;
    for (int i = 0; i < l->n; i++)
        if (passes(&l->v[i], f)) n++, *last = i;
    return n;
}

static int say_several(const ig_hub_items *l, filter f) {
    ig_app_say(IG_EXIT_NOT_FOUND,
               f.arg ? "\"%.200s\" could be any of these; say more of the name" : "which model?%s",
               f.arg ? f.arg : "");
    for (int i = 0; i < l->n; i++)
        if (passes(&l->v[i], f)) ig_app_list_name("", l->v[i].name);
    return IG_EXIT_NOT_FOUND;
}

/* Without a name: the only one in the models folder, else the starter, else the only one in the cache. */
static int find_any(const ig_hub_items *l, const char *dir, int *at) {
    const filter local = {.local = true}, all = {.local = false};
    int n = count(l, local, at);
    if (n == 1) return IG_EXIT_OK;
    for (int i = 0; i < l->n && n; i++) {
        if (l->v[i].repo || strcmp(l->v[i].name, IG_STARTER_FILE) != 0) continue;
        *at = i;
        return IG_EXIT_OK;
    }
    if (n) return say_several(l, local);
    n = count(l, all, at);
    return n == 1 ? IG_EXIT_OK : n ? say_several(l, all) : say_none(dir, NULL, l);
}

static int find_words(const ig_hub_items *l, const char *dir, const char *arg, int *at) {
    const filter words = {.arg = arg};
    for (*at = 0; *at < l->n; ++*at)
        if (l->v[*at].current && strcmp(l->v[*at].name, arg) == 0) return IG_EXIT_OK;
    for (*at = 0; *at < l->n; ++*at)
        if (l->v[*at].current && ig_library_is_name(l->v[*at].name, arg)) return IG_EXIT_OK;
    int n = count(l, words, at);
    return n == 1 ? IG_EXIT_OK : n ? say_several(l, words) : say_none(dir, arg, l);
}

/* Asks whether to look for what is not here, on a terminal, where somebody can answer; when its size is known
 * ig_get asks again. */
static bool is_offered(const ig_hub_name *name) {
    ig_hub_config c;
    char question[1024];
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || ig_hub_config_init(&c, NULL)) return false;
    snprintf(question, sizeof question, "%s is not on this machine. Ask %s for it?", name->repo, c.endpoint);
    explicit_bzero(c.token, sizeof c.token);
    return ig_app_confirm(question);
}

static int say_not_here(const char *arg, const ig_hub_name *name) {
    return ig_app_say(
        IG_EXIT_NOT_FOUND,
        "no file %.300s, and no model of this name on this machine; `ingle get %s%s%s` downloads it", arg,
        name->repo, *name->pick ? ":" : "", name->pick);
}

/* org/name or org/name:Q4_K_M. */
static int find_repo(ig_hub_items *l, const ig_places *places, const char *arg, const ig_hub_name *name,
                     int *at) {
    if ((*at = ig_library_repo_item(l, name)) >= 0) return IG_EXIT_OK;
    /* What looks like a path of a file that is not there is no reason to ask a hub. */
    if ((is_gguf(arg) && !*name->pick) || !is_offered(name)) return say_not_here(arg, name);
    int code = ig_get(arg);
    ig_hub_items_clear(l);
    if (!code) code = ig_library_list(l, places, false);
    if (!code && (*at = ig_library_repo_item(l, name)) < 0) code = say_not_here(arg, name);
    return code;
}

int ig_models_find(char **path, const char *arg) {
    ig_places places;
    ig_hub_items l = {.n = 0};
    ig_hub_name name;
    int at = -1, code;
    if (arg && (code = ig_library_check_name(arg))) return code;
    if (arg && access(arg, F_OK) == 0) {
        *path = path_of(arg);
        if (*path && is_part(*path)) {
            free(*path);
            return ig_app_say(IG_EXIT_USAGE, "%.300s is one file of a model; give the folder that it is in",
                              arg);
        }
        return *path ? IG_EXIT_OK : ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    const bool repo = arg && ig_hub_name_parse(&name, arg, NULL) == IG_OK;
    if (arg && strchr(arg, '/') && !repo) return ig_app_say(IG_EXIT_NOT_FOUND, "no file %.300s", arg);
    ig_places_find(&places);
    if (!*places.models && !*places.cache)
        return ig_app_say(IG_EXIT_NOT_FOUND, "no model given, and neither INGLE_CACHE nor HOME is set");
    if ((code = ig_library_list(&l, &places, false))) return code;
    if (repo)
        code = find_repo(&l, &places, arg, &name, &at);
    else if (arg)
        code = find_words(&l, places.models, arg, &at);
    else
        code = find_any(&l, places.models, &at);
    if (!code && !(*path = strdup(l.v[at].path))) code = ig_app_say(IG_EXIT_FAILED, "no memory");
    ig_hub_items_clear(&l);
    return code;
}

bool ig_models_knows(const char *arg) {
    ig_places places;
    ig_hub_items l = {.n = 0};
    int last;
    if (strchr(arg, '/') || is_gguf(arg) || is_snapshot(".", arg)) return true;
    ig_places_find(&places);
    if (ig_hub_list(&l, *places.cache ? places.cache : NULL, *places.models ? places.models : NULL, false,
                    NULL))
        return false;
    bool known = count(&l, (filter){.arg = arg}, &last) > 0;
    ig_hub_items_clear(&l);
    return known;
}
