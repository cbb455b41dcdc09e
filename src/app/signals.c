/* signals: the first SIGINT or SIGTERM is noted, so that the verb can end well; a second ends the program
 * at once. Before ig_signals_note the system's default stands: nothing is worth ending well yet.
 * Threads: a handler runs on any; it touches a flag and a pipe, both made for that. */
#include "app/app.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t ig_signal_seen;
static int wake[2] = {-1, -1};

static void note(int sig) {
    int was = errno;
    if (ig_signal_seen) _exit(128 + sig);
    __atomic_store_n(&ig_signal_seen, sig, __ATOMIC_RELAXED); /* threads of a download read it */
    if (write(wake[1], "", 1) < 0) { /* the flag is set; whoever polls sees it at the next turn */
    }
    errno = was;
}

bool ig_signals_note(void) {
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    struct sigaction a = {.sa_handler = note};
    sigemptyset(&a.sa_mask);
    return sigaction(SIGINT, &a, NULL) == 0 && sigaction(SIGTERM, &a, NULL) == 0;
}

int ig_signals_wait(int timeout_ms) {
    struct pollfd p = {.fd = wake[0], .events = POLLIN};
    if (!ig_signal_seen) poll(&p, 1, timeout_ms);
    return ig_signal_seen;
}
