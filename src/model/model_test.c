/* model_test: tiny random checkpoints, written here as GGUF files, through the whole forward: exactness
 * across batches, chunks, threads and instruction sets, agreement with a plain float64 forward, and every
 * refusal by name. */
#include "base/test.h"
#include "model/tiny_test.h"

TEST(logits_agree_with_a_float64_forward_for_every_format_and_shape) {
    static const struct {
        shape s;
        double bound;
    } cases[] = {
        {{2, 96, 160, 6, 2, 32, 80, false, "f32", 0}, 4e-3},
        {{2, 96, 160, 6, 2, 32, 80, false, "f16", 0}, 4e-3},
        {{2, 96, 160, 6, 2, 32, 80, true, "bf16", 0}, 4e-3},
        {{2, 96, 160, 6, 2, 32, 80, false, "q4_0", 0}, 6e-2},
        {{2, 96, 160, 6, 2, 32, 80, true, "q4_1", 0}, 6e-2},
        {{2, 96, 160, 6, 2, 32, 80, false, "q8_0", 0}, 4e-3},
        {{1, 64, 96, 4, 4, 16, 50, false, "q4_1", 0}, 6e-2},
        {{3, 128, 96, 2, 1, 64, 33, true, "f32", 0}, 4e-3},
        {{1, 160, 96, 8, 2, 80, 48, false, "f16", 0}, 4e-3},
        {{2, 96, 100, 3, 1, 48, 47, false, "f32", 0}, 4e-3},
        {{2, 96, 160, 6, 2, 32, 80, true, "q5_0", 0}, 6e-2},
        {{2, 256, 512, 4, 2, 64, 80, true, "q4_k", 0}, 6e-2},
        {{2, 256, 256, 8, 4, 32, 64, true, "q6_k", 0}, 4e-3},
        {{2, 96, 160, 6, 2, 32, 80, true, "q5_1", 0}, 6e-2},
        {{2, 256, 256, 8, 4, 32, 64, true, "q5_k", 0}, 6e-2},
        {{2, 96, 160, 6, 2, 32, 80, false, "iq4_nl", 0}, 4e-3},
        {{2, 256, 256, 8, 4, 32, 64, true, "iq4_xs", 0}, 4e-3},
        {{2, 256, 256, 8, 4, 32, 64, true, "q2_k", 0}, 6e-2},
        {{2, 256, 256, 8, 4, 32, 64, true, "q3_k", 0}, 6e-2},
        {{2, 256, 256, 8, 4, 32, 64, false, "tq2_0", 0}, 6e-2},
        {{2, 256, 256, 8, 4, 32, 64, true, "tq1_0", 0}, 6e-2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shape s = cases[i].s;
        file w = write_model(s, (twist){0});
        rig r;
        if (rig_open(&r, w.path, 2, 0)) {
            enum { N = 70 };
            uint32_t tok[N];
            int zero = 0;
            random_tokens(tok, N, s.vocab, 3);
            float *got = malloc((size_t)(N * s.vocab) * 4);
            double *want = malloc((size_t)s.vocab * 8), err2 = 0, mass = 0, low = 0, high = 0;
            step(&r, tok, &zero, 1, 0, N, got);
            forward64(r.g, s, tok, N, want);
            for (int v = 0; v < s.vocab; v++) {
                double d = (double)got[(N - 1) * s.vocab + v] - want[v];
                err2 += d * d, mass += want[v] * want[v], low = fmin(low, want[v]),
                                                          high = fmax(high, want[v]);
            }
            CHECK_MSG(sqrt(err2 / mass) < cases[i].bound, "%s D=%d: relative error %.2e, bound %.0e", s.fmt,
                      s.dim, sqrt(err2 / mass), cases[i].bound);
            CHECK(high - low > 0.5);                 /* logits that are all alike would agree with anything */
            forward64(r.g, s, tok + 1, N - 1, want); /* control: another prompt is far away */
            double off = 0;
            for (int v = 0; v < s.vocab; v++) off += pow((double)got[(N - 1) * s.vocab + v] - want[v], 2);
            CHECK_MSG(sqrt(off / mass) > cases[i].bound / 2 && off > err2, "%s: another prompt is %.2e away",
                      s.fmt, sqrt(off / mass));
            free(got), free(want);
        }
        rig_close(&r);
        unlink(w.path);
    }
}

TEST(logits_have_the_same_bits_in_any_batch_chunk_thread_count_and_on_any_isa) {
    enum { N = 130, V = 80 };
    static float ref[N * V], got[SEQS * N * V];
    static const char *const fmts[] = {"q4_1", "q4_0", "q5_0", "q8_0", "f32", "f16", "bf16", "q4_k", "q6_k", "q5_1",
                                       "q5_k", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "tq2_0", "tq1_0"};
    uint32_t tok[N];
    random_tokens(tok, N, V, 5);
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        shape s = fmt_named(fmts[f])->group > 32 ? (shape){2, 256, 256, 8, 4, 32, V, false, NULL, 0} : small;
        s.fmt = fmts[f];
        file w = write_model(s, (twist){0});
        for (int threads = 1; threads <= 5; threads += threads == 3 ? 2 : 1)
            for (int scalar = 0; scalar < 2; scalar++) {
                if (scalar && threads > (s.width > 160 ? 1 : 2)) continue;
                rig r;
                int all[SEQS] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
                /* no bit but NEON's number, which no x86 kernel needs: the scalar kernels */
                if (!rig_open(&r, w.path, threads, scalar ? IG_CPU_NEON : 0)) return;
                bool first = threads == 1 && !scalar;
                step(&r, tok, all, 1, 0, N, first ? ref : got);
                if (!first)
                    CHECK_MSG(memcmp(ref, got, sizeof ref) == 0, "%s, %d threads, scalar %d", fmts[f],
                              threads, scalar);
                static const int chunks[] = {1, 7, 64};
                for (int c = 0; c < 3; c++) {
                    if (scalar && c != 1) continue;
                    restart(&r, 0);
                    for (int from = 0; from < N; from += chunks[c])
                        step(&r, tok, all, 1, from, from + chunks[c] < N ? from + chunks[c] : N,
                             got + from * V);
                    CHECK_MSG(memcmp(ref, got, sizeof ref) == 0, "%s, chunks of %d", fmts[f], chunks[c]);
                }
                for (int n = 2; n <= 8 && !scalar; n += n == 2 ? 1 : 5) {
                    for (int i = 0; i < SEQS; i++) restart(&r, i);
                    step(&r, tok, all, n, 0, 60, got);
                    for (int i = 0; i < n; i++)
                        CHECK_MSG(memcmp(ref, got + i * 60 * V, 60 * V * 4) == 0, "%s, batch of %d", fmts[f],
                                  n);
                    for (int p = 60; p < 70; p++) { /* decode together */
                        step(&r, tok, all, n, p, p + 1, got);
                        for (int i = 0; i < n; i++)
                            CHECK_MSG(memcmp(ref + p * V, got + i * V, V * 4) == 0, "%s, batch of %d at %d",
                                      fmts[f], n, p);
                    }
                }
                restart(&r, 0); /* control: one other token earlier must show in every later row */
                uint32_t other[N];
                memcpy(other, tok, sizeof tok), other[3] = (other[3] + 1) % V;
                step(&r, other, all, 1, 0, N, got);
                CHECK(memcmp(ref, got, 3 * V * 4) == 0);
                for (int p = 3; p < N; p++)
                    CHECK_MSG(memcmp(ref + p * V, got + p * V, V * 4) != 0, "%s: the change of a token does not "
                              "show in row %d", fmts[f], p);
                rig_close(&r);
            }
        unlink(w.path);
    }
}

static void refused(shape s, twist t, const char *text) {
    file w = write_model(s, t);
    ig_gguf *g = NULL;
    ig_model *m = NULL;
    ig_err err = {0};
    ig_status st = ig_gguf_open(&g, w.path, &err);
    if (st == IG_OK)
        st = ig_model_open(&m, (ig_checkpoint){.gguf = g}, &(ig_model_options){.pool = NULL}, &err);
    CHECK_MSG(st != IG_OK, "accepted, expected \"%s\"", text);
    CHECK_MSG(strstr(err.msg, text) != NULL, "\"%s\" does not say \"%s\"", err.msg, text);
    ig_model_close(m), ig_gguf_close(g), unlink(w.path);
}

TEST(what_cannot_run_is_refused_by_name) {
    refused(small, (twist){.arch = "mamba"}, "\"mamba\" is not supported");
    refused(small, (twist){.drop = "blk.1.ffn_up.weight"}, "blk.1.ffn_up.weight is missing");
    refused(small, (twist){.drop = "token_embd.weight"}, "token_embd.weight is missing");
    refused(small, (twist){.add = "blk.0.attn_q.bias"}, "blk.0.attn_q.bias");
    refused(small, (twist){.wide = true}, "attn_k.weight is [96, 96, 1, 1], expected [96, 64]");
    shape wide = small; /* rows long enough for another type */
    wide.fmt = "f32";
    refused(wide, (twist){.type_of_first = 9}, "token_embd.weight has block type Q8_1, which is not supported");
    refused(wide, (twist){.type_of_first = 24}, "token_embd.weight has block type I8, which is not supported");
    refused(small, (twist){.key = "llama.attention.head_count", .value = 0}, "head_count = 0");
    refused(small, (twist){.key = "llama.attention.head_count_kv", .value = 0}, "head_count_kv = 0");
    refused(small, (twist){.key = "llama.attention.head_count_kv", .value = 4}, "6 heads over 4 kv heads");
    refused(small, (twist){.key = "llama.block_count", .value = 0x80000000u}, "block_count");
    refused(small, (twist){.key = "llama.block_count", .value = 1}, "9 tensors are not part");
    refused(small, (twist){.key = "llama.attention.key_length", .value = 24},
            "values of 32 dimensions of a head of 24");
    refused(small, (twist){.key = "llama.embedding_length", .value = 0}, "embedding_length = 0");
    refused(small, (twist){.key = "llama.context_length", .value = 0}, "context_length = 0");
}

TEST(a_memory_budget_below_the_weights_refuses_and_one_above_loads) {
    file w = write_model(small, (twist){0});
    ig_gguf *g = NULL;
    ig_model *m = NULL;
    ig_err err;
    if (!CHECK(ig_gguf_open(&g, w.path, &err) == IG_OK)) return;
    CHECK(ig_model_open(&m, (ig_checkpoint){.gguf = g}, &(ig_model_options){.memory_budget_bytes = 1000},
                        &err) == IG_ELIMIT &&
          m == NULL);
    CHECK(ig_model_open(&m, (ig_checkpoint){.gguf = g}, &(ig_model_options){.memory_budget_bytes = 1u << 30},
                        &err) == IG_OK);
    ig_model_close(m), ig_gguf_close(g), unlink(w.path);
}

TEST(the_plan_is_exact_and_every_smaller_arena_ends_in_a_status) {
    file w = write_model(small, (twist){0});
    rig r;
    if (!rig_open(&r, w.path, 2, 0)) return;
    enum { N = 60 };
    static float logits[N * 80];
    uint32_t tok[N];
    int pos[N], seq[N] = {0}, want[N];
    random_tokens(tok, N, 80, 9);
    for (int i = 0; i < N; i++) pos[i] = i, want[i] = i;
    CHECK(ig_kv_seq_reserve(r.kv, r.seq[0], N));
    ig_rows rows = {.n_rows = N,
                    .token = tok,
                    .pos = pos,
                    .seq = seq,
                    .kv_seq = r.seq,
                    .kv = r.kv,
                    .n_ctx = CTX,
                    .want = want,
                    .n_want = N};
    size_t need = ig_model_plan(r.m, N, N, CTX);
    CHECK(need <= r.arena.cap_bytes);
    for (size_t cap = 0; cap <= need; cap += 64) {
        ig_arena a = {.base = r.arena.base, .cap_bytes = cap};
        ig_err err = {0};
        ig_status st = ig_model_forward(r.m, &a, &rows, logits, &err);
        CHECK_MSG(st == (cap < need ? IG_ELIMIT : IG_OK), "%zu of %zu bytes: status %d", cap, need, st);
        CHECK(a.used_bytes == 0 && a.peak_bytes <= cap);
        if (cap + 64 * 40 < need) cap += 64 * 37; /* every size near the top, some below */
    }
    rig_close(&r);
    unlink(w.path);
}

TEST(training_mode_stays_near_the_served_logits_and_notes_nothing_that_needs_no_gradient) {
    file w = write_model(small, (twist){0});
    rig r;
    if (!rig_open(&r, w.path, 1, 0)) return;
    enum { N = 20, V = 80 };
    static float plain[N * V], noted[N * V];
    uint32_t tok[N];
    int pos[N], seq[N] = {0}, want[N], zero = 0;
    random_tokens(tok, N, V, 11);
    for (int i = 0; i < N; i++) pos[i] = i, want[i] = i;
    step(&r, tok, &zero, 1, 0, N, plain);
    ig_rows rows = {.n_rows = N,
                    .token = tok,
                    .pos = pos,
                    .seq = seq,
                    .kv_seq = r.seq,
                    .kv = r.kv,
                    .n_ctx = CTX,
                    .want = want,
                    .n_want = N};
    size_t bytes = 64u << 20;
    ig_arena a = {.base = aligned_alloc(64, bytes), .cap_bytes = bytes};
    ig_tape tape = {0};
    ig_run run = {.arena = &a, .train = true, .tape = &tape, .kern = ig_model_kernels(r.m)};
    ig_model_run(r.m, &run, &rows, noted);
    CHECK(run.status == IG_OK && tape.n_nodes == 0);
    double off = 0, size = 0; /* activations are not rounded to int8, keys and values not to f16 */
    for (int i = 0; i < N * V; i++) {
        off += ((double)plain[i] - (double)noted[i]) * ((double)plain[i] - (double)noted[i]);
        size += (double)plain[i] * (double)plain[i];
    }
    CHECK_MSG(off < 1e-3 * size, "%g", off / size);
    free(a.base);
    rig_close(&r);
    unlink(w.path);
}
