/* bench_plan: from lists of numbers to the rows that are measured.
 * Why default rows may vanish and asked ones may not: a default must do something sensible for every model, a
 * number that somebody wrote must be done or refused. */
#include "app/bench.h"

#include <stdlib.h>

ig_bench_wish ig_bench_wish_defaults(void) {
    return (ig_bench_wish){.prompts = {{128, 512, 2048, 8192}, 4},
                           .contexts = {{128, 2048, 8192}, 3},
                           .batches = {{1, 2, 4, 8, 16}, 5},
                           .threads = {{0}, 1},
                           .n_tokens = 64,
                           .n_runs = 3};
}

static int by_value(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Ascending, each once, none below `least`. */
static ig_option_ints tidy(ig_option_ints list, int least) {
    ig_option_ints out = {.n = 0};
    qsort(list.v, (size_t)list.n, sizeof *list.v, by_value);
    for (int i = 0; i < list.n; i++)
        if (list.v[i] >= least && (out.n == 0 || out.v[out.n - 1] != list.v[i])) out.v[out.n++] = list.v[i];
    return out;
}

void ig_bench_wish_settle(ig_bench_wish *wish) {
    ig_bench_wish w = *wish;
    if (w.quick && !w.prompts_given) w.prompts = (ig_option_ints){{128, 512}, 2};
    if (w.quick && !w.contexts_given && !w.prompts_given) w.contexts = (ig_option_ints){{128}, 1};
    if (w.quick && !w.batches_given) w.batches = (ig_option_ints){{1, 4}, 2};
    if (w.quick && !w.tokens_given) w.n_tokens = 32;
    if (w.quick && !w.runs_given) w.n_runs = 2;
    w.prompts = tidy(w.prompts, 1);
    if (w.prompts_given && !w.contexts_given && w.prompts.n > 0) w.contexts = w.prompts;
    w.contexts = tidy(w.contexts, 0);
    w.batches = tidy(w.batches, 2); /* one sequence is a row anyway */
    if (w.n_tokens == 0) w.contexts.n = w.batches.n = 0;
    *wish = w;
}

static void add_prompt(ig_bench_row *rows, int *n_rows, int n, bool asked) {
    rows[(*n_rows)++] = (ig_bench_row){.work = IG_BENCH_PREFILL, .n_tokens = n, .n_seqs = 1, .asked = asked};
}

static ig_status plan_prompts(ig_bench_row *rows, int *n_rows, const ig_bench_wish *w, int n_ctx,
                              ig_err *err) {
    const int first = *n_rows;
    for (int i = 0; i < w->prompts.n; i++) {
        const int n = w->prompts.v[i];
        if (n > n_ctx && w->prompts_given)
            return ig_fail(err, IG_EINVAL, "a prompt of %d tokens is more than the model's context of %d", n,
                           n_ctx);
        if (n <= n_ctx) add_prompt(rows, n_rows, n, w->prompts_given);
    }
    if (*n_rows == first && w->prompts.n > 0) add_prompt(rows, n_rows, n_ctx, false);
    return IG_OK;
}

static void add_context(ig_bench_row *rows, int *n_rows, int n, int n_tokens, bool asked) {
    if (*n_rows > 0 && rows[*n_rows - 1].work == IG_BENCH_DECODE && rows[*n_rows - 1].n_context == n) return;
    rows[(*n_rows)++] = (ig_bench_row){
        .work = IG_BENCH_DECODE, .n_tokens = n_tokens, .n_context = n, .n_seqs = 1, .asked = asked};
}

/* The tokens come behind the context: a default one that fills the model's makes room for them. */
static ig_status plan_contexts(ig_bench_row *rows, int *n_rows, const ig_bench_wish *w, int n_ctx,
                               ig_err *err) {
    const bool asked = w->contexts_given || w->prompts_given;
    const int first = *n_rows;
    int n_tokens = w->n_tokens;
    if (!w->tokens_given && n_tokens > n_ctx / 2) n_tokens = n_ctx / 2 > 0 ? n_ctx / 2 : 1;
    const int room = n_ctx - n_tokens;
    for (int i = 0; i < w->contexts.n; i++) {
        const int n = w->contexts.v[i];
        if (room < 0 || (n > room && w->contexts_given))
            return ig_fail(err, IG_EINVAL,
                           "%d tokens behind a context of %d are more than the model's context of %d",
                           n_tokens, n, n_ctx);
        if (n <= n_ctx) add_context(rows, n_rows, n < room ? n : room, n_tokens, asked);
    }
    if (*n_rows == first && w->contexts.n > 0) add_context(rows, n_rows, room, n_tokens, false);
    return IG_OK;
}

ig_status ig_bench_plan(ig_bench_row rows[IG_BENCH_ROWS_MAX], int *n_rows, const ig_bench_wish *w, int n_ctx,
                        ig_err *err) {
    int n = 0;
    ig_status st = plan_prompts(rows, &n, w, n_ctx, err);
    const int first = n;
    if (!st) st = plan_contexts(rows, &n, w, n_ctx, err);
    if (st) return st;
    const bool decodes = first < n;
    for (int i = 0; i < w->batches.n && decodes; i++) {
        rows[n] = rows[first];
        rows[n++].n_seqs = w->batches.v[i];
    }
    if (n == 0)
        return ig_fail(err, IG_EINVAL, "nothing to measure: neither prompts nor tokens are asked for");
    *n_rows = n;
    return IG_OK;
}
