/* fuzz_safetensors: any bytes as a safetensors file. What opens must keep the promises of file.h. */
#include "file/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint64_t ask_tensor(const ig_safetensors *s, int i, uint64_t file_bytes) {
    const ig_safetensor *t = ig_safetensors_tensor_at(s, i);
    char name[IG_SAFETENSORS_NAME_MAX + 1];
    uint8_t byte;
    uint64_t n = (uint64_t)ig_dtype_bytes(t->dtype);
    for (int d = 0; d < IG_SAFETENSORS_DIMS_MAX; d++) {
        ig_assert(t->dim[d] == 1 || d < t->n_dims);
        n *= t->dim[d];
    }
    ig_assert(n == t->n_bytes && t->offset <= file_bytes && n <= file_bytes - t->offset);
    memcpy(name, t->name.p, t->name.n);
    name[t->name.n] = 0;
    ig_assert(ig_safetensors_find(s, name) == t);
    if (n) ig_assert(ig_safetensor_read(t, n - 1, &byte, 1, NULL) == IG_OK);
    ig_assert(ig_safetensor_read(t, n, &byte, 1, NULL) != IG_OK);
    for (int j = 0; j < i && j < 64; j++) {
        const ig_safetensor *o = ig_safetensors_tensor_at(s, j);
        ig_assert(o->offset + o->n_bytes <= t->offset || t->offset + t->n_bytes <= o->offset);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    static char path[40];
    ig_safetensors *s = NULL;
    ig_err err;
    uint64_t head, data = 0;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    ig_assert(ftruncate(fd, (off_t)n) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n);
    if (ig_safetensors_open(&s, path, &err) != IG_OK) {
        ig_assert(err.code != IG_OK && err.msg[0] && !s);
        return 0;
    }
    for (int i = 0; i < ig_safetensors_n_tensors(s); i++) data += ask_tensor(s, i, n);
    memcpy(&head, p, sizeof head);
    ig_assert(data == n - sizeof head - head); /* every byte has one owner */
    ig_safetensors_close(s);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
