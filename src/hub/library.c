/* library: every model on this disk: the snapshots of the hub cache, and what lies in the models folder.
 * Threads: the caller's. Memory: malloc, at most ITEMS_MAX items.
 * Names and sizes only, no file is opened: it runs at every start that names a model by part of its name.
 * Bounds:  links are followed, since people link models in, so a folder may lead to itself or to half a disk:
 *          in one tree no folder is read twice, and of all trees together LOOKS_MAX names are looked at. What
 *          was cut is told in the list's warning, as is a folder that may not be read. */
#include "hub/inside.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ITEMS_MAX = 16384,
    FILES_MAX = 16384,
    SNAPSHOTS_MAX = 1024,
    DEPTH_MAX = 3,
    FOLDERS_MAX = 256, /* in one tree */
    LOOKS_MAX = 200000
};

/* ---- lists --------------------------------------------------------------------------------------------- */

typedef struct names {
    char **v;
    int n, n_max;
} names;

static void names_clear(names *l) {
    for (int i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (names){NULL, 0, 0};
}

static bool names_add(names *l, char *name) { /* takes it */
    if (name && l->n == l->n_max) {
        int more = l->n_max ? 2 * l->n_max : 16;
        char **grown = more <= FILES_MAX ? realloc(l->v, (size_t)more * sizeof *l->v) : NULL;
        if (!grown) {
            free(name);
            return false;
        }
        l->v = grown;
        l->n_max = more;
    }
    if (!name) return false;
    l->v[l->n++] = name;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *join(const char *a, const char *b) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", a, b) < 0 ? NULL : path;
}

static bool is_kind(const char *folder, const char *name, mode_t kind, uint64_t *bytes,
                    int64_t *modified_ns) {
    struct stat info;
    char *path = join(folder, name);
    bool is = path && stat(path, &info) == 0 && (info.st_mode & S_IFMT) == kind;
    free(path);
    if (is && bytes) *bytes = (uint64_t)info.st_size;
    if (is && modified_ns) *modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    return is;
}

/* What is being read, of both folders together. */
typedef struct reading {
    int n_looks; /* names looked at so far */
    char warning[sizeof((ig_hub_items *)NULL)->warning];
} reading;

static void warn(reading *g, const char *what, const char *why) {
    if (!*g->warning) snprintf(g->warning, sizeof g->warning, "%s: %s", what, why);
    ig_text_calm(g->warning, false);
}

/* The entries of a folder, sorted; none of those that begin with a dot. `top`: somebody named it, so that it
 * cannot be read is worth a word. */
static names read_folder(reading *g, const char *folder, bool top) {
    names l = {NULL, 0, 0};
    DIR *d = opendir(folder);
    if (!d && top && errno != ENOENT) warn(g, folder, strerror(errno));
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        if (g->n_looks++ >= LOOKS_MAX || !names_add(&l, strdup(e->d_name))) {
            warn(g, folder, "too many files and folders; not all of them are listed");
            break;
        }
    }
    if (d) closedir(d);
    if (l.n) qsort(l.v, (size_t)l.n, sizeof *l.v, by_name);
    return l;
}

/* The folders of one tree that were entered. */
typedef struct folders {
    struct {
        dev_t dev;
        ino_t ino;
    } v[FOLDERS_MAX];
    int n;
} folders;

/* Is it a folder that was not entered yet? Notes it. */
static bool enter(reading *g, folders *f, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    for (int i = 0; i < f->n; i++)
        if (f->v[i].dev == info.st_dev && f->v[i].ino == info.st_ino) return false;
    if (f->n == FOLDERS_MAX) {
        warn(g, path, "too many folders; not all of them are looked into");
        return false;
    }
    f->v[f->n].dev = info.st_dev;
    f->v[f->n++].ino = info.st_ino;
    return true;
}

/* Files below `top`, as paths relative to it, sorted. */
static void read_tree(reading *g, folders *f, names *out, const char *top, const char *below, int depth) {
    char *folder = *below ? join(top, below) : strdup(top);
    names l = folder && enter(g, f, folder) ? read_folder(g, folder, false) : (names){NULL, 0, 0};
    for (int i = 0; i < l.n; i++) {
        char *path = *below ? join(below, l.v[i]) : strdup(l.v[i]);
        if (path && is_kind(top, path, S_IFREG, NULL, NULL)) {
            if (names_add(out, path)) continue;
            warn(g, top, "too many files; not all of them are looked at");
            break;
        }
        if (path && depth < DEPTH_MAX) read_tree(g, f, out, top, path, depth + 1);
        free(path);
    }
    names_clear(&l);
    free(folder);
}

static bool has_ending(const char *name, const char *ending) {
    size_t n = strlen(name), m = strlen(ending);
    return n > m && strcasecmp(name + n - m, ending) == 0;
}

/* ---- items --------------------------------------------------------------------------------------------- */

typedef struct adding {
    reading *g;
    const char *models; /* the folder that no tree of it enters again, or NULL */
    ig_hub_items *l;
    int n_max;
    ig_status st;
    const char *repo, *commit; /* NULL in the models folder */
    const char *suffix;        /* "@abcdef0" for a revision that is not current, else "" */
} adding;

static void item_clear(ig_hub_item *i) {
    free(i->name), free(i->path), free(i->repo), free(i->commit);
}

void ig_hub_items_clear(ig_hub_items *l) {
    for (int i = 0; i < l->n; i++) item_clear(&l->v[i]);
    free(l->v);
    *l = (ig_hub_items){.n = 0};
}

/* Takes name and path. */
static ig_hub_item *add(adding *a, char *name, char *path) {
    ig_hub_item item = {.name = name, .path = path, .current = !*a->suffix};
    if (a->repo) item.repo = strdup(a->repo);
    if (a->commit) item.commit = strdup(a->commit);
    bool good = name && path && (!a->repo || item.repo) && (!a->commit || item.commit) && a->l->n < ITEMS_MAX;
    if (good && a->l->n == a->n_max) {
        int more = a->n_max ? 2 * a->n_max : 16;
        ig_hub_item *grown = realloc(a->l->v, (size_t)more * sizeof *grown);
        if (grown) a->l->v = grown, a->n_max = more;
        good = grown != NULL;
    }
    if (!good) {
        item_clear(&item);
        a->st = IG_ELIMIT;
        return NULL;
    }
    a->l->v[a->l->n] = item;
    return &a->l->v[a->l->n++];
}

/* org/name:Q4_K_M, or the file where that does not tell it from another. */
static char *gguf_name(const adding *a, const names *files, int at, const ig_hub_gguf *g) {
    char *name = NULL;
    bool alone = *g->quant != 0;
    for (int i = 0; i < files->n && alone; i++) {
        ig_hub_gguf other;
        alone = i == at || !ig_hub_gguf_of(&other, files->v[i]) || other.part != 1 ||
                strcmp(other.quant, g->quant) != 0;
    }
    return asprintf(&name, "%s%s:%s", a->repo, a->suffix, alone ? g->quant : files->v[at]) < 0 ? NULL : name;
}

static void add_gguf(adding *a, const char *top, const names *files, int at, const ig_hub_gguf *g) {
    ig_hub_item *item =
        add(a, a->repo ? gguf_name(a, files, at, g) : strdup(files->v[at]), join(top, files->v[at]));
    if (!item) return;
    item->gguf = true;
    for (int i = 0; i < files->n; i++) {
        ig_hub_gguf other;
        uint64_t bytes;
        if (i != at &&
            (g->n_parts == 1 || !ig_hub_gguf_of(&other, files->v[i]) || other.n_stem != g->n_stem ||
             other.n_parts != g->n_parts || strncmp(files->v[i], files->v[at], g->n_stem) != 0))
            continue;
        if (is_kind(top, files->v[i], S_IFREG, &bytes, &item->modified_ns)) item->bytes += bytes;
    }
}

/* A folder as hubs serve them: a snapshot, GGUF files, or both. */
static void add_folder(adding *a, const char *top, const char *local_name) {
    names files = {NULL, 0, 0};
    uint64_t weights = 0, bytes;
    bool config = false, any_gguf = false;
    int64_t modified_ns = 0;
    folders *f = calloc(1, sizeof *f);
    if (!f) {
        a->st = IG_ELIMIT;
        return;
    }
    if (a->models) enter(a->g, f, a->models);
    read_tree(a->g, f, &files, top, "", 0);
    free(f);
    for (int i = 0; i < files.n; i++) {
        ig_hub_gguf g;
        if (ig_hub_gguf_of(&g, files.v[i]) && g.is_model) {
            any_gguf = true;
            if (a->repo && g.part == 1) add_gguf(a, top, &files, i, &g);
        } else if (strcmp(files.v[i], "config.json") == 0) {
            config = is_kind(top, files.v[i], S_IFREG, NULL, &modified_ns);
        } else if (!strchr(files.v[i], '/') && has_ending(files.v[i], ".safetensors") &&
                   is_kind(top, files.v[i], S_IFREG, &bytes, NULL)) {
            weights += bytes;
        }
    }
    if (config && (weights || !any_gguf)) {
        char *name = NULL;
        if (!a->repo)
            name = strdup(local_name);
        else if (asprintf(&name, "%s%s", a->repo, a->suffix) < 0)
            name = NULL;
        ig_hub_item *item = add(a, name, strdup(top));
        if (item) item->bytes = weights, item->modified_ns = modified_ns;
    }
    names_clear(&files);
}

/* What org/name means: refs/main, else the only snapshot. NULL: nothing, or nobody knows. */
static const char *current_of(const char *repo_path, const names *snapshots, char ref[41]) {
    if (ig_hub_ref_read(ref, repo_path, "main"))
        for (int i = 0; i < snapshots->n; i++)
            if (strcmp(snapshots->v[i], ref) == 0) return snapshots->v[i];
    return snapshots->n == 1 ? snapshots->v[0] : NULL;
}

/* What a download has brought that is not a model yet, so that it is seen and can be removed: blobs that are
 * not whole, and where there is no model at all, the others too. */
static void add_unfinished(adding *a, const char *repo, const char *top, bool any_model) {
    char *folder = join(top, "blobs");
    names blobs = folder ? read_folder(a->g, folder, false) : (names){NULL, 0, 0};
    uint64_t sum = 0, bytes;
    int n = 0;
    for (int i = 0; i < blobs.n; i++) {
        const bool part = has_ending(blobs.v[i], ".incomplete");
        if (!(part || (!any_model && !strchr(blobs.v[i], '.'))) ||
            !is_kind(folder, blobs.v[i], S_IFREG, &bytes, NULL))
            continue;
        sum += bytes;
        n++;
    }
    names_clear(&blobs);
    free(folder);
    if (!n) return;
    a->repo = repo;
    a->commit = NULL;
    a->suffix = "";
    ig_hub_item *item = add(a, strdup(repo), strdup(top));
    if (item) item->bytes = sum, item->unfinished = true, item->current = false;
}

static void add_repo(adding *a, const char *cache, const char *repo, bool all_revisions) {
    char ref[41], suffix[16];
    char *top = ig_hub_repo_path(cache, repo, NULL), *folder = top ? join(top, "snapshots") : NULL;
    names snapshots = folder ? read_folder(a->g, folder, false) : (names){NULL, 0, 0};
    const char *current = top ? current_of(top, &snapshots, ref) : NULL;
    const int n_before = a->l->n;
    for (int i = 0; i < snapshots.n && i < SNAPSHOTS_MAX; i++) {
        bool is_current = current && strcmp(snapshots.v[i], current) == 0;
        char *path = is_current || all_revisions ? join(folder, snapshots.v[i]) : NULL;
        if (!path) continue;
        snprintf(suffix, sizeof suffix, "@%.7s", snapshots.v[i]);
        a->repo = repo;
        a->commit = snapshots.v[i];
        a->suffix = is_current ? "" : suffix;
        add_folder(a, path, NULL);
        free(path);
    }
    if (top) add_unfinished(a, repo, top, a->l->n > n_before || (snapshots.n && !all_revisions));
    names_clear(&snapshots);
    free(folder);
    free(top);
}

static void add_models(adding *a, const char *models) {
    names l = read_folder(a->g, models, true);
    a->models = models;
    a->repo = a->commit = NULL;
    a->suffix = "";
    for (int i = 0; i < l.n; i++) {
        ig_hub_gguf g;
        if (is_kind(models, l.v[i], S_IFDIR, NULL, NULL)) {
            char *top = join(models, l.v[i]);
            if (top) add_folder(a, top, l.v[i]);
            free(top);
        } else if (ig_hub_gguf_of(&g, l.v[i]) && g.part == 1 &&
                   is_kind(models, l.v[i], S_IFREG, NULL, NULL)) {
            add_gguf(a, models, &l, i, &g);
        }
    }
    names_clear(&l);
}

static int by_item(const void *a, const void *b) {
    const ig_hub_item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->path, y->path);
}

ig_status ig_hub_list(ig_hub_items *out, const char *cache, const char *models, bool all_revisions,
                      ig_err *err) {
    ig_hub_items l = {.n = 0};
    reading g = {.n_looks = 0};
    adding a = {.l = &l, .g = &g, .suffix = ""};
    char repo[IG_HUB_REPO_BYTES];
    names all = cache ? read_folder(&g, cache, true) : (names){NULL, 0, 0};
    for (int i = 0; i < all.n; i++)
        if (ig_hub_repo_of_folder(repo, all.v[i])) add_repo(&a, cache, repo, all_revisions);
    names_clear(&all);
    if (models) add_models(&a, models);
    if (a.st) {
        ig_hub_items_clear(&l);
        return ig_fail(err, a.st, "no memory for a list of the models, or more than %d of them", ITEMS_MAX);
    }
    if (l.n) qsort(l.v, (size_t)l.n, sizeof *l.v, by_item);
    memcpy(l.warning, g.warning, sizeof l.warning);
    *out = l;
    return IG_OK;
}
