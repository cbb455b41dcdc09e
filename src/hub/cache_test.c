#include "base/test.h"
#include "hub/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHA "0123456789abcdef0123456789abcdef01234567"

static char top[64];

static void make_top(void) {
    snprintf(top, sizeof top, "/tmp/ig-hub-XXXXXX");
    if (!mkdtemp(top)) abort();
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}
static void drop_top(void) {
    nftw(top, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void write_file(const char *below, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", top, below);
    *strrchr(path, '/') = 0;
    if (ig_hub_make_dirs(path, NULL)) abort();
    snprintf(path, sizeof path, "%s/%s", top, below);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

static bool links_to(const char *below, const char *to) {
    char path[512], now[512];
    snprintf(path, sizeof path, "%s/%s", top, below);
    ssize_t n = readlink(path, now, sizeof now - 1);
    return n > 0 && (now[n] = 0, strcmp(now, to) == 0);
}

TEST(the_folder_of_a_repository_tells_its_name_again) {
    char repo[IG_HUB_REPO_BYTES];
    CHECK(ig_hub_repo_of_folder(repo, "models--org--na-me.1") && strcmp(repo, "org/na-me.1") == 0);
    CHECK(!ig_hub_repo_of_folder(repo, "datasets--a--b") && !ig_hub_repo_of_folder(repo, "models--a"));
    CHECK(!ig_hub_repo_of_folder(repo, "models--..--b") && !ig_hub_repo_of_folder(repo, "models--a--b--c"));
    char *path = ig_hub_repo_path("/c", "org/name", "blobs");
    CHECK(path && strcmp(path, "/c/models--org--name/blobs") == 0);
    free(path);
}

TEST(links_are_relative_and_as_deep_as_the_file_and_a_wrong_one_is_replaced) {
    ig_err err = {.msg = ""};
    make_top();
    CHECK_MSG(!ig_hub_link(top, SHA, "a.json", "aa", &err), "%s", err.msg);
    CHECK(links_to("snapshots/" SHA "/a.json", "../../blobs/aa"));
    CHECK_MSG(!ig_hub_link(top, SHA, "x/y/b.json", "bb", &err), "%s", err.msg);
    CHECK(links_to("snapshots/" SHA "/x/y/b.json", "../../../../blobs/bb"));
    CHECK(!ig_hub_link(top, SHA, "a.json", "cc", &err) &&
          links_to("snapshots/" SHA "/a.json", "../../blobs/cc"));
    CHECK(ig_hub_link(top, SHA, "a.json/z", "dd", &err) == IG_EIO); /* a file is no folder */
    drop_top();
}

TEST(a_link_in_a_snapshot_is_no_folder_of_it) {
    ig_err err = {.msg = ""};
    char path[512];
    make_top();
    write_file("snapshots/" SHA "/x", "");
    write_file("outside/keep", "");
    snprintf(path, sizeof path, "%s/snapshots/" SHA "/sub", top);
    CHECK(symlink("../../outside", path) == 0);
    CHECK(ig_hub_link(top, SHA, "sub/a", "aa", &err) == IG_EIO);
    snprintf(path, sizeof path, "%s/outside/a", top);
    struct stat info;
    CHECK(lstat(path, &info) != 0);
    drop_top();
}

TEST(a_ref_holds_a_commit_and_nothing_else_is_believed) {
    char commit[41];
    ig_err err = {.msg = ""};
    make_top();
    CHECK(!ig_hub_ref_read(commit, top, "main"));
    CHECK_MSG(!ig_hub_ref_write(top, "refs/pr/1", SHA, &err), "%s", err.msg);
    CHECK(ig_hub_ref_read(commit, top, "refs/pr/1") && strcmp(commit, SHA) == 0);
    CHECK(!ig_hub_ref_write(top, SHA, SHA, &err) &&
          !ig_hub_ref_read(commit, top, SHA)); /* a commit needs none */
    write_file("refs/main", SHA "\n");
    CHECK(ig_hub_ref_read(commit, top, "main"));
    write_file("refs/main", "../../../../../../../../../../etc/passwdxx");
    CHECK(!ig_hub_ref_read(commit, top, "main"));
    drop_top();
}

TEST(a_lock_is_held_by_one_or_shared_by_many_and_ends_with_its_process) {
    ig_hub_lock a = {-1, NULL}, b = {-1, NULL}, c = {-1, NULL};
    int holder;
    ig_err err = {.msg = ""};
    make_top();
    CHECK_MSG(!ig_hub_lock_try(&a, top, "o/n", "x", IG_HUB_LOCK_SHARED, &holder, &err), "%s", err.msg);
    CHECK(!ig_hub_lock_try(&b, top, "o/n", "x", IG_HUB_LOCK_SHARED, &holder, &err));
    CHECK(ig_hub_lock_try(&c, top, "o/n", "x", IG_HUB_LOCK_WHOLE, &holder, &err) == IG_EBUSY &&
          holder == getpid());
    CHECK(!ig_hub_lock_try(&c, top, "o/n", "y", IG_HUB_LOCK_WHOLE, &holder, &err));
    ig_hub_lock_end(&a), ig_hub_lock_end(&b), ig_hub_lock_end(&c);
    pid_t pid = fork();
    if (pid == 0) _exit(ig_hub_lock_try(&a, top, "o/n", "x", IG_HUB_LOCK_WHOLE, &holder, NULL) ? 1 : 0);
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(!ig_hub_lock_try(&a, top, "o/n", "x", IG_HUB_LOCK_WHOLE, &holder, &err));
    ig_hub_lock_end(&a);
    drop_top();
}

/* ---- the list ------------------------------------------------------------------------------------------ */

static void has(const ig_hub_items *l, const char *name, uint64_t bytes, bool current) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->v[i].name, name) == 0) {
            CHECK_MSG(l->v[i].bytes == bytes && l->v[i].current == current, "%s: %d bytes", name,
                      (int)l->v[i].bytes);
            return;
        }
    CHECK_MSG(false, "%s is not listed", name);
}

TEST(what_lies_in_the_cache_and_in_the_models_folder_is_listed_by_name) {
    static const char other[] = "ffffffffffffffffffffffffffffffffffffffff";
    char cache[128], models[128], path[256];
    ig_hub_items l;
    ig_err err = {.msg = ""};
    make_top();
    snprintf(cache, sizeof cache, "%s/hub", top);
    snprintf(models, sizeof models, "%s/models", top);
    write_file("hub/models--o--snap/refs/main", SHA);
    write_file("hub/models--o--snap/snapshots/" SHA "/config.json", "{}");
    write_file("hub/models--o--snap/snapshots/" SHA "/model.safetensors", "12345");
    snprintf(path, sizeof path, "hub/models--o--snap/snapshots/%s/config.json", other);
    write_file(path, "{}");
    write_file("hub/models--o--gg/snapshots/" SHA "/config.json", "{}"); /* no ref, but the only one */
    write_file("hub/models--o--gg/snapshots/" SHA "/m-Q4_0-00001-of-00002.gguf", "123");
    write_file("hub/models--o--gg/snapshots/" SHA "/m-Q4_0-00002-of-00002.gguf", "4567");
    write_file("hub/models--o--gg/snapshots/" SHA "/a-Q8_0.gguf", "1");
    write_file("hub/models--o--gg/snapshots/" SHA "/b-Q8_0.gguf", "12");
    write_file("hub/models--o--gg/snapshots/" SHA "/mmproj-F16.gguf", "12");
    write_file("hub/datasets--o--d/refs/main", SHA);
    write_file("models/one.gguf", "1");
    write_file("models/two/config.json", "{}");
    write_file("models/three/readme", "");
    if (CHECK_MSG(!ig_hub_list(&l, cache, models, false, &err), "%s", err.msg)) {
        CHECK_MSG(l.n == 6, "%d", l.n);
        has(&l, "o/snap", 5, true);
        has(&l, "o/gg:Q4_0", 7, true);
        has(&l, "o/gg:a-Q8_0.gguf", 1, true); /* the quantization would not tell it from b's */
        has(&l, "o/gg:b-Q8_0.gguf", 2, true);
        has(&l, "one.gguf", 1, true);
        has(&l, "two", 0, true);
        ig_hub_items_clear(&l);
    }
    if (CHECK(!ig_hub_list(&l, cache, NULL, true, &err))) {
        CHECK(l.n == 5);
        has(&l, "o/snap@fffffff", 0, false);
        ig_hub_items_clear(&l);
    }
    CHECK(!ig_hub_list(&l, "/nonexistent", NULL, false, &err) && l.n == 0);
    ig_hub_items_clear(&l);
    drop_top();
}

TEST(folders_that_lead_to_themselves_or_to_each_other_are_read_once) {
    char models[128], path[256];
    ig_hub_items l;
    ig_err err = {.msg = ""};
    make_top();
    write_file("models/m/config.json", "{}");
    write_file("models/m/sub/x.safetensors", "");
    snprintf(models, sizeof models, "%s/models", top);
    for (int i = 0; i < 60; i++) {
        snprintf(path, sizeof path, "%s/m/l%d", models, i);
        CHECK(symlink(i & 1 ? "." : "sub", path) == 0);
        snprintf(path, sizeof path, "%s/m/sub/l%d", models, i);
        CHECK(symlink(i & 1 ? ".." : "../..", path) == 0);
        snprintf(path, sizeof path, "%s/l%d", models, i);
        CHECK(symlink(".", path) == 0);
    }
    const uint64_t begin = ig_clock_ns(); /* of the old reader these are 60 to the power of 4 steps */
    CHECK_MSG(!ig_hub_list(&l, NULL, models, false, &err), "%s", err.msg);
    CHECK(ig_clock_ns() - begin < (uint64_t)20 * 1000000000);
    CHECK(l.n == 1 && strcmp(l.v[0].name, "m") == 0 && !*l.warning);
    ig_hub_items_clear(&l);
    drop_top();
}

TEST(one_folder_under_two_names_is_two_models) {
    char models[128], path[256];
    ig_hub_items l;
    make_top();
    write_file("far/config.json", "{}");
    write_file("models/x.gguf", "");
    snprintf(models, sizeof models, "%s/models", top);
    snprintf(path, sizeof path, "%s/a", models);
    CHECK(symlink("../far", path) == 0);
    snprintf(path, sizeof path, "%s/b", models);
    CHECK(symlink("../far", path) == 0);
    CHECK(!ig_hub_list(&l, NULL, models, false, NULL) && l.n == 3);
    ig_hub_items_clear(&l);
    drop_top();
}

TEST(a_folder_that_is_none_or_holds_too_much_is_told) {
    char path[256];
    ig_hub_items l;
    make_top();
    write_file("models", "a file");
    snprintf(path, sizeof path, "%s/models", top);
    CHECK(!ig_hub_list(&l, path, NULL, false, NULL) && l.n == 0 && strstr(l.warning, "Not a directory"));
    ig_hub_items_clear(&l);
    CHECK(!ig_hub_list(&l, NULL, path, false, NULL) && l.n == 0 && strstr(l.warning, "Not a directory"));
    ig_hub_items_clear(&l);
    CHECK(unlink(path) == 0);
    write_file("models/m/x", "");
    for (int i = 0; i < 256; i++) {
        snprintf(path, sizeof path, "%s/models/m/f%d", top, i);
        CHECK(mkdir(path, 0700) == 0);
    }
    snprintf(path, sizeof path, "%s/models", top);
    CHECK(!ig_hub_list(&l, NULL, path, false, NULL) && strstr(l.warning, "too many folders"));
    ig_hub_items_clear(&l);
    drop_top();
}

TEST(a_registry_of_any_bytes_is_empty_and_an_entry_counts_for_the_same_file_only) {
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "7",
                                        "{\"version\":1}",
                                        "{\"version\":1,\"models\":[]}",
                                        "{\"version\":1,\"models\":{\"/x\":7}}",
                                        "{\"version\":9,\"models\":{}}"};
    char path[128];
    char name[] = "n", file[] = "/x";
    ig_hub_item item = {.name = name, .path = file, .bytes = 7, .modified_ns = 3};
    ig_hub_items l = {.v = &item, .n = 1};
    ig_hub_facts in = {.architecture = "llama", .bits = 4.5, .n_ctx = 8, .runs = true}, out;
    ig_hub_registry *g = NULL;
    make_top();
    snprintf(path, sizeof path, "%s/registry.json", top);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file("registry.json", texts[i]);
        CHECK(!ig_hub_registry_open(&g, path, NULL) && !ig_hub_registry_get(g, &item, &out));
        ig_hub_registry_close(g);
    }
    CHECK(!ig_hub_registry_save(path, &l, &in, NULL) && !ig_hub_registry_open(&g, path, NULL));
    CHECK(ig_hub_registry_get(g, &item, &out) && out.n_ctx == 8 && out.runs &&
          strcmp(out.architecture, "llama") == 0);
    item.modified_ns++;
    CHECK(!ig_hub_registry_get(g, &item, &out));
    ig_hub_registry_close(g);
    drop_top();
}

TEST(a_server_is_known_while_it_lives) {
    char path[128], other[128], below[160];
    ig_hub_server *s = NULL;
    ig_err err = {.msg = ""};
    make_top();
    write_file("m/a.gguf", "x");
    snprintf(path, sizeof path, "%s/m/a.gguf", top);
    snprintf(other, sizeof other, "%s/m/a.gguf2", top);
    snprintf(below, sizeof below, "%s/m/../m", top);
    CHECK_MSG(!ig_hub_server_begin(&s, top, path, "a", "http://127.0.0.1:1", 1, &err), "%s", err.msg);
    CHECK(ig_hub_served_by(top, path) == getpid() && ig_hub_served_by(top, below) == getpid());
    CHECK(ig_hub_served_by(top, other) == 0 && ig_hub_served_by(NULL, path) == 0);
    ig_hub_server_end(s);
    CHECK(ig_hub_served_by(top, path) == 0);
    drop_top();
}

TEST(a_server_whose_model_s_name_is_no_utf8_is_known) {
    char path[128], other[128], written[128];
    ig_hub_server *s = NULL;
    ig_err err = {.msg = ""};
    make_top();
    write_file("m/a\xff.gguf", "x");
    write_file("m/a\xef\xbf\xbd.gguf", "x"); /* as the first looks when it is shown */
    snprintf(path, sizeof path, "%s/m/a\xff.gguf", top);
    snprintf(other, sizeof other, "%s/m/a\xef\xbf\xbd.gguf", top);
    CHECK_MSG(!ig_hub_server_begin(&s, top, path, "a\xff", "http://127.0.0.1:1", 1, &err), "%s", err.msg);
    CHECK(ig_hub_served_by(top, path) == getpid() && ig_hub_served_by(top, other) == 0);
    snprintf(written, sizeof written, "%s/servers/%d.json", top, (int)getpid());
    CHECK(access(written, F_OK) == 0);
    ig_hub_server_end(s);
    CHECK(ig_hub_served_by(top, path) == 0 && access(written, F_OK) != 0);
    drop_top();
}

TEST(a_note_that_cannot_be_written_leaves_none_and_says_why) {
    char path[128], note[128];
    ig_hub_server *s = NULL;
    ig_err err = {.msg = ""};
    struct rlimit was, small;
    make_top();
    write_file("m/a.gguf", "x");
    snprintf(path, sizeof path, "%s/m/a.gguf", top);
    snprintf(note, sizeof note, "%s/servers/%d.json", top, (int)getpid());
    void (*on_size)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    for (rlim_t limit = 0; limit <= 20; limit += 20) { /* nothing, and a part of it */
        small = (struct rlimit){limit, was.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        errno = EEXIST;
        ig_status st = ig_hub_server_begin(&s, top, path, "a", "http://127.0.0.1:1", 1, &err);
        setrlimit(RLIMIT_FSIZE, &was);
        CHECK_MSG(st == IG_EIO && strstr(err.msg, limit ? "No space" : "too large"), "%s", err.msg);
        CHECK(access(note, F_OK) != 0);
    }
    signal(SIGXFSZ, on_size);
    drop_top();
}

TEST(an_empty_note_of_nobody_goes_once_it_is_old_and_a_held_one_gives_way) {
    char path[128], note[128], second[128];
    ig_hub_server *s = NULL;
    ig_err err = {.msg = ""};
    make_top();
    write_file("m/a.gguf", "x");
    write_file("servers/17.json", "");
    snprintf(path, sizeof path, "%s/m/a.gguf", top);
    snprintf(note, sizeof note, "%s/servers/17.json", top);
    CHECK(ig_hub_served_by(top, path) == 0 && access(note, F_OK) == 0);
    const struct timespec then[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};
    CHECK(utimensat(AT_FDCWD, note, then, 0) == 0);
    CHECK(ig_hub_served_by(top, path) == 0 && access(note, F_OK) != 0);
    snprintf(note, sizeof note, "%s/servers/%d.json", top, (int)getpid());
    snprintf(second, sizeof second, "%s/servers/%d-1.json", top, (int)getpid());
    int fd =
        open(note, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* of a process of this number in another container */
    CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    CHECK_MSG(!ig_hub_server_begin(&s, top, path, "a", "http://127.0.0.1:1", 1, &err), "%s", err.msg);
    CHECK(access(second, F_OK) == 0 && ig_hub_served_by(top, path) == getpid());
    ig_hub_server_end(s);
    CHECK(access(second, F_OK) != 0);
    close(fd);
    drop_top();
}

TEST(those_who_look_do_not_keep_a_server_from_its_note) {
    char path[128];
    ig_err err = {.msg = ""};
    make_top();
    write_file("m/a.gguf", "x");
    snprintf(path, sizeof path, "%s/m/a.gguf", top);
    pid_t looker = fork();
    if (looker == 0) {
        for (;;) ig_hub_served_by(top, path);
    }
    for (int i = 0; i < 200; i++) {
        ig_hub_server *s = NULL;
        if (!CHECK_MSG(!ig_hub_server_begin(&s, top, path, "a", "http://127.0.0.1:1", 1, &err), "%s",
                       err.msg))
            break;
        CHECK_MSG(ig_hub_served_by(top, path) == getpid(), "note %d is lost", i);
        ig_hub_server_end(s);
    }
    kill(looker, SIGKILL);
    waitpid(looker, NULL, 0);
    drop_top();
}
