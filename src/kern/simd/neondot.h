// flags: -march=armv8.2-a+dotprod
#include "kern/simd/neon.h"

#undef SIMD_NEEDS
#undef SIMD_SPEED
#define SIMD_NEEDS (IG_CPU_NEON | IG_CPU_NEON_DOTPROD)
#define SIMD_SPEED 21
