/* plan: the same forward with an arena that only counts. The bytes and the list of kernels come from the
 * code that will run, so they cannot disagree with it.
 * Memory:  the model's own for shapes, taken when it is opened: a plan cannot fail. One at a time. */
#include "model/inside.h"

#include <stdlib.h>

enum { TENSORS_PER_LAYER = 32 };

static size_t shapes_bytes(int n_layers) {
    return (size_t)(n_layers + 2) * TENSORS_PER_LAYER * 2 * IG_ALIGN_BYTES;
}

ig_status ig_model_make_shapes(ig_model *m, ig_err *err) {
    const size_t n = shapes_bytes(m->config.n_layers);
    m->shapes = malloc(n);
    return m->shapes ? IG_OK : ig_fail(err, IG_ELIMIT, "no memory for %zu bytes of shapes", n);
}

static size_t plan(const ig_model *m, ig_rows rows, int n_hidden, ig_trace_fn *trace, void *ud) {
    ig_arena counting = {.counting = true, .cap_bytes = SIZE_MAX};
    ig_arena shapes = {.base = m->shapes, .cap_bytes = shapes_bytes(m->config.n_layers)};
    ig_run r = {.arena = &counting,
                .shapes = &shapes,
                .pool = m->pool,
                .kern = &m->kern,
                .two_parts = m->two_parts,
                .trace = trace,
                .trace_ud = ud};
    ig_model_run(m, &r, &rows, (ig_model_out){.n_hidden = n_hidden});
    ig_assert(r.status == IG_OK);
    return counting.peak_bytes;
}

size_t ig_model_plan(const ig_model *m, int n_rows, int n_want, int n_ctx) {
    static const int want[1]; /* only that there is a list, not what is in it */
    const ig_rows rows = {.n_rows = n_rows, .n_want = n_want, .want = want, .n_ctx = n_ctx};
    const size_t vectors = plan(m, rows, n_want, NULL, NULL);
    const size_t logits = m->config.no_head ? 0 : plan(m, rows, 0, NULL, NULL);
    return logits > vectors ? logits : vectors;
}

/* Wanted rows are rows: so with many vectors there are few logits beside them, and the reverse. */
size_t ig_model_plan_step(const ig_model *m, int n_rows, int n_logits, int n_hidden, int n_ctx) {
    static const int want[1];
    const int n = n_logits + n_hidden < n_rows ? n_logits + n_hidden : n_rows;
    const int few = n_logits < n ? n - n_logits : 0, many = n_hidden < n ? n_hidden : n;
    const ig_rows rows = {.n_rows = n_rows, .n_want = n, .want = want, .n_ctx = n_ctx};
    const size_t vectors = plan(m, rows, m->config.no_head ? n : many, NULL, NULL);
    const size_t logits = m->config.no_head ? 0 : plan(m, rows, few, NULL, NULL);
    return logits > vectors ? logits : vectors;
}

void ig_model_trace(const ig_model *m, ig_trace_fn *trace, void *ud) {
    static const int want[1];
    plan(m, (ig_rows){.n_rows = 1, .n_want = 1, .want = want, .n_ctx = IG_KV_BLOCK_TOKENS}, m->config.no_head ? 1 : 0,
         trace, ud);
}
