/* inside: what the readers of file/ share: opening, reading a piece, how names of files look in messages. */
#ifndef IG_FILE_INSIDE_H
#define IG_FILE_INSIDE_H

#include "file/file.h"

enum { IG_SHOWN_NAME_BYTES = 96, IG_SHOWN_PATH_BYTES = 160 };

/* ---- show.c ----------------------------------------------------------------------------------------- */

/* Names come from files and messages go to terminals: only printable bytes pass, and not too many. */
typedef struct ig_shown {
    char s[IG_SHOWN_NAME_BYTES + 4];
} ig_shown;
ig_shown ig_file_show(ig_slice name);
/* The path, its middle cut out when long. */
void ig_file_show_path(char out[static IG_SHOWN_PATH_BYTES], const char *path);
int ig_file_name_order(ig_slice a, ig_slice b); /* by bytes, as memcmp says */
/* What a file with these first 4 bytes probably is, when it is none of ours; NULL: no idea. */
const char *ig_file_guess(const uint8_t *p);

/* ---- read.c ----------------------------------------------------------------------------------------- */

/* A regular file, ready for pread. `kind` is for the message: "a GGUF file". */
ig_status ig_file_open_regular(int *fd, uint64_t *n_bytes, const char *path, const char *kind, ig_err *err);
/* Where the bytes of a tensor lie. */
typedef struct ig_file_part {
    int fd;
    const char *path;
    ig_slice name;        /* for messages */
    uint64_t at, n_bytes; /* inside the file */
} ig_file_part;
/* n bytes of it from byte `from` on, whole or an error. */
ig_status ig_file_read_part(void *out, size_t n, const ig_file_part *part, uint64_t from, ig_err *err);

#endif
