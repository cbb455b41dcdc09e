/* pool: compute threads, fork and join.
 * Owns:    its threads.
 * Threads: ig_pool_run from one thread at a time; it is thread 0 of the work.
 * Memory:  one block at make; a run allocates nothing.
 * Every thread has a contiguous share of the rows, so that it streams, and takes it in chunks that get smaller; who
 * is through takes from the others' shares. So nobody waits for a thread that sleeps or has lost its core for longer
 * than its last chunk.
 * Why a claim before the first chunk: each run, each worker's slot moves from "open" to "done", by the worker
 * or, when the worker has not even started, by the caller, who has then done its share. A worker that comes late finds
 * its claim refused before it reads a word of the job. (Tried and left out, 2026-11: fewer threads after
 * long joins. On two cores with sixteen busy processes the gain was within the noise.) */
#include "base/base.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_BYTES = 128,        /* two cache lines: some CPUs fetch them in pairs */
    THREADS_MAX = 1024,
    SPIN_NS = 60000,         /* how long to look before sleeping; a futex wake costs about 40 us */
    TAKE = 4,                /* a chunk is this part of what is left of a share */
    NEIGHBOURS = 8,          /* whose shares a worker looks at: with many threads all would cost more than it finds */
};

/* A slot's word in run r: 2r = open, 2r + 1 = its worker is at it, 2r + 2 = done. A slot's share of the rows is taken
 * in chunks from its beginning, by its own thread and then by those that have none left. */
typedef struct slot {
    _Alignas(LINE_BYTES) _Atomic uint64_t word;
    _Alignas(LINE_BYTES) _Atomic int64_t next; /* first row of the share that nobody took */
    int64_t end;
} slot;

typedef struct job {
    ig_pool_fn *fn;
    void *arg;
    int grain;
} job;

struct ig_pool {
    int n_threads, spin; /* spins are counted in pauses: a clock in the loop would be the loop */
    bool running;
    uint64_t n_runs;
    pthread_t *ids; /* [n_threads], 0 unused */
    /* The caller writes these; a worker looks at `run` and, once its claim holds, at the job. */
    _Alignas(LINE_BYTES) _Atomic uint64_t run; /* number of the open run */
    job job;
    _Atomic bool quit;
    _Alignas(LINE_BYTES) _Atomic uint32_t n_parked; /* workers that sleep on `run`, or are about to */
    _Alignas(LINE_BYTES) _Atomic uint32_t joining; /* 1: the caller may be asleep here */
    slot slots[]; /* [n_threads]; the caller is 0 and has a share, its word is unused */
};

typedef struct worker_arg {
    ig_pool *pool;
    int thread;
} worker_arg;

static inline void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is a no-op on most cores; isb takes as long as a pause */
#endif
}

/* ---- sleeping. The caller, alone, sleeps on `joining`: it sets the word to 1 and looks at the condition
 * once more; who posts makes the condition true and looks at the word. Both in one total order (seq_cst),
 * so one of the two sees the other. Each writes by an exchange: on x86 a seq_cst store is one anyway, and
 * an emulator of ARM was seen to let the look pass the store-release that it must follow. Without a sleeper
 * a post is one load. Workers are many, and a flag that one of them sets again would hide from another that
 * it was cleared: they sleep on the run's own number, which the kernel compares, and are counted. */

static void park(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
}

static void unpark_if_parked(_Atomic uint32_t *word) {
    if (atomic_load(word) == 0) return;
    atomic_store(word, 0);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The half of `run` that changes with every run: a futex has 32 bits. */
static uint32_t *run_low(ig_pool *p) {
    return (uint32_t *)&p->run + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static void post_run(ig_pool *p, uint64_t r) {
    atomic_exchange(&p->run, r);
    if (atomic_load(&p->n_parked) > 0)
        syscall(SYS_futex, run_low(p), FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- the shares of a run */

/* Contiguous shares, whole grains each. */
static void deal(ig_pool *p, int n, int grain) {
    const int64_t n_grains = ((int64_t)n + grain - 1) / grain;
    for (int t = 0; t < p->n_threads; t++) {
        slot *s = &p->slots[t];
        const int64_t end = n_grains * (t + 1) / p->n_threads * grain;
        atomic_store_explicit(&s->next, n_grains * t / p->n_threads * grain, memory_order_relaxed);
        s->end = end < n ? end : n;
    }
}

/* The thread's own share, then what is left of the others': of all for the caller, which goes on only when nothing is
 * left. The chunk is reckoned from a look at what is left; another may take meanwhile, then it begins later. */
static void run_shares(ig_pool *p, int thread) {
    const job *j = &p->job;
    const int n_shares = thread == 0 || p->n_threads <= NEIGHBOURS ? p->n_threads : NEIGHBOURS + 1;
    for (int i = 0; i < n_shares; i++) {
        slot *s = &p->slots[(thread + i) % p->n_threads];
        int64_t at = atomic_load_explicit(&s->next, memory_order_relaxed);
        while (at < s->end) {
            const int64_t few = (s->end - at) / ((int64_t)TAKE * j->grain), chunk = (few < 1 ? 1 : few) * j->grain;
            at = atomic_fetch_add_explicit(&s->next, chunk, memory_order_relaxed);
            if (at >= s->end) break;
            const int64_t hi = at + chunk < s->end ? at + chunk : s->end;
            j->fn(j->arg, (int)at, (int)hi, thread);
            at = atomic_load_explicit(&s->next, memory_order_relaxed);
        }
    }
}

/* ---- the workers */

static uint64_t wait_for_run(ig_pool *p, uint64_t seen) {
    for (int i = 0; i < p->spin; i++) {
        uint64_t run = atomic_load_explicit(&p->run, memory_order_acquire);
        if (run != seen) return run;
        cpu_pause();
    }
    atomic_fetch_add(&p->n_parked, 1);
    uint64_t run;
    while ((run = atomic_load(&p->run)) == seen)
        syscall(SYS_futex, run_low(p), FUTEX_WAIT_PRIVATE, (uint32_t)seen, NULL, NULL, 0);
    atomic_fetch_sub(&p->n_parked, 1);
    return run;
}

static void *worker(void *arg) {
    ig_pool *p = ((worker_arg *)arg)->pool;
    int thread = ((worker_arg *)arg)->thread;
    _Atomic uint64_t *word = &p->slots[thread].word;
    uint64_t seen = 0;
    free(arg);

    for (;;) {
        seen = wait_for_run(p, seen);
        uint64_t open = 2 * seen;
        /* A claim that holds keeps the run open until we say done: only now may the job be read. */
        if (!atomic_compare_exchange_strong_explicit(word, &open, 2 * seen + 1, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        if (atomic_load_explicit(&p->quit, memory_order_relaxed)) return NULL;
        run_shares(p, thread);
        atomic_exchange(word, 2 * seen + 2);
        unpark_if_parked(&p->joining);
    }
}

/* ---- the caller */

/* Ends run r for `thread`: waits for its last chunk, or when it has not begun shuts it out: its share is done by now. */
static void join_thread(ig_pool *p, int thread, uint64_t r) {
    _Atomic uint64_t *word = &p->slots[thread].word;
    const uint64_t done = 2 * r + 2;
    uint64_t now = atomic_load_explicit(word, memory_order_acquire);

    if (now == 2 * r && atomic_compare_exchange_strong_explicit(word, &now, done, memory_order_acquire,
                                                                memory_order_acquire))
        return;
    for (int i = 0; now != done && i < p->spin; i++) {
        cpu_pause();
        now = atomic_load_explicit(word, memory_order_acquire);
    }
    while (now != done) {
        atomic_exchange(&p->joining, 1);
        now = atomic_load(word);
        if (now == done) break;
        park(&p->joining);
        now = atomic_load(word);
    }
}

void ig_pool_run(ig_pool *p, ig_pool_fn *fn, void *arg, int n, int grain) {
    ig_assert(n >= 0 && grain >= 1);
    ig_assert(!p || !p->running); /* a job that runs a job, or two callers */
    if (n == 0) return;
    if (!p || p->n_threads == 1 || n == 1 || n <= grain) {
        fn(arg, 0, n, 0);
        return;
    }
    p->running = true;

    uint64_t r = ++p->n_runs;
    p->job = (job){fn, arg, grain};
    deal(p, n, grain);
    post_run(p, r);

    run_shares(p, 0);
    for (int t = 1; t < p->n_threads; t++) join_thread(p, t, r);
    p->running = false;
}

/* ---- start and end */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A pause takes 10 to 150 cycles, by CPU: the best of a few tries tells how many make up `ns`. */
static int pauses_in(uint64_t ns) {
    enum { TRIES = 5, PAUSES = 200 };
    uint64_t best = UINT64_MAX;
    for (int t = 0; t < TRIES; t++) {
        uint64_t start = now_ns();
        for (int i = 0; i < PAUSES; i++) cpu_pause();
        uint64_t took = now_ns() - start;
        if (took < best) best = took;
    }
    uint64_t n = ns * PAUSES / (best < 1 ? 1 : best);
    return n < 16 ? 16 : n > 100000 ? 100000 : (int)n;
}

static void stop_workers(ig_pool *p, int n_started) {
    atomic_store_explicit(&p->quit, true, memory_order_relaxed);
    post_run(p, ++p->n_runs);
    for (int t = 1; t <= n_started; t++) pthread_join(p->ids[t], NULL);
}

static int start_worker(ig_pool *p, int thread) {
    worker_arg *a = malloc(sizeof *a);
    if (!a) return ENOMEM;
    *a = (worker_arg){p, thread};
    int rc = pthread_create(&p->ids[thread], NULL, worker, a);
    if (rc != 0) {
        free(a);
        return rc;
    }
    char name[32]; /* at most 15 come of it */
    snprintf(name, sizeof name, "ingle-pool-%d", thread);
    pthread_setname_np(p->ids[thread], name);
    return 0;
}

ig_status ig_pool_make(ig_pool **out, int n_threads, ig_err *err) {
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return ig_fail(err, IG_EINVAL, "pool: %d threads, must be 1 to %d", n_threads, THREADS_MAX);
    ig_pool *p = aligned_alloc(LINE_BYTES, sizeof *p + (size_t)n_threads * sizeof(slot));
    pthread_t *ids = calloc((size_t)n_threads, sizeof *ids);
    if (!p || !ids) {
        free(p);
        free(ids);
        return ig_fail(err, IG_ELIMIT, "pool: no memory for %d threads", n_threads);
    }
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->ids = ids;
    p->spin = pauses_in(SPIN_NS);
    for (int t = 0; t < n_threads; t++) atomic_init(&p->slots[t].word, 2);

    sigset_t all, before; /* signals go to threads that expect them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0, t = 1;
    while (t < n_threads && (rc = start_worker(p, t)) == 0) t++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        stop_workers(p, t - 1);
        free(ids);
        free(p);
        return ig_fail(err, IG_ELIMIT, "pool: thread %d of %d: %s", t, n_threads, strerror(rc));
    }
    *out = p;
    return IG_OK;
}

void ig_pool_free(ig_pool *p) {
    if (!p) return;
    ig_assert(!p->running);
    stop_workers(p, p->n_threads - 1);
    free(p->ids);
    free(p);
}

int ig_pool_threads(const ig_pool *p) {
    return p ? p->n_threads : 1;
}
