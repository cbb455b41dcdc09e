/* sample: from a row of logits to a token.
 *
 * Order:   what changes logits (bias, penalties, masks) acts on the row before it comes here. Then: not
 *          finite, dead end, argmax at temperature 0, top_p, min_p, top_k at temperature 1, the draw from
 *          softmax(logit / temperature) by inverse CDF in f64, ascending ids.
 * Threads: engine thread.
 * Memory:  scratch of n_vocab items, in the plan.
 * Why no sort: a filter needs the value at its border and nothing else. Three passes over the bits of the
 * logits find it, the later two over one bin. exp is the kernel's and log is ours, so a seed gives the same
 * token on every machine. */
#include "engine/inside.h"

#include <math.h>
#include <string.h>

void ig_sampler_lay_out(ig_sampler *s, ig_arena *a) {
    size_t n = (size_t)s->n_vocab;

    s->rank = ig_arena_take(a, n * sizeof *s->rank);
    s->id = ig_arena_take(a, n * sizeof *s->id);
    s->some = ig_arena_take(a, n * sizeof *s->some);
    s->x = ig_arena_take(a, n * sizeof *s->x);
    s->weight = ig_arena_take(a, n * sizeof *s->weight);
}

uint32_t ig_sample_rank(float logit) {
    uint32_t bits;
    float x = logit + 0.0f; /* one zero */
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

uint32_t ig_sample_select(ig_sampler *s, const uint32_t *rank, const float *weight, int n, double limit,
                          double *before) {
    static const int shifts[] = {21, 10, 0}, masks[] = {2047, 2047, 1023};
    const int32_t *which = NULL; /* NULL: all */
    uint32_t found = 0;

    *before = 0.0;
    for (int level = 0; level < 3; level++) {
        int shift = shifts[level], at = -1, n_in = 0;
        uint32_t mask = (uint32_t)masks[level];
        double sum = *before;

        memset(s->bin, 0, sizeof s->bin);
        for (int k = 0; k < n; k++) {
            int i = which ? which[k] : k;
            s->bin[rank[i] >> shift & mask] += weight ? (double)weight[i] : 1.0;
        }
        for (int b = 0; b <= masks[level]; b++) {
            if (s->bin[b] == 0.0) continue;
            *before = sum;
            at = b;
            sum += s->bin[b];
            if (sum >= limit) break;
        }
        /* In a later pass the same weights were added in another order: what misses the border by a
         * rounding is the last bin. */
        if (at < 0 || (level == 0 && sum < limit)) return UINT32_MAX;
        found |= (uint32_t)at << shift;
        for (int k = 0; k < n; k++) {
            int i = which ? which[k] : k;
            if ((rank[i] >> shift & mask) == (uint32_t)at) s->some[n_in++] = i;
        }
        which = s->some;
        n = n_in;
    }
    return found;
}

/* Keeps item i of those left as item `to`. */
static void keep(ig_sampler *s, int to, int i) {
    s->id[to] = s->id[i];
    s->x[to] = s->x[i];
    s->rank[to] = s->rank[i];
}

/* Keeps ranks below `rank`, and the first n_equal of those that have it. */
static int keep_to(ig_sampler *s, int n, uint32_t rank, int n_equal) {
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        bool equal = s->rank[i] == rank && n_equal > 0;
        n_equal -= equal;
        if (s->rank[i] < rank || equal) keep(s, n_left++, i);
    }
    return n_left;
}

/* Keeps the tokens that are, in falling order, preceded by less than p of the mass; with the last of them
 * all its equals. */
static int top_p(ig_sampler *s, int n, float p) {
    double total = 0.0, before;
    s->exp(s->weight, s->x, n);
    for (int i = 0; i < n; i++) total += (double)s->weight[i];
    uint32_t last = ig_sample_select(s, s->rank, s->weight, n, (double)p * total, &before);
    return keep_to(s, n, last, n);
}

static int min_p(ig_sampler *s, int n, float p) {
    float least = (float)ig_math_log((double)p);
    int n_left = 0;
    for (int i = 0; i < n; i++)
        if (s->x[i] >= least) keep(s, n_left++, i);
    return n_left; /* the largest has x = 0 and stays */
}

static int top_k(ig_sampler *s, int n, int k) {
    double before;
    uint32_t last = ig_sample_select(s, s->rank, NULL, n, (double)k, &before);
    return keep_to(s, n, last, k - (int)before);
}

static int draw(ig_sampler *s, int n, float temperature, uint32_t word) {
    double total = 0.0, sum = 0.0, u = (double)word * 0x1p-32;
    int last = 0;

    for (int i = 0; i < n; i++) s->x[i] = s->x[i] / temperature;
    s->exp(s->weight, s->x, n);
    for (int i = 0; i < n; i++) total += (double)s->weight[i];
    for (int i = 0; i < n; i++) {
        if (s->weight[i] == 0.0f) continue;
        sum += (double)s->weight[i];
        last = i;
        if (sum > u * total) break;
    }
    return s->id[last];
}

int ig_sample(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t step) {
    int best = s->argmax(logits, s->n_vocab), n = 0;

    if (best < 0) return SAMPLE_NOT_FINITE;
    float max = logits[best];
    if (max == -INFINITY) return SAMPLE_NONE;
    if (p->temperature == 0.0f) return best;

    for (int i = 0; i < s->n_vocab; i++) {
        if (logits[i] == -INFINITY) continue;
        s->id[n] = i;
        s->x[n] = logits[i] - max;
        s->rank[n++] = ig_sample_rank(logits[i]);
    }
    if (p->top_p > 0.0f && p->top_p < 1.0f) n = top_p(s, n, p->top_p);
    if (p->min_p > 0.0f) n = min_p(s, n, p->min_p);
    if (p->top_k > 0 && p->top_k < n) n = top_k(s, n, p->top_k);
    return draw(s, n, p->temperature, ig_rng_word(p->seed, step, 0, 0));
}

void ig_sample_logprobs(ig_sampler *s, const float *logits, uint32_t id, int n_top, ig_logprob *own,
                        ig_logprob *top) {
    int best = s->argmax(logits, s->n_vocab), n = 0;
    double total = 0.0;

    ig_assert(best >= 0 && id < (uint32_t)s->n_vocab);
    for (int i = 0; i < s->n_vocab; i++) s->x[i] = logits[i] - logits[best];
    s->exp(s->weight, s->x, s->n_vocab);
    for (int i = 0; i < s->n_vocab; i++) total += (double)s->weight[i];
    double log_total = ig_math_log(total);

    *own = (ig_logprob){id, (float)((double)s->x[id] - log_total)};
    for (int i = 0; i < s->n_vocab && n_top > 0; i++) {
        int at = n;
        if (n == n_top && !(s->x[i] > s->x[top[n - 1].id])) continue; /* equals: the lower id was first */
        while (at > 0 && s->x[i] > s->x[top[at - 1].id]) at--;
        if (n < n_top) n++;
        for (int k = n - 1; k > at; k--) top[k] = top[k - 1];
        top[at].id = (uint32_t)i;
    }
    for (int k = 0; k < n_top; k++) {
        if (k >= n) top[k] = (ig_logprob){UINT32_MAX, -INFINITY}; /* a vocabulary smaller than was asked */
        else top[k].logprob = (float)((double)s->x[top[k].id] - log_total);
    }
}
