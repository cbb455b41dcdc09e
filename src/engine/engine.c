/* engine: the plan, the thread, and the doors through which other threads reach it.
 *
 * Owns:    the engine's block, its mapping, the thread.
 * Threads: submit, stats and logits on any thread; the thread started here runs turns and sleeps in the
 *          inbox when there is nothing to do.
 * Memory:  all in make: one mapping for step memory and tables, one KV pool, one inbox.
 * Why the waiting are counted by an atomic and not by the inbox: the engine empties the inbox at every step,
 * so that a request cancelled while it waits ends at once; the bound is on all that wait. */
#include "engine/inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ig_engine_config ig_engine_defaults(void) {
    return (ig_engine_config){.n_slots = 4,
                              .prefill_chunk = 512,
                              .prefill_chunk_ms = 240,
                              .prefill_slice_ms = 120,
                              .queue_max = 64};
}

/* ---- plan ------------------------------------------------------------------------------------------- */

enum { CHUNK_MAX = 1 << 16, SLICE_MS_MAX = 60000, QUEUE_MAX = 1 << 16 };

static ig_status bound(const char *name, int value, int least, int most, ig_err *err) {
    if (value >= least && value <= most) return IG_OK;
    return ig_fail(err, IG_EINVAL, "%s %d is not in %d..%d", name, value, least, most);
}

static ig_status check_config(const ig_backend *b, const ig_engine_config *c, ig_err *err) {
    ig_status st = bound("slots", c->n_slots, 1, SLOTS_MAX, err);
    if (!st) st = bound("prefill chunk", c->prefill_chunk, 1, CHUNK_MAX, err);
    if (!st) st = bound("prefill chunk (ms)", c->prefill_chunk_ms, 0, SLICE_MS_MAX, err);
    if (!st) st = bound("prefill slice (ms)", c->prefill_slice_ms, 1, SLICE_MS_MAX, err);
    if (!st) st = bound("queue", c->queue_max, 1, QUEUE_MAX, err);
    if (!st && c->n_ctx != 0) st = bound("context", c->n_ctx, 2, b->n_ctx, err);
    return st;
}

/* The step memory and the tables, for measuring (a counting arena) and for taking. */
static void lay_out_step(ig_engine *e, ig_arena *a) {
    size_t step = e->model.plan(e->model.ud, e->n_rows_max, e->n_logits_max, e->n_hidden_max, e->plan.n_ctx);

    e->arena = (ig_arena){.base = ig_arena_take(a, step), .cap_bytes = step};
    e->logits = ig_arena_take(a, (size_t)e->n_logits_max * (size_t)e->model.n_vocab * sizeof *e->logits);
    e->hidden = ig_arena_take(a, (size_t)e->n_hidden_max * (size_t)e->model.width * sizeof *e->hidden);
    ig_sampler_lay_out(&e->sampler, a);
}

static void lay_out_tables(ig_engine *e, ig_arena *a) {
    size_t n_rows = (size_t)e->n_rows_max, n_want = (size_t)e->n_want_max, n_slots = (size_t)e->plan.n_slots;

    e->row_token = ig_arena_take(a, n_rows * sizeof *e->row_token);
    e->row_pos = ig_arena_take(a, n_rows * sizeof *e->row_pos);
    e->row_seq = ig_arena_take(a, n_rows * sizeof *e->row_seq);
    e->row_kv = ig_arena_take(a, n_slots * sizeof *e->row_kv);
    e->want = ig_arena_take(a, n_want * sizeof *e->want);
    e->want_gen = ig_arena_take(a, n_want * sizeof *e->want_gen);
    e->running = ig_arena_take(a, n_slots * sizeof *e->running);
    e->batch = ig_arena_take(a, n_slots * sizeof *e->batch);
}

static void set_sizes(ig_engine *e, const ig_backend *b, const ig_engine_config *c) {
    e->model = *b;
    e->config = *c;
    e->sampler.n_vocab = b->n_vocab;
    e->sampler.argmax = b->argmax;
    e->sampler.exp = b->exp;
    ig_sampler_set_number(&e->sampler, b->number);
    e->n_rows_max = c->prefill_chunk + c->n_slots;
    e->n_logits_max = b->no_head ? 0 : c->n_slots + LOGITS_ROWS;
    e->n_hidden_max = c->pooling == IG_POOLING_MEAN ? e->n_rows_max : c->pooling == IG_POOLING_LAST ? c->n_slots : 0;
    e->n_want_max = e->n_logits_max + e->n_hidden_max;
}

static uint64_t add(uint64_t a, uint64_t b) { /* a sum too large stays too large */
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* A context for each slot, and a block more for the copy that a writer takes. */
static int all_blocks(const ig_engine_config *c, int n_ctx) {
    return c->n_slots * (ig_kv_blocks_for(n_ctx) + 1);
}

/* Blocks of a windowed group beside n of those that see all: beside one context what one request runs on,
 * beside a context for each slot the windows of all and KEPT_WINDOWS for each; even between and beyond. */
static int windowed_blocks(ig_kv_group g, const ig_engine_config *c, int n_ctx, int n) {
    const int one = ig_kv_blocks_for(n_ctx), all = all_blocks(c, n_ctx);
    const int runs_on = ig_kv_held_most(g, n_ctx, c->prefill_chunk);
    int64_t slot = runs_on + KEPT_WINDOWS * ((int64_t)ig_kv_held_most(g, n_ctx, 1) + 1);
    if (slot > one + 1) slot = one + 1;
    int64_t w = n >= all ? slot * n / (one + 1)
                         : runs_on + (n - one) * (c->n_slots * slot - runs_on) / (all - one);
    return w < n ? (int)w : n;
}

static ig_kv_room room_of(const ig_backend *b, const ig_engine_config *c, int n_ctx, int n) {
    ig_kv_room r = {{0}};
    for (int g = 0; g < b->kv.n_groups; g++)
        r.n_blocks[g] = b->kv.group[g].window == 0 ? n : windowed_blocks(b->kv.group[g], c, n_ctx, n);
    return r;
}

/* All numbers of a plan of this context and n blocks of those that see all, n at least a context. */
static ig_engine_plan plan_of(const ig_backend *b, const ig_engine_config *c, uint64_t usable, int n_ctx,
                              int n) {
    ig_engine e = {0};
    ig_arena step = {.counting = true}, tables = {.counting = true};
    ig_engine_plan p = {.weights_bytes = b->weights_bytes, .usable_bytes = usable, .n_ctx = n_ctx,
                        .room = room_of(b, c, n_ctx, n), .n_slots = c->n_slots, .kv_kind = b->kv.group[0].kind,
                        .two_parts = b->two_parts};

    set_sizes(&e, b, c);
    e.plan = p;
    lay_out_step(&e, &step);
    lay_out_tables(&e, &tables);
    p.step_bytes = step.used_bytes;
    p.kv_bytes = ig_kv_room_bytes(b->kv, p.room);
    p.table_bytes = tables.used_bytes + sizeof e + ig_kv_pool_table_bytes(b->kv, p.room, c->n_slots, n_ctx);
    p.total_bytes = add(p.weights_bytes, add(p.step_bytes, add(p.kv_bytes, p.table_bytes + RESERVE_BYTES)));
    p.fits = p.total_bytes <= usable;
    return p;
}

static bool is_within(const ig_engine_plan *p, const ig_engine_config *c) {
    return p->fits && (c->kv_budget_bytes == 0 || p->kv_bytes <= c->kv_budget_bytes);
}

/* The largest plan of this context: at least a context of blocks, at most n_max. Not within: none is. */
static ig_engine_plan largest_plan(const ig_backend *b, const ig_engine_config *c, uint64_t usable, int n_ctx,
                                   int n_max) {
    int lo = ig_kv_blocks_for(n_ctx), hi = n_max;
    ig_engine_plan best = plan_of(b, c, usable, n_ctx, lo);
    while (is_within(&best, c) && lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        ig_engine_plan p = plan_of(b, c, usable, n_ctx, mid);
        if (is_within(&p, c)) best = p, lo = mid;
        else hi = mid - 1;
    }
    return best;
}

static bool context_fits(const ig_backend *b, const ig_engine_config *c, uint64_t usable, int n_ctx) {
    ig_engine_plan p = plan_of(b, c, usable, n_ctx, ig_kv_blocks_for(n_ctx));
    return is_within(&p, c);
}

static ig_status refuse(const ig_backend *b, const ig_engine_config *c, const ig_engine_plan *p,
                        ig_err *err) {
    int lo = 0, hi = p->n_ctx; /* the largest context with which one sequence fits */
    char advice[64] = "no context fits";
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        if (context_fits(b, c, p->usable_bytes, mid)) lo = mid;
        else hi = mid - 1;
    }
    if (lo >= 2) snprintf(advice, sizeof advice, "the largest context that fits is %d", lo);
    if (c->kv_budget_bytes > 0 && c->kv_budget_bytes < p->kv_bytes)
        return ig_fail(err, IG_ELIMIT,
                       "keys and values of %d tokens need %s, their budget is %s: %s", p->n_ctx,
                       ig_size_text_of(p->kv_bytes).s, ig_size_text_of(c->kv_budget_bytes).s, advice);
    return ig_fail(err, IG_ELIMIT,
                   "memory: weights %s + step %s + keys and values of %d tokens %s + tables %s + reserve %s = %s, and %s "
                   "may be used: %s",
                   ig_size_text_of(p->weights_bytes).s, ig_size_text_of(p->step_bytes).s, p->n_ctx,
                   ig_size_text_of(p->kv_bytes).s, ig_size_text_of(p->table_bytes).s, ig_size_text_of(RESERVE_BYTES).s,
                   ig_size_text_of(p->total_bytes).s, ig_size_text_of(p->usable_bytes).s, advice);
}

static int clamp_blocks(uint64_t n) {
    return n > (1u << 24) ? 1 << 24 : (int)n;
}

static uint64_t main_block_bytes(const ig_backend *b) {
    for (int g = 0; g < b->kv.n_groups; g++)
        if (b->kv.group[g].window == 0) return ig_kv_group_block_bytes(b->kv.group[g]);
    ig_assert(!"ig_kv_kept left a group that sees all");
    return 0;
}

ig_status ig_engine_plan_on(ig_engine_plan *out, const ig_backend *b, const ig_engine_config *c,
                            ig_err *err) {
    ig_status st = check_config(b, c, err);
    if (st) return st;

    uint64_t usable = c->memory_budget_bytes;
    if (usable == 0) usable = add(ig_memory_available_bytes(), b->weights_bytes) / 4 * 3;
    int n_ctx = c->n_ctx ? c->n_ctx : b->n_ctx, most = clamp_blocks(c->kv_budget_bytes / main_block_bytes(b));
    ig_engine_config within = *c;
    if (c->kv_budget_bytes == 0) { /* at most 40 %, and a context in any case */
        ig_engine_plan one = plan_of(b, c, usable, n_ctx, ig_kv_blocks_for(n_ctx));
        most = all_blocks(c, n_ctx);
        within.kv_budget_bytes = usable / 5 * 2 > one.kv_bytes ? usable / 5 * 2 : one.kv_bytes;
    }
    ig_engine_plan p = largest_plan(b, &within, usable, n_ctx, most);
    if (!is_within(&p, &within)) return refuse(b, c, &p, err);
    *out = p;
    return IG_OK;
}

/* ---- the model behind it ---------------------------------------------------------------------------- */

static ig_status model_forward(void *ud, ig_arena *arena, const ig_rows *rows, float *logits, float *hidden,
                               int n_hidden, ig_err *err) {
    return ig_model_step(ud, arena, rows, logits, hidden, n_hidden, err);
}

static size_t model_plan(void *ud, int n_rows, int n_logits, int n_hidden, int n_ctx) {
    return n_hidden ? ig_model_plan_step(ud, n_rows, n_logits, n_hidden, n_ctx) : ig_model_plan(ud, n_rows, n_logits, n_ctx);
}

ig_backend ig_engine_backend(const ig_model *m) {
    const ig_model_config *c = ig_model_config_of(m);
    const ig_kern_table *k = ig_model_kernels(m);
    return (ig_backend){
        .ud = (void *)m,
        .forward = model_forward,
        .plan = model_plan,
        .argmax = k->op[IG_KERN_ARGMAX]->fn.argmax,
        .exp = k->op[IG_KERN_EXP] ? k->op[IG_KERN_EXP]->fn.exp : NULL,
        .n_vocab = c->n_vocab,
        .width = c->width,
        .no_head = c->no_head,
        .n_ctx = c->n_ctx_train,
        .n_threads = ig_pool_threads(ig_model_pool(m)),
        .kv = ig_kv_kept(ig_model_kv_shape(m)),
        .two_parts = ig_model_two_parts(m),
        .number = ig_model_number(m),
        .weights_bytes = ig_model_weights_bytes(m),
    };
}

ig_status ig_engine_plan_make(ig_engine_plan *out, const ig_model *m, const ig_engine_config *c,
                              ig_err *err) {
    ig_backend b = ig_engine_backend(m);
    return ig_engine_plan_on(out, &b, c, err);
}

ig_status ig_engine_start(ig_engine **out, ig_model *m, const ig_engine_config *c, ig_err *err) {
    ig_backend b = ig_engine_backend(m);
    return ig_engine_start_on(out, &b, c, err);
}

ig_status ig_engine_fit_on(ig_engine_fit *out, const ig_backend *b, const ig_engine_config *c, ig_err *err) {
    ig_status st = check_config(b, c, err);
    if (st) return st;
    uint64_t usable = c->memory_budget_bytes;
    if (usable == 0) usable = add(ig_memory_available_bytes(), b->weights_bytes) / 4 * 3;
    const int n_ctx = c->n_ctx ? c->n_ctx : b->n_ctx;
    int lo = 0, hi = b->n_ctx;
    *out = (ig_engine_fit){.reserve_bytes = RESERVE_BYTES};
    out->plan = plan_of(b, c, usable, n_ctx, all_blocks(c, n_ctx));
    out->plan.fits = is_within(&out->plan, c);
    while (lo < hi) {
        const int mid = lo + (hi - lo + 1) / 2;
        const ig_engine_plan p = plan_of(b, c, usable, mid, all_blocks(c, mid));
        if (is_within(&p, c)) lo = mid;
        else hi = mid - 1;
    }
    out->n_ctx_max = lo >= 2 ? lo : 0;
    return IG_OK;
}

ig_status ig_engine_fit_make(ig_engine_fit *out, const ig_model *m, const ig_engine_config *c, ig_err *err) {
    const ig_backend b = ig_engine_backend(m);
    return ig_engine_fit_on(out, &b, c, err);
}

/* ---- life ------------------------------------------------------------------------------------------- */

ig_status ig_engine_make_on(ig_engine **out, const ig_backend *b, const ig_engine_config *c, ig_err *err) {
    ig_engine *e = NULL;
    ig_engine_plan plan;
    ig_status st = ig_engine_plan_on(&plan, b, c, err);
    if (st) return st;

    e = calloc(1, sizeof *e);
    if (!e) return ig_fail(err, IG_ELIMIT, "engine: no memory for %zu bytes", sizeof *e);
    set_sizes(e, b, c);
    e->plan = plan;

    ig_arena count = {.counting = true};
    lay_out_step(e, &count);
    lay_out_tables(e, &count);
    e->map_bytes = count.used_bytes;
    st = ig_pages_map(&e->map, e->map_bytes, true, err);
    if (st) goto out;
    ig_arena all = {.base = e->map, .cap_bytes = e->map_bytes};
    lay_out_step(e, &all);
    lay_out_tables(e, &all);
    st = ig_kv_pool_make(&e->kv, b->kv, plan.room, plan.n_slots, plan.n_ctx, err);
    if (st) goto out;
    st = ig_queue_make(&e->inbox, c->queue_max, sizeof(ig_gen *), err);
    if (st) goto out;
    ig_engine_count(e);
    *out = e;
    e = NULL;
out:
    if (e) ig_engine_free(e);
    return st;
}

static void free_dead(ig_engine *e) {
    ig_gen *g = atomic_exchange(&e->dead, NULL);
    while (g) {
        ig_gen *next = g->next;
        ig_gen_free(g);
        g = next;
    }
}

void ig_engine_free(ig_engine *e) {
    ig_assert(e->n_running == 0 && !e->waiting);
    free_dead(e);
    ig_queue_free(e->inbox);
    ig_kv_pool_free(e->kv);
    ig_pages_unmap(e->map, e->map_bytes);
    free(e);
}

static void *thread_main(void *arg) {
    ig_engine *e = arg;
    ig_gen *g;

    pthread_setname_np(pthread_self(), "engine");
    while (!atomic_load(&e->stopping)) {
        if (ig_engine_turn(e)) continue;
        if (!ig_queue_pop(e->inbox, &g, -1)) break; /* closed */
        ig_sched_accept(e, g);
    }
    while (ig_queue_pop(e->inbox, &g, 0)) ig_sched_accept(e, g);
    ig_sched_cancel(e, true);
    return NULL;
}

ig_status ig_engine_start_on(ig_engine **out, const ig_backend *b, const ig_engine_config *c, ig_err *err) {
    ig_engine *e = NULL;
    ig_status st = ig_engine_make_on(&e, b, c, err);
    if (st) return st;
    int rc = pthread_create(&e->thread, NULL, thread_main, e);
    if (rc != 0) {
        ig_engine_free(e);
        return ig_fail(err, IG_EIO, "engine thread: %s", strerror(rc));
    }
    *out = e;
    return IG_OK;
}

void ig_engine_stop(ig_engine *e) {
    if (!e) return;
    atomic_store(&e->stopping, true);
    ig_queue_close(e->inbox);
    pthread_join(e->thread, NULL);
    ig_engine_free(e);
}

/* ---- submit ----------------------------------------------------------------------------------------- */

static ig_status check_prompt(const ig_engine *e, const uint32_t *prompt, int n_prompt, int n_max,
                              ig_err *err) {
    if (!prompt || n_prompt < 1) return ig_fail(err, IG_EINVAL, "the prompt is empty");
    if (n_prompt > n_max)
        return ig_fail(err, IG_ELIMIT, "the prompt has %d tokens, the context of %d has room for %d",
                       n_prompt, e->plan.n_ctx, n_max);
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] >= (uint32_t)e->model.n_vocab)
            return ig_fail(err, IG_EINVAL, "prompt token %d is %" PRIu32 ", the vocabulary has %d", i,
                           prompt[i], e->model.n_vocab);
    return IG_OK;
}

static ig_status in_range(const char *name, double x, double least, double most, ig_err *err) {
    if (x >= least && x <= most) return IG_OK; /* false for NaN */
    return ig_fail(err, IG_EINVAL, "%s %g is not in %g..%g", name, x, least, most);
}

static ig_status check_sampling(const ig_engine *e, const ig_sampling *p, ig_err *err) {
    const struct {
        const char *name;
        double x, least, most;
    } reals[] = {{"temperature", p->temperature, 0, 1e6},
                 {"top_p", p->top_p, 0, 1},
                 {"min_p", p->min_p, 0, 1},
                 {"xtc_probability", p->xtc_probability, 0, 1},
                 {"xtc_threshold", p->xtc_threshold, 0, 0.5},
                 {"repetition_penalty", p->repetition_penalty, 0, 1e6},
                 {"presence_penalty", p->presence_penalty, -1e6, 1e6},
                 {"frequency_penalty", p->frequency_penalty, -1e6, 1e6}};
    const struct {
        const char *name;
        int n, most;
    } counts[] = {{"top_k", p->top_k, INT32_MAX},
                  {"min_tokens_to_keep", p->min_tokens_to_keep, INT32_MAX},
                  {"repetition_context_size", p->repetition_context_size, INT32_MAX},
                  {"presence_context_size", p->presence_context_size, INT32_MAX},
                  {"frequency_context_size", p->frequency_context_size, INT32_MAX},
                  {"number of logit biases", p->n_logit_bias, IG_LOGIT_BIAS_MAX},
                  {"number of tokens that xtc leaves", p->n_xtc_special, IG_XTC_SPECIAL_MAX}};
    ig_status st = IG_OK;
    for (size_t i = 0; !st && i < sizeof counts / sizeof *counts; i++)
        st = bound(counts[i].name, counts[i].n, 0, counts[i].most, err);
    for (size_t i = 0; !st && i < sizeof reals / sizeof *reals; i++)
        st = in_range(reals[i].name, reals[i].x, reals[i].least, reals[i].most, err);
    for (int i = 0; !st && i < p->n_logit_bias; i++) {
        if (p->logit_bias[i].id >= (uint32_t)e->model.n_vocab)
            st = ig_fail(err, IG_EINVAL, "logit_bias is for token %" PRIu32 ", the vocabulary has %d",
                         p->logit_bias[i].id, e->model.n_vocab);
        else st = in_range("logit_bias", (double)p->logit_bias[i].bias, -1e6, 1e6, err);
    }
    return st;
}

static ig_status check_params(const ig_engine *e, const ig_gen_params *p, ig_err *err) {
    ig_status st = check_prompt(e, p->prompt, p->n_prompt, e->plan.n_ctx - 1, err);
    if (!st) st = bound("max_tokens", p->max_tokens, 1, INT32_MAX, err);
    if (!st) st = bound("top_logprobs", p->top_logprobs, -1, TOP_LOGPROBS_MAX, err);
    if (!st) st = bound("number of end tokens", p->n_eos, 0, EOS_MAX, err);
    return st ? st : check_sampling(e, &p->sampling, err);
}

/* Hands g over, or frees it. */
static ig_status hand_over(ig_engine *e, ig_gen *g, ig_err *err) {
    int queue_max = e->config.queue_max;

    free_dead(e);
    g->submit_ns = ig_clock_ns();
    bool room = atomic_fetch_add(&e->n_queued, 1) < queue_max;
    atomic_fetch_add(&e->n_open, 1);
    if (room && ig_queue_push(e->inbox, &g)) return IG_OK;
    atomic_fetch_sub(&e->n_open, 1);
    atomic_fetch_sub(&e->n_queued, 1);
    ig_gen_free(g);
    if (atomic_load(&e->stopping)) return ig_fail(err, IG_ECANCELED, "the engine is stopping");
    return ig_fail(err, IG_ELIMIT, "the queue is full: %d waiting", queue_max);
}

ig_status ig_engine_submit(ig_engine *e, const ig_gen_params *p, ig_gen **out, ig_err *err) {
    const int width = p->vector ? e->model.width : 0;
    ig_status st = p->vector ? check_prompt(e, p->prompt, p->n_prompt, e->plan.n_ctx, err) : check_params(e, p, err);
    if (!st && p->vector && !e->n_hidden_max) st = ig_fail(err, IG_EINVAL, "this engine was not made to give vectors");
    if (!st && !p->vector && e->model.no_head)
        st = ig_fail(err, IG_EINVAL, "this model has no head: it gives vectors of texts and no tokens");
    if (st) return st;

    int room = e->plan.n_ctx - p->n_prompt, max_tokens = p->max_tokens < room ? p->max_tokens : room;
    if (p->vector) max_tokens = 1; /* no token comes; the plan of its blocks counts one */
    ig_gen *g = ig_gen_make(p, max_tokens, p->n_prompt, width, e->config.pooling == IG_POOLING_MEAN && p->vector);
    if (!g) return ig_fail(err, IG_ELIMIT, "no memory for a request of %d tokens", p->n_prompt + max_tokens);
    st = hand_over(e, g, err);
    if (!st) *out = g;
    return st;
}

ig_status ig_engine_logits(ig_engine *e, const uint32_t *prompt, int n_prompt, int n_last, float *logits,
                           ig_err *err) {
    const ig_gen_params p = {.prompt = prompt, .top_logprobs = -1};
    ig_status st = check_prompt(e, prompt, n_prompt, e->plan.n_ctx, err);
    if (!st) st = bound("number of rows", n_last, 1, n_prompt, err);
    if (st) return st;

    if (e->model.no_head) return ig_fail(err, IG_EINVAL, "this model has no head: it gives vectors of texts and no tokens");
    ig_gen *g = ig_gen_make(&p, 1, n_prompt, 0, false);
    if (!g) return ig_fail(err, IG_ELIMIT, "no memory for a request of %d tokens", n_prompt);
    g->last_logits = logits;
    g->n_last = n_last;
    st = hand_over(e, g, err);
    if (st) return st;
    while (!ig_gen_wait(g, INT32_MAX, -1)) {}
    if (ig_gen_finish(g) == IG_FINISH_FAILED) st = ig_fail(err, IG_EFORMAT, "%s", ig_gen_error(g));
    if (ig_gen_finish(g) == IG_FINISH_CANCELED) st = ig_fail(err, IG_ECANCELED, "the engine is stopping");
    ig_gen_release(g);
    return st;
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

void ig_engine_count(ig_engine *e) {
    ig_engine_counts *c = &e->counts;
    ig_kv_stats kv = ig_kv_pool_stats(e->kv);
    int n_prefilling = 0;

    for (int i = 0; i < e->n_running; i++) n_prefilling += atomic_load(&e->running[i]->n_tokens) == 0;
    atomic_store(&c->n_running, e->n_running);
    atomic_store(&c->n_prefilling, n_prefilling);
    for (int g = 0; g < kv.n_groups; g++) {
        atomic_store(&c->n_free[g], kv.group[g].n_free);
        atomic_store(&c->n_cached[g], kv.group[g].n_cached);
    }
    atomic_store(&c->n_lookup_tokens, kv.n_lookup_tokens);
    atomic_store(&c->n_hit_tokens, kv.n_hit_tokens);
    atomic_store(&c->n_evicted, kv.n_evicted);
}

ig_engine_stats ig_engine_stats_of(ig_engine *e) {
    const ig_engine_counts *c = &e->counts;
    ig_engine_stats s = {
        .n_running = atomic_load(&c->n_running),
        .n_queued = atomic_load(&e->n_queued),
        .n_open = atomic_load(&e->n_open),
        .n_prefilling = atomic_load(&c->n_prefilling),
        .n_slots = e->plan.n_slots,
        .n_ctx = e->plan.n_ctx,
        .n_threads = e->model.n_threads,
        .n_steps = atomic_load(&c->n_steps),
        .n_rows = atomic_load(&c->n_rows),
        .n_prompt_tokens = atomic_load(&c->n_prompt_tokens),
        .n_cached_tokens = atomic_load(&c->n_cached_tokens),
        .n_generated_tokens = atomic_load(&c->n_generated_tokens),
        .n_canceled = atomic_load(&c->n_canceled),
        .n_failed = atomic_load(&c->n_failed),
        .n_done = atomic_load(&c->n_done),
        .n_hits = atomic_load(&c->n_hits),
        .n_misses = atomic_load(&c->n_misses),
        .stage = (ig_engine_stage)atomic_load(&c->stage),
        .n_step_rows = atomic_load(&c->n_step_rows),
        .kv = {.n_groups = e->model.kv.n_groups,
               .n_lookup_tokens = atomic_load(&c->n_lookup_tokens),
               .n_hit_tokens = atomic_load(&c->n_hit_tokens),
               .n_evicted = atomic_load(&c->n_evicted)},
    };
    for (int g = 0; g < s.kv.n_groups; g++)
        s.kv.group[g] = (struct ig_kv_group_stats){
            e->plan.room.n_blocks[g], atomic_load(&c->n_free[g]), atomic_load(&c->n_cached[g]),
            ig_kv_group_block_bytes(e->model.kv.group[g])};
    return s;
}

ig_engine_plan ig_engine_plan_of(const ig_engine *e) {
    return e->plan;
}
