/* run: what every op needs: tensors from the arena, the sticky status, notes, and the loop over panels.
 * The loop is the one place where work is split between threads: over outputs and rows, never inside a
 * sum, so the split cannot be seen in the bits. */
#include "op/inside.h"

void *op_take(ig_run *r, size_t bytes) {
    if (op_stopped(r)) return NULL;
    void *p = ig_arena_take(r->arena, bytes);
    if (!p && !ig_run_planning(r))
        r->status = ig_fail(&r->err, IG_ELIMIT, "step memory of %zu bytes is full: %zu more are needed",
                            r->arena->cap_bytes, bytes);
    return p;
}

ig_tensor *op_tensor(ig_run *r, int n_rows, int n_cols, int need) {
    size_t n = (size_t)n_rows * (size_t)n_cols;
    ig_assert(n_rows > 0 && n_cols > 0 && need != 0 && (need & ~(IG_ACT_F32 | IG_ACT_Q8 | IG_ACT_Q16)) == 0);
    ig_tensor *t = op_take(r, sizeof *t);
    if (ig_run_planning(r)) t = ig_arena_take(r->shapes, sizeof *t);
    if (op_stopped(r)) return NULL;
    ig_assert(t != NULL);
    *t = (ig_tensor){.n_rows = n_rows, .n_cols = n_cols, .act.n_cols = n_cols};
    if ((need & IG_ACT_F32) || r->tape) t->f = op_take(r, n * sizeof *t->f);
    size_t n_blocks = n / IG_ACT_BLOCK;
    /* the formats say so: their rows are whole blocks */
    ig_assert(!(need & (IG_ACT_Q8 | IG_ACT_Q16)) || n_cols % IG_ACT_BLOCK == 0);
    if (need & IG_ACT_Q8) {
        t->act.q = op_take(r, n);
        t->act.scale = op_take(r, n_blocks * sizeof *t->act.scale);
        t->act.qsum = op_take(r, n_blocks * sizeof *t->act.qsum);
        t->act.sum = op_take(r, n_blocks * sizeof *t->act.sum);
    }
    if (need & IG_ACT_Q16) {
        t->act.q16 = op_take(r, n * sizeof *t->act.q16);
        t->act.scale16 = op_take(r, n_blocks * sizeof *t->act.scale16);
        t->act.qsum16 = op_take(r, 2 * n_blocks * sizeof *t->act.qsum16);
        t->act.sum16 = op_take(r, n_blocks * sizeof *t->act.sum16);
    }
    t->act.f = t->f;
    return op_stopped(r) ? NULL : t;
}

void op_trace(ig_run *r, const char *op, const ig_kern *k) {
    if (r->trace) r->trace(r->trace_ud, op, k);
}

void op_note(ig_run *r, ig_node note) {
    if (!r->tape || op_stopped(r)) return;
    ig_node *n = op_take(r, sizeof *n);
    r->tape->n_nodes++;
    if (!n) return;
    note.prev = r->tape->last;
    *n = note;
    r->tape->last = n;
}

void ig_kern_table_pick(ig_kern_table *t, ig_tier tier_max, uint32_t cpu) {
    for (int op = 0; op < IG_KERN_N_OPS; op++)
        t->op[op] = ig_kern_pick((ig_kern_op)op, NULL, tier_max, cpu); /* NULL for those of a format */
}

int ig_weight_row(const ig_weight *w, int p, int lane) {
    int row = p * IG_PANEL_ROWS + lane;
    if (w->order == IG_ROWS_ROPE) {
        int per_head = w->head_dim / IG_PANEL_ROWS, head = p / per_head, i = (p % per_head) * 8 + lane % 8;
        row = head * w->head_dim + i + (lane < 8 ? 0 : w->head_dim / 2);
    }
    return row < w->n_rows ? row : -1;
}

typedef struct units {
    op_unit_fn *fn;
    const void *job;
    int n_units, n_rows;
    float *tiles;
    size_t tiles_floats;
} units;

static void units_part(void *arg, int lo, int hi, int thread) {
    const units *u = arg;
    for (int i = lo; i < hi; i++) {
        int row = i / u->n_units * TILE_ROWS, m = u->n_rows - row;
        u->fn(u->job, i % u->n_units, row, m < TILE_ROWS ? m : TILE_ROWS,
              u->tiles + (size_t)thread * u->tiles_floats);
    }
}

void op_run_units(ig_run *r, op_unit_fn *fn, const void *job, int n_units, int n_rows, int n_tiles) {
    size_t mark = ig_arena_mark(r->arena);
    size_t floats = (size_t)n_tiles * TILE_FLOATS;
    float *tiles = op_take(r, floats * sizeof *tiles * (size_t)ig_pool_threads(r->pool));
    if (tiles) {
        units u = {fn, job, n_units, n_rows, tiles, floats};
        int n_chunks = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
        ig_pool_run(r->pool, units_part, &u, n_units * n_chunks, n_rows <= STREAM_ROWS ? 0 : 1);
    }
    ig_arena_rewind(r->arena, mark);
}

void op_quant_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n) {
    const size_t at = (size_t)row * (size_t)y->n_cols + (size_t)col, b = at / IG_ACT_BLOCK;
    ig_act *a = &y->act;
    if (a->q) r->kern->op[IG_KERN_QUANT]->fn.quant(a->q + at, a->scale + b, a->qsum + b, a->sum + b, x, n);
    if (a->q16)
        r->kern->op[IG_KERN_QUANT16]->fn.quant16(a->q16 + at, a->scale16 + b, a->qsum16 + 2 * b,
                                                 a->sum16 + b, x, n);
}

void op_store_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n) {
    if (y->f) memcpy(y->f + (size_t)row * (size_t)y->n_cols + (size_t)col, x, (size_t)n * sizeof *x);
    op_quant_row(r, y, row, col, x, n);
}
