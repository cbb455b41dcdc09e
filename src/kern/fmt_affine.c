/* fmt_affine: MLX affine weights, 2 to 8 bits, groups of 32, 64 and 128 inputs, scales in bf16 or f32.
 *     file:  a row as the loader brings it together: the codes of the whole row (a little-endian bit stream),
 *            then K / group scales s, then K / group biases b        w = s * code + b
 *     panel: the group's blocks of 32 as in fmt_common.h, bits * 64 bytes each, then s[16], b[16]
 *            2 bits: a plane of 2; 3: planes of 2 and 1; 4: nibbles; 5: nibbles, a plane of 1;
 *            6: nibbles, a plane of 2; 8: codes
 * Up to 5 bits eat int8 activations, 6 and 8 int16 ones (the middle two of each four inputs change places).
 * Sum, blocks of 32 ascending (those of a group share s, b), isum = exact sum of code * q:
 *     up to 5 bits  acc = fma(b, a.sum, fma(s, a.scale * (float)isum, acc))
 *     6, 8 bits     acc = fma(b, a.sum16, fma(s, a.scale16 * (float)isum, acc)); 32 * 255 * 32767 < 2^31 */
#include "kern/fmt_common.h"

/* What a format is. The width is a constant in each of its functions, the rest is looked up. */
typedef struct shape {
    int bits, group, scale_bytes;
} shape;

INLINE int block_bytes(const shape s) {
    return s.bits * 64;
}
INLINE int scales_at(const shape s) {
    return s.group / 32 * block_bytes(s);
}
INLINE int panel_bytes(const shape s) {
    return scales_at(s) + 2 * IG_PANEL_ROWS * s.scale_bytes;
}
INLINE bool eats_int16(const shape s) {
    return s.bits > 5;
}
INLINE float scale_at(const uint8_t *p, int i, const shape s) {
    return s.scale_bytes == 2 ? bf16_at(p + i * 2) : f32_at(p + i * 4);
}
INLINE int code_at(const uint8_t *block, int lane, int input, const shape s) {
    const int k = s.bits == 6 ? middle_turned(input) : input;
    switch (s.bits) {
    case 2: return plane2_at(block, lane, k);
    case 3: return plane2_at(block, lane, k) | plane1_at(block + PLANE2_BYTES, lane, k) << 2;
    case 4: return nibble_at(block, lane, k);
    case 5: return nibble_at(block, lane, k) | plane1_at(block + NIBBLES_BYTES, lane, k) << 4;
    case 6: return nibble_at(block, lane, k) | plane2_at(block + NIBBLES_BYTES, lane, k) << 4;
    default: return block[code8_place(lane, k)];
    }
}
/* 32 codes of a row: 8 of them are as many bytes as one has bits. */
INLINE void codes_of_file(uint8_t code[32], const uint8_t *from, const shape s) {
    for (int i = 0; i < 4; i++, from += s.bits) {
        uint64_t word = 0;
        __builtin_memcpy(&word, from, (size_t)s.bits);
        for (int k = 0; k < 8; k++) code[8 * i + k] = (uint8_t)(word >> k * s.bits & ((1u << s.bits) - 1));
    }
}

INLINE float dot_block(const uint8_t *block, const ig_act *x, size_t row, int b, int lane, float acc,
                       float scale, float bias, const shape s) {
    size_t at = row * (size_t)x->n_cols + (size_t)b * 32, ab = at / 32;
    int32_t isum = 0;
    for (int k = 0; k < 32; k++)
        isum += code_at(block, lane, k, s) * (eats_int16(s) ? x->q16[at + (size_t)k] : x->q[at + (size_t)k]);
    acc = __builtin_fmaf(scale, (eats_int16(s) ? x->scale16 : x->scale)[ab] * (float)isum, acc);
    return __builtin_fmaf(bias, (eats_int16(s) ? x->sum16 : x->sum)[ab], acc);
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
    for (int at = 0; at < n_cols; at += 32, row += 4 * s.bits) {
        const float scale = scale_at(scales, at / s.group, s);
        const float bias = scale_at(scales, n_groups + at / s.group, s);
        uint8_t code[32];
        codes_of_file(code, row, s);
        for (int k = 0; k < 32; k++) *out++ = scale * (float)code[k] + bias;
    }
}
INLINE void unpack(float *out, const uint8_t *panel, int lane, int n_cols, const shape s) {
    for (int g = 0; g < n_cols / s.group; g++, panel += panel_bytes(s)) {
        const float scale = scale_at(panel + scales_at(s), lane, s);
        const float bias = scale_at(panel + scales_at(s), IG_PANEL_ROWS + lane, s);
        for (int i = 0; i < s.group / 32; i++)
            for (int k = 0; k < 32; k++)
                *out++ = scale * (float)code_at(panel + i * block_bytes(s), lane, k, s) + bias;
    }
}
#ifdef SIMD_REFERENCE
INLINE void pack_block(uint8_t *block, const uint8_t code[32], int lane, const shape s) {
    uint8_t turned[32];
    for (int k = 0; k < 32; k++) turned[k] = code[s.bits == 6 ? middle_turned(k) : k]; /* its own inverse */
    if (s.bits == 8) pack_codes8(block, code, lane);
    if (s.bits < 4) pack_plane2(block, turned, 0, lane);
    if (s.bits == 3) pack_plane1(block + PLANE2_BYTES, turned, 2, lane);
    if (s.bits > 3 && s.bits < 8) pack_nibbles(block, turned, lane);
    if (s.bits == 5) pack_plane1(block + NIBBLES_BYTES, turned, 4, lane);
    if (s.bits == 6) pack_plane2(block + NIBBLES_BYTES, turned, 4, lane);
}
INLINE void pack(uint8_t *panel, const uint8_t *row, int lane, int n_cols, const shape s) {
    const int n_groups = n_cols / s.group;
    const size_t bytes = (size_t)s.scale_bytes;
    const uint8_t *scales = row + (size_t)n_cols * (size_t)s.bits / 8,
                  *biases = scales + (size_t)n_groups * bytes;
    for (int g = 0; g < n_groups; g++, panel += panel_bytes(s)) {
        for (int i = 0; i < s.group / 32; i++, row += 4 * s.bits) {
            uint8_t code[32];
            codes_of_file(code, row, s);
            pack_block(panel + i * block_bytes(s), code, lane, s);
        }
        __builtin_memcpy(panel + scales_at(s) + (size_t)lane * bytes, scales + (size_t)g * bytes, bytes);
        __builtin_memcpy(panel + scales_at(s) + (size_t)(IG_PANEL_ROWS + lane) * bytes,
                         biases + (size_t)g * bytes, bytes);
    }
}
#endif

/* One body a width; the six formats of a width only say which they are. */
#define BODY static __attribute__((noinline)) void
#define WIDTHS(X) X(2) X(3) X(4) X(5) X(6) X(8)
#define BODIES(b)                                                                                            \
    BODY linear_##b(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,          \
                    int group, int scale_bytes) {                                                            \
        linear(tile, panel, x, row, m, n_cols, (shape){b, group, scale_bytes});                              \
    }                                                                                                        \
    BODY dequant_##b(float *out, const uint8_t *row, int n_cols, int group, int scale_bytes) {               \
        dequant(out, row, n_cols, (shape){b, group, scale_bytes});                                           \
    }                                                                                                        \
    BODY unpack_##b(float *out, const uint8_t *panel, int lane, int n_cols, int group, int scale_bytes) {    \
        unpack(out, panel, lane, n_cols, (shape){b, group, scale_bytes});                                    \
    }
WIDTHS(BODIES)

#define FORMATS(X, b) GROUPS(X, b, , 2, false) GROUPS(X, b, _f32, 4, true)
#define GROUPS(X, b, suffix, bytes, is_f32)                                                                  \
    X(affine##b##g32##suffix, b, 32, bytes, is_f32)                                                          \
    X(affine##b##g64##suffix, b, 64, bytes, is_f32)                                                          \
    X(affine##b##g128##suffix, b, 128, bytes, is_f32)

#define FUNCTIONS(fmt, b, group, bytes, is_f32)                                                              \
    FMT_DECLARE(fmt);                                                                                        \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,             \
                             int n_cols) {                                                                   \
        linear_##b(tile, panel, x, row, m, n_cols, group, bytes);                                            \
    }                                                                                                        \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) {                                  \
        dequant_##b(out, row, n_cols, group, bytes);                                                         \
    }                                                                                                        \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                       \
        unpack_##b(out, panel, lane, n_cols, group, bytes);                                                  \
    }
#define FUNCTIONS_OF(b) FORMATS(FUNCTIONS, b)
WIDTHS(FUNCTIONS_OF)

#ifdef SIMD_REFERENCE
#define PACK(b)                                                                                              \
    BODY pack_##b(uint8_t *panel, const uint8_t *row, int lane, int n_cols, int group, int scale_bytes) {    \
        pack(panel, row, lane, n_cols, (shape){b, group, scale_bytes});                                      \
    }
WIDTHS(PACK)
#define FORMAT(fmt, bits_, group_, bytes, is_f32)                                                            \
    static void pack_##fmt(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {                       \
        pack_##bits_(panel, row, lane, n_cols, group_, bytes);                                               \
    }                                                                                                        \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                               \
                                 .gguf_type = -1,                                                            \
                                 .group = group_,                                                            \
                                 .group_bytes = group_ * bits_ / 8 + 2 * bytes,                              \
                                 .panel_group = group_,                                                      \
                                 .panel_bytes = group_ * bits_ * 2 + 2 * IG_PANEL_ROWS * bytes,              \
                                 .act = bits_ > 5 ? IG_ACT_Q16 : IG_ACT_Q8,                                  \
                                 .pack = pack_##fmt,                                                         \
                                 .mlx = IG_MLX_AFFINE,                                                       \
                                 .bits = bits_,                                                              \
                                 .mlx_group = group_,                                                        \
                                 .f32_scales = is_f32};
#define FORMATS_OF(b) FORMATS(FORMAT, b)
WIDTHS(FORMATS_OF)
#endif

#define ROWS(fmt, b, group, bytes, is_f32) FMT_KERNS(fmt),
#define ROWS_OF(b) FORMATS(ROWS, b)
static const ig_kern kerns[] = {WIDTHS(ROWS_OF)};
KERN_EXPORT(fmt_affine, kerns);
