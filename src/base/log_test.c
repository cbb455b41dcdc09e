/* What a line looks like whatever was in it, and which lines come out. */
#include "base/inside.h"
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static size_t line_of(char *out, size_t cap, const char *text) {
    size_t n = ig_log_line(out, cap, 1796006096789, IG_LOG_INFO, text);
    out[n < cap ? n : cap - 1] = '\0';
    return n;
}

TEST(a_line_is_time_level_and_text) {
    char line[256];
    line_of(line, sizeof line, "model_loaded layers=30");
    CHECK_MSG(strcmp(line, "2026-11-30T02:34:56.789Z info  model_loaded layers=30\n") == 0, "%s", line);
}

TEST(a_hostile_value_cannot_forge_a_line) {
    static const struct { const char *in, *out;
    } cases[] = {
        {"a\nb", "a\\nb"},
        {"a\r\tb", "a\\r\\tb"},
        {"\x1b[2J", "\\x1b[2J"},
        {"\x7f", "\\x7f"},
        {"\xC2\x9B"
         "2J",
         "\\xc2\\x9b2J"},
        {"na\xC3\xAFve", "na\xC3\xAFve"},
        {"\xFF\xE2\x82", "\\xff\\xe2\\x82"},
        {"\xE2\x80\xAE"
         "b",
         "\\xe2\\x80\\xaeb"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"C:\\n", "C:\\\\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256], want[256];
        line_of(line, sizeof line, cases[i].in);
        snprintf(want, sizeof want, "2026-11-30T02:34:56.789Z info  %s\n", cases[i].out);
        CHECK_MSG(strcmp(line, want) == 0, "case %zu: %s", i, line);
    }
}

static void json_of(char *out, size_t cap, const char *text) {
    size_t n = ig_log_json_line(out, cap, 1796006096789, IG_LOG_WARN, text);
    CHECK(n <= cap && n >= 2 && out[n - 1] == '\n' && out[n - 2] == '}');
    out[n < cap ? n : cap - 1] = '\0';
}

TEST(as_json_a_line_is_an_object_of_the_same_keys_and_values) {
    static const struct {
        const char *text, *members;
    } cases[] = {
        {"e", "\"event\":\"e\""},
        {"e n=12 x=-0.5 s=abc", "\"event\":\"e\",\"n\":12,\"x\":-0.5,\"s\":\"abc\""},
        {"e q=\"two words\" n=\"12\" z=", "\"event\":\"e\",\"q\":\"two words\",\"n\":\"12\",\"z\":\"\""},
        {"e a=007 b=1. c=.5 d=- f=1e5 g=12345678901234567",
         "\"event\":\"e\",\"a\":\"007\",\"b\":\"1.\",\"c\":\".5\",\"d\":\"-\",\"f\":\"1e5\","
         "\"g\":\"12345678901234567\""},
        {"e q=\"in\"side\" n=1", "\"event\":\"e\",\"q\":\"in\\u0022side\",\"n\":1"},
        {"e n=1 loose words=2", "\"event\":\"e\",\"n\":1,\"message\":\"loose words=2\""},
        {"e q=\"never closed", "\"event\":\"e\",\"message\":\"q=\\u0022never closed\""},
        {"e a=1\n{\"event\":\"forged\"}",
         "\"event\":\"e\",\"a\":\"1\\u000a{\\u0022event\\u0022:\\u0022forged\\u0022}\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512], want[512];
        json_of(line, sizeof line, cases[i].text);
        snprintf(want, sizeof want, "{\"time\":\"2026-11-30T02:34:56.789Z\",\"level\":\"warn\",%s}\n",
                 cases[i].members);
        CHECK_MSG(strcmp(line, want) == 0, "case %zu: %s", i, line);
    }
}

TEST(every_byte_gives_one_line_of_json_without_controls) {
    for (int c = 1; c < 256; c++) {
        char text[8] = {'e', ' ', 'k', '=', (char)c, 'x', '\0'}, line[256];
        json_of(line, sizeof line, text);
        size_t n = strlen(line);
        CHECK(line[n - 1] == '\n' && memchr(line, '\n', n) == line + n - 1);
        for (size_t i = 0; i + 1 < n; i++)
            CHECK_MSG((unsigned char)line[i] >= 0x20 && (unsigned char)line[i] < 0x7F, "byte %d", c);
    }
}

TEST(a_json_line_that_is_cut_is_still_an_object) {
    char text[700], line[1024];
    for (size_t n = 1; n < sizeof text; n++)
        for (size_t cap = 128; cap <= 512; cap += 17) {
            memset(text, n % 3 ? 'a' : '\x1b', n);
            if (n > 3) text[1] = ' ', text[3] = '=';
            if (n > 200) memcpy(text + 180, " b=1 c=", 7);
            text[n] = '\0';
            memset(line, 'Z', sizeof line);
            size_t len = ig_log_json_line(line, cap, 0, IG_LOG_ERROR, text);
            int n_quotes = 0;
            for (size_t i = 0; i < len; i++) n_quotes += line[i] == '"';
            CHECK(len <= cap && memcmp(line + len - 2, "}\n", 2) == 0 && line[cap] == 'Z' &&
                  n_quotes % 2 == 0);
        }
}

TEST(every_byte_gives_one_line__of_printable_text) {
    for (int c = 1; c < 256; c++) {
        char text[3] = {(char)c, 'x', '\0'}, line[256];
        size_t n = line_of(line, sizeof line, text);
        CHECK(line[n - 1] == '\n' && strlen(line) == n);
        for (size_t i = 0; i + 1 < n; i++)
            CHECK_MSG((unsigned char)line[i] >= 0x20 && (unsigned char)line[i] < 0x7F, "byte %d", c);
    }
}

TEST(a_long_line_is_cut_and_says_so) {
    char text[600], line[512 + 64];
    for (size_t n = 0; n < sizeof text; n++) {
        for (size_t cap = 64; cap <= 512; cap *= 2) {
            memset(text, n % 2 ? 'a' : '\n', n);
            text[n] = '\0';
            memset(line, 'Z', sizeof line);
            size_t len = ig_log_line(line, cap, 0, IG_LOG_ERROR, text);
            bool whole = memchr(line, '.', len) && len > 4 && memcmp(line + len - 4, "...\n", 4) != 0;
            CHECK(len <= cap && line[len - 1] == '\n' && line[cap] == 'Z');
            CHECK(whole ? len == 31 + n * (n % 2 ? 1 : 2) + 1 : len + 8 > cap);
        }
    }
}

TEST(levels_have_names) {
    ig_log_level level = IG_LOG_ERROR;
    CHECK(ig_log_level_from("debug", &level) && level == IG_LOG_DEBUG);
    CHECK(ig_log_level_from("info", &level) && level == IG_LOG_INFO);
    CHECK(ig_log_level_from("warn", &level) && level == IG_LOG_WARN);
    CHECK(ig_log_level_from("error", &level) && level == IG_LOG_ERROR);
    CHECK(!ig_log_level_from("Debug", &level) && !ig_log_level_from("", &level) && level == IG_LOG_ERROR);
}

/* Runs `write_some` with stderr in a pipe and returns what arrived. */
static size_t captured(void (*write_some)(void), char *out, size_t cap) {
    int ends[2], old = dup(STDERR_FILENO);
    if (old < 0 || pipe(ends) != 0) return 0;
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    write_some();
    dup2(old, STDERR_FILENO);
    close(old);
    size_t at = 0;
    for (ssize_t n; at < cap - 1 && (n = read(ends[0], out + at, cap - 1 - at)) > 0;) at += (size_t)n;
    close(ends[0]);
    out[at] = '\0';
    return at;
}

static void log_four(void) {
    errno = EAGAIN;
    ig_log(IG_LOG_DEBUG, "quiet");
    ig_log(IG_LOG_INFO, "loud n=%d", 1);
    ig_log_set_level(IG_LOG_ERROR);
    ig_log(IG_LOG_WARN, "quiet");
    ig_log(IG_LOG_ERROR, "loud n=%d", 2);
    ig_log_set_level(IG_LOG_INFO);
    CHECK(errno == EAGAIN);
}

TEST(the_level_decides_and_info_is_the_default) {
    char out[1024];
    captured(log_four, out, sizeof out);
    CHECK_MSG(strstr(out, "Z info  loud n=1\n") && strstr(out, "Z error loud n=2\n"), "%s", out);
    CHECK_MSG(!strstr(out, "quiet"), "%s", out);
}

static void log_long(void) {
    char text[5000];
    memset(text, 'q', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ig_log(IG_LOG_INFO, "%s", text);
}

TEST(an_endless_value_makes_a_bounded_line) {
    char out[8192];
    size_t n = captured(log_long, out, sizeof out);
    CHECK(n > 1000 && n < 4096 && memcmp(out + n - 4, "...\n", 4) == 0);
}

static void *log_many(void *arg) {
    for (int i = 0; i < 200; i++) ig_log(IG_LOG_INFO, "thread=%s text=abcdefghijklmnop", (const char *)arg);
    return NULL;
}

static void log_from_three(void) {
    static const char *const names[] = {"one", "two", "three"};
    pthread_t ids[3];
    for (int i = 0; i < 3; i++)
        if (!CHECK(pthread_create(&ids[i], NULL, log_many, (void *)(uintptr_t)names[i]) == 0)) return;
    for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
}

TEST(lines_of_several_threads_do_not_mix) {
    static char out[200000];
    int n_lines = 0;
    captured(log_from_three, out, sizeof out);
    for (char *p = out, *end; (end = strchr(p, '\n')) != NULL; p = end + 1, n_lines++) {
        static const char tail[] = " text=abcdefghijklmnop";
        CHECK((size_t)(end - p) < 80 && memcmp(end - sizeof tail + 1, tail, sizeof tail - 1) == 0);
    }
    CHECK_MSG(n_lines == 600, "%d lines", n_lines);
}
