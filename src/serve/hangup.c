/* hangup: the watcher. It sees clients leave while MHD has their connection suspended, resumes connections
 * that have news, keeps deadlines, and closes sockets late enough for the last answer to be read.
 * Owns:    a dup of every connection's socket, an epoll set of those, an eventfd.
 * Threads: its own; open/close come from the net thread by a queue, ig_serve_ring from anywhere.
 * Memory:  the hub (eventfd and one bit a connection) is never given back, only used again: the engine may
 *          ring for a generation that was let go after the server has stopped.
 * Why a dup: MHD notices nothing on a suspended connection, and shutting down a number that MHD may close at
 * that moment could hit a stranger. The dup is ours alone, so closing and using it happen on one thread. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/inside.h"

#define SECOND_NS 1000000000ull

enum {
    TICK_MS = 250,
    HEADERS_S = 10,
    IDLE_S = 85, /* MHD closes at 75; this catches a request line that comes byte by byte */
    BODY_STALL_S = 60,
    BODY_GRACE_S = 30, /* after it, an average of at least BODY_LEAST_BYTES a second */
    BODY_LEAST_BYTES = 1024,
    GONE_S = 1,   /* for MHD to read what came before the peer's end */
    LINGER_S = 2, /* how long we read what a refused client still sends */
    EVENTS_MAX = 64
};

struct hub_slot {
    struct hub *hub;
    int index;
};

struct hub {
    int eventfd, n_slots;
    _Atomic bool rung;
    _Atomic uint64_t *bits;
    struct hub_slot *slots;
    struct hub *next;
};

static _Atomic(struct hub *) retired; /* hubs of servers that have stopped */

struct ig_serve_watch {
    ig_serve *s;
    struct hub *hub;
    int epoll;
    ig_queue *commands;
    pthread_t thread;
    _Atomic bool stop;
};

struct command {
    ig_serve_conn *conn;
    bool open;
    int fd; /* of an open */
};

/* ---- the hub ------------------------------------------------------------------------------------------- */

static void ring_hub(struct hub *h) {
    if (atomic_exchange(&h->rung, true)) return;
    uint64_t one = 1;
    while (write(h->eventfd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void ig_serve_ring(void *arg) {
    struct hub_slot *slot = arg;
    atomic_fetch_or(&slot->hub->bits[slot->index / 64], UINT64_C(1) << slot->index % 64);
    ring_hub(slot->hub);
}

void *ig_serve_ring_slot(ig_serve_watch *w, int index) {
    return &w->hub->slots[index];
}

static struct hub *hub_make(int n_slots) {
    struct hub *h = atomic_exchange(&retired, NULL);
    if (h && h->next) atomic_store(&retired, h->next);
    if (h && h->n_slots >= n_slots) return h;
    struct hub *grown = calloc(1, sizeof *grown);
    if (!grown) return NULL;
    grown->next = h; /* too small: kept, and reachable */
    grown->n_slots = n_slots;
    grown->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    grown->bits = calloc((size_t)n_slots / 64 + 1, sizeof *grown->bits);
    grown->slots = calloc((size_t)n_slots, sizeof *grown->slots);
    if (grown->eventfd < 0 || !grown->bits || !grown->slots) {
        if (grown->eventfd >= 0) close(grown->eventfd);
        free(grown->bits);
        free(grown->slots);
        free(grown);
        return NULL;
    }
    for (int i = 0; i < n_slots; i++) grown->slots[i] = (struct hub_slot){.hub = grown, .index = i};
    return grown;
}

static void hub_retire(struct hub *h) {
    struct hub *older = atomic_exchange(&retired, NULL);
    if (older != h->next) h->next = older;
    atomic_store(&retired, h);
}

/* ---- phases and flags ---------------------------------------------------------------------------------- */

void ig_serve_phase_set(ig_serve_conn *c, ig_serve_phase p) {
    atomic_store(&c->phase, ig_clock_ns() << 3 | p);
}

bool ig_serve_phase_move(ig_serve_conn *c, ig_serve_phase p) {
    uint64_t was = atomic_load(&c->phase);
    return ig_serve_phase_of(was) != IG_PHASE_KILLED &&
           atomic_compare_exchange_strong(&c->phase, &was, ig_clock_ns() << 3 | p);
}

/* Whoever takes IG_CONN_SUSPENDED away resumes, so it happens once. */
static void resume(ig_serve_conn *c) {
    uint32_t was = atomic_fetch_and(&c->flags, ~(uint32_t)IG_CONN_SUSPENDED);
    if (was & IG_CONN_SUSPENDED) MHD_resume_connection(c->mhd);
}

void ig_serve_conn_nap(ig_serve_conn *c) {
    MHD_suspend_connection(c->mhd);
    uint32_t was = atomic_fetch_or(&c->flags, IG_CONN_SUSPENDED);
    if ((was & IG_CONN_NEWS) && !(was & IG_CONN_HELD)) resume(c);
}

static void wake(ig_serve_conn *c, uint32_t flags) {
    uint32_t was = atomic_fetch_or(&c->flags, flags | IG_CONN_NEWS);
    if ((was & IG_CONN_SUSPENDED) && !(was & IG_CONN_HELD)) resume(c);
}

/* ---- sockets ------------------------------------------------------------------------------------------- */

static void let_go(ig_serve_watch *w, ig_serve_conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->linger_until_ns = 0;
    atomic_store(&c->phase, IG_PHASE_FREE);
    bool pushed = ig_queue_push(w->s->free_slots, &c->index);
    ig_assert(pushed); /* it has room for every slot */
}

/* Shuts the connection from outside MHD, which then finds its end and cleans up. The word `seen` was judged;
 * if the net thread has moved on since, nothing happens. */
static void kill_conn(ig_serve_conn *c, uint64_t seen, bool say_timeout) {
    static const char answer[] =
        "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: 128\r\n\r\n"
        "{\"error\":{\"message\":\"the request took too long to arrive\",\"type\":\"invalid_request_error\","
        "\"param\":null,\"code\":\"request_timeout\"}}";
    if (c->fd < 0 || !atomic_compare_exchange_strong(&c->phase, &seen, ig_clock_ns() << 3 | IG_PHASE_KILLED))
        return;
    if (say_timeout) (void)!send(c->fd, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(c->fd, SHUT_RDWR);
}

/* Room for a new client when the table is full: who has waited longest without a request goes. */
static void shed(ig_serve_watch *w) {
    ig_serve_conn *oldest = NULL;
    uint64_t oldest_word = 0;
    for (int i = 0; i < w->s->n_conns; i++) {
        uint64_t word = atomic_load(&w->s->conns[i].phase);
        ig_serve_phase p = ig_serve_phase_of(word);
        if (p != IG_PHASE_HEADERS && p != IG_PHASE_IDLE) continue;
        if (oldest && ig_serve_phase_since_ns(word) >= ig_serve_phase_since_ns(oldest_word)) continue;
        oldest = &w->s->conns[i];
        oldest_word = word;
    }
    if (oldest) kill_conn(oldest, oldest_word, false);
}

static void open_conn(ig_serve_watch *w, ig_serve_conn *c, int fd) {
    c->gone_ns = 0;
    c->fd = fd; /* -1, no descriptor was left: this client's leaving shows when MHD next writes */
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLET, .data.ptr = c};
    if (fd < 0)
        ig_log(IG_LOG_WARN, "watch.add error=\"no descriptor left\"");
    else if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &ev) != 0)
        ig_log(IG_LOG_WARN, "watch.add error=\"%s\"", strerror(errno));
    if (atomic_load(&w->s->n_open) > w->s->room.connections) shed(w);
}

static void close_conn(ig_serve_watch *w, ig_serve_conn *c) {
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    if (c->linger && c->fd >= 0 && epoll_ctl(w->epoll, EPOLL_CTL_MOD, c->fd, &ev) == 0)
        c->linger_until_ns = ig_clock_ns() + LINGER_S * SECOND_NS;
    else
        let_go(w, c);
}

/* Reads away what a refused client sends, so that the kernel does not reset the connection before the client
 * has read why. */
static void linger(ig_serve_watch *w, ig_serve_conn *c) {
    char sink[16384];
    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(c->fd, sink, sizeof sink, MSG_DONTWAIT);
        if (n > 0 || (n < 0 && errno == EINTR)) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        let_go(w, c);
        return;
    }
}

/* ---- the clock ----------------------------------------------------------------------------------------- */

static void check_deadline(ig_serve_conn *c, uint64_t now) {
    uint64_t word = atomic_load(&c->phase), since = ig_serve_phase_since_ns(word);
    uint64_t age_s = now > since ? (now - since) / SECOND_NS : 0, bytes = atomic_load(&c->body_bytes);
    /* Half a request and then the end: after a short read MHD waits for an event that has already been. */
    bool ended = c->gone_ns && now >= c->gone_ns + GONE_S * SECOND_NS && age_s >= GONE_S;
    switch (ig_serve_phase_of(word)) {
    case IG_PHASE_HEADERS:
        if (ended || age_s >= HEADERS_S) kill_conn(c, word, !ended);
        break;
    case IG_PHASE_IDLE:
        if (ended || age_s >= IDLE_S) kill_conn(c, word, false);
        break;
    case IG_PHASE_BODY: {
        uint64_t last = atomic_load(&c->news_ns);
        bool stalled = now > last && now - last >= BODY_STALL_S * SECOND_NS;
        bool slow = age_s >= BODY_GRACE_S && bytes / BODY_LEAST_BYTES < age_s;
        if (ended || stalled || slow) kill_conn(c, word, !ended);
        break;
    }
    default: break;
    }
}

static void tick(ig_serve_watch *w) {
    uint64_t now = ig_clock_ns(), ping_ns = (uint64_t)w->s->config.sse_ping_s * SECOND_NS;
    uint64_t queue_ns = (uint64_t)w->s->config.queue_timeout_s * SECOND_NS;
    bool ending = atomic_load(&w->s->ending);
    for (int i = 0; i < w->s->n_conns; i++) {
        ig_serve_conn *c = &w->s->conns[i];
        if (c->linger_until_ns && now >= c->linger_until_ns) let_go(w, c);
        if (c->fd < 0 || c->linger_until_ns) continue;
        check_deadline(c, now);
        if (ending) wake(c, 0);
        if (!atomic_load(&c->waits)) continue;
        uint64_t last = atomic_load(&c->news_ns), quiet = now > last ? now - last : 0;
        uint64_t due = atomic_load(&c->pinged) || ping_ns < SECOND_NS ? ping_ns : SECOND_NS;
        if (ping_ns && quiet >= due) wake(c, IG_CONN_PING);
        if (queue_ns && quiet >= queue_ns) wake(c, 0); /* it looks at its own clock */
    }
}

/* A peer that sends no more (FIN) has left or still reads: nothing tells the two apart but writing to it. A
 * generation is not worth the risk of running on for nobody, so for one a FIN is the end, unless the
 * configuration says otherwise: then a stream is written to at once, and who has left answers with a reset. */
static void see_end(ig_serve_conn *c, bool both_ways) {
    atomic_fetch_or(&c->flags, IG_CONN_END); /* before the look: ig_serve_end_means does it the other way round */
    wake(c, both_ways || atomic_load(&c->end_is_gone) ? IG_CONN_GONE : IG_CONN_PING);
}

void ig_serve_end_means(ig_serve_conn *c, bool gone) {
    atomic_store(&c->end_is_gone, gone);
    if (gone && (atomic_load(&c->flags) & IG_CONN_END)) atomic_fetch_or(&c->flags, IG_CONN_GONE);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void deliver_rings(ig_serve_watch *w) {
    struct hub *h = w->hub;
    for (int word = 0; word <= (w->s->n_conns - 1) / 64; word++) {
        uint64_t bits = atomic_exchange(&h->bits[word], 0);
        for (; bits; bits &= bits - 1) {
            int index = word * 64 + __builtin_ctzll(bits);
            if (index < w->s->n_conns) wake(&w->s->conns[index], 0);
        }
    }
}

static void *watch_main(void *arg) {
    ig_serve_watch *w = arg;
    struct epoll_event events[EVENTS_MAX];
    uint64_t next_tick_ns = 0;
    while (!atomic_load(&w->stop)) {
        int n = epoll_wait(w->epoll, events, EVENTS_MAX, TICK_MS);
        for (int i = 0; i < n; i++) {
            ig_serve_conn *c = events[i].data.ptr;
            if (!c) {
                uint64_t count;
                (void)!read(w->hub->eventfd, &count, sizeof count);
                atomic_store(&w->hub->rung, false);
            } else if (c->linger_until_ns) {
                linger(w, c);
            } else {
                c->gone_ns = ig_clock_ns();
                see_end(c, events[i].events & (EPOLLHUP | EPOLLERR));
            }
        }
        struct command cmd;
        while (ig_queue_pop(w->commands, &cmd, 0)) {
            if (cmd.open)
                open_conn(w, cmd.conn, cmd.fd);
            else
                close_conn(w, cmd.conn);
        }
        deliver_rings(w);
        uint64_t now = ig_clock_ns();
        if (now >= next_tick_ns) {
            tick(w);
            next_tick_ns = now + TICK_MS * 1000000ull;
        }
    }
    return NULL;
}

static void command(ig_serve_watch *w, struct command cmd) {
    bool pushed = ig_queue_push(w->commands, &cmd);
    ig_assert(
        pushed); /* one open and one close a slot fit, and a slot is not used again before both were read */
    ring_hub(w->hub);
}

void ig_serve_watch_open(ig_serve_watch *w, ig_serve_conn *c, int fd) {
    command(w, (struct command){.conn = c, .open = true, .fd = fd});
}

void ig_serve_watch_close(ig_serve_watch *w, ig_serve_conn *c) {
    command(w, (struct command){.conn = c});
}

void ig_serve_watch_wake_all(ig_serve_watch *w) {
    for (int i = 0; i <= (w->s->n_conns - 1) / 64; i++) atomic_store(&w->hub->bits[i], UINT64_MAX);
    ring_hub(w->hub);
}

ig_status ig_serve_watch_start(ig_serve_watch **out, ig_serve *s, ig_err *err) {
    ig_status st = IG_OK;
    ig_serve_watch *w = calloc(1, sizeof *w);
    if (!w) return ig_fail(err, IG_ELIMIT, "no memory for the watcher");
    w->s = s;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->hub = hub_make(s->n_conns);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (w->epoll < 0 || !w->hub || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->hub->eventfd, &ev) != 0) {
        st = ig_fail(err, IG_EIO, "set up the watcher: %s", strerror(errno));
        goto fail;
    }
    st = ig_queue_make(&w->commands, 2 * s->n_conns, sizeof(struct command), err);
    if (st != IG_OK) goto fail;
    int code = pthread_create(&w->thread, NULL, watch_main, w);
    if (code) {
        st = ig_fail(err, IG_EIO, "start the watcher: %s", strerror(code));
        goto fail;
    }
    *out = w;
    return IG_OK;
fail:
    if (w->commands) ig_queue_free(w->commands);
    if (w->hub) hub_retire(w->hub);
    if (w->epoll >= 0) close(w->epoll);
    free(w);
    return st;
}

void ig_serve_watch_stop(ig_serve_watch *w) {
    if (!w) return;
    atomic_store(&w->stop, true);
    atomic_store(&w->hub->rung, false);
    ring_hub(w->hub);
    pthread_join(w->thread, NULL);
    struct command cmd;
    while (ig_queue_pop(w->commands, &cmd, 0))
        if (cmd.open) cmd.conn->fd = cmd.fd;
    for (int i = 0; i < w->s->n_conns; i++)
        if (w->s->conns[i].fd >= 0) close(w->s->conns[i].fd);
    ig_queue_free(w->commands);
    hub_retire(w->hub);
    close(w->epoll);
    free(w);
}
