/* fmt_q5_0: Q5_0 of GGUF. Blocks of 32 inputs, 5-bit codes.
 *     file:  {f16 d, u32 high, u8 qs[16]}   w = d * (code - 16)
 *            byte i of qs: input i in the low nibble, input i + 16 in the high one; bit k of high: input k
 *     panel: nibbles, then a plane of the fifth bits, as in fmt_common.h; d[16]
 * Sum, blocks ascending, isum = exact sum of code * q:
 *     acc = fma(d, a.scale * (float)(isum - 16 * a.qsum), acc) */
#include "kern/fmt_common.h"

FMT_DECLARE(q5_0);

enum { HIGH_AT = NIBBLES_BYTES, D_AT = HIGH_AT + PLANE1_BYTES, BLOCK_BYTES = D_AT + 32 };

static inline int code_at(const uint8_t *block, int lane, int k) {
    return nibble_at(block, lane, k) | plane1_at(block + HIGH_AT, lane, k) << 4;
}
/* Bit i of b as the lowest of byte i. */
static inline uint64_t spread(uint8_t b) {
    uint64_t x = (uint64_t)b * 0x0101010101010101u & 0x8040201008040201u;
    return (x + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}
static void codes_of_file(uint8_t code[32], const uint8_t *block) {
    uint64_t fifth[4];
    for (int i = 0; i < 4; i++) fifth[i] = spread(block[2 + i]) << 4;
    __builtin_memcpy(code, fifth, 32);
    for (int i = 0; i < 16; i++) {
        code[i] = (uint8_t)(code[i] | (block[6 + i] & 15));
        code[i + 16] = (uint8_t)(code[i + 16] | block[6 + i] >> 4);
    }
}

static void linear_q5_0(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    int n_blocks = n_cols / 32;
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int b = 0; b < n_blocks; b++) {
                const uint8_t *w = panel + (size_t)b * BLOCK_BYTES;
                const int8_t *q = x->q + at * (size_t)x->n_cols + (size_t)b * 32;
                size_t ab = at * (size_t)(x->n_cols / 32) + (size_t)b;
                int32_t isum = -16 * x->qsum[ab];
                for (int k = 0; k < 32; k++) isum += code_at(w, lane, k) * q[k];
                acc = __builtin_fmaf(half_at(w + D_AT + lane * 2), x->scale[ab] * (float)isum, acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
    }
}
static void dequant_q5_0(float *out, const uint8_t *row, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, row += 22, out += 32) {
        uint8_t code[32];
        codes_of_file(code, row);
        for (int k = 0; k < 32; k++) out[k] = half_at(row) * (float)(code[k] - 16);
    }
}
static void unpack_q5_0(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, out += 32)
        for (int k = 0; k < 32; k++)
            out[k] = half_at(panel + D_AT + lane * 2) * (float)(code_at(panel, lane, k) - 16);
}

#ifdef SIMD_REFERENCE
static void pack_q5_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, row += 22) {
        uint8_t code[32];
        codes_of_file(code, row);
        pack_nibbles(panel, code, lane);
        pack_plane1(panel + HIGH_AT, code, 4, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
const ig_fmt ig_fmt_q5_0 = {.name = "q5_0",
                            .gguf_type = 6,
                            .group = 32,
                            .group_bytes = 22,
                            .panel_group = 32,
                            .panel_bytes = BLOCK_BYTES,
                            .act = IG_ACT_Q8,
                            .pack = pack_q5_0};
#endif

static const ig_kern kerns[] = {FMT_KERNS(q5_0)};
KERN_EXPORT(fmt_q5_0, kerns);
