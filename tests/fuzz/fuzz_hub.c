/* fuzz_hub: any bytes as what a hub says of a repository. What is believed has paths that stay inside, hashes and
 * sizes in bounds, and is sorted; and whatever is then chosen is a part of it. The first byte picks the wish. */
#include "hub/hub.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char *const patterns[] = {"*.json", "*Q4*", NULL};

static void check(const ig_hub_repo *r) {
    for (int i = 0; i < r->n; i++) {
        const ig_hub_file *f = &r->v[i];
        ig_assert(ig_hub_path_good(ig_slice_of(f->path)) && ig_hub_hash_good(ig_slice_of(f->hash)));
        ig_assert(f->bytes <= (uint64_t)1 << 46);
        ig_assert(i == 0 || strcmp(r->v[i - 1].path, f->path) < 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const char *const picks[] = {NULL, "Q4_K_M", "a.gguf", "config.json"};
    ig_hub_repo r = {.n = 0};
    ig_hub_choice c = {.n_files = 0};
    ig_err err = {.msg = ""};
    if (n < 1) return 0;
    const ig_hub_want want = {.pick = picks[p[0] & 3],
                              .include = p[0] & 4 ? patterns : NULL,
                              .exclude = p[0] & 8 ? patterns : NULL};
    if (ig_hub_repo_parse(&r, (const char *)p + 1, n - 1, &err)) {
        ig_assert(err.msg[0] && !r.v);
        return 0;
    }
    check(&r);
    uint64_t bytes = 0;
    int n_wanted = 0;
    ig_status st = ig_hub_choose(&c, &r, &want, &err);
    for (int i = 0; i < r.n; i++)
        if (r.v[i].wanted) n_wanted++, bytes += r.v[i].bytes;
    ig_assert(st ? err.msg[0] != 0 : n_wanted > 0 && n_wanted == c.n_files && bytes == c.bytes);
    ig_hub_choice_clear(&c);
    ig_hub_repo_clear(&r);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
