/* The list of nodes against itself and against the options that it names: the three rules of flags. A
 * choice of one has no flag; routes of one tier and one judge have none either; what crosses is an option
 * of the group of numbers. */
#include "app/load.h"
#include "app/nodes.h"
#include "base/test.h"

#include <stdio.h>
#include <string.h>

/* The group of numbers as every verb with a model has it. */
static bool is_number_option(const char *name) {
    ig_load_options load = ig_load_defaults();
    const ig_option options[] = {IG_NUMBERS_OPTIONS(load)};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].numbers && strcmp(options[i].name, name) == 0) return true;
    return false;
}

TEST(every_node_says_who_judges_it_and_its_id_is_its_own) {
    const ig_tier_node *n, *before = NULL;
    int i = 0;
    for (; (n = ig_node_at(i)) != NULL; i++, before = n) {
        const bool has_numbers = n->tier != 0;
        CHECK_MSG(!before || strcmp(before->id, n->id) < 0, "%s is there twice", n->id);
        CHECK_MSG(strchr(n->id, '.') || strcmp(n->id, "matmul") == 0, "%s has no group", n->id);
        CHECK_MSG((n->gate != IG_GATE_NONE) == has_numbers && (n->proof != NULL) == has_numbers,
                  "%s: numbers without a gate or a test, or the other way round", n->id);
        CHECK_MSG(n->tier == 0 || n->tier == IG_TIER_L3 || (n->gate == IG_GATE_EXACT && n->oracle),
                  "%s claims %s without an oracle's bits", n->id, ig_tier_name(n->tier));
        CHECK_MSG(n->tier != IG_TIER_L3 || n->gate != IG_GATE_EXACT, "%s is bit-exact and of l3", n->id);
        for (int t = IG_TIER_L1; t < (int)n->tier; t++)
            CHECK_MSG(n->training || n->in[t - IG_TIER_L1] == NULL || n->when, "%s, of %s, is on in l%d", n->id,
                      ig_tier_name(n->tier), t);
        CHECK_MSG(strlen(n->id) <= 20 && strlen(n->does) <= 90, "%s: too long for its table", n->id);
    }
    CHECK(i > 30 && ig_node_find("norm.rms") && !ig_node_find("norm"));
}

/* Whether the kernels of an op are of more than one tier. */
static bool op_crosses(int op) {
    const ig_kern *k;
    bool exact = false, ours = false;
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++)
        if ((int)k->op == op) k->tier == IG_TIER_L3 ? (ours = true) : (exact = true);
    return exact && ours;
}

TEST(a_node_with_an_option_is_a_choice_and_one_without_is_none) {
    const ig_tier_node *n;
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
        bool differs = n->in[0] != n->in[1] || n->in[1] != n->in[2] || n->when;
        if (!n->in[0] && !n->in[1] && !n->in[2]) differs = true; /* off until it is asked for */
        for (int op = 0; op < IG_KERN_N_OPS; op++) differs |= (n->runs | n->also) >> op & 1 && op_crosses(op);
        CHECK_MSG(!n->flags || differs, "%s is always the same, and --%s is said to reach it", n->id, n->flags);
        CHECK_MSG(!n->flags || !n->training, "%s is of training, which has no such options", n->id);
    }
}

TEST(every_option_that_a_node_names_is_one_of_the_group_of_numbers) {
    const ig_tier_node *n;
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
        char flags[128];
        snprintf(flags, sizeof flags, "%s", n->flags ? n->flags : "");
        for (char *p = flags; *p;) {
            char *end = p + strcspn(p, " "), *next = *end ? end + 1 : end;
            *end = 0;
            CHECK_MSG(is_number_option(p), "%s names --%s, which is no option of the group of numbers", n->id, p);
            p = next;
        }
    }
    CHECK(!is_number_option("threads") && is_number_option("kv-bits")); /* the control */
}

/* Where all that an option reaches is of one tier and has one judge, the fastest must be the default and
 * no option. */
TEST(every_option_of_the_group_of_numbers_crosses_tiers_or_judges) {
    ig_load_options load = ig_load_defaults();
    const ig_option options[] = {IG_NUMBERS_OPTIONS(load)};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        const ig_tier_node *n, *first = NULL;
        bool crosses = false;
        for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
            if (!ig_tier_lists(n->flags, " ", options[o].name)) continue;
            if (!first) first = n;
            crosses |= n->tier != first->tier || n->gate != first->gate;
        }
        CHECK_MSG(first, "--%s reaches no node", options[o].name);
        CHECK_MSG(crosses, "--%s reaches nodes of one tier and one judge only", options[o].name);
    }
}

/* Why it is refused is said on stderr; tests/tiers reads it. */
TEST(tiers_exclude_each_other_and_the_bits_of_ours) {
    ig_load_options o = ig_load_defaults();
    CHECK(ig_load_check_numbers(&o) == 0 && ig_load_tier(&o) == IG_TIER_L3);
    o.kv_bits = 8, o.act_bits = 16;
    CHECK(ig_load_check_numbers(&o) == 0);
    for (int t = IG_TIER_L1; t <= IG_TIER_L2; t++)
        for (int which = 0; which < 3; which++) {
            ig_load_options x = ig_load_defaults();
            x.tier = (ig_option_one){t, t == IG_TIER_L1 ? "l1" : "l2"};
            if (which == 1) x.kv_bits = 8;
            if (which == 2) x.act_bits = 16;
            CHECK((ig_load_check_numbers(&x) == 0) == (which == 0));
        }
}

TEST(words_of_a_list_are_whole) {
    CHECK(ig_tier_lists("norm, norm of heads", ", ", "norm of heads") && ig_tier_lists("a b", " ", "b"));
    CHECK(!ig_tier_lists("norm of heads", ", ", "norm") && !ig_tier_lists(NULL, " ", "a") && !ig_tier_lists("ab", " ", "a"));
}
