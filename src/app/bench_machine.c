/* bench_machine: what this machine gives, and why the program chose as it did.
 * Owns:    the measuring of memory bandwidth.
 * Threads: the pool's, each with its own contiguous part, as weights are read.
 * Memory:  one mapping of several times the caches, given back.
 * Why reading and nothing else: a decode step reads weights and writes next to nothing. */
#include "app/bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- bandwidth --------------------------------------------------------------------------------------- */

typedef uint64_t lanes __attribute__((vector_size(32)));
enum { LANES_EACH = 4, PIECE_LANES = 1 << 12, GRAIN = 8 }; /* pieces of 128 kB */
enum { PASSES = 8, ENOUGH_NS = 1000000000, BYTES_LEAST = 64 << 20, BYTES_MOST = 1 << 30, CACHES = 8 };

typedef struct memory_job {
    lanes *p;
    _Atomic uint64_t sum; /* so that reading is not for nothing */
} memory_job;

static void touch_part(void *arg, int lo, int hi, int thread) {
    memory_job *j = arg;
    (void)thread;
    memset(j->p + (size_t)lo * PIECE_LANES, 1, (size_t)(hi - lo) * PIECE_LANES * sizeof *j->p);
}

static void read_part(void *arg, int lo, int hi, int thread) {
    memory_job *j = arg;
    const lanes *p = j->p + (size_t)lo * PIECE_LANES, *end = j->p + (size_t)hi * PIECE_LANES;
    lanes s[LANES_EACH] = {{0}};
    (void)thread;
    for (; p < end; p += LANES_EACH)
        for (int i = 0; i < LANES_EACH; i++) s[i] ^= p[i];
    uint64_t sum = 0;
    for (int i = 0; i < LANES_EACH; i++) sum ^= s[i][0] ^ s[i][1] ^ s[i][2] ^ s[i][3];
    j->sum += sum;
}

/* Far larger than the caches, and a quarter of what is free at most. */
static size_t bytes_to_read(void) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t bytes = (uint64_t)BYTES_MOST / 2;
    if (cache > 0 && (uint64_t)cache * CACHES > bytes) bytes = (uint64_t)cache * CACHES;
    if (bytes > BYTES_MOST) bytes = BYTES_MOST;
    if (bytes > ig_memory_available_bytes() / 4) bytes = ig_memory_available_bytes() / 4;
    return (size_t)bytes / (PIECE_LANES * sizeof(lanes)) * (PIECE_LANES * sizeof(lanes));
}

double ig_bench_bandwidth(ig_pool *pool) {
    const size_t bytes = bytes_to_read();
    const int n = (int)(bytes / (PIECE_LANES * sizeof(lanes)));
    memory_job job = {.p = NULL};
    void *map = NULL;
    uint64_t best_ns = UINT64_MAX, spent_ns = 0;
    if (bytes < BYTES_LEAST || ig_pages_map(&map, bytes, true, NULL) != IG_OK) return 0;
    job.p = map;
    ig_pool_run(pool, touch_part, &job, n, GRAIN);
    for (int i = 0; i < PASSES && (i < 2 || spent_ns < ENOUGH_NS); i++) {
        const uint64_t since_ns = ig_clock_ns();
        ig_pool_run(pool, read_part, &job, n, GRAIN);
        const uint64_t ns = ig_clock_ns() - since_ns;
        if (ns < best_ns) best_ns = ns;
        spent_ns += ns;
    }
    ig_pages_unmap(map, bytes);
    return (double)bytes * 1e9 / (double)(best_ns ? best_ns : 1);
}

/* ---- company ----------------------------------------------------------------------------------------- */

static double seconds(struct timeval t) {
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

ig_bench_look ig_bench_look_now(void) {
    ig_bench_look look = {.all_s = -1, .ns = ig_clock_ns()};
    unsigned long long
        t[8]; /* user, nice, system, idle, iowait, irq, softirq, steal; of all cores since boot */
    struct rusage own;
    FILE *f = fopen("/proc/stat", "re");
    if (f) {
        if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
                   &t[6], &t[7]) == 8)
            look.all_s = (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
        fclose(f);
    }
    if (getrusage(RUSAGE_SELF, &own) == 0) look.own_s = seconds(own.ru_utime) + seconds(own.ru_stime);
    return look;
}

double ig_bench_others(ig_bench_look since) {
    const ig_bench_look now = ig_bench_look_now();
    if (now.all_s < 0 || since.all_s < 0 || now.ns <= since.ns) return -1;
    const double others_s = (now.all_s - since.all_s) - (now.own_s - since.own_s);
    return others_s <= 0 ? 0 : others_s * 1e9 / (double)(now.ns - since.ns);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

ig_bench_text ig_bench_why_threads(int n_threads, bool asked) {
    enum { AFFINITY_CPUS_MAX = 1 << 16 };
    cpu_set_t set[AFFINITY_CPUS_MAX / CPU_SETSIZE] = {0};
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int mask = sched_getaffinity(0, sizeof set, set) == 0 ? CPU_COUNT_S(sizeof set, set) : 0;
    const int usable = ig_cpu_count();
    ig_bench_text t;
    int n = 0;
    if (asked && n_threads != usable)
        n = snprintf(t.s, sizeof t.s, "asked for; this process may use %d: ", usable);
    if (usable < mask)
        snprintf(t.s + n, sizeof t.s - (size_t)n, "the cgroup's CPU quota is worth %d of %ld cores", usable,
                 online);
    else if (mask < online)
        snprintf(t.s + n, sizeof t.s - (size_t)n, "the affinity mask has %d of %ld cores", mask, online);
    else
        snprintf(t.s + n, sizeof t.s - (size_t)n, "all cores; no affinity mask or CPU quota below that");
    return t;
}

/* ---- instruction set, kernels ------------------------------------------------------------------------ */

/* What does not fit is cut. */
static void add_words(ig_bench_text *t, const char *text) {
    size_t n = strlen(t->s), more = strlen(text);
    if (n > 0 && n + 1 < sizeof t->s) t->s[n++] = ' ';
    if (more > sizeof t->s - 1 - n) more = sizeof t->s - 1 - n;
    memcpy(t->s + n, text, more);
    t->s[n + more] = '\0';
}

ig_bench_text ig_bench_features(uint32_t cpu) {
    ig_bench_text t = {""};
    for (uint32_t bit = 1; ig_app_feature_name(bit); bit <<= 1)
        if (cpu & bit) add_words(&t, ig_app_feature_name(bit));
    return t;
}

typedef struct work_by_isa {
    struct {
        const char *isa;
        double macs;
    } v[16];
    int n;
} work_by_isa;

static const char *isa_of(const ig_kern *k) {
    const char *dot = strrchr(k->name, '.');
    return dot ? dot + 1 : k->name;
}

static void add_work(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    work_by_isa *all = ud;
    int i = 0;
    (void)op;
    if (!w) return;
    while (i < all->n && strcmp(all->v[i].isa, isa_of(k)) != 0) i++;
    if (i == sizeof all->v / sizeof *all->v) return;
    if (i == all->n) all->v[all->n++].isa = isa_of(k);
    all->v[i].macs += (double)w->n_rows * w->n_cols;
}

ig_bench_text ig_bench_isa(const ig_model *m) {
    work_by_isa all = {.n = 0};
    ig_bench_text t = {""};
    int most = 0;
    ig_model_trace(m, add_work, &all);
    for (int i = 1; i < all.n; i++)
        if (all.v[i].macs > all.v[most].macs) most = i;
    if (all.n > 0) add_words(&t, all.v[most].isa);
    return t;
}

ig_bench_text ig_bench_why_isa(uint32_t cpu) {
    const char *asked = getenv("INGLE_CPU");
    const ig_kern *k;
    uint32_t known = 0;
    ig_bench_text t = {""};
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++) known |= k->cpu_needs;
    if (asked && *asked) snprintf(t.s, sizeof t.s, "INGLE_CPU=%.40s:", asked);
    add_words(&t, "this CPU has");
    add_words(&t, cpu ? ig_bench_features(cpu).s : "no vector units that we use");
    if (known & ~cpu) add_words(&t, asked && *asked ? "and may not use" : "and lacks");
    if (known & ~cpu) add_words(&t, ig_bench_features(known & ~cpu).s);
    return t;
}

ig_bench_text ig_bench_why_kernel(const ig_kern *k, uint32_t cpu) {
    const ig_kern *other;
    uint32_t missing = 0;
    int n_here = 0, n_elsewhere = 0;
    ig_bench_text t;
    for (int i = 0; (other = ig_kern_at(i)) != NULL; i++) {
        if (other->op != k->op || other->fmt != k->fmt) continue;
        const uint32_t lacks = other->cpu_needs & ~cpu;
        n_here += !lacks;
        n_elsewhere += lacks != 0;
        missing |= lacks;
    }
    int n = n_here > 1 ? snprintf(t.s, sizeof t.s, "ranked first of %d here", n_here)
                       : snprintf(t.s, sizeof t.s, "the only one here");
    if (n_elsewhere) {
        snprintf(t.s + n, sizeof t.s - (size_t)n, "; %d need%s", n_elsewhere, n_elsewhere == 1 ? "s" : "");
        add_words(&t, ig_bench_features(missing).s);
    }
    return t;
}

static void add_kernel(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    ig_bench_kernels *all = ud;
    int i = 0;
    (void)w;
    while (i < all->n && (all->v[i].kern != k || strcmp(all->v[i].op, op) != 0)) i++;
    if (i == IG_BENCH_KERNELS_MAX) return;
    if (i == all->n) all->v[all->n++] = (struct ig_bench_kernel){op, k, 0};
    all->v[i].n++;
}

void ig_bench_kernels_of(ig_bench_kernels *out, const ig_model *m) {
    out->n = 0;
    ig_model_trace(m, add_kernel, out);
}
