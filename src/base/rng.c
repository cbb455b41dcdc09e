/* rng: Threefry-2x32-20 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
 * 2011), and seeds from the system.
 * Threads: any; there is no state.
 * Why counters and not a state: the draw of a step must not depend on which other rows were in the
 * batch, or on a step that was taken back. */
#include "base/base.h"

#include <errno.h>
#include <sys/random.h>

static uint32_t rotl(uint32_t x, int r) {
    return x << r | x >> (32 - r);
}

void ig_threefry2x32(uint32_t out[2], const uint32_t key[2], const uint32_t ctr[2]) {
    static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t k[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    uint32_t x0 = ctr[0] + k[0], x1 = ctr[1] + k[1];

    for (uint32_t group = 0; group < 5; group++) {
        for (int i = 0; i < 4; i++) {
            x0 += x1;
            x1 = rotl(x1, rotations[group % 2][i]) ^ x0;
        }
        x0 += k[(group + 1) % 3];
        x1 += k[(group + 2) % 3] + group + 1;
    }
    out[0] = x0;
    out[1] = x1;
}

uint32_t ig_rng_word(uint64_t seed, uint32_t step, uint32_t choice, uint32_t purpose) {
    ig_assert(choice < 1u << 24 && purpose < 256); /* or two draws would share a word */
    const uint32_t key[2] = {(uint32_t)(seed >> 32), (uint32_t)seed};
    const uint32_t ctr[2] = {step, choice * 256u + purpose};
    uint32_t out[2];
    ig_threefry2x32(out, key, ctr);
    return out[0];
}

uint64_t ig_rng_fresh_seed(void) {
    uint64_t seed = 0;
    ssize_t n;
    do n = getrandom(&seed, sizeof seed, 0);
    while (n < 0 && errno == EINTR);
    ig_assert(n == (ssize_t)sizeof seed); /* 8 bytes always come whole; a clock would repeat itself */
    return seed >> 1;
}
