/* cgroup: the bounds a container puts on us (cgroup v2).
 * Owns:    nothing.
 * Threads: any.
 * Memory:  the stack; every path and file is read up to a bound.
 * Why the walk: each group up to the root may set a bound and the tightest holds. In a container the
 * mount shows our own group as its root; on the host it shows the whole tree. Both end in one path. */
#include "base/inside.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, DIR_BYTES = 2 * PATH_BYTES, LINE_BYTES = 8192 };

static FILE *open_in(const char *dir, const char *name) {
    char path[DIR_BYTES + 64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && n < (int)sizeof path ? fopen(path, "re") : NULL;
}

static bool read_first_line(const char *dir, const char *name, char *line, size_t cap) {
    FILE *f = open_in(dir, name);
    if (!f) return false;
    bool got = fgets(line, (int)cap, f) != NULL;
    fclose(f);
    return got;
}

/* "max" and what is no number are no bound. */
static uint64_t read_bytes(const char *dir, const char *name) {
    char line[64];
    uint64_t v;
    if (!read_first_line(dir, name, line, sizeof line)) return UINT64_MAX;
    return sscanf(line, "%" SCNu64, &v) == 1 ? v : UINT64_MAX;
}

/* Our group's path as the hierarchy names it: the line "0::/path". */
static bool group_path(const char *root, char *out, size_t cap) {
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = open_in(root, "proc/self/cgroup");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) != 0 || strlen(line + 3) >= cap) continue;
        memcpy(out, line + 3, strlen(line + 3) + 1);
        found = true;
    }
    fclose(f);
    return found;
}

/* Where cgroup2 is mounted, and which group stands at that point: fields 5 and 4 of its line
 * ("id parent dev root point options... - type source options"). */
static bool find_mount(const char *root, char point[PATH_BYTES], char top[PATH_BYTES]) {
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = open_in(root, "proc/self/mountinfo");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        const char *type = strstr(line, " - ");
        found = type && strncmp(type + 3, "cgroup2 ", 8) == 0 &&
                sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) == 2;
    }
    fclose(f);
    return found;
}

/* Our group's directory in `dir`; the number of leading bytes that are the mount in *stop. */
static bool group_dir(const char *root, char *dir, size_t cap, size_t *stop) {
    char group[PATH_BYTES], point[PATH_BYTES], top[PATH_BYTES];
    if (!group_path(root, group, sizeof group) || !find_mount(root, point, top)) return false;

    const char *below = group;
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(group, top, n) == 0 && (group[n] == '/' || group[n] == '\0')) below = group + n;
    if (strstr(below, "/..")) below = ""; /* outside of our namespace: only the mount is ours to see */
    if (strcmp(below, "/") == 0) below = "";

    *stop = strlen(root) + strlen(point);
    if (*stop + strlen(below) >= cap) return false;
    snprintf(dir, cap, "%s%s%s", root, point, below);
    return true;
}

/* One group up; false when `dir` was the mount itself. */
static bool go_up(char *dir, size_t stop) {
    char *slash = strrchr(dir, '/');
    if (strlen(dir) <= stop || !slash || (size_t)(slash - dir) < stop) return false;
    *slash = '\0';
    return true;
}

static int cpus_here(const char *dir) {
    char line[64];
    uint64_t quota, period;
    if (!read_first_line(dir, "cpu.max", line, sizeof line)) return INT_MAX;
    if (sscanf(line, "%" SCNu64 " %" SCNu64, &quota, &period) != 2 || period == 0) return INT_MAX;
    uint64_t n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

int ig_cgroup_cpus(const char *root) {
    char dir[DIR_BYTES];
    size_t stop;
    int least = INT_MAX;
    if (!group_dir(root, dir, sizeof dir, &stop)) return INT_MAX;
    do {
        int n = cpus_here(dir);
        if (n < least) least = n;
    } while (go_up(dir, stop));
    return least;
}

/* File pages not used lately: the kernel drops them before it refuses us. */
static uint64_t reclaimable_bytes(const char *dir) {
    char line[256];
    uint64_t v = 0;
    FILE *f = open_in(dir, "memory.stat");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %" SCNu64, &v) == 1) break;
    fclose(f);
    return v;
}

static uint64_t memory_left_here(const char *dir) {
    uint64_t max = read_bytes(dir, "memory.max"), high = read_bytes(dir, "memory.high");
    uint64_t used = read_bytes(dir, "memory.current"), cache = reclaimable_bytes(dir);
    if (high < max) max = high; /* past it we are not refused but slowed to a crawl */
    if (max == UINT64_MAX || used == UINT64_MAX) return max;
    used -= cache < used ? cache : used;
    return max > used ? max - used : 0;
}

uint64_t ig_cgroup_memory_left_bytes(const char *root) {
    char dir[DIR_BYTES];
    size_t stop;
    uint64_t least = UINT64_MAX;
    if (!group_dir(root, dir, sizeof dir, &stop)) return UINT64_MAX;
    do {
        uint64_t left = memory_left_here(dir);
        if (left < least) least = left;
    } while (go_up(dir, stop));
    return least;
}
