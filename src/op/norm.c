/* norm: RMS norm of rows, in the forms that the next weights eat, or added to the residual. In one pass,
 * through a row of scratch that stays in L1. Backward from x alone: 1 / rms is cheap to compute again. */
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
        op_tap(j->r, "norm", NULL, t, 1, 0, n, y, 0);
        op_quant_row(j->r, j->y, t, 0, y, n);
    }
}

/* ---- backward ----------------------------------------------------------------------------------------- */

typedef struct norm_note {
    ig_tensor *y, *x, *h; /* h: of norm+add */
    const float *w;
    const int *pick;
    float eps;
} norm_note;

typedef struct norm_back_job {
    const ig_run *r;
    norm_note note;
    const float *dy;
    float *dx;
    bool add;
} norm_back_job;

static void zero_part(void *arg, int lo, int hi, int thread) {
    const norm_back_job *j = arg;
    const size_t n = (size_t)j->note.x->n_cols;
    (void)thread;
    memset(j->dx + (size_t)lo * n, 0, (size_t)(hi - lo) * n * sizeof *j->dx);
}

/* Picks ascend, so equal ones are neighbours; the first of them does all. With picks dx holds something, zeros
 * at least, so each adds. */
static void norm_back_part(void *arg, int lo, int hi, int thread) {
    const norm_back_job *j = arg;
    const int *pick = j->note.pick, n = j->note.x->n_cols, n_rows = j->note.y->n_rows;
    (void)thread;
    for (int t = lo; t < hi; t++) {
        if (pick && t > 0 && pick[t] == pick[t - 1]) continue;
        const size_t at = (size_t)(pick ? pick[t] : t) * (size_t)n;
        for (int i = t; i < n_rows && (i == t || (pick && pick[i] == pick[t])); i++)
            j->r->kern->op[IG_KERN_NORM_BACK]->fn.norm_back(&(ig_norm_back_args){
                .dx = j->dx + at, .dy = j->dy + (size_t)i * (size_t)n, .x = j->note.x->f + at,
                .w = j->note.w, .n = n, .eps = j->note.eps, .add = j->add});
    }
}

static void norm_back(ig_run *r, const void *own) {
    const norm_note *n = own;
    op_trace(r, "norm back", r->kern->op[IG_KERN_NORM_BACK]);
    if (n->x->needs_g) {
        norm_back_job job = {.r = r, .note = *n, .dy = n->y->g};
        job.dx = op_grad(r, n->x, &job.add);
        if (!op_stopped(r) && !ig_run_planning(r)) {
            if (n->pick && !job.add) {
                ig_pool_run(r->pool, zero_part, &job, n->x->n_rows, LIGHT_ROWS);
                job.add = true;
            }
            ig_pool_run(r->pool, norm_back_part, &job, n->y->n_rows, LIGHT_ROWS);
        }
    }
    if (n->h) op_grad_pass(r, n->y, n->h);
}

ig_tensor *op_norm(ig_run *r, ig_tensor *x, const float *w, float eps, int need, const int *pick,
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
        ig_pool_run(r->pool, norm_part, &job, n_rows, LIGHT_ROWS);
    }
    ig_arena_rewind(r->arena, mark);
    if (op_stopped(r)) return NULL;
    y->needs_g = x->needs_g;
    const norm_note note = {.y = y, .x = x, .w = w, .pick = pick, .eps = eps};
    op_note(r, norm_back, &note, sizeof note, y, NULL, NULL);
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
        op_tap(j->r, "norm", NULL, t, 1, 0, n, s, 0);
        j->r->kern->op[IG_KERN_ADD]->fn.add(j->y->f + at, 0, j->h->f + at, 0, s, 0, 1, n);
        op_tap(j->r, "add", NULL, t, 1, 0, n, j->y->f + at, 0);
    }
}

ig_tensor *op_norm_add(ig_run *r, ig_tensor *x, const float *w, float eps, ig_tensor *h) {
    if (op_stopped(r)) return NULL;
    ig_assert(h->n_cols == x->n_cols && h->n_rows == x->n_rows);
    op_trace(r, "norm+add", r->kern->op[IG_KERN_NORM]);
    ig_tensor *y =
        r->tape ? op_tensor(r, h->n_rows, h->n_cols, IG_ACT_F32) : h; /* training keeps the old h */
    size_t mark = ig_arena_mark(r->arena);
    float *scratch = op_take(r, (size_t)ig_pool_threads(r->pool) * (size_t)x->n_cols * sizeof *scratch);
    if (scratch) {
        norm_job job = {.r = r, .x = x, .w = w, .h = h, .y = y, .scratch = scratch, .eps = eps};
        ig_pool_run(r->pool, norm_add_part, &job, x->n_rows, LIGHT_ROWS);
    }
    ig_arena_rewind(r->arena, mark);
    if (op_stopped(r)) return NULL;
    y->needs_g = x->needs_g || h->needs_g;
    const norm_note note = {.y = y, .x = x, .h = h, .w = w, .eps = eps};
    op_note(r, norm_back, &note, sizeof note, y, NULL, NULL);
    return y;
}

static const ig_tier_node nodes[] = {
    {.id = "norm.rms", .does = "RMS norm of rows and of heads", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3", .proof = "tests/parity",
     .steps = "norm, norm of heads, norm+add", .runs = IG_RUNS(NORM)},
    {.id = "norm.back", .does = "gradient of the norm", .tier = IG_TIER_L3, .gate = IG_GATE_FD,
     .in = {"on", "on", "on"},
     .proof = "op: a_norm_of_picked_rows_some_twice_gives_each_row_its_sum_and_others_zero",
     .steps = "norm back", .runs = IG_RUNS(NORM_BACK), .training = true},
};
NODE_EXPORT(norm, nodes);
