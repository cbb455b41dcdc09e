#include "base/test.h"
#include "hub/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const variables[] = {"HF_ENDPOINT",
                                        "HF_TOKEN",
                                        "HF_TOKEN_PATH",
                                        "HF_HOME",
                                        "HF_HUB_CACHE",
                                        "HF_HUB_OFFLINE",
                                        "XDG_CACHE_HOME",
                                        "CURL_CA_BUNDLE",
                                        "SSL_CERT_FILE",
                                        "HF_HUB_DOWNLOAD_TIMEOUT",
                                        "HOME"};
enum { N = sizeof variables / sizeof *variables };
static char *kept[N];

static void clean(void) {
    for (int i = 0; i < N; i++) {
        const char *v = getenv(variables[i]);
        kept[i] = v ? strdup(v) : NULL;
        unsetenv(variables[i]);
    }
    setenv("HOME", "/home/x", 1);
}
static void restore(void) {
    for (int i = 0; i < N; i++) {
        if (kept[i])
            setenv(variables[i], kept[i], 1);
        else
            unsetenv(variables[i]);
        free(kept[i]);
    }
}

static void cache_is(const char *want) {
    char dir[256] = "";
    bool found = ig_hub_cache_dir(dir, sizeof dir);
    CHECK_MSG(found && strcmp(dir, want) == 0, "%s instead of %s", dir, want);
}

TEST(the_cache_is_where_python_s_hub_has_it) {
    clean();
    cache_is("/home/x/.cache/huggingface/hub");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    cache_is("/xdg/huggingface/hub");
    setenv("HF_HOME", "~/hf", 1);
    cache_is("/home/x/hf/hub");
    setenv("HF_HUB_CACHE", "/cache", 1);
    cache_is("/cache");
    restore();
}

TEST(the_endpoint_loses_its_slash_and_must_be_an_address) {
    ig_hub_config c;
    ig_err err = {.msg = ""};
    clean();
    CHECK(!ig_hub_config_init(&c, &err) && strcmp(c.endpoint, "https://huggingface.co") == 0 && !c.offline &&
          !*c.token);
    setenv("HF_ENDPOINT", "http://127.0.0.1:9/hub//", 1);
    setenv("HF_HUB_OFFLINE", "True", 1);
    CHECK(!ig_hub_config_init(&c, &err) && strcmp(c.endpoint, "http://127.0.0.1:9/hub") == 0 && c.offline);
    static const char *const bad[] = {"ftp://x.org/abc",        "https://", "https://a b.org",
                                      "https://u:secret@x.org", "x.org",    "https://x.org/?a",
                                      "https://x.org/#"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("HF_ENDPOINT", bad[i], 1);
        CHECK_MSG(ig_hub_config_init(&c, &err) == IG_EINVAL && !strstr(err.msg, "secret"), "%s: %s", bad[i],
                  err.msg);
    }
    restore();
}

TEST(a_token_is_one_word_and_is_never_quoted) {
    ig_hub_config c;
    ig_err err = {.msg = ""};
    char path[] = "/tmp/ig-token-XXXXXX";
    clean();
    setenv("HF_TOKEN", " hf_abc\n", 1);
    CHECK(!ig_hub_config_init(&c, &err) && strcmp(c.token, "hf_abc") == 0);
    setenv("HF_TOKEN", "hf_abc\r\nX-Evil: 1", 1);
    CHECK(ig_hub_config_init(&c, &err) == IG_EINVAL && !strstr(err.msg, "hf_abc"));
    unsetenv("HF_TOKEN");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "hf_file\n", 8) == 8);
    close(fd);
    setenv("HF_TOKEN_PATH", path, 1);
    CHECK(!ig_hub_config_init(&c, &err) && strcmp(c.token, "hf_file") == 0);
    unlink(path);
    CHECK(!ig_hub_config_init(&c, &err) && !*c.token);
    restore();
}
