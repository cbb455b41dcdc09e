/* strip: many rows by one panel. Up to 8 blocks of the panel are opened once, codes as bytes or int16 and scales as
 * f32, into a buffer that stays in L1; then every row meets them, and its sums go on from strip to strip in the
 * tile: the chain of an output is the same chain. A format says how a strip is opened, and the arithmetic for many
 * rows stands here once. From how many rows on it pays: `make bench-kern`. */
#ifndef IG_STRIP_AVX2_H
#define IG_STRIP_AVX2_H

#include "kern/tuned/tile.avx2.h"

enum { STRIP_BLOCKS = 8, STRIP_FROM_ROWS = 12 };

/* Ask for the strip after the one at w. */
INLINE void ask_for_next(const uint8_t *w, size_t strip_bytes) {
    for (size_t i = 0; i < strip_bytes; i += 64) _mm_prefetch((const char *)w + strip_bytes + i, _MM_HINT_T0);
}

/* Rows 0..m-1 as tiles of `top` (6 or 4), then 2 and 1: TILE(from, n) */
#define IN_STRIP_TILES(m, top, TILE)                     \
    do {                                                 \
        int r = 0;                                       \
        for (; r + (top) <= (m); r += (top)) TILE(r, top); \
        for (; r + 2 <= (m); r += 2) TILE(r, 2);         \
        for (; r < (m); r++) TILE(r, 1);                 \
    } while (0)
#define GO_ON_ROW(r)                                                                                     \
    __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;                                             \
    if (n > r && block > 0) f##r##0 = _mm256_loadu_ps(tile + r * 16), f##r##1 = _mm256_loadu_ps(tile + r * 16 + 8);

/* ---- bytes with int8 activations ------------------------------------------------------------------------- */

/* Codes of inputs 4 j to 4 j + 3 at 64 j, outputs 0 to 7 first; 0..15 in 4 bits, 0..31 in 5. */
typedef struct strip8 {
    struct {
        _Alignas(64) uint8_t codes[512];
        float d[16], min[16]; /* min: not of formats without */
    } block[STRIP_BLOCKS];
} strip8;

/* What a format without minima adds to isum: less half the range of its codes, times the sum of the q, of which `pair`
 * holds two parts. */
INLINE __m256i offset8(__m256i pair, const int bits) {
    return _mm256_madd_epi16(pair, _mm256_set1_epi16((short)-(1 << (bits - 1))));
}
/* acc += d * (a.scale * isum), and min * a.sum */
INLINE __m256 finish8(__m256 acc, __m256i isum, __m256 d, __m256 min, __m256 scale, __m256 sum, __m256i offset,
                      const bool with_min) {
    if (!with_min) isum = _mm256_add_epi32(isum, offset);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return with_min ? _mm256_fmadd_ps(min, sum, acc) : acc;
}

/* n rows from `row` on by the strip that begins at `block` of the panel. */
INLINE void strip8_tile(float *tile, const strip8 *s, const ig_act *x, int row, int block, int n_blocks, const int n,
                        const int bits, const bool with_min) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + (size_t)row * n_cols + (size_t)block * 32;
    const size_t at_block = (size_t)row * per_row + (size_t)block;
    const float *scale = x->scale + at_block, *sum = x->sum + at_block;
    const int16_t *qsum = x->qsum + 2 * at_block;
    SIX_ROWS(GO_ON_ROW)
    for (int b = 0; b < n_blocks; b++, q += 32, scale++, sum++, qsum += 2) {
        const uint8_t *w = s->block[b].codes;
#define X(r)                                                      \
    __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;  \
    __m256i h##r##0 = s##r##0, h##r##1 = s##r##0;
        SIX_ROWS(X)
#undef X
#define FIRST(r)                                                                      \
    if (n > r) {                                                                      \
        __m256i a = word_of(q + (size_t)r * n_cols + at);                             \
        s##r##0 = _mm256_maddubs_epi16(c0, a), s##r##1 = _mm256_maddubs_epi16(c1, a); \
        PIN(s##r##0, s##r##1);                                                        \
    }
#define NEXT(r)                                                                     \
    if (n > r) {                                                                    \
        __m256i a = word_of(q + (size_t)r * n_cols + at);                           \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#define GROUP(j, X)                                                                   \
    do {                                                                              \
        const __m256i c0 = bytes32(w + (j) * 64), c1 = bytes32(w + (j) * 64 + 32);    \
        const int at = 4 * (j);                                                       \
        SIX_ROWS(X)                                                                   \
    } while (0)
        GROUP(0, FIRST);
        GROUP(1, NEXT);
        GROUP(2, NEXT);
        GROUP(3, NEXT);
        if (bits == 5) { /* int16 holds half a block's sum of such codes */
#define WIDEN(r) \
    if (n > r) h##r##0 = _mm256_madd_epi16(s##r##0, ones), h##r##1 = _mm256_madd_epi16(s##r##1, ones);
            SIX_ROWS(WIDEN)
#undef WIDEN
            GROUP(4, FIRST);
        } else {
            GROUP(4, NEXT);
        }
        GROUP(5, NEXT);
        GROUP(6, NEXT);
        GROUP(7, NEXT);
#undef GROUP
#undef NEXT
#undef FIRST
        const __m256 d0 = _mm256_load_ps(s->block[b].d), d1 = _mm256_load_ps(s->block[b].d + 8);
        __m256 m0 = d0, m1 = d1;
        if (with_min) m0 = _mm256_load_ps(s->block[b].min), m1 = _mm256_load_ps(s->block[b].min + 8);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = with_min ? _mm256_broadcast_ss(sum + i) : vs;       \
        const __m256i offset = with_min ? ones : offset8(word_of(qsum + 2 * i), bits);                       \
        s##r##0 = _mm256_madd_epi16(s##r##0, ones), s##r##1 = _mm256_madd_epi16(s##r##1, ones);              \
        if (bits == 5)                                                                                       \
            s##r##0 = _mm256_add_epi32(s##r##0, h##r##0), s##r##1 = _mm256_add_epi32(s##r##1, h##r##1);      \
        f##r##0 = finish8(f##r##0, s##r##0, d0, m0, vs, vm, offset, with_min);                           \
        f##r##1 = finish8(f##r##1, s##r##1, d1, m1, vs, vm, offset, with_min);                           \
    }
        SIX_ROWS(X)
#undef X
    }
    SIX_ROWS(STORE_ROW)
}

/* ---- int16 with int16 activations -------------------------------------------------------------------------- */

/* Codes of inputs 4 j to 4 j + 3 at 64 j: the even ones of outputs 0 to 7, the odd ones, then outputs 8 to 15. A scale
 * for the block, or one for each half of its inputs. */
typedef struct strip16 {
    struct {
        _Alignas(64) int16_t codes[512];
        float d[2][16], min[16];
    } block[STRIP_BLOCKS];
} strip16;

INLINE void strip16_tile(float *tile, const strip16 *s, const ig_act *x, int row, int block, int n_blocks,
                         const int n, const int n_runs, const bool with_min) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const int16_t *q = x->q16 + (size_t)row * n_cols + (size_t)block * 32;
    const size_t at_block = (size_t)row * per_row + (size_t)block;
    const float *scale = x->scale16 + at_block, *sum = x->sum16 + at_block;
    FOUR_ROWS(GO_ON_ROW)
    for (int b = 0; b < n_blocks; b++, q += 32, scale++, sum++) {
#pragma GCC unroll 2
        for (int run = 0; run < n_runs; run++) {
            const int16_t *w = s->block[b].codes + run * 256;
            const float *d = s->block[b].d[run];
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
            FOUR_ROWS(X)
#undef X
#define X(r)                                                                                    \
    if (n > r) {                                                                                \
        const int16_t *p = q + (size_t)r * n_cols + (size_t)(run * 16 + j * 4);                 \
        const __m256i a01 = word_of(p), a23 = word_of(p + 2);                                   \
        s##r##0 = _mm256_add_epi32(s##r##0, _mm256_madd_epi16(e0, a01));                        \
        s##r##1 = _mm256_add_epi32(s##r##1, _mm256_madd_epi16(e1, a01));                        \
        s##r##0 = _mm256_add_epi32(s##r##0, _mm256_madd_epi16(o0, a23));                        \
        s##r##1 = _mm256_add_epi32(s##r##1, _mm256_madd_epi16(o1, a23));                        \
        PIN(s##r##0, s##r##1);                                                                  \
    }
#pragma GCC unroll 8
            for (int j = 0; j < 8 / n_runs; j++) {
                const __m256i *c = (const __m256i *)(const void *)(w + j * 64);
                const __m256i e0 = _mm256_load_si256(c), o0 = _mm256_load_si256(c + 1);
                const __m256i e1 = _mm256_load_si256(c + 2), o1 = _mm256_load_si256(c + 3);
                FOUR_ROWS(X)
            }
#undef X
            const __m256 d0 = _mm256_load_ps(d), d1 = _mm256_load_ps(d + 8);
            __m256 m0 = d0, m1 = d1;
            if (with_min) m0 = _mm256_load_ps(s->block[b].min), m1 = _mm256_load_ps(s->block[b].min + 8);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        const __m256 vs = _mm256_broadcast_ss(scale + i), vm = with_min ? _mm256_broadcast_ss(sum + i) : vs; \
        f##r##0 = _mm256_fmadd_ps(d0, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##0)), f##r##0);              \
        f##r##1 = _mm256_fmadd_ps(d1, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##1)), f##r##1);              \
        if (with_min) f##r##0 = _mm256_fmadd_ps(m0, vm, f##r##0), f##r##1 = _mm256_fmadd_ps(m1, vm, f##r##1); \
    }
            FOUR_ROWS(X)
#undef X
        }
    }
    FOUR_ROWS(STORE_ROW)
}

#endif
