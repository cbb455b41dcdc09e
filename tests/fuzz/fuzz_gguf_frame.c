/* fuzz_gguf_frame: GGUF files whose framing is right and whose numbers are mostly right: the bytes are choices.
 *
 * Plain bytes seldom get past the first count. What is checked is what fuzz_gguf.c checks. */
#include "file/file.h"
#include "recipe.h"

#ifndef IG_LIBFUZZER
#define IG_LIBFUZZER
#define IG_FUZZ_OWN_MAIN
#endif
#define LLVMFuzzerTestOneInput check_bytes
#include "fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { KEYS_MOST = 24, TENSORS_MOST = 16, DATA_MOST = 1 << 16, ALIGN = 32 };

static const uint8_t size_of_kind[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static void put_text(ig_buf *b, recipe *r, ig_slice s) {
    put_le(b, perhaps(r, s.n), 8);
    ig_buf_add(b, s.p, s.n);
}

static void put_value(ig_buf *b, recipe *r, uint32_t kind) {
    if (kind == IG_GGUF_STRING) {
        put_text(b, r, take_text(r, 24));
    } else if (kind == IG_GGUF_ARRAY) {
        uint32_t item = (uint32_t)perhaps(r, choose(r) % 9);
        uint8_t n = choose(r) % 20;
        put_le(b, item, 4);
        put_le(b, perhaps(r, n), 8);
        for (int i = 0; i < n; i++) {
            if (item == IG_GGUF_STRING) put_text(b, r, take_text(r, 12));
            else put_le(b, item == IG_GGUF_BOOL ? choose(r) & 1 : choose(r), item < 13 ? size_of_kind[item] : 1);
        }
    } else {
        put_le(b, perhaps(r, kind == IG_GGUF_BOOL ? 1 : 32), kind < 13 ? size_of_kind[kind] : 1);
    }
}

static void put_key(ig_buf *b, recipe *r) {
    static const char *const names[] = {"general.alignment",     "general.architecture", "split.count",
                                        "split.no",              "split.tensors.count",  "tokenizer.ggml.tokens",
                                        "tokenizer.ggml.merges", "llama.block_count"};
    uint8_t which = choose(r);
    char own[8] = {'k', (char)('a' + which % 26), (char)('a' + which / 26)};
    ig_slice name = ig_slice_of(which < 8 ? names[which] : own);
    uint32_t kind = which == 0 || which == 2 || which == 3 ? IG_GGUF_U32 : choose(r) % 13;
    put_text(b, r, name);
    put_le(b, perhaps(r, kind), 4);
    put_value(b, r, kind);
}

/* *at: where its data lie, and where those of the next will. */
static void put_tensor(ig_buf *b, recipe *r, int index, uint64_t *at) {
    char name[16];
    uint32_t type = choose(r) % 44, n_dims = choose(r) % 4 + 1;
    const ig_gguf_type *t = ig_gguf_type_of(type);
    uint64_t unit = t && t->n_values ? t->n_values : 32, n = 1;
    snprintf(name, sizeof name, "t%d", index);
    put_text(b, r, ig_slice_of(name));
    put_le(b, perhaps(r, n_dims), 4);
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t dim = choose(r) % 5u + 1u;
        if (d == 0) dim *= unit;
        n *= dim;
        put_le(b, perhaps(r, dim), 8);
    }
    put_le(b, perhaps(r, type), 4);
    put_le(b, perhaps(r, *at), 8);
    *at += (n / unit * (t ? t->n_bytes : 0) + ALIGN - 1) / ALIGN * ALIGN;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const char zeros[4096];
    recipe r = {p, n};
    ig_buf b = ig_buf_init(1 << 20);
    uint8_t n_keys = choose(&r) % KEYS_MOST, n_tensors = choose(&r) % TENSORS_MOST;
    uint64_t at = 0;
    ig_buf_add(&b, "GGUF", 4);
    put_le(&b, perhaps(&r, 3), 4);
    put_le(&b, perhaps(&r, n_tensors), 8);
    put_le(&b, perhaps(&r, n_keys), 8);
    for (int i = 0; i < n_keys; i++) put_key(&b, &r);
    for (int i = 0; i < n_tensors; i++) put_tensor(&b, &r, i, &at);
    while (b.n % ALIGN) ig_buf_add(&b, "", 1);
    at = perhaps(&r, at);
    for (uint64_t left = at < DATA_MOST ? at : DATA_MOST; left > 0;) {
        size_t part = left < sizeof zeros ? (size_t)left : sizeof zeros;
        ig_buf_add(&b, zeros, part);
        left -= part;
    }
    check_bytes((const uint8_t *)b.p, b.n);
    ig_buf_free(&b);
    return 0;
}

#ifdef IG_FUZZ_OWN_MAIN
#include "corpus_main.h"
#endif
