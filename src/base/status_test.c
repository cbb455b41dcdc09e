/* The error note: complete, bounded, safe to quote from itself. */
#include "base/test.h"

#include <errno.h>
#include <string.h>

TEST(a_failure_fills_the_note_and_gives_its_code_back) {
    ig_err err = {0};
    CHECK(ig_fail(&err, IG_EFORMAT, "%s: %d layers, limit %d", "m.gguf", 7, 5) == IG_EFORMAT);
    CHECK(err.code == IG_EFORMAT && err.line > 0 && strstr(err.file, "status_test.c"));
    CHECK(strcmp(err.msg, "m.gguf: 7 layers, limit 5") == 0);
}

TEST(a_failure_without_a_note_is_still_a_failure) {
    CHECK(ig_fail(NULL, IG_EIO, "nobody reads %s", "this") == IG_EIO);
}

TEST(an_outer_failure_may_quote_the_inner_one_from_the_same_note) {
    ig_err err;
    ig_fail(&err, IG_EFORMAT, "bad magic");
    ig_fail(&err, err.code, "%s: %s", "m.gguf", err.msg);
    CHECK(strcmp(err.msg, "m.gguf: bad magic") == 0);
}

TEST(a_long_message_is_cut_at_a_whole_character) {
    char text[3 * IG_ERR_BYTES + 1];
    for (size_t shift = 0; shift < 3; shift++) {
        ig_err err;
        memset(text, 'a', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4);
        ig_fail(&err, IG_EINVAL, "%s", text);
        size_t n = strlen(err.msg);
        CHECK(n < sizeof err.msg && n > sizeof err.msg - 8 && strcmp(err.msg + n - 3, "...") == 0);
        CHECK(ig_slice_utf8_valid(ig_slice_of(err.msg), NULL));
    }
}

TEST(a_message_that_just_fits_is_not_cut) {
    char text[IG_ERR_BYTES + 1] = "";
    ig_err err;
    memset(text, 'x', IG_ERR_BYTES - 1);
    ig_fail(&err, IG_EINVAL, "%s", text);
    CHECK(strcmp(err.msg, text) == 0);
    text[IG_ERR_BYTES - 1] = 'x';
    ig_fail(&err, IG_EINVAL, "%s", text);
    CHECK(strcmp(err.msg + IG_ERR_BYTES - 5, "x...") == 0);
}

TEST(a_failure_keeps_errno) {
    ig_err err;
    errno = ENOSPC;
    ig_fail(&err, IG_EIO, "%s", "disk");
    CHECK(errno == ENOSPC);
}

TEST(every_status_has_a_name_and_so_has_nonsense) {
    CHECK(strcmp(ig_status_name(IG_OK), "ok") == 0);
    CHECK(strcmp(ig_status_name(IG_EINVAL), "invalid") == 0);
    CHECK(strcmp(ig_status_name(IG_EFORMAT), "format") == 0);
    CHECK(strcmp(ig_status_name(IG_EIO), "io") == 0);
    CHECK(strcmp(ig_status_name(IG_ELIMIT), "limit") == 0);
    CHECK(strcmp(ig_status_name(IG_ECANCELED), "canceled") == 0);
    CHECK(strcmp(ig_status_name(IG_ENOTFOUND), "not found") == 0);
    CHECK(strcmp(ig_status_name(IG_ENETWORK), "network") == 0);
    CHECK(strcmp(ig_status_name(IG_EBUSY), "busy") == 0);
    CHECK(strcmp(ig_status_name((ig_status)-9), "unknown") == 0);
    CHECK(strcmp(ig_status_name((ig_status)1), "unknown") == 0);
}

static void break_a_promise(void) {
    ig_assert(1 + 1 == 3);
}

static void keep_a_promise(void) {
    ig_assert(1 + 1 == 2);
}

static void fail_with_success(void) {
    ig_fail(NULL, IG_OK, "all is well");
}

TEST(a_broken_promise_ends_the_program_in_every_build) {
    CHECK(ig_test_aborts(break_a_promise));
    CHECK(!ig_test_aborts(keep_a_promise));
    CHECK(ig_test_aborts(fail_with_success));
}

TEST(a_message_stays_one_line_whatever_the_name_in_it) {
    ig_err err;
    ig_fail(&err, IG_EFORMAT, "tensor %s", "\x1b]0;pwn\x07 a\nb\xc2\x9b" "1m \xc3\xa9");
    CHECK_MSG(strcmp(err.msg, "tensor ?]0;pwn? a b?1m \xc3\xa9") == 0, "%s", err.msg);
}
