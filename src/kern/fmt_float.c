/* fmt_float: f32, f16 and bf16 weights. A panel is [K][16]: the 16 outputs' values of one input side by
 * side. Activations stay f32.
 * Sum: acc = fma(w, x, acc) from 0, k ascending. f16 and bf16 are widened exactly. */
#include "kern/simd.h"

FMT_DECLARE(f32);
FMT_DECLARE(f16);
FMT_DECLARE(bf16);

static inline float at_f32(const uint8_t *p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return x;
}
static inline float at_f16(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return ig_f16_to_f32(h);
}
static inline float at_bf16(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    uint32_t u = (uint32_t)h << 16;
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}

#define FLOAT_FORMAT(fmt, bytes)                                                                             \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,             \
                             int n_cols) {                                                                   \
        for (int r = 0; r < m; r++) {                                                                        \
            const float *xr = x->f + (size_t)(row + r) * (size_t)x->n_cols;                                  \
            for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {                                               \
                float acc = 0.0f;                                                                            \
                for (int k = 0; k < n_cols; k++)                                                             \
                    acc = __builtin_fmaf(                                                                    \
                        at_##fmt(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * bytes), xr[k], acc);   \
                tile[r * IG_PANEL_ROWS + lane] = acc;                                                        \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) {                                  \
        for (int k = 0; k < n_cols; k++) out[k] = at_##fmt(row + (size_t)k * bytes);                         \
    }                                                                                                        \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                       \
        for (int k = 0; k < n_cols; k++)                                                                     \
            out[k] = at_##fmt(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * bytes);                   \
    }
FLOAT_FORMAT(f32, 4)
FLOAT_FORMAT(f16, 2)
FLOAT_FORMAT(bf16, 2)

#ifdef SIMD_REFERENCE
static void pack4(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++)
        __builtin_memcpy(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * 4, row + (size_t)k * 4, 4);
}
static void pack2(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++)
        __builtin_memcpy(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * 2, row + (size_t)k * 2, 2);
}
const ig_fmt ig_fmt_f32 = {"f32", 0, 1, 4, 1, 4 * IG_PANEL_ROWS, IG_ACT_F32, pack4};
const ig_fmt ig_fmt_f16 = {"f16", 1, 1, 2, 1, 2 * IG_PANEL_ROWS, IG_ACT_F32, pack2};
const ig_fmt ig_fmt_bf16 = {"bf16", 30, 1, 2, 1, 2 * IG_PANEL_ROWS, IG_ACT_F32, pack2};
#endif

#define KERNS(fmt)                                                                                           \
    {                                                                                                        \
        IG_KERN_LINEAR,  &ig_fmt_##fmt,                                                                      \
        IG_TIER_L3,      SIMD_NEEDS,                                                                         \
        SIMD_SPEED,      KERN_NAME("linear_" #fmt),                                                          \
        "equals scalar", {.linear = linear_##fmt}},                                                          \
        {IG_KERN_DEQUANT, &ig_fmt_##fmt,                                                                     \
         IG_TIER_L3,      SIMD_NEEDS,                                                                        \
         SIMD_SPEED,      KERN_NAME("dequant_" #fmt),                                                        \
         "equals scalar", {.dequant = dequant_##fmt}},                                                       \
    {                                                                                                        \
        IG_KERN_UNPACK, &ig_fmt_##fmt, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("unpack_" #fmt),        \
            "equals scalar", {                                                                               \
            .unpack = unpack_##fmt                                                                           \
        }                                                                                                    \
    }
static const ig_kern kerns[] = {KERNS(f32), KERNS(f16), KERNS(bf16)};
KERN_EXPORT(fmt_float, kerns);
