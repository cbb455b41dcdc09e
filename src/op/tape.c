/* tape: notes of what was done, and the walk back over them.
 * A gradient's buffer is taken when its first contribution comes and given back after the note that made the
 * tensor, so that few are alive at a time: the residual stream, and what one op is working on. All comes from
 * the arena in an order that depends on shapes only, so a planning run counts exactly what a real one takes.
 * Contributions to one tensor come in the order of the walk, last use first, each a plain sum in place. */
#include "op/inside.h"

void op_note(ig_run *r, op_back_fn *back, const void *own, size_t own_bytes, ig_tensor *y0, ig_tensor *y1,
             ig_tensor *y2) {
    if (!r->tape || op_stopped(r)) return;
    if (!y0->needs_g && !(y1 && y1->needs_g) && !(y2 && y2->needs_g)) return;
    ig_node *n = op_take(r, sizeof *n + own_bytes);
    if (ig_run_planning(r)) n = ig_arena_take(r->shapes, sizeof *n + own_bytes);
    if (op_stopped(r)) return;
    ig_assert(n != NULL);
    *n = (ig_node){.back = back, .y = {y0, y1, y2}, .prev = r->tape->last};
    memcpy(n + 1, own, own_bytes);
    r->tape->last = n;
    r->tape->n_nodes++;
}

ig_tensor *op_leaf(ig_run *r, float *f, int n_rows, int n_cols, bool needs_g) {
    ig_tensor *t = op_take(r, sizeof *t);
    if (ig_run_planning(r)) t = ig_arena_take(r->shapes, sizeof *t);
    if (op_stopped(r)) return NULL;
    ig_assert(t != NULL);
    *t = (ig_tensor){
        .n_rows = n_rows, .n_cols = n_cols, .f = f, .act = {.f = f, .n_cols = n_cols}, .needs_g = needs_g};
    return t;
}

/* ---- buffers ------------------------------------------------------------------------------------------ */

static size_t grad_bytes(const ig_tensor *t) {
    return (size_t)t->n_rows * (size_t)t->n_cols * sizeof(float);
}

/* The smallest spare one that is long enough, else new. */
static void take_buffer(ig_run *r, ig_tensor *t) {
    ig_tape *tape = r->tape;
    const size_t bytes = grad_bytes(t);
    int best = -1;
    for (int i = 0; i < tape->n_spare; i++)
        if (tape->spare[i].bytes >= bytes && (best < 0 || tape->spare[i].bytes < tape->spare[best].bytes))
            best = i;
    t->g_owner = IG_GRAD_TAPE;
    if (best >= 0) {
        t->g = tape->spare[best].p, t->g_bytes = tape->spare[best].bytes;
        tape->spare[best] = tape->spare[--tape->n_spare];
    } else {
        t->g = op_take(r, bytes), t->g_bytes = bytes;
    }
}

static void drop_buffer(ig_run *r, ig_tensor *t) {
    ig_tape *tape = r->tape;
    if (t->g_owner == IG_GRAD_TAPE && tape->n_spare < IG_TAPE_SPARES) {
        tape->spare[tape->n_spare].p = t->g;
        tape->spare[tape->n_spare++].bytes = t->g_bytes;
    }
    t->g = NULL, t->g_owner = IG_GRAD_NONE, t->has_g = false;
}

void op_grad_home(ig_tensor *t, float *g, bool has) {
    ig_assert(t->g_owner == IG_GRAD_NONE);
    t->g = g, t->g_owner = IG_GRAD_CALLER, t->has_g = has;
}

float *op_grad(ig_run *r, ig_tensor *t, bool *add) {
    ig_assert(t->needs_g);
    *add = t->has_g;
    if (t->g_owner == IG_GRAD_NONE) take_buffer(r, t);
    t->has_g = true;
    return t->g;
}

typedef struct row_job {
    const ig_kern_table *kern;
    float *to;
    const float *from;
    size_t n_cols;
    bool add;
} row_job;

static void pass_part(void *arg, int lo, int hi, int thread) {
    const row_job *j = arg;
    (void)thread;
    const size_t n = j->n_cols, at = (size_t)lo * n;
    float *to = j->to + at;
    const float *from = j->from + at;
    if (j->add) j->kern->op[IG_KERN_ADD]->fn.add(to, n, to, n, from, n, hi - lo, (int)n);
    else memcpy(to, from, (size_t)(hi - lo) * n * sizeof *to);
}

void op_grad_pass(ig_run *r, ig_tensor *from, ig_tensor *to) {
    ig_assert(from->has_g && from->n_rows == to->n_rows && from->n_cols == to->n_cols);
    if (!to->needs_g) return;
    if (to->g_owner == IG_GRAD_NONE) {
        to->g = from->g, to->g_bytes = from->g_bytes, to->g_owner = from->g_owner, to->has_g = true;
        from->g = NULL, from->g_owner = IG_GRAD_NONE, from->has_g = false;
        return;
    }
    bool add;
    float *g = op_grad(r, to, &add);
    if (op_stopped(r) || ig_run_planning(r)) return;
    row_job job = {r->kern, g, from->g, (size_t)to->n_cols, add};
    ig_pool_run(r->pool, pass_part, &job, to->n_rows, LIGHT_ROWS);
}

float *op_grad_of(ig_run *r, ig_tensor *y) {
    if (y->has_g) return y->g;
    bool add;
    const bool needed = y->needs_g;
    y->needs_g = true;
    float *g = op_grad(r, y, &add);
    y->needs_g = needed;
    if (g && !op_stopped(r)) memset(g, 0, grad_bytes(y));
    return g;
}

/* ---- the walk ----------------------------------------------------------------------------------------- */

void op_backward(ig_run *r) {
    for (ig_node *n = r->tape->last; n && !op_stopped(r); n = n->prev) {
        bool any = false;
        for (int i = 0; i < NOTE_OUTPUTS && n->y[i]; i++) any |= n->y[i]->has_g;
        if (any) n->back(r, n + 1);
        for (int i = 0; i < NOTE_OUTPUTS && n->y[i]; i++) drop_buffer(r, n->y[i]);
    }
    *r->tape = (ig_tape){0};
}

static const ig_tier_node nodes[] = {
    {.id = "bwd.full", .does = "the walk back over what a forward noted", .tier = IG_TIER_L3,
     .oracle = "f64", .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "model: the_gradient_of_the_embedding_equals_differences_of_a_float64_twin",
     .also = IG_RUNS(ADD), .training = true},
};
NODE_EXPORT(tape, nodes);
