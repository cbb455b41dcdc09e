#include "base/test.h"
#include "hub/hub.h"

#include <stdlib.h>
#include <string.h>

/* A repository of these files, of 100, 200, ... bytes. The list must be sorted. */
static ig_hub_repo repo_of(const char *const *paths) {
    ig_hub_repo r = {.n = 0};
    for (; paths[r.n]; r.n++) {
    }
    r.v = calloc((size_t)r.n, sizeof *r.v);
    if (!r.v) abort();
    for (int i = 0; i < r.n; i++) {
        r.v[i].path = strdup(paths[i]);
        r.v[i].bytes = 100 * (uint64_t)(i + 1);
    }
    return r;
}

#define PATHS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void chooses(const char *const *paths, ig_hub_want want, const char *const *wanted, const char *gguf) {
    ig_hub_repo r = repo_of(paths);
    ig_hub_choice c;
    ig_err err = {.msg = ""};
    int n = 0;
    ig_status st = ig_hub_choose(&c, &r, &want, &err);
    CHECK_MSG(!st, "%s", err.msg);
    for (int i = 0; i < r.n; i++) {
        if (!r.v[i].wanted) continue;
        CHECK_MSG(wanted[n] && strcmp(wanted[n], r.v[i].path) == 0, "%s is taken", r.v[i].path);
        n += wanted[n] != NULL;
    }
    CHECK_MSG(!wanted[n], "%s is not taken", wanted[n] ? wanted[n] : "");
    CHECK(gguf ? c.gguf && strcmp(c.gguf, gguf) == 0 : !c.gguf);
    ig_hub_choice_clear(&c);
    ig_hub_repo_clear(&r);
}

static void refuses(const char *const *paths, ig_hub_want want, ig_status code, const char *why) {
    ig_hub_repo r = repo_of(paths);
    ig_hub_choice c;
    ig_err err = {.msg = ""};
    ig_status st = ig_hub_choose(&c, &r, &want, &err);
    CHECK_MSG(st == code && strstr(err.msg, why), "%s: %s", ig_status_name(st), err.msg);
    ig_hub_choice_clear(&c);
    ig_hub_repo_clear(&r);
}

TEST(of_a_snapshot_what_runs_it_is_taken_and_nothing_twice) {
    chooses(PATHS(".gitattributes", "LICENSE", "README.md", "config.json", "consolidated.safetensors",
                  "merges.txt", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                  "model.safetensors.index.json", "onnx/model.json", "original/x.safetensors",
                  "pytorch_model.bin", "tokenizer.json", "tokenizer.model"),
            (ig_hub_want){NULL, NULL, NULL},
            PATHS("LICENSE", "config.json", "merges.txt", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
                  "tokenizer.model"),
            NULL);
    chooses(PATHS("consolidated.safetensors", "params.json"), (ig_hub_want){NULL, NULL, NULL},
            PATHS("consolidated.safetensors", "params.json"), NULL);
    /* With both kinds in one repository the snapshot is what is meant; a quantization can be asked for. */
    chooses(PATHS("config.json", "m-Q4_0.gguf", "model.safetensors"), (ig_hub_want){NULL, NULL, NULL},
            PATHS("config.json", "model.safetensors"), NULL);
    chooses(PATHS("config.json", "m-Q4_0.gguf", "model.safetensors"), (ig_hub_want){"q4_0", NULL, NULL},
            PATHS("m-Q4_0.gguf"), "m-Q4_0.gguf");
}

TEST(of_gguf_files_the_usual_quantization_is_taken_with_all_its_parts) {
    const char *const *paths = PATHS("README.md", "m-F16.gguf", "m-Q4_K_M-00001-of-00002.gguf",
                                     "m-Q4_K_M-00002-of-00002.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf");
    const char *const *q4 = PATHS("m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf");
    chooses(paths, (ig_hub_want){NULL, NULL, NULL}, q4, q4[0]);
    chooses(paths, (ig_hub_want){"m-Q4_K_M-00002-of-00002.gguf", NULL, NULL}, q4, q4[0]);
    chooses(paths, (ig_hub_want){"f16", NULL, NULL}, PATHS("m-F16.gguf"), "m-F16.gguf");
    chooses(paths, (ig_hub_want){"mmproj-F16.gguf", NULL, NULL}, PATHS("mmproj-F16.gguf"), "mmproj-F16.gguf");
    chooses(PATHS("a.gguf"), (ig_hub_want){NULL, NULL, NULL}, PATHS("a.gguf"), "a.gguf");
    refuses(paths, (ig_hub_want){"Q5_K_M", NULL, NULL}, IG_ENOTFOUND, "Q5_K_M");
    refuses(PATHS("a-Q4_0.gguf", "b-Q4_0.gguf"), (ig_hub_want){"Q4_0", NULL, NULL}, IG_ENOTFOUND,
            "name the file");
    refuses(PATHS("m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf"),
            (ig_hub_want){NULL, NULL, NULL}, IG_EFORMAT, "part 2 of 3");
    refuses(PATHS("m-Q4_0-00002-of-00002.gguf"), (ig_hub_want){NULL, NULL, NULL}, IG_EFORMAT, "part 1 of 2");
    /* Another quantization that lacks a part is no reason to refuse this one. */
    chooses(PATHS("m-Q4_0.gguf", "m-Q8_0-00001-of-00002.gguf"), (ig_hub_want){NULL, NULL, NULL},
            PATHS("m-Q4_0.gguf"), "m-Q4_0.gguf");
}

TEST(patterns_replace_the_choice_and_pickles_are_not_taken_for_a_model) {
    const char *const *paths = PATHS("a/b.json", "c.bin", "d.txt");
    chooses(paths, (ig_hub_want){NULL, PATHS("*.json", "d*"), PATHS("d.txt")}, PATHS("a/b.json"), NULL);
    refuses(paths, (ig_hub_want){NULL, PATHS("*.gguf"), NULL}, IG_ENOTFOUND, "patterns");
    refuses(paths, (ig_hub_want){NULL, NULL, NULL}, IG_ENOTFOUND, "pickled");
}
