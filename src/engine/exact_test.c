/* Exactness on the real model: the bits of the logits, and of tokens with their log-probabilities, do not
 * depend on company, on how a prompt is cut, on threads, on what was cached, or on the instruction set.
 * Skipped when there is no model file. Turns are run by hand, so who joins when is the same in every run. */
#include "base/test.h"
#include "engine/fake_test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_PROMPT = 200, N_LAST = 20, N_TOKENS = 12, N_TOP = 5, REPLY_MAX = 128 };

static const char MODEL[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

static const char GEMMA[] = "models/gemma-3-270m-q4_k_m.gguf";

/* Of the models that are opened from now on. */
static ig_kv_kind kv_kind;
static bool two_parts;
static ig_tier tier; /* 0: l3 */
static const ig_kv_config *kv_config;
static ig_pool *pool;
static ig_model *model;
static ig_engine *engine;

static const char *path_of(const char *own, const char *file) {
    static char path[PATH_MAX];
    const char *cache = getenv("INGLE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own) snprintf(path, sizeof path, "%s", own);
    else if (cache) snprintf(path, sizeof path, "%s/%s", cache, file);
    else if (xdg) snprintf(path, sizeof path, "%s/ingle/%s", xdg, file);
    else snprintf(path, sizeof path, "%s/.cache/ingle/%s", home ? home : "", file);
    return access(path, R_OK) == 0 ? path : NULL;
}

/* An emulated machine would take hours for the real one; these weights are of several formats. */
static const char *model_path(void) {
    return ig_test_emulator() ? "tests/golden/tiny/llama-0.25-mixed" : path_of(getenv("INGLE_TEST_MODEL"), MODEL);
}

/* A GGUF file or a snapshot's folder. */
static bool open_file(const char *path, int n_threads, uint32_t cpu) {
    ig_err err = {0};
    ig_gguf *g = NULL;
    ig_snapshot *folder = NULL;
    ig_status st = access(path, X_OK) == 0 ? ig_snapshot_open(&folder, path, &err) : ig_gguf_open(&g, path, &err);
    if (!st) st = ig_pool_make(&pool, n_threads, &err);
    const ig_model_options o = {.pool = pool, .tier_max = tier, .cpu = cpu, .kv_kind = kv_kind, .two_parts = two_parts,
                                .kv_config = kv_config};
    if (!st) st = ig_model_open(&model, (ig_checkpoint){g, folder}, &o, &err);
    ig_gguf_close(g);
    ig_snapshot_close(folder);
    return CHECK_MSG(st == IG_OK, "%s", err.msg);
}

static bool open_model(int n_threads, uint32_t cpu) {
    return open_file(model_path(), n_threads, cpu);
}

static void close_model(void) {
    ig_model_close(model);
    ig_pool_free(pool);
    model = NULL;
    pool = NULL;
}

static void make_engine_of(int n_slots, int chunk, int n_blocks, int n_ctx) {
    ig_err err = {0};
    ig_backend b = ig_engine_backend(model);
    ig_engine_config c = ig_engine_defaults();
    c.n_slots = n_slots;
    c.prefill_chunk = chunk;
    c.n_ctx = n_ctx;
    c.kv_budget_bytes = (uint64_t)n_blocks * ig_kv_block_bytes(b.kv);
    c.memory_budget_bytes = 4ull << 30;
    ig_status st = ig_engine_make_on(&engine, &b, &c, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
    ig_assert(st == IG_OK);
}

static void make_engine(int n_slots, int chunk, int n_blocks) {
    make_engine_of(n_slots, chunk, n_blocks, 512);
}

static void free_engine(void) {
    ig_err err = {0};
    ig_sched_cancel(engine, true);
    CHECK_MSG(ig_kv_pool_check(engine->kv, &err), "%s", err.msg);
    ig_engine_free(engine);
}

/* Prompts are random ids: the model has no say in what is easy. Number k shares its first `same` tokens
 * with number 0. */
static const uint32_t *prompt_of(uint32_t k, int same) {
    static uint32_t t[8][N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        t[k][i] = ig_rng_word(i < same ? 0 : k, (uint32_t)i, 0, 0) % (uint32_t)engine->model.n_vocab;
    return t[k];
}

static void turn(void) {
    ig_test_watch_malloc(true);
    ig_engine_turn(engine);
    ig_test_watch_malloc(false);
}

static void finish_all(void) {
    while (engine->n_running > 0 || atomic_load(&engine->n_queued) > 0) turn();
}

/* ---- one job: logits of the last rows ---------------------------------------------------------------- */

static ig_gen *start_job(const uint32_t *prompt, int n, int n_last, float *logits, bool use_prefix_cache) {
    ig_gen_params p = {.prompt = prompt, .top_logprobs = -1, .use_prefix_cache = use_prefix_cache};
    ig_gen *g = ig_gen_make(&p, 1, n, 0, false);
    g->last_logits = logits;
    g->n_last = n_last;
    atomic_fetch_add(&engine->n_queued, 1);
    ig_sched_accept(engine, g);
    return g;
}

static void end_job(ig_gen *g) {
    while (ig_gen_finish(g) == IG_FINISH_NONE) turn();
    CHECK_MSG(ig_gen_finish(g) == IG_FINISH_LENGTH, "%s", ig_gen_error(g));
    ig_gen_release(g);
}

static float *logits_of(const uint32_t *prompt, int n, int n_last, bool use_prefix_cache) {
    float *logits = malloc((size_t)n_last * (size_t)engine->model.n_vocab * sizeof *logits);
    end_job(start_job(prompt, n, n_last, logits, use_prefix_cache));
    return logits;
}

static bool same_logits(const float *a, const float *b, int n_rows) {
    return memcmp(a, b, (size_t)n_rows * (size_t)engine->model.n_vocab * sizeof *a) == 0;
}

/* ---- one generation ---------------------------------------------------------------------------------- */

typedef struct reply {
    int n;
    uint32_t token[REPLY_MAX];
    ig_logprob own[REPLY_MAX], top[REPLY_MAX][N_TOP];
} reply;

static ig_gen *start_gen(const uint32_t *prompt, int n, int max_tokens, uint64_t seed,
                         bool use_prefix_cache) {
    ig_gen *g = NULL;
    ig_err err = {0};
    ig_gen_params p = {.prompt = prompt, .n_prompt = n, .max_tokens = max_tokens, .top_logprobs = N_TOP,
                       .sampling = {.temperature = seed ? 0.9f : 0.0f, .top_p = 0.95f, .seed = seed},
                       .use_prefix_cache = use_prefix_cache};
    CHECK_MSG(ig_engine_submit(engine, &p, &g, &err) == IG_OK, "%s", err.msg);
    return g;
}

static reply reply_of(ig_gen *g) {
    reply r = {0};
    while (ig_gen_finish(g) == IG_FINISH_NONE) turn();
    r.n = ig_gen_n_tokens(g);
    for (int i = 0; i < r.n; i++) {
        int n_top;
        r.token[i] = ig_gen_token(g, i);
        memcpy(r.top[i], ig_gen_logprobs(g, i, &r.own[i], &n_top), sizeof r.top[i]);
    }
    ig_gen_release(g);
    return r;
}

static bool same_reply(const reply *a, const reply *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- the tests --------------------------------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
enum { TOO_SLOW = 1 }; /* minutes; the tiny models of model_test.c are there for it */
#else
enum { TOO_SLOW = 0 };
#endif
#define NEED_MODEL()                                                                              \
    if (TOO_SLOW) SKIP("a whole model under the thread sanitizer takes minutes");                 \
    if (!model_path()) SKIP("there is no model file: set INGLE_TEST_MODEL or run ./run once")

/* What everything is compared with: one thread, alone, a chunk that takes the prompt whole. */
static float *base_logits;
static reply base_greedy, base_warm;

static void need_base(void) {
    if (base_logits || !open_model(1, 0)) return;
    make_engine(1, 512, 8);
    base_logits = logits_of(prompt_of(0, 0), N_PROMPT, N_LAST, false);
    base_greedy = reply_of(start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 0, false));
    base_warm = reply_of(start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 77, false));
    CHECK(base_greedy.n == N_TOKENS && !same_reply(&base_greedy, &base_warm));
    free_engine();
    close_model();
}

TEST(any_number_of_threads_gives_the_same_bits) {
    NEED_MODEL();
    need_base();
    static const int n_threads[] = {2, 3, 5};
    for (int i = 0; i < 3; i++) {
        if (!open_model(n_threads[i], 0)) return;
        make_engine(1, 512, 8);
        float *logits = logits_of(prompt_of(0, 0), N_PROMPT, N_LAST, false);
        CHECK_MSG(same_logits(logits, base_logits, N_LAST), "%d threads", n_threads[i]);
        free(logits);
        reply r = reply_of(start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 77, false));
        CHECK_MSG(same_reply(&r, &base_warm), "%d threads", n_threads[i]);
        free_engine();
        close_model();
    }
}

TEST(any_cut_of_the_prompt_gives_the_same_bits) {
    NEED_MODEL();
    need_base();
    static const int chunk[] = {1, 7, 64};
    if (!open_model(2, 0)) return;
    for (int i = 0; i < 3; i++) {
        make_engine(1, chunk[i], 8);
        float *logits = logits_of(prompt_of(0, 0), N_PROMPT, N_LAST, false);
        CHECK_MSG(same_logits(logits, base_logits, N_LAST), "chunk %d", chunk[i]);
        free(logits);
        free_engine();
    }
    close_model();
    ig_test_proven("node drive.prefill_chunk", "golden");
}

TEST(company_that_joins_and_leaves_does_not_change_a_bit) {
    NEED_MODEL();
    need_base();
    static const int n_together[] = {2, 3, 8};
    if (!open_model(2, 0)) return;
    ig_test_watched_mallocs();
    for (int i = 0; i < 3; i++) {
        ig_gen *other[8] = {0};
        int n = n_together[i];
        float *logits = malloc((size_t)N_LAST * (size_t)ig_model_config_of(model)->n_vocab * sizeof *logits);
        make_engine(n + 1, 64, 64);
        /* The others have other lengths, so that they come, decode and go at all times. */
        for (int k = 1; k < n; k++)
            other[k] = start_gen(prompt_of((uint32_t)k, 0), 20 * k, 3 * k, (uint64_t)k, false);
        turn();
        ig_gen *job = start_job(prompt_of(0, 0), N_PROMPT, N_LAST, logits, false);
        ig_gen *g = start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 77, false);
        for (int k = 0; k < 3; k++) turn();
        if (n > 2) ig_gen_cancel(other[2]);
        end_job(job);
        reply r = reply_of(g);
        CHECK_MSG(same_logits(logits, base_logits, N_LAST), "%d together", n);
        CHECK_MSG(same_reply(&r, &base_warm), "%d together", n);
        free(logits);
        finish_all();
        for (int k = 1; k < n; k++) ig_gen_release(other[k]);
        free_engine();
    }
    int n_mallocs = ig_test_watched_mallocs();
    CHECK_MSG(n_mallocs == 0, "%d calls of malloc in turns of the engine", n_mallocs);
    close_model();
    ig_test_proven("node batch.step", "golden");
}

TEST(a_prefix_from_the_cache_gives_the_same_bits) {
    NEED_MODEL();
    need_base();
    if (!open_model(2, 0)) return;
    make_engine(2, 64, 12);
    /* Whole blocks and a part of one: a prompt that leaves ours after 150 tokens. */
    reply other = reply_of(start_gen(prompt_of(1, 150), N_PROMPT, 2, 0, true));
    CHECK(other.n == 2);
    ig_gen *g = start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 77, true);
    turn();
    CHECK(ig_gen_stats_of(g).n_cached == 150);
    reply r = reply_of(g);
    CHECK(same_reply(&r, &base_warm));
    /* Everything: the same prompt once more, and the logits behind a cached beginning. */
    g = start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 0, true);
    turn();
    CHECK(ig_gen_stats_of(g).n_cached == N_PROMPT - 1);
    r = reply_of(g);
    CHECK(same_reply(&r, &base_greedy));
    float *logits = logits_of(prompt_of(0, 0), N_PROMPT, N_LAST, true);
    CHECK(same_logits(logits, base_logits, N_LAST));
    free(logits);
    /* After an eviction: three others need all the blocks. */
    for (uint32_t k = 3; k < 6; k++) reply_of(start_gen(prompt_of(k, 0), N_PROMPT, 1, 0, true));
    CHECK(ig_kv_pool_stats(engine->kv).n_evicted > 0);
    r = reply_of(start_gen(prompt_of(0, 0), N_PROMPT, N_TOKENS, 77, true));
    CHECK(same_reply(&r, &base_warm));
    free_engine();
    close_model();
    ig_test_proven("node cache.prefix", "golden");
}

TEST(a_paused_request_goes_on_with_the_same_bits) {
    enum { N_OLD = 300, N_LONG = 100 };
    static uint32_t old[N_OLD];
    NEED_MODEL();
    if (!open_model(2, 0)) return;
    make_engine(2, 64, 11); /* the older grows to 7 blocks, the younger from 4 to 5 */
    for (uint32_t i = 0; i < N_OLD; i++) old[i] = ig_rng_word(9, i, 0, 0) % (uint32_t)engine->model.n_vocab;
    ig_gen *a = start_gen(old, N_OLD, 90, 3, false);
    ig_gen *b = start_gen(prompt_of(0, 0), N_PROMPT, N_LONG, 77, false);
    reply together = reply_of(b);
    CHECK(atomic_load(&engine->counts.n_paused) == 1);
    finish_all();
    ig_gen_release(a);
    reply alone = reply_of(start_gen(prompt_of(0, 0), N_PROMPT, N_LONG, 77, false));
    CHECK(alone.n == N_LONG && same_reply(&together, &alone));
    CHECK(atomic_load(&engine->counts.n_paused) == 1);
    free_engine();
    close_model();
}

TEST(scalar_kernels_give_the_same_bits_as_the_fastest) {
    enum { N = 12, LAST = 3 };
    NEED_MODEL();
    uint32_t cpu[2] = {0, 1u << 31}; /* the second: no feature that a kernel asks for */
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        if (!open_model(2, cpu[i])) return;
        if (i == 1) CHECK(ig_model_kernels(model)->op[IG_KERN_ATTENTION]->cpu_needs == 0);
        make_engine(1, 512, 8);
        logits[i] = logits_of(prompt_of(0, 0), N, LAST, false);
        if (i == 1) CHECK(same_logits(logits[0], logits[1], LAST));
        free_engine();
        close_model();
    }
    free(logits[0]);
    free(logits[1]);
}

TEST(one_other_token_and_one_wrong_bit_in_a_cached_row_do_change_the_logits) { /* the control */
    uint32_t prompt[N_PROMPT];
    NEED_MODEL();
    need_base();
    if (!open_model(2, 0)) return;
    make_engine(1, 64, 8);
    memcpy(prompt, prompt_of(0, 0), sizeof prompt);
    prompt[3] = (prompt[3] + 1) % (uint32_t)engine->model.n_vocab;
    float *logits = logits_of(prompt, N_PROMPT, N_LAST, false);
    CHECK(!same_logits(logits, base_logits, N_LAST));
    ig_gen *job = start_job(prompt_of(0, 0), N_PROMPT, N_LAST, logits, false);
    turn(); /* 64 rows; then a bit of the value of position 10 in a middle layer */
    CHECK(job->seq->n_tokens == 64);
    ig_kv_shape s = engine->model.kv;
    uint16_t *k = ig_kv_at(engine->kv, job->seq->block[0][0], (ig_kv_layer){0, s.group[0].n_layers / 2}, 0);
    k[s.group[0].head_dim * (IG_KV_BLOCK_TOKENS + 10) + 5] ^= 1u << 8;
    end_job(job);
    CHECK(!same_logits(logits, base_logits, N_LAST));
    end_job(start_job(prompt_of(0, 0), N_PROMPT, N_LAST, logits, false));
    CHECK(same_logits(logits, base_logits, N_LAST));
    free(logits);
    free_engine();
    close_model();
}

/* ---- windows ------------------------------------------------------------------------------------------ */

static void put_text(FILE *f, const char *s) {
    uint64_t n = strlen(s);
    fwrite(&n, 8, 1, f);
    fwrite(s, 1, n, f);
}

static void put_number(FILE *f, const char *key, uint32_t type, const void *value) {
    put_text(f, key);
    fwrite(&type, 4, 1, f);
    fwrite(value, 4, 1, f);
}

/* A random Gemma 3 of five layers: two windowed, one that sees all, two windowed. All in f32. */
static const char *write_tiny_gemma(void) {
    enum { LAYERS = 5, WIDTH = 64, FFN = 96, HEADS = 2, DIM = 32, VOCAB = 96, KINDS = 13 };
    static char path[64];
    static const struct {
        const char *name;
        int rows, cols;
    } kinds[KINDS] = {{"attn_norm", 1, WIDTH}, {"attn_q", HEADS * DIM, WIDTH}, {"attn_k", DIM, WIDTH},
                      {"attn_v", DIM, WIDTH}, {"attn_q_norm", 1, DIM}, {"attn_k_norm", 1, DIM},
                      {"attn_output", WIDTH, HEADS * DIM}, {"post_attention_norm", 1, WIDTH},
                      {"ffn_norm", 1, WIDTH}, {"ffn_gate", FFN, WIDTH}, {"ffn_up", FFN, WIDTH},
                      {"ffn_down", WIDTH, FFN}, {"post_ffw_norm", 1, WIDTH}};
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"block_count", LAYERS}, {"context_length", 2048}, {"embedding_length", WIDTH},
                {"feed_forward_length", FFN}, {"attention.head_count", HEADS},
                {"attention.head_count_kv", 1}, {"attention.key_length", DIM}, {"attention.value_length", DIM},
                {"attention.sliding_window", 96}, {"attention.sliding_window_pattern", 3}};
    const uint32_t version = 3, n_keys = sizeof keys / sizeof *keys;
    const uint64_t n_tensors = 2 + LAYERS * KINDS, n_meta = n_keys + 2;
    const float eps = 1e-6f;
    char name[64];
    uint64_t at = 0;

    snprintf(path, sizeof path, "/tmp/ingle-gemma-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!CHECK(f != NULL)) return NULL;
    fwrite("GGUF", 1, 4, f), fwrite(&version, 4, 1, f), fwrite(&n_tensors, 8, 1, f), fwrite(&n_meta, 8, 1, f);
    put_text(f, "general.architecture"), fwrite(&(uint32_t){8}, 4, 1, f), put_text(f, "gemma3");
    for (uint32_t i = 0; i < n_keys; i++) {
        snprintf(name, sizeof name, "gemma3.%s", keys[i].key);
        put_number(f, name, 4, &keys[i].value);
    }
    put_number(f, "gemma3.attention.layer_norm_rms_epsilon", 6, &eps);
    for (uint64_t i = 0; i < n_tensors; i++) {
        const int kind = i < 2 ? -1 : (int)(i - 2) % KINDS;
        const uint64_t rows = i == 0 ? VOCAB : i == 1 ? 1 : (uint64_t)kinds[kind].rows;
        const uint64_t cols = i < 2 ? WIDTH : (uint64_t)kinds[kind].cols;
        const uint32_t n_dims = rows > 1 ? 2 : 1, type = 0;
        if (i < 2) snprintf(name, sizeof name, "%s.weight", i == 0 ? "token_embd" : "output_norm");
        else snprintf(name, sizeof name, "blk.%d.%s.weight", (int)(i - 2) / KINDS, kinds[kind].name);
        put_text(f, name);
        fwrite(&n_dims, 4, 1, f), fwrite(&cols, 8, 1, f);
        if (rows > 1) fwrite(&rows, 8, 1, f);
        fwrite(&type, 4, 1, f), fwrite(&at, 8, 1, f);
        at += rows * cols * 4;
    }
    while (ftell(f) % 32) fputc(0, f);
    for (uint32_t i = 0; i < at / 4; i++) { /* every size is a multiple of 32 bytes */
        const float x = ((float)(ig_rng_word(5, i, 0, 0) >> 8) * 0x1p-24f - 0.5f) * 0.6f;
        fwrite(&x, 4, 1, f);
    }
    fclose(f);
    return path;
}

enum { LONG_MAX_TOKENS = 800, LONG_LAST = 6, LONG_REPLY = 24 };

static uint32_t long_prompt[3][LONG_MAX_TOKENS];

/* Number k shares its first `same` tokens with number 0. */
static const uint32_t *long_prompt_of(uint32_t k, int same) {
    const uint32_t n = (uint32_t)ig_model_config_of(model)->n_vocab;
    for (int i = 0; i < LONG_MAX_TOKENS; i++)
        long_prompt[k][i] = ig_rng_word(i < same ? 30 : 30 + k, (uint32_t)i, 0, 0) % n;
    return long_prompt[k];
}

static int windowed_group(void) {
    return engine->model.kv.group[0].window > 0 ? 0 : 1;
}

/* Logits of the last rows and a reply whose window moves, against those of one thread, alone, in one piece. */
static float *long_logits;
static reply long_reply;

static void check_long(const char *how, int n, bool use_prefix_cache, int n_cached) {
    ig_gen *g = start_gen(long_prompt_of(0, 0), n, LONG_REPLY, 77, use_prefix_cache);
    turn();
    const int got = ig_gen_stats_of(g).n_cached;
    CHECK_MSG(n_cached < 0 || got == n_cached, "%s: %d cached", how, got);
    reply r = reply_of(g);
    CHECK_MSG(same_reply(&r, &long_reply), "%s", how);
    float *logits = logits_of(long_prompt_of(0, 0), n, LONG_LAST, use_prefix_cache);
    CHECK_MSG(same_logits(logits, long_logits, LONG_LAST), "%s", how);
    free(logits);
}

/* Few windowed blocks: what others leave is evicted, and holes appear. */
static void set_windowed_blocks(int n) {
    ig_err err = {0};
    ig_kv_room room = engine->plan.room;
    room.n_blocks[windowed_group()] = n;
    ig_kv_pool_free(engine->kv);
    engine->plan.room = room;
    ig_status st = ig_kv_pool_make(&engine->kv, engine->model.kv, room, engine->plan.n_slots,
                                   engine->plan.n_ctx, &err);
    CHECK_MSG(st == IG_OK, "%s", err.msg);
}

static void check_cuts(int n, int n_blocks, int n_ctx, int window) {
    const int cut[] = {window / 2, window + 10, n - window / 3 - 1, n - 1};
    /* inside the first window, just behind it, inside the last one, the end; of a large model two of them */
    for (int i = 0; i < 4; i += window > 100 ? 2 : 1) {
        make_engine_of(2, 64, n_blocks, n_ctx);
        reply_of(start_gen(long_prompt_of(1, cut[i]), n, 3, 0, true));
        check_long("a prefix from the cache", n, true, cut[i]);
        free_engine();
    }
}

static void check_eviction(int n, int n_blocks, int n_ctx, int window) {
    make_engine_of(2, 64, n_blocks, n_ctx);
    const int most = ig_kv_held_most(engine->model.kv.group[windowed_group()], n_ctx, 64);
    set_windowed_blocks(2 * most + 1);
    reply_of(start_gen(long_prompt_of(0, 0), n, 3, 0, true));
    reply_of(start_gen(long_prompt_of(1, n - 2 * window), n, 3, 0, true));
    reply_of(start_gen(long_prompt_of(2, 0), n, 3, 0, true));
    const ig_kv_stats kv = ig_kv_pool_stats(engine->kv);
    CHECK(kv.n_evicted > 0 && kv.group[!windowed_group()].n_cached > kv.group[windowed_group()].n_cached);
    check_long("after an eviction of windowed blocks", n, true, -1);
    free_engine();
}

/* The control: a bit inside the window matters, one behind it does not. */
static void check_bits(int n, int n_blocks, int n_ctx, int window) {
    for (int inside = 0; inside < 2; inside++) {
        const size_t n_vocab = (size_t)ig_model_config_of(model)->n_vocab;
        float *logits = malloc((size_t)LONG_LAST * n_vocab * sizeof *logits);
        make_engine_of(1, 64, n_blocks, n_ctx);
        ig_gen *job = start_job(long_prompt_of(0, 0), n, LONG_LAST, logits, false);
        while (job->seq == NULL || n - job->seq->n_tokens > 64) turn();
        const int g = windowed_group(), from = job->seq->n_tokens, at = inside ? from - 5 : from - window;
        const ig_kv_group of = engine->model.kv.group[g];
        ig_assert(at / 64 >= job->seq->first[g]);
        uint8_t *k = ig_kv_at(engine->kv, job->seq->block[g][at / 64], (ig_kv_layer){g, 0}, 0);
        const int byte = at % 64 * of.head_dim + 3; /* of a value: bit 9 of its f16, or bit 6 of its code */
        if (of.kind == IG_KV_8) k[ig_kv_part_bytes(of.kind, of.head_dim) + (size_t)byte] ^= 1u << 6;
        else k[ig_kv_part_bytes(of.kind, of.head_dim) + 2 * (size_t)byte + 1] ^= 1u << 1;
        end_job(job);
        CHECK_MSG(same_logits(logits, long_logits, LONG_LAST) == !inside, "position %d of %d", at, from);
        free(logits);
        free_engine();
    }
}

/* window 0: a model without. */
static void runs_are_exact(const char *path, int n, int window) {
    const int n_ctx = n + 64, n_blocks = 8 * ig_kv_blocks_for(n_ctx);
    if (!open_file(path, 1, 0)) return;
    make_engine_of(1, 1024, n_blocks, n_ctx);
    CHECK(engine->model.kv.n_groups == (window ? 2 : 1));
    CHECK(!window || engine->model.kv.group[windowed_group()].window == window);
    long_logits = logits_of(long_prompt_of(0, 0), n, LONG_LAST, false);
    long_reply = reply_of(start_gen(long_prompt_of(0, 0), n, LONG_REPLY, 77, false));
    free_engine();
    close_model();
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        if (!open_file(path, n_threads, 0)) return;
        make_engine_of(1, n_threads == 2 ? 53 : 64, n_blocks, n_ctx);
        check_long("threads and chunks", n, false, 0);
        free_engine();
        close_model();
    }
    if (!open_file(path, 2, 0)) return;
    make_engine_of(4, 64, n_blocks, n_ctx);
    ig_gen *a = start_gen(long_prompt_of(1, 0), n / 2, 40, 3, false);
    ig_gen *b = start_gen(long_prompt_of(2, 0), n, 10, 4, false);
    check_long("in company", n, false, 0);
    finish_all();
    ig_gen_release(a);
    ig_gen_release(b);
    free_engine();
    check_cuts(n, n_blocks, n_ctx, window ? window : 60);
    if (window) check_eviction(n, n_blocks, n_ctx, window), check_bits(n, n_blocks, n_ctx, window);
    close_model();
    free(long_logits);
}

TEST(a_model_with_windows_gives_the_same_bits_however_it_is_run) {
    const char *path = write_tiny_gemma();
    if (!path) return;
    runs_are_exact(path, 333, 96);
    remove(path);
}

TEST(keys_and_values_of_8_bits_give_the_same_bits_however_they_are_run) {
    const char *path = write_tiny_gemma();
    if (!path) return;
    kv_kind = IG_KV_8;
    runs_are_exact(path, 333, 96);
    kv_kind = IG_KV_F16;
    remove(path);
}

/* Formats of all kinds in one model. */
TEST(activations_in_two_parts_give_the_same_bits_however_they_are_run) {
    two_parts = true;
    runs_are_exact("tests/golden/tiny/llama-0.25-mixed", 333, 0);
    two_parts = false;
}

/* The reference's windows depend on where a prompt ended; what is shared does not reach so far. */
TEST(tier_l1_gives_the_same_bits_however_it_is_run) {
    const char *path = write_tiny_gemma();
    tier = IG_TIER_L1;
    runs_are_exact("tests/golden/tiny/llama-0.25-mixed", 333, 0);
    runs_are_exact("tests/golden/tiny/gemma3-0.25-bf16", 333, 8);
    runs_are_exact("tests/golden/tiny/gemma3-0.08-mixed", 333, 8);
    if (path) runs_are_exact(path, 333, 96), remove(path);
    tier = 0;
}

/* Rows behind the first chunk of a prompt attend over what came back from groups: they are the request's alone, so a
 * longer prompt finds less of a shorter one. */
TEST(tier_l2_gives_the_same_bits_however_it_is_run) {
    static ig_kv_config mixed = {.n_layers = 6, .bits = {4, 8, 4, 0, 8, 8}, .group = {32, 32, 32, 0, 32, 32}};
    tier = IG_TIER_L2, kv_config = &mixed;
    runs_are_exact("tests/golden/tiny/gemma3-0.25-bf16", 333, 8);
    mixed.n_layers = 3;
    if (!ig_test_emulator()) runs_are_exact("tests/golden/tiny/gemma3-0.08-mixed", 333, 8);
    tier = 0, kv_config = NULL;
}

TEST(gemma_3_gives_the_same_bits_however_it_is_run) {
    const char *path = path_of(getenv("INGLE_TEST_GEMMA"), GEMMA);
    if (TOO_SLOW) SKIP("a whole model under the thread sanitizer takes minutes");
    if (ig_test_emulator()) SKIP("a whole model on an emulated machine takes hours; the two tests beside have windows too");
    if (!path) SKIP("there is no Gemma 3 file: set INGLE_TEST_GEMMA");
    runs_are_exact(path, 700, 512);
}

TEST(snapshots_give_the_same_bits_however_they_are_run) {
    runs_are_exact("tests/golden/tiny/llama-0.25-bf16", 333, 0);
    runs_are_exact("tests/golden/tiny/llama-0.08-8bit-g64", 333, 0);
    runs_are_exact("tests/golden/tiny/llama-0.25-mixed", 333, 0);
    runs_are_exact("tests/golden/tiny/gemma3-0.25-bf16", 333, 8);
    runs_are_exact("tests/golden/tiny/gemma3-0.08-mixed", 333, 8);
    runs_are_exact("tests/golden/tiny/gemma3-0.08-4bit-g32", 333, 8);
}
