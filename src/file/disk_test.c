/* read.c and atomic.c on a folder of its own. */
#include "base/test.h"
#include "file/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static const char *in(const char *name) {
    static char path[4][384];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 384, "%s/%s", folder, name);
    return p;
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/ig-file-XXXXXX");
    if (!mkdtemp(folder)) abort();
}

static int count_files(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void remove_folder(void) {
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') unlink(in(e->d_name));
    closedir(d);
    rmdir(folder);
}

TEST(a_file_is_slurped_whole_and_ends_in_a_zero) {
    char *text = NULL;
    size_t n = 0;
    ig_err err = {0};
    make_folder();
    CHECK(ig_file_replace(in("x"), "hello", 5, NULL) == IG_OK);
    CHECK(ig_file_slurp(&text, &n, in("x"), 5, NULL) == IG_OK && n == 5 && strcmp(text, "hello") == 0);
    free(text);
    text = NULL;
    CHECK(ig_file_slurp(&text, &n, in("x"), 4, &err) == IG_ELIMIT && strstr(err.msg, "limit 4") && !text);
    CHECK(ig_file_replace(in("x"), "", 0, NULL) == IG_OK);
    CHECK(ig_file_slurp(&text, &n, in("x"), 0, NULL) == IG_OK && n == 0 && text[0] == 0);
    free(text);
    CHECK(ig_file_slurp(&text, &n, in("absent"), 9, &err) == IG_ENOTFOUND && strstr(err.msg, "absent"));
    CHECK(ig_file_slurp(&text, &n, folder, 9, &err) == IG_EIO && strstr(err.msg, "directory"));
    CHECK(ig_file_slurp(&text, &n, "/dev/zero", 9, NULL) == IG_EIO);
    remove_folder();
}

TEST(a_file_that_hides_its_size_is_read_to_its_end_or_its_bound) {
    char *text = NULL;
    size_t n = 0;
    if (access("/proc/self/status", R_OK) != 0) SKIP("no /proc");
    CHECK(ig_file_slurp(&text, &n, "/proc/self/status", 1 << 20, NULL) == IG_OK && n > 100 &&
          strlen(text) == n);
    free(text);
    CHECK(ig_file_slurp(&text, &n, "/proc/self/status", 100, NULL) == IG_ELIMIT);
}

TEST(a_replaced_file_is_private_whole_and_leaves_nothing_beside_it) {
    char *text = NULL;
    size_t n = 0;
    struct stat info;
    make_folder();
    CHECK(ig_file_replace(in("x"), "one", 3, NULL) == IG_OK &&
          ig_file_replace(in("x"), "two!", 4, NULL) == IG_OK);
    CHECK(ig_file_slurp(&text, &n, in("x"), 99, NULL) == IG_OK && strcmp(text, "two!") == 0);
    free(text);
    CHECK(stat(in("x"), &info) == 0 && (info.st_mode & 0777) == 0600 && count_files() == 1);
    CHECK(ig_file_replace(in("no/such/x"), "a", 1, NULL) == IG_ENOTFOUND);
    remove_folder();
}

TEST(a_write_that_fails_keeps_the_old_file) {
    char *text = NULL;
    size_t n = 0;
    ig_err err = {0};
    static char big[1 << 16];
    struct rlimit was, small;
    make_folder();
    CHECK(ig_file_replace(in("x"), "old", 3, NULL) == IG_OK);
    void (*on_size)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    small = (struct rlimit){4096, was.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    ig_status st = ig_file_replace(in("x"), big, sizeof big, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, on_size);
    CHECK_MSG(st == IG_EIO && strstr(err.msg, "write"), "%s", err.msg);
    CHECK(ig_file_slurp(&text, &n, in("x"), 99, NULL) == IG_OK && strcmp(text, "old") == 0 &&
          count_files() == 1);
    free(text);
    remove_folder();
}

TEST(what_a_killed_writer_left_is_taken_up_by_the_next) {
    static char big[1 << 20];
    make_folder();
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (;;) ig_file_replace(in("x"), big, sizeof big, NULL);
        }
        usleep(3000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        CHECK_MSG(count_files() <= 2, "%d files after kill %d", count_files(), i);
    }
    CHECK(ig_file_replace(in("x"), "new", 3, NULL) == IG_OK && count_files() == 1);
    remove_folder();
}

TEST(a_name_beside_it_that_is_not_ours_is_not_written_to) {
    char aside[128], *text = NULL;
    size_t n = 0;
    make_folder();
    CHECK(ig_file_replace(in("precious"), "keep", 4, NULL) == IG_OK);
    snprintf(aside, sizeof aside, ".ingle-%016llx", (unsigned long long)ig_hash64("x", 1, 0));
    CHECK(link(in("precious"), in(aside)) == 0); /* a second name of something else */
    CHECK(ig_file_replace(in("x"), "new", 3, NULL) == IG_OK);
    CHECK(ig_file_slurp(&text, &n, in("precious"), 99, NULL) == IG_OK && strcmp(text, "keep") == 0);
    free(text);
    CHECK(unlink(in(aside)) == 0 && symlink("precious", in(aside)) == 0);
    CHECK(ig_file_replace(in("x"), "newer", 5, NULL) == IG_OK);
    CHECK(ig_file_slurp(&text, &n, in("precious"), 99, NULL) == IG_OK && strcmp(text, "keep") == 0);
    free(text);
    CHECK(unlink(in(aside)) == 0 && count_files() == 2);
    remove_folder();
}

TEST(folders_are_made_with_their_parents) {
    struct stat info;
    ig_err err = {0};
    make_folder();
    char deep[128], file[128];
    snprintf(deep, sizeof deep, "%s/a/b//c/", folder);
    CHECK(ig_file_make_dirs(deep, NULL) == IG_OK && ig_file_make_dirs(deep, NULL) == IG_OK);
    CHECK(stat(deep, &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & 0777) == 0700);
    rmdir(deep);
    snprintf(deep, sizeof deep, "%s/a/b", folder), rmdir(deep);
    snprintf(deep, sizeof deep, "%s/a", folder), rmdir(deep);
    CHECK(ig_file_replace(in("file"), "x", 1, NULL) == IG_OK);
    snprintf(file, sizeof file, "%s/file", folder);
    CHECK(ig_file_make_dirs(file, &err) == IG_EIO && strstr(err.msg, "not a folder"));
    snprintf(file, sizeof file, "%s/file/below", folder);
    CHECK(ig_file_make_dirs(file, NULL) == IG_EIO);
    remove_folder();
}
