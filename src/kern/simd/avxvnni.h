// flags: -mavx2 -mfma -mf16c -mavxvnni
// tuned files only
#include "kern/simd/avx2.h"

#undef SIMD_NEEDS
#undef SIMD_SPEED
#define SIMD_NEEDS (IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C | IG_CPU_AVX_VNNI)
/* By count: one instruction for AVX2's two, on processors that have no AVX-512. */
#define SIMD_SPEED 24
#define SIMD_VNNI 1
