/* log: one event, one line, one write to stderr.
 * Owns:    the level.
 * Threads: any; a line is one write(2), so lines of two threads do not mix.
 * Memory:  the stack; a longer line is cut and ends in "...".
 * Why everything odd is escaped: values hold file names and fields from outside, and a newline or a
 * terminal sequence in one must not forge a line or move the reader's cursor. */
#include "base/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 2048, LINE_BYTES = 3072 };

static _Atomic int level_now = IG_LOG_INFO;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void ig_log_set_level(ig_log_level level) {
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool ig_log_level_from(const char *name, ig_log_level *out) {
    for (int i = IG_LOG_DEBUG; i <= IG_LOG_ERROR; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *out = (ig_log_level)i;
        return true;
    }
    return false;
}

/* Bytes of the printable character at s, or 0: control characters (C0, DEL, C1), the backslash that
 * starts an escape, and what is no UTF-8. */
static size_t printable(const char *s, size_t n) {
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) return c >= 0x20 && c != 0x7F && c != '\\';
    if (c == 0xC2 && n > 1 && (unsigned char)s[1] < 0xA0) return 0;
    for (size_t len = 2; len <= 4 && len <= n; len++)
        if (ig_slice_utf8_valid((ig_slice){s, len}, NULL)) return len;
    return 0;
}

static size_t escape_byte(char *out, unsigned char c) {
    static const char hex[] = "0123456789abcdef";
    out[0] = '\\';
    out[1] = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\\' ? '\\' : 'x';
    if (out[1] != 'x') return 2;
    out[2] = hex[c >> 4];
    out[3] = hex[c & 15];
    return 4;
}

size_t ig_log_line(char *out, size_t cap, int64_t unix_ms, ig_log_level level, const char *text) {
    static const char tail[] = "...\n";
    enum { TAIL_BYTES = sizeof tail - 1, STEP_BYTES = 4 }; /* a character or an escape is at most 4 bytes */
    ig_assert(cap >= 64);

    time_t sec = (time_t)(unix_ms / 1000);
    struct tm t = {0};
    gmtime_r(&sec, &t);
    int head = snprintf(out, cap, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ %-5s ", t.tm_year + 1900, t.tm_mon + 1,
                        t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, (int)(unix_ms % 1000), level_names[level]);
    size_t at = head > 0 && (size_t)head < cap - TAIL_BYTES ? (size_t)head : 0, n = strlen(text), i = 0;

    while (i < n && at + STEP_BYTES + TAIL_BYTES <= cap) {
        size_t len = printable(text + i, n - i);
        if (len > 0) memcpy(out + at, text + i, len);
        at += len > 0 ? len : escape_byte(out + at, (unsigned char)text[i]);
        i += len > 0 ? len : 1;
    }
    const char *end = i < n ? tail : "\n";
    memcpy(out + at, end, strlen(end));
    return at + strlen(end);
}

void ig_log(ig_log_level level, const char *fmt, ...) {
    if ((int)level < atomic_load_explicit(&level_now, memory_order_relaxed)) return;

    int saved = errno;
    char text[TEXT_BYTES], line[LINE_BYTES];
    struct timespec now;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = '\0';
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);

    clock_gettime(CLOCK_REALTIME, &now);
    int64_t unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    size_t len = ig_log_line(line, sizeof line, unix_ms, level, text);
    for (size_t at = 0; at < len;) {
        ssize_t w = write(STDERR_FILENO, line + at, len - at);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break; /* stderr is gone: there is nowhere to say so */
        at += (size_t)w;
    }
    errno = saved;
}
