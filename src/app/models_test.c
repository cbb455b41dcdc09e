#include "app/load.h"
#include "base/test.h"
#include "file/file.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH "0123456789abcdef0123456789abcdef01234567"

static char cache[64];

static void make_cache(const char *const *names) {
    char path[256];
    snprintf(cache, sizeof cache, "/tmp/ig-models-XXXXXX");
    if (!mkdtemp(cache)) abort();
    setenv("INGLE_CACHE", cache, 1);
    snprintf(path, sizeof path, "%s/models", cache);
    mkdir(path, 0700);
    for (; *names; names++) {
        snprintf(path, sizeof path, "%s/models/%s", cache, *names);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
}

static void drop_cache(const char *const *names) {
    char path[256];
    for (; *names; names++) {
        snprintf(path, sizeof path, "%s/models/%s", cache, *names);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/models", cache);
    rmdir(path);
    rmdir(cache);
    unsetenv("INGLE_CACHE");
}

/* The file that `arg` finds, or NULL; what was said goes nowhere. */
static char *find(const char *arg, int *code) {
    char *path = NULL;
    int kept = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    fflush(stderr);
    dup2(null, STDERR_FILENO);
    *code = ig_models_find(&path, arg);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(null);
    return path;
}

static void finds(const char *arg, const char *name) {
    int code;
    char *path = find(arg, &code), *slash = path ? strrchr(path, '/') : NULL;
    if (name)
        CHECK_MSG(code == IG_EXIT_OK && slash && strcmp(slash + 1, name) == 0, "%s finds %s",
                  arg ? arg : "nothing", path ? path : "nothing");
    else
        CHECK_MSG(code == IG_EXIT_NOT_FOUND && !path, "%s finds %s, code %d", arg ? arg : "nothing",
                  path ? path : "nothing", code);
    free(path);
}

TEST(a_model_is_found_by_words_of_its_name_in_any_case) {
    static const char *const names[] = {"Alpha-1B.Q4_1.gguf", "Alpha-1B.Q8_0.gguf", "Beta-2B.gguf",
                                        "notes.txt", NULL};
    make_cache(names);
    finds("beta", "Beta-2B.gguf");
    finds("ALPHA q8", "Alpha-1B.Q8_0.gguf");
    finds("alpha-1b.q4_1", "Alpha-1B.Q4_1.gguf");
    finds("Beta-2B.gguf", "Beta-2B.gguf");
    finds("alpha", NULL); /* two */
    finds("gamma", NULL);
    finds("notes", NULL);
    finds("beta alpha", NULL);
    finds("./beta", NULL); /* a path, and not a word */
    finds(NULL, NULL);     /* several and no starter */
    CHECK(ig_models_knows("beta") && ig_models_knows("x/y") && ig_models_knows("z.gguf") &&
          !ig_models_knows("sevre"));
    drop_cache(names);
}

TEST(a_whole_name_beats_parts_of_longer_ones) {
    static const char *const names[] = {"m.gguf", "m-large.gguf", NULL};
    make_cache(names);
    finds("m", "m.gguf");
    finds("M.GGUF", "m.gguf");
    finds("m-", "m-large.gguf");
    drop_cache(names);
}

TEST(without_a_name_the_only_model_or_the_starter_is_taken) {
    static const char *const one[] = {"only.gguf", NULL};
    static const char *const with_starter[] = {"a.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf", "z.gguf", NULL};
    static const char *const none[] = {NULL};
    make_cache(one);
    finds(NULL, "only.gguf");
    drop_cache(one);
    make_cache(with_starter);
    finds(NULL, "SmolLM2-135M-Instruct.Q4_1.gguf");
    drop_cache(with_starter);
    make_cache(none);
    finds(NULL, NULL);
    drop_cache(none);
}

TEST(a_path_is_taken_as_it_is) {
    static const char *const names[] = {"only.gguf", NULL};
    char path[256];
    int code;
    make_cache(names);
    snprintf(path, sizeof path, "%s/models/only.gguf", cache);
    char *found = find(path, &code);
    CHECK(code == IG_EXIT_OK && found && strcmp(found, path) == 0);
    free(found);
    drop_cache(names);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* A folder below the cache and a file in it. */
static void touch_below(const char *folder, const char *name, const char *text) {
    char path[256];
    ig_err err;
    snprintf(path, sizeof path, "%s/%s", cache, folder);
    if (ig_file_make_dirs(path, &err)) abort();
    snprintf(path, sizeof path, "%s/%s/%s", cache, folder, name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

static void finds_folder(const char *arg, const char *below, const char *name) {
    int code;
    char *path = find(arg, &code), wanted[256], shown[128] = "";
    snprintf(wanted, sizeof wanted, "%s/%s", cache, below ? below : "");
    if (path) ig_models_name(shown, sizeof shown, path);
    if (below)
        CHECK_MSG(path && strcmp(path, wanted) == 0 && strcmp(shown, name) == 0, "%s finds %s, called %s",
                  arg, path ? path : "nothing", shown);
    else
        CHECK_MSG(!path && code == IG_EXIT_NOT_FOUND, "%s finds %s", arg, path);
    free(path);
}

TEST(a_snapshot_is_found_as_a_folder_by_a_file_of_it_and_in_hub_caches) {
    static const char *const none[] = {NULL};
    char path[320];
    make_cache(none);
    touch_below("models/Gamma-3-bf16", "config.json", "{}");
    touch_below("models/not-one", "readme", "");
    touch_below("hub/models--org--name/refs", "main", HASH "\n");
    touch_below("hub/models--org--name/snapshots/" HASH, "config.json", "{}");
    touch_below("hub/models--org--name/snapshots/older", "config.json", "{}");
    touch_below("hub/models--org--single/snapshots/f00", "config.json", "{}");
    touch_below("hub/models--org--evil/refs", "main", "../../../etc");
    touch_below("hub/models--org--evil/snapshots/a", "config.json", "{}");
    touch_below("hub/models--org--evil/snapshots/b", "config.json", "{}");
    snprintf(path, sizeof path, "%s/hub", cache);
    setenv("HF_HUB_CACHE", path, 1);
    finds_folder("gamma", "models/Gamma-3-bf16", "Gamma-3-bf16");
    finds_folder("not-one", NULL, NULL);
    finds_folder("org/name", "hub/models--org--name/snapshots/" HASH, "org/name");
    finds_folder("org/single", "hub/models--org--single/snapshots/f00", "org/single");
    finds_folder("org/evil", NULL, NULL); /* a revision that is no plain word, and two to choose from */
    finds_folder("org/gone", NULL, NULL);
    snprintf(path, sizeof path, "%s/models/Gamma-3-bf16/config.json", cache);
    finds_folder(path, "models/Gamma-3-bf16", "Gamma-3-bf16");
    char name[64];
    snprintf(path, sizeof path, "%s/models/not-one", cache);
    CHECK(!ig_models_gguf_in(name, sizeof name, path));
    touch_below("models/not-one", "Some.gguf", "");
    CHECK(ig_models_gguf_in(name, sizeof name, path) && strcmp(name, "Some.gguf") == 0);
    ig_gguf *gguf = NULL;
    ig_snapshot *snapshot = NULL;
    ig_err err;
    CHECK(ig_load_files(&gguf, &snapshot, path, &err) == IG_ENOTFOUND && strstr(err.msg, "Some.gguf"));
    unsetenv("HF_HUB_CACHE");
    nftw(cache, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    unsetenv("INGLE_CACHE");
}
