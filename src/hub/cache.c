/* cache: the layout that Python's huggingface_hub reads and writes too, and locks between processes.
 *     models--ORG--NAME/blobs/HASH                       the bytes
 *     models--ORG--NAME/snapshots/COMMIT/PATH            a relative link to them
 *     models--ORG--NAME/refs/REVISION                    the commit, written last
 *     .locks/models--ORG--NAME/HASH.lock                 flock'ed while HASH is fetched, by either program
 * Threads: any; processes too. Memory: malloc for paths.
 * Why flock and not a file that is there or not: the kernel ends it with its process, so no lock is ever
 * stale and no clock or pid has to be believed. */
#include "hub/inside.h"

#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DIR_MODE = 0777, FILE_MODE = 0666, REF_BYTES_MAX = 128, LOCK_TRIES = 100 };

char *ig_hub_repo_path(const char *cache, const char *repo, const char *below) {
    char *path = NULL;
    const char *slash = strchr(repo, '/');
    ig_assert(slash != NULL);
    return asprintf(&path, "%s/models--%.*s--%s%s%s", cache, (int)(slash - repo), repo, slash + 1,
                    below ? "/" : "", below ? below : "") < 0
               ? NULL
               : path;
}

bool ig_hub_repo_of_folder(char out[IG_HUB_REPO_BYTES], const char *folder) {
    ig_hub_name name;
    char text[IG_HUB_REPO_BYTES];
    if (strncmp(folder, "models--", 8) != 0) return false;
    const char *dashes = strstr(folder + 8, "--");
    if (!dashes || (size_t)snprintf(text, sizeof text, "%.*s/%s", (int)(dashes - folder - 8), folder + 8,
                                    dashes + 2) >= sizeof text)
        return false;
    if (ig_hub_name_parse(&name, text, NULL) || strcmp(name.repo, text) != 0) return false;
    memcpy(out, name.repo, IG_HUB_REPO_BYTES);
    return true;
}

ig_status ig_hub_make_dirs(const char *path, ig_err *err) {
    ig_status st = IG_OK;
    char *copy = strdup(path);
    if (!copy) return ig_fail(err, IG_ELIMIT, "no memory");
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != 0) continue;
        char was = *p;
        *p = 0;
        if (mkdir(copy, DIR_MODE) != 0 && errno != EEXIST) {
            struct stat info;
            int why = errno; /* a file system may say no before it looks whether the folder is there */
            if (stat(copy, &info) != 0 || !S_ISDIR(info.st_mode)) {
                st = ig_fail(err, IG_EIO, "create folder %s: %s", copy, strerror(why));
                break;
            }
        }
        *p = was;
        if (was == 0) break;
    }
    free(copy);
    return st;
}

ig_status ig_hub_sync_dir(const char *path, ig_err *err) {
    ig_status st = IG_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        st = ig_fail(err, IG_EIO, "sync of folder %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return st;
}

/* ---- refs ---------------------------------------------------------------------------------------------- */

bool ig_hub_ref_read(char out[41], const char *repo_path, const char *revision) {
    char *path = NULL, *text = NULL;
    size_t n = 0;
    bool good = asprintf(&path, "%s/refs/%s", repo_path, revision) >= 0 &&
                ig_file_slurp(&text, &n, path, REF_BYTES_MAX, NULL) == IG_OK;
    while (good && n && strchr(" \t\r\n", text[n - 1])) n--;
    good = good && n == 40 && ig_hub_hash_good((ig_slice){text, n});
    if (good) snprintf(out, 41, "%.40s", text);
    free(text);
    free(path);
    return good;
}

/* Written aside and not in refs/, where whatever a crash leaves behind would be a name. */
static ig_status write_ref(const char *repo_path, const char *path, const char *commit, ig_err *err) {
    ig_status st = IG_OK;
    char *aside = NULL;
    if (asprintf(&aside, "%s/.ingle-ref-%d", repo_path, (int)getpid()) < 0)
        return ig_fail(err, IG_ELIMIT, "no memory");
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (fd < 0 || write(fd, commit, 40) != 40 || fsync(fd) != 0 || rename(aside, path) != 0)
        st = ig_fail(err, IG_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (st) unlink(aside);
    free(aside);
    return st;
}

ig_status ig_hub_ref_write(const char *repo_path, const char *revision, const char *commit, ig_err *err) {
    char was[41], *path = NULL;
    if (strcmp(revision, commit) == 0) return IG_OK; /* a commit needs no name */
    if (ig_hub_ref_read(was, repo_path, revision) && strcmp(was, commit) == 0) return IG_OK;
    if (asprintf(&path, "%s/refs/%s", repo_path, revision) < 0) return ig_fail(err, IG_ELIMIT, "no memory");
    char *slash = strrchr(path, '/');
    *slash = 0;
    ig_status st = ig_hub_make_dirs(path, err);
    *slash = '/';
    if (!st) st = write_ref(repo_path, path, commit, err);
    *slash = 0;
    if (!st) st = ig_hub_sync_dir(path, err);
    free(path);
    return st;
}

/* ---- links --------------------------------------------------------------------------------------------- */

/* Opens the folder that holds `path` below fd (which is closed), making it; *name is the last part. No part
 * may be a link: a snapshot consists of folders of ours, and nothing may lead out of it. */
static int open_parent(int fd, const char *path, const char **name) {
    for (const char *slash; fd >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        char part[256];
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        int below = mkdirat(fd, part, DIR_MODE) == 0 || errno == EEXIST
                        ? openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                        : -1;
        int was = errno;
        close(fd);
        errno = was;
        fd = below;
    }
    *name = path;
    return fd;
}

static bool is_linked(int folder, const char *name, const char *to) {
    char now[256];
    ssize_t n = readlinkat(folder, name, now, sizeof now - 1);
    if (n < 0) return false;
    now[n] = 0;
    return strcmp(now, to) == 0;
}

/* One that is there is replaced by a rename, so that a name is never without a file behind it. */
static bool make_link(int folder, const char *name, const char *to) {
    char aside[64];
    if (symlinkat(to, folder, name) == 0) return true;
    if (errno != EEXIST) return false;
    snprintf(aside, sizeof aside, ".ingle-%d-%llx", (int)getpid(), (unsigned long long)ig_rng_fresh_seed());
    if (symlinkat(to, folder, aside) != 0) return false;
    if (renameat(folder, aside, folder, name) == 0) return true;
    int was = errno;
    unlinkat(folder, aside, 0);
    errno = was;
    return false;
}

ig_status ig_hub_link(const char *repo_path, const char *commit, const char *path, const char *hash,
                      ig_err *err) {
    char to[256], *top = NULL;
    const char *name;
    ig_status st;
    int depth = 2, n = 0;
    for (const char *p = path; *p; p++) depth += *p == '/';
    if (depth > 24) return ig_fail(err, IG_EFORMAT, "%s: more than 22 folders deep", path);
    for (int i = 0; i < depth; i++) n += snprintf(to + n, sizeof to - (size_t)n, "../");
    snprintf(to + n, sizeof to - (size_t)n, "blobs/%s", hash);
    if (asprintf(&top, "%s/snapshots/%s", repo_path, commit) < 0) return ig_fail(err, IG_ELIMIT, "no memory");
    st = ig_hub_make_dirs(top, err);
    int fd = st ? -1 : open_parent(open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path, &name);
    if (!st && fd < 0) {
        st = ig_fail(err, IG_EIO, "%s/%s: %s", top, path, strerror(errno));
    } else if (!st && !is_linked(fd, name, to) && !make_link(fd, name, to)) {
        const char *hint =
            errno == EPERM || errno == EOPNOTSUPP ? " (a file system without symbolic links?)" : "";
        st = ig_fail(err, IG_EIO, "%s/%s: link: %s%s", top, path, strerror(errno), hint);
    }
    if (!st && fsync(fd) != 0 && errno != EINVAL)
        st = ig_fail(err, IG_EIO, "sync of %s: %s", top, strerror(errno));
    if (fd >= 0) close(fd);
    free(top);
    return st;
}

/* ---- locks --------------------------------------------------------------------------------------------- */

static int holder_of(int fd) {
    char text[64];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = 0;
    return (int)strtol(text, NULL, 10);
}

/* Is the file that we hold still the one of that name? Python's program removes its lock files. */
static bool is_named(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

static void sign(int fd) {
    char text[64];
    int n = snprintf(text, sizeof text, "%d %lld\n", (int)getpid(), (long long)time(NULL));
    /* For people only: a lock without a name on it is a lock. */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) return;
}

ig_hub_process ig_hub_process_text(int pid) {
    ig_hub_process text = {"another process"};
    if (pid > 0) snprintf(text.s, sizeof text.s, "process %d", pid);
    return text;
}

ig_status ig_hub_lock_try(ig_hub_lock *out, const char *cache, const char *repo, const char *name, int kind,
                          int *holder, ig_err *err) {
    ig_status st = IG_OK;
    char *locks = NULL, *folder = NULL, *path = NULL;
    int fd = -1;
    *holder = 0;
    if (asprintf(&locks, "%s/.locks", cache) < 0 || !(folder = ig_hub_repo_path(locks, repo, NULL)) ||
        asprintf(&path, "%s/%s.lock", folder, name) < 0) {
        st = ig_fail(err, IG_ELIMIT, "no memory");
        goto out;
    }
    if ((st = ig_hub_make_dirs(folder, err))) goto out;
    for (int i = 0; i < LOCK_TRIES; i++) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
        if (fd < 0) {
            st = ig_fail(err, IG_EIO, "%s: %s", path, strerror(errno));
            goto out;
        }
        if (flock(fd, (kind == IG_HUB_LOCK_WHOLE ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
            const int why = errno;
            *holder = holder_of(fd);
            errno = why;
            st = errno == EWOULDBLOCK
                     ? ig_fail(err, IG_EBUSY, "%s: %s is at work on it", repo, ig_hub_process_text(*holder).s)
                     : ig_fail(err, IG_EIO, "%s: lock: %s", path, strerror(errno));
            goto out;
        }
        if (is_named(fd, path)) break;
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        st = ig_fail(err, IG_EBUSY, "%s: its lock changes hands all the time", repo);
        goto out;
    }
    sign(fd);
    *out = (ig_hub_lock){fd, path};
    path = NULL;
    fd = -1;
out:
    if (fd >= 0) close(fd);
    free(path);
    free(folder);
    free(locks);
    return st;
}

void ig_hub_lock_end(ig_hub_lock *l) {
    if (l->path) close(l->fd);
    free(l->path);
    *l = (ig_hub_lock){-1, NULL};
}
