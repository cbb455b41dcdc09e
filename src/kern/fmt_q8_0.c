/* fmt_q8_0: Q8_0 of GGUF. Blocks of 32 inputs, signed bytes.
 *     file:  {f16 d, i8 q[32]}   w = d * q
 *     panel: 8-bit codes as in fmt_common.h, then d[16]
 * Activations are int16: with int8 weights they cost what int8 ones do (madd instead of maddubs and madd),
 * and the head, where most files keep Q8_0, is where coarse activations hurt most (docs/bench.md).
 * Sum, blocks ascending: acc = fma(d, a.scale16 * (float)isum, acc), isum exact in int32:
 * 32 * 128 * 32767 < 2^31. */
#include "kern/fmt_common.h"

FMT_DECLARE(q8_0);

enum { D_AT = CODES8_BYTES, BLOCK_BYTES = D_AT + 32 };

INLINE void of_file_q8_0(fmt_block *x, const uint8_t *group, int j) {
    (void)j; /* a group is one block */
    __builtin_memcpy(x->level, group + 2, 32);
    block_scales(x, half_at(group), -0.0f, 1, 1);
}
INLINE void of_panel_q8_0(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    fmt_words codes;
    for (int i = 0; i < 8; i++) codes.w[i] = word_at(group + i * 64, lane);
    words_turn(&codes);
    block_levels(x, codes, 0);
    block_scales(x, half_at(group + D_AT + lane * 2), -0.0f, 1, 1);
}
FMT_ROWS(q8_0, 32, 34, BLOCK_BYTES)
FMT_LINEAR(q8_0, add_q16, 32, BLOCK_BYTES)

#ifdef SIMD_REFERENCE
static void pack_q8_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, row += 34) {
        pack_codes8(panel, row + 2, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
FMT_OBJECT(q8_0, 8, 32, 34, BLOCK_BYTES, IG_ACT_Q16);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q8_0)};
KERN_EXPORT(fmt_q8_0, kerns);
