/* linear_q4_tile: Q4_0 and Q4_1, 1 to 6 rows by 16 outputs at once. Nibbles are unpacked in registers also
 * for many rows: the packed panel stays in L1 where one widened to bytes would not leave room. Eight
 * maddubs of codes 0..15 with int8 sum to at most 8 * 2 * 15 * 127 = 30480, so int16 holds a block's sum
 * and one madd ends it: that is why 4-bit is fast. Measured shapes: bench/results, `make bench-kern`.
 * Accumulators are named variables: gcc 12 keeps an array's stores in the loop, a factor of 2. */
#include "kern/simd.h"

extern const ig_fmt ig_fmt_q4_0, ig_fmt_q4_1;

enum { PREFETCH_BYTES = 1024 };
#define INLINE static inline __attribute__((always_inline))
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)
/* Pins two sums where they are: without it gcc 12 moves all the products up and spills them. */
#define PIN(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

INLINE __m256i four(const int8_t *p) {
    int v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
INLINE __m256i w32(const uint8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
INLINE __m256 halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

/* acc += d * (a.scale * isum), and m * a.sum; Q4_0 takes 8 * qsum off isum first. */
INLINE __m256 finish(__m256 acc, __m256i s16, __m256 d, __m256 min, __m256 scale, __m256 sum, __m256i qsum8,
                     const bool has_min) {
    __m256i isum = _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
    if (!has_min) isum = _mm256_sub_epi32(isum, qsum8);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return has_min ? _mm256_fmadd_ps(min, sum, acc) : acc;
}

/* n rows (a constant after inlining) from `row` on. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_blocks, const int n,
                      const bool has_min, const bool stream) {
    const size_t block_bytes = has_min ? 320 : 288, n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const __m256i low = _mm256_set1_epi8(15);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row, *sum = x->sum + (size_t)row * per_row;
    const int32_t *qsum = x->qsum + (size_t)row * per_row;
#define X(r) __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;
    ROWS(X)
#undef X
    for (int b = 0; b < n_blocks; b++, w += block_bytes, q += 32) {
        if (stream)
            for (size_t i = 0; i < 5; i++) _mm_prefetch((const char *)w + PREFETCH_BYTES + i * 64, _MM_HINT_T0);
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
        ROWS(X)
#undef X
#define X(r)                                                                        \
    if (n > r) {                                                                    \
        __m256i a = four(q + (size_t)r * n_cols + at);                              \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#define STEP(j)                                                                                      \
    do {                                                                                             \
        __m256i v0 = w32(w + (j) * 64), v1 = w32(w + (j) * 64 + 32);                                 \
        {                                                                                            \
            const __m256i c0 = _mm256_and_si256(v0, low), c1 = _mm256_and_si256(v1, low);            \
            const int at = 4 * (j);                                                                  \
            ROWS(X)                                                                                  \
        }                                                                                            \
        {                                                                                            \
            const __m256i c0 = _mm256_and_si256(_mm256_srli_epi16(v0, 4), low);                      \
            const __m256i c1 = _mm256_and_si256(_mm256_srli_epi16(v1, 4), low);                      \
            const int at = 16 + 4 * (j);                                                             \
            ROWS(X)                                                                                  \
        }                                                                                            \
    } while (0)
        STEP(0);
        STEP(1);
        STEP(2);
        STEP(3);
#undef STEP
#undef X
        __m256 d0 = halves(w + 256), d1 = halves(w + 272), m0 = d0, m1 = d1;
        if (has_min) m0 = halves(w + 288), m1 = halves(w + 304);
#define X(r)                                                                                         \
    if (n > r) {                                                                                     \
        const size_t i = (size_t)r * per_row + (size_t)b;                                            \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = has_min ? _mm256_broadcast_ss(sum + i) : vs; \
        __m256i v8 = _mm256_set1_epi32(has_min ? 0 : 8 * qsum[i]);                                   \
        f##r##0 = finish(f##r##0, s##r##0, d0, m0, vs, vm, v8, has_min);                             \
        f##r##1 = finish(f##r##1, s##r##1, d1, m1, vs, vm, v8, has_min);                             \
    }
        ROWS(X)
#undef X
    }
#define X(r) \
    if (n > r) _mm256_storeu_ps(tile + r * 16, f##r##0), _mm256_storeu_ps(tile + r * 16 + 8, f##r##1);
    ROWS(X)
#undef X
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const bool has_min) {
    const int n_blocks = n_cols / 32;
    int r = 0;
    /* the first tile pulls the panel in; 8 rows go as 4 + 4 and not 6 + 2 */
    if (m >= 6 && m != 8) rows_tile(tile, panel, x, row, n_blocks, 6, has_min, true), r = 6;
    else if (m >= 4) rows_tile(tile, panel, x, row, n_blocks, 4, has_min, true), r = 4;
    else if (m >= 2) rows_tile(tile, panel, x, row, n_blocks, 2, has_min, true), r = 2;
    else {
        rows_tile(tile, panel, x, row, n_blocks, 1, has_min, true);
        return;
    }
    for (; r + 6 <= m; r += 6) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 6, has_min, false);
    for (; r + 4 <= m; r += 4) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 4, has_min, false);
    for (; r + 2 <= m; r += 2) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 2, has_min, false);
    for (; r < m; r++) rows_tile(tile + r * 16, panel, x, row + r, n_blocks, 1, has_min, false);
}
static void linear_q4_0(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    linear(tile, panel, x, row, m, n_cols, false);
}
static void linear_q4_1(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    linear(tile, panel, x, row, m, n_cols, true);
}

static const ig_kern kerns[] = {
    {IG_KERN_LINEAR, &ig_fmt_q4_0, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5, KERN_NAME("linear_q4_0_tile"),
     "equals scalar", {.linear = linear_q4_0}},
    {IG_KERN_LINEAR, &ig_fmt_q4_1, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5, KERN_NAME("linear_q4_1_tile"),
     "equals scalar", {.linear = linear_q4_1}},
};
KERN_EXPORT(linear_q4_tile, kerns);
