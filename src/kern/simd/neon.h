// flags:
#include <arm_neon.h>

#define SIMD_NEEDS IG_CPU_NEON
#define SIMD_SPEED 20

/* Lanes 0 to 3, then 4 to 7. */
typedef struct vf {
    float32x4_t lo, hi;
} vf;
#define VF_HALVES(lo_, hi_) return (vf){lo_, hi_}

static inline vf vf_set(float a) { VF_HALVES(vdupq_n_f32(a), vdupq_n_f32(a)); }
static inline vf vf_load(const float *p) { VF_HALVES(vld1q_f32(p), vld1q_f32(p + 4)); }
static inline void vf_store(float *p, vf a) { vst1q_f32(p, a.lo), vst1q_f32(p + 4, a.hi); }
static inline vf vf_add(vf a, vf b) { VF_HALVES(vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)); }
static inline vf vf_sub(vf a, vf b) { VF_HALVES(vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)); }
static inline vf vf_mul(vf a, vf b) { VF_HALVES(vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)); }
static inline vf vf_div(vf a, vf b) { VF_HALVES(vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)); }
static inline vf vf_fma(vf a, vf b, vf c) {
    VF_HALVES(vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi));
}
/* fmax and fmin of this machine prefer the NaN; the words prefer the second. */
static inline float32x4_t max_4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline float32x4_t min_4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf vf_max(vf a, vf b) { VF_HALVES(max_4(a.lo, b.lo), max_4(a.hi, b.hi)); }
static inline vf vf_min(vf a, vf b) { VF_HALVES(min_4(a.lo, b.lo), min_4(a.hi, b.hi)); }
static inline vf vf_neg(vf a) { VF_HALVES(vnegq_f32(a.lo), vnegq_f32(a.hi)); }
static inline vf vf_below(vf a, vf limit, vf b, vf otherwise) {
    VF_HALVES(vbslq_f32(vcltq_f32(a.lo, limit.lo), b.lo, otherwise.lo),
              vbslq_f32(vcltq_f32(a.hi, limit.hi), b.hi, otherwise.hi));
}
static inline vf vf_keep_nan(vf x, vf a) {
    VF_HALVES(vbslq_f32(vceqq_f32(x.lo, x.lo), a.lo, x.lo), vbslq_f32(vceqq_f32(x.hi, x.hi), a.hi, x.hi));
}
static inline float32x4_t scale_exponent_4(float32x4_t a, float32x4_t b) {
    uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(b), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), n));
}
static inline vf vf_scale_exponent(vf a, vf b) {
    VF_HALVES(scale_exponent_4(a.lo, b.lo), scale_exponent_4(a.hi, b.hi));
}
static inline float vf_sum(vf a) {
    float32x4_t s = vaddq_f32(a.lo, a.hi);
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}
static inline float vf_max_of(vf a) {
    float32x4_t s = max_4(a.lo, a.hi);
    s = max_4(s, vextq_f32(s, s, 2));
    float m0 = vgetq_lane_f32(s, 0), m1 = vgetq_lane_f32(s, 1);
    return m0 > m1 ? m0 : m1;
}
static inline vf vf_from_f16(const uint16_t *p) {
    uint16x8_t h = vld1q_u16(p);
    VF_HALVES(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))),
              vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h))));
}
static inline vf vf_from_bf16(const uint16_t *p) {
    uint16x8_t h = vld1q_u16(p);
    VF_HALVES(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
              vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)));
}
static inline void vf_to_f16(uint16_t *p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.lo)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.hi)));
}
static inline float32x4_t bf16_number_4(float32x4_t a) {
    const uint32x4_t u = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vreinterpretq_f32_u32(vandq_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), vdupq_n_u32(0xffff0000u)));
}
static inline vf vf_bf16_number(vf a) { VF_HALVES(bf16_number_4(a.lo), bf16_number_4(a.hi)); }
static inline vf vf_bf16(vf a) { return vf_keep_nan(a, vf_bf16_number(a)); }
static inline vf vf_f16(vf a) { VF_HALVES(vcvt_f32_f16(vcvt_f16_f32(a.lo)), vcvt_f32_f16(vcvt_f16_f32(a.hi))); }
static inline void vf_to_bf16(uint16_t *p, vf a) {
    const vf r = vf_bf16(a);
    vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(r.lo), 16));
    vst1_u16(p + 4, vshrn_n_u32(vreinterpretq_u32_f32(r.hi), 16));
}
static inline float block_amax(const float *x) {
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4)
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    uint32_t bits = vmaxvq_u32(top);
    float a;
    __builtin_memcpy(&a, &bits, 4);
    return a;
}
/* 8 values times inv, to nearest even, as int16. */
static inline int16x8_t rounded_8(const float *x, float inv) {
    int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inv));
    int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), inv));
    return vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
}
static inline void block_quant(int8_t *q, int16_t sum[2], const float *x, float inv) {
    for (int i = 0; i < 32; i += 16) {
        int16x8_t a = rounded_8(x + i, inv), b = rounded_8(x + i + 8, inv);
        vst1q_s8(q + i, vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)));
        sum[i / 16] = vaddvq_s16(vaddq_s16(a, b));
    }
}
static inline void block_quant16(int16_t *q, int32_t sum[2], const float *x, float inv) {
    for (int i = 0; i < 32; i += 16) {
        int16x8_t a = rounded_8(x + i, inv), b = rounded_8(x + i + 8, inv);
        vst1q_s16(q + i, a), vst1q_s16(q + i + 8, b);
        sum[i / 16] = vaddlvq_s16(a) + vaddlvq_s16(b);
    }
}
