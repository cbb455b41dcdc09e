/* version: what this program is and what it found here. */
#include "app/app.h"
#include "kern/kern.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 100 };

const char *ig_app_feature_name(uint32_t bit) {
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {{IG_CPU_AVX2, "avx2"},
                 {IG_CPU_FMA, "fma"},
                 {IG_CPU_F16C, "f16c"},
                 {IG_CPU_AVX512, "avx512"},
                 {IG_CPU_AVX512_VNNI, "avx512vnni"},
                 {IG_CPU_AVX_VNNI, "avxvnni"},
                 {IG_CPU_NEON, "neon"},
                 {IG_CPU_NEON_DOTPROD, "dotprod"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].bit == bit) return names[i].name;
    return NULL;
}

int ig_cmd_version(int argc, char **argv) {
    const ig_command c = {.verb = "version", .words = "", .summary = "Version, CPU and the kernels it gets."};
    ig_words words;
    int code;
    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    uint32_t cpu = ig_cpu_features();
    printf("ingle %s\n", IG_VERSION);
    printf("cpu      %s, %d cores for this process\n", ig_cpu_model(), ig_cpu_count());
    printf("features");
    for (uint32_t bit = 1; ig_app_feature_name(bit); bit <<= 1)
        if (cpu & bit) printf(" %s", ig_app_feature_name(bit));
    int column = printf("\nformats ") - 1;
    for (int i = 0; ig_fmt_at(i); i++) {
        if (column + 1 + (int)strlen(ig_fmt_at(i)->name) > COLUMNS) column = printf("\n        ") - 1;
        column += printf(" %s", ig_fmt_at(i)->name);
    }
    printf("\ncompiler %s\n", __VERSION__);
    return IG_EXIT_OK;
}
