/* sample: from a row of logits to a token.
 *
 * Order:   what changes logits (bias, penalties) acts on the row before it comes here. Then: not finite, dead
 *          end, argmax at temperature 0, top_p, min_p, xtc, top_k at temperature 1, the draw from
 *          softmax(logit / temperature) by inverse CDF in f64, ascending ids.
 * Threads: engine thread.
 * Memory:  scratch of n_vocab items, in the plan.
 * Why no sort: a filter needs the value at its border and nothing else. A cheap bound leaves few tokens to
 * look at; three passes over the bits of their logits find the border. exp is the kernel's and log is ours,
 * so a seed gives the same token on every machine. */
#include "engine/inside.h"

#include <float.h>
#include <math.h>
#include <string.h>

void ig_sampler_lay_out(ig_sampler *s, ig_arena *a) {
    size_t n = (size_t)s->n_vocab;

    s->rank = ig_arena_take(a, n * sizeof *s->rank);
    s->id = ig_arena_take(a, n * sizeof *s->id);
    s->some = ig_arena_take(a, n * sizeof *s->some);
    s->x = ig_arena_take(a, n * sizeof *s->x);
    s->weight = ig_arena_take(a, n * sizeof *s->weight);
    s->prob = s->round ? ig_arena_take(a, n * sizeof *s->prob) : NULL;
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

/* ---- what is left ----------------------------------------------------------------------------------- */

/* Four sums side by side, joined in order: the order is ours to choose here, and stays. */
static double sum_of(const float *weight, int n) {
    double sum[4] = {0.0};
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += (double)weight[i + k];
    for (; i < n; i++) sum[0] += (double)weight[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Takes the tokens whose value is at least `least` as what is left, ids ascending; their number. */
static int gather(ig_sampler *s, const float *logits, const float *value, float least) {
    int n = 0;
    for (int i = 0; i < s->n_vocab; i++) {
        if (!(value[i] >= least)) continue;
        s->id[n] = i;
        s->rank[n] = ig_sample_rank(logits[i]);
        s->weight[n] = s->weight[i];
        s->x[n++] = s->x[i];
    }
    return n;
}

/* Keeps ranks below `rank`, and the first n_equal of those that have it. */
static int keep_to(ig_sampler *s, int n, uint32_t rank, int n_equal) {
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        bool equal = s->rank[i] == rank && n_equal > 0;
        n_equal -= equal;
        if (s->rank[i] > rank || (s->rank[i] == rank && !equal)) continue;
        s->id[n_left] = s->id[i];
        s->x[n_left] = s->x[i];
        s->rank[n_left++] = s->rank[i];
    }
    return n_left;
}

/* Keeps the tokens that are, in falling order, preceded by less than p of the mass; with the last of them
 * all its equals. Tokens below (1 - p) * total / V weigh less than 1 - p together, so all of them are
 * preceded by more than p: they need not be looked at (half of it, to be clear of rounding). */
static int top_p(ig_sampler *s, const float *logits, float p) {
    double before, total;
    s->exp(s->weight, s->x, s->n_vocab);
    total = sum_of(s->weight, s->n_vocab);
    float least = (float)((1.0 - (double)p) * total / (double)s->n_vocab * 0.5);
    int n = gather(s, logits, s->weight, least);
    return keep_to(s, n, ig_sample_select(s, s->rank, s->weight, n, (double)p * total, &before), n);
}

static int top_k(ig_sampler *s, int n, int k) {
    double before;
    uint32_t last = ig_sample_select(s, s->rank, NULL, n, (double)k, &before);
    return keep_to(s, n, last, k - (int)before);
}

/* Drops what is below `least`, but leaves n_keep. */
static int min_p(ig_sampler *s, int n, float least, int n_keep) {
    int n_left = 0;
    for (int i = 0; i < n; i++) n_left += s->x[i] >= least;
    if (n_left < n_keep) return n_keep < n ? top_k(s, n, n_keep) : n;
    n_left = 0;
    for (int i = 0; i < n; i++) {
        if (s->x[i] < least) continue;
        s->id[n_left] = s->id[i];
        s->x[n_left] = s->x[i];
        s->rank[n_left++] = s->rank[i];
    }
    return n_left; /* the largest has x = 0 and stays */
}

static bool is_special(const ig_sampling *p, int id) {
    for (int i = 0; i < p->n_xtc_special; i++)
        if (p->xtc_special[i] == (uint32_t)id) return true;
    return false;
}

/* Of the tokens above the threshold leaves the least likely one, its equals and those that are special. */
static int xtc(ig_sampler *s, int n, const ig_sampling *p) {
    int n_left = 0;
    s->exp(s->weight, s->x, n);
    double above = p->xtc_threshold * sum_of(s->weight, n);
    float least = INFINITY;
    for (int i = 0; i < n; i++)
        if ((double)s->weight[i] > above && s->weight[i] < least) least = s->weight[i];
    for (int i = 0; i < n; i++) {
        if (s->weight[i] > least && !is_special(p, s->id[i])) continue;
        s->id[n_left] = s->id[i];
        s->x[n_left] = s->x[i];
        s->rank[n_left++] = s->rank[i];
    }
    return n_left;
}

/* A value that at least k of all x reach: the k-th largest of the maxima of runs of 64. */
static float reached_by(ig_sampler *s, int k) {
    enum { RUN = 64 };
    int n_runs = s->n_vocab / RUN;
    double before;
    if (k > n_runs) return -FLT_MAX;
    for (int r = 0; r < n_runs; r++) {
        const float *x = s->x + r * RUN;
        float max[8];
        memcpy(max, x, sizeof max);
        for (int i = 8; i < RUN; i += 8)
            for (int k8 = 0; k8 < 8; k8++) max[k8] = x[i + k8] > max[k8] ? x[i + k8] : max[k8];
        for (int k8 = 1; k8 < 8; k8++) max[0] = max[k8] > max[0] ? max[k8] : max[0];
        s->weight[r] = max[0];
        s->rank[r] = ig_sample_rank(max[0]);
    }
    uint32_t last = ig_sample_select(s, s->rank, NULL, n_runs, (double)k, &before);
    for (int r = 0; r < n_runs; r++)
        if (s->rank[r] == last && s->weight[r] > -INFINITY) return s->weight[r];
    return -FLT_MAX;
}

/* ---- the draw --------------------------------------------------------------------------------------- */

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
    int best = s->argmax(logits, s->n_vocab), n;
    bool by_p = p->top_p > 0.0 && p->top_p < 1.0, by_min = p->min_p > 0.0, by_xtc = p->xtc_probability > 0.0;
    int n_keep = by_min && p->min_tokens_to_keep > 1 ? p->min_tokens_to_keep : 1;

    if (best < 0) return SAMPLE_NOT_FINITE;
    float max = logits[best], least = by_min ? (float)ig_math_log((double)(float)p->min_p) : 0.0f;
    if (max == -INFINITY) return SAMPLE_NONE;
    if ((float)p->temperature == 0.0f) return best;

    for (int i = 0; i < s->n_vocab; i++) s->x[i] = logits[i] - max;
    if (by_p) {
        n = top_p(s, logits, (float)p->top_p);
        if (by_min) n = min_p(s, n, least, n_keep);
    } else if (by_min && n_keep == 1) {
        n = gather(s, logits, s->x, least);
    } else if (p->top_k > 0 && !by_min && !by_xtc) {
        n = gather(s, logits, s->x, reached_by(s, p->top_k));
    } else {
        n = gather(s, logits, s->x, -FLT_MAX); /* all but what is masked */
        if (by_min) n = min_p(s, n, least, n_keep);
    }
    if (by_xtc && (double)ig_rng_word(p->seed, step, 0, 1) * 0x1p-32 < p->xtc_probability) n = xtc(s, n, p);
    if (p->top_k > 0 && p->top_k < n) n = top_k(s, n, p->top_k);
    return draw(s, n, (float)p->temperature, ig_rng_word(p->seed, step, 0, 0));
}

void ig_sample_top(const float *x, int n, int n_top, ig_logprob *top) {
    int n_found = 0;
    for (int i = 0; i < n && n_top > 0; i++) {
        int at = n_found;
        if (n_found == n_top && !(x[i] > top[n_found - 1].logprob)) continue; /* equals: the lower id */
        while (at > 0 && x[i] > top[at - 1].logprob) at--;
        if (n_found < n_top) n_found++;
        for (int k = n_found - 1; k > at; k--) top[k] = top[k - 1];
        top[at] = (ig_logprob){(uint32_t)i, x[i]};
    }
    for (int k = n_found; k < n_top; k++) top[k] = (ig_logprob){UINT32_MAX, -INFINITY};
}

void ig_sample_logprobs(ig_sampler *s, const float *logits, uint32_t id, int n_top, ig_logprob *own,
                        ig_logprob *top) {
    ig_assert(id < (uint32_t)s->n_vocab);
    if (s->round) { /* the draw has left them */
        *own = (ig_logprob){id, s->x[id]};
        ig_sample_top(s->x, s->n_vocab, n_top, top);
        return;
    }
    int best = s->argmax(logits, s->n_vocab);
    ig_assert(best >= 0);
    for (int i = 0; i < s->n_vocab; i++) s->x[i] = logits[i] - logits[best];
    s->exp(s->weight, s->x, s->n_vocab);
    double log_total = ig_math_log(sum_of(s->weight, s->n_vocab));

    *own = (ig_logprob){id, (float)((double)s->x[id] - log_total)};
    ig_sample_top(s->x, s->n_vocab, n_top, top);
    for (int k = 0; k < n_top; k++) /* a vocabulary may be smaller than was asked */
        if (top[k].id != UINT32_MAX) top[k].logprob = (float)((double)top[k].logprob - log_total);
}

static const ig_tier_node nodes[] = {
    {.id = "samp.argmax", .does = "the largest logit; of equals the lowest id", .tier = IG_TIER_L3,
     .gate = IG_GATE_KL, .in = {NULL, NULL, "on"},
     .proof = "engine: temperature_zero_takes_the_largest_and_of_equals_the_lowest_id", .also = IG_RUNS(ARGMAX)},
    {.id = "samp.filters", .does = "top_p, min_p and top_k at temperature 1", .tier = IG_TIER_L3,
     .oracle = "f64", .gate = IG_GATE_KL, .in = {NULL, NULL, "on"},
     .proof = "engine: a_sampler_that_sorts_everything_in_float64_takes_the_same_tokens",
     .when = "temperature > 0"},
    {.id = "samp.draw", .does = "a token by inverse CDF in f64, from our own counted stream",
     .tier = IG_TIER_L3, .gate = IG_GATE_KL, .in = {NULL, NULL, "on"},
     .proof = "engine: draws_are_distributed_as_the_softmax_says", .when = "temperature > 0",
     .also = IG_RUNS(EXP)},
    {.id = "samp.logprobs", .does = "log-probabilities of a token and of those beside it",
     .tier = IG_TIER_L3, .oracle = "f64", .gate = IG_GATE_KL, .in = {"on", "on", "on"},
     .proof = "engine: logprobs_are_the_log_softmax_and_the_top_is_in_order", .when = "logprobs",
     .also = IG_RUNS(EXP)},
};
NODE_EXPORT(sample, nodes);
