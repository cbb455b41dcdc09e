/* hash: XXH3, for names of blocks and checksums of our own files. Not against an adversary.
 * Threads: any.
 * Why inlined: one function of a library is no reason to need it at run time. */
#include "base/base.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t ig_hash64(const void *p, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(p, n, seed);
}
