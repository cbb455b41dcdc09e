/* tile: what the AVX2 tiles of the linear layers share: loads, sums in registers, where the scales of a panel come
 * from, and how many rows go together. */
#ifndef IG_TILE_AVX2_H
#define IG_TILE_AVX2_H

#include "kern/simd.h"

#define INLINE static inline __attribute__((always_inline))
/* Pins two sums where they are: without it gcc 12 moves all the products up and spills them. */
#define PIN(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

enum { PREFETCH_BYTES = 1024 };
INLINE void ask_ahead(const uint8_t *w, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes + 63; i += 64)
        _mm_prefetch((const char *)w + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* 4 bytes, in every lane */
INLINE __m256i word_of(const void *p) {
    int v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
INLINE __m256i bytes32(const uint8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
INLINE void put32(uint8_t *p, __m256i v) { _mm256_store_si256((__m256i *)(void *)p, v); }
INLINE __m128i bytes16(const uint8_t *p) { return _mm_load_si128((const __m128i *)(const void *)p); }
INLINE __m128i bytes8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
/* 8 numbers widened to f32 */
INLINE __m256 f32_of(const uint8_t *p) { return _mm256_load_ps((const float *)(const void *)p); }
INLINE __m256 f16_of(const uint8_t *p) { return _mm256_cvtph_ps(bytes16(p)); }
INLINE __m256 bf16_of(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes16(p)), 16));
}
INLINE __m256 u8_of(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes8(p))); }
INLINE __m256 i8_of(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes8(p))); }

/* ---- scales -------------------------------------------------------------------------------------------- */

/* Where the scale of an output comes from. A panel is groups of blocks of 32 inputs; a block is codes, then what it
 * has for itself; a group is its blocks, then what they share.
 *     D, D_M        shared: f16 d[16], and f16 m[16]
 *     D_SC          shared: f16 d[16];            own: i8 sc[16], d * sc
 *     D_SC_MN       shared: f16 d[16], dmin[16];  own: u8 sc[16], mn[16], d * sc and -(dmin * mn)
 *     BF16, FLOAT   shared: s[16], b[16]: MLX affine */
enum scales { D, D_M, D_SC, D_SC_MN, BF16, FLOAT };

INLINE size_t own_bytes(const enum scales from) { return from == D_SC ? 16 : from == D_SC_MN ? 32 : 0; }
INLINE size_t shared_bytes(const enum scales from) {
    return from == D || from == D_SC ? 32 : from == FLOAT ? 128 : 64;
}
INLINE bool has_min(const enum scales from) { return from != D && from != D_SC; }

/* Scale and minimum of the outputs 8 h to 8 h + 7. */
INLINE __m256 scale_of(const uint8_t *own, const uint8_t *shared, const int h, const enum scales from) {
    if (from == FLOAT) return f32_of(shared + h * 32);
    if (from == BF16) return bf16_of(shared + h * 16);
    if (from == D_SC) return _mm256_mul_ps(f16_of(shared + h * 16), i8_of(own + h * 8));
    if (from == D_SC_MN) return _mm256_mul_ps(f16_of(shared + h * 16), u8_of(own + h * 8));
    return f16_of(shared + h * 16);
}
INLINE __m256 min_of(const uint8_t *own, const uint8_t *shared, const int h, const enum scales from) {
    if (from == FLOAT) return f32_of(shared + 64 + h * 32);
    if (from == BF16) return bf16_of(shared + 32 + h * 16);
    if (from == D_SC_MN)
        return _mm256_xor_ps(_mm256_mul_ps(f16_of(shared + 32 + h * 16), u8_of(own + 16 + h * 8)),
                             _mm256_set1_ps(-0.0f));
    return f16_of(shared + 32 + h * 16);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* A tile is n rows by 16 outputs, n a constant after inlining; row r has the two sums f<r>0 and f<r>1. They are named
 * variables: gcc 12 keeps an array's stores in the loop, a factor of 2. X is repeated for every row, and says
 * itself `if (n > r)`. */
#define FOUR_ROWS(X) X(0) X(1) X(2) X(3)
#define SIX_ROWS(X) FOUR_ROWS(X) X(4) X(5)
#define START_ROW(r) __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;
#define STORE_ROW(r) \
    if (n > r) _mm256_storeu_ps(tile + r * 16, f##r##0), _mm256_storeu_ps(tile + r * 16 + 8, f##r##1);

/* m rows as tiles of at most `top` (6 or 4), then 4, 2 and 1: TILE(from, n, stream). The first pulls the panel in,
 * from memory, and asks ahead; 8 rows go as 4 + 4 and not 6 + 2. */
#define IN_TILES(m, top, TILE)                                                  \
    do {                                                                        \
        int r = 0;                                                              \
        if ((top) == 6 && (m) >= 6 && (m) != 8) TILE(0, 6, true), r = 6;        \
        else if ((m) >= 4) TILE(0, 4, true), r = 4;                             \
        else if ((m) >= 2) TILE(0, 2, true), r = 2;                             \
        else {                                                                  \
            TILE(0, 1, true);                                                   \
            break;                                                              \
        }                                                                       \
        for (; (top) == 6 && r + 6 <= (m); r += 6) TILE(r, 6, false);           \
        for (; r + 4 <= (m); r += 4) TILE(r, 4, false);                         \
        for (; r + 2 <= (m); r += 2) TILE(r, 2, false);                         \
        for (; r < (m); r++) TILE(r, 1, false);                                 \
    } while (0)

/* ---- the list of a file ---------------------------------------------------------------------------------- */

/* From rows X(fmt, function, ...): linear_<fmt> is function(..., more arguments). */
#define TILE_FUNCTION(fmt, function, ...)                                                         \
    extern const ig_fmt ig_fmt_##fmt;                                                             \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,  \
                             int n_cols) {                                                        \
        function(tile, panel, x, row, m, n_cols, __VA_ARGS__);                                    \
    }
#define TILE_KERN_OF(tier, fmt)                                                             \
    {IG_KERN_LINEAR, &ig_fmt_##fmt, tier, SIMD_NEEDS, SIMD_SPEED + 5,                       \
     KERN_NAME("linear_" #fmt "_tile"), "equals scalar", {.linear = linear_##fmt}},
#define TILE_KERN(fmt, ...) TILE_KERN_OF(IG_TIER_L3, fmt)

#endif
