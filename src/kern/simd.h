/* simd: what a kernel file includes, and nothing else of ours. IG_ISA is set by the build; the words come
 * from simd/<isa>.h. A kernel file exports its list with KERN_EXPORT; the list of all files is made by the
 * build. */
#ifndef IG_SIMD_H
#define IG_SIMD_H

#include "kern/kern.h"

#define IG_CAT2(a, b) a##__##b
#define IG_CAT(a, b) IG_CAT2(a, b)
#define IG_STR2(a) #a
#define IG_STR(a) IG_STR2(a)
#define KERN_NAME(base) base "." IG_STR(IG_ISA)
#define KERN_EXPORT(file, arr)                        \
    extern const ig_kern_set IG_CAT(ig_kerns_##file, IG_ISA); \
    const ig_kern_set IG_CAT(ig_kerns_##file, IG_ISA) = {arr, (int)(sizeof(arr) / sizeof((arr)[0]))}

#include IG_STR(simd/IG_ISA.h)

/* A format's object lives in the scalar build of its file; the other builds only name it. */
#define FMT_DECLARE(fmt) extern const ig_fmt ig_fmt_##fmt

/* n < 8 values, the rest zero */
static inline vf load_some(const float *p, int n) {
    float t[8] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return vf_load(t);
}
static inline void store_some(float *p, vf a, int n) {
    float t[8];
    vf_store(t, a);
    for (int i = 0; i < n; i++) p[i] = t[i];
}

/* ig_kv_scale of 8 */
static inline vf vf_kv_scale(const uint16_t *kept) {
    return vf_mul(vf_from_f16(kept), vf_set(0x1p-6f));
}

/* exp, 8 lanes: Cephes' degree-5 remainder polynomial (coefficients are facts of that library), range
 * reduction by n = round(x log2 e) in two parts of ln 2. Relative error about 1e-7. docs/numerics.md. */
static inline vf vf_exp(vf x) {
    const vf magic = vf_set(12582912.0f); /* 1.5 * 2^23: the fraction's low bits are the integer */
    vf lim = vf_min(vf_set(88.0f), vf_max(vf_set(-87.3f), x));
    vf t = vf_fma(lim, vf_set(1.44269504f), magic);
    vf n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set(-0.693359375f), lim);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set(1.0f)));
    vf y = vf_scale_exponent(p, t);
    return vf_keep_nan(x, vf_below(x, vf_set(-87.3f), vf_set(0.0f), y));
}

/* tanh: Cephes' polynomial below 0.625 (coefficients are facts of that library), beyond it
 * 1 - 2 / (exp(2 |x|) + 1) with x's sign. */
static inline vf vf_tanh(vf x) {
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), limit = vf_set(0.625f), size = vf_max(x, vf_neg(x));
    vf z = vf_mul(x, x), p = vf_set(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set(-3.33332819422e-1f));
    p = vf_fma(vf_mul(p, z), x, x);
    vf far = vf_sub(one, vf_div(vf_set(2.0f), vf_add(vf_exp(vf_add(size, size)), one)));
    return vf_keep_nan(x, vf_below(size, limit, p, vf_below(x, zero, vf_neg(far), far)));
}
/* cap * tanh(x / cap) */
static inline vf vf_softcap(vf x, vf cap) {
    return vf_mul(vf_tanh(vf_div(x, cap)), cap);
}

#endif
