/* fuzz_snapshot: any bytes as the model.safetensors.index.json of a folder with two shards and a stray one.
 *
 * Whatever opens lists each tensor of its files once, in order, findable by name, and from files of the folder;
 * whatever does not says why. */
#include "file/file.h"
#include "folder.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void write_shard(const char *name, const char *head) {
    char bytes[256];
    const uint64_t length = strlen(head);
    ig_assert(8 + length + 8 <= sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, head, length);
    memset(bytes + 8 + length, 0, 8);
    fuzz_write(name, bytes, 8 + length + 8);
}

static void make_folder(void) {
    fuzz_write("config.json", "{}", 2);
    write_shard("one.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                   "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}");
    write_shard("two.safetensors", "{\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
    write_shard("stray.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    ig_snapshot *s = NULL;
    ig_err err = {0};
    if (!fuzz_home[0]) make_folder();
    fuzz_write("model.safetensors.index.json", p, n);
    if (ig_snapshot_open(&s, fuzz_home, &err) != IG_OK) {
        ig_assert(err.msg[0] && !s);
        return 0;
    }
    ig_assert(ig_snapshot_n_tensors(s) >= 1 && ig_snapshot_n_tensors(s) <= 3);
    for (int i = 0; i < ig_snapshot_n_tensors(s); i++) {
        const ig_safetensor *t = ig_snapshot_tensor_at(s, i);
        char name[IG_SAFETENSORS_NAME_MAX + 1];
        memcpy(name, t->name.p, t->name.n);
        name[t->name.n] = 0;
        ig_assert(ig_snapshot_find(s, name) == t && ig_snapshot_place(s, t) == i);
        ig_assert(strncmp(ig_safetensors_path(t->file), fuzz_home, strlen(fuzz_home)) == 0);
    }
    ig_snapshot_close(s);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
