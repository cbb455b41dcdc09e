/* tape_test: what the walk promises whatever the ops: planned bytes are used bytes, every smaller arena ends in a
 * status, contributions join in the order of the walk, nothing is noted that needs no gradient, and a forward
 * without a tape gives the same bits. The stack is a layer as models have it, then norm of picked rows and loss. */
#include "op/rig_test.h"

enum { K = 64, F = 96, HEADS = 4, KV_HEADS = 2, DIM = 16, VOCAB = 200, T = 70 };
static const int lengths[] = {66, 4, 0};
static const int pick[] = {0, 5, 5, 30, 65, 69};
enum { M = sizeof pick / sizeof *pick };
static const uint32_t target[M] = {3, 199, 0, 17, 128, 64};

typedef struct stack {
    rig_weight w[8]; /* q k v o gate up down head */
    float *norm, *h, *out_norm, g[M];
    rig_rows rr;
} stack;

static void stack_make(stack *s) {
    static const int rows[] = {HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, K, F, F, K, VOCAB},
                     cols[] = {K, K, K, HEADS * DIM, K, K, F, K};
    for (int i = 0; i < 8; i++)
        s->w[i] = rig_weight_make(ig_fmt_of_gguf(8), rows[i], cols[i], i < 2 ? IG_ROWS_ROPE : IG_ROWS_PLAIN,
                                  DIM, (uint32_t)(i + 1));
    s->norm = rig_floats(K, 1, 20), s->out_norm = rig_floats(K, 1, 21), s->h = rig_floats(T * K, 1, 22);
    for (int i = 0; i < M; i++) s->g[i] = 0.3f + (float)i;
    rig_rows_make(&s->rr, lengths);
}
static void stack_free(stack *s) {
    for (int i = 0; i < 8; i++) rig_weight_free(&s->w[i]);
    free(s->norm), free(s->out_norm), free(s->h);
}

/* Gives h after the layer; *leaf is what its gradient is left in. */
static ig_tensor *layer(ig_run *r, const stack *s, bool needs_g, ig_tensor **leaf) {
    static const double inv_freq[DIM / 2] = {1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005};
    static const ig_attention a = {
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .window = 40, .scale = 0.25f};
    const ig_rope *rope = op_rope(r, &s->rr.rows, inv_freq, DIM / 2, 1);
    float *copy = op_take(r, T * K * sizeof *copy); /* without a tape h is overwritten */
    if (copy) memcpy(copy, s->h, T * K * sizeof *copy);
    ig_tensor *h = *leaf = op_leaf(r, copy, T, K, needs_g);
    ig_tensor *x = op_norm(r, h, s->norm, 1e-5f, IG_ACT_F32, NULL, 0);
    ig_qkv qkv = op_qkv(r, &a, &s->w[0].w, &s->w[1].w, &s->w[2].w, x, rope, &s->rr.rows);
    x = op_attention(r, &a, qkv, &s->rr.rows, IG_ACT_F32);
    h = op_linear_add(r, &s->w[3].w, x, h);
    x = op_norm(r, h, s->norm, 1e-5f, IG_ACT_F32, NULL, 0);
    x = op_glu(r, IG_GLU_SILU, &s->w[4].w, &s->w[5].w, x, IG_ACT_F32);
    return op_linear_add(r, &s->w[6].w, x, h);
}
/* Forward, loss and walk; gives the leaf. */
static ig_tensor *step(ig_run *r, const stack *s) {
    ig_tensor *leaf = NULL, *h = layer(r, s, true, &leaf);
    ig_tensor *x = op_norm(r, h, s->out_norm, 1e-5f, IG_ACT_F32, pick, M);
    const ig_head head = {&s->w[7].w, 0, IG_HEAD_FLASH};
    ig_loss *l = op_loss(r, &head, x, target, true);
    op_loss_seed(r, l, s->g);
    op_backward(r);
    return leaf;
}

TEST(a_plan_with_a_tape_counts_exactly_what_forward_and_walk_take) {
    static stack s;
    stack_make(&s);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        rig plan, real;
        rig_open(&plan, 0, n_threads, ig_cpu_features());
        step(&plan.run, &s);
        CHECK(plan.run.status == IG_OK);
        const size_t need = plan.arena.peak_bytes, end = plan.arena.used_bytes;
        rig_open(&real, need, n_threads, ig_cpu_features());
        ig_tensor *leaf = step(&real.run, &s);
        CHECK_MSG(real.run.status == IG_OK, "%s", real.run.err.msg);
        CHECK_MSG(real.arena.peak_bytes == need && real.arena.used_bytes == end, "planned %zu, used %zu",
                  need, real.arena.peak_bytes);
        CHECK(leaf && leaf->has_g && real.tape.last == NULL && real.tape.n_nodes == 0);
        rig_close(&plan), rig_close(&real);
    }
    stack_free(&s);
}

TEST(every_smaller_arena_ends_in_a_status) {
    static stack s;
    stack_make(&s);
    rig g;
    rig_open(&g, 0, 1, ig_cpu_features());
    step(&g.run, &s);
    const size_t need = g.arena.peak_bytes;
    rig_close(&g);
    size_t last = 0;
    for (size_t cap = 64; cap < need;) {
        rig_open(&g, cap, 1, ig_cpu_features());
        step(&g.run, &s);
        CHECK_MSG(g.run.status == IG_ELIMIT && g.arena.peak_bytes <= cap, "%zu of %zu bytes", cap, need);
        /* on to the size at which this request would have been met, or just below */
        last = g.arena.used_bytes;
        rig_close(&g);
        cap += cap + 4096 < need ? (last / 16 / 64 + 1) * 64 : 64;
    }
    stack_free(&s);
}

TEST(a_forward_without_a_tape_gives_the_bits_of_one_with_it) {
    static stack s;
    stack_make(&s);
    rig a, b;
    rig_open(&a, 32 << 20, 2, ig_cpu_features()), rig_open(&b, 32 << 20, 2, ig_cpu_features());
    b.run.tape = NULL;
    ig_tensor *leaf, *with = layer(&a.run, &s, true, &leaf), *without = layer(&b.run, &s, true, &leaf);
    CHECK(memcmp(with->f, without->f, T * K * sizeof(float)) == 0 && without == leaf);
    rig_close(&a), rig_close(&b), stack_free(&s);
}

TEST(a_leaf_that_needs_no_gradient_leaves_no_notes) {
    static stack s;
    stack_make(&s);
    rig g;
    rig_open(&g, 32 << 20, 1, ig_cpu_features());
    ig_tensor *leaf;
    layer(&g.run, &s, false, &leaf);
    CHECK(g.run.status == IG_OK && g.tape.n_nodes == 0);
    op_backward(&g.run);
    CHECK(!leaf->has_g && g.run.status == IG_OK);
    rig_close(&g), stack_free(&s);
}

TEST(a_tensor_read_twice_collects_last_use_first_into_the_buffer_that_it_was_given) {
    static stack s;
    stack_make(&s);
    rig g;
    rig_open(&g, 32 << 20, 2, ig_cpu_features());
    ig_tensor *x = op_leaf(&g.run, s.h, T, K, true);
    float *home = rig_floats(T * K, 1, 30), *want = rig_floats(T * K, 1, 30), *dy[2];
    op_grad_home(x, home, true); /* something is there already, as from a later segment */
    for (int i = 0; i < 2; i++) {
        ig_tensor *y = op_norm(&g.run, x, i ? s.norm : s.out_norm, 1e-5f, IG_ACT_F32, NULL, 0);
        dy[i] = rig_floats(T * K, 1, (uint32_t)(31 + i));
        op_grad_home(y, dy[i], true);
    }
    op_backward(&g.run);
    ig_norm_back_fn *back = g.kern.op[IG_KERN_NORM_BACK]->fn.norm_back;
    for (int i = 1; i >= 0; i--)
        for (int t = 0; t < T; t++)
            back(&(ig_norm_back_args){want + t * K, dy[i] + t * K, s.h + t * K, i ? s.norm : s.out_norm, K,
                                      1e-5f, true});
    CHECK(x->g == home && memcmp(home, want, T * K * sizeof *home) == 0);
    free(home), free(want), free(dy[0]), free(dy[1]), rig_close(&g), stack_free(&s);
}

TEST(an_output_that_nobody_used_counts_as_zero) {
    static stack s;
    stack_make(&s);
    float *g[2] = {NULL, NULL};
    for (int given = 0; given < 2; given++) { /* k's and v's gradients missing, or given as zeros */
        rig r;
        rig_open(&r, 32 << 20, 2, ig_cpu_features());
        static const double inv_freq[DIM / 2] = {1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005};
        const ig_attention a = {.n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .scale = 0.25f};
        ig_tensor *x = op_leaf(&r.run, s.h, T, K, true);
        ig_qkv y = op_qkv(&r.run, &a, &s.w[0].w, &s.w[1].w, &s.w[2].w, x,
                          op_rope(&r.run, &s.rr.rows, inv_freq, DIM / 2, 1), &s.rr.rows);
        float *dq = rig_floats(T * HEADS * DIM, 1, 40), *zero[2] = {NULL, NULL};
        op_grad_home(y.q, dq, true);
        for (int i = 0; i < 2 && given; i++) {
            zero[i] = rig_floats(T * KV_HEADS * DIM, 0, 1);
            memset(zero[i], 0, T * KV_HEADS * DIM * sizeof *zero[i]);
            op_grad_home(i ? y.v : y.k, zero[i], true);
        }
        op_backward(&r.run);
        g[given] = malloc(T * K * sizeof(float));
        if (CHECK(x->has_g)) memcpy(g[given], x->g, T * K * sizeof(float));
        free(dq), free(zero[0]), free(zero[1]), rig_close(&r);
    }
    CHECK(memcmp(g[0], g[1], T * K * sizeof(float)) == 0);
    free(g[0]), free(g[1]), stack_free(&s);
}
