/* bench_measure: runs one row of the table.
 * Owns:    one KV pool, one arena, one buffer of logits, the token ids of a sequence.
 * Threads: the caller's and the model's pool.
 * Memory:  all of it in ig_bench_make, from the largest row.
 * Contexts are computed once: the pool's tree remembers them, and every run starts a sequence from there, as
 * the server does with a prefix that it knows. What was forgotten is computed again, outside of the time.
 * A row whose runs together took RUN_ENOUGH_NS is not repeated: a prompt of 8192 tokens is long enough to be
 * its own mean. */
#include "app/bench.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 512, SPARE_BLOCKS = 8, WARM_TOKENS = 64, WARM_STEPS = 4 };
static const uint64_t RUN_ENOUGH_NS = 20000000000u, LEFT_OUT_NS = 90000000000u, TELL_NS = 250000000u;

struct ig_bench {
    ig_model *model;
    const ig_model_config *config;
    ig_kv_pool *kv;
    ig_kv_shape shape;
    ig_arena arena;
    ig_bench_macs macs;
    float *logits;
    uint32_t *ids; /* [n_ctx + 1] of the sequence that is being computed */
    int n_ctx, n_seqs_max, n_runs;
    double prefill_ns; /* a token, of the last prompt */
    ig_bench_watch watch;
    struct {
        ig_bench_progress *progress; /* or NULL */
        const ig_bench_row *row;
        int run;
        bool context;
        uint64_t told_ns;
    } now;
    /* the step that runs: one sequence with many rows, or many with one each */
    uint32_t token[CHUNK_ROWS];
    int pos[CHUNK_ROWS], seq[CHUNK_ROWS], want[IG_BENCH_BATCH_MAX];
    ig_kv_seq *kv_seq[IG_BENCH_BATCH_MAX];
};

/* ---- memory ------------------------------------------------------------------------------------------ */

static int max_of(int a, int b) {
    return a > b ? a : b;
}

/* Blocks for the longest sequence and, beside it, for the largest batch; all of them may be remembered. */
static ig_kv_room room_of(ig_kv_shape shape, const ig_bench_row *rows, int n_rows, int n_ctx) {
    ig_kv_room room = ig_kv_room_for(shape, 1, n_ctx, CHUNK_ROWS);
    int most = 0, at = 0;
    for (int i = 0; i < n_rows; i++)
        if (rows[i].work == IG_BENCH_DECODE && rows[i].n_seqs > most) most = rows[i].n_seqs, at = i;
    const ig_kv_room batch = ig_kv_room_for(
        shape, most + 1, (most ? rows[at].n_context + rows[at].n_tokens : 0) + 2 * IG_KV_BLOCK_TOKENS,
        CHUNK_ROWS);
    for (int g = 0; g < shape.n_groups; g++) room.n_blocks[g] += batch.n_blocks[g] + SPARE_BLOCKS;
    return room;
}

/* `budget`: what may be used beside the weights, at most what is free. */
static ig_status take_memory(ig_bench *b, ig_kv_room room, uint64_t budget, ig_err *err) {
    const size_t n_logits = (size_t)b->n_seqs_max * (size_t)b->config->n_vocab * sizeof *b->logits;
    const uint64_t kv_bytes = ig_kv_room_bytes(b->shape, room), free_bytes = ig_memory_available_bytes();
    const uint64_t has = budget < free_bytes ? budget : free_bytes;
    void *step = NULL;
    b->arena.cap_bytes = ig_model_plan(b->model, CHUNK_ROWS, b->n_seqs_max, b->n_ctx);
    if (kv_bytes + b->arena.cap_bytes + n_logits > has)
        return ig_fail(err, IG_ELIMIT,
                       "keys and values of %d tokens take %s and a step %s; %s may be used: a smaller context "
                       "(--depth), prompt or batch needs less",
                       b->n_ctx, ig_size_text_of(kv_bytes).s,
                       ig_size_text_of(b->arena.cap_bytes + n_logits).s, ig_size_text_of(has).s);
    ig_status st = ig_kv_pool_make(&b->kv, b->shape, room, b->n_seqs_max + 1, b->n_ctx, err);
    if (!st) st = ig_pages_map(&step, b->arena.cap_bytes, true, err);
    if (st) return st;
    b->arena.base = step;
    b->logits = malloc(n_logits);
    b->ids = malloc(((size_t)b->n_ctx + 1) * sizeof *b->ids);
    return b->logits && b->ids ? IG_OK : ig_fail(err, IG_ELIMIT, "bench: no memory for logits");
}

ig_status ig_bench_make(ig_bench **out, ig_model *m, const ig_bench_row *rows, int n_rows, const ig_bench_wish *w,
                        ig_err *err) {
    const uint64_t weights = ig_model_weights_bytes(m), budget = w->memory_bytes ? w->memory_bytes : UINT64_MAX;
    ig_bench *b = calloc(1, sizeof *b);
    if (!b) return ig_fail(err, IG_ELIMIT, "bench: no memory");
    b->model = m;
    b->config = ig_model_config_of(m);
    b->shape = ig_model_kv_shape(m);
    b->macs = ig_bench_macs_of(m);
    b->n_runs = w->n_runs;
    b->n_ctx = WARM_TOKENS + WARM_STEPS < b->config->n_ctx_train ? WARM_TOKENS + WARM_STEPS : 2;
    b->n_seqs_max = 1;
    for (int i = 0; i < n_rows; i++) {
        b->n_ctx = max_of(b->n_ctx, rows[i].n_context + rows[i].n_tokens);
        b->n_seqs_max = max_of(b->n_seqs_max, rows[i].n_seqs);
    }
    ig_status st = take_memory(b, room_of(b->shape, rows, n_rows, b->n_ctx), budget > weights ? budget - weights : 0, err);
    if (st)
        ig_bench_free(b);
    else
        *out = b;
    return st;
}

void ig_bench_free(ig_bench *b) {
    if (!b) return;
    if (b->kv) ig_kv_pool_free(b->kv);
    if (b->arena.base) ig_pages_unmap(b->arena.base, b->arena.cap_bytes);
    free(b->logits);
    free(b->ids);
    free(b);
}

/* ---- steps ------------------------------------------------------------------------------------------- */

/* Token `i` of sequence `which`: any, and other ones in every sequence. */
static uint32_t some_token(const ig_bench *b, int which, int i) {
    return ig_rng_word(1, (uint32_t)i, (uint32_t)which, 0) % (uint32_t)b->config->n_vocab;
}

static ig_status forward(ig_bench *b, int n_rows, int n_want, ig_err *err) {
    const ig_rows rows = {.n_rows = n_rows,
                          .token = b->token,
                          .pos = b->pos,
                          .seq = b->seq,
                          .kv_seq = b->kv_seq,
                          .kv = b->kv,
                          .n_ctx = b->n_ctx,
                          .want = b->want,
                          .n_want = n_want};
    if (ig_signal_seen) return ig_fail(err, IG_ECANCELED, "bench: interrupted");
    if (b->watch.to) ig_bench_watch_begin(&b->watch, &rows);
    ig_status st = ig_model_forward(b->model, &b->arena, &rows, n_want ? b->logits : NULL, err);
    if (b->watch.to) ig_bench_watch_end(&b->watch);
    return st;
}

static void tell(ig_bench *b, int n_done, int n_all) {
    const uint64_t now_ns = ig_clock_ns();
    if (!b->now.progress || now_ns - b->now.told_ns < TELL_NS) return;
    b->now.told_ns = now_ns;
    b->now.progress(b->now.row, b->now.run, b->now.context, (int)(100 * (int64_t)n_done / n_all));
}

static ig_status reserve(ig_bench *b, ig_kv_seq *s, int n_tokens, ig_err *err) {
    if (ig_kv_seq_reserve(b->kv, s, n_tokens)) return IG_OK;
    return ig_fail(err, IG_ELIMIT, "bench: no block for token %d", n_tokens);
}

/* Sequence `which`, at slot `slot`, goes on to n tokens in chunks; the logits of the last one are wanted. */
static ig_status prefill(ig_bench *b, int slot, int which, int n, ig_err *err) {
    ig_kv_seq *s = b->kv_seq[slot];
    while (s->n_tokens < n) {
        const int at = s->n_tokens, rows = n - at < CHUNK_ROWS ? n - at : CHUNK_ROWS;
        ig_status st = reserve(b, s, at + rows, err);
        if (st) return st;
        for (int i = 0; i < rows; i++) {
            b->token[i] = some_token(b, which, at + i);
            b->pos[i] = at + i;
            b->seq[i] = slot;
        }
        b->want[0] = rows - 1;
        if ((st = forward(b, rows, at + rows == n, err))) return st;
        s->n_tokens = at + rows;
        tell(b, s->n_tokens, n);
    }
    return IG_OK;
}

/* n_steps steps of one token for each of n_seqs sequences. */
static ig_status decode(ig_bench *b, int n_seqs, int n_steps, ig_err *err) {
    for (int t = 0; t < n_steps; t++) {
        for (int i = 0; i < n_seqs; i++) {
            ig_kv_seq *s = b->kv_seq[i];
            ig_status st = reserve(b, s, s->n_tokens + 1, err);
            if (st) return st;
            b->token[i] = some_token(b, i, s->n_tokens);
            b->pos[i] = s->n_tokens;
            b->seq[i] = b->want[i] = i;
        }
        ig_status st = forward(b, n_seqs, n_seqs, err);
        if (st) return st;
        for (int i = 0; i < n_seqs; i++) b->kv_seq[i]->n_tokens++;
        tell(b, t + 1, n_steps);
    }
    return IG_OK;
}

static ig_status open_seq(ig_bench *b, int slot, ig_err *err) {
    b->kv_seq[slot] = ig_kv_seq_open(b->kv);
    return b->kv_seq[slot] ? IG_OK : ig_fail(err, IG_ELIMIT, "bench: no sequence %d", slot);
}

static void close_seqs(ig_bench *b, int n) {
    for (int i = 0; i < n; i++) {
        if (b->kv_seq[i]) ig_kv_seq_close(b->kv, b->kv_seq[i]);
        b->kv_seq[i] = NULL;
    }
}

/* Sequence i with n tokens: from what the tree remembers, the rest computed and remembered. */
static ig_status open_context(ig_bench *b, int i, int n, ig_err *err) {
    ig_status st = open_seq(b, i, err);
    if (st || n == 0) return st;
    for (int t = 0; t <= n; t++) b->ids[t] = some_token(b, i, t);
    if (ig_kv_prefix_attach(b->kv, b->kv_seq[i], b->ids, n + 1) == n) return IG_OK;
    st = prefill(b, i, i, n, err);
    if (!st) ig_kv_prefix_insert(b->kv, b->kv_seq[i], b->ids, n);
    return st;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* One run; its time in *ns. The profile, if any, sees what the time sees. */
static ig_status run_once(ig_bench *b, const ig_bench_row *row, uint64_t *ns, ig_err *err) {
    const bool prefills = row->work == IG_BENCH_PREFILL;
    ig_status st = IG_OK;
    b->now.context = true;
    for (int i = 0; i < row->n_seqs && !st; i++)
        st = prefills ? open_seq(b, i, err) : open_context(b, i, row->n_context, err);
    if (!st && row->profile) {
        b->watch = (ig_bench_watch){
            .to = row->profile, .config = b->config, .kv_kind = b->shape.group[0].kind};
        ig_model_watch(b->model, ig_bench_watch_op, &b->watch);
        row->profile->n_passes += prefills ? 1 : (uint64_t)row->n_tokens;
    }
    b->now.context = false;
    const uint64_t since_ns = ig_clock_ns();
    if (!st)
        st = prefills ? prefill(b, 0, 0, row->n_tokens, err) : decode(b, row->n_seqs, row->n_tokens, err);
    *ns = ig_clock_ns() - since_ns;
    ig_model_watch(b->model, NULL, NULL);
    b->watch.to = NULL;
    close_seqs(b, row->n_seqs);
    return st;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Keys and values are those of the mean context. */
static void derive(const ig_bench *b, ig_bench_row *row) {
    const int from = row->n_context, to = row->n_context + row->n_tokens;
    const bool prefills = row->work == IG_BENCH_PREFILL;
    const double attention = ig_bench_attention_macs(b->config, from, prefills ? to - 1 : from, to);
    const double wanted = b->macs.wanted * (prefills ? 1 : row->n_tokens);
    row->gmacs = (b->macs.token + (wanted + attention) / row->n_tokens) * row->tps * 1e-9;
    if (prefills) return;
    row->token_bytes = (double)ig_model_decode_bytes(b->model) / row->n_seqs +
                       (double)ig_kv_read_bytes(b->shape, row->n_context + row->n_tokens / 2);
    row->gbs = row->token_bytes * row->tps * 1e-9;
}

/* Prompts, and contexts that have to be computed first, cost what their tokens do; more so when long. */
static bool takes_minutes(const ig_bench *b, const ig_bench_row *row) {
    const double n = row->work == IG_BENCH_PREFILL ? row->n_tokens : row->n_context;
    return b->prefill_ns * n > (double)LEFT_OUT_NS;
}

ig_status ig_bench_measure(ig_bench *b, ig_bench_row *row, ig_bench_progress *progress, ig_err *err) {
    double v[IG_BENCH_RUNS_MAX];
    uint64_t spent_ns = 0;
    int n = 0;
    ig_assert(b->n_runs >= 1 && b->n_runs <= IG_BENCH_RUNS_MAX && row->n_seqs <= b->n_seqs_max);
    row->left_out = !row->asked && takes_minutes(b, row);
    b->now.progress = progress;
    b->now.row = row;
    if (progress && !row->left_out) progress(row, 0, false, 0);
    while (!row->left_out && n < b->n_runs && spent_ns < RUN_ENOUGH_NS) {
        uint64_t ns;
        b->now.run = n;
        ig_status st = run_once(b, row, &ns, err);
        if (st) return st;
        spent_ns += ns;
        v[n++] = (double)row->n_tokens * row->n_seqs * 1e9 / (double)(ns ? ns : 1);
        if (row->work == IG_BENCH_PREFILL) b->prefill_ns = (double)ns / row->n_tokens;
    }
    if (row->left_out) return IG_OK;
    qsort(v, (size_t)n, sizeof *v, by_value);
    row->n_runs = n;
    row->tps = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    row->tps_min = v[0];
    row->tps_max = v[n - 1];
    derive(b, row);
    return IG_OK;
}

ig_status ig_bench_warm_up(ig_bench *b, ig_err *err) {
    const int n = b->n_ctx < WARM_TOKENS + WARM_STEPS ? b->n_ctx - 1 : WARM_TOKENS;
    ig_status st = open_seq(b, 0, err);
    const uint64_t since_ns = ig_clock_ns();
    if (!st) st = prefill(b, 0, 0, n, err);
    b->prefill_ns = (double)(ig_clock_ns() - since_ns) / n;
    if (!st) st = decode(b, 1, b->n_ctx - n < WARM_STEPS ? b->n_ctx - n : WARM_STEPS, err);
    close_seqs(b, 1);
    return st;
}
