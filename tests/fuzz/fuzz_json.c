/* fuzz_json: any bytes as the body of a request. A document that parses is no deeper than the limit, holds
 * valid UTF-8 only, and the text it came from was not touched. */
#include "file/file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { DEPTH_MAX = 16 };

static void walk(yyjson_val *v, int depth) {
    size_t i, n;
    yyjson_val *key, *item;
    ig_assert(depth <= DEPTH_MAX);
    if (yyjson_is_str(v))
        ig_assert(ig_slice_utf8_valid((ig_slice){yyjson_get_str(v), yyjson_get_len(v)}, NULL));
    if (yyjson_is_arr(v)) {
        yyjson_arr_foreach(v, i, n, item) walk(item, depth + 1);
    }
    if (yyjson_is_obj(v)) {
        yyjson_obj_foreach(v, i, n, key, item) {
            walk(key, depth);
            walk(item, depth + 1);
        }
        ig_json_get(v, "messages");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    yyjson_doc *doc = NULL;
    ig_err err;
    char *before = malloc(n ? n : 1);
    if (!before) return 0;
    if (n) memcpy(before, p, n);
    ig_json_limits limits = {.bytes_max = 1 << 16, .depth_max = DEPTH_MAX};
    if (ig_json_parse(&doc, (const char *)p, n, limits, &err) == IG_OK) {
        walk(yyjson_doc_get_root(doc), 0);
        yyjson_doc_free(doc);
    } else {
        ig_assert(err.code != IG_OK && err.msg[0] && !doc);
    }
    ig_assert(n == 0 || memcmp(before, p, n) == 0);
    free(before);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
