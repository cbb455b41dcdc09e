/* read: whole small files into memory, and pieces of large ones.
 * Threads: any. Memory: slurp takes one malloc of at most bytes_max + 1, grown as bytes really come.
 * Why not trust st_size there: the file may grow or shrink meanwhile, and files of /proc and /sys say 0. */
#include "file/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEP_BYTES = 4096 };

ig_status ig_file_slurp(char **out, size_t *n, const char *path, size_t bytes_max, ig_err *err) {
    ig_status st = IG_OK;
    struct stat info;
    char *bytes = NULL;
    size_t cap = 0, used = 0;

    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (fd < 0)
        return ig_fail(err, errno == ENOENT || errno == ENOTDIR ? IG_ENOTFOUND : IG_EIO, "%s: %s", path,
                       strerror(errno));
    if (fstat(fd, &info) != 0) {
        st = ig_fail(err, IG_EIO, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        st = ig_fail(err, IG_EIO, "%s: %s", path,
                     S_ISDIR(info.st_mode) ? "is a directory" : "not a regular file");
        goto out;
    }
    if ((uint64_t)info.st_size > bytes_max) {
        st = ig_fail(err, IG_ELIMIT, "%s: %lld bytes, limit %zu", path, (long long)info.st_size, bytes_max);
        goto out;
    }
    cap = (size_t)info.st_size + 1; /* the one more sees the end without a second round */
    for (;;) {
        char *grown = realloc(bytes, cap + 1);
        if (!grown) {
            st = ig_fail(err, IG_ELIMIT, "%s: no memory for %zu bytes", path, cap);
            goto out;
        }
        bytes = grown;
        ssize_t got = read(fd, bytes + used, cap - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            st = ig_fail(err, IG_EIO, "%s: %s", path, strerror(errno));
            goto out;
        }
        used += (size_t)got;
        if (used > bytes_max) {
            st = ig_fail(err, IG_ELIMIT, "%s: more than %zu bytes, the limit", path, bytes_max);
            goto out;
        }
        if (got == 0) break;
        if (used == cap) cap += cap / 2 + STEP_BYTES;
    }
    bytes[used] = 0;
    *out = bytes;
    *n = used;
    bytes = NULL;
out:
    free(bytes);
    close(fd);
    return st;
}

ig_status ig_file_open_regular(int *fd, uint64_t *n_bytes, const char *path, const char *kind, ig_err *err) {
    char shown[IG_SHOWN_PATH_BYTES];
    struct stat info;
    ig_status st = IG_OK;
    ig_file_show_path(shown, path);
    int got = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (got < 0)
        return ig_fail(err, errno == ENOENT || errno == ENOTDIR ? IG_ENOTFOUND : IG_EIO, "%s: %s", shown,
                       strerror(errno));
    if (fstat(got, &info) != 0)
        st = ig_fail(err, IG_EIO, "%s: %s", shown, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = ig_fail(err, IG_EFORMAT, "%s: %s, not %s", shown,
                     S_ISDIR(info.st_mode) ? "a directory" : "not a regular file", kind);
    else if (info.st_size == 0)
        st = ig_fail(err, IG_EFORMAT, "%s: the file is empty, and not %s", shown, kind);
    if (st) {
        close(got);
        return st;
    }
    *fd = got;
    *n_bytes = (uint64_t)info.st_size;
    return IG_OK;
}

ig_status ig_file_read_part(void *out, size_t n, const ig_file_part *part, uint64_t from, ig_err *err) {
    char shown[IG_SHOWN_PATH_BYTES];
    uint8_t *to = out;
    ig_file_show_path(shown, part->path);
    if (from > part->n_bytes || n > part->n_bytes - from)
        return ig_fail(err, IG_EINVAL, "%s: tensor %s: bytes %" PRIu64 " + %zu of %" PRIu64, shown,
                       ig_file_show(part->name).s, from, n, part->n_bytes);
    for (uint64_t at = part->at + from; n > 0;) {
        ssize_t got = pread(part->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return ig_fail(err, IG_EIO, "%s: tensor %s: read at byte %" PRIu64 ": %s", shown,
                           ig_file_show(part->name).s, at, strerror(errno));
        if (got == 0)
            return ig_fail(err, IG_EIO,
                           "%s: ends at byte %" PRIu64 " while reading tensor %s; it was longer when opened",
                           shown, at, ig_file_show(part->name).s);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return IG_OK;
}
