#include "base/test.h"
#include "hub/inside.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NEW "1111111111111111111111111111111111111111"
#define OLD "2222222222222222222222222222222222222222"

static char top[64];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* A file below the cache, so many seconds old. */
static void put(const char *below, const char *text, int age_s) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", top, below);
    *strrchr(path, '/') = 0;
    if (ig_hub_make_dirs(path, NULL)) abort();
    snprintf(path, sizeof path, "%s/%s", top, below);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
    struct timespec then[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    if (utimensat(AT_FDCWD, path, then, 0)) abort();
}

static void put_link(const char *commit, const char *path, const char *hash) {
    char repo[128];
    snprintf(repo, sizeof repo, "%s/models--o--n", top);
    if (ig_hub_link(repo, commit, path, hash, NULL)) abort();
}

static bool is_here(const char *below) {
    char path[512];
    struct stat info;
    snprintf(path, sizeof path, "%s/models--o--n/%s", top, below);
    return lstat(path, &info) == 0;
}

/* Two revisions: "same" in both, "new" and "old" in one each under one path, "lone" by no name. */
static void make(void) {
    snprintf(top, sizeof top, "/tmp/ig-remove-XXXXXX");
    if (!mkdtemp(top)) abort();
    put("models--o--n/blobs/same", "same", 9999);
    put("models--o--n/blobs/new", "new", 9999);
    put("models--o--n/blobs/old", "old", 9999);
    put("models--o--n/blobs/lone", "lone", 9999);
    put("models--o--n/blobs/young", "young", 10);
    put("models--o--n/blobs/a.incomplete", "part", 8 * 86400);
    put("models--o--n/blobs/a.incomplete.chunks", "part", 8 * 86400);
    put("models--o--n/blobs/b.incomplete", "part", 6 * 86400);
    put("models--o--n/refs/main", NEW, 0);
    put_link(NEW, "config.json", "same"), put_link(NEW, "sub/m.safetensors", "new");
    put_link(OLD, "config.json", "same"), put_link(OLD, "sub/m.safetensors", "old");
}
static void drop(void) {
    nftw(top, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int n_gone, n_kept, n_failed;
static uint64_t n_bytes;
static void on_gone(void *ud, const char *path, uint64_t bytes, const char *why) {
    (void)ud, (void)path, (void)why;
    n_gone++;
    n_bytes += bytes;
}
static void on_failed(void *ud, const char *path, const char *why) {
    (void)ud;
    CHECK_MSG(strstr(path, top) && *why, "%s: %s", path, why);
    n_failed++;
}
static void on_kept(void *ud, const char *path, const char *why) {
    (void)ud, (void)path, (void)why;
    n_kept++;
}
static ig_hub_remove how(bool run) {
    n_gone = n_kept = n_failed = 0;
    n_bytes = 0;
    return (ig_hub_remove){
        .run = run, .now_s = time(NULL), .gone = on_gone, .kept = on_kept, .failed = on_failed};
}

TEST(a_collection_takes_what_nothing_names_and_first_only_says_so) {
    ig_err err = {.msg = ""};
    make();
    ig_hub_remove o = how(false);
    CHECK_MSG(!ig_hub_gc(top, &o, &err), "%s", err.msg);
    CHECK_MSG(n_gone == 5 && n_kept == 1, "%d and %d", n_gone, n_kept);
    CHECK(is_here("snapshots/" OLD) && is_here("blobs/old") && is_here("blobs/lone"));
    o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_gone == 5);
    CHECK(is_here("snapshots/" NEW "/sub/m.safetensors") && is_here("blobs/same") && is_here("blobs/new"));
    CHECK(!is_here("snapshots/" OLD) && !is_here("blobs/old") && !is_here("blobs/lone"));
    CHECK(is_here("blobs/young") && is_here("blobs/b.incomplete"));
    CHECK(!is_here("blobs/a.incomplete") && !is_here("blobs/a.incomplete.chunks"));
    o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_gone == 0);
    drop();
}

TEST(a_revision_with_files_of_its_own_stays_unless_forced) {
    ig_err err = {.msg = ""};
    make();
    put_link(OLD, "extra.json", "lone");
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_kept == 2);
    CHECK(is_here("snapshots/" OLD "/extra.json") && is_here("blobs/lone") && is_here("blobs/old"));
    o = how(true);
    o.force = true;
    CHECK(!ig_hub_gc(top, &o, &err) && !is_here("snapshots/" OLD) && !is_here("blobs/lone"));
    drop();
}

TEST(without_any_name_nothing_is_known_to_be_old) {
    ig_err err = {.msg = ""};
    char path[256];
    make();
    snprintf(path, sizeof path, "%s/models--o--n/refs/main", top);
    CHECK(unlink(path) == 0);
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && is_here("snapshots/" OLD) && is_here("snapshots/" NEW));
    CHECK(is_here("blobs/old") && is_here("blobs/new") && !is_here("blobs/lone"));
    drop();
}

TEST(a_repository_that_somebody_works_on_is_left_alone) {
    ig_err err = {.msg = ""};
    ig_hub_lock l;
    int holder;
    make();
    CHECK(!ig_hub_lock_try(&l, top, "o/n", IG_HUB_JOB_LOCK, IG_HUB_LOCK_SHARED, &holder, &err));
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_gone == 0 && n_kept == 1 && is_here("blobs/lone"));
    ig_hub_items list;
    CHECK(!ig_hub_list(&list, top, NULL, true, &err) && list.n == 3);
    CHECK(ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) == IG_EBUSY && is_here("blobs/new"));
    ig_hub_lock_end(&l);
    CHECK(!ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) && !is_here(""));
    ig_hub_items_clear(&list);
    drop();
}

TEST(one_of_two_revisions_goes_without_what_the_other_needs) {
    ig_err err = {.msg = ""};
    ig_hub_items list;
    make();
    CHECK(!ig_hub_list(&list, top, NULL, true, &err) && list.n == 3);
    int old = strcmp(list.v[1].commit, OLD) == 0 ? 1 : 2; /* the first is what is unfinished */
    ig_hub_remove o = how(true);
    CHECK_MSG(!ig_hub_rm(top, NULL, &list.v[old], false, &o, &err), "%s", err.msg);
    CHECK(!is_here("snapshots/" OLD) && !is_here("blobs/old") && is_here("blobs/same") &&
          is_here("blobs/lone"));
    CHECK(is_here("snapshots/" NEW "/config.json") && is_here("refs/main"));
    ig_hub_items_clear(&list);
    drop();
}

/* ---- what the system refuses -------------------------------------------------------------------------- */

enum { NOBODY = 65534 };

static int open_up(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)where;
    return kind == FTW_SL ? 0 : chmod(path, S_ISDIR(info->st_mode) ? 0777 : 0666);
}

/* From here on nothing below the folder can be removed, by somebody without rights of his own. */
static void deny(const char *below) {
    char path[512];
    int holder;
    ig_hub_lock l;
    if (ig_hub_lock_try(&l, top, "o/n", IG_HUB_JOB_LOCK, IG_HUB_LOCK_WHOLE, &holder, NULL)) abort();
    ig_hub_lock_end(&l);
    snprintf(path, sizeof path, "%s/%s", top, below);
    if (nftw(top, open_up, 8, FTW_PHYS) || chmod(path, 0555)) abort();
    if (geteuid() == 0 && seteuid(NOBODY)) abort();
}
static void allow(const char *below) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", top, below);
    if ((getuid() == 0 && seteuid(0)) || chmod(path, 0777)) abort();
}

TEST(what_cannot_be_removed_is_told_and_not_counted) {
    ig_err err = {.msg = ""};
    make();
    deny("models--o--n/blobs");
    ig_hub_remove o = how(true);
    CHECK(ig_hub_gc(top, &o, &err) == IG_EIO && strstr(err.msg, "Permission denied"));
    CHECK_MSG(n_failed == 4 && n_bytes == 0, "%d failed, %d freed", n_failed, (int)n_bytes);
    allow("models--o--n/blobs");
    CHECK(is_here("blobs/lone") && is_here("blobs/old") && is_here("blobs/a.incomplete"));
    o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_failed == 0 && n_bytes > 0 && !is_here("blobs/lone"));
    drop();
}

TEST(a_blob_stays_while_a_link_that_cannot_go_leads_to_it) {
    ig_err err = {.msg = ""};
    ig_hub_items list;
    make();
    deny("models--o--n/snapshots/" OLD "/sub");
    ig_hub_remove o = how(true);
    CHECK(ig_hub_gc(top, &o, &err) == IG_EIO && n_failed == 1);
    CHECK(is_here("snapshots/" OLD "/sub/m.safetensors") && is_here("blobs/old") && !is_here("blobs/lone"));
    allow("models--o--n/snapshots/" OLD "/sub");
    deny("models--o--n/snapshots/" NEW "/sub");
    CHECK(!ig_hub_list(&list, top, NULL, false, &err) && list.n == 2);
    o = how(true);
    CHECK(ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) == IG_EIO && n_failed == 1);
    CHECK(is_here("snapshots/" NEW "/sub/m.safetensors") && is_here("blobs/new"));
    allow("models--o--n/snapshots/" NEW "/sub");
    o = how(true);
    CHECK_MSG(!ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) && !is_here(""), "%s", err.msg);
    ig_hub_items_clear(&list);
    drop();
}

TEST(a_revision_that_cannot_be_read_keeps_its_blobs) {
    ig_err err = {.msg = ""};
    char path[256];
    make();
    snprintf(path, sizeof path, "%s/models--o--n/snapshots/" NEW "/sub", top);
    deny("models--o--n");
    if (getuid() == 0 && seteuid(0)) abort();
    CHECK(chmod(path, 0) == 0);
    if (getuid() == 0 && seteuid(NOBODY)) abort();
    ig_hub_remove o = how(true);
    ig_hub_gc(top, &o, &err);
    allow("models--o--n");
    CHECK(chmod(path, 0777) == 0);
    CHECK(is_here("blobs/new") && is_here("blobs/same") && n_kept > 0);
    drop();
}

TEST(names_of_a_moment_that_a_killed_program_left_are_collected) {
    ig_err err = {.msg = ""};
    make();
    put("models--o--n/.ingle-ref-17", "x", 0);
    put_link(NEW, ".ingle-17-abc", "same"), put_link(NEW, "sub/.ingle-17-abd", "same");
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_gc(top, &o, &err) && n_gone == 8);
    CHECK(!is_here(".ingle-ref-17") && !is_here("snapshots/" NEW "/.ingle-17-abc") &&
          !is_here("snapshots/" NEW "/sub/.ingle-17-abd") && is_here("snapshots/" NEW "/sub/m.safetensors"));
    drop();
}

/* ---- unfinished downloads ------------------------------------------------------------------------------ */

TEST(an_unfinished_download_is_listed_and_goes_by_its_name) {
    ig_err err = {.msg = ""};
    ig_hub_items list;
    snprintf(top, sizeof top, "/tmp/ig-remove-XXXXXX");
    if (!mkdtemp(top)) abort();
    put("models--o--n/blobs/whole", "1234", 0);
    put("models--o--n/blobs/a.incomplete", "123", 0);
    put("models--o--n/blobs/a.incomplete.chunks", "x", 0);
    CHECK(!ig_hub_list(&list, top, NULL, false, &err) && list.n == 1);
    CHECK(list.n == 1 && list.v[0].unfinished && strcmp(list.v[0].name, "o/n") == 0 && list.v[0].bytes == 7);
    ig_hub_remove o = how(false);
    CHECK(!ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) && n_gone == 3 && is_here("blobs/a.incomplete"));
    o = how(true);
    CHECK(!ig_hub_rm(top, NULL, &list.v[0], true, &o, &err) && n_gone == 3 && !is_here(""));
    ig_hub_items_clear(&list);
    drop();
}

TEST(the_last_model_goes_without_the_download_that_is_under_way_beside_it) {
    ig_err err = {.msg = ""};
    ig_hub_items list;
    snprintf(top, sizeof top, "/tmp/ig-remove-XXXXXX");
    if (!mkdtemp(top)) abort();
    put("models--o--n/blobs/q8", "1234", 0);
    put("models--o--n/blobs/q4.incomplete", "123", 0);
    put("models--o--n/refs/main", NEW, 0);
    put_link(NEW, "m-Q8_0.gguf", "q8");
    CHECK(!ig_hub_list(&list, top, NULL, false, &err) && list.n == 2);
    CHECK(list.v[0].unfinished && list.v[0].bytes == 3 && strcmp(list.v[1].name, "o/n:Q8_0") == 0);
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_rm(top, NULL, &list.v[1], false, &o, &err) && n_gone == 1);
    CHECK(!is_here("blobs/q8") && is_here("blobs/q4.incomplete"));
    ig_hub_items_clear(&list);
    drop();
}

/* ---- the models folder --------------------------------------------------------------------------------- */

#define BLOB "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static ig_status rm_local(const char *name, bool run) {
    char models[128];
    ig_err err = {.msg = ""};
    ig_hub_items list;
    snprintf(models, sizeof models, "%s/models", top);
    CHECK(!ig_hub_list(&list, NULL, models, false, &err));
    ig_status st = IG_ENOTFOUND;
    ig_hub_remove o = how(run);
    for (int i = 0; i < list.n; i++)
        if (strcmp(list.v[i].name, name) == 0) st = ig_hub_rm(top, models, &list.v[i], true, &o, &err);
    ig_hub_items_clear(&list);
    return st;
}

static bool is_below(const char *below) {
    char path[512];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", top, below);
    return lstat(path, &info) == 0;
}

static void make_own(void) {
    char path[256];
    snprintf(top, sizeof top, "/tmp/ig-remove-XXXXXX");
    if (!mkdtemp(top)) abort();
    put("blobs/" BLOB, "weights", 9999);
    put("blobs/" BLOB ".ok", "7 1\n", 9999);
    put("models/other.gguf", "x", 0);
    snprintf(path, sizeof path, "%s/models/starter.gguf", top);
    if (symlink("../blobs/" BLOB, path)) abort();
}

TEST(a_link_to_a_blob_of_our_own_goes_with_it_and_frees_what_it_says) {
    make_own();
    CHECK(!rm_local("starter.gguf", false) && n_gone == 2 && n_bytes >= 512 && is_below("blobs/" BLOB));
    uint64_t told = n_bytes;
    CHECK(!rm_local("starter.gguf", true) && n_bytes == told);
    CHECK(!is_below("models/starter.gguf") && !is_below("blobs/" BLOB) && !is_below("blobs/" BLOB ".ok"));
    CHECK(is_below("models/other.gguf"));
    drop();
}

TEST(a_blob_with_another_link_and_files_elsewhere_stay) {
    char path[256], to[256];
    make_own();
    snprintf(path, sizeof path, "%s/models/second.gguf", top);
    CHECK(symlink("../blobs/" BLOB, path) == 0);
    CHECK(!rm_local("starter.gguf", true) && n_bytes == 0 && is_below("blobs/" BLOB));
    put("elsewhere/" BLOB, "mine", 0);
    snprintf(path, sizeof path, "%s/models/far.gguf", top);
    snprintf(to, sizeof to, "%s/elsewhere/" BLOB, top);
    CHECK(symlink(to, path) == 0);
    CHECK(!rm_local("far.gguf", true) && n_bytes == 0 && is_below("elsewhere/" BLOB));
    CHECK(!rm_local("second.gguf", true) && n_bytes >= 512 && !is_below("blobs/" BLOB));
    drop();
}

TEST(a_file_with_two_names_frees_nothing) {
    char a[256], b[256];
    make_own();
    snprintf(a, sizeof a, "%s/models/other.gguf", top);
    snprintf(b, sizeof b, "%s/backup", top);
    CHECK(link(a, b) == 0 && !rm_local("other.gguf", true) && n_gone == 1 && n_bytes == 0 &&
          is_below("backup"));
    drop();
}

TEST(a_blob_of_our_own_that_nothing_leads_to_is_collected) {
    char models[128];
    ig_err err = {.msg = ""};
    make_own();
    put("blobs/" BLOB ".part", "half", 8 * 86400);
    put("blobs/f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "old", 2 * 86400);
    put("blobs/e123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "new", 3600);
    put("blobs/notes.txt", "mine", 99 * 86400);
    put("registry.json", "{}", 99 * 86400);
    put("registry.json.a1B2c3", "{", 7200);
    put(".ingle-0123456789abcdef", "{", 7200);
    put(".ingle-f123456789abcdef", "{", 60);
    snprintf(models, sizeof models, "%s/models", top);
    ig_hub_remove o = how(true);
    CHECK(!ig_hub_gc_own(models, &o, &err) && n_gone == 4);
    CHECK(is_below("registry.json") && is_below(".ingle-f123456789abcdef"));
    CHECK(!is_below("registry.json.a1B2c3") && !is_below(".ingle-0123456789abcdef"));
    CHECK(is_below("blobs/" BLOB) && is_below("blobs/" BLOB ".ok") && is_below("blobs/notes.txt"));
    CHECK(!is_below("blobs/" BLOB ".part") &&
          !is_below("blobs/f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
    drop();
}
