/* What bench measures of a wish, and how calls of a watched forward become a profile. */
#include "app/bench.h"
#include "base/test.h"

#include <string.h>

static bool is_row(const ig_bench_row *r, ig_bench_work work, int n_tokens, int n_context, int n_seqs) {
    return r->work == work && r->n_tokens == n_tokens && r->n_context == n_context && r->n_seqs == n_seqs;
}

static int plan(ig_bench_row *rows, ig_bench_wish w, int n_ctx) {
    int n = 0;
    ig_bench_wish_settle(&w);
    return ig_bench_plan(rows, &n, &w, n_ctx, NULL) == IG_OK ? n : 0;
}

static void refuses(ig_bench_wish w, int n_ctx, const char *because) {
    ig_bench_row rows[IG_BENCH_ROWS_MAX];
    ig_err err = {.msg = ""};
    int n = 0;
    ig_bench_wish_settle(&w);
    CHECK(ig_bench_plan(rows, &n, &w, n_ctx, &err) == IG_EINVAL && n == 0);
    CHECK_MSG(strstr(err.msg, because), "\"%s\" without \"%s\"", err.msg, because);
}

TEST(default_rows_are_prompts_then_contexts_then_batches_and_fit_the_model) {
    ig_bench_row r[IG_BENCH_ROWS_MAX];
    CHECK(plan(r, ig_bench_wish_defaults(), 8192) == 4 + 3 + 4);
    CHECK(is_row(&r[0], IG_BENCH_PREFILL, 128, 0, 1) && is_row(&r[3], IG_BENCH_PREFILL, 8192, 0, 1));
    CHECK(is_row(&r[4], IG_BENCH_DECODE, 64, 128, 1) && is_row(&r[5], IG_BENCH_DECODE, 64, 2048, 1));
    CHECK(is_row(&r[6], IG_BENCH_DECODE, 64, 8128, 1)); /* the tokens need room */
    CHECK(is_row(&r[7], IG_BENCH_DECODE, 64, 128, 2) && is_row(&r[10], IG_BENCH_DECODE, 64, 128, 16));
    CHECK(!r[0].asked && !r[6].asked);
    CHECK(plan(r, ig_bench_wish_defaults(), 131072) == 11 && is_row(&r[6], IG_BENCH_DECODE, 64, 8192, 1));
    CHECK(plan(r, ig_bench_wish_defaults(), 1000) == 2 + 1 + 4);
    /* the largest that fits stands in */
    CHECK(plan(r, ig_bench_wish_defaults(), 40) == 1 + 1 + 4);
    CHECK(is_row(&r[0], IG_BENCH_PREFILL, 40, 0, 1) && is_row(&r[1], IG_BENCH_DECODE, 20, 20, 1));
    for (int n_ctx = 1; n_ctx < 300; n_ctx++) {
        const int n = plan(r, ig_bench_wish_defaults(), n_ctx);
        CHECK(n > 0);
        for (int i = 0; i < n; i++)
            CHECK_MSG(r[i].n_tokens > 0 && r[i].n_context >= 0 && r[i].n_tokens + r[i].n_context <= n_ctx,
                      "row %d of a context of %d", i, n_ctx);
    }
}

TEST(contexts_follow_given_prompts_and_lists_ascend_without_repeats) {
    ig_bench_row r[IG_BENCH_ROWS_MAX];
    ig_bench_wish w = ig_bench_wish_defaults();
    w.prompts = (ig_option_ints){{64, 32, 64, 0}, 4}, w.prompts_given = true;
    w.batches = (ig_option_ints){{4, 1, 0, 4, 2}, 5}, w.batches_given = true;
    CHECK(plan(r, w, 8192) == 2 + 2 + 2);
    CHECK(is_row(&r[0], IG_BENCH_PREFILL, 32, 0, 1) && is_row(&r[1], IG_BENCH_PREFILL, 64, 0, 1));
    CHECK(is_row(&r[2], IG_BENCH_DECODE, 64, 32, 1) && is_row(&r[3], IG_BENCH_DECODE, 64, 64, 1));
    CHECK(is_row(&r[4], IG_BENCH_DECODE, 64, 32, 2) && is_row(&r[5], IG_BENCH_DECODE, 64, 32, 4));
    w.contexts = (ig_option_ints){{0}, 1}, w.contexts_given = true;
    CHECK(plan(r, w, 8192) == 2 + 1 + 2 && is_row(&r[2], IG_BENCH_DECODE, 64, 0, 1) && r[2].asked);
    w.n_tokens = 0, w.tokens_given = true;
    CHECK(plan(r, w, 8192) == 2);
}

TEST(quick_yields_to_what_was_said) {
    ig_bench_row r[IG_BENCH_ROWS_MAX];
    ig_bench_wish w = ig_bench_wish_defaults();
    w.quick = true;
    CHECK(plan(r, w, 8192) == 2 + 1 + 1 && is_row(&r[3], IG_BENCH_DECODE, 32, 128, 4));
    w.contexts = (ig_option_ints){{7, 9}, 2}, w.contexts_given = true;
    w.n_tokens = 5, w.tokens_given = true;
    CHECK(plan(r, w, 8192) == 2 + 2 + 1 && is_row(&r[3], IG_BENCH_DECODE, 5, 9, 1));
}

TEST(what_was_asked_for_and_does_not_fit_is_refused_with_both_numbers) {
    ig_bench_wish w = ig_bench_wish_defaults();
    w.prompts = (ig_option_ints){{64, 9000}, 2}, w.prompts_given = true;
    refuses(w, 8192, "a prompt of 9000 tokens is more than the model's context of 8192");
    w = ig_bench_wish_defaults();
    w.contexts = (ig_option_ints){{8192}, 1}, w.contexts_given = true;
    refuses(w, 8192, "64 tokens behind a context of 8192 are more than the model's context of 8192");
    w = ig_bench_wish_defaults();
    w.n_tokens = 9000, w.tokens_given = true;
    refuses(w, 8192, "9000 tokens behind a context of 128");
    w.n_tokens = 0, w.prompts = (ig_option_ints){{0}, 1}, w.prompts_given = true;
    refuses(w, 8192, "nothing to measure");
}

/* ---- profile ----------------------------------------------------------------------------------------- */

static _Atomic uint64_t now_ns = 1000;

static void call(ig_bench_watch *w, const char *op, ig_kern_op kind, const ig_weight *weight, uint64_t ns) {
    static ig_kern kern[IG_KERN_N_OPS];
    kern[kind].op = kind;
    ig_bench_watch_op(w, op, &kern[kind], weight);
    now_ns += ns;
}

TEST(the_calls_of_one_op_are_one_line_of_the_profile_with_its_time_and_work) {
    static ig_bench_profile p;
    const ig_model_config config = {
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .window = 3, .windowed = {0, 1}};
    const ig_fmt a = {.name = "a"}, b = {.name = "b"};
    const ig_weight q = {
        .name = "blk.%d.attn_q.weight", .fmt = &a, .n_rows = 32, .n_cols = 10, .panel_bytes = 5};
    const ig_weight k = {.name = "attn_k", .fmt = &a, .n_rows = 16, .n_cols = 10, .panel_bytes = 5};
    const ig_weight v = {.name = "attn_v", .fmt = &b, .n_rows = 16, .n_cols = 10, .panel_bytes = 7};
    const ig_weight o = {.name = "attn_output", .fmt = &a, .n_rows = 10, .n_cols = 32, .panel_bytes = 9};
    const ig_weight down = {.name = "ffn_down", .fmt = &a, .n_rows = 10, .n_cols = 64, .panel_bytes = 9};
    const ig_weight head = {.name = "output", .fmt = &b, .n_rows = 100, .n_cols = 10, .panel_bytes = 11};
    const int pos[5] = {0, 1, 2, 3, 4}, seq[5] = {0}, wanted[1] = {4};
    const ig_rows rows = {.n_rows = 5, .pos = pos, .seq = seq, .want = wanted, .n_want = 1};
    ig_bench_watch w = {.to = &p, .config = &config};

    ig_clock_fake(&now_ns);
    for (int pass = 0; pass < 2; pass++) {
        ig_bench_watch_begin(&w, &rows);
        for (int layer = 0; layer < 2; layer++) {
            call(&w, "linear q", IG_KERN_LINEAR, &q, 0), call(&w, "linear k", IG_KERN_LINEAR, &k, 0);
            call(&w, "linear v", IG_KERN_LINEAR, &v, 0), call(&w, "kv append", IG_KERN_TO_F16, NULL, 70);
            call(&w, "attention", IG_KERN_ATTENTION, NULL, layer ? 30 : 50);
            call(&w, "linear+add", IG_KERN_LINEAR, &o, 20);
            call(&w, "linear+add", IG_KERN_LINEAR, &down, 40);
        }
        call(&w, "head", IG_KERN_LINEAR, &head, 0), call(&w, "softcap", IG_KERN_SOFTCAP, NULL, 11);
        ig_bench_watch_end(&w);
        now_ns += 1000; /* between forwards: nobody's */
    }
    ig_clock_fake(NULL);
    if (!CHECK(p.n_ops == 6)) return;
    /* of the last layer only the wanted row is left after its keys and values */
    static const struct {
        const char *name, *weight;
        uint64_t n, ns;
        double macs, bytes;
    } want[6] = {{"q, k, v", NULL, 4, 280, 4 * 5 * 640, 4 * (5 * 2 + 5 + 7)},
                 {"attention", NULL, 2, 100, 2 * 2 * 4 * 8 * 15, 2 * 4 * 2 * 8 * 5},
                 {"linear+add", "attn_output", 4, 80, 2 * (5 + 1) * 320, 4 * 9},
                 {"linear+add", "ffn_down", 4, 160, 2 * (5 + 1) * 640, 4 * 9},
                 {"attention, window", NULL, 2, 60, 2 * 2 * 4 * 8 * 3, 2 * 4 * 2 * 8 * 3},
                 {"head", "output", 2, 22, 2 * 1000, 2 * 7 * 11}};
    for (int i = 0; i < 6; i++) {
        const ig_bench_op *op = &p.op[i];
        const bool weight =
            want[i].weight ? op->weight && strcmp(op->weight, want[i].weight) == 0 : !op->weight;
        CHECK_MSG(strcmp(op->name, want[i].name) == 0 && weight, "op %d is %s", i, op->name);
        CHECK_MSG(op->n_calls == want[i].n && op->ns == want[i].ns, "%s: %llu calls, %llu ns", op->name,
                  (unsigned long long)op->n_calls, (unsigned long long)op->ns);
        CHECK_MSG(op->macs == want[i].macs && op->bytes == want[i].bytes, "%s: %g products, %g bytes",
                  op->name, op->macs, op->bytes);
    }
    CHECK(p.op[0].fmt[0] == &a && p.op[0].fmt[1] == &b && !p.op[0].fmt[2]);
    CHECK(ig_bench_attention_macs(&config, 0, 4, 5) == (p.op[1].macs + p.op[4].macs) / 2);
}

TEST(a_weight_is_called_by_what_it_is) {
    CHECK(strcmp(ig_bench_weight_text("blk.%d.ffn_down.weight").s, "ffn_down") == 0);
    CHECK(strcmp(ig_bench_weight_text("model.layers.%d.self_attn.o_proj.weight").s, "self_attn.o_proj") == 0);
    CHECK(strcmp(ig_bench_weight_text("token_embd").s, "token_embd") == 0);
}

TEST(why_a_kernel_was_chosen_names_what_this_cpu_lacks) {
    const ig_kern *k = ig_kern_pick(IG_KERN_NORM, NULL, IG_TIER_L3, 0);
    const ig_bench_text none = ig_bench_why_kernel(k, 0), all = ig_bench_why_kernel(k, UINT32_MAX);
    CHECK_MSG(strstr(none.s, "the only one here") && strstr(none.s, "need"), "%s", none.s);
    CHECK_MSG(strstr(all.s, "ranked first of ") && !strstr(all.s, "need"), "%s", all.s);
}

TEST(a_row_of_the_table_has_a_name) {
    const ig_bench_row many = {.work = IG_BENCH_DECODE, .n_tokens = 8, .n_context = 128, .n_seqs = 4};
    CHECK(strstr(ig_bench_row_text(&many).s, "4 x behind 128"));
    CHECK(ig_bench_format_of("csv") && ig_bench_format_of("text") && !ig_bench_format_of("yaml"));
}
