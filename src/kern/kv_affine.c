/* kv_affine: what kv_affine.h says, in its order. tools/golden/l2/ref.py is the same in numpy and is compared
 * with the references themselves; kv_affine_test.c compares this file with it. Compiled without contraction:
 * a fused multiply-add is only where fmaf is written. */
#include "kern/kv_affine.h"

#include <math.h>
#include <string.h>

typedef ig_kv_affine_type type;

static float r(type t, float x) {
    return t == IG_KV_AFFINE_BF16 ? ig_bf16_to_f32(ig_f32_to_bf16(x)) : ig_f16_to_f32(ig_f32_to_f16(x));
}
static uint16_t bits_of(type t, float x) {
    return t == IG_KV_AFFINE_BF16 ? ig_f32_to_bf16(x) : ig_f32_to_f16(x);
}
static float of_bits(type t, uint16_t h) {
    return t == IG_KV_AFFINE_BF16 ? ig_bf16_to_f32(h) : ig_f16_to_f32(h);
}
static float lowest(type t) {
    return t == IG_KV_AFFINE_BF16 ? -0x1.fep127f : -65504.0f;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static void put_code(uint8_t *code, int bits, int i, int value) {
    int at = i * bits, low = at & 7;
    code[at >> 3] = (uint8_t)(code[at >> 3] | value << low);
    if (low + bits <= 8) return;
    code[(at >> 3) + 1] = (uint8_t)(code[(at >> 3) + 1] | value >> (8 - low));
}
static int get_code(const uint8_t *code, int bits, int i) {
    int at = i * bits, low = at & 7, value = code[at >> 3] >> low;
    if (low + bits > 8) value |= code[(at >> 3) + 1] << (8 - low);
    return value & ((1 << bits) - 1);
}

void ig_kv_affine_quant(const ig_kv_affine *f, ig_kv_affine_rows to, int row, const float *x, int n) {
    const int n_groups = n / f->group, bytes = n * f->bits / 8;
    const float bins = (float)((1 << f->bits) - 1);
    uint8_t *code = to.code + (size_t)row * (size_t)bytes;
    memset(code, 0, (size_t)bytes);
    for (int g = 0; g < n_groups; g++) {
        const float *v = x + g * f->group;
        float low = v[0], high = v[0];
        for (int i = 1; i < f->group; i++) low = fminf(low, v[i]), high = fmaxf(high, v[i]);
        /* The end that is farther from 0 is a code, and 0 is one when the step divides that end. */
        bool below = fabsf(low) > fabsf(high);
        float scale = fmaxf((high - low) / bins, 1e-7f), edge = below ? low : high, bias = 0.0f;
        if (!below) scale = -scale;
        float steps = rintf(edge / scale);
        if (steps != 0.0f) scale = edge / steps, bias = edge;
        for (int i = 0; i < f->group; i++) {
            float c = rintf((v[i] - bias) / scale);
            put_code(code, f->bits, g * f->group + i, (int)fminf(fmaxf(c, 0.0f), bins));
        }
        to.scale[(size_t)row * (size_t)n_groups + (size_t)g] = bits_of(f->type, scale);
        to.bias[(size_t)row * (size_t)n_groups + (size_t)g] = bits_of(f->type, bias);
    }
}

void ig_kv_affine_dequant(const ig_kv_affine *f, ig_kv_affine_rows from, int row, float *x, int n) {
    const int n_groups = n / f->group;
    const uint8_t *code = from.code + (size_t)row * (size_t)(n * f->bits / 8);
    for (int i = 0; i < n; i++) {
        size_t g = (size_t)row * (size_t)n_groups + (size_t)(i / f->group);
        float scaled = r(f->type, of_bits(f->type, from.scale[g]) * (float)get_code(code, f->bits, i));
        x[i] = r(f->type, scaled + of_bits(f->type, from.bias[g]));
    }
}

void ig_kv_affine_round(float *x, int n, int bits, int group, const ig_fmt *number) {
    const ig_kv_affine f = {bits, group, number == &ig_fmt_bf16 ? IG_KV_AFFINE_BF16 : IG_KV_AFFINE_F16};
    uint8_t code[IG_HEAD_DIM_MAX];
    uint16_t scale[IG_HEAD_DIM_MAX], bias[IG_HEAD_DIM_MAX];
    ig_assert(n <= IG_HEAD_DIM_MAX && n % group == 0);
    ig_kv_affine_quant(&f, (ig_kv_affine_rows){code, scale, bias}, 0, x, n);
    ig_kv_affine_dequant(&f, (ig_kv_affine_rows){code, scale, bias}, 0, x, n);
}

/* ---- attention -------------------------------------------------------------------------------------- */

/* s[j] for the keys at .. at + n - 1 of query i; x and w have room for D floats. Gives the largest. */
static float scores(const ig_attention_affine_args *a, int i, int at, int n, float *s, float *x) {
    const type t = a->fmt->type;
    const int n_d = a->head_dim;
    const float *q = a->q + (size_t)i * a->q_row, by = r(t, a->scale);
    float *w = x + n_d, top = lowest(t);
    for (int d = 0; d < n_d; d++) x[d] = r(t, by * q[d]);
    for (int j = 0; j < n; j++) {
        bool seen = !a->from || (at + j >= a->from[i] && at + j < a->to[i]);
        s[j] = seen ? 0.0f : lowest(t);
        if (!seen) continue;
        ig_kv_affine_dequant(a->fmt, a->k, at + j, w, n_d);
        for (int d = 0; d < n_d; d++) s[j] = r(t, s[j] + r(t, x[d] * w[d]));
        top = s[j] > top ? s[j] : top;
    }
    return top;
}
/* o[d] = the chain of p[j] with the values at .. at + n - 1. */
static void mix(const ig_attention_affine_args *a, int at, int n, const float *p, float *o, float *w) {
    const type t = a->fmt->type;
    memset(o, 0, (size_t)a->head_dim * sizeof *o);
    for (int j = 0; j < n; j++) {
        ig_kv_affine_dequant(a->fmt, a->v, at + j, w, a->head_dim);
        for (int d = 0; d < a->head_dim; d++) o[d] = r(t, o[d] + r(t, p[j] * w[d]));
    }
}

void ig_attention_affine(const ig_attention_affine_args *a) {
    float *s = a->scratch, *x = s + a->n_keys;
    for (int i = 0; i < a->n_q; i++) {
        float top = scores(a, i, 0, a->n_keys, s, x), sum = 0.0f;
        for (int j = 0; j < a->n_keys; j++) sum = sum + (s[j] = ig_mlx_exp(s[j] - top));
        float inv = 1.0f / sum;
        for (int j = 0; j < a->n_keys; j++) s[j] = r(a->fmt->type, s[j] * inv);
        mix(a, 0, a->n_keys, s, a->out + (size_t)i * a->out_row, x);
    }
}

static void one_tiled(const ig_attention_affine_args *a, int i, float *out) {
    const type t = a->fmt->type;
    const int n_d = a->head_dim;
    float *s = a->scratch, *x = s + a->n_keys, *o = x + 2 * n_d, m = 0.0f, l = 0.0f;
    for (int at = 0; at < a->n_keys; at += IG_KV_AFFINE_TILE) {
        int n = a->n_keys - at < IG_KV_AFFINE_TILE ? a->n_keys - at : IG_KV_AFFINE_TILE;
        float top = scores(a, i, at, n, s, x), sum = 0.0f;
        if (at > 0 && m > top) top = m;
        for (int j = 0; j < n; j++) sum = sum + (s[j] = r(t, ig_mlx_exp(r(t, s[j] - top))));
        sum = r(t, sum);
        mix(a, at, n, s, at == 0 ? out : o, x);
        if (at > 0) {
            float f = r(t, ig_mlx_exp(r(t, m - top)));
            sum = r(t, r(t, f * l) + sum);
            for (int d = 0; d < n_d; d++) out[d] = r(t, r(t, out[d] * f) + o[d]);
        }
        m = top, l = sum;
    }
    for (int d = 0; d < n_d; d++) out[d] = r(t, out[d] / l);
}

void ig_attention_affine_tiled(const ig_attention_affine_args *a) {
    for (int i = 0; i < a->n_q; i++) one_tiled(a, i, a->out + (size_t)i * a->out_row);
}
