/* Order, bounds, waking and closing, alone and with many threads. */
#include "base/test.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

typedef struct item {
    uint64_t value;
    char name[13];
} item;

TEST(items_come_out_as_they_went_in_and_in_order) {
    ig_queue *q;
    if (!CHECK(ig_queue_make(&q, 3, sizeof(item), NULL) == IG_OK)) return;
    uint64_t in = 0, out = 0;
    for (int round = 0; round < 50; round++) { /* uneven steps, so that every place of the ring is used */
        item it = {0};
        for (int k = 0; k < 1 + round % 3; k++) {
            it.value = in;
            memcpy(it.name, "twelve chars", 13);
            CHECK(ig_queue_push(q, &it));
            in++;
        }
        CHECK(ig_queue_count(q) == (int)(in - out));
        while (ig_queue_pop(q, &it, 0)) CHECK(it.value == out++ && strcmp(it.name, "twelve chars") == 0);
        CHECK(in == out);
    }
    ig_queue_free(q);
}

TEST(a_full_queue_refuses_and_an_empty_one_gives_nothing) {
    ig_queue *q;
    int v = 1;
    if (!CHECK(ig_queue_make(&q, 2, sizeof v, NULL) == IG_OK)) return;
    CHECK(!ig_queue_pop(q, &v, 0) && v == 1);
    CHECK(ig_queue_push(q, &v) && ig_queue_push(q, &v) && !ig_queue_push(q, &v));
    CHECK(ig_queue_count(q) == 2);
    CHECK(ig_queue_pop(q, &v, 0) && ig_queue_push(q, &v) && !ig_queue_push(q, &v));
    ig_queue_free(q);
}

TEST(a_closed_queue_takes_nothing_and_gives_what_it_has) {
    ig_queue *q;
    int v = 5;
    if (!CHECK(ig_queue_make(&q, 2, sizeof v, NULL) == IG_OK)) return;
    CHECK(ig_queue_push(q, &v));
    ig_queue_close(q);
    CHECK(!ig_queue_push(q, &v));
    v = 0;
    CHECK(ig_queue_pop(q, &v, -1) && v == 5);
    CHECK(!ig_queue_pop(q, &v, -1));
    ig_queue_close(q);
    ig_queue_free(q);
}

TEST(a_wait_ends_after_its_time_and_not_before) {
    ig_queue *q;
    int v;
    if (!CHECK(ig_queue_make(&q, 1, sizeof v, NULL) == IG_OK)) return;
    uint64_t start = ig_clock_ns();
    CHECK(!ig_queue_pop(q, &v, 20 * 1000 * 1000));
    CHECK(ig_clock_ns() - start >= 20 * 1000 * 1000);
    ig_queue_free(q);
}

static void *push_soon(void *arg) {
    int v = 9;
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return ig_queue_push(arg, &v) ? arg : NULL;
}

static void *close_soon(void *arg) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    ig_queue_close(arg);
    return arg;
}

TEST(who_waits_is_woken_by_a_push_and_by_a_close) {
    static const int64_t timeouts[] = {-1, INT64_MAX, INT64_C(3600) * 1000000000};
    for (size_t i = 0; i < sizeof timeouts / sizeof *timeouts; i++) {
        ig_queue *q;
        pthread_t id;
        int v = 0;
        if (!CHECK(ig_queue_make(&q, 1, sizeof v, NULL) == IG_OK)) return;
        if (!CHECK(pthread_create(&id, NULL, push_soon, q) == 0)) return;
        CHECK(ig_queue_pop(q, &v, timeouts[i]) && v == 9);
        pthread_join(id, NULL);
        if (!CHECK(pthread_create(&id, NULL, close_soon, q) == 0)) return;
        CHECK(!ig_queue_pop(q, &v, timeouts[i]));
        pthread_join(id, NULL);
        ig_queue_free(q);
    }
}

enum { N_SIDES = 3, N_EACH = 5000 };
static _Atomic uint8_t times_seen[N_SIDES * N_EACH];
static _Atomic int n_out_of_order;

typedef struct side {
    ig_queue *q;
    int id;
} side;

static void *push_all(void *arg) {
    side *s = arg;
    for (int i = 0; i < N_EACH; i++) {
        int v = s->id * N_EACH + i;
        while (!ig_queue_push(s->q, &v)) sched_yield();
    }
    return NULL;
}

static void *pop_all(void *arg) {
    side *s = arg;
    int last[N_SIDES] = {-1, -1, -1};
    for (int v; ig_queue_pop(s->q, &v, -1);) {
        atomic_fetch_add(&times_seen[v], 1);
        if (v <= last[v / N_EACH]) atomic_fetch_add(&n_out_of_order, 1);
        last[v / N_EACH] = v;
    }
    return NULL;
}

TEST(many_threads_on_both_sides_lose_and_double_nothing) {
    ig_queue *q;
    pthread_t push[N_SIDES], pop[N_SIDES];
    side sides[N_SIDES];
    if (!CHECK(ig_queue_make(&q, 7, sizeof(int), NULL) == IG_OK)) return;
    for (int i = 0; i < N_SIDES; i++) {
        sides[i] = (side){q, i};
        if (!CHECK(pthread_create(&push[i], NULL, push_all, &sides[i]) == 0)) return;
        if (!CHECK(pthread_create(&pop[i], NULL, pop_all, &sides[i]) == 0)) return;
    }
    for (int i = 0; i < N_SIDES; i++) pthread_join(push[i], NULL);
    ig_queue_close(q);
    for (int i = 0; i < N_SIDES; i++) pthread_join(pop[i], NULL);
    int n_wrong = 0;
    for (int i = 0; i < N_SIDES * N_EACH; i++) n_wrong += atomic_load(&times_seen[i]) != 1;
    CHECK_MSG(n_wrong == 0, "%d items lost or doubled", n_wrong);
    CHECK(atomic_load(&n_out_of_order) == 0);
    ig_queue_free(q);
}

TEST(a_queue_that_cannot_be_is_refused) {
    ig_queue *q = NULL;
    ig_err err;
    CHECK(ig_queue_make(&q, 0, 4, &err) == IG_EINVAL && ig_queue_make(&q, -1, 4, &err) == IG_EINVAL);
    CHECK(ig_queue_make(&q, 4, 0, &err) == IG_EINVAL);
    CHECK(ig_queue_make(&q, 2, SIZE_MAX / 2, &err) == IG_ELIMIT && strstr(err.msg, "9223372036854775807"));
    CHECK(ig_queue_make(&q, INT32_MAX, SIZE_MAX, &err) == IG_ELIMIT);
    CHECK(q == NULL);
    ig_queue_free(NULL);
}
