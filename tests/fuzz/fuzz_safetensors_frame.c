/* fuzz_safetensors_frame: safetensors files of valid JSON whose numbers are mostly right: the bytes are choices.
 * What is checked is what fuzz_safetensors.c checks. */
#include "file/file.h"
#include "recipe.h"

#include <inttypes.h>

#ifndef IG_LIBFUZZER
#define IG_LIBFUZZER
#define IG_FUZZ_OWN_MAIN
#endif
#define LLVMFuzzerTestOneInput check_bytes
#include "fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { TENSORS_MOST = 12, DATA_MOST = 1 << 16 };

/* As a JSON number: a whole one in most cases. */
static void put_number(ig_buf *b, recipe *r, uint64_t truth) {
    static const char *const odd[] = {"-1", "1e3", "1.0", "null", "\"1\"", "[]", "18446744073709551616", "1e400"};
    uint8_t how = choose(r);
    if (how >= 248) ig_buf_add_str(b, odd[how - 248]);
    else ig_buf_addf(b, "%" PRIu64, perhaps(r, truth));
}

static void put_tensor(ig_buf *b, recipe *r, int index, uint64_t *at) {
    static const struct {
        const char *name;
        uint64_t bytes;
    } dtypes[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2}, {"U32", 4}, {"U8", 1}, {"I64", 8}, {"F64", 8},
                  {"I32", 4}, {"BOOL", 1}, {"I16", 2}, {"F4", 1},  {"", 1},   {"f32", 4}};
    uint8_t which = choose(r) % (sizeof dtypes / sizeof *dtypes), n_dims = choose(r) % 5;
    uint64_t n = dtypes[which].bytes;
    ig_buf_addf(b, "%s\"t%d\":{\"dtype\":\"%s\",\"shape\":[", index ? "," : "",
                choose(r) == 255 ? 0 : index, dtypes[which].name);
    for (int d = 0; d < n_dims; d++) {
        uint64_t dim = choose(r) % 7;
        n *= dim;
        if (d) ig_buf_add_str(b, ",");
        put_number(b, r, dim);
    }
    ig_buf_add_str(b, "],\"data_offsets\":[");
    put_number(b, r, *at);
    ig_buf_add_str(b, ",");
    put_number(b, r, *at + n);
    ig_buf_add_str(b, choose(r) == 255 ? "],\"more\":1}" : "]}");
    *at += n;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    recipe r = {p, n};
    ig_buf head = ig_buf_init(1 << 16), b = ig_buf_init(1 << 20);
    uint8_t n_tensors = choose(&r) % TENSORS_MOST, metadata = choose(&r);
    uint64_t at = 0;
    ig_buf_add_str(&head, "{");
    for (int i = 0; i < n_tensors; i++) put_tensor(&head, &r, i, &at);
    if (metadata > 200)
        ig_buf_addf(&head, "%s\"__metadata__\":%s", n_tensors ? "," : "",
                    metadata > 240 ? "{\"a\":1}" : "{\"format\":\"pt\"}");
    ig_buf_add_str(&head, "}");
    for (uint8_t i = choose(&r) % 9; i > 0; i--) ig_buf_add_str(&head, " ");
    put_le(&b, perhaps(&r, head.n), 8);
    ig_buf_add(&b, head.p, head.n);
    at = perhaps(&r, at);
    for (uint64_t i = 0; i < at && i < DATA_MOST; i++) ig_buf_add(&b, "x", 1);
    check_bytes((const uint8_t *)b.p, b.n);
    ig_buf_free(&head);
    ig_buf_free(&b);
    return 0;
}

#ifdef IG_FUZZ_OWN_MAIN
#include "corpus_main.h"
#endif
