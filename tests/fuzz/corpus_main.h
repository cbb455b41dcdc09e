/* The main of a fuzz target that is built without a fuzzer: runs every file named on the command line, and
 * every file of every folder named there, so that a corpus is a plain test. */
#ifndef IG_FUZZ_CORPUS_MAIN_H
#define IG_FUZZ_CORPUS_MAIN_H

#include "file/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { CORPUS_FILE_MAX = 64 << 20 };

static int run_file(const char *path) {
    char *bytes = NULL;
    size_t n = 0;
    ig_err err;
    if (ig_file_slurp(&bytes, &n, path, CORPUS_FILE_MAX, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    /* An exact copy: the zero that slurp adds would hide a read past the end from the sanitizer. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact) return -1;
    if (n) __builtin_memcpy(exact, bytes, n);
    free(bytes);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}

static int run_folder(const char *path) {
    int n_run = 0;
    DIR *folder = opendir(path);
    if (!folder) return -1;
    for (struct dirent *e; (e = readdir(folder));) {
        char file[4096];
        if (e->d_name[0] == '.') continue;
        if ((size_t)snprintf(file, sizeof file, "%s/%s", path, e->d_name) >= sizeof file ||
            run_file(file) < 0) {
            n_run = -1;
            break;
        }
        n_run++;
    }
    closedir(folder);
    return n_run;
}

int main(int argc, char **argv) {
    int n_run = 0;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        int n = stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);
        if (n < 0) return 1;
        n_run += n;
    }
    printf("%s: %d inputs\n", argv[0], n_run);
    return n_run ? 0 : 1; /* a corpus that is not there must not pass */
}

#endif
