/* loop_back: what the backward pass does to one row of f32 values. Sums run in two groups of 8 lanes as the
 * norm's (loop_row.c); the gates' derivatives are those of the approximations that the forward computes. */
#include "kern/simd.h"

#include <math.h>

/* Lanes of group (i / 8) % 2 by fma, i ascending; (group 0 + group 1), then the tree. */
static inline float join(vf s0, vf s1) {
    return vf_sum(vf_add(s0, s1));
}
/* 8 values from i on; zeros past n. Whole vectors take the short way. */
static inline vf load_to(const float *p, int i, int n) {
    return n - i >= 8 ? vf_load(p + i) : load_some(p + i, n > i ? n - i : 0);
}
static inline void store_to(float *p, int i, int n, vf a) {
    if (n - i >= 8)
        vf_store(p + i, a);
    else
        store_some(p + i, a, n - i);
}

static float dot(const float *a, const float *b, int n) {
    vf s[2] = {vf_set(0.0f), vf_set(0.0f)};
    for (int i = 0; i < n; i += 8) s[i / 8 % 2] = vf_fma(load_to(a, i, n), load_to(b, i, n), s[i / 8 % 2]);
    return join(s[0], s[1]);
}

static void scale(float *y, const float *x, float s, int n) {
    for (int i = 0; i < n; i += 8) store_to(y, i, n, vf_mul(load_to(x, i, n), vf_set(s)));
}

/* With r = 1 / sqrt(mean of squares + eps) and g = dy * w:
 *     dx = (g - x * (r * r * (sum of g x) / n)) * r */
static void norm_back(const ig_norm_back_args *a) {
    const int n = a->n;
    vf sq[2] = {vf_set(0.0f), vf_set(0.0f)}, gx[2] = {vf_set(0.0f), vf_set(0.0f)};
    for (int i = 0; i < n; i += 8) {
        vf x = load_to(a->x, i, n), g = load_to(a->dy, i, n);
        if (a->w) g = vf_mul(g, load_to(a->w, i, n));
        sq[i / 8 % 2] = vf_fma(x, x, sq[i / 8 % 2]);
        gx[i / 8 % 2] = vf_fma(g, x, gx[i / 8 % 2]);
    }
    const float r = 1.0f / sqrtf(join(sq[0], sq[1]) / (float)n + a->eps);
    const vf vr = vf_set(r), pull = vf_set(r * r * (join(gx[0], gx[1]) / (float)n));
    for (int i = 0; i < n; i += 8) {
        vf x = load_to(a->x, i, n), g = load_to(a->dy, i, n);
        if (a->w) g = vf_mul(g, load_to(a->w, i, n));
        vf d = vf_mul(vf_sub(g, vf_mul(x, pull)), vr);
        if (a->add) d = vf_add(load_to(a->dx, i, n), d);
        store_to(a->dx, i, n, d);
    }
}

/* y = g s(t) u with s = 1 / (1 + exp(-t)); t = g, or t = g (a + b g^2) for the tanh form of gelu:
 *     du = dy * (g s),  dg = (dy * u) * (s + (g s) (1 - s) dt/dg) */
static inline void gate_back(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                             int n, bool gelu) {
    const vf one = vf_set(1.0f);
    /* 2 sqrt(2 / pi), that times 0.044715, and three times that */
    const vf a = vf_set(1.5957691216057308f), b = vf_set(0.07135481282553506f),
             b3 = vf_set(0.21406443847660518f);
    for (int i = 0; i < n; i += 8) {
        vf g = load_to(gate, i, n), u = load_to(up, i, n), d = load_to(dy, i, n), t = g, slope = one;
        if (gelu) {
            vf square = vf_mul(g, g);
            t = vf_mul(g, vf_fma(square, b, a)), slope = vf_fma(square, b3, a);
        }
        vf s = vf_div(one, vf_add(one, vf_exp(vf_neg(t)))), gs = vf_mul(g, s);
        vf curve = vf_mul(vf_mul(gs, vf_sub(one, s)), slope);
        store_to(dup, i, n, vf_mul(d, gs));
        store_to(dgate, i, n, vf_mul(vf_mul(d, u), vf_add(s, curve)));
    }
}
static void swiglu_back(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                        int n) {
    gate_back(dgate, dup, dy, gate, up, n, false);
}
static void geglu_back(float *dgate, float *dup, const float *dy, const float *gate, const float *up, int n) {
    gate_back(dgate, dup, dy, gate, up, n, true);
}

/* Rope by the negative angle: lo = fma(lo, cos, hi * sin), hi = fma(hi, cos, -(lo * sin)) */
static void rope_back(float *lo, float *hi, size_t x_row, const float *cos, const float *sin, size_t angle_row, int m,
                      int n) {
    for (int t = 0; t < m; t++, lo += x_row, hi += x_row, cos += angle_row, sin += angle_row)
        for (int i = 0; i < n; i += 8) {
            vf a = vf_load(lo + i), b = vf_load(hi + i), c = vf_load(cos + i), s = vf_load(sin + i);
            vf_store(lo + i, vf_fma(a, c, vf_mul(b, s)));
            vf_store(hi + i, vf_fma(b, c, vf_neg(vf_mul(a, s))));
        }
}

static void softmax_back(float *s, float *dp, float lse, float delta, int from, int to, int n) {
    for (int k = 0; k < from; k++) s[k] = -1e30f;
    for (int k = to; k < n; k++) s[k] = -1e30f;
    for (int k = 0; k < n; k += 8) {
        vf p = vf_exp(vf_sub(vf_load(s + k), vf_set(lse)));
        vf_store(s + k, p);
        vf_store(dp + k, vf_mul(p, vf_sub(vf_load(dp + k), vf_set(delta))));
    }
}

#define ROW(op, word, member)                                                                                \
    {                                                                                                        \
        op, NULL, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME(#word), "equals scalar", {                   \
            .member = word                                                                                   \
        }                                                                                                    \
    }
static const ig_kern kerns[] = {
    ROW(IG_KERN_DOT, dot, dot),
    ROW(IG_KERN_SCALE, scale, scale),
    ROW(IG_KERN_NORM_BACK, norm_back, norm_back),
    ROW(IG_KERN_SWIGLU_BACK, swiglu_back, gate_back),
    ROW(IG_KERN_GEGLU_BACK, geglu_back, gate_back),
    ROW(IG_KERN_ROPE_BACK, rope_back, rope),
    ROW(IG_KERN_SOFTMAX_BACK, softmax_back, softmax_back),
};
KERN_EXPORT(loop_back, kerns);
