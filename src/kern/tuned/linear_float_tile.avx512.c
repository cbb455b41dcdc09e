/* linear_float_tile: f32, f16 and bf16 weights times f32 rows, 1 to 8 rows by 16 outputs at once. A panel is [K][16],
 * so a step of k is one zmm of weights and one fma a row. */
#include "kern/tuned/tile16.h"

#define ROWS EIGHT_ROWS
enum { AS_F32, AS_F16, AS_BF16 };

INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_cols, const int n,
                      const int kind, bool stream) {
    const size_t bytes = kind == AS_F32 ? 64 : 32, stride = (size_t)x->n_cols;
    const float *a = x->f + (size_t)row * stride, *fifth = a + 4 * stride;
    size_t two = 2 * stride, three = 3 * stride;
    HIDE(two);
    HIDE(three);
    ROWS(START_ROW16)
    for (int k = 0; k < n_cols; k++, w += bytes, a++, fifth++) {
        HIDE(stream);
        if (stream) _mm_prefetch((const char *)w + PREFETCH_BYTES, _MM_HINT_T0);
        const floats v = kind == AS_F32 ? f32_16(w) : kind == AS_F16 ? f16_16(w) : bf16_16(w);
#define X(r) \
    if (n > r) f##r = floats_fma(v, floats_all(*OF_ROW(r, a, fifth, stride, two, three)), f##r);
        ROWS(X)
#undef X
    }
    ROWS(STORE_ROW16)
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int kind) {
#define TILE(r, n) rows_tile(tile + (r) * 16, panel, x, row + (r), n_cols, n, kind, (r) == 0)
    IN_TILES16(m, 8, TILE);
#undef TILE
}

#define ALL(X)                   \
    X(f32, linear, AS_F32)       \
    X(f16, linear, AS_F16)       \
    X(bf16, linear, AS_BF16)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {TILE_KERN_OF(IG_TIER_L3, f32) TILE_KERN_OF(IG_TIER_L1, f16)
                                    TILE_KERN_OF(IG_TIER_L1, bf16)};
KERN_EXPORT(linear_float_tile, kerns);
