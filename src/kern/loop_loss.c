/* loop_loss: the pieces of cross entropy over blocks of a vocabulary: the cap on logits and a softmax that
 * runs along. Sums in 8 lanes, lane i % 8, joined by vf_sum's tree. */
#include "kern/simd.h"

#include <math.h>

static void softcap(float *y, float *slope, const float *x, float cap, int n) {
    const vf c = vf_set(cap), one = vf_set(1.0f);
    for (int i = 0; i < n; i += 8) {
        const bool whole = n - i >= 8;
        vf t = vf_tanh(vf_div(whole ? vf_load(x + i) : load_some(x + i, n - i), c));
        vf v = vf_mul(t, c), s = vf_fma(vf_neg(t), t, one);
        if (whole)
            vf_store(y + i, v), vf_store(slope + i, s);
        else
            store_some(y + i, v, n - i), store_some(slope + i, s, n - i);
    }
}

static float softmax_step(float *l, int n, ig_softmax_state *s) {
    float high = s->m;
    for (int i = 0; i < n; i++) high = l[i] > high ? l[i] : high;
    vf sum = vf_set(0.0f), top = vf_set(high);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        vf e = vf_exp(vf_sub(vf_load(l + i), top));
        vf_store(l + i, e);
        sum = vf_add(sum, e);
    }
    if (i < n) {
        float t[8];
        for (int k = 0; k < 8; k++) t[k] = i + k < n ? l[i + k] : -1e30f;
        vf e = vf_exp(vf_sub(vf_load(t), top));
        store_some(l + i, e, n - i);
        sum = vf_add(sum, e);
    }
    float change[8], shrink;
    vf_store(change, vf_exp(vf_set(s->m - high)));
    shrink = change[0];
    s->d = fmaf(s->d, shrink, vf_sum(sum));
    s->m = high;
    return shrink;
}

#define ROW(op, word) \
    {op, NULL, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED, KERN_NAME(#word), "equals scalar", {.word = word}}
static const ig_kern kerns[] = {ROW(IG_KERN_SOFTCAP, softcap), ROW(IG_KERN_SOFTMAX_STEP, softmax_step)};
KERN_EXPORT(loop_loss, kerns);
