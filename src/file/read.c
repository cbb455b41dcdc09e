/* read: whole small files into memory.
 * Threads: any. Memory: one malloc of at most bytes_max + 1, grown as bytes really come.
 * Why not trust st_size: the file may grow or shrink meanwhile, and files of /proc and /sys say 0. */
#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
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
