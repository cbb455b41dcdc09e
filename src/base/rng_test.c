/* Known answers of the authors, of mlx, and of our own stream. */
#include "base/test.h"

/* Known answers of the authors' Random123 package (kat_vectors, threefry2x32 20). */
TEST(threefry_gives_the_published_words) {
    static const struct { uint32_t ctr[2], key[2], out[2]; } cases[] = {
        {{0, 0}, {0, 0}, {0x6b200159, 0x99ba4efe}},
        {{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x1cb996fc, 0xbb002be7}},
        {{0x243f6a88, 0x85a308d3}, {0x13198a2e, 0x03707344}, {0xc4923a9c, 0x483df7a0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[2];
        ig_threefry2x32(out, cases[i].key, cases[i].ctr);
        CHECK_MSG(out[0] == cases[i].out[0] && out[1] == cases[i].out[1], "case %zu: %08x %08x", i, out[0],
                  out[1]);
    }
}

/* mlx.random.bits of key(42), five words: counters (i, i + 3), first words and then second words. */
TEST(threefry_gives_the_words_of_mlx) {
    static const uint32_t want[5] = {0xbad56946, 0xde837c89, 0x3249c374, 0x354ba891, 0x2fc69b62};
    const uint32_t key[2] = {0, 42}, ctr[3][2] = {{0, 3}, {1, 4}, {2, 0}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[2];
        ig_threefry2x32(out, key, ctr[i]);
        CHECK_MSG(out[0] == want[i], "word %d: %08x", i, out[0]);
        if (i + 3 < 5) CHECK_MSG(out[1] == want[i + 3], "word %d: %08x", i + 3, out[1]);
    }
}

TEST(output_may_stand_where_the_counter_stood) {
    uint32_t word[2] = {0, 0};
    const uint32_t key[2] = {0, 0};
    ig_threefry2x32(word, key, word);
    CHECK(word[0] == 0x6b200159 && word[1] == 0x99ba4efe);
}

TEST(a_draw_depends_on_seed_step_choice_and_purpose) {
    CHECK(ig_rng_word(42, 0, 0, 0) == 0x6d3e048f);
    CHECK(ig_rng_word(42, 1, 0, 0) == 0x19a3f86f);
    CHECK(ig_rng_word(42, 0, 1, 0) == 0xcf5303cb);
    CHECK(ig_rng_word(42, 0, 0, 1) == 0x03d7b32d);
    CHECK(ig_rng_word(0x13198a2e03707344, 0x243f6a88, 0x85a308, 0xd3) == 0xc4923a9c);
}

static void draw_past_the_choices(void) {
    ig_rng_word(1, 0, 1u << 24, 0);
}

static void draw_past_the_purposes(void) {
    ig_rng_word(1, 0, 0, 256);
}

TEST(draws_that_would_share_a_word_are_a_broken_promise) {
    CHECK(ig_test_aborts(draw_past_the_choices) && ig_test_aborts(draw_past_the_purposes));
}

TEST(fresh_seeds_have_63_bits_and_do_not_repeat) {
    uint64_t seen[64], all = 0;
    for (int i = 0; i < 64; i++) {
        seen[i] = ig_rng_fresh_seed();
        all |= seen[i];
        CHECK(seen[i] >> 63 == 0);
        for (int k = 0; k < i; k++) CHECK(seen[k] != seen[i]);
    }
    CHECK(all == UINT64_MAX >> 1);
}
