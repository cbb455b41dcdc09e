/* The history of `ingle chat` on disk: nothing that it does not know by heart is ever written over. */
#include "app/repl.h"
#include "base/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[96];

static ig_repl *begin(void) {
    ig_repl *r = calloc(1, sizeof *r);
    snprintf(folder, sizeof folder, "/tmp/ig-history-XXXXXX");
    if (!r || !mkdtemp(folder) || setenv("INGLE_STATE", folder, 1) != 0) abort();
    snprintf(path, sizeof path, "%s/chat_history", folder);
    r->out = ig_buf_init(4096);
    ig_edit_init(&r->edit);
    return r;
}

static void open_again(ig_repl *r) {
    ig_edit_free(&r->edit);
    ig_edit_init(&r->edit);
    free(r->history_path);
    ig_repl_history_open(r);
}

static void end(ig_repl *r) {
    ig_edit_free(&r->edit);
    ig_buf_free(&r->out);
    free(r->history_path);
    free(r);
    if (unlink(path) != 0) rmdir(path);
    rmdir(folder);
    unsetenv("INGLE_STATE");
}

static const char *newest(const ig_repl *r, int back) {
    return r->edit.n_history > back ? r->edit.history[r->edit.n_history - 1 - back] : "";
}

static off_t size_of(void) {
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

/* n lines "line I xxx..." of so many bytes. */
static void write_lines(int n, int n_bytes) {
    FILE *f = fopen(path, "w");
    if (!f) abort();
    for (int i = 0; i < n; i++) {
        int k = fprintf(f, "line %d ", i);
        for (; k < n_bytes - 1; k++) fputc('x', f);
        fputc('\n', f);
    }
    fclose(f);
}

TEST(messages_come_back_as_they_were) {
    static const char *const texts[] = {"one", "two\nlines", "a \\ and \\n", "\\", "\xe6\xbc\xa2 \\\\n\n\\"};
    enum { N = sizeof texts / sizeof *texts };
    ig_repl *r = begin();
    ig_repl_history_open(r);
    for (int i = 0; i < N; i++) ig_repl_history_add(r, ig_slice_of(texts[i]));
    open_again(r);
    if (CHECK(r->edit.n_history == N))
        for (int i = 0; i < N; i++) CHECK(strcmp(r->edit.history[i], texts[i]) == 0);
    end(r);
}

TEST(a_history_of_any_length_keeps_its_newest_messages) {
    static const int n_lines[] = {1000, 2000, 2001, 4300, 9000};
    for (size_t i = 0; i < sizeof n_lines / sizeof *n_lines; i++) {
        ig_repl *r = begin();
        char want[32];
        write_lines(n_lines[i], 1000);
        ig_repl_history_open(r);
        snprintf(want, sizeof want, "line %d x", n_lines[i] - 1);
        CHECK(r->edit.n_history == IG_EDIT_HISTORY_MAX && strncmp(newest(r, 0), want, strlen(want)) == 0);
        CHECK(size_of() == (n_lines[i] > 2000 ? 1000 : n_lines[i]) * 1000);
        ig_repl_history_add(r, ig_slice_of("and this"));
        open_again(r);
        CHECK(r->edit.n_history == IG_EDIT_HISTORY_MAX && strcmp(newest(r, 0), "and this") == 0);
        CHECK(strncmp(newest(r, 1), want, strlen(want)) == 0);
        end(r);
    }
}

/* A backslash takes two bytes in the file. */
TEST(as_many_of_the_longest_messages_as_are_kept_survive_a_trim) {
    ig_repl *r = begin();
    char *text = malloc(IG_EDIT_ENTRY_MAX);
    if (!text) abort();
    memset(text, '\\', IG_EDIT_ENTRY_MAX);
    ig_repl_history_open(r);
    for (int i = 0; i <= 2 * IG_EDIT_HISTORY_MAX; i++) {
        char number[16];
        int n = snprintf(number, sizeof number, "%08d", i);
        memcpy(text, number, (size_t)n);
        ig_repl_history_add(r, (ig_slice){text, IG_EDIT_ENTRY_MAX});
    }
    CHECK(size_of() > 60 << 20);
    open_again(r);
    CHECK(size_of() > 30 << 20 && size_of() < 34 << 20);
    open_again(r);
    CHECK(r->edit.n_history == IG_EDIT_HISTORY_MAX);
    CHECK(strncmp(newest(r, 0), "00002000\\", 9) == 0 && strlen(newest(r, 0)) == IG_EDIT_ENTRY_MAX);
    CHECK(strncmp(newest(r, 999), "00001001\\", 9) == 0);
    free(text);
    end(r);
}

TEST(a_file_too_long_for_a_history_shows_its_end_and_stays_as_it_is) {
    static const char lines[] = "the end of a line that was cut\nlast but one\nlast\n";
    ig_repl *r = begin();
    off_t far = (off_t)1 << 32;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool made = fd >= 0 && ftruncate(fd, far) == 0 && pwrite(fd, lines, sizeof lines - 1, far) > 0;
    if (!made) SKIP("no room for a sparse file");
    close(fd);
    ig_repl_history_open(r);
    CHECK(strcmp(newest(r, 0), "last") == 0 && strcmp(newest(r, 1), "last but one") == 0);
    CHECK(r->edit.n_history == 2 && !r->history_path);
    ig_repl_history_add(r, ig_slice_of("not in the file"));
    CHECK(strcmp(newest(r, 0), "not in the file") == 0);
    CHECK(size_of() == far + (off_t)sizeof lines - 1);
    end(r);
}

TEST(a_last_line_without_an_end_is_kept) {
    ig_repl *r = begin();
    FILE *f = fopen(path, "w");
    if (!f) abort();
    for (int i = 0; i < 2001; i++) fprintf(f, "line %d\n", i);
    fprintf(f, "no end");
    fclose(f);
    ig_repl_history_open(r);
    CHECK(strcmp(newest(r, 0), "no end") == 0);
    open_again(r);
    CHECK(strcmp(newest(r, 0), "no end") == 0 && r->edit.n_history == IG_EDIT_HISTORY_MAX);
    end(r);
}

TEST(what_is_no_file_is_no_history_and_makes_nobody_wait) {
    static const char *const kinds[] = {"fifo", "folder", "zero", "full", "loop"};
    for (int i = 0; i < 5; i++) {
        ig_repl *r = begin();
        bool made = i == 0   ? mkfifo(path, 0600) == 0
                    : i == 1 ? mkdir(path, 0700) == 0
                             : symlink(i == 2 ? "/dev/zero" : i == 3 ? "/dev/full" : path, path) == 0;
        alarm(20); /* a wait ends the test, and says so */
        if (CHECK(made)) {
            ig_repl_history_open(r);
            CHECK_MSG(!r->history_path && r->edit.n_history == 0, "%s", kinds[i]);
            ig_repl_history_add(r, ig_slice_of("hello"));
            CHECK(r->edit.n_history == 1);
        }
        alarm(0);
        end(r);
    }
}

TEST(a_history_that_became_a_fifo_makes_nobody_wait) {
    ig_repl *r = begin();
    ig_repl_history_open(r);
    CHECK(r->history_path && mkfifo(path, 0600) == 0);
    alarm(20);
    ig_repl_history_add(r, ig_slice_of("hello"));
    alarm(0);
    CHECK(r->edit.n_history == 1);
    end(r);
}

TEST(a_conversation_with_a_model_whose_name_is_no_utf8_is_saved) {
    ig_repl *r = begin();
    ig_loaded *l = calloc(1, sizeof *l);
    ig_err err = {0};
    char *text = NULL;
    size_t n = 0;
    if (!l) abort();
    snprintf(l->name, sizeof l->name, "a\xffz");
    r->l = l;
    ig_repl_turn *t = ig_repl_add(r, true);
    CHECK(t && ig_buf_add_str(&t->text, "hello"));
    CHECK_MSG(ig_repl_save(r, path, &err) == IG_OK, "%s", err.msg);
    CHECK(ig_file_slurp(&text, &n, path, 4096, &err) == IG_OK && strstr(text, "\"a\xef\xbf\xbdz\""));
    free(text);
    ig_repl_drop(r, 0);
    free(l);
    end(r);
}

TEST(control_characters_in_the_file_never_reach_the_editor) {
    ig_repl *r = begin();
    static const char lines[] = "\x1b[2Jone\n\\\x1b]0;x\x07two\n\xff\nthree\\";
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(write(fd, lines, sizeof lines - 1) == (ssize_t)sizeof lines - 1);
    close(fd);
    ig_repl_history_open(r);
    CHECK(r->edit.n_history == 3 && strcmp(newest(r, 2), "?[2Jone") == 0);
    CHECK(strcmp(newest(r, 1), "?]0;x?two") == 0 && strcmp(newest(r, 0), "three\\") == 0);
    end(r);
}
