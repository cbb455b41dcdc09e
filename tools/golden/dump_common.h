/* What the two dump programs share: reading token ids, writing logits. Tools, not product code. */
#ifndef DUMP_COMMON_H
#define DUMP_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dump_args {
    const char *model, *out;
    int32_t *ids;
    int n_ids, window, threads;
} dump_args;

_Noreturn static inline void dump_die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static inline int dump_int(const char *text, const char *what, long max) {
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 1 || v > max) dump_die(what, text);
    return (int)v;
}

/* MODEL TOKENS OUT [WINDOW [THREADS]]; ids are text, any white space between. */
static inline dump_args dump_parse(int argc, char **argv) {
    if (argc < 4) dump_die("usage", "MODEL TOKENS OUT [WINDOW [THREADS]]");
    dump_args a = {.model = argv[1], .out = argv[3], .window = 512, .threads = 2};
    if (argc > 4) a.window = dump_int(argv[4], "window", 1 << 20);
    if (argc > 5) a.threads = dump_int(argv[5], "threads", 256);
    FILE *f = fopen(argv[2], "r");
    if (!f) dump_die("cannot open", argv[2]);
    int cap = 0, id;
    while (fscanf(f, "%d", &id) == 1) {
        if (a.n_ids == cap) {
            cap = cap ? 2 * cap : 4096;
            a.ids = realloc(a.ids, (size_t)cap * sizeof *a.ids);
            if (!a.ids) dump_die("no memory for tokens", argv[2]);
        }
        a.ids[a.n_ids++] = id;
    }
    fclose(f);
    if (!a.n_ids) dump_die("no tokens in", argv[2]);
    return a;
}

static inline void dump_write(FILE *f, const float *logits, size_t n) {
    if (fwrite(logits, sizeof *logits, n, f) != n) dump_die("write failed", "logits");
}

#endif
