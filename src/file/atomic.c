/* atomic: a file is either the old one or the whole new one, also after a crash or on a full disk.
 * Threads: any; two writers of one path each win whole, the later one last.
 * How: a temporary name in the same folder, write, fsync, rename, fsync of the folder. Without the first
 * fsync a crash may leave the new name with no bytes, without the second the rename may be lost. */
#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

ig_status ig_file_replace(const char *path, const void *bytes, size_t n, ig_err *err) {
    ig_status st = IG_OK;
    char *aside = NULL;
    if (asprintf(&aside, "%s.XXXXXX", path) < 0) return ig_fail(err, IG_ELIMIT, "%s: no memory", path);

    int fd = mkostemp(aside, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        st = ig_fail(err, errno == ENOENT ? IG_ENOTFOUND : IG_EIO, "%s: create %s: %s", path, aside,
                     strerror(errno));
        goto out;
    }
    if (!write_all(fd, bytes, n) || fsync(fd) != 0) {
        st = ig_fail(err, IG_EIO, "%s: write %zu bytes: %s", path, n, strerror(errno));
        close(fd);
        goto remove;
    }
    if (close(fd) != 0) {
        st = ig_fail(err, IG_EIO, "%s: close: %s", path, strerror(errno));
        goto remove;
    }
    if (rename(aside, path) != 0) {
        st = ig_fail(err, IG_EIO, "%s: rename: %s", path, strerror(errno));
        goto remove;
    }
    st = sync_folder(path, err);
    goto out;
remove:
    unlink(aside);
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
