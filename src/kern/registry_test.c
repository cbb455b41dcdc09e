/* The choice by the processor's bits alone: what each kind of machine would run, on this one too. */
#include "base/test.h"
#include "kern/kern.h"

#include <string.h>

#if defined(__x86_64__)

enum { AVX2 = IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C };

static bool runs(ig_kern_op op, const char *fmt, uint32_t cpu, const char *isa) {
    const ig_fmt *f = NULL;
    for (int i = 0; fmt && (f = ig_fmt_at(i)) != NULL && strcmp(f->name, fmt) != 0;) i++;
    const ig_kern *k = ig_kern_pick(op, f, IG_TIER_L3, cpu);
    const char *got = strrchr(k->name, '.') + 1;
    return CHECK_MSG(strcmp(got, isa) == 0, "%s and not %s", k->name, isa);
}

TEST(each_machine_gets_the_widest_tile_it_can_run) {
    static const char *const integers[] = {"q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0", "iq4_nl",
                                           "iq4_xs", "affine4g64", "affine5g32", "affine6g64", "affine8g128_f32"};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        runs(IG_KERN_LINEAR, integers[i], 0, "scalar");
        runs(IG_KERN_LINEAR, integers[i], AVX2, "avx2");
        runs(IG_KERN_LINEAR, integers[i], AVX2 | IG_CPU_AVX_VNNI, "avxvnni");
        runs(IG_KERN_LINEAR, integers[i], AVX2 | IG_CPU_AVX512, "avx512");
        runs(IG_KERN_LINEAR, integers[i], AVX2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI, "avx512vnni");
        runs(IG_KERN_LINEAR, integers[i], UINT32_MAX & ~(uint32_t)(IG_CPU_NEON | IG_CPU_NEON_DOTPROD), "avx512vnni");
    }
    runs(IG_KERN_LINEAR, "bf16", AVX2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI, "avx512");
    runs(IG_KERN_LINEAR, "q2_k", AVX2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI, "avx2");
    runs(IG_KERN_MATMUL, NULL, AVX2 | IG_CPU_AVX512, "avx512");
    runs(IG_KERN_NORM, NULL, AVX2 | IG_CPU_AVX512, "avx2");
}

TEST(half_of_what_a_kernel_needs_is_not_enough) {
    runs(IG_KERN_LINEAR, "q4_0", IG_CPU_AVX2 | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI, "scalar");
    runs(IG_KERN_LINEAR, "q4_0", AVX2 | IG_CPU_AVX512_VNNI, "avx2");
}

#else

TEST(each_machine_gets_the_widest_tile_it_can_run) { SKIP("the sets of x86-64"); }

#endif
