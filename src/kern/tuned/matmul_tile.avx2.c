/* matmul_tile: 6 rows by 16 columns of C in 12 registers (loop_matmul.c has the definition). Rows are reached
 * from two pointers, three rows apart: one index register then serves all six, whatever the strides of A. */
#include "kern/simd.h"

#define INLINE static inline __attribute__((always_inline))
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* n rows by one or two vectors of columns; the masks say which columns are there when not all are. */
INLINE void tile(const ig_matmul_args *g, int row, int col, const int n, const int vectors, const __m256i mask0,
                 const __m256i mask1, const bool whole) {
    const size_t s = g->a_row;
    const float *a0 = g->a + (size_t)row * s, *a3 = a0 + 3 * s, *b = g->b + col;
    float *c = g->c + (size_t)row * g->c_row + (size_t)col;
#define LOAD(p, i) (whole ? _mm256_loadu_ps((p) + 8 * i) : _mm256_maskload_ps((p) + 8 * i, mask##i))
#define X(r)                                                         \
    __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;         \
    if (n > r && g->add) {                                           \
        f##r##0 = LOAD(c + r * g->c_row, 0);                         \
        if (vectors > 1) f##r##1 = LOAD(c + r * g->c_row, 1);        \
    }
    ROWS(X)
#undef X
    for (int k = 0; k < g->kk; k++) {
        __m256 b0 = LOAD(b, 0), b1 = vectors > 1 ? LOAD(b, 1) : b0;
#define X(r)                                                                              \
    if (n > r) {                                                                          \
        __m256 x = _mm256_broadcast_ss(r < 3 ? a0 + r * s : a3 + (r - 3) * s);            \
        f##r##0 = _mm256_fmadd_ps(x, b0, f##r##0);                                        \
        if (vectors > 1) f##r##1 = _mm256_fmadd_ps(x, b1, f##r##1);                       \
    }
        ROWS(X)
#undef X
        a0 += g->a_k, a3 += g->a_k, b += g->b_row;
    }
#define STORE(p, i, v)                                       \
    if (whole) _mm256_storeu_ps((p) + 8 * i, v);             \
    else _mm256_maskstore_ps((p) + 8 * i, mask##i, v)
#define X(r)                                                         \
    if (n > r) {                                                     \
        STORE(c + r * g->c_row, 0, f##r##0);                         \
        if (vectors > 1) { STORE(c + r * g->c_row, 1, f##r##1); }    \
    }
    ROWS(X)
#undef X
}

#define COLUMN(vectors_, m0, m1, whole_)                                                           \
    {                                                                                              \
        int r = 0;                                                                                 \
        for (; r + 6 <= g->m; r += 6) tile(g, r, col, 6, vectors_, m0, m1, whole_);                \
        for (; r + 3 <= g->m; r += 3) tile(g, r, col, 3, vectors_, m0, m1, whole_);                \
        for (; r < g->m; r++) tile(g, r, col, 1, vectors_, m0, m1, whole_);                        \
    }

static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static void matmul(const ig_matmul_args *args) {
    const ig_matmul_args copy = *args, *g = &copy;
    const __m256i all = _mm256_set1_epi32(-1);
    int col = 0;
    for (; col + 16 <= g->n; col += 16) COLUMN(2, all, all, true)
    const int left = g->n - col;
    if (left > 8) COLUMN(2, all, first(left - 8), false)
    else if (left > 0) COLUMN(1, first(left), all, false)
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
