/* pick: some rows of a batch go on alone. In the last layer of a forward that is most of a prompt's work saved. */
#include "op/inside.h"

typedef struct pick_job {
    const ig_tensor *x;
    const int *pick;
    float *y;
} pick_job;

static void pick_part(void *arg, int lo, int hi, int thread) {
    const pick_job *j = arg;
    const size_t n = (size_t)j->x->n_cols;
    (void)thread;
    for (int t = lo; t < hi; t++) memcpy(j->y + (size_t)t * n, j->x->f + (size_t)j->pick[t] * n, n * sizeof *j->y);
}

ig_tensor *op_pick(ig_run *r, const ig_tensor *x, const int *pick, int n_pick) {
    if (op_stopped(r)) return NULL;
    ig_assert(!r->train);
    ig_tensor *y = op_tensor(r, n_pick, x->n_cols, IG_ACT_F32);
    if (op_stopped(r) || ig_run_planning(r)) return y;
    pick_job job = {x, pick, y->f};
    ig_pool_run(r->pool, pick_part, &job, n_pick, LIGHT_ROWS);
    return y;
}

void op_pick_rows(ig_run *r, const ig_rows *rows, ig_rows *picked) {
    if (op_stopped(r)) return;
    const int n = rows->n_want;
    int *pos = op_take(r, (size_t)n * sizeof *pos), *seq = op_take(r, (size_t)n * sizeof *seq);
    *picked = *rows;
    picked->n_rows = n, picked->pos = pos, picked->seq = seq, picked->token = NULL;
    picked->want = NULL, picked->n_want = 0;
    if (op_stopped(r) || ig_run_planning(r)) return;
    for (int t = 0; t < n; t++) pos[t] = rows->pos[rows->want[t]], seq[t] = rows->seq[rows->want[t]];
}

static const ig_tier_node nodes[] = {
    {.id = "rows.pick", .does = "in the last layer only wanted rows go on", .in = {"on", "on", "on"}},
};
NODE_EXPORT(pick, nodes);
