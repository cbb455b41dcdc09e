/* tiers: whose numbers results are: node by node of one model, or the whole list. The page docs/parity.md
 * is the same list after a text of its own (tiers_page.c). The weights of a model are read, so that the
 * kernels are no guess. */
#include "app/load.h"
#include "app/nodes.h"
#include "app/tiers.h"
#include "file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct wish {
    ig_load_options load;
    ig_tier only;        /* 0: all */
    const char *reaches; /* an option; NULL: all */
    bool json, markdown;
} wish;

static bool wanted(const wish *w, const ig_tier_node *n, ig_tier t) {
    return (!w->only || t == w->only) && (!w->reaches || ig_tier_lists(n->flags, " ", w->reaches));
}

ig_tiers_text ig_tiers_held(const ig_tier_node *n, ig_gate gate) {
    ig_tiers_text t;
    const bool own = gate == n->gate && n->oracle;
    snprintf(t.s, sizeof t.s, "%s%s%s", gate == IG_GATE_NONE ? "" : ig_gate_name(gate), own ? ", " : "",
             own ? n->oracle : "");
    return t;
}

/* ---- as a table: 100 columns -------------------------------------------------------------------------- */

/* Without the blanks at its end. */
static void print_line(char *line) {
    size_t n = strlen(line);
    while (n && line[n - 1] == ' ') n--;
    printf("%.*s\n", (int)n, line);
}

static void print_plan(const wish *w, const ig_tier_plan *p, const char *name) {
    const ig_tier_node *last = NULL;
    bool asked = false;
    printf("%s, --%s\n\n", name, ig_tier_name(p->asked));
    printf("%-20s %-4s  %-38s %6s  %s\n", "node", "tier", "kernel", "calls", "held by");
    for (int i = 0; i < p->n_rows; i++) {
        const ig_tier_row *r = &p->row[i];
        char calls[16] = "", line[256];
        if (!wanted(w, r->node, r->tier)) continue;
        if (r->n_calls) snprintf(calls, sizeof calls, "%d", r->n_calls);
        const bool first = r->node != last;
        const ig_tiers_text held = ig_tiers_held(r->node, r->gate);
        if (!asked && ig_node_may_be_asked(r->node)) asked = true, printf("when asked for:\n");
        const char *when = first && r->node->when ? r->node->when : "", *kern = r->kern ? r->kern->name : when;
        snprintf(line, sizeof line, "%-20s %-4s  %-38s %6s  %s%s%s", first ? r->node->id : "",
                 first ? ig_tier_name(r->tier) : "", kern, calls, first ? held.s : "",
                 r->kern && *when ? "; " : "", r->kern ? when : "");
        print_line(line);
        last = r->node;
    }
    printf("\nthe plan is of tier %s, %s", ig_tier_name(p->greedy), ig_tier_promise(p->greedy));
    printf("; above temperature 0 of tier %s\n", ig_tier_name(p->sampled));
}

static void print_list(const wish *w) {
    const ig_tier_node *n;
    int n_of[IG_TIERS + 1] = {0};
    char line[256];
    printf("%-20s %-4s  %-20s  %-4s %-4s %-4s %s\n", "node", "tier", "held by", "l1", "l2", "l3", "options");
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++) {
        const char *in[IG_TIERS];
        if (!wanted(w, n, n->tier)) continue;
        n_of[n->tier]++;
        for (int t = 0; t < IG_TIERS; t++) in[t] = n->in[t] ? n->in[t] : "off";
        snprintf(line, sizeof line, "%-20s %-4s  %-20s  %-4s %-4s %-4s %s", n->id, ig_tier_name(n->tier),
                 ig_tiers_held(n, n->gate).s, in[0], in[1], in[2], n->flags ? n->flags : "");
        print_line(line);
        printf("  %s%s%s%s\n", n->does, n->when ? "; when: " : "", n->when ? n->when : "",
               n->training ? "; training" : "");
    }
    printf("\nnodes: %d of l1, %d of l2, %d of l3, %d without numbers; a kernel may make one worse\n",
           n_of[1], n_of[2], n_of[3], n_of[0]);
}

/* ---- as JSON ------------------------------------------------------------------------------------------- */

static void add_text(yyjson_mut_doc *d, yyjson_mut_val *o, const char *key, const char *text) {
    if (text) yyjson_mut_obj_add_str(d, o, key, text);
    else yyjson_mut_obj_add_null(d, o, key);
}

static void add_node(yyjson_mut_doc *d, yyjson_mut_val *o, const ig_tier_node *n) {
    yyjson_mut_obj_add_str(d, o, "id", n->id);
    yyjson_mut_obj_add_str(d, o, "does", n->does);
    yyjson_mut_obj_add_str(d, o, "own_tier", ig_tier_name(n->tier));
    yyjson_mut_obj_add_str(d, o, "gate", ig_gate_name(n->gate));
    add_text(d, o, "oracle", n->oracle);
    add_text(d, o, "proof", n->proof);
    add_text(d, o, "when", n->when);
    yyjson_mut_obj_add_str(d, o, "flags", n->flags ? n->flags : "");
    yyjson_mut_obj_add_bool(d, o, "training", n->training);
    yyjson_mut_val *in = yyjson_mut_obj_add_obj(d, o, "default");
    for (int t = 0; t < IG_TIERS; t++)
        yyjson_mut_obj_add_str(d, in, ig_tier_name((ig_tier)(t + 1)), n->in[t] ? n->in[t] : "off");
    yyjson_mut_val *runs = yyjson_mut_obj_add_arr(d, o, "kernel_ops");
    for (int op = 0; op < IG_KERN_N_OPS; op++)
        if ((n->runs | n->also) >> op & 1) yyjson_mut_arr_add_str(d, runs, ig_kern_op_name((ig_kern_op)op));
}

/* `scalar` is what other variants of a cell are compared with; `runs_here`: this processor can. */
static void add_kernel(yyjson_mut_doc *d, yyjson_mut_val *o, const ig_kern *k) {
    const char *dot = strrchr(k->name, '.');
    yyjson_mut_obj_add_str(d, o, "name", k->name);
    yyjson_mut_obj_add_str(d, o, "op", ig_kern_op_name(k->op));
    add_text(d, o, "format", k->fmt ? k->fmt->name : NULL);
    yyjson_mut_obj_add_str(d, o, "tier", ig_tier_name(k->tier));
    yyjson_mut_obj_add_str(d, o, "isa", dot ? dot + 1 : "");
    yyjson_mut_obj_add_bool(d, o, "scalar", k->cpu_needs == 0);
    yyjson_mut_obj_add_bool(d, o, "runs_here", (k->cpu_needs & ~ig_cpu_features()) == 0);
}

static int print_list_json(const wish *w) {
    bool lost;
    const ig_tier_node *n;
    const ig_kern *k;
    yyjson_mut_doc *d = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(d), *list;
    yyjson_mut_doc_set_root(d, root);
    list = yyjson_mut_obj_add_arr(d, root, "nodes");
    for (int i = 0; (n = ig_node_at(i)) != NULL; i++)
        if (wanted(w, n, n->tier)) add_node(d, yyjson_mut_arr_add_obj(d, list), n);
    list = yyjson_mut_obj_add_arr(d, root, "kernels");
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++)
        if (!w->only || k->tier == w->only) add_kernel(d, yyjson_mut_arr_add_obj(d, list), k);
    return ig_app_print_json(d, lost);
}

static int print_plan_json(const wish *w, const ig_tier_plan *p, const char *name) {
    bool lost;
    yyjson_mut_doc *d = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(d), *list, *kernels = NULL;
    const ig_tier_node *last = NULL;
    yyjson_mut_doc_set_root(d, root);
    ig_json_add_bytes(d, root, "model", name);
    yyjson_mut_obj_add_str(d, root, "asked", ig_tier_name(p->asked));
    yyjson_mut_obj_add_str(d, root, "tier", ig_tier_name(p->greedy));
    yyjson_mut_obj_add_str(d, root, "tier_sampled", ig_tier_name(p->sampled));
    list = yyjson_mut_obj_add_arr(d, root, "nodes");
    for (int i = 0; i < p->n_rows; i++) {
        const ig_tier_row *r = &p->row[i];
        if (!wanted(w, r->node, r->tier)) continue;
        if (r->node != last) {
            yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list);
            add_node(d, o, last = r->node);
            yyjson_mut_obj_add_str(d, o, "tier", ig_tier_name(r->tier));
            yyjson_mut_obj_add_str(d, o, "held_by", ig_gate_name(r->gate));
            kernels = yyjson_mut_obj_add_arr(d, o, "kernels");
        }
        if (!r->kern) continue;
        yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, kernels);
        add_kernel(d, o, r->kern);
        yyjson_mut_obj_add_int(d, o, "calls", r->n_calls);
    }
    return ig_app_print_json(d, lost);
}

/* ---- the verb ------------------------------------------------------------------------------------------ */

static int show_plan(const wish *w, const char *path) {
    static ig_tier_plan plan;
    ig_gguf *gguf = NULL;
    ig_snapshot *snapshot = NULL;
    ig_pool *pool = NULL;
    ig_model *m = NULL;
    ig_err err;
    char name[128];
    int code = IG_EXIT_OK;
    const ig_load_options *o = &w->load;
    ig_model_options mo = {.tier_max = ig_load_tier(o), .memory_budget_bytes = o->engine.memory_budget_bytes,
                           .kv_kind = ig_load_kv_kind(o), .two_parts = o->act_bits == 16};
    if (!mo.memory_budget_bytes) mo.memory_budget_bytes = ig_memory_available_bytes() / 4 * 3;
    ig_kv_config kv_config;
    mo.kv_config = &kv_config;
    ig_status st = ig_load_files(&gguf, &snapshot, path, &err);
    if (!st) st = ig_load_kv_config(&kv_config, o, path, &err);
    if (!st) st = ig_pool_make(&pool, o->n_threads > 0 ? o->n_threads : ig_cpu_count(), &err);
    mo.pool = pool;
    if (!st) st = ig_model_open(&m, (ig_checkpoint){gguf, snapshot}, &mo, &err);
    if (!st) {
        ig_tier_plan_make(&plan, m, ig_load_tier(o));
        ig_models_name(name, sizeof name, path);
        if (w->json) code = print_plan_json(w, &plan, name);
        else print_plan(w, &plan, name);
    } else {
        code = ig_app_fail(&err);
    }
    if (m) ig_model_close(m);
    ig_pool_free(pool);
    ig_gguf_close(gguf);
    ig_snapshot_close(snapshot);
    return code;
}

static int check(wish *w, const ig_command *c, const char *only) {
    for (int t = IG_TIER_L1; only && t <= IG_TIER_L3; t++)
        if (strlen(only) == 2 && (*only | 0x20) == 'l' && only[1] == ig_tier_name((ig_tier)t)[1]) w->only = (ig_tier)t;
    if (only && !w->only) return ig_app_say(IG_EXIT_USAGE, "--tier is \"%.40s\"; it wants l1, l2 or l3", only);
    while (w->reaches && *w->reaches == '-') w->reaches++;
    bool known = !w->reaches;
    for (int i = 0; i < c->n_options && !known; i++)
        known = c->options[i].numbers && strcmp(c->options[i].name, w->reaches) == 0;
    if (!known)
        return ig_app_say(IG_EXIT_USAGE, "--reaches is \"%.40s\", which changes no numbers; it wants one of l1 l2 l3 "
                                         "kv-bits act-bits", w->reaches);
    return ig_load_check_numbers(&w->load);
}

int ig_cmd_tiers(int argc, char **argv) {
    wish w = {.load = ig_load_defaults()};
    const char *only = NULL;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &w.load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"json", .kind = IG_OPT_BOOL, .to = &w.json, .help = "one JSON object"},
        {"markdown", .kind = IG_OPT_BOOL, .to = &w.markdown, .help = "the page docs/parity.md"},
        {"tier", .kind = IG_OPT_TEXT, .to = &only, .value = "TIER", .help = "nodes of this tier only"},
        {"reaches", .kind = IG_OPT_TEXT, .to = &w.reaches, .value = "OPTION",
         .help = "nodes that this option reaches only"},
        IG_LOAD_OPTIONS(w.load),
    };
    const ig_command c = {
        .verb = "tiers",
        .words = "[MODEL]",
        .summary = "Which node of a model runs at which tier, by which kernel, held by what; without MODEL all nodes.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1};
    ig_words words;
    char *path = NULL;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) w.load.model = words.v[0];
    if ((code = check(&w, &c, only))) return code;
    if (w.markdown) return ig_tiers_print_page();
    if (!w.load.model) {
        if (w.json) return print_list_json(&w);
        print_list(&w);
        return IG_EXIT_OK;
    }
    if ((code = ig_models_find(&path, w.load.model))) return code;
    code = show_plan(&w, path);
    free(path);
    return code;
}
