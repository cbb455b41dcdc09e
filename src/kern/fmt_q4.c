/* fmt_q4: Q4_0 and Q4_1 of GGUF. Blocks of 32 inputs, 4-bit codes.
 *     file:  Q4_0 {f16 d, u8 qs[16]}        w = d * (code - 8)
 *            Q4_1 {f16 d, f16 m, u8 qs[16]} w = d * code + m
 *            byte i of qs: input i in the low nibble, input i + 16 in the high one
 *     panel: nibbles as in fmt_common.h, then d[16], and m[16] for Q4_1
 * Sums, blocks ascending, isum = exact sum of (code - 8) * q or code * q, a = the activation block:
 *     Q4_0  acc = fma(d, a.scale * (float)isum, acc)
 *     Q4_1  acc = fma(m, a.sum, fma(d, a.scale * (float)isum, acc)) */
#include "kern/fmt_common.h"

FMT_DECLARE(q4_0);
FMT_DECLARE(q4_1);

enum { D_AT = NIBBLES_BYTES, M_AT = D_AT + 32, Q4_0_BYTES = D_AT + 32, Q4_1_BYTES = M_AT + 32 };

INLINE void levels_of_file(fmt_block *x, const uint8_t *qs, const int offset) {
    for (int i = 0; i < 16; i++) {
        x->level[i] = (int8_t)((qs[i] & 15) - offset);
        x->level[i + 16] = (int8_t)((qs[i] >> 4) - offset);
    }
}
INLINE void levels_of_panel(fmt_block *x, const uint8_t *group, int lane, const int offset) {
    block_levels(x, words_of_nibbles(group, lane), offset);
}

INLINE void of_file_q4_0(fmt_block *x, const uint8_t *group, int j) {
    (void)j; /* a group is one block */
    levels_of_file(x, group + 2, 8);
    block_scales(x, half_at(group), -0.0f, 1, 1);
}
INLINE void of_file_q4_1(fmt_block *x, const uint8_t *group, int j) {
    (void)j;
    levels_of_file(x, group + 4, 0);
    block_scales(x, half_at(group), half_at(group + 2), 1, 1);
}
INLINE void of_panel_q4_0(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    levels_of_panel(x, group, lane, 8);
    block_scales(x, half_at(group + D_AT + lane * 2), -0.0f, 1, 1);
}
INLINE void of_panel_q4_1(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    levels_of_panel(x, group, lane, 0);
    block_scales(x, half_at(group + D_AT + lane * 2), half_at(group + M_AT + lane * 2), 1, 1);
}
FMT_ROWS(q4_0, 32, 18, Q4_0_BYTES)
FMT_ROWS(q4_1, 32, 20, Q4_1_BYTES)
FMT_LINEAR(q4_0, add_q8, 32, Q4_0_BYTES)
FMT_LINEAR(q4_1, add_q8_min, 32, Q4_1_BYTES)

#ifdef SIMD_REFERENCE
/* qs of the file is a lane of the panel: only cut in four. */
static void pack_q4_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_0_BYTES, row += 18) {
        pack_words(panel, row + 2, 16, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
static void pack_q4_1(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_1_BYTES, row += 20) {
        pack_words(panel, row + 4, 16, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
        __builtin_memcpy(panel + M_AT + lane * 2, row + 2, 2);
    }
}
FMT_OBJECT(q4_0, 2, 32, 18, Q4_0_BYTES, IG_ACT_Q8);
FMT_OBJECT(q4_1, 3, 32, 20, Q4_1_BYTES, IG_ACT_Q8);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q4_0), FMT_KERNS(q4_1)};
KERN_EXPORT(fmt_q4, kerns);
