/* fuzz_snapshot: any bytes as the model.safetensors.index.json of a folder with two shards and a stray one.
 *
 * Whatever opens lists each tensor of its files once, in order, findable by name, and from files of the folder;
 * whatever does not says why. */
#include "file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char *const files[] = {"config.json", "one.safetensors", "two.safetensors", "stray.safetensors",
                                    "model.safetensors.index.json"};
static char home[64];

static void write_file(const char *name, const void *p, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", home, name);
    FILE *f = fopen(path, "w");
    ig_assert(f != NULL && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

static void write_shard(const char *name, const char *head) {
    char bytes[256];
    const uint64_t length = strlen(head);
    ig_assert(8 + length + 8 <= sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, head, length);
    memset(bytes + 8 + length, 0, 8);
    write_file(name, bytes, 8 + length + 8);
}

static void drop_folder(void) {
    char path[128];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", home, files[i]);
        unlink(path);
    }
    rmdir(home);
}

static void make_folder(void) {
    snprintf(home, sizeof home, "/tmp/ig-fuzz-XXXXXX");
    ig_assert(mkdtemp(home) != NULL);
    atexit(drop_folder);
    write_file(files[0], "{}", 2);
    write_shard(files[1], "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}");
    write_shard(files[2], "{\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
    write_shard(files[3], "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    ig_snapshot *s = NULL;
    ig_err err = {0};
    if (!home[0]) make_folder();
    write_file(files[4], p, n);
    if (ig_snapshot_open(&s, home, &err) != IG_OK) {
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
        ig_assert(strncmp(ig_safetensors_path(t->file), home, strlen(home)) == 0);
    }
    ig_snapshot_close(s);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
