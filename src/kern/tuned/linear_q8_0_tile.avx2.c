/* linear_q8_0_tile: 1 to 4 rows by 16 outputs, int16 activations. A vector of weights (8 outputs, 4 inputs)
 * becomes two of int16 by shifts, once for all rows; each row then costs two madd and two sums, as many
 * instructions as int8 activations would with sign, maddubs and madd. */
#include "kern/simd.h"

extern const ig_fmt ig_fmt_q8_0;

enum { BLOCK_BYTES = 544, PREFETCH_BYTES = 1024 };
#define INLINE static inline __attribute__((always_inline))
#define ROWS(X) X(0) X(1) X(2) X(3)
#define PIN(a, b) __asm__ volatile("" : "+x"(a), "+x"(b)) /* as in linear_q4_tile */

INLINE __m256i two(const int16_t *p) {
    int v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
INLINE __m256i dot4(__m256i sum, __m256i even, __m256i odd, __m256i a01, __m256i a23) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, a01));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, a23));
}

INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_blocks, const int n,
                      const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const int16_t *q = x->q16 + (size_t)row * n_cols;
    const float *scale = x->scale16 + (size_t)row * per_row;
#define X(r) __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;
    ROWS(X)
#undef X
    for (int b = 0; b < n_blocks; b++, w += BLOCK_BYTES, q += 32) {
        if (stream)
            for (size_t i = 0; i < 9; i++) _mm_prefetch((const char *)w + PREFETCH_BYTES + i * 64, _MM_HINT_T0);
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
        ROWS(X)
#undef X
#define X(r)                                                                    \
    if (n > r) {                                                                \
        const int16_t *p = q + (size_t)r * n_cols + (size_t)j * 4;              \
        __m256i a01 = two(p), a23 = two(p + 2);                                 \
        s##r##0 = dot4(s##r##0, e0, o0, a01, a23);                              \
        s##r##1 = dot4(s##r##1, e1, o1, a01, a23);                              \
        PIN(s##r##0, s##r##1);                                                  \
    }
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256i w0 = _mm256_load_si256((const __m256i *)(const void *)(w + j * 64));
            __m256i w1 = _mm256_load_si256((const __m256i *)(const void *)(w + j * 64 + 32));
            __m256i e0 = _mm256_srai_epi16(_mm256_slli_epi16(w0, 8), 8), o0 = _mm256_srai_epi16(w0, 8);
            __m256i e1 = _mm256_srai_epi16(_mm256_slli_epi16(w1, 8), 8), o1 = _mm256_srai_epi16(w1, 8);
            ROWS(X)
        }
#undef X
        __m256 d0 = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(w + 512)));
        __m256 d1 = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(w + 528)));
#define X(r)                                                                                \
    if (n > r) {                                                                            \
        __m256 vs = _mm256_broadcast_ss(scale + (size_t)r * per_row + (size_t)b);           \
        f##r##0 = _mm256_fmadd_ps(d0, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##0)), f##r##0); \
        f##r##1 = _mm256_fmadd_ps(d1, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##1)), f##r##1); \
    }
        ROWS(X)
#undef X
    }
#define X(r) \
    if (n > r) _mm256_storeu_ps(tile + r * 16, f##r##0), _mm256_storeu_ps(tile + r * 16 + 8, f##r##1);
    ROWS(X)
#undef X
}

static void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    const int n_blocks = n_cols / 32;
    int r = 0;
    if (m >= 4) rows_tile(tile, panel, x, row, n_blocks, 4, true), r = 4;
    else if (m >= 2) rows_tile(tile, panel, x, row, n_blocks, 2, true), r = 2;
    else {
        rows_tile(tile, panel, x, row, n_blocks, 1, true);
        return;
    }
    for (; r + 4 <= m; r += 4) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 4, false);
    for (; r + 2 <= m; r += 2) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 2, false);
    for (; r < m; r++) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 1, false);
}

static const ig_kern kerns[] = {
    {IG_KERN_LINEAR, &ig_fmt_q8_0, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5, KERN_NAME("linear_q8_0_tile"),
     "equals scalar", {.linear = linear}},
};
KERN_EXPORT(linear_q8_0_tile, kerns);
