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

static int n_gone, n_kept;
static void on_gone(void *ud, const char *path, uint64_t bytes, const char *why) {
    (void)ud, (void)path, (void)bytes, (void)why;
    n_gone++;
}
static void on_kept(void *ud, const char *path, const char *why) {
    (void)ud, (void)path, (void)why;
    n_kept++;
}
static ig_hub_remove how(bool run) {
    n_gone = n_kept = 0;
    return (ig_hub_remove){.run = run, .now_s = time(NULL), .gone = on_gone, .kept = on_kept};
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
    CHECK(!ig_hub_list(&list, top, NULL, true, &err) && list.n == 2);
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
    CHECK(!ig_hub_list(&list, top, NULL, true, &err) && list.n == 2);
    int old = strcmp(list.v[0].commit, OLD) == 0 ? 0 : 1;
    ig_hub_remove o = how(true);
    CHECK_MSG(!ig_hub_rm(top, NULL, &list.v[old], false, &o, &err), "%s", err.msg);
    CHECK(!is_here("snapshots/" OLD) && !is_here("blobs/old") && is_here("blobs/same") &&
          is_here("blobs/lone"));
    CHECK(is_here("snapshots/" NEW "/config.json") && is_here("refs/main"));
    ig_hub_items_clear(&list);
    drop();
}
