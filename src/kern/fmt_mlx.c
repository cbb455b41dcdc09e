/* fmt_mlx: 16-bit panels of tier l1 for MLX's quantized weights, whose products its CPU backend sums in the 16-bit
 * type of the activations. r() rounds to it, nearest even; k ascending, a from 0:
 *     sum:            a = r(a + r(x_k * w_k))                       affine: w_k = r(r(s * code) + b), made at load
 *     run32, run16:   for each run g = r(g + r(x_k * w_k)) from 0, then a = r(a + r(s * g))      MXFP4, MXFP8; NVFP4
 *     panel: [K][16] numbers w; with runs for each run [run][16] numbers w and then s[16]
 *     file:  a row as ig_mlx_row makes it: numbers, with runs then their scales
 * Activations are numbers too, kept in f32. A NaN that comes here has zeros in its lower half, as all numbers have. */
#include "kern/fmt_common.h"

enum number { BF16, F16 };

INLINE vf round8(vf a, const enum number n) {
    return n == BF16 ? vf_bf16_number(a) : vf_f16(a);
}
INLINE vf eight(const uint8_t *p, const enum number n) {
    const uint16_t *h = (const uint16_t *)(const void *)p;
    return n == BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}
INLINE float one_at(const uint8_t *p, const enum number n) {
    return n == BF16 ? bf16_at(p) : half_at(p);
}

/* Rows row .. row + R - 1. The chain of an output is a product, its rounding, a sum, its rounding; more rows hide it. */
INLINE void rows_tile(float *tile, const uint8_t *panel, const ig_act *x, int row, int n_cols, const int n_rows,
                      const int run, const enum number n) {
    const float *in = x->f + (size_t)row * (size_t)x->n_cols;
    const vf zero = vf_set(0.0f);
    vf a[4][2];
    for (int r = 0; r < n_rows; r++) a[r][0] = a[r][1] = zero;
    for (int k0 = 0; k0 < n_cols;) {
        const int end = run ? k0 + run : n_cols;
        vf g[4][2];
        for (int r = 0; r < n_rows; r++) g[r][0] = g[r][1] = zero;
        for (; k0 < end; k0++, panel += 2 * IG_PANEL_ROWS) {
            const vf w0 = eight(panel, n), w1 = eight(panel + IG_PANEL_ROWS, n);
            for (int r = 0; r < n_rows; r++) {
                const vf v = vf_set(in[(size_t)r * (size_t)x->n_cols + (size_t)k0]);
                g[r][0] = round8(vf_add(g[r][0], round8(vf_mul(v, w0), n)), n);
                g[r][1] = round8(vf_add(g[r][1], round8(vf_mul(v, w1), n)), n);
            }
        }
        if (!run) {
            for (int r = 0; r < n_rows; r++) a[r][0] = g[r][0], a[r][1] = g[r][1];
            break;
        }
        const vf s0 = eight(panel, n), s1 = eight(panel + IG_PANEL_ROWS, n);
        panel += 2 * IG_PANEL_ROWS;
        for (int r = 0; r < n_rows; r++) {
            a[r][0] = round8(vf_add(a[r][0], round8(vf_mul(s0, g[r][0]), n)), n);
            a[r][1] = round8(vf_add(a[r][1], round8(vf_mul(s1, g[r][1]), n)), n);
        }
    }
    for (int r = 0; r < n_rows; r++) vf_store(tile + r * IG_PANEL_ROWS, a[r][0]), vf_store(tile + r * IG_PANEL_ROWS + 8, a[r][1]);
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols, const int run,
                   const enum number n) {
    int r = 0;
    for (; r + 4 <= m; r += 4) rows_tile(tile + r * IG_PANEL_ROWS, panel, x, row + r, n_cols, 4, run, n);
    for (; r + 2 <= m; r += 2) rows_tile(tile + r * IG_PANEL_ROWS, panel, x, row + r, n_cols, 2, run, n);
    if (r < m) rows_tile(tile + r * IG_PANEL_ROWS, panel, x, row + r, n_cols, 1, run, n);
}

INLINE float rounded(float x, const enum number n) {
    return n == BF16 ? ig_bf16_to_f32(ig_f32_to_bf16(x)) : ig_f16_to_f32(ig_f32_to_f16(x));
}
INLINE void dequant(float *out, const uint8_t *row, int n_cols, const int run, const enum number n) {
    for (int k = 0; k < n_cols; k++) {
        out[k] = one_at(row + 2 * k, n);
        if (run) out[k] = rounded(one_at(row + 2 * (n_cols + k / run), n) * out[k], n);
    }
}
INLINE void unpack(float *out, const uint8_t *panel, int lane, int n_cols, const int run, const enum number n) {
    for (int k = 0; k < n_cols; k++) {
        const uint8_t *p = panel + 2 * IG_PANEL_ROWS * (run ? k / run * (run + 1) + k % run : k);
        out[k] = one_at(p + 2 * lane, n);
        if (run) out[k] = rounded(one_at(panel + 2 * (IG_PANEL_ROWS * (k / run * (run + 1) + run) + lane), n) * out[k], n);
    }
}

#ifdef SIMD_REFERENCE
INLINE void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols, const int run) {
    for (int k = 0; k < n_cols; k++) {
        uint8_t *p = panel + 2 * IG_PANEL_ROWS * (run ? k / run * (run + 1) + k % run : k);
        __builtin_memcpy(p + 2 * lane, row + 2 * k, 2);
    }
    for (int g = 0; run && g < n_cols / run; g++)
        __builtin_memcpy(panel + 2 * (IG_PANEL_ROWS * (g * (run + 1) + run) + lane), row + 2 * (n_cols + g), 2);
}
#endif

#define FORMATS(X)                                                                                                     \
    X(bf16_sum, BF16, 0) X(bf16_run32, BF16, 32) X(bf16_run16, BF16, 16)                                               \
    X(f16_sum, F16, 0)

#define FUNCTIONS(fmt, number, run)                                                                                    \
    FMT_DECLARE(fmt);                                                                                                  \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {         \
        linear(tile, panel, x, row, m, n_cols, run, number);                                                           \
    }                                                                                                                  \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) { dequant(out, row, n_cols, run, number); }  \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                                 \
        unpack(out, panel, lane, n_cols, run, number);                                                                 \
    }
FORMATS(FUNCTIONS)

#ifdef SIMD_REFERENCE
#define FORMAT(fmt, number, run)                                                                                       \
    static void pack_##fmt(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {                                 \
        pack(panel, row, lane, n_cols, run);                                                                           \
    }                                                                                                                  \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                                         \
                                 .gguf_type = -1,                                                                      \
                                 .group = run ? run : 1,                                                               \
                                 .group_bytes = run ? 2 * (run + 1) : 2,                                               \
                                 .panel_group = run ? run : 1,                                                         \
                                 .panel_bytes = 2 * IG_PANEL_ROWS * (run ? run + 1 : 1),                               \
                                 .act = IG_ACT_F32,                                                                    \
                                 .rounds = true,                                                                       \
                                 .pack = pack_##fmt};
FORMATS(FORMAT)

const ig_fmt *ig_fmt_mlx_exact(const ig_fmt *from, const ig_fmt *number) {
    const bool is_bf16 = number == &ig_fmt_bf16;
    if (from->mlx == IG_MLX_AFFINE) return is_bf16 ? &ig_fmt_bf16_sum : &ig_fmt_f16_sum;
    ig_assert(is_bf16); /* of scales in runs and f16 mlx-lm makes f32: the loader refuses those */
    return from->mlx == IG_MLX_NVFP4 ? &ig_fmt_bf16_run16 : &ig_fmt_bf16_run32;
}
#endif

#define KERN(op_, word, fmt_)                                                                                          \
    {.op = op_, .fmt = &ig_fmt_##fmt_, .tier = IG_TIER_L1, .cpu_needs = SIMD_NEEDS, .speed = SIMD_SPEED,               \
     .name = KERN_NAME(#word "_" #fmt_), .proof = "equals scalar", .fn = {.word = word##_##fmt_}},
#define KERNS(fmt, number, run)                                                                                        \
    KERN(IG_KERN_LINEAR, linear, fmt) KERN(IG_KERN_DEQUANT, dequant, fmt) KERN(IG_KERN_UNPACK, unpack, fmt)
static const ig_kern kerns[] = {FORMATS(KERNS)};
KERN_EXPORT(fmt_mlx, kerns);
