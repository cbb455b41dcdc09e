/* The envelope gate of tier l3 (tier/tier.h): the judge's greedy tokens, in l1, are given to the candidate, in l3, one by
 * one. Argmax, KL, the largest logits and the calls of the kernels under test are compared with the bounds.
 *     envelope JUDGE CANDIDATE TOKENS --bits 4|8 --ops linear,attention [--threads N] [--force scalar|l1]
 *              [--judge-tier l3] [--noise X]
 * One JSON object; exit code 0: inside the envelope, 3: outside. JUDGE is of the same values (of quantized weights, the
 * same in bf16). Controls: --force opens the candidate without the kernels under test, --noise moves its logits.
 * Linked from the objects of a build by dump.mk. */
#include "dump_common.h"

#include "model/model.h"
#include "tier/tier.h"

#include <math.h>
#include <sys/stat.h>

enum { CHUNK = 128, OUTSIDE = 3, NO_CPU = 1u << 30 /* a bit that no kernel needs */ };

static void check(ig_status st, const ig_err *err) {
    if (st != IG_OK) dump_die(ig_status_name(st), err->msg);
}

/* ---- one model, one sequence --------------------------------------------------------------------------- */

typedef struct runner {
    ig_model *model;
    ig_kv_pool *kv;
    ig_kv_seq *seq;
    ig_arena arena;
    float *logits; /* of the last row */
    size_t n_vocab;
} runner;

static void open_runner(runner *r, const char *path, const ig_model_options *o, int n_ctx, int n_prompt) {
    ig_err err = {0};
    ig_gguf *file = NULL;
    ig_snapshot *folder = NULL;
    struct stat info;
    void *memory;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) check(ig_snapshot_open(&folder, path, &err), &err);
    else check(ig_gguf_open(&file, path, &err), &err);
    check(ig_model_open(&r->model, (ig_checkpoint){file, folder}, o, &err), &err);
    ig_gguf_close(file), ig_snapshot_close(folder);
    const ig_kv_shape shape = ig_model_kv_shape(r->model);
    check(ig_kv_pool_make(&r->kv, shape, ig_kv_room_for(shape, 1, n_ctx, CHUNK), 1, n_ctx, &err), &err);
    r->n_vocab = (size_t)ig_model_config_of(r->model)->n_vocab;
    r->arena.cap_bytes = ig_model_plan(r->model, CHUNK, 1, n_ctx);
    check(ig_pages_map(&memory, r->arena.cap_bytes, false, &err), &err);
    r->arena.base = memory;
    r->logits = calloc(r->n_vocab, sizeof *r->logits);
    if (!r->logits) dump_die("no memory for", "a row of logits");
    r->seq = ig_kv_seq_open(r->kv);
    r->seq->ring_from = n_prompt - 1; /* as mlx-lm generates: the last token of the prompt comes alone */
}

static void close_runner(runner *r) {
    ig_kv_seq_close(r->kv, r->seq);
    ig_pages_unmap(r->arena.base, r->arena.cap_bytes);
    ig_kv_pool_free(r->kv);
    ig_model_close(r->model);
    free(r->logits);
}

/* n tokens in chunks; the logits of the last. */
static void run(runner *r, const uint32_t *ids, int n) {
    ig_err err = {0};
    int pos[CHUNK], seq_of[CHUNK] = {0}, want;
    for (int at = 0; at < n; at += CHUNK) {
        const int m = n - at < CHUNK ? n - at : CHUNK, past = r->seq->n_tokens;
        if (!ig_kv_seq_reserve(r->kv, r->seq, past + m)) dump_die("no KV blocks for", "a step");
        for (int i = 0; i < m; i++) pos[i] = past + i;
        want = m - 1;
        const ig_rows rows = {.n_rows = m, .token = ids + at, .pos = pos, .seq = seq_of, .kv_seq = &r->seq, .kv = r->kv,
                              .n_ctx = past + m, .want = &want, .n_want = at + m == n};
        check(ig_model_forward(r->model, &r->arena, &rows, r->logits, &err), &err);
        r->seq->n_tokens += m;
    }
}

static size_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- the comparison
 * ------------------------------------------------------------------------------------- */

static double log_sum(const float *x, size_t n) {
    const double top = (double)x[argmax(x, n)];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

static double divergence(const float *p, const float *q, size_t n) {
    const double lp = log_sum(p, n), lq = log_sum(q, n);
    double kl = 0;
    for (size_t i = 0; i < n; i++) kl += exp((double)p[i] - lp) * (((double)p[i] - lp) - ((double)q[i] - lq));
    return kl;
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Over the n_top largest of p. */
static double largest_gap(const float *p, const float *q, size_t n, int n_top) {
    float *sorted = calloc(n, sizeof *sorted);
    double gap = 0;
    if (!sorted) dump_die("no memory for", "a vocabulary");
    memcpy(sorted, p, n * sizeof *p);
    qsort(sorted, n, sizeof *sorted, descending);
    const float least = sorted[(size_t)n_top < n ? (size_t)n_top - 1 : n - 1];
    for (size_t i = 0; i < n; i++)
        if (p[i] >= least) gap = fmax(gap, fabs((double)p[i] - (double)q[i]));
    free(sorted);
    return gap;
}

/* Under test: kernels of l3 that the processor's own bits choose. */
typedef struct counts {
    long of[IG_KERN_N_OPS];
} counts;
static void on_op(void *ud, const char *op, const ig_kern *k, const ig_weight *w) {
    counts *c = ud;
    (void)op, (void)w;
    if (k->tier == IG_TIER_L3 && k == ig_kern_pick(k->op, k->fmt, IG_TIER_L3, ig_cpu_features())) c->of[k->op]++;
}

static int op_named(const char *name, size_t n) {
    for (int op = 0; op < IG_KERN_N_OPS; op++) {
        const char *own = ig_kern_op_name((ig_kern_op)op);
        if (strlen(own) == n && memcmp(own, name, n) == 0) return op;
    }
    dump_die("no op of kernels is called as in --ops", name);
}

typedef struct found {
    int n_agree;
    double kl_mean, gap;
    counts calls;
} found;

static bool print(const found *f, const char *ops, int n_prompt, int n_layers, float gap_max) {
    const ig_tier_envelope *e = &ig_tier_envelope_gate;
    const long least = (long)e->calls_a_layer * n_layers;
    bool ok = f->n_agree >= e->n_agree && f->kl_mean <= (double)e->kl_mean && f->gap <= (double)gap_max;
    printf("{\"prompt_tokens\":%d,\"steps\":%d,\"agree\":%d,\"agree_least\":%d,\"kl_mean\":%.3g,\"kl_most\":%g,"
           "\"logit_gap\":%.3g,\"logit_gap_most\":%g,\"calls_more_than\":%ld,\"calls\":{",
           n_prompt, e->n_steps, f->n_agree, e->n_agree, f->kl_mean, (double)e->kl_mean, f->gap, (double)gap_max, least);
    for (const char *p = ops; *p;) {
        const size_t n = strcspn(p, ",");
        const long calls = f->calls.of[op_named(p, n)];
        printf("%s\"%.*s\":%ld", p == ops ? "" : ",", (int)n, p, calls);
        ok &= calls > least;
        p += n + (p[n] == ',');
    }
    printf("},\"inside\":%s}\n", ok ? "true" : "false");
    return ok;
}

int main(int argc, char **argv) {
    const char *ops = NULL, *force = "", *judge_tier = "l1";
    int threads = 2, bits = 0;
    float noise = 0.0f;
    if (argc < 4) dump_die("usage", "envelope JUDGE CANDIDATE TOKENS --bits 4|8 --ops linear,attention");
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *o = argv[i], *v = argv[i + 1];
        if (strcmp(o, "--bits") == 0) bits = dump_int(v, "--bits", 16);
        else if (strcmp(o, "--ops") == 0) ops = v;
        else if (strcmp(o, "--threads") == 0) threads = dump_int(v, "--threads", 256);
        else if (strcmp(o, "--force") == 0) force = v;
        else if (strcmp(o, "--judge-tier") == 0) judge_tier = v;
        else if (strcmp(o, "--noise") == 0) noise = strtof(v, NULL);
        else dump_die("unknown option", o);
    }
    if (argc % 2 || !bits || !ops) dump_die("an option lacks its value, or is missing:", "--bits, --ops");
    char *parsed[] = {argv[0], argv[1], argv[3], (char *)(uintptr_t) "-"};
    dump_args a = dump_parse(4, parsed);
    const ig_tier_envelope *e = &ig_tier_envelope_gate;
    const int n_ctx = a.n_ids + e->n_steps;
    ig_err err = {0};
    ig_pool *pool;
    check(ig_pool_make(&pool, threads, &err), &err);

    runner judge = {0}, ours = {0};
    found f = {0};
    const ig_model_options exact = {.pool = pool, .tier_max = strcmp(judge_tier, "l3") == 0 ? IG_TIER_L3 : IG_TIER_L1};
    const ig_model_options fast = {.pool = pool, .tier_max = strcmp(force, "l1") == 0 ? IG_TIER_L1 : IG_TIER_L3,
                                   .cpu = strcmp(force, "scalar") == 0 ? NO_CPU : 0};
    open_runner(&judge, argv[1], &exact, n_ctx, a.n_ids);
    open_runner(&ours, argv[2], &fast, n_ctx, a.n_ids);
    const size_t n = judge.n_vocab;
    if (ours.n_vocab != n) dump_die("the vocabularies differ:", argv[2]);
    const uint32_t *ids = (const uint32_t *)a.ids;
    ig_model_watch(ours.model, on_op, &f.calls);
    run(&judge, ids, a.n_ids), run(&ours, ids, a.n_ids);
    for (int i = 0; i < e->n_steps; i++) {
        const uint32_t next = (uint32_t)argmax(judge.logits, n);
        for (size_t k = 0; k < n && noise != 0.0f; k++) ours.logits[k] += noise * sinf((float)(k * 7 + (size_t)i));
        f.n_agree += argmax(ours.logits, n) == next;
        f.kl_mean += divergence(judge.logits, ours.logits, n) / e->n_steps;
        if (i < e->n_first) f.gap = fmax(f.gap, largest_gap(judge.logits, ours.logits, n, e->n_top));
        run(&judge, &next, 1), run(&ours, &next, 1);
    }
    const bool ok = print(&f, ops, a.n_ids, ig_model_config_of(ours.model)->n_layers, bits >= 8 ? e->logit_8 : e->logit_4);
    close_runner(&judge), close_runner(&ours);
    ig_pool_free(pool);
    free(a.ids);
    return ok ? 0 : OUTSIDE;
}
