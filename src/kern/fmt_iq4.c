/* fmt_iq4: IQ4_NL and IQ4_XS of GGUF: 4-bit codes that name one of 16 levels.
 *     file:  IQ4_NL {f16 d, u8 qs[16]}, blocks of 32                               w = d * level[code]
 *            IQ4_XS {f16 d, u16 high, u8 low[4], u8 qs[128]}, superblocks of 256   w = (d * sc) * level[code]
 *            byte i of 16 of qs: input i in the low nibble, input i + 16 in the high one. sc of block j: nibble j of
 *            low, bits 2j and 2j + 1 of high above it, less 32
 *     panel: IQ4_NL {nibbles as in fmt_common.h, d[16]}; IQ4_XS {8 times nibbles, sc i8[8][16], d[16]}; the middle two
 *            of each four inputs change places
 * The levels need signed bytes, and the product of two signed bytes costs AVX2 as much as that with int16: so the
 * activations are int16, as for Q8_0.
 * Sum, blocks ascending: acc = fma(d * (float)sc, a.scale16 * (float)isum, acc), isum exact. */
#include "kern/fmt_common.h"

FMT_DECLARE(iq4_nl);
FMT_DECLARE(iq4_xs);

enum { NL_FILE = 18, NL_BYTES = NIBBLES_BYTES + 32 };
enum { GROUP = 256, XS_FILE = 136, XS_QS_AT = 8 };
enum { XS_SC_AT = 8 * NIBBLES_BYTES, XS_D_AT = XS_SC_AT + 8 * 16, XS_BYTES = XS_D_AT + 32 };

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

INLINE void levels_of_file(fmt_block *x, const uint8_t *qs) {
    for (int i = 0; i < 16; i++) x->level[i] = levels[qs[i] & 15], x->level[i + 16] = levels[qs[i] >> 4];
}
INLINE void levels_of_panel(fmt_block *x, const uint8_t *nibbles, int lane) {
    fmt_words codes = words_of_nibbles(nibbles, lane);
    words_turn(&codes);
    block_levels(x, codes, 0);
    for (int k = 0; k < 32; k++) x->level[k] = levels[x->level[k]];
}
INLINE int scale_of_file(const uint8_t *group, int j) {
    int high = group[2 + j / 4] >> j % 4 * 2 & 3, low = group[4 + j / 2] >> j % 2 * 4 & 15;
    return (low | high << 4) - 32;
}

INLINE void of_file_iq4_nl(fmt_block *x, const uint8_t *group, int j) {
    (void)j; /* a group is one block */
    levels_of_file(x, group + 2);
    block_scales(x, half_at(group), -0.0f, 1, 1);
}
INLINE void of_file_iq4_xs(fmt_block *x, const uint8_t *group, int j) {
    levels_of_file(x, group + XS_QS_AT + 16 * j);
    block_scales(x, half_at(group), -0.0f, scale_of_file(group, j), 1);
}
INLINE void of_panel_iq4_nl(fmt_block *x, const uint8_t *group, int lane, int j) {
    (void)j;
    levels_of_panel(x, group, lane);
    block_scales(x, half_at(group + NIBBLES_BYTES + lane * 2), -0.0f, 1, 1);
}
INLINE void of_panel_iq4_xs(fmt_block *x, const uint8_t *group, int lane, int j) {
    levels_of_panel(x, group + j * NIBBLES_BYTES, lane);
    block_scales(x, half_at(group + XS_D_AT + lane * 2), -0.0f, (int8_t)group[XS_SC_AT + j * 16 + lane], 1);
}
FMT_ROWS(iq4_nl, 32, NL_FILE, NL_BYTES)
FMT_ROWS(iq4_xs, GROUP, XS_FILE, XS_BYTES)
FMT_LINEAR(iq4_nl, add_q16, 32, NL_BYTES)
FMT_LINEAR(iq4_xs, add_q16, GROUP, XS_BYTES)

#ifdef SIMD_REFERENCE
static void pack_codes(uint8_t *nibbles, const uint8_t *qs, int lane) {
    uint8_t turned[32];
    for (int k = 0; k < 16; k++) turned[middle_turned(k)] = qs[k] & 15, turned[middle_turned(k + 16)] = qs[k] >> 4;
    pack_nibbles(nibbles, turned, lane);
}
static void pack_iq4_nl(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += NL_BYTES, row += NL_FILE) {
        pack_codes(panel, row + 2, lane);
        __builtin_memcpy(panel + NIBBLES_BYTES + lane * 2, row, 2);
    }
}
static void pack_iq4_xs(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += XS_BYTES, row += XS_FILE) {
        for (int j = 0; j < 8; j++) {
            pack_codes(panel + j * NIBBLES_BYTES, row + XS_QS_AT + 16 * j, lane);
            panel[XS_SC_AT + j * 16 + lane] = (uint8_t)scale_of_file(row, j);
        }
        __builtin_memcpy(panel + XS_D_AT + lane * 2, row, 2);
    }
}
FMT_OBJECT(iq4_nl, 20, 32, NL_FILE, NL_BYTES, IG_ACT_Q16);
FMT_OBJECT(iq4_xs, 23, GROUP, XS_FILE, XS_BYTES, IG_ACT_Q16);
#endif

static const ig_kern kerns[] = {FMT_KERNS(iq4_nl), FMT_KERNS(iq4_xs)};
KERN_EXPORT(fmt_iq4, kerns);
