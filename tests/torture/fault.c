/* fault: the failing allocator and the failing files of the torture tests.
 * Threads: any; the count is one atomic.
 * Memory:  none of its own, but a few static bytes for dlsym, which allocates before it can tell where malloc is.
 * Why definitions and not -Wl,--wrap: they are seen by shared libraries and by libc's own calls too. Under a
 * sanitizer the next definition is the sanitizer's, so the two live together. */
#include "fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic long n_calls, n_live;
static long at; /* set while nothing else runs */
static fault_kind kind_armed;
static bool sticky_armed;
static _Atomic bool armed, came, in_template;
static _Thread_local int exempt;
static void *frames[24];
static int n_frames;

/* glibc itself ends the process when it has no memory to note a destructor of a thread's variable. */
static bool is_fatal_in_libc(void) {
    void *from[6];
    Dl_info info;
    int n = backtrace(from, sizeof from / sizeof *from);
    for (int i = 0; i < n; i++)
        if (dladdr(from[i], &info) && info.dli_sname && strcmp(info.dli_sname, "__cxa_thread_atexit_impl") == 0)
            return true;
    return false;
}

/* Does this call of a kind fail? */
static bool fails(bool memory) {
    if (!atomic_load(&armed) || exempt || (kind_armed == FAULT_MEMORY) != memory) return false;
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    if (at == 0 || n < at || (n > at && !sticky_armed)) return false;
    exempt++;
    if (memory && is_fatal_in_libc()) {
        exempt--;
        return false;
    }
    char name[16];
    if (pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strcmp(name, "template") == 0)
        atomic_store(&in_template, true);
    exempt--;
    if (!atomic_exchange(&came, true)) {
        exempt++;
        n_frames = backtrace(frames, sizeof frames / sizeof *frames);
        exempt--;
    }
    return true;
}

void fault_arm(fault_kind kind, long n, bool sticky) {
    void *first[2];
    exempt++;
    backtrace(first, 2); /* it loads a library when it is called first */
    exempt--;
    kind_armed = kind;
    at = n;
    sticky_armed = sticky;
    atomic_store(&n_calls, 0);
    atomic_store(&came, false);
    atomic_store(&in_template, false);
    atomic_store(&armed, true);
}

long fault_disarm(void) {
    atomic_store(&armed, false);
    return atomic_load(&n_calls);
}

bool fault_came(void) {
    return atomic_load(&came);
}

bool fault_in_template(void) {
    return atomic_load(&in_template);
}

long fault_live(void) {
    return atomic_load(&n_live);
}

void fault_exempt(bool on) {
    exempt += on ? 1 : -1;
}

void fault_print(void) {
    backtrace_symbols_fd(frames, n_frames, STDERR_FILENO);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static char early[8192]; /* what dlsym asks for on the way to malloc */
static size_t n_early;

static bool is_early(const void *p) {
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *next(const char *name) {
    static _Thread_local int inside;
    if (inside) return NULL;
    inside = 1;
    void *p = dlsym(RTLD_NEXT, name);
    inside = 0;
    return p;
}

static void *take_early(size_t n) {
    n = (n + 15) / 16 * 16;
    if (n > sizeof early - n_early) return NULL;
    n_early += n;
    return early + n_early - n;
}

#define NEXT(name)                                                                                           \
    static __typeof__(name) *real;                                                                           \
    if (!real) *(void **)&real = next(#name)

static void *count(void *p) {
    if (p) atomic_fetch_add(&n_live, 1);
    return p;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t n) {
    NEXT(malloc);
    if (!real) return take_early(n);
    return fails(true) ? no_memory() : count(real(n));
}

void *calloc(size_t n, size_t size) {
    NEXT(calloc);
    if (!real) return take_early(n * size);
    return fails(true) ? no_memory() : count(real(n, size));
}

void free(void *p) {
    NEXT(free);
    if (!p || is_early(p)) return;
    atomic_fetch_sub(&n_live, 1);
    real(p);
}

void *realloc(void *p, size_t n) {
    NEXT(realloc);
    if (is_early(p)) {
        void *copy = malloc(n);
        size_t left = (size_t)(early + sizeof early - (char *)p);
        return copy ? memcpy(copy, p, n < left ? n : left) : NULL;
    }
    if (fails(true)) return no_memory();
    void *q = real(p, n);
    return p ? q : count(q); /* realloc(p, 0) is not called here */
}

int posix_memalign(void **out, size_t align, size_t n) {
    NEXT(posix_memalign);
    if (fails(true)) return ENOMEM;
    int code = real(out, align, n);
    if (!code) count(*out);
    return code;
}

void *aligned_alloc(size_t align, size_t n) {
    NEXT(aligned_alloc);
    return fails(true) ? no_memory() : count(real(align, n));
}

void *mmap(void *where, size_t n, int prot, int flags, int fd, off_t from) {
    NEXT(mmap);
    if (fails((flags & MAP_ANONYMOUS) != 0)) {
        errno = flags & MAP_ANONYMOUS ? ENOMEM : EIO;
        return MAP_FAILED;
    }
    return real(where, n, prot, flags, fd, from);
}

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg) {
    NEXT(pthread_create);
    return fails(true) ? EAGAIN : real(t, a, run, arg);
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* -1 with errno, when this call fails. */
static bool fails_io(void) {
    static const int codes[FAULT_KINDS] = {0, EIO, ENOSPC, EINTR, 0};
    if (kind_armed == FAULT_SHORT || !fails(false)) return false;
    errno = codes[kind_armed];
    return true;
}

/* Reads and writes: a failure, or how many bytes to do. */
static bool fails_or_short(size_t *n) {
    if (kind_armed != FAULT_SHORT) return fails_io();
    if (*n > 1 && fails(false)) *n = 1;
    return false;
}

ssize_t read(int fd, void *to, size_t n) {
    NEXT(read);
    return fails_or_short(&n) ? -1 : real(fd, to, n);
}

ssize_t pread(int fd, void *to, size_t n, off_t from) {
    NEXT(pread);
    return fails_or_short(&n) ? -1 : real(fd, to, n, from);
}

ssize_t write(int fd, const void *from, size_t n) {
    NEXT(write);
    return fails_or_short(&n) ? -1 : real(fd, from, n);
}

int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fails_io() ? -1 : real(path, flags, mode);
}

int mkostemp(char *path, int flags) {
    NEXT(mkostemp);
    return fails_io() ? -1 : real(path, flags);
}

int fstat(int fd, struct stat *out) {
    NEXT(fstat);
    return fails_io() ? -1 : real(fd, out);
}

int stat(const char *path, struct stat *out) {
    NEXT(stat);
    return fails_io() ? -1 : real(path, out);
}

int fsync(int fd) {
    NEXT(fsync);
    return fails_io() ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails_io() ? -1 : real(from, to);
}

int ftruncate(int fd, off_t n) {
    NEXT(ftruncate);
    return fails_io() ? -1 : real(fd, n);
}
