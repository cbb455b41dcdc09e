/* sample_mlx: from a row of logits to a token, bit for bit as mlx-lm 0.32.2 on mlx-cpu 0.32.4 does it.
 *
 * Owns:    nothing. A row is f32 memory whose values are of the model's number type T (bf16, f16, f32), and so
 *          is every value below unless it says f32. R(x) rounds to T.
 * Order:   log-probability R(logit - R(logsumexp)); temperature 0: its first maximum. Else top_p, min_p, xtc,
 *          top_k, each of which sets what it drops to -infinity, and a draw by inverse CDF with one uniform
 *          number. xtc takes a uniform number of its own, whether it acts or not.
 * Random:  mlx's: a threefry key; each number splits it into the next key and the one that gives the bits.
 * Threads: engine thread. Memory: the sampler's scratch.
 * f32 is a type for models whose numbers are not rounded at all.
 * Why sums are not quicker by another order: they are f32 from left to right, and a seed's token changes with
 * their last bit. Which tokens are kept is no question of order: the sorts and partitions of the original compare
 * (value, id), so a border among equals lies where the ids say, whatever algorithm finds it. */
#include "engine/inside.h"

#include <math.h>
#include <string.h>

/* ---- numbers ----------------------------------------------------------------------------------------- */

static void round_f32(float *y, const float *x, int n) {
    if (y != x) memcpy(y, x, (size_t)n * sizeof *y);
}

static void exp_f32(float *y, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] = ig_mlx_exp(x[i]);
}

void ig_sampler_set_number(ig_sampler *s, const ig_fmt *number) {
    s->round = NULL;
    if (!number) return;
    const ig_kern *round = ig_kern_pick(IG_KERN_ROUND, number, IG_TIER_L1, ig_cpu_features());
    const ig_kern *exp = ig_kern_pick(IG_KERN_EXP, number, IG_TIER_L1, ig_cpu_features());
    s->round = round ? round->fn.round : round_f32;
    s->exp = exp ? exp->fn.exp : exp_f32;
}

static float rounded(const ig_sampler *s, float x) {
    s->round(&x, &x, 1);
    return x;
}

/* ---- the random stream ------------------------------------------------------------------------------- */

void ig_threefry(uint32_t out[2], const uint32_t key[2], uint32_t a, uint32_t b) {
    static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau};

    a += keys[0];
    b += keys[1];
    for (uint32_t round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            int turn = turns[round % 2][i];
            a += b;
            b = (b << turn | b >> (32 - turn)) ^ a;
        }
        a += keys[(round + 1) % 3];
        b += keys[(round + 2) % 3] + round + 1;
    }
    out[0] = a;
    out[1] = b;
}

/* In [0, 1), f32. */
static float uniform(uint32_t key[2]) {
    uint32_t even[2], odd[2];
    ig_threefry(even, key, 0, 2);
    ig_threefry(odd, key, 1, 3);
    key[0] = even[0], key[1] = odd[0];
    const uint32_t own[2] = {even[1], odd[1]};
    ig_threefry(even, own, 0, 0);
    float u = (float)even[0] * 0x1p-32f;
    return u < 0x1.fffffep-1f ? u : 0x1.fffffep-1f;
}

void ig_sample_key(uint32_t key[2], uint64_t seed, int n_drawn) {
    key[0] = (uint32_t)(seed >> 32);
    key[1] = (uint32_t)seed;
    for (int i = 0; i < n_drawn; i++) (void)uniform(key);
}

/* ---- what is left ------------------------------------------------------------------------------------ */

static float largest(const float *x, int n) {
    float max = -INFINITY;
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static float of_rank(uint32_t rank) {
    uint32_t bits = rank & 0x80000000u ? rank : ~rank & 0x7fffffffu;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void rank_all(ig_sampler *s, const float *x) {
    for (int i = 0; i < s->n_vocab; i++) s->rank[i] = ig_sample_rank(x[i]);
}

/* The ranks of x, ascending: largest value first. By digits of 11 bits, the lowest first, none that all share. */
static const uint32_t *sort_ranks(ig_sampler *s, const float *x) {
    enum { BITS = 11, DIGITS = 1 << BITS };
    uint32_t *from = s->rank, *to = (uint32_t *)s->some, n = (uint32_t)s->n_vocab;

    rank_all(s, x);
    for (int shift = 0; shift < 32; shift += BITS) {
        uint32_t at[DIGITS] = {0}, sum = 0;
        for (uint32_t i = 0; i < n; i++) at[from[i] >> shift & (DIGITS - 1)]++;
        if (at[from[0] >> shift & (DIGITS - 1)] == n) continue;
        for (int d = 0; d < DIGITS; d++) {
            uint32_t count = at[d];
            at[d] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++) to[at[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* Drops what has p or more of the mass above it; equals of the last that is kept stay. f32. */
static void top_p(ig_sampler *s, float *x, float p) {
    const uint32_t *rank = sort_ranks(s, x);
    int n = s->n_vocab, n_kept = 0;
    float total = 0.0f, above = 0.0f;

    for (int i = 0; i < n; i++) s->prob[i] = of_rank(rank[i]);
    s->exp(s->prob, s->prob, n);
    for (int i = 0; i < n; i++) total += s->prob[i];
    for (float most = p * total; n_kept < n && above < most; n_kept++) above += s->prob[n_kept];
    float least = of_rank(rank[n_kept > 0 ? n_kept - 1 : 0]);
    for (int i = 0; i < n; i++)
        if (x[i] < least) x[i] = -INFINITY;
}

/* The rank of the n-th largest value, and how many are larger. */
static uint32_t nth_rank(ig_sampler *s, const float *x, int n, int *n_larger) {
    double before;
    rank_all(s, x);
    uint32_t rank = ig_sample_select(s, s->rank, NULL, s->n_vocab, (double)n, &before);
    *n_larger = (int)before;
    return rank;
}

/* Drops what is below min_p times the largest, but none of the n_keep largest: of equals the highest ids. */
static void min_p(ig_sampler *s, float *x, double p, int n_keep) {
    float least = rounded(s, largest(x, s->n_vocab) + rounded(s, (float)ig_math_log(p)));
    uint32_t border = 0;
    int n_equal = 0, n_larger;

    if (n_keep >= s->n_vocab) return;
    if (n_keep > 1) {
        border = nth_rank(s, x, n_keep, &n_larger);
        n_equal = n_keep - n_larger;
    }
    for (int i = s->n_vocab - 1; i >= 0; i--) {
        bool keep = n_keep > 1 && (s->rank[i] < border || (s->rank[i] == border && n_equal-- > 0));
        if (x[i] < least && !keep) x[i] = -INFINITY;
    }
}

/* Keeps the k largest, of equals the lowest ids. */
static void top_k(ig_sampler *s, float *x, int k) {
    int n_larger;
    uint32_t border = nth_rank(s, x, k, &n_larger);
    int n_equal = k - n_larger;
    for (int i = 0; i < s->n_vocab; i++) {
        if (s->rank[i] < border || (s->rank[i] == border && n_equal-- > 0)) continue;
        x[i] = -INFINITY;
    }
}

/* prob = softmax(x), every step rounded to T, the sum too. */
static void softmax(ig_sampler *s, const float *x) {
    int n = s->n_vocab;
    float max = largest(x, n), sum = 0.0f;

    for (int i = 0; i < n; i++) s->prob[i] = x[i] - max;
    s->round(s->prob, s->prob, n);
    s->exp(s->prob, s->prob, n);
    s->round(s->prob, s->prob, n);
    for (int i = 0; i < n; i++) sum = rounded(s, sum + s->prob[i]);
    float inverse = rounded(s, 1.0f / sum);
    for (int i = 0; i < n; i++) s->prob[i] *= inverse;
    s->round(s->prob, s->prob, n);
}

/* Of those above the threshold drops what is likelier than the least likely of them, but no special one. */
static void xtc(ig_sampler *s, float *x, const ig_sampling *p) {
    float threshold = rounded(s, (float)p->xtc_threshold), least = INFINITY;

    softmax(s, x);
    for (int i = 0; i < s->n_vocab; i++)
        if (s->prob[i] > threshold && s->prob[i] < least) least = s->prob[i];
    for (int i = 0; i < p->n_xtc_special; i++)
        if (p->xtc_special[i] < (uint32_t)s->n_vocab) s->prob[p->xtc_special[i]] = 0.0f;
    for (int i = 0; i < s->n_vocab; i++)
        if (s->prob[i] > least) x[i] = -INFINITY;
}

/* ---- the draw ---------------------------------------------------------------------------------------- */

/* The last token before which no more than u of the mass lies. f32 from the exponent on. */
static int draw(ig_sampler *s, float *x, double temperature, float u) {
    int n = s->n_vocab, id = 0;
    float scale = rounded(s, (float)(1.0 / temperature)), total = 0.0f, before = 0.0f;

    for (int i = 0; i < n; i++) x[i] *= scale;
    s->round(x, x, n);
    float max = largest(x, n);
    if (!(max > -INFINITY)) return SAMPLE_TOO_COLD; /* beyond the type: mlx goes on with NaN */
    for (int i = 0; i < n; i++) x[i] -= max;
    s->exp(x, x, n);
    for (int i = 0; i < n; i++) total += x[i];
    for (float mass = u * total; id < n && before <= mass; id++) before += x[id];
    return id - 1;
}

/* x = log-probabilities of logits, whose largest is max. */
static void log_softmax(ig_sampler *s, const float *logits, float max) {
    float sum = 0.0f;
    for (int i = 0; i < s->n_vocab; i++) s->weight[i] = logits[i] - max;
    s->exp(s->weight, s->weight, s->n_vocab);
    for (int i = 0; i < s->n_vocab; i++) sum += s->weight[i];
    float lse = rounded(s, ig_mlx_log(sum) + max);
    for (int i = 0; i < s->n_vocab; i++) s->x[i] = logits[i] - lse;
    s->round(s->x, s->x, s->n_vocab);
}

int ig_sample_mlx(ig_sampler *s, const float *logits, const ig_sampling *p, uint32_t key[2]) {
    int best = s->argmax(logits, s->n_vocab);

    if (best < 0) return SAMPLE_NOT_FINITE;
    if (logits[best] == -INFINITY) return SAMPLE_NONE;
    log_softmax(s, logits, logits[best]);
    if (p->temperature == 0.0) return s->argmax(s->x, s->n_vocab);

    float *left = s->weight;
    memcpy(left, s->x, (size_t)s->n_vocab * sizeof *left);
    if (p->top_p > 0.0 && p->top_p < 1.0) top_p(s, left, (float)p->top_p);
    if (p->min_p > 0.0) min_p(s, left, p->min_p, p->min_tokens_to_keep);
    if (p->xtc_probability > 0.0 && !(uniform(key) > (float)p->xtc_probability)) xtc(s, left, p);
    if (p->top_k > 0 && p->top_k < s->n_vocab) top_k(s, left, p->top_k);
    return draw(s, left, p->temperature, uniform(key));
}

#define MLX_TEST "engine: every_draw_and_every_log_probability_is_that_of_mlx_lm"
#define MLX_NODE .tier = IG_TIER_L1, .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", NULL}, \
                 .flags = "l1 l2 l3", .proof = MLX_TEST
static const ig_tier_node nodes[] = {
    {.id = "samp.greedy", .does = "the largest rounded log-probability; of equals the lowest id", MLX_NODE,
     .also = IG_RUNS(ARGMAX) | IG_RUNS(EXP)},
    {.id = "samp.categorical", .does = "inverse CDF with one number of mlx's stream", MLX_NODE,
     .when = "temperature > 0"},
    {.id = "samp.top_p", .does = "the likeliest tokens that hold this much", MLX_NODE, .when = "top_p"},
    {.id = "samp.min_p", .does = "tokens not much less likely than the likeliest", MLX_NODE, .when = "min_p"},
    {.id = "samp.top_k", .does = "the k likeliest tokens", MLX_NODE, .when = "top_k"},
    {.id = "samp.xtc", .does = "now and then all likely tokens but the least are left out", MLX_NODE, .when = "xtc"},
};
NODE_EXPORT(sample_mlx, nodes);
