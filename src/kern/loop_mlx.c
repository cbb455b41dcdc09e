/* loop_mlx: rows and attention in the arithmetic of mlx-lm on mlx's CPU backend, tiers l1 and l2. Values are 16-bit numbers kept
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

/* acc + a b, each step rounded or none. */
INLINE vf step8(vf a, vf b, vf acc, const bool rounds, const enum number T) {
    return rounds ? r8(vf_add(acc, r8(vf_mul(a, b), T)), T) : vf_fma(a, b, acc);
}

/* Scores of one block for every query: r(sum over d of q k), lanes over keys. */
INLINE void block_scores(float *scores, size_t n_keys, const ig_attention_args *a, float *keys, const uint16_t *k,
                         const bool rounds, const enum number T) {
    const int n_d = a->head_dim;
    for (int i = 0; i < n_d * KEYS; i += 8) vf_store(keys + i, kept8(k + i, T));
    for (int i = 0; i < a->n_q; i++) {
        const float *q = a->q + (size_t)i * (size_t)n_d;
        float *s = scores + (size_t)i * n_keys;
        vf sum[KEYS / 8];
        for (int j = 0; j < KEYS / 8; j++) sum[j] = vf_set(0.0f);
        for (int d = 0; d < n_d; d++) {
            const vf v = vf_set(q[d]);
            for (int j = 0; j < KEYS / 8; j++) sum[j] = step8(v, vf_load(keys + d * KEYS + 8 * j), sum[j], rounds, T);
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
INLINE void block_values(float *out, const float *p, const float *values, int from, int to, int n_d, const bool rounds,
                         const enum number T) {
    for (int d = 0; d < n_d; d += 16) {
        vf y0 = vf_load(out + d), y1 = vf_load(out + d + 8);
        for (int j = from; j < to; j++) {
            const vf v = vf_set(p[j]);
            y0 = step8(v, vf_load(values + j * n_d + d), y0, rounds, T);
            y1 = step8(v, vf_load(values + j * n_d + d + 8), y1, rounds, T);
        }
        vf_store(out + d, y0), vf_store(out + d + 8, y1);
    }
}

/* What the blocks hold for this form. */
static const uint16_t *keys_of(const ig_attention_args *a, int b) {
    const size_t part = (size_t)a->head_dim * KEYS;
    return (const uint16_t *)a->block[b] + (a->form == IG_ATTENTION_PLAIN ? 0 : part);
}
static const uint16_t *values_of(const ig_attention_args *a, int b) {
    return keys_of(a, b) + ig_kv_part_bytes(a->kind, a->head_dim) / sizeof(uint16_t);
}

/* What all queries make of a call: scores by position, query i's from `scores` + i n_keys on, the first of them that of
 * position `first`; a block made floats. */
typedef struct sheet {
    float *scores, *block;
    size_t n_keys;
    int first;
} sheet;

/* Blocks of positions from .. to - 1, ascending, for all queries: each takes of a block what it sees. Query i's own part
 * of run `run` bounds it. */
INLINE void run_values(float *out, const ig_attention_args *a, const sheet *s, int run, int from, int to, const bool rounds,
                       const enum number T) {
    const int n_d = a->head_dim;
    for (int b = from / KEYS; b * KEYS < to; b++) {
        const uint16_t *v = values_of(a, b);
        const int begin = from > b * KEYS ? from - b * KEYS : 0, end = to < (b + 1) * KEYS ? to - b * KEYS : KEYS;
        for (int i = 0; i < n_d * KEYS; i += 8) vf_store(s->block + i, kept8(v + i, T));
        for (int i = 0; i < a->n_q; i++) {
            const runs o = order_of(a, a->pos[i]);
            const int lo = o.from[run] > b * KEYS + begin ? o.from[run] - b * KEYS : begin;
            const int hi = o.to[run] < b * KEYS + end ? o.to[run] - b * KEYS : end;
            block_values(out + (size_t)i * (size_t)n_d, s->scores + (size_t)i * s->n_keys + (size_t)(b * KEYS - s->first),
                         s->block, lo, hi, n_d, rounds, T);
        }
    }
}

INLINE void all_scores(const ig_attention_args *a, const sheet *s, const bool rounds, const enum number T) {
    for (int b = s->first / KEYS; b * KEYS <= a->pos[a->n_q - 1]; b++)
        block_scores(s->scores + (b * KEYS - s->first), s->n_keys, a, s->block, keys_of(a, b), rounds, T);
}

/* Probabilities of all keys, then values. */
INLINE void at_once(const ig_attention_args *a, const sheet *s, const bool rounds, const enum number T) {
    const int n_d = a->head_dim, last = a->pos[a->n_q - 1];
    const int low = a->window > 0 && a->pos[0] >= a->window ? a->pos[0] - a->window + 1 : 0;
    all_scores(a, s, rounds, T);
    for (int i = 0; i < a->n_q; i++) {
        const runs o = order_of(a, a->pos[i]);
        softmax(s->scores + (size_t)i * s->n_keys, s->first, &o, T);
    }
    memset(a->out, 0, (size_t)a->n_q * (size_t)n_d * sizeof *a->out);
    const runs o = order_of(a, last);
    if (a->in_ring)
        for (int run = 0; run < 2; run++) run_values(a->out, a, s, run, o.from[run], o.to[run], rounds, T);
    else
        run_values(a->out, a, s, 0, low, last + 1, rounds, T);
    for (int i = 0; i < a->n_q; i++)
        round_row(a->out + (size_t)i * (size_t)n_d, a->out + (size_t)i * (size_t)n_d, n_d, T);
}

/* Keys at .. at + IG_ATTENTION_TILE_KEYS - 1 in the order of the sums, as runs of positions. */
static runs tile_of(const runs *o, int at) {
    runs t = {o->n, {0, 0}, {0, 0}};
    int before = 0;
    for (int run = 0; run < o->n; run++) {
        const int n = o->to[run] - o->from[run], lo = at > before ? at - before : 0;
        const int end = at + IG_ATTENTION_TILE_KEYS - before, hi = end < n ? end : n;
        if (lo < hi) t.from[run] = o->from[run] + lo, t.to[run] = o->from[run] + hi;
        before += n;
    }
    return t;
}

/* One tile of one query: scores to e = r(exp(r(s - m'))) in place; gives r(sum of e); *max: m, and then m'. */
INLINE float tile_weights(float *s, int first, const runs *t, float *max, const enum number T) {
    float sum = 0.0f;
    for (int run = 0; run < t->n; run++)
        for (int j = t->from[run] - first; j < t->to[run] - first; j++) *max = s[j] > *max ? s[j] : *max;
    const vf m = vf_set(*max);
    for (int run = 0; run < t->n; run++) {
        const int from = t->from[run] - first, to = t->to[run] - first;
        int j = from;
        for (; j + 8 <= to; j += 8) vf_store(s + j, r8(exp8(r8(vf_sub(vf_load(s + j), m), T)), T));
        if (j < to) store_some(s + j, r8(exp8(r8(vf_sub(load_some(s + j, to - j), m), T)), T), to - j);
        for (j = from; j < to; j++) sum += s[j];
    }
    return r1(sum, T);
}

/* Tile after tile: o = r(r(o f) + the tile's sum of e v), f = r(exp(r(m - m'))); l = r(r(f l) + the tile's); r(o / l). */
INLINE void in_tiles(const ig_attention_args *a, const sheet *s, float *more, const enum number T) {
    const int n_d = a->head_dim, n_q = a->n_q, last = a->pos[n_q - 1];
    const runs all = order_of(a, last);
    int n_seen = 0;
    float *m = more + (size_t)n_q * (size_t)n_d, *l = m + n_q, *f = l + n_q;
    for (int run = 0; run < all.n; run++) n_seen += all.to[run] - all.from[run];
    ig_assert(a->in_ring || a->window == 0 || last < a->window); /* so that all count from the same key */
    all_scores(a, s, true, T);
    for (int i = 0; i < n_q; i++) m[i] = -INFINITY, l[i] = 0.0f;
    for (int at = 0; at < n_seen; at += IG_ATTENTION_TILE_KEYS) {
        float *out = at == 0 ? a->out : more;
        for (int i = 0; i < n_q; i++) {
            const runs o = order_of(a, a->pos[i]), t = tile_of(&o, at);
            float max = m[i], by[8];
            const float sum = tile_weights(s->scores + (size_t)i * s->n_keys, s->first, &t, &max, T);
            vf_store(by, exp8(vf_set(r1(m[i] - max, T))));
            f[i] = r1(by[0], T);
            l[i] = r1(r1(f[i] * l[i], T) + sum, T);
            m[i] = max;
        }
        memset(out, 0, (size_t)n_q * (size_t)n_d * sizeof *out);
        const runs t = tile_of(&all, at);
        for (int run = 0; run < t.n; run++)
            if (t.from[run] < t.to[run]) run_values(out, a, s, run, t.from[run], t.to[run], true, T);
        for (int i = 0; i < n_q && at > 0; i++) {
            float *y = a->out + (size_t)i * (size_t)n_d;
            scale(y, y, f[i], n_d, T), add(y, 0, y, 0, more + (size_t)i * (size_t)n_d, 0, 1, n_d, T);
        }
    }
    for (int i = 0; i < n_q; i++) {
        float *y = a->out + (size_t)i * (size_t)n_d;
        for (int d = 0; d < n_d; d += 8) vf_store(y + d, r8(vf_div(vf_load(y + d), vf_set(l[i])), T));
    }
}

INLINE void attention(const ig_attention_args *a, const enum number T) {
    const int n_d = a->head_dim, last = a->pos[a->n_q - 1];
    const int low = a->window > 0 && a->pos[0] >= a->window ? a->pos[0] - a->window + 1 : 0;
    const int first = low / KEYS * KEYS; /* position of score 0 */
    const size_t n_keys = (size_t)((last / KEYS + 1) * KEYS - first);
    const sheet s = {a->scratch + (size_t)n_d * KEYS, a->scratch, n_keys, first};
    ig_assert(!a->lse && !a->m && (!a->in_ring || (a->window > 0 && a->pos[0] == last)));
    ig_assert(a->form == IG_ATTENTION_PLAIN || (ig_kv_is_twice(a->kind) && a->softcap == 0.0f));
    if (a->form == IG_ATTENTION_PLAIN) at_once(a, &s, false, T);
    else if (a->form == IG_ATTENTION_ROUNDED) at_once(a, &s, true, T);
    else in_tiles(a, &s, s.scores + (size_t)a->n_q * n_keys, T);
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
