// flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
// tuned files only
#include "kern/simd/avx512.h"

#undef SIMD_NEEDS
#undef SIMD_SPEED
#define SIMD_NEEDS (IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C | IG_CPU_AVX512 | IG_CPU_AVX512_VNNI)
/* By count: one instruction for the two or three of AVX-512 alone, at twice the width of AVX-VNNI. */
#define SIMD_SPEED 26
#define SIMD_VNNI 1
