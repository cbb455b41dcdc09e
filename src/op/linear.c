/* linear: products with panels and what follows at once on a tile while it is in L1: the residual sum, the
 * gate. Each is an op of its own; all run over op_run_units. */
#include "op/inside.h"

static const uint8_t *panel_at(const ig_weight *w, int p) {
    return w->panels + (size_t)p * w->panel_bytes;
}

static int panel_cols(const ig_weight *w, int p) {
    int n = w->n_rows - p * IG_PANEL_ROWS;
    return n < IG_PANEL_ROWS ? n : IG_PANEL_ROWS;
}

static void check_input(const ig_weight *w, const ig_tensor *x) {
    ig_assert(x->n_cols == w->n_cols && w->order == IG_ROWS_PLAIN);
}

typedef struct linear_job {
    const ig_run *r;
    const ig_weight *w, *up;
    const ig_kern *act;
    const ig_tensor *x;
    ig_tensor *y;
    const float *add; /* [T][n_rows], or NULL */
    float *out;
    size_t stride;
} linear_job;

/* ---- y = h + W x ------------------------------------------------------------------------------------- */

static void add_unit(const void *arg, int p, int row, int m, float *tile) {
    const linear_job *j = arg;
    const int n = panel_cols(j->w, p);
    j->w->linear(tile, panel_at(j->w, p), &j->x->act, row, m, j->w->n_cols);
    ig_add_fn *add = j->r->kern->op[IG_KERN_ADD]->fn.add;
    for (int t = 0; t < m; t++) {
        size_t at = (size_t)(row + t) * j->stride + (size_t)p * IG_PANEL_ROWS;
        add(j->out + at, j->add + at, tile + t * IG_PANEL_ROWS, n);
    }
}

ig_tensor *op_linear_add(ig_run *r, const ig_weight *w, const ig_tensor *x, ig_tensor *h) {
    if (op_stopped(r)) return NULL;
    check_input(w, x);
    ig_assert(h->n_cols == w->n_rows && h->n_rows == x->n_rows);
    op_trace(r, "linear+add", w->kern);
    ig_tensor *y =
        r->tape ? op_tensor(r, h->n_rows, h->n_cols, IG_ACT_F32) : h; /* training keeps the old h */
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = w, .x = x, .add = h->f, .out = y->f, .stride = (size_t)h->n_cols};
    op_run_units(r, add_unit, &job, ig_weight_n_panels(w), x->n_rows, 1);
    op_note(r, (ig_node){.op = "linear+add", .y = y, .a = x, .b = h, .w = {w}});
    return y;
}

/* ---- act(Wg x) * (Wu x) ------------------------------------------------------------------------------ */

enum { GATE_COLS = 2 * IG_PANEL_ROWS }; /* one activation block: quantised as soon as it is whole */

static void gate_unit(const void *arg, int u, int row, int m, float *tiles) {
    const linear_job *j = arg;
    int n_panels = ig_weight_n_panels(j->w);
    for (int i = 0; i < 2; i++) {
        int p = 2 * u + i;
        if (p >= n_panels) break;
        j->w->linear(tiles + i * TILE_FLOATS, panel_at(j->w, p), &j->x->act, row, m, j->w->n_cols);
        j->up->linear(tiles + (2 + i) * TILE_FLOATS, panel_at(j->up, p), &j->x->act, row, m, j->up->n_cols);
    }
    int n = j->w->n_rows - u * GATE_COLS;
    if (n > GATE_COLS) n = GATE_COLS;
    for (int t = 0; t < m; t++) {
        float y[GATE_COLS];
        for (int i = 0; i * IG_PANEL_ROWS < n; i++) {
            const float *g = tiles + i * TILE_FLOATS + t * IG_PANEL_ROWS;
            const float *up = g + 2 * TILE_FLOATS;
            if (j->act->op == IG_KERN_GEGLU) j->act->fn.geglu(y + i * IG_PANEL_ROWS, g, up, IG_PANEL_ROWS);
            else j->act->fn.swiglu(y + i * IG_PANEL_ROWS, g, up, IG_PANEL_ROWS);
        }
        op_store_row(j->r, j->y, row + t, u * GATE_COLS, y, n);
    }
}

ig_tensor *op_glu(ig_run *r, ig_glu act, const ig_weight *gate, const ig_weight *up, const ig_tensor *x,
                  int need) {
    const ig_kern *k = r->kern->op[act == IG_GLU_GELU ? IG_KERN_GEGLU : IG_KERN_SWIGLU];
    if (op_stopped(r)) return NULL;
    check_input(gate, x), check_input(up, x);
    ig_assert(gate->n_rows == up->n_rows);
    op_trace(r, "linear gate", gate->kern), op_trace(r, "linear up", up->kern);
    op_trace(r, "glu", k);
    ig_tensor *y = op_tensor(r, x->n_rows, gate->n_rows, need);
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = gate, .up = up, .act = k, .x = x, .y = y};
    op_run_units(r, gate_unit, &job, (gate->n_rows + GATE_COLS - 1) / GATE_COLS, x->n_rows, 4);
    op_note(r, (ig_node){.op = "glu", .y = y, .a = x, .w = {gate, up}});
    return y;
}

/* ---- y = W x ------------------------------------------------------------------------------------------ */

static void plain_unit(const void *arg, int p, int row, int m, float *tile) {
    const linear_job *j = arg;
    j->w->linear(tile, panel_at(j->w, p), &j->x->act, row, m, j->w->n_cols);
    for (int t = 0; t < m; t++)
        memcpy(j->out + (size_t)(row + t) * j->stride + (size_t)p * IG_PANEL_ROWS, tile + t * IG_PANEL_ROWS,
               (size_t)panel_cols(j->w, p) * sizeof *tile);
}

ig_tensor *op_linear(ig_run *r, const ig_weight *w, const ig_tensor *x) {
    if (op_stopped(r)) return NULL;
    check_input(w, x);
    op_trace(r, "linear", w->kern);
    ig_tensor *y = op_tensor(r, x->n_rows, w->n_rows, IG_ACT_F32);
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = w, .x = x, .out = y->f, .stride = (size_t)w->n_rows};
    op_run_units(r, plain_unit, &job, ig_weight_n_panels(w), x->n_rows, 1);
    op_note(r, (ig_node){.op = "linear", .y = y, .a = x, .w = {w}});
    return y;
}

/* Logits: the same into memory of the caller. */
void op_head(ig_run *r, const ig_weight *w, const ig_tensor *x, float *out, size_t out_stride) {
    if (op_stopped(r)) return;
    check_input(w, x);
    op_trace(r, "head", w->kern);
    linear_job job = {.r = r, .w = w, .x = x, .out = out, .stride = out_stride};
    op_run_units(r, plain_unit, &job, ig_weight_n_panels(w), x->n_rows, 1);
    op_note(r, (ig_node){.op = "head", .a = x, .w = {w}});
}
