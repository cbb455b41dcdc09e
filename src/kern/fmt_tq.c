/* fmt_tq: TQ1_0 and TQ2_0 of GGUF: weights -1, 0 and 1, superblocks of 256 inputs with one scale.
 *     file:  TQ2_0 {u8 qs[64], f16 d}   w = d * (code - 1), codes laid out as in Q2_K
 *            TQ1_0 {u8 qs[48], u8 qh[4], f16 d}   five codes a byte, the n-th: (byte * 3^n mod 256) * 3 >> 8.
 *            Bytes 0..31 hold inputs 32 n + i, bytes 32..47 inputs 160 + 16 n + i, qh inputs 240 + 4 n + i
 *     panel: TQ2_0 8 times a plane of two bits as in fmt_common.h, then d[16]
 *            TQ1_0 the 52 bytes as words (fmt_common.h), each with its top bit turned, which a kernel's signed
 *            comparisons want and which multiplying by 3 keeps; then d[16]
 * Sum, blocks of 32 ascending: acc = fma(d, a.scale * (float)isum, acc), isum = exact sum of (code - 1) * q. */
#include "kern/fmt_common.h"

FMT_DECLARE(tq1_0);
FMT_DECLARE(tq2_0);

enum { GROUP = 256, TQ2_FILE = 66, TQ2_D_AT = 64, TQ2_BYTES = 8 * PLANE2_BYTES + 32 };
enum { TQ1_FILE = 54, TQ1_D_AT = 52, TQ1_BYTES = 52 * IG_PANEL_ROWS + 32 };

INLINE void pairs_of_file(uint8_t code[32], const uint8_t *qs, int j) {
    for (int k = 0; k < 32; k++) code[k] = qs[j / 4 * 32 + k] >> j % 4 * 2 & 3;
}
/* Which byte holds an input, and as its which code. */
typedef struct place {
    int byte, n;
} place;
INLINE place place_of(int input) {
    if (input < 160) return (place){input % 32, input / 32};
    if (input < 240) return (place){32 + input % 16, (input - 160) / 16};
    return (place){48 + input % 4, (input - 240) / 4};
}
INLINE int trit(unsigned byte, int n) {
    static const unsigned power[5] = {1, 3, 9, 27, 81};
    return (int)((byte * power[n] & 255) * 3 >> 8);
}

INLINE void of_file_tq2_0(fmt_block *x, const uint8_t *group, int j) {
    uint8_t code[32];
    pairs_of_file(code, group, j);
    for (int k = 0; k < 32; k++) x->level[k] = (int8_t)(code[k] - 1);
    block_scales(x, half_at(group + TQ2_D_AT), -0.0f, 1, 1);
}
INLINE void of_file_tq1_0(fmt_block *x, const uint8_t *group, int j) {
    for (int k = 0; k < 32; k++) {
        place p = place_of(32 * j + k);
        x->level[k] = (int8_t)(trit(group[p.byte], p.n) - 1);
    }
    block_scales(x, half_at(group + TQ1_D_AT), -0.0f, 1, 1);
}
INLINE void of_panel_tq2_0(fmt_block *x, const uint8_t *group, int lane, int j) {
    block_levels(x, words_of_plane2(group + j * PLANE2_BYTES, lane), 1);
    block_scales(x, half_at(group + 8 * PLANE2_BYTES + lane * 2), -0.0f, 1, 1);
}
INLINE void of_panel_tq1_0(fmt_block *x, const uint8_t *group, int lane, int j) {
    for (int k = 0; k < 32; k++) {
        place p = place_of(32 * j + k);
        unsigned byte = group[p.byte / 4 * 64 + lane * 4 + p.byte % 4] ^ 128u;
        x->level[k] = (int8_t)(trit(byte, p.n) - 1);
    }
    block_scales(x, half_at(group + TQ1_BYTES - 32 + lane * 2), -0.0f, 1, 1);
}
FMT_ROWS(tq1_0, GROUP, TQ1_FILE, TQ1_BYTES)
FMT_ROWS(tq2_0, GROUP, TQ2_FILE, TQ2_BYTES)
FMT_LINEAR(tq1_0, add_q8, GROUP, TQ1_BYTES)
FMT_LINEAR(tq2_0, add_q8, GROUP, TQ2_BYTES)

#ifdef SIMD_REFERENCE
static void pack_tq2_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += TQ2_BYTES, row += TQ2_FILE) {
        for (int j = 0; j < 8; j++) {
            uint8_t code[32];
            pairs_of_file(code, row, j);
            pack_plane2(panel + j * PLANE2_BYTES, code, 0, lane);
        }
        __builtin_memcpy(panel + 8 * PLANE2_BYTES + lane * 2, row + TQ2_D_AT, 2);
    }
}
static void pack_tq1_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += TQ1_BYTES, row += TQ1_FILE) {
        uint8_t turned[52];
        for (int i = 0; i < 52; i++) turned[i] = row[i] ^ 128;
        pack_words(panel, turned, 52, lane);
        __builtin_memcpy(panel + TQ1_BYTES - 32 + lane * 2, row + TQ1_D_AT, 2);
    }
}
FMT_OBJECT(tq1_0, 34, GROUP, TQ1_FILE, TQ1_BYTES, IG_ACT_Q8);
FMT_OBJECT(tq2_0, 35, GROUP, TQ2_FILE, TQ2_BYTES, IG_ACT_Q8);
#endif

static const ig_kern kerns[] = {FMT_KERNS(tq1_0), FMT_KERNS(tq2_0)};
KERN_EXPORT(fmt_tq, kerns);
