/* fmt_q4_k: Q4_K of GGUF. Superblocks of 256 inputs, in each 8 blocks of 32 with a 6-bit scale and minimum.
 *     file:  {f16 d, f16 dmin, u8 scales[12], u8 qs[128]}   w = (d * sc) * code - (dmin * mn)
 *            32 bytes of qs hold two blocks: byte i has input i of the first in the low nibble, of the second
 *            in the high one
 *     panel: 8 times {nibbles as in fmt_common.h, sc u8[16], mn u8[16]}, then d[16], dmin[16]
 * Sum, blocks ascending, isum = exact sum of code * q, ds = d * (float)sc, ms = dmin * (float)mn (rounded):
 *     acc = fma(-ms, a.sum, fma(ds, a.scale * (float)isum, acc)) */
#include "kern/fmt_common.h"

FMT_DECLARE(q4_k);

enum { GROUP = 256, FILE_BYTES = 144, QS_AT = 16 }; /* in the file */
enum {
    SC_AT = NIBBLES_BYTES, /* in a block of the panel */
    MN_AT = SC_AT + 16,
    BLOCK_BYTES = MN_AT + 16,
    D_AT = 8 * BLOCK_BYTES, /* in a group of the panel */
    DMIN_AT = D_AT + 32,
    GROUP_BYTES = DMIN_AT + 32
};

static inline int scale_of_file(const uint8_t *s, int j) {
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
static inline int min_of_file(const uint8_t *s, int j) {
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}
static inline int code_of_file(const uint8_t *group, int j, int k) {
    int b = group[QS_AT + j / 2 * 32 + k];
    return j & 1 ? b >> 4 : b & 15;
}

static void linear_q4_k(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int b = 0; b < n_cols / 32; b++) {
                const uint8_t *group = panel + (size_t)(b / 8) * GROUP_BYTES,
                              *w = group + b % 8 * BLOCK_BYTES;
                const int8_t *q = x->q + at * (size_t)x->n_cols + (size_t)b * 32;
                size_t ab = at * (size_t)(x->n_cols / 32) + (size_t)b;
                int32_t isum = 0;
                for (int k = 0; k < 32; k++) isum += nibble_at(w, lane, k) * q[k];
                float ds = half_at(group + D_AT + lane * 2) * (float)w[SC_AT + lane];
                float ms = half_at(group + DMIN_AT + lane * 2) * (float)w[MN_AT + lane];
                acc = __builtin_fmaf(ds, x->scale[ab] * (float)isum, acc);
                acc = __builtin_fmaf(-ms, x->sum[ab], acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
    }
}
static void dequant_q4_k(float *out, const uint8_t *row, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, row += FILE_BYTES)
        for (int j = 0; j < 8; j++, out += 32) {
            float ds = half_at(row) * (float)scale_of_file(row + 4, j);
            float ms = half_at(row + 2) * (float)min_of_file(row + 4, j);
            for (int k = 0; k < 32; k++) out[k] = ds * (float)code_of_file(row, j, k) - ms;
        }
}
static void unpack_q4_k(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += GROUP_BYTES)
        for (int j = 0; j < 8; j++, out += 32) {
            const uint8_t *w = panel + j * BLOCK_BYTES;
            float ds = half_at(panel + D_AT + lane * 2) * (float)w[SC_AT + lane];
            float ms = half_at(panel + DMIN_AT + lane * 2) * (float)w[MN_AT + lane];
            for (int k = 0; k < 32; k++) out[k] = ds * (float)nibble_at(w, lane, k) - ms;
        }
}

#ifdef SIMD_REFERENCE
static void pack_q4_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += GROUP_BYTES, row += FILE_BYTES) {
        for (int j = 0; j < 8; j++) {
            uint8_t *w = panel + j * BLOCK_BYTES, code[32];
            for (int k = 0; k < 32; k++) code[k] = (uint8_t)code_of_file(row, j, k);
            pack_nibbles(w, code, lane);
            w[SC_AT + lane] = (uint8_t)scale_of_file(row + 4, j);
            w[MN_AT + lane] = (uint8_t)min_of_file(row + 4, j);
        }
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
        __builtin_memcpy(panel + DMIN_AT + lane * 2, row + 2, 2);
    }
}
const ig_fmt ig_fmt_q4_k = {.name = "q4_k",
                            .gguf_type = 12,
                            .group = GROUP,
                            .group_bytes = FILE_BYTES,
                            .panel_group = GROUP,
                            .panel_bytes = GROUP_BYTES,
                            .act = IG_ACT_Q8,
                            .pack = pack_q4_k};
#endif

static const ig_kern kerns[] = {FMT_KERNS(q4_k)};
KERN_EXPORT(fmt_q4_k, kerns);
