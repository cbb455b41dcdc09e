/* carry: what passes over the edge between two segments of layers.
 * A tensor that later layers read again has one saved copy and one gradient, whatever the cut: each segment
 * that used it adds in place, the highest first, as the walk over the whole stack would. So the sums are the same
 * chains and segmented gradients equal whole ones bit for bit. */
#include "model/inside.h"

#include <string.h>

void ig_carry_share(ig_carry *c, const char *name, ig_tensor *t) {
    if (!t) return; /* the run has failed; its status says so */
    ig_assert(c->n_shared < IG_CARRY_SHARED_MAX);
    c->shared[c->n_shared].name = name, c->shared[c->n_shared].t = t;
    c->shared[c->n_shared++].saved = false;
}

ig_tensor *ig_carry_find(const ig_carry *c, const char *name) {
    for (int i = c->n_shared - 1; i >= 0; i--)
        if (strcmp(c->shared[i].name, name) == 0) return c->shared[i].t;
    return NULL;
}

static ig_tensor *saved(ig_run *r, const ig_tensor *t, bool needs_g) {
    const size_t bytes = (size_t)t->n_rows * (size_t)t->n_cols * sizeof(float);
    float *f = ig_arena_take(r->arena, bytes);
    if (!f && !ig_run_planning(r)) {
        r->status = ig_fail(&r->err, IG_ELIMIT, "step memory of %zu bytes is full: %zu more for an edge",
                            r->arena->cap_bytes, bytes);
        return NULL;
    }
    if (f) memcpy(f, t->f, bytes);
    return op_leaf(r, f, t->n_rows, t->n_cols, needs_g);
}

static void give_home(ig_run *r, ig_tensor *t) {
    const size_t bytes = (size_t)t->n_rows * (size_t)t->n_cols * sizeof(float);
    float *g = ig_arena_take(r->arena, bytes);
    if (g || ig_run_planning(r))
        op_grad_home(t, g, false);
    else
        r->status = ig_fail(&r->err, IG_ELIMIT, "step memory of %zu bytes is full: %zu more for a gradient",
                            r->arena->cap_bytes, bytes);
}

void ig_carry_save(ig_run *r, ig_carry *carry, ig_carry *edge, bool needs_g, float *g_of_h) {
    if (r->status != IG_OK) return;
    *edge = *carry;
    edge->h = saved(r, carry->h, needs_g);
    if (edge->h && needs_g) op_grad_home(edge->h, g_of_h, false);
    for (int i = 0; i < carry->n_shared && r->status == IG_OK; i++) {
        if (carry->shared[i].saved) continue;
        ig_tensor *t = saved(r, carry->shared[i].t, needs_g);
        if (t && needs_g) give_home(r, t);
        edge->shared[i].t = t, edge->shared[i].saved = true;
        carry->shared[i] = edge->shared[i];
    }
}

void ig_carry_seed(const ig_carry *out, const ig_carry *next) {
    ig_assert(out->n_shared == next->n_shared);
    if (out->h->needs_g) op_grad_home(out->h, next->h->g, true);
    for (int i = 0; i < next->n_shared; i++) {
        ig_tensor *made = out->shared[i].t, *kept = next->shared[i].t;
        if (made != kept && made->needs_g && kept->has_g) op_grad_home(made, kept->g, true);
    }
}

static const ig_tier_node nodes[] = {
    {.id = "seg.backward", .does = "layers in segments, run again for their gradients", .tier = IG_TIER_L3,
     .oracle = "bwd.full", .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "model: segmented_gradients_equal_whole_ones_bit_for_bit_at_every_cut_and_any_number_of_threads",
     .training = true},
};
NODE_EXPORT(carry, nodes);
