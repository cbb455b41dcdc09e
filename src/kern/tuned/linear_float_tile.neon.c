/* linear_float_tile.h for NEON. */
#include "kern/tuned/linear_float_tile.h"
