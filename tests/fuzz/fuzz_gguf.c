/* fuzz_gguf: any bytes as a model file. What opens must keep the promises of file.h, and every getter must
 * survive every key. */
#include "file/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void ask_key(const ig_gguf *g, int i) {
    ig_gguf_kind kind;
    ig_slice name = ig_gguf_key(g, i, &kind), s;
    char key[256];
    uint64_t u, sum = 0;
    double f;
    bool yes;
    ig_gguf_array a;
    if (name.n >= sizeof key) return;
    memcpy(key, name.p, name.n);
    key[name.n] = 0;
    ig_gguf_get_u64(g, key, &u, NULL);
    ig_gguf_get_f64(g, key, &f, NULL);
    ig_gguf_get_bool(g, key, &yes, NULL);
    if (ig_gguf_get_string(g, key, &s, NULL) == IG_OK) ig_assert(ig_slice_utf8_valid(s, NULL));
    ig_assert((ig_gguf_get_array(g, key, &a, NULL) == IG_OK) == (kind == IG_GGUF_ARRAY));
    if (kind != IG_GGUF_ARRAY) return;
    for (uint64_t j = 0; j < a.n; j++) {
        sum += ig_gguf_array_u64(&a, j) + (ig_gguf_array_f64(&a, j) > 0);
        if (a.kind == IG_GGUF_STRING) sum += ig_slice_utf8_valid(a.strings[j], NULL);
    }
    if (sum == 42) write(-1, &sum, 0); /* so that the sum is not optimised away */
}

static void ask_tensor(const ig_gguf *g, int i, uint64_t file_bytes) {
    const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
    const ig_gguf_type *type = ig_gguf_type_of(t->type);
    char name[IG_GGUF_NAME_MAX + 1];
    uint8_t byte;
    ig_assert(type && type->n_values && t->dim[0] % type->n_values == 0);
    ig_assert(t->n_bytes > 0 && t->offset <= file_bytes && t->n_bytes <= file_bytes - t->offset);
    memcpy(name, t->name.p, t->name.n);
    name[t->name.n] = 0;
    ig_assert(ig_gguf_find(g, name) == t);
    ig_assert(ig_gguf_read(g, t, t->n_bytes - 1, &byte, 1, NULL) == IG_OK);
    ig_assert(ig_gguf_read(g, t, t->n_bytes, &byte, 1, NULL) != IG_OK);
    for (int j = 0; j < i && j < 64; j++) {
        const ig_gguf_tensor *o = ig_gguf_tensor_at(g, j);
        ig_assert(o->offset + o->n_bytes <= t->offset || t->offset + t->n_bytes <= o->offset);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    static char path[40];
    ig_gguf *g = NULL;
    ig_err err;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    ig_assert(ftruncate(fd, (off_t)n) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n);
    if (ig_gguf_open(&g, path, &err) != IG_OK) {
        ig_assert(err.code != IG_OK && err.msg[0] && !g);
        return 0;
    }
    for (int i = 0; i < ig_gguf_n_keys(g); i++) ask_key(g, i);
    for (int i = 0; i < ig_gguf_n_tensors(g); i++) ask_tensor(g, i, n);
    ig_gguf_close(g);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
