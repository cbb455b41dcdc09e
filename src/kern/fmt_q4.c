/* fmt_q4: Q4_0 and Q4_1 of GGUF. Blocks of 32 inputs, 4-bit codes.
 *     file:  Q4_0 {f16 d, u8 qs[16]}        w = d * (code - 8)
 *            Q4_1 {f16 d, f16 m, u8 qs[16]} w = d * code + m
 *            byte i of qs: input i in the low nibble, input i + 16 in the high one
 *     panel: nibbles as in fmt_common.h, then d[16], and m[16] for Q4_1
 * Sums, blocks ascending, isum = exact sum of code * q, a = the activation block:
 *     Q4_0  acc = fma(d, a.scale * (float)(isum - 8 * a.qsum), acc)
 *     Q4_1  acc = fma(m, a.sum, fma(d, a.scale * (float)isum, acc)) */
#include "kern/fmt_common.h"

FMT_DECLARE(q4_0);
FMT_DECLARE(q4_1);

enum { D_AT = NIBBLES_BYTES, M_AT = D_AT + 32, Q4_0_BYTES = D_AT + 32, Q4_1_BYTES = M_AT + 32 };

static void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   size_t block_bytes, bool has_min) {
    int n_blocks = n_cols / 32;
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int b = 0; b < n_blocks; b++) {
                const uint8_t *w = panel + (size_t)b * block_bytes;
                const int8_t *q = x->q + at * (size_t)x->n_cols + (size_t)b * 32;
                size_t ab = at * (size_t)(x->n_cols / 32) + (size_t)b;
                int32_t isum = 0;
                for (int k = 0; k < 32; k++) isum += nibble_at(w, lane, k) * q[k];
                if (!has_min) isum -= 8 * x->qsum[ab];
                acc = __builtin_fmaf(half_at(w + D_AT + lane * 2), x->scale[ab] * (float)isum, acc);
                if (has_min) acc = __builtin_fmaf(half_at(w + M_AT + lane * 2), x->sum[ab], acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
    }
}
static void linear_q4_0(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    linear(tile, panel, x, row, m, n_cols, Q4_0_BYTES, false);
}
static void linear_q4_1(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    linear(tile, panel, x, row, m, n_cols, Q4_1_BYTES, true);
}

/* As the format's own library: the product rounded, then the sum. */
static void dequant_q4_0(float *out, const uint8_t *row, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, row += 18, out += 32)
        for (int i = 0; i < 16; i++) {
            out[i] = (float)((row[2 + i] & 15) - 8) * half_at(row);
            out[i + 16] = (float)((row[2 + i] >> 4) - 8) * half_at(row);
        }
}
static void dequant_q4_1(float *out, const uint8_t *row, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, row += 20, out += 32)
        for (int i = 0; i < 16; i++) {
            out[i] = (float)(row[4 + i] & 15) * half_at(row) + half_at(row + 2);
            out[i + 16] = (float)(row[4 + i] >> 4) * half_at(row) + half_at(row + 2);
        }
}
static void unpack_q4_0(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_0_BYTES, out += 32)
        for (int k = 0; k < 32; k++)
            out[k] = (float)(nibble_at(panel, lane, k) - 8) * half_at(panel + D_AT + lane * 2);
}
static void unpack_q4_1(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_1_BYTES, out += 32)
        for (int k = 0; k < 32; k++)
            out[k] = (float)nibble_at(panel, lane, k) * half_at(panel + D_AT + lane * 2) +
                     half_at(panel + M_AT + lane * 2);
}

#ifdef SIMD_REFERENCE
/* qs of the file is a lane of the panel: only cut in four. */
static void pack_codes(uint8_t *block, const uint8_t *qs, int lane) {
    for (int j = 0; j < 4; j++) __builtin_memcpy(block + j * 64 + lane * 4, qs + 4 * j, 4);
}
static void pack_q4_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_0_BYTES, row += 18) {
        pack_codes(panel, row + 2, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
static void pack_q4_1(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += Q4_1_BYTES, row += 20) {
        pack_codes(panel, row + 4, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
        __builtin_memcpy(panel + M_AT + lane * 2, row + 2, 2);
    }
}
#define FORMAT(fmt, type, bytes, in_panel)                                                                   \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                               \
                                 .gguf_type = type,                                                          \
                                 .group = 32,                                                                \
                                 .group_bytes = bytes,                                                       \
                                 .panel_group = 32,                                                          \
                                 .panel_bytes = in_panel,                                                    \
                                 .act = IG_ACT_Q8,                                                           \
                                 .pack = pack_##fmt}
FORMAT(q4_0, 2, 18, Q4_0_BYTES);
FORMAT(q4_1, 3, 20, Q4_1_BYTES);
#endif

static const ig_kern kerns[] = {FMT_KERNS(q4_0), FMT_KERNS(q4_1)};
KERN_EXPORT(fmt_q4, kerns);
