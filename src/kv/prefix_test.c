/* The tree: what is found, shared, copied and evicted; rows hold their token, so a mix-up shows. */
#include "base/test.h"
#include "kv/kv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const ig_kv_shape ONE = {1, {{1, 1, 8, 0, IG_KV_F16}}};
static const ig_kv_shape TWO = {2, {{2, 1, 8, 100, IG_KV_F16}, {1, 1, 8, 0, IG_KV_F16}}};
static ig_kv_shape shape = {1, {{1, 1, 8, 0, IG_KV_F16}}}; /* of the pool that is tested; main is its last group */

static uint16_t *row_at(const ig_kv_pool *p, const ig_kv_seq *s, int g, int pos) {
    const int block = s->block[g][pos / IG_KV_BLOCK_TOKENS];
    uint16_t *k = ig_kv_at(p, block, (ig_kv_layer){g, 0}, 0);
    return k + pos % IG_KV_BLOCK_TOKENS;
}

/* A position's row holds its token, 8 bits a half, so that every value is finite. */
static void write_row(ig_kv_pool *p, const ig_kv_seq *s, int pos, uint32_t token) {
    for (int g = 0; g < shape.n_groups; g++)
        for (int d = 0; d < 4; d++)
            row_at(p, s, g, pos)[d * IG_KV_BLOCK_TOKENS] = (uint16_t)(token >> 8 * d & 255u);
}

static uint32_t read_row(const ig_kv_pool *p, const ig_kv_seq *s, int g, int pos) {
    uint32_t token = 0;
    for (int d = 0; d < 4; d++) token |= (uint32_t)row_at(p, s, g, pos)[d * IG_KV_BLOCK_TOKENS] << 8 * d;
    return token;
}

/* Every row that the next one will read. */
static bool holds(const ig_kv_pool *p, const ig_kv_seq *s, const uint32_t *tokens) {
    for (int g = 0; g < shape.n_groups; g++) {
        const int window = shape.group[g].window, n = s->n_tokens;
        for (int i = window && n >= window ? n - window + 1 : 0; i < n; i++)
            if (read_row(p, s, g, i) != tokens[i]) return false;
    }
    return true;
}

static bool compute(ig_kv_pool *p, ig_kv_seq *s, const uint32_t *tokens, int n) {
    if (!ig_kv_seq_reserve(p, s, n)) return false;
    for (int pos = s->n_tokens; pos < n; pos++) write_row(p, s, pos, tokens[pos]);
    s->n_tokens = n;
    return true;
}

static ig_kv_pool *make_pool(ig_kv_shape s, ig_kv_room room) {
    ig_kv_pool *p = NULL;
    ig_err err = {0};
    shape = s;
    CHECK_MSG(ig_kv_pool_make(&p, shape, room, 8, 1024, &err) == IG_OK, "%s", err.msg);
    return p;
}

static ig_kv_pool *pool_of(int n_blocks) {
    return make_pool(ONE, (ig_kv_room){{n_blocks}});
}

static void check_pool(const ig_kv_pool *p) {
    ig_err err = {0};
    CHECK_MSG(ig_kv_pool_check(p, &err), "%s", err.msg);
}

static void count_up(uint32_t *tokens, int n, uint32_t from) {
    for (int i = 0; i < n; i++) tokens[i] = from + (uint32_t)i;
}

/* Computes and remembers tokens[0, n), then lets go. */
static void remember(ig_kv_pool *p, const uint32_t *tokens, int n) {
    ig_kv_seq *s = ig_kv_seq_open(p);
    ig_kv_prefix_attach(p, s, tokens, n);
    CHECK(compute(p, s, tokens, n));
    ig_kv_prefix_insert(p, s, tokens, s->n_tokens);
    ig_kv_seq_close(p, s);
    check_pool(p);
}

static int attach_count(ig_kv_pool *p, const uint32_t *tokens, int n) {
    ig_kv_probe probe = ig_kv_prefix_probe(p, tokens, n);
    ig_kv_seq *s = ig_kv_seq_open(p);
    int got = ig_kv_prefix_attach(p, s, tokens, n);
    CHECK(got == s->n_tokens && holds(p, s, tokens));
    CHECK(probe.n_tokens == got && probe.n_whole[shape.n_groups - 1] == got / IG_KV_BLOCK_TOKENS);
    check_pool(p);
    ig_kv_seq_close(p, s);
    return got;
}

TEST(a_known_prefix_is_found_to_its_last_token_but_one_is_always_left) {
    ig_kv_pool *p = pool_of(16);
    uint32_t t[300];

    count_up(t, 300, 70000);
    CHECK(attach_count(p, t, 300) == 0);
    remember(p, t, 150);
    CHECK(attach_count(p, t, 300) == 150);
    CHECK(attach_count(p, t, 151) == 150);
    CHECK(attach_count(p, t, 150) == 149);
    CHECK(attach_count(p, t, 129) == 128);
    CHECK(attach_count(p, t, 128) == 127);
    CHECK(attach_count(p, t, 1) == 0);
    t[100] = 1; /* inside the second block: its first 36 tokens are still good */
    CHECK(attach_count(p, t, 300) == 100);
    t[0] = 1;
    CHECK(attach_count(p, t, 300) == 0);
    ig_kv_pool_free(p);
}

TEST(whole_blocks_are_shared_and_the_partial_one_is_copied) {
    ig_kv_pool *p = pool_of(16);
    uint32_t t[200];

    count_up(t, 200, 5);
    remember(p, t, 150);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, a, t, 200) == 150 && ig_kv_prefix_attach(p, b, t, 200) == 150);
    CHECK(a->block[0][0] == b->block[0][0] && a->block[0][1] == b->block[0][1] && a->block[0][2] != b->block[0][2]);

    uint32_t u[200];
    memcpy(u, t, sizeof u);
    count_up(u + 150, 50, 900);
    CHECK(compute(p, a, t, 200) && compute(p, b, u, 200));
    CHECK(holds(p, a, t) && holds(p, b, u));
    ig_kv_prefix_insert(p, a, t, a->n_tokens);
    ig_kv_prefix_insert(p, b, u, b->n_tokens);
    ig_kv_seq_close(p, a);
    ig_kv_seq_close(p, b);
    CHECK(attach_count(p, t, 200) == 199 && attach_count(p, u, 200) == 199);
    ig_kv_pool_free(p);
}

TEST(a_remembered_partial_block_is_copied_before_its_owner_writes_on) {
    ig_kv_pool *p = pool_of(16);
    uint32_t t[128];

    count_up(t, 128, 5);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(compute(p, s, t, 40));
    ig_kv_prefix_insert(p, s, t, s->n_tokens);
    int remembered = s->block[0][0];
    CHECK(ig_kv_seq_reserve(p, s, 40) && s->block[0][0] == remembered); /* nothing is written: no copy */
    CHECK(compute(p, s, t, 41) && s->block[0][0] != remembered);
    CHECK(holds(p, s, t));
    check_pool(p);
    CHECK(compute(p, s, t, 128));
    ig_kv_prefix_insert(p, s, t, s->n_tokens); /* the shorter memory of the first block gives way */
    check_pool(p);
    ig_kv_seq_close(p, s);
    CHECK(ig_kv_pool_stats(p).group[0].n_cached == 2 && ig_kv_pool_stats(p).group[0].n_free == 14);
    ig_kv_pool_free(p);
}

TEST(without_a_free_block_the_tree_forgets_instead_of_copying) {
    ig_kv_pool *p = pool_of(1);
    uint32_t t[64];

    count_up(t, 64, 5);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(compute(p, s, t, 40));
    ig_kv_prefix_insert(p, s, t, s->n_tokens);
    CHECK(compute(p, s, t, 64) && holds(p, s, t));
    CHECK(attach_count(p, t, 64) == 0);
    ig_kv_seq_close(p, s);
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(sequences_that_computed_one_prefix_side_by_side_share_it_afterwards) {
    ig_kv_pool *p = pool_of(16);
    uint32_t t[200];

    count_up(t, 200, 5);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);
    CHECK(compute(p, a, t, 130) && compute(p, b, t, 170));
    ig_kv_prefix_insert(p, a, t, a->n_tokens);
    ig_kv_prefix_insert(p, b, t, b->n_tokens);
    CHECK(a->block[0][0] == b->block[0][0] && a->block[0][1] == b->block[0][1] && a->block[0][2] != b->block[0][2]);
    CHECK(holds(p, a, t) && holds(p, b, t));
    check_pool(p);
    ig_kv_seq_close(p, a);
    check_pool(p);
    ig_kv_seq_close(p, b);
    CHECK(ig_kv_pool_stats(p).group[0].n_cached == 3);
    ig_kv_pool_free(p);
}

TEST(the_prefix_used_longest_ago_is_evicted_first_and_its_leaves_before_its_root) {
    ig_kv_pool *p = pool_of(6);
    uint32_t a[128], b[128], c[128];

    count_up(a, 128, 1000);
    count_up(b, 128, 2000);
    count_up(c, 128, 3000);
    remember(p, a, 128);
    remember(p, b, 128);
    remember(p, c, 128);
    CHECK(attach_count(p, a, 128) == 64 + 63); /* evicts b's leaf for the copy, then gives it back */
    CHECK(ig_kv_pool_stats(p).n_evicted == 1);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, s, 128)); /* the free one and b's root */
    CHECK(ig_kv_prefix_probe(p, a, 128).n_tokens == 127 && ig_kv_prefix_probe(p, c, 128).n_tokens == 127);
    CHECK(ig_kv_prefix_probe(p, b, 128).n_tokens == 0);
    CHECK(ig_kv_seq_reserve(p, s, 192)); /* c is older than a by now: its leaf */
    CHECK(ig_kv_prefix_probe(p, a, 128).n_tokens == 127 && ig_kv_prefix_probe(p, c, 128).n_tokens == 64);
    check_pool(p);
    CHECK(ig_kv_seq_reserve(p, s, 384) && !ig_kv_seq_reserve(p, s, 385));
    CHECK(ig_kv_pool_stats(p).group[0].n_cached == 0);
    ig_kv_seq_close(p, s);
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(what_a_sequence_uses_is_never_evicted) {
    ig_kv_pool *p = pool_of(4);
    uint32_t t[200];

    count_up(t, 200, 5);
    remember(p, t, 128);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, a, t, 200) == 128);
    CHECK(ig_kv_seq_reserve(p, b, 128) && !ig_kv_seq_reserve(p, b, 129));
    CHECK(holds(p, a, t));
    check_pool(p);
    ig_kv_seq_close(p, a);
    CHECK(ig_kv_seq_reserve(p, b, 256));
    ig_kv_pool_free(p);
}

TEST(a_prefix_whose_partial_block_cannot_be_copied_is_attached_without_it) {
    ig_kv_pool *p = pool_of(2);
    uint32_t t[200];

    count_up(t, 200, 5);
    remember(p, t, 100);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, s, t, 200) == 64 && s->n_blocks == 1);
    check_pool(p);
    ig_kv_pool_free(p);
}

TEST(tokens_are_compared_and_not_only_hashed) {
    ig_kv_pool *p = pool_of(8); /* 16 buckets, many more first tokens */
    uint32_t t[64], u[64];

    count_up(t, 64, 0);
    remember(p, t, 64);
    for (uint32_t first = 1; first < 5000; first++) {
        memcpy(u, t, sizeof u);
        u[0] = first;
        CHECK(ig_kv_prefix_probe(p, u, 64).n_tokens == 0);
    }
    ig_kv_pool_free(p);
}

TEST(a_cleared_tree_knows_nothing_and_running_sequences_do_not_notice) {
    ig_kv_pool *p = pool_of(8);
    uint32_t t[200];

    count_up(t, 200, 5);
    remember(p, t, 150);
    ig_kv_seq *s = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, s, t, 200) == 150);
    ig_kv_prefix_clear(p);
    check_pool(p);
    CHECK(holds(p, s, t) && ig_kv_prefix_probe(p, t, 200).n_tokens == 0);
    CHECK(compute(p, s, t, 200));
    ig_kv_prefix_insert(p, s, t, s->n_tokens);
    check_pool(p);
    ig_kv_seq_close(p, s);
    CHECK(ig_kv_prefix_probe(p, t, 200).n_tokens == 199);
    ig_kv_pool_free(p);
}

TEST(a_block_shared_before_a_clear_does_not_become_a_node_that_its_other_holder_cannot_protect) {
    ig_kv_pool *p = pool_of(12);
    uint32_t t[200];

    count_up(t, 200, 5);
    remember(p, t, 128);
    ig_kv_seq *a = ig_kv_seq_open(p), *b = ig_kv_seq_open(p), *c = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, a, t, 200) == 128 && ig_kv_prefix_attach(p, b, t, 200) == 128);
    ig_kv_prefix_clear(p);
    CHECK(compute(p, c, t, 64));
    ig_kv_prefix_insert(p, c, t, c->n_tokens);
    ig_kv_prefix_insert(p, a, t, a->n_tokens); /* takes c's first block; b still has the old one in front of the second */
    check_pool(p);
    ig_kv_seq_close(p, a);
    ig_kv_seq_close(p, c);
    check_pool(p);
    CHECK(ig_kv_seq_reserve(p, b, 200) && holds(p, b, t));
    ig_kv_seq *d = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, d, 8 * 64)); /* every cached block can be had */
    ig_kv_pool_free(p);
}

/* ---- windows ------------------------------------------------------------------------------------------ */

static struct ig_kv_group_stats windowed(const ig_kv_pool *p) {
    return ig_kv_pool_stats(p).group[0];
}

/* As the engine does: in steps, and what leaves the window is remembered first. */
static void remember_in_steps(ig_kv_pool *p, const uint32_t *tokens, int n, bool mark) {
    ig_kv_seq *s = ig_kv_seq_open(p);
    ig_kv_prefix_attach(p, s, tokens, n);
    while (s->n_tokens < n) {
        if (ig_kv_seq_forgets(p, s)) ig_kv_prefix_insert(p, s, tokens, s->n_tokens / 64 * 64);
        CHECK(compute(p, s, tokens, n < s->n_tokens + 50 ? n : s->n_tokens + 50) && holds(p, s, tokens));
    }
    ig_kv_prefix_insert(p, s, tokens, n);
    if (mark) ig_kv_prefix_mark(p, tokens, n);
    ig_kv_seq_close(p, s);
    check_pool(p);
}

TEST(with_room_for_all_a_prefix_may_be_cut_anywhere_inside_the_window_and_beyond_it) {
    ig_kv_pool *p = make_pool(TWO, (ig_kv_room){{30, 30}});
    uint32_t t[900];

    count_up(t, 900, 5);
    remember_in_steps(p, t, 900, false);
    CHECK(windowed(p).n_cached == 15);
    for (int cut = 899; cut > 0; cut -= 7) {
        uint32_t kept = t[cut];
        t[cut] = 1;
        CHECK(attach_count(p, t, 900) == cut);
        t[cut] = kept;
    }
    ig_kv_pool_free(p);
}

TEST(short_of_windowed_blocks_the_longest_prefix_whose_window_is_there_is_found) {
    ig_kv_pool *p = make_pool(TWO, (ig_kv_room){{30, 30}});
    uint32_t t[900];

    count_up(t, 900, 5);
    ig_kv_seq *s = ig_kv_seq_open(p);
    for (int n = 300; n <= 900; n += 300) {
        CHECK(compute(p, s, t, n));
        if (n != 600) ig_kv_prefix_insert(p, s, t, n); /* what went between is not there */
    }
    ig_kv_seq_close(p, s);
    check_pool(p);
    /* Blocks 4, 5 and 6 are holes: 4 was a part when it was remembered, and 501..899 begins in 7. */
    CHECK(attach_count(p, t, 900) == 899);
    uint32_t u[900];
    for (int cut = 899; cut > 0; cut--) {
        memcpy(u, t, sizeof u);
        u[cut] = 1;
        const int first = ig_kv_first_block(TWO.group[0], cut), got = ig_kv_prefix_probe(p, u, 900).n_tokens;
        CHECK_MSG(first >= 7 || cut <= 256 ? got == cut : got == 256, "cut at %d: %d", cut, got);
    }
    ig_kv_pool_free(p);
}

TEST(windowed_blocks_go_before_their_nodes_the_oldest_first_and_marked_ones_last) {
    ig_kv_pool *p = make_pool(TWO, (ig_kv_room){{12, 60}});
    uint32_t a[600], b[600], c[300];

    count_up(a, 600, 1000);
    count_up(b, 600, 3000);
    count_up(c, 300, 5000);
    remember_in_steps(p, a, 500, true); /* 8 blocks, the last 4 marked: the window at 500 begins in block 6 */
    remember_in_steps(p, b, 500, false);
    CHECK(ig_kv_pool_stats(p).group[1].n_cached == 16 && windowed(p).n_cached == 12);
    CHECK(ig_kv_prefix_probe(p, a, 600).n_tokens == 500 && ig_kv_prefix_probe(p, b, 600).n_tokens == 500);
    remember_in_steps(p, c, 300, true);
    CHECK(ig_kv_pool_stats(p).group[1].n_cached == 21 && windowed(p).n_cached == 12);
    CHECK(ig_kv_prefix_probe(p, a, 600).n_tokens == 500 && ig_kv_prefix_probe(p, c, 300).n_tokens == 299);
    a[450] = 1; /* a template's end is inside the mark */
    CHECK(attach_count(p, a, 600) == 450);
    a[300] = 1; /* nothing is left here but at the start */
    CHECK(attach_count(p, a, 600) < 300);
    ig_kv_pool_free(p);
}

TEST(a_partial_block_is_copied_in_every_group_or_in_none) {
    ig_kv_pool *p = make_pool(TWO, (ig_kv_room){{4, 30}});
    uint32_t t[300], u[300];

    count_up(t, 300, 5);
    memcpy(u, t, sizeof u);
    u[230] = 1;
    remember_in_steps(p, t, 250, false); /* windowed: 2 (a part), 3 (whole to 250), both held below */
    ig_kv_seq *s = ig_kv_seq_open(p), *other = ig_kv_seq_open(p);
    CHECK(ig_kv_prefix_attach(p, s, u, 300) == 230 && s->first[0] == 2 && s->n_blocks == 4);
    CHECK(compute(p, s, u, 256) && holds(p, s, u));
    check_pool(p);
    ig_kv_seq_close(p, s);
    CHECK(compute(p, other, u, 64));
    s = ig_kv_seq_open(p);
    CHECK(ig_kv_seq_reserve(p, other, 128));
    CHECK(ig_kv_prefix_attach(p, s, u, 300) <= 192); /* no block to copy into: an earlier end, or none */
    CHECK(holds(p, s, u));
    check_pool(p);
    ig_kv_pool_free(p);
}

/* ---- a long random run ------------------------------------------------------------------------------ */

static uint32_t word(uint32_t *n) {
    return ig_rng_word(7, (*n)++, 0, 0);
}

/* Few tokens and few forks, so that prompts share beginnings of every length. */
static int random_prompt(uint32_t *t, uint32_t *n_words) {
    int n = 1 + (int)(word(n_words) % 400u);
    uint32_t family = word(n_words) % 5u, fork = word(n_words) % 300u;
    for (int i = 0; i < n; i++) t[i] = (uint32_t)i * 3u + (i % 97 == 0 ? family : 0) + 70000u * (i > 200);
    for (int i = (int)fork; i < n; i += 31) t[i] = word(n_words) % 3u;
    return n;
}

static void long_random_run(ig_kv_pool *p, int min_hit) {
    enum { N = 8, STEPS = 20000 };
    static uint32_t prompt[N][512];
    int n_prompt[N] = {0};
    ig_kv_seq *seq[N] = {0};
    uint32_t n_words = 0;
    uint64_t n_hit = 0;

    for (int step = 0; step < STEPS && !ig_test_failed(); step++) {
        int i = (int)(word(&n_words) % N);
        uint32_t what = word(&n_words) % 8u;
        if (!seq[i]) {
            n_prompt[i] = random_prompt(prompt[i], &n_words);
            seq[i] = ig_kv_seq_open(p);
            n_hit += (uint64_t)ig_kv_prefix_attach(p, seq[i], prompt[i], n_prompt[i]);
            CHECK(seq[i]->n_tokens < n_prompt[i]);
        } else if (what < 5) {
            int left = n_prompt[i] - seq[i]->n_tokens;
            int before = seq[i]->n_tokens, n_blocks = seq[i]->n_blocks;
            int to = before + (left > 0 ? 1 + (int)(word(&n_words) % (uint32_t)left) : 0);
            if (!compute(p, seq[i], prompt[i], to))
                CHECK(seq[i]->n_tokens == before && seq[i]->n_blocks == n_blocks);
        } else if (what == 5) {
            ig_kv_prefix_insert(p, seq[i], prompt[i], seq[i]->n_tokens);
        } else {
            if (what == 6) ig_kv_prefix_insert(p, seq[i], prompt[i], seq[i]->n_tokens);
            ig_kv_seq_close(p, seq[i]);
            seq[i] = NULL;
        }
        if (step % 997 == 0) ig_kv_prefix_clear(p);
        for (int k = 0; k < N; k++)
            if (seq[k]) CHECK_MSG(holds(p, seq[k], prompt[k]), "step %d: sequence %d", step, k);
        check_pool(p);
    }
    CHECK_MSG(n_hit > (uint64_t)min_hit, "%" PRIu64 " tokens found", n_hit);
    CHECK(ig_kv_pool_stats(p).n_evicted > 1000);
    ig_kv_pool_free(p);
}

TEST(a_long_random_run_never_mixes_rows) {
    long_random_run(pool_of(24), 60000);
}

TEST(a_long_random_run_with_a_window_never_mixes_rows) {
    long_random_run(make_pool(TWO, (ig_kv_room){{40, 40}}), 60000);
    long_random_run(make_pool(TWO, (ig_kv_room){{14, 40}}), 20000); /* holes */
    long_random_run(make_pool(TWO, (ig_kv_room){{40, 24}}), 40000);
    long_random_run(make_pool((ig_kv_shape){2, {{1, 1, 8, 1, IG_KV_F16}, {1, 1, 8, 0, IG_KV_F16}}}, (ig_kv_room){{30, 40}}), 60000);
    long_random_run(make_pool((ig_kv_shape){2, {{1, 1, 8, 4000, IG_KV_F16}, {1, 1, 8, 0, IG_KV_F16}}}, (ig_kv_room){{24, 24}}), 40000);
}
