/* Bounds read from a fake /proc and /sys: a container, a deep tree, a part of a tree, and nonsense. */
#include "base/inside.h"
#include "base/test.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void tree_remove(void) {
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static bool tree_make(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/ingle-cgroup-XXXXXX", tmp ? tmp : "/tmp");
    return CHECK(mkdtemp(root) != NULL);
}

/* Writes a file of the fake tree, with the folders on its way. */
static void put(const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    if (!CHECK_MSG(f != NULL, "%s", full)) return;
    fputs(text, f);
    fclose(f);
}

#define MOUNT(TOP, POINT) \
    "22 1 0:21 / /proc rw shared:5 - proc proc rw\n" \
    "30 23 0:26 " TOP " " POINT " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

TEST(no_cgroup_is_no_bound) {
    if (!tree_make()) return;
    CHECK(ig_cgroup_cpus(root) == INT_MAX && ig_cgroup_memory_left_bytes(root) == UINT64_MAX);
    put("/proc/self/cgroup", "3:memory:/x\n0::/\n");
    CHECK(ig_cgroup_cpus(root) == INT_MAX && ig_cgroup_memory_left_bytes(root) == UINT64_MAX);
    put("/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup"));
    CHECK(ig_cgroup_cpus(root) == INT_MAX && ig_cgroup_memory_left_bytes(root) == UINT64_MAX);
    tree_remove();
}

TEST(a_container_sees_its_bounds_at_the_mount) {
    if (!tree_make()) return;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup"));
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/memory.max", "1000000\n");
    put("/sys/fs/cgroup/memory.current", "600000\n");
    CHECK(ig_cgroup_cpus(root) == 2);
    CHECK(ig_cgroup_memory_left_bytes(root) == 400000);
    put("/sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 100000\nactive_file 7\n");
    CHECK(ig_cgroup_memory_left_bytes(root) == 500000);
    put("/sys/fs/cgroup/memory.high", "800000\n");
    CHECK(ig_cgroup_memory_left_bytes(root) == 300000);
    tree_remove();
}

TEST(the_tightest_group_on_the_way_up_holds) {
    if (!tree_make()) return;
    put("/proc/self/cgroup", "1:name=systemd:/\n0::/a/b/c\n");
    put("/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup/unified"));
    put("/sys/fs/cgroup/unified/a/b/c/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/unified/a/b/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/unified/a/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n"); /* above the mount: not a group */
    CHECK(ig_cgroup_cpus(root) == 3);
    put("/sys/fs/cgroup/unified/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/unified/a/b/c/memory.current", "10\n");
    put("/sys/fs/cgroup/unified/a/memory.max", "5000\n");
    put("/sys/fs/cgroup/unified/a/memory.current", "4000\n");
    CHECK(ig_cgroup_memory_left_bytes(root) == 1000);
    tree_remove();
}

TEST(a_mount_of_a_part_of_the_tree_is_understood) {
    if (!tree_make()) return;
    put("/proc/self/cgroup", "0::/docker/abc/x\n");
    put("/proc/self/mountinfo", MOUNT("/docker/abc", "/sys/fs/cgroup"));
    put("/sys/fs/cgroup/x/cpu.max", "10000 100000\n");
    CHECK(ig_cgroup_cpus(root) == 1);
    put("/proc/self/cgroup", "0::/docker/abcd/x\n"); /* begins alike and is another group */
    CHECK(ig_cgroup_cpus(root) == INT_MAX);
    put("/proc/self/cgroup", "0::/../other\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    CHECK(ig_cgroup_cpus(root) == 4);
    tree_remove();
}

TEST(nonsense_in_a_bound_is_no_bound_and_no_crash) {
    static const char *const texts[] = {"", "\n", "max", "x y\n", "100000\n", "100000 0\n", "-\n"};
    if (!tree_make()) return;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup"));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put("/sys/fs/cgroup/cpu.max", texts[i]);
        CHECK_MSG(ig_cgroup_cpus(root) == INT_MAX, "\"%s\"", texts[i]);
    }
    put("/sys/fs/cgroup/cpu.max", "0 100000\n");
    CHECK(ig_cgroup_cpus(root) == 1);
    put("/sys/fs/cgroup/cpu.max", "18446744073709551615 1\n");
    CHECK(ig_cgroup_cpus(root) == INT_MAX);
    put("/sys/fs/cgroup/memory.max", "1000\n");
    put("/sys/fs/cgroup/memory.current", "5000\n");
    CHECK(ig_cgroup_memory_left_bytes(root) == 0);
    put("/sys/fs/cgroup/memory.stat", "inactive_file 99999\n");
    CHECK(ig_cgroup_memory_left_bytes(root) == 1000);
    tree_remove();
}

TEST(a_path_too_long_to_be_followed_is_no_bound) {
    static char line[20000];
    if (!tree_make()) return;
    put("/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup"));
    for (size_t n = 4000; n < 17000; n += 93) {
        memset(line, 'a', n);
        memcpy(line, "0::/", 4);
        memcpy(line + n, "\n", 2);
        put("/proc/self/cgroup", line);
        CHECK(ig_cgroup_cpus(root) == INT_MAX);
    }
    tree_remove();
}
