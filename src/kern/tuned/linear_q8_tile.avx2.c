/* linear_q8_tile: signed levels and 8-bit codes with int16 activations, 1 to 4 rows by 16 outputs at once. A vector
 * of codes (8 outputs, 4 inputs) becomes two of int16 once for all rows; each row then costs two madd and two
 * sums, as many instructions as int8 activations would with sign, maddubs and madd. Signed codes widen by
 * three shifts, unsigned ones by a mask and a shift: Q8_0 is faster signed, Q6_K is faster with 32 * qsum16
 * taken off at the end (`make bench-kern` on Zen 3). The levels of IQ4 come out of a table in a register. */
#include "kern/tuned/strip.avx2.h"

#define ROWS FOUR_ROWS
/* SIX: 6 bits, runs of 16 inputs with a scale each; SIX_WHOLE: without runs; LEVELS: 4 bits that name a level */
enum codes { SIGNED, UNSIGNED, SIX, SIX_WHOLE, LEVELS };

INLINE __m256i dot4(__m256i sum, __m256i even, __m256i odd, __m256i a01, __m256i a23) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, a01));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, a23));
}

INLINE size_t codes_bytes(const enum codes kind) {
    return kind == SIX || kind == SIX_WHOLE ? 384 : kind == LEVELS ? 256 : 512;
}
INLINE int n_runs(const enum codes kind) { return kind == SIX ? 2 : 1; }
/* Own scales of a block behind its codes; those of LEVELS, 16 bytes, together behind the codes of the group, since a
 * vector of codes wants to be aligned. */
INLINE size_t own_of_block(const enum codes kind, const enum scales from) {
    return kind == LEVELS ? 0 : (size_t)n_runs(kind) * own_bytes(from);
}
INLINE size_t own_of_group(const enum codes kind, const enum scales from, const int n_in) {
    return kind == LEVELS ? (size_t)n_in * own_bytes(from) : 0;
}

/* Codes of inputs 4 j to 4 j + 3 of a run, outputs 8 h to 8 h + 7. */
INLINE __m256i codes(const uint8_t *w, int run, int j, const int h, const enum codes kind) {
    const __m256i low = _mm256_set1_epi8(15);
    if (kind == LEVELS) {
        const __m256i levels = _mm256_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                                                113, -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69,
                                                89, 113);
        __m256i v = bytes32(w + j % 4 * 64 + h * 32);
        return _mm256_shuffle_epi8(levels, _mm256_and_si256(j < 4 ? v : _mm256_srli_epi16(v, 4), low));
    }
    if (kind == SIX_WHOLE) run = j / 4, j %= 4;
    __m256i v = bytes32(w + j * 64 + h * 32);
    if (kind != SIX && kind != SIX_WHOLE) return v;
    __m256i top = bytes32(w + 256 + run * 64 + h * 32);
    v = _mm256_and_si256(run ? _mm256_srli_epi16(v, 4) : v, low);
    top = j < 2 ? _mm256_slli_epi16(top, 4 - 2 * j) : _mm256_srli_epi16(top, 2 * j - 4);
    return _mm256_or_si256(v, _mm256_and_si256(top, _mm256_set1_epi8(48)));
}
/* The even and the odd bytes as int16. */
INLINE bool is_signed(const enum codes kind) { return kind == SIGNED || kind == LEVELS; }
INLINE __m256i even_of(__m256i c, const enum codes kind) {
    return is_signed(kind) ? _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8)
                           : _mm256_and_si256(c, _mm256_set1_epi16(255));
}
INLINE __m256i odd_of(__m256i c, const enum codes kind) {
    return is_signed(kind) ? _mm256_srai_epi16(c, 8) : _mm256_srli_epi16(c, 8);
}

/* acc += d * (a.scale16 * isum), and min * a.sum16; offset = 32 * qsum16 comes off the isum of SIX */
INLINE __m256 finish(__m256 acc, __m256i isum, __m256 d, __m256 min, __m256 scale, __m256 sum, __m256i offset,
                     const enum codes kind, const enum scales from) {
    if (kind == SIX) isum = _mm256_sub_epi32(isum, offset);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return has_min(from) ? _mm256_fmadd_ps(min, sum, acc) : acc;
}

/* n rows from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const int n, const enum codes kind, const enum scales from, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const size_t size = codes_bytes(kind) + own_of_block(kind, from), tail = own_of_group(kind, from, n_in);
    const int16_t *q = x->q16 + (size_t)row * n_cols;
    const float *scale = x->scale16 + (size_t)row * per_row, *sum = x->sum16 + (size_t)row * per_row;
    const int32_t *qsum = x->qsum16 + 2 * (size_t)row * per_row;
    ROWS(START_ROW)
    for (int g = 0; g < n_groups; g++, w += tail + shared_bytes(from)) {
        const uint8_t *tail_at = w + (size_t)n_in * size, *shared = tail_at + tail;
        for (int b = 0; b < n_in; b++, w += size, q += 32, scale++, sum++, qsum += 2) {
            if (stream) ask_ahead(w, size);
#pragma GCC unroll 2
            for (int run = 0; run < n_runs(kind); run++) {
#define X(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
                ROWS(X)
#undef X
#define X(r)                                                                               \
    if (n > r) {                                                                           \
        const int16_t *p = q + (size_t)r * n_cols + (size_t)(run * 16 + j * 4);            \
        __m256i a01 = word_of(p), a23 = word_of(p + 2);                                    \
        s##r##0 = dot4(s##r##0, e0, o0, a01, a23);                                         \
        s##r##1 = dot4(s##r##1, e1, o1, a01, a23);                                         \
        PIN(s##r##0, s##r##1);                                                             \
    }
#pragma GCC unroll 8
                for (int j = 0; j < 8 / n_runs(kind); j++) {
                    const __m256i c0 = codes(w, run, j, 0, kind), c1 = codes(w, run, j, 1, kind);
                    __m256i e0 = even_of(c0, kind), o0 = odd_of(c0, kind);
                    __m256i e1 = even_of(c1, kind), o1 = odd_of(c1, kind);
                    ROWS(X)
                }
#undef X
                const uint8_t *own = kind == LEVELS ? tail_at + (size_t)b * own_bytes(from)
                                                    : w + codes_bytes(kind) + (size_t)run * own_bytes(from);
                const __m256 d0 = scale_of(own, shared, 0, from), d1 = scale_of(own, shared, 1, from);
                __m256 m0 = d0, m1 = d1;
                if (has_min(from)) m0 = min_of(own, shared, 0, from), m1 = min_of(own, shared, 1, from);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = has_min(from) ? _mm256_broadcast_ss(sum + i) : vs;  \
        __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(qsum[2 * i + (size_t)run]), 5);                 \
        f##r##0 = finish(f##r##0, s##r##0, d0, m0, vs, vm, offset, kind, from);                              \
        f##r##1 = finish(f##r##1, s##r##1, d1, m1, vs, vm, offset, kind, from);                              \
    }
                ROWS(X)
#undef X
            }
        }
    }
    ROWS(STORE_ROW)
}

/* Groups of n_in blocks from w on, opened; codes of SIX with their offset off. */
INLINE void open_strip(strip16 *s, const uint8_t *w, int n_blocks, const int n_in, const enum codes kind,
                       const enum scales from) {
    const size_t size = codes_bytes(kind) + own_of_block(kind, from), tail = own_of_group(kind, from, n_in);
    for (int b = 0; b < n_blocks; b += n_in, w += tail + shared_bytes(from)) {
        const uint8_t *tail_at = w + (size_t)n_in * size, *shared = tail_at + tail;
        for (int i = 0; i < n_in; i++, w += size) {
            uint8_t *to = (uint8_t *)s->block[b + i].codes;
#pragma GCC unroll 2
            for (int run = 0; run < n_runs(kind); run++) {
#pragma GCC unroll 8
                for (int j = 0; j < 8 / n_runs(kind); j++, to += 128) {
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++) {
                        __m256i c = codes(w, run, j, h, kind), even = even_of(c, kind), odd = odd_of(c, kind);
                        if (kind == SIX) {
                            const __m256i half = _mm256_set1_epi16(32);
                            even = _mm256_sub_epi16(even, half), odd = _mm256_sub_epi16(odd, half);
                        }
                        put32(to + h * 64, even), put32(to + h * 64 + 32, odd);
                    }
                }
                const uint8_t *own = kind == LEVELS ? tail_at + (size_t)i * own_bytes(from)
                                                    : w + codes_bytes(kind) + (size_t)run * own_bytes(from);
                for (int h = 0; h < 2; h++) {
                    _mm256_store_ps(s->block[b + i].d[run] + h * 8, scale_of(own, shared, h, from));
                    if (has_min(from)) _mm256_store_ps(s->block[b + i].min + h * 8, min_of(own, shared, h, from));
                }
            }
        }
    }
}
INLINE void in_strips(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols, const int n_in,
                      const enum codes kind, const enum scales from) {
    const size_t group = (size_t)n_in * (codes_bytes(kind) + own_of_block(kind, from)) +
                         own_of_group(kind, from, n_in) + shared_bytes(from);
    strip16 s;
    for (int b = 0, left = n_cols / 32; left > 0; b += STRIP_BLOCKS, left -= STRIP_BLOCKS) {
        const int n_blocks = left < STRIP_BLOCKS ? left : STRIP_BLOCKS;
        const uint8_t *w = panel + (size_t)(b / n_in) * group;
        ask_for_next(w, (size_t)(STRIP_BLOCKS / n_in) * group);
        open_strip(&s, w, n_blocks, n_in, kind, from);
#define TILE(r, n) strip16_tile(tile + (r) * 16, &s, x, row + (r), b, n_blocks, n, n_runs(kind), has_min(from))
        IN_STRIP_TILES(m, 4, TILE);
#undef TILE
    }
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int n_in, const enum codes kind, const enum scales from) {
    if (m >= STRIP_FROM_ROWS) {
        in_strips(tile, panel, x, row, m, n_cols, n_in, kind, from);
        return;
    }
    const int n_groups = n_cols / 32 / n_in;
#define TILE(r, n, stream) rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n_in, n, kind, from, stream)
    IN_TILES(m, 4, TILE);
#undef TILE
}
/* The group sizes of MLX share one body. */
#define AFFINE_BODY(name, kind, from)                                                                        \
    static __attribute__((noinline)) void name(float *tile, const uint8_t *panel, const ig_act *x,     \
                                               int row, int m, int n_cols, int n_in) {                 \
        linear(tile, panel, x, row, m, n_cols, n_in, kind, from);                                      \
    }
AFFINE_BODY(linear_affine, UNSIGNED, BF16)
AFFINE_BODY(linear_affine_f32, UNSIGNED, FLOAT)
AFFINE_BODY(linear_affine6, SIX_WHOLE, BF16)
AFFINE_BODY(linear_affine6_f32, SIX_WHOLE, FLOAT)

#define ALL(X)                                                                              \
    X(q8_0, linear, 1, SIGNED, D)                                                           \
    X(q6_k, linear, 8, SIX, D_SC)                                                           \
    X(iq4_nl, linear, 1, LEVELS, D)                                                         \
    X(iq4_xs, linear, 8, LEVELS, D_SC)                                                      \
    X(affine8g32, linear_affine, 1)                                                         \
    X(affine8g64, linear_affine, 2)                                                         \
    X(affine8g128, linear_affine, 4)                                                        \
    X(affine8g32_f32, linear_affine_f32, 1)                                                 \
    X(affine8g64_f32, linear_affine_f32, 2)                                                 \
    X(affine8g128_f32, linear_affine_f32, 4)                                                \
    X(affine6g32, linear_affine6, 1)                                                        \
    X(affine6g64, linear_affine6, 2)                                                        \
    X(affine6g128, linear_affine6, 4)                                                       \
    X(affine6g32_f32, linear_affine6_f32, 1)                                                \
    X(affine6g64_f32, linear_affine6_f32, 2)                                                \
    X(affine6g128_f32, linear_affine6_f32, 4)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_q8_tile, kerns);
