/* tier: what a step of ours promises about its numbers, and who holds it to that.
 *
 * A node is a step that a reader of results can name: a norm, a product, the draw of a token. Its record
 * stands at the end of the file that does it (NODE_EXPORT), and says by whose program its numbers are
 * judged, by which test, and which options change it. The build gathers the files that export records
 * (gen/node_list.h), as it does kernels. From that one list, app/nodes.c, come `ingle tiers`, the text of
 * --l1 --l2 --l3, docs/parity.md, tier snapshots of families and tools/proof.py, which fails when a claim
 * of l1 or l2 has no test that ran.
 *
 * Tiers:   l1 equals mlx-lm, bit for bit; l2 equals mlx-optiq where mlx-lm has no such path; l3 is ours
 *          and held by bounds. What a node runs at is the worse of its own tier and its kernels' (kern.h):
 *          the code around a kernel may be exact while the kernel is not. What a plan runs at is the worst
 *          of its nodes.
 * Here:    the record. It lies below every folder that has nodes, so it knows kernels and nothing else;
 *          the list itself needs all of them and so is gathered at the top.
 * Not here: the choice of a kernel (kern/registry.c). A node has no modes: where tiers need other code,
 *           that is another node (ours draws with samp.draw, mlx-lm's stream is one of its own). */
#ifndef IG_TIER_H
#define IG_TIER_H

#include "kern/kern.h"

/* What holds a node to its promise. */
typedef enum ig_gate {
    IG_GATE_NONE,     /* it has no numbers */
    IG_GATE_EXACT,    /* the oracle's bits */
    IG_GATE_ENVELOPE, /* argmax agreement, KL and logits within bounds of tier l1 (tests/quality/test_envelope.py) */
    IG_GATE_FD,       /* float64 and differences of the forward */
    IG_GATE_KL,       /* a bound of the KL to float64, or of the statistics of draws */
    IG_N_GATES
} ig_gate;

enum { IG_TIERS = 3 };
#define IG_RUNS(op) (UINT64_C(1) << IG_KERN_##op)

typedef struct ig_tier_node {
    const char *id;   /* "norm.rms" */
    const char *does; /* one line */
    ig_tier tier;     /* of its own code, whatever kernel runs; 0: it moves or counts and makes no number */
    const char *oracle; /* "mlx-lm"; NULL: none */
    ig_gate gate;
    const char *in[IG_TIERS]; /* what it is by default in l1, l2, l3: "on", or a word more; NULL: off */
    const char *flags; /* options that reach it, "kv-bits act-bits"; NULL: it is no choice, and has none */
    const char *proof; /* the test that holds it; NULL only without numbers */
    const char *when;  /* what must be asked for, "temperature > 0"; NULL: part of every plan, or told by steps */
    /* How ig_run.trace calls its steps, ", " between; NULL: no step of a forward. Of the kernels traced
     * so, those of `runs` are its; `also` are kernels that it runs besides and that nobody traces. */
    const char *steps;
    uint64_t runs, also;
    bool training;
} ig_tier_node;

typedef struct ig_tier_nodes {
    const ig_tier_node *v;
    int n;
} ig_tier_nodes;

#define NODE_EXPORT(file, arr)                    \
    extern const ig_tier_nodes ig_nodes_##file;   \
    const ig_tier_nodes ig_nodes_##file = {arr, (int)(sizeof(arr) / sizeof((arr)[0]))}

/* The envelope gate, in numbers: for each prompt n_steps greedy tokens of the judge, given to l3 one by
 * one. */
typedef struct ig_tier_envelope {
    int prompt_tokens[2];
    int n_steps, n_agree;  /* steps, and in how many of them l3 must name the same token */
    float kl_mean;         /* KL(judge || l3), at most */
    int n_first, n_top;    /* in so many steps, of so many largest logits of the judge, */
    float logit_8, logit_4; /* l3 is at most so far away: weights of 8 bits and more, of less */
    int calls_a_layer;     /* of each kernel under test, more than this times the layers */
} ig_tier_envelope;
extern const ig_tier_envelope ig_tier_envelope_gate;

/* "l1"; of no tier "-". */
const char *ig_tier_name(ig_tier t);
const char *ig_gate_name(ig_gate g);
/* One line: whose numbers. */
const char *ig_tier_promise(ig_tier t);
/* Is `word` one of `list`, which has ", " or " " between its words of several or one? NULL has none. */
bool ig_tier_lists(const char *list, const char *between, const char *word);
static inline ig_tier ig_tier_worse(ig_tier a, ig_tier b) {
    return a > b ? a : b;
}

#endif
