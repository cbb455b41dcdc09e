/* base: the words every other folder may use. It includes nothing of ours.
 *
 * Owns:    status codes and the error note, arenas and big pages, slices and bounded buffers, the log,
 *          the clock, CPU facts, compute threads, queues between threads, random numbers, hashes.
 * Threads: everything is safe on one thread. ig_queue, ig_pool and ig_log may be used as each says.
 * Memory:  arenas bump over memory that somebody owns; buffers are born with their maximum.
 * Fails:   a function that can fail returns ig_status and takes `ig_err *err` last; `err` may be NULL,
 *          outputs are set on success only, and whoever returns an error does not print it.
 *          A broken promise between our own functions is ig_assert, in every build. It never sees a
 *          byte that came from outside.
 * Not here: formats of files (file/), loops over numbers (kern/). */
#ifndef IG_BASE_H
#define IG_BASE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- status.c: errors ------------------------------------------------------------------------------- */

typedef enum ig_status {
    IG_OK = 0,
    IG_EINVAL = -1,    /* the caller of the program asked for something wrong */
    IG_EFORMAT = -2,   /* bytes from outside do not follow their format, or are of a kind we do not run */
    IG_EIO = -3,       /* the system refused: errno's text is in the message */
    IG_ELIMIT = -4,    /* a stated bound was reached: memory, tokens, queue */
    IG_ECANCELED = -5, /* the peer left, or the server is stopping */
    IG_ENOTFOUND = -6, /* no such model, file, key */
    IG_ENETWORK = -7,  /* a server that we called: out of reach, refused, broke off */
    IG_EBUSY = -8      /* another process holds it */
} ig_status;

enum { IG_ERR_BYTES = 512 };

typedef struct ig_err {
    ig_status code;
    int line;
    const char *file;
    char msg[IG_ERR_BYTES];
} ig_err;

/* Fills `err` (when there is one) and gives `code` back, so that a failure is one statement:
 *     return ig_fail(err, IG_EFORMAT, "%s: %u layers, limit %u", path, n, max);
 * Every failure of the program is born here: one breakpoint. */
ig_status ig_fail_at(ig_err *err, ig_status code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define ig_fail(err, code, ...) ig_fail_at((err), (code), __FILE__, __LINE__, __VA_ARGS__)

const char *ig_status_name(ig_status st); /* "invalid", "format", ... never NULL */

_Noreturn void ig_assert_failed(const char *expr, const char *file, int line);
#define ig_assert(x) ((x) ? (void)0 : ig_assert_failed(#x, __FILE__, __LINE__))

/* ---- arena.c: memory -------------------------------------------------------------------------------- */

enum { IG_ALIGN_BYTES = 64 };

/* A bump allocator over memory that someone else owns. With base == NULL it hands out nothing and only
 * counts: that is how a plan is measured. Every take is rounded up to IG_ALIGN_BYTES. */
typedef struct ig_arena {
    uint8_t *base;
    size_t used_bytes, peak_bytes, cap_bytes;
    bool counting; /* no memory: count only (base is NULL) */
} ig_arena;

/* NULL when full (nothing is taken), and NULL when only counting. Not zeroed. */
void *ig_arena_take(ig_arena *a, size_t bytes);
static inline size_t ig_arena_mark(const ig_arena *a) {
    return a->used_bytes;
}
static inline void ig_arena_rewind(ig_arena *a, size_t mark) {
    ig_assert(mark <= a->used_bytes);
    a->used_bytes = mark;
}

/* Zeroed pages from the system, with huge pages asked for when `huge`; reserved now, backed on first
 * touch. Freed by ig_pages_unmap. */
ig_status ig_pages_map(void **out, size_t bytes, bool huge, ig_err *err);
void ig_pages_unmap(void *p, size_t bytes);

/* Bytes of memory this process may still use: the least of MemAvailable and what the cgroup and the limit of the
 * address space leave. */
uint64_t ig_memory_available_bytes(void);
uint64_t ig_memory_resident_bytes(void); /* VmRSS */

/* ---- str.c: text ------------------------------------------------------------------------------------ */

typedef struct ig_slice {
    const char *p; /* not NUL-terminated */
    size_t n;
} ig_slice;

static inline ig_slice ig_slice_of(const char *s) {
    return (ig_slice){s, __builtin_strlen(s)};
}
bool ig_slice_eq(ig_slice a, ig_slice b);
bool ig_slice_eq_str(ig_slice a, const char *s);
bool ig_slice_utf8_valid(ig_slice s, size_t *bad_at); /* bad_at (may be NULL): offset of the first bad byte */
/* Bytes of the character at s that a terminal may be shown as it is, or 0: what is no UTF-8, control
 * characters (C0, DEL, C1), line separators, and marks that turn the direction of what follows. n >= 1. */
size_t ig_utf8_printable(const char *s, size_t n);
/* Text from outside becomes text for a terminal, in place: it moves nobody's cursor and, unless newlines are
 * kept, stays one line. Blanks for tabs and newlines, "?" for whatever else is not printable. */
void ig_text_calm(char *text, bool keep_newlines);
/* "96.4 MB": for people. */
typedef struct ig_size_text {
    char s[24];
} ig_size_text;
ig_size_text ig_size_text_of(uint64_t bytes);

/* A growable byte buffer with a maximum. `p` is always NUL-terminated one past `n` once anything was
 * added. Growing past n_max fails and leaves the content as it was. malloc'd: not for the engine thread. */
typedef struct ig_buf {
    char *p;
    size_t n, cap, n_max;
} ig_buf;

static inline ig_buf ig_buf_init(size_t n_max) {
    return (ig_buf){0, 0, 0, n_max};
}
bool ig_buf_add(ig_buf *b, const void *bytes, size_t n);
bool ig_buf_reserve(ig_buf *b, size_t n); /* what adds up to n bytes next cannot fail */
bool ig_buf_add_str(ig_buf *b, const char *s);
bool ig_buf_addf(ig_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ig_buf_clear(ig_buf *b); /* n = 0, memory kept */
void ig_buf_free(ig_buf *b);

/* A sequence of token ids. Text makes them, the engine eats them. */
typedef struct ig_tokens {
    uint32_t *v;
    size_t n, cap, n_max;
} ig_tokens;
bool ig_tokens_add(ig_tokens *t, uint32_t id); /* false: past n_max (0 = no bound) or no memory */
void ig_tokens_free(ig_tokens *t);

/* ---- log.c ------------------------------------------------------------------------------------------ */

typedef enum ig_log_level { IG_LOG_DEBUG, IG_LOG_INFO, IG_LOG_WARN, IG_LOG_ERROR } ig_log_level;

/* One line an event on stderr: time, level, then `fmt` written as `event key=value key="two words"`. Any
 * thread. Never a prompt's text, never a key. As JSON the same line is an object: time, level, event, then
 * the keys; a value without quotes that reads as a number is one. */
void ig_log(ig_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ig_log_set_level(ig_log_level level);
void ig_log_set_json(bool on);
bool ig_log_level_from(const char *name, ig_log_level *out); /* debug info warn error */

/* ---- clock.c ---------------------------------------------------------------------------------------- */

uint64_t ig_clock_ns(void);                     /* monotonic */
void ig_clock_fake(const _Atomic uint64_t *ns); /* tests: read this instead; NULL ends it */

/* ---- cpu.c ------------------------------------------------------------------------------------------ */

enum {
    IG_CPU_AVX2 = 1 << 0,
    IG_CPU_FMA = 1 << 1,
    IG_CPU_F16C = 1 << 2,
    IG_CPU_AVX512 = 1 << 3,      /* F, BW, VL, DQ and the system saves the registers */
    IG_CPU_AVX512_VNNI = 1 << 4, /* in zmm; found only beside AVX512 */
    IG_CPU_AVX_VNNI = 1 << 5,    /* in ymm, of its own: the VEX form */
    IG_CPU_NEON = 1 << 6,
    IG_CPU_NEON_DOTPROD = 1 << 7,
};

/* From cpuid and xgetbv, then cut down by INGLE_CPU=scalar|avx2|avxvnni|avx512|avx512vnni|neon|native. */
uint32_t ig_cpu_features(void);
/* Cores this process may use: affinity mask and cgroup v2 cpu.max, at least 1. */
int ig_cpu_count(void);
const char *ig_cpu_model(void); /* "AMD EPYC ..." or "unknown" */

/* ---- pool.c: compute threads ------------------------------------------------------------------------ */

typedef struct ig_pool ig_pool;
/* Rows [lo, hi) of the loop, on thread 0..n-1. `thread` says whose scratch to use, not which rows: a
 * thread may get several ranges of one run, or none. */
typedef void ig_pool_fn(void *arg, int lo, int hi, int thread);

/* n_threads counts the caller: n_threads - 1 are started. They spin briefly for work, then sleep. */
ig_status ig_pool_make(ig_pool **out, int n_threads, ig_err *err);
void ig_pool_free(ig_pool *p); /* NULL is fine */
int ig_pool_threads(const ig_pool *p); /* NULL counts as 1 */

/* Runs fn over [0, n) and returns when all is done. Called from one thread at a time (the engine or the
 * trainer). A thread gets a contiguous share of the range, in calls of whole grains but for the end, and then what is
 * left of the others'. p == NULL runs it here. */
void ig_pool_run(ig_pool *p, ig_pool_fn *fn, void *arg, int n, int grain);

/* ---- queue.c: bounded queue between threads --------------------------------------------------------- */

typedef struct ig_queue ig_queue;
/* Copies of items of item_bytes, first in first out, any number of threads on both sides. */
ig_status ig_queue_make(ig_queue **out, int n_max, size_t item_bytes, ig_err *err);
void ig_queue_free(ig_queue *q);
bool ig_queue_push(ig_queue *q, const void *item); /* false: full or closed; never waits */
/* False: nothing came in timeout_ns (0: do not wait, < 0: for ever), or closed and empty. */
bool ig_queue_pop(ig_queue *q, void *item, int64_t timeout_ns);
void ig_queue_close(ig_queue *q);
int ig_queue_count(ig_queue *q);

/* ---- rng.c: counter-based random numbers ------------------------------------------------------------ */

/* Threefry-2x32, 20 rounds (Salmon et al. 2011). No state: the same key and counter give the same word
 * on every machine. First and second output word. */
void ig_threefry2x32(uint32_t out[2], const uint32_t key[2], const uint32_t ctr[2]);
/* The stream of draws of a request: key = (seed high, low), counter = (step, choice * 256 + purpose);
 * first word. purpose 0 = token draw, 1 = XTC. */
uint32_t ig_rng_word(uint64_t seed, uint32_t step, uint32_t choice, uint32_t purpose);
uint64_t ig_rng_fresh_seed(void); /* 63 bits from the system */

/* ---- hash.c ----------------------------------------------------------------------------------------- */

uint64_t ig_hash64(const void *p, size_t n, uint64_t seed); /* XXH3 */

#endif
