/* cpu: what this processor can do and how much of it is ours.
 * Owns:    two facts, found once.
 * Threads: any.
 * Why cpuid and xgetbv by hand: __builtin_cpu_supports answers for the compiler's runtime, which under
 * some toolchains says "no AVX2" on a machine that has it; and a register file that the system does not
 * save is not ours to use. */
#include "base/inside.h"

#include <ctype.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static pthread_once_t features_once = PTHREAD_ONCE_INIT, model_once = PTHREAD_ONCE_INIT;
static uint32_t features;
static char model[64] = "unknown";

#if defined(__x86_64__)

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static uint32_t detect(void) {
    enum { YMM = 0x06, ZMM = 0xE6 }; /* xcr0: sse and avx; those, opmask and both halves of zmm */
    uint32_t a, b, c, d, found = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) return 0; /* OSXSAVE */
    uint64_t saved = xcr0();
    if ((saved & YMM) != YMM || !(c & 1u << 28)) return 0;
    if (c & 1u << 12) found |= IG_CPU_FMA;
    if (c & 1u << 29) found |= IG_CPU_F16C;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    uint32_t leaf7_max = a;
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (b & 1u << 5) found |= IG_CPU_AVX2;
    if ((saved & ZMM) == ZMM && (b & f_dq_bw_vl) == f_dq_bw_vl) {
        found |= IG_CPU_AVX512;
        if (c & 1u << 11) found |= IG_CPU_AVX512_VNNI;
    }
    if (leaf7_max >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 4) found |= IG_CPU_AVX_VNNI;
    return found;
}

static void read_model(char *out) {
    uint32_t r[12];
    for (uint32_t i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3])) return;
    memcpy(out, r, sizeof r);
    out[sizeof r] = '\0';
}

#elif defined(__aarch64__)

static uint32_t detect(void) {
    unsigned long caps = getauxval(AT_HWCAP);
    uint32_t found = 0;
    if (caps & 1ul << 1) found |= IG_CPU_NEON;          /* HWCAP_ASIMD */
    if (caps & 1ul << 20) found |= IG_CPU_NEON_DOTPROD; /* HWCAP_ASIMDDP */
    return found;
}

static void read_model(char *out) {
    FILE *f = fopen("/proc/device-tree/model", "re");
    if (!f) return;
    size_t n = fread(out, 1, sizeof model - 1, f);
    out[n] = '\0';
    fclose(f);
}

#else

static uint32_t detect(void) {
    return 0;
}

static void read_model(char *out) {
    (void)out;
}

#endif

bool ig_cpu_mask_from(const char *name, uint32_t *out) {
    enum { AVX2 = IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C };
    static const struct {
        const char *name;
        uint32_t mask;
    } masks[] = {{"scalar", 0},
                 {"avx2", AVX2},
                 {"avxvnni", AVX2 | IG_CPU_AVX_VNNI},
                 {"avx512", AVX2 | IG_CPU_AVX512},
                 {"avx512vnni", AVX2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI},
                 {"neon", IG_CPU_NEON},
                 {"native", UINT32_MAX}};

    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        if (strcmp(name, masks[i].name) != 0) continue;
        *out = masks[i].mask;
        return true;
    }
    return false;
}

static void find_features(void) {
    const char *want = getenv("INGLE_CPU");
    uint32_t mask = UINT32_MAX;
    if (want && *want && !ig_cpu_mask_from(want, &mask))
        ig_log(IG_LOG_WARN,
               "cpu_mask_unknown INGLE_CPU=%s known=scalar,avx2,avxvnni,avx512,avx512vnni,neon,native used=native",
               want);
    features = detect() & mask;
}

uint32_t ig_cpu_features(void) {
    pthread_once(&features_once, find_features);
    return features;
}

/* The name comes from firmware: keep what can stand in a log line, one space between words. */
static void find_model(void) {
    char raw[sizeof model] = "";
    size_t n = 0;
    read_model(raw);
    for (const char *p = raw; *p; p++) {
        bool word = isgraph((unsigned char)*p) != 0;
        if (word || (n > 0 && model[n - 1] != ' ')) model[n++] = word ? *p : ' ';
    }
    while (n > 0 && model[n - 1] == ' ') n--;
    if (n > 0) model[n] = '\0';
    else memcpy(model, "unknown", sizeof "unknown");
}

const char *ig_cpu_model(void) {
    pthread_once(&model_once, find_model);
    return model;
}

enum { AFFINITY_CPUS_MAX = 1 << 16 };

/* The kernel refuses a mask shorter than its own; no kernel has a longer one than this. */
static int affinity_count(void) {
    cpu_set_t set[AFFINITY_CPUS_MAX / CPU_SETSIZE] = {0};
    return sched_getaffinity(0, sizeof set, set) == 0 ? CPU_COUNT_S(sizeof set, set) : 1;
}

int ig_cpu_count(void) {
    int mine = affinity_count(), quota = ig_cgroup_cpus("");
    int n = mine < quota ? mine : quota;
    return n < 1 ? 1 : n;
}
