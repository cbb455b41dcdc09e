/* name: what people and hubs call things, and which of those names may become a path.
 * Threads: any. Memory: none.
 * Why so strict: a name of a repository, a revision or a file comes from a command line or from a server and
 * ends up in a path of ours. What is not plainly harmless is refused by name. */
#include "hub/hub.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PART_MAX = 96, FILE_PART_MAX = 255, SPLIT_DIGITS = 5 };

static bool is_word_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

/* A part of org/name. ".." and "--" would be misread in the names of folders. */
static bool is_word(const char *p, size_t n) {
    if (n == 0 || n > PART_MAX || p[0] == '.' || p[0] == '-' || p[n - 1] == '.' || p[n - 1] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_word_char(p[i])) return false;
        if (i && (p[i] == '.' || p[i] == '-') && p[i - 1] == p[i]) return false;
    }
    return n < 4 || strncasecmp(p + n - 4, ".git", 4) != 0;
}

bool ig_hub_path_good(ig_slice path) {
    if (path.n == 0 || path.n >= IG_HUB_PATH_BYTES || !ig_slice_utf8_valid(path, NULL)) return false;
    for (size_t i = 0, start = 0; i <= path.n; i++) {
        if (i < path.n && path.p[i] != '/') {
            unsigned char c = (unsigned char)path.p[i];
            if (c < 0x20 || c == 0x7f || c == '\\') return false;
            continue;
        }
        const char *part = path.p + start;
        size_t n = i - start;
        if (n == 0 || n > FILE_PART_MAX || (n <= 2 && part[0] == '.' && part[n - 1] == '.')) return false;
        start = i + 1;
    }
    return true;
}

bool ig_hub_revision_good(const char *revision) {
    size_t n = strlen(revision);
    if (n == 0 || n > 255 || revision[0] == '-' || !ig_hub_path_good((ig_slice){revision, n})) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word_char(revision[i]) && !strchr("/+@=,#", revision[i])) return false;
    return true;
}

bool ig_hub_hash_good(ig_slice hash) {
    if (hash.n != 40 && hash.n != 64) return false;
    for (size_t i = 0; i < hash.n; i++)
        if (!memchr("0123456789abcdef", hash.p[i], 16)) return false;
    return true;
}

ig_status ig_hub_name_parse(ig_hub_name *out, const char *text, ig_err *err) {
    static const char *const before[] = {"https://", "http://", "huggingface.co/", "hf.co/"};
    const char *p = text;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        if (strncasecmp(p, before[i], strlen(before[i])) == 0) p += strlen(before[i]);
    size_t n = strcspn(p, ":");
    const char *slash = memchr(p, '/', n), *pick = p[n] ? p + n + 1 : NULL;
    if (!slash)
        return ig_fail(err, IG_EINVAL, "\"%.200s\" is no repository; it wants org/name, or org/name:Q4_K_M",
                       text);
    size_t n_org = (size_t)(slash - p), n_name = n - n_org - 1;
    /* What a browser shows behind the name: org/name/tree/main. */
    const char *more = memchr(slash + 1, '/', n_name);
    if (more && (strncmp(more, "/tree/main", 10) == 0 || more + 1 == p + n) && !pick)
        n_name = (size_t)(more - slash - 1);
    if (!is_word(p, n_org) || !is_word(slash + 1, n_name))
        return ig_fail(
            err, IG_EINVAL,
            "\"%.200s\" is no repository: org/name are two words of letters, digits and _ - . with "
            "at most %d characters each",
            text, PART_MAX);
    if (pick && !ig_hub_path_good(ig_slice_of(pick)))
        return ig_fail(err, IG_EINVAL, "\"%.200s\" is neither a file of a repository nor a quantization",
                       pick);
    snprintf(out->repo, sizeof out->repo, "%.*s/%.*s", (int)n_org, p, (int)n_name, slash + 1);
    snprintf(out->pick, sizeof out->pick, "%s", pick ? pick : "");
    return IG_OK;
}

/* ---- GGUF files ---------------------------------------------------------------------------------------- */

static bool has_ending(const char *p, size_t n, const char *ending) {
    size_t m = strlen(ending);
    return n > m && strncasecmp(p + n - m, ending, m) == 0;
}

static int digits(const char *p) {
    int v = 0;
    for (int i = 0; i < SPLIT_DIGITS; i++) {
        if (!isdigit((unsigned char)p[i])) return -1;
        v = v * 10 + (p[i] - '0');
    }
    return v;
}

/* "-00001-of-00003" at the end of the first n bytes. */
static bool split_of(const char *p, size_t n, int *part, int *n_parts) {
    enum { BYTES = 1 + SPLIT_DIGITS + 4 + SPLIT_DIGITS };
    if (n <= BYTES) return false;
    p += n - BYTES;
    if (p[0] != '-' || strncmp(p + 1 + SPLIT_DIGITS, "-of-", 4) != 0) return false;
    const int i = digits(p + 1), n_all = digits(p + 1 + SPLIT_DIGITS + 4);
    if (i < 1 || n_all < i) return false;
    *part = i;
    *n_parts = n_all;
    return true;
}

/* Bytes of the quantization at p, 0 when none begins there. It ends at a '-' or '.', or with the name. */
static size_t quant_at(const char *p, const char *end) {
    static const char *const plain[] = {"BF16", "FP16", "F16", "FP32", "F32", "MXFP4", "NVFP4"};
    size_t n = 0;
    while (p + n < end && (isalnum((unsigned char)p[n]) || p[n] == '_')) n++;
    if (n >= IG_HUB_QUANT_BYTES - 3) return 0;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        size_t m = strlen(plain[i]);
        if (n >= m && strncasecmp(p, plain[i], m) == 0 && (n == m || p[m] == '_')) return n;
    }
    const char *q = p;
    if (n && strchr("iItT", *q)) q++; /* IQ4_XS, TQ1_0 */
    if (p + n - q < 3 || (*q != 'q' && *q != 'Q') || !isdigit((unsigned char)q[1]) || q[1] == '0') return 0;
    return q[2] == '_' ? n : 0;
}

/* The last quantization in the name, so that a model called Q8-something does not answer for its own. */
static void quant_of(char out[IG_HUB_QUANT_BYTES], const char *stem, size_t n) {
    const char *end = stem + n, *slash = memrchr(stem, '/', n), *name = slash ? slash + 1 : stem;
    out[0] = 0;
    for (const char *p = name; p < end; p++) {
        if (p > name && !strchr("-._", p[-1])) continue;
        size_t m = quant_at(p, end);
        if (!m) continue;
        bool ud =
            p - name >= 3 && strncasecmp(p - 3, "UD-", 3) == 0 && (p - name == 3 || strchr("-._", p[-4]));
        snprintf(out, IG_HUB_QUANT_BYTES, "%s%.*s", ud ? "UD-" : "", (int)m, p);
        p += m - 1;
    }
    for (char *c = out; *c; c++) *c = (char)toupper((unsigned char)*c);
}

bool ig_hub_gguf_of(ig_hub_gguf *out, const char *path) {
    size_t n = strlen(path);
    if (!has_ending(path, n, ".gguf")) return false;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    n -= 5;
    *out = (ig_hub_gguf){.n_stem = n, .part = 1, .n_parts = 1};
    out->is_model = strncasecmp(name, "mmproj", 6) != 0 && !strcasestr(name, "imatrix");
    if (split_of(path, n, &out->part, &out->n_parts)) out->n_stem = n - (1 + SPLIT_DIGITS + 4 + SPLIT_DIGITS);
    quant_of(out->quant, path, out->n_stem);
    return true;
}

bool ig_hub_quant_is(const char *quant, const char *pick) {
    if (!*quant) return false;
    return strcasecmp(quant, pick) == 0 ||
           (strncmp(quant, "UD-", 3) == 0 && strcasecmp(quant + 3, pick) == 0);
}

int ig_hub_quant_rank(const char *quant) {
    static const char *const order[] = {"Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0",   "Q5_K_M",
                                        "Q5_K_S", "Q5_0",    "Q5_1",   "Q6_K", "Q8_0", "IQ4_XS", "IQ4_NL"};
    enum { N = sizeof order / sizeof *order };
    for (int i = 0; i < N; i++) {
        if (strcmp(quant, order[i]) == 0) return 2 * i;
        if (ig_hub_quant_is(quant, order[i])) return 2 * i + 1;
    }
    return 2 * N;
}
