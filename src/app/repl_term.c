/* repl_term: the terminal of `ingle chat`.
 * Owns:    the mode of the terminal on stdin and the signal handlers of the process.
 * Threads: main's. Handlers only set flags.
 * The terminal is raw from the first message on, so that keys typed while an answer comes are neither
 * shown nor lost. Whatever ends the program but SIGKILL, ig_term_close puts the terminal back. */
#include "app/repl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { ESCAPE_MS = 40, OUT_MAX = 8 << 20 };

volatile sig_atomic_t ig_term_stop, ig_term_quit;
static volatile sig_atomic_t resized;
static struct termios before;
static bool have_before;
/* A signal may be taken by any thread, the engine's too, and would not end a wait of this one: so it also
 * writes a byte here. */
static int wake[2] = {-1, -1};

static void on_signal(int sig) {
    int was = errno;
    if (sig == SIGINT) ig_term_stop = 1;
    else if (sig == SIGWINCH) resized = 1;
    else {
        ig_term_quit = sig;
        ig_term_stop = 1;
    }
    if (write(wake[1], "", 1) < 0) { /* full: there is a byte already */
    }
    errno = was;
}

void ig_term_open(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) sigaction(signals[i], &act, NULL);
    act.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &act, NULL);
    have_before = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
}

void ig_term_close(void) {
    if (have_before) tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
}

void ig_term_size(int *columns, int *rows) {
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    *columns = known && size.ws_col >= 10 ? size.ws_col : 80;
    *rows = known && size.ws_row >= 3 ? size.ws_row : 24;
}

/* Raw, with Ctrl-C as a key for the editor or as a signal while an answer comes. Both modes leave the keys
 * as they are: what was typed ahead must read the same later. */
static void go_raw(bool signals) {
    struct termios mode = before;
    mode.c_iflag &= (tcflag_t) ~(BRKINT | ICRNL | INLCR | INPCK | ISTRIP | IXON);
    mode.c_lflag &= (tcflag_t) ~(ECHO | ICANON | IEXTEN | (signals ? 0u : (tcflag_t)ISIG));
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    mode.c_cc[VSUSP] = mode.c_cc[VQUIT] = _POSIX_VDISABLE; /* the editor's Ctrl-Z is the one that works */
    tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
}

bool ig_term_write(ig_slice s) {
    while (s.n) {
        ssize_t n = write(STDOUT_FILENO, s.p, s.n);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        s.p += n;
        s.n -= (size_t)n;
    }
    return true;
}

static void draw(ig_edit *e, bool colour, const char *hint, ig_buf *out, bool last) {
    int columns, rows;
    ig_term_size(&columns, &rows);
    ig_buf_clear(out);
    if (last) ig_edit_draw_final(e, columns, rows, colour, out);
    else ig_edit_draw(e, columns, rows, colour, hint, out);
    ig_term_write((ig_slice){out->p, out->n});
}

static const char paste_on[] = "\x1b[?2004h", paste_off[] = "\x1b[?2004l";

/* Ctrl-Z: gives the terminal back, stops, and takes it again when the shell says so. */
static void suspend(ig_edit *e) {
    ig_term_write(ig_slice_of("\x1b[?2004l\r\n"));
    ig_term_close();
    raise(SIGTSTP);
    go_raw(false);
    ig_term_write(ig_slice_of(paste_on));
    e->drawn_row = 0;
}

int ig_term_wait(int fd, int timeout_ms) {
    struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    char bytes[64];
    int ready = poll(both, 2, timeout_ms);
    if (ready > 0 && both[1].revents) {
        while (read(wake[0], bytes, sizeof bytes) > 0) continue;
        return -1;
    }
    return ready;
}

/* Bytes from the terminal. 0: it is gone or we were told to leave. -1: only a signal, or an Escape alone. */
static ssize_t read_keys(ig_edit *e, uint8_t *keys, size_t n_max) {
    int ready = ig_term_wait(STDIN_FILENO, e->n_esc ? ESCAPE_MS : -1);
    if (ig_term_quit) return 0;
    if (ready == 0) ig_edit_lone_escape(e);
    if (ready < 0 && ig_term_stop) { /* SIGINT from somewhere else than the keyboard: the same as the key */
        ig_term_stop = 0;
        keys[0] = 'C' - 64;
        return 1;
    }
    if (ready <= 0) return -1;
    ssize_t n = read(STDIN_FILENO, keys, n_max);
    return n < 0 && errno == EINTR ? -1 : n < 0 ? 0 : n;
}

ig_edit_event ig_term_read(ig_edit *e, bool colour, const char *hint) {
    ig_buf out = ig_buf_init(OUT_MAX);
    ig_edit_event event = IG_EDIT_MORE;
    /* Keys that came with others in one read, after the one that ended the last message. */
    static uint8_t keys[4096];
    static size_t n_keys, at;
    ig_edit_clear(e);
    e->drawn_row = 0;
    ig_term_stop = 0; /* it ended the last answer */
    go_raw(false);
    ig_term_write(ig_slice_of(paste_on));
    bool stale = true;
    while (event == IG_EDIT_MORE) {
        if (at == n_keys) {
            if (stale || resized) draw(e, colour, hint, &out, false);
            resized = stale = 0;
            ssize_t n = read_keys(e, keys, sizeof keys);
            if (n == 0) event = IG_EDIT_EOF;
            if (n <= 0) continue;
            n_keys = (size_t)n;
            at = 0;
        }
        event = ig_edit_feed(e, keys[at++]);
        stale = true;
        if (event == IG_EDIT_SUSPEND) suspend(e);
        if (event == IG_EDIT_REDRAW) {
            ig_term_write(ig_slice_of("\x1b[H\x1b[2J"));
            e->drawn_row = 0;
        }
        if (event == IG_EDIT_SUSPEND || event == IG_EDIT_REDRAW) event = IG_EDIT_MORE;
    }
    if (event == IG_EDIT_EOF) at = n_keys;
    if (event == IG_EDIT_INTERRUPT && e->was_pasting) { /* the rest of what was pasted is nobody's typing */
        at = n_keys;
        tcflush(STDIN_FILENO, TCIFLUSH);
    }
    draw(e, colour, NULL, &out, true);
    ig_term_write(ig_slice_of(paste_off));
    go_raw(true);
    ig_buf_free(&out);
    return event;
}
