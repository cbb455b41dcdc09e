/* loop_argmax: the largest of many logits, the lowest index on a tie. A NaN or +infinity anywhere answers
 * -1: the row is broken and says so instead of choosing token 0 for ever. */
#include "kern/simd.h"

#include <math.h>

static int argmax(const float *x, int n) {
    vf top = vf_set(-INFINITY), bad = vf_set(0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        vf a = vf_load(x + i);
        top = vf_max(a, top);
        bad = vf_fma(a, vf_set(0.0f), bad); /* 0 * NaN and 0 * inf are NaN */
    }
    float best = vf_max_of(top), nan = vf_sum(bad);
    bool low = false; /* -infinity alone is allowed: look closer */
    if (nan != nan) low = true;
    for (; i < n; i++) {
        if (x[i] != x[i] || x[i] == INFINITY) return -1;
        if (x[i] > best) best = x[i];
    }
    if (low)
        for (int k = 0; k < n; k++)
            if (x[k] != x[k] || x[k] == INFINITY) return -1;
    for (int k = 0; k < n; k++)
        if (x[k] == best) return k;
    return -1;
}

static const ig_kern kerns[] = {
    {IG_KERN_ARGMAX, NULL, IG_TIER_L1, SIMD_NEEDS, SIMD_SPEED, KERN_NAME("argmax"), "equals scalar",
     {.argmax = argmax}},
};
KERN_EXPORT(loop_argmax, kerns);
