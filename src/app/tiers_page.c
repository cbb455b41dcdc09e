/* tiers_page: docs/parity.md: a text about what tiers promise, then the list of nodes and of exact kernels. The page is
 * the same from every machine and compiler: of kernels it names cells, op and format, not their variants. */
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
    "(tools/proof.py).\n"
    "- *envelope*: 64 greedy tokens of l1 after prose of 600 and of 2,048 tokens are given to l3 token by token. It must "
    "name the\n  same first token in 56 of 64 steps, with a mean KL of at most 0.02 and the 128 largest logits of the first "
    "four steps at most\n  0.5 (8 bits and more) or 1.0 (4 bits) apart; and calls are counted, so that a gate cannot pass "
    "because the kernel did not run.\n"
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
    fputs(head, stdout);
    print_nodes(false);
    print_nodes(true);
    print_kernels();
    return IG_EXIT_OK;
}
