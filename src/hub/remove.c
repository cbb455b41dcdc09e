/* remove: what may go from the cache, and its going.
 * Threads: the caller's; other processes are kept away by the job lock of each repository.
 * Memory: malloc, the names of one repository.
 * Order:   links before blobs, so that an interruption leaves blobs that nobody names, and never a name that
 *          leads to nothing. What is served is not touched. Blobs of the last hour stay, since
 *          Python's program links them later and knows no lock of ours. */
#include "hub/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 1 << 20, DEPTH_MAX = 24, YOUNG_S = 3600, LEFTOVER_S = 7 * 86400 };

/* ---- sets of names ------------------------------------------------------------------------------------- */

typedef struct set {
    char **v;
    int n, n_max;
    bool full; /* no memory, or too many: then nothing may be concluded from what is missing */
} set;

static void set_clear(set *s) {
    for (int i = 0; i < s->n; i++) free(s->v[i]);
    free(s->v);
    *s = (set){.n = 0};
}

static void set_add(set *s, const char *name) {
    if (s->n == s->n_max) {
        int more = s->n_max ? 2 * s->n_max : 64;
        char **grown = more <= NAMES_MAX ? realloc(s->v, (size_t)more * sizeof *s->v) : NULL;
        if (!grown) {
            s->full = true;
            return;
        }
        s->v = grown;
        s->n_max = more;
    }
    if (!(s->v[s->n] = strdup(name)))
        s->full = true;
    else
        s->n++;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}
static void set_sort(set *s) {
    if (s->n) qsort(s->v, (size_t)s->n, sizeof *s->v, by_name);
}
static bool set_has(const set *s, const char *name) { /* sorted */
    return s->n && bsearch(&name, s->v, (size_t)s->n, sizeof *s->v, by_name);
}

/* ---- one folder, by descriptors, so that no link is followed ------------------------------------------- */

static int open_dir(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Entries but "." and "..", sorted. */
static set read_dir(int fd) {
    set s = {.n = 0};
    int own = dup(fd);
    DIR *d = own >= 0 ? fdopendir(own) : NULL;
    if (!d && own >= 0) close(own);
    if (!d) s.full = true;
    if (d) rewinddir(d);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) set_add(&s, e->d_name);
    if (d) closedir(d);
    set_sort(&s);
    return s;
}

/* The blob that a link of a snapshot leads to: what stands after the last slash. "": no link to a blob. */
static void blob_of(char out[256], int fd, const char *name) {
    char to[1024];
    ssize_t n = readlinkat(fd, name, to, sizeof to - 1);
    out[0] = 0;
    if (n <= 0) return;
    to[n] = 0;
    char *slash = strrchr(to, '/');
    if (slash && strlen(slash + 1) < 256) snprintf(out, 256, "%.255s", slash + 1);
}

/* Paths of the files of a snapshot, and the blobs behind them. */
static void read_snapshot(int fd, const char *below, int depth, set *paths, set *blobs) {
    set l = read_dir(fd);
    if (l.full || depth > DEPTH_MAX) paths->full = blobs->full = true;
    for (int i = 0; i < l.n && depth <= DEPTH_MAX; i++) {
        char path[PATH_MAX], blob[256];
        snprintf(path, sizeof path, "%s%s%s", below, *below ? "/" : "", l.v[i]);
        int sub = open_dir(fd, l.v[i]);
        if (sub >= 0) {
            read_snapshot(sub, path, depth + 1, paths, blobs);
            close(sub);
            continue;
        }
        set_add(paths, path);
        blob_of(blob, fd, l.v[i]);
        if (*blob) set_add(blobs, blob);
    }
    set_clear(&l);
}

static void remove_tree(int at, const char *name, int depth) {
    int fd = open_dir(at, name);
    if (fd < 0) {
        unlinkat(at, name, 0);
        return;
    }
    set l = read_dir(fd);
    for (int i = 0; i < l.n && depth <= DEPTH_MAX; i++) remove_tree(fd, l.v[i], depth + 1);
    set_clear(&l);
    close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}

/* ---- one repository ------------------------------------------------------------------------------------ */

typedef struct repo {
    const ig_hub_remove *o;
    char *path;
    int fd, blobs_fd, snapshots_fd;
    set named;      /* commits that refs name */
    set keep_paths; /* files of the snapshots that stay */
    set keep_blobs;
} repo;

static void say_gone(const repo *r, const char *below, uint64_t bytes, const char *why) {
    char path[PATH_MAX + 512];
    snprintf(path, sizeof path, "%s/%s", r->path, below);
    if (r->o->gone) r->o->gone(r->o->ud, path, bytes, why);
}

static void say_kept(const repo *r, const char *below, const char *why) {
    char path[PATH_MAX + 512];
    snprintf(path, sizeof path, "%s/%s", r->path, below);
    if (r->o->kept) r->o->kept(r->o->ud, path, why);
}

static void read_refs(repo *r, int fd, const char *below, int depth) {
    set l = read_dir(fd);
    if (l.full || depth > DEPTH_MAX) r->named.full = true;
    for (int i = 0; i < l.n && depth <= DEPTH_MAX; i++) {
        char name[PATH_MAX], commit[41];
        snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", l.v[i]);
        int sub = open_dir(fd, l.v[i]);
        if (sub >= 0) {
            read_refs(r, sub, name, depth + 1);
            close(sub);
        } else if (ig_hub_ref_read(commit, r->path, name)) {
            set_add(&r->named, commit);
        }
    }
    set_clear(&l);
}

static bool open_repo(repo *r, const char *cache, const char *name, const ig_hub_remove *o) {
    *r = (repo){.o = o, .fd = -1, .blobs_fd = -1, .snapshots_fd = -1};
    r->path = ig_hub_repo_path(cache, name, NULL);
    r->fd = r->path ? open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (r->fd < 0) return false;
    r->blobs_fd = open_dir(r->fd, "blobs");
    r->snapshots_fd = open_dir(r->fd, "snapshots");
    int refs = open_dir(r->fd, "refs");
    if (refs >= 0) {
        read_refs(r, refs, "", 0);
        close(refs);
    }
    set_sort(&r->named);
    return true;
}

static void close_repo(repo *r) {
    set_clear(&r->named), set_clear(&r->keep_paths), set_clear(&r->keep_blobs);
    if (r->blobs_fd >= 0) close(r->blobs_fd);
    if (r->snapshots_fd >= 0) close(r->snapshots_fd);
    if (r->fd >= 0) close(r->fd);
    free(r->path);
}

static void keep_snapshot(repo *r, const char *commit) {
    int fd = r->snapshots_fd < 0 ? -1 : open_dir(r->snapshots_fd, commit);
    if (fd < 0) return;
    read_snapshot(fd, "", 0, &r->keep_paths, &r->keep_blobs);
    close(fd);
}

/* Has it a file that no snapshot has which stays? */
static bool has_own_files(const repo *r, const char *commit) {
    set paths = {.n = 0}, blobs = {.n = 0};
    int fd = open_dir(r->snapshots_fd, commit);
    if (fd >= 0) {
        read_snapshot(fd, "", 0, &paths, &blobs);
        close(fd);
    }
    bool own = paths.full || r->keep_paths.full;
    for (int i = 0; i < paths.n && !own; i++) own = !set_has(&r->keep_paths, paths.v[i]);
    set_clear(&paths);
    set_clear(&blobs);
    return own;
}

static int served_by(const repo *r, const char *commit) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/snapshots/%s", r->path, commit);
    return ig_hub_served_by(r->o->state, path);
}

/* Snapshots: those with a ref stay; so does what is served, and what is nowhere else. */
static void sweep_snapshots(repo *r) {
    set all = r->snapshots_fd < 0 ? (set){.n = 0} : read_dir(r->snapshots_fd);
    for (int i = 0; i < all.n; i++)
        if (set_has(&r->named, all.v[i]) || served_by(r, all.v[i])) keep_snapshot(r, all.v[i]);
    set_sort(&r->keep_paths);
    set extra = {.n = 0};
    for (int i = 0; i < all.n; i++) {
        char below[300];
        if (set_has(&r->named, all.v[i])) continue;
        snprintf(below, sizeof below, "snapshots/%.255s", all.v[i]);
        if (served_by(r, all.v[i])) {
            say_kept(r, below, "it is being served");
        } else if (r->named.full || (!r->o->force && has_own_files(r, all.v[i]))) {
            say_kept(
                r, below,
                "no name leads to it, but it holds files that no other revision has; --force removes it");
            set_add(&extra, all.v[i]);
        } else {
            say_gone(r, below, 0, "a revision that no name leads to");
            if (r->o->run) remove_tree(r->snapshots_fd, all.v[i], 0);
        }
    }
    for (int i = 0; i < extra.n; i++) keep_snapshot(r, extra.v[i]);
    set_clear(&extra);
    set_clear(&all);
    set_sort(&r->keep_paths);
    set_sort(&r->keep_blobs);
}

static bool has_part(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

/* Blobs that nothing names, and leftovers of tries that nobody went on with. */
static void sweep_blobs(repo *r) {
    set all = r->blobs_fd < 0 || r->keep_blobs.full ? (set){.n = 0} : read_dir(r->blobs_fd);
    for (int i = 0; i < all.n; i++) {
        struct stat info;
        char below[300];
        const bool leftover = has_part(all.v[i], ".incomplete") || has_part(all.v[i], ".lock");
        if (set_has(&r->keep_blobs, all.v[i]) ||
            fstatat(r->blobs_fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
            continue;
        const int64_t age_s = r->o->now_s - (int64_t)info.st_mtim.tv_sec;
        snprintf(below, sizeof below, "blobs/%.255s", all.v[i]);
        if (age_s < (leftover ? LEFTOVER_S : YOUNG_S)) {
            if (!leftover) say_kept(r, below, "nothing names it, but it is less than an hour old");
            continue;
        }
        say_gone(r, below, (uint64_t)info.st_blocks * 512,
                 leftover ? "an unfinished download, older than 7 days" : "nothing names it");
        if (r->o->run) unlinkat(r->blobs_fd, all.v[i], 0);
    }
    set_clear(&all);
}

ig_status ig_hub_gc(const char *cache, const ig_hub_remove *o, ig_err *err) {
    char name[IG_HUB_REPO_BYTES];
    int holder, fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return IG_OK;
    if (fd < 0) return ig_fail(err, IG_EIO, "%s: %s", cache, strerror(errno));
    set all = read_dir(fd);
    for (int i = 0; i < all.n; i++) {
        ig_hub_lock lock;
        repo r;
        if (!ig_hub_repo_of_folder(name, all.v[i])) continue;
        if (ig_hub_lock_try(&lock, cache, name, IG_HUB_JOB_LOCK, IG_HUB_LOCK_WHOLE, &holder, NULL)) {
            if (o->kept) o->kept(o->ud, name, "it is being downloaded");
            continue;
        }
        if (open_repo(&r, cache, name, o)) {
            sweep_snapshots(&r);
            sweep_blobs(&r);
        }
        close_repo(&r);
        ig_hub_lock_end(&lock);
    }
    set_clear(&all);
    close(fd);
    return IG_OK;
}

/* ---- one item ------------------------------------------------------------------------------------------ */

/* The links of a GGUF and its other parts, in its snapshot. */
static void remove_links(const repo *r, const ig_hub_item *item) {
    char folder[PATH_MAX];
    ig_hub_gguf g, other;
    snprintf(folder, sizeof folder, "%s/snapshots/%s/", r->path, item->commit);
    const char *path = item->path + strlen(folder);
    if (strncmp(item->path, folder, strlen(folder)) != 0 || !ig_hub_gguf_of(&g, path)) return;
    set paths = {.n = 0}, blobs = {.n = 0};
    int fd = r->snapshots_fd < 0 ? -1 : open_dir(r->snapshots_fd, item->commit);
    if (fd >= 0) read_snapshot(fd, "", 0, &paths, &blobs);
    for (int i = 0; i < paths.n; i++) {
        if (!ig_hub_gguf_of(&other, paths.v[i]) || other.n_stem != g.n_stem || other.n_parts != g.n_parts ||
            strncmp(paths.v[i], path, g.n_stem) != 0)
            continue;
        if (r->o->run) unlinkat(fd, paths.v[i], 0);
    }
    if (fd >= 0) close(fd);
    set_clear(&paths);
    set_clear(&blobs);
}

/* Is the path, below its snapshot, a part of this item? */
static bool is_of_item(const ig_hub_item *item, const char *snapshot_path, const char *below) {
    ig_hub_gguf g, other;
    size_t n = strlen(snapshot_path);
    if (!item->gguf) return true;
    if (strncmp(item->path, snapshot_path, n) != 0 || item->path[n] != '/') return false;
    return ig_hub_gguf_of(&g, item->path + n + 1) && ig_hub_gguf_of(&other, below) &&
           other.n_stem == g.n_stem && other.n_parts == g.n_parts &&
           strncmp(below, item->path + n + 1, g.n_stem) == 0;
}

/* What stays, by link: every file but those that go. */
static void keep_others(repo *r, const ig_hub_item *item, bool whole, int *n_left) {
    set all = r->snapshots_fd < 0 ? (set){.n = 0} : read_dir(r->snapshots_fd);
    *n_left = 0;
    for (int i = 0; i < all.n && !whole; i++) {
        const bool same = strcmp(all.v[i], item->commit) == 0;
        char top[PATH_MAX];
        int fd = same && !item->gguf ? -1 : open_dir(r->snapshots_fd, all.v[i]);
        if (fd < 0) continue;
        set paths = {.n = 0}, blobs = {.n = 0};
        snprintf(top, sizeof top, "%s/snapshots/%s", r->path, all.v[i]);
        read_snapshot(fd, "", 0, &paths, &blobs);
        r->keep_blobs.full = r->keep_blobs.full || paths.full || blobs.full;
        for (int k = 0; k < paths.n; k++) {
            char blob[256];
            if (same && is_of_item(item, top, paths.v[k])) continue;
            blob_of(blob, fd, paths.v[k]);
            if (*blob) set_add(&r->keep_blobs, blob);
            ++*n_left;
        }
        set_clear(&paths);
        set_clear(&blobs);
        close(fd);
    }
    set_clear(&all);
    set_sort(&r->keep_blobs);
}

/* Every blob that does not stay. Those of a repository that goes whole go with their unfinished ones. */
static void remove_blobs(repo *r, bool whole, const set *going) {
    set all = r->blobs_fd < 0 || r->keep_blobs.full ? (set){.n = 0} : read_dir(r->blobs_fd);
    for (int i = 0; i < all.n; i++) {
        struct stat info;
        char below[300];
        if (set_has(&r->keep_blobs, all.v[i]) || (!whole && !set_has(going, all.v[i])) ||
            fstatat(r->blobs_fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        snprintf(below, sizeof below, "blobs/%.255s", all.v[i]);
        say_gone(r, below, (uint64_t)info.st_blocks * 512, "");
        if (r->o->run) unlinkat(r->blobs_fd, all.v[i], 0);
    }
    set_clear(&all);
}

static void list_going(const repo *r, const ig_hub_item *item, set *going) {
    set paths = {.n = 0}, blobs = {.n = 0};
    char top[PATH_MAX];
    snprintf(top, sizeof top, "%s/snapshots/%s", r->path, item->commit);
    int fd = r->snapshots_fd < 0 ? -1 : open_dir(r->snapshots_fd, item->commit);
    if (fd >= 0) read_snapshot(fd, "", 0, &paths, &blobs);
    for (int i = 0; i < paths.n; i++) {
        char blob[256];
        if (!is_of_item(item, top, paths.v[i])) continue;
        blob_of(blob, fd, paths.v[i]);
        if (*blob) set_add(going, blob);
    }
    if (fd >= 0) close(fd);
    set_sort(going);
    set_clear(&paths);
    set_clear(&blobs);
}

static ig_status remove_from_repo(const char *cache, const ig_hub_item *item, bool whole,
                                  const ig_hub_remove *o, ig_err *err) {
    ig_hub_lock lock;
    repo r;
    int holder, n_left = 0;
    ig_status st =
        ig_hub_lock_try(&lock, cache, item->repo, IG_HUB_JOB_LOCK, IG_HUB_LOCK_WHOLE, &holder, err);
    if (st) return st;
    if (!open_repo(&r, cache, item->repo, o)) {
        st = ig_fail(err, IG_ENOTFOUND, "%s: %s", item->repo, strerror(errno));
        goto out;
    }
    int pid = ig_hub_served_by(o->state, whole ? r.path : item->path);
    if (pid) {
        st = ig_fail(err, IG_EBUSY, "%s is being served by process %d", item->name, pid);
        goto out;
    }
    set going = {.n = 0};
    list_going(&r, item, &going);
    keep_others(&r, item, whole, &n_left);
    whole = whole || n_left == 0;
    if (o->run && !whole && item->gguf) remove_links(&r, item);
    if (o->run && !whole && !item->gguf) remove_tree(r.snapshots_fd, item->commit, 0);
    if (o->run && whole && r.snapshots_fd >= 0) {
        remove_tree(r.fd, "refs", 0);
        remove_tree(r.fd, "snapshots", 0);
    }
    remove_blobs(&r, whole, &going);
    set_clear(&going);
    if (o->run && whole) remove_tree(AT_FDCWD, r.path, 0);
out:
    close_repo(&r);
    ig_hub_lock_end(&lock);
    return st;
}

/* A file, its other parts, or a folder, directly in the models folder. */
static ig_status remove_local(const char *models, const ig_hub_item *item, const ig_hub_remove *o,
                              ig_err *err) {
    ig_hub_gguf g, other;
    int pid = ig_hub_served_by(o->state, item->path);
    if (pid) return ig_fail(err, IG_EBUSY, "%s is being served by process %d", item->name, pid);
    int fd = open(models, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ig_fail(err, IG_EIO, "%s: %s", models, strerror(errno));
    const bool gguf = ig_hub_gguf_of(&g, item->name);
    set all = read_dir(fd);
    for (int i = 0; i < all.n; i++) {
        bool part = gguf && ig_hub_gguf_of(&other, all.v[i]) && other.n_stem == g.n_stem &&
                    other.n_parts == g.n_parts && strncmp(all.v[i], item->name, g.n_stem) == 0;
        struct stat info;
        char path[PATH_MAX];
        if (!part && strcmp(all.v[i], item->name) != 0) continue;
        if (fstatat(fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", models, all.v[i]);
        if (o->gone)
            o->gone(o->ud, path, S_ISDIR(info.st_mode) ? item->bytes : (uint64_t)info.st_blocks * 512, "");
        if (o->run) remove_tree(fd, all.v[i], 0);
    }
    set_clear(&all);
    close(fd);
    return IG_OK;
}

ig_status ig_hub_rm(const char *cache, const char *models, const ig_hub_item *item, bool whole,
                    const ig_hub_remove *o, ig_err *err) {
    return item->repo ? remove_from_repo(cache, item, whole, o, err) : remove_local(models, item, o, err);
}
