/* Snapshots written into a folder under /tmp: what an index may say and what is refused. */
#include "base/test.h"
#include "file/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void begin(void) {
    snprintf(folder, sizeof folder, "/tmp/ig-snapshot-XXXXXX");
    if (!mkdtemp(folder)) abort();
}

static void end(void) {
    DIR *d = opendir(folder);
    if (!d) abort();
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(folder);
}

static void put(const char *name, const void *bytes, size_t n) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static void put_text(const char *name, const char *text) {
    put(name, text, strlen(text));
}

/* A file of one-byte tensors, one for each letter of `names`; the value is the letter. */
static void put_shard(const char *file, const char *names) {
    char bytes[2048] = {0}, *p = bytes + 8;
    *p++ = '{';
    for (size_t i = 0; names[i]; i++)
        p += snprintf(p, 200, "%s\"%c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                      i ? "," : "", names[i], i, i + 1);
    *p++ = '}';
    uint64_t n = (uint64_t)(p - bytes - 8);
    memcpy(bytes, &n, 8);
    for (size_t i = 0; names[i]; i++) *p++ = names[i];
    put(file, bytes, (size_t)(p - bytes));
}

static void refuses(ig_status code, const char *says) {
    ig_snapshot *s = NULL;
    ig_err err = {0};
    ig_status st = ig_snapshot_open(&s, folder, &err);
    CHECK_MSG(st == code && !s, "status %s, expected \"%s\": %s", ig_status_name(st), says, err.msg);
    CHECK_MSG(st == IG_OK || strstr(err.msg, says), "\"%s\" does not say \"%s\"", err.msg, says);
    ig_snapshot_close(s);
}

static void opens(int n_files, int n_tensors) {
    ig_snapshot *s = NULL;
    ig_err err = {0};
    if (!CHECK_MSG(ig_snapshot_open(&s, folder, &err) == IG_OK, "%s", err.msg)) return;
    CHECK(ig_snapshot_n_files(s) == n_files && ig_snapshot_n_tensors(s) == n_tensors);
    for (int i = 0; i < n_tensors; i++) {
        const ig_safetensor *t = ig_snapshot_tensor_at(s, i);
        char name[2] = {t->name.p[0], 0}, byte = 0;
        CHECK(ig_snapshot_find(s, name) == t && ig_snapshot_place(s, t) == i && ig_safetensor_read(t, 0, &byte, 1, &err) == IG_OK);
        CHECK(byte == name[0] && (i == 0 || ig_snapshot_tensor_at(s, i - 1)->name.p[0] < byte));
    }
    CHECK(!ig_snapshot_find(s, "?") && !ig_snapshot_find(s, "ab"));
    ig_snapshot_close(s);
}

static const char index_file[] = "model.safetensors.index.json";

TEST(a_folder_with_one_file_is_a_snapshot_and_an_index_beside_it_is_not_asked) {
    begin();
    put_text("config.json", "{\"model_type\":\"llama\"}");
    put_shard("model.safetensors", "ba");
    opens(1, 2);
    put_text(index_file, "{\"weight_map\":{\"zz\":\"gone.safetensors\"}}");
    opens(1, 2);
    end();
}

TEST(shards_are_one_sorted_list) {
    begin();
    put_text("config.json", "{}");
    put_shard("model-00001-of-00002.safetensors", "db");
    put_shard("model-00002-of-00002.safetensors", "ca");
    put_text(index_file,
             "{\"metadata\":{\"total_size\":4},\"weight_map\":{"
             "\"a\":\"model-00002-of-00002.safetensors\",\"b\":\"model-00001-of-00002.safetensors\","
             "\"c\":\"model-00002-of-00002.safetensors\",\"d\":\"model-00001-of-00002.safetensors\"}}");
    opens(2, 4);
    end();
}

TEST(an_index_that_does_not_fit_its_shards_is_refused_by_name) {
    begin();
    put_text("config.json", "{}");
    put_shard("x.safetensors", "ab");
    put_shard("y.safetensors", "c");
    put_text(index_file,
             "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}");
    opens(2, 3); /* the good one */
    put_text(index_file,
             "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y.safetensors\"}}");
    refuses(IG_EFORMAT, "tensor b is not in y.safetensors");
    put_text(index_file, "{\"weight_map\":{\"a\":\"x.safetensors\",\"e\":\"x.safetensors\"}}");
    refuses(IG_EFORMAT, "tensor e is not in x.safetensors");
    put_text(index_file, "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    refuses(IG_EFORMAT, "does not name tensor b of x.safetensors");
    put_text(index_file,
             "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}");
    refuses(IG_EFORMAT, "tensor a is named twice");
    put_text(index_file, "{\"weight_map\":{\"a\":\"z.safetensors\"}}");
    refuses(IG_ENOTFOUND, "z.safetensors is missing, which by model.safetensors.index.json holds 1 tensors, such as a");
    put_shard("y.safetensors", "b");
    put_text(index_file, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
    refuses(IG_EFORMAT, "tensor b is in more than one file");
    put_text(index_file, "{\"weight_map\":{}}");
    refuses(IG_EFORMAT, "has no weight_map");
    put_text(index_file, "[]");
    refuses(IG_EFORMAT, "has no weight_map");
    put_text(index_file, "{\"weight_map\":");
    refuses(IG_EFORMAT, "index.json: JSON");
    end();
}

TEST(an_index_cannot_name_a_file_outside_the_folder) {
    static const char *const names[] = {"\"../x.safetensors\"",
                                        "\"/etc/passwd\"",
                                        "\"sub/x.safetensors\"",
                                        "\"..\"",
                                        "\".\"",
                                        "\"\"",
                                        "\"x\\u0000y\"",
                                        "7",
                                        "null"};
    begin();
    put_text("config.json", "{}");
    put_shard("x.safetensors", "a");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":%s}}", names[i]);
        put_text(index_file, text);
        refuses(IG_EFORMAT, "the file of a is not the name of a file in this folder");
    }
    end();
}

TEST(a_shard_that_is_gone_renamed_or_cut_is_named) {
    static const char three[] = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\","
                                "\"c\":\"2.safetensors\",\"d\":\"3.safetensors\"}}";
    char from[160], to[160];
    begin();
    put_text("config.json", "{}");
    put_text(index_file, three);
    put_shard("1.safetensors", "a"), put_shard("2.safetensors", "bc"), put_shard("3.safetensors", "d");
    opens(3, 4);
    snprintf(from, sizeof from, "%s/2.safetensors", folder), snprintf(to, sizeof to, "%s/two.safetensors", folder);
    CHECK(rename(from, to) == 0);
    refuses(IG_ENOTFOUND, "2.safetensors is missing, which by model.safetensors.index.json holds 2 tensors, such as b");
    CHECK(rename(to, from) == 0 && truncate(from, 100) == 0);
    refuses(IG_EFORMAT, "2.safetensors");
    put_shard("2.safetensors", "b"); /* whole, but of another model */
    refuses(IG_EFORMAT, "tensor c is not in 2.safetensors");
    put_shard("2.safetensors", "bcx");
    refuses(IG_EFORMAT, "does not name tensor x of 2.safetensors");
    end();
}

TEST(files_that_the_index_does_not_name_are_not_read) {
    begin();
    put_text("config.json", "{}");
    put_text(index_file, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
    put_shard("x.safetensors", "a"), put_shard("y.safetensors", "b");
    put_shard("old-model.safetensors", "ab"); /* the same names, other values for all we know */
    put_text("model-00001-of-00002.safetensors", "no safetensors file at all");
    put_text("pytorch_model.bin", "x"); /* beside what is read it does no harm */
    opens(2, 2);
    end();
}

TEST(one_file_wins_over_the_shards_of_an_index_beside_it) {
    begin();
    put_text("config.json", "{}");
    put_text(index_file, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"model.safetensors\"}}");
    put_shard("x.safetensors", "a"), put_shard("model.safetensors", "abc");
    ig_log_set_level(IG_LOG_ERROR); /* it is warned of */
    opens(1, 3);
    put_text(index_file, "{\"weight_map\":{\"a\":\"../x.safetensors\"}}");
    opens(1, 3);
    ig_log_set_level(IG_LOG_INFO);
    end();
}

TEST(pickle_files_are_refused_with_what_to_do) {
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt",
                                        "consolidated.00.pth", "weights.pkl",
                                        "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        begin();
        put_text("config.json", "{}");
        put_text(names[i], "\x80\2cos\nsystem\n");
        refuses(IG_EFORMAT, "pickle files are not read");
        refuses(IG_EFORMAT, names[i]);
        refuses(IG_EFORMAT, "safe_serialization=True");
        end();
    }
}

TEST(links_as_hub_caches_have_them_are_followed) {
    char link[160], target[160];
    begin();
    put_text("blob-config", "{}");
    put_shard("blob-weights", "abc");
    snprintf(target, sizeof target, "%s/blob-config", folder);
    snprintf(link, sizeof link, "%s/config.json", folder);
    CHECK(symlink(target, link) == 0);
    snprintf(link, sizeof link, "%s/model.safetensors", folder);
    CHECK(symlink("blob-weights", link) == 0);
    opens(1, 3);
    end();
}

TEST(a_link_to_nothing_is_not_the_same_as_no_file) {
    char link[160];
    ig_snapshot *s = NULL;
    ig_err err;
    char *text = NULL;
    size_t n;
    begin();
    snprintf(link, sizeof link, "%s/config.json", folder);
    CHECK(symlink("gone", link) == 0);
    refuses(IG_EIO, "config.json: a link to a file that is not there");
    CHECK(unlink(link) == 0);
    put_text("config.json", "{}");
    snprintf(link, sizeof link, "%s/model.safetensors", folder);
    CHECK(symlink("gone", link) == 0);
    refuses(IG_EIO, "model.safetensors: a link to a file that is not there");
    CHECK(unlink(link) == 0 && symlink("model.safetensors", link) == 0);
    refuses(IG_EIO, "model.safetensors: Too many levels");
    CHECK(unlink(link) == 0);
    put_shard("model.safetensors", "a");
    snprintf(link, sizeof link, "%s/generation_config.json", folder);
    CHECK(symlink("gone", link) == 0);
    if (!CHECK(ig_snapshot_open(&s, folder, &err) == IG_OK)) return;
    CHECK(ig_snapshot_text(&text, &n, s, "generation_config.json", &err) == IG_EIO);
    CHECK(ig_snapshot_text(&text, &n, s, "tokenizer.json", &err) == IG_ENOTFOUND);
    ig_snapshot_close(s);
    end();
}

TEST(a_folder_that_is_no_snapshot_says_what_is_missing) {
    ig_snapshot *s = NULL;
    ig_err err;
    begin();
    refuses(IG_ENOTFOUND, "no config.json");
    put_text("config.json", "[]");
    refuses(IG_EFORMAT, "config.json is not an object");
    put_text("config.json", "{\"a\":");
    refuses(IG_EFORMAT, "config.json: JSON");
    put_text("config.json", "{}");
    refuses(IG_ENOTFOUND, "neither model.safetensors nor model.safetensors.index.json");
    put_text("model.safetensors", "not one");
    refuses(IG_EFORMAT, "model.safetensors");
    end();
    refuses(IG_ENOTFOUND, folder);
    CHECK(ig_snapshot_open(&s, "/proc/self/status", &err) == IG_EFORMAT && strstr(err.msg, "not a folder"));
}

TEST(documents_are_read_by_name_and_bounded) {
    ig_snapshot *s = NULL;
    yyjson_doc *doc = NULL;
    char *text = NULL;
    size_t n = 0;
    ig_err err;
    begin();
    put_text("config.json", "{\"x\":{\"__float__\":\"Infinity\"},\"y\":2,\"z\":\"2\"}");
    put_shard("model.safetensors", "a");
    put_text("chat_template.jinja", "{{ messages }}");
    put_text("generation_config.json", "{\"eos_token_id\":[1,2]}");
    put_text("broken.json", "{");
    if (!CHECK(ig_snapshot_open(&s, folder, &err) == IG_OK)) return;
    CHECK(ig_snapshot_text(&text, &n, s, "chat_template.jinja", &err) == IG_OK && n == 14);
    free(text);
    CHECK(ig_snapshot_json(&doc, s, "generation_config.json", &err) == IG_OK);
    CHECK(yyjson_arr_size(ig_json_get(yyjson_doc_get_root(doc), "eos_token_id")) == 2);
    yyjson_doc_free(doc);
    CHECK(ig_snapshot_json(&doc, s, "tokenizer.json", &err) == IG_ENOTFOUND);
    CHECK(ig_snapshot_json(&doc, s, "broken.json", &err) == IG_EFORMAT && strstr(err.msg, "broken.json"));
    double x;
    CHECK(ig_json_number(ig_json_get(ig_snapshot_config(s), "x"), &x) && x > 1e308);
    CHECK(ig_json_number(ig_json_get(ig_snapshot_config(s), "y"), &x) && x == 2);
    CHECK(!ig_json_number(ig_json_get(ig_snapshot_config(s), "z"), &x) && !ig_json_number(NULL, &x));
    char big[160];
    snprintf(big, sizeof big, "%s/big.json", folder);
    FILE *f = fopen(big, "w");
    CHECK(f && ftruncate(fileno(f), (16 << 20) + 1) == 0);
    fclose(f);
    CHECK(ig_snapshot_json(&doc, s, "big.json", &err) == IG_ELIMIT);
    ig_snapshot_close(s);
    end();
}
