/* XXH3 by its known answers, and that nothing of the input is overlooked. */
#include "base/test.h"

#include <string.h>

TEST(the_hash_is_xxh3) {
    CHECK(ig_hash64("", 0, 0) == 0x2d06800538d394c2);
    CHECK(ig_hash64("a", 1, 0) == 0xe6c632b61e964e1f);
    CHECK(ig_hash64("abc", 3, 0) == 0x78af5f94892f3950);
}

TEST(the_hash_sees_every_byte_the_length_and_the_seed) {
    uint8_t bytes[1024] = {0};
    static const size_t sizes[] = {1, 8, 16, 128, 129, 240, 241, 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        uint64_t h = ig_hash64(bytes, n, 7);
        CHECK(h != ig_hash64(bytes, n, 8) && h != ig_hash64(bytes, n - 1, 7) && h == ig_hash64(bytes, n, 7));
        for (size_t at = 0; at < n; at++) {
            bytes[at] = 1;
            CHECK_MSG(h != ig_hash64(bytes, n, 7), "byte %zu of %zu", at, n);
            bytes[at] = 0;
        }
    }
}
