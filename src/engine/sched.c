/* sched: who runs, and how many rows each gets in the next step.
 *
 * Owns:    the waiting list and the running table. Running requests are older than all that wait, always.
 * Threads: engine thread.
 * Memory:  none; a request carries its own links.
 * Why the youngest is paused when memory is short: it has the least to compute again, and the oldest then
 * always gets on, so there is no dead end. A paused request goes to the front of the waiting list; what it
 * computed stays in the prefix tree for as long as nobody needs the blocks. Its tokens do not change: a row
 * that is computed again has the same bits. */
#include "engine/inside.h"

#include <limits.h>
#include <stdio.h>

/* ---- lists ------------------------------------------------------------------------------------------ */

void ig_sched_accept(ig_engine *e, ig_gen *g) {
    ig_gen **at = &e->waiting;
    while (*at) at = &(*at)->next;
    g->next = NULL;
    *at = g;
}

static void leave_waiting(ig_engine *e, ig_gen *g) {
    ig_gen **at = &e->waiting;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    g->next = NULL;
    if (!g->begun) atomic_fetch_sub(&e->n_queued, 1);
}

static void leave_running(ig_engine *e, ig_gen *g) {
    int at = 0;
    while (e->running[at] != g) at++;
    for (e->n_running--; at < e->n_running; at++) e->running[at] = e->running[at + 1];
}

/* Tier l1 and a window: mlx-lm runs a prompt of n tokens in chunks, all but its last token, which comes alone as those
 * after it do; a chunk of one does so, too. From there on a full window is summed in the order of a ring. */
static int ring_from(const ig_gen *g) {
    const int n = g->n_prompt - 1;
    if (ig_gen_is_one_pass(g)) return g->n_prompt; /* no generation: one pass */
    return n > 1 && n % MLX_CHUNK_TOKENS == 1 ? n - 1 : n;
}
/* Tier l2: the first of those chunks is the last forward over keys and values that are not quantized. */
static int quantized_from(const ig_gen *g) {
    const int n = g->n_prompt - 1;
    if (g->last_logits) return g->n_prompt;
    return n < 1 ? 1 : n < MLX_CHUNK_TOKENS ? n : MLX_CHUNK_TOKENS;
}
/* So rows from there on are this request's alone: how many may be shared with others. */
static int shareable(const ig_engine *e, const ig_gen *g) {
    int window = 0, most = INT_MAX;
    if (e->model.kv.n_groups > 0 && ig_kv_is_twice(e->model.kv.group[0].kind)) most = quantized_from(g);
    for (int i = 0; i < e->model.kv.n_groups; i++)
        if (e->model.kv.group[i].window > window) window = e->model.kv.group[i].window;
    if (!e->model.number || !window) return most;
    const int in_time = ring_from(g) > window ? ring_from(g) : window;
    return in_time < most ? in_time : most;
}

bool ig_sched_remember(ig_engine *e, ig_gen *g, int n_tokens) {
    if (!ig_kv_seq_finite(e->kv, g->seq)) return false;
    if (!g->use_prefix_cache) return true;
    const int most = shareable(e, g);
    ig_kv_prefix_insert(e->kv, g->seq, g->ids, n_tokens < most ? n_tokens : most);
    if (g->seq->n_tokens >= g->n_prompt)
        ig_kv_prefix_mark(e->kv, g->ids, g->n_prompt < most ? g->n_prompt : most);
    return true;
}

/* Gives the blocks back; what was computed stays known unless it is bad. */
static void release_kv(ig_engine *e, ig_gen *g, bool failed) {
    if (failed || !ig_sched_remember(e, g, g->seq->n_tokens))
        ig_kv_seq_scrub(e->kv, g->seq);
    else if (g->use_prefix_cache && g->seq->n_tokens <= shareable(e, g))
        ig_kv_prefix_mark(e->kv, g->ids, g->seq->n_tokens);
    ig_kv_seq_close(e->kv, g->seq);
    g->seq = NULL;
    g->n_take = 0;
}

static void drop(ig_engine *e, ig_gen *g) {
    if (atomic_fetch_sub(&g->n_refs, 1) != 1) return;
    g->next = atomic_load(&e->dead);
    while (!atomic_compare_exchange_weak(&e->dead, &g->next, g)) {}
}

void ig_sched_finish(ig_engine *e, ig_gen *g, ig_finish how, const char *error) {
    ig_engine_counts *c = &e->counts;

    if (g->seq) {
        leave_running(e, g);
        release_kv(e, g, how == IG_FINISH_FAILED);
    } else {
        leave_waiting(e, g);
    }
    if (error) snprintf(g->error, sizeof g->error, "%s", error);
    if (how == IG_FINISH_CANCELED) atomic_fetch_add(&c->n_canceled, 1);
    else if (how == IG_FINISH_FAILED) atomic_fetch_add(&c->n_failed, 1);
    else atomic_fetch_add(&c->n_done, 1);
    ig_engine_count(e); /* whoever sees the end sees its blocks free */
    atomic_fetch_sub(&e->n_open, 1);
    atomic_store(&g->state, IG_GEN_DONE);
    atomic_store_explicit(&g->finish, (int)how, memory_order_release);
    ig_gen_tell(g);
    drop(e, g);
}

void ig_sched_cancel(ig_engine *e, bool all) {
    for (ig_gen *g = e->waiting, *next; g; g = next) {
        next = g->next;
        if (all || atomic_load_explicit(&g->cancel, memory_order_acquire))
            ig_sched_finish(e, g, IG_FINISH_CANCELED, NULL);
    }
    for (int i = e->n_running - 1; i >= 0; i--)
        if (all || atomic_load_explicit(&e->running[i]->cancel, memory_order_acquire))
            ig_sched_finish(e, e->running[i], IG_FINISH_CANCELED, NULL);
}

/* ---- admission -------------------------------------------------------------------------------------- */

/* Rows that are known and not computed. 1: the row that makes the next token. */
static int pending(const ig_gen *g) {
    return g->n_ids - g->seq->n_tokens;
}

/* Blocks of a group that a running request may still ask for, within its allowance. */
static int allowance_left(const ig_engine *e, const ig_gen *g, int group) {
    int n_new = g->max_tokens < ALLOWANCE_TOKENS ? g->max_tokens : ALLOWANCE_TOKENS;
    int n_rows = pending(g) > 1 ? e->config.prefill_chunk : 1;
    int left = ig_kv_held_most(e->model.kv.group[group], g->n_prompt + n_new, n_rows) -
               (g->seq->n_blocks - g->seq->first[group]);
    return left > 0 ? left : 0;
}

/* How many of g's tokens may come from the cache, plus one. Rows whose logits are wanted are computed. */
static int attachable(const ig_engine *e, const ig_gen *g) {
    if (!g->use_prefix_cache) return 1;
    const int n = g->last_logits ? g->n_prompt - g->n_last + 1 : g->n_ids, most = shareable(e, g);
    return n <= most ? n : most + 1;
}

static bool fits_now(const ig_engine *e, const ig_gen *g) {
    ig_kv_stats kv = ig_kv_pool_stats(e->kv);
    ig_kv_probe known = ig_kv_prefix_probe(e->kv, g->ids, attachable(e, g));
    const int n = g->n_ids < e->plan.n_ctx ? g->n_ids + 1 : g->n_ids;

    for (int k = 0; k < kv.n_groups; k++) {
        int need = ig_kv_held_most(e->model.kv.group[k], n, e->config.prefill_chunk) - known.n_whole[k];
        for (int i = 0; i < e->n_running; i++) need += allowance_left(e, e->running[i], k);
        if (need > kv.group[k].n_free + kv.group[k].n_cached - known.n_evictable[k]) return false;
    }
    return true;
}

/* Somebody is computing a long beginning of g right now: g starts when that much is there, and then it is put
 * where g finds it, though the other's prompt goes on. */
static bool better_later(ig_engine *e, const ig_gen *g) {
    if (!g->use_prefix_cache) return false;
    for (int i = 0; i < e->n_running; i++) {
        ig_gen *r = e->running[i];
        int n = r->n_prompt < g->n_prompt ? r->n_prompt : g->n_prompt, same = 0;
        if (!r->use_prefix_cache || atomic_load(&r->n_tokens) > 0) continue;
        while (same < n && r->ids[same] == g->ids[same]) same++;
        if (same - ig_kv_prefix_probe(e->kv, g->ids, attachable(e, g)).n_tokens < ALIKE_TOKENS) continue;
        if (r->seq->n_tokens < same && pending(r) > 1) return true;
        ig_sched_remember(e, r, r->seq->n_tokens);
    }
    return false;
}

static void begin(ig_engine *e, ig_gen *g) {
    leave_waiting(e, g);
    g->seq = ig_kv_seq_open(e->kv);
    ig_assert(g->seq != NULL); /* there are as many as slots */
    g->seq->ring_from = ring_from(g);
    g->seq->quantized_from = quantized_from(g), g->seq->chunk_tokens = MLX_CHUNK_TOKENS;
    g->n_waited = 0;
    e->running[e->n_running++] = g;
    if (g->use_prefix_cache) ig_kv_prefix_attach(e->kv, g->seq, g->ids, attachable(e, g));
    if (g->begun) return; /* back from a pause */

    g->begun = true;
    atomic_store(&g->n_cached, g->seq->n_tokens);
    atomic_store(&g->n_prefilled, g->seq->n_tokens);
    atomic_store(&g->admit_ns, ig_clock_ns());
    ig_spread_note(&e->counts.queue_ns, ig_bounds_ns, atomic_load(&g->admit_ns) - g->submit_ns);
    if (g->use_prefix_cache) atomic_fetch_add(g->seq->n_tokens > 0 ? &e->counts.n_hits : &e->counts.n_misses, 1);
    atomic_store(&g->state, IG_GEN_PREFILL);
    atomic_fetch_add(&e->counts.n_prompt_tokens, (uint64_t)g->n_prompt);
    atomic_fetch_add(&e->counts.n_cached_tokens, (uint64_t)g->seq->n_tokens);
}

void ig_sched_admit(ig_engine *e) {
    while (e->waiting && e->n_running < e->plan.n_slots) {
        ig_gen *g = e->waiting;
        bool alone = e->n_running == 0; /* then everything can be evicted, and a context fits: by plan */
        if (!alone && (!fits_now(e, g) || better_later(e, g))) return;
        begin(e, g);
    }
}

/* ---- rows of a step --------------------------------------------------------------------------------- */

static void give(ig_gen *g, int n_rows, int *budget, int *want_left) {
    int at = g->seq->n_tokens + g->n_take, most = g->n_ids - at;

    if (n_rows > most) n_rows = most;
    if (g->last_logits) { /* no more rows than their logits have room for */
        int first = g->n_prompt - g->n_last, n_free = first > at ? first - at : 0;
        if (n_rows > n_free + *want_left) n_rows = n_free + *want_left;
        if (n_rows > n_free) *want_left -= n_rows - n_free;
    }
    g->n_take += n_rows;
    *budget -= n_rows;
}

static bool sooner(const ig_gen *a, const ig_gen *b) {
    bool late_a = a->n_waited >= WAIT_STEPS_MAX, late_b = b->n_waited >= WAIT_STEPS_MAX;
    return late_a != late_b ? late_a : !late_a && pending(a) < pending(b);
}

/* Keys that a row at this position sees, over all layers. */
static double keys_of(const ig_engine *e, int pos) {
    double n = 0;
    for (int i = 0; i < e->model.kv.n_groups; i++) {
        const ig_kv_group g = e->model.kv.group[i];
        n += (double)g.n_layers * (double)(g.window > 0 && pos >= g.window ? g.window : pos + 1);
    }
    return n;
}

void ig_sched_measure(ig_engine *e, const ig_rows *rows, uint64_t ns) {
    const double fade = 0.85, r = (double)rows->n_rows, t = (double)ns;
    step_cost *c = &e->cost;
    double k = 0;

    if (rows->n_rows < SLICE_ROWS) return; /* few rows cost what the weights cost to read */
    for (int i = 0; i < rows->n_rows; i++) k += keys_of(e, rows->pos[i]);
    c->rr = fade * c->rr + r * r, c->rk = fade * c->rk + r * k, c->kk = fade * c->kk + k * k;
    c->rt = fade * c->rt + r * t, c->kt = fade * c->kt + k * t;
    if (c->least_ns == 0 || t / r < c->least_ns) c->least_ns = t / r;
    const double det = c->rr * c->kk - c->rk * c->rk;
    c->row_ns = c->rt / c->rr, c->key_ns = 0; /* all by rows, while steps are too alike to tell */
    if (det < 1e-4 * c->rr * c->kk) return;
    const double row = (c->rt * c->kk - c->kt * c->rk) / det, key = (c->kt * c->rr - c->rt * c->rk) / det;
    if (row >= 0 && key >= 0) c->row_ns = row, c->key_ns = key;
    else if (row < 0) c->row_ns = 0, c->key_ns = c->kt / c->kk;
}

static double row_cost(const ig_engine *e, int pos) {
    return e->cost.row_ns + e->cost.key_ns * keys_of(e, pos);
}

/* Rows of prefill that a step may carry. Also alone a step is short: a client that leaves, or one that comes,
 * waits for its end. Fewer than CHUNK_ROWS_MIN would read the weights for too little work. The rows are taken
 * to be of the longest prompt: they cost most. */
static int prefill_rows(const ig_engine *e, int n_decode) {
    int chunk = e->config.prefill_chunk, least = n_decode > 0 ? SLICE_ROWS : CHUNK_ROWS_MIN, far = 0;
    int limit_ms = n_decode > 0 ? e->config.prefill_slice_ms : e->config.prefill_chunk_ms;
    double left_ns = (double)limit_ms * 1e6;

    if (n_decode == 0 && limit_ms == 0) return chunk;
    if (least > chunk) least = chunk;
    if (e->cost.rr <= 0.0) return least; /* nothing measured yet */
    for (int i = 0; i < e->n_running; i++) {
        const ig_gen *g = e->running[i];
        if (g->n_take > 0) left_ns -= row_cost(e, g->seq->n_tokens);
        else if (g->seq->n_tokens > far) far = g->seq->n_tokens;
    }
    /* After far rows alone the fit may give all to the keys; then a new prompt's first rows seem to be free. No
     * row costs less than the cheapest that was ever seen. */
    double a_row = row_cost(e, far + least);
    if (a_row < e->cost.least_ns) a_row = e->cost.least_ns;
    if (left_ns >= a_row * (double)chunk) return chunk;
    int n = left_ns > 0.0 ? (int)(left_ns / a_row) / SLICE_ROWS * SLICE_ROWS : 0;
    return n > least ? n : least;
}

void ig_sched_choose(ig_engine *e) {
    ig_gen *prefill[SLOTS_MAX]; /* in the order in which they are served */
    int n_prefill = 0, n_decode = 0, n_late = 0, want_left = LOGITS_ROWS;

    for (int i = 0; i < e->n_running; i++) {
        ig_gen *g = e->running[i];
        g->n_take = 0;
        if (pending(g) == 1 && !ig_gen_is_one_pass(g)) {
            g->n_take = 1;
            n_decode++;
            continue;
        }
        n_late += g->n_waited >= WAIT_STEPS_MAX;
        int at = n_prefill++;
        for (; at > 0 && sooner(g, prefill[at - 1]); at--) prefill[at] = prefill[at - 1];
        prefill[at] = g;
    }

    /* First a little for each that was passed over too long, then all that is left in order. */
    int budget = prefill_rows(e, n_decode), share = n_late > 0 ? budget / n_late : 0;
    if (share > SLICE_ROWS) share = SLICE_ROWS;
    for (int i = 0; i < n_late; i++) give(prefill[i], share > 0 ? share : 1, &budget, &want_left);
    for (int i = 0; i < n_prefill && budget > 0; i++) give(prefill[i], budget, &budget, &want_left);
    for (int i = 0; i < n_prefill; i++)
        prefill[i]->n_waited = prefill[i]->n_take > 0 ? 0 : prefill[i]->n_waited + 1;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static void pause(ig_engine *e, ig_gen *g) {
    leave_running(e, g);
    release_kv(e, g, false);
    g->next = e->waiting; /* all that wait are younger */
    e->waiting = g;
    atomic_fetch_add(&e->counts.n_paused, 1);
}

bool ig_sched_reserve(ig_engine *e) {
    e->n_batch = 0;
    for (int i = 0; i < e->n_running; i++) {
        ig_gen *g = e->running[i];
        if (g->n_take == 0) continue;
        if (ig_kv_seq_forgets(e->kv, g->seq)) /* whole blocks only: a part would be copied to write on */
            ig_sched_remember(e, g, g->seq->n_tokens / IG_KV_BLOCK_TOKENS * IG_KV_BLOCK_TOKENS);
        while (g->seq && !ig_kv_seq_reserve(e->kv, g->seq, g->seq->n_tokens + g->n_take)) {
            ig_assert(e->n_running > 1); /* alone, a whole context fits: by plan */
            pause(e, e->running[e->n_running - 1]);
        }
        if (g->seq) e->batch[e->n_batch++] = g;
    }
    return e->n_batch > 0;
}

static const ig_tier_node nodes[] = {
    {.id = "drive.prefill_chunk", .does = "a prompt cut into steps", .tier = IG_TIER_L1, .oracle = "uncut",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .proof = "engine: any_cut_of_the_prompt_gives_the_same_bits"},
    {.id = "drive.admit", .does = "who runs, waits and is paused", .in = {"on", "on", "on"}},
};
NODE_EXPORT(sched, nodes);
