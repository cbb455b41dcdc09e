/* say: errors in one line on stderr, and what a status means as an exit code. */
#include "app/app.h"

#include <stdio.h>

int ig_exit_of(ig_status st) {
    switch (st) {
    case IG_OK: return IG_EXIT_OK;
    case IG_EINVAL: return IG_EXIT_USAGE;
    case IG_EFORMAT: return IG_EXIT_CORRUPT;
    case IG_EIO: return IG_EXIT_FAILED;
    case IG_ELIMIT: return IG_EXIT_MEMORY;
    case IG_ECANCELED: return IG_EXIT_INTERRUPTED;
    case IG_ENOTFOUND: return IG_EXIT_NOT_FOUND;
    }
    return IG_EXIT_FAILED;
}

int ig_app_say(int exit_code, const char *fmt, ...) {
    va_list args;
    fflush(stdout); /* so that the two streams keep their order on a terminal */
    fputs("ingle: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return exit_code;
}

int ig_app_fail(const ig_err *err) {
    return ig_app_say(ig_exit_of(err->code), "%s", err->msg);
}
