/* models: from what a person calls a model to the path of its file or folder.
 * Threads: main's. Memory: malloc; the list of a folder is bounded by MODELS_MAX.
 * Why substrings: a name like SmolLM2-135M-Instruct.Q4_1.gguf is not for typing; "smol" is. A name with a
 * slash is org/name in a hub cache and is taken whole. */
#include "app/load.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char starter[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

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
        if (!(l.v[l.n] = strdup(e->d_name))) break;
        l.n++;
    }
    closedir(d);
    if (l.n) qsort(l.v, (size_t)l.n, sizeof *l.v, by_name);
    return l;
}

/* Every word of `words` is somewhere in `name`, in any case. */
static bool has_words(const char *name, const char *words) {
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

/* The whole name, with or without .gguf. */
static bool is_name(const char *name, const char *arg) {
    size_t n = strlen(arg);
    return strcasecmp(name, arg) == 0 || (strlen(name) == n + 5 && strncasecmp(name, arg, n) == 0);
}

/* Keeps what `arg` means, or all when it is NULL. */
static void keep(list *l, const char *arg) {
    int n = 0;
    for (int i = 0; arg && i < l->n; i++) {
        if (!is_name(l->v[i], arg)) continue;
        char *whole = l->v[i];
        l->v[i] = l->v[0];
        l->v[0] = whole;
        for (int j = 1; j < l->n; j++) free(l->v[j]);
        l->n = 1;
        return;
    }
    for (int i = 0; i < l->n; i++) {
        if (!arg || has_words(l->v[i], arg))
            l->v[n++] = l->v[i];
        else
            free(l->v[i]);
    }
    l->n = n;
}

char *ig_models_cache_dir(void) {
    char *dir = NULL;
    const char *own = getenv("INGLE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return strdup(own);
    if (xdg && *xdg) return asprintf(&dir, "%s/ingle", xdg) < 0 ? NULL : dir;
    if (home && *home) return asprintf(&dir, "%s/.cache/ingle", home) < 0 ? NULL : dir;
    return NULL;
}

static char *models_dir(void) {
    char *cache = ig_models_cache_dir(), *dir = NULL;
    if (cache && asprintf(&dir, "%s/models", cache) < 0) dir = NULL;
    free(cache);
    return dir;
}

/* ---- hub caches: models--ORG--NAME/refs/main holds HASH, models--ORG--NAME/snapshots/HASH the model ---- */

/* The only entry of a folder, malloc'd; NULL: none, or several. */
static char *only_entry(const char *folder) {
    char *name = NULL;
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        if (n++ == 0) name = strdup(e->d_name);
    }
    if (d) closedir(d);
    if (n == 1) return name;
    free(name);
    return NULL;
}

/* What refs/main says, malloc'd; NULL when it says nothing that can be a folder's name. */
static char *main_revision(const char *repo) {
    char *path = NULL, *text = NULL;
    size_t n = 0;
    bool good =
        asprintf(&path, "%s/refs/main", repo) >= 0 && ig_file_slurp(&text, &n, path, 128, NULL) == IG_OK;
    free(path);
    while (good && n && isspace((unsigned char)text[n - 1])) text[--n] = 0;
    for (size_t i = 0; good && i < n; i++) good = isalnum((unsigned char)text[i]);
    if (good && n) return text;
    free(text);
    return NULL;
}

static char *snapshot_in(const char *hub, const char *org_name) {
    char *repo = NULL, *folder = NULL, *found = NULL;
    const char *slash = strchr(org_name, '/');
    if (asprintf(&repo, "%s/models--%.*s--%s", hub, (int)(slash - org_name), org_name, slash + 1) < 0)
        return NULL;
    char *revision = main_revision(repo);
    if (!revision && asprintf(&folder, "%s/snapshots", repo) >= 0) revision = only_entry(folder);
    if (revision && (asprintf(&found, "%s/snapshots/%s", repo, revision) < 0 || !is_folder(found))) {
        free(found);
        found = NULL;
    }
    free(revision);
    free(folder);
    free(repo);
    return found;
}

/* org/name: two plain words, neither of which starts with a dot. */
static bool is_org_name(const char *arg) {
    const char *slash = strchr(arg, '/');
    return slash && slash != arg && slash[1] && !strchr(slash + 1, '/') && arg[0] != '.' && slash[1] != '.';
}

/* malloc'd; NULL: no hub cache has it. */
static char *find_in_hubs(const char *org_name) {
    static const struct {
        const char *variable, *below;
    } hubs[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"HOME", "/.cache/huggingface/hub"}};
    char *found = NULL;
    for (size_t i = 0; i < sizeof hubs / sizeof *hubs && !found; i++) {
        const char *top = getenv(hubs[i].variable);
        char *hub = NULL;
        if (!top || !*top || asprintf(&hub, "%s%s", top, hubs[i].below) < 0) continue;
        found = snapshot_in(hub, org_name);
        free(hub);
    }
    return found;
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

static int say_none(const char *dir, const char *arg, const list *there) {
    if (arg)
        ig_app_say(IG_EXIT_NOT_FOUND, "no model \"%.200s\": it is not a file, and no name in %s holds it",
                   arg, dir);
    else
        ig_app_say(IG_EXIT_NOT_FOUND, "no model in %s", dir);
    for (int i = 0; i < there->n; i++) fprintf(stderr, "  there is %s\n", there->v[i]);
    fprintf(
        stderr,
        "  `./run` in the source folder fetches the starter model; any other GGUF file or snapshot folder\n"
        "  can be given by its path, or be put into %s\n",
        dir);
    return IG_EXIT_NOT_FOUND;
}

static int say_several(const char *arg, const list *l) {
    ig_app_say(IG_EXIT_NOT_FOUND,
               arg ? "\"%.200s\" could be any of these; say more of the name" : "which model?%s",
               arg ? arg : "");
    for (int i = 0; i < l->n; i++) fprintf(stderr, "  %s\n", l->v[i]);
    return IG_EXIT_NOT_FOUND;
}

int ig_models_find(char **path, const char *arg) {
    int code = IG_EXIT_OK;
    if (arg && *arg && access(arg, F_OK) == 0) {
        *path = path_of(arg);
        if (*path && is_part(*path)) {
            free(*path);
            return ig_app_say(IG_EXIT_USAGE, "%.300s is one file of a model; give the folder that it is in", arg);
        }
        return *path ? IG_EXIT_OK : ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    if (arg && is_org_name(arg) && (*path = find_in_hubs(arg))) return IG_EXIT_OK;
    if (arg && strchr(arg, '/'))
        return ig_app_say(IG_EXIT_NOT_FOUND, "no file %.300s%s", arg,
                          is_org_name(arg) ? ", and no model of this name in the Hugging Face cache" : "");
    char *dir = models_dir();
    if (!dir) return ig_app_say(IG_EXIT_NOT_FOUND, "no model given, and neither INGLE_CACHE nor HOME is set");
    list l = list_folder(dir);
    keep(&l, arg);
    if (!arg && l.n > 1) {
        for (int i = 0; i < l.n; i++)
            if (strcmp(l.v[i], starter) == 0) keep(&l, starter);
    }
    if (l.n == 0) {
        list all = list_folder(dir);
        code = say_none(dir, arg, &all);
        list_free(&all);
    } else if (l.n > 1) {
        code = say_several(arg, &l);
    } else if (asprintf(path, "%s/%s", dir, l.v[0]) < 0) {
        code = ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    list_free(&l);
    free(dir);
    return code;
}

bool ig_models_knows(const char *arg) {
    if (strchr(arg, '/') || is_gguf(arg) || is_snapshot(".", arg)) return true;
    char *dir = models_dir();
    list l = dir ? list_folder(dir) : (list){NULL, 0};
    keep(&l, arg);
    bool known = l.n > 0;
    list_free(&l);
    free(dir);
    return known;
}
