/* linear_q4_tile: 4-bit and 5-bit codes with int8 activations, 1 to 6 rows by 16 outputs at once. Codes are
 * unpacked in registers also for many rows: the packed panel stays in L1 where one widened to bytes would not
 * leave room. Eight maddubs of codes 0..15 with int8 sum to at most 8 * 2 * 15 * 127 = 30480, so int16 holds
 * a block's sum and one madd ends it: that is why 4-bit is fast. With codes 0..31 it holds half a block.
 * Measured shapes: bench/results, `make bench-kern`. */
#include "kern/tuned/strip.avx2.h"

#define ROWS SIX_ROWS

INLINE size_t codes_bytes(const int bits) { return bits == 5 ? 320 : 256; }

/* Codes of inputs 4 group to 4 group + 3: v holds the nibbles, high the fifth bits. */
INLINE __m256i codes(__m256i v, __m256i high, const int group, const int bits) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    v = _mm256_and_si256(group < 4 ? v : _mm256_srli_epi16(v, 4), low);
    if (bits != 5) return v;
    high = group < 4 ? _mm256_slli_epi16(high, 4 - group) : _mm256_srli_epi16(high, group - 4);
    return _mm256_or_si256(v, _mm256_and_si256(high, fifth));
}

/* n rows from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const int n, const int bits, const enum scales from, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = codes_bytes(bits) + own_bytes(from);
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row, *sum = x->sum + (size_t)row * per_row;
    const int16_t *qsum = x->qsum + 2 * (size_t)row * per_row;
    ROWS(START_ROW)
    for (int g = 0; g < n_groups; g++, w += shared_bytes(from)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, q += 32, scale++, sum++, qsum += 2) {
            if (stream) ask_ahead(w, size);
            __m256i high0 = ones, high1 = ones; /* read for 5 bits only */
            if (bits == 5) high0 = bytes32(w + 256), high1 = bytes32(w + 288);
#define X(r)                                                        \
    __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;    \
    __m256i h##r##0 = s##r##0, h##r##1 = s##r##0;
            ROWS(X)
#undef X
#define X(r)                                                                        \
    if (n > r) {                                                                    \
        __m256i a = word_of(q + (size_t)r * n_cols + at);                           \
        s##r##0 = _mm256_add_epi16(s##r##0, _mm256_maddubs_epi16(c0, a));           \
        s##r##1 = _mm256_add_epi16(s##r##1, _mm256_maddubs_epi16(c1, a));           \
        PIN(s##r##0, s##r##1);                                                      \
    }
#define GROUP(group)                                                                               \
    do {                                                                                           \
        const __m256i c0 = codes(v0, high0, group, bits), c1 = codes(v1, high1, group, bits);      \
        const int at = 4 * (group);                                                                \
        ROWS(X)                                                                                    \
    } while (0)
#define STEP(j)                                                                          \
    do {                                                                                 \
        const __m256i v0 = bytes32(w + (j) * 64), v1 = bytes32(w + (j) * 64 + 32);       \
        GROUP(j);                                                                        \
        GROUP(j + 4);                                                                    \
    } while (0)
            STEP(0);
            STEP(1);
#define WIDEN(r)                                                                                    \
    if (n > r && bits == 5) {                                                                       \
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
            const uint8_t *own = w + codes_bytes(bits);
            const __m256 d0 = scale_of(own, shared, 0, from), d1 = scale_of(own, shared, 1, from);
            __m256 m0 = d0, m1 = d1;
            if (has_min(from)) m0 = min_of(own, shared, 0, from), m1 = min_of(own, shared, 1, from);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        __m256 vs = _mm256_broadcast_ss(scale + i), vm = has_min(from) ? _mm256_broadcast_ss(sum + i) : vs;  \
        const __m256i offset = has_min(from) ? ones : offset8(word_of(qsum + 2 * i), bits);                  \
        s##r##0 = _mm256_madd_epi16(s##r##0, ones), s##r##1 = _mm256_madd_epi16(s##r##1, ones);              \
        if (bits == 5)                                                                                       \
            s##r##0 = _mm256_add_epi32(s##r##0, h##r##0), s##r##1 = _mm256_add_epi32(s##r##1, h##r##1);      \
        f##r##0 = finish8(f##r##0, s##r##0, d0, m0, vs, vm, offset, has_min(from));                                \
        f##r##1 = finish8(f##r##1, s##r##1, d1, m1, vs, vm, offset, has_min(from));                                \
    }
            ROWS(X)
#undef X
        }
    }
    ROWS(STORE_ROW)
}

/* Groups of n_in blocks from w on, opened. */
INLINE void open_strip(strip8 *s, const uint8_t *w, int n_blocks, const int n_in, const int bits,
                       const enum scales from) {
    const size_t size = codes_bytes(bits) + own_bytes(from);
    for (int b = 0; b < n_blocks; b += n_in, w += shared_bytes(from)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int i = 0; i < n_in; i++, w += size) {
            uint8_t *to = s->block[b + i].codes;
            __m256i high0 = _mm256_setzero_si256(), high1 = high0;
            if (bits == 5) high0 = bytes32(w + 256), high1 = bytes32(w + 288);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const uint8_t *p = w + j % 4 * 64;
                put32(to + j * 64, codes(bytes32(p), high0, j, bits));
                put32(to + j * 64 + 32, codes(bytes32(p + 32), high1, j, bits));
            }
            const uint8_t *own = w + codes_bytes(bits);
            for (int h = 0; h < 2; h++) {
                _mm256_store_ps(s->block[b + i].d + h * 8, scale_of(own, shared, h, from));
                if (has_min(from)) _mm256_store_ps(s->block[b + i].min + h * 8, min_of(own, shared, h, from));
            }
        }
    }
}
INLINE void in_strips(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols, const int n_in,
                      const int bits, const enum scales from) {
    const size_t group = (size_t)n_in * (codes_bytes(bits) + own_bytes(from)) + shared_bytes(from);
    strip8 s;
    for (int b = 0, left = n_cols / 32; left > 0; b += STRIP_BLOCKS, left -= STRIP_BLOCKS) {
        const int n_blocks = left < STRIP_BLOCKS ? left : STRIP_BLOCKS;
        const uint8_t *w = panel + (size_t)(b / n_in) * group;
        ask_for_next(w, (size_t)(STRIP_BLOCKS / n_in) * group);
        open_strip(&s, w, n_blocks, n_in, bits, from);
#define TILE(r, n) strip8_tile(tile + (r) * 16, &s, x, row + (r), b, n_blocks, n, bits, has_min(from))
        IN_STRIP_TILES(m, 6, TILE);
#undef TILE
    }
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int n_in, const int bits, const enum scales from) {
    if (m >= STRIP_FROM_ROWS) {
        in_strips(tile, panel, x, row, m, n_cols, n_in, bits, from);
        return;
    }
    const int n_groups = n_cols / 32 / n_in;
#define TILE(r, n, stream) rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n_in, n, bits, from, stream)
    IN_TILES(m, 6, TILE);
#undef TILE
}
/* The group sizes of MLX share one body. */
#define AFFINE_BODY(bits, suffix, from)                                                                       \
    static __attribute__((noinline)) void linear_##bits##suffix(float *tile, const uint8_t *panel,            \
                                                                const ig_act *x, int row, int m, int n_cols,  \
                                                                int n_in) {                                   \
        linear(tile, panel, x, row, m, n_cols, n_in, bits, from);                                             \
    }
AFFINE_BODY(4, , BF16)
AFFINE_BODY(4, _f32, FLOAT)
AFFINE_BODY(5, , BF16)
AFFINE_BODY(5, _f32, FLOAT)
#define AFFINE(X, bits, suffix)                             \
    X(affine##bits##g32##suffix, linear_##bits##suffix, 1)  \
    X(affine##bits##g64##suffix, linear_##bits##suffix, 2)  \
    X(affine##bits##g128##suffix, linear_##bits##suffix, 4)

#define ALL(X)                                                                              \
    X(q4_0, linear, 1, 4, D)                                                                \
    X(q4_1, linear, 1, 4, D_M)                                                              \
    X(q5_0, linear, 1, 5, D)                                                                \
    X(q5_1, linear, 1, 5, D_M)                                                              \
    X(q4_k, linear, 8, 4, D_SC_MN)                                                          \
    X(q5_k, linear, 8, 5, D_SC_MN)                                                          \
    AFFINE(X, 4, ) AFFINE(X, 4, _f32) AFFINE(X, 5, ) AFFINE(X, 5, _f32)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_q4_tile, kerns);
