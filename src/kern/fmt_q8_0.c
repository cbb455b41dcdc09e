/* fmt_q8_0: Q8_0 of GGUF. Blocks of 32 inputs, signed bytes.
 *     file:  {f16 d, i8 q[32]}   w = d * q
 *     panel: [8 groups j][16 lanes][4 bytes], byte i of a lane holds input 4j + i; then d[16]
 * Sum, blocks ascending: acc = fma(d, a.scale * (float)isum, acc), isum exact. */
#include "kern/simd.h"

FMT_DECLARE(q8_0);

enum { D_AT = 512, BLOCK_BYTES = 544 };

static inline float half_at(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return ig_f16_to_f32(h);
}
static inline int code_at(const uint8_t *block, int lane, int k) {
    return (int8_t)block[(k / 4) * 64 + lane * 4 + (k & 3)];
}

static void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    int n_blocks = n_cols / 32;
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int b = 0; b < n_blocks; b++) {
                const uint8_t *w = panel + (size_t)b * BLOCK_BYTES;
                const int8_t *q = x->q + at * (size_t)x->n_cols + (size_t)b * 32;
                int32_t isum = 0;
                for (int k = 0; k < 32; k++) isum += code_at(w, lane, k) * q[k];
                float scale = x->scale[at * (size_t)(x->n_cols / 32) + (size_t)b];
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
        for (int k = 0; k < 32; k++) out[k] = (float)code_at(panel, lane, k) * half_at(panel + D_AT + lane * 2);
}

#ifdef SIMD_REFERENCE
static void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int b = 0; b < n_cols / 32; b++, panel += BLOCK_BYTES, row += 34) {
        for (int j = 0; j < 8; j++) __builtin_memcpy(panel + j * 64 + lane * 4, row + 2 + 4 * j, 4);
        __builtin_memcpy(panel + D_AT + lane * 2, row, 2);
    }
}
const ig_fmt ig_fmt_q8_0 = {"q8_0", 8, 32, 34, 32, BLOCK_BYTES, IG_ACT_Q8, pack};
#endif

static const ig_kern kerns[] = {
    {IG_KERN_LINEAR, &ig_fmt_q8_0, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("linear_q8_0"),
     "equals scalar", {.linear = linear}},
    {IG_KERN_DEQUANT, &ig_fmt_q8_0, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("dequant_q8_0"),
     "equals scalar", {.dequant = dequant}},
    {IG_KERN_UNPACK, &ig_fmt_q8_0, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("unpack_q8_0"),
     "equals scalar", {.unpack = unpack}},
};
KERN_EXPORT(fmt_q8_0, kerns);
