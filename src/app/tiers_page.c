/* tiers_page: docs/parity.md: a text about what tiers promise, then the list of nodes and of exact
 * kernels. The page is the same from every machine and compiler: of kernels it names cells, op and format,
 * not their variants. */
#include "app/nodes.h"
#include "app/tiers.h"

#include <stdio.h>
#include <string.h>

static const char head[] =
    "# Parity: whose numbers results are\n\n"
    "Printed by `ingle tiers --markdown`; the list below stands in the sources, beside the code that it is about.\n\n"
    "Every step of a model, a *node*, is of one of three tiers, and so is every kernel. A node runs at the worse of its own "
    "tier\nand its kernels', a model at the worst of its nodes. `ingle tiers MODEL` says it for a model on this "
    "machine.\n\n"
    "| tier | chosen by | promise | oracle |\n"
    "|---|---|---|---|\n"
    "| l1 | `--l1`, `--exact` | the bits of mlx-lm: logits, and with them every token | mlx-lm 0.32.2 on mlx-cpu 0.32.4, "
    "the wheel for x86-64 |\n"
    "| l2 | `--l2` | as l1, and the bits of mlx-optiq where mlx-lm has no such path | mlx-optiq 0.7.7 on the same |\n"
    "| l3 | `--l3`, the default | ours: the fastest that stays inside bounds | float64, and l1 through the envelope gate "
    "|\n\n"
    "The tier is a ceiling for the choice of kernels and nothing else: no kernel has a branch for it. A request never "
    "changes its\ntier by load. What ran is told in `ingle show`, in the banner and `/stats` of a server, and in "
    "`usage.tier` of every answer.\n\n"
    "## What l1 is not\n\n"
    "- **Not the numbers of mlx on Metal.** There other kernels run with other orders of sums. The oracle is the CPU "
    "backend\n  of the pinned wheel; another version of it may differ, and then this page names another one.\n"
    "- **Not faster or better.** mlx-lm rounds to 16 bits after each step. l3 is nearer to float64 on most models, l1 is "
    "nearer to\n  mlx-lm.\n"
    "- **Conditional on how the reference was run.** mlx-lm's own bits depend on its prefill chunk, its cache and, for "
    "batches, on\n  the rows beside; l1 is equal to one request, alone, with default arguments. In a window its cache is a "
    "ring whose order of\n  sums depends on where the prompt ended: ours follows that order.\n"
    "- **Of a GGUF file** mlx-lm has no bits of its own for most formats: its matrices are made bf16, and l1 is equal to "
    "mlx-lm on\n  those.\n"
    "- **`--kv-bits 8` and `--act-bits 16` are of l3** and are refused beside `--l1` and `--l2`.\n\n"
    "## What holds a node\n\n"
    "- *bit-exact*: arrays of the oracle are compared by bytes. A node or kernel that claims l1 or l2 fails `./check` "
    "unless such a\n  test ran and passed in that run, for each instruction set that the machine has "
    "(tools/proof.py).\n";
static const char envelope[] =
    "- *envelope*: %d greedy tokens of l1 after prose of %d and of %d tokens are given to l3 token by token. It must name the\n"
    "  same first token in %d of %d steps, with a mean KL of at most %g and the %d largest logits of the first %d steps at\n"
    "  most %g (weights of 8 bits and more) or %g (of less) apart; and each kernel under test must have been called more than\n"
    "  %d times a layer, so that the gate cannot pass because it did not run. Of quantized weights the judge is l1 of the same\n"
    "  values in bf16, because mlx-lm's own sums of quantized products are further from float64 than ours\n"
    "  ([decisions](decisions/README.md)).\n"
    "- *fd*: float64 and differences of the forward. *kl*: a bound of the KL to float64, or of the statistics of draws.\n";

static void print_cell(const char *s) {
    for (; *s; s++) printf(*s == '|' ? "\\|" : "%c", *s);
}

static void print_nodes(bool training) {
    const ig_tier_node *n;
    printf("\n## Nodes of %s\n\n| node | what | tier | held by | in l1, l2, l3 | options | test |\n|---|---|---|---|---|---|---|\n",
           training ? "training" : "inference");
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
        if (n->training != training) continue;
        printf("| %s | ", n->id);
        print_cell(n->does);
        if (n->when) printf(" (when: %s)", n->when);
        printf(" | %s | %s | ", ig_tier_name(n->tier), ig_tiers_held(n, n->gate).s);
        for (int t = 0; t < IG_TIERS; t++) printf("%s%s", t ? ", " : "", n->in[t] ? n->in[t] : "off");
        printf(" | %s | %s |\n", n->flags ? n->flags : "", n->proof ? n->proof : "");
    }
}

/* The scalar variant is there on every machine. */
static void print_kernels(void) {
    const ig_kern *k;
    int n = 0;
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++) {
        if (k->tier == IG_TIER_L3 || k->cpu_needs) continue;
        if (n++ == 0) printf("\n## Kernels of l1 and l2\n\nAll others are of l3.\n\n| op | format | tier |\n|---|---|---|\n");
        printf("| %s | %s | %s |\n", ig_kern_op_name(k->op), k->fmt ? k->fmt->name : "", ig_tier_name(k->tier));
    }
    if (n == 0) printf("\n## Kernels\n\nAll kernels are of l3.\n");
}

int ig_tiers_print_page(void) {
    const ig_tier_envelope *e = &ig_tier_envelope_gate;
    fputs(head, stdout);
    printf(envelope, e->n_steps, e->prompt_tokens[0], e->prompt_tokens[1], e->n_agree, e->n_steps, (double)e->kl_mean,
           e->n_top, e->n_first, (double)e->logit_8, (double)e->logit_4, e->calls_a_layer);
    print_nodes(false);
    print_nodes(true);
    print_kernels();
    return IG_EXIT_OK;
}
