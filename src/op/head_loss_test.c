/* head_loss_test: log-probabilities and their gradient in three ways against float64, with a cap and without. */
#include "op/rig_test.h"

enum { M = 53, ARENA = 96 << 20 };
static const float caps[] = {0.0f, 5.0f, 30.0f};

typedef struct loss_case {
    const ig_fmt *fmt;
    int n_vocab, n_h;
    float cap;
    ig_head_kind kind;
} loss_case;

typedef struct loss_result {
    float logp[M], *dx;
    ig_status status;
} loss_result;

static void targets_of(uint32_t *y, int n_vocab) {
    for (int t = 0; t < M; t++) y[t] = (uint32_t)((t * 7919 + 13) % n_vocab);
    y[0] = 0, y[1] = (uint32_t)n_vocab - 1; /* the ends */
}

static loss_result evaluate(loss_case c, const rig_weight *w, const float *x, bool grad, int n_threads) {
    loss_result y = {.dx = NULL};
    uint32_t target[M];
    rig g;
    rig_open(&g, ARENA, n_threads, ig_cpu_features());
    float *mine = malloc((size_t)(M * c.n_h) * 4);
    memcpy(mine, x, (size_t)(M * c.n_h) * 4);
    targets_of(target, c.n_vocab);
    ig_tensor *tx = op_leaf(&g.run, mine, M, c.n_h, true);
    const ig_head head = {&w->w, c.cap, c.kind};
    ig_loss *l = op_loss(&g.run, &head, tx, target, grad);
    y.status = g.run.status;
    if (CHECK_MSG(l != NULL, "%s", g.run.err.msg)) {
        memcpy(y.logp, l->logp, sizeof y.logp);
        CHECK((l->dx != NULL) == grad);
        if (grad) {
            y.dx = malloc((size_t)(M * c.n_h) * 4);
            memcpy(y.dx, l->dx, (size_t)(M * c.n_h) * 4);
        }
    }
    free(mine), rig_close(&g);
    return y;
}

/* logp [M], dx [M][H] of softmax(cap(x W^T)), a row at a time. */
static void exact_loss(loss_case c, const rig_weight *w, const double *x, double *logp, double *dx) {
    uint32_t target[M];
    double *l = rig_doubles((size_t)c.n_vocab), *slope = rig_doubles((size_t)c.n_vocab);
    targets_of(target, c.n_vocab);
    for (int t = 0; t < M; t++) {
        double top = -1e300, sum = 0;
        for (int v = 0; v < c.n_vocab; v++) {
            double a = 0;
            for (int k = 0; k < c.n_h; k++) a += x[t * c.n_h + k] * w->exact[v * c.n_h + k];
            l[v] = c.cap > 0 ? (double)c.cap * tanh(a / (double)c.cap) : a;
            slope[v] = c.cap > 0 ? 1 / (cosh(a / (double)c.cap) * cosh(a / (double)c.cap)) : 1;
            if (l[v] > top) top = l[v];
        }
        for (int v = 0; v < c.n_vocab; v++) sum += exp(l[v] - top);
        logp[t] = l[target[t]] - top - log(sum);
        for (int v = 0; v < c.n_vocab && dx; v++) {
            const double g = ((v == (int)target[t]) - exp(l[v] - top) / sum) * slope[v];
            for (int k = 0; k < c.n_h; k++) dx[t * c.n_h + k] += g * w->exact[v * c.n_h + k];
        }
    }
    free(l), free(slope);
}

TEST(three_heads_equal_float64_with_and_without_a_cap) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++) {
        loss_case c = {f, 403, f->group > 32 ? 2 * f->group : 96, 0, IG_HEAD_FLASH};
        rig_weight w = rig_weight_make(f, c.n_vocab, c.n_h, IG_ROWS_PLAIN, 0, 1);
        const size_t n = (size_t)(M * c.n_h);
        float *x = rig_floats(n, 4, 2);
        double *x64 = rig_doubles(n);
        for (size_t k = 0; k < n; k++) x64[k] = (double)x[k];
        for (int cap = 0; cap < 3; cap++) {
            double logp[M], *dx = rig_doubles(n);
            c.cap = caps[cap];
            exact_loss(c, &w, x64, logp, dx);
            for (int kind = 0; kind < 3; kind++) {
                c.kind = (ig_head_kind)kind;
                loss_result y = evaluate(c, &w, x, true, 2), only = evaluate(c, &w, x, false, 2);
                double lp = rig_distance(y.logp, logp, M), d = rig_distance(y.dx, dx, n);
                CHECK_MSG(lp < 2e-6, "%s cap %g kind %d: logp %.2g from float64", f->name, (double)c.cap,
                          kind, lp);
                CHECK_MSG(d < 1e-5, "%s cap %g kind %d: dx %.2g from float64", f->name, (double)c.cap, kind,
                          d);
                CHECK(!memcmp(y.logp, only.logp, sizeof y.logp)); /* evaluation is the same number */
                free(y.dx);
            }
            for (size_t k = 0; k < n; k++)
                dx[k] *= k % 97 ? 1 : -1; /* control: signs turned here and there */
            loss_result y = evaluate(c, &w, x, true, 1);
            CHECK(rig_distance(y.dx, dx, n) > 1e-3);
            free(y.dx), free(dx);
        }
        free(x), free(x64), rig_weight_free(&w);
    }
}

TEST(the_gradient_of_the_head_equals_differences_of_its_loss) {
    loss_case c = {ig_fmt_of_gguf(0), 150, 32, 5, IG_HEAD_FLASH};
    rig_weight w = rig_weight_make(c.fmt, c.n_vocab, c.n_h, IG_ROWS_PLAIN, 0, 9);
    float *x = rig_floats((size_t)(M * c.n_h), 4, 3);
    double *x64 = rig_doubles((size_t)(M * c.n_h)), up[M], down[M];
    for (int k = 0; k < M * c.n_h; k++) x64[k] = (double)x[k];
    loss_result y = evaluate(c, &w, x, true, 2);
    for (int k = 0; k < c.n_h; k++) {
        const double step = 1e-5;
        for (int t = 0; t < M; t++) x64[t * c.n_h + k] += step;
        exact_loss(c, &w, x64, up, NULL);
        for (int t = 0; t < M; t++) x64[t * c.n_h + k] -= 2 * step;
        exact_loss(c, &w, x64, down, NULL);
        for (int t = 0; t < M; t++) {
            x64[t * c.n_h + k] += step;
            double d = (up[t] - down[t]) / (2 * step);
            CHECK_MSG(fabs(d - (double)y.dx[t * c.n_h + k]) < 2e-6 + 1e-5 * fabs(d), "row %d, %d: %g, %g", t,
                      k, d, (double)y.dx[t * c.n_h + k]);
        }
    }
    free(x), free(x64), free(y.dx), rig_weight_free(&w);
}

TEST(a_head_gives_the_same_bits_for_any_number_of_threads) {
    loss_case c = {ig_fmt_of_gguf(0), 403, 96, 30, IG_HEAD_FLASH};
    rig_weight w = rig_weight_make(c.fmt, c.n_vocab, c.n_h, IG_ROWS_PLAIN, 0, 1);
    float *x = rig_floats((size_t)(M * c.n_h), 4, 2);
    static const int threads[] = {2, 3, 7};
    loss_result one = evaluate(c, &w, x, true, 1);
    for (int i = 0; i < 3; i++) {
        loss_result y = evaluate(c, &w, x, true, threads[i]);
        CHECK(!memcmp(one.logp, y.logp, sizeof y.logp) && !memcmp(one.dx, y.dx, (size_t)(M * c.n_h) * 4));
        free(y.dx);
    }
    free(x), free(one.dx), rig_weight_free(&w);
}

TEST(a_sure_target_has_a_log_probability_of_zero_and_a_broken_row_shows) {
    loss_case c = {ig_fmt_of_gguf(0), 64, 32, 0, IG_HEAD_FLASH};
    rig_weight w = rig_weight_make(c.fmt, c.n_vocab, c.n_h, IG_ROWS_PLAIN, 0, 5);
    uint32_t target[M];
    targets_of(target, c.n_vocab);
    float *x = rig_floats((size_t)(M * c.n_h), 1, 2);
    for (int k = 0; k < c.n_h; k++) x[3 * c.n_h + k] = (float)w.exact[target[3] * 32 + (uint32_t)k] * 1e4f;
    x[5 * c.n_h + 1] = NAN, x[6 * c.n_h + 1] = INFINITY;
    loss_result y = evaluate(c, &w, x, true, 2);
    CHECK(y.logp[3] <= 0.0f && y.logp[3] > -1e-3f);
    CHECK(isnan(y.logp[5]) && isnan(y.logp[6]) && isfinite(y.logp[4]) && isfinite(y.logp[7]));
    free(x), free(y.dx), rig_weight_free(&w);
}

TEST(a_naive_head_of_too_many_logits_is_refused) {
    rig g;
    rig_open(&g, 0, 1, 0);
    ig_weight w = {.name = "w", .fmt = ig_fmt_of_gguf(0), .n_rows = 1 << 20, .n_cols = 32};
    ig_tensor *x = op_leaf(&g.run, NULL, 257, 32, true);
    const ig_head head = {&w, 0, IG_HEAD_NAIVE};
    CHECK(op_loss(&g.run, &head, x, NULL, true) == NULL && g.run.status == IG_ELIMIT);
    CHECK(strstr(g.run.err.msg, "257 rows of 1048576 logits") != NULL);
    rig_close(&g);
}
