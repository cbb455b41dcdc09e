/* linear_float_tile.h for AVX2. */
#include "kern/tuned/linear_float_tile.h"
