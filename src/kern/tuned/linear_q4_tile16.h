/* linear_q4_tile16: linear_q4_tile.avx2.c with 16 outputs a vector. With VNNI a block's products go straight to int32,
 * from minus the offset on where codes have one; without it they wait in int16, half a block of 5-bit codes at most. */
#ifndef IG_LINEAR_Q4_TILE16_H
#define IG_LINEAR_Q4_TILE16_H

#include "kern/tuned/tile16.h"

#define ROWS EIGHT_ROWS

INLINE size_t codes_bytes(const int bits) { return bits == 5 ? 320 : 256; }

/* Codes of inputs 4 group to 4 group + 3: v holds the nibbles, high the fifth bits. */
INLINE ints codes(ints v, ints high, const int group, const int bits) {
    v = ints_and(group < 4 ? v : ints_right(v, 4), bytes_all(15));
    if (bits != 5) return v;
    if (group < 4) high = ints_left(high, group < 4 ? 4 - group : 0);
    if (group > 4) high = ints_right(high, group > 4 ? group - 4 : 0);
    return ints_or(v, ints_and(high, bytes_all(16)));
}

/* What codes without a minimum add to a block's sum: minus half their range times the sum of the q. */
INLINE int offset_of(const int16_t *qsum, const int bits) {
    return (qsum[0] + qsum[1]) * -(1 << (bits - 1));
}

/* n rows from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, int n_in,
                      enum scales from, const int n, const int bits, const bool mins, bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = codes_bytes(bits) + own_bytes(from);
    const int8_t *q = x->q + (size_t)row * n_cols, *fifth = q + 4 * n_cols;
    size_t two = 2 * n_cols, three = 3 * n_cols;
    HIDE(two);
    HIDE(three);
    const float *scale = x->scale + (size_t)row * per_row, *sum = x->sum + (size_t)row * per_row;
    const int16_t *qsum = x->qsum + 2 * (size_t)row * per_row;
    ROWS(START_ROW16)
    for (int g = 0; g < n_groups; g++, w += shared_bytes(from)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, q += 32, fifth += 32, scale++, sum++, qsum += 2) {
            HIDE(from);
            HIDE(stream);
            if (stream) ask_ahead(w, size);
            const ints zero = ints_all(0), high = bits == 5 ? bytes64(w + 256) : zero;
#define OFFSET(r) ints_all(offset_of(qsum + 2 * (size_t)r * per_row, bits))
#define X(r) ints s##r = !NARROW && n > r && !mins ? OFFSET(r) : zero, h##r = zero;
            ROWS(X)
#undef X
#define X(r) \
    if (n > r) s##r = dot_bytes(s##r, c, word_at(OF_ROW(r, q, fifth, n_cols, two, three) + at));
#define GROUP(group)                                             \
    do {                                                         \
        const ints c = codes(v, high, group, bits);              \
        const int at = 4 * (group);                              \
        ROWS(X)                                                  \
    } while (0)
#define STEP(j)                                 \
    do {                                        \
        const ints v = bytes64(w + (j) * 64);   \
        GROUP(j);                               \
        GROUP(j + 4);                           \
    } while (0)
            STEP(0);
            STEP(1);
#define WIDEN(r) \
    if (NARROW && n > r && bits == 5) h##r = widened(s##r), s##r = zero;
            ROWS(WIDEN)
            STEP(2);
            STEP(3);
#undef WIDEN
#undef STEP
#undef GROUP
#undef X
            const uint8_t *own = w + codes_bytes(bits);
            const floats d = scale16_of(own, shared, from), m = mins ? min16_of(own, shared, from) : d;
#define X(r)                                                                                       \
    if (n > r) {                                                                                   \
        const size_t i = (size_t)r * per_row;                                                      \
        s##r = widened(s##r);                                                                      \
        if (NARROW && bits == 5) s##r = ints_add(s##r, h##r);                                      \
        if (NARROW && !mins) s##r = ints_add(s##r, OFFSET(r));                                     \
        f##r = finish(f##r, s##r, d, m, scale[i], sum + i, mins);                                  \
    }
            ROWS(X)
#undef X
#undef OFFSET
        }
    }
    ROWS(STORE_ROW16)
}

#define BODY(name, bits, mins)                                                                               \
    ONE_BODY name(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols, int n_in,  \
                  enum scales from) {                                                                        \
        const int n_groups = n_cols / 32 / n_in;                                                             \
        IN_TILES16(m, TOP_BYTES, TILE_##name);                                                               \
    }
#define TILE_OF(r, n, bits, mins) \
    rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n_in, from, n, bits, mins, (r) == 0)
#define TILE_linear4(r, n) TILE_OF(r, n, 4, false)
#define TILE_linear4_min(r, n) TILE_OF(r, n, 4, true)
#define TILE_linear5(r, n) TILE_OF(r, n, 5, false)
#define TILE_linear5_min(r, n) TILE_OF(r, n, 5, true)
BODY(linear4, 4, false)
BODY(linear4_min, 4, true)
BODY(linear5, 5, false)
BODY(linear5_min, 5, true)

#define AFFINE(X, bits, suffix, from)                              \
    X(affine##bits##g32##suffix, linear##bits##_min, 1, from)      \
    X(affine##bits##g64##suffix, linear##bits##_min, 2, from)      \
    X(affine##bits##g128##suffix, linear##bits##_min, 4, from)

#define ALL(X)                          \
    X(q4_0, linear4, 1, D)              \
    X(q4_1, linear4_min, 1, D_M)        \
    X(q5_0, linear5, 1, D)              \
    X(q5_1, linear5_min, 1, D_M)        \
    X(q4_k, linear4_min, 8, D_SC_MN)    \
    X(q5_k, linear5_min, 8, D_SC_MN)    \
    AFFINE(X, 4, , BF16) AFFINE(X, 4, _f32, FLOAT) AFFINE(X, 5, , BF16) AFFINE(X, 5, _f32, FLOAT)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_q4_tile, kerns);

#endif
