/* remove: what may go from the cache, and its going.
 * Threads: the caller's; other processes are kept away by the job lock of each repository.
 * Memory: malloc, the names of one repository.
 * Order:   links before blobs, so that an interruption leaves blobs that nobody names, and never a name that
 *          leads to nothing: where a link cannot go, its blob stays. What is served is not touched. Blobs of
 *          the last hour stay, since Python's program links them later and knows no lock of ours.
 * Truth:   what cannot be read counts as in use; what cannot be removed is told and not counted. */
#include "hub/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 1 << 20, DEPTH_MAX = 24, YOUNG_S = 3600, DAY_S = 86400, LEFTOVER_S = 7 * DAY_S };
static const char aside[] = ".ingle-"; /* how names begin that are there only until a rename */

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
    errno = 0;
    for (struct dirent *e; d && (e = readdir(d)); errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) set_add(&s, e->d_name);
    if (errno) s.full = true;
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

static bool is_dir(int at, const char *name) {
    struct stat info;
    return fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

static bool is_regular(int at, const char *name) {
    struct stat info;
    return fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

static bool has_part(const char *name, const char *part) {
    return strstr(name, part) != NULL;
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
        if (is_dir(fd, l.v[i])) paths->full = blobs->full = true; /* nobody knows what is in it */
        if (begins(l.v[i], aside)) continue;
        set_add(paths, path);
        blob_of(blob, fd, l.v[i]);
        if (*blob) set_add(blobs, blob);
    }
    set_clear(&l);
}

/* The same of one that may not be there or not be readable. */
static void read_snapshot_of(int snapshots_fd, const char *commit, set *paths, set *blobs) {
    int fd = snapshots_fd < 0 ? -1 : open_dir(snapshots_fd, commit);
    if (fd < 0) {
        paths->full = blobs->full = snapshots_fd >= 0 && errno != ENOENT;
        return;
    }
    read_snapshot(fd, "", 0, paths, blobs);
    close(fd);
}

/* ---- the going ----------------------------------------------------------------------------------------- */

typedef struct job {
    const ig_hub_remove *o;
    int n_failed;
    char first[512]; /* what failed first, and why */
} job;

static void say_failed(job *j, const char *path, const char *why) {
    if (j->n_failed++ == 0) snprintf(j->first, sizeof j->first, "%s: %s", path, why);
    if (j->o->failed) j->o->failed(j->o->ud, path, why);
}

static void say(const job *j, const char *path, uint64_t bytes, const char *why) {
    if (j->o->gone) j->o->gone(j->o->ud, path, bytes, why);
}

static ig_status result_of(const job *j, ig_err *err) {
    if (!j->n_failed) return IG_OK;
    return ig_fail(err, IG_EIO, "%s%s", j->first, j->n_failed > 1 ? ", and more" : "");
}

/* A file, a link or a folder with all that is in it. True: it is gone, or would be. *bytes rises by what the
 * disk gets back: nothing for a file that has another name. `path` is for messages. */
static bool remove_tree(job *j, int at, const char *name, const char *path, int depth, uint64_t *bytes) {
    struct stat info;
    if (fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return true;
        say_failed(j, path, strerror(errno));
        return false;
    }
    if (S_ISDIR(info.st_mode)) {
        int fd = depth > DEPTH_MAX ? -1 : open_dir(at, name);
        if (fd < 0 && j->o->run) say_failed(j, path, depth > DEPTH_MAX ? "too deep" : strerror(errno));
        if (fd < 0) return !j->o->run;
        set l = read_dir(fd);
        bool all = !l.full;
        if (!all) say_failed(j, path, "not all of it can be read");
        for (int i = 0; i < l.n; i++) {
            char below[PATH_MAX];
            snprintf(below, sizeof below, "%s/%s", path, l.v[i]);
            all = remove_tree(j, fd, l.v[i], below, depth + 1, bytes) && all;
        }
        set_clear(&l);
        close(fd);
        if (!all) return false;
    }
    if (j->o->run && unlinkat(at, name, S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT) {
        say_failed(j, path, strerror(errno));
        return false;
    }
    if (S_ISREG(info.st_mode) && info.st_nlink == 1) *bytes += (uint64_t)info.st_blocks * 512;
    return true;
}

/* The same, told. */
static bool remove_told(job *j, int at, const char *name, const char *path, const char *why) {
    uint64_t bytes = 0;
    bool gone = remove_tree(j, at, name, path, 0, &bytes);
    if (gone)
        say(j, path, bytes, why);
    else if (bytes)
        say(j, path, bytes, "in part");
    return gone;
}

/* ---- one repository ------------------------------------------------------------------------------------ */

typedef struct repo {
    job *j;
    char *path;
    int fd, blobs_fd, snapshots_fd;
    set named;      /* commits that refs name */
    set keep_paths; /* files of the snapshots that stay */
    set keep_blobs;
} repo;

typedef struct place {
    char s[PATH_MAX + 512];
} place;
static place place_of(const repo *r, const char *below) {
    place p;
    snprintf(p.s, sizeof p.s, "%s/%s", r->path, below);
    return p;
}

static void say_kept(const repo *r, const char *below, const char *why) {
    if (r->j->o->kept) r->j->o->kept(r->j->o->ud, place_of(r, below).s, why);
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
        } else if (is_dir(fd, l.v[i])) {
            r->named.full = true;
        } else if (ig_hub_ref_read(commit, r->path, name)) {
            set_add(&r->named, commit);
        }
    }
    set_clear(&l);
}

/* A folder that is not there is empty; one that cannot be read may hold anything. */
static ig_status open_below(int *fd, const repo *r, const char *name, ig_err *err) {
    *fd = open_dir(r->fd, name);
    if (*fd >= 0 || errno == ENOENT) return IG_OK;
    return ig_fail(err, IG_EIO, "%s/%s: %s", r->path, name, strerror(errno));
}

static ig_status open_repo(repo *r, const char *cache, const char *name, job *j, ig_err *err) {
    int refs = -1;
    *r = (repo){.j = j, .fd = -1, .blobs_fd = -1, .snapshots_fd = -1};
    r->path = ig_hub_repo_path(cache, name, NULL);
    if (!r->path) return ig_fail(err, IG_ELIMIT, "no memory");
    r->fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (r->fd < 0)
        return ig_fail(err, errno == ENOENT ? IG_ENOTFOUND : IG_EIO, "%s: %s", r->path, strerror(errno));
    ig_status st = open_below(&r->blobs_fd, r, "blobs", err);
    if (!st) st = open_below(&r->snapshots_fd, r, "snapshots", err);
    if (!st) st = open_below(&refs, r, "refs", err);
    if (refs >= 0) {
        read_refs(r, refs, "", 0);
        close(refs);
    }
    set_sort(&r->named);
    return st;
}

static void close_repo(repo *r) {
    set_clear(&r->named), set_clear(&r->keep_paths), set_clear(&r->keep_blobs);
    if (r->blobs_fd >= 0) close(r->blobs_fd);
    if (r->snapshots_fd >= 0) close(r->snapshots_fd);
    if (r->fd >= 0) close(r->fd);
    free(r->path);
}

static void keep_snapshot(repo *r, const char *commit) {
    read_snapshot_of(r->snapshots_fd, commit, &r->keep_paths, &r->keep_blobs);
}

/* Has it a file that no snapshot has which stays? */
static bool has_own_files(const repo *r, const char *commit) {
    set paths = {.n = 0}, blobs = {.n = 0};
    read_snapshot_of(r->snapshots_fd, commit, &paths, &blobs);
    bool own = paths.full || r->keep_paths.full;
    for (int i = 0; i < paths.n && !own; i++) own = !set_has(&r->keep_paths, paths.v[i]);
    set_clear(&paths);
    set_clear(&blobs);
    return own;
}

static int served_by(const repo *r, const char *commit) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/snapshots/%s", r->path, commit);
    return ig_hub_served_by(r->j->o->state, path);
}

/* Snapshots: those with a ref stay; so does what is served, and what is nowhere else. */
static void sweep_snapshots(repo *r) {
    set all = r->snapshots_fd < 0 ? (set){.n = 0} : read_dir(r->snapshots_fd);
    if (all.full) r->keep_paths.full = r->keep_blobs.full = true;
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
        } else if (r->named.full || (!r->j->o->force && has_own_files(r, all.v[i]))) {
            say_kept(
                r, below,
                "no name leads to it, but it holds files that no other revision has; --force removes it");
            set_add(&extra, all.v[i]);
        } else if (!remove_told(r->j, r->snapshots_fd, all.v[i], place_of(r, below).s,
                                "a revision that no name leads to")) {
            set_add(&extra, all.v[i]); /* what is left of it needs its blobs */
        }
    }
    if (extra.full) r->keep_blobs.full = true;
    for (int i = 0; i < extra.n; i++) keep_snapshot(r, extra.v[i]);
    set_clear(&extra);
    set_clear(&all);
    set_sort(&r->keep_paths);
    set_sort(&r->keep_blobs);
}

/* Names of a moment, whose programs were ended in that moment: the lock says that none is at work now. */
static void sweep_asides(repo *r, int fd, const char *below, bool deep, int depth) {
    set l = fd < 0 || depth > DEPTH_MAX ? (set){.n = 0} : read_dir(fd);
    for (int i = 0; i < l.n; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s%s%s", below, *below ? "/" : "", l.v[i]);
        int sub = deep ? open_dir(fd, l.v[i]) : -1;
        if (sub >= 0) {
            sweep_asides(r, sub, path, true, depth + 1);
            close(sub);
        } else if (begins(l.v[i], aside) && !is_dir(fd, l.v[i])) {
            remove_told(r->j, fd, l.v[i], place_of(r, path).s, "left by a program that was ended");
        }
    }
    set_clear(&l);
}

/* Blobs that nothing names, and leftovers of tries that nobody went on with. */
static void sweep_blobs(repo *r) {
    set all = r->blobs_fd < 0 || r->keep_blobs.full ? (set){.n = 0} : read_dir(r->blobs_fd);
    if (r->keep_blobs.full)
        say_kept(r, "blobs", "not every revision can be read, so nobody knows which of them are needed");
    for (int i = 0; i < all.n; i++) {
        struct stat info;
        char below[300];
        const bool leftover = has_part(all.v[i], ".incomplete") || has_part(all.v[i], ".lock");
        if (set_has(&r->keep_blobs, all.v[i]) ||
            fstatat(r->blobs_fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
            continue;
        const int64_t age_s = r->j->o->now_s - (int64_t)info.st_mtim.tv_sec;
        snprintf(below, sizeof below, "blobs/%.255s", all.v[i]);
        if (age_s < (leftover ? LEFTOVER_S : YOUNG_S)) {
            if (!leftover) say_kept(r, below, "nothing names it, but it is less than an hour old");
            continue;
        }
        remove_told(r->j, r->blobs_fd, all.v[i], place_of(r, below).s,
                    leftover ? "an unfinished download, older than 7 days" : "nothing names it");
    }
    set_clear(&all);
}

static void sweep_repo(const char *cache, const char *name, job *j) {
    ig_hub_lock lock;
    ig_err err = {.msg = ""};
    repo r;
    int holder;
    ig_status st = ig_hub_lock_try(&lock, cache, name, IG_HUB_JOB_LOCK, IG_HUB_LOCK_WHOLE, &holder, &err);
    if (st == IG_EBUSY && j->o->kept) j->o->kept(j->o->ud, name, "it is being downloaded");
    if (st && st != IG_EBUSY) say_failed(j, name, err.msg);
    if (st) return;
    if (open_repo(&r, cache, name, j, &err)) {
        say_failed(j, name, err.msg);
    } else {
        sweep_snapshots(&r);
        sweep_blobs(&r);
        sweep_asides(&r, r.fd, "", false, 0);
        sweep_asides(&r, r.snapshots_fd, "snapshots", true, 0);
    }
    close_repo(&r);
    ig_hub_lock_end(&lock);
}

ig_status ig_hub_gc(const char *cache, const ig_hub_remove *o, ig_err *err) {
    char name[IG_HUB_REPO_BYTES];
    job j = {.o = o};
    int fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return IG_OK;
    if (fd < 0) return ig_fail(err, IG_EIO, "%s: %s", cache, strerror(errno));
    set all = read_dir(fd);
    if (all.full) say_failed(&j, cache, "not all of it can be read");
    for (int i = 0; i < all.n; i++)
        if (ig_hub_repo_of_folder(name, all.v[i])) sweep_repo(cache, name, &j);
    set_clear(&all);
    close(fd);
    return result_of(&j, err);
}

/* ---- one item ------------------------------------------------------------------------------------------ */

/* Is the path, below its snapshot, a part of this item? */
static bool is_of_item(const ig_hub_item *item, const char *snapshot_path, const char *below) {
    ig_hub_gguf g, other;
    size_t n = strlen(snapshot_path);
    if (!item->gguf) return true;
    if (strncmp(item->path, snapshot_path, n) != 0 || item->path[n] != '/') return false;
    if (strcmp(below, item->path + n + 1) == 0) return true;
    return ig_hub_gguf_of(&g, item->path + n + 1) && g.n_parts > 1 && ig_hub_gguf_of(&other, below) &&
           other.n_stem == g.n_stem && other.n_parts == g.n_parts &&
           strncmp(below, item->path + n + 1, g.n_stem) == 0;
}

/* The links of a GGUF and its other parts, in its snapshot. */
static bool remove_links(const repo *r, const ig_hub_item *item) {
    place top = place_of(r, "snapshots/");
    strncat(top.s, item->commit, 255);
    set paths = {.n = 0}, blobs = {.n = 0};
    bool all = true;
    int fd = r->snapshots_fd < 0 ? -1 : open_dir(r->snapshots_fd, item->commit);
    if (fd >= 0) read_snapshot(fd, "", 0, &paths, &blobs);
    for (int i = 0; i < paths.n; i++) {
        uint64_t bytes = 0;
        char path[2 * PATH_MAX];
        if (!is_of_item(item, top.s, paths.v[i])) continue;
        snprintf(path, sizeof path, "%s/%s", top.s, paths.v[i]);
        all = remove_tree(r->j, fd, paths.v[i], path, 0, &bytes) && all;
        if (bytes) say(r->j, path, bytes, "");
    }
    if (fd >= 0) close(fd);
    set_clear(&paths);
    set_clear(&blobs);
    return all;
}

/* What stays, by link: every file but those that go. */
static void keep_others(repo *r, const ig_hub_item *item, int *n_left) {
    set all = r->snapshots_fd < 0 ? (set){.n = 0} : read_dir(r->snapshots_fd);
    *n_left = all.full;
    if (all.full) r->keep_blobs.full = true;
    for (int i = 0; i < all.n; i++) {
        const bool same = strcmp(all.v[i], item->commit) == 0;
        char top[PATH_MAX];
        if (same && !item->gguf) continue;
        int fd = open_dir(r->snapshots_fd, all.v[i]);
        if (fd < 0) { /* a file that somebody put here, or a folder that we may not read */
            if (is_dir(r->snapshots_fd, all.v[i])) r->keep_blobs.full = true, ++*n_left;
            continue;
        }
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
    if (r->keep_blobs.full)
        say_kept(r, "blobs", "not every revision can be read, so nobody knows which of them are needed");
    for (int i = 0; i < all.n; i++) {
        char below[300];
        if (set_has(&r->keep_blobs, all.v[i]) || (!whole && !set_has(going, all.v[i]))) continue;
        snprintf(below, sizeof below, "blobs/%.255s", all.v[i]);
        remove_told(r->j, r->blobs_fd, all.v[i], place_of(r, below).s,
                    has_part(all.v[i], ".incomplete") ? "an unfinished download" : "");
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

static bool has_unfinished(const repo *r) {
    set all = r->blobs_fd < 0 ? (set){.n = 0} : read_dir(r->blobs_fd);
    bool has = all.full;
    for (int i = 0; i < all.n && !has; i++) has = has_part(all.v[i], ".incomplete");
    set_clear(&all);
    return has;
}

/* The links first; the blobs only when all of those are gone. */
static void remove_repo_item(repo *r, const ig_hub_item *item, bool whole) {
    set going = {.n = 0};
    int n_left = 0;
    bool clear;
    if (!whole) {
        list_going(r, item, &going);
        keep_others(r, item, &n_left);
        whole = n_left == 0 && !has_unfinished(r);
    }
    if (whole) {
        uint64_t bytes = 0;
        clear = remove_tree(r->j, r->fd, "refs", place_of(r, "refs").s, 0, &bytes);
        bytes = 0; /* what a ref holds is not worth a line; a snapshot's file that is no link is */
        clear = clear && remove_tree(r->j, r->fd, "snapshots", place_of(r, "snapshots").s, 0, &bytes);
        if (bytes) say(r->j, place_of(r, "snapshots").s, bytes, clear ? "" : "in part");
    } else if (item->gguf) {
        clear = remove_links(r, item);
    } else {
        uint64_t bytes = 0;
        place p = place_of(r, "snapshots/");
        strncat(p.s, item->commit, 255);
        clear = remove_tree(r->j, r->snapshots_fd, item->commit, p.s, 0, &bytes);
        if (bytes) say(r->j, p.s, bytes, clear ? "" : "in part");
    }
    if (clear) remove_blobs(r, whole, &going);
    set_clear(&going);
    uint64_t rest = 0;
    if (r->j->o->run && whole && clear && !r->j->n_failed)
        remove_tree(r->j, AT_FDCWD, r->path, r->path, 0, &rest);
}

static ig_status remove_from_repo(const char *cache, const ig_hub_item *item, bool whole, job *j,
                                  ig_err *err) {
    ig_hub_lock lock;
    repo r;
    int holder;
    whole = whole || !item->commit;
    ig_status st =
        ig_hub_lock_try(&lock, cache, item->repo, IG_HUB_JOB_LOCK, IG_HUB_LOCK_WHOLE, &holder, err);
    if (st) return st;
    st = open_repo(&r, cache, item->repo, j, err);
    int pid = st ? 0 : ig_hub_served_by(j->o->state, whole ? r.path : item->path);
    if (pid) st = ig_fail(err, IG_EBUSY, "%s is being served by process %d", item->name, pid);
    if (!st) remove_repo_item(&r, item, whole);
    close_repo(&r);
    ig_hub_lock_end(&lock);
    return st ? st : result_of(j, err);
}

/* ---- the models folder --------------------------------------------------------------------------------- */

/* The blob of our own cache that a name of the models folder is a link to, as tools/fetch.py makes them; ""
 * for any other name. */
static void own_blob_of(char out[256], int models_fd, const char *name) {
    static const char blobs[] = "../blobs/";
    char to[256];
    ssize_t n = readlinkat(models_fd, name, to, sizeof to - 1);
    out[0] = 0;
    if (n <= 0) return;
    to[n] = 0;
    const ig_slice hash = ig_slice_of(begins(to, blobs) ? to + sizeof blobs - 1 : "");
    if (hash.n == 64 && ig_hub_hash_good(hash)) snprintf(out, 256, "%s", hash.p);
}

/* The folder of those blobs, -1 when there is none, or when the models folder is a link to somewhere else and
 * what is beside it is not ours. *path is its name. */
static int open_own_blobs(char path[PATH_MAX], const char *models, int models_fd) {
    struct stat a, b;
    size_t n = strlen(models);
    while (n > 1 && models[n - 1] == '/') n--;
    const char *slash = memrchr(models, '/', n);
    if (!slash || (size_t)snprintf(path, PATH_MAX, "%.*s/blobs", (int)(slash - models), models) >= PATH_MAX)
        return -1;
    int fd = models_fd < 0 ? open_dir(AT_FDCWD, path) : open_dir(models_fd, "../blobs");
    if (fd >= 0 &&
        (fstat(fd, &a) != 0 || lstat(path, &b) != 0 || a.st_dev != b.st_dev || a.st_ino != b.st_ino)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Is it an entry of the models folder that belongs to the item: its name, or another part of a split one? */
static bool is_local_part(const ig_hub_item *item, const char *name) {
    ig_hub_gguf g, other;
    return strcmp(name, item->name) == 0 ||
           (ig_hub_gguf_of(&g, item->name) && g.n_parts > 1 && ig_hub_gguf_of(&other, name) &&
            other.n_stem == g.n_stem && other.n_parts == g.n_parts &&
            strncmp(name, item->name, g.n_stem) == 0);
}

/* Does a name that stays lead to the blob? What cannot be read may. */
static bool is_needed(int models_fd, const ig_hub_item *item, const char *hash) {
    set paths = {.n = 0}, blobs = {.n = 0};
    read_snapshot(models_fd, "", 0, &paths, &blobs);
    bool needed = paths.full || blobs.full;
    for (int i = 0; i < paths.n && !needed; i++) {
        char blob[256];
        blob_of(blob, models_fd, paths.v[i]);
        needed = !is_local_part(item, paths.v[i]) && strcmp(blob, hash) == 0;
    }
    set_clear(&paths);
    set_clear(&blobs);
    return needed;
}

static void remove_own_blob(job *j, const char *models, int models_fd, const ig_hub_item *item,
                            const char *hash) {
    char folder[PATH_MAX], path[PATH_MAX + 80], note[80];
    uint64_t bytes = 0;
    if (is_needed(models_fd, item, hash)) return;
    int fd = open_own_blobs(folder, models, models_fd);
    if (fd < 0) return;
    snprintf(path, sizeof path, "%s/%.64s", folder, hash);
    snprintf(note, sizeof note, "%.64s.ok", hash);
    if (!ig_hub_served_by(j->o->state, path) && is_regular(fd, hash) && remove_told(j, fd, hash, path, "")) {
        snprintf(path, sizeof path, "%s/%s", folder, note);
        remove_tree(j, fd, note, path, 0, &bytes);
    }
    close(fd);
}

/* A file, its other parts, or a folder, directly in the models folder. */
static ig_status remove_local(const char *models, const ig_hub_item *item, job *j, ig_err *err) {
    int pid = ig_hub_served_by(j->o->state, item->path);
    if (pid) return ig_fail(err, IG_EBUSY, "%s is being served by process %d", item->name, pid);
    int fd = open(models, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ig_fail(err, IG_EIO, "%s: %s", models, strerror(errno));
    set all = read_dir(fd);
    if (all.full) say_failed(j, models, "not all of it can be read");
    for (int i = 0; i < all.n; i++) {
        char path[PATH_MAX], blob[256];
        if (!is_local_part(item, all.v[i])) continue;
        snprintf(path, sizeof path, "%s/%s", models, all.v[i]);
        own_blob_of(blob, fd, all.v[i]);
        if (remove_told(j, fd, all.v[i], path, "") && *blob) remove_own_blob(j, models, fd, item, blob);
    }
    set_clear(&all);
    close(fd);
    return result_of(j, err);
}

ig_status ig_hub_rm(const char *cache, const char *models, const ig_hub_item *item, bool whole,
                    const ig_hub_remove *o, ig_err *err) {
    job j = {.o = o};
    return item->repo ? remove_from_repo(cache, item, whole, &j, err) : remove_local(models, item, &j, err);
}

/* A blob to which no model leads any more, or what a download left behind. */
static const char *why_own_blob_goes(const set *needed, const char *name, int64_t age_s) {
    char hash[65];
    const char *dot = name + strcspn(name, ".");
    if (dot - name != 64 || !ig_hub_hash_good((ig_slice){name, 64})) return NULL;
    snprintf(hash, sizeof hash, "%.64s", name);
    if (strcmp(dot, ".part") == 0 || has_part(dot, ".new"))
        return age_s >= LEFTOVER_S ? "an unfinished download, older than 7 days" : NULL;
    if ((*dot && strcmp(dot, ".ok") != 0) || set_has(needed, hash)) return NULL;
    return age_s >= DAY_S ? "no model leads to it" : NULL;
}

/* What a writer of the registry left that was killed: ".ingle-..." and, of older versions,
 * registry.json.XXXXXX. */
static void sweep_own_asides(job *j, const char *models) {
    static const char registry[] = "registry.json.";
    char top[PATH_MAX], path[PATH_MAX + 300];
    const char *slash = strrchr(models, '/');
    if (!slash || (size_t)snprintf(top, sizeof top, "%.*s", (int)(slash - models), models) >= sizeof top)
        return;
    int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    set all = fd < 0 ? (set){.n = 0} : read_dir(fd);
    for (int i = 0; i < all.n; i++) {
        struct stat info;
        const bool old = begins(all.v[i], registry) && strlen(all.v[i]) == sizeof registry - 1 + 6;
        if ((!old && !begins(all.v[i], aside)) || fstatat(fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode) || j->o->now_s - (int64_t)info.st_mtim.tv_sec < YOUNG_S)
            continue;
        snprintf(path, sizeof path, "%s/%.255s", top, all.v[i]);
        remove_told(j, fd, all.v[i], path, "left by a program that was ended");
    }
    set_clear(&all);
    if (fd >= 0) close(fd);
}

ig_status ig_hub_gc_own(const char *models, const ig_hub_remove *o, ig_err *err) {
    job j = {.o = o};
    char folder[PATH_MAX];
    set paths = {.n = 0}, needed = {.n = 0};
    int models_fd = open(models, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (models_fd < 0 && errno != ENOENT) return ig_fail(err, IG_EIO, "%s: %s", models, strerror(errno));
    int fd = open_own_blobs(folder, models, models_fd);
    if (models_fd >= 0) read_snapshot(models_fd, "", 0, &paths, &needed);
    set_sort(&needed);
    if (fd >= 0 && needed.full && o->kept)
        o->kept(o->ud, folder, "not all of the models folder can be read, so nobody knows what is needed");
    set all = fd < 0 || needed.full ? (set){.n = 0} : read_dir(fd);
    for (int i = 0; i < all.n; i++) {
        struct stat info;
        char path[PATH_MAX + 300];
        if (fstatat(fd, all.v[i], &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
        const char *why = why_own_blob_goes(&needed, all.v[i], o->now_s - (int64_t)info.st_mtim.tv_sec);
        snprintf(path, sizeof path, "%s/%.255s", folder, all.v[i]);
        if (why && !ig_hub_served_by(o->state, path)) remove_told(&j, fd, all.v[i], path, why);
    }
    set_clear(&all);
    set_clear(&needed);
    set_clear(&paths);
    if (fd >= 0) close(fd);
    if (models_fd >= 0) close(models_fd);
    sweep_own_asides(&j, models);
    return result_of(&j, err);
}
