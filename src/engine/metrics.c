/* metrics: how long things took and how many ran together, counted where they happen.
 *
 * Owns:    nothing; the numbers are in the engine.
 * Threads: the engine thread counts, anyone reads. One writer: so a sum is a load and a store, and no lock is near
 *          the path of a token.
 * Memory:  none. */
#include "engine/inside.h"

const uint64_t ig_bounds_ns[IG_HISTOGRAM_BOUNDS] = {
    1000000,   2500000,    5000000,    10000000,   25000000,   50000000,    100000000,  250000000,
    500000000, 1000000000, 2500000000, 5000000000, 10000000000, 30000000000, 120000000000};
const uint64_t ig_bounds_rows[IG_HISTOGRAM_BOUNDS] = {1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

void ig_spread_note(ig_engine_spread *s, const uint64_t bound[IG_HISTOGRAM_BOUNDS], uint64_t value) {
    int i = 0;
    while (i < IG_HISTOGRAM_BOUNDS && value > bound[i]) i++;
    atomic_store_explicit(&s->n[i], atomic_load_explicit(&s->n[i], memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_store_explicit(&s->sum, atomic_load_explicit(&s->sum, memory_order_relaxed) + value, memory_order_relaxed);
}

static ig_histogram read_spread(const ig_engine_spread *s, const uint64_t *bound) {
    ig_histogram h = {.bound = bound, .sum = atomic_load(&s->sum)};
    for (int i = 0; i <= IG_HISTOGRAM_BOUNDS; i++) h.n[i] = atomic_load(&s->n[i]);
    return h;
}

ig_engine_metrics ig_engine_metrics_of(const ig_engine *e) {
    const ig_engine_counts *c = &e->counts;
    return (ig_engine_metrics){
        .step_rows = read_spread(&c->step_rows, ig_bounds_rows),
        .first_token_ns = read_spread(&c->first_token_ns, ig_bounds_ns),
        .between_tokens_ns = read_spread(&c->between_tokens_ns, ig_bounds_ns),
        .queue_ns = read_spread(&c->queue_ns, ig_bounds_ns),
        .prefill_ns = atomic_load(&c->prefill_ns),
        .decode_ns = atomic_load(&c->decode_ns),
    };
}
