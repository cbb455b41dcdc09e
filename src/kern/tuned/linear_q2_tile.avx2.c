/* linear_q2_tile: 2-bit and 3-bit codes and codes of three values with int8 activations, 1 to 6 rows by 16 outputs
 * at once. The sum of a run of 16 inputs fits int16 (8 * 7 * 127), and the madd that widens it multiplies by the
 * run's small integer scale on the way: it costs nothing. */
#include "kern/tuned/tile.avx2.h"

#define ROWS SIX_ROWS
/* TWO: Q2_K; THREE: Q3_K; PLAIN: TQ2_0, 2 bits and one scale a group; TRITS: TQ1_0, five codes a byte. */
enum codes { TWO, THREE, PLAIN, TRITS };

INLINE bool has_scales(const enum codes kind) { return kind == TWO || kind == THREE; }
INLINE size_t codes_bytes(const enum codes kind) { return kind == THREE ? 192 : 128; }
INLINE size_t block_bytes(const enum codes kind) { return codes_bytes(kind) + (has_scales(kind) ? 32 : 0); }
INLINE size_t group_bytes(const enum codes kind) {
    return kind == TRITS ? 864 : 8 * block_bytes(kind) + (kind == TWO ? 64 : 32);
}

/* ---- codes of five in a byte ------------------------------------------------------------------------------- */

/* The n-th code of a byte b is 0, 1 or 2 as b * 3^n mod 256 lies below 86, below 171 or above; bytes come with the
 * top bit turned, so that signed comparisons do. `words` holds 16 words of 64 bytes: what the file has in bytes 0..31,
 * 32..47, and qh times 1, 3, 9, 27. Every run of 16 inputs takes the codes of four words and multiplies them by 3. */
INLINE __m256i times3(__m256i v) { return _mm256_add_epi8(_mm256_add_epi8(v, v), v); }
INLINE void open_trits(uint8_t *words, const uint8_t *w) {
    for (int i = 0; i < 24; i++) _mm256_store_si256((__m256i *)(void *)(words + i * 32), bytes32(w + i * 32));
    for (int h = 0; h < 2; h++) {
        __m256i v = bytes32(w + 768 + h * 32);
        for (int i = 12; i < 16; i++, v = times3(v))
            _mm256_store_si256((__m256i *)(void *)(words + i * 64 + h * 32), v);
    }
}
INLINE uint8_t *words_of_run(uint8_t *words, int run) {
    return words + 64 * (run < 10 ? run % 2 * 4 : run < 15 ? 8 : 12);
}
INLINE __m256i next_trits(uint8_t *word) {
    const __m256i v = bytes32(word);
    _mm256_store_si256((__m256i *)(void *)word, times3(v));
    const __m256i over0 = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)); /* -1 where it is so */
    return _mm256_sub_epi8(_mm256_sub_epi8(_mm256_setzero_si256(), over0),
                           _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128)));
}

/* ---- codes and scales of a block ---------------------------------------------------------------------------- */

/* Inputs 4 j to 4 j + 3 of a run; v holds the run's pairs of bits, high the block's third bits. */
INLINE __m256i codes(__m256i v, __m256i high, const int run, const int j, const enum codes kind) {
    v = _mm256_and_si256(_mm256_srli_epi16(v, 2 * j), _mm256_set1_epi8(3));
    if (kind != THREE) return v;
    const int at = 4 * run + j; /* where the bit is; it goes to 2 */
    high = at < 2 ? _mm256_slli_epi16(high, 2 - at) : _mm256_srli_epi16(high, at - 2);
    return _mm256_or_si256(v, _mm256_and_si256(high, _mm256_set1_epi8(4)));
}

/* 16 bytes, one an output, as int16 twice in a lane, outputs 8 h to 8 h + 7. */
INLINE __m256i twice(__m128i bytes, const int h) {
    const __m256i at = h ? _mm256_setr_epi8(8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1, 12, -1, 12, -1,
                                            13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15, -1)
                         : _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1,
                                            5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), at);
}
INLINE __m256i scale_of_run(const uint8_t *scales, const int run, const int h, const enum codes kind) {
    if (!has_scales(kind)) return _mm256_set1_epi16(1);
    const __m128i bytes = bytes16(scales + run * 16);
    if (kind == TWO) return twice(_mm_and_si128(bytes, _mm_set1_epi8(15)), h);
    return _mm256_srai_epi16(_mm256_slli_epi16(twice(bytes, h), 8), 8);
}
/* What multiplies the pair of sums of q: minima, or 4 times the scale, or 1. */
INLINE __m256i factors_of_qsum(const uint8_t *scales, __m256i sc_first, __m256i sc_second, const int h,
                               const enum codes kind) {
    enum { SECOND = 0xaa };
    if (kind == THREE) return _mm256_slli_epi16(_mm256_blend_epi16(sc_first, sc_second, SECOND), 2);
    if (kind != TWO) return sc_first;
    const __m128i low = _mm_set1_epi8(15);
    const __m128i first = _mm_and_si128(_mm_srli_epi16(bytes16(scales), 4), low),
                  second = _mm_and_si128(_mm_srli_epi16(bytes16(scales + 16), 4), low);
    return _mm256_blend_epi16(twice(first, h), twice(second, h), SECOND);
}

/* acc += d * (a.scale * isum); qs, the factors times the pair of sums of q, comes off isum or has a scale for itself */
INLINE __m256 finish(__m256 acc, __m256i isum, __m256i qs, __m256 d, __m256 min, __m256 scale,
                     const enum codes kind) {
    if (kind != TWO) isum = _mm256_sub_epi32(isum, qs);
    acc = _mm256_fmadd_ps(d, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum)), acc);
    return kind == TWO ? _mm256_fmadd_ps(min, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(qs)), acc) : acc;
}

/* n rows from `row` on, n_groups groups of 8 blocks. `stream`: the panel comes from memory, ask ahead. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n,
                      const enum codes kind, const bool stream) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = group_bytes(kind);
    const int8_t *q = x->q + (size_t)row * n_cols;
    const float *scale = x->scale + (size_t)row * per_row;
    const int16_t *qsum = x->qsum + 2 * (size_t)row * per_row;
    _Alignas(32) uint8_t words[1024]; /* of TRITS */
    ROWS(START_ROW)
    for (int g = 0; g < n_groups; g++, w += size) {
        const uint8_t *shared = w + size - (kind == TWO ? 64 : 32), *codes_at = w;
        const __m256 d0 = f16_of(shared), d1 = f16_of(shared + 16);
        __m256 m0 = d0, m1 = d1;
        if (kind == TWO) {
            const __m256 minus = _mm256_set1_ps(-0.0f);
            m0 = _mm256_xor_ps(f16_of(shared + 32), minus), m1 = _mm256_xor_ps(f16_of(shared + 48), minus);
        }
        if (kind == TRITS) open_trits(words, w);
        for (int b = 0; b < 8; b++, codes_at += block_bytes(kind), q += 32, scale++, qsum += 2) {
            if (stream) ask_ahead(w + (size_t)b * (size / 8), size / 8);
            const uint8_t *scales = codes_at + codes_bytes(kind);
            const __m256i sc00 = scale_of_run(scales, 0, 0, kind), sc01 = scale_of_run(scales, 0, 1, kind);
            const __m256i sc10 = scale_of_run(scales, 1, 0, kind), sc11 = scale_of_run(scales, 1, 1, kind);
            __m256i high0 = sc00, high1 = sc00; /* read for 3 bits only */
            if (kind == THREE) high0 = bytes32(codes_at + 128), high1 = bytes32(codes_at + 160);
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
#define GROUP(run, j)                                                                                 \
    do {                                                                                              \
        __m256i c0, c1;                                                                               \
        if (kind == TRITS) c0 = next_trits(run_words + (j) * 64), c1 = next_trits(run_words + (j) * 64 + 32); \
        else c0 = codes(v0, high0, run, j, kind), c1 = codes(v1, high1, run, j, kind);                \
        const int at = 16 * (run) + 4 * (j);                                                          \
        ROWS(X)                                                                                       \
    } while (0)
#define RUN(run)                                                                                      \
    do {                                                                                              \
        uint8_t *run_words = kind == TRITS ? words_of_run(words, 2 * b + (run)) : NULL;               \
        __m256i v0 = sc00, v1 = sc00;                                                                 \
        if (kind != TRITS) v0 = bytes32(codes_at + (run) * 64), v1 = bytes32(codes_at + (run) * 64 + 32); \
        GROUP(run, 0);                                                                                \
        GROUP(run, 1);                                                                                \
        GROUP(run, 2);                                                                                \
        GROUP(run, 3);                                                                                \
    } while (0)
            RUN(0);
#define WIDEN(r)                                                                                      \
    if (n > r && has_scales(kind)) {                                                                  \
        h##r##0 = _mm256_madd_epi16(s##r##0, sc00), h##r##1 = _mm256_madd_epi16(s##r##1, sc01);       \
        s##r##0 = s##r##1 = _mm256_setzero_si256();                                                   \
    }
            ROWS(WIDEN)
            RUN(1);
#undef WIDEN
#undef RUN
#undef GROUP
#undef X
            const __m256i q0 = factors_of_qsum(scales, sc00, sc10, 0, kind),
                          q1 = factors_of_qsum(scales, sc01, sc11, 1, kind);
#define X(r)                                                                                                 \
    if (n > r) {                                                                                             \
        const size_t i = (size_t)r * per_row;                                                                \
        const __m256 vs = _mm256_broadcast_ss(scale + i);                                                    \
        const __m256i pair = word_of(qsum + 2 * i);                                                          \
        s##r##0 = _mm256_madd_epi16(s##r##0, sc10), s##r##1 = _mm256_madd_epi16(s##r##1, sc11);              \
        if (has_scales(kind))                                                                                \
            s##r##0 = _mm256_add_epi32(s##r##0, h##r##0), s##r##1 = _mm256_add_epi32(s##r##1, h##r##1);      \
        f##r##0 = finish(f##r##0, s##r##0, _mm256_madd_epi16(q0, pair), d0, m0, vs, kind);                   \
        f##r##1 = finish(f##r##1, s##r##1, _mm256_madd_epi16(q1, pair), d1, m1, vs, kind);                   \
    }
            ROWS(X)
#undef X
        }
    }
    ROWS(STORE_ROW)
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const enum codes kind) {
    const int n_groups = n_cols / 256;
#define TILE(r, n, stream) rows_tile(tile + (r) * 16, panel, x, row + (r), n_groups, n, kind, stream)
    IN_TILES(m, 6, TILE);
#undef TILE
}

#define ALL(X)                   \
    X(q2_k, linear, TWO)         \
    X(q3_k, linear, THREE)       \
    X(tq2_0, linear, PLAIN)      \
    X(tq1_0, linear, TRITS)
ALL(TILE_FUNCTION)

static const ig_kern kerns[] = {ALL(TILE_KERN)};
KERN_EXPORT(linear_q2_tile, kerns);
