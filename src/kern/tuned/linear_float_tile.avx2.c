/* linear_float_tile: f32, f16 and bf16, 1 to 6 rows by 16 outputs. One fma chain an output, k ascending;
 * the 12 chains of 6 rows hide the latency of fma. */
#include "kern/tuned/tile.avx2.h"

enum { AS_F32, AS_F16, AS_BF16 };
#define ROWS SIX_ROWS

INLINE __m256 eight(const uint8_t *p, const int kind) {
    return kind == AS_F32 ? f32_of(p) : kind == AS_F16 ? f16_of(p) : bf16_of(p);
}

INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_cols, const int n,
                      const int kind, const bool stream) {
    const size_t half = kind == AS_F32 ? 32 : 16, stride = (size_t)x->n_cols;
    const float *a = x->f + (size_t)row * stride;
    ROWS(START_ROW)
    for (int k = 0; k < n_cols; k++, w += 2 * half) {
        if (stream) _mm_prefetch((const char *)w + PREFETCH_BYTES, _MM_HINT_T0);
        __m256 w0 = eight(w, kind), w1 = eight(w + half, kind);
#define X(r)                                                          \
    if (n > r) {                                                      \
        __m256 v = _mm256_broadcast_ss(a + (size_t)r * stride + k);   \
        f##r##0 = _mm256_fmadd_ps(w0, v, f##r##0);                    \
        f##r##1 = _mm256_fmadd_ps(w1, v, f##r##1);                    \
    }
        ROWS(X)
#undef X
    }
    ROWS(STORE_ROW)
}

#include "kern/tuned/float_rows.h"

#define ALL(X)                   \
    X(f32, linear, AS_F32)       \
    X(f16, linear, AS_F16)       \
    X(bf16, linear, AS_BF16)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_float_tile, kerns);
