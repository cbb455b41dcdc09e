/* fmt_q4_q5_k: Q4_K and Q5_K of GGUF. Superblocks of 256 inputs, in each 8 blocks of 32 with a 6-bit scale and
 * minimum.
 *     file:  {f16 d, f16 dmin, u8 scales[12], Q5_K: u8 high[32], u8 qs[128]}   w = (d * sc) * code - (dmin * mn)
 *            32 bytes of qs hold two blocks: byte i has input i of the first in the low nibble, of the second
 *            in the high one; bit j of high[i]: input i of block j
 *     panel: 8 times {nibbles, Q5_K: a plane of the fifth bits, as in fmt_common.h, sc u8[16], mn u8[16]}, then d[16], dmin[16]
 * Sum, blocks ascending, isum = exact sum of code * q, ds = d * (float)sc, ms = dmin * (float)mn (rounded):
 *     acc = fma(-ms, a.sum, fma(ds, a.scale * (float)isum, acc)) */
#include "kern/fmt_common.h"

FMT_DECLARE(q4_k);
FMT_DECLARE(q5_k);

enum { GROUP = 256, SCALES_AT = 4, CODES_AT = 16 }; /* in the file */
/* In a panel: of a block, and of a group. */
INLINE int sc_at(const int bits) {
    return bits * 64;
}
INLINE int block_bytes(const int bits) {
    return sc_at(bits) + 32;
}
INLINE int d_at(const int bits) {
    return 8 * block_bytes(bits);
}
enum { HIGH_AT = NIBBLES_BYTES, Q4_K_BYTES = 8 * 288 + 64, Q5_K_BYTES = 8 * 352 + 64 };

static inline int scale_of_file(const uint8_t *s, int j) {
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
static inline int min_of_file(const uint8_t *s, int j) {
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}
INLINE void codes_of_file(uint8_t code[32], const uint8_t *group, int j, const int bits) {
    const uint8_t *high = group + CODES_AT, *qs = high + (bits == 5 ? 32 : 0) + j / 2 * 32;
    for (int k = 0; k < 32; k++) {
        code[k] = (uint8_t)(qs[k] >> j % 2 * 4 & 15);
        if (bits == 5) code[k] = (uint8_t)(code[k] | (high[k] >> j & 1) << 4);
    }
}

INLINE void of_file(fmt_block *x, const uint8_t *group, int j, const int bits) {
    codes_of_file((uint8_t *)x->level, group, j, bits);
    block_scales(x, half_at(group), -half_at(group + 2), scale_of_file(group + SCALES_AT, j),
                 min_of_file(group + SCALES_AT, j));
}
INLINE void of_panel(fmt_block *x, const uint8_t *group, int lane, int j, const int bits) {
    const uint8_t *w = group + j * block_bytes(bits), *sc = w + sc_at(bits), *d = group + d_at(bits);
    fmt_words codes = words_of_nibbles(w, lane);
    if (bits == 5) words_above(&codes, words_of_plane1(w + HIGH_AT, lane), 4);
    block_levels(x, codes, 0);
    block_scales(x, half_at(d + lane * 2), -half_at(d + 32 + lane * 2), sc[lane], sc[16 + lane]);
}
#define READERS(fmt, bits)                                                           \
    INLINE void of_file_##fmt(fmt_block *x, const uint8_t *group, int j) {               \
        of_file(x, group, j, bits);                                                  \
    }                                                                                \
    INLINE void of_panel_##fmt(fmt_block *x, const uint8_t *group, int lane, int j) {    \
        of_panel(x, group, lane, j, bits);                                           \
    }
READERS(q4_k, 4)
READERS(q5_k, 5)
FMT_ROWS(q4_k, GROUP, 144, Q4_K_BYTES)
FMT_ROWS(q5_k, GROUP, 176, Q5_K_BYTES)
FMT_LINEAR(q4_k, add_q8_min, GROUP, Q4_K_BYTES)
FMT_LINEAR(q5_k, add_q8_min, GROUP, Q5_K_BYTES)

#ifdef SIMD_REFERENCE
INLINE void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols, const int bits) {
    for (int g = 0; g < n_cols / GROUP; g++, row += CODES_AT + 32 * bits) {
        for (int j = 0; j < 8; j++, panel += block_bytes(bits)) {
            uint8_t code[32];
            codes_of_file(code, row, j, bits);
            pack_nibbles(panel, code, lane);
            if (bits == 5) pack_plane1(panel + HIGH_AT, code, 4, lane);
            panel[sc_at(bits) + lane] = (uint8_t)scale_of_file(row + SCALES_AT, j);
            panel[sc_at(bits) + 16 + lane] = (uint8_t)min_of_file(row + SCALES_AT, j);
        }
        __builtin_memcpy(panel + lane * 2, row, 2);
        __builtin_memcpy(panel + 32 + lane * 2, row + 2, 2);
        panel += 64;
    }
}
static void pack_q4_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    pack(panel, row, lane, n_cols, 4);
}
static void pack_q5_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    pack(panel, row, lane, n_cols, 5);
}
FMT_OBJECT(q4_k, 12, GROUP, 144, Q4_K_BYTES, IG_ACT_Q8);
FMT_OBJECT(q5_k, 13, GROUP, 176, Q5_K_BYTES, IG_ACT_Q8);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q4_k), FMT_KERNS(q5_k)};
KERN_EXPORT(fmt_q4_q5_k, kerns);
