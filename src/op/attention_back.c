/* attention_back: gradients of q, k and v without the matrix of probabilities.
 * With delta = sum of dO * O of a query and head, and P = exp(q k - lse) on what it sees:
 *     dP = dO V^T,  dS = P * (dP - delta),  dQ += dS K,  dK += dS^T Q,  dV += P^T dO
 * A cap on scores multiplies dS by its slope 1 - tanh^2. Owners compute: dQ by tiles of queries, keys
 * ascending; dK and dV by blocks of 64 keys, query heads of the group ascending and queries ascending in each. P
 * is computed twice and no sum is shared, so the bits do not depend on threads. Only blocks inside the window are
 * touched. q holds the scale, so none is here. */
#include "op/inside.h"

enum { TILE_QUERIES = 32, B = IG_KV_BLOCK_TOKENS };

/* A sequence's block of keys. */
typedef struct key_block {
    int row, n_rows, block; /* first row and rows of the sequence */
} key_block;

typedef struct back_job {
    const ig_run *r;
    const op_attention_note *n;
    const float *dy, *blocks;
    const int *first_block;
    const key_block *list;
    int n_list;
    float *delta; /* [T][n_heads] */
    float *dq, *dk, *dv;
    bool add_q, add_k, add_v;
    float *scratch; /* P and dS of a tile, a part a thread */
} back_job;

static void delta_part(void *arg, int lo, int hi, int thread) {
    const back_job *j = arg;
    const int n_heads = j->n->a.n_heads, n_d = j->n->a.head_dim;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int h = 0; h < n_heads; h++) {
            const size_t at = (size_t)t * (size_t)(n_heads * n_d) + (size_t)(h * n_d);
            j->delta[t * n_heads + h] = j->r->kern->op[IG_KERN_DOT]->fn.dot(j->dy + at, j->n->y->f + at, n_d);
        }
}

static void matmul(const back_job *j, ig_matmul_args a) {
    j->r->kern->op[IG_KERN_MATMUL]->fn.matmul(&a);
}

/* First and one past the last key of block b that the query at pos sees, inside the block. */
static int first_key(const back_job *j, int pos, int b) {
    const int window = j->n->a.window, from = window > 0 && pos >= window ? pos - window + 1 : 0;
    return from > b * B ? from - b * B : 0;
}
static int end_key(int pos, int b) {
    return pos - b * B + 1 < B ? pos - b * B + 1 : B;
}

/* P and dS [m][64] of queries row.. (m of them, the first at position pos) of one head against one block. */
static void probabilities(const back_job *j, float *p, float *ds, const key_block *k, int pos, int m,
                          int head) {
    const ig_attention *a = &j->n->a;
    const int n_d = a->head_dim, kv_head = head / (a->n_heads / a->n_kv_heads), row = k->row + pos;
    const size_t q_row = (size_t)(a->n_heads * n_d), at = (size_t)row * q_row + (size_t)(head * n_d);
    const float *kt = j->blocks + (size_t)((j->first_block[k->row] + k->block) * a->n_kv_heads + kv_head) *
                                      (size_t)(2 * B * n_d);
    ig_matmul_args g = {.c = p,
                        .a = j->n->x.q->f + at,
                        .b = kt,
                        .c_row = B,
                        .a_row = q_row,
                        .a_k = 1,
                        .b_row = B,
                        .m = m,
                        .n = B,
                        .kk = n_d};
    matmul(j, g);
    g.c = ds, g.a = j->dy + at, g.b = kt + B * n_d;
    matmul(j, g);
    for (int i = 0; i < m; i++) {
        float slope[B]; /* of the cap: d capped / d score */
        if (a->softcap > 0.0f)
            j->r->kern->op[IG_KERN_SOFTCAP]->fn.softcap(p + i * B, slope, p + i * B, a->softcap, B);
        const size_t of = (size_t)(row + i) * (size_t)a->n_heads + (size_t)head;
        int from = first_key(j, pos + i, k->block), end = end_key(pos + i, k->block);
        if (end < 0) end = 0;
        if (from > end) from = end;
        j->r->kern->op[IG_KERN_SOFTMAX_BACK]->fn.softmax_back(p + i * B, ds + i * B, j->n->lse[of],
                                                              j->delta[of], from, end, B);
        for (int c = 0; c < B && a->softcap > 0.0f; c++) ds[i * B + c] *= slope[c];
    }
}

/* Unit: a list entry's 64 positions as queries, half of them at a time, of one query head. */
static void query_part(void *arg, int lo, int hi, int thread) {
    const back_job *j = arg;
    const ig_attention *a = &j->n->a;
    const int n_d = a->head_dim, group = a->n_heads / a->n_kv_heads;
    const size_t q_row = (size_t)(a->n_heads * n_d), k_row = (size_t)(a->n_kv_heads * n_d);
    float *p = j->scratch + (size_t)thread * (2 * TILE_QUERIES * B), *ds = p + TILE_QUERIES * B;
    for (int u = lo; u < hi; u++) {
        const key_block mine = j->list[j->n_list - 1 - u / a->n_heads]; /* later queries see more keys */
        const int head = u % a->n_heads;
        for (int pos = mine.block * B; pos < (mine.block + 1) * B && pos < mine.n_rows; pos += TILE_QUERIES) {
            int m = mine.n_rows - pos < TILE_QUERIES ? mine.n_rows - pos : TILE_QUERIES;
            key_block k = mine;
            bool add = j->add_q;
            const int window = a->window, from = window > 0 && pos >= window ? pos - window + 1 : 0;
            for (k.block = from / B; k.block <= (pos + m - 1) / B; k.block++, add = true) {
                const int left = mine.n_rows - k.block * B;
                probabilities(j, p, ds, &k, pos, m, head);
                matmul(j,
                       (ig_matmul_args){.c = j->dq + (size_t)(mine.row + pos) * q_row + (size_t)(head * n_d),
                                        .a = ds,
                                        .b = j->n->x.k->f + (size_t)(mine.row + k.block * B) * k_row +
                                             (size_t)(head / group * n_d),
                                        .c_row = q_row,
                                        .a_row = B,
                                        .a_k = 1,
                                        .b_row = k_row,
                                        .m = m,
                                        .n = n_d,
                                        .kk = left < B ? left : B,
                                        .add = add});
            }
        }
    }
}

/* Unit: a block of keys of one kv head. */
static void key_part(void *arg, int lo, int hi, int thread) {
    const back_job *j = arg;
    const ig_attention *a = &j->n->a;
    const int n_d = a->head_dim, group = a->n_heads / a->n_kv_heads;
    const size_t q_row = (size_t)(a->n_heads * n_d), k_row = (size_t)(a->n_kv_heads * n_d);
    float *p = j->scratch + (size_t)thread * (2 * TILE_QUERIES * B), *ds = p + TILE_QUERIES * B;
    for (int u = lo; u < hi; u++) {
        const key_block k = j->list[u / a->n_kv_heads];
        const int kv_head = u % a->n_kv_heads, begin = k.block * B;
        const int n_keys = k.n_rows - begin < B ? k.n_rows - begin : B;
        int end = k.n_rows;
        if (a->window > 0 && end - (begin + n_keys - 1) > a->window) end = begin + n_keys - 1 + a->window;
        const size_t at = (size_t)(k.row + begin) * k_row + (size_t)(kv_head * n_d);
        bool first = true;
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int pos = begin; pos < end; pos += TILE_QUERIES, first = false) {
                const int m = end - pos < TILE_QUERIES ? end - pos : TILE_QUERIES;
                const size_t q_at = (size_t)(k.row + pos) * q_row + (size_t)(head * n_d);
                probabilities(j, p, ds, &k, pos, m, head);
                ig_matmul_args g = {.c = j->dv + at,
                                    .a = p,
                                    .b = j->dy + q_at,
                                    .c_row = k_row,
                                    .a_row = 1,
                                    .a_k = B,
                                    .b_row = q_row,
                                    .m = n_keys,
                                    .n = n_d,
                                    .kk = m,
                                    .add = j->add_v || !first};
                if (j->dv) matmul(j, g);
                g.c = j->dk + at, g.a = ds, g.b = j->n->x.q->f + q_at, g.add = j->add_k || !first;
                if (j->dk) matmul(j, g);
            }
    }
}

static int list_blocks(key_block *list, const ig_rows *rows) {
    int n = 0;
    for (int t = 0, end; t < rows->n_rows; t = end) {
        for (end = t + 1; end < rows->n_rows && rows->seq[end] == rows->seq[t]; end++)
            ;
        for (int b = 0; b * B < end - t; b++) list[n++] = (key_block){t, end - t, b};
    }
    return n;
}

void op_attention_back(ig_run *r, const void *own) {
    const op_attention_note *n = own;
    op_trace(r, "attention back", r->kern->op[IG_KERN_MATMUL]);
    back_job job = {.r = r, .n = n, .dy = n->y->g};
    const bool keys = n->x.k->needs_g || n->x.v->needs_g;
    if (n->x.q->needs_g) job.dq = op_grad(r, n->x.q, &job.add_q);
    if (n->x.k->needs_g) job.dk = op_grad(r, n->x.k, &job.add_k);
    if (n->x.v->needs_g) job.dv = op_grad(r, n->x.v, &job.add_v);
    const int n_rows = n->x.q->n_rows;
    const size_t mark = ig_arena_mark(r->arena);
    int *first_block = op_take(r, (size_t)n_rows * sizeof *first_block);
    key_block *list = op_take(r, (size_t)n_rows * sizeof *list); /* not more blocks than rows */
    job.delta = op_take(r, (size_t)n_rows * (size_t)n->a.n_heads * sizeof *job.delta);
    job.scratch = op_take(r, (size_t)ig_pool_threads(r->pool) * 2 * TILE_QUERIES * B * sizeof *job.scratch);
    if (!op_stopped(r)) job.blocks = op_lay_out_blocks(r, &n->a, n->x, n->rows, first_block, true);
    if (!op_stopped(r) && !ig_run_planning(r)) {
        job.first_block = first_block, job.list = list, job.n_list = list_blocks(list, n->rows);
        ig_pool_run(r->pool, delta_part, &job, n_rows, LIGHT_ROWS);
        if (job.dq) ig_pool_run(r->pool, query_part, &job, job.n_list * n->a.n_heads, 1);
        if (keys) ig_pool_run(r->pool, key_part, &job, job.n_list * n->a.n_kv_heads, 1);
    }
    ig_arena_rewind(r->arena, mark);
}

static const ig_tier_node nodes[] = {
    {.id = "attn.flash_train", .does = "gradient of attention, in blocks", .tier = IG_TIER_L3,
     .oracle = "f64", .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "op: attention_gives_the_gradients_of_materialised_float64_attention",
     .steps = "attention back", .runs = IG_RUNS(MATMUL),
     .also = IG_RUNS(DOT) | IG_RUNS(SOFTCAP) | IG_RUNS(SOFTMAX_BACK), .training = true},
};
NODE_EXPORT(attention_back, nodes);
