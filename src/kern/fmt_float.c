/* fmt_float: f32, f16 and bf16 weights. A panel is [K][16]: the 16 outputs' values of one input side by
 * side. Activations stay f32.
 * Sum: acc = fma(w, x, acc) from 0, k ascending. f16 and bf16 are widened exactly. */
#include "kern/fmt_common.h"

FMT_DECLARE(f32);
FMT_DECLARE(f16);
FMT_DECLARE(bf16);

#define FLOAT_FORMAT(fmt, value, bytes)                                                                      \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,             \
                             int n_cols) {                                                                   \
        for (int r = 0; r < m; r++) {                                                                        \
            const float *xr = x->f + (size_t)(row + r) * (size_t)x->n_cols;                                  \
            for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {                                               \
                float acc = 0.0f;                                                                            \
                for (int k = 0; k < n_cols; k++)                                                             \
                    acc = __builtin_fmaf(value(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * bytes),  \
                                         xr[k], acc);                                                        \
                tile[r * IG_PANEL_ROWS + lane] = acc;                                                        \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) {                                  \
        for (int k = 0; k < n_cols; k++) out[k] = value(row + (size_t)k * bytes);                            \
    }                                                                                                        \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                       \
        for (int k = 0; k < n_cols; k++)                                                                     \
            out[k] = value(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * bytes);                      \
    }
FLOAT_FORMAT(f32, f32_at, 4)
FLOAT_FORMAT(f16, half_at, 2)
FLOAT_FORMAT(bf16, bf16_at, 2)

#ifdef SIMD_REFERENCE
static void pack4(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++)
        __builtin_memcpy(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * 4, row + (size_t)k * 4, 4);
}
static void pack2(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++)
        __builtin_memcpy(panel + ((size_t)k * IG_PANEL_ROWS + (size_t)lane) * 2, row + (size_t)k * 2, 2);
}
#define FORMAT(fmt, type, bytes)                                                                             \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                               \
                                 .gguf_type = type,                                                          \
                                 .group = 1,                                                                 \
                                 .group_bytes = bytes,                                                       \
                                 .panel_group = 1,                                                           \
                                 .panel_bytes = bytes * IG_PANEL_ROWS,                                       \
                                 .act = IG_ACT_F32,                                                          \
                                 .pack = pack##bytes}
FORMAT(f32, 0, 4);
FORMAT(f16, 1, 2);
FORMAT(bf16, 30, 2);
#endif

/* Products of two 16-bit numbers are exact in f32, so their fma chain is the sum of mlx-lm: tier l1. */
#define L1_KERNS(fmt)                                                                                        \
    FMT_KERN_OF(IG_TIER_L1, IG_KERN_LINEAR, linear, fmt), FMT_KERN_OF(IG_TIER_L1, IG_KERN_DEQUANT, dequant, fmt), \
        FMT_KERN_OF(IG_TIER_L1, IG_KERN_UNPACK, unpack, fmt)
static const ig_kern kerns[] = {FMT_KERNS(f32), L1_KERNS(f16), L1_KERNS(bf16)};
KERN_EXPORT(fmt_float, kerns);
