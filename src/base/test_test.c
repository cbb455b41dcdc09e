/* The test runner run by itself: a check must be able to fail, or the rest proves nothing. */
#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void touch_forbidden_page(void) {
    volatile char *p = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p[0] = 1;
}

/* Passes alone; the tests below run it again in a process of its own and tell it how to end. */
TEST(inner_ends_as_told) {
    const char *how = getenv("INGLE_TEST_ENDS");
    if (!how) return;
    if (strcmp(how, "skip") == 0) SKIP("there is no %s", "model");
    if (strcmp(how, "crash") == 0) touch_forbidden_page();
    if (strcmp(how, "abort") == 0) abort();
    CHECK(strcmp(how, "pass") == 0);
    CHECK_MSG(strcmp(how, "fail") != 0, "told to %s", how);
}

/* Says what it has proven; with INGLE_TEST_ENDS as told above it must be kept only when it passes. */
TEST(inner_proves_something) {
    const char *how = getenv("INGLE_TEST_PROVES");
    if (!how) return;
    ig_test_proven("node a.b", "golden");
    ig_test_proven("node a.b", "golden");
    if (strcmp(how, "skip") == 0) SKIP("it is told to");
    CHECK(strcmp(how, "pass") == 0);
}

TEST(what_is_proven_is_kept_once_and_only_when_the_test_passes) {
    static const char *const ways[] = {"fail", "skip", "pass"};
    char folder[] = "/tmp/ingle_proven_XXXXXX", path[64], said[4096], text[256];
    const char *before = getenv("INGLE_TEST_PROVEN");
    char *kept = before ? strdup(before) : NULL;
    if (!CHECK(mkdtemp(folder))) return;
    snprintf(path, sizeof path, "%s/rerun.txt", folder);
    setenv("INGLE_TEST_PROVEN", folder, 1);
    for (int i = 0; i < 3; i++) {
        ig_test_rerun("inner_proves_something", "INGLE_TEST_PROVES", ways[i], said, sizeof said);
        FILE *f = fopen(path, "r");
        CHECK_MSG((f != NULL) == (i == 2), "%s: %s", ways[i], said);
        const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        if (f) fclose(f);
    }
    CHECK_MSG(strcmp(text, "node a.b equals golden\n") == 0, "%s", text);
    unlink(path), rmdir(folder);
    if (kept) setenv("INGLE_TEST_PROVEN", kept, 1);
    else unsetenv("INGLE_TEST_PROVEN");
    free(kept);
}

static bool ends(const char *how, int status, const char *text) {
    char said[8192];
    int got = ig_test_rerun("inner_ends_as_told", "INGLE_TEST_ENDS", how, said, sizeof said);
    return CHECK_MSG(got == status && strstr(said, text), "%s: status %d, said: %s", how, got, said);
}

TEST(a_passing_test_is_counted) {
    ends("pass", 0, "ok   inner_ends_as_told\nrerun: 1 passed, 0 failed, 0 skipped\n");
}

TEST(a_failing_check_fails_the_program_and_goes_on) {
    ends("fail", 1, "FAIL inner_ends_as_told\n");
    ends("fail", 1, "test_test.c:");
    ends("fail", 1, "strcmp(how, \"pass\") == 0\n");
    ends("fail", 1, "told to fail\nrerun: 0 passed, 1 failed, 0 skipped\n");
}

TEST(a_skipped_test_says_why) {
    ends("skip", 0, "skip inner_ends_as_told, because there is no model\nrerun: 0 passed, 0 failed, 1 skip");
}

TEST(a_crash_names_the_test) {
    char said[8192];
    static const char *const how[] = {"crash", "abort"};
    for (int i = 0; i < 2; i++) {
        int got = ig_test_rerun("inner_ends_as_told", "INGLE_TEST_ENDS", how[i], said, sizeof said);
        CHECK_MSG(got != 0 && strstr(said, "FAIL inner_ends_as_told: crashed\n"), "%s", said);
    }
}

TEST(a_name_that_matches_nothing_is_a_failure) {
    char said[1024];
    CHECK(ig_test_rerun("no_such_test_anywhere", NULL, NULL, said, sizeof said) == 1);
    CHECK(strcmp(said, "rerun: no test matches no_such_test_anywhere\n") == 0);
}

TEST(what_a_rerun_says_is_cut_to_its_room) {
    char said[20];
    memset(said, 'Z', sizeof said);
    CHECK(ig_test_rerun("inner_ends_as_told", "INGLE_TEST_ENDS", "fail", said, 11) == 1);
    CHECK(strcmp(said, "FAIL inner") == 0 && said[11] == 'Z');
}
