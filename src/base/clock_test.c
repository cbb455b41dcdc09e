/* The real clock and the fake one. */
#include "base/test.h"

#include <time.h>

TEST(the_clock_does_not_go_back) {
    uint64_t before = ig_clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = ig_clock_ns();
        CHECK(now >= before);
        before = now;
    }
}

TEST(the_clock_counts_nanoseconds) {
    struct timespec t;
    uint64_t before = ig_clock_ns();
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    CHECK(before <= ns && ns <= ig_clock_ns());
}

TEST(a_fake_clock_is_read_until_it_is_taken_away) {
    _Atomic uint64_t fake = 5;
    uint64_t real = ig_clock_ns();
    ig_clock_fake(&fake);
    CHECK(ig_clock_ns() == 5);
    atomic_store(&fake, 77);
    CHECK(ig_clock_ns() == 77);
    ig_clock_fake(NULL);
    CHECK(ig_clock_ns() >= real);
}
