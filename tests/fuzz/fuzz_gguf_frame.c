/* fuzz_gguf_frame: GGUF files whose framing is right and whose numbers are mostly right: the bytes are choices.
 *
 * Plain bytes seldom get past the first count. What is checked is what fuzz_gguf.c checks. */
#include "file/file.h"
#include "gguf_recipe.h"

#ifndef IG_LIBFUZZER
#define IG_LIBFUZZER
#define IG_FUZZ_OWN_MAIN
#endif
#define LLVMFuzzerTestOneInput check_bytes
#include "fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { KEYS_MOST = 24, TENSORS_MOST = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    recipe r = {p, n};
    ig_buf b = ig_buf_init(1 << 20);
    uint8_t n_keys = choose(&r) % KEYS_MOST, n_tensors = choose(&r) % TENSORS_MOST;
    uint64_t at = 0;
    ig_buf_add(&b, "GGUF", 4);
    put_le(&b, perhaps(&r, 3), 4);
    put_le(&b, perhaps(&r, n_tensors), 8);
    put_le(&b, perhaps(&r, n_keys), 8);
    for (int i = 0; i < n_keys; i++) put_key(&b, &r);
    for (int i = 0; i < n_tensors; i++) put_tensor(&b, &r, i, &at);
    while (b.n % GGUF_ALIGN) ig_buf_add(&b, "", 1);
    put_zeros(&b, perhaps(&r, at));
    check_bytes((const uint8_t *)b.p, b.n);
    ig_buf_free(&b);
    return 0;
}

#ifdef IG_FUZZ_OWN_MAIN
#include "corpus_main.h"
#endif
