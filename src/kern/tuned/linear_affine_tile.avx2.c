/* linear_affine_tile: MLX affine codes of 2 and 3 bits with int8 activations, 1 to 6 rows by 16 outputs at once.
 * As linear_q4_tile, with the codes put together from planes: a block's maddubs sum to at most 8 * 2 * 7 * 127 in
 * int16. The kinds of scales share a body: which it is shows once a block, and the widths are enough copies. */
#include "kern/tuned/tile.avx2.h"

#define ROWS SIX_ROWS

/* Codes of inputs 4 t to 4 t + 3: v holds the low two bits of a run of 16, high a plane of the third bit of all. */
INLINE __m256i codes(__m256i v, __m256i high, const int t, const int bits) {
    const int shift = t % 4 * 2;
    v = _mm256_and_si256(shift ? _mm256_srli_epi16(v, shift) : v, _mm256_set1_epi8(3));
    if (bits == 2) return v;
    high = t < 2 ? _mm256_slli_epi16(high, 2 - t) : _mm256_srli_epi16(high, t - 2);
    return _mm256_or_si256(v, _mm256_and_si256(high, _mm256_set1_epi8(4)));
}

/* n rows from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const bool is_f32, const int n, const int bits, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = (size_t)bits * 64;
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row, *sum = x->sum + (size_t)row * per_row;
    ROWS(START_ROW)
    for (int g = 0; g < n_groups; g++, w += is_f32 ? 128 : 64) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, q += 32, scale++, sum++) {
            if (stream) ask_ahead(w, size);
            __m256i high0 = ones, high1 = ones; /* not read for 2 bits */
            if (bits != 2) high0 = bytes32(w + size - 64), high1 = bytes32(w + size - 32);
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
            ROWS(X)
#undef X
#define X(r)                                                                        \
    if (n > r) {                                                                    \
        __m256i a = word_of(q + (size_t)r * n_cols + at);                           \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#define GROUP(t)                                                                               \
    do {                                                                                       \
        const __m256i c0 = codes(v0, high0, t, bits), c1 = codes(v1, high1, t, bits);          \
        const int at = 4 * (t);                                                                \
        ROWS(X)                                                                                \
    } while (0)
#define RUN(i)                                                                                 \
    do {                                                                                       \
        const __m256i v0 = bytes32(w + (i) * 64), v1 = bytes32(w + (i) * 64 + 32);             \
        GROUP(4 * i);                                                                          \
        GROUP(4 * i + 1);                                                                      \
        GROUP(4 * i + 2);                                                                      \
        GROUP(4 * i + 3);                                                                      \
    } while (0)
            RUN(0);
            RUN(1);
#undef RUN
#undef GROUP
#undef X
            __m256 d0, d1, m0, m1;
            if (is_f32) {
                d0 = scale_of(NULL, shared, 0, FLOAT), d1 = scale_of(NULL, shared, 1, FLOAT);
                m0 = min_of(NULL, shared, 0, FLOAT), m1 = min_of(NULL, shared, 1, FLOAT);
            } else {
                d0 = scale_of(NULL, shared, 0, BF16), d1 = scale_of(NULL, shared, 1, BF16);
                m0 = min_of(NULL, shared, 0, BF16), m1 = min_of(NULL, shared, 1, BF16);
            }
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        const __m256 vs = _mm256_broadcast_ss(scale + i), vm = _mm256_broadcast_ss(sum + i);                 \
        s##r##0 = _mm256_madd_epi16(s##r##0, ones), s##r##1 = _mm256_madd_epi16(s##r##1, ones);              \
        f##r##0 = _mm256_fmadd_ps(d0, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##0)), f##r##0);              \
        f##r##1 = _mm256_fmadd_ps(d1, _mm256_mul_ps(vs, _mm256_cvtepi32_ps(s##r##1)), f##r##1);              \
        f##r##0 = _mm256_fmadd_ps(m0, vm, f##r##0), f##r##1 = _mm256_fmadd_ps(m1, vm, f##r##1);              \
    }
            ROWS(X)
#undef X
        }
    }
    ROWS(STORE_ROW)
}

#define BODY(bits)                                                                                          \
    static __attribute__((noinline)) void linear_##bits(float *tile, const uint8_t *panel, const ig_act *x, \
                                                        int row, int m, int n_cols, int n_in,               \
                                                        bool is_f32) {                                      \
        const int n_groups = n_cols / 32 / n_in;                                                            \
        IN_TILES(m, 6, TILE_##bits);                                                                        \
    }
#define TILE_OF(r, n, bits, stream) \
    rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n_in, is_f32, n, bits, stream)
#define TILE_2(r, n, stream) TILE_OF(r, n, 2, stream)
#define TILE_3(r, n, stream) TILE_OF(r, n, 3, stream)
BODY(2)
BODY(3)

#define WIDTH(X, bits)                                \
    X(affine##bits##g32, linear_##bits, 1, false)     \
    X(affine##bits##g64, linear_##bits, 2, false)     \
    X(affine##bits##g128, linear_##bits, 4, false)    \
    X(affine##bits##g32_f32, linear_##bits, 1, true)  \
    X(affine##bits##g64_f32, linear_##bits, 2, true)  \
    X(affine##bits##g128_f32, linear_##bits, 4, true)
WIDTH(TILE_FUNCTION, 2)
WIDTH(TILE_FUNCTION, 3)

static const ig_kern kerns[] = {WIDTH(TILE_KERN, 2) WIDTH(TILE_KERN, 3)};
KERN_EXPORT(linear_affine_tile, kerns);
