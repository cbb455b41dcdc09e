/* linear_q4_tile: 4-bit and 5-bit codes with int8 activations, 1 to 6 rows by 16 outputs at once. Codes are
 * unpacked in registers also for many rows: the packed panel stays in L1 where one widened to bytes would not
 * leave room. Eight maddubs of codes 0..15 with int8 sum to at most 8 * 2 * 15 * 127 = 30480, so int16 holds
 * a block's sum and one madd ends it: that is why 4-bit is fast. With codes 0..31 it holds half a block.
 * Measured shapes: bench/results, `make bench-kern`.
 * Accumulators are named variables: gcc 12 keeps an array's stores in the loop, a factor of 2. */
#include "kern/tuned/tile.avx2.h"

/* The formats differ in where scale and minimum come from. AFFINE is MLX 4-bit with bf16 scales. */
enum kind { Q4_0, Q4_1, Q5_0, Q4_K, AFFINE, AFFINE_F32 };
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Bytes of one block, and of what the blocks of a group share, which follows them. */
INLINE size_t block_bytes(const enum kind kind) { return kind == Q5_0 ? 320 : kind == Q4_K ? 288 : 256; }
INLINE size_t shared_bytes(const enum kind kind) {
    return kind == Q4_0 || kind == Q5_0 ? 32 : kind == AFFINE_F32 ? 128 : 64;
}
INLINE bool has_min(const enum kind kind) { return kind != Q4_0 && kind != Q5_0; }

/* Scale and minimum of a block's outputs 8 h to 8 h + 7. */
INLINE __m256 scale_of(const uint8_t *w, const uint8_t *shared, const int h, const enum kind kind) {
    if (kind == AFFINE_F32) return f32_of(shared + h * 32);
    if (kind == AFFINE) return bf16_of(shared + h * 16);
    if (kind == Q4_K) return _mm256_mul_ps(f16_of(shared + h * 16), u8_of(w + 256 + h * 8));
    return f16_of(shared + h * 16);
}
INLINE __m256 min_of(const uint8_t *w, const uint8_t *shared, const int h, const enum kind kind) {
    if (kind == AFFINE_F32) return f32_of(shared + 64 + h * 32);
    if (kind == AFFINE) return bf16_of(shared + 32 + h * 16);
    if (kind == Q4_K)
        return _mm256_xor_ps(_mm256_mul_ps(f16_of(shared + 32 + h * 16), u8_of(w + 272 + h * 8)),
                             _mm256_set1_ps(-0.0f));
    return f16_of(shared + 32 + h * 16);
}

/* Codes of inputs 4 group to 4 group + 3: v holds the nibbles, high the fifth bits. */
INLINE __m256i codes(__m256i v, __m256i high, const int group, const enum kind kind) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    v = _mm256_and_si256(group < 4 ? v : _mm256_srli_epi16(v, 4), low);
    if (kind != Q5_0) return v;
    high = group < 4 ? _mm256_slli_epi16(high, 4 - group) : _mm256_srli_epi16(high, group - 4);
    return _mm256_or_si256(v, _mm256_and_si256(high, fifth));
}

/* acc += d * (a.scale * isum), and min * a.sum; without a minimum `offset`, 8 or 16 * qsum, comes off isum */
INLINE __m256 finish(__m256 acc, __m256i isum, __m256 d, __m256 min, __m256 scale, __m256 sum, __m256i offset,
                     const enum kind kind) {
    if (!has_min(kind)) isum = _mm256_sub_epi32(isum, offset);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return has_min(kind) ? _mm256_fmadd_ps(min, sum, acc) : acc;
}

/* n rows (a constant after inlining) from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes
 * from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const int n, const enum kind kind, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = block_bytes(kind);
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row, *sum = x->sum + (size_t)row * per_row;
    const int32_t *qsum = x->qsum + (size_t)row * per_row;
#define X(r) __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;
    ROWS(X)
#undef X
    for (int g = 0; g < n_groups; g++, w += shared_bytes(kind)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, q += 32, scale++, sum++, qsum++) {
            if (stream) ask_ahead(w, size);
            __m256i high0 = ones, high1 = ones; /* read for Q5_0 only */
            if (kind == Q5_0) high0 = bytes32(w + 256), high1 = bytes32(w + 288);
#define X(r)                                                        \
    __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;    \
    __m256i h##r##0 = s##r##0, h##r##1 = s##r##0;
            ROWS(X)
#undef X
#define X(r)                                                                        \
    if (n > r) {                                                                    \
        __m256i a = word_of(q + (size_t)r * n_cols + at);                              \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#define GROUP(group)                                                                               \
    do {                                                                                           \
        const __m256i c0 = codes(v0, high0, group, kind), c1 = codes(v1, high1, group, kind);      \
        const int at = 4 * (group);                                                                \
        ROWS(X)                                                                                    \
    } while (0)
#define STEP(j)                                                                          \
    do {                                                                                 \
        const __m256i v0 = bytes32(w + (j) * 64), v1 = bytes32(w + (j) * 64 + 32);               \
        GROUP(j);                                                                        \
        GROUP(j + 4);                                                                    \
    } while (0)
            STEP(0);
            STEP(1);
#define WIDEN(r)                                                                                    \
    if (n > r && kind == Q5_0) {                                                                    \
        h##r##0 = _mm256_madd_epi16(s##r##0, ones), h##r##1 = _mm256_madd_epi16(s##r##1, ones);     \
        s##r##0 = s##r##1 = _mm256_setzero_si256();                                                 \
    }
            ROWS(WIDEN)
            STEP(2);
            STEP(3);
#undef WIDEN
#undef STEP
#undef GROUP
#undef X
            const __m256 d0 = scale_of(w, shared, 0, kind), d1 = scale_of(w, shared, 1, kind);
            __m256 m0 = d0, m1 = d1;
            if (has_min(kind)) m0 = min_of(w, shared, 0, kind), m1 = min_of(w, shared, 1, kind);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = has_min(kind) ? _mm256_broadcast_ss(sum + i) : vs;  \
        __m256i offset = _mm256_set1_epi32(has_min(kind) ? 0 : (kind == Q5_0 ? 16 : 8) * qsum[i]);           \
        s##r##0 = _mm256_madd_epi16(s##r##0, ones), s##r##1 = _mm256_madd_epi16(s##r##1, ones);              \
        if (kind == Q5_0)                                                                                    \
            s##r##0 = _mm256_add_epi32(s##r##0, h##r##0), s##r##1 = _mm256_add_epi32(s##r##1, h##r##1);      \
        f##r##0 = finish(f##r##0, s##r##0, d0, m0, vs, vm, offset, kind);                                    \
        f##r##1 = finish(f##r##1, s##r##1, d1, m1, vs, vm, offset, kind);                                    \
    }
            ROWS(X)
#undef X
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
    /* the first tile pulls the panel in; 8 rows go as 4 + 4 and not 6 + 2 */
    if (m >= 6 && m != 8) rows_tile(tile, panel, x, row, n, n_in, 6, kind, true), r = 6;
    else if (m >= 4) rows_tile(tile, panel, x, row, n, n_in, 4, kind, true), r = 4;
    else if (m >= 2) rows_tile(tile, panel, x, row, n, n_in, 2, kind, true), r = 2;
    else {
        rows_tile(tile, panel, x, row, n, n_in, 1, kind, true);
        return;
    }
    for (; r + 6 <= m; r += 6) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 6, kind, false);
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
    X(q4_0, linear, 1, Q4_0)                                                                \
    X(q4_1, linear, 1, Q4_1)                                                                \
    X(q5_0, linear, 1, Q5_0)                                                                \
    X(q4_k, linear, 8, Q4_K)                                                                \
    X(affine4g32, linear_affine, 1)                                                         \
    X(affine4g64, linear_affine, 2)                                                         \
    X(affine4g128, linear_affine, 4)                                                        \
    X(affine4g32_f32, linear_affine_f32, 1)                                                 \
    X(affine4g64_f32, linear_affine_f32, 2)                                                 \
    X(affine4g128_f32, linear_affine_f32, 4)
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
KERN_EXPORT(linear_q4_tile, kerns);
