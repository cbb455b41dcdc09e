/* linear_fp_tile: codes that are small floats, 1 to 6 rows by 16 outputs at once. E2M1 counts halves from -12 to 12:
 * out of a table in a register and 12 more, so that they are unsigned for maddubs; 12 times the sum of the q comes
 * off. Half a block's maddubs sum to at most 4 * 2 * 24 * 127 in int16. MXFP8 is widened to f32.
 * A block of MXFP4 is 272 bytes, so its vectors are not aligned; a panel that were would have 6 % more bytes. */
#include "kern/tuned/tile.avx2.h"

#define ROWS SIX_ROWS
enum kind { MXFP4, NVFP4, NVFP4_F32 };

INLINE size_t block_bytes(const enum kind kind) { return kind == MXFP4 ? 272 : kind == NVFP4 ? 288 : 384; }
INLINE __m256i any32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* 2^(e - 127) for e > 0, and 2^-127 */
INLINE __m256 e8m0_of(const uint8_t *p) {
    __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes8(p)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(e, _mm256_set1_epi32(0x00400000)));
}
/* 2^(e - 128), exact for e = 255 too: what a word shifts by e stops counting at e = 2. */
INLINE __m256 half_e8m0_of(const uint8_t *p) {
    const __m256i e = _mm256_cvtepu8_epi32(bytes8(p));
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, _mm256_set1_epi32(1)));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23), tiny));
}
/* The bits of an f32 that is 2^-120 of it. */
INLINE __m256 e4m3_of(const uint8_t *p) {
    const __m256i v = _mm256_slli_epi32(_mm256_cvtepi8_epi32(bytes8(p)), 20);
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0x87f00000)));
}
/* d of a run's outputs 8 h to 8 h + 7; `scales` are the block's */
INLINE __m256 d_of(const uint8_t *scales, const int run, const int h, const enum kind kind) {
    if (kind == MXFP4) return half_e8m0_of(scales + h * 8);
    if (kind == NVFP4) return _mm256_mul_ps(e4m3_of(scales + run * 16 + h * 8), _mm256_set1_ps(0x1p119f));
    return _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)(scales + run * 64 + h * 32)),
                         _mm256_set1_ps(0.5f));
}

INLINE __m256i codes(__m256i v, const bool upper) {
    const __m256i plus12 = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                                            16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    v = _mm256_and_si256(upper ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    return _mm256_shuffle_epi8(plus12, v);
}

INLINE __m256 finish(__m256 acc, __m256i isum, __m256i offset, __m256 d, __m256 scale) {
    return _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(isum, offset))), acc);
}

/* n rows from `row` on. `stream`: the panel comes from memory, ask ahead. The low nibbles are inputs 0 to 15 of the
 * block, the high ones the others: a pass over the codes for each run. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_blocks, const int n,
                      const enum kind kind, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = block_bytes(kind);
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row;
    const int16_t *qsum = x->qsum + 2 * (size_t)row * per_row;
    ROWS(START_ROW)
    for (int b = 0; b < n_blocks; b++, w += size, q += 32, scale++, qsum += 2) {
        if (stream) ask_ahead(w, size);
#define X(r) __m256i h##r##0 = ones, h##r##1 = ones;
        ROWS(X)
#undef X
#pragma GCC unroll 2
        for (int run = 0; run < 2; run++) {
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
            ROWS(X)
#undef X
#define X(r)                                                                        \
    if (n > r) {                                                                    \
        __m256i a = word_of(q + (size_t)r * n_cols + 16 * run + 4 * j);             \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const __m256i c0 = codes(any32(w + j * 64), run), c1 = codes(any32(w + j * 64 + 32), run);
                ROWS(X)
            }
#undef X
            if (kind == MXFP4 && run == 0) {
#define X(r) \
    if (n > r) h##r##0 = _mm256_madd_epi16(s##r##0, ones), h##r##1 = _mm256_madd_epi16(s##r##1, ones);
                ROWS(X)
#undef X
                continue;
            }
            const __m256 d0 = d_of(w + 256, run, 0, kind), d1 = d_of(w + 256, run, 1, kind);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        const __m256 vs = _mm256_broadcast_ss(scale + i);                                                    \
        const int q16 = kind == MXFP4 ? qsum[2 * i] + qsum[2 * i + 1] : qsum[2 * i + (size_t)run];           \
        const __m256i offset = _mm256_set1_epi32(12 * q16);                                                  \
        s##r##0 = _mm256_madd_epi16(s##r##0, ones), s##r##1 = _mm256_madd_epi16(s##r##1, ones);              \
        if (kind == MXFP4)                                                                                   \
            s##r##0 = _mm256_add_epi32(s##r##0, h##r##0), s##r##1 = _mm256_add_epi32(s##r##1, h##r##1);      \
        f##r##0 = finish(f##r##0, s##r##0, offset, d0, vs);                                                  \
        f##r##1 = finish(f##r##1, s##r##1, offset, d1, vs);                                                  \
    }
            ROWS(X)
#undef X
        }
    }
    ROWS(STORE_ROW)
}

#define BODY(name, kind)                                                                               \
    static __attribute__((noinline)) void name(float *tile, const uint8_t *panel, const ig_act *x,     \
                                               int row, int m, int n_cols) {                           \
        IN_TILES(m, 6, TILE_##kind);                                                                   \
    }
#define TILE_OF(r, n, kind, stream) rows_tile(tile + (r) * 16, panel, x, row + (r), n_cols / 32, n, kind, stream)
#define TILE_MXFP4(r, n, stream) TILE_OF(r, n, MXFP4, stream)
#define TILE_NVFP4(r, n, stream) TILE_OF(r, n, NVFP4, stream)
#define TILE_NVFP4_F32(r, n, stream) TILE_OF(r, n, NVFP4_F32, stream)
BODY(linear_mxfp4, MXFP4)
BODY(linear_nvfp4, NVFP4)
BODY(linear_nvfp4_f32, NVFP4_F32)

/* ---- MXFP8 ------------------------------------------------------------------------------------------------- */

enum { MXFP8_BLOCK = 528 };

INLINE void rows_f32(float *tile, const uint8_t *w, const ig_act *x, int row, int n_blocks, const int n,
                     const bool stream) {
    const size_t stride = (size_t)x->n_cols;
    const float *a = x->f + (size_t)row * stride;
    const __m256 up = _mm256_set1_ps(0x1p120f);
    ROWS(START_ROW)
    for (int b = 0; b < n_blocks; b++, w += MXFP8_BLOCK, a += 32) {
        const __m256 d0 = e8m0_of(w + 512), d1 = e8m0_of(w + 520);
        if (stream) ask_ahead(w, MXFP8_BLOCK);
        for (int k = 0; k < 32; k++) {
            const __m256 w0 = _mm256_mul_ps(_mm256_mul_ps(e4m3_of(w + k * 16), up), d0);
            const __m256 w1 = _mm256_mul_ps(_mm256_mul_ps(e4m3_of(w + k * 16 + 8), up), d1);
#define X(r)                                                          \
    if (n > r) {                                                      \
        __m256 v = _mm256_broadcast_ss(a + (size_t)r * stride + k);   \
        f##r##0 = _mm256_fmadd_ps(w0, v, f##r##0);                    \
        f##r##1 = _mm256_fmadd_ps(w1, v, f##r##1);                    \
    }
            ROWS(X)
#undef X
        }
    }
    ROWS(STORE_ROW)
}
static void linear_e4m3(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
#define TILE(r, n, stream) rows_f32(tile + (r) * 16, panel, x, row + (r), n_cols / 32, n, stream)
    IN_TILES(m, 6, TILE);
#undef TILE
}

/* ---- the list ---------------------------------------------------------------------------------------------- */

#define ALL(X)                             \
    X(mxfp4_tile, mxfp4, linear_mxfp4)     \
    X(mxfp4_mlx_tile, mxfp4_mlx, linear_mxfp4) \
    X(nvfp4_tile, nvfp4, linear_nvfp4)     \
    X(nvfp4_mlx_tile, nvfp4_mlx, linear_nvfp4) \
    X(nvfp4_mlx_f32_tile, nvfp4_mlx_f32, linear_nvfp4_f32) \
    X(mxfp8_tile, mxfp8, linear_e4m3)
#define DECLARE(name, fmt, function) extern const ig_fmt ig_fmt_##fmt;
ALL(DECLARE)
#define ROW(name, fmt, function)                                            \
    {IG_KERN_LINEAR, &ig_fmt_##fmt, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5, \
     KERN_NAME("linear_" #name), "equals scalar", {.linear = function}},
static const ig_kern kerns[] = {ALL(ROW)};
KERN_EXPORT(linear_fp_tile, kerns);
