/* penalty: what a request's bias and penalties do to a row of logits before it is sampled.
 *
 * Order:   bias, repetition, presence, frequency; as in mlx-lm, of which these are the options.
 * Threads: engine thread. Memory: the sampler's ranks mark what a window has shown already.
 * Rounds:  tier l1 rounds the constant and then every result to the model's numbers; tier l3 not at all. */
#include "engine/inside.h"

static float rounded(const ig_sampler *s, float x) {
    if (s->round) s->round(&x, &x, 1);
    return x;
}

static int window(const uint32_t **ids, int n_ids, int size) {
    if (size == 0 || size >= n_ids) return n_ids;
    *ids += n_ids - size;
    return size;
}

/* Calls for the logit of each token of ids once. */
static void once(ig_sampler *s, float *logits, const uint32_t *ids, int n, float penalty,
                 float (*change)(float logit, float penalty)) {
    for (int i = 0; i < n; i++) s->rank[ids[i]] = 0;
    for (int i = 0; i < n; i++)
        if (s->rank[ids[i]]++ == 0) logits[ids[i]] = rounded(s, change(logits[ids[i]], penalty));
}

static float repeated(float logit, float penalty) {
    return logit < 0.0f ? logit * penalty : logit / penalty;
}

static float present(float logit, float penalty) {
    return logit - penalty;
}

void ig_sample_penalize(ig_sampler *s, float *logits, const ig_sampling *p, const uint32_t *ids, int n_ids) {
    for (int i = 0; i < p->n_logit_bias; i++) {
        float *logit = &logits[p->logit_bias[i].id];
        *logit = rounded(s, *logit + rounded(s, p->logit_bias[i].bias));
    }
    if (p->repetition_penalty != 0.0 && p->repetition_penalty != 1.0) {
        const uint32_t *last = ids;
        int n = window(&last, n_ids, p->repetition_context_size);
        once(s, logits, last, n, rounded(s, (float)p->repetition_penalty), repeated);
    }
    if (p->presence_penalty != 0.0) {
        const uint32_t *last = ids;
        int n = window(&last, n_ids, p->presence_context_size);
        once(s, logits, last, n, rounded(s, (float)p->presence_penalty), present);
    }
    if (p->frequency_penalty != 0.0) { /* one rounding each time */
        const uint32_t *last = ids;
        int n = window(&last, n_ids, p->frequency_context_size);
        float penalty = rounded(s, (float)p->frequency_penalty);
        for (int i = 0; i < n; i++) logits[last[i]] = rounded(s, logits[last[i]] - penalty);
    }
}

static const ig_tier_node nodes[] = {
    {.id = "samp.penalties", .does = "repetition, presence and frequency, over a window of tokens", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"},
     .proof = "engine: every_draw_and_every_log_probability_is_that_of_mlx_lm", .when = "penalties"},
    {.id = "samp.logit_bias", .does = "added to logits of tokens by id", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"},
     .proof = "engine: every_draw_and_every_log_probability_is_that_of_mlx_lm", .when = "logit_bias"},
};
NODE_EXPORT(penalty, nodes);
