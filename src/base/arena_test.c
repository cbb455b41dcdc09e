/* The arena at its limits, and pages that end where they should. */
#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static _Alignas(IG_ALIGN_BYTES) uint8_t buffer[1024];

TEST(a_take_is_rounded_up_to_a_line) {
    ig_arena a = {.base = buffer, .cap_bytes = sizeof buffer};
    CHECK(ig_arena_take(&a, 1) == buffer && a.used_bytes == 64);
    CHECK(ig_arena_take(&a, 64) == buffer + 64 && a.used_bytes == 128);
    CHECK(ig_arena_take(&a, 65) == buffer + 128 && a.used_bytes == 256);
    CHECK(ig_arena_take(&a, 0) == buffer + 256 && a.used_bytes == 256);
}

TEST(a_full_arena_refuses_and_takes_nothing) {
    ig_arena a = {.base = buffer, .cap_bytes = 64};
    CHECK(ig_arena_take(&a, 65) == NULL && a.used_bytes == 0 && a.peak_bytes == 0);
    CHECK(ig_arena_take(&a, 64) == buffer);
    CHECK(ig_arena_take(&a, 1) == NULL && a.used_bytes == 64);
}

TEST(every_capacity_below_enough_refuses) {
    for (size_t cap = 0; cap <= 320; cap++) {
        ig_arena a = {.base = buffer, .cap_bytes = cap};
        bool all = ig_arena_take(&a, 100) && ig_arena_take(&a, 10) && ig_arena_take(&a, 128);
        CHECK_MSG(all == (cap >= 320), "capacity %zu", cap);
        CHECK_MSG(a.used_bytes <= cap && a.peak_bytes <= cap, "capacity %zu", cap);
    }
}

TEST(sizes_near_the_end_of_the_address_space_do_not_wrap) {
    for (size_t below = 0; below < 200; below++) {
        ig_arena a = {.base = buffer, .cap_bytes = sizeof buffer};
        CHECK(ig_arena_take(&a, 64) != NULL);
        CHECK(ig_arena_take(&a, SIZE_MAX - below) == NULL && a.used_bytes == 64);
    }
}

TEST(a_counting_arena_counts_what_a_real_one_uses) {
    static const size_t sizes[] = {1, 0, 63, 64, 65, 200};
    ig_arena real = {.base = buffer, .cap_bytes = sizeof buffer}, plan = {.counting = true};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(ig_arena_take(&real, sizes[i]) != NULL);
        CHECK(ig_arena_take(&plan, sizes[i]) == NULL);
        CHECK(plan.used_bytes == real.used_bytes && plan.peak_bytes == real.peak_bytes);
    }
}

TEST(a_plan_beyond_all_memory_stays_there) {
    ig_arena a = {.counting = true};
    ig_arena_take(&a, SIZE_MAX / 2);
    ig_arena_take(&a, SIZE_MAX / 2);
    ig_arena_take(&a, SIZE_MAX);
    size_t most = a.used_bytes;
    CHECK(most > SIZE_MAX - 64);
    ig_arena_take(&a, 64);
    CHECK(a.used_bytes == most && a.peak_bytes == most);
}

TEST(a_rewind_gives_back_and_the_peak_remains) {
    ig_arena a = {.base = buffer, .cap_bytes = sizeof buffer};
    ig_arena_take(&a, 64);
    size_t mark = ig_arena_mark(&a);
    ig_arena_take(&a, 512);
    ig_arena_rewind(&a, mark);
    CHECK(a.used_bytes == 64 && a.peak_bytes == 576);
    CHECK(ig_arena_take(&a, 64) == buffer + 64 && a.peak_bytes == 576);
}

static void rewind_forward(void) {
    ig_arena a = {.base = buffer, .cap_bytes = sizeof buffer};
    ig_arena_rewind(&a, 64);
}

TEST(a_rewind_to_what_was_never_taken_is_a_broken_promise) {
    CHECK(ig_test_aborts(rewind_forward));
}

TEST(pages_are_zero_and_writable_to_the_last_byte) {
    static const size_t sizes[] = {1, 4096, 4097, (2 << 20) - 1, 2 << 20, (4 << 20) + 12345};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        bool huge = i % 2;
        size_t n = sizes[i / 2];
        void *out = NULL;
        ig_err err;
        if (!CHECK_MSG(ig_pages_map(&out, n, huge, &err) == IG_OK, "%zu bytes: %s", n, err.msg)) return;
        uint8_t *p = out;
        if (huge && n >= 2 << 20) CHECK_MSG((uintptr_t)p % (2 << 20) == 0, "%zu bytes at %p", n, out);
        CHECK(p[0] == 0 && p[n / 2] == 0 && p[n - 1] == 0);
        p[0] = p[n - 1] = 1;
        ig_pages_unmap(p, n);
    }
    ig_pages_unmap(NULL, 1);
}

/* Is the page at p mapped? mincore says ENOMEM when not. */
static bool mapped(void *p) {
    unsigned char in;
    return mincore(p, 1, &in) == 0;
}

TEST(unmapping_frees_exactly_what_was_mapped) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (6 << 20) + page + 1, len = n + page - 1;
    for (int huge = 0; huge < 2; huge++) {
        void *out;
        if (!CHECK(ig_pages_map(&out, n, huge, NULL) == IG_OK)) return;
        uint8_t *p = out;
        CHECK(mapped(p) && mapped(p + len - page));
        ig_pages_unmap(p, n);
        CHECK(!mapped(p) && !mapped(p + (2 << 20)) && !mapped(p + len - page));
    }
}

TEST(a_thousand_huge_maps_leave_nothing_behind) {
    long before = 0, after = 0;
    if (ig_test_emulator()) SKIP("the pages would be the emulator's");
    for (int round = 0; round < 2; round++) {
        char line[128];
        for (int i = 0; i < 1000; i++) {
            void *p;
            if (!CHECK(ig_pages_map(&p, (2 << 20) + 4096, true, NULL) == IG_OK)) return;
            ig_pages_unmap(p, (2 << 20) + 4096);
        }
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || !fgets(line, sizeof line, f) || sscanf(line, "%ld", round ? &after : &before) != 1)
            CHECK_MSG(false, "no /proc/self/statm");
        if (f) fclose(f);
    }
    CHECK_MSG(after <= before + 512, "%ld pages before, %ld after", before, after);
}

TEST(pages_that_cannot_be_are_refused_with_the_number) {
    void *out = buffer;
    ig_err err;
    CHECK(ig_pages_map(&out, 0, false, &err) == IG_EINVAL);
    for (size_t below = 0; below < 10; below++) {
        CHECK(ig_pages_map(&out, SIZE_MAX - below, below % 2, &err) == IG_ELIMIT);
        CHECK(strstr(err.msg, "1844674407370955") != NULL);
    }
    CHECK(ig_pages_map(&out, SIZE_MAX / 2, true, &err) == IG_ELIMIT);
    CHECK(out == buffer);
}

TEST(memory_figures_are_sane) {
    uint64_t before = ig_memory_resident_bytes(), left = ig_memory_available_bytes();
    CHECK(before > 64 << 10);
    CHECK(left > 1 << 20 && left < UINT64_C(1) << 60);

    const size_t n = 32 << 20;
    void *p;
    if (!CHECK(ig_pages_map(&p, n, false, NULL) == IG_OK)) return;
    memset(p, 1, n);
    uint64_t after = ig_memory_resident_bytes();
    ig_pages_unmap(p, n);
    CHECK_MSG(after >= before + n / 2, "%llu before, %llu after", (unsigned long long)before,
              (unsigned long long)after);
}

static void in_a_small_address_space(void) {
    const uint64_t some = 300u << 20;
    struct rlimit limit = {some, some};
    if (setrlimit(RLIMIT_AS, &limit) == 0 && ig_memory_available_bytes() < some) abort();
}

TEST(a_limit_on_the_address_space_counts_as_memory) {
    if (ig_test_emulator()) SKIP("the emulator keeps such a limit from the program");
    CHECK(ig_test_aborts(in_a_small_address_space));
}
