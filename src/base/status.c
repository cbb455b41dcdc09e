/* status: how a failure is written down.
 * Owns:    nothing; the note belongs to the caller.
 * Threads: any.
 * Memory:  the stack.
 * Why a copy before the store: an outer error often quotes the inner one out of the same note
 * (ig_fail(err, st, "%s: %s", path, err->msg)), and snprintf may not read what it writes. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A message that was cut ends in "..." and not in half a UTF-8 character. */
static void mark_cut(char *msg, size_t cap) {
    size_t at = cap - 4;
    while (at > 0 && ((unsigned char)msg[at] & 0xC0) == 0x80) at--;
    memcpy(msg + at, "...", 4);
}

ig_status ig_fail_at(ig_err *err, ig_status code, const char *file, int line, const char *fmt, ...) {
    ig_assert(code != IG_OK);
    if (!err) return code;

    int saved = errno;
    char msg[IG_ERR_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (n < 0) msg[0] = '\0';
    if (n >= (int)sizeof msg) mark_cut(msg, sizeof msg);

    ig_text_calm(msg, false); /* names come out of files and paths */
    err->code = code;
    err->line = line;
    err->file = file;
    memcpy(err->msg, msg, sizeof msg);
    errno = saved;
    return code;
}

const char *ig_status_name(ig_status st) {
    static const char *const names[] = {"ok", "invalid", "format", "io", "limit", "canceled", "not found",
                                        "network", "busy"};
    int i = -(int)st;
    return i >= 0 && i < (int)(sizeof names / sizeof *names) ? names[i] : "unknown";
}

_Noreturn void ig_assert_failed(const char *expr, const char *file, int line) {
    char text[512];
    int n = snprintf(text, sizeof text, "%s:%d: assertion failed: %s\n", file, line, expr);
    if (n > (int)sizeof text - 1) n = (int)sizeof text - 1;
    if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0) abort(); /* nobody is left to tell */
    abort();
}
