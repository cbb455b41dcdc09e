/* config: where the hub is, what opens it, and where its files go: all that the environment says.
 * Threads: the caller's, at start. Memory: the caller's.
 * The variables and their order are those of Python's huggingface_hub, so that one setting and one token
 * serve both programs. */
#include "hub/hub.h"

#include "file/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKEN_FILE_MAX = 4096 };

static const char *env(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool is_on(const char *name) {
    static const char *const yes[] = {"1", "on", "yes", "true"};
    const char *v = env(name);
    for (size_t i = 0; v && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(v, yes[i]) == 0) return true;
    return false;
}

static bool join(char *out, size_t cap, const char *top, const char *below) {
    return (size_t)snprintf(out, cap, "%s%s", top, below) < cap;
}

/* "~/x" as a shell would, since a variable may come from where none has looked at it. */
static bool expand(char *out, size_t cap, const char *path) {
    const char *home = env("HOME");
    return path[0] == '~' && path[1] == '/' && home ? join(out, cap, home, path + 1)
                                                    : join(out, cap, path, "");
}

static bool home_of_hub(char *out, size_t cap) {
    if (env("HF_HOME")) return expand(out, cap, env("HF_HOME"));
    if (env("XDG_CACHE_HOME")) return join(out, cap, env("XDG_CACHE_HOME"), "/huggingface");
    return env("HOME") && join(out, cap, env("HOME"), "/.cache/huggingface");
}

bool ig_hub_cache_dir(char *out, size_t cap) {
    char home[2048];
    if (env("HF_HUB_CACHE")) return expand(out, cap, env("HF_HUB_CACHE"));
    return home_of_hub(home, sizeof home) && join(out, cap, home, "/hub");
}

bool ig_hub_state_dir(char *out, size_t cap) {
    if (env("INGLE_STATE")) return join(out, cap, env("INGLE_STATE"), "");
    if (env("XDG_STATE_HOME")) return join(out, cap, env("XDG_STATE_HOME"), "/ingle");
    return env("HOME") && join(out, cap, env("HOME"), "/.local/state/ingle");
}

/* The address without the slashes at its end. A name and password in it would end up in messages. */
static ig_status read_endpoint(ig_hub_config *c, ig_err *err) {
    const char *v = env("HF_ENDPOINT");
    if (!v) v = "https://huggingface.co";
    size_t n = strlen(v);
    while (n && v[n - 1] == '/') n--;
    bool good =
        n < sizeof c->endpoint && (strncasecmp(v, "https://", 8) == 0 || strncasecmp(v, "http://", 7) == 0);
    for (size_t i = 0; good && i < n; i++) good = isgraph((unsigned char)v[i]) && !strchr("@?#\"<>\\", v[i]);
    if (!good || n <= strlen("https://"))
        return ig_fail(err, IG_EINVAL,
                       "HF_ENDPOINT is \"%.100s\"; it wants an address like https://huggingface.co",
                       strchr(v, '@') ? "..." : v);
    snprintf(c->endpoint, sizeof c->endpoint, "%.*s", (int)n, v);
    return IG_OK;
}

/* It becomes a line of a header: nothing but printable characters may be in it. Never quoted in a message. */
static ig_status take_token(ig_hub_config *c, const char *text, size_t n, const char *from, ig_err *err) {
    while (n && isspace((unsigned char)text[n - 1])) n--;
    while (n && isspace((unsigned char)*text)) text++, n--;
    bool good = n < sizeof c->token;
    for (size_t i = 0; good && i < n; i++) good = text[i] > 0x20 && text[i] < 0x7f;
    if (!good) return ig_fail(err, IG_EINVAL, "%s holds something that is no token", from);
    snprintf(c->token, sizeof c->token, "%.*s", (int)n, text);
    return IG_OK;
}

static ig_status read_token(ig_hub_config *c, ig_err *err) {
    char home[2048], path[3072];
    char *text = NULL;
    size_t n = 0;
    if (env("HF_TOKEN")) return take_token(c, env("HF_TOKEN"), strlen(env("HF_TOKEN")), "HF_TOKEN", err);
    bool named = env("HF_TOKEN_PATH") != NULL;
    if (named ? !expand(path, sizeof path, env("HF_TOKEN_PATH"))
              : !home_of_hub(home, sizeof home) || !join(path, sizeof path, home, "/token"))
        return IG_OK;
    ig_status st = ig_file_slurp(&text, &n, path, TOKEN_FILE_MAX, err);
    if (st == IG_ENOTFOUND || (st && !named))
        return IG_OK; /* as if there were none, which the hub will say */
    if (!st) st = take_token(c, text, n, path, err);
    free(text);
    return st;
}

ig_status ig_hub_config_init(ig_hub_config *out, ig_err *err) {
    *out = (ig_hub_config){.timeout_s = 30, .retries = 5, .retry_wait_s = 1.0};
    ig_status st = read_endpoint(out, err);
    if (!st) st = read_token(out, err);
    if (st) return st;
    if (!ig_hub_cache_dir(out->cache, sizeof out->cache))
        return ig_fail(err, IG_EINVAL, "no place for models: none of HF_HUB_CACHE, HF_HOME and HOME is set");
    const char *ca = env("CURL_CA_BUNDLE") ? env("CURL_CA_BUNDLE") : env("SSL_CERT_FILE");
    if (ca && !join(out->ca_file, sizeof out->ca_file, ca, ""))
        return ig_fail(err, IG_EINVAL, "the path of SSL_CERT_FILE is longer than %zu bytes",
                       sizeof out->ca_file - 1);
    out->offline = is_on("HF_HUB_OFFLINE");
    if (env("HF_HUB_DOWNLOAD_TIMEOUT")) {
        int s = (int)strtol(env("HF_HUB_DOWNLOAD_TIMEOUT"), NULL, 10);
        if (s >= 1 && s <= 3600) out->timeout_s = s;
    }
    return IG_OK;
}
