/* Features against what the kernel says; masks in processes of their own, since they are read once. */
#include "base/inside.h"
#include "base/test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the kernel says this CPU has: an answer that does not come from our own cpuid. */
static bool kernel_says(const char *flag) {
    static char line[8192];
    bool found = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
        for (char *save, *w = strtok_r(line, " \t\n", &save); w && !found; w = strtok_r(NULL, " \t\n", &save))
            found = strcmp(w, flag) == 0;
    }
    fclose(f);
    return found;
}

TEST(inner_the_features_are_those_the_kernel_names) {
    if (getenv("INGLE_CPU")) SKIP("INGLE_CPU is set");
    if (ig_test_emulator()) SKIP("/proc/cpuinfo describes another machine");
    uint32_t f = ig_cpu_features();
    bool avx512 = kernel_says("avx512f") && kernel_says("avx512bw") && kernel_says("avx512dq") &&
                  kernel_says("avx512vl");
    CHECK(!!(f & IG_CPU_AVX2) == kernel_says("avx2"));
    CHECK(!!(f & IG_CPU_FMA) == kernel_says("fma"));
    CHECK(!!(f & IG_CPU_F16C) == kernel_says("f16c"));
    CHECK(!!(f & IG_CPU_AVX512) == avx512);
    CHECK(!!(f & IG_CPU_AVX512_VNNI) == (avx512 && kernel_says("avx512_vnni")));
    CHECK(!!(f & IG_CPU_AVX_VNNI) == kernel_says("avx_vnni"));
    CHECK(!!(f & IG_CPU_NEON) == kernel_says("asimd"));
    CHECK(!!(f & IG_CPU_NEON_DOTPROD) == kernel_says("asimddp"));
}

TEST(each_word_of_the_mask_is_known_and_no_other) {
    const uint32_t avx2 = IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C;
    uint32_t mask = 7;
    CHECK(ig_cpu_mask_from("scalar", &mask) && mask == 0);
    CHECK(ig_cpu_mask_from("avx2", &mask) && mask == avx2);
    CHECK(ig_cpu_mask_from("avxvnni", &mask) && mask == (avx2 | IG_CPU_AVX_VNNI));
    CHECK(ig_cpu_mask_from("avx512", &mask) && mask == (avx2 | IG_CPU_AVX512));
    CHECK(ig_cpu_mask_from("avx512vnni", &mask) && mask == (avx2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI));
    CHECK(ig_cpu_mask_from("neon", &mask) && mask == IG_CPU_NEON);
    CHECK(ig_cpu_mask_from("native", &mask) && mask == UINT32_MAX);
    mask = 7;
    CHECK(!ig_cpu_mask_from("AVX2", &mask) && !ig_cpu_mask_from("", &mask));
    CHECK(!ig_cpu_mask_from("avx", &mask) && mask == 7);
}

/* Runs only inside the tests below, in a process of its own: the features are found once. */
TEST(inner_features_printed) {
    if (!getenv("INGLE_CPU")) return;
    printf("features=%x again=%x\n", ig_cpu_features(), ig_cpu_features());
}

static uint32_t features_under(const char *value, char *said, size_t cap) {
    uint32_t f = UINT32_MAX, again = 0;
    CHECK(ig_test_rerun("inner_features_printed", "INGLE_CPU", value, said, cap) == 0);
    const char *at = strstr(said, "features=");
    CHECK_MSG(at && sscanf(at, "features=%x again=%x", &f, &again) == 2 && f == again, "%s", said);
    return f;
}

TEST(the_environment_cuts_the_features_down) {
    char said[4096];
    uint32_t all = features_under("native", said, sizeof said);
    CHECK(!strstr(said, "cpu_mask_unknown"));
    CHECK(features_under("scalar", said, sizeof said) == 0);
    CHECK(features_under("avx2", said, sizeof said) == (all & (IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C)));
    CHECK((features_under("avx512", said, sizeof said) & ~all) == 0);
    CHECK(features_under("", said, sizeof said) == all && !strstr(said, "cpu_mask_unknown"));
}

TEST(an_unknown_mask_is_ignored_with_one_warning) {
    char said[4096];
    uint32_t all = features_under("native", said, sizeof said);
    CHECK(features_under("avx3\nx", said, sizeof said) == all);
    const char *at = strstr(said, "warn  cpu_mask_unknown INGLE_CPU=avx3\\nx");
    CHECK_MSG(at && !strstr(at + 20, "cpu_mask_unknown"), "%s", said);
}

TEST(the_model_has_a_printable_name) {
    const char *name = ig_cpu_model();
    size_t n = strlen(name);
    CHECK(n > 0 && n < 64 && name[0] != ' ' && name[n - 1] != ' ');
    for (const char *p = name; *p; p++) CHECK(*p >= 0x20 && *p < 0x7F);
    CHECK(name == ig_cpu_model());
}

TEST(the_count_follows_the_affinity_mask) {
    cpu_set_t before, one;
    if (sched_getaffinity(0, sizeof before, &before) != 0) SKIP("this machine has more CPUs than cpu_set_t");
    int n = CPU_COUNT(&before), cpu = 0;
    CHECK(ig_cpu_count() >= 1 && ig_cpu_count() <= n);
    while (!CPU_ISSET(cpu, &before)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (!CHECK(sched_setaffinity(0, sizeof one, &one) == 0)) return;
    CHECK(ig_cpu_count() == 1);
    sched_setaffinity(0, sizeof before, &before);
}
