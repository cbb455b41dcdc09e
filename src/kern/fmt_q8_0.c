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

static inline int code_at(const uint8_t *block, int lane, int k) {
    return (int8_t)block[code8_place(lane, k)];
}

static void linear_q8_0(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    int n_blocks = n_cols / 32;
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int b = 0; b < n_blocks; b++) {
                const uint8_t *w = panel + (size_t)b * BLOCK_BYTES;
                const int16_t *q = x->q16 + at * (size_t)x->n_cols + (size_t)b * 32;
                int32_t isum = 0;
                for (int k = 0; k < 32; k++) isum += code_at(w, lane, k) * q[k];
                float scale = x->scale16[at * (size_t)(x->n_cols / 32) + (size_t)b];
                acc = __builtin_fmaf(half_at(w + D_AT + lane * 2), scale * (float)isum, acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
    }
}
static void dequant_q8_0(float *out, const uint8_t *row, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, row += 34, out += 32)
        for (int k = 0; k < 32; k++) out[k] = (float)(int8_t)row[2 + k] * half_at(row);
}
static void unpack_q8_0(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, out += 32)
        for (int k = 0; k < 32; k++)
            out[k] = (float)code_at(panel, lane, k) * half_at(panel + D_AT + lane * 2);
}

#ifdef SIMD_REFERENCE
static void pack_q8_0(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, row += 34) {
        pack_codes8(panel, row + 2, lane);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
const ig_fmt ig_fmt_q8_0 = {.name = "q8_0",
                            .gguf_type = 8,
                            .group = 32,
                            .group_bytes = 34,
                            .panel_group = 32,
                            .panel_bytes = BLOCK_BYTES,
                            .act = IG_ACT_Q16,
                            .pack = pack_q8_0};
#endif

static const ig_kern kerns[] = {FMT_KERNS(q8_0)};
KERN_EXPORT(fmt_q8_0, kerns);
