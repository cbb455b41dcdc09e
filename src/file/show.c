/* show: names that came from files, as they may stand in a message; their order; what a wrong file may be.
 * Threads: any. Memory: none. */
#include "file/inside.h"

#include <stdio.h>
#include <string.h>

ig_shown ig_file_show(ig_slice name) {
    ig_shown out;
    size_t n = name.n < IG_SHOWN_NAME_BYTES ? name.n : IG_SHOWN_NAME_BYTES;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        out.s[i] = c < 0x20 || c == 0x7f || c >= 0x80 ? '?' : (char)c;
    }
    memcpy(out.s + n, name.n > n ? "..." : "", name.n > n ? 4 : 1);
    return out;
}

void ig_file_show_path(char out[static IG_SHOWN_PATH_BYTES], const char *path) {
    size_t n = strlen(path), half = (IG_SHOWN_PATH_BYTES - 4) / 2;
    if (n < IG_SHOWN_PATH_BYTES)
        snprintf(out, IG_SHOWN_PATH_BYTES, "%s", path);
    else
        snprintf(out, IG_SHOWN_PATH_BYTES, "%.*s...%s", (int)half, path, path + n - half);
}

int ig_file_name_order(ig_slice a, ig_slice b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int d = n ? memcmp(a.p, b.p, n) : 0;
    return d ? d : (a.n > b.n) - (a.n < b.n);
}

const char *ig_file_guess(const uint8_t *p) {
    static const struct {
        const char *starts, *is;
    } known[] = {
        {"vers", "a Git LFS pointer and not the model itself"},
        {"<!DO", "a web page and not a model"},
        {"<!do", "a web page and not a model"},
        {"<htm", "a web page and not a model"},
        {"PK\3\4", "a zip archive or a PyTorch checkpoint; only GGUF and safetensors are read"},
        {"FUGG", "a big-endian GGUF file; only little-endian ones are read"},
        {"lmgg", "an old GGML file; convert it to GGUF"},
        {"fmgg", "an old GGMF file; convert it to GGUF"},
        {"tjgg", "an old GGJT file; convert it to GGUF"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (memcmp(p, known[i].starts, 4) == 0) return known[i].is;
    return NULL;
}
