/* fmt_affine: MLX affine weights, 4 and 8 bits, groups of 32, 64 and 128 inputs, scales in bf16 or f32.
 *     file:  a row as the loader brings it together: the codes of the whole row (a little-endian bit stream),
 *            then K / group scales s, then K / group biases b        w = s * code + b
 *     panel: the group's blocks of 32 (4 bits: nibbles, 8 bits: codes as in fmt_common.h), then s[16], b[16]
 * 4 bits eat int8 activations, 8 bits int16 ones. Sum, blocks of 32 ascending (those of a group share s, b),
 * isum = exact sum of code * q:
 *     4 bits  acc = fma(b, a.sum, fma(s, a.scale * (float)isum, acc))
 *     8 bits  acc = fma(b, a.sum16, fma(s, a.scale16 * (float)isum, acc)); 32 * 255 * 32767 < 2^31 */
#include "kern/fmt_common.h"

/* What a format is, a constant in each of its functions. */
typedef struct shape {
    int bits, group, scale_bytes;
} shape;
#define INLINE static inline __attribute__((always_inline))

INLINE int block_bytes(const shape s) {
    return s.bits * 64;
}
INLINE int scales_at(const shape s) {
    return s.group / 32 * block_bytes(s);
}
INLINE int panel_bytes(const shape s) {
    return scales_at(s) + 2 * IG_PANEL_ROWS * s.scale_bytes;
}
INLINE float scale_at(const uint8_t *p, int i, const shape s) {
    return s.scale_bytes == 2 ? bf16_at(p + i * 2) : f32_at(p + i * 4);
}
INLINE int code_at(const uint8_t *block, int lane, int k, const shape s) {
    return s.bits == 4 ? nibble_at(block, lane, k) : block[code8_place(lane, k)];
}
INLINE int code_of_file(const uint8_t *row, int k, const shape s) {
    return s.bits == 4 ? row[k / 2] >> (k & 1) * 4 & 15 : row[k];
}

INLINE float dot_block(const uint8_t *block, const ig_act *x, size_t row, int b, int lane, float acc,
                       float scale, float bias, const shape s) {
    size_t at = row * (size_t)x->n_cols + (size_t)b * 32, ab = at / 32;
    int32_t isum = 0;
    for (int k = 0; k < 32; k++)
        isum += code_at(block, lane, k, s) * (s.bits == 4 ? x->q[at + (size_t)k] : x->q16[at + (size_t)k]);
    acc = __builtin_fmaf(scale, (s.bits == 4 ? x->scale : x->scale16)[ab] * (float)isum, acc);
    return __builtin_fmaf(bias, (s.bits == 4 ? x->sum : x->sum16)[ab], acc);
}
INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const shape s) {
    for (int r = 0; r < m; r++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const uint8_t *group = panel;
            float acc = 0.0f;
            for (int b = 0; b < n_cols / 32; group += panel_bytes(s)) {
                float scale = scale_at(group + scales_at(s), lane, s);
                float bias = scale_at(group + scales_at(s), IG_PANEL_ROWS + lane, s);
                for (int i = 0; i < s.group / 32; i++, b++)
                    acc = dot_block(group + i * block_bytes(s), x, (size_t)(row + r), b, lane, acc, scale,
                                    bias, s);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
}
INLINE void dequant(float *out, const uint8_t *row, int n_cols, const shape s) {
    const uint8_t *scales = row + (size_t)n_cols * (size_t)s.bits / 8;
    int n_groups = n_cols / s.group;
    for (int k = 0; k < n_cols; k++)
        out[k] = scale_at(scales, k / s.group, s) * (float)code_of_file(row, k, s) +
                 scale_at(scales, n_groups + k / s.group, s);
}
INLINE void unpack(float *out, const uint8_t *panel, int lane, int n_cols, const shape s) {
    for (int g = 0; g < n_cols / s.group; g++, panel += panel_bytes(s))
        for (int k = 0; k < s.group; k++) {
            int code = code_at(panel + k / 32 * block_bytes(s), lane, k % 32, s);
            *out++ = scale_at(panel + scales_at(s), lane, s) * (float)code +
                     scale_at(panel + scales_at(s), IG_PANEL_ROWS + lane, s);
        }
}
#ifdef SIMD_REFERENCE
INLINE void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols, const shape s) {
    const int n_groups = n_cols / s.group;
    const size_t bytes = (size_t)s.scale_bytes;
    const uint8_t *scales = row + (size_t)n_cols * (size_t)s.bits / 8,
                  *biases = scales + (size_t)n_groups * bytes;
    for (int g = 0; g < n_groups; g++, panel += panel_bytes(s)) {
        for (int i = 0; i < s.group / 32; i++) {
            const uint8_t *from = row + (size_t)(g * s.group + i * 32) * (size_t)s.bits / 8;
            uint8_t code[32], *block = panel + i * block_bytes(s);
            if (s.bits == 4) {
                for (int k = 0; k < 16; k++) code[2 * k] = from[k] & 15, code[2 * k + 1] = from[k] >> 4;
                pack_nibbles(block, code, lane);
            } else {
                pack_codes8(block, from, lane);
            }
        }
        __builtin_memcpy(panel + scales_at(s) + (size_t)lane * bytes, scales + (size_t)g * bytes, bytes);
        __builtin_memcpy(panel + scales_at(s) + (size_t)(IG_PANEL_ROWS + lane) * bytes,
                         biases + (size_t)g * bytes, bytes);
    }
}
#endif

#define ALL(X) SCALES(X, , 2, false) SCALES(X, _f32, 4, true)
#define SCALES(X, suffix, bytes, is_f32) BITS(X, suffix, bytes, is_f32, 4) BITS(X, suffix, bytes, is_f32, 8)
#define BITS(X, suffix, bytes, is_f32, bits)                                                                 \
    X(affine##bits##g32##suffix, bits, 32, bytes, is_f32)                                                    \
    X(affine##bits##g64##suffix, bits, 64, bytes, is_f32)                                                    \
    X(affine##bits##g128##suffix, bits, 128, bytes, is_f32)

#define FUNCTIONS(fmt, bits, group, bytes, is_f32)                                                           \
    FMT_DECLARE(fmt);                                                                                        \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,             \
                             int n_cols) {                                                                   \
        linear(tile, panel, x, row, m, n_cols, (shape){bits, group, bytes});                                 \
    }                                                                                                        \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) {                                  \
        dequant(out, row, n_cols, (shape){bits, group, bytes});                                              \
    }                                                                                                        \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                       \
        unpack(out, panel, lane, n_cols, (shape){bits, group, bytes});                                       \
    }
ALL(FUNCTIONS)

#ifdef SIMD_REFERENCE
#define FORMAT(fmt, bits_, group_, bytes, is_f32)                                                            \
    static void pack_##fmt(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {                       \
        pack(panel, row, lane, n_cols, (shape){bits_, group_, bytes});                                       \
    }                                                                                                        \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                               \
                                 .gguf_type = -1,                                                            \
                                 .group = group_,                                                            \
                                 .group_bytes = group_ * bits_ / 8 + 2 * bytes,                              \
                                 .panel_group = group_,                                                      \
                                 .panel_bytes = group_ * bits_ * 2 + 2 * IG_PANEL_ROWS * bytes,              \
                                 .act = bits_ == 4 ? IG_ACT_Q8 : IG_ACT_Q16,                                 \
                                 .pack = pack_##fmt,                                                         \
                                 .bits = bits_,                                                              \
                                 .mlx_group = group_,                                                        \
                                 .f32_scales = is_f32};
ALL(FORMAT)
#endif

#define ROWS_OF(fmt, bits, group, bytes, is_f32) FMT_KERNS(fmt),
static const ig_kern kerns[] = {ALL(ROWS_OF)};
KERN_EXPORT(fmt_affine, kerns);
