/* loop_attention: one query after the other, the definition. Fast tiles are in tuned/.
 * For a query at position p, key blocks of 64 at absolute positions, spans of 16 blocks; the first key it sees
 * is f = max(0, p - window + 1), blocks and spans before f's do not exist for it:
 *   score   s[k] = fma chain over d ascending of q[d] * K[d][k], capped as cap * tanh(s / cap) when there is
 *           a cap; keys outside f..p count as -1e30
 *   in a span, blocks ascending, from m = -1e30, l = 0, acc = 0:
 *           m' = max(m, max s); e[k] = exp(s[k] - m')
 *           when m' != m: c = exp(m - m'), l = l * c, acc = acc * c
 *           l = l + (8 lanes k % 8 ascending, joined by vf_sum's tree); acc[d] = fma(e[k], V[k][d], acc[d])
 *   spans ascending: the first is the total; then with m'' = max(M, m), c = exp(M - m''), e = exp(m - m''):
 *           L = fma(l, e, L * c), A[d] = fma(acc[d], e, A[d] * c)
 *   out[d] = A[d] * (1 / L) + 0: a tile that multiplies masked values by 0 can change the sign of a zero,
 *            and this takes it away. lse = (float)(M + log L), in double. */
#include "kern/simd.h"

#include <math.h>
#include <string.h>

static float exp1(float x) {
    float t[8] = {0};
    t[0] = x;
    vf_store(t, vf_exp(vf_load(t)));
    return t[0];
}

static void widen(float *y, const uint16_t *half, int n) {
    for (int i = 0; i < n; i += 8) vf_store(y + i, vf_from_f16(half + i));
}
/* A part of a block as f32: where it is, or in y. All keys, or the values of the first n positions. */
static const float *keys_of(float *y, const void *part, ig_kv_kind kind, int n_d) {
    const int8_t *code = part;
    if (kind == IG_KV_F32) return part;
    if (kind == IG_KV_F16) widen(y, part, n_d * 64);
    for (int d = 0; d < n_d && kind == IG_KV_8; d++) {
        const uint16_t *scale = ig_kv_scales(part, n_d) + d % (n_d / 2) / 8 * 64;
        for (int k = 0; k < 64; k++) y[d * 64 + k] = (float)code[d * 64 + k];
        for (int k = d * 64; k < d * 64 + 64; k += 8, scale += 8)
            vf_store(y + k, vf_mul(vf_load(y + k), vf_kv_scale(scale)));
    }
    return y;
}
static const float *values_of(float *y, const void *part, ig_kv_kind kind, int n_d, int n) {
    const int8_t *code = part;
    if (kind == IG_KV_F32) return part;
    if (kind == IG_KV_F16) widen(y, part, n * n_d);
    for (int d = 0; d < n_d && kind == IG_KV_8; d += IG_KV_GROUP) {
        const uint16_t *scale = ig_kv_scales(part, n_d) + d / IG_KV_GROUP * 64;
        for (int k = 0; k < n; k++)
            for (int i = k * n_d + d; i < k * n_d + d + IG_KV_GROUP; i++)
                y[i] = (float)code[i] * ig_kv_scale(scale[k]);
    }
    return y;
}

static void one_query(const ig_attention_args *a, int i, float *acc, float *block32) {
    const int n_d = a->head_dim, pos = a->pos[i], n_blocks = pos / 64 + 1;
    const int see_from = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    const int block_from = see_from / 64;
    const float *q = a->q + (size_t)i * (size_t)n_d, cap = a->softcap;
    float s[64], m = -1e30f, l = 0.0f, top = 0.0f, sum = 0.0f;
    float *out = a->out + (size_t)i * (size_t)n_d, *total = out;
    for (int d = 0; d < n_d; d++) acc[d] = 0.0f;
    for (int b = block_from; b < n_blocks; b++) {
        if (a->m && b / IG_ATTENTION_SPAN_BLOCKS != a->span) continue;
        const uint8_t *part = a->block[b];
        const float *kv = keys_of(block32, part, a->kind, n_d);
        const int from = see_from > b * 64 ? see_from - b * 64 : 0;
        int n_keys = pos - b * 64 + 1;
        if (n_keys > 64) n_keys = 64;
        float high = m;
        memset(s, 0, sizeof s);
        for (int d = 0; d < n_d; d++)
            for (int k = 0; k < 64; k++) s[k] = fmaf(q[d], kv[d * 64 + k], s[k]);
        for (int k = 0; k < 64 && cap > 0.0f; k += 8)
            vf_store(s + k, vf_softcap(vf_load(s + k), vf_set(cap)));
        for (int k = 0; k < 64; k++) {
            s[k] = k >= from && k < n_keys ? s[k] : -1e30f;
            high = s[k] > high || s[k] != s[k] ? s[k] : high;
        }
        vf lanes = vf_set(0.0f);
        for (int k = 0; k < 64; k += 8) {
            vf e = vf_exp(vf_sub(vf_load(s + k), vf_set(high)));
            vf_store(s + k, e);
            lanes = vf_add(lanes, e);
        }
        if (high != m) {
            float c = exp1(m - high);
            l = l * c;
            for (int d = 0; d < n_d; d++) acc[d] = acc[d] * c;
            m = high;
        }
        l = l + vf_sum(lanes);
        kv = values_of(block32, part + ig_kv_part_bytes(a->kind, n_d), a->kind, n_d, n_keys);
        for (int k = from; k < n_keys; k++)
            for (int d = 0; d < n_d; d++) acc[d] = fmaf(s[k], kv[k * n_d + d], acc[d]);
        bool last = b + 1 == n_blocks;
        if (a->m) continue;
        if ((b + 1) % IG_ATTENTION_SPAN_BLOCKS != 0 && !last) continue;
        if (b / IG_ATTENTION_SPAN_BLOCKS == block_from / IG_ATTENTION_SPAN_BLOCKS) {
            top = m, sum = l;
            for (int d = 0; d < n_d; d++) total[d] = acc[d];
        } else {
            float both = top > m ? top : m, c = exp1(top - both), e = exp1(m - both);
            sum = fmaf(l, e, sum * c);
            for (int d = 0; d < n_d; d++) total[d] = fmaf(acc[d], e, total[d] * c);
            top = both;
        }
        m = -1e30f, l = 0.0f;
        for (int d = 0; d < n_d; d++) acc[d] = 0.0f;
    }
    if (a->m) {
        a->m[i] = m, a->l[i] = l;
        for (int d = 0; d < n_d; d++) out[d] = acc[d];
        return;
    }
    float inv = 1.0f / sum;
    for (int d = 0; d < n_d; d++) out[d] = total[d] * inv + 0.0f;
    if (a->lse) a->lse[i] = (float)((double)top + ig_math_log((double)sum));
}

static void attention(const ig_attention_args *a) {
    for (int i = 0; i < a->n_q; i++) one_query(a, i, a->scratch, a->scratch + a->head_dim);
}

/* What the end of a span and the end of all do above, on parts. */
static void attention_join(const ig_attention_join_args *a) {
    const int n_d = a->head_dim;
    float top = a->m[0], sum = a->l[0], *y = a->y;
    for (int d = 0; d < n_d; d += 8) vf_store(y + d, vf_load(a->out + d));
    for (int i = 1; i < a->n_parts; i++) {
        const float m = a->m[(size_t)i * a->step], l = a->l[(size_t)i * a->step];
        const float *out = a->out + (size_t)i * a->out_step;
        const float both = top > m ? top : m, c = exp1(top - both), e = exp1(m - both);
        sum = fmaf(l, e, sum * c);
        for (int d = 0; d < n_d; d += 8)
            vf_store(y + d, vf_fma(vf_load(out + d), vf_set(e), vf_mul(vf_load(y + d), vf_set(c))));
        top = both;
    }
    const vf inv = vf_set(1.0f / sum), zero = vf_set(0.0f);
    for (int d = 0; d < n_d; d += 8) vf_store(y + d, vf_add(vf_mul(vf_load(y + d), inv), zero));
}

#define ROW(op, name, member) \
    {op, NULL, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME(name), "equals scalar", {.member = member}}
static const ig_kern kerns[] = {
    ROW(IG_KERN_ATTENTION, "attention", attention),
    ROW(IG_KERN_ATTENTION_JOIN, "attention_join", attention_join),
};
KERN_EXPORT(loop_attention, kerns);
