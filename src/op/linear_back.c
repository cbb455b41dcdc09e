/* linear_back: the gradient of what a frozen weight was multiplied with, dx = dy W, for panels of any format.
 * A unit owns a range of columns of dx (and some rows when ranges are few), walks the rows of W in order, and
 * unpacks a chunk of them for its range at a time: a panel is a sequence of groups, so a range of whole
 * groups can be unpacked alone. The chain over rows of W starts at what dx holds, so chunks leave no trace in it. */
#include "op/inside.h"

enum {
    CHUNK_ROWS = 128, /* of W, unpacked at a time: with a range of 256 columns 136 KiB, half of an L2 */
    RANGE_COLS = 256, /* at most, or one group when that is longer */
    RANGE_COLS_LOW = 64,
    UNITS_A_THREAD = 3, /* so that a busy core does not hold up the others */
    ROWS_LOW = 96,      /* of dx: fewer do not pay for unpacking */
    ROW_PAD = 16        /* rows of the chunk must not fall on the same lines of L1 */
};

typedef struct back_job {
    const ig_run *r;
    const ig_weight *w;
    const float *dy;
    float *dx, *scratch;
    size_t scratch_floats;
    int n_rows, range, n_ranges, rows_a_unit, chunk; /* chunk: rows of W, whole heads in order IG_ROWS_ROPE */
    bool add;
} back_job;

/* Rows [n0, n0 + n) of W, columns [k0, k0 + n_k), in the order of rows. */
static void unpack_chunk(const back_job *j, float *to, int n0, int n, int k0, int n_k) {
    const ig_weight *w = j->w;
    const size_t at = (size_t)(k0 / w->fmt->panel_group) * (size_t)w->fmt->panel_bytes;
    for (int p = n0 / IG_PANEL_ROWS; p * IG_PANEL_ROWS < n0 + n; p++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const int row = ig_weight_row(w, p, lane);
            if (row < 0) continue;
            w->unpack->fn.unpack(to + (size_t)(row - n0) * (size_t)(j->range + ROW_PAD),
                                 w->panels + (size_t)p * w->panel_bytes + at, lane, n_k);
        }
}

static void back_part(void *arg, int lo, int hi, int thread) {
    const back_job *j = arg;
    float *chunk = j->scratch + (size_t)thread * j->scratch_floats;
    for (int u = lo; u < hi; u++) {
        const int k0 = u % j->n_ranges * j->range, row = u / j->n_ranges * j->rows_a_unit;
        const int n_k = j->w->n_cols - k0 < j->range ? j->w->n_cols - k0 : j->range;
        const int m = j->n_rows - row < j->rows_a_unit ? j->n_rows - row : j->rows_a_unit;
        for (int n0 = 0; n0 < j->w->n_rows; n0 += j->chunk) {
            const int n = j->w->n_rows - n0 < j->chunk ? j->w->n_rows - n0 : j->chunk;
            unpack_chunk(j, chunk, n0, n, k0, n_k);
            j->r->kern->op[IG_KERN_MATMUL]->fn.matmul(
                &(ig_matmul_args){.c = j->dx + (size_t)row * (size_t)j->w->n_cols + (size_t)k0,
                                  .a = j->dy + (size_t)row * (size_t)j->w->n_rows + (size_t)n0,
                                  .b = chunk,
                                  .c_row = (size_t)j->w->n_cols,
                                  .a_row = (size_t)j->w->n_rows,
                                  .a_k = 1,
                                  .b_row = (size_t)(j->range + ROW_PAD),
                                  .m = m,
                                  .n = n_k,
                                  .kk = n,
                                  .add = j->add || n0 > 0});
        }
    }
}

static int round_up(int n, int to) {
    return (n + to - 1) / to * to;
}

void op_linear_back(ig_run *r, const ig_weight *w, const float *dy, ig_tensor *x) {
    if (op_stopped(r) || !x->needs_g) return;
    op_trace(r, "linear back", r->kern->op[IG_KERN_MATMUL]);
    const int n_threads = ig_pool_threads(r->pool), units = UNITS_A_THREAD * n_threads;
    back_job job = {.r = r, .w = w, .dy = dy, .n_rows = x->n_rows, .chunk = CHUNK_ROWS};
    job.dx = op_grad(r, x, &job.add);
    for (int range = RANGE_COLS; range >= RANGE_COLS_LOW; range /= 2) {
        job.range = round_up(range, w->fmt->panel_group);
        job.n_ranges = (w->n_cols + job.range - 1) / job.range;
        if (job.n_ranges >= units) break;
    }
    int parts = (units + job.n_ranges - 1) / job.n_ranges;
    if (job.n_ranges >= units || n_threads == 1) parts = 1;
    if (parts > job.n_rows / ROWS_LOW) parts = job.n_rows / ROWS_LOW > 0 ? job.n_rows / ROWS_LOW : 1;
    job.rows_a_unit = round_up((job.n_rows + parts - 1) / parts, 6);
    if (w->order == IG_ROWS_ROPE)
        job.chunk = w->head_dim >= CHUNK_ROWS ? w->head_dim : CHUNK_ROWS / w->head_dim * w->head_dim;
    const size_t mark = ig_arena_mark(r->arena);
    job.scratch_floats = (size_t)job.chunk * (size_t)(job.range + ROW_PAD);
    job.scratch = op_take(r, job.scratch_floats * sizeof *job.scratch * (size_t)n_threads);
    if (job.scratch)
        ig_pool_run(r->pool, back_part, &job,
                    job.n_ranges * ((job.n_rows + job.rows_a_unit - 1) / job.rows_a_unit), 1);
    ig_arena_rewind(r->arena, mark);
}

static const ig_tier_node nodes[] = {
    {.id = "matmul.back", .does = "gradient of products, through frozen weights", .tier = IG_TIER_L3,
     .oracle = "f64", .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "op: linear_gives_dy_w_in_every_format_and_adds_to_what_is_there", .steps = "linear back",
     .runs = IG_RUNS(MATMUL), .training = true},
};
NODE_EXPORT(linear_back, nodes);
