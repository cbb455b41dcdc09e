/* The sampler against a float64 one that sorts everything, the rules at the borders, and the distribution. */
#include "base/test.h"
#include "engine/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 5000 };

static ig_sampler sampler;

static ig_sampler *of(int n_vocab) {
    static uint32_t rank[N_MAX];
    static int32_t id[N_MAX], some[N_MAX];
    static float x[N_MAX], weight[N_MAX];
    sampler.argmax = ig_kern_reference(IG_KERN_ARGMAX, NULL)->fn.argmax;
    sampler.exp = ig_kern_reference(IG_KERN_EXP, NULL)->fn.exp;
    sampler.n_vocab = n_vocab;
    sampler.rank = rank, sampler.id = id, sampler.some = some, sampler.x = x, sampler.weight = weight;
    return &sampler;
}

static uint32_t n_words;

static uint32_t word(void) {
    return ig_rng_word(99, n_words++, 0, 0);
}

static float between(float lo, float hi) {
    return lo + (hi - lo) * (float)(word() >> 8) * 0x1p-24f;
}

/* ---- the reference ---------------------------------------------------------------------------------- */

static const float *sorting;

static int by_logit(const void *a, const void *b) {
    int i = *(const int *)a, k = *(const int *)b;
    if (sorting[i] != sorting[k]) return sorting[i] > sorting[k] ? -1 : 1;
    return i < k ? -1 : 1;
}

static int reference(const float *l, int n_vocab, const ig_sampling *p, uint32_t step) {
    static int order[N_MAX];
    static bool kept[N_MAX];
    double total = 0.0, above = 0.0, sum = 0.0;
    int n = n_vocab;

    for (int i = 0; i < n_vocab; i++) order[i] = i;
    sorting = l;
    qsort(order, (size_t)n_vocab, sizeof *order, by_logit);
    double max = (double)l[order[0]];
    if (p->temperature == 0.0f) return order[0];

    for (int i = 0; i < n_vocab; i++) total += exp((double)l[i] - max);
    if (p->top_p > 0.0f && p->top_p < 1.0f) {
        int last = 0;
        for (int i = 0; i < n_vocab && above < (double)p->top_p * total; i++) {
            above += exp((double)l[order[i]] - max);
            last = i;
        }
        float threshold = l[order[last]];
        for (n = last + 1; n < n_vocab && l[order[n]] == threshold;) n++;
    }
    if (p->min_p > 0.0f)
        while (n > 1 && (double)l[order[n - 1]] < max + log((double)p->min_p)) n--;
    if (p->top_k > 0 && n > p->top_k) n = p->top_k;

    memset(kept, 0, sizeof kept);
    total = 0.0;
    for (int i = 0; i < n; i++) kept[order[i]] = true;
    double t = (double)p->temperature, u = (double)ig_rng_word(p->seed, step, 0, 0) * 0x1p-32;
    for (int i = 0; i < n_vocab; i++) total += kept[i] ? exp(((double)l[i] - max) / t) : 0.0;
    for (int i = 0; i < n_vocab; i++) {
        sum += kept[i] ? exp(((double)l[i] - max) / t) : 0.0;
        if (kept[i] && sum > u * total) return i;
    }
    return order[0];
}

static void random_logits(float *l, int n) {
    float spread = between(0.1f, 12.0f), grid = word() % 3u == 0 ? 4.0f : 0.0f;
    for (int i = 0; i < n; i++) {
        float a = between(-1.0f, 1.0f);
        l[i] = a * a * a * spread;
        if (grid > 0.0f) l[i] = roundf(l[i] * grid) / grid; /* many ties */
        if (word() % 97u == 0) l[i] = -INFINITY;
    }
    l[word() % (uint32_t)n] = spread;
}

TEST(a_sampler_that_sorts_everything_in_float64_takes_the_same_tokens) {
    static float l[N_MAX];
    int n_cases = 6000, n_wrong = 0;

    n_words = 0;
    for (int k = 0; k < n_cases; k++) {
        int n = k % 10 == 0 ? 2000 + (int)(word() % 3000u) : 2 + (int)(word() % 300u);
        ig_sampling p = {.temperature = word() % 8u ? between(0.05f, 3.0f) : 0.0f, .seed = word()};
        if (word() % 2u) p.top_p = between(0.01f, 1.0f);
        if (word() % 3u == 0) p.min_p = between(0.001f, 0.9f);
        if (word() % 2u) p.top_k = 1 + (int)(word() % 60u);
        random_logits(l, n);
        for (uint32_t step = 0; step < 4; step++) {
            int got = ig_sample(of(n), l, &p, step), want = reference(l, n, &p, step);
            if (got != want && n_wrong++ < 5)
                CHECK_MSG(got == want, "case %d: %d, want %d (n %d t %g top_p %g min_p %g top_k %d)", k, got,
                          want, n, (double)p.temperature, (double)p.top_p, (double)p.min_p, p.top_k);
        }
    }
}

TEST(the_reference_sees_a_filter_that_was_left_out) { /* the control of the run above */
    static float l[N_MAX];
    int n_differ = 0;
    n_words = 1u << 20;
    for (int k = 0; k < 500; k++) {
        ig_sampling p = {.temperature = 1.0f, .top_p = 0.7f, .seed = word()}, without = p;
        without.top_p = 0.0f;
        random_logits(l, 100);
        n_differ += ig_sample(of(100), l, &without, 0) != reference(l, 100, &p, 0);
    }
    CHECK(n_differ > 50);
}

/* ---- borders ---------------------------------------------------------------------------------------- */

/* How many of the masses (falling) a top_p keeps. */
static int kept_by_top_p(const float *mass, int n, double p) {
    uint32_t rank[16];
    double total = 0.0, before;
    int n_kept = 0;
    for (int i = 0; i < n; i++) {
        rank[i] = ig_sample_rank(mass[i]); /* any falling number will do: equal masses have equal logits */
        total += (double)mass[i];
    }
    uint32_t last = ig_sample_select(of(16), rank, mass, n, p * total, &before);
    for (int i = 0; i < n; i++) n_kept += rank[i] <= last;
    return n_kept;
}

TEST(top_p_keeps_what_less_than_p_precedes_and_its_equals) {
    CHECK(kept_by_top_p((const float[]){4, 2, 2, 1, 1}, 5, 0.5) == 3); /* .4 precedes the first .2 */
    CHECK(kept_by_top_p((const float[]){5, 3, 2}, 3, 0.5) == 1); /* half precedes .3, not less */
    CHECK(kept_by_top_p((const float[]){5, 3, 2}, 3, 0.51) == 2);
    CHECK(kept_by_top_p((const float[]){1, 1, 1, 1}, 4, 0.01) == 4);
    CHECK(kept_by_top_p((const float[]){8, 1, 1}, 3, 0.8) == 1);
    CHECK(kept_by_top_p((const float[]){8, 1, 1}, 3, 0.9999) == 3);
}

/* Which ids ever come, over many seeds. */
static uint32_t ids_drawn(const float *l, int n, ig_sampling p) {
    uint32_t seen = 0;
    for (p.seed = 0; p.seed < 2000; p.seed++) seen |= 1u << ig_sample(of(n), l, &p, 0);
    return seen;
}

TEST(the_same_rule_holds_for_logits) {
    const float l[5] = {logf(0.1f), logf(0.2f), logf(0.4f), logf(0.2f), logf(0.1f)};
    CHECK(ids_drawn(l, 5, (ig_sampling){.temperature = 1, .top_p = 0.5f}) == (1u << 1 | 1u << 2 | 1u << 3));
    CHECK(ids_drawn(l, 5, (ig_sampling){.temperature = 1, .top_p = 0.39f}) == 1u << 2);
    CHECK(ids_drawn(l, 5, (ig_sampling){.temperature = 1, .top_p = 0.9f}) == 31u);
    CHECK(ids_drawn(l, 5, (ig_sampling){.temperature = 1}) == 31u);
}

TEST(top_k_keeps_exactly_k_and_of_equals_the_lowest_ids) {
    const float l[6] = {1, 2, 3, 2, 2, 2};
    CHECK(ids_drawn(l, 6, (ig_sampling){.temperature = 1, .top_k = 3}) == (1u << 1 | 1u << 2 | 1u << 3));
    CHECK(ids_drawn(l, 6, (ig_sampling){.temperature = 1, .top_k = 1}) == 1u << 2);
    CHECK(ids_drawn(l, 6, (ig_sampling){.temperature = 5, .top_k = 6}) == 63u);
    CHECK(ids_drawn(l, 6, (ig_sampling){.temperature = 5, .top_k = 1000}) == 63u);
    const float zeros[4] = {0.0f, -0.0f, 0.0f, -1.0f};
    CHECK(ids_drawn(zeros, 4, (ig_sampling){.temperature = 1, .top_k = 2}) == 3u);
}

TEST(min_p_is_relative_to_the_largest) {
    const float l[4] = {0.0f, -1.0f, -2.0f, -4.0f};
    CHECK(ids_drawn(l, 4, (ig_sampling){.temperature = 1, .min_p = 0.2f}) == 3u); /* ln .2 = -1.61 */
    CHECK(ids_drawn(l, 4, (ig_sampling){.temperature = 1, .min_p = 0.1f}) == 7u); /* ln .1 = -2.30 */
    CHECK(ids_drawn(l, 4, (ig_sampling){.temperature = 1, .min_p = 1.0f}) == 1u);
}

TEST(filters_act_at_temperature_one_whatever_the_temperature) {
    const float l[4] = {0.0f, -1.0f, -2.0f, -4.0f};
    CHECK(ids_drawn(l, 4, (ig_sampling){.temperature = 5, .min_p = 0.2f}) == 3u);
    CHECK(ids_drawn(l, 4, (ig_sampling){.temperature = 5, .top_p = 0.7f}) == 3u); /* .64 .24 .09 .01 */
}

TEST(temperature_zero_takes_the_largest_and_of_equals_the_lowest_id) {
    float l[40];
    ig_sampling p = {.temperature = 0.0f, .top_k = 3, .top_p = 0.1f};
    for (int i = 0; i < 40; i++) l[i] = (float)(i % 7);
    CHECK(ig_sample(of(40), l, &p, 0) == 6);
}

TEST(rows_that_cannot_be_sampled_say_why) {
    float l[32];
    ig_sampling greedy = {0}, warm = {.temperature = 1.0f};
    for (int i = 0; i < 32; i++) l[i] = -INFINITY;
    CHECK(ig_sample(of(32), l, &greedy, 0) == SAMPLE_NONE && ig_sample(of(32), l, &warm, 0) == SAMPLE_NONE);
    l[9] = -3.0f;
    CHECK(ig_sample(of(32), l, &greedy, 0) == 9 && ig_sample(of(32), l, &warm, 0) == 9);
    l[20] = NAN;
    CHECK(ig_sample(of(32), l, &greedy, 0) == SAMPLE_NOT_FINITE);
    l[20] = INFINITY;
    CHECK(ig_sample(of(32), l, &warm, 0) == SAMPLE_NOT_FINITE);
}

TEST(extreme_temperatures_stay_in_range) {
    const float l[4] = {-1e30f, 3.0f, 2.9f, -INFINITY};
    for (uint32_t step = 0; step < 100; step++) {
        CHECK(ig_sample(of(4), l, &(ig_sampling){.temperature = 1e-38f, .seed = 1}, step) == 1);
        CHECK(ig_sample(of(4), l, &(ig_sampling){.temperature = 1e6f, .seed = 1}, step) != 3);
    }
}

/* ---- distribution ----------------------------------------------------------------------------------- */

static double chi_square(const ig_sampling *p, const float *l, const double *prob, int n, uint32_t n_draws) {
    double sum = 0.0;
    int count[16] = {0};
    for (uint32_t step = 0; step < n_draws; step++) count[ig_sample(of(n), l, p, step)]++;
    for (int i = 0; i < n; i++) {
        double want = prob[i] * (double)n_draws, off = (double)count[i] - want;
        if (want > 0.0) sum += off * off / want;
        else CHECK(count[i] == 0);
    }
    return sum;
}

TEST(draws_are_distributed_as_the_softmax_says) {
    float l[10];
    double prob[10], total = 0.0, t = 0.8;
    for (int i = 0; i < 10; i++) {
        l[i] = (float)((i * 7) % 10) * 0.3f;
        prob[i] = exp((double)l[i] / t);
        total += prob[i];
    }
    for (int i = 0; i < 10; i++) prob[i] /= total;
    for (uint64_t seed = 0; seed < 4; seed++) { /* 9 degrees of freedom: above 33.7 one time in 10,000 */
        ig_sampling p = {.temperature = 0.8f, .seed = seed};
        CHECK(chi_square(&p, l, prob, 10, 20000) < 33.7);
        p.temperature = 0.9f; /* control */
        CHECK(chi_square(&p, l, prob, 10, 20000) > 33.7);
    }
}

TEST(a_draw_depends_on_seed_and_step_only) {
    const float l[2] = {0.0f, 0.0f};
    /* first words of seed 42, steps 0 and 1: 6d3e048f, 19a3f86f; both below one half */
    CHECK(ig_rng_word(42, 0, 0, 0) == 0x6d3e048fu && ig_rng_word(42, 1, 0, 0) == 0x19a3f86fu);
    CHECK(ig_sample(of(2), l, &(ig_sampling){.temperature = 1, .seed = 42}, 0) == 0);
    CHECK(ig_sample(of(2), l, &(ig_sampling){.temperature = 1, .seed = 42}, 1) == 0);
    int ones = 0;
    for (uint64_t seed = 0; seed < 1000; seed++)
        ones += ig_sample(of(2), l, &(ig_sampling){.temperature = 1, .seed = seed}, 7);
    CHECK(ones > 400 && ones < 600);
}

/* ---- log-probabilities ------------------------------------------------------------------------------ */

TEST(logprobs_are_the_log_softmax_and_the_top_is_in_order) {
    static float l[N_MAX];
    static int order[N_MAX];
    n_words = 1u << 21;
    for (int k = 0; k < 50; k++) {
        int n = 5 + (int)(word() % 1000u), n_top = (int)(word() % 6u);
        double total = 0.0;
        ig_logprob own, top[TOP_LOGPROBS_MAX];
        uint32_t id = word() % (uint32_t)n;
        random_logits(l, n);
        for (int i = 0; i < n; i++) order[i] = i;
        sorting = l;
        qsort(order, (size_t)n, sizeof *order, by_logit);
        for (int i = 0; i < n; i++) total += exp((double)l[i] - (double)l[order[0]]);
        ig_sample_logprobs(of(n), l, id, n_top, &own, top);
        double want = (double)l[id] - (double)l[order[0]] - log(total);
        CHECK(own.id == id && (own.logprob == (float)want || fabs((double)own.logprob - want) < 1e-5));
        for (int i = 0; i < n_top; i++) {
            want = (double)l[order[i]] - (double)l[order[0]] - log(total);
            CHECK(top[i].id == (uint32_t)order[i]);
            CHECK((double)top[i].logprob == want || fabs((double)top[i].logprob - want) < 1e-5);
        }
    }
}

TEST(more_alternatives_than_tokens_are_filled_with_nothing) {
    ig_logprob own, top[5];
    ig_sample_logprobs(of(2), (const float[]){1.0f, 1.0f}, 0, 5, &own, top);
    CHECK(top[0].id == 0 && top[1].id == 1 && top[2].id == UINT32_MAX && top[4].logprob == -INFINITY);
}

/* ---- what mlx-lm's options do, in f32 ---------------------------------------------------------------- */

TEST(min_tokens_to_keep_acts_where_min_p_leaves_fewer) {
    float l[6] = {1.0f, 5.0f, 3.0f, 3.0f, -INFINITY, 2.0f};
    ig_sampling p = {.temperature = 5.0, .min_p = 0.5, .min_tokens_to_keep = 3};
    int n[6] = {0};
    for (uint32_t step = 0; step < 2000; step++) n[ig_sample(of(6), l, &p, step)]++;
    CHECK(n[0] == 0 && n[1] > 0 && n[2] > 0 && n[3] > 0 && n[5] == 0);
    p.min_tokens_to_keep = 1;
    for (uint32_t step = 0; step < 100; step++) CHECK(ig_sample(of(6), l, &p, step) == 1);
    p.min_tokens_to_keep = 2, p.top_p = 0.99; /* behind top_p, and of equals the lowest id */
    memset(n, 0, sizeof n);
    for (uint32_t step = 0; step < 2000; step++) n[ig_sample(of(6), l, &p, step)]++;
    CHECK(n[1] > 0 && n[2] > 0 && n[3] == 0 && n[0] == 0);
    p.min_p = 0.01, p.top_p = 0.0; /* min_p leaves more: it alone counts */
    memset(n, 0, sizeof n);
    for (uint32_t step = 0; step < 5000; step++) n[ig_sample(of(6), l, &p, step)]++;
    CHECK(n[0] > 0 && n[1] > 0 && n[2] > 0 && n[3] > 0 && n[4] == 0 && n[5] > 0);
}

TEST(xtc_leaves_the_least_likely_above_the_threshold_and_what_is_special) {
    const float l[5] = {2.0f, 1.0f, 0.0f, -4.0f, 1.5f}; /* 0.47 0.17 0.06 0.001 0.29 */
    const uint32_t special[] = {4, 99};
    ig_sampling p = {.temperature = 1.0, .xtc_probability = 1.0, .xtc_threshold = 0.1};
    int n[5] = {0};
    for (uint32_t step = 0; step < 5000; step++) n[ig_sample(of(5), l, &p, step)]++;
    CHECK(n[0] == 0 && n[1] > 0 && n[2] > 0 && n[3] > 0 && n[4] == 0);
    p.xtc_special = special, p.n_xtc_special = 2;
    memset(n, 0, sizeof n);
    for (uint32_t step = 0; step < 5000; step++) n[ig_sample(of(5), l, &p, step)]++;
    CHECK(n[0] == 0 && n[1] > 0 && n[4] > 0);
    p.n_xtc_special = 0, p.xtc_threshold = 0.5; /* nothing is above: nothing goes */
    memset(n, 0, sizeof n);
    for (uint32_t step = 0; step < 2000; step++) n[ig_sample(of(5), l, &p, step)]++;
    CHECK(n[0] > 0 && n[1] > 0 && n[4] > 0);
    p.xtc_threshold = 0.1, p.xtc_probability = 0.3; /* as often as it says */
    memset(n, 0, sizeof n);
    for (uint32_t step = 0; step < 20000; step++) n[ig_sample(of(5), l, &p, step)]++;
    CHECK_MSG(n[0] > 20000 * 0.47 * 0.67 && n[0] < 20000 * 0.47 * 0.73, "%d", n[0]);
}

TEST(penalties_act_on_what_their_window_shows) {
    const uint32_t ids[] = {0, 1, 1, 2, 1};
    const ig_token_bias bias[] = {{3, 1.5f}, {3, 1.0f}};
    const float l[5] = {1.0f, -2.0f, 4.0f, 0.5f, 3.0f};
    float x[5];
    ig_sampling p = {.repetition_penalty = 2.0};
#define CHANGED(...)                                                                                        \
    do {                                                                                                    \
        const float want[5] = {__VA_ARGS__};                                                                \
        memcpy(x, l, sizeof x);                                                                             \
        ig_sample_penalize(of(5), x, &p, ids, 5);                                                           \
        for (int i = 0; i < 5; i++) CHECK_MSG(x[i] == want[i], "token %d: %g", i, (double)x[i]);            \
    } while (0)
    CHANGED(0.5f, -4.0f, 2.0f, 0.5f, 3.0f); /* all that was, once */
    p.repetition_context_size = 3;
    CHANGED(1.0f, -4.0f, 2.0f, 0.5f, 3.0f); /* 1 2 1 */
    p = (ig_sampling){.presence_penalty = 0.5, .presence_context_size = 4};
    CHANGED(1.0f, -2.5f, 3.5f, 0.5f, 3.0f);
    p = (ig_sampling){.frequency_penalty = 0.5, .frequency_context_size = 99};
    CHANGED(0.5f, -3.5f, 3.5f, 0.5f, 3.0f);
    p = (ig_sampling){.logit_bias = bias, .n_logit_bias = 2, .repetition_penalty = 1.0};
    CHANGED(1.0f, -2.0f, 4.0f, 3.0f, 3.0f);
    p.repetition_penalty = 2.0; /* in order: bias, repetition, presence, frequency */
    p.presence_penalty = 1.0, p.frequency_penalty = 0.25;
    CHANGED(0.5f - 1.0f - 0.25f, -4.0f - 1.0f - 0.75f, 2.0f - 1.0f - 0.25f, 3.0f, 3.0f);
#undef CHANGED
}

TEST(log_probabilities_that_are_told_are_those_behind_the_penalties) {
    float x[3] = {1.0f, 1.0f, 1.0f};
    const uint32_t ids[] = {1};
    const ig_sampling p = {.presence_penalty = 30.0};
    ig_logprob own, top[3];
    ig_sample_penalize(of(3), x, &p, ids, 1);
    ig_sample_logprobs(of(3), x, 0, 3, &own, top);
    CHECK(fabs((double)own.logprob + log(2.0)) < 1e-6 && top[2].id == 1 && top[2].logprob < -29.0f);
}
