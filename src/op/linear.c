/* linear: products with panels and what follows at once on a tile while it is in L1: the residual sum, the
 * gate. Each is an op of its own; all run over op_run_units. */
#include "op/inside.h"

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
    float softcap;              /* of the head */
    float *kept_gate, *kept_up; /* [T][n_rows]: what the glu got, for its backward; or NULL */
} linear_job;

/* y = W x or h + W x */
typedef struct linear_note {
    const ig_weight *w;
    ig_tensor *y, *x, *h;
} linear_note;

static void linear_back(ig_run *r, const void *own) {
    const linear_note *n = own;
    op_linear_back(r, n->w, n->y->g, n->x);
    if (n->h) op_grad_pass(r, n->y, n->h);
}

/* ---- y = h + W x ------------------------------------------------------------------------------------- */

static void add_unit(const void *arg, int p, int row, int m, op_scratch *s) {
    const linear_job *j = arg;
    const size_t at = (size_t)row * j->stride + (size_t)p * IG_PANEL_ROWS;
    op_ask_for(j->add + at, j->stride * sizeof *j->add, m);
    const float *tile = op_panel(j->r, s, 0, j->w, p, j->x, row, m);
    j->r->kern->op[IG_KERN_ADD]->fn.add(j->out + at, j->stride, j->add + at, j->stride, tile, IG_PANEL_ROWS, m,
                                        panel_cols(j->w, p));
    op_tap(j->r, "add", NULL, row, m, p * IG_PANEL_ROWS, panel_cols(j->w, p), j->out + at, j->stride);
}

ig_tensor *op_linear_add(ig_run *r, const ig_weight *w, ig_tensor *x, ig_tensor *h) {
    if (op_stopped(r)) return NULL;
    check_input(w, x);
    ig_assert(h->n_cols == w->n_rows && h->n_rows == x->n_rows);
    op_trace_weight(r, "linear+add", w);
    ig_tensor *y =
        r->tape ? op_tensor(r, h->n_rows, h->n_cols, IG_ACT_F32) : h; /* training keeps the old h */
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = w, .x = x, .add = h->f, .out = y->f, .stride = (size_t)h->n_cols};
    op_run_units(r, add_unit, &job, ig_weight_n_panels(w), x, 1);
    if (op_stopped(r)) return NULL;
    y->needs_g = x->needs_g || h->needs_g;
    op_note(r, linear_back, &(linear_note){w, y, x, h}, sizeof(linear_note), y, NULL, NULL);
    return y;
}

/* ---- act(Wg x) * (Wu x) ------------------------------------------------------------------------------ */

enum { GATE_COLS = 2 * IG_PANEL_ROWS }; /* one activation block: quantised as soon as it is whole */

/* The rows that training keeps: what the gate gets, panel p of both. */
static void keep_tiles(const linear_job *j, int p, int row, int m, const float *g, const float *up) {
    const int col = p * IG_PANEL_ROWS, n = panel_cols(j->w, p);
    for (int t = 0; t < m; t++) {
        const size_t at = (size_t)(row + t) * (size_t)j->w->n_rows + (size_t)col;
        memcpy(j->kept_gate + at, g + t * IG_PANEL_ROWS, (size_t)n * sizeof *g);
        memcpy(j->kept_up + at, up + t * IG_PANEL_ROWS, (size_t)n * sizeof *up);
    }
}

static void gate_unit(const void *arg, int u, int row, int m, op_scratch *s) {
    const linear_job *j = arg;
    const int n_panels = ig_weight_n_panels(j->w);
    int n = j->w->n_rows - u * GATE_COLS;
    if (j->y->act.q) {
        const int parts = op_parts(j->r);
        op_ask_for(j->y->act.q + (size_t)(parts * row) * (size_t)j->y->n_cols + (size_t)(u * GATE_COLS),
                   (size_t)j->y->n_cols, parts * m);
    }
    if (n > GATE_COLS) n = GATE_COLS;
    for (int i = 0; i < 2 && 2 * u + i < n_panels; i++) {
        const int p = 2 * u + i;
        float *g = op_panel(j->r, s, i, j->w, p, j->x, row, m);
        const float *up = op_panel(j->r, s, 2 + i, j->up, p, j->x, row, m);
        if (j->kept_gate) keep_tiles(j, p, row, m, g, up);
        if (j->act->op == IG_KERN_GEGLU) j->act->fn.geglu(g, g, up, m * IG_PANEL_ROWS);
        else j->act->fn.swiglu(g, g, up, m * IG_PANEL_ROWS);
        op_tap(j->r, "glu", NULL, row, m, p * IG_PANEL_ROWS, panel_cols(j->w, p), g, IG_PANEL_ROWS);
    }
    for (int t = 0; t < m; t++) {
        float y[GATE_COLS];
        for (int i = 0; i * IG_PANEL_ROWS < n; i++)
            memcpy(y + i * IG_PANEL_ROWS, s->tiles + i * TILE_FLOATS + t * IG_PANEL_ROWS, IG_PANEL_ROWS * sizeof *y);
        op_store_row(j->r, j->y, row + t, u * GATE_COLS, y, n);
    }
}

typedef struct glu_note {
    const ig_kern *back;
    const ig_weight *gate, *up;
    ig_tensor *y, *x;
    float *kept_gate, *kept_up; /* become their own gradients */
} glu_note;

static void glu_back_part(void *arg, int lo, int hi, int thread) {
    const glu_note *n = arg;
    const size_t n_cols = (size_t)n->y->n_cols;
    (void)thread;
    for (int t = lo; t < hi; t++) {
        float *g = n->kept_gate + (size_t)t * n_cols, *u = n->kept_up + (size_t)t * n_cols;
        n->back->fn.gate_back(g, u, n->y->g + (size_t)t * n_cols, g, u, (int)n_cols);
    }
}

static void glu_back(ig_run *r, const void *own) {
    glu_note n = *(const glu_note *)own;
    op_trace(r, "glu back", n.back);
    if (!ig_run_planning(r)) ig_pool_run(r->pool, glu_back_part, &n, n.y->n_rows, LIGHT_ROWS);
    op_linear_back(r, n.gate, n.kept_gate, n.x);
    op_linear_back(r, n.up, n.kept_up, n.x);
}

ig_tensor *op_glu(ig_run *r, ig_glu act, const ig_weight *gate, const ig_weight *up, ig_tensor *x, int need) {
    const ig_kern *k = r->kern->op[act == IG_GLU_GELU ? IG_KERN_GEGLU : IG_KERN_SWIGLU];
    if (op_stopped(r)) return NULL;
    check_input(gate, x), check_input(up, x);
    ig_assert(gate->n_rows == up->n_rows);
    op_trace_weight(r, "linear gate", gate), op_trace_weight(r, "linear up", up);
    op_trace(r, "glu", k);
    ig_tensor *y = op_tensor(r, x->n_rows, gate->n_rows, need);
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = gate, .up = up, .act = k, .x = x, .y = y};
    y->needs_g = x->needs_g;
    if (r->tape && y->needs_g) {
        const size_t bytes = (size_t)y->n_rows * (size_t)y->n_cols * sizeof(float);
        job.kept_gate = op_take(r, bytes), job.kept_up = op_take(r, bytes);
        if (op_stopped(r)) return NULL;
    }
    op_run_units(r, gate_unit, &job, (gate->n_rows + GATE_COLS - 1) / GATE_COLS, x, 4);
    if (op_stopped(r)) return NULL;
    const ig_kern *back = r->kern->op[act == IG_GLU_GELU ? IG_KERN_GEGLU_BACK : IG_KERN_SWIGLU_BACK];
    const glu_note note = {back, gate, up, y, x, job.kept_gate, job.kept_up};
    op_note(r, glu_back, &note, sizeof note, y, NULL, NULL);
    return y;
}

/* ---- y = W x ------------------------------------------------------------------------------------------ */

static void plain_unit(const void *arg, int p, int row, int m, op_scratch *s) {
    const linear_job *j = arg;
    float *tile = op_panel(j->r, s, 0, j->w, p, j->x, row, m), slope[IG_PANEL_ROWS];
    for (int t = 0; t < m && j->softcap > 0.0f; t++)
        j->r->kern->op[IG_KERN_SOFTCAP]->fn.softcap(tile + t * IG_PANEL_ROWS, slope, tile + t * IG_PANEL_ROWS,
                                                    j->softcap, IG_PANEL_ROWS);
    if (j->softcap > 0.0f) op_tap(j->r, "softcap", NULL, row, m, p * IG_PANEL_ROWS, panel_cols(j->w, p), tile, IG_PANEL_ROWS);
    for (int t = 0; t < m; t++)
        memcpy(j->out + (size_t)(row + t) * j->stride + (size_t)p * IG_PANEL_ROWS, tile + t * IG_PANEL_ROWS,
               (size_t)panel_cols(j->w, p) * sizeof *tile);
}

ig_tensor *op_linear(ig_run *r, const ig_weight *w, ig_tensor *x) {
    if (op_stopped(r)) return NULL;
    check_input(w, x);
    op_trace_weight(r, "linear", w);
    ig_tensor *y = op_tensor(r, x->n_rows, w->n_rows, IG_ACT_F32);
    if (op_stopped(r)) return NULL;
    linear_job job = {.r = r, .w = w, .x = x, .out = y->f, .stride = (size_t)w->n_rows};
    op_run_units(r, plain_unit, &job, ig_weight_n_panels(w), x, 1);
    if (op_stopped(r)) return NULL;
    y->needs_g = x->needs_g;
    op_note(r, linear_back, &(linear_note){w, y, x, NULL}, sizeof(linear_note), y, NULL, NULL);
    return y;
}

/* Logits: the same into memory of the caller. */
void op_head(ig_run *r, const ig_head *head, const ig_tensor *x, float *out, size_t out_stride) {
    if (op_stopped(r)) return;
    const ig_weight *w = head->w;
    check_input(w, x);
    op_trace_weight(r, "head", w);
    if (head->softcap > 0.0f) op_trace(r, "softcap", r->kern->op[IG_KERN_SOFTCAP]);
    linear_job job = {.r = r, .w = w, .x = x, .out = out, .stride = out_stride, .softcap = head->softcap};
    op_run_units(r, plain_unit, &job, ig_weight_n_panels(w), x, 1);
}

static const ig_tier_node nodes[] = {
    {.id = "matmul", .does = "products with weights, and their biases", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3",
     .proof = "tests/parity",
     .steps = "linear, linear q, linear k, linear v, linear gate, linear up, linear+add",
     .runs = IG_RUNS(LINEAR)},
    {.id = "elt.add", .does = "the residual sum, on the tile of a product or of a norm", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3",
     .proof = "tests/parity", .steps = "linear+add, norm+add", .also = IG_RUNS(ADD)},
    {.id = "act.swiglu", .does = "silu(gate) * up, on tiles", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3", .proof = "tests/parity",
     .steps = "glu", .runs = IG_RUNS(SWIGLU)},
    {.id = "act.geglu", .does = "gelu(gate) * up, on tiles", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3", .proof = "tests/parity",
     .steps = "glu", .runs = IG_RUNS(GEGLU)},
    {.id = "head.logits", .does = "the product with the head", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3", .proof = "tests/parity",
     .steps = "head", .runs = IG_RUNS(LINEAR)},
    {.id = "head.softcap", .does = "logits bent under a cap", .tier = IG_TIER_L1, .oracle = "mlx-lm",
     .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3", .proof = "tests/parity",
     .steps = "softcap", .runs = IG_RUNS(SOFTCAP)},
    {.id = "act.back", .does = "gradient of the gates", .tier = IG_TIER_L3, .gate = IG_GATE_FD,
     .in = {"on", "on", "on"}, .proof = "op: gates_give_the_slope_of_their_own_forward",
     .steps = "glu back", .runs = IG_RUNS(SWIGLU_BACK) | IG_RUNS(GEGLU_BACK), .training = true},
};
NODE_EXPORT(linear, nodes);
