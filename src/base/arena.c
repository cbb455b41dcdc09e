/* arena: bump allocation, pages from the system, and how much memory is left.
 * Owns:    nothing; an arena's memory belongs to whoever set its base.
 * Threads: one arena, one thread. The page and memory functions: any.
 * Memory:  mmap.
 * Why MAP_NORESERVE: a KV pool is sized for its worst case and touched as it fills. What may be touched
 * was checked against ig_memory_available_bytes before. */
#include "base/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };

void *ig_arena_take(ig_arena *a, size_t bytes) {
    const size_t most = SIZE_MAX - (SIZE_MAX % IG_ALIGN_BYTES); /* the largest whole number of lines */
    size_t limit = a->counting ? most : a->cap_bytes;
    size_t need = bytes > most ? SIZE_MAX : (bytes + (IG_ALIGN_BYTES - 1)) / IG_ALIGN_BYTES * IG_ALIGN_BYTES;

    if (need > limit - a->used_bytes) {
        if (!a->counting) return NULL;
        need = limit - a->used_bytes; /* a plan beyond all memory stays there: it must not wrap to small */
    }
    void *p = a->counting ? NULL : a->base + a->used_bytes;
    a->used_bytes += need;
    if (a->peak_bytes < a->used_bytes) a->peak_bytes = a->used_bytes;
    return p;
}

/* 0 when it does not fit in a size_t. */
static size_t round_to_page(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

ig_status ig_pages_map(void **out, size_t bytes, bool huge, ig_err *err) {
    size_t len = round_to_page(bytes);
    huge = huge && len >= HUGE_BYTES;
    size_t spare = huge ? HUGE_BYTES : 0; /* room to slide up to a huge page's border */

    if (bytes == 0) return ig_fail(err, IG_EINVAL, "map pages: 0 bytes asked");
    if (len == 0 || len > SIZE_MAX - spare)
        return ig_fail(err, IG_ELIMIT, "map pages: %zu bytes do not fit in the address space", bytes);

    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *p = mmap(NULL, len + spare, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return ig_fail(err, IG_ELIMIT, "map pages: %zu bytes: %s", bytes, strerror(errno));
    if (huge) {
        size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
        if (head > 0) munmap(p, head);
        p += head;
        if (spare > head) munmap(p + len, spare - head);
        madvise(p, len, MADV_HUGEPAGE); /* a wish: small pages are slower, not wrong */
    }
    *out = p;
    return IG_OK;
}

void ig_pages_unmap(void *p, size_t bytes) {
    if (!p) return;
    ig_assert(munmap(p, round_to_page(bytes)) == 0);
}

/* The number after `key` in a file of "key: number kB" lines. */
static bool proc_kb(const char *path, const char *key, uint64_t *kb) {
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = strlen(key);
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, key, n) == 0 && sscanf(line + n, " %" SCNu64, kb) == 1;
    fclose(f);
    return found;
}

/* What `ulimit -v` leaves of the address space. */
static uint64_t address_space_left_bytes(void) {
    struct rlimit limit;
    uint64_t kb = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    if (!proc_kb("/proc/self/status", "VmSize:", &kb)) return UINT64_MAX;
    return limit.rlim_cur > kb * 1024 ? limit.rlim_cur - kb * 1024 : 0;
}

uint64_t ig_memory_available_bytes(void) {
    uint64_t kb = 0, left = ig_cgroup_memory_left_bytes(""), space = address_space_left_bytes();
    if (space < left) left = space;
    uint64_t system = proc_kb("/proc/meminfo", "MemAvailable:", &kb)
                          ? kb * 1024
                          : (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return left < system ? left : system;
}

uint64_t ig_memory_resident_bytes(void) {
    uint64_t kb = 0;
    return proc_kb("/proc/self/status", "VmRSS:", &kb) ? kb * 1024 : 0;
}
