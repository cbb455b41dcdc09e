/* Every row once, seen by whoever comes next, with awake, sleeping and too many workers. */
#include "base/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROWS_MAX = 4096 };

/* What a run did: how often each row, and the ranges. Plain memory on purpose: the join must publish it. */
typedef struct seen {
    int rows[ROWS_MAX];
    int n_threads, grain, n;
    _Atomic int n_calls, n_bad;
} seen;

static void mark_rows(void *arg, int lo, int hi, int thread) {
    seen *s = arg;
    bool aligned = lo % s->grain == 0 && (hi % s->grain == 0 || hi == s->n);
    if (lo >= hi || thread < 0 || thread >= s->n_threads || !aligned) atomic_fetch_add(&s->n_bad, 1);
    atomic_fetch_add(&s->n_calls, 1);
    for (int i = lo; i < hi; i++) s->rows[i]++;
}

static void check_run(ig_pool *p, int n, int grain) {
    static seen s;
    memset(&s, 0, sizeof s);
    s.n_threads = ig_pool_threads(p);
    s.grain = grain;
    s.n = n;
    ig_pool_run(p, mark_rows, &s, n, grain);
    int n_wrong = 0;
    for (int i = 0; i < ROWS_MAX; i++) n_wrong += s.rows[i] != (i < n);
    CHECK_MSG(n_wrong == 0 && s.n_bad == 0, "%d threads, n %d, grain %d: %d rows wrong, %d calls wrong",
              s.n_threads, n, grain, n_wrong, s.n_bad);
}

TEST(every_row_runs_once_for_any_count_grain_and_number_of_threads) {
    static const int sizes[] = {0, 1, 2, 3, 7, 64, 65, 1000, ROWS_MAX}, grains[] = {1, 2, 8, 63, 5000};
    for (int n_threads = 1; n_threads <= 20; n_threads += n_threads < 9 ? 1 : 11) { /* 20: not all see all shares */
        ig_pool *p;
        if (!CHECK(ig_pool_make(&p, n_threads, NULL) == IG_OK)) return;
        CHECK(ig_pool_threads(p) == n_threads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t k = 0; k < sizeof grains / sizeof *grains; k++) check_run(p, sizes[i], grains[k]);
        ig_pool_free(p);
    }
}

TEST(without_a_pool_the_caller_does_it_all_in_one_call) {
    seen s = {.n_threads = 1, .grain = 1, .n = 100};
    ig_pool_run(NULL, mark_rows, &s, 100, 1);
    CHECK(s.n_calls == 1 && s.n_bad == 0 && s.rows[0] == 1 && s.rows[99] == 1 && s.rows[100] == 0);
    CHECK(ig_pool_threads(NULL) == 1);
    ig_pool_free(NULL);
}

/* One thread sits on its first chunk until all other rows are done. */
typedef struct held {
    _Atomic int n_done, holder;
    int n_rows;
    _Atomic bool gave_up;
} held;

static void hold_one(void *arg, int lo, int hi, int thread) {
    held *h = arg;
    int nobody = -1;
    if (thread > 0 && atomic_compare_exchange_strong(&h->holder, &nobody, thread)) {
        const uint64_t until = ig_clock_ns() + (uint64_t)ig_test_patience(10) * 1000000000u;
        while (atomic_load(&h->n_done) < h->n_rows - (hi - lo) && !atomic_load(&h->gave_up))
            if (ig_clock_ns() > until) atomic_store(&h->gave_up, true);
    } else {
        for (int i = 0; i < 1000 && atomic_load(&h->holder) < 0; i++) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    atomic_fetch_add(&h->n_done, hi - lo);
}

TEST(rows_of_a_thread_that_is_held_up_are_done_by_the_others) {
    ig_pool *p;
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    held h = {.holder = -1, .n_rows = 300};
    ig_pool_run(p, hold_one, &h, h.n_rows, 2);
    CHECK(atomic_load(&h.n_done) == h.n_rows);
    CHECK_MSG(atomic_load(&h.holder) > 0, "no worker came");
    CHECK_MSG(!atomic_load(&h.gave_up), "its share waited for it");
    ig_pool_free(p);
}

static void note_thread(void *arg, int lo, int hi, int thread) {
    (void)lo, (void)hi;
    *(int *)arg += thread == 0 ? 1 : 1000;
}

TEST(small_work_stays_on_the_caller) {
    ig_pool *p;
    if (!CHECK(ig_pool_make(&p, 4, NULL) == IG_OK)) return;
    for (int i = 0; i < 100; i++) {
        int calls = 0;
        ig_pool_run(p, note_thread, &calls, 1, 1);
        ig_pool_run(p, note_thread, &calls, 64, 64);
        ig_pool_run(p, note_thread, &calls, 63, 64);
        ig_pool_run(p, note_thread, &calls, 0, 1);
        CHECK(calls == 3);
    }
    ig_pool_free(p);
}

static void add_range(void *arg, int lo, int hi, int thread) {
    (void)thread;
    atomic_fetch_add((_Atomic int64_t *)arg, (int64_t)hi - lo);
}

TEST(rows_near_the_end_of_int_do_not_wrap) {
    ig_pool *p;
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    _Atomic int64_t total = 0;
    static const int grains[] = {1, 1000, 1 << 30, INT32_MAX - 1, INT32_MAX};
    for (size_t i = 0; i < sizeof grains / sizeof *grains; i++) {
        atomic_store(&total, 0);
        ig_pool_run(p, add_range, &total, INT32_MAX, grains[i]);
        CHECK_MSG(atomic_load(&total) == INT32_MAX, "grain %d: %lld rows", grains[i], (long long)total);
    }
    ig_pool_free(p);
}

/* Each run reads what the run before wrote, through plain memory and other threads' rows: a lost order or
 * a late worker shows as a wrong sum, and to a race detector as a race. */
static int64_t chain[2][256];

static void add_neighbour(void *arg, int lo, int hi, int thread) {
    int from = *(int *)arg;
    (void)thread;
    for (int i = lo; i < hi; i++) chain[!from][i] = chain[from][(i + 101) % 256] + 1;
}

static void run_chain(ig_pool *p, int n_runs, int64_t pause_ns) {
    memset(chain, 0, sizeof chain);
    int from = 0; /* on this stack: gone when a late worker would look */
    for (int i = 0; i < n_runs; i++, from = !from) {
        if (pause_ns > 0) nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        ig_pool_run(p, add_neighbour, &from, 256, 1 + i % 3 * 4);
    }
    int n_wrong = 0;
    for (int i = 0; i < 256; i++) n_wrong += chain[from][i] != n_runs;
    CHECK_MSG(n_wrong == 0, "%d of 256 sums wrong", n_wrong);
}

TEST(runs_in_a_row_see_each_others_rows) {
    for (int n_threads = 2; n_threads <= 8; n_threads *= 2) { /* also more threads than cores */
        ig_pool *p;
        if (!CHECK(ig_pool_make(&p, n_threads, NULL) == IG_OK)) return;
        run_chain(p, 20000 / n_threads, 0);
        ig_pool_free(p);
    }
}

static void sign_in(void *arg, int lo, int hi, int thread) {
    (void)lo, (void)hi;
    atomic_fetch_or((_Atomic uint32_t *)arg, 1u << thread);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Does every thread take part at last? Ten seconds, for a busy machine. */
static bool all_come(ig_pool *p) {
    _Atomic uint32_t who = 0;
    uint32_t all = (1u << ig_pool_threads(p)) - 1;
    uint64_t until = ig_clock_ns() + UINT64_C(10000000000);
    while (atomic_load(&who) != all && ig_clock_ns() < until) ig_pool_run(p, sign_in, &who, 64, 1);
    return atomic_load(&who) == all;
}

TEST(sleeping_workers_are_woken_by_work) {
    ig_pool *p;
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    CHECK_MSG(all_come(p), "a worker slept through all of it");
    ig_pool_free(p);
}

TEST(workers_that_fell_asleep_miss_nothing) {
    ig_pool *p;
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    run_chain(p, 100, 50000);   /* about as long as they look: they fall asleep as the run comes */
    run_chain(p, 60, 1000000);
    ig_pool_free(p);
}

static void sleep_if_worker(void *arg, int lo, int hi, int thread) {
    (void)lo, (void)hi;
    if (thread != 0) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    atomic_fetch_add((_Atomic int *)arg, hi - lo);
}

TEST(a_caller_that_fell_asleep_wakes_when_the_last_worker_is_done) {
    ig_pool *p;
    _Atomic int n = 0;
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    for (int i = 0; i < 50; i++) {
        ig_pool_run(p, sleep_if_worker, &n, 300, 1 + i % 2 * 99);
        CHECK(atomic_load(&n) == 300 * (i + 1));
    }
    ig_pool_free(p);
}

/* The state letters of our threads but the main one, from /proc. */
static int count_sleeping(int *n_threads) {
    int n_asleep = 0;
    DIR *d = opendir("/proc/self/task");
    *n_threads = 0;
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[300], line[256];
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (!f) continue;
        char *at = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        fclose(f);
        if (!at || !strstr(line, "(ingle-pool-")) continue;
        ++*n_threads;
        n_asleep += at[2] == 'S';
    }
    closedir(d);
    return n_asleep;
}

TEST(idle_workers_sleep) {
    ig_pool *p;
    int n_threads = 0, n_asleep = 0;
    if (!CHECK(ig_pool_make(&p, 4, NULL) == IG_OK)) return;
    run_chain(p, 100, 0);
    for (int i = 0; i < 1000 && n_asleep < 3; i++) { /* up to 10 s: a busy machine may take a while */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        n_asleep = count_sleeping(&n_threads);
    }
    CHECK_MSG(n_threads == 3 && n_asleep == 3, "%d of %d threads sleep", n_asleep, n_threads);
    ig_pool_free(p);
}

static _Atomic int n_signals_taken;

static void on_signal(int sig) {
    (void)sig;
    atomic_fetch_add(&n_signals_taken, 1);
}

TEST(workers_take_no_signals) {
    ig_pool *p;
    struct sigaction act = {.sa_handler = on_signal}, act_before;
    sigset_t usr1, before, pending;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigaction(SIGUSR1, &act, &act_before);
    if (!CHECK(ig_pool_make(&p, 3, NULL) == IG_OK)) return;
    pthread_sigmask(SIG_BLOCK, &usr1, &before); /* now only a worker could take it */
    CHECK(!sigismember(&before, SIGUSR1));
    kill(getpid(), SIGUSR1);
    run_chain(p, 1000, 0);
    CHECK(atomic_load(&n_signals_taken) == 0);
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(atomic_load(&n_signals_taken) == 1);
    sigaction(SIGUSR1, &act_before, NULL);
    ig_pool_free(p);
}

TEST(a_pool_can_end_at_any_moment_after_its_start) {
    for (int i = 0; i < 100; i++) {
        ig_pool *p;
        if (!CHECK(ig_pool_make(&p, 1 + i % 5, NULL) == IG_OK)) return;
        if (i % 3) nanosleep(&(struct timespec){.tv_nsec = i * 2000}, NULL);
        if (i % 2) run_chain(p, 3, 0);
        ig_pool_free(p);
    }
}

TEST(a_pool_that_cannot_be_is_refused) {
    ig_pool *p = NULL;
    ig_err err;
    CHECK(ig_pool_make(&p, 0, &err) == IG_EINVAL && strstr(err.msg, "0 threads"));
    CHECK(ig_pool_make(&p, -3, &err) == IG_EINVAL && ig_pool_make(&p, INT32_MAX, &err) == IG_EINVAL);
    CHECK(p == NULL);
}

static void run_again(void *arg, int lo, int hi, int thread) {
    (void)lo, (void)hi, (void)thread;
    seen s = {.n_threads = 2, .n = 10};
    ig_pool_run(arg, mark_rows, &s, 10, 1); /* whichever thread is here: the other may have taken all rows */
}

static void run_inside_a_run(void) {
    ig_pool *p;
    if (ig_pool_make(&p, 2, NULL) == IG_OK) ig_pool_run(p, run_again, p, 10, 1);
}

TEST(a_run_inside_a_run_is_a_broken_promise) {
    CHECK(ig_test_aborts(run_inside_a_run));
}
