/* test.h: the whole test runner. A test is a sentence:
 *
 *     TEST(a_full_arena_refuses) { ... CHECK(x); ... }
 *
 * Each folder's *_test.c are linked with that folder and those below it, and with nothing above.
 * TEST registers itself; base/test.c holds main: runs all, or those whose name holds argv[1];
 * prints `folder: N passed, N failed, N skipped`. */
#ifndef IG_TEST_H
#define IG_TEST_H
#include "base/base.h"

typedef struct ig_test {
    const char *name, *file;
    void (*run)(void);
    struct ig_test *next;
} ig_test;

void ig_test_add(ig_test *t);
void ig_test_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ig_test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "skipped, because ..." */
/* For tools/proof.py: the running test, if it passes, has compared this with its oracle bit for bit. `what` is
 * "node samp.greedy", "kernel norm_bf16.scalar"; `equals` "golden" (the oracle's bits) or "scalar" (the scalar
 * kernel's, which has to equal golden itself). */
void ig_test_proven(const char *what, const char *equals);
bool ig_test_failed(void); /* has the running test failed yet */

/* Does `run` end in abort() (a broken ig_assert)? Runs it in a child whose stderr is dropped. */
bool ig_test_aborts(void (*run)(void));
/* Runs this program again for the tests whose name holds `filter`, with one environment variable set
 * (name NULL: none). Returns the exit status, -1 if it died by a signal; what it said (stdout and stderr)
 * is in `out`, cut to cap. */
int ig_test_rerun(const char *filter, const char *name, const char *value, char *out, size_t cap);

/* The program that this one is run by when it is for another machine (qemu-user), from INGLE_TEST_EMU; else NULL.
 * What /proc says is then that program's. */
const char *ig_test_emulator(void);
/* How long to wait for what would end in `seconds` here: an emulator takes longer. */
int ig_test_patience(int seconds);

#define TEST(id)                                                                       \
    static void test_##id(void);                                                       \
    static ig_test node_##id = {#id, __FILE__, test_##id, NULL};                       \
    __attribute__((constructor)) static void reg_##id(void) { ig_test_add(&node_##id); } \
    static void test_##id(void)

/* Goes on after a failure, so that one run tells all; wrap in `if (!CHECK(x)) return;` where going on is
 * pointless. */
#define CHECK(x) CHECK_MSG(x, "%s", #x)
#define CHECK_MSG(x, ...)                                                    \
    __extension__({                                                          \
        bool check_holds = (x);                                              \
        if (!check_holds) ig_test_fail(__FILE__, __LINE__, __VA_ARGS__);     \
        check_holds;                                                         \
    })
#define SKIP(...) do { ig_test_skip(__VA_ARGS__); return; } while (0)

#endif
