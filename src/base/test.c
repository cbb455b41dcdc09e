/* test: main of every unit test program, and the list of its tests.
 * Owns:    the list, and the verdict of the test that runs.
 * Threads: tests run one after another on the main thread; a check may fail on any thread.
 * Why a crash handler that returns: it names the test, gives the signal back to whoever had it before
 * (a sanitizer, or the default), and the fault happens again in front of them. */
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HANG_SECONDS = 600 }; /* not a verdict on speed: it names the test that never ends */

static ig_test *first, *last;
static ig_test *_Atomic running;
static _Atomic int n_fails;
static bool skipped;

/* What the running test has proven, in lines; main's thread. Kept when it passes: $INGLE_TEST_PROVEN/<program>.txt. */
enum { PROVEN_BYTES = 1 << 16 };
static char proven[PROVEN_BYTES];
static size_t n_proven;

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

void ig_test_proven(const char *what, const char *equals) {
    char line[512];
    const int n = snprintf(line, sizeof line, "%s equals %s\n", what, equals);
    if (n_proven && strstr(proven, line)) return; /* said before */
    if (n < 0 || (size_t)n >= sizeof line || (size_t)n >= sizeof proven - n_proven) abort(); /* none may be lost */
    memcpy(proven + n_proven, line, (size_t)n + 1);
    n_proven += (size_t)n;
}

static void keep_proven(const char *program) {
    const char *folder = getenv("INGLE_TEST_PROVEN");
    char path[4096];
    if (!folder || !n_proven) return;
    snprintf(path, sizeof path, "%s/%s.txt", folder, program);
    FILE *f = fopen(path, "a");
    if (f) fwrite(proven, 1, n_proven, f);
    if (!f || fclose(f) != 0) ig_test_fail(__FILE__, __LINE__, "%s cannot be written: %s", path, strerror(errno));
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

static void crashes_as_usual(void) {
    for (int i = 0; i < N_CRASH_SIGNALS; i++) signal(crash_signals[i], SIG_DFL);
}

static int child_status(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

bool ig_test_aborts(void (*run)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        crashes_as_usual();
        if (null < 0 || dup2(null, STDERR_FILENO) < 0) _exit(1);
        run();
        _exit(0);
    }
    int status = child_status(pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

const char *ig_test_emulator(void) {
    const char *name = getenv("INGLE_TEST_EMU");
    return name && *name ? name : NULL;
}

int ig_test_patience(int seconds) {
    return ig_test_emulator() ? seconds * 10 : seconds;
}

int ig_test_rerun(const char *filter, const char *name, const char *value, char *out, size_t cap) {
    int ends[2];
    out[0] = '\0';
    fflush(stdout);
    if (pipe(ends) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        crashes_as_usual();
        if (dup2(ends[1], STDOUT_FILENO) < 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(127);
        close(ends[0]);
        close(ends[1]);
        if (name) setenv(name, value, 1);
        const char *emulator = ig_test_emulator();
        char self[4096] = "";
        if (emulator && readlink("/proc/self/exe", self, sizeof self - 1) > 0)
            execlp(emulator, emulator, "-0", "rerun", self, "-v", filter, (char *)NULL);
        else
            execl("/proc/self/exe", "rerun", "-v", filter, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    char drop[256];
    size_t at = 0;
    for (;;) { /* to the end, even when `out` is full: a child with a blocked pipe never exits */
        bool full = at + 1 >= cap;
        ssize_t n = full ? read(ends[0], drop, sizeof drop) : read(ends[0], out + at, cap - 1 - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        if (!full) at += (size_t)n;
    }
    out[at] = '\0';
    close(ends[0]);
    if (pid < 0) return -1;
    int status = child_status(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
        n_proven = 0;
        atomic_store(&running, t);
        fflush(stdout); /* a test may fork */
        alarm((unsigned)ig_test_patience(HANG_SECONDS));
        t->run();
        alarm(0);
        if (!ig_test_failed() && !skipped) keep_proven(program);
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
