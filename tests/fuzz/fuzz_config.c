/* fuzz_config: any bytes as the config.json of a folder whose model.safetensors holds one tensor.
 *
 * What is accepted must keep within the bounds of model.h; what is refused must say why. Then the weights are
 * bound, which ends at a tensor that is not there, but not in a crash, whatever sizes the settings name. */
#include "folder.h"
#include "model/model.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void make_folder(void) {
    static const char head[] = "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[1,8],"
                               "\"data_offsets\":[0,32]}}";
    char bytes[8 + sizeof head - 1 + 32] = {0};
    const uint64_t length = sizeof head - 1;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, head, length);
    fuzz_write("model.safetensors", bytes, sizeof bytes);
}

static void check_config(const ig_model_config *c) {
    ig_assert(c->n_layers >= 1 && c->n_layers <= IG_LAYERS_MAX && c->width >= 8 && c->ffn_width >= 8);
    ig_assert(c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0 && c->head_dim >= 1);
    ig_assert(c->n_vocab >= 1 && c->n_ctx_train >= 1 && c->norm_eps > 0 && c->attention_scale > 0);
    for (int i = 0; i < (c->own_window_rope ? IG_ROPES : 1); i++) {
        const ig_rope_settings *r = &c->rope[i];
        ig_assert(r->base > 1 && r->base < 1e13 && r->factor >= 1 && r->factor < 1e7 && r->scale > 0);
        ig_assert(r->n_divisors == 0 || r->n_divisors == c->head_dim / 2);
    }
    ig_assert(c->attention_softcap >= 0 && c->final_softcap >= 0);
    for (int i = 0; i < c->n_layers; i++) ig_assert(c->windowed[i] == 0 || c->window > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    ig_snapshot *s = NULL;
    ig_model *m = NULL;
    ig_model_info info;
    ig_err err = {0};
    if (!fuzz_home[0]) make_folder();
    fuzz_write("config.json", p, n);
    ig_log_set_level(IG_LOG_ERROR);
    if (ig_snapshot_open(&s, fuzz_home, &err) != IG_OK) {
        ig_assert(err.msg[0] && !s);
        return 0;
    }
    const ig_checkpoint from = {.snapshot = s};
    if (ig_model_inspect(&info, from, &err) == IG_OK) {
        check_config(&info.config);
        /* one tensor is no model: something is always missing */
        ig_assert(ig_model_open(&m, from, &(ig_model_options){0}, &err) != IG_OK && !m);
    }
    ig_assert(err.msg[0]);
    ig_snapshot_close(s);
    return 0;
}

#ifndef IG_LIBFUZZER
#include "corpus_main.h"
#endif
