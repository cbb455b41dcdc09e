/* rope: cosines and sines of a batch, once a step. In double by our own routines, then one rounding: the
 * table is the same on every machine, needs no memory for the context, and costs 2 us a row. */
#include "op/inside.h"

typedef struct rope_job {
    const ig_rows *rows;
    const double *inv_freq;
    double scale;
    float *cos, *sin;
    int half;
} rope_job;

static void rope_part(void *arg, int lo, int hi, int thread) {
    const rope_job *j = arg;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int i = 0; i < j->half; i++) {
            double s, c;
            ig_math_sincos((double)j->rows->pos[t] * j->inv_freq[i], &s, &c);
            size_t at = (size_t)t * (size_t)j->half + (size_t)i;
            j->cos[at] = (float)(c * j->scale), j->sin[at] = (float)(s * j->scale);
        }
}

typedef struct rounded_job {
    const ig_run *r;
    const ig_rows *rows;
    const float *freq;
    float step, *cos, *sin;
    int half;
} rounded_job;

static void rounded_part(void *arg, int lo, int hi, int thread) {
    const rounded_job *j = arg;
    const int n = j->half;
    (void)thread;
    for (int t = lo; t < hi; t++) {
        float *c = j->cos + (size_t)t * (size_t)n, *s = j->sin + (size_t)t * (size_t)n;
        const float at = (float)j->rows->pos[t] * j->step;
        for (int i = 0; i < n; i++) ig_mlx_sincos(at * j->freq[i], s + i, c + i);
        op_round(j->r, c, n), op_round(j->r, s, n);
    }
}

const ig_rope *op_rope_rounded(ig_run *r, const ig_rows *rows, const float *freq, int half, float step,
                               float before) {
    static const ig_rope planned;
    size_t bytes = (size_t)rows->n_rows * (size_t)half * sizeof(float);
    ig_rope *y = op_take(r, sizeof *y);
    float *c = op_take(r, bytes), *s = op_take(r, bytes);
    op_trace(r, "rope", r->kern->op[IG_KERN_ROPE]);
    if (!s) return op_stopped(r) ? NULL : &planned;
    *y = (ig_rope){c, s, before, half};
    rounded_job job = {r, rows, freq, step, c, s, half};
    ig_pool_run(r->pool, rounded_part, &job, rows->n_rows, LIGHT_ROWS);
    return y;
}

const ig_rope *op_rope(ig_run *r, const ig_rows *rows, const double *inv_freq, int half, double scale) {
    static const ig_rope planned;
    size_t bytes = (size_t)rows->n_rows * (size_t)half * sizeof(float);
    ig_rope *y = op_take(r, sizeof *y);
    float *c = op_take(r, bytes), *s = op_take(r, bytes);
    op_trace(r, "rope", r->kern->op[IG_KERN_ROPE]);
    if (!s) return op_stopped(r) ? NULL : &planned;
    *y = (ig_rope){c, s, 1.0f, half};
    rope_job job = {rows, inv_freq, scale, c, s, half};
    ig_pool_run(r->pool, rope_part, &job, rows->n_rows, LIGHT_ROWS);
    return y;
}

static const ig_tier_node nodes[] = {
    {.id = "rope.apply", .does = "cosines and sines of the positions, and the turn of heads",
     .tier = IG_TIER_L1, .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"},
     .flags = "l1 l2 l3", .proof = "tests/parity", .steps = "rope", .runs = IG_RUNS(ROPE)},
};
NODE_EXPORT(rope, nodes);
