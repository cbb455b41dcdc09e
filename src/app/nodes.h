/* nodes: the list of all nodes (tier/tier.h), and which of them a model runs with which kernels. */
#ifndef IG_APP_NODES_H
#define IG_APP_NODES_H

#include "model/model.h"
#include "tier/tier.h"

const ig_tier_node *ig_node_at(int i); /* by id, ascending; NULL at the end */
const ig_tier_node *ig_node_find(const char *id);
/* Is it there, by default or when asked for, in tier t? */
bool ig_node_is_in(const ig_tier_node *n, ig_tier t);
/* Does a request say whether it runs? Else it is the model's options, and a plan knows. */
bool ig_node_may_be_asked(const ig_tier_node *n);

enum { IG_PLAN_ROWS_MAX = 256 };
typedef struct ig_tier_row {
    const ig_tier_node *node; /* rows of one node are neighbours */
    const ig_kern *kern;      /* NULL: it runs none */
    int n_calls;              /* for one token; 0: nobody counts them */
    ig_tier tier;             /* the worse of the node's and its kernels'; 0: no numbers */
    ig_gate gate;             /* the node's; of one that an l3 kernel keeps from its oracle's bits, the envelope's */
} ig_tier_row;
/* What a model runs. Nodes that a request may ask for come after the others and count only for `sampled`,
 * if they are about temperature. */
typedef struct ig_tier_plan {
    ig_tier asked;
    ig_tier greedy, sampled; /* the worst of the nodes of an answer at temperature 0, and above */
    ig_tier_row row[IG_PLAN_ROWS_MAX];
    int n_rows;
} ig_tier_plan;
void ig_tier_plan_make(ig_tier_plan *out, const ig_model *m, ig_tier asked);

#endif
