/* back_test: the backward pass of linear, norm, gates and q, k, v against float64 programs written apart,
 * with cotangents that are all different. */
#include "op/rig_test.h"

static const double BOUND = 1e-5; /* of the norm of a gradient */
enum { T = 37, ARENA = 64 << 20 };

/* dx (+)= dy W */
static void back64(double *dx, const double *dy, const double *w, int n_rows, int n, int k) {
    for (int t = 0; t < n_rows; t++)
        for (int i = 0; i < n; i++)
            for (int c = 0; c < k; c++) dx[t * k + c] += dy[t * n + i] * w[i * k + c];
}
static void mat64(double *y, const double *x, const double *w, int n_rows, int n, int k) {
    for (int t = 0; t < n_rows; t++)
        for (int i = 0; i < n; i++) {
            y[t * n + i] = 0;
            for (int c = 0; c < k; c++) y[t * n + i] += x[t * k + c] * w[i * k + c];
        }
}
static void add_bias64(double *y, const rig_weight *w, int n_rows) {
    for (int t = 0; t < n_rows && w->bias; t++)
        for (int i = 0; i < w->w.n_rows; i++) y[t * w->w.n_rows + i] += w->bias[i];
}
static double *widened(const float *x, size_t n) {
    double *y = rig_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}
static const ig_fmt *f32_format(void) {
    return ig_fmt_of_gguf(0);
}

TEST(linear_gives_dy_w_in_every_format_and_adds_to_what_is_there) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++) {
        const int n_cols = f->group > 32 ? 2 * f->group : 352, n = 200;
        rig g;
        rig_open(&g, ARENA, 2, ig_cpu_features());
        rig_weight a = rig_weight_make(f, n, n_cols, IG_ROWS_PLAIN, 0, 1),
                   b = rig_weight_make(f, n, n_cols, IG_ROWS_PLAIN, 0, 2);
        rig_weight_bias(&b, 3, 6); /* the gradient does not see it */
        const size_t n_x = (size_t)T * (size_t)n_cols, n_y = (size_t)T * (size_t)n;
        float *x = rig_floats(n_x, 1, 3), *h = rig_floats(n_y, 1, 4), *dy = rig_floats(n_y, 1, 5);
        ig_tensor *tx = op_leaf(&g.run, x, T, n_cols, true), *th = op_leaf(&g.run, h, T, n, true);
        ig_tensor *y = op_linear_add(&g.run, &a.w, tx, th);
        y = op_linear_add(&g.run, &b.w, tx, y);
        double *y64 = rig_doubles(n_y), *z64 = rig_doubles(n_y), *dx64 = rig_doubles(n_x);
        double *x64 = widened(x, n_x), *dy64 = widened(dy, n_y);
        mat64(y64, x64, a.exact, T, n, n_cols), mat64(z64, x64, b.exact, T, n, n_cols);
        add_bias64(z64, &b, T);
        for (size_t e = 0; e < n_y; e++) y64[e] += z64[e] + (double)h[e];
        double far = rig_distance(y->f, y64, n_y);
        CHECK_MSG(far < BOUND, "%s: forward is %.2g from float64", f->name, far);
        float *seed = malloc(n_y * 4);
        memcpy(seed, dy, n_y * 4);
        op_grad_home(y, seed, true);
        op_backward(&g.run);
        back64(dx64, dy64, a.exact, T, n, n_cols), back64(dx64, dy64, b.exact, T, n, n_cols);
        CHECK(g.run.status == IG_OK && tx->has_g && th->has_g);
        far = rig_distance(tx->g, dx64, n_x);
        CHECK_MSG(far < BOUND, "%s: dx is %.2g from float64", f->name, far);
        CHECK(memcmp(th->g, dy, n_y * 4) == 0);
        back64(dx64, dy64, a.exact, T, n, n_cols); /* control: a term too many is seen */
        CHECK(rig_distance(tx->g, dx64, n_x) > 100 * BOUND);
        free(x), free(h), free(dy), free(seed), free(y64), free(z64), free(dx64), free(x64), free(dy64);
        rig_weight_free(&a), rig_weight_free(&b), rig_close(&g);
    }
}

/* dx of y = x / rms(x) * w */
static void norm_back64(double *dx, const double *dy, const double *x, const float *w, int n, double eps) {
    double s = 0, dot = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    const double rms = sqrt(s / n + eps);
    for (int i = 0; i < n; i++) dot += dy[i] * (double)w[i] * x[i];
    for (int i = 0; i < n; i++)
        dx[i] += dy[i] * (double)w[i] / rms - x[i] * dot / (rms * rms * rms * (double)n);
}

TEST(a_norm_of_picked_rows_some_twice_gives_each_row_its_sum_and_others_zero) {
    enum { N = 83 };
    static const int pick[] = {0, 3, 3, 7, 20, 36, 36, 36};
    enum { M = sizeof pick / sizeof *pick };
    for (int all = 0; all < 2; all++) {
        const int m = all ? T : M;
        rig g;
        rig_open(&g, ARENA, 3, ig_cpu_features());
        float *x = rig_floats(T * N, 2, 6), *w = rig_floats(N, 1, 7), *dy = rig_floats((size_t)(m * N), 1, 8);
        double *x64 = widened(x, T * N), *dy64 = widened(dy, (size_t)(m * N)), *dx64 = rig_doubles(T * N);
        ig_tensor *tx = op_leaf(&g.run, x, T, N, true);
        ig_tensor *y = op_norm(&g.run, tx, w, 1e-5f, IG_ACT_F32, all ? NULL : pick, M);
        op_grad_home(y, dy, true);
        op_backward(&g.run);
        for (int i = 0; i < m; i++) {
            const int t = all ? i : pick[i];
            norm_back64(dx64 + t * N, dy64 + i * N, x64 + t * N, w, N, 1e-5);
        }
        double far = rig_distance(tx->g, dx64, T * N);
        CHECK_MSG(far < BOUND, "%.2g from float64", far);
        for (int i = 0; i < N && !all; i++) CHECK(tx->g[N + i] == 0.0f);
        free(x), free(w), free(dy), free(x64), free(dy64), free(dx64), rig_close(&g);
    }
}

TEST(a_norm_added_to_the_residual_gives_both_their_gradient) {
    enum { N = 96 };
    rig g;
    rig_open(&g, ARENA, 2, ig_cpu_features());
    float *x = rig_floats(T * N, 1, 1), *h = rig_floats(T * N, 1, 2), *w = rig_floats(N, 1, 3),
          *dy = rig_floats(T * N, 1, 4), *keep = rig_floats(T * N, 1, 4);
    double *x64 = widened(x, T * N), *dy64 = widened(dy, T * N), *dx64 = rig_doubles(T * N);
    ig_tensor *tx = op_leaf(&g.run, x, T, N, true), *th = op_leaf(&g.run, h, T, N, true);
    ig_tensor *y = op_norm_add(&g.run, tx, w, 1e-6f, th);
    op_grad_home(y, dy, true);
    op_backward(&g.run);
    for (int t = 0; t < T; t++) norm_back64(dx64 + t * N, dy64 + t * N, x64 + t * N, w, N, 1e-6);
    CHECK(rig_distance(tx->g, dx64, T * N) < BOUND);
    CHECK(memcmp(th->g, keep, T * N * 4) == 0);
    free(x), free(h), free(w), free(dy), free(keep), free(x64), free(dy64), free(dx64), rig_close(&g);
}

static double act64(ig_glu act, double g) {
    if (act == IG_GLU_SILU) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}
static double slope64(ig_glu act, double g) { /* by differences of the forward: nothing to copy wrong */
    const double e = 1e-5;
    return (act64(act, g + e) - act64(act, g - e)) / (2 * e);
}

TEST(gates_give_the_slope_of_their_own_forward) {
    enum { K = 96, F = 200 };
    for (int c = 0; c < 4; c++) {
        const int act = c % 2;
        rig g;
        rig_open(&g, ARENA, 2, ig_cpu_features());
        rig_weight gate = rig_weight_make(f32_format(), F, K, IG_ROWS_PLAIN, 0, 3),
                   up = rig_weight_make(f32_format(), F, K, IG_ROWS_PLAIN, 0, 4);
        if (c / 2) rig_weight_bias(&gate, 2, 5), rig_weight_bias(&up, 2, 6);
        float *x = rig_floats(T * K, 3, 1), *dy = rig_floats(T * F, 1, 2);
        double *x64 = widened(x, T * K), *dx64 = rig_doubles(T * K);
        double *g64 = rig_doubles(T * F), *u64 = rig_doubles(T * F), *y64 = rig_doubles(T * F);
        mat64(g64, x64, gate.exact, T, F, K), mat64(u64, x64, up.exact, T, F, K);
        add_bias64(g64, &gate, T), add_bias64(u64, &up, T);
        ig_tensor *tx = op_leaf(&g.run, x, T, K, true);
        ig_tensor *y = op_glu(&g.run, (ig_glu)act, &gate.w, &up.w, tx, IG_ACT_F32);
        for (int i = 0; i < T * F; i++) y64[i] = act64((ig_glu)act, g64[i]) * u64[i];
        CHECK(rig_distance(y->f, y64, T * F) < BOUND);
        op_grad_home(y, dy, true);
        op_backward(&g.run);
        for (int i = 0; i < T * F; i++) {
            double dg = (double)dy[i] * u64[i] * slope64((ig_glu)act, g64[i]);
            u64[i] = (double)dy[i] * act64((ig_glu)act, g64[i]), g64[i] = dg;
        }
        back64(dx64, g64, gate.exact, T, F, K), back64(dx64, u64, up.exact, T, F, K);
        double far = rig_distance(tx->g, dx64, T * K);
        CHECK_MSG(far < BOUND, "act %d: %.2g from float64", act, far);
        free(x), free(dy), free(x64), free(dx64), free(g64), free(u64), free(y64);
        rig_weight_free(&gate), rig_weight_free(&up), rig_close(&g);
    }
}

/* ---- q, k, v ------------------------------------------------------------------------------------------ */

typedef struct qkv_case {
    int heads, kv_heads, dim;
    bool norms, biases;
} qkv_case;

/* A head forward in float64: norm, rope, scale. */
static void head64(double *y, const double *x, const float *norm, int n, int pos, double scale) {
    double s = 0, r = 1;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    if (norm) r = 1 / sqrt(s / n + (double)1e-6f);
    for (int i = 0; i < n / 2; i++) {
        double a = x[i] * r * (norm ? (double)norm[i] : 1),
               b = x[i + n / 2] * r * (norm ? (double)norm[i + n / 2] : 1),
               th = pos * pow(10000, -2.0 * i / n);
        y[i] = (a * cos(th) - b * sin(th)) * scale, y[i + n / 2] = (a * sin(th) + b * cos(th)) * scale;
    }
}
/* Its gradient by turning back and norm_back64. */
static void head_back64(double *dx, const double *dy, const double *x, const float *norm, int n, int pos,
                        double scale) {
    double g[IG_HEAD_DIM_MAX];
    for (int i = 0; i < n / 2; i++) {
        double th = pos * pow(10000, -2.0 * i / n), a = dy[i] * scale, b = dy[i + n / 2] * scale;
        g[i] = a * cos(th) + b * sin(th), g[i + n / 2] = b * cos(th) - a * sin(th);
    }
    for (int i = 0; i < n; i++) dx[i] = norm ? 0 : g[i];
    if (norm) norm_back64(dx, g, x, norm, n, (double)1e-6f);
}

static void check_qkv(qkv_case c, const ig_fmt *f, int n_threads, float *dx_out) {
    const int K = 160, n_q = c.heads * c.dim, n_k = c.kv_heads * c.dim;
    const ig_row_order order = c.norms ? IG_ROWS_PLAIN : IG_ROWS_ROPE;
    static rig_rows rr;
    rig_rows_make(&rr, (const int[]){20, 17, 0});
    rig g;
    rig_open(&g, ARENA, n_threads, ig_cpu_features());
    rig_weight w[3] = {rig_weight_make(f, n_q, K, order, c.dim, 1),
                       rig_weight_make(f, n_k, K, order, c.dim, 2),
                       rig_weight_make(f, n_k, K, IG_ROWS_PLAIN, 0, 3)};
    for (int i = 0; i < 3 && c.biases; i++) rig_weight_bias(&w[i], 2, (uint32_t)(20 + i));
    float *x = rig_floats((size_t)(T * K), 1, 4), *norm[2] = {NULL, NULL};
    for (int i = 0; i < 2 && c.norms; i++) norm[i] = rig_floats((size_t)c.dim, 1, (uint32_t)(5 + i));
    double inv_freq[IG_HEAD_DIM_MAX / 2];
    for (int i = 0; i < c.dim / 2; i++) inv_freq[i] = pow(10000, -2.0 * i / c.dim);
    const ig_attention a = {.n_heads = c.heads,
                            .n_kv_heads = c.kv_heads,
                            .head_dim = c.dim,
                            .scale = 0.3f,
                            .q_norm = norm[0],
                            .k_norm = norm[1],
                            .norm_eps = 1e-6f};
    ig_tensor *tx = op_leaf(&g.run, x, T, K, true);
    const ig_rope *rope = op_rope(&g.run, &rr.rows, inv_freq, c.dim / 2, 1);
    ig_qkv y = op_qkv(&g.run, &a, &w[0].w, &w[1].w, &w[2].w, tx, rope, &rr.rows);
    ig_tensor *const out[3] = {y.q, y.k, y.v};
    double *x64 = widened(x, (size_t)(T * K)), *dx64 = rig_doubles((size_t)(T * K)), far = 0;
    float *dy[3];
    for (int i = 0; i < 3; i++) {
        const int n = w[i].w.n_rows;
        dy[i] = rig_floats((size_t)(T * n), 1, (uint32_t)(10 + i));
        double *raw = rig_doubles((size_t)(T * n)), *draw = widened(dy[i], (size_t)(T * n)),
               *y64 = rig_doubles((size_t)(T * n));
        mat64(raw, x64, w[i].exact, T, n, K), add_bias64(raw, &w[i], T);
        memcpy(y64, raw, (size_t)(T * n) * 8);
        for (int t = 0; t < T && i < 2; t++)
            for (int h = 0; h < n; h += c.dim) {
                double d[IG_HEAD_DIM_MAX], *p = draw + t * n + h;
                head64(y64 + t * n + h, raw + t * n + h, norm[i], c.dim, rr.pos[t], i ? 1 : (double)0.3f);
                head_back64(d, p, raw + t * n + h, norm[i], c.dim, rr.pos[t], i ? 1 : (double)0.3f);
                memcpy(p, d, (size_t)c.dim * 8);
            }
        far = rig_distance(out[i]->f, y64, (size_t)(T * n));
        CHECK_MSG(far < BOUND, "%s, dim %d, output %d: forward %.2g from float64", f->name, c.dim, i, far);
        back64(dx64, draw, w[i].exact, T, n, K);
        op_grad_home(out[i], dy[i], true);
        free(raw), free(draw), free(y64);
    }
    op_backward(&g.run);
    far = rig_distance(tx->g, dx64, (size_t)(T * K));
    CHECK_MSG(far < BOUND, "%s, dim %d: dx %.2g from float64", f->name, c.dim, far);
    if (dx_out) memcpy(dx_out, tx->g, (size_t)(T * K) * 4);
    for (int i = 0; i < 3; i++) free(dy[i]), rig_weight_free(&w[i]);
    free(x), free(norm[0]), free(norm[1]), free(x64), free(dx64), rig_close(&g);
}

TEST(q_k_and_v_go_back_through_scale_rope_and_norms_of_heads) {
    static const qkv_case cases[] = {{2, 1, 16, .biases = true},  {4, 2, 32, .norms = true},
                                     {3, 3, 48, .biases = true},  {2, 1, 64, .norms = true, .biases = true},
                                     {2, 2, 128, .norms = false}, {2, 1, 256, .norms = true},
                                     {1, 1, 256, .norms = false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_qkv(cases[i], f32_format(), 2, NULL);
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++)
        if (160 % f->panel_group == 0 && 160 % f->group == 0) check_qkv(cases[3], f, 2, NULL);
}

TEST(gradients_of_linears_have_the_same_bits_for_any_number_of_threads) {
    static float one[T * 160], many[T * 160];
    static const int threads[] = {2, 3, 7};
    check_qkv((qkv_case){4, 2, 32, .biases = true}, f32_format(), 1, one);
    for (int i = 0; i < 3; i++) {
        check_qkv((qkv_case){4, 2, 32, .biases = true}, f32_format(), threads[i], many);
        CHECK(memcmp(one, many, sizeof one) == 0);
    }
    many[77] = nextafterf(many[77], 9); /* control */
    CHECK(memcmp(one, many, sizeof one) != 0);
}
