/* fuzz_gguf_split: a model in three files whose numbers are mostly right: the bytes are choices.
 *
 * A set that opens by any of its parts has all of their tensors, in order, each once and readable to its end; one
 * that does not says why. */
#include "file/file.h"
#include "folder.h"
#include "gguf_recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { N_PARTS = 3, TENSORS_MOST = 6 };

static const char *part_name(int i) {
    static char name[32];
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", i + 1, N_PARTS);
    return name;
}

static void put_number(ig_buf *b, const char *key, uint64_t v) {
    ig_slice name = ig_slice_of(key);
    put_le(b, name.n, 8), ig_buf_add(b, name.p, name.n);
    put_le(b, IG_GGUF_U32, 4), put_le(b, v, 4);
}

static void put_part(ig_buf *b, recipe *r, int part, int first, int n_tensors, int n_all) {
    uint64_t at = 0;
    bool named = choose(r) & 1;
    ig_buf_add(b, "GGUF", 4);
    put_le(b, 3, 4);
    put_le(b, perhaps(r, (uint64_t)n_tensors), 8);
    put_le(b, named ? 4 : 3, 8);
    put_number(b, "split.no", perhaps(r, (uint64_t)part));
    put_number(b, "split.count", perhaps(r, N_PARTS));
    put_number(b, "split.tensors.count", perhaps(r, (uint64_t)n_all));
    if (named) {
        ig_slice key = ig_slice_of("general.architecture"), name = take_text(r, 2);
        put_le(b, key.n, 8), ig_buf_add(b, key.p, key.n);
        put_le(b, IG_GGUF_STRING, 4), put_text(b, r, name);
    }
    for (int i = 0; i < n_tensors; i++) put_tensor(b, r, (int)perhaps(r, (uint64_t)(first + i)), &at);
    while (b->n % GGUF_ALIGN) ig_buf_add(b, "", 1);
    put_zeros(b, perhaps(r, at));
}

static void check_set(const ig_gguf *g) {
    uint64_t n_all = 0;
    ig_gguf_get_u64(g, "split.tensors.count", &n_all, NULL);
    ig_assert((uint64_t)ig_gguf_n_tensors(g) == n_all);
    for (int i = 0; i < ig_gguf_n_tensors(g); i++) {
        const ig_gguf_tensor *t = ig_gguf_tensor_at(g, i);
        char name[IG_GGUF_NAME_MAX + 1];
        uint8_t byte;
        memcpy(name, t->name.p, t->name.n);
        name[t->name.n] = 0;
        ig_assert(ig_gguf_find(g, name) == t);
        ig_assert(ig_gguf_read(g, t, t->n_bytes - 1, &byte, 1, NULL) == IG_OK);
        ig_assert(ig_gguf_read(g, t, t->n_bytes, &byte, 1, NULL) != IG_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    recipe r = {p, n};
    ig_gguf *g = NULL;
    ig_err err = {0};
    int n_of[N_PARTS], n_all = 0, n_written = 0;
    for (int i = 0; i < N_PARTS; i++) n_all += n_of[i] = choose(&r) % (TENSORS_MOST + 1);
    uint8_t door = choose(&r) % N_PARTS, missing = choose(&r); /* that part is not there */
    for (int i = 0; i < N_PARTS; i++) {
        ig_buf b = ig_buf_init(1 << 20);
        put_part(&b, &r, i, n_written, n_of[i], n_all);
        n_written += n_of[i];
        fuzz_write(part_name(i), b.p, b.n);
        ig_buf_free(&b);
    }
    if (missing < N_PARTS) unlink(fuzz_path(part_name(missing)));
    if (ig_gguf_open(&g, fuzz_path(part_name(door)), &err) == IG_OK) {
        /* one part whose counts say that it is a whole model opens alone */
        uint64_t count = 1;
        ig_gguf_get_u64(g, "split.count", &count, NULL);
        if (count > 1) {
            ig_assert(count == N_PARTS && missing >= N_PARTS);
            check_set(g);
        }
        ig_gguf_close(g);
    } else {
        ig_assert(err.code != IG_OK && err.msg[0] && !g);
    }
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
