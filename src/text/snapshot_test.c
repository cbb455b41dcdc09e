/* Tests of folders written under /tmp: where a snapshot says which tokens it uses and how it chats. */
#include "text/inside.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"

static char folder[64];

static void put(const char *name, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(text, 1, strlen(text), f) != strlen(text) || fclose(f) != 0) abort();
}

static void put_folder(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (mkdir(path, 0700) != 0) abort();
}

/* Weights of one value: a snapshot must have some. */
static void begin(const char *config) {
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char path[160];
    uint64_t n = sizeof header - 1;
    snprintf(folder, sizeof folder, "/tmp/ig-text-XXXXXX");
    if (!mkdtemp(folder)) abort();
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(&n, 8, 1, f) != 1 || fwrite(header, n, 1, f) != 1 || fputc(1, f) != 1 || fclose(f))
        abort();
    put("config.json", config);
    put("tokenizer.json",
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"</s>\","
        "\"special\":true},{\"id\":5,\"content\":\"<eot>\",\"special\":true},{\"id\":6,\"content\":\"<pad>\","
        "\"special\":true}],\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,"
        "\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}");
}

static ig_snapshot *opened(void) {
    ig_snapshot *s = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_snapshot_open(&s, folder, &err) == IG_OK, "%s", err.msg);
    return s;
}

static void end(ig_snapshot *s) {
    ig_snapshot_close(s);
    DIR *d = opendir(folder);
    if (!d) abort();
    for (struct dirent *e; (e = readdir(d));)
        if (unlinkat(dirfd(d), e->d_name, 0) != 0) unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    closedir(d);
    rmdir(folder);
}

static ig_tokenizer *made(const ig_snapshot *s) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    CHECK_MSG(ig_tokenizer_from_snapshot(&t, s, &err) == IG_OK, "%s", err.msg);
    return t;
}

static bool ends_with(const ig_tokenizer *t, const uint32_t *want, int n) {
    int got = 0;
    const uint32_t *eos = ig_tokenizer_eos(t, &got);
    return got == n && (n == 0 || memcmp(eos, want, (size_t)n * sizeof *want) == 0);
}

TEST(the_end_set_is_the_union_of_what_the_files_say) {
    begin("{\"eos_token_id\":4}");
    put("generation_config.json", "{\"eos_token_id\":[4,0,900]}");
    put("tokenizer_config.json", "{\"eos_token\":{\"content\":\"<eot>\"},\"bos_token\":\"<s>\"}");
    put("special_tokens_map.json", "{\"pad_token\":{\"content\":\"<pad>\"},\"bos_token\":\"a\"}");
    ig_snapshot *s = opened();
    ig_tokenizer *t = made(s);
    CHECK(ends_with(t, (const uint32_t[]){4, 0, 5}, 3));
    CHECK(ig_tokenizer_bos(t) == 3 && ig_tokenizer_role(t, IG_ROLE_EOS) == 5);
    CHECK(ig_tokenizer_role(t, IG_ROLE_PAD) == 6 && ig_tokenizer_role(t, IG_ROLE_UNK) == IG_TOKEN_NONE);
    CHECK(!ig_tokenizer_adds_bos(t));
    ig_tokenizer_free(t);
    end(s);
}

TEST(add_bos_token_counts_where_no_post_processor_adds_it) {
    begin("{}");
    put("tokenizer_config.json", "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}");
    ig_snapshot *s = opened();
    ig_tokenizer *t = made(s);
    ig_tokens ids = {0};
    ig_encode_options opt = {.add_bos = true, .parse_special = true};
    CHECK(ig_tokenizer_adds_bos(t) && ends_with(t, NULL, 0));
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("<s>ab"), opt, &ids, NULL) == IG_OK);
    CHECK(ids.n == 2 && ids.v[0] == 3 && ids.v[1] == 2);
    ig_tokens_free(&ids);
    ig_tokenizer_free(t);
    end(s);
}

static void remove_tokenizer(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
}

static void refused(const char *config, const char *generation, const char *word) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    begin(config);
    if (generation) put("generation_config.json", generation);
    else remove_tokenizer();
    ig_snapshot *s = opened();
    ig_status st = ig_tokenizer_from_snapshot(&t, s, &err);
    CHECK_MSG(st == IG_EFORMAT && !t && strstr(err.msg, word), "%d \"%s\"", st, err.msg);
    end(s);
}

TEST(damaged_files_are_named) {
    refused("{}", NULL, "no tokenizer.json");
    refused("{\"eos_token_id\":\"x\"}", "{}", "config.json: eos_token_id is not an id");
    refused("{}", "{\"eos_token_id\":[1,-2]}", "generation_config.json: eos_token_id is not an id");
    refused("{}", "{\"eos_token_id\":", "generation_config.json");
    refused("{\"vocab_size\":8}", "{\"eos_token_id\":[1,8]}", "eos_token_id 8, vocab_size is 8");
    refused("{\"text_config\":{\"vocab_size\":8},\"eos_token_id\":9}", "{}",
            "eos_token_id 9, vocab_size is 8");
}

static void config_refused(const char *tokenizer_config, const char *word) {
    ig_tokenizer *t = NULL;
    ig_err err = {0};
    begin("{}");
    put("tokenizer_config.json", tokenizer_config);
    ig_snapshot *s = opened();
    ig_status st = ig_tokenizer_from_snapshot(&t, s, &err);
    CHECK_MSG(st == IG_EFORMAT && !t && strstr(err.msg, word), "%d \"%s\"", st, err.msg);
    end(s);
}

TEST(what_tokenizer_config_says_of_bos_and_eos_is_true_or_refused) {
    config_refused("{\"eos_token\":\"<nowhere>\"}", "eos_token \"<nowhere>\" is not a token");
    config_refused("{\"bos_token\":{\"content\":\"<nowhere>\"}}",
                   "bos_token \"<nowhere>\" is not a token");
    config_refused("{\"add_bos_token\":\"yes\"}", "add_bos_token is not a bool");
    config_refused("{\"add_bos_token\":1}", "add_bos_token is not a bool");
    config_refused("{\"add_eos_token\":[]}", "add_eos_token is not a bool");
    config_refused("{\"add_eos_token\":true}", "there is no eos_token");
}

TEST(add_eos_token_puts_it_behind_a_text) {
    begin("{}");
    put("tokenizer_config.json",
        "{\"add_eos_token\":true,\"eos_token\":\"<eot>\",\"add_bos_token\":null}");
    ig_snapshot *s = opened();
    ig_tokenizer *t = made(s);
    ig_tokens ids = {0};
    ig_encode_options opt = {.add_bos = true, .parse_special = true};
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("ab"), opt, &ids, NULL) == IG_OK);
    CHECK(ids.n == 2 && ids.v[0] == 2 && ids.v[1] == 5);
    opt.add_bos = false;
    CHECK(ig_tokenizer_encode(t, NULL, ig_slice_of("ab"), opt, &ids, NULL) == IG_OK && ids.n == 3);
    ig_tokens_free(&ids);
    ig_tokenizer_free(t);
    end(s);
}

static void template_is(const ig_snapshot *s, const char *name, const char *want) {
    char *text = NULL;
    size_t n = 0;
    ig_err err = {0};
    ig_status st = ig_template_source_from_snapshot(&text, &n, s, name, &err);
    if (want) CHECK_MSG(st == IG_OK && n == strlen(want) && !strcmp(text, want), "%s: %s", name, err.msg);
    else CHECK(st == IG_ENOTFOUND && strstr(err.msg, name));
    free(text);
}

TEST(what_is_no_template_is_not_called_none) {
    static const char *const wrong[] = {"5", "true", "{}", "{\"default\":\"x\"}", "[5]", "[\"x\"]",
                                        "[{\"name\":\"default\",\"template\":5}]"};
    static const char *const none[] = {"null", "[]", "[{\"name\":\"tool_use\",\"template\":\"x\"}]"};
    char config[128], *text = NULL;
    size_t n = 0;
    ig_err err;
    begin("{}");
    ig_snapshot *s = opened();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(config, sizeof config, "{\"chat_template\":%s}", wrong[i]);
        put("tokenizer_config.json", config);
        ig_status st = ig_template_source_from_snapshot(&text, &n, s, "default", &err);
        CHECK_MSG(st == IG_EFORMAT, "%s", wrong[i]);
        CHECK(strstr(err.msg, "tokenizer_config.json: chat_template"));
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        snprintf(config, sizeof config, "{\"chat_template\":%s}", none[i]);
        put("tokenizer_config.json", config);
        ig_status st = ig_template_source_from_snapshot(&text, &n, s, "default", &err);
        CHECK_MSG(st == IG_ENOTFOUND, "%s", none[i]);
    }
    end(s);
}

TEST(the_template_is_a_file_of_its_own_or_in_the_tokenizers_config) {
    begin("{}");
    ig_snapshot *s = opened();
    template_is(s, "default", NULL);
    put("tokenizer_config.json", "{\"chat_template\":\"one\"}");
    template_is(s, "default", "one");
    template_is(s, "tool_use", NULL);
    put("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"two\"},3,"
                                 "{\"name\":\"default\",\"template\":\"three\"}]}");
    template_is(s, "default", "three");
    template_is(s, "tool_use", "two");
    put("chat_template.jinja", "four");
    template_is(s, "default", "four"); /* and what the config has is then of an older time */
    template_is(s, "tool_use", NULL);
    put_folder("additional_chat_templates");
    put("additional_chat_templates/tool_use.jinja", "five");
    template_is(s, "tool_use", "five");
    template_is(s, "../chat_template", NULL);
    char path[160];
    snprintf(path, sizeof path, "%s/additional_chat_templates/tool_use.jinja", folder);
    unlink(path);
    end(s);
}
