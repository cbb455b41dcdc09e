/* ingle's logits for a list of tokens, f32 [n_tokens][n_vocab]; each window starts anew.
 *     dump_ingle MODEL TOKENS OUT [WINDOW [THREADS [CHUNK [KV_BITS [ACT_BITS]]]]]
 * The model's own forward, no engine: windows in chunks of CHUNK rows (64; the bits do not depend on it).
 * Linked from the objects of a build by dump.mk. */
#include "dump_common.h"

#include "model/model.h"

#include <sys/stat.h>

static void check(ig_status st, const ig_err *err) {
    if (st != IG_OK) dump_die(ig_status_name(st), err->msg);
}

int main(int argc, char **argv) {
    dump_args a = dump_parse(argc, argv);
    int chunk = argc > 6 ? dump_int(argv[6], "chunk", 4096) : 64;
    bool eight = argc > 7 && dump_int(argv[7], "bits of keys and values", 16) == 8;
    bool two_parts = argc > 8 && dump_int(argv[8], "bits of activations", 16) == 16;
    ig_err err = {0};

    ig_pool *pool;
    check(ig_pool_make(&pool, a.threads, &err), &err);
    ig_gguf *file = NULL;
    ig_snapshot *folder = NULL;
    struct stat info;
    if (stat(a.model, &info) == 0 && S_ISDIR(info.st_mode))
        check(ig_snapshot_open(&folder, a.model, &err), &err);
    else
        check(ig_gguf_open(&file, a.model, &err), &err);
    ig_model *model;
    ig_model_options options = {.pool = pool, .tier_max = IG_TIER_L3, .cpu = ig_cpu_features(),
                                .kv_kind = eight ? IG_KV_8 : IG_KV_F16, .two_parts = two_parts};
    check(ig_model_open(&model, (ig_checkpoint){file, folder}, &options, &err), &err);
    ig_gguf_close(file);
    ig_snapshot_close(folder);
    size_t n_vocab = (size_t)ig_model_config_of(model)->n_vocab;

    ig_kv_pool *kv;
    ig_kv_shape shape = ig_model_kv_shape(model);
    check(ig_kv_pool_make(&kv, shape, ig_kv_room_for(shape, 1, a.window, chunk), 1, a.window, &err), &err);
    ig_arena arena = {.cap_bytes = ig_model_plan(model, chunk, chunk, a.window)};
    void *memory;
    check(ig_pages_map(&memory, arena.cap_bytes, false, &err), &err);
    arena.base = memory;

    size_t n_rows = (size_t)chunk;
    uint32_t *token = calloc(n_rows, sizeof *token);
    int *pos = calloc(n_rows, sizeof *pos), *seq_of = calloc(n_rows, sizeof *seq_of);
    int *want = calloc(n_rows, sizeof *want);
    float *logits = calloc(n_rows * n_vocab, sizeof *logits);
    if (!token || !pos || !seq_of || !want || !logits) dump_die("no memory for", "a chunk of rows");

    FILE *out = fopen(a.out, "wb");
    if (!out) dump_die("cannot write", a.out);
    for (int start = 0; start < a.n_ids; start += a.window) {
        int n_window = a.n_ids - start < a.window ? a.n_ids - start : a.window;
        ig_kv_seq *seq = ig_kv_seq_open(kv);
        if (!seq) dump_die("no KV blocks for", "a window");
        for (int at = 0; at < n_window; at += chunk) {
            int n = n_window - at < chunk ? n_window - at : chunk;
            if (!ig_kv_seq_reserve(kv, seq, at + n)) dump_die("no KV blocks for", "a chunk");
            for (int i = 0; i < n; i++) {
                token[i] = (uint32_t)a.ids[start + at + i];
                pos[i] = at + i;
                want[i] = i;
            }
            ig_rows rows = {.n_rows = n, .token = token, .pos = pos, .seq = seq_of, .kv_seq = &seq, .kv = kv,
                            .n_ctx = at + n, .want = want, .n_want = n};
            check(ig_model_forward(model, &arena, &rows, logits, &err), &err);
            seq->n_tokens += n;
            dump_write(out, logits, (size_t)n * n_vocab);
        }
        ig_kv_seq_close(kv, seq);
    }
    if (fclose(out) != 0) dump_die("write failed", a.out);
    ig_pages_unmap(memory, arena.cap_bytes);
    free(logits), free(want), free(seq_of), free(pos), free(token), free(a.ids);
    ig_kv_pool_free(kv);
    ig_model_close(model);
    ig_pool_free(pool);
    return 0;
}
