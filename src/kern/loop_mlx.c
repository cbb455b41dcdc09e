/* loop_mlx: rows and attention in the arithmetic of mlx-lm on mlx's CPU backend, tier l1. Values are 16-bit numbers kept
 * in f32; r() rounds to them after each step that mlx writes to memory. The kernels' fmt is the number: bf16 or f16.
 * Sums run over their index ascending in one chain of f32, products of two numbers being exact: fma or not, the same. */
#include "kern/simd.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
enum number { BF16, F16 };

INLINE vf r8(vf a, const enum number n) {
    return n == BF16 ? vf_bf16(a) : vf_f16(a);
}
INLINE float r1(float x, const enum number n) {
    return n == BF16 ? ig_bf16_to_f32(ig_f32_to_bf16(x)) : ig_f16_to_f32(ig_f32_to_f16(x));
}

/* ig_mlx_exp, 8 lanes. n is t rounded to nearest even, and one more where t lay halfway above it. */
INLINE vf exp8(vf x) {
    const vf magic = vf_set(12582912.0f), lim = vf_min(vf_set(88.0f), vf_max(vf_set(-88.0f), x));
    const vf t = vf_mul(lim, vf_set(1.442695f));
    vf n = vf_sub(vf_add(t, magic), magic);
    n = vf_below(vf_sub(t, n), vf_set(0.5f), n, vf_add(n, vf_set(1.0f)));
    const vf f = vf_sub(t, n);
    vf p = vf_set(1.535336188319500e-4f);
    p = vf_fma(p, f, vf_set(1.339887440266574e-3f));
    p = vf_fma(p, f, vf_set(9.618437357674640e-3f));
    p = vf_fma(p, f, vf_set(5.550332471162809e-2f));
    p = vf_fma(p, f, vf_set(2.402264791363012e-1f));
    p = vf_fma(p, f, vf_set(6.931472028550421e-1f));
    p = vf_fma(p, f, vf_set(1.0f));
    vf y = vf_mul(vf_scale_exponent(vf_set(0.0f), vf_add(vf_add(n, vf_set(127.0f)), magic)), p);
    y = vf_below(x, vf_set(-88.0f), vf_set(0.0f), y);
    y = vf_below(vf_set(88.0f), x, vf_set(INFINITY), y);
    return vf_keep_nan(x, y);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

INLINE void round_row(float *y, const float *x, int n, const enum number T) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, r8(vf_load(x + i), T));
    if (i < n) store_some(y + i, r8(load_some(x + i, n - i), T), n - i);
}

/* Of logits, which the sampler sums: not rounded. */
INLINE void exp_row(float *y, const float *x, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, exp8(vf_load(x + i)));
    if (i < n) store_some(y + i, exp8(load_some(x + i, n - i)), n - i);
}

/* q = 1 / sqrt(sum of squares * (1 / n) + eps); y = r(r(x q) w) */
INLINE void norm(float *y, const float *x, const float *w, int n, float eps, const enum number T) {
    float sum = 0.0f;
    int i = 0;
    for (; i < n; i++) sum += x[i] * x[i];
    const float q = 1.0f / sqrtf(sum * (float)(1.0 / (double)n) + eps);
    const vf vq = vf_set(q);
    for (i = 0; i + 8 <= n; i += 8) vf_store(y + i, r8(vf_mul(r8(vf_mul(vf_load(x + i), vq), T), vf_load(w + i)), T));
    for (; i < n; i++) y[i] = r1(r1(x[i] * q, T) * w[i], T);
}

/* lo = r(r(lo cos) - r(hi sin)), hi = r(r(lo sin) + r(hi cos)) */
INLINE void rope(float *lo, float *hi, size_t x_row, const float *cos, const float *sin, size_t angle_row, int m, int n,
                 const enum number T) {
    for (int t = 0; t < m; t++, lo += x_row, hi += x_row, cos += angle_row, sin += angle_row)
        for (int i = 0; i < n; i += 8) {
            const vf a = vf_load(lo + i), b = vf_load(hi + i), c = vf_load(cos + i), s = vf_load(sin + i);
            vf_store(lo + i, r8(vf_sub(r8(vf_mul(a, c), T), r8(vf_mul(b, s), T)), T));
            vf_store(hi + i, r8(vf_add(r8(vf_mul(a, s), T), r8(vf_mul(b, c), T)), T));
        }
}

/* sigmoid: y = 1 / (1 + r(exp |x|)), of x below 0 that, else 1 - y; r(r(g sigmoid) u) */
INLINE vf swiglu8(vf g, vf u, const enum number T) {
    const vf one = vf_set(1.0f), zero = vf_set(0.0f), size = vf_below(g, zero, vf_neg(g), g);
    const vf y = vf_div(one, vf_add(one, r8(exp8(size), T)));
    const vf sigmoid = r8(vf_below(g, zero, y, vf_sub(one, y)), T);
    return r8(vf_mul(r8(vf_mul(g, sigmoid), T), u), T);
}
INLINE void swiglu(float *y, const float *gate, const float *up, int n, const enum number T) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, swiglu8(vf_load(gate + i), vf_load(up + i), T));
    if (i < n) store_some(y + i, swiglu8(load_some(gate + i, n - i), load_some(up + i, n - i), T), n - i);
}

/* r(gelu u), gelu by its table */
INLINE void geglu(float *y, const float *gate, const float *up, int n, const enum number T) {
    const uint16_t *table = ig_mlx_gelu(T == BF16 ? &ig_fmt_bf16 : &ig_fmt_f16);
    for (int i = 0; i < n; i++) {
        const uint16_t g = table[T == BF16 ? ig_f32_to_bf16(gate[i]) : ig_f32_to_f16(gate[i])];
        y[i] = r1((T == BF16 ? ig_bf16_to_f32(g) : ig_f16_to_f32(g)) * up[i], T);
    }
}

INLINE void add(float *y, size_t y_row, const float *a, size_t a_row, const float *b, size_t b_row, int m, int n,
                const enum number T) {
    for (int t = 0; t < m; t++, y += y_row, a += a_row, b += b_row) {
        int i = 0;
        for (; i + 8 <= n; i += 8) vf_store(y + i, r8(vf_add(vf_load(a + i), vf_load(b + i)), T));
        for (; i < n; i++) y[i] = r1(a[i] + b[i], T);
    }
}

/* s is a number already */
INLINE void scale(float *y, const float *x, float s, int n, const enum number T) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_store(y + i, r8(vf_mul(vf_load(x + i), vf_set(s)), T));
    for (; i < n; i++) y[i] = r1(x[i] * s, T);
}

/* r(r(tanh r(x / cap)) cap) */
INLINE void softcap(float *y, float *slope, const float *x, float cap, int n, const enum number T) {
    for (int i = 0; i < n; i++) {
        const float t = r1(ig_mlx_tanh(r1(x[i] / cap, T)), T);
        y[i] = r1(t * cap, T);
        if (slope) slope[i] = 0.0f; /* nobody trains in tier l1 */
    }
}

/* ---- attention ----------------------------------------------------------------------------------------- */

enum { KEYS = IG_KV_BLOCK_TOKENS };
INLINE vf kept8(const uint16_t *p, const enum number T) {
    return T == BF16 ? vf_from_bf16(p) : vf_from_f16(p);
}

/* Positions from .. to - 1, in the order of the sums: one run, in a ring two. */
typedef struct runs {
    int n, from[2], to[2];
} runs;

static runs order_of(const ig_attention_args *a, int pos) {
    const int first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    if (!a->in_ring) return (runs){1, {first, 0}, {pos + 1, 0}};
    const int begin = a->ring_from > a->window ? a->ring_from : 0, slot = (pos - begin) % a->window;
    return (runs){2, {pos - slot, first}, {pos + 1, pos - slot}};
}

/* Scores of one block for every query: r(sum over d of q k), lanes over keys. */
INLINE void block_scores(float *scores, size_t n_keys, const ig_attention_args *a, float *keys, const uint16_t *k,
                         const enum number T) {
    const int n_d = a->head_dim;
    for (int i = 0; i < n_d * KEYS; i += 8) vf_store(keys + i, kept8(k + i, T));
    for (int i = 0; i < a->n_q; i++) {
        const float *q = a->q + (size_t)i * (size_t)n_d;
        float *s = scores + (size_t)i * n_keys;
        vf sum[KEYS / 8];
        for (int j = 0; j < KEYS / 8; j++) sum[j] = vf_set(0.0f);
        for (int d = 0; d < n_d; d++) {
            const vf v = vf_set(q[d]);
            for (int j = 0; j < KEYS / 8; j++) sum[j] = vf_fma(v, vf_load(keys + d * KEYS + 8 * j), sum[j]);
        }
        for (int j = 0; j < KEYS / 8; j++) vf_store(s + 8 * j, r8(sum[j], T));
        if (a->softcap > 0.0f) softcap(s, NULL, s, a->softcap, KEYS, T);
    }
}

/* Scores to probabilities in place: r(exp(s - max) * (1 / sum)), the sum in the order of the runs. `first`: of scores. */
INLINE void softmax(float *s, int first, const runs *o, const enum number T) {
    float max = -INFINITY, sum = 0.0f;
    for (int i = 0; i < o->n; i++)
        for (int j = o->from[i] - first; j < o->to[i] - first; j++) max = s[j] > max ? s[j] : max;
    for (int i = 0; i < o->n; i++) {
        const int from = o->from[i] - first, to = o->to[i] - first;
        int j = from;
        for (; j + 8 <= to; j += 8) vf_store(s + j, exp8(vf_sub(vf_load(s + j), vf_set(max))));
        if (j < to) store_some(s + j, exp8(vf_sub(load_some(s + j, to - j), vf_set(max))), to - j);
        for (j = from; j < to; j++) sum += s[j];
    }
    sum = 1.0f / sum;
    for (int i = 0; i < o->n; i++) scale(s + o->from[i] - first, s + o->from[i] - first, sum, o->to[i] - o->from[i], T);
}

/* out += probabilities [from, to) of a block times its values, lanes over dimensions. */
INLINE void block_values(float *out, const float *p, const float *values, int from, int to, int n_d) {
    for (int d = 0; d < n_d; d += 16) {
        vf y0 = vf_load(out + d), y1 = vf_load(out + d + 8);
        for (int j = from; j < to; j++) {
            const vf v = vf_set(p[j]);
            y0 = vf_fma(v, vf_load(values + j * n_d + d), y0), y1 = vf_fma(v, vf_load(values + j * n_d + d + 8), y1);
        }
        vf_store(out + d, y0), vf_store(out + d + 8, y1);
    }
}

/* Blocks of a run, ascending, for all queries: each takes of a block what it sees. */
INLINE void run_values(const ig_attention_args *a, float *scores, size_t n_keys, int first, float *values, int run,
                       int from, int to, const enum number T) {
    const int n_d = a->head_dim;
    for (int b = from / KEYS; b * KEYS < to; b++) {
        const uint16_t *v = (const uint16_t *)a->block[b] + (size_t)n_d * KEYS;
        for (int i = 0; i < n_d * KEYS; i += 8) vf_store(values + i, kept8(v + i, T));
        for (int i = 0; i < a->n_q; i++) {
            const runs o = order_of(a, a->pos[i]);
            const int lo = o.from[run] > b * KEYS ? o.from[run] - b * KEYS : 0;
            const int hi = o.to[run] < (b + 1) * KEYS ? o.to[run] - b * KEYS : KEYS;
            block_values(a->out + (size_t)i * (size_t)n_d, scores + (size_t)i * n_keys + (size_t)(b * KEYS - first), values,
                         lo, hi, n_d);
        }
    }
}

INLINE void attention(const ig_attention_args *a, const enum number T) {
    const int n_d = a->head_dim, last = a->pos[a->n_q - 1];
    const int low = a->window > 0 && a->pos[0] >= a->window ? a->pos[0] - a->window + 1 : 0;
    const int first = low / KEYS * KEYS; /* position of score 0 */
    const size_t n_keys = (size_t)((last / KEYS + 1) * KEYS - first);
    float *block = a->scratch, *scores = a->scratch + (size_t)n_d * KEYS;
    ig_assert(!a->lse && !a->m && (!a->in_ring || (a->window > 0 && a->pos[0] == last)));
    for (int b = first / KEYS; b * KEYS <= last; b++)
        block_scores(scores + (b * KEYS - first), n_keys, a, block, a->block[b], T);
    for (int i = 0; i < a->n_q; i++) {
        const runs o = order_of(a, a->pos[i]);
        softmax(scores + (size_t)i * n_keys, first, &o, T);
    }
    memset(a->out, 0, (size_t)a->n_q * (size_t)n_d * sizeof *a->out);
    const runs o = order_of(a, last);
    if (a->in_ring)
        for (int run = 0; run < 2; run++)
            run_values(a, scores, n_keys, first, block, run, o.from[run], o.to[run], T);
    else
        run_values(a, scores, n_keys, first, block, 0, low, last + 1, T);
    for (int i = 0; i < a->n_q; i++)
        round_row(a->out + (size_t)i * (size_t)n_d, a->out + (size_t)i * (size_t)n_d, n_d, T);
}

/* ---- of either number ---------------------------------------------------------------------------------- */

#define FUNCTIONS(t, T)                                                                                                \
    static void round_##t(float *y, const float *x, int n) { round_row(y, x, n, T); }                                  \
    static void exp_##t(float *y, const float *x, int n) { exp_row(y, x, n); }                                         \
    static void norm_##t(float *y, const float *x, const float *w, int n, float eps) { norm(y, x, w, n, eps, T); }     \
    static void rope_##t(float *lo, float *hi, size_t x_row, const float *cos, const float *sin, size_t angle_row,     \
                         int m, int n) {                                                                               \
        rope(lo, hi, x_row, cos, sin, angle_row, m, n, T);                                                             \
    }                                                                                                                  \
    static void swiglu_##t(float *y, const float *gate, const float *up, int n) { swiglu(y, gate, up, n, T); }         \
    static void geglu_##t(float *y, const float *gate, const float *up, int n) { geglu(y, gate, up, n, T); }           \
    static void add_##t(float *y, size_t y_row, const float *a, size_t a_row, const float *b, size_t b_row, int m,     \
                        int n) {                                                                                       \
        add(y, y_row, a, a_row, b, b_row, m, n, T);                                                                    \
    }                                                                                                                  \
    static void scale_##t(float *y, const float *x, float s, int n) { scale(y, x, s, n, T); }                          \
    static void softcap_##t(float *y, float *slope, const float *x, float cap, int n) {                                \
        softcap(y, slope, x, cap, n, T);                                                                               \
    }                                                                                                                  \
    static void attention_##t(const ig_attention_args *a) { attention(a, T); }
FUNCTIONS(bf16, BF16)
FUNCTIONS(f16, F16)

static void to_f16_bf16(uint16_t *y, const float *x, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_to_bf16(y + i, vf_load(x + i));
    for (; i < n; i++) y[i] = ig_f32_to_bf16(x[i]);
}
static void to_f16_f16(uint16_t *y, const float *x, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) vf_to_f16(y + i, vf_load(x + i));
    for (; i < n; i++) y[i] = ig_f32_to_f16(x[i]);
}

#define KERN(op_, word, t)                                                                                             \
    {.op = op_, .fmt = &ig_fmt_##t, .tier = IG_TIER_L1, .cpu_needs = SIMD_NEEDS, .speed = SIMD_SPEED,                  \
     .name = KERN_NAME(#word "_" #t), .proof = "equals scalar", .fn = {.word = word##_##t}}
#define KERNS(t)                                                                                                       \
    KERN(IG_KERN_ROUND, round, t), KERN(IG_KERN_NORM, norm, t), KERN(IG_KERN_ROPE, rope, t),                           \
        KERN(IG_KERN_SWIGLU, swiglu, t), KERN(IG_KERN_GEGLU, geglu, t), KERN(IG_KERN_ADD, add, t),                     \
        KERN(IG_KERN_SCALE, scale, t), KERN(IG_KERN_SOFTCAP, softcap, t), KERN(IG_KERN_TO_F16, to_f16, t),             \
        KERN(IG_KERN_ATTENTION, attention, t), KERN(IG_KERN_EXP, exp, t)
static const ig_kern kerns[] = {KERNS(bf16), KERNS(f16)};
KERN_EXPORT(loop_mlx, kerns);
