/* fmt_q8_0: Q8_0 of GGUF. Blocks of 32 inputs, signed bytes.
 *     file:  {f16 d, i8 q[32]}   w = d * q
 *     panel: [8 groups j][16 lanes][4 bytes], bytes 0, 2, 1, 3 of a lane hold inputs 4j .. 4j + 3, so that the
 *            even and the odd bytes of a vector are neighbouring inputs; then d[16]
 * Activations are int16: with int8 weights they cost the same as int8 ones (madd instead of maddubs and madd),
 * and the head, where most files keep Q8_0, is where coarse activations hurt most (docs/bench.md).
 * Sum, blocks ascending: acc = fma(d, a.scale16 * (float)isum, acc), isum exact in int32:
 * 32 * 128 * 32767 < 2^31. */
#include "kern/simd.h"

FMT_DECLARE(q8_0);

enum { D_AT = 512, BLOCK_BYTES = 544 };

static inline float half_at(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return ig_f16_to_f32(h);
}
static inline int code_at(const uint8_t *block, int lane, int k) {
    static const int at[4] = {0, 2, 1, 3};
    return (int8_t)block[(k / 4) * 64 + lane * 4 + at[k & 3]];
}

static void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
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
static void dequant(float *out, const uint8_t *row, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, row += 34, out += 32)
        for (int k = 0; k < 32; k++) out[k] = (float)(int8_t)row[2 + k] * half_at(row);
}
static void unpack(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, out += 32)
        for (int k = 0; k < 32; k++)
            out[k] = (float)code_at(panel, lane, k) * half_at(panel + D_AT + lane * 2);
}

#ifdef SIMD_REFERENCE
static void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, row += 34) {
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = row + 2 + 4 * j, order[4] = {q[0], q[2], q[1], q[3]};
            __builtin_memcpy(panel + j * 64 + lane * 4, order, 4);
        }
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
const ig_fmt ig_fmt_q8_0 = {"q8_0", 8, 32, 34, 32, BLOCK_BYTES, IG_ACT_Q16, pack};
#endif

static const ig_kern kerns[] = {
    {IG_KERN_LINEAR,
     &ig_fmt_q8_0,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("linear_q8_0"),
     "equals scalar",
     {.linear = linear}},
    {IG_KERN_DEQUANT,
     &ig_fmt_q8_0,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("dequant_q8_0"),
     "equals scalar",
     {.dequant = dequant}},
    {IG_KERN_UNPACK,
     &ig_fmt_q8_0,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("unpack_q8_0"),
     "equals scalar",
     {.unpack = unpack}},
};
KERN_EXPORT(fmt_q8_0, kerns);
