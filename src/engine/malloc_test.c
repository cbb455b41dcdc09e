/* A malloc that tells: the calls of threads that said they make none are counted.
 *
 * The program's own table of imported functions is changed, so that nothing has to be linked in another way
 * and sanitizers keep their malloc. What libc calls inside itself is not seen. */
#include "base/test.h"
#include "engine/fake_test.h"

#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local volatile bool watched;
static _Atomic int n_calls;
static bool ready; /* set once, before main */

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);

static void note(void) {
    if (watched) atomic_fetch_add(&n_calls, 1);
}
static void *our_malloc(size_t n) {
    note();
    return real_malloc(n);
}
static void *our_calloc(size_t n, size_t size) {
    note();
    return real_calloc(n, size);
}
static void *our_realloc(void *p, size_t n) {
    note();
    return real_realloc(p, n);
}
static void our_free(void *p) {
    note();
    real_free(p);
}

static const struct {
    const char *name;
    void (*to)(void);
} PATCHES[] = {
    {"malloc", (void (*)(void))our_malloc},
    {"calloc", (void (*)(void))our_calloc},
    {"realloc", (void (*)(void))our_realloc},
    {"free", (void (*)(void))our_free},
};

#if defined(__x86_64__)
enum { SLOT = R_X86_64_JUMP_SLOT, DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, DATA = R_AARCH64_GLOB_DAT };
#else
enum { SLOT = -1, DATA = -1 };
#endif

static bool is_slot(const ElfW(Rela) *r) {
    int type = (int)ELF64_R_TYPE(r->r_info);
    return type == SLOT || type == DATA;
}

static void patch(const ElfW(Rela) *rela, size_t bytes, uintptr_t base, const ElfW(Sym) *sym,
                  const char *names) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < bytes / sizeof *rela; i++) {
        const char *name = names + sym[ELF64_R_SYM(rela[i].r_info)].st_name;
        uintptr_t at = base + rela[i].r_offset;
        for (size_t k = 0; k < sizeof PATCHES / sizeof *PATCHES && is_slot(&rela[i]); k++) {
            if (strcmp(name, PATCHES[k].name) != 0) continue;
            if (mprotect((void *)(at / page * page), page, PROT_READ | PROT_WRITE) != 0) return;
            memcpy((void *)at, &PATCHES[k].to, sizeof PATCHES[k].to);
            ready = true;
        }
    }
}

static int patch_program(struct dl_phdr_info *info, size_t size, void *ud) {
    const ElfW(Rela) *rela = NULL, *plt = NULL;
    const ElfW(Sym) *sym = NULL;
    const char *names = NULL;
    size_t rela_bytes = 0, plt_bytes = 0;
    (void)size, (void)ud;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++) {
            void *p = (void *)d->d_un.d_ptr;
            if (d->d_tag == DT_RELA) rela = p;
            if (d->d_tag == DT_RELASZ) rela_bytes = d->d_un.d_val;
            if (d->d_tag == DT_JMPREL) plt = p;
            if (d->d_tag == DT_PLTRELSZ) plt_bytes = d->d_un.d_val;
            if (d->d_tag == DT_SYMTAB) sym = p;
            if (d->d_tag == DT_STRTAB) names = p;
        }
    }
    if (!sym || !names) return 1;
    if (rela) patch(rela, rela_bytes, info->dlpi_addr, sym, names);
    if (plt) patch(plt, plt_bytes, info->dlpi_addr, sym, names);
    return 1; /* the first is the program */
}

__attribute__((constructor)) static void set_up(void) {
    real_malloc = malloc;
    real_calloc = calloc;
    real_realloc = realloc;
    real_free = free;
    dl_iterate_phdr(patch_program, NULL);
}

void ig_test_watch_malloc(bool on) {
    watched = on;
}

int ig_test_watched_mallocs(void) {
    return atomic_exchange(&n_calls, 0);
}

TEST(the_watching_malloc_notices) { /* the control of every test that asks it */
    if (SLOT < 0) SKIP("this machine's relocations are not known here");
    CHECK(ready);
    ig_test_watched_mallocs();
    ig_test_watch_malloc(true);
    void *volatile p = malloc(100);
    p = realloc(p, 200);
    free(p);
    ig_test_watch_malloc(false);
    CHECK(ig_test_watched_mallocs() == 3);
    p = malloc(100);
    free(p);
    CHECK(ig_test_watched_mallocs() == 0);
}
