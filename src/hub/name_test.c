#include "base/test.h"
#include "hub/hub.h"

#include <string.h>

static void names(const char *text, const char *repo, const char *pick) {
    ig_hub_name n;
    ig_err err = {.msg = ""};
    ig_status st = ig_hub_name_parse(&n, text, &err);
    if (repo)
        CHECK_MSG(!st && strcmp(n.repo, repo) == 0 && strcmp(n.pick, pick) == 0, "%s: %s", text, err.msg);
    else
        CHECK_MSG(st == IG_EINVAL && err.msg[0], "%s is taken for %s", text, n.repo);
}

TEST(a_repository_is_two_plain_words_and_maybe_a_choice) {
    names("org/name", "org/name", "");
    names("Org-1/Na.me_2:Q4_K_M", "Org-1/Na.me_2", "Q4_K_M");
    names("org/name:sub/file.gguf", "org/name", "sub/file.gguf");
    names("https://huggingface.co/org/name", "org/name", "");
    names("hf.co/org/name:Q8_0", "org/name", "Q8_0");
    names("https://huggingface.co/org/name/tree/main", "org/name", "");
    names("org/name/", "org/name", "");
    names("name", NULL, NULL);
    names("", NULL, NULL);
    names("/name", NULL, NULL);
    names("org/", NULL, NULL);
    names("org/name/more", NULL, NULL);
    names("../name", NULL, NULL);
    names("org/..", NULL, NULL);
    names("org/.hidden", NULL, NULL);
    names("a--b/name", NULL, NULL); /* models--a--b--name would be read as another */
    names("org/na..me", NULL, NULL);
    names("org/name.git", NULL, NULL);
    names("org/na me", NULL, NULL);
    names("org/n\xc3\xa4me", NULL, NULL);
    names("org/name:../x", NULL, NULL);
    names("org/name:", NULL, NULL);
    names("org/name:a\x01", NULL, NULL);
    char longest[2 + 96 + 1] = "o/", longer[2 + 97 + 1] = "o/";
    memset(longest + 2, 'n', 96), memset(longer + 2, 'n', 97);
    longest[98] = longer[99] = 0;
    names(longest, longest, "");
    names(longer, NULL, NULL);
}

TEST(a_path_of_a_repository_stays_inside_it) {
    static const char *const good[] = {"a", "a/b/c.json", ".gitattributes", "a b", "...", "\xc3\xa9/x"};
    static const char *const bad[] = {"",     "/a",    "a/",   "a//b", ".",     "..",  "../a",
                                      "a/..", "a/./b", "a\\b", "a\nb", "a\x7f", "\xff"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(ig_hub_path_good(ig_slice_of(good[i])), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!ig_hub_path_good(ig_slice_of(bad[i])), "%s", bad[i]);
    CHECK(!ig_hub_path_good((ig_slice){"a\0b", 3}));
    char part[IG_HUB_PATH_BYTES + 1];
    memset(part, 'x', sizeof part);
    CHECK(ig_hub_path_good((ig_slice){part, 255}) && !ig_hub_path_good((ig_slice){part, 256}));
    for (size_t i = 200; i < sizeof part; i += 200) part[i] = '/';
    CHECK(ig_hub_path_good((ig_slice){part, IG_HUB_PATH_BYTES - 1}));
    CHECK(!ig_hub_path_good((ig_slice){part, IG_HUB_PATH_BYTES}));
}

TEST(a_revision_is_safe_as_a_path) {
    CHECK(ig_hub_revision_good("main") && ig_hub_revision_good("refs/pr/1") &&
          ig_hub_revision_good("v1.0+a"));
    CHECK(!ig_hub_revision_good("") && !ig_hub_revision_good("../main") && !ig_hub_revision_good("a b"));
    CHECK(!ig_hub_revision_good("-x") && !ig_hub_revision_good("a/../../b") && !ig_hub_revision_good("/a"));
}

TEST(a_hash_is_40_or_64_small_hex_digits) {
    static const char hex[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    CHECK(ig_hub_hash_good((ig_slice){hex, 40}) && ig_hub_hash_good((ig_slice){hex, 64}));
    CHECK(!ig_hub_hash_good((ig_slice){hex, 41}) && !ig_hub_hash_good((ig_slice){hex, 0}));
    CHECK(!ig_hub_hash_good((ig_slice){"0123456789ABCDEF0123456789abcdef01234567", 40}));
    CHECK(!ig_hub_hash_good((ig_slice){"0123456789abcdef0123456789abcdef0123456/", 40}));
}

static void gguf(const char *path, const char *quant, int part, int n_parts, bool is_model) {
    ig_hub_gguf g;
    if (!CHECK_MSG(ig_hub_gguf_of(&g, path), "%s", path)) return;
    CHECK_MSG(strcmp(g.quant, quant) == 0 && g.part == part && g.n_parts == n_parts && g.is_model == is_model,
              "%s: \"%s\", part %d of %d", path, g.quant, g.part, g.n_parts);
}

TEST(the_name_of_a_gguf_file_tells_quantization_and_part) {
    ig_hub_gguf g;
    gguf("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1", 1, 1, true);
    gguf("gemma-3-270m-q4_k_m.gguf", "Q4_K_M", 1, 1, true);
    gguf("Q4_K_M/Model-70B-Q4_K_M-00002-of-00003.gguf", "Q4_K_M", 2, 3, true);
    gguf("Qwen3-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", 1, 1, true);
    gguf("Model-IQ2_XXS.gguf", "IQ2_XXS", 1, 1, true);
    gguf("Model-TQ1_0.gguf", "TQ1_0", 1, 1, true);
    gguf("gpt-oss-MXFP4_MOE.gguf", "MXFP4_MOE", 1, 1, true);
    gguf("model-BF16.gguf", "BF16", 1, 1, true);
    gguf("model_f16.gguf", "F16", 1, 1, true);
    gguf("Model-Q4_0_4_4.GGUF", "Q4_0_4_4", 1, 1, true);
    gguf("Q8_0-fan-club-Q2_K.gguf", "Q2_K", 1, 1, true);
    gguf("plain.gguf", "", 1, 1, true);
    gguf("model-00003-of-00002.gguf", "", 1, 1, true); /* no such part: a name like any other */
    gguf("Qwen3-4B.gguf", "", 1, 1, true);             /* Q, but no quantization */
    gguf("mmproj-model-F16.gguf", "F16", 1, 1, false);
    gguf("Model.imatrix.gguf", "", 1, 1, false);
    CHECK(!ig_hub_gguf_of(&g, "model.safetensors") && !ig_hub_gguf_of(&g, ".gguf") &&
          !ig_hub_gguf_of(&g, ""));
    CHECK(ig_hub_quant_is("Q4_K_M", "q4_k_m") && ig_hub_quant_is("UD-Q4_K_XL", "q4_k_xl") &&
          !ig_hub_quant_is("", ""));
    CHECK(ig_hub_quant_rank("Q4_K_M") < ig_hub_quant_rank("Q8_0") &&
          ig_hub_quant_rank("Q8_0") < ig_hub_quant_rank(""));
    CHECK(ig_hub_quant_rank("Q4_K_M") < ig_hub_quant_rank("UD-Q4_K_M"));
}
