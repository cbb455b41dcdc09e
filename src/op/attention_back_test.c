/* attention_back_test: gradients of q, k and v against materialised attention in float64, and that against
 * differences of its own forward, so that a mistake shared by both formulas is seen too. */
#include "op/rig_test.h"

static const double BOUND = 1e-5;
enum { ARENA = 64 << 20 };

typedef struct shape {
    int heads, kv_heads, dim, window;
    int length[4];
    double cap;
} shape;
static const shape shapes[] = {
    {2, 2, 16, 0, {1, 5, 0}, 0},       {4, 1, 32, 0, {130, 3, 64, 0}, 0}, {8, 1, 64, 0, {65, 0}, 0},
    {3, 3, 48, 40, {150, 20, 0}, 0},   {4, 2, 64, 64, {129, 0}, 0},       {6, 2, 96, 1, {70, 33, 0}, 0},
    {2, 1, 128, 100, {64, 201, 0}, 0}, {2, 1, 256, 17, {97, 0}, 0},       {5, 1, 64, 500, {190, 0}, 0},
    {2, 1, 32, 130, {400, 0}, 0},      {4, 2, 32, 0, {130, 20, 0}, 1.5},  {2, 1, 64, 50, {97, 0}, 0.4},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct exact {
    double *q, *k, *v, *dy, *o, *dq, *dk, *dv;
    int n_rows;
} exact;

/* Probabilities, and slopes of the cap, of row t's keys of its sequence (first row `row0`); returns how many. */
static int weights64(double *p, double *slope, const shape *s, const exact *e, const int *pos, int t, int h) {
    const int D = s->dim, kh = h / (s->heads / s->kv_heads), row0 = t - pos[t];
    double top = -1e300, sum = 0;
    for (int j = 0; j <= pos[t]; j++) {
        p[j] = 0;
        if (s->window && pos[t] - j >= s->window) continue;
        for (int d = 0; d < D; d++)
            p[j] += e->q[(t * s->heads + h) * D + d] * e->k[((row0 + j) * s->kv_heads + kh) * D + d];
        slope[j] = 1;
        if (s->cap > 0) p[j] = tanh(p[j] / s->cap), slope[j] = 1 - p[j] * p[j], p[j] *= s->cap;
        if (p[j] > top) top = p[j];
    }
    for (int j = 0; j <= pos[t]; j++) {
        p[j] = s->window && pos[t] - j >= s->window ? 0 : exp(p[j] - top);
        sum += p[j];
    }
    for (int j = 0; j <= pos[t]; j++) p[j] /= sum;
    return pos[t] + 1;
}
static void forward64(exact *e, const shape *s, const int *pos) {
    double p[RIG_ROWS], slope[RIG_ROWS];
    const int D = s->dim;
    for (int t = 0; t < e->n_rows; t++)
        for (int h = 0; h < s->heads; h++) {
            const int n = weights64(p, slope, s, e, pos, t, h), kh = h / (s->heads / s->kv_heads);
            const int row0 = t - pos[t];
            double *o = e->o + (t * s->heads + h) * D;
            for (int d = 0; d < D; d++) o[d] = 0;
            for (int j = 0; j < n; j++)
                for (int d = 0; d < D; d++) o[d] += p[j] * e->v[((row0 + j) * s->kv_heads + kh) * D + d];
        }
}
/* From P whole: dV = P^T dO, dP = dO V^T, dS = P (dP - sum of P dP). `wrong` drops the last term. */
static void backward64(exact *e, const shape *s, const int *pos, bool wrong) {
    double p[RIG_ROWS], dp[RIG_ROWS], slope[RIG_ROWS];
    const int D = s->dim;
    for (int t = 0; t < e->n_rows; t++)
        for (int h = 0; h < s->heads; h++) {
            const int n = weights64(p, slope, s, e, pos, t, h), kh = h / (s->heads / s->kv_heads);
            const int row0 = t - pos[t];
            const double *dy = e->dy + (t * s->heads + h) * D, *q = e->q + (t * s->heads + h) * D;
            double mean = 0;
            for (int j = 0; j < n; j++) {
                dp[j] = 0;
                for (int d = 0; d < D; d++) dp[j] += dy[d] * e->v[((row0 + j) * s->kv_heads + kh) * D + d];
                mean += p[j] * dp[j];
            }
            if (wrong) mean = 0;
            for (int j = 0; j < n; j++)
                for (int d = 0; d < D; d++) {
                    const int at = ((row0 + j) * s->kv_heads + kh) * D + d;
                    e->dv[at] += p[j] * dy[d];
                    e->dk[at] += p[j] * (dp[j] - mean) * slope[j] * q[d];
                    e->dq[(t * s->heads + h) * D + d] += p[j] * (dp[j] - mean) * slope[j] * e->k[at];
                }
        }
}

typedef struct attention_rig {
    rig g;
    rig_rows rr;
    float *f[4]; /* q, k, v, dy */
    ig_tensor *q, *k, *v, *y;
    size_t n_q, n_k;
} attention_rig;

static void run_attention(attention_rig *a, const shape *s, int n_threads, uint32_t cpu) {
    rig_rows_make(&a->rr, s->length);
    rig_open(&a->g, ARENA, n_threads, cpu);
    const int T = a->rr.rows.n_rows;
    a->n_q = (size_t)(T * s->heads * s->dim), a->n_k = (size_t)(T * s->kv_heads * s->dim);
    const float scale = 1.5f / sqrtf(sqrtf((float)s->dim)); /* scores of about 1, some sharp */
    a->f[0] = rig_floats(a->n_q, scale, 1), a->f[1] = rig_floats(a->n_k, scale, 2);
    a->f[2] = rig_floats(a->n_k, 1, 3), a->f[3] = rig_floats(a->n_q, 1, 4);
    ig_run *r = &a->g.run;
    a->q = op_leaf(r, a->f[0], T, s->heads * s->dim, true);
    a->k = op_leaf(r, a->f[1], T, s->kv_heads * s->dim, true);
    a->v = op_leaf(r, a->f[2], T, s->kv_heads * s->dim, true);
    const ig_attention at = {.n_heads = s->heads,
                             .n_kv_heads = s->kv_heads,
                             .head_dim = s->dim,
                             .window = s->window,
                             .scale = 1,
                             .softcap = (float)s->cap};
    a->y = op_attention(r, &at, (ig_qkv){a->q, a->k, a->v}, &a->rr.rows, IG_ACT_F32);
    op_grad_home(a->y, a->f[3], true);
    op_backward(r);
    CHECK_MSG(r->status == IG_OK, "%s", r->err.msg);
}
static void end_attention(attention_rig *a) {
    for (int i = 0; i < 4; i++) free(a->f[i]);
    rig_close(&a->g);
}
static exact exact_of(const shape *s, int T) {
    const size_t n_q = (size_t)(T * s->heads * s->dim), n_k = (size_t)(T * s->kv_heads * s->dim);
    exact e = {rig_doubles(n_q), rig_doubles(n_k), rig_doubles(n_k),
               rig_doubles(n_q), rig_doubles(n_q), rig_doubles(n_q),
               rig_doubles(n_k), rig_doubles(n_k), T};
    const float scale = 1.5f / sqrtf(sqrtf((float)s->dim));
    const struct {
        double *to;
        size_t n;
        float scale;
    } in[] = {{e.q, n_q, scale}, {e.k, n_k, scale}, {e.v, n_k, 1}, {e.dy, n_q, 1}};
    for (uint32_t i = 0; i < 4; i++) {
        float *x = rig_floats(in[i].n, in[i].scale, i + 1);
        for (size_t c = 0; c < in[i].n; c++) in[i].to[c] = (double)x[c];
        free(x);
    }
    return e;
}
static void free_exact(exact *e) {
    free(e->q), free(e->k), free(e->v), free(e->dy), free(e->o), free(e->dq), free(e->dk), free(e->dv);
}

TEST(attention_gives_the_gradients_of_materialised_float64_attention) {
    static attention_rig a;
    for (int i = 0; i < N_SHAPES; i++) {
        const shape *s = &shapes[i];
        run_attention(&a, s, 2, ig_cpu_features());
        exact e = exact_of(s, a.rr.rows.n_rows);
        forward64(&e, s, a.rr.pos), backward64(&e, s, a.rr.pos, false);
        const double o = rig_distance(a.y->f, e.o, a.n_q), q = rig_distance(a.q->g, e.dq, a.n_q),
                     k = rig_distance(a.k->g, e.dk, a.n_k), v = rig_distance(a.v->g, e.dv, a.n_k);
        if (s->window != 1) CHECK_MSG(q < BOUND && k < BOUND, "shape %d: dq %.2g, dk %.2g", i, q, k);
        CHECK_MSG(o < BOUND && v < BOUND, "shape %d: o %.2g, dv %.2g", i, o, v);
        end_attention(&a), free_exact(&e);
    }
}

TEST(a_dropped_term_in_the_gradient_of_attention_is_noticed) {
    static attention_rig a;
    const shape *s = &shapes[1];
    run_attention(&a, s, 1, ig_cpu_features());
    exact e = exact_of(s, a.rr.rows.n_rows);
    backward64(&e, s, a.rr.pos, true);
    CHECK(rig_distance(a.q->g, e.dq, a.n_q) > 1e-2 && rig_distance(a.k->g, e.dk, a.n_k) > 1e-2);
    end_attention(&a), free_exact(&e);
}

static double loss64(exact *e, const shape *s, const int *pos) {
    double sum = 0;
    forward64(e, s, pos);
    for (int i = 0; i < e->n_rows * s->heads * s->dim; i++) sum += e->dy[i] * e->o[i];
    return sum;
}

TEST(attention_gradients_equal_differences_of_the_forward) {
    static const int some[] = {3, 4, 6, 10, 11};
    static attention_rig a;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const shape *s = &shapes[some[i]];
        run_attention(&a, s, 2, ig_cpu_features());
        exact e = exact_of(s, a.rr.rows.n_rows);
        double *const in[3] = {e.q, e.k, e.v};
        float *const g[3] = {a.q->g, a.k->g, a.v->g};
        const size_t n[3] = {a.n_q, a.n_k, a.n_k};
        uint32_t seed = 99;
        for (int m = 0; m < 20; m++) {
            const int which = m % 3;
            rig_random(&seed);
            const size_t at = seed % n[which];
            const double step = 1e-5, x = in[which][at];
            in[which][at] = x + step;
            double up = loss64(&e, s, a.rr.pos);
            in[which][at] = x - step;
            double d = (up - loss64(&e, s, a.rr.pos)) / (2 * step);
            in[which][at] = x;
            CHECK_MSG(fabs(d - (double)g[which][at]) < 1e-4 * (fabs(d) + 0.05),
                      "shape %d, input %d at %zu: %g, %g", some[i], which, at, (double)g[which][at], d);
        }
        end_attention(&a), free_exact(&e);
    }
}

TEST(attention_gradients_have_the_same_bits_for_any_number_of_threads_and_any_company) {
    static attention_rig a, b;
    static const int threads[] = {2, 3, 7};
    for (int i = 1; i < N_SHAPES; i += 2) {
        run_attention(&a, &shapes[i], 1, ig_cpu_features());
        for (int t = 0; t < 3; t++) {
            run_attention(&b, &shapes[i], threads[t], ig_cpu_features());
            CHECK(!memcmp(a.q->g, b.q->g, a.n_q * 4) && !memcmp(a.k->g, b.k->g, a.n_k * 4) &&
                  !memcmp(a.v->g, b.v->g, a.n_k * 4));
            end_attention(&b);
        }
        shape first = shapes[i]; /* the first sequence alone: its rows are a prefix of all inputs */
        first.length[1] = 0;
        run_attention(&b, &first, 2, ig_cpu_features());
        CHECK(!memcmp(a.q->g, b.q->g, b.n_q * 4) && !memcmp(a.k->g, b.k->g, b.n_k * 4) &&
              !memcmp(a.v->g, b.v->g, b.n_k * 4));
        end_attention(&a), end_attention(&b);
    }
}

TEST(scalar_kernels_give_the_same_gradients_of_attention) {
    static attention_rig a, b;
    for (int i = 3; i <= 10; i += 7) {
        run_attention(&a, &shapes[i], 2, ig_cpu_features()), run_attention(&b, &shapes[i], 2, 0);
        CHECK(!memcmp(a.q->g, b.q->g, a.n_q * 4) && !memcmp(a.k->g, b.k->g, a.n_k * 4) &&
              !memcmp(a.v->g, b.v->g, a.n_k * 4));
        end_attention(&a), end_attention(&b);
    }
}
