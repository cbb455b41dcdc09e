/* The engine with its thread, on the fake model: the doors, the plan, many callers at once. */
#include "base/test.h"
#include "engine/fake_test.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static void watch_this_thread(void) {
    ig_test_watch_malloc(true);
}

/* ---- the engine --------------------------------------------------------------------------------------- */

static fake model;
static ig_engine *engine;

static void start(const ig_engine_config *c, int n_ctx) {
    ig_err err = {0};
    ig_backend b;
    model = (fake){.inside = watch_this_thread};
    b = fake_backend(&model, n_ctx);
    ig_status st = ig_engine_start_on(&engine, &b, c, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
    ig_assert(st == IG_OK);
}

static ig_gen_params params_of(const uint32_t *prompt, int n, int max_tokens) {
    return (ig_gen_params){.prompt = prompt, .n_prompt = n, .max_tokens = max_tokens,
                           .use_prefix_cache = true, .top_logprobs = -1};
}

static const uint32_t SOME[] = {5, 9, 3, 17, 4, 4, 60, 2};

static ig_gen *submit(const ig_gen_params *p) {
    ig_gen *g = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_engine_submit(engine, p, &g, &err) == IG_OK, "%s", err.msg);
    return g;
}

static void wait_for_end(ig_gen *g) {
    while (ig_gen_finish(g) == IG_FINISH_NONE) ig_gen_wait(g, INT32_MAX, -1);
}

static ig_status refused(ig_gen_params p, const char *part) {
    ig_gen *g = NULL;
    ig_err err = {0};
    ig_status st = ig_engine_submit(engine, &p, &g, &err);
    CHECK(g == NULL);
    CHECK_MSG(strstr(err.msg, part) != NULL, "\"%s\" not in \"%s\"", part, err.msg);
    return st;
}

TEST(a_value_is_counted_under_the_first_bound_that_it_does_not_pass) {
    ig_engine_spread s = {0};
    const uint64_t last = ig_bounds_rows[IG_HISTOGRAM_BOUNDS - 1], values[] = {0, 1, 2, 8, 9, last, last + 1};
    const int at[] = {0, 0, 1, 5, 6, IG_HISTOGRAM_BOUNDS - 1, IG_HISTOGRAM_BOUNDS};
    uint64_t sum = 0;
    for (int i = 0; i < 7; i++) {
        const uint64_t before = atomic_load(&s.n[at[i]]);
        ig_spread_note(&s, ig_bounds_rows, values[i]);
        CHECK(atomic_load(&s.n[at[i]]) == before + 1);
        CHECK(atomic_load(&s.sum) == (sum += values[i]));
    }
    for (int i = 1; i < IG_HISTOGRAM_BOUNDS; i++)
        CHECK(ig_bounds_rows[i] > ig_bounds_rows[i - 1] && ig_bounds_ns[i] > ig_bounds_ns[i - 1]);
}

/* ---- vectors ---------------------------------------------------------------------------------------- */

static void vector_straight(float out[FAKE_WIDTH], const uint32_t *ids, int n, bool mean) {
    double sum[FAKE_WIDTH] = {0};
    uint64_t hash = 1;
    for (int i = 0; i < n; i++) {
        hash = mix(hash, ids[i]);
        for (uint32_t k = 0; k < FAKE_WIDTH; k++) sum[k] += (double)(mix(hash, k) & 1023);
    }
    for (uint32_t k = 0; k < FAKE_WIDTH; k++) out[k] = mean ? (float)(sum[k] / n) : (float)(mix(hash, k) & 1023);
}

static void check_vector(ig_gen *g, const uint32_t *ids, int n, bool mean) {
    float want[FAKE_WIDTH];
    int width = 0;
    wait_for_end(g);
    vector_straight(want, ids, n, mean);
    CHECK_MSG(ig_gen_finish(g) == IG_FINISH_LENGTH, "%s", ig_gen_error(g));
    const float *got = ig_gen_vector(g, &width);
    CHECK(width == FAKE_WIDTH && memcmp(got, want, sizeof want) == 0);
    CHECK(ig_gen_n_tokens(g) == 0);
    ig_gen_release(g);
}

/* With a chunk that cuts texts, and so few blocks that some are paused. */
TEST(vectors_beside_generations_are_those_of_the_text_alone_for_both_poolings) {
    enum { TEXTS = 40, LONGEST = 400 };
    static uint32_t ids[TEXTS][LONGEST];
    for (int mean = 0; mean < 2; mean++) {
        ig_engine_config c = fake_config(4, 28);
        ig_gen *vectors[TEXTS], *tokens[TEXTS];
        c.prefill_chunk = 48, c.queue_max = 200, c.pooling = mean ? IG_POOLING_MEAN : IG_POOLING_LAST;
        start(&c, 512);
        for (int i = 0; i < TEXTS; i++) {
            const int n = 1 + i * 37 % LONGEST;
            for (int k = 0; k < n; k++) ids[i][k] = 1 + (uint32_t)(k * 7 + i * 13) % (N_PLAIN - 1);
            ig_gen_params p = {.prompt = ids[i], .n_prompt = n, .vector = true, .use_prefix_cache = true},
                          q = params_of(SOME, 8, 60);
            vectors[i] = submit(&p), tokens[i] = submit(&q);
        }
        for (int i = 0; i < TEXTS; i++) check_vector(vectors[i], ids[i], 1 + i * 37 % LONGEST, mean);
        for (int i = 0; i < TEXTS; i++) {
            wait_for_end(tokens[i]);
            CHECK(ig_gen_n_tokens(tokens[i]) == ig_gen_n_tokens(tokens[0]) && ig_gen_n_tokens(tokens[i]) > 0);
            for (int k = 0; k < ig_gen_n_tokens(tokens[i]); k++)
                CHECK(ig_gen_token(tokens[i], k) == ig_gen_token(tokens[0], k));
            if (i > 0) ig_gen_release(tokens[i]);
        }
        ig_gen_release(tokens[0]);
        ig_engine_stop(engine);
    }
}

TEST(a_vector_that_is_not_finite_fails_alone_and_an_engine_without_vectors_refuses_them) {
    const uint32_t bad[] = {5, POISON, 7}, good[] = {5, 6, 7};
    ig_gen_params p = {.prompt = bad, .n_prompt = 3, .vector = true}, q = {.prompt = good, .n_prompt = 3, .vector = true};
    ig_engine_config c = fake_config(2, 20);
    c.pooling = IG_POOLING_MEAN;
    start(&c, 512);
    ig_gen *a = submit(&p), *b = submit(&q);
    wait_for_end(a);
    CHECK(ig_gen_finish(a) == IG_FINISH_FAILED && strstr(ig_gen_error(a), "not finite"));
    ig_gen_release(a);
    check_vector(b, good, 3, true);
    ig_engine_stop(engine);
    c.pooling = IG_POOLING_NONE;
    start(&c, 512);
    CHECK(refused(q, "not made to give vectors") == IG_EINVAL);
    ig_engine_stop(engine);
}

/* ---- doors ------------------------------------------------------------------------------------------ */

TEST(a_request_runs_to_its_end_and_its_numbers_are_right) {
    ig_engine_config c = fake_config(2, 20);
    start(&c, 512);
    ig_gen_params p = params_of(SOME, 8, 30);
    p.top_logprobs = 3;
    straight want;
    compute_straight(&want, &p, 512);
    ig_gen *g = submit(&p);
    int n = 0;
    while (ig_gen_finish(g) == IG_FINISH_NONE) {
        CHECK(ig_gen_wait(g, n, -1));
        for (; n < ig_gen_n_tokens(g); n++) CHECK(ig_gen_token(g, n) == want.token[n]);
    }
    CHECK(gen_is_right(g, &want));
    CHECK(ig_gen_finish(g) == IG_FINISH_LENGTH && ig_gen_state_of(g) == IG_GEN_DONE);
    ig_logprob own;
    int n_top = 0;
    const ig_logprob *top = ig_gen_logprobs(g, 7, &own, &n_top);
    CHECK(n_top == 3 && own.id == want.token[7] && top[0].id == own.id && top[0].logprob == own.logprob);
    CHECK(own.logprob < 0.0f && top[1].logprob <= top[0].logprob && top[2].logprob <= top[1].logprob);
    ig_gen_stats s = ig_gen_stats_of(g);
    CHECK(s.n_prompt == 8 && s.n_tokens == 30 && s.n_cached == 0 && s.n_prefilled == 8);
    ig_engine_stats e = ig_engine_stats_of(engine);
    CHECK(e.n_done == 1 && e.n_running == 0 && e.n_queued == 0 && e.n_generated_tokens == 30);
    CHECK(e.kv.group[0].n_free + e.kv.group[0].n_cached == 20);
    ig_gen_release(g);
    ig_engine_stop(engine);
}

TEST(an_end_token_ends_the_request_and_is_counted) {
    ig_engine_config c = fake_config(2, 20);
    start(&c, 512);
    ig_gen_params p = params_of(SOME, 8, 300);
    straight want;
    compute_straight(&want, &p, 512);
    uint32_t eos[2] = {V, want.token[5]};
    p.eos = eos, p.n_eos = 2;
    compute_straight(&want, &p, 512);
    ig_gen *g = submit(&p);
    wait_for_end(g);
    CHECK(gen_is_right(g, &want) && ig_gen_finish(g) == IG_FINISH_STOP && ig_gen_n_tokens(g) <= 6);
    ig_gen_release(g);
    ig_engine_stop(engine);
}

TEST(the_context_is_a_limit_for_prompts_and_for_tokens) {
    static uint32_t prompt[200];
    ig_engine_config c = fake_config(2, 20);
    for (int i = 0; i < 200; i++) prompt[i] = 1 + (uint32_t)i % 50;
    c.n_ctx = 100;
    start(&c, 512);
    ig_gen_params p = params_of(prompt, 99, 50);
    ig_gen *g = submit(&p);
    wait_for_end(g);
    CHECK(ig_gen_finish(g) == IG_FINISH_LENGTH && ig_gen_n_tokens(g) == 1);
    ig_gen_release(g);
    CHECK(refused(params_of(prompt, 100, 50), "prompt has 100 tokens") == IG_ELIMIT);
    p = params_of(prompt, 60, INT32_MAX);
    g = submit(&p);
    wait_for_end(g);
    CHECK(ig_gen_n_tokens(g) == 40);
    ig_gen_release(g);
    ig_engine_stop(engine);
}

TEST(wrong_parameters_are_refused_with_their_value) {
    const uint32_t bad[] = {5, 9, V, 3};
    ig_engine_config c = fake_config(2, 20);
    start(&c, 512);
    ig_gen_params p = params_of(SOME, 8, 10), q = p;
    CHECK(refused(params_of(SOME, 0, 10), "empty") == IG_EINVAL);
    CHECK(refused(params_of(NULL, 4, 10), "empty") == IG_EINVAL);
    CHECK(refused(params_of(bad, 4, 10), "prompt token 2 is 96") == IG_EINVAL);
    CHECK(refused(params_of(SOME, 8, 0), "max_tokens 0") == IG_EINVAL);
    q.sampling.temperature = NAN;
    CHECK(refused(q, "temperature") == IG_EINVAL);
    q.sampling.temperature = -1.0f;
    CHECK(refused(q, "temperature -1") == IG_EINVAL);
    q = p, q.sampling.top_p = 1.5f;
    CHECK(refused(q, "top_p 1.5") == IG_EINVAL);
    q = p, q.sampling.min_p = -0.1f;
    CHECK(refused(q, "min_p -0.1") == IG_EINVAL);
    q = p, q.sampling.top_k = -5;
    CHECK(refused(q, "top_k -5") == IG_EINVAL);
    q = p, q.sampling.xtc_threshold = 0.51;
    CHECK(refused(q, "xtc_threshold 0.51 is not in 0..0.5") == IG_EINVAL);
    q = p, q.sampling.xtc_probability = NAN;
    CHECK(refused(q, "xtc_probability") == IG_EINVAL);
    q = p, q.sampling.repetition_penalty = -1;
    CHECK(refused(q, "repetition_penalty -1") == IG_EINVAL);
    q = p, q.sampling.frequency_penalty = INFINITY;
    CHECK(refused(q, "frequency_penalty inf") == IG_EINVAL);
    q = p, q.sampling.presence_context_size = -1;
    CHECK(refused(q, "presence_context_size -1") == IG_EINVAL);
    q = p, q.sampling.min_tokens_to_keep = -1;
    CHECK(refused(q, "min_tokens_to_keep -1") == IG_EINVAL);
    const ig_token_bias beyond = {V, 1.0f}, wild = {1, NAN};
    q = p, q.sampling.logit_bias = &beyond, q.sampling.n_logit_bias = 1;
    CHECK(refused(q, "logit_bias is for token 96, the vocabulary has 96") == IG_EINVAL);
    q.sampling.logit_bias = &wild;
    CHECK(refused(q, "logit_bias nan") == IG_EINVAL);
    q.sampling.n_logit_bias = IG_LOGIT_BIAS_MAX + 1;
    CHECK(refused(q, "number of logit biases 1025 is not in 0..1024") == IG_EINVAL);
    q = p, q.sampling.n_xtc_special = IG_XTC_SPECIAL_MAX + 1;
    CHECK(refused(q, "that xtc leaves 33") == IG_EINVAL);
    q = p, q.n_eos = 17;
    CHECK(refused(q, "end tokens 17") == IG_EINVAL);
    q = p, q.top_logprobs = 21;
    CHECK(refused(q, "top_logprobs 21") == IG_EINVAL);
    CHECK(ig_engine_stats_of(engine).n_queued == 0);
    ig_engine_stop(engine);
}

static _Atomic bool gate; /* closed: the engine thread waits inside the forward */

static void wait_at_gate(void) {
    ig_test_watch_malloc(true);
    while (!atomic_load(&gate)) nanosleep(&(struct timespec){0, 100000}, NULL);
}

TEST(a_full_queue_refuses_and_a_request_cancelled_in_it_never_starts) {
    ig_engine_config c = fake_config(1, 20);
    c.queue_max = 3;
    atomic_store(&gate, true);
    start(&c, 512);
    model.inside = wait_at_gate;
    atomic_store(&gate, false);
    ig_gen_params p = params_of(SOME, 8, 10);
    ig_gen *run = submit(&p);
    while (ig_gen_state_of(run) == IG_GEN_QUEUED) nanosleep(&(struct timespec){0, 100000}, NULL);
    ig_gen *g[3];
    for (int i = 0; i < 3; i++) g[i] = submit(&p);
    CHECK(refused(p, "the queue is full: 3") == IG_ELIMIT);
    CHECK(ig_engine_stats_of(engine).n_queued == 3 && ig_engine_stats_of(engine).n_running == 1);
    ig_gen_cancel(g[1]);
    ig_gen_cancel(g[1]);
    atomic_store(&gate, true);
    for (int i = 0; i < 3; i++) wait_for_end(g[i]);
    CHECK(ig_gen_finish(g[1]) == IG_FINISH_CANCELED && ig_gen_n_tokens(g[1]) == 0);
    CHECK(ig_gen_stats_of(g[1]).n_prefilled == 0 && ig_gen_finish(g[2]) == IG_FINISH_LENGTH);
    CHECK(ig_engine_stats_of(engine).n_queued == 0);
    for (int i = 0; i < 3; i++) ig_gen_release(g[i]);
    ig_gen_release(run);
    ig_engine_stop(engine);
}

TEST(stop_cancels_what_runs_and_waits_and_requests_outlive_the_engine) {
    ig_engine_config c = fake_config(1, 20);
    start(&c, 512);
    ig_gen_params p = params_of(SOME, 8, 400);
    ig_gen *a = submit(&p), *b = submit(&p), *forgotten = submit(&p);
    ig_gen_release(forgotten);
    ig_gen_wait(a, 3, -1);
    ig_engine_stop(engine);
    CHECK(ig_gen_finish(a) != IG_FINISH_NONE && ig_gen_finish(b) == IG_FINISH_CANCELED);
    CHECK(ig_gen_n_tokens(a) > 3);
    ig_gen_cancel(a);
    ig_gen_release(a);
    ig_gen_release(b);
}

TEST(a_wait_ends_at_its_timeout) {
    ig_engine_config c = fake_config(1, 20);
    atomic_store(&gate, false);
    start(&c, 512);
    model.inside = wait_at_gate;
    ig_gen_params p = params_of(SOME, 8, 2);
    ig_gen *g = submit(&p);
    CHECK(!ig_gen_wait(g, 0, 0) && !ig_gen_wait(g, 0, 2000000));
    atomic_store(&gate, true);
    CHECK(ig_gen_wait(g, 0, -1));
    wait_for_end(g);
    ig_gen_release(g);
    ig_engine_stop(engine);
}

TEST(an_idle_engine_sleeps) {
    ig_engine_config c = fake_config(1, 20);
    start(&c, 512);
    ig_gen_params p = params_of(SOME, 8, 2);
    ig_gen *g = submit(&p);
    wait_for_end(g);
    ig_gen_release(g);
    clockid_t clock;
    struct timespec before, after;
    CHECK(pthread_getcpuclockid(engine->thread, &clock) == 0);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    clock_gettime(clock, &before);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    clock_gettime(clock, &after);
    int64_t used_ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    CHECK_MSG(used_ns < 20000000, "%lld ns of processor time while idle", (long long)used_ns);
    CHECK(ig_engine_stats_of(engine).n_open == 0);
    ig_engine_stop(engine);
}

TEST(logits_are_those_of_the_prompt_and_no_more_than_asked) {
    enum { N = 70 };
    static uint32_t prompt[N];
    static float logits[N * V + 1], want[V];
    ig_engine_config c = fake_config(2, 20);
    ig_err err = {0};
    uint64_t hash = 1;
    for (int i = 0; i < N; i++) prompt[i] = 1 + (uint32_t)(i * i) % 50;
    start(&c, 512);
    CHECK(ig_engine_logits(engine, prompt, N, N, logits, &err) == IG_OK);
    for (int i = 0; i < N; i++) {
        hash = mix(hash, prompt[i]);
        fake_logits(want, hash);
        CHECK(memcmp(want, logits + (size_t)i * V, sizeof want) == 0);
    }
    logits[V] = 42.0f;
    CHECK(ig_engine_logits(engine, prompt, N, 1, logits, &err) == IG_OK);
    CHECK(memcmp(want, logits, sizeof want) == 0 && logits[V] == 42.0f);
    CHECK(ig_engine_logits(engine, prompt, N, N + 1, logits, &err) == IG_EINVAL);
    CHECK(ig_engine_logits(engine, prompt, N, 0, logits, &err) == IG_EINVAL);
    prompt[20] = POISON;
    CHECK(ig_engine_logits(engine, prompt, N, N, logits, &err) == IG_EFORMAT);
    CHECK(strstr(err.msg, "non-finite"));
    ig_engine_stop(engine);
}

/* ---- plan ------------------------------------------------------------------------------------------- */

TEST(a_plan_that_does_not_fit_names_the_largest_context_that_would) {
    ig_backend b = fake_backend(&model, 4096);
    ig_engine_config c = ig_engine_defaults();
    ig_engine_plan p;
    ig_err err = {0};
    uint64_t block = ig_kv_block_bytes(FAKE_KV);

    c.memory_budget_bytes = 1u << 30;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK);
    CHECK(p.fits && p.n_ctx == 4096 && p.room.n_blocks[0] == 4 * 65);
    CHECK(p.kv_bytes == (uint64_t)p.room.n_blocks[0] * block);
    CHECK(p.total_bytes == p.weights_bytes + p.step_bytes + p.kv_bytes + p.table_bytes + RESERVE_BYTES);
    uint64_t enough = p.total_bytes;
    c.memory_budget_bytes = enough;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK && p.room.n_blocks[0] == 4 * 65);
    c.memory_budget_bytes = enough - 1;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK);
    CHECK(p.room.n_blocks[0] < 4 * 65 && p.room.n_blocks[0] >= 64);
    CHECK(p.total_bytes <= enough - 1);

    c.memory_budget_bytes = RESERVE_BYTES + 200000;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_ELIMIT);
    const char *at = strstr(err.msg, "the largest context that fits is ");
    if (!CHECK_MSG(at != NULL, "%s", err.msg)) return;
    c.n_ctx = (int)strtol(at + strlen("the largest context that fits is "), NULL, 10);
    CHECK(c.n_ctx > 1 && ig_engine_plan_on(&p, &b, &c, &err) == IG_OK);
    c.n_ctx++;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_ELIMIT);
    c.memory_budget_bytes = 1000;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_ELIMIT && strstr(err.msg, "no context fits"));
}

TEST(a_kv_budget_below_one_context_is_refused_with_both_numbers) {
    ig_backend b = fake_backend(&model, 1000);
    ig_engine_config c = fake_config(4, 15);
    ig_engine_plan p;
    ig_err err = {0};
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_ELIMIT && strstr(err.msg, "context that fits is 960"));
    c.n_ctx = 960;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK && p.room.n_blocks[0] == 15);
    c.n_ctx = 1001;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_EINVAL && strstr(err.msg, "1001"));
    c = fake_config(65, 15);
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_EINVAL && strstr(err.msg, "slots 65"));
    c = fake_config(1, 16);
    c.prefill_chunk = 0;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_EINVAL && strstr(err.msg, "chunk 0"));
}

TEST(a_plan_with_windows_needs_little_more_than_the_layers_that_see_all) {
    model = (fake){.kv = {2, {{15, 1, 8, 512, IG_KV_F16}, {3, 1, 8, 0, IG_KV_F16}}}};
    ig_backend b = fake_backend(&model, 32768);
    ig_engine_config c = ig_engine_defaults();
    ig_engine_plan p, less;
    ig_err err = {0};
    c.n_slots = 1;
    c.memory_budget_bytes = 1u << 30;
    CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK);
    CHECK(p.room.n_blocks[1] == 513 && p.room.n_blocks[0] == 17 + 4 * 10);
    CHECK(p.kv_bytes == ig_kv_room_bytes(b.kv, p.room) && p.kv_bytes < 513 * ig_kv_block_bytes(b.kv) / 3);
    /* One context and what it runs on: the least that is taken, and its budget is a limit. */
    c.kv_budget_bytes = ig_kv_room_bytes(b.kv, (ig_kv_room){{17, 512}});
    CHECK(ig_engine_plan_on(&less, &b, &c, &err) == IG_OK);
    CHECK(less.room.n_blocks[1] == 512 && less.room.n_blocks[0] == 17 && less.kv_bytes == c.kv_budget_bytes);
    c.kv_budget_bytes--;
    CHECK(ig_engine_plan_on(&less, &b, &c, &err) == IG_ELIMIT);
    CHECK_MSG(strstr(err.msg, "keys and values of 32768 tokens need ") != NULL, "%s", err.msg);
    for (c.kv_budget_bytes += 1; c.kv_budget_bytes < 400u << 20; c.kv_budget_bytes += 997 * 997) {
        CHECK(ig_engine_plan_on(&p, &b, &c, &err) == IG_OK && p.kv_bytes <= c.kv_budget_bytes);
        CHECK(p.room.n_blocks[0] >= less.room.n_blocks[0] && p.room.n_blocks[1] >= less.room.n_blocks[1]);
        less = p;
    }
    model = (fake){0};
}

TEST(every_budget_below_enough_is_refused_and_every_plan_keeps_its_promise) {
    ig_backend b = fake_backend(&model, 300);
    ig_engine_config c = ig_engine_defaults();
    bool fitted = false;
    for (uint64_t budget = RESERVE_BYTES; budget < RESERVE_BYTES + 600000; budget += 997) {
        ig_engine_plan p = {0};
        ig_err err = {0};
        c.memory_budget_bytes = budget;
        ig_status st = ig_engine_plan_on(&p, &b, &c, &err);
        CHECK(st == IG_OK ? p.total_bytes <= budget && p.room.n_blocks[0] >= 5 : st == IG_ELIMIT && !fitted);
        fitted = fitted || st == IG_OK;
    }
    CHECK(fitted);
}

/* ---- many threads ----------------------------------------------------------------------------------- */

enum { N_CLIENTS = 6 };

typedef struct client {
    uint32_t number, n_words;
    _Atomic int n_news;
    int n_requests;
} client;

static uint32_t draw(client *c, uint32_t n) {
    return ig_rng_word(c->number + 1000u, c->n_words++, 0, 0) % n;
}

static void on_news(void *ud) {
    atomic_fetch_add((_Atomic int *)ud, 1);
}

static void one_request(client *c) {
    uint32_t prompt[200];
    straight want;
    int n = 1 + (int)draw(c, 199), how = (int)draw(c, 6);
    for (int i = 0; i < n; i++) prompt[i] = 1 + (uint32_t)(i * 5) % 60;
    for (int i = (int)draw(c, 150); i < n; i += 41) prompt[i] = 1 + draw(c, 4);
    ig_gen_params p = params_of(prompt, n, 1 + (int)draw(c, 40));
    p.sampling = (ig_sampling){.temperature = 1.0f, .top_p = 0.9f, .seed = draw(c, 100)};
    /* A counter of its own, freed after release: nothing may call back later. */
    _Atomic int *n_news = malloc(sizeof *n_news);
    atomic_init(n_news, 0);
    p.notify = on_news;
    p.notify_ud = n_news;
    ig_gen *g = NULL;
    while (ig_engine_submit(engine, &p, &g, NULL) == IG_ELIMIT) /* the queue is full, often */
        nanosleep(&(struct timespec){0, 200000}, NULL);
    c->n_requests++;
    if (how == 0) ig_gen_cancel(g);
    if (how == 1) {
        ig_gen_wait(g, 2, -1);
        ig_gen_cancel(g);
    }
    if (how != 2) {
        wait_for_end(g);
        compute_straight(&want, &p, engine->plan.n_ctx);
        CHECK(gen_is_right(g, &want));
        CHECK(how <= 1 || ig_gen_finish(g) == want.finish);
        (void)ig_gen_stats_of(g);
    }
    ig_gen_release(g); /* how 2: in the middle */
    atomic_store(n_news, -1000000);
    free(n_news);
    CHECK(ig_engine_stats_of(engine).n_running <= engine->plan.n_slots);
}

static void *client_main(void *arg) {
    for (int i = 0; i < 100; i++) one_request(arg);
    return NULL;
}

static void *logits_main(void *arg) {
    uint32_t prompt[40];
    float *logits = malloc((size_t)V * 40 * sizeof *logits), want[V];
    client *c = arg;
    for (int k = 0; k < 60; k++) {
        uint64_t hash = 1;
        for (int i = 0; i < 40; i++) {
            prompt[i] = 1 + draw(c, 60);
            hash = mix(hash, prompt[i]);
        }
        if (ig_engine_logits(engine, prompt, 40, 40, logits, NULL) != IG_OK) continue; /* as above */
        fake_logits(want, hash);
        CHECK(memcmp(logits + (size_t)V * 39, want, sizeof want) == 0);
        c->n_requests++;
    }
    free(logits);
    return NULL;
}

TEST(many_threads_submit_cancel_release_and_read_at_once) {
    client clients[N_CLIENTS + 1] = {0};
    pthread_t thread[N_CLIENTS + 1];
    ig_engine_config c = fake_config(4, 16);
    int n_requests = 0;

    c.queue_max = 5;
    c.prefill_chunk = 64;
    start(&c, 300);
    ig_test_watched_mallocs();
    for (uint32_t i = 0; i <= N_CLIENTS; i++) {
        clients[i].number = i;
        CHECK(pthread_create(&thread[i], NULL, i < N_CLIENTS ? client_main : logits_main, &clients[i]) == 0);
    }
    for (int i = 0; i <= N_CLIENTS; i++) {
        pthread_join(thread[i], NULL);
        n_requests += clients[i].n_requests;
    }
    while (ig_engine_stats_of(engine).n_running + ig_engine_stats_of(engine).n_queued > 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ig_engine_stats s = ig_engine_stats_of(engine);
    CHECK_MSG(s.n_done + s.n_canceled == (uint64_t)n_requests && s.n_failed == 0,
              "%d requests, %d done, %d cancelled, %d failed", n_requests, (int)s.n_done, (int)s.n_canceled,
              (int)s.n_failed);
    CHECK(s.n_done > 100 && s.n_canceled > 0);
    CHECK(s.kv.group[0].n_free + s.kv.group[0].n_cached == 16);
    int n_mallocs = ig_test_watched_mallocs();
    CHECK_MSG(n_mallocs == 0, "the engine thread called malloc %d times", n_mallocs);
    ig_engine_stop(engine);
}
