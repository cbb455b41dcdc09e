/* llama.cpp's logits for a list of tokens, f32 [n_tokens][n_vocab]; each window starts anew.
 *     dump_llama MODEL TOKENS OUT [WINDOW [THREADS]]
 * Its own defaults (f16 cache, flash attention as it chooses, its fast weight layouts), one window a
 * batch. Environment DUMP_KV=f32 takes the cache in f32, to tell its cache's error from the rest.
 * Built by bench/peers/build_llama.py. */
#include "dump_common.h"

#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *ud) {
    (void)ud;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv) {
    dump_args a = dump_parse(argc, argv);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(a.model, llama_model_default_params());
    if (!model) dump_die("llama.cpp does not load", a.model);
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = (uint32_t)a.window;
    cp.n_threads = cp.n_threads_batch = a.threads;
    const char *kv = getenv("DUMP_KV");
    if (kv && strcmp(kv, "f32") == 0) cp.type_k = cp.type_v = GGML_TYPE_F32;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx) dump_die("llama.cpp makes no context for", a.model);

    FILE *out = fopen(a.out, "wb");
    if (!out) dump_die("cannot write", a.out);
    struct llama_batch batch = llama_batch_init(a.window, 0, 1);
    for (int start = 0; start < a.n_ids; start += a.window) {
        int n = a.n_ids - start < a.window ? a.n_ids - start : a.window;
        llama_memory_clear(llama_get_memory(ctx), true);
        batch.n_tokens = n;
        for (int i = 0; i < n; i++) {
            batch.token[i] = a.ids[start + i];
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(ctx, batch) != 0) dump_die("llama_decode failed", a.model);
        dump_write(out, llama_get_logits(ctx), (size_t)n * (size_t)n_vocab);
    }
    if (fclose(out) != 0) dump_die("write failed", a.out);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    free(a.ids);
    return 0;
}
