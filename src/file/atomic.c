/* atomic: a file is either the old one or the whole new one, also after a crash or on a full disk.
 * Threads: any; two writers of one path each win whole, the later one last.
 * How: a temporary name in the same folder, write, fsync, rename, fsync of the folder. Without the first
 * fsync a crash may leave the new name with no bytes, without the second the rename may be lost.
 * Why one fixed temporary name for each file, locked: what a killed writer left is taken up by the next one,
 * so that leftovers do not gather. Who finds it in use, or not ours, takes a name of its own. */
#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int fd, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        p += put;
        n -= (size_t)put;
    }
    return true;
}

/* The folder of `path`, cut off in place: "a/b" -> "a", "/b" -> "/", "b" -> ".". */
static const char *folder_of(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash) return ".";
    if (slash == path) return "/";
    *slash = 0;
    return path;
}

static ig_status sync_folder(const char *path, ig_err *err) {
    ig_status st = IG_OK;
    char *copy = strdup(path);
    if (!copy) return ig_fail(err, IG_ELIMIT, "%s: no memory", path);
    int fd = open(folder_of(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder (EINVAL); there is nothing better to do there. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        st = ig_fail(err, IG_EIO, "%s: sync of its folder: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(copy);
    return st;
}

/* Is fd still what `path` names, is it ours, and known by no other name? */
static bool is_own(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
           S_ISREG(a.st_mode) && a.st_uid == geteuid() && a.st_nlink == 1;
}

/* An empty file beside `path`, mode 0600 and open; *aside is its name. */
static int open_aside(char **aside, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const int n_folder = (int)(name - path);
    if (asprintf(aside, "%.*s.ingle-%016llx", n_folder, path,
                 (unsigned long long)ig_hash64(name, strlen(name), 0)) < 0) {
        *aside = NULL;
        errno = ENOMEM;
        return -1;
    }
    int fd = open(*aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool made = fd >= 0;
    if (!made && errno == EEXIST) fd = open(*aside, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool taken = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0 && !taken && is_own(fd, *aside) && fchmod(fd, 0600) == 0 && ftruncate(fd, 0) == 0) return fd;
    if (made && !taken) unlink(*aside);
    if (fd >= 0) close(fd);
    free(*aside);
    if (asprintf(aside, "%.*s.ingle-XXXXXX", n_folder, path) < 0) {
        *aside = NULL;
        errno = ENOMEM;
        return -1;
    }
    return mkostemp(*aside, O_CLOEXEC);
}

ig_status ig_file_replace(const char *path, const void *bytes, size_t n, ig_err *err) {
    ig_status st = IG_OK;
    char *aside = NULL;
    int fd = open_aside(&aside, path);
    if (fd < 0) {
        st = ig_fail(err, errno == ENOENT ? IG_ENOTFOUND : IG_EIO, "%s: create a file beside it: %s", path,
                     strerror(errno));
        goto out;
    }
    if (!write_all(fd, bytes, n) || fsync(fd) != 0) {
        st = ig_fail(err, IG_EIO, "%s: write %zu bytes: %s", path, n, strerror(errno));
        goto remove;
    }
    if (rename(aside, path) != 0) {
        st = ig_fail(err, IG_EIO, "%s: rename: %s", path, strerror(errno));
        goto remove;
    }
    /* The lock ends here, after the rename: nobody writes to what now has its name. */
    if (close(fd) != 0) st = ig_fail(err, IG_EIO, "%s: close: %s", path, strerror(errno));
    if (!st) st = sync_folder(path, err);
    goto out;
remove:
    unlink(aside);
    close(fd);
out:
    free(aside);
    return st;
}

ig_status ig_file_make_dirs(const char *path, ig_err *err) {
    ig_status st = IG_OK;
    struct stat info;
    char *copy = strdup(path);
    if (!copy) return ig_fail(err, IG_ELIMIT, "%s: no memory", path);

    for (char *p = copy;; p++) {
        if (*p != '/' && *p != 0) continue;
        char was = *p;
        *p = 0;
        if (p > copy && mkdir(copy, 0700) != 0 && errno != EEXIST) {
            st = ig_fail(err, IG_EIO, "create folder %s: %s", copy, strerror(errno));
            break;
        }
        *p = was;
        if (was == 0) break;
    }
    if (!st && (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)))
        st = ig_fail(err, IG_EIO, "%s: not a folder", path);
    free(copy);
    return st;
}
