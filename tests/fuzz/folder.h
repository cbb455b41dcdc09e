/* A folder of the target's own for files under their names; it goes with the process. */
#ifndef IG_FUZZ_FOLDER_H
#define IG_FUZZ_FOLDER_H

#include "base/base.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_home[64]; /* "" before the first file */

/* A path in the folder, valid until the next call. */
static inline const char *fuzz_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", fuzz_home, name);
    return path;
}

static inline void fuzz_drop_folder(void) {
    DIR *folder = opendir(fuzz_home);
    if (!folder) return;
    for (struct dirent *e; (e = readdir(folder));) unlink(fuzz_path(e->d_name));
    closedir(folder);
    rmdir(fuzz_home);
}

static inline void fuzz_write(const char *name, const void *p, size_t n) {
    if (!fuzz_home[0]) {
        snprintf(fuzz_home, sizeof fuzz_home, "/tmp/ig-fuzz-XXXXXX");
        ig_assert(mkdtemp(fuzz_home) != NULL);
        atexit(fuzz_drop_folder);
    }
    unlink(fuzz_path(name)); /* some file systems write a truncated file out before close returns */
    FILE *f = fopen(fuzz_path(name), "w");
    ig_assert(f != NULL && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

#endif
