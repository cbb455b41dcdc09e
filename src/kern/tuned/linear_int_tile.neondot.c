/* linear_int_tile for this ISA. */
#include "kern/tuned/linear_int_tile.h"
