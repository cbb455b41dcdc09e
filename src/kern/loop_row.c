/* loop_row: what happens to one row of f32 values: norm, quantisation, gate, sums, rope, conversion.
 * Sums run in 8 lanes (two groups of 8 for the norm) and are joined by vf_sum's tree; a tail counts as
 * padded with zeros. */
#include "kern/simd.h"

#include <math.h>
#include <string.h>

/* Sum of squares: lanes of group (i / 8) % 2 by fma, i ascending; (group 0 + group 1), then the tree. */
static void norm(float *y, const float *x, const float *w, int n, float eps) {
    vf s0 = vf_set(0.0f), s1 = s0;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        vf a = vf_load(x + i), b = vf_load(x + i + 8);
        s0 = vf_fma(a, a, s0);
        s1 = vf_fma(b, b, s1);
    }
    if (i + 8 <= n) {
        vf a = vf_load(x + i), b = load_some(x + i + 8, n - i - 8);
        s0 = vf_fma(a, a, s0);
        s1 = vf_fma(b, b, s1);
    } else if (i < n) {
        vf a = load_some(x + i, n - i);
        s0 = vf_fma(a, a, s0);
    }
    float r = 1.0f / sqrtf(vf_sum(vf_add(s0, s1)) / (float)n + eps);
    vf vr = vf_set(r);
    for (i = 0; i + 8 <= n; i += 8) vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), vr), vf_load(w + i)));
    for (; i < n; i++) y[i] = x[i] * r * w[i];
}

static void quant(int8_t *q, float *scale, int16_t *qsum, float *sum, const float *x, int n) {
    for (int b = 0; b < n / 32; b++, x += 32, q += 32, qsum += 2) {
        float amax = block_amax(x), s = amax / 127.0f;
        if (amax >= 0x1p-100f && amax < INFINITY) {
            block_quant(q, qsum, x, 127.0f / amax);
        } else { /* nothing there, or a number that must show in the logits: then s is not finite */
            __builtin_memset(q, 0, 32);
            qsum[0] = qsum[1] = 0;
            if (amax < 0x1p-100f) s = 0.0f;
        }
        scale[b] = s;
        sum[b] = s * (float)(qsum[0] + qsum[1]);
    }
}

static void quant16(int16_t *q, float *scale, int32_t *qsum, float *sum, const float *x, int n) {
    for (int b = 0; b < n / 32; b++, x += 32, q += 32, qsum += 2) {
        float amax = block_amax(x), s = amax < 0x1p-100f ? 0.0f : amax / 32767.0f;
        if (amax >= 0x1p-100f && amax < INFINITY) {
            block_quant16(q, qsum, x, 32767.0f / amax);
        } else { /* as in quant */
            __builtin_memset(q, 0, 32 * sizeof *q);
            qsum[0] = qsum[1] = 0;
        }
        scale[b] = s;
        sum[b] = s * (float)(qsum[0] + qsum[1]);
    }
}

static inline vf swiglu8(vf g, vf u) {
    return vf_mul(vf_div(g, vf_add(vf_set(1.0f), vf_exp(vf_neg(g)))), u);
}
static void swiglu(float *y, const float *gate, const float *up, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, swiglu8(vf_load(gate + i), vf_load(up + i)));
    if (i < n) store_some(y + i, swiglu8(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i);
}

static inline vf geglu8(vf g, vf u) {
    const vf a = vf_set(1.5957691216057308f), b = vf_set(0.07135481282553506f); /* 2 sqrt(2 / pi), times 0.044715 */
    vf twice = vf_mul(g, vf_fma(vf_mul(g, g), b, a));
    return vf_mul(vf_div(g, vf_add(vf_set(1.0f), vf_exp(vf_neg(twice)))), u);
}
static void geglu(float *y, const float *gate, const float *up, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, geglu8(vf_load(gate + i), vf_load(up + i)));
    if (i < n) store_some(y + i, geglu8(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i);
}

static void add(float *y, size_t y_row, const float *a, size_t a_row, const float *b, size_t b_row, int m, int n) {
    for (int t = 0; t < m; t++, y += y_row, a += a_row, b += b_row) {
        int i = 0;
        for (; i + 8 <= n; i += 8) vf_store(y + i, vf_add(vf_load(a + i), vf_load(b + i)));
        for (; i < n; i++) y[i] = a[i] + b[i];
    }
}

/* lo = fma(lo, cos, -(hi * sin)), hi = fma(lo, sin, hi * cos) */
static void rope(float *lo, float *hi, size_t x_row, const float *cos, const float *sin, size_t angle_row, int m,
                 int n) {
    for (int t = 0; t < m; t++, lo += x_row, hi += x_row, cos += angle_row, sin += angle_row)
        for (int i = 0; i < n; i += 8) {
            vf a = vf_load(lo + i), b = vf_load(hi + i), c = vf_load(cos + i), s = vf_load(sin + i);
            vf_store(lo + i, vf_fma(a, c, vf_neg(vf_mul(b, s))));
            vf_store(hi + i, vf_fma(a, s, vf_mul(b, c)));
        }
}

static void to_f16(uint16_t *y, const float *x, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_to_f16(y + i, vf_load(x + i));
    for (; i < n; i++) y[i] = ig_f32_to_f16(x[i]);
}

/* scale = f16(64 * (max |x| / 127)), q = x by a 64th of that, at most 127 either way, to the nearest, ties to even. */
static void to_kv8(int8_t *q, uint16_t *scale, const float *x) {
    uint32_t top = 0;
    for (int i = 0; i < IG_KV_GROUP; i++) { /* as bits, so that NaN > inf > any number */
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        u &= 0x7fffffffu;
        top = u > top ? u : top;
    }
    float most;
    memcpy(&most, &top, sizeof most);
    *scale = ig_kv_scale_kept(most / 127.0f);
    const float d = ig_kv_scale(*scale);
    if ((*scale & 0x7c00u) == 0x7c00u || d == 0.0f) {
        memset(q, 0, IG_KV_GROUP);
        return;
    }
    const float inv = 1.0f / d;
    for (int i = 0; i < IG_KV_GROUP; i++) {
        const float y = x[i] * inv, low = y > -127.0f ? y : -127.0f;
        /* adding and taking away 1.5 * 2^23 rounds to nearest even */
        q[i] = (int8_t)(((low < 127.0f ? low : 127.0f) + 12582912.0f) - 12582912.0f);
    }
}

static void exp_row(float *y, const float *x, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n) store_some(y + i, vf_exp(load_some(x + i, n - i)), n - i);
}

static const ig_kern kerns[] = {
    {IG_KERN_NORM,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("norm"),
     "equals scalar",
     {.norm = norm}},
    {IG_KERN_QUANT,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("quant"),
     "equals scalar",
     {.quant = quant}},
    {IG_KERN_QUANT16,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("quant16"),
     "equals scalar",
     {.quant16 = quant16}},
    {IG_KERN_SWIGLU,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("swiglu"),
     "equals scalar",
     {.swiglu = swiglu}},
    {IG_KERN_GEGLU,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("geglu"),
     "equals scalar",
     {.geglu = geglu}},
    {IG_KERN_ADD, NULL, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("add"), "equals scalar", {.add = add}},
    {IG_KERN_ROPE,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("rope"),
     "equals scalar",
     {.rope = rope}},
    {IG_KERN_TO_F16,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("to_f16"),
     "equals scalar",
     {.to_f16 = to_f16}},
    {IG_KERN_TO_KV8,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("to_kv8"),
     "equals scalar",
     {.to_kv8 = to_kv8}},
    {IG_KERN_EXP,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("exp"),
     "equals scalar",
     {.exp = exp_row}},
};
KERN_EXPORT(loop_row, kerns);
