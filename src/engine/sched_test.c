/* The scheduler on the fake model and a clock turned by hand: every request's tokens against a straight
 * computation, the bounds of a step, and what happens when memory is short. */
#include "base/test.h"
#include "engine/fake_test.h"

#include <stdlib.h>

static _Atomic uint64_t now_ns;
static fake model;
static ig_engine *engine;

static void make_shaped(const ig_engine_config *c, int n_ctx, ig_kv_shape kv) {
    ig_err err = {0};
    ig_backend b;
    model = (fake){.clock = &now_ns, .step_ns = 1000000, .row_ns = 1000000, .kv = kv};
    b = fake_backend(&model, n_ctx);
    atomic_store(&now_ns, 1);
    ig_clock_fake(&now_ns);
    ig_status st = ig_engine_make_on(&engine, &b, c, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
    ig_assert(st == IG_OK);
}

static void make(const ig_engine_config *c, int n_ctx) {
    make_shaped(c, n_ctx, FAKE_KV);
}

/* Other numbers of blocks than the plan would choose. */
static void set_room(ig_kv_room room) {
    ig_err err = {0};
    ig_kv_pool_free(engine->kv);
    engine->plan.room = room;
    ig_status st = ig_kv_pool_make(&engine->kv, engine->model.kv, room, engine->plan.n_slots,
                                   engine->plan.n_ctx, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
}

static void unmake(void) {
    ig_sched_cancel(engine, true);
    ig_engine_free(engine);
    ig_clock_fake(NULL);
}

static ig_gen *submit(const ig_gen_params *p) {
    ig_gen *g = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_engine_submit(engine, p, &g, &err) == IG_OK, "%s", err.msg);
    return g;
}

static void check_kv(void) {
    ig_err err = {0};
    CHECK_MSG(ig_kv_pool_check(engine->kv, &err), "%s", err.msg);
}

static const uint32_t *counted(uint32_t from, int n) {
    static uint32_t t[2048];
    for (int i = 0; i < n; i++) t[i] = 1u + (from + (uint32_t)i * 7u) % (N_PLAIN - 1u);
    return t;
}

static void finish_all(void) {
    for (int i = 0; i < 100000 && ig_engine_turn(engine); i++) {}
    check_kv();
    ig_kv_stats kv = ig_kv_pool_stats(engine->kv);
    for (int g = 0; g < kv.n_groups; g++)
        CHECK(kv.group[g].n_free + kv.group[g].n_cached == kv.group[g].n_blocks);
    CHECK(engine->n_running == 0 && atomic_load(&engine->n_queued) == 0);
}

/* Runs p alone to its end and checks its tokens. */
static void run_checked(const ig_gen_params *p) {
    straight want;
    compute_straight(&want, p, engine->plan.n_ctx);
    ig_gen *g = submit(p);
    finish_all();
    CHECK(gen_is_right(g, &want));
    ig_gen_release(g);
}

/* ---- a long random run ------------------------------------------------------------------------------ */

/* Longer runs and others: INGLE_TEST_ARRIVALS, INGLE_TEST_SEED. */
static uint32_t number_from(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static uint32_t seed, n_words;

static uint32_t below(uint32_t n) {
    return ig_rng_word(seed, n_words++, 0, 0) % n;
}

typedef struct live {
    ig_gen *g;
    uint32_t prompt[512];
    ig_gen_params p;
    bool canceled_queued;
} live;

static const uint32_t EOS_IDS[] = {EOS};

static const ig_token_bias BIASES[] = {{3, 2.5f}, {EOS, -1.0f}, {40, 0.75f}};
static const uint32_t SPECIAL[] = {EOS, 7};

/* What looks back at the tokens, or at the random stream more than once. */
static void random_sampling(ig_sampling *s) {
    s->repetition_penalty = below(2) ? 1.3 : 0.0;
    s->repetition_context_size = (int)below(30);
    s->presence_penalty = below(2) ? 0.5 : 0.0;
    s->frequency_penalty = below(2) ? 0.25 : 0.0;
    s->frequency_context_size = 64;
    s->xtc_probability = below(2) ? 0.5 : 0.0;
    s->xtc_threshold = 0.02;
    s->xtc_special = SPECIAL, s->n_xtc_special = 2;
    s->logit_bias = BIASES, s->n_logit_bias = (int)below(4);
    s->min_p = below(2) ? 0.02 : 0.0, s->min_tokens_to_keep = (int)below(5);
}

/* Prompts that share beginnings of all lengths: a family, and forks from it. Some are poison. */
static void random_params(live *l) {
    int n = 1 + (int)below(below(4) == 0 ? 400 : 150);
    uint32_t family = below(4), fork = below(260);
    for (int i = 0; i < n; i++) l->prompt[i] = 1u + ((uint32_t)i * 7u + family * 31u) % (N_PLAIN - 1u);
    for (int i = (int)fork; i < n; i += 37) l->prompt[i] = 1u + below(3);
    if (below(50) == 0) l->prompt[below((uint32_t)n)] = POISON;
    if (below(200) == 0) l->prompt[below((uint32_t)n)] = FAULT;
    l->p = (ig_gen_params){
        .prompt = l->prompt,
        .n_prompt = n,
        .max_tokens = 1 + (int)below(below(8) == 0 ? 300 : 40),
        .sampling = {.temperature = below(2) ? 0.0f : 0.9f, .top_p = 0.95f, .top_k = 20, .seed = below(1000)},
        .eos = EOS_IDS,
        .n_eos = (int)below(2),
        .use_prefix_cache = below(8) != 0,
        .top_logprobs = below(4) == 0 ? (int)below(5) : -1,
    };
    if (below(3) == 0) random_sampling(&l->p.sampling);
    l->canceled_queued = false;
}

/* Free, cached and held are all there is, and nobody holds more than a window and a chunk ask for. */
static void check_group(struct ig_kv_group_stats kv, int group) {
    static uint8_t seen[1024];
    int n_held = 0;
    ig_assert(kv.n_blocks <= 1024);
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < engine->n_running; i++) {
        const ig_kv_seq *s = engine->running[i]->seq;
        const int held = s->n_blocks - s->first[group];
        CHECK(held <= ig_kv_held_most(engine->model.kv.group[group], 512, engine->config.prefill_chunk));
        for (int k = s->first[group]; k < s->n_blocks; k++) n_held += !seen[s->block[group][k]]++;
    }
    CHECK_MSG(kv.n_free + kv.n_cached + n_held == kv.n_blocks, "group %d: %d free, %d cached, %d held of %d",
              group, kv.n_free, kv.n_cached, n_held, kv.n_blocks);
}

static void check_step(int turn) {
    ig_kv_stats kv = ig_kv_pool_stats(engine->kv);
    const ig_gen *last = NULL;
    CHECK(engine->n_running <= engine->plan.n_slots);
    for (int g = 0; g < kv.n_groups; g++) check_group(kv.group[g], g);
    for (int i = 0; i < engine->n_running; i++) {
        const ig_gen *g = engine->running[i];
        CHECK(g->seq && g->seq->n_tokens < g->n_ids && (!last || last->submit_ns <= g->submit_ns));
        CHECK_MSG(g->n_waited <= WAIT_STEPS_MAX, "turn %d: passed over %d times", turn, g->n_waited);
        last = g;
    }
    for (const ig_gen *g = engine->waiting; g; g = g->next) {
        CHECK(!g->seq && (!last || last->submit_ns <= g->submit_ns));
        last = g;
    }
    if (turn % 64 == 0) check_kv();
}

static void settle_live(live *l, int *n_ended) {
    static straight want;
    if (!l->g || ig_gen_finish(l->g) == IG_FINISH_NONE) return;
    compute_straight(&want, &l->p, engine->plan.n_ctx);
    CHECK(gen_is_right(l->g, &want));
    ig_gen_stats s = ig_gen_stats_of(l->g);
    CHECK(s.n_cached < s.n_prompt && s.n_prefilled <= s.n_prompt);
    if (l->canceled_queued) CHECK(ig_gen_n_tokens(l->g) == 0 && s.n_prefilled == 0);
    ig_gen_release(l->g);
    l->g = NULL;
    ++*n_ended;
}

static void simulate(int n_arrivals, int n_slots, int n_blocks, int n_windowed, int chunk) {
    const ig_kv_shape kv = n_windowed > 0 ? FAKE_KV_WINDOW : FAKE_KV;
    enum { LIVE = 24 };
    static live all[LIVE];
    ig_engine_config c = fake_config(n_slots, n_blocks);
    int n_ended = 0, n_sent = 0;

    c.queue_max = LIVE;
    c.prefill_chunk = chunk;
    seed = number_from("INGLE_TEST_SEED", 1);
    c.kv_budget_bytes = (uint64_t)n_blocks * ig_kv_block_bytes(kv);
    make_shaped(&c, 512, kv);
    if (n_windowed > 0) set_room((ig_kv_room){{n_windowed, n_blocks}});
    memset(all, 0, sizeof all);
    for (int turn = 0; (n_sent < n_arrivals || n_ended < n_sent) && !ig_test_failed(); turn++) {
        for (uint32_t k = below(3); k > 0 && n_sent < n_arrivals; k--) {
            live *l = &all[below(LIVE)];
            if (l->g) continue;
            random_params(l);
            atomic_fetch_add(&now_ns, 1); /* no two are of one age */
            l->g = submit(&l->p);
            n_sent++;
        }
        live *victim = &all[below(LIVE)];
        if (victim->g && below(6) == 0) {
            victim->canceled_queued = ig_gen_state_of(victim->g) == IG_GEN_QUEUED;
            ig_gen_cancel(victim->g);
        }
        if (below(2000) == 0) ig_kv_prefix_clear(engine->kv);
        ig_engine_turn(engine);
        check_step(turn);
        for (int i = 0; i < LIVE; i++) settle_live(&all[i], &n_ended);
    }
    CHECK_MSG(!ig_test_failed(), "INGLE_TEST_SEED=%u", seed);
    finish_all();
    ig_engine_stats s = ig_engine_stats_of(engine);
    CHECK(s.n_done + s.n_failed + s.n_canceled == (uint64_t)n_sent);
    CHECK(s.n_canceled > 0 && s.n_cached_tokens > 0 && (s.n_failed > 0 || n_sent < 1000));
    if (n_blocks < 16 && n_sent >= 1000)
        CHECK(s.kv.n_evicted > 0 && atomic_load(&engine->counts.n_paused) > 0);
    unmake();
}

#ifdef __SANITIZE_THREAD__
enum { ARRIVALS = 200 }; /* one thread: nothing to see, and slow */
#else
enum { ARRIVALS = 1500 };
#endif

static int arrivals(void) {
    return (int)number_from("INGLE_TEST_ARRIVALS", ARRIVALS);
}

TEST(random_requests_on_little_memory_get_the_tokens_of_a_straight_computation) {
    n_words = 1;
    simulate(arrivals(), 6, 12, 0, 512);
}

TEST(random_requests_on_enough_memory_get_the_tokens_of_a_straight_computation) {
    n_words = 1u << 28;
    simulate(arrivals(), 8, 80, 0, 64);
}

TEST(random_requests_in_chunks_of_one_and_seven_rows_get_the_same_tokens) {
    n_words = 1u << 29;
    simulate(arrivals() / 8, 4, 20, 0, 1);
    simulate(arrivals() / 4, 16, 40, 0, 7);
}

TEST(random_requests_to_a_model_with_windows_get_the_same_tokens) {
    n_words = 3u << 28;
    simulate(arrivals() / 2, 6, 10, 8, 512);
    simulate(arrivals() / 2, 8, 80, 9, 64);
    simulate(arrivals() / 4, 16, 40, 60, 7);
}

TEST(random_requests_of_tier_l1_get_the_tokens_of_a_straight_computation) {
    static const uint32_t types[] = {1, 30}; /* f16, bf16 */
    for (int i = 0; i < 2; i++) {
        fake_number = ig_fmt_of_gguf(types[i]);
        CHECK(fake_number != NULL);
        n_words = (5u << 27) + (uint32_t)i;
        simulate(arrivals() / 4, 6, 12, 0, 512);
    }
    fake_number = NULL;
}

TEST(the_fake_model_notices_a_row_in_the_wrong_place) { /* the control of the runs above */
    ig_engine_config c = fake_config(2, 20);
    make(&c, 512);
    ig_gen_params p = {.prompt = counted(3, 100), .n_prompt = 100, .max_tokens = 20, .use_prefix_cache = true,
                       .top_logprobs = -1};
    run_checked(&p);
    straight want;
    compute_straight(&want, &p, 512);
    ig_gen *g = submit(&p);
    ig_engine_turn(engine);
    CHECK(ig_gen_n_tokens(g) == 1);
    *fake_at(engine->kv, g->seq, 0, 17, 0) ^= 1; /* one bit of one token, far back */
    finish_all();
    CHECK(!gen_is_right(g, &want));
    ig_gen_release(g);
    unmake();
}

/* ---- steps ------------------------------------------------------------------------------------------ */

TEST(a_decoder_gets_a_token_in_every_step_and_a_long_prompt_goes_on_in_slices) {
    ig_engine_config c = fake_config(4, 200);
    make(&c, 2048); /* 1 ms a row: a slice of 120 ms is at most 112 rows beside the decoder */
    ig_gen_params a = {.prompt = counted(3, 100), .n_prompt = 100, .max_tokens = 1000, .top_logprobs = -1};
    ig_gen_params b = {.prompt = counted(9, 1900), .n_prompt = 1900, .max_tokens = 5, .top_logprobs = -1};
    ig_gen *ga = submit(&a);
    ig_engine_turn(engine);
    CHECK(ig_gen_n_tokens(ga) == 1);
    ig_gen *gb = submit(&b);
    int n_steps = 0;
    while (ig_gen_n_tokens(gb) == 0 && n_steps < 1000) {
        int before = ig_gen_n_tokens(ga), done = ig_gen_stats_of(gb).n_prefilled;
        ig_engine_turn(engine);
        CHECK(ig_gen_n_tokens(ga) == before + 1);
        CHECK(model.n_rows_last - 1 >= 16 || ig_gen_n_tokens(gb) > 0);
        CHECK_MSG(model.n_rows_last <= 120, "%d rows", model.n_rows_last);
        CHECK(ig_gen_stats_of(gb).n_prefilled > done);
        n_steps++;
    }
    CHECK(n_steps >= 1900 / 112 && n_steps < 40);
    ig_gen_release(ga);
    ig_gen_release(gb);
    unmake();
}

TEST(no_token_waits_longer_than_a_slice_though_attention_grows_with_the_context) {
    ig_engine_config c = fake_config(4, 300);
    make(&c, 2048);
    model.key_ns = 3000; /* at position 2,000 a row takes seven times what it took at 0 */
    ig_gen_params a = {.prompt = counted(3, 100), .n_prompt = 100, .max_tokens = 1000, .top_logprobs = -1};
    ig_gen_params b = {.prompt = counted(9, 1900), .n_prompt = 1900, .max_tokens = 5, .top_logprobs = -1};
    ig_gen_params d = {.prompt = counted(5, 1500), .n_prompt = 1500, .max_tokens = 5, .top_logprobs = -1};
    ig_gen *ga = submit(&a);
    ig_engine_turn(engine);
    ig_gen *gb = submit(&b), *gd = submit(&d);
    uint64_t longest = 0, n_steps = 0;
    while (ig_gen_n_tokens(gb) == 0 && n_steps < 1000) {
        int before = ig_gen_n_tokens(ga);
        ig_engine_turn(engine);
        CHECK(ig_gen_n_tokens(ga) == before + 1);
        if (model.took_ns > longest) longest = model.took_ns;
        if (n_steps++ > 3) /* what it learned from: 100 rows at once and the first slices */
            CHECK_MSG(model.took_ns < 130000000, "step %d took %d us", (int)n_steps, (int)(model.took_ns / 1000));
    }
    CHECK_MSG(n_steps < 220 && longest > 60000000, "%d steps", (int)n_steps); /* and slices are used */
    ig_gen_cancel(gd); /* in its prefill or behind it: one turn, and no forward for it */
    ig_engine_turn(engine);
    CHECK(ig_gen_finish(gd) != IG_FINISH_NONE);
    ig_gen_release(ga);
    ig_gen_release(gb);
    ig_gen_release(gd);
    unmake();
}

TEST(a_new_prompt_behind_a_long_one_does_not_seem_to_be_free) {
    ig_engine_config c = fake_config(4, 300);
    make(&c, 2048);
    model.key_ns = 1000;
    ig_gen_params a = {.prompt = counted(3, 100), .n_prompt = 100, .max_tokens = 1000, .top_logprobs = -1};
    ig_gen_params b = {.prompt = counted(9, 1900), .n_prompt = 1900, .max_tokens = 1, .top_logprobs = -1};
    ig_gen_params d = {.prompt = counted(5, 1500), .n_prompt = 1500, .max_tokens = 1, .top_logprobs = -1};
    ig_gen *ga = submit(&a);
    ig_engine_turn(engine);
    ig_gen *gb = submit(&b);
    for (int i = 0; ig_gen_finish(gb) == IG_FINISH_NONE && i < 1000; i++) {
        ig_engine_turn(engine);
        /* far keys cost more and more, as when a cache overflows: the fit then gives a row alone nothing */
        model.key_ns = 1000 + ig_gen_stats_of(gb).n_prefilled * 2;
    }
    CHECK(engine->cost.row_ns < 100000);
    model.key_ns = 1000;
    ig_gen *gd = submit(&d);
    ig_engine_turn(engine);
    CHECK_MSG(ig_gen_stats_of(gd).n_prefilled > 0 && model.took_ns < 150000000, "%d rows took %d us",
              model.n_rows_last, (int)(model.took_ns / 1000));
    ig_gen_release(ga);
    ig_gen_release(gb);
    ig_gen_release(gd);
    unmake();
}

TEST(with_nobody_decoding_a_prompt_goes_in_whole_chunks) {
    ig_engine_config c = fake_config(4, 200);
    make(&c, 2048);
    ig_gen_params p = {.prompt = counted(9, 1100), .n_prompt = 1100, .max_tokens = 1, .top_logprobs = -1};
    ig_gen *g = submit(&p);
    ig_engine_turn(engine);
    CHECK(model.n_rows_last == 512);
    ig_engine_turn(engine);
    CHECK(model.n_rows_last == 512);
    ig_engine_turn(engine);
    CHECK(model.n_rows_last == 76 && ig_gen_finish(g) == IG_FINISH_LENGTH);
    ig_gen_release(g);
    unmake();
}

TEST(several_prefills_go_shortest_first_and_none_waits_more_than_two_steps) {
    ig_engine_config c = fake_config(8, 400);
    make(&c, 2048);
    ig_gen *g[8];
    for (int i = 0; i < 8; i++) {
        int n = i == 7 ? 40 : 1500 + i;
        ig_gen_params p = {
            .prompt = counted((uint32_t)i, n), .n_prompt = n, .max_tokens = 50, .top_logprobs = -1};
        g[i] = submit(&p);
    }
    for (int turn = 0; turn < 100; turn++) {
        ig_engine_turn(engine);
        if (turn == 0) CHECK(ig_gen_n_tokens(g[7]) == 1);
        for (int i = 0; i < engine->n_running; i++) CHECK(engine->running[i]->n_waited <= WAIT_STEPS_MAX);
    }
    finish_all();
    for (int i = 0; i < 8; i++) {
        CHECK(ig_gen_finish(g[i]) == IG_FINISH_LENGTH);
        ig_gen_release(g[i]);
    }
    unmake();
}

TEST(a_step_is_short_also_when_nobody_else_waits) {
    ig_engine_config c = fake_config(1, 40);
    c.prefill_chunk_ms = 240;
    make(&c, 1024); /* a row takes the fake 1 ms */
    ig_gen_params p = {.prompt = counted(3, 900), .n_prompt = 900, .max_tokens = 2, .top_logprobs = -1};
    ig_gen *g = submit(&p);
    ig_engine_turn(engine);
    CHECK_MSG(model.n_rows_last == 96, "%d rows before anything was measured", model.n_rows_last);
    ig_engine_turn(engine);
    CHECK_MSG(model.n_rows_last > 96 && model.n_rows_last <= 240, "%d rows in 240 ms", model.n_rows_last);
    finish_all();
    CHECK(ig_gen_finish(g) == IG_FINISH_LENGTH);
    ig_gen_release(g);
    unmake();
}

TEST(all_running_requests_share_one_forward) {
    ig_engine_config c = fake_config(5, 40);
    make(&c, 512);
    ig_gen *g[5];
    for (uint32_t i = 0; i < 5; i++) {
        ig_gen_params p = {.prompt = counted(i, 20), .n_prompt = 20, .max_tokens = 30, .top_logprobs = -1};
        g[i] = submit(&p);
    }
    ig_engine_turn(engine);
    CHECK(model.n_calls == 1 && model.n_rows_last == 100);
    ig_engine_turn(engine);
    CHECK(model.n_calls == 2 && model.n_rows_last == 5 && model.n_decode_last == 5);
    finish_all();
    CHECK(model.n_calls == 30); /* the last token needs no row of its own */
    for (int i = 0; i < 5; i++) ig_gen_release(g[i]);
    unmake();
}

/* ---- the cache -------------------------------------------------------------------------------------- */

TEST(a_prompt_that_was_computed_is_not_computed_again) {
    ig_engine_config c = fake_config(4, 60);
    make(&c, 1024);
    ig_gen_params p = {.prompt = counted(3, 300), .n_prompt = 300, .max_tokens = 10, .use_prefix_cache = true,
                       .top_logprobs = -1};
    run_checked(&p);
    ig_gen *g = submit(&p);
    ig_engine_turn(engine);
    CHECK(model.n_rows_last == 1 && ig_gen_stats_of(g).n_cached == 299);
    ig_gen_release(g);
    finish_all();
    p.use_prefix_cache = false;
    g = submit(&p);
    ig_engine_turn(engine);
    CHECK(model.n_rows_last == 300 && ig_gen_stats_of(g).n_cached == 0);
    ig_gen_release(g);
    finish_all();
    unmake();
}

TEST(a_request_alike_to_one_in_prefill_waits_for_it_and_shares_its_blocks) {
    ig_engine_config c = fake_config(4, 100);
    make(&c, 2048);
    ig_gen_params p = {.prompt = counted(3, 1000), .n_prompt = 1000, .max_tokens = 10,
                       .use_prefix_cache = true, .top_logprobs = -1};
    ig_gen *a = submit(&p), *b = submit(&p);
    ig_engine_turn(engine);
    CHECK(ig_gen_state_of(a) == IG_GEN_PREFILL && ig_gen_state_of(b) == IG_GEN_QUEUED);
    ig_engine_turn(engine);
    CHECK(ig_gen_n_tokens(a) == 1);
    ig_engine_turn(engine);
    CHECK(ig_gen_stats_of(b).n_cached == 999 && ig_gen_n_tokens(b) == 1);
    CHECK(a->seq->block[0][3] == b->seq->block[0][3]);
    finish_all();
    for (int i = 0; i < 10; i++) CHECK(ig_gen_token(a, i) == ig_gen_token(b, i));
    ig_gen_release(a);
    ig_gen_release(b);
    unmake();
}

TEST(who_waits_for_a_shared_beginning_does_not_wait_for_the_rest_of_the_other_prompt) {
    uint32_t other[700];
    ig_engine_config c = fake_config(4, 100);
    make(&c, 2048);
    ig_gen_params p = {.prompt = counted(3, 1500), .n_prompt = 1500, .max_tokens = 10,
                       .use_prefix_cache = true, .top_logprobs = -1};
    straight want;
    ig_gen *a = submit(&p);
    memcpy(other, p.prompt, sizeof other);
    for (int i = 600; i < 700; i++) other[i] = 1u + other[i] % 5u;
    other[600] = p.prompt[600] == 9 ? 8 : 9;
    p.prompt = other, p.n_prompt = 700;
    compute_straight(&want, &p, 2048);
    ig_gen *b = submit(&p);
    for (int i = 0; i < 2; i++) {
        ig_engine_turn(engine);
        CHECK(ig_gen_state_of(b) == IG_GEN_QUEUED);
    }
    ig_engine_turn(engine);
    CHECK(ig_gen_stats_of(b).n_cached == 600 && ig_gen_n_tokens(b) == 1 && ig_gen_n_tokens(a) == 0);
    check_kv();
    finish_all();
    CHECK(gen_is_right(b, &want));
    ig_gen_release(a);
    ig_gen_release(b);
    unmake();
}

TEST(a_cancelled_request_leaves_exactly_what_was_computed) {
    ig_engine_config c = fake_config(4, 100);
    make(&c, 2048);
    ig_gen_params p = {.prompt = counted(3, 1500), .n_prompt = 1500, .max_tokens = 10,
                       .use_prefix_cache = true, .top_logprobs = -1};
    ig_gen *g = submit(&p);
    ig_engine_turn(engine);
    CHECK(ig_gen_stats_of(g).n_prefilled == 512);
    ig_gen_cancel(g);
    int n_calls = model.n_calls;
    ig_engine_turn(engine);
    CHECK(ig_gen_finish(g) == IG_FINISH_CANCELED && model.n_calls == n_calls);
    struct ig_kv_group_stats kv = ig_kv_pool_stats(engine->kv).group[0];
    CHECK(kv.n_cached == 8 && kv.n_free == 92);
    ig_gen_release(g);
    CHECK(ig_kv_prefix_probe(engine->kv, p.prompt, 1500).n_tokens == 512);
    run_checked(&p);
    unmake();
}

/* ---- containment ------------------------------------------------------------------------------------ */

TEST(a_row_that_is_not_finite_fails_alone_and_leaves_nothing_behind) {
    uint32_t bad[200];
    ig_engine_config c = fake_config(3, 9);
    make(&c, 512);
    memcpy(bad, counted(5, 200), sizeof bad);
    bad[120] = POISON;
    ig_gen_params p = {.prompt = counted(3, 100), .n_prompt = 100, .max_tokens = 60, .use_prefix_cache = true,
                       .top_logprobs = -1};
    straight want;
    compute_straight(&want, &p, 512);
    ig_gen *good = submit(&p);
    ig_gen_params q = p;
    q.prompt = bad, q.n_prompt = 200;
    for (int round = 0; round < 5; round++) {
        ig_gen *g = submit(&q);
        while (ig_gen_finish(g) == IG_FINISH_NONE) ig_engine_turn(engine);
        CHECK(ig_gen_finish(g) == IG_FINISH_FAILED && strcmp(ig_gen_error(g), "non-finite logits") == 0);
        CHECK(ig_kv_prefix_probe(engine->kv, bad, 200).n_tokens == 0);
        ig_gen_release(g);
    }
    finish_all();
    CHECK(gen_is_right(good, &want));
    ig_gen_release(good);
    for (int b = 0; b < 9; b++) {
        const uint16_t *k = ig_kv_at(engine->kv, b, (ig_kv_layer){0, 0}, 0);
        for (size_t i = 0; i < ig_kv_block_bytes(FAKE_KV) / 2; i++) CHECK((k[i] & 0x7c00u) != 0x7c00u);
    }
    unmake();
}

TEST(a_poisoned_prefill_that_is_cancelled_before_its_logits_is_not_remembered) {
    uint32_t bad[1000];
    ig_engine_config c = fake_config(3, 20);
    c.prefill_chunk = 64;
    make(&c, 1024);
    memcpy(bad, counted(5, 1000), sizeof bad);
    bad[10] = POISON;
    ig_gen_params p = {.prompt = bad, .n_prompt = 1000, .max_tokens = 60, .use_prefix_cache = true,
                       .top_logprobs = -1};
    ig_gen *g = submit(&p);
    for (int i = 0; i < 3; i++) ig_engine_turn(engine);
    ig_gen_cancel(g);
    finish_all();
    CHECK(ig_gen_finish(g) == IG_FINISH_CANCELED && ig_kv_pool_stats(engine->kv).group[0].n_cached == 0);
    ig_gen_release(g);
    unmake();
}

TEST(a_failed_forward_ends_the_request_to_blame_and_no_other) {
    uint32_t bad[30];
    ig_engine_config c = fake_config(4, 40);
    make(&c, 512);
    memcpy(bad, counted(5, 30), sizeof bad);
    bad[12] = FAULT;
    ig_gen_params p = {.prompt = counted(3, 40), .n_prompt = 40, .max_tokens = 20, .use_prefix_cache = true,
                       .top_logprobs = -1};
    straight want;
    compute_straight(&want, &p, 512);
    ig_gen *a = submit(&p);
    ig_gen_params q = p;
    q.prompt = bad, q.n_prompt = 30;
    ig_gen *g = submit(&q), *b = submit(&p);
    finish_all();
    CHECK(ig_gen_finish(g) == IG_FINISH_FAILED && strstr(ig_gen_error(g), "faulty token"));
    CHECK(gen_is_right(a, &want) && gen_is_right(b, &want));
    ig_gen_release(a);
    ig_gen_release(b);
    ig_gen_release(g);
    unmake();
}

/* ---- memory ----------------------------------------------------------------------------------------- */

TEST(short_of_memory_the_youngest_is_paused_and_comes_back_with_the_same_tokens) {
    ig_engine_config c = fake_config(3, 9);
    make(&c, 512);
    straight want[3];
    ig_gen *g[3];
    for (uint32_t i = 0; i < 3; i++) { /* 60 + 400 tokens each are 8 blocks, 9 are there */
        ig_gen_params p = {.prompt = counted(i, 60), .n_prompt = 60, .max_tokens = 400,
                           .sampling = {.temperature = 1.0f, .seed = i}, .use_prefix_cache = i != 1,
                           .top_logprobs = -1};
        compute_straight(&want[i], &p, 512);
        g[i] = submit(&p);
        for (int k = 0; k < 20; k++) ig_engine_turn(engine);
    }
    finish_all();
    for (int i = 0; i < 3; i++) {
        CHECK(gen_is_right(g[i], &want[i]));
        ig_gen_release(g[i]);
    }
    unmake();
}

TEST(admission_leaves_room_for_what_the_running_may_still_need) {
    ig_engine_config c = fake_config(4, 16);
    make(&c, 512);
    ig_gen_params p = {.prompt = counted(3, 60), .n_prompt = 60, .max_tokens = 400, .top_logprobs = -1};
    ig_gen *a = submit(&p), *b = submit(&p), *d = submit(&p);
    for (int i = 0; i < 3; i++) ig_engine_turn(engine);
    CHECK(ig_gen_n_tokens(a) > 0 && ig_gen_n_tokens(b) > 0); /* 8 + 2, then 8 + 8 + 2 */
    CHECK(ig_gen_state_of(d) == IG_GEN_QUEUED);
    finish_all();
    CHECK(atomic_load(&engine->counts.n_paused) == 0);
    CHECK(ig_gen_n_tokens(d) == 400);
    ig_gen_release(a);
    ig_gen_release(b);
    ig_gen_release(d);
    unmake();
}

TEST(the_logits_of_many_rows_come_in_the_order_of_the_prompt_beside_other_requests) {
    enum { N = 150, LAST = 90 };
    static float logits[LAST * V];
    ig_engine_config c = fake_config(4, 40);
    make(&c, 512);
    ig_gen_params p = {.prompt = counted(3, 60), .n_prompt = 60, .max_tokens = 100, .top_logprobs = -1};
    ig_gen *other = submit(&p);
    uint32_t prompt[N];
    memcpy(prompt, counted(8, N), sizeof prompt);
    ig_gen_params q = {.prompt = prompt, .top_logprobs = -1};
    ig_gen *g = ig_gen_make(&q, 1, N, 0, false); /* what ig_engine_logits does, without its wait */
    g->last_logits = logits;
    g->n_last = LAST;
    ig_sched_accept(engine, g);
    atomic_fetch_add(&engine->n_queued, 1);
    finish_all();
    CHECK(ig_gen_finish(g) == IG_FINISH_LENGTH);
    uint64_t hash = 1;
    for (int i = 0; i < N; i++) {
        float want[V];
        hash = mix(hash, prompt[i]);
        fake_logits(want, hash);
        if (i >= N - LAST) CHECK(memcmp(want, logits + (size_t)(i - (N - LAST)) * V, sizeof want) == 0);
    }
    ig_gen_release(g);
    ig_gen_release(other);
    unmake();
}
