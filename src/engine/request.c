/* request: one generation, as its owner and the engine both hold it.
 *
 * Owns:    the request's block: copy of the prompt, room for every token and log-probability it may get.
 * Threads: the engine thread writes, any thread reads. n_tokens and finish are stored last (release) and
 *          read first (acquire); what they announce never changes afterwards.
 * Memory:  one calloc on the submitting thread. Freed by the caller's release; when the engine is the last
 *          to let go it hangs the block on engine.dead and the next caller frees it.
 * Why a futex and not a condition variable: the engine wakes sleepers once a token, and pays nothing when
 * nobody sleeps. */
#include "engine/inside.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void lay_out(ig_gen *g, ig_arena *a) {
    size_t n = (size_t)g->max_tokens;

    g->ids = ig_arena_take(a, ((size_t)g->n_prompt + n) * sizeof *g->ids);
    g->bias = ig_arena_take(a, (size_t)g->sampling.n_logit_bias * sizeof *g->bias);
    if (g->width) g->vector = ig_arena_take(a, (size_t)g->width * sizeof *g->vector);
    if (g->sum) g->sum = ig_arena_take(a, (size_t)g->width * sizeof *g->sum);
    g->special = ig_arena_take(a, (size_t)g->sampling.n_xtc_special * sizeof *g->special);
    if (g->top_logprobs < 0) return;
    g->own = ig_arena_take(a, n * sizeof *g->own);
    g->top = ig_arena_take(a, n * (size_t)g->top_logprobs * sizeof *g->top);
}

ig_gen *ig_gen_make(const ig_gen_params *p, int max_tokens, int n_prompt, int width, bool is_mean) {
    static double wanted; /* a sum has a place */
    const size_t head = (sizeof(ig_gen) + IG_ALIGN_BYTES - 1) / IG_ALIGN_BYTES * IG_ALIGN_BYTES;
    ig_arena a = {.counting = true};
    ig_gen shape = {.n_prompt = n_prompt, .max_tokens = max_tokens, .top_logprobs = p->top_logprobs,
                    .sampling = p->sampling, .width = width, .sum = is_mean ? &wanted : NULL};

    lay_out(&shape, &a);
    uint8_t *block = calloc(1, head + a.used_bytes);
    if (!block) return NULL;
    ig_gen *g = (ig_gen *)block;
    g->n_prompt = n_prompt;
    g->max_tokens = max_tokens;
    g->top_logprobs = p->top_logprobs;
    g->sampling = p->sampling;
    g->width = width;
    g->sum = is_mean ? &wanted : NULL;
    lay_out(g, &(ig_arena){.base = block + head, .cap_bytes = a.used_bytes});

    memcpy(g->ids, p->prompt, (size_t)n_prompt * sizeof *g->ids);
    g->n_ids = n_prompt;
    g->n_eos = p->n_eos;
    if (p->n_eos > 0) memcpy(g->eos, p->eos, (size_t)p->n_eos * sizeof *g->eos);
    for (int i = 0; i < p->sampling.n_logit_bias; i++) g->bias[i] = p->sampling.logit_bias[i];
    for (int i = 0; i < p->sampling.n_xtc_special; i++) g->special[i] = p->sampling.xtc_special[i];
    g->sampling.logit_bias = g->bias;
    g->sampling.xtc_special = g->special;
    ig_sample_key(g->key, p->sampling.seed, p->sampling.n_drawn);
    g->use_prefix_cache = p->use_prefix_cache && !width;
    g->notify = p->notify;
    g->notify_ud = p->notify_ud;
    atomic_init(&g->n_refs, 2); /* the caller's and the engine's */
    return g;
}

void ig_gen_free(ig_gen *g) {
    free(g);
}

void ig_gen_cancel(ig_gen *g) {
    atomic_store_explicit(&g->cancel, true, memory_order_release);
}

void ig_gen_release(ig_gen *g) {
    /* A notify that began before `released` was set is waited for: after this call ud is the caller's. */
    atomic_store(&g->released, true);
    while (atomic_load(&g->notifying)) sched_yield();
    if (atomic_fetch_sub(&g->n_refs, 1) == 1) ig_gen_free(g);
}

/* ---- news ------------------------------------------------------------------------------------------- */

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

void ig_gen_tell(ig_gen *g) {
    atomic_fetch_add(&g->news, 1);
    if (atomic_load(&g->n_sleepers) > 0) futex(&g->news, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
    if (!g->notify) return;
    atomic_store(&g->notifying, true);
    if (!atomic_load(&g->released)) g->notify(g->notify_ud);
    atomic_store(&g->notifying, false);
}

static int64_t now_ns(void) { /* not ig_clock_ns: a sleeper keeps to the real clock */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool ig_gen_wait(ig_gen *g, int n_seen, int64_t timeout_ns) {
    int64_t now = now_ns(), end = INT64_MAX;
    if (timeout_ns >= 0 && timeout_ns < INT64_MAX - now) end = now + timeout_ns;

    for (;;) {
        uint32_t news = atomic_load(&g->news);
        if (ig_gen_finish(g) != IG_FINISH_NONE || ig_gen_n_tokens(g) > n_seen) return true;
        int64_t left = end - now;
        if (left <= 0) return false;
        struct timespec t = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
        atomic_fetch_add(&g->n_sleepers, 1);
        futex(&g->news, FUTEX_WAIT_PRIVATE, news, &t);
        atomic_fetch_sub(&g->n_sleepers, 1);
        now = now_ns();
    }
}

/* ---- readers ---------------------------------------------------------------------------------------- */

int ig_gen_n_tokens(const ig_gen *g) {
    return atomic_load_explicit(&g->n_tokens, memory_order_acquire);
}

uint32_t ig_gen_token(const ig_gen *g, int i) {
    ig_assert(i >= 0 && i < ig_gen_n_tokens(g));
    return g->ids[g->n_prompt + i];
}

ig_finish ig_gen_finish(const ig_gen *g) {
    return (ig_finish)atomic_load_explicit(&g->finish, memory_order_acquire);
}

ig_gen_state ig_gen_state_of(const ig_gen *g) {
    return (ig_gen_state)atomic_load_explicit(&g->state, memory_order_acquire);
}

const char *ig_gen_error(const ig_gen *g) {
    return ig_gen_finish(g) == IG_FINISH_FAILED ? g->error : "";
}

const float *ig_gen_vector(const ig_gen *g, int *width) {
    ig_assert(g->width > 0 && ig_gen_finish(g) == IG_FINISH_LENGTH);
    *width = g->width;
    return g->vector;
}

const ig_logprob *ig_gen_logprobs(const ig_gen *g, int i, ig_logprob *own, int *n_top) {
    ig_assert(g->top_logprobs >= 0 && i >= 0 && i < ig_gen_n_tokens(g));
    *own = g->own[i];
    *n_top = g->top_logprobs;
    return g->top + (size_t)i * (size_t)g->top_logprobs;
}

static uint64_t between(uint64_t from, uint64_t to) {
    return from && to > from ? to - from : 0;
}

ig_gen_stats ig_gen_stats_of(const ig_gen *g) {
    uint64_t admit = atomic_load(&g->admit_ns), first = atomic_load(&g->first_ns);
    uint64_t last = atomic_load(&g->last_ns);
    return (ig_gen_stats){
        .n_prompt = g->n_prompt,
        .n_cached = atomic_load(&g->n_cached),
        .n_tokens = ig_gen_n_tokens(g),
        .n_prefilled = atomic_load(&g->n_prefilled),
        .queue_ns = between(g->submit_ns, admit),
        .prefill_ns = between(admit, first),
        .first_token_ns = between(g->submit_ns, first),
        .decode_ns = between(first, last),
    };
}
