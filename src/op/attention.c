/* attention: q, k, v with rope and the append to the KV blocks (op_qkv), then causal attention over the
 * blocks (op_attention). Rows of one sequence are cut into tiles of up to 16; a unit of work is a tile
 * times a kv head with all its query heads, longest tiles first. */
#include "op/inside.h"

/* ---- q, k, v ------------------------------------------------------------------------------------------ */

typedef struct qkv_job {
    const ig_run *r;
    const ig_weight *wq, *wk, *wv;
    const ig_tensor *x;
    const ig_rope *rope;
    const ig_rows *rows;
    float *q;
    float scale;
    int layer, n_q, n_k; /* panels of q and of k */
} qkv_job;

static uint16_t *block_of(const ig_rows *rows, int row, int layer, int head) {
    const ig_kv_seq *s = rows->kv_seq[rows->seq[row]];
    int b = rows->pos[row] / IG_KV_BLOCK_TOKENS;
    ig_assert(b < s->n_blocks);
    return ig_kv_at(rows->kv, s->block[b], layer, head);
}

/* Turns the pairs of one tile row; i is their place in the head. */
static void turn(const qkv_job *j, float *t, int row, int i) {
    size_t at = (size_t)row * (size_t)j->rope->half + (size_t)i;
    j->r->kern->op[IG_KERN_ROPE]->fn.rope(t, t + 8, j->rope->cos + at, j->rope->sin + at, 8);
}

static void qkv_unit(const void *arg, int u, int row, int m, float *tile) {
    const qkv_job *j = arg;
    const int n_d = j->wq->head_dim, per_head = n_d / IG_PANEL_ROWS, half = n_d / 2;
    const ig_weight *w = u < j->n_q ? j->wq : u < j->n_q + j->n_k ? j->wk : j->wv;
    const int p = u < j->n_q ? u : u < j->n_q + j->n_k ? u - j->n_q : u - j->n_q - j->n_k;
    const int head = p / per_head, i = p % per_head;
    ig_to_f16_fn *to_f16 = j->r->kern->op[IG_KERN_TO_F16]->fn.to_f16;
    w->linear(tile, w->panels + (size_t)p * w->panel_bytes, &j->x->act, row, m, w->n_cols);
    for (int t = 0; t < m; t++, tile += IG_PANEL_ROWS) {
        const int at = row + t, slot = j->rows->pos[at] % IG_KV_BLOCK_TOKENS;
        if (w == j->wq) {
            float *q = j->q + (size_t)at * (size_t)w->n_rows + (size_t)(head * n_d + i * 8);
            turn(j, tile, at, i * 8);
            for (int k = 0; k < 8; k++) q[k] = tile[k] * j->scale, q[half + k] = tile[8 + k] * j->scale;
        } else if (w == j->wk) {
            uint16_t h[IG_PANEL_ROWS], *kt = block_of(j->rows, at, j->layer, head) + slot;
            turn(j, tile, at, i * 8);
            to_f16(h, tile, IG_PANEL_ROWS);
            for (int k = 0; k < 8; k++) {
                kt[(i * 8 + k) * IG_KV_BLOCK_TOKENS] = h[k];
                kt[(half + i * 8 + k) * IG_KV_BLOCK_TOKENS] = h[8 + k];
            }
        } else {
            uint16_t *v = block_of(j->rows, at, j->layer, head) + n_d * IG_KV_BLOCK_TOKENS;
            to_f16(v + slot * n_d + i * IG_PANEL_ROWS, tile, IG_PANEL_ROWS);
        }
    }
}

ig_tensor *op_qkv(ig_run *r, const ig_weight *wq, const ig_weight *wk, const ig_weight *wv,
                  const ig_tensor *x, const ig_rope *rope, float scale, const ig_rows *rows, int layer) {
    if (op_stopped(r)) return NULL;
    ig_assert(wq->n_cols == x->n_cols && wk->n_cols == x->n_cols && wv->n_cols == x->n_cols);
    ig_assert(wq->order == IG_ROWS_ROPE && wk->order == IG_ROWS_ROPE && wv->order == IG_ROWS_PLAIN);
    op_trace(r, "linear q", wq->kern), op_trace(r, "linear k", wk->kern), op_trace(r, "linear v", wv->kern);
    op_trace(r, "kv append", r->kern->op[IG_KERN_TO_F16]);
    ig_tensor *q = op_tensor(r, x->n_rows, wq->n_rows, IG_ACT_F32);
    if (op_stopped(r)) return NULL;
    qkv_job job = {
        r, wq, wk, wv, x, rope, rows, q->f, scale, layer, ig_weight_n_panels(wq), ig_weight_n_panels(wk)};
    op_run_units(r, qkv_unit, &job, job.n_q + job.n_k + ig_weight_n_panels(wv), x->n_rows, 1);
    op_note(r, (ig_node){.op = "qkv", .y = q, .a = x, .w = {wq, wk, wv}});
    return q;
}

/* ---- attention ---------------------------------------------------------------------------------------- */

enum { ATTENTION_TILE_ROWS = 16 };

typedef struct tile_rows {
    int row, n;
} tile_rows;

typedef struct attention_job {
    const ig_run *r;
    const ig_tensor *q;
    const ig_rows *rows;
    ig_tensor *y;
    const tile_rows *tile;
    uint8_t *scratch; /* one part a thread */
    size_t scratch_bytes;
    int layer, n_tiles, n_heads, n_kv_heads, head_dim, n_q_max, n_blocks_max;
} attention_job;

static size_t round64(size_t n) {
    return (n + 63) / 64 * 64;
}
/* Scratch of one thread: q, out, kernel scratch, block pointers, positions. */
static size_t attention_scratch(int n_q, int head_dim, int n_blocks) {
    size_t rows = round64((size_t)n_q * (size_t)head_dim * sizeof(float));
    return 2 * rows + round64(ig_attention_scratch_floats(n_q, head_dim) * sizeof(float)) +
           round64((size_t)n_blocks * sizeof(void *)) + round64((size_t)n_q * sizeof(int));
}

static void attention_part(void *arg, int lo, int hi, int thread) {
    const attention_job *j = arg;
    const int n_d = j->head_dim, group = j->n_heads / j->n_kv_heads;
    const size_t d_bytes = (size_t)n_d * sizeof(float), rows_bytes = round64((size_t)j->n_q_max * d_bytes);
    uint8_t *s = j->scratch + (size_t)thread * j->scratch_bytes;
    float *q = (float *)(void *)s, *out = (float *)(void *)(s + rows_bytes),
          *work = (float *)(void *)(s + 2 * rows_bytes);
    s += 2 * rows_bytes + round64(ig_attention_scratch_floats(j->n_q_max, n_d) * sizeof(float));
    const uint16_t **block = (const uint16_t **)(void *)s;
    int *pos = (int *)(void *)(s + round64((size_t)j->n_blocks_max * sizeof *block));

    for (int u = lo; u < hi; u++) {
        const tile_rows tile = j->tile[j->n_tiles - 1 - u / j->n_kv_heads]; /* later rows see more keys */
        const int head = u % j->n_kv_heads, n_q = tile.n * group, last = tile.row + tile.n - 1;
        for (int i = 0; i < n_q; i++) {
            int t = tile.row + i / group, h = head * group + i % group;
            memcpy(q + i * n_d, j->q->f + (size_t)t * (size_t)j->q->n_cols + (size_t)(h * n_d), d_bytes);
            pos[i] = j->rows->pos[t];
        }
        const ig_kv_seq *seq = j->rows->kv_seq[j->rows->seq[last]];
        int n_blocks = j->rows->pos[last] / IG_KV_BLOCK_TOKENS + 1;
        ig_assert(n_blocks <= seq->n_blocks && n_blocks <= j->n_blocks_max);
        for (int b = 0; b < n_blocks; b++) block[b] = ig_kv_at(j->rows->kv, seq->block[b], j->layer, head);
        ig_attention_args a = {out, q, pos, n_q, n_d, block, work};
        j->r->kern->op[IG_KERN_ATTENTION]->fn.attention(&a);
        for (int i = 0; i < n_q; i++)
            op_store_row(j->r, j->y, tile.row + i / group, (head * group + i % group) * n_d, out + i * n_d,
                         n_d);
    }
}

/* Neighbouring rows of one sequence, at most `most` together. */
static int cut_tiles(tile_rows *tile, const ig_rows *rows, int most) {
    int n = 0;
    for (int t = 0; t < rows->n_rows; t++) {
        bool joins = t > 0 && rows->seq[t] == rows->seq[t - 1] && tile[n - 1].n < most;
        if (joins)
            tile[n - 1].n++;
        else
            tile[n++] = (tile_rows){t, 1};
    }
    return n;
}

ig_tensor *op_attention(ig_run *r, const ig_tensor *q, const ig_rows *rows, int layer, int n_heads,
                        int n_kv_heads, int head_dim, int need) {
    if (op_stopped(r)) return NULL;
    const int group = n_heads / n_kv_heads;
    ig_assert(q->n_cols == n_heads * head_dim && group * n_kv_heads == n_heads &&
              group <= IG_ATTENTION_QUERIES_MAX);
    op_trace(r, "attention", r->kern->op[IG_KERN_ATTENTION]);
    /* heads that are not whole activation blocks: quantise the finished rows instead */
    const bool whole = head_dim % IG_ACT_BLOCK == 0;
    ig_tensor *y = op_tensor(r, q->n_rows, q->n_cols, whole ? need : need | IG_ACT_F32);
    size_t mark = ig_arena_mark(r->arena);
    int most = IG_ATTENTION_QUERIES_MAX / group;
    if (most > ATTENTION_TILE_ROWS) most = ATTENTION_TILE_ROWS;
    attention_job job = {.r = r,
                         .q = q,
                         .rows = rows,
                         .layer = layer,
                         .n_heads = n_heads,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = head_dim,
                         .n_q_max = most * group,
                         .n_blocks_max = (rows->n_ctx + IG_KV_BLOCK_TOKENS - 1) / IG_KV_BLOCK_TOKENS};
    job.scratch_bytes = attention_scratch(job.n_q_max, head_dim, job.n_blocks_max);
    tile_rows *tile = op_take(r, (size_t)rows->n_rows * sizeof *tile);
    job.scratch = op_take(r, job.scratch_bytes * (size_t)ig_pool_threads(r->pool));
    if (job.scratch) {
        ig_tensor f32_only = *y;
        if (!whole) f32_only.act.q = NULL, f32_only.act.q16 = NULL;
        job.y = whole ? y : &f32_only;
        job.tile = tile, job.n_tiles = cut_tiles(tile, rows, most);
        ig_pool_run(r->pool, attention_part, &job, job.n_tiles * n_kv_heads, 1);
        for (int t = 0; t < y->n_rows && !whole; t++)
            op_quant_row(r, y, t, 0, y->f + (size_t)t * (size_t)y->n_cols, y->n_cols);
    }
    ig_arena_rewind(r->arena, mark);
    op_note(r, (ig_node){.op = "attention", .y = y, .a = q});
    return op_stopped(r) ? NULL : y;
}
