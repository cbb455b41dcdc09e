/* fmt_q5: Q5_0 and Q5_1 of GGUF. Blocks of 32 inputs, 5-bit codes.
 *     file:  Q5_0 {f16 d, u32 high, u8 qs[16]}          w = d * (code - 16)
 *            Q5_1 {f16 d, f16 m, u32 high, u8 qs[16]}   w = d * code + m
 *            byte i of qs: input i in the low nibble, input i + 16 in the high one; bit k of high: input k
 *     panel: nibbles and a plane of the fifth bits as in fmt_common.h, then d[16], and m[16] for Q5_1
 * Sums, blocks ascending, isum = exact sum of (code - 16) * q or code * q:
 *     Q5_0  acc = fma(d, a.scale * (float)isum, acc)
 *     Q5_1  acc = fma(m, a.sum, fma(d, a.scale * (float)isum, acc)) */
#include "kern/fmt_common.h"

FMT_DECLARE(q5_0);
FMT_DECLARE(q5_1);

enum {
    HIGH_AT = NIBBLES_BYTES,
    D_AT = HIGH_AT + PLANE1_BYTES,
    M_AT = D_AT + 32,
    Q5_0_BYTES = D_AT + 32,
    Q5_1_BYTES = M_AT + 32
};

/* Bit i of b as the lowest of byte i. */
static inline uint64_t spread(uint8_t b) {
    uint64_t x = (uint64_t)b * 0x0101010101010101u & 0x8040201008040201u;
    return (x + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}
INLINE void codes_of_file(uint8_t code[32], const uint8_t *high, const uint8_t *qs) {
    uint64_t fifth[4];
    for (int i = 0; i < 4; i++) fifth[i] = spread(high[i]) << 4;
    __builtin_memcpy(code, fifth, 32);
    for (int i = 0; i < 16; i++) {
        code[i] = (uint8_t)(code[i] | (qs[i] & 15));
        code[i + 16] = (uint8_t)(code[i + 16] | qs[i] >> 4);
    }
}
INLINE void levels_of_file(fmt_block *x, const uint8_t *high, const int offset) {
    uint8_t code[32];
    codes_of_file(code, high, high + 4);
    for (int k = 0; k < 32; k++) x->level[k] = (int8_t)(code[k] - offset);
}
INLINE void levels_of_panel(fmt_block *x, const uint8_t *group, int lane, const int offset) {
    fmt_words codes = words_of_nibbles(group, lane);
    words_above(&codes, words_of_plane1(group + HIGH_AT, lane), 4);
    block_levels(x, codes, offset);
}

INLINE void of_file_q5_0(fmt_block *x, const uint8_t *group, int j) {
    (void)j; /* a group is one block */
    levels_of_file(x, group + 2, 16);
    block_scales(x, half_at(group), -0.0f, 1, 1);
}
INLINE void of_file_q5_1(fmt_block *x, const uint8_t *group, int j) {
    (void)j;
    levels_of_file(x, group + 4, 0);
    block_scales(x, half_at(group), half_at(group + 2), 1, 1);
}
INLINE void of_panel_q5_0(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    levels_of_panel(x, group, lane, 16);
    block_scales(x, half_at(group + D_AT + lane * 2), -0.0f, 1, 1);
}
INLINE void of_panel_q5_1(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    levels_of_panel(x, group, lane, 0);
    block_scales(x, half_at(group + D_AT + lane * 2), half_at(group + M_AT + lane * 2), 1, 1);
}
FMT_ROWS(q5_0, 32, 22, Q5_0_BYTES)
FMT_ROWS(q5_1, 32, 24, Q5_1_BYTES)
FMT_LINEAR(q5_0, add_q8, 32, Q5_0_BYTES)
FMT_LINEAR(q5_1, add_q8_min, 32, Q5_1_BYTES)

#ifdef SIMD_REFERENCE
static void pack_codes(uint8_t *panel, const uint8_t *high, int lane) {
    uint8_t code[32];
    codes_of_file(code, high, high + 4);
    pack_nibbles(panel, code, lane);
    pack_plane1(panel + HIGH_AT, code, 4, lane);
}
static void pack_q5_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q5_0_BYTES, row += 22) {
        pack_codes(panel, row + 2, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
static void pack_q5_1(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q5_1_BYTES, row += 24) {
        pack_codes(panel, row + 4, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
        __builtin_memcpy(panel + M_AT + lane * 2, row + 2, 2);
    }
}
FMT_OBJECT(q5_0, 6, 32, 22, Q5_0_BYTES, IG_ACT_Q8);
FMT_OBJECT(q5_1, 7, 32, 24, Q5_1_BYTES, IG_ACT_Q8);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q5_0), FMT_KERNS(q5_1)};
KERN_EXPORT(fmt_q5, kerns);
