/* nodes: gathers the records that the build found (gen/node_list.h), and makes a model's plan of them: the
 * forward traces its steps (ig_model_trace), a step names its nodes, and what it ran is theirs.
 * Memory:  none; lists are sorted on first use, by main's thread. */
#include "app/nodes.h"

#include <stdlib.h>
#include <string.h>

#define NODE_FILE(file) extern const ig_tier_nodes ig_nodes_##file;
#include "gen/node_list.h"
#undef NODE_FILE

static const ig_tier_nodes *const sets[] = {
#define NODE_FILE(file) &ig_nodes_##file,
#include "gen/node_list.h"
#undef NODE_FILE
};

enum { NODES_MAX = 256, TEMPERATURE_BYTES = sizeof "temperature" - 1 };

static int by_id(const void *a, const void *b) {
    return strcmp((*(const ig_tier_node *const *)a)->id, (*(const ig_tier_node *const *)b)->id);
}

const ig_tier_node *ig_node_at(int i) {
    static const ig_tier_node *sorted[NODES_MAX];
    static int n;
    if (n == 0) {
        for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++)
            for (int k = 0; k < sets[s]->n; k++) {
                ig_assert(n < NODES_MAX);
                sorted[n++] = &sets[s]->v[k];
            }
        qsort(sorted, (size_t)n, sizeof *sorted, by_id);
    }
    return i >= 0 && i < n ? sorted[i] : NULL;
}

const ig_tier_node *ig_node_find(const char *id) {
    const ig_tier_node *n;
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++)
        if (strcmp(n->id, id) == 0) return n;
    return NULL;
}

bool ig_node_is_in(const ig_tier_node *n, ig_tier t) {
    ig_assert(t >= IG_TIER_L1 && t <= IG_TIER_L3);
    return n->in[t - IG_TIER_L1] != NULL || (n->when && n->tier <= t);
}

bool ig_node_may_be_asked(const ig_tier_node *n) {
    return n->when && !n->steps && !n->runs;
}

/* ---- a model's plan ------------------------------------------------------------------------------------ */

enum { CALLS_MAX = 512 };
typedef struct calls {
    struct {
        const char *step;
        const ig_kern *kern;
        int n;
    } v[CALLS_MAX];
    int n, eats; /* ig_act_kind bits of the weights */
} calls;

static void count(void *ud, const char *step, const ig_kern *k, const ig_weight *w) {
    calls *c = ud;
    int i = 0;
    if (w) c->eats |= (int)w->fmt->act;
    while (i < c->n && (c->v[i].kern != k || strcmp(c->v[i].step, step) != 0)) i++;
    ig_assert(i < CALLS_MAX);
    if (i == c->n) c->v[c->n].step = step, c->v[c->n].kern = k, c->v[c->n++].n = 0;
    c->v[i].n++;
}

typedef struct maker {
    ig_tier_plan *plan;
    bool two_parts;
    const calls *calls;
    const ig_kern_table *table;
} maker;

/* One row for a node and a kernel, however many steps run it. */
static void add_row(maker *m, const ig_tier_node *node, const ig_kern *kern, int n_calls) {
    ig_tier_plan *p = m->plan;
    for (int i = 0; i < p->n_rows; i++)
        if (p->row[i].node == node && p->row[i].kern == kern) {
            p->row[i].n_calls += n_calls;
            return;
        }
    ig_assert(p->n_rows < IG_PLAN_ROWS_MAX);
    p->row[p->n_rows++] = (ig_tier_row){.node = node, .kern = kern, .n_calls = n_calls};
}

/* Rows are quantised when a weight eats them so; other steps that nobody traces happen when their kernels
 * are there. */
static bool happens(const maker *m, const ig_tier_node *node) {
    for (int op = 0; op < IG_KERN_N_OPS; op++)
        if (node->runs >> op & 1 && !m->table->op[op]) return false;
    if (node->runs & IG_RUNS(QUANT)) /* in one part or, when asked for, in two */
        return (m->calls->eats & IG_ACT_Q8) != 0 && m->two_parts == (node->when != NULL);
    if (node->runs & IG_RUNS(QUANT16)) return (m->calls->eats & IG_ACT_Q16) != 0;
    return true;
}

static void add_node(maker *m, const ig_tier_node *node) {
    uint64_t others = node->also;
    bool found = false;
    for (int i = 0; i < m->calls->n && node->steps; i++) {
        const ig_kern *k = m->calls->v[i].kern;
        if (!ig_tier_lists(node->steps, ", ", m->calls->v[i].step)) continue;
        if (node->runs && !(node->runs >> k->op & 1)) continue;
        found = true;
        if (node->runs) add_row(m, node, k, m->calls->v[i].n);
    }
    if (!node->steps && happens(m, node)) found = true, others |= node->runs;
    for (int op = 0; op < IG_KERN_N_OPS && found; op++)
        if (others >> op & 1 && m->table->op[op]) add_row(m, node, m->table->op[op], 0);
    if (found && !(node->runs | others)) add_row(m, node, NULL, 0);
}

static ig_tier tier_of(const ig_tier_plan *p, const ig_tier_node *node) {
    ig_tier t = node->tier;
    for (int i = 0; i < p->n_rows; i++)
        if (p->row[i].node == node && p->row[i].kern) t = ig_tier_worse(t, p->row[i].kern->tier);
    return node->tier ? t : (ig_tier)0;
}

void ig_tier_plan_make(ig_tier_plan *out, const ig_model *model, ig_tier asked) {
    static calls c;
    maker m = {out, ig_model_two_parts(model), &c, ig_model_kernels(model)};
    const ig_tier_node *n;
    c = (calls){.n = 0};
    *out = (ig_tier_plan){.asked = asked};
    ig_model_trace(model, count, &c);
    for (int ask = 0; ask < 2; ask++)
        for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
            if (n->training || !ig_node_is_in(n, asked) || ig_node_may_be_asked(n) != (ask == 1)) continue;
            add_node(&m, n);
        }
    for (int i = 0; i < out->n_rows; i++) {
        n = out->row[i].node;
        const ig_tier t = out->row[i].tier = tier_of(out, n);
        out->row[i].gate = t != n->tier && n->gate == IG_GATE_EXACT ? IG_GATE_ENVELOPE : n->gate;
        if (!ig_node_may_be_asked(n)) out->greedy = ig_tier_worse(out->greedy, t);
        else if (strncmp(n->when, "temperature", TEMPERATURE_BYTES) == 0) out->sampled = ig_tier_worse(out->sampled, t);
    }
    out->sampled = ig_tier_worse(out->sampled, out->greedy);
}
