/* linear_int_tile: integer codes with int8 or int16 activations on NEON, 1 or 2 rows by 16 outputs at once. A panel
 * holds 4 bytes of a lane side by side, so 16 bytes are 4 outputs by 4 inputs: what sdot eats. Without sdot eight
 * products of int8 are summed in int16 (8 * 31 * 127 = 31496 fits) and widened once a block. int16 activations
 * multiply widened codes; both kinds of sums are exact, so their order is free.
 * Speeds on this machine's kin were never measured: qemu only says that the bits are right. */
#ifndef IG_LINEAR_INT_TILE_H
#define IG_LINEAR_INT_TILE_H

#include "kern/simd.h"

#define INLINE static inline __attribute__((always_inline))

enum kind { Q4_0, Q4_1, Q5_0, Q4_K, AFFINE4, AFFINE4_F32, Q8_0, Q6_K, AFFINE8, AFFINE8_F32 };

INLINE bool wide(const enum kind k) { return k >= Q8_0; } /* eats int16 */
INLINE bool f32_scales(const enum kind k) { return k == AFFINE4_F32 || k == AFFINE8_F32; }
INLINE bool bf16_scales(const enum kind k) { return k == AFFINE4 || k == AFFINE8; }
INLINE bool has_min(const enum kind k) { return k == Q4_1 || k == Q4_K || f32_scales(k) || bf16_scales(k); }
/* Bytes of one block of 32 inputs, and of what the blocks of a group share, which follows them. */
INLINE size_t block_bytes(const enum kind k) {
    return k == Q5_0 ? 320 : k == Q4_K ? 288 : k == Q6_K ? 416 : wide(k) ? 512 : 256;
}
INLINE size_t shared_bytes(const enum kind k) { return f32_scales(k) ? 128 : has_min(k) ? 64 : 32; }

/* ---- codes: 16 bytes, outputs 4 o to 4 o + 3 by inputs 4 j to 4 j + 3 ---- */

INLINE uint8x16_t nibbles(const uint8_t *w, const int j, const int o) {
    uint8x16_t v = vld1q_u8(w + (j & 3) * 64 + o * 16);
    return j < 4 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
}
/* Byte i of the bit planes shifted so that the wanted bits stand at `to`. */
INLINE uint8x16_t plane(const uint8_t *p, const int shift, const int bits, const int to) {
    uint8x16_t v = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)(to - shift)));
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << bits) - 1) << to)));
}
INLINE int8x16_t codes(const uint8_t *w, const int j, const int o, const enum kind k) {
    if (k == Q8_0 || k == AFFINE8 || k == AFFINE8_F32) return vreinterpretq_s8_u8(vld1q_u8(w + j * 64 + o * 16));
    uint8x16_t c = nibbles(w, j, o);
    if (k == Q5_0) c = vorrq_u8(c, plane(w + 256 + o * 16, j, 1, 4));
    if (k == Q6_K) c = vorrq_u8(c, plane(w + 256 + j / 4 * 64 + o * 16, j % 4 * 2, 2, 4));
    return vreinterpretq_s8_u8(c);
}
INLINE int16x8_t widened(int8x8_t c, const enum kind k) {
    return k == Q8_0 ? vmovl_s8(c) : vreinterpretq_s16_u16(vmovl_u8(vreinterpret_u8_s8(c)));
}

/* ---- scales of outputs 4 o to 4 o + 3 ---- */

INLINE float32x4_t four_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
INLINE float32x4_t four_bf16(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
INLINE float32x4_t four_f32(const uint8_t *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
INLINE float32x4_t four_small(const uint8_t *p, const bool is_signed) {
    uint32_t word;
    __builtin_memcpy(&word, p, 4);
    const uint8x8_t b = vreinterpret_u8_u32(vdup_n_u32(word));
    return is_signed ? vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(b)))))
                     : vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(b))));
}
INLINE float32x4_t scale_of(const uint8_t *w, const uint8_t *shared, const int run, const int o, const enum kind k) {
    if (f32_scales(k)) return four_f32(shared + o * 16);
    if (bf16_scales(k)) return four_bf16(shared + o * 8);
    const float32x4_t d = four_f16(shared + o * 8);
    if (k == Q4_K) return vmulq_f32(d, four_small(w + 256 + o * 4, false));
    if (k == Q6_K) return vmulq_f32(d, four_small(w + 384 + run * 16 + o * 4, true));
    return d;
}
INLINE float32x4_t min_of(const uint8_t *w, const uint8_t *shared, const int o, const enum kind k) {
    if (f32_scales(k)) return four_f32(shared + 64 + o * 16);
    if (bf16_scales(k)) return four_bf16(shared + 32 + o * 8);
    const float32x4_t m = four_f16(shared + 32 + o * 8);
    return k == Q4_K ? vnegq_f32(vmulq_f32(m, four_small(w + 272 + o * 4, false))) : m;
}

/* ---- sums of products of one block, or of one run of 16 of it ---- */

/* isum[o]: outputs 4 o to 4 o + 3. q: 32 activations. */
INLINE void dot_int8(int32x4_t isum[4], const uint8_t *w, const int8_t *q, const enum kind k) {
#ifdef __ARM_FEATURE_DOTPROD
    for (int o = 0; o < 4; o++) isum[o] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const int8x16_t a = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)(q + 4 * j)));
#pragma GCC unroll 4
        for (int o = 0; o < 4; o++) isum[o] = vdotq_s32(isum[o], codes(w, j, o, k), a);
    }
#else
    int16x8_t s[8];
    for (int i = 0; i < 8; i++) s[i] = vdupq_n_s16(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const int8x8_t a = vreinterpret_s8_s32(vld1_dup_s32((const int32_t *)(const void *)(q + 4 * j)));
#pragma GCC unroll 4
        for (int o = 0; o < 4; o++) {
            const int8x16_t c = codes(w, j, o, k);
            s[2 * o] = vmlal_s8(s[2 * o], vget_low_s8(c), a);
            s[2 * o + 1] = vmlal_s8(s[2 * o + 1], vget_high_s8(c), a);
        }
    }
    for (int o = 0; o < 4; o++) isum[o] = vpaddq_s32(vpaddlq_s16(s[2 * o]), vpaddlq_s16(s[2 * o + 1]));
#endif
}

/* The four products of two outputs, added in pairs. */
INLINE int32x4_t pairs(int16x8_t c, int16x4_t a) {
    return vpaddq_s32(vmull_s16(vget_low_s16(c), a), vmull_s16(vget_high_s16(c), a));
}
/* Inputs 4 j to 4 j + 3 for j in [from, to); the middle two of each four have changed places in the panel. */
INLINE void dot_int16(int32x4_t isum[4], const uint8_t *w, const int16_t *q, const int from, const int to,
                      const enum kind k) {
    const uint8x8_t order = vcreate_u8(0x0706030205040100u);
    int32x4_t s[8];
    for (int i = 0; i < 8; i++) s[i] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        const int16x4_t v = vreinterpret_s16_u8(vtbl1_u8(vld1_u8((const uint8_t *)(q + 4 * j)), order));
#pragma GCC unroll 4
        for (int o = 0; o < 4; o++) {
            const int8x16_t c = codes(w, j, o, k);
            s[2 * o] = vaddq_s32(s[2 * o], pairs(widened(vget_low_s8(c), k), v));
            s[2 * o + 1] = vaddq_s32(s[2 * o + 1], pairs(widened(vget_high_s8(c), k), v));
        }
    }
    for (int o = 0; o < 4; o++) isum[o] = vpaddq_s32(s[2 * o], s[2 * o + 1]);
}

/* ---- rows ---- */

/* acc += d * (scale * isum), then min * sum; without a minimum `offset` comes off isum. */
INLINE void finish(float32x4_t acc[4], const int32x4_t isum[4], const float32x4_t d[4], const float32x4_t min[4],
                   float scale, float sum, int32_t offset, const enum kind k) {
#pragma GCC unroll 4
    for (int o = 0; o < 4; o++) {
        const int32x4_t i = vsubq_s32(isum[o], vdupq_n_s32(offset));
        acc[o] = vfmaq_f32(acc[o], d[o], vmulq_n_f32(vcvtq_f32_s32(i), scale));
        if (has_min(k)) acc[o] = vfmaq_f32(acc[o], min[o], vdupq_n_f32(sum));
    }
}

/* n rows (1 or 2) from `row` on, n_groups groups of n_in blocks. */
INLINE void rows_tile(float *tile, const uint8_t *w, const ig_act *x, int row, int n_groups, const int n_in,
                      const int n, const enum kind k) {
    const size_t n_cols = (size_t)x->n_cols, per_row = n_cols / 32, size = block_bytes(k);
    float32x4_t acc[2][4];
    for (int r = 0; r < n; r++)
        for (int o = 0; o < 4; o++) acc[r][o] = vdupq_n_f32(0.0f);
    size_t at = (size_t)row * per_row; /* the block of the first row's activations */
    for (int g = 0; g < n_groups; g++, w += shared_bytes(k)) {
        const uint8_t *shared = w + (size_t)n_in * size;
        for (int b = 0; b < n_in; b++, w += size, at++) {
            for (int run = 0; run < (k == Q6_K ? 2 : 1); run++) {
                float32x4_t d[4], min[4];
                for (int o = 0; o < 4; o++) {
                    d[o] = scale_of(w, shared, run, o, k);
                    min[o] = has_min(k) ? min_of(w, shared, o, k) : d[o];
                }
                for (int r = 0; r < n; r++) {
                    const size_t i = at + (size_t)r * per_row;
                    int32x4_t isum[4];
                    if (!wide(k)) dot_int8(isum, w, x->q + 32 * i, k);
                    else if (k == Q6_K) dot_int16(isum, w, x->q16 + 32 * i, 4 * run, 4 * run + 4, k);
                    else dot_int16(isum, w, x->q16 + 32 * i, 0, 8, k);
                    int32_t offset = 0;
                    if (k == Q4_0 || k == Q5_0)
                        offset = (k == Q4_0 ? 8 : 16) * (x->qsum[2 * i] + x->qsum[2 * i + 1]);
                    if (k == Q6_K) offset = 32 * x->qsum16[2 * i + (size_t)run];
                    finish(acc[r], isum, d, min, wide(k) ? x->scale16[i] : x->scale[i],
                           wide(k) ? x->sum16[i] : x->sum[i], offset, k);
                }
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int o = 0; o < 4; o++) vst1q_f32(tile + r * 16 + o * 4, acc[r][o]);
}

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int n_in, const enum kind k) {
    const int n = n_cols / 32 / n_in;
    int r = 0;
    for (; r + 2 <= m; r += 2) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 2, k);
    if (r < m) rows_tile(tile + r * 16, panel, x, row + r, n, n_in, 1, k);
}

/* The group sizes of MLX share one body. */
#define AFFINE_BODY(name, kind)                                                                        \
    static __attribute__((noinline)) void name(float *tile, const uint8_t *panel, const ig_act *x,     \
                                               int row, int m, int n_cols, int n_in) {                 \
        linear(tile, panel, x, row, m, n_cols, n_in, kind);                                            \
    }
AFFINE_BODY(linear_affine4, AFFINE4)
AFFINE_BODY(linear_affine4_f32, AFFINE4_F32)
AFFINE_BODY(linear_affine8, AFFINE8)
AFFINE_BODY(linear_affine8_f32, AFFINE8_F32)

#define ALL(X)                                                                                         \
    X(q4_0, linear, 1, Q4_0)                                                                           \
    X(q4_1, linear, 1, Q4_1)                                                                           \
    X(q5_0, linear, 1, Q5_0)                                                                           \
    X(q4_k, linear, 8, Q4_K)                                                                           \
    X(q8_0, linear, 1, Q8_0)                                                                           \
    X(q6_k, linear, 8, Q6_K)                                                                           \
    X(affine4g32, linear_affine4, 1) X(affine4g64, linear_affine4, 2) X(affine4g128, linear_affine4, 4) \
    X(affine4g32_f32, linear_affine4_f32, 1)                                                           \
    X(affine4g64_f32, linear_affine4_f32, 2)                                                           \
    X(affine4g128_f32, linear_affine4_f32, 4)                                                          \
    X(affine8g32, linear_affine8, 1) X(affine8g64, linear_affine8, 2) X(affine8g128, linear_affine8, 4) \
    X(affine8g32_f32, linear_affine8_f32, 1)                                                           \
    X(affine8g64_f32, linear_affine8_f32, 2)                                                           \
    X(affine8g128_f32, linear_affine8_f32, 4)
#define FUNCTION(fmt, function, ...)                                                              \
    extern const ig_fmt ig_fmt_##fmt;                                                             \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,  \
                             int n_cols) {                                                        \
        function(tile, panel, x, row, m, n_cols, __VA_ARGS__);                                    \
    }
ALL(FUNCTION)

#define ROW(fmt, ...)                                                                       \
    {IG_KERN_LINEAR, &ig_fmt_##fmt, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5,                 \
     KERN_NAME("linear_" #fmt "_tile"), "equals scalar", {.linear = linear_##fmt}},
static const ig_kern kerns[] = {ALL(ROW)};
KERN_EXPORT(linear_int_tile, kerns);

#endif
