/* A recipe: the fuzzer's bytes read as choices, so that a target can write a file whose framing is right and
 * whose numbers are wrong. When the bytes are used up every choice is 0. */
#ifndef IG_FUZZ_RECIPE_H
#define IG_FUZZ_RECIPE_H

#include "base/base.h"

#include <string.h>

typedef struct recipe {
    const uint8_t *p;
    size_t n;
} recipe;

static inline uint8_t choose(recipe *r) {
    if (r->n == 0) return 0;
    r->n--;
    return *r->p++;
}

/* `truth`, in most cases; else a small number, one at an edge, or any. */
static inline uint64_t perhaps(recipe *r, uint64_t truth) {
    static const uint64_t edges[] = {0,          1,          255,        0x7fff,        0x7fffffff,     0x80000000,
                                     0xffffffff, 0x100000000, 4194305,   1ull << 40,    1ull << 62,     1ull << 63,
                                     INT64_MAX,  UINT64_MAX, 211106198978564, UINT64_MAX - 31};
    uint8_t how = choose(r);
    if (how < 200) return truth;
    if (how < 210) return truth + 1;
    if (how < 220) return truth - 1;
    if (how < 230) return choose(r);
    if (how < 250) return edges[choose(r) % (sizeof edges / sizeof *edges)];
    uint64_t any = 0;
    for (int i = 0; i < 8; i++) any = any << 8 | choose(r);
    return any;
}

static inline void put_le(ig_buf *out, uint64_t v, size_t n_bytes) {
    ig_buf_add(out, &v, n_bytes);
}

/* As many bytes as the first says, at most `most`. */
static inline ig_slice take_text(recipe *r, size_t most) {
    size_t n = choose(r) % (most + 1);
    if (n > r->n) n = r->n;
    ig_slice s = {(const char *)r->p, n};
    r->p += n;
    r->n -= n;
    return s;
}

#endif
