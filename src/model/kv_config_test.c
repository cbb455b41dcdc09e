/* kv_config.json: what is read, and what each bad file is told. */
#include "base/test.h"
#include "model/inside.h"

#include <stdio.h>
#include <string.h>

static ig_status parse(ig_kv_config *c, const char *text, ig_err *err) {
    return ig_kv_config_parse(c, text, strlen(text), err);
}

TEST(a_kv_config_lists_layers_and_the_later_of_two_entries_counts) {
    ig_kv_config c;
    ig_err err;
    CHECK(parse(&c, "[{\"layer_idx\":2,\"bits\":4},{\"bits\":8,\"layer_idx\":0,\"group_size\":32,\"why\":\"x\"},"
                    "{\"layer_idx\":2,\"bits\":8,\"group_size\":128}]", &err) == IG_OK);
    CHECK(c.n_layers == 3 && c.bits[0] == 8 && c.group[0] == 32 && c.bits[1] == 0 && c.bits[2] == 8 && c.group[2] == 128);
    CHECK(parse(&c, "[]", &err) == IG_OK && c.n_layers == 0);
}

TEST(a_bad_kv_config_is_told_which_entry_and_what_is_expected) {
    static const char *const cases[][2] = {
        {"", "empty"}, {"{}", "a list of layers"}, {"[4]", "entry 0 is no object"}, {"[{\"bits\":4}]", "entry 0 has no layer_idx"},
        {"[{\"layer_idx\":0}]", "entry 0 has no bits"}, {"[{\"layer_idx\":-1,\"bits\":4}]", "layer_idx = -1 is outside 0..1023"},
        {"[{\"layer_idx\":1024,\"bits\":4}]", "layer_idx = 1024 is outside"},
        {"[{\"layer_idx\":18446744073709551615,\"bits\":4}]", "is outside 0..1023"},
        {"[{\"layer_idx\":0,\"bits\":7}]", "2, 3, 4, 5, 6 or 8 expected"}, {"[{\"layer_idx\":0,\"bits\":4.5}]", "no whole number"},
        {"[{\"layer_idx\":\"0\",\"bits\":4}]", "no whole number"}, {"[{\"layer_idx\":0,\"bits\":16}]", "bits = 16 is outside 2..8"},
        {"[{\"layer_idx\":0,\"bits\":4,\"group_size\":48}]", "group_size = 48; 32, 64 or 128"},
        {"[{\"layer_idx\":0,\"bits\":4,\"group_size\":0}]", "group_size = 0 is outside 32..128"}, {"[{\"layer_idx\":0,\"bits\":4}", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ig_kv_config c;
        ig_err err = {0};
        CHECK_MSG(parse(&c, cases[i][0], &err) != IG_OK, "%s was read", cases[i][0]);
        CHECK_MSG(i == 0 || strstr(err.msg, cases[i][1]) != NULL, "%s: %s", cases[i][0], err.msg);
    }
}

TEST(a_kv_config_that_does_not_fit_the_model_is_told_why) {
    ig_kv_config c = {.n_layers = 4, .bits = {[3] = 4}, .group = {[3] = 64}};
    ig_model_config m = {.n_layers = 4, .head_dim = 64};
    ig_err err = {0};
    CHECK(ig_kv_config_check(&c, &m, &err) == IG_OK);
    m.n_layers = 3;
    CHECK(ig_kv_config_check(&c, &m, &err) == IG_EINVAL && strstr(err.msg, "layer_idx = 3 is outside 0..2"));
    m.n_layers = 4, m.head_dim = 80;
    CHECK(ig_kv_config_check(&c, &m, &err) == IG_EINVAL && strstr(err.msg, "group_size = 64 does not divide heads of 80"));
    m.head_dim = 64, m.attention_softcap = 50.0f;
    CHECK(ig_kv_config_check(&c, &m, &err) == IG_EINVAL && strstr(err.msg, "no reference"));
}
