/* fmt_q2_q3_k: Q2_K and Q3_K of GGUF. Superblocks of 256 inputs, in each 16 runs of 16 with a small scale.
 *     file:  Q2_K {u8 scales[16], u8 qs[64], f16 d, f16 dmin}   w = (d * sc) * code - (dmin * mn)
 *            scales: of a run, sc in the low nibble, mn in the high one
 *            Q3_K {u8 high[32], u8 qs[64], u8 scales[12], f16 d}   w = (d * sc) * (code - 4), sc -32..31
 *            32 bytes of qs hold four blocks of 32: block j has bits 2 (j % 4) and up of byte i for input i;
 *            bit j of high[i]: input i of block j
 *     panel: 8 times {plane of two bits, Q3_K: of one, as in fmt_common.h, scales u8[2 runs][16] (Q3_K: i8 sc)},
 *            then d[16], and dmin[16] for Q2_K
 * Sums, blocks of 32 ascending, over the two runs of a block: isum = sum of sc * (code or code - 4) * q,
 * msum = sum of mn * qsum, both exact: 32 * 32 * 7 * 127 < 2^24.
 *     Q2_K  acc = fma(-dmin, a.scale * (float)msum, fma(d, a.scale * (float)isum, acc))
 *     Q3_K  acc = fma(d, a.scale * (float)isum, acc) */
#include "kern/fmt_common.h"

FMT_DECLARE(q2_k);
FMT_DECLARE(q3_k);

enum { GROUP = 256 };
enum { Q2_FILE = 84, Q2_QS_AT = 16, Q2_D_AT = 80 };                             /* in the file */
enum { Q3_FILE = 110, Q3_QS_AT = 32, Q3_SCALES_AT = 96, Q3_D_AT = 108 };
enum { Q2_SC_AT = PLANE2_BYTES, Q2_BLOCK = Q2_SC_AT + 32, Q2_BYTES = 8 * Q2_BLOCK + 64 }; /* in a panel */
enum {
    Q3_BITS_AT = PLANE2_BYTES,
    Q3_SC_AT = Q3_BITS_AT + PLANE1_BYTES,
    Q3_BLOCK = Q3_SC_AT + 32,
    Q3_BYTES = 8 * Q3_BLOCK + 32
};

INLINE void pairs_of_file(uint8_t code[32], const uint8_t *qs, int j) {
    for (int k = 0; k < 32; k++) code[k] = qs[j / 4 * 32 + k] >> j % 4 * 2 & 3;
}
INLINE void codes3_of_file(uint8_t code[32], const uint8_t *group, int j) {
    pairs_of_file(code, group + Q3_QS_AT, j);
    for (int k = 0; k < 32; k++) code[k] = (uint8_t)(code[k] | (group[k] >> j & 1) << 2);
}
/* Low four bits: nibbles of bytes 0..7, scales 0..7 in the low ones; upper two: bytes 8..11, a quarter each. */
static inline int scale3_of_file(const uint8_t *s, int i) {
    int low = s[i % 8] >> i / 8 * 4 & 15, high = s[8 + i % 4] >> i / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

INLINE void scales2(fmt_block *x, const uint8_t *d, const uint8_t *dmin, int first, int second) {
    block_scales(x, half_at(d), -half_at(dmin), first & 15, first >> 4);
    x->sc[1] = second & 15, x->mn[1] = second >> 4;
}
INLINE void scales3(fmt_block *x, const uint8_t *d, int first, int second) {
    block_scales(x, half_at(d), -0.0f, first, 1);
    x->sc[1] = second;
}

INLINE void of_file_q2_k(fmt_block *x, const uint8_t *group, int j) {
    pairs_of_file((uint8_t *)x->level, group + Q2_QS_AT, j);
    scales2(x, group + Q2_D_AT, group + Q2_D_AT + 2, group[2 * j], group[2 * j + 1]);
}
INLINE void of_file_q3_k(fmt_block *x, const uint8_t *group, int j) {
    uint8_t code[32];
    codes3_of_file(code, group, j);
    for (int k = 0; k < 32; k++) x->level[k] = (int8_t)(code[k] - 4);
    const uint8_t *s = group + Q3_SCALES_AT;
    scales3(x, group + Q3_D_AT, scale3_of_file(s, 2 * j), scale3_of_file(s, 2 * j + 1));
}
INLINE void of_panel_q2_k(fmt_block *x, const uint8_t *group, int lane, int j) {
    const uint8_t *w = group + j * Q2_BLOCK, *d = group + 8 * Q2_BLOCK + lane * 2;
    block_levels(x, words_of_plane2(w, lane), 0);
    scales2(x, d, d + 32, w[Q2_SC_AT + lane], w[Q2_SC_AT + 16 + lane]);
}
INLINE void of_panel_q3_k(fmt_block *x, const uint8_t *group, int lane, int j) {
    const uint8_t *w = group + j * Q3_BLOCK;
    fmt_words codes = words_of_plane2(w, lane);
    words_above(&codes, words_of_plane1(w + Q3_BITS_AT, lane), 2);
    block_levels(x, codes, 4);
    scales3(x, group + 8 * Q3_BLOCK + lane * 2, (int8_t)w[Q3_SC_AT + lane], (int8_t)w[Q3_SC_AT + 16 + lane]);
}
FMT_ROWS(q2_k, GROUP, Q2_FILE, Q2_BYTES)
FMT_ROWS(q3_k, GROUP, Q3_FILE, Q3_BYTES)
FMT_LINEAR(q2_k, add_q8_runs_min, GROUP, Q2_BYTES)
FMT_LINEAR(q3_k, add_q8_runs, GROUP, Q3_BYTES)

#ifdef SIMD_REFERENCE
static void pack_q2_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, row += Q2_FILE) {
        for (int j = 0; j < 8; j++, panel += Q2_BLOCK) {
            uint8_t code[32];
            pairs_of_file(code, row + Q2_QS_AT, j);
            pack_plane2(panel, code, 0, lane);
            for (int run = 0; run < 2; run++) panel[Q2_SC_AT + run * 16 + lane] = row[2 * j + run];
        }
        __builtin_memcpy(panel + lane * 2, row + Q2_D_AT, 2);
        __builtin_memcpy(panel + 32 + lane * 2, row + Q2_D_AT + 2, 2);
        panel += 64;
    }
}
static void pack_q3_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, row += Q3_FILE) {
        for (int j = 0; j < 8; j++, panel += Q3_BLOCK) {
            uint8_t code[32];
            codes3_of_file(code, row, j);
            pack_plane2(panel, code, 0, lane);
            pack_plane1(panel + Q3_BITS_AT, code, 2, lane);
            for (int run = 0; run < 2; run++)
                panel[Q3_SC_AT + run * 16 + lane] = (uint8_t)scale3_of_file(row + Q3_SCALES_AT, 2 * j + run);
        }
        __builtin_memcpy(panel + lane * 2, row + Q3_D_AT, 2);
        panel += 32;
    }
}
FMT_OBJECT(q2_k, 10, GROUP, Q2_FILE, Q2_BYTES, IG_ACT_Q8);
FMT_OBJECT(q3_k, 11, GROUP, Q3_FILE, Q3_BYTES, IG_ACT_Q8);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q2_k), FMT_KERNS(q3_k)};
KERN_EXPORT(fmt_q2_q3_k, kerns);
