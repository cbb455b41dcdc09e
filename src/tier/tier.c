/* tier: names of tiers and gates, and words of records. */
#include "tier/tier.h"

#include <string.h>

const ig_tier_envelope ig_tier_envelope_gate = {.prompt_tokens = {600, 2048}, .n_steps = 64, .n_agree = 56,
                                                .kl_mean = 0.02f, .n_first = 4, .n_top = 128, .logit_8 = 0.5f,
                                                .logit_4 = 1.0f, .calls_a_layer = 64};

const char *ig_tier_name(ig_tier t) {
    static const char *const names[] = {"-", "l1", "l2", "l3"};
    return (int)t >= 0 && t <= IG_TIER_L3 ? names[t] : "?";
}

const char *ig_gate_name(ig_gate g) {
    static const char *const names[IG_N_GATES] = {"none", "bit-exact", "envelope", "fd", "kl"};
    return (int)g >= 0 && g < IG_N_GATES ? names[g] : "?";
}

const char *ig_tier_promise(ig_tier t) {
    static const char *const promises[] = {"no numbers", "equal to mlx-lm, bit for bit",
                                           "as l1, and equal to mlx-optiq where mlx-lm has no such path",
                                           "the fastest that keeps its bounds"};
    return (int)t >= 0 && t <= IG_TIER_L3 ? promises[t] : "?";
}

bool ig_tier_lists(const char *list, const char *between, const char *word) {
    const size_t n_word = strlen(word), n_between = strlen(between);
    for (const char *p = list; p;) {
        const char *end = strstr(p, between);
        const size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n == n_word && memcmp(p, word, n) == 0) return true;
        p = end ? end + n_between : NULL;
    }
    return false;
}
