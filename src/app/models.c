/* models: from what a person calls a model to the path of its file.
 * Threads: main's. Memory: malloc; the list of a folder is bounded by MODELS_MAX.
 * Why substrings: a name like SmolLM2-135M-Instruct.Q4_1.gguf is not for typing; "smol" is. */
#include "app/load.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

/* The .gguf files of a folder, sorted. A folder that is not there is an empty one. */
static list list_folder(const char *folder) {
    list l = {NULL, 0};
    DIR *d = opendir(folder);
    if (!d) return l;
    l.v = calloc(MODELS_MAX, sizeof *l.v);
    for (struct dirent *e; l.v && l.n < MODELS_MAX && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !is_gguf(e->d_name)) continue;
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

static int say_none(const char *dir, const char *arg, const list *there) {
    if (arg)
        ig_app_say(IG_EXIT_NOT_FOUND, "no model \"%.200s\": it is not a file, and no name in %s holds it",
                   arg, dir);
    else
        ig_app_say(IG_EXIT_NOT_FOUND, "no model in %s", dir);
    for (int i = 0; i < there->n; i++) fprintf(stderr, "  there is %s\n", there->v[i]);
    fprintf(
        stderr,
        "  `./run` in the source folder fetches the starter model; any other GGUF file can be given by its\n"
        "  path, or be put into %s\n",
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
        *path = strdup(arg);
        return *path ? IG_EXIT_OK : ig_app_say(IG_EXIT_FAILED, "no memory");
    }
    if (arg && strchr(arg, '/')) return ig_app_say(IG_EXIT_NOT_FOUND, "no file %.300s", arg);
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
    if (strchr(arg, '/') || is_gguf(arg)) return true;
    char *dir = models_dir();
    list l = dir ? list_folder(dir) : (list){NULL, 0};
    keep(&l, arg);
    bool known = l.n > 0;
    list_free(&l);
    free(dir);
    return known;
}
