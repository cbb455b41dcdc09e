/* linear_q4_tile for this ISA. */
#include "kern/tuned/linear_q4_tile16.h"
