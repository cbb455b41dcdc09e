#include "app/load.h"
#include "base/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
