/* model_test: tiny random checkpoints, written here as GGUF files, through the whole forward: exactness
 * across batches, chunks, threads and instruction sets, agreement with a plain float64 forward, and every
 * refusal by name. */
#include "base/test.h"
#include "model/tiny_test.h"

static void check_against_float64(const file *w, shape s, double bound) {
    enum { N = 70 };
    uint32_t tok[N];
    rig r;
    int zero = 0;
    if (!rig_open(&r, w->path, 2, 0)) return;
    random_tokens(tok, N, s.vocab, 3);
    float *got = malloc((size_t)(N * s.vocab) * 4);
    double *want = malloc((size_t)s.vocab * 8), err2 = 0, mass = 0, low = 0, high = 0, off = 0;
    step(&r, tok, &zero, 1, 0, N, got);
    forward64(r.g, s, tok, N, want);
    for (int v = 0; v < s.vocab; v++) {
        double d = (double)got[(N - 1) * s.vocab + v] - want[v];
        err2 += d * d, mass += want[v] * want[v], low = fmin(low, want[v]), high = fmax(high, want[v]);
    }
    CHECK_MSG(sqrt(err2 / mass) < bound, "%s D=%d%s: relative error %.2e, bound %.0e", s.fmt, s.dim,
              tiny_two_parts ? " in two parts" : "", sqrt(err2 / mass), bound);
    CHECK(high - low > 0.5);                 /* logits that are all alike would agree with anything */
    forward64(r.g, s, tok + 1, N - 1, want); /* control: another prompt is far away */
    for (int v = 0; v < s.vocab; v++) off += pow((double)got[(N - 1) * s.vocab + v] - want[v], 2);
    CHECK_MSG(sqrt(off / mass) > bound / 2 && off > err2, "%s: another prompt is %.2e away", s.fmt, sqrt(off / mass));
    free(got), free(want);
    rig_close(&r);
}

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
        check_against_float64(&w, s, cases[i].bound);
        tiny_two_parts = true;
        if (fmt_named(s.fmt)->act == IG_ACT_Q8) check_against_float64(&w, s, 2e-3);
        tiny_two_parts = false;
        unlink(w.path);
    }
}

TEST(logits_have_the_same_bits_in_any_batch_chunk_thread_count_and_on_any_isa) {
    enum { N = 130, V = 80 };
    static float ref[N * V], got[SEQS * N * V];
    static const char *const fmts[] = {"q4_1", "q4_0", "q5_0", "q8_0", "f32", "f16", "bf16", "q4_k", "q6_k", "q5_1",
                                       "q5_k", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "tq2_0", "tq1_0"};
    const bool fewer = ig_test_emulator() != NULL; /* of each kind of change one that is not trivial */
    uint32_t tok[N];
    random_tokens(tok, N, V, 5);
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        shape s = fmt_named(fmts[f])->group > 32 ? (shape){2, 256, 256, 8, 4, 32, V, false, NULL, 0} : small;
        s.fmt = fmts[f];
        file w = write_model(s, (twist){0});
        for (int threads = 1; threads <= (fewer ? 3 : 5); threads += threads == 3 || fewer ? 2 : 1)
            for (int scalar = 0; scalar < 2; scalar++) {
                if (scalar && threads > (s.width > 160 || fewer ? 1 : 2)) continue;
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
                    if ((scalar || fewer) && c != 1) continue;
                    restart(&r, 0);
                    for (int from = 0; from < N; from += chunks[c])
                        step(&r, tok, all, 1, from, from + chunks[c] < N ? from + chunks[c] : N,
                             got + from * V);
                    CHECK_MSG(memcmp(ref, got, sizeof ref) == 0, "%s, chunks of %d", fmts[f], chunks[c]);
                }
                for (int n = fewer ? 3 : 2; n <= (fewer ? 3 : 8) && !scalar; n += n == 2 ? 1 : 5) {
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

static void count_joins(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    (void)k, (void)w;
    *(int *)ud += strcmp(op, "attention join") == 0;
}

TEST(steps_of_few_rows_take_long_contexts_apart_and_give_the_same_bits) {
    enum { N = 2150, FROM = 2100, V = 80, LONG = 2304 };
    static float ref[N * V], got[N * V];
    static uint32_t tok[N];
    random_tokens(tok, N, V, 11);
    for (int w = 0; w < 3; w++) {
        shape s = small; /* 3 query heads to a kv head; the windows leave the first span in the middle */
        if (ig_test_emulator() && w == 1) continue; /* the last is windowed too */
        s.window = w ? 1500 : 0;
        tiny_kv = w == 2 ? IG_KV_8 : IG_KV_F16;
        file f = write_model(s, (twist){0});
        for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) { /* 7: more than kv heads and spans */
            rig r;
            const int one[] = {0};
            if (!rig_open_for(&r, f.path, threads, 0, LONG)) return;
            float *whole = threads == 1 ? ref : got;
            for (int p = 0; p < N; p += 512) step(&r, tok, one, 1, p, p + 512 < N ? p + 512 : N, whole + p * V);
            CHECK_MSG(memcmp(ref, whole, sizeof ref) == 0, "%d threads", threads);
            for (int chunk = 1; chunk <= 8; chunk += chunk == 1 ? 4 : 3) {
                if (ig_test_emulator() && chunk != 5) continue;
                int n_joins = 0;
                restart(&r, 0);
                for (int p = 0; p < 1000; p += 500) step(&r, tok, one, 1, p, p + 500, got);
                ig_model_watch(r.m, count_joins, &n_joins);
                for (int p = 1000; p < 1040; p += chunk) /* into the second span */
                    step(&r, tok, one, 1, p, p + chunk < 1040 ? p + chunk : 1040, got + p * V);
                const int n_short = n_joins;
                for (int p = 1040; p < FROM; p += 265) step(&r, tok, one, 1, p, p + 265, got + p * V);
                CHECK(n_joins == n_short); /* steps of many rows do not */
                for (int p = FROM; p < N; p += chunk) step(&r, tok, one, 1, p, p + chunk < N ? p + chunk : N, got + p * V);
                CHECK_MSG(memcmp(ref + 1000 * V, got + 1000 * V, (N - 1000) * V * sizeof *ref) == 0,
                          "window %d, %d threads, steps of %d", s.window, threads, chunk);
                CHECK(n_short > 0 && n_joins > n_short);
            }
            rig_close(&r);
        }
        unlink(f.path);
    }
    tiny_kv = IG_KV_F16;
}

TEST(every_family_gives_the_same_bits_in_any_batch_chunk_thread_count_and_on_any_isa) {
    enum { N = 90, V = 80 };
    static float ref[N * V], got[SEQS * N * V];
    static const struct {
        twist t;
        int window;
        const char *fmt;
        ig_kv_kind kv;
        bool two_parts;
    } cases[] = {{{.family = "qwen2"}, 0, "q8_0", IG_KV_F16, false},
                 {{.family = "qwen3"}, 0, "q4_1", IG_KV_F16, false},
                 {{.family = "gemma2"}, 8, "q4_0", IG_KV_F16, false},
                 {{.family = "gemma3"}, 8, "bf16", IG_KV_F16, false},
                 {{.biases = true, .freqs = true}, 0, "q5_0", IG_KV_F16, false},
                 {{.see = 8}, 0, "f32", IG_KV_F16, false},
                 {{.family = "qwen2"}, 0, "q4_0", IG_KV_8, false},
                 {{.family = "gemma3"}, 8, "f32", IG_KV_8, false},
                 {{.family = "qwen3"}, 0, "q4_1", IG_KV_F16, true},
                 {{.family = "gemma3"}, 8, "q5_0", IG_KV_8, true}};
    uint32_t tok[N];
    random_tokens(tok, N, V, 5);
    for (size_t f = 0; f < sizeof cases / sizeof *cases; f++) {
        const shape s = {3, 96, 160, 6, 2, 32, V, true, cases[f].fmt, cases[f].window};
        const char *name = family_of(s, &cases[f].t);
        file w = write_model(s, cases[f].t);
        tiny_kv = cases[f].kv, tiny_two_parts = cases[f].two_parts;
        for (int way = 0; way < 3; way++) { /* one thread, three, and the scalar kernels */
            rig r;
            int all[SEQS] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
            if (!rig_open(&r, w.path, way == 1 ? 3 : 1, way == 2 ? IG_CPU_NEON : 0)) return;
            step(&r, tok, all, 1, 0, N, way ? got : ref);
            CHECK_MSG(!way || memcmp(ref, got, sizeof ref) == 0, "%s, way %d", name, way);
            for (int c = 1; c < N && way < 2; c = c == 1 ? 7 : c * 9) {
                restart(&r, 0);
                for (int from = 0; from < N; from += c)
                    step(&r, tok, all, 1, from, from + c < N ? from + c : N, got + from * V);
                CHECK_MSG(memcmp(ref, got, sizeof ref) == 0, "%s, chunks of %d", name, c);
            }
            for (int i = 0; i < SEQS; i++) restart(&r, i);
            step(&r, tok, all, 4, 0, 60, got);
            for (int i = 0; i < 4; i++)
                CHECK_MSG(memcmp(ref, got + i * 60 * V, 60 * V * 4) == 0, "%s, batch of 4", name);
            for (int p = 60; p < 66; p++) {
                step(&r, tok, all, 4, p, p + 1, got);
                for (int i = 0; i < 4; i++)
                    CHECK_MSG(memcmp(ref + p * V, got + i * V, V * 4) == 0, "%s, batch of 4 at %d", name, p);
            }
            rig_close(&r);
        }
        unlink(w.path);
    }
    tiny_kv = IG_KV_F16, tiny_two_parts = false;
}

/* Head sizes whose halves are whole groups of 16, and those whose are not. */
TEST(keys_and_values_of_8_bits_change_the_logits_a_little_and_no_more) {
    static const shape shapes[] = {{3, 96, 160, 6, 2, 32, 80, true, "f32", 0},
                                   {2, 64, 96, 4, 4, 16, 80, false, "f32", 0},
                                   {2, 160, 96, 8, 2, 80, 80, false, "f32", 0},
                                   {2, 96, 100, 3, 1, 48, 80, false, "f32", 0}};
    enum { N = 120, V = 80 };
    static float logits[2][N * V];
    uint32_t tok[N];
    random_tokens(tok, N, V, 5);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        file w = write_model(shapes[i], (twist){0});
        size_t bytes[2];
        for (int eight = 0; eight < 2; eight++) {
            rig r;
            const int one[] = {0};
            tiny_kv = eight ? IG_KV_8 : IG_KV_F16;
            const bool open = rig_open(&r, w.path, 2, 0);
            tiny_kv = IG_KV_F16;
            if (!open) return;
            step(&r, tok, one, 1, 0, N, logits[eight]);
            bytes[eight] = ig_kv_block_bytes(ig_model_kv_shape(r.m));
            rig_close(&r);
        }
        double err2 = 0, mass = 0;
        for (int k = 0; k < N * V; k++) {
            err2 += pow((double)logits[1][k] - (double)logits[0][k], 2), mass += pow((double)logits[0][k], 2);
        }
        CHECK_MSG(sqrt(err2 / mass) < 4e-2 && sqrt(err2 / mass) > 1e-4, "D=%d: relative change %.2e", shapes[i].dim,
                  sqrt(err2 / mass));
        CHECK(bytes[1] * 16 == bytes[0] * 9);
        unlink(w.path);
    }
}

TEST(a_gguf_file_says_how_its_rows_are_pooled) {
    for (uint32_t kind = 0; kind <= IG_POOLING_RANK; kind++) {
        file w = write_model(small, (twist){.family = "qwen3", .more = "qwen3.pooling_type", .value = kind});
        ig_gguf *g = NULL;
        ig_model_info info;
        ig_err err = {0};
        CHECK(ig_gguf_open(&g, w.path, &err) == IG_OK);
        CHECK_MSG(ig_model_inspect(&info, (ig_checkpoint){.gguf = g}, &err) == IG_OK, "%s", err.msg);
        CHECK(info.config.pooling == (ig_pooling)kind && ig_pooling_name(info.config.pooling)[0]);
        ig_gguf_close(g), unlink(w.path);
    }
}

/* Where base, sizes and window are not at issue: what the biases of a GGUF file belong to. */
TEST(a_bias_that_only_some_layers_have_is_refused_by_name) {
    file w = write_model(small, (twist){.biases = true, .drop = "blk.1.attn_v.bias"});
    ig_gguf *g = NULL;
    ig_model *m = NULL;
    ig_err err = {0};
    CHECK(ig_gguf_open(&g, w.path, &err) == IG_OK);
    CHECK(ig_model_open(&m, (ig_checkpoint){.gguf = g}, &(ig_model_options){0}, &err) == IG_EFORMAT);
    CHECK_MSG(strstr(err.msg, "blk.1.attn_v.bias is missing") != NULL, "%s", err.msg);
    ig_gguf_close(g), unlink(w.path);
}

/* Angles of pairs against formulas written apart; 8 heads' worth of the published Llama 3.1 settings. */
TEST(every_type_of_rope_gives_the_angles_of_its_formula) {
    enum { D = 128 };
    double got[D / 2];
    ig_err err;
    ig_rope_settings s = {.type = IG_ROPE_LLAMA3,
                          .base = 500000,
                          .factor = 8,
                          .original = 8192,
                          .low = 1,
                          .high = 4,
                          .scale = 1};
    CHECK(ig_rope_check(&s, D, "x", &err) == IG_OK && ig_rope_inv_freq(got, &s, D, NULL, &err) == IG_OK);
    for (int i = 0; i < D / 2; i++) {
        const double f = pow(500000, 2.0 * i / D), wave = 2 * M_PI * f;
        double want = 1 / f;
        if (wave > 8192)
            want /= 8;
        else if (wave > 2048) {
            const double smooth = (8192 / wave - 1) / 3;
            want = ((1 - smooth) / 8 + smooth) / f;
        }
        CHECK_MSG(fabs(got[i] - want) <= 1e-13 * want, "llama3 %d: %g, %g", i, got[i], want);
    }
    s = (ig_rope_settings){.type = IG_ROPE_YARN,
                           .base = 1e6,
                           .factor = 4,
                           .original = 32768,
                           .beta_fast = 32,
                           .beta_slow = 1,
                           .scale = 1};
    CHECK(ig_rope_check(&s, D, "x", &err) == IG_OK && ig_rope_inv_freq(got, &s, D, NULL, &err) == IG_OK);
    const double low = floor(D * log(32768 / (32 * 2 * M_PI)) / (2 * log(1e6))),
                 high = ceil(D * log(32768 / (2 * M_PI)) / (2 * log(1e6)));
    for (int i = 0; i < D / 2; i++) {
        const double f = pow(1e6, 2.0 * i / D), m = 1 - fmin(fmax((i - low) / (high - low), 0), 1);
        const double want = 4 * f * f / (4 * f * m + f * (1 - m));
        CHECK_MSG(fabs(got[i] * want - 1) <= 1e-13, "yarn %d: %g, %g", i, got[i], 1 / want);
    }
    CHECK(fabs(ig_rope_yarn_scale(4, 1) - (0.1 * log(4) + 1)) < 1e-15);
    float own[D / 2];
    for (int i = 0; i < D / 2; i++) own[i] = 1.0f + (float)i;
    s = (ig_rope_settings){.type = IG_ROPE_LINEAR, .base = 1e4, .factor = 8, .scale = 1};
    CHECK(ig_rope_inv_freq(got, &s, D, own, &err) == IG_OK);
    for (int i = 0; i < D / 2; i++) CHECK(fabs(got[i] * pow(1e4, 2.0 * i / D) * (1 + i) * 8 - 1) <= 1e-13);
    own[5] = 0;
    CHECK(ig_rope_inv_freq(got, &s, D, own, &err) == IG_EFORMAT && strstr(err.msg, "rope divisor 5 is 0"));
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

/* Each of them is read by another program for any architecture, or says what another family has. */
TEST(settings_of_other_families_that_change_the_numbers_are_refused_in_every_family) {
    static const char *const families[] = {"llama", "qwen2", "qwen3", "gemma2", "gemma3"};
    static const struct {
        const char *key, *as, *text, *says;
        uint32_t value;
    } cases[] = {
        {"attention.causal", "bool", NULL, "attention.causal = false is not supported", 0},
        {"attention.causal", NULL, NULL, "attention.causal is of kind u32", 0},
        {"use_parallel_residual", "bool", NULL, "use_parallel_residual = true", 1},
        {"attention.scale", "f32", NULL, "attention.scale = 3 is not supported, only 0.176777", 3},
        {"attention.clamp_kqv", "f32", NULL, "attention.clamp_kqv = 8 is not supported, only 0", 8},
        {"attention.max_alibi_bias", "f32", NULL, "attention.max_alibi_bias = 8", 8},
        {"attention.temperature_scale", "f32", NULL, "attention.temperature_scale = 2", 2},
        {"attention.key_length_swa", NULL, NULL, "attention.key_length_swa = 64 is not supported, only 32", 64},
        {"embedding_scale", "f32", NULL, "embedding_scale = 12 is not supported, only 1", 12},
        {"residual_scale", "f32", NULL, "residual_scale = 2", 2},
        {"logit_scale", "f32", NULL, "logit_scale = 8", 8},
        {"logit_scale", "f32s", NULL, "logit_scale is of kind array", 1},
        {"expert_used_count", NULL, NULL, "expert_used_count = 2", 2},
        {"num_loops", NULL, NULL, "num_loops = 2", 2},
        {"rope.scaling.alpha", "f32", NULL, "rope.scaling.alpha = 1000", 1000},
        {"rope.scaling.attn_factor", "f32", NULL, "rope.scaling.attn_factor = 2 without yarn", 2},
        {"hidden_activation", NULL, "relu", "hidden_activation \"relu\" is not supported, only", 0},
    };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            char key[80];
            shape s = small;
            if (families[f][0] == 'g') s.window = 8;
            snprintf(key, sizeof key, "%s.%s", families[f], cases[i].key);
            refused(s, (twist){.family = families[f], .more = key, .as = cases[i].as, .text = cases[i].text,
                               .value = cases[i].value}, cases[i].says);
        }
}

TEST(settings_of_other_families_that_change_nothing_are_taken) {
    static const struct {
        const char *key, *as, *text;
        uint32_t value;
    } cases[] = {
        {"llama.attention.causal", "bool", NULL, 1}, {"llama.use_parallel_residual", "bool", NULL, 0},
        {"llama.logit_scale", "f32", NULL, 1},       {"llama.attention.scale", "f32", NULL, 0},
        {"llama.expert_used_count", NULL, NULL, 0},  {"llama.attention.key_length_swa", NULL, NULL, 32},
        {"llama.vocab_size", NULL, NULL, 7},         {"llama.hidden_activation", NULL, "silu", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file w = write_model(small, (twist){.more = cases[i].key, .as = cases[i].as, .text = cases[i].text,
                                            .value = cases[i].value});
        ig_gguf *g = NULL;
        ig_model_info info;
        ig_err err = {0};
        CHECK(ig_gguf_open(&g, w.path, &err) == IG_OK);
        CHECK_MSG(ig_model_inspect(&info, (ig_checkpoint){.gguf = g}, &err) == IG_OK, "%s", err.msg);
        ig_gguf_close(g), unlink(w.path);
    }
}

/* Items of other kinds once read as numbers: each layer had a window. */
TEST(a_pattern_of_windows_is_of_bools_or_of_0_and_1) {
    static const struct { const char *as, *says; uint32_t value; } cases[] = {
        {"f32s", "sliding_window_pattern is an array of floats, not of whole numbers", 0},
        {"strings", "sliding_window_pattern is an array of strings, not of whole numbers", 0},
        {"i32s", "sliding_window_pattern[0] is neither 0 nor 1", (uint32_t)-1},
        {"i32s", "sliding_window_pattern[0] is neither 0 nor 1", 2},
        {"f32", "sliding_window_pattern is of kind f32", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(small, (twist){.see = 8, .more = "llama.attention.sliding_window_pattern", .as = cases[i].as,
                               .value = cases[i].value}, cases[i].says);
    refused(small, (twist){.more = "llama.expert_count", .as = "f32s"},
            "expert_count is an array of floats, not of whole numbers");
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
    refused(small, (twist){.more = "llama.expert_count", .value = 8},
            "mixtures of experts are not supported");
    refused(small, (twist){.more = "llama.pooling_type", .value = 9}, "pooling_type = 9");
    refused(small, (twist){.more = "llama.rope.scaling.type", .text = "dynamic"},
            "type \"dynamic\" is not supported");
    refused(small, (twist){.more = "llama.rope.scaling.type", .text = "longrope"},
            "rope_factors_long.weight is missing");
    refused(small, (twist){.add = "rope_factors_long.weight"}, "rope_factors_long.weight");
    refused(small, (twist){.add = "rope_freqs.weight"},
            "rope_freqs.weight is [96, 1, 1, 1], expected [16, 1]");
    refused(small, (twist){.family = "qwen2", .drop = "blk.1.attn_k.bias"}, "blk.1.attn_k.bias is missing");
    refused(small, (twist){.family = "qwen3", .drop = "blk.0.attn_q_norm.weight"},
            "attn_q_norm.weight is missing");
    refused(small, (twist){.family = "qwen3", .add = "cls.output.weight"}, "cls.output.weight");
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

typedef struct calls {
    int n;
    struct call {
        const char *op;
        const ig_kern *k;
        const ig_weight *w;
    } v[64];
} calls;

static void note_call(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    calls *c = ud;
    if (c->n < 64) c->v[c->n] = (struct call){op, k, w};
    c->n++;
}

TEST(a_watched_forward_tells_the_ops_of_the_plan_and_gives_the_same_bits) {
    enum { N = 20, V = 80 };
    static float plain[N * V], watched[N * V];
    file f = write_model(small, (twist){0});
    rig r;
    calls plan = {0}, seen = {0};
    uint32_t tok[N];
    int all[SEQS] = {0};
    if (!rig_open(&r, f.path, 2, 0)) return;
    random_tokens(tok, N, V, 9);
    step(&r, tok, all, 1, 0, N, plain);
    restart(&r, 0);
    ig_model_trace(r.m, note_call, &plan);
    ig_model_watch(r.m, note_call, &seen);
    step(&r, tok, all, 1, 0, N, watched);
    CHECK(memcmp(plain, watched, sizeof plain) == 0);
    CHECK(plan.n > 0 && plan.n <= 64 && seen.n == plan.n && memcmp(plan.v, seen.v, sizeof plan.v) == 0);
    for (int i = 0; i < plan.n && i < 64; i++)
        CHECK_MSG(!plan.v[i].w == (plan.v[i].k->op != IG_KERN_LINEAR), "%s: weight and kernel", plan.v[i].op);
    ig_model_watch(r.m, NULL, NULL);
    restart(&r, 0);
    step(&r, tok, all, 1, 0, N, watched);
    CHECK(seen.n == plan.n);
    rig_close(&r), unlink(f.path);
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
    ig_model_run(r.m, &run, &rows, (ig_model_out){.logits = noted});
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
