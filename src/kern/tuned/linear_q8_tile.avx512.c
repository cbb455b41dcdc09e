/* linear_q8_tile for this ISA. */
#include "kern/tuned/linear_q8_tile16.h"
