/* check_speed [--csv] [--all] [TEXT]: times the kernels that this CPU gets (--all: every one that it can run)
 * and whose name holds TEXT, on one thread: GMAC/s, GB/s, cycles, and for products the share of what the CPU's
 * multiply instruction gives alone. Best of many, thread CPU time, so that other programs hardly count.
 * The peak of int8 is vpmaddubsw's: what adds its halves up comes on top, so no kernel reaches all of it.
 * Cycles are of the clock that the core has now, by a chain of multiplies of known latency. */
#include "kern/check_rig.h"

#include <time.h>

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- peaks ------------------------------------------------------------------------------------------------- */

#define TIMES12(x, y)                                                                                        \
    x("0", y) x("1", y) x("2", y) x("3", y) x("4", y) x("5", y) x("6", y) x("7", y) x("8", y) x("9", y)      \
        x("10", y) x("11", y)

#if defined(__x86_64__)

#define CLOBBERS                                                                                             \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm14", "xmm15"
#define YMM(to, ins) ins " %%ymm15, %%ymm14, %%ymm" to "\n\t"
#define ZMM(to, ins) ins " %%zmm15, %%zmm14, %%zmm" to "\n\t"
#define PEAK(name, wide, ins)                                                                                \
    static void name(int n) {                                                                                \
        __asm__ volatile("vpxor %%xmm14, %%xmm14, %%xmm14\n\tvpxor %%xmm15, %%xmm15, %%xmm15\n\t" ::         \
                             : CLOBBERS);                                                                    \
        while (n-- > 0) __asm__ volatile(TIMES12(wide, ins)::: CLOBBERS);                                    \
        __asm__ volatile("vzeroupper" ::: CLOBBERS);                                                         \
    }
PEAK(fma_ymm, YMM, "vfmadd231ps")
PEAK(maddubs_ymm, YMM, "vpmaddubsw")
PEAK(madd_ymm, YMM, "vpmaddwd")
PEAK(dpbusd_ymm, YMM, "%{vex%} vpdpbusd")
PEAK(dpwssd_ymm, YMM, "%{vex%} vpdpwssd")
PEAK(fma_zmm, ZMM, "vfmadd231ps")
PEAK(maddubs_zmm, ZMM, "vpmaddubsw")
PEAK(madd_zmm, ZMM, "vpmaddwd")
PEAK(dpbusd_zmm, ZMM, "vpdpbusd")
PEAK(dpwssd_zmm, ZMM, "vpdpwssd")

/* 64 multiplies that wait for each other: 3 cycles each on every x86-64 of these instruction sets. */
enum { CHAIN = 64, CHAIN_CYCLES = 3 * CHAIN };
#define MUL4 "imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\t"
static void chain(int n) {
    unsigned long x = 3;
    while (n-- > 0)
        __asm__ volatile(MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4 MUL4
                         : "+r"(x));
}

#elif defined(__aarch64__)

#define CLOBBERS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v14", "v15"
#define F32(to, ins) ins " v" to ".4s, v14.4s, v15.4s\n\t"
#define I16(to, ins) ins " v" to ".4s, v14.4h, v15.4h\n\t"
#define I8(to, ins) ins " v" to ".8h, v14.8b, v15.8b\n\t"
#define DOT(to, ins) ins " v" to ".4s, v14.16b, v15.16b\n\t"
#define PEAK(name, wide, ins)                                                                                \
    static void name(int n) {                                                                                \
        __asm__ volatile("movi v14.4s, #0\n\tmovi v15.4s, #0\n\t" ::: CLOBBERS);                             \
        while (n-- > 0) __asm__ volatile(".arch armv8.2-a+dotprod\n\t" TIMES12(wide, ins)::: CLOBBERS);      \
    }
PEAK(fmla_neon, F32, "fmla")
PEAK(smlal16_neon, I16, "smlal")
PEAK(smlal8_neon, I8, "smlal")
PEAK(sdot_neon, DOT, "sdot")

enum { CHAIN = 64, CHAIN_CYCLES = CHAIN };
#define EOR4 "eor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1\n\teor %0, %0, %1\n\t"
static void chain(int n) {
    unsigned long x = 3, y = 5;
    while (n-- > 0)
        __asm__ volatile(EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4 EOR4
                         : "+r"(x)
                         : "r"(y));
}

#else
enum { CHAIN_CYCLES = 0 };
static void chain(int n) {
    (void)n;
}
#endif

typedef struct peak {
    const char *name;
    uint32_t needs;
    ig_act_kind act;
    int macs;           /* of one instruction */
    void (*run)(int n); /* n times 12 of them */
    double gmacs;
} peak;

static peak peaks[] = {
#if defined(__x86_64__)
    {"vfmadd231ps ymm", IG_CPU_AVX2 | IG_CPU_FMA, IG_ACT_F32, 8, fma_ymm, 0},
    {"vpmaddubsw ymm", IG_CPU_AVX2, IG_ACT_Q8, 32, maddubs_ymm, 0},
    {"vpmaddwd ymm", IG_CPU_AVX2, IG_ACT_Q16, 16, madd_ymm, 0},
    {"vpdpbusd ymm", IG_CPU_AVX_VNNI, IG_ACT_Q8, 32, dpbusd_ymm, 0},
    {"vpdpwssd ymm", IG_CPU_AVX_VNNI, IG_ACT_Q16, 16, dpwssd_ymm, 0},
    {"vfmadd231ps zmm", IG_CPU_AVX512, IG_ACT_F32, 16, fma_zmm, 0},
    {"vpmaddubsw zmm", IG_CPU_AVX512, IG_ACT_Q8, 64, maddubs_zmm, 0},
    {"vpmaddwd zmm", IG_CPU_AVX512, IG_ACT_Q16, 32, madd_zmm, 0},
    {"vpdpbusd zmm", IG_CPU_AVX512_VNNI, IG_ACT_Q8, 64, dpbusd_zmm, 0},
    {"vpdpwssd zmm", IG_CPU_AVX512_VNNI, IG_ACT_Q16, 32, dpwssd_zmm, 0},
#elif defined(__aarch64__)
    {"fmla", IG_CPU_NEON, IG_ACT_F32, 4, fmla_neon, 0},
    {"smlal 8 bit", IG_CPU_NEON, IG_ACT_Q8, 8, smlal8_neon, 0},
    {"smlal 16 bit", IG_CPU_NEON, IG_ACT_Q16, 4, smlal16_neon, 0},
    {"sdot", IG_CPU_NEON_DOTPROD, IG_ACT_Q8, 16, sdot_neon, 0},
#endif
    {NULL, 0, IG_ACT_F32, 0, NULL, 0}};

/* Best seconds of n turns. */
static double time_turns(void (*run)(int n), int n) {
    double best = 1e9;
    for (int t = 0; t < 40; t++) {
        const double t0 = cpu_s();
        run(n);
        const double dt = cpu_s() - t0;
        if (dt < best) best = dt;
    }
    return best;
}

/* The peak of the widest multiply that a kernel with these needs may use. */
static const peak *peak_of(uint32_t needs, ig_act_kind act) {
    const peak *best = NULL;
    for (const peak *p = peaks; p->name; p++)
        if (p->act == act && (p->needs & ~needs) == 0 && (!best || p->macs >= best->macs)) best = p;
    return best;
}

/* ---- telling ------------------------------------------------------------------------------------------------ */

static bool csv;
static double ghz; /* 0: not known */

/* One line: `macs` products or `values` of a row and `bytes` read in `s` seconds. What is 0 is left out. */
typedef struct line {
    const ig_kern *k;
    char shape[40];
    double s, macs, values, bytes;
    ig_act_kind act;
} line;

static void print_number(bool known, const char *format, int width, double x) {
    char text[32] = "";
    if (known) snprintf(text, sizeof text, format, x);
    if (csv)
        printf(",%s", text);
    else
        printf(" %*s", width, text);
}

static void tell(const line *l) {
    const double cycles = ghz * 1e9 * l->s;
    const peak *p = l->macs > 0 ? peak_of(l->k->cpu_needs, l->act) : NULL;
    if (csv)
        printf("\"%s\",%.3f,%s,%s,%s,%s", ig_cpu_model(), ghz, l->k->name, ig_kern_op_name(l->k->op),
               l->k->fmt ? l->k->fmt->name : "", l->shape);
    else
        printf("%-30s %-22s", l->k->name, l->shape);
    print_number(l->macs > 0, "%.1f", 7, l->macs / l->s * 1e-9);
    print_number(l->bytes > 0, "%.1f", 6, l->bytes / l->s * 1e-9);
    print_number(l->macs > 0 && ghz > 0, csv ? "%.5f" : "%.4f", 8, cycles / l->macs);
    print_number(l->values > 0 && ghz > 0, "%.3f", 9, cycles / l->values);
    print_number(p != NULL, csv ? "%.4f" : "%.0f %%", 7,
                 p ? l->macs / l->s * 1e-9 / p->gmacs * (csv ? 1 : 100) : 0);
    if (csv) printf(",%s", p ? p->name : "");
    putchar('\n');
    fflush(stdout);
}

static void tell_machine(uint32_t cpu) {
    if (CHAIN_CYCLES > 0) ghz = CHAIN_CYCLES * 2000.0 / time_turns(chain, 2000) * 1e-9;
    if (!csv) printf("%s, a core at %.2f GHz\n", ig_cpu_model(), ghz);
    for (peak *p = peaks; p->name; p++) {
        if (p->needs & ~cpu) continue;
        p->gmacs = 12.0 * p->macs * 20000 / time_turns(p->run, 20000) * 1e-9;
        if (!csv)
            printf("peak of %-16s %6.1f GMAC/s, %.2f a cycle\n", p->name, p->gmacs,
                   p->gmacs / p->macs / (ghz > 0 ? ghz : 1));
    }
    if (csv)
        puts("machine,ghz,kernel,op,format,shape,gmac_s,gb_s,cycles_a_mac,cycles_a_value,share_of_peak,peak");
    else
        printf("\n%-30s %-22s %7s %6s %8s %9s %7s\n", "", "", "GMAC/s", "GB/s", "cyc/MAC", "cyc/value",
               "of peak");
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

/* Best seconds of one call on m rows, panels in turn: one panel stays in the cache, many come from memory. */
static double time_linear(const ig_kern *k, const uint8_t *panels, size_t stride, int n_panels, const acts *a,
                          int m) {
    static float tile[48 * 16];
    const int n_calls = n_panels > 1 ? n_panels : k->cpu_needs ? 400 / m + 4 : 2;
    double best = 1e9;
    for (int t = 0; t < (n_panels > 1 ? 5 : 30); t++) {
        const double t0 = cpu_s();
        for (int j = 0; j < n_calls; j++)
            k->fn.linear(tile, panels + (size_t)(j % n_panels) * stride, &a->act, 0, m, a->act.n_cols);
        const double dt = (cpu_s() - t0) / n_calls;
        if (dt < best) best = dt;
    }
    return best;
}

static void bench_streaming(const ig_kern *k, guarded panel, const acts *a) {
    enum { STREAM_BYTES = 192 << 20 };
    const int n_cols = a->act.n_cols;
    const size_t bytes = ig_fmt_panel_bytes(k->fmt, n_cols), stride = (bytes + 63) / 64 * 64;
    const int n_panels = (int)(STREAM_BYTES / stride);
    uint8_t *panels = aligned_alloc(64, (size_t)n_panels * stride);
    line l = {.k = k, .macs = 16.0 * n_cols, .bytes = (double)bytes, .act = k->fmt->act};
    for (int i = 0; i < n_panels; i++) memcpy(panels + (size_t)i * stride, panel.p, bytes);
    l.s = time_linear(k, panels, stride, n_panels, a, 1);
    snprintf(l.shape, sizeof l.shape, "1 row; from memory");
    tell(&l);
    free(panels);
}

static void bench_linear(const ig_kern *k) {
    static const int rows[] = {1, 2, 4, 48}, cols[] = {640, 2048};
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
        const int n_cols = cols[c] / k->fmt->panel_group * k->fmt->panel_group;
        uint8_t *file = malloc(ig_fmt_row_bytes(k->fmt, n_cols) * IG_PANEL_ROWS);
        guarded panel = random_panel(k->fmt, n_cols, file, ORDINARY);
        acts a = random_acts(48, n_cols);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            line l = {.k = k, .macs = rows[i] * 16.0 * n_cols, .act = k->fmt->act};
            if (rows[i] == 1) l.bytes = (double)ig_fmt_panel_bytes(k->fmt, n_cols);
            l.s = time_linear(k, panel.p, 0, 1, &a, rows[i]);
            snprintf(l.shape, sizeof l.shape, "%d row%s; K %d", rows[i], rows[i] > 1 ? "s" : "", n_cols);
            tell(&l);
        }
        if (k->cpu_needs && n_cols > 1024) bench_streaming(k, panel, &a);
        free(file), free_acts(a), unguard(panel);
    }
}

static void bench_matmul(const ig_kern *k) {
    static const int shape[][3] = {{48, 256, 64}, {48, 64, 576}, {16, 64, 64}};
    enum { FLOATS = 1 << 16 };
    float *a = aligned_alloc(64, FLOATS * 12);
    const int n_calls = k->cpu_needs ? 40 : 1;
    for (int i = 0; i < 3 * FLOATS; i++) a[i] = bell();
    for (int s = 0; s < 6; s++) {
        const int m = shape[s / 2][0], n = shape[s / 2][1], kk = shape[s / 2][2];
        ig_matmul_args g = {a, a + FLOATS, a + 2 * FLOATS, (size_t)n, 1, 1, (size_t)n + 16, m, n, kk, true};
        line l = {.k = k, .s = 1e9, .macs = (double)m * n * kk, .act = IG_ACT_F32};
        *(s % 2 ? &g.a_k : &g.a_row) = s % 2 ? (size_t)m : (size_t)kk;
        for (int t = 0; t < (k->cpu_needs ? 60 : 2); t++) {
            const double t0 = cpu_s();
            for (int j = 0; j < n_calls; j++) k->fn.matmul(&g);
            const double dt = (cpu_s() - t0) / n_calls;
            if (dt < l.s) l.s = dt;
        }
        snprintf(l.shape, sizeof l.shape, "[%d %d %d]%s", m, n, kk, s % 2 ? " A turned" : "");
        tell(&l);
    }
    free(a);
}

static void bench_attention(const ig_kern *k) {
    enum { N_Q = 48, D = 64, CTX = 512 };
    static float q[N_Q * D], y[N_Q * D];
    static int pos[N_Q];
    float *s = aligned_alloc(64, (ig_attention_scratch_floats(N_Q, D, k->fmt ? CTX : 0) * 4 + 63) / 64 * 64);
    for (int i = 0; i < N_Q * D; i++) q[i] = bell();
    for (int i = 0; i < N_Q; i++) pos[i] = CTX - 1;
    for (int shape = 0; shape < (k->fmt ? 2 : 4); shape++) { /* of tier l1 no 8 bits */
        const int n_q = shape % 2 ? N_Q : 3;
        const ig_kv_kind kind = k->fmt == &ig_fmt_bf16 ? IG_KV_BF16 : shape < 2 ? IG_KV_F16 : IG_KV_8;
        keys kv = random_keys(CTX / 64, D, kind);
        ig_attention_args a = {.out = y, .q = q, .pos = pos, .n_q = n_q, .head_dim = D, .kind = kind,
                               .block = kv.block, .scratch = s};
        line l = {.k = k, .s = 1e9, .macs = 2.0 * n_q * CTX * D, .act = IG_ACT_F32,
                  .bytes = (double)(CTX / 64 * 2 * ig_kv_part_bytes(kind, D))};
        for (int t = 0; t < (k->cpu_needs ? 200 : 2); t++) {
            const double t0 = cpu_s();
            k->fn.attention(&a);
            const double dt = cpu_s() - t0;
            if (dt < l.s) l.s = dt;
        }
        snprintf(l.shape, sizeof l.shape, "%d queries; %d keys%s", n_q, CTX, kind == IG_KV_8 ? ", 8 bits" : "");
        tell(&l);
        free(kv.mem), free(kv.block);
    }
    free(s);
}

/* Once over a row that stays in the cache. */
static void bench_row(const ig_kern *k) {
    enum { N = 1536, CALLS = 50 };
    static float x[2 * N], w[2 * N], y[2 * N];
    static char first[32];
    line l = {.k = k, .s = 1e9, .values = N};
    for (int i = 0; i < 2 * N; i++) x[i] = bell(), w[i] = bell();
    for (int t = 0; t < (k->cpu_needs ? 60 : 3); t++) {
        const double t0 = cpu_s();
        for (int i = 0; i < CALLS; i++)
            if (k->op == IG_KERN_ARGMAX)
                y[0] = (float)k->fn.argmax(x, N);
            else if (!run_row(k, (uint8_t *)y, x, w, N))
                return;
        const double dt = (cpu_s() - t0) / CALLS;
        if (dt < l.s) l.s = dt;
    }
    snprintf(l.shape, sizeof l.shape, "%d values", N);
    memcpy(first, y, sizeof first); /* somebody reads what was computed */
    tell(&l);
}

static void bench(const ig_kern *k) {
    if (k->op == IG_KERN_LINEAR)
        bench_linear(k);
    else if (k->op == IG_KERN_MATMUL)
        bench_matmul(k);
    else if (k->op == IG_KERN_ATTENTION)
        bench_attention(k);
    else
        bench_row(k);
}

int main(int argc, char **argv) {
    const uint32_t cpu = ig_cpu_features();
    const char *text = "";
    const ig_kern *k;
    bool all = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--csv") == 0)
            csv = true;
        else if (strcmp(argv[i], "--all") == 0)
            all = true;
        else if (argv[i][0] == '-')
            return fprintf(stderr, "check_speed [--csv] [--all] [TEXT]\n"), 2;
        else
            text = argv[i];
    }
    tell_machine(cpu);
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++)
        if ((k->cpu_needs & ~cpu) == 0 && strstr(k->name, text) &&
            (all || k == ig_kern_pick(k->op, k->fmt, IG_TIER_L3, cpu)))
            bench(k);
    return 0;
}
