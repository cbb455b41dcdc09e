/* fmt_q6_k: Q6_K of GGUF. Superblocks of 256 inputs, in each 16 runs of 16 with a signed 8-bit scale.
 *     file:  {u8 low[128], u8 high[64], i8 sc[16], f16 d}   w = (d * sc) * (code - 32)
 *            128 inputs have 64 bytes of low and 32 of high. Byte l of high has two bits each for the inputs
 *            l, l + 32, l + 64, l + 96; bytes l and l + 32 of low: the first two, high nibbles the others
 *     panel: 8 times {nibbles and a plane of the two top bits as in fmt_common.h, sc i8[2 runs][16]}, then d[16]; the middle two of
 *            each four inputs change places
 * Activations are int16, as for Q8_0 and for its reason: files keep in Q6_K what they fear to round.
 * Sum, runs ascending, isum = exact sum of (code - 32) * q16 over the run, ds = d * (float)sc, rounded:
 *     acc = fma(ds, a.scale16 * (float)isum, acc) */
#include "kern/fmt_common.h"

FMT_DECLARE(q6_k);

enum { GROUP = 256, FILE_BYTES = 210, HIGH_AT = 128, FILE_SC_AT = 192, FILE_D_AT = 208 }; /* in the file */
enum {
    TOP_AT = NIBBLES_BYTES, /* in a block of the panel */
    SC_AT = TOP_AT + PLANE2_BYTES,
    BLOCK_BYTES = SC_AT + 32,
    D_AT = 8 * BLOCK_BYTES, /* in a group of the panel */
    GROUP_BYTES = D_AT + 32
};

INLINE void codes_of_file(uint8_t code[32], const uint8_t *group, int j) {
    const uint8_t *low = group + j / 4 * 64 + (j & 1) * 32, *high = group + HIGH_AT + j / 4 * 32;
    const int low_shift = j & 2 ? 4 : 0, high_shift = (j & 3) * 2;
    for (int k = 0; k < 32; k++)
        code[k] = (uint8_t)((low[k] >> low_shift & 15) | (high[k] >> high_shift & 3) << 4);
}
INLINE void scales(fmt_block *x, float d, const uint8_t *first, const uint8_t *second) {
    block_scales(x, d, -0.0f, (int8_t)*first, 1);
    x->sc[1] = (int8_t)*second;
}

INLINE void of_file_q6_k(fmt_block *x, const uint8_t *group, int j) {
    uint8_t code[32];
    codes_of_file(code, group, j);
    for (int k = 0; k < 32; k++) x->level[k] = (int8_t)(code[k] - 32);
    scales(x, half_at(group + FILE_D_AT), group + FILE_SC_AT + 2 * j, group + FILE_SC_AT + 2 * j + 1);
}
INLINE void of_panel_q6_k(fmt_block *x, const uint8_t *group, int lane, int j) {
    const uint8_t *w = group + j * BLOCK_BYTES;
    fmt_words codes = words_of_nibbles(w, lane);
    words_above(&codes, words_of_plane2(w + TOP_AT, lane), 4);
    words_turn(&codes);
    block_levels(x, codes, 32);
    scales(x, half_at(group + D_AT + lane * 2), w + SC_AT + lane, w + SC_AT + 16 + lane);
}
FMT_ROWS(q6_k, GROUP, FILE_BYTES, GROUP_BYTES)
FMT_LINEAR(q6_k, add_q16_runs, GROUP, GROUP_BYTES)

#ifdef SIMD_REFERENCE
static void pack_q6_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += GROUP_BYTES, row += FILE_BYTES) {
        for (int j = 0; j < 8; j++) {
            uint8_t *w = panel + j * BLOCK_BYTES, code[32], turned[32];
            codes_of_file(code, row, j);
            turn_middle(turned, code);
            pack_nibbles(w, turned, lane);
            pack_plane2(w + TOP_AT, turned, 4, lane);
            for (int run = 0; run < 2; run++) w[SC_AT + run * 16 + lane] = row[FILE_SC_AT + 2 * j + run];
        }
        __builtin_memcpy(panel + D_AT + lane * 2, row + FILE_D_AT, 2);
    }
}
FMT_OBJECT(q6_k, 14, GROUP, FILE_BYTES, GROUP_BYTES, IG_ACT_Q16);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q6_k)};
KERN_EXPORT(fmt_q6_k, kerns);
