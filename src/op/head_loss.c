/* head_loss: log-probabilities of targets and their gradient, without logits in memory.
 * The vocabulary is swept in blocks of 128 rows, each unpacked once, by all threads, into f32: as panels for
 * the logits and as rows for the gradient. Then tiles of tokens, one owner each, do for it
 *     l = x W^T (capped);  m, d: the running softmax;  acc = acc * exp(m - m') + sum of exp(l - m') c W
 * with c the slope of the cap. After the sweep logp = l_target - (m + log d) and
 *     dx = c_target W_target + acc * (-1 / d):
 * four operations an element of W and token, against six with logits computed twice. */
#include "op/inside.h"

enum { BLOCK = 128, BLOCK_PANELS = BLOCK / IG_PANEL_ROWS, ROW_PAD = 16 };
static const size_t naive_bytes_max = (size_t)1 << 30;

/* What a sweep does with a tile of logits. */
typedef enum sweep {
    SWEEP_SUM,    /* m and d only */
    SWEEP_FLASH,  /* and acc */
    SWEEP_STORE,  /* keeps the logits */
    SWEEP_AGAIN,  /* acc from logits computed again and lse */
    SWEEP_STORED, /* acc from kept logits and lse */
} sweep;

typedef struct loss_job {
    const ig_run *r;
    const ig_weight *w;
    const ig_tensor *x;
    const uint32_t *target;
    float cap;
    float *panels;  /* [BLOCK_PANELS][H][16] */
    float *rows;    /* [BLOCK][H + ROW_PAD] */
    float *scratch; /* a part a thread: logits and slopes of a tile, a row of W */
    size_t scratch_floats;
    ig_softmax_state *state;        /* [M] */
    float *at_target, *slope, *lse; /* [M] */
    float *all;                     /* naive: [M][V], and slopes behind when capped */
    float *logp, *acc;
    int tile_rows, v0, n; /* the block */
    sweep what;
} loss_job;

/* Panels [lo, hi) of the block to f32: rows, and rows turned into a panel. */
static void unpack_part(void *arg, int lo, int hi, int thread) {
    const loss_job *j = arg;
    const int n_h = j->w->n_cols;
    const size_t stride = (size_t)n_h + ROW_PAD;
    (void)thread;
    for (int p = lo; p < hi; p++) {
        const uint8_t *panel = j->w->panels + (size_t)(j->v0 / IG_PANEL_ROWS + p) * j->w->panel_bytes;
        float *to = j->panels + (size_t)p * (size_t)n_h * IG_PANEL_ROWS;
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float *row = j->rows + (size_t)(p * IG_PANEL_ROWS + lane) * stride;
            j->w->unpack->fn.unpack(row, panel, lane, n_h);
            for (int k = 0; k < n_h; k++) to[(size_t)k * IG_PANEL_ROWS + (size_t)lane] = row[k];
        }
    }
}

static void logits_of(const loss_job *j, float *l, float *slope, int row, int m) {
    const size_t n_h = (size_t)j->w->n_cols;
    for (int p = 0; p * IG_PANEL_ROWS < j->n; p++)
        j->r->kern->op[IG_KERN_MATMUL]->fn.matmul(
            &(ig_matmul_args){.c = l + p * IG_PANEL_ROWS,
                              .a = j->x->f + (size_t)row * n_h,
                              .b = j->panels + (size_t)p * n_h * IG_PANEL_ROWS,
                              .c_row = BLOCK,
                              .a_row = n_h,
                              .a_k = 1,
                              .b_row = IG_PANEL_ROWS,
                              .m = m,
                              .n = IG_PANEL_ROWS,
                              .kk = (int)n_h});
    if (j->cap > 0.0f)
        for (int t = 0; t < m; t++)
            j->r->kern->op[IG_KERN_SOFTCAP]->fn.softcap(l + t * BLOCK, slope + t * BLOCK, l + t * BLOCK,
                                                        j->cap, j->n);
}

/* Probabilities of one row of a block, times the cap's slope; the running softmax moves on. */
static void weigh(const loss_job *j, float *l, const float *slope, int t) {
    const uint32_t in_block = j->target[t] - (uint32_t)j->v0; /* huge when before it */
    if (j->what != SWEEP_AGAIN && j->what != SWEEP_STORED) {
        if (in_block < (uint32_t)j->n) {
            j->at_target[t] = l[in_block];
            j->slope[t] = j->cap > 0.0f ? slope[in_block] : 1.0f;
        }
        float shrink = j->r->kern->op[IG_KERN_SOFTMAX_STEP]->fn.softmax_step(l, j->n, &j->state[t]);
        float *acc = j->what == SWEEP_FLASH && j->v0 > 0 ? j->acc + (size_t)t * (size_t)j->w->n_cols : NULL;
        if (acc && shrink != 1.0f) j->r->kern->op[IG_KERN_SCALE]->fn.scale(acc, acc, shrink, j->w->n_cols);
    } else {
        for (int v = 0; v < j->n; v++) l[v] -= j->lse[t];
        j->r->kern->op[IG_KERN_EXP]->fn.exp(l, l, j->n);
    }
    if (j->cap > 0.0f)
        for (int v = 0; v < j->n; v++) l[v] *= slope[v];
}

static void tile_part(void *arg, int lo, int hi, int thread) {
    const loss_job *j = arg;
    const size_t n_h = (size_t)j->w->n_cols, n_v = (size_t)j->w->n_rows;
    float *l = j->scratch + (size_t)thread * j->scratch_floats, *slope = l + j->tile_rows * BLOCK;
    for (int i = lo; i < hi; i++) {
        const int row = i * j->tile_rows, left = j->x->n_rows - row,
                  m = left < j->tile_rows ? left : j->tile_rows;
        if (j->what != SWEEP_STORED) logits_of(j, l, slope, row, m);
        for (int t = 0; t < m && (j->what == SWEEP_STORE || j->what == SWEEP_STORED); t++) {
            float *kept = j->all + (size_t)(row + t) * n_v + (size_t)j->v0;
            float *kept_slope = kept + (size_t)j->x->n_rows * n_v;
            const size_t bytes = (size_t)j->n * sizeof *l;
            const bool store = j->what == SWEEP_STORE;
            memcpy(store ? kept : l + t * BLOCK, store ? l + t * BLOCK : kept, bytes);
            if (j->cap > 0.0f)
                memcpy(store ? kept_slope : slope + t * BLOCK, store ? slope + t * BLOCK : kept_slope, bytes);
        }
        if (j->what == SWEEP_STORE) continue;
        for (int t = 0; t < m; t++) weigh(j, l + t * BLOCK, slope + t * BLOCK, row + t);
        if (j->what == SWEEP_SUM) continue;
        j->r->kern->op[IG_KERN_MATMUL]->fn.matmul(&(ig_matmul_args){.c = j->acc + (size_t)row * n_h,
                                                                    .a = l,
                                                                    .b = j->rows,
                                                                    .c_row = n_h,
                                                                    .a_row = BLOCK,
                                                                    .a_k = 1,
                                                                    .b_row = n_h + ROW_PAD,
                                                                    .m = m,
                                                                    .n = (int)n_h,
                                                                    .kk = j->n,
                                                                    .add = j->v0 > 0});
    }
}

static void run_sweep(loss_job *j, sweep what) {
    const int n_tiles = (j->x->n_rows + j->tile_rows - 1) / j->tile_rows;
    j->what = what;
    for (j->v0 = 0; j->v0 < j->w->n_rows; j->v0 += BLOCK) {
        j->n = j->w->n_rows - j->v0 < BLOCK ? j->w->n_rows - j->v0 : BLOCK;
        ig_pool_run(j->r->pool, unpack_part, j, (j->n + IG_PANEL_ROWS - 1) / IG_PANEL_ROWS, 1);
        ig_pool_run(j->r->pool, tile_part, j, n_tiles, 1);
    }
}

/* The oracle's softmax: the whole row at once. */
static void naive_rows(loss_job *j) {
    const size_t n_v = (size_t)j->w->n_rows;
    for (int t = 0; t < j->x->n_rows; t++) {
        const float *l = j->all + (size_t)t * n_v;
        double top = (double)l[0], d = 0.0;
        for (size_t v = 1; v < n_v; v++)
            if ((double)l[v] > top) top = (double)l[v];
        for (size_t v = 0; v < n_v; v++) d += ig_math_exp((double)l[v] - top);
        j->state[t] = (ig_softmax_state){(float)top, (float)d};
        j->lse[t] = (float)(top + ig_math_log(d));
        j->at_target[t] = l[j->target[t]];
        j->slope[t] = j->cap > 0.0f ? (l + (size_t)j->x->n_rows * n_v)[j->target[t]] : 1.0f;
    }
}

static void lse_rows(loss_job *j) {
    for (int t = 0; t < j->x->n_rows; t++)
        j->lse[t] = (float)((double)j->state[t].m + ig_math_log((double)j->state[t].d));
}

/* dx = c W_target + acc * (-1 / d), or - acc when probabilities were whole. */
static void finish_part(void *arg, int lo, int hi, int thread) {
    const loss_job *j = arg;
    const int n_h = j->w->n_cols;
    float *row = j->scratch + (size_t)thread * j->scratch_floats;
    for (int t = lo; t < hi; t++) {
        float lp = j->at_target[t] - j->lse[t];
        j->logp[t] = lp > 0.0f ? 0.0f : lp; /* a NaN stays */
        if (!j->acc) continue;
        float *acc = j->acc + (size_t)t * (size_t)n_h;
        const uint32_t y = j->target[t];
        j->w->unpack->fn.unpack(row, j->w->panels + (size_t)(y / IG_PANEL_ROWS) * j->w->panel_bytes,
                                (int)(y % IG_PANEL_ROWS), n_h);
        ig_scale_fn *scale = j->r->kern->op[IG_KERN_SCALE]->fn.scale;
        scale(acc, acc, j->what == SWEEP_FLASH ? -1.0f / j->state[t].d : -1.0f, n_h);
        scale(row, row, j->slope[t], n_h);
        j->r->kern->op[IG_KERN_ADD]->fn.add(acc, 0, row, 0, acc, 0, 1, n_h);
    }
}

static void sweep_all(loss_job *j, ig_head_kind kind) {
    if (kind == IG_HEAD_NAIVE) {
        run_sweep(j, SWEEP_STORE);
        naive_rows(j);
        if (j->acc) run_sweep(j, SWEEP_STORED);
    } else if (kind == IG_HEAD_TWO_SWEEP || !j->acc) {
        run_sweep(j, SWEEP_SUM);
        lse_rows(j);
        if (j->acc) run_sweep(j, SWEEP_AGAIN);
    } else {
        run_sweep(j, SWEEP_FLASH);
        lse_rows(j);
    }
    ig_pool_run(j->r->pool, finish_part, j, j->x->n_rows, LIGHT_ROWS);
}

ig_loss *op_loss(ig_run *r, const ig_head *head, ig_tensor *x, const uint32_t *target, bool grad) {
    if (op_stopped(r)) return NULL;
    const ig_weight *w = head->w;
    ig_assert(r->train && x->n_cols == w->n_cols && w->order == IG_ROWS_PLAIN && !w->bias);
    op_trace(r, "head loss", r->kern->op[IG_KERN_MATMUL]);
    const size_t m = (size_t)x->n_rows, n_h = (size_t)w->n_cols, n_v = (size_t)w->n_rows;
    const size_t n_threads = (size_t)ig_pool_threads(r->pool), capped = head->softcap > 0.0f ? 2 : 1;
    if (head->kind == IG_HEAD_NAIVE && n_v > naive_bytes_max / sizeof(float) / capped / m) {
        r->status = ig_fail(&r->err, IG_ELIMIT, "naive head: %zu rows of %zu logits are more than %zu bytes",
                            m, n_v, naive_bytes_max);
        return NULL;
    }
    ig_loss *loss = op_take(r, sizeof *loss);
    if (ig_run_planning(r)) loss = ig_arena_take(r->shapes, sizeof *loss);
    float *logp = op_take(r, m * sizeof *logp), *dx = grad ? op_take(r, m * n_h * sizeof *dx) : NULL;
    const size_t mark = ig_arena_mark(r->arena);
    loss_job job = {.r = r, .w = w, .x = x, .target = target, .cap = head->softcap, .logp = logp, .acc = dx};
    job.tile_rows = (int)((m + n_threads - 1) / n_threads);
    job.tile_rows = job.tile_rows > TILE_ROWS ? TILE_ROWS : (job.tile_rows + 5) / 6 * 6;
    job.scratch_floats = (size_t)job.tile_rows * BLOCK * 2;
    if (job.scratch_floats < n_h) job.scratch_floats = (n_h + 15) / 16 * 16;
    job.panels = op_take(r, BLOCK * n_h * sizeof *job.panels);
    job.rows = op_take(r, BLOCK * (n_h + ROW_PAD) * sizeof *job.rows);
    job.scratch = op_take(r, n_threads * job.scratch_floats * sizeof *job.scratch);
    job.state = op_take(r, m * sizeof *job.state);
    job.at_target = op_take(r, 3 * m * sizeof *job.at_target);
    if (head->kind == IG_HEAD_NAIVE) job.all = op_take(r, m * n_v * capped * sizeof *job.all);
    if (!op_stopped(r) && !ig_run_planning(r)) {
        job.slope = job.at_target + m, job.lse = job.slope + m;
        for (size_t t = 0; t < m; t++) {
            ig_assert(target[t] < (uint32_t)w->n_rows); /* the caller checked */
            job.state[t] = (ig_softmax_state){-1e30f, 0.0f};
        }
        sweep_all(&job, head->kind);
    }
    ig_arena_rewind(r->arena, mark);
    if (op_stopped(r)) return NULL;
    ig_assert(loss != NULL);
    *loss = (ig_loss){x, logp, dx};
    return loss;
}

typedef struct seed_job {
    const ig_run *r;
    const ig_loss *loss;
    const float *g;
} seed_job;

static void seed_part(void *arg, int lo, int hi, int thread) {
    const seed_job *j = arg;
    const int n = j->loss->x->n_cols;
    (void)thread;
    for (int t = lo; t < hi; t++) {
        float *dx = j->loss->dx + (size_t)t * (size_t)n;
        j->r->kern->op[IG_KERN_SCALE]->fn.scale(dx, dx, j->g[t], n);
    }
}

void op_loss_seed(ig_run *r, ig_loss *loss, const float *g) {
    if (op_stopped(r)) return;
    if (!ig_run_planning(r)) {
        ig_assert(loss->dx != NULL && g != NULL);
        seed_job job = {r, loss, g};
        ig_pool_run(r->pool, seed_part, &job, loss->x->n_rows, LIGHT_ROWS);
    }
    if (loss->x->needs_g) op_grad_home(loss->x, loss->dx, true);
}

static const ig_tier_node nodes[] = {
    {.id = "head.ce.flash",
     .does = "log-probability of targets and its gradient, over blocks of the vocabulary",
     .tier = IG_TIER_L3, .oracle = "f64", .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "op: three_heads_equal_float64_with_and_without_a_cap", .steps = "head loss",
     .runs = IG_RUNS(MATMUL),
     .also = IG_RUNS(SOFTMAX_STEP) | IG_RUNS(EXP) | IG_RUNS(SCALE) | IG_RUNS(SOFTCAP), .training = true},
};
NODE_EXPORT(head_loss, nodes);
