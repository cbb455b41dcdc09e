/* embed: token ids to rows, gathered from the panels of the table (which is also the head when tied). */
#include "op/inside.h"

typedef struct embed_job {
    const ig_run *r;
    const ig_weight *w;
    const ig_rows *rows;
    float *y, scale;
} embed_job;

static void embed_part(void *arg, int lo, int hi, int thread) {
    const embed_job *j = arg;
    (void)thread;
    for (int t = lo; t < hi; t++) {
        uint32_t id = j->rows->token[t];
        ig_assert(id < (uint32_t)j->w->n_rows); /* the engine checked */
        float *y = j->y + (size_t)t * (size_t)j->w->n_cols;
        j->w->unpack->fn.unpack(y, j->w->panels + (size_t)(id / IG_PANEL_ROWS) * j->w->panel_bytes,
                                (int)(id % IG_PANEL_ROWS), j->w->n_cols);
        op_tap(j->r, "embed", NULL, t, 1, 0, j->w->n_cols, y, 0);
        if (j->scale == 1.0f) continue;
        for (int k = 0; k < j->w->n_cols; k++) y[k] *= j->scale;
        op_round(j->r, y, j->w->n_cols);
        op_tap(j->r, "embed scaled", NULL, t, 1, 0, j->w->n_cols, y, 0);
    }
}

ig_tensor *op_embed(ig_run *r, const ig_weight *table, const ig_rows *rows, float scale) {
    if (op_stopped(r)) return NULL;
    op_trace(r, "embed", table->unpack);
    ig_tensor *y = op_tensor(r, rows->n_rows, table->n_cols, IG_ACT_F32);
    if (!y || ig_run_planning(r)) return y;
    embed_job job = {r, table, rows, y->f, scale};
    ig_pool_run(r->pool, embed_part, &job, rows->n_rows, LIGHT_ROWS);
    return y;
}

static const ig_tier_node nodes[] = {
    {.id = "embed.lookup", .does = "a row of the table, times the family's scale", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3",
     .proof = "tests/parity", .steps = "embed", .runs = IG_RUNS(UNPACK)},
};
NODE_EXPORT(embed, nodes);
