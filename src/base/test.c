/* test: main of every unit test program, and the list of its tests.
 * Owns:    the list, and the verdict of the test that runs.
 * Threads: tests run one after another on the main thread; a check may fail on any thread.
 * Why a crash handler that returns: it names the test, gives the signal back to whoever had it before
 * (a sanitizer, or the default), and the fault happens again in front of them. */
#include "base/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HANG_SECONDS = 600 }; /* not a verdict on speed: it names the test that never ends */

static ig_test *first, *last;
static ig_test *_Atomic running;
static _Atomic int n_fails;
static bool skipped;

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
enum { N_CRASH_SIGNALS = sizeof crash_signals / sizeof *crash_signals };
static struct sigaction crash_before[N_CRASH_SIGNALS];

void ig_test_add(ig_test *t) {
    if (last) last->next = t;
    else first = t;
    last = t;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void ig_test_fail(const char *file, int line, const char *fmt, ...) {
    char msg[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    ig_test *t = atomic_load(&running);
    if (atomic_fetch_add(&n_fails, 1) == 0) printf("FAIL %s\n", t ? t->name : "?");
    printf("     %s:%d: %s\n", file, line, msg);
}

void ig_test_skip(const char *fmt, ...) {
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    skipped = true;
    printf("skip %s, because %s\n", atomic_load(&running)->name, msg);
}

bool ig_test_failed(void) {
    return atomic_load(&n_fails) > 0;
}

static void say(const char *s) {
    if (write(STDOUT_FILENO, s, strlen(s)) < 0) _exit(1);
}

static void on_crash(int sig) {
    ig_test *t = atomic_load(&running);
    say("FAIL ");
    say(t ? t->name : "(between tests)");
    say(sig == SIGALRM ? ": hangs\n" : ": crashed\n");
    for (int i = 0; i < N_CRASH_SIGNALS; i++)
        if (crash_signals[i] == sig) sigaction(sig, &crash_before[i], NULL);
    if (sig == SIGALRM) raise(sig);
}

static void catch_crashes(void) {
    static char stack_bytes[64 << 10]; /* a stack overflow leaves no stack to handle it on */
    stack_t stack = {.ss_sp = stack_bytes, .ss_size = sizeof stack_bytes};
    struct sigaction act = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    for (int i = 0; i < N_CRASH_SIGNALS; i++) sigaction(crash_signals[i], &act, &crash_before[i]);
}

int main(int argc, char **argv) {
    const char *program = argc > 0 ? base_name(argv[0]) : "test", *filter = NULL;
    int n_passed = 0, n_failed = 0, n_skipped = 0;
    bool verbose = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0) verbose = true;
        else filter = argv[i];
    }
    if (strncmp(program, "test_", 5) == 0) program += 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    catch_crashes();

    for (ig_test *t = first; t; t = t->next) {
        if (filter && !strstr(t->name, filter)) continue;
        atomic_store(&n_fails, 0);
        skipped = false;
        atomic_store(&running, t);
        fflush(stdout); /* a test may fork */
        alarm(HANG_SECONDS);
        t->run();
        alarm(0);
        atomic_store(&running, NULL);

        if (ig_test_failed()) n_failed++;
        else if (skipped) n_skipped++;
        else n_passed++;
        if (verbose && !ig_test_failed() && !skipped) printf("ok   %s\n", t->name);
    }
    if (n_passed + n_failed + n_skipped == 0) {
        printf("%s: no test%s%s\n", program, filter ? " matches " : "", filter ? filter : "");
        return 1;
    }
    printf("%s: %d passed, %d failed, %d skipped\n", program, n_passed, n_failed, n_skipped);
    return n_failed > 0;
}
