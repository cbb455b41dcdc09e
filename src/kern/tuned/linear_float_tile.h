/* linear_float_tile: f32, f16 and bf16, 1 to 6 rows by 16 outputs, in the words of simd/: one text for AVX2 and NEON.
 * One fma chain an output, k ascending; the 12 chains of 6 rows hide the latency of fma. Sums are named variables:
 * gcc 12 keeps an array's stores in the loop, a factor of 2. (Tried and left out, 2026-11: panels cut into strips
 * that are widened once and stay in L1; 43 GMAC/s where whole panels give 46.) */
#ifndef IG_LINEAR_FLOAT_TILE_H
#define IG_LINEAR_FLOAT_TILE_H

#include "kern/simd.h"
#include "kern/tuned/like_tiles.h"

#define INLINE static inline __attribute__((always_inline))
enum { F32, F16, BF16 };
enum { AHEAD_BYTES = 1024 };
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

INLINE size_t value_bytes(const int kind) { return kind == F32 ? 4 : 2; }
INLINE vf eight(const uint8_t *p, const int kind) {
    if (kind == F32) return vf_load((const float *)(const void *)p);
    const uint16_t *h = (const uint16_t *)(const void *)p;
    return kind == F16 ? vf_from_f16(h) : vf_from_bf16(h);
}

/* n rows from `row` on. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_cols, const int n,
                      const int kind, const bool stream) {
    const size_t half = 8 * value_bytes(kind), stride = (size_t)x->n_cols;
    const float *a = x->f + (size_t)row * stride;
#define X(r) vf f##r##0 = vf_set(0.0f), f##r##1 = f##r##0;
    ROWS(X)
#undef X
    for (int k = 0; k < n_cols; k++, w += 2 * half) {
        if (stream) __builtin_prefetch(w + AHEAD_BYTES);
        vf w0 = eight(w, kind), w1 = eight(w + half, kind);
#define X(r)                                              \
    if (n > r) {                                          \
        vf v = vf_set(a[(size_t)r * stride + (size_t)k]); \
        f##r##0 = vf_fma(w0, v, f##r##0);                 \
        f##r##1 = vf_fma(w1, v, f##r##1);                 \
    }
        ROWS(X)
#undef X
    }
#define X(r) \
    if (n > r) vf_store(tile + r * 16, f##r##0), vf_store(tile + r * 16 + 8, f##r##1);
    ROWS(X)
#undef X
}

/* The first tile streams the panel, the others find it in the cache. */
INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int kind) {
#define TILE(r, n)                                                                  \
    if ((r) == 0) rows_tile(tile, panel, x, row, n_cols, n, kind, true);            \
    else rows_tile(tile + (r) * 16, panel, x, row + (r), n_cols, n, kind, false)
    IN_LIKE_TILES(m, TILE);
#undef TILE
}

#define KERN(fmt, kind)                                                                              \
    extern const ig_fmt ig_fmt_##fmt;                                                                \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,     \
                             int n_cols) {                                                           \
        linear(tile, panel, x, row, m, n_cols, kind);                                                \
    }
KERN(f32, F32)
KERN(f16, F16)
KERN(bf16, BF16)

#define ROW(fmt, tier)                                                                                 \
    {IG_KERN_LINEAR, &ig_fmt_##fmt, tier, SIMD_NEEDS, SIMD_SPEED + 5, KERN_NAME("linear_" #fmt "_tile"), \
     "equals scalar", {.linear = linear_##fmt}}
static const ig_kern kerns[] = {ROW(f32, IG_TIER_L3), ROW(f16, IG_TIER_L1), ROW(bf16, IG_TIER_L1)};
KERN_EXPORT(linear_float_tile, kerns);

#endif
