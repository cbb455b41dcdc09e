/* clock: nanoseconds that only go forward.
 * Owns:    the switch to a fake clock.
 * Threads: any. The fake is for tests; code that sleeps (queue, pool) keeps to the real clock. */
#include "base/base.h"

#include <time.h>

static _Atomic(const _Atomic uint64_t *) fake;

uint64_t ig_clock_ns(void) {
    const _Atomic uint64_t *ns = atomic_load_explicit(&fake, memory_order_acquire);
    if (ns) return atomic_load_explicit(ns, memory_order_relaxed);

    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ig_clock_fake(const _Atomic uint64_t *ns) {
    atomic_store_explicit(&fake, ns, memory_order_release);
}
