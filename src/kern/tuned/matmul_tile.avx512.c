/* matmul_tile: 8 rows by 32 columns of C in 16 registers (loop_matmul.c has the definition). Masks say which columns
 * are there; where all are they cost nothing. */
#include "kern/tuned/tile16.h"

#define ROWS EIGHT_ROWS

/* n rows by one or two vectors of columns. */
INLINE void rows_by_32(const ig_matmul_args *g, int row, int col, const int n, const int vectors, __mmask16 mask0,
                       __mmask16 mask1) {
    const size_t one = g->a_row;
    const float *a = g->a + (size_t)row * one, *fifth = a + 4 * one, *b = g->b + col;
    float *c = g->c + (size_t)row * g->c_row + (size_t)col;
    size_t two = 2 * one, three = 3 * one;
    HIDE(two);
    HIDE(three);
#define X(r)                                                                                       \
    __m512 f##r##0 = _mm512_setzero_ps(), f##r##1 = f##r##0;                                       \
    if (n > r && g->add) {                                                                         \
        f##r##0 = _mm512_maskz_loadu_ps(mask0, c + r * g->c_row);                                  \
        if (vectors > 1) f##r##1 = _mm512_maskz_loadu_ps(mask1, c + r * g->c_row + 16);            \
    }
    ROWS(X)
#undef X
    for (int k = 0; k < g->kk; k++, a += g->a_k, fifth += g->a_k, b += g->b_row) {
        const __m512 b0 = _mm512_maskz_loadu_ps(mask0, b);
        const __m512 b1 = vectors > 1 ? _mm512_maskz_loadu_ps(mask1, b + 16) : b0;
#define X(r)                                                                           \
    if (n > r) {                                                                       \
        const __m512 v = _mm512_set1_ps(*OF_ROW(r, a, fifth, one, two, three));        \
        f##r##0 = _mm512_fmadd_ps(v, b0, f##r##0);                                     \
        if (vectors > 1) f##r##1 = _mm512_fmadd_ps(v, b1, f##r##1);                    \
    }
        ROWS(X)
#undef X
    }
#define X(r)                                                                                       \
    if (n > r) {                                                                                   \
        _mm512_mask_storeu_ps(c + r * g->c_row, mask0, f##r##0);                                   \
        if (vectors > 1) _mm512_mask_storeu_ps(c + r * g->c_row + 16, mask1, f##r##1);             \
    }
    ROWS(X)
#undef X
}

/* Columns col to col + n - 1, n up to 32. */
INLINE void columns(const ig_matmul_args *g, int col, int n, const int vectors) {
    const uint32_t there = n < 32 ? (1u << n) - 1 : UINT32_MAX;
    const __mmask16 mask0 = (__mmask16)(there & 0xffff), mask1 = (__mmask16)(there >> 16);
#define TILE(r, rows) rows_by_32(g, r, col, rows, vectors, mask0, mask1)
    IN_TILES16(g->m, 8, TILE);
#undef TILE
}

static void matmul(const ig_matmul_args *args) {
    const ig_matmul_args copy = *args, *g = &copy;
    for (int col = 0; col < g->n; col += 32) {
        if (g->n - col > 16) columns(g, col, g->n - col, 2);
        else columns(g, col, g->n - col, 1);
    }
}

static const ig_kern kerns[] = {
    {IG_KERN_MATMUL,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED + 5,
     KERN_NAME("matmul_tile"),
     "equals scalar",
     {.matmul = matmul}},
};
KERN_EXPORT(matmul_tile, kerns);
