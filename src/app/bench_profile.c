/* bench_profile: where the time of a forward goes. A watched forward calls when an op begins; what passes
 * until the next op belongs to the one before. That costs a look at the clock for each op, about 1 % of the
 * step of a small model.
 * An op of several kernels calls once for each of them before it computes: those calls are one op here. */
#include "app/bench.h"

#include <stdio.h>
#include <string.h>

/* The first call of an op of several, what they are called together, and the calls that follow it. */
static const struct {
    const char *first, *name;
} starts[] = {{"linear q", "q, k, v"}, {"linear gate", "gate, up"}};
static const char *const follows[] = {"linear k",  "linear v", "norm of heads",  "kv append",
                                      "linear up", "glu",      "attention join", "softcap"};

static bool is_one_of(const char *op, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(op, names[i]) == 0) return true;
    return false;
}

static bool same(const ig_bench_op *a, const ig_bench_op *b) {
    return strcmp(a->name, b->name) == 0 && a->kern == b->kern &&
           memcmp(a->fmt, b->fmt, sizeof a->fmt) == 0 &&
           (a->weight == b->weight || (a->weight && b->weight && strcmp(a->weight, b->weight) == 0));
}

static int rows_of(const ig_bench_watch *w) {
    return w->n_attentions < w->config->n_layers ? w->n_rows : w->n_want;
}

/* What was begun is over at `now_ns`. Past the last place it is left out: shares then say less than 100 %. */
static void close_op(ig_bench_watch *w, uint64_t now_ns) {
    ig_bench_profile *p = w->to;
    int i = 0;
    if (!w->open) return;
    w->open = false;
    while (i < p->n_ops && !same(&p->op[i], &w->now)) i++;
    if (i == IG_BENCH_OPS_MAX) return;
    if (i == p->n_ops) p->op[p->n_ops++] = w->now;
    ig_bench_op *op = &p->op[i];
    if (op->n_calls++ == 0) op->macs = op->bytes = 0;
    op->ns += now_ns - w->since_ns;
    op->macs += w->now.macs + w->row_macs * rows_of(w);
    op->bytes += w->now.bytes;
}

static void add_weight(ig_bench_watch *w, const ig_weight *weight) {
    ig_bench_op *op = &w->now;
    int i = 0;
    w->row_macs += (double)weight->n_rows * weight->n_cols;
    op->bytes += (double)weight->panel_bytes * ig_weight_n_panels(weight);
    while (i < IG_BENCH_OP_WEIGHTS && op->fmt[i] && op->fmt[i] != weight->fmt) i++;
    if (i < IG_BENCH_OP_WEIGHTS) op->fmt[i] = weight->fmt;
}

static void add_attention(ig_bench_watch *w) {
    const ig_model_config *c = w->config;
    const int layer = w->n_attentions++, windowed = layer < c->n_layers ? c->windowed[layer] : 0;
    const ig_bench_seen *seen = w->n_attentions < c->n_layers ? &w->all : &w->wanted;
    if (windowed) w->now.name = "attention, window";
    w->now.macs = 2.0 * c->n_heads * c->head_dim * seen->rows[windowed];
    w->now.bytes = 2.0 * c->n_kv_heads * (double)ig_kv_part_bytes(w->kv_kind, c->head_dim) / IG_KV_BLOCK_TOKENS *
                   seen->seqs[windowed];
}

void ig_bench_watch_op(void *ud, const char *op, const ig_kern *k, const ig_weight *weight) {
    ig_bench_watch *w = ud;
    if (!w->open || !is_one_of(op, follows, sizeof follows / sizeof *follows)) {
        const uint64_t now_ns = ig_clock_ns();
        close_op(w, now_ns);
        w->now = (ig_bench_op){.name = op, .kern = k, .weight = weight ? weight->name : NULL};
        w->row_macs = 0;
        w->open = true;
        w->since_ns = now_ns;
        for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
            if (strcmp(op, starts[i].first) == 0) w->now.name = starts[i].name, w->now.weight = NULL;
        if (k->op == IG_KERN_ATTENTION) add_attention(w);
    }
    if (weight) add_weight(w, weight);
}

static int seen_of(const ig_model_config *c, int pos, bool windowed) {
    return windowed && pos >= c->window ? c->window : pos + 1;
}

static ig_bench_seen seen_by(const ig_model_config *c, const ig_rows *rows, const int *pick, int n) {
    ig_bench_seen s = {{0, 0}, {0, 0}};
    for (int i = 0; i < n; i++) {
        const int t = pick ? pick[i] : i, next = i + 1 == n ? -1 : pick ? pick[i + 1] : i + 1;
        for (int k = 0; k < 2; k++) {
            const int seen = seen_of(c, rows->pos[t], k == 1);
            s.rows[k] += seen;
            if (next < 0 || rows->seq[next] != rows->seq[t]) s.seqs[k] += seen;
        }
    }
    return s;
}

void ig_bench_watch_begin(ig_bench_watch *w, const ig_rows *rows) {
    w->n_rows = rows->n_rows;
    w->n_want = rows->n_want;
    w->n_attentions = 0;
    w->all = seen_by(w->config, rows, NULL, rows->n_rows);
    w->wanted = seen_by(w->config, rows, rows->want, rows->n_want);
}

void ig_bench_watch_end(ig_bench_watch *w) {
    close_op(w, ig_clock_ns());
}

ig_bench_text ig_bench_weight_text(const char *name) {
    ig_bench_text t;
    const char *layer = strstr(name, "%d."), *from = layer ? layer + 3 : name, *end = strstr(from, ".weight");
    snprintf(t.s, sizeof t.s, "%.*s", end ? (int)(end - from) : (int)strlen(from), from);
    return t;
}

/* ---- how much there is to multiply ------------------------------------------------------------------- */

static void count_macs(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    ig_bench_macs *m = ud;
    (void)op;
    if (k->op == IG_KERN_ATTENTION) m->n_attentions++;
    if (w) *(m->n_attentions < m->n_layers ? &m->token : &m->wanted) += (double)w->n_rows * w->n_cols;
}

ig_bench_macs ig_bench_macs_of(const ig_model *m) {
    ig_bench_macs macs = {.n_layers = ig_model_config_of(m)->n_layers};
    ig_model_trace(m, count_macs, &macs);
    return macs;
}

double ig_bench_attention_macs(const ig_model_config *c, int from, int wanted, int to) {
    double seen = 0;
    for (int i = 0; i < c->n_layers; i++)
        for (int p = i < c->n_layers - 1 ? from : wanted; p < to; p++) seen += seen_of(c, p, c->windowed[i]);
    return 2.0 * c->n_heads * c->head_dim * seen;
}
