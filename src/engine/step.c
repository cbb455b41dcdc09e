/* step: one turn of the engine: cancellations, admissions, rows, forward, sample, publish.
 *
 * Owns:    nothing between turns.
 * Threads: engine thread (or a test's, by hand).
 * Memory:  the step arena and the logits, taken at start.
 * Why a failed forward is run again request by request: one of them is to blame, and only that one ends.
 * The forward has written nothing that counts: a sequence's n_tokens moves on success only. */
#include "engine/inside.h"

#include <math.h>
#include <string.h>

static bool is_end(const ig_gen *g, uint32_t token) {
    for (int i = 0; i < g->n_eos; i++)
        if (g->eos[i] == token) return true;
    return false;
}

/* The logits of g's last row: a token, and perhaps the end. */
static void emit(ig_engine *e, ig_gen *g, float *logits) {
    ig_sampler *s = &e->sampler;
    int n = atomic_load(&g->n_tokens), token;
    ig_sample_penalize(s, logits, &g->sampling, g->ids, g->n_ids);
    if (s->round) token = ig_sample_mlx(s, logits, &g->sampling, g->key);
    else token = ig_sample(s, logits, &g->sampling, (uint32_t)n);
    uint64_t now = ig_clock_ns();

    if (token == SAMPLE_NOT_FINITE) {
        ig_sched_finish(e, g, IG_FINISH_FAILED, "non-finite logits");
        return;
    }
    if (token == SAMPLE_TOO_COLD) {
        ig_sched_finish(e, g, IG_FINISH_FAILED, "the temperature is too low for 16-bit numbers; 0 is greedy");
        return;
    }
    if (token == SAMPLE_NONE) {
        ig_sched_finish(e, g, IG_FINISH_STOP, NULL);
        return;
    }
    if (g->top_logprobs >= 0)
        ig_sample_logprobs(s, logits, (uint32_t)token, g->top_logprobs, &g->own[n],
                           g->top + (size_t)n * (size_t)g->top_logprobs);
    if (n == 0) {
        const uint64_t begun = atomic_load(&g->admit_ns);
        ig_spread_note(&e->counts.first_token_ns, ig_bounds_ns, now - g->submit_ns);
        atomic_fetch_add(&e->counts.prefill_ns, now - begun);
        atomic_store(&g->first_ns, now);
        atomic_store(&g->state, IG_GEN_DECODE);
        /* Others with this prompt need not wait for its last token. */
        if (g->use_prefix_cache) ig_sched_remember(e, g, g->seq->n_tokens);
    }
    if (n > 0) {
        const uint64_t gap = now - atomic_load(&g->last_ns);
        ig_spread_note(&e->counts.between_tokens_ns, ig_bounds_ns, gap);
        atomic_fetch_add(&e->counts.decode_ns, gap);
    }
    g->ids[g->n_ids++] = (uint32_t)token;
    atomic_store(&g->last_ns, now);
    atomic_fetch_add(&e->counts.n_generated_tokens, 1);
    atomic_store_explicit(&g->n_tokens, n + 1, memory_order_release);
    if (is_end(g, (uint32_t)token)) ig_sched_finish(e, g, IG_FINISH_STOP, NULL);
    else if (n + 1 == g->max_tokens) ig_sched_finish(e, g, IG_FINISH_LENGTH, NULL);
    else ig_gen_tell(g);
}

/* Row i of those wanted is one that ig_engine_logits asked for. */
static void deliver(ig_engine *e, const ig_rows *rows, int i, const float *logits) {
    ig_gen *g = e->want_gen[i];
    int pos = rows->pos[rows->want[i]];
    size_t n = (size_t)e->model.n_vocab, at = (size_t)(pos - (g->n_prompt - g->n_last)) * n;

    if (e->sampler.argmax(logits, e->model.n_vocab) < 0) {
        while (++i < rows->n_want && e->want_gen[i] == g) e->want_gen[i] = NULL;
        ig_sched_finish(e, g, IG_FINISH_FAILED, "non-finite logits");
        return;
    }
    memcpy(g->last_logits + at, logits, n * sizeof *logits);
    if (pos == g->n_prompt - 1) ig_sched_finish(e, g, IG_FINISH_LENGTH, NULL);
}

/* A row of a text whose vector is wanted. The mean is a sum in double, ascending by position: no cut of the text
 * changes it. */
static void pool(ig_engine *e, const ig_rows *rows, int i, const float *row) {
    ig_gen *g = e->want_gen[i];
    double squares = 0;
    if (g->sum && rows->pos[rows->want[i]] == 0) memset(g->sum, 0, (size_t)g->width * sizeof *g->sum); /* or again, after a pause */
    for (int k = 0; k < g->width; k++) {
        if (g->sum) g->sum[k] += (double)row[k];
        squares += (double)row[k] * (double)row[k];
    }
    if (!(squares < (double)INFINITY)) {
        while (++i < rows->n_want && e->want_gen[i] == g) e->want_gen[i] = NULL;
        ig_sched_finish(e, g, IG_FINISH_FAILED, "a vector with numbers that are not finite");
        return;
    }
    if (rows->pos[rows->want[i]] != g->n_prompt - 1) return;
    for (int k = 0; k < g->width; k++) g->vector[k] = g->sum ? (float)(g->sum[k] / (double)g->n_prompt) : row[k];
    ig_sched_finish(e, g, IG_FINISH_LENGTH, NULL);
}

static ig_status run(ig_engine *e, ig_gen *const *gens, int n, ig_err *err) {
    ig_rows rows;
    uint64_t start = ig_clock_ns();

    ig_batch_fill(e, gens, n, &rows);
    atomic_store_explicit(&e->counts.n_step_rows, rows.n_rows, memory_order_relaxed);
    atomic_store_explicit(&e->counts.stage, IG_STAGE_FORWARD, memory_order_relaxed);
    ig_status st = e->model.forward(e->model.ud, &e->arena, &rows, e->logits, e->hidden, e->n_hidden, err);
    atomic_store_explicit(&e->counts.stage, IG_STAGE_SAMPLE, memory_order_relaxed);
    if (st) return st;
    ig_sched_measure(e, &rows, ig_clock_ns() - start);

    for (int i = 0; i < n; i++) {
        ig_gen *g = gens[i];
        g->seq->n_tokens += g->n_take;
        int done = g->seq->n_tokens < g->n_prompt ? g->seq->n_tokens : g->n_prompt;
        if (done > atomic_load(&g->n_prefilled)) atomic_store(&g->n_prefilled, done);
    }
    for (int i = 0; i < rows.n_want; i++) {
        ig_gen *g = e->want_gen[i];
        const int vector = i - (rows.n_want - e->n_hidden);
        if (!g) continue; /* an earlier row of it was bad */
        if (vector >= 0) {
            pool(e, &rows, i, e->hidden + (size_t)vector * (size_t)e->model.width);
            continue;
        }
        float *logits = e->logits + (size_t)i * (size_t)e->model.n_vocab;
        if (g->last_logits) deliver(e, &rows, i, logits);
        else emit(e, g, logits);
    }
    atomic_fetch_add(&e->counts.n_steps, 1);
    atomic_fetch_add(&e->counts.n_rows, (uint64_t)rows.n_rows);
    ig_spread_note(&e->counts.step_rows, ig_bounds_rows, (uint64_t)rows.n_rows);
    return IG_OK;
}

bool ig_engine_turn(ig_engine *e) {
    ig_err err;
    ig_gen *g;

    atomic_store_explicit(&e->counts.stage, IG_STAGE_SCHEDULE, memory_order_relaxed);
    while (ig_queue_pop(e->inbox, &g, 0)) ig_sched_accept(e, g);
    ig_sched_cancel(e, false);
    ig_sched_admit(e);
    ig_assert(e->n_running > 0 || !e->waiting);
    ig_engine_count(e);
    if (e->n_running > 0) {
        ig_sched_choose(e);
        if (ig_sched_reserve(e) && run(e, e->batch, e->n_batch, &err)) {
            for (int i = 0; i < e->n_batch; i++)
                if (run(e, &e->batch[i], 1, &err)) ig_sched_finish(e, e->batch[i], IG_FINISH_FAILED, err.msg);
        }
    }
    bool busy = e->n_running > 0 || e->waiting;
    ig_engine_count(e);
    return busy;
}

static const ig_tier_node nodes[] = {
    {.id = "drive.loop", .does = "token after token, to an end token or a limit", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .proof = "tests/parity"},
    {.id = "drive.stats", .does = "counts and times", .in = {"on", "on", "on"}},
};
NODE_EXPORT(step, nodes);
