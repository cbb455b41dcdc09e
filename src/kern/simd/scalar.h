// flags:
/* The vocabulary, one lane after the other. The meaning of every word is here; an ISA header may be
 * faster, never different in what it means. A vf is 8 lanes on every ISA: docs/numerics.md splits sums
 * into 8 lanes, so the width is part of the contract and not of the machine. */
#include <math.h>
#include <string.h>

#define SIMD_REFERENCE 1
#define SIMD_NEEDS 0
#define SIMD_SPEED 0

typedef struct vf {
    float v[8];
} vf;

#define VF_EACH(expr)                    \
    vf y;                                \
    for (int i = 0; i < 8; i++) y.v[i] = (expr); \
    return y

static inline vf vf_set(float a) { VF_EACH(a); }
static inline vf vf_load(const float *p) { VF_EACH(p[i]); }
static inline void vf_store(float *p, vf a) { memcpy(p, a.v, sizeof a.v); }
static inline vf vf_add(vf a, vf b) { VF_EACH(a.v[i] + b.v[i]); }
static inline vf vf_sub(vf a, vf b) { VF_EACH(a.v[i] - b.v[i]); }
static inline vf vf_mul(vf a, vf b) { VF_EACH(a.v[i] * b.v[i]); }
static inline vf vf_div(vf a, vf b) { VF_EACH(a.v[i] / b.v[i]); }
/* a * b + c, rounded once */
static inline vf vf_fma(vf a, vf b, vf c) { VF_EACH(fmaf(a.v[i], b.v[i], c.v[i])); }
/* The second when either is NaN or both are zero. */
static inline vf vf_max(vf a, vf b) { VF_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline vf vf_min(vf a, vf b) { VF_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline vf vf_neg(vf a) { VF_EACH(-a.v[i]); }
/* b where a < limit, else `otherwise` */
static inline vf vf_below(vf a, vf limit, vf b, vf otherwise) {
    VF_EACH(a.v[i] < limit.v[i] ? b.v[i] : otherwise.v[i]);
}
/* x where x is NaN, else y */
static inline vf vf_keep_nan(vf x, vf a) { VF_EACH(x.v[i] != x.v[i] ? x.v[i] : a.v[i]); }
/* Bits of a plus (bits of b << 23): a * 2^n when b = n + 1.5 * 2^23. */
static inline vf vf_scale_exponent(vf a, vf b) {
    vf y;
    for (int i = 0; i < 8; i++) {
        uint32_t ua, ub;
        memcpy(&ua, &a.v[i], 4);
        memcpy(&ub, &b.v[i], 4);
        ua += ub << 23;
        memcpy(&y.v[i], &ua, 4);
    }
    return y;
}
/* ((0+4) + (2+6)) + ((1+5) + (3+7)) */
static inline float vf_sum(vf a) {
    float s0 = a.v[0] + a.v[4], s1 = a.v[1] + a.v[5], s2 = a.v[2] + a.v[6], s3 = a.v[3] + a.v[7];
    return (s0 + s2) + (s1 + s3);
}
/* The same tree with vf_max's rule. */
static inline float vf_max_of(vf a) {
    float m[4];
    for (int i = 0; i < 4; i++) m[i] = a.v[i] > a.v[i + 4] ? a.v[i] : a.v[i + 4];
    float m0 = m[0] > m[2] ? m[0] : m[2], m1 = m[1] > m[3] ? m[1] : m[3];
    return m0 > m1 ? m0 : m1;
}
static inline vf vf_from_f16(const uint16_t *p) { VF_EACH(ig_f16_to_f32(p[i])); }
static inline vf vf_from_bf16(const uint16_t *p) {
    vf y;
    for (int i = 0; i < 8; i++) {
        uint32_t u = (uint32_t)p[i] << 16;
        memcpy(&y.v[i], &u, 4);
    }
    return y;
}
static inline void vf_to_f16(uint16_t *p, vf a) {
    for (int i = 0; i < 8; i++) p[i] = ig_f32_to_f16(a.v[i]);
}
/* Rounded to bf16, nearest even. Of NaN only that it is one. */
static inline vf vf_bf16(vf a) { VF_EACH(ig_bf16_to_f32(ig_f32_to_bf16(a.v[i]))); }
/* The same of what is no NaN, or one whose lower half is zero. */
static inline vf vf_bf16_number(vf a) { return vf_bf16(a); }
/* Rounded to f16, nearest even. */
static inline vf vf_f16(vf a) { VF_EACH(ig_f16_to_f32(ig_f32_to_f16(a.v[i]))); }
static inline void vf_to_bf16(uint16_t *p, vf a) {
    for (int i = 0; i < 8; i++) p[i] = ig_f32_to_bf16(a.v[i]);
}
/* 32 values of one block: the largest magnitude as bits, so that NaN > inf > any number. */
static inline float block_amax(const float *x) {
    uint32_t top = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u &= 0x7fffffffu;
        if (u > top) top = u;
    }
    float a;
    memcpy(&a, &top, 4);
    return a;
}
/* q[i] = x[i] * inv to the nearest integer, ties to even, and the sums of both halves. |x * inv| < 128. */
static inline void block_quant(int8_t *q, int16_t sum[2], const float *x, float inv) {
    sum[0] = sum[1] = 0;
    for (int i = 0; i < 32; i++) {
        /* adding and taking away 1.5 * 2^23 rounds to nearest even */
        q[i] = (int8_t)((x[i] * inv + 12582912.0f) - 12582912.0f);
        sum[i / 16] = (int16_t)(sum[i / 16] + q[i]);
    }
}
/* The same to int16, |x * inv| < 32768. */
static inline void block_quant16(int16_t *q, int32_t sum[2], const float *x, float inv) {
    sum[0] = sum[1] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (int16_t)((x[i] * inv + 12582912.0f) - 12582912.0f);
        sum[i / 16] += q[i];
    }
}
