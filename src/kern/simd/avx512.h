// flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
// tuned files only: a vf has 8 lanes by definition, and 8 lanes are AVX2's
#include "kern/simd/avx2.h"

#undef SIMD_NEEDS
#undef SIMD_SPEED
#define SIMD_NEEDS (IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C | IG_CPU_AVX512)
/* Above AVX2 by count, and never timed here: half the instructions. The processors that have this and no VNNI slow
 * down for it, by about 15 % at worst below AVX2's clock; with two 512-bit units two ports of twice the width win, with
 * one they tie before the clock and INGLE_CPU=avx2 is the better choice. */
#define SIMD_SPEED 22
#define SIMD_ZMM 1
