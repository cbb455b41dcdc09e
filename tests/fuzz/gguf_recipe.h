/* A GGUF file written from a recipe: the framing is right, the numbers mostly are. */
#ifndef IG_FUZZ_GGUF_RECIPE_H
#define IG_FUZZ_GGUF_RECIPE_H

#include "file/file.h"
#include "recipe.h"

#include <stdio.h>

enum { GGUF_ALIGN = 32, GGUF_DATA_MOST = 1 << 16 };

static const uint8_t size_of_kind[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static inline void put_text(ig_buf *b, recipe *r, ig_slice s) {
    put_le(b, perhaps(r, s.n), 8);
    ig_buf_add(b, s.p, s.n);
}

static inline void put_value(ig_buf *b, recipe *r, uint32_t kind) {
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

static inline void put_key(ig_buf *b, recipe *r) {
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
static inline void put_tensor(ig_buf *b, recipe *r, int index, uint64_t *at) {
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
    *at += (n / unit * (t ? t->n_bytes : 0) + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
}

static inline void put_zeros(ig_buf *b, uint64_t n) {
    static const char zeros[4096];
    for (uint64_t left = n < GGUF_DATA_MOST ? n : GGUF_DATA_MOST; left > 0;) {
        size_t part = left < sizeof zeros ? (size_t)left : sizeof zeros;
        ig_buf_add(b, zeros, part);
        left -= part;
    }
}

#endif
