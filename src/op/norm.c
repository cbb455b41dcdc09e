/* norm: RMS norm of rows, in the forms that the next weights eat, or added to the residual. In one pass,
 * through a row of scratch that stays in L1. */
#include "op/inside.h"

typedef struct norm_job {
    const ig_run *r;
    const ig_tensor *x, *h;
    const float *w;
    const int *pick;
    ig_tensor *y;
    float *scratch;
    float eps;
} norm_job;

static void norm_part(void *arg, int lo, int hi, int thread) {
    const norm_job *j = arg;
    const int n = j->x->n_cols;
    for (int t = lo; t < hi; t++) {
        const float *x = j->x->f + (size_t)(j->pick ? j->pick[t] : t) * (size_t)n;
        float *y = j->y->f ? j->y->f + (size_t)t * (size_t)n : j->scratch + (size_t)thread * (size_t)n;
        j->r->kern->op[IG_KERN_NORM]->fn.norm(y, x, j->w, n, j->eps);
        op_quant_row(j->r, j->y, t, 0, y, n);
    }
}

ig_tensor *op_norm(ig_run *r, const ig_tensor *x, const float *w, float eps, int need, const int *pick,
                   int n_pick) {
    if (op_stopped(r)) return NULL;
    op_trace(r, "norm", r->kern->op[IG_KERN_NORM]);
    int n_rows = pick ? n_pick : x->n_rows;
    ig_tensor *y = op_tensor(r, n_rows, x->n_cols, need);
    size_t mark = ig_arena_mark(r->arena);
    float *scratch = op_take(r, (size_t)ig_pool_threads(r->pool) * (size_t)x->n_cols * sizeof *scratch);
    if (scratch) {
        norm_job job = {.r = r, .x = x, .w = w, .pick = pick, .y = y, .scratch = scratch, .eps = eps};
        /* one or two rows cost less than waking anybody */
        ig_pool_run(r->pool, norm_part, &job, n_rows, STREAM_ROWS);
    }
    ig_arena_rewind(r->arena, mark);
    op_note(r, (ig_node){.op = "norm", .y = y, .a = x});
    return y;
}

/* ---- h += norm(x) ------------------------------------------------------------------------------------ */

static void norm_add_part(void *arg, int lo, int hi, int thread) {
    const norm_job *j = arg;
    const int n = j->x->n_cols;
    float *s = j->scratch + (size_t)thread * (size_t)n;
    for (int t = lo; t < hi; t++) {
        const size_t at = (size_t)t * (size_t)n;
        j->r->kern->op[IG_KERN_NORM]->fn.norm(s, j->x->f + at, j->w, n, j->eps);
        j->r->kern->op[IG_KERN_ADD]->fn.add(j->y->f + at, j->h->f + at, s, n);
    }
}

ig_tensor *op_norm_add(ig_run *r, const ig_tensor *x, const float *w, float eps, ig_tensor *h) {
    if (op_stopped(r)) return NULL;
    ig_assert(h->n_cols == x->n_cols && h->n_rows == x->n_rows);
    op_trace(r, "norm+add", r->kern->op[IG_KERN_NORM]);
    ig_tensor *y =
        r->tape ? op_tensor(r, h->n_rows, h->n_cols, IG_ACT_F32) : h; /* training keeps the old h */
    size_t mark = ig_arena_mark(r->arena);
    float *scratch = op_take(r, (size_t)ig_pool_threads(r->pool) * (size_t)x->n_cols * sizeof *scratch);
    if (scratch) {
        norm_job job = {.r = r, .x = x, .w = w, .h = h, .y = y, .scratch = scratch, .eps = eps};
        ig_pool_run(r->pool, norm_add_part, &job, x->n_rows, STREAM_ROWS);
    }
    ig_arena_rewind(r->arena, mark);
    op_note(r, (ig_node){.op = "norm+add", .y = y, .a = x, .b = h});
    return op_stopped(r) ? NULL : y;
}
