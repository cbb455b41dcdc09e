/* linear_q8_tile16: linear_q8_tile.avx2.c with 16 outputs a vector. With VNNI a row costs two instructions for four
 * inputs. Sums are int32 everywhere, so the offset of the 6-bit codes is what a sum starts from. */
#ifndef IG_LINEAR_Q8_TILE16_H
#define IG_LINEAR_Q8_TILE16_H

#include "kern/tuned/tile16.h"

#define ROWS EIGHT_ROWS
/* SIX: 6 bits, runs of 16 inputs with a scale each; SIX_WHOLE: without runs; LEVELS: 4 bits that name a level */
enum codes { SIGNED, UNSIGNED, SIX, SIX_WHOLE, LEVELS };

INLINE size_t codes_bytes(const enum codes kind) {
    return kind == SIX || kind == SIX_WHOLE ? 384 : kind == LEVELS ? 256 : 512;
}
/* Own scales of a block behind its codes; those of LEVELS together behind the codes of the group. */
INLINE size_t own_of_block(const enum codes kind, enum scales from) {
    return kind == LEVELS ? 0 : (kind == SIX ? 2 : 1) * own_bytes(from);
}
INLINE size_t own_of_group(const enum codes kind, enum scales from, int n_in) {
    return kind == LEVELS ? (size_t)n_in * own_bytes(from) : 0;
}

/* Codes of inputs 4 j to 4 j + 3 of a block. */
INLINE ints codes(const uint8_t *w, const int j, const enum codes kind) {
    const ints low = bytes_all(15);
    if (kind != SIX && kind != SIX_WHOLE && kind != LEVELS) return bytes64(w + j * 64);
    ints v = bytes64(w + j % 4 * 64);
    v = ints_and(j < 4 ? v : ints_right(v, 4), low);
    if (kind == LEVELS)
        return bytes_of_table(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), v);
    ints top = bytes64(w + 256 + j / 4 * 64);
    if (j % 4 < 2) top = ints_left(top, j % 4 < 2 ? 4 - 2 * (j % 4) : 0);
    if (j % 4 > 2) top = ints_right(top, j % 4 > 2 ? 2 * (j % 4) - 4 : 0);
    return ints_or(v, ints_and(top, bytes_all(48)));
}
/* The even and the odd bytes as int16. */
INLINE bool is_signed(const enum codes kind) { return kind == SIGNED || kind == LEVELS; }
INLINE ints even_of(ints c, const enum codes kind) {
    return is_signed(kind) ? ints_right_signed(ints_left(c, 8), 8) : ints_and(c, ints_all(0x00ff00ff));
}
INLINE ints odd_of(ints c, const enum codes kind) {
    return is_signed(kind) ? ints_right_signed(c, 8) : ints_right(c, 8);
}

/* n rows from `row` on, n_groups groups of n_in blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, int n_in,
                      enum scales from, const int n, const enum codes kind, const bool mins, bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32;
    const size_t size = codes_bytes(kind) + own_of_block(kind, from), tail = own_of_group(kind, from, n_in);
    const int16_t *q = x->q16 + (size_t)row * n_cols, *fifth = q + 4 * n_cols;
    const float *scale = x->scale16 + (size_t)row * per_row, *sum = x->sum16 + (size_t)row * per_row;
    const int32_t *qsum = x->qsum16 + 2 * (size_t)row * per_row;
    size_t two = 2 * n_cols, three = 3 * n_cols;
    HIDE(two);
    HIDE(three);
    ROWS(START_ROW16)
    for (int g = 0; g < n_groups; g++, w += tail + shared_bytes(from)) {
        const uint8_t *own = w + (size_t)n_in * size, *shared = own + tail; /* own: of LEVELS */
        for (int b = 0; b < n_in; b++, w += size, q += 32, fifth += 32, scale++, sum++, qsum += 2) {
            HIDE(from);
            HIDE(stream);
            if (stream) ask_ahead(w, size);
            if (kind != LEVELS) own = w + codes_bytes(kind);
#define START(r) \
    ints s##r = ints_all(kind == SIX && n > r ? -32 * qsum[2 * (size_t)r * per_row + (size_t)run] : 0);
#define X(r)                                                                    \
    if (n > r) {                                                                \
        const int16_t *p = OF_ROW(r, q, fifth, n_cols, two, three) + at;        \
        s##r = dot_shorts(s##r, e, word_at(p));                                 \
        s##r = dot_shorts(s##r, o, word_at(p + 2));                             \
    }
#define GROUP(j)                                                                           \
    do {                                                                                   \
        const ints c = codes(w, j, kind), e = even_of(c, kind), o = odd_of(c, kind);       \
        const int at = 4 * (j);                                                            \
        ROWS(X)                                                                            \
    } while (0)
#define END(r) \
    if (n > r) f##r = finish(f##r, s##r, d, m, scale[(size_t)r * per_row], sum + (size_t)r * per_row, mins);
#define JOIN                                                                                             \
    do {                                                                                                 \
        const floats d = scale16_of(own, shared, from), m = mins ? min16_of(own, shared, from) : d;      \
        ROWS(END)                                                                                        \
        own += own_bytes(from);                                                                          \
    } while (0)
            {
                const int run = 0;
                ROWS(START)
                GROUP(0);
                GROUP(1);
                GROUP(2);
                GROUP(3);
                if (kind != SIX) {
                    GROUP(4);
                    GROUP(5);
                    GROUP(6);
                    GROUP(7);
                }
                JOIN;
            }
            if (kind == SIX) {
                const int run = 1;
                ROWS(START)
                GROUP(4);
                GROUP(5);
                GROUP(6);
                GROUP(7);
                JOIN;
            }
#undef JOIN
#undef END
#undef GROUP
#undef X
#undef START
        }
    }
    ROWS(STORE_ROW16)
}

#define BODY(name, kind, mins)                                                                               \
    ONE_BODY name(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols, int n_in,  \
                  enum scales from) {                                                                        \
        const int n_groups = n_cols / 32 / n_in;                                                             \
        IN_TILES16(m, TOP_SHORTS, TILE_##name);                                                              \
    }
#define TILE_OF(r, n, kind, mins) \
    rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n_in, from, n, kind, mins, (r) == 0)
#define TILE_linear(r, n) TILE_OF(r, n, SIGNED, false)
#define TILE_linear6k(r, n) TILE_OF(r, n, SIX, false)
#define TILE_linear_levels(r, n) TILE_OF(r, n, LEVELS, false)
#define TILE_linear8(r, n) TILE_OF(r, n, UNSIGNED, true)
#define TILE_linear6(r, n) TILE_OF(r, n, SIX_WHOLE, true)
BODY(linear, SIGNED, false)
BODY(linear6k, SIX, false)
BODY(linear_levels, LEVELS, false)
BODY(linear8, UNSIGNED, true)
BODY(linear6, SIX_WHOLE, true)

#define AFFINE(X, bits, suffix, from)                        \
    X(affine##bits##g32##suffix, linear##bits, 1, from)      \
    X(affine##bits##g64##suffix, linear##bits, 2, from)      \
    X(affine##bits##g128##suffix, linear##bits, 4, from)

#define ALL(X)                           \
    X(q8_0, linear, 1, D)                \
    X(q6_k, linear6k, 8, D_SC)           \
    X(iq4_nl, linear_levels, 1, D)       \
    X(iq4_xs, linear_levels, 8, D_SC)    \
    AFFINE(X, 6, , BF16) AFFINE(X, 6, _f32, FLOAT) AFFINE(X, 8, , BF16) AFFINE(X, 8, _f32, FLOAT)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_q8_tile, kerns);

#endif
