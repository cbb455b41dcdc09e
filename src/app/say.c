/* say: errors in one line on stderr, and what a status means as an exit code. */
#include "app/load.h"

#include <stdio.h>
#include <stdlib.h>

int ig_exit_of(ig_status st) {
    switch (st) {
    case IG_OK: return IG_EXIT_OK;
    case IG_EINVAL: return IG_EXIT_USAGE;
    case IG_EFORMAT: return IG_EXIT_CORRUPT;
    case IG_EIO: return IG_EXIT_FAILED;
    case IG_ELIMIT: return IG_EXIT_MEMORY;
    case IG_ECANCELED: return IG_EXIT_INTERRUPTED;
    case IG_ENOTFOUND: return IG_EXIT_NOT_FOUND;
    case IG_ENETWORK: return IG_EXIT_NETWORK;
    case IG_EBUSY: return IG_EXIT_BUSY;
    }
    return IG_EXIT_FAILED;
}

int ig_app_say(int exit_code, const char *fmt, ...) {
    char text[4096];
    va_list args;
    fflush(stdout); /* so that the two streams keep their order on a terminal */
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ig_text_calm(text, true); /* names of files may hold anything */
    fprintf(stderr, "ingle: %s\n", text);
    return exit_code;
}

int ig_app_fail(const ig_err *err) {
    return ig_app_say(ig_exit_of(err->code), "%s", err->msg);
}

bool ig_app_confirm(const char *question) {
    char text[1024], answer[64];
    snprintf(text, sizeof text, "%s", question);
    ig_text_calm(text, false);
    fprintf(stderr, "%s [y/N] ", text);
    fflush(stderr);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

void ig_app_list_name(const char *before, const char *name) {
    char text[1024];
    snprintf(text, sizeof text, "%s", name);
    ig_text_calm(text, false);
    fprintf(stderr, "  %s%s\n", before, text);
}

int ig_app_print_json(yyjson_mut_doc *doc, bool lost) {
    yyjson_write_err why = {.code = YYJSON_WRITE_ERROR_MEMORY_ALLOCATION};
    const yyjson_write_flag how = YYJSON_WRITE_PRETTY | YYJSON_WRITE_INF_AND_NAN_AS_NULL;
    char *text = lost ? NULL : yyjson_mut_write_opts(doc, how, NULL, NULL, &why);
    yyjson_mut_doc_free(doc);
    if (!text && why.code != YYJSON_WRITE_ERROR_MEMORY_ALLOCATION)
        return ig_app_say(IG_EXIT_FAILED, "this cannot be written as JSON: %s", why.msg);
    if (!text) return ig_app_say(IG_EXIT_FAILED, "no memory");
    puts(text);
    free(text);
    return IG_EXIT_OK;
}
