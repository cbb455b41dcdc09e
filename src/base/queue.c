/* queue: a bounded ring of items between threads.
 * Owns:    the ring. Items are copied in and out; what a pointer in them points to changes owner with it.
 * Threads: any number on both sides.
 * Memory:  one block at make.
 * Why a lock and not a ring of atomics: hand-overs come per request and per token, not per row; a mutex
 * costs 50 ns and can be read. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ig_queue {
    pthread_mutex_t lock;
    pthread_cond_t some; /* something came, or closed */
    size_t item_bytes;
    int n_max, head, n, n_waiting;
    bool closed;
    uint8_t items[];
};

ig_status ig_queue_make(ig_queue **out, int n_max, size_t item_bytes, ig_err *err) {
    if (n_max < 1 || item_bytes < 1)
        return ig_fail(err, IG_EINVAL, "queue: %d items of %zu bytes, each at least 1", n_max, item_bytes);
    if (item_bytes > (SIZE_MAX - sizeof(ig_queue)) / (size_t)n_max)
        return ig_fail(err, IG_ELIMIT, "queue: %d items of %zu bytes do not fit", n_max, item_bytes);
    ig_queue *q = calloc(1, sizeof *q + (size_t)n_max * item_bytes);
    if (!q) return ig_fail(err, IG_ELIMIT, "queue: no memory for %d items of %zu bytes", n_max, item_bytes);

    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* a step of the wall clock is no timeout */
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->some, &attr);
    pthread_condattr_destroy(&attr);
    q->n_max = n_max;
    q->item_bytes = item_bytes;
    *out = q;
    return IG_OK;
}

void ig_queue_free(ig_queue *q) {
    if (!q) return;
    ig_assert(q->n_waiting == 0);
    pthread_cond_destroy(&q->some);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static uint8_t *slot(ig_queue *q, int i) {
    int at = i < q->n_max - q->head ? q->head + i : i - (q->n_max - q->head);
    return q->items + (size_t)at * q->item_bytes;
}

bool ig_queue_push(ig_queue *q, const void *item) {
    pthread_mutex_lock(&q->lock);
    bool room = !q->closed && q->n < q->n_max;
    if (room) {
        memcpy(slot(q, q->n++), item, q->item_bytes);
        if (q->n_waiting > 0) pthread_cond_signal(&q->some);
    }
    pthread_mutex_unlock(&q->lock);
    return room;
}

static struct timespec deadline_after(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t nsec = t.tv_nsec + ns % 1000000000;
    t.tv_sec += (time_t)(ns / 1000000000 + nsec / 1000000000);
    t.tv_nsec = (long)(nsec % 1000000000);
    return t;
}

bool ig_queue_pop(ig_queue *q, void *item, int64_t timeout_ns) {
    struct timespec until = timeout_ns > 0 ? deadline_after(timeout_ns) : (struct timespec){0};
    bool late = timeout_ns == 0;

    pthread_mutex_lock(&q->lock);
    while (q->n == 0 && !q->closed && !late) {
        q->n_waiting++;
        if (timeout_ns < 0) pthread_cond_wait(&q->some, &q->lock);
        else late = pthread_cond_timedwait(&q->some, &q->lock, &until) == ETIMEDOUT;
        q->n_waiting--;
    }
    bool got = q->n > 0;
    if (got) {
        memcpy(item, slot(q, 0), q->item_bytes);
        q->head = q->head + 1 == q->n_max ? 0 : q->head + 1;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return got;
}

void ig_queue_close(ig_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->some);
    pthread_mutex_unlock(&q->lock);
}

int ig_queue_count(ig_queue *q) {
    pthread_mutex_lock(&q->lock);
    int n = q->n;
    pthread_mutex_unlock(&q->lock);
    return n;
}
