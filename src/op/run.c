/* run: what every op needs: tensors from the arena, the sticky status, notes, and the loop over panels.
 * The loop is the one place where work is split between threads: over outputs and rows, never inside a
 * sum, so the split cannot be seen in the bits. */
#include "op/inside.h"

enum { REST_FLOATS = 256 }; /* of a row that becomes two parts, at a time */
enum { UNIT_CHUNKS = 32 }; /* training: chunks of rows that one thread takes of a unit at a time */

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
    if (r->train) need = IG_ACT_F32;
    if (need & IG_ACT_F32) t->f = op_take(r, n * sizeof *t->f);
    size_t n_blocks = n / IG_ACT_BLOCK;
    /* the formats say so: their rows are whole blocks */
    ig_assert(!(need & (IG_ACT_Q8 | IG_ACT_Q16)) || n_cols % IG_ACT_BLOCK == 0);
    if (need & IG_ACT_Q8) {
        const size_t parts = (size_t)op_parts(r);
        t->act.q = op_take(r, parts * n);
        t->act.scale = op_take(r, parts * n_blocks * sizeof *t->act.scale);
        t->act.qsum = op_take(r, parts * 2 * n_blocks * sizeof *t->act.qsum);
        t->act.sum = op_take(r, parts * n_blocks * sizeof *t->act.sum);
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
    if (r->trace) r->trace(r->trace_ud, op, k, NULL);
}

void op_trace_weight(ig_run *r, const char *op, const ig_weight *w) {
    if (r->trace) r->trace(r->trace_ud, op, w->kern, w);
}

void ig_kern_table_pick(ig_kern_table *t, ig_tier tier_max, const ig_fmt *number, uint32_t cpu) {
    for (int op = 0; op < IG_KERN_N_OPS; op++) {
        const bool of_format = op == IG_KERN_LINEAR || op == IG_KERN_DEQUANT || op == IG_KERN_UNPACK;
        t->op[op] = number && !of_format ? ig_kern_pick((ig_kern_op)op, number, tier_max, cpu) : NULL;
        if (!t->op[op]) t->op[op] = ig_kern_pick((ig_kern_op)op, NULL, tier_max, cpu); /* NULL for those of a format */
    }
    t->linear_f32 = ig_kern_pick(IG_KERN_LINEAR, ig_fmt_of_gguf(0), tier_max, cpu);
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
    int n_units, n_rows, chunk_rows, n_chunks, n_cols, n_tiles;
    bool unit_after_unit;
    float *scratch;
    size_t scratch_floats;
} units;

/* Serving: chunk after chunk, so that activations stay in L1 while panels stream by. Training: unit after
 * unit, so that a panel is unpacked once for many rows. */
static void units_part(void *arg, int lo, int hi, int thread) {
    const units *u = arg;
    op_scratch s = {.tiles = u->scratch + (size_t)thread * u->scratch_floats};
    s.unpacked = s.tiles + u->n_tiles * TILE_FLOATS;
    s.row = s.unpacked + (size_t)u->n_tiles * (size_t)u->n_cols * IG_PANEL_ROWS;
    for (int i = lo; i < hi; i++) {
        const int unit = u->unit_after_unit ? i / u->n_chunks : i % u->n_units;
        const int row = (u->unit_after_unit ? i % u->n_chunks : i / u->n_units) * u->chunk_rows;
        const int m = u->n_rows - row;
        u->fn(u->job, unit, row, m < u->chunk_rows ? m : u->chunk_rows, &s);
    }
}

void op_run_units(ig_run *r, op_unit_fn *fn, const void *job, int n_units, const ig_tensor *x, int n_tiles) {
    size_t mark = ig_arena_mark(r->arena);
    units u = {.fn = fn, .job = job, .n_units = n_units, .n_rows = x->n_rows, .n_cols = x->n_cols,
               .chunk_rows = TILE_ROWS / op_parts(r), .n_tiles = n_tiles, .unit_after_unit = r->train};
    ig_assert(n_tiles <= UNIT_TILES);
    u.n_chunks = (u.n_rows + u.chunk_rows - 1) / u.chunk_rows;
    u.scratch_floats = (size_t)n_tiles * TILE_FLOATS;
    if (r->train) u.scratch_floats += (size_t)(n_tiles * IG_PANEL_ROWS + 1) * (size_t)u.n_cols;
    u.scratch_floats = (u.scratch_floats + 15) / 16 * 16;
    u.scratch = op_take(r, u.scratch_floats * sizeof *u.scratch * (size_t)ig_pool_threads(r->pool));
    if (u.scratch) {
        const int grain = !r->train ? 1 : u.n_chunks < UNIT_CHUNKS ? u.n_chunks : UNIT_CHUNKS;
        ig_pool_run(r->pool, units_part, &u, n_units * u.n_chunks, grain);
    }
    ig_arena_rewind(r->arena, mark);
}

/* Every format's panel as f32: exact, since training multiplies what the weight is. */
static const float *unpacked(op_scratch *s, int slot, const ig_weight *w, int p) {
    float *to = s->unpacked + (size_t)slot * (size_t)w->n_cols * IG_PANEL_ROWS;
    if (s->w[slot] == w && s->panel[slot] == p) return to;
    s->w[slot] = w, s->panel[slot] = p;
    for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
        w->unpack->fn.unpack(s->row, w->panels + (size_t)p * w->panel_bytes, lane, w->n_cols);
        for (int k = 0; k < w->n_cols; k++) to[(size_t)k * IG_PANEL_ROWS + (size_t)lane] = s->row[k];
    }
    return to;
}

float *op_panel(const ig_run *r, op_scratch *s, int slot, const ig_weight *w, int p, const ig_tensor *x,
                int row, int m) {
    float *tile = s->tiles + slot * TILE_FLOATS;
    const ig_kern *add = r->kern->op[IG_KERN_ADD];
    if (r->train && w->fmt->act != IG_ACT_F32) {
        const float *panel = unpacked(s, slot, w, p);
        r->kern->linear_f32->fn.linear(tile, (const uint8_t *)panel, &x->act, row, m, w->n_cols);
    } else {
        const int parts = w->fmt->act == IG_ACT_Q8 ? op_parts(r) : 1;
        w->linear(tile, w->panels + (size_t)p * w->panel_bytes, &x->act, parts * row, parts * m, w->n_cols);
        if (parts == 2) /* rows 2 t and 2 t + 1 become row t, in place */
            add->fn.add(tile, IG_PANEL_ROWS, tile, 2 * IG_PANEL_ROWS, tile + IG_PANEL_ROWS, 2 * IG_PANEL_ROWS, m,
                        IG_PANEL_ROWS);
    }
    if (w->bias)
        add->fn.add(tile, IG_PANEL_ROWS, tile, IG_PANEL_ROWS, w->bias + (size_t)p * IG_PANEL_ROWS, 0, m,
                    IG_PANEL_ROWS); /* tier l1: the sum is rounded once, after the bias */
    else
        op_round(r, tile, m * IG_PANEL_ROWS);
    op_tap(r, "linear", w, row, m, p * IG_PANEL_ROWS, IG_PANEL_ROWS, tile, IG_PANEL_ROWS);
    return tile;
}

static inline void quant_at(const ig_run *r, ig_act *a, size_t block, const float *x, int n) {
    r->kern->op[IG_KERN_QUANT]->fn.quant(a->q + block * IG_ACT_BLOCK, a->scale + block, a->qsum + 2 * block,
                                         a->sum + block, x, n);
}

/* n values of x as both parts of a row, which begin at `block` and row_blocks later. */
static void quant_two_parts(const ig_run *r, ig_act *a, size_t block, size_t row_blocks, const float *x, int n) {
    float rest[REST_FLOATS];
    for (int from = 0; from < n; from += REST_FLOATS, x += REST_FLOATS, block += REST_FLOATS / IG_ACT_BLOCK) {
        const int left = n - from < REST_FLOATS ? n - from : REST_FLOATS;
        const int8_t *q = a->q + block * IG_ACT_BLOCK;
        quant_at(r, a, block, x, left);
        for (int k = 0; k < left; k++) rest[k] = x[k] - a->scale[block + (size_t)k / IG_ACT_BLOCK] * (float)q[k];
        quant_at(r, a, block + row_blocks, rest, left);
    }
}

void op_quant_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n) {
    const size_t row_blocks = (size_t)y->n_cols / IG_ACT_BLOCK, first = (size_t)row * row_blocks;
    const size_t at = first + (size_t)col / IG_ACT_BLOCK;
    ig_act *a = &y->act;
    if (a->q && op_parts(r) == 2) quant_two_parts(r, a, at + first, row_blocks, x, n);
    else if (a->q) quant_at(r, a, at, x, n);
    if (a->q16)
        r->kern->op[IG_KERN_QUANT16]->fn.quant16(a->q16 + at * IG_ACT_BLOCK, a->scale16 + at, a->qsum16 + 2 * at,
                                                 a->sum16 + at, x, n);
}

void op_store_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n) {
    if (y->f) memcpy(y->f + (size_t)row * (size_t)y->n_cols + (size_t)col, x, (size_t)n * sizeof *x);
    op_quant_row(r, y, row, col, x, n);
}

static const ig_tier_node nodes[] = {
    {.id = "act.round", .does = "what a step made, rounded to the checkpoint's 16-bit numbers", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", NULL}, .flags = "l1 l2 l3",
     .proof = "tests/parity", .runs = IG_RUNS(ROUND)},
    {.id = "act.q8", .does = "rows to int8, for weights of 2 to 5 bits", .tier = IG_TIER_L3,
     .gate = IG_GATE_ENVELOPE, .in = {NULL, NULL, "on"}, .flags = "l1 l2 l3 act-bits",
     .proof = "tests/quality/test_envelope.py", .runs = IG_RUNS(QUANT)},
    {.id = "act.q8x2", .does = "rows to two parts of int8, nearly 16 bits, each multiplied", .tier = IG_TIER_L3,
     .oracle = "f64", .gate = IG_GATE_KL, .in = {NULL, NULL, NULL}, .flags = "act-bits",
     .proof = "tests/quality/test_quality.py", .when = "--act-bits 16", .runs = IG_RUNS(QUANT), .also = IG_RUNS(ADD)},
    {.id = "act.q16", .does = "rows to int16, for weights of 6 and 8 bits", .tier = IG_TIER_L3,
     .gate = IG_GATE_ENVELOPE, .in = {NULL, NULL, "on"}, .flags = "l1 l2 l3",
     .proof = "tests/quality/test_envelope.py", .runs = IG_RUNS(QUANT16)},
};
NODE_EXPORT(run, nodes);
