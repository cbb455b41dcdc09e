/* inside.h: what base's own files share, and the seams its tests reach through. Nobody outside base
 * includes it. */
#ifndef IG_BASE_INSIDE_H
#define IG_BASE_INSIDE_H
#include "base/base.h"

/* cgroup.c. `root` is put before every absolute path: "" outside of tests. Both walk from the group of
 * this process up to the mount and answer with the tightest bound; no cgroup v2 is no bound. */
int ig_cgroup_cpus(const char *root);                /* cpu.max rounded up; INT_MAX: no bound */
uint64_t ig_cgroup_memory_left_bytes(const char *root); /* UINT64_MAX: no bound */

/* cpu.c: the bits that a value of INGLE_CPU leaves. False: not one of its words. */
bool ig_cpu_mask_from(const char *name, uint32_t *out);

/* log.c: one finished line (with its newline) in `out`; returns its length, at most cap. */
size_t ig_log_line(char *out, size_t cap, int64_t unix_ms, ig_log_level level, const char *text);
size_t ig_log_json_line(char *out, size_t cap, int64_t unix_ms, ig_log_level level, const char *text);

#endif
