/* linear_q8_tile: 6-bit and 8-bit codes with int16 activations, 1 to 4 rows by 16 outputs at once. A vector
 * of codes (8 outputs, 4 inputs) becomes two of int16 once for all rows; each row then costs two madd and two
 * sums, as many instructions as int8 activations would with sign, maddubs and madd. Signed codes widen by
 * three shifts, unsigned ones by a mask and a shift: Q8_0 is faster signed, Q6_K is faster with 32 * qsum16
 * taken off at the end (`make bench-kern` on Zen 3). */
#include "kern/tuned/tile.avx2.h"

/* AFFINE is MLX 8-bit with bf16 scales. */
enum kind { Q8_0, Q6_K, AFFINE, AFFINE_F32 };
#define ROWS(X) X(0) X(1) X(2) X(3)

INLINE __m256i dot4(__m256i sum, __m256i even, __m256i odd, __m256i a01, __m256i a23) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, a01));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, a23));
}

/* Bytes of one block of 32 inputs, and of what the blocks of a group share, which follows them. */
INLINE size_t block_bytes(const enum kind kind) { return kind == Q6_K ? 416 : 512; }
INLINE size_t shared_bytes(const enum kind kind) {
    return kind == AFFINE_F32 ? 128 : kind == AFFINE ? 64 : 32;
}
INLINE bool has_min(const enum kind kind) { return kind == AFFINE || kind == AFFINE_F32; }
/* Inputs that share a scale. */
INLINE int run_of(const enum kind kind) { return kind == Q6_K ? 16 : 32; }

/* Scale of the outputs 8 h to 8 h + 7 in one run of a block, and their minimum. */
INLINE __m256 scale_of(const uint8_t *w, const uint8_t *shared, const int run, const int h,
                       const enum kind kind) {
    if (kind == AFFINE_F32) return f32_of(shared + h * 32);
    if (kind == AFFINE) return bf16_of(shared + h * 16);
    if (kind == Q6_K) return _mm256_mul_ps(f16_of(shared + h * 16), i8_of(w + 384 + run * 16 + h * 8));
    return f16_of(shared + h * 16);
}
INLINE __m256 min_of(const uint8_t *shared, const int h, const enum kind kind) {
    return kind == AFFINE_F32 ? f32_of(shared + 64 + h * 32) : bf16_of(shared + 32 + h * 16);
}

/* Codes of inputs 4 j to 4 j + 3 of a run, outputs 8 h to 8 h + 7. */
INLINE __m256i codes(const uint8_t *w, const int run, const int j, const int h, const enum kind kind) {
    __m256i v = bytes32(w + j * 64 + h * 32);
    if (kind != Q6_K) return v;
    __m256i top = bytes32(w + 256 + run * 64 + h * 32);
    v = _mm256_and_si256(run ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    top = j < 2 ? _mm256_slli_epi16(top, 4 - 2 * j) : _mm256_srli_epi16(top, 2 * j - 4);
    return _mm256_or_si256(v, _mm256_and_si256(top, _mm256_set1_epi8(48)));
}
/* The even and the odd bytes as int16. */
INLINE __m256i even_of(__m256i c, const enum kind kind) {
    return kind == Q8_0 ? _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8)
                        : _mm256_and_si256(c, _mm256_set1_epi16(255));
}
INLINE __m256i odd_of(__m256i c, const enum kind kind) {
    return kind == Q8_0 ? _mm256_srai_epi16(c, 8) : _mm256_srli_epi16(c, 8);
}

/* acc += d * (a.scale16 * isum), and min * a.sum16; offset = 32 * qsum16 comes off the isum of Q6_K */
INLINE __m256 finish(__m256 acc, __m256i isum, __m256 d, __m256 min, __m256 scale, __m256 sum, __m256i offset,
                     const enum kind kind) {
    if (kind == Q6_K) isum = _mm256_sub_epi32(isum, offset);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return has_min(kind) ? _mm256_fmadd_ps(min, sum, acc) : acc;
}

/* n rows (a constant after inlining) from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes
 * from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const int n, const enum kind kind, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = block_bytes(kind);
    const int16_t *q = x->q16 + (size_t)row * n_cols;
    const float *scale = x->scale16 + (size_t)row * per_row, *sum = x->sum16 + (size_t)row * per_row;
    const int32_t *qsum = x->qsum16 + 2 * (size_t)row * per_row;
#define X(r) __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;
    ROWS(X)
#undef X
    for (int g = 0; g < n_groups; g++, w += shared_bytes(kind)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, q += 32, scale++, sum++, qsum += 2) {
            if (stream) ask_ahead(w, size);
#pragma GCC unroll 2
            for (int run = 0; run < 32 / run_of(kind); run++) {
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
                ROWS(X)
#undef X
#define X(r)                                                                               \
    if (n > r) {                                                                           \
        const int16_t *p = q + (size_t)r * n_cols + (size_t)(run * run_of(kind) + j * 4);  \
        __m256i a01 = word_of(p), a23 = word_of(p + 2);                                            \
        s##r##0 = dot4(s##r##0, e0, o0, a01, a23);                                         \
        s##r##1 = dot4(s##r##1, e1, o1, a01, a23);                                         \
        PIN(s##r##0, s##r##1);                                                             \
    }
#pragma GCC unroll 8
                for (int j = 0; j < run_of(kind) / 4; j++) {
                    const __m256i c0 = codes(w, run, j, 0, kind), c1 = codes(w, run, j, 1, kind);
                    __m256i e0 = even_of(c0, kind), o0 = odd_of(c0, kind);
                    __m256i e1 = even_of(c1, kind), o1 = odd_of(c1, kind);
                    ROWS(X)
                }
#undef X
                const __m256 d0 = scale_of(w, shared, run, 0, kind), d1 = scale_of(w, shared, run, 1, kind);
                __m256 m0 = d0, m1 = d1;
                if (has_min(kind)) m0 = min_of(shared, 0, kind), m1 = min_of(shared, 1, kind);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = has_min(kind) ? _mm256_broadcast_ss(sum + i) : vs;  \
        __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(qsum[2 * i + (size_t)run]), 5);                 \
        f##r##0 = finish(f##r##0, s##r##0, d0, m0, vs, vm, offset, kind);                                    \
        f##r##1 = finish(f##r##1, s##r##1, d1, m1, vs, vm, offset, kind);                                    \
    }
                ROWS(X)
#undef X
            }
        }
    }
#define X(r) \
    if (n > r) _mm256_storeu_ps(tile + r * 16, f##r##0), _mm256_storeu_ps(tile + r * 16 + 8, f##r##1);
    ROWS(X)
#undef X
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int n_in, const enum kind kind) {
    const int n = n_cols / 32 / n_in;
    int r = 0;
    if (m >= 4) rows_tile(tile, panel, x, row, n, n_in, 4, kind, true), r = 4;
    else if (m >= 2) rows_tile(tile, panel, x, row, n, n_in, 2, kind, true), r = 2;
    else {
        rows_tile(tile, panel, x, row, n, n_in, 1, kind, true);
        return;
    }
    for (; r + 4 <= m; r += 4) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 4, kind, false);
    for (; r + 2 <= m; r += 2) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 2, kind, false);
    for (; r < m; r++) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 1, kind, false);
}
/* The group sizes of MLX share one body. */
#define AFFINE_BODY(name, kind)                                                                        \
    static __attribute__((noinline)) void name(float *tile, const uint8_t *panel, const ig_act *x,     \
                                               int row, int m, int n_cols, int n_in) {                 \
        linear(tile, panel, x, row, m, n_cols, n_in, kind);                                            \
    }
AFFINE_BODY(linear_affine, AFFINE)
AFFINE_BODY(linear_affine_f32, AFFINE_F32)

#define ALL(X)                                                                              \
    X(q8_0, linear, 1, Q8_0)                                                                \
    X(q6_k, linear, 8, Q6_K)                                                                \
    X(affine8g32, linear_affine, 1)                                                         \
    X(affine8g64, linear_affine, 2)                                                         \
    X(affine8g128, linear_affine, 4)                                                        \
    X(affine8g32_f32, linear_affine_f32, 1)                                                 \
    X(affine8g64_f32, linear_affine_f32, 2)                                                 \
    X(affine8g128_f32, linear_affine_f32, 4)
#define FUNCTION(fmt, function, ...)                                                              \
    extern const ig_fmt ig_fmt_##fmt;                                                             \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,  \
                             int n_cols) {                                                        \
        function(tile, panel, x, row, m, n_cols, __VA_ARGS__);                                    \
    }
ALL(FUNCTION)

#define ROW(fmt, ...)                                                                       \
    {IG_KERN_LINEAR, &ig_fmt_##fmt, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5,                 \
     KERN_NAME("linear_" #fmt "_tile"), "equals scalar", {.linear = linear_##fmt}},
static const ig_kern kerns[] = {ALL(ROW)};
KERN_EXPORT(linear_q8_tile, kerns);
