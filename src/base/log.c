/* log: one event, one line, one write to stderr.
 * Owns:    the level and the form.
 * Threads: any; a line is one write(2), so lines of two threads do not mix.
 * Memory:  the stack; a longer line is cut and ends in "...".
 * Why everything odd is escaped: values hold file names and fields from outside, and a newline or a
 * terminal sequence in one must not forge a line or move the reader's cursor. JSON is made from the text
 * form, so that an event is written down once and both forms say the same. */
#include "base/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 2048, LINE_BYTES = 3072, JSON_BYTES = 6 * TEXT_BYTES + 1024, TIME_BYTES = 80 };

static _Atomic int level_now = IG_LOG_INFO;
static _Atomic bool json_now;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void ig_log_set_level(ig_log_level level) {
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

void ig_log_set_json(bool on) {
    atomic_store_explicit(&json_now, on, memory_order_relaxed);
}

bool ig_log_level_from(const char *name, ig_log_level *out) {
    for (int i = IG_LOG_DEBUG; i <= IG_LOG_ERROR; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *out = (ig_log_level)i;
        return true;
    }
    return false;
}

/* "2026-11-30T02:34:56.789Z" */
static void put_time(char out[TIME_BYTES], int64_t unix_ms) {
    time_t sec = (time_t)(unix_ms / 1000);
    struct tm t = {0};
    gmtime_r(&sec, &t);
    snprintf(out, TIME_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", t.tm_year + 1900, t.tm_mon + 1,
             t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, (int)(unix_ms % 1000));
}

/* ---- text ---------------------------------------------------------------------------------------------- */

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

    char when[TIME_BYTES];
    put_time(when, unix_ms);
    int head = snprintf(out, cap, "%s %-5s ", when, level_names[level]);
    size_t at = head > 0 && (size_t)head < cap - TAIL_BYTES ? (size_t)head : 0, n = strlen(text), i = 0;

    while (i < n && at + STEP_BYTES + TAIL_BYTES <= cap) {
        size_t len = text[i] == '\\' ? 0 : ig_utf8_printable(text + i, n - i); /* it starts our escapes */
        if (len > 0) memcpy(out + at, text + i, len);
        at += len > 0 ? len : escape_byte(out + at, (unsigned char)text[i]);
        i += len > 0 ? len : 1;
    }
    const char *end = i < n ? tail : "\n";
    memcpy(out + at, end, strlen(end));
    return at + strlen(end);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* What is written never reaches the last END_BYTES, so that a cut line still ends well. */
struct json {
    char *out;
    size_t at, cap;
};
enum { END_BYTES = 4, CHAR_BYTES = 6 }; /* "}\n and a spare; \u001b is the longest of one byte */

static void put_string(struct json *j, const char *s, size_t n) {
    j->out[j->at++] = '"';
    for (size_t i = 0; i < n && j->at + CHAR_BYTES + END_BYTES <= j->cap;) {
        size_t len = ig_utf8_printable(s + i, n - i);
        if (len > 0 && s[i] != '"' && s[i] != '\\') {
            memcpy(j->out + j->at, s + i, len);
            j->at += len;
        } else {
            static const char hex[] = "0123456789abcdef";
            unsigned char c = (unsigned char)s[i];
            memcpy(j->out + j->at, "\\u00", 4); /* bytes that are no text read as Latin-1 */
            j->out[j->at + 4] = hex[c >> 4];
            j->out[j->at + 5] = hex[c & 15];
            j->at += CHAR_BYTES;
            len = 1;
        }
        i += len;
    }
    j->out[j->at++] = '"';
}

/* Has JSON's form of a number, and few enough digits to be read as what it is. */
static bool is_number(const char *s, size_t n) {
    size_t i = n > 0 && s[0] == '-', whole = i;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    if (i == whole || (s[whole] == '0' && i - whole > 1) || i - whole > 15) return false;
    if (i < n && s[i] == '.') {
        size_t from = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == from) return false;
    }
    return i == n && n <= 24;
}

static bool put_member(struct json *j, const char *key, size_t n_key, const char *value, size_t n, bool raw) {
    if (j->at + n_key + n * raw + 3 * CHAR_BYTES + END_BYTES > j->cap) return false;
    j->out[j->at++] = ',';
    put_string(j, key, n_key);
    j->out[j->at++] = ':';
    if (raw) memcpy(j->out + j->at, value, n);
    j->at += raw ? n : 0;
    if (!raw) put_string(j, value, n);
    return true;
}

/* The next key=value of the text at *p; false: that is none. A value in quotes ends at the quote before a
 * blank. */
static bool next_pair(const char **p, ig_slice *key, ig_slice *value, bool *quoted) {
    const char *s = *p, *at = s;
    while ((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') ||
           *at == '_')
        at++;
    if (at == s || *at != '=') return false;
    *key = (ig_slice){s, (size_t)(at - s)};
    at++;
    *quoted = *at == '"';
    const char *from = at + *quoted, *end = from;
    if (*quoted)
        while (*end && !(*end == '"' && (end[1] == ' ' || end[1] == '\0'))) end++;
    else
        end += strcspn(end, " ");
    if (*quoted && !*end) return false;
    *value = (ig_slice){from, (size_t)(end - from)};
    *p = end + *quoted;
    return true;
}

size_t ig_log_json_line(char *out, size_t cap, int64_t unix_ms, ig_log_level level, const char *text) {
    char when[TIME_BYTES];
    struct json j = {out, 0, cap};
    size_t n_event = strcspn(text, " ");
    const char *p = text + n_event;
    ig_slice key, value;
    bool quoted;
    ig_assert(cap >= 128);
    put_time(when, unix_ms);
    j.at = (size_t)snprintf(out, cap, "{\"time\":\"%s\",\"level\":\"%s\"", when, level_names[level]);
    bool more = put_member(&j, "event", 5, text, n_event, false);
    while (more && *p) {
        p += strspn(p, " ");
        if (!*p) break;
        if (!next_pair(&p, &key, &value, &quoted)) {
            put_member(&j, "message", 7, p, strlen(p), false); /* the rest */
            break;
        }
        more = put_member(&j, key.p, key.n, value.p, value.n, !quoted && is_number(value.p, value.n));
    }
    memcpy(out + j.at, "}\n", 2);
    return j.at + 2;
}

/* ---- either -------------------------------------------------------------------------------------------- */

void ig_log(ig_log_level level, const char *fmt, ...) {
    if ((int)level < atomic_load_explicit(&level_now, memory_order_relaxed)) return;

    int saved = errno;
    char text[TEXT_BYTES], line[JSON_BYTES];
    struct timespec now;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = '\0';
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);

    clock_gettime(CLOCK_REALTIME, &now);
    int64_t unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    size_t len = atomic_load_explicit(&json_now, memory_order_relaxed)
                     ? ig_log_json_line(line, sizeof line, unix_ms, level, text)
                     : ig_log_line(line, LINE_BYTES, unix_ms, level, text);
    for (size_t at = 0; at < len;) {
        ssize_t w = write(STDERR_FILENO, line + at, len - at);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break; /* stderr is gone: there is nowhere to say so */
        at += (size_t)w;
    }
    errno = saved;
}
