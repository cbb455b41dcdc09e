/* attention: q, k, v with norms and rope and the append to the KV blocks (op_qkv), then causal attention over
 * the blocks (op_attention). Rows of one sequence are cut into tiles of up to 64 queries; a unit of work is a tile
 * times a kv head with all its query heads, longest tiles first. A step of few rows has few such units: then a unit
 * is one span of a tile's keys and, when that is not enough either, some of a kv head's query heads; joining the
 * spans afterwards gives the same bits.
 * Training keeps k and v as tensors and lays them out in f32 blocks for the call: nothing is rounded. */
#include "op/inside.h"

/* ---- q, k, v ------------------------------------------------------------------------------------------ */

typedef struct qkv_job {
    const ig_run *r;
    const ig_attention *a;
    const ig_weight *wq, *wk, *wv;
    const ig_tensor *x;
    const ig_rope *rope;
    const ig_rows *rows;
    float *q0, *k0; /* before norm and rope, [T][heads * D]; with norms */
    ig_qkv y;
    int n_q, n_k; /* panels of q and of k */
} qkv_job;

/* Of the row's block the part of K, or of V. */
static uint8_t *part_of(const qkv_job *j, int row, int head, bool values) {
    const ig_rows *rows = j->rows;
    const ig_kv_seq *s = rows->kv_seq[rows->seq[row]];
    int b = rows->pos[row] / IG_KV_BLOCK_TOKENS;
    ig_assert(b < s->n_blocks);
    uint8_t *keys = ig_kv_at(rows->kv, s->block[j->a->kv.group][b], j->a->kv, head);
    return values ? keys + ig_kv_part_bytes(j->a->kv_kind, j->a->head_dim) : keys;
}

/* n pairs of each of m rows, lo and hi, x_row floats apart; i is their place in the head. */
static void turn(const qkv_job *j, float *lo, float *hi, size_t x_row, int row, int m, int i, int n) {
    const size_t half = (size_t)j->rope->half, at = (size_t)row * half + (size_t)i;
    for (int t = 0; t < m && j->rope->before != 1.0f; t++) {
        const ig_kern *scale = j->r->kern->op[IG_KERN_SCALE];
        scale->fn.scale(lo + (size_t)t * x_row, lo + (size_t)t * x_row, j->rope->before, n);
        scale->fn.scale(hi + (size_t)t * x_row, hi + (size_t)t * x_row, j->rope->before, n);
    }
    j->r->kern->op[IG_KERN_ROPE]->fn.rope(lo, hi, x_row, j->rope->cos + at, j->rope->sin + at, half, m, n);
}

/* 8 pairs of a key from pair 8 i on, low halves first, into the block's column of the position. */
static void append_key(const qkv_job *j, int row, int head, int i, const float *x) {
    const int n_d = j->a->head_dim, slot = j->rows->pos[row] % IG_KV_BLOCK_TOKENS;
    const int lo = 8 * i * IG_KV_BLOCK_TOKENS + slot, hi = lo + n_d / 2 * IG_KV_BLOCK_TOKENS;
    uint8_t *part = part_of(j, row, head, false);
    if (j->a->kv_kind == IG_KV_8) {
        int8_t q[IG_KV_GROUP], *k = (int8_t *)part;
        j->r->kern->op[IG_KERN_TO_KV8]->fn.to_kv8(q, ig_kv_scales(part, n_d) + i * IG_KV_BLOCK_TOKENS + slot, x);
        for (int c = 0; c < 8; c++) k[lo + c * IG_KV_BLOCK_TOKENS] = q[c], k[hi + c * IG_KV_BLOCK_TOKENS] = q[8 + c];
        return;
    }
    uint16_t h[16], *k = (uint16_t *)(void *)part;
    j->r->kern->op[IG_KERN_TO_F16]->fn.to_f16(h, x, 16);
    for (int c = 0; c < 8; c++) k[lo + c * IG_KV_BLOCK_TOKENS] = h[c], k[hi + c * IG_KV_BLOCK_TOKENS] = h[8 + c];
}

/* A tile of values: dimensions i * 16 .. of one head. */
static void put_values(const qkv_job *j, int row, int head, int i, const float *tile) {
    const int n_d = j->a->head_dim;
    if (j->y.v) {
        float *v = j->y.v->f + (size_t)row * (size_t)j->wv->n_rows + (size_t)(head * n_d + i * IG_PANEL_ROWS);
        memcpy(v, tile, IG_PANEL_ROWS * sizeof *v);
        return;
    }
    uint8_t *part = part_of(j, row, head, true);
    const int slot = j->rows->pos[row] % IG_KV_BLOCK_TOKENS, at = slot * n_d + i * IG_PANEL_ROWS;
    if (j->a->kv_kind == IG_KV_8)
        j->r->kern->op[IG_KERN_TO_KV8]->fn.to_kv8((int8_t *)part + at,
                                                  ig_kv_scales(part, n_d) + i * IG_KV_BLOCK_TOKENS + slot, tile);
    else
        j->r->kern->op[IG_KERN_TO_F16]->fn.to_f16((uint16_t *)(void *)part + at, tile, IG_PANEL_ROWS);
}

/* A row of a tile of queries or keys whose panel holds pairs, turned. */
static void put_pairs(const qkv_job *j, bool is_q, int row, int head, int i, const float *tile) {
    const int n_d = j->a->head_dim, half = n_d / 2, d = i * 8;
    const ig_tensor *y = is_q ? j->y.q : j->y.k;
    if (!y) {
        append_key(j, row, head, i, tile);
        return;
    }
    float *p = y->f + (size_t)row * (size_t)y->n_cols + (size_t)(head * n_d + d);
    memcpy(p, tile, 8 * sizeof *p), memcpy(p + half, tile + 8, 8 * sizeof *p);
}

static void qkv_unit(const void *arg, int u, int row, int m, op_scratch *s) {
    const qkv_job *j = arg;
    const int per_head = j->a->head_dim / IG_PANEL_ROWS;
    const ig_weight *w = u < j->n_q ? j->wq : u < j->n_q + j->n_k ? j->wk : j->wv;
    const int p = u < j->n_q ? u : u < j->n_q + j->n_k ? u - j->n_q : u - j->n_q - j->n_k;
    float *plain = w == j->wq ? j->q0 : w == j->wk ? j->k0 : NULL;
    if (w == j->wq && !plain) { /* both halves of the pairs */
        const float *q = j->y.q->f + (size_t)row * (size_t)w->n_rows +
                         (size_t)(p / per_head * j->a->head_dim + p % per_head * 8);
        op_ask_for(q, (size_t)w->n_rows * sizeof *q, m);
        op_ask_for(q + j->a->head_dim / 2, (size_t)w->n_rows * sizeof *q, m);
    }
    float *tile = op_panel(j->r, s, 0, w, p, j->x, row, m);
    if (!plain && w != j->wv) {
        turn(j, tile, tile + 8, IG_PANEL_ROWS, row, m, p % per_head * 8, 8);
        op_tap(j->r, w == j->wq ? "q rope" : "k rope", w, row, m, p * IG_PANEL_ROWS, IG_PANEL_ROWS, tile, IG_PANEL_ROWS);
    }
    if (!plain && w == j->wq)
        j->r->kern->op[IG_KERN_SCALE]->fn.scale(tile, tile, j->a->scale, m * IG_PANEL_ROWS);
    for (int t = 0; t < m; t++, tile += IG_PANEL_ROWS) {
        if (plain)
            memcpy(plain + (size_t)(row + t) * (size_t)w->n_rows + (size_t)p * IG_PANEL_ROWS, tile,
                   IG_PANEL_ROWS * sizeof *tile);
        else if (w == j->wv)
            put_values(j, row + t, p / per_head, p % per_head, tile);
        else
            put_pairs(j, w == j->wq, row + t, p / per_head, p % per_head, tile);
    }
}

/* With norms: a head is whole only after all its panels. Row by row, head by head. */
static void norm_rope_part(void *arg, int lo, int hi, int thread) {
    const qkv_job *j = arg;
    const ig_attention *a = j->a;
    const int n_d = a->head_dim, half = n_d / 2;
    ig_norm_fn *norm = j->r->kern->op[IG_KERN_NORM]->fn.norm;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int h = 0; h < a->n_heads + a->n_kv_heads; h++) {
            const bool is_q = h < a->n_heads;
            const int head = is_q ? h : h - a->n_heads;
            const size_t at = (size_t)t * (size_t)(is_q ? j->wq : j->wk)->n_rows + (size_t)(head * n_d);
            float row[IG_HEAD_DIM_MAX];
            norm(row, (is_q ? j->q0 : j->k0) + at, is_q ? a->q_norm : a->k_norm, n_d, a->norm_eps);
            op_tap(j->r, is_q ? "q norm" : "k norm", NULL, t, 1, head * n_d, n_d, row, 0);
            turn(j, row, row + half, 0, t, 1, 0, half);
            op_tap(j->r, is_q ? "q rope" : "k rope", NULL, t, 1, head * n_d, n_d, row, 0);
            const ig_tensor *y = is_q ? j->y.q : j->y.k;
            if (is_q) j->r->kern->op[IG_KERN_SCALE]->fn.scale(row, row, a->scale, n_d);
            if (y) memcpy(y->f + at, row, (size_t)n_d * sizeof *row);
            for (int i = 0; i < n_d / IG_KV_GROUP && !y; i++) {
                float pairs[16];
                memcpy(pairs, row + 8 * i, 8 * sizeof *row), memcpy(pairs + 8, row + half + 8 * i, 8 * sizeof *row);
                append_key(j, t, head, i, pairs);
            }
        }
}

/* Tier l2: behind the numbers of each new row those that come back from its groups. */
static void quantize_part(void *arg, int lo, int hi, int thread) {
    const qkv_job *j = arg;
    const ig_attention *a = j->a;
    const int n_d = a->head_dim, part = n_d * IG_KV_BLOCK_TOKENS;
    const bool is_bf16 = a->kv_kind == IG_KV_BF16_TWICE;
    const ig_fmt *number = is_bf16 ? &ig_fmt_bf16 : &ig_fmt_f16;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int u = 0; u < 2 * a->n_kv_heads; u++) {
            const int slot = j->rows->pos[t] % IG_KV_BLOCK_TOKENS, step = u % 2 ? 1 : IG_KV_BLOCK_TOKENS;
            uint16_t *at = (uint16_t *)(void *)part_of(j, t, u / 2, u % 2) + (u % 2 ? slot * n_d : slot);
            float x[IG_HEAD_DIM_MAX];
            for (int d = 0; d < n_d; d++) x[d] = is_bf16 ? ig_bf16_to_f32(at[d * step]) : ig_f16_to_f32(at[d * step]);
            ig_kv_affine_round(x, n_d, a->kv_bits, a->kv_group, number);
            for (int d = 0; d < n_d; d++)
                at[part + d * step] = is_bf16 ? ig_f32_to_bf16(x[d]) : ig_f32_to_f16(x[d]);
        }
}

/* ---- q, k, v backward --------------------------------------------------------------------------------- */

typedef struct qkv_note {
    ig_attention a;
    const ig_weight *w[3];
    ig_tensor *x;
    const ig_rope *rope;
    ig_qkv y;
    const float *before[2]; /* q and k before their norms, or NULL */
} qkv_note;

typedef struct qkv_back_job {
    const ig_run *r;
    const qkv_note *note;
    float *g[2];
} qkv_back_job;

/* From the gradient of the finished q and k to that of the product, in place. */
static void qkv_back_part(void *arg, int lo, int hi, int thread) {
    const qkv_back_job *j = arg;
    const ig_attention *a = &j->note->a;
    const int n_d = a->head_dim, half = n_d / 2;
    const ig_kern_table *kern = j->r->kern;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int h = 0; h < a->n_heads + a->n_kv_heads; h++) {
            const int is_k = h >= a->n_heads, head = is_k ? h - a->n_heads : h;
            const size_t at = (size_t)t * (size_t)j->note->w[is_k]->n_rows + (size_t)(head * n_d);
            const size_t angle = (size_t)t * (size_t)half;
            float *g = j->g[is_k] + at;
            if (!is_k) kern->op[IG_KERN_SCALE]->fn.scale(g, g, a->scale, n_d);
            kern->op[IG_KERN_ROPE_BACK]->fn.rope(g, g + half, 0, j->note->rope->cos + angle,
                                                 j->note->rope->sin + angle, 0, 1, half);
            if (j->note->before[is_k])
                kern->op[IG_KERN_NORM_BACK]->fn.norm_back(
                    &(ig_norm_back_args){.dx = g, .dy = g, .x = j->note->before[is_k] + at,
                                         .w = is_k ? a->k_norm : a->q_norm, .n = n_d, .eps = a->norm_eps});
        }
}

static void qkv_back(ig_run *r, const void *own) {
    const qkv_note *n = own;
    qkv_back_job job = {r, n, {op_grad_of(r, n->y.q), op_grad_of(r, n->y.k)}};
    const float *dv = op_grad_of(r, n->y.v);
    op_trace(r, "rope back", r->kern->op[IG_KERN_ROPE_BACK]);
    if (!op_stopped(r) && !ig_run_planning(r))
        ig_pool_run(r->pool, qkv_back_part, &job, n->x->n_rows, LIGHT_ROWS);
    op_linear_back(r, n->w[0], job.g[0], n->x);
    op_linear_back(r, n->w[1], job.g[1], n->x);
    op_linear_back(r, n->w[2], dv, n->x);
}

ig_qkv op_qkv(ig_run *r, const ig_attention *a, const ig_weight *wq, const ig_weight *wk, const ig_weight *wv,
              ig_tensor *x, const ig_rope *rope, const ig_rows *rows) {
    const bool norms = a->q_norm != NULL;
    ig_qkv y = {NULL, NULL, NULL};
    if (op_stopped(r)) return y;
    const ig_row_order order = norms ? IG_ROWS_PLAIN : IG_ROWS_ROPE;
    ig_assert(wq->n_cols == x->n_cols && wk->n_cols == x->n_cols && wv->n_cols == x->n_cols);
    ig_assert(wq->order == order && wk->order == order && wv->order == IG_ROWS_PLAIN);
    ig_assert(wq->n_rows == a->n_heads * a->head_dim && wk->n_rows == a->n_kv_heads * a->head_dim);
    ig_assert(norms == (a->k_norm != NULL));
    op_trace_weight(r, "linear q", wq), op_trace_weight(r, "linear k", wk), op_trace_weight(r, "linear v", wv);
    if (norms) op_trace(r, "norm of heads", r->kern->op[IG_KERN_NORM]);
    op_trace(r, "kv append", r->kern->op[a->kv_kind == IG_KV_8 ? IG_KERN_TO_KV8 : IG_KERN_TO_F16]);
    const int n = x->n_rows;
    y.q = op_tensor(r, n, wq->n_rows, IG_ACT_F32);
    if (r->train) y.k = op_tensor(r, n, wk->n_rows, IG_ACT_F32), y.v = op_tensor(r, n, wv->n_rows, IG_ACT_F32);
    const size_t mark = ig_arena_mark(r->arena);
    /* without a tape q is turned where it is; the walk back wants what the norms got */
    ig_tensor *q0 = !norms || op_stopped(r) ? NULL : r->tape ? op_tensor(r, n, wq->n_rows, IG_ACT_F32) : y.q;
    ig_tensor *k0 = norms && !op_stopped(r) ? op_tensor(r, n, wk->n_rows, IG_ACT_F32) : NULL;
    if (op_stopped(r)) return (ig_qkv){NULL, NULL, NULL};
    qkv_job job = {.r = r, .a = a, .wq = wq, .wk = wk, .wv = wv, .x = x, .rope = rope, .rows = rows, .y = y,
                   .q0 = q0 ? q0->f : NULL, .k0 = k0 ? k0->f : NULL,
                   .n_q = ig_weight_n_panels(wq), .n_k = ig_weight_n_panels(wk)};
    op_run_units(r, qkv_unit, &job, job.n_q + job.n_k + ig_weight_n_panels(wv), x, 1);
    if (norms && !ig_run_planning(r) && !op_stopped(r))
        ig_pool_run(r->pool, norm_rope_part, &job, n, LIGHT_ROWS);
    if (a->kv_bits) {
        op_trace(r, "kv groups", r->kern->op[IG_KERN_TO_F16]);
        if (!ig_run_planning(r) && !op_stopped(r)) ig_pool_run(r->pool, quantize_part, &job, n, LIGHT_ROWS);
    }
    if (!r->tape) ig_arena_rewind(r->arena, mark);
    if (r->train) y.q->needs_g = y.k->needs_g = y.v->needs_g = x->needs_g;
    if (op_stopped(r)) return (ig_qkv){NULL, NULL, NULL};
    const qkv_note note = {*a, {wq, wk, wv}, x, rope, y, {job.q0, job.k0}};
    op_note(r, qkv_back, &note, sizeof note, y.q, y.k, y.v);
    return y;
}

/* ---- attention ---------------------------------------------------------------------------------------- */

/* Neighbouring rows of one sequence and the span of keys that is looked at: ALL_SPANS, or one, for a part. */
typedef struct piece {
    int row, n, span;
} piece;

enum { ALL_SPANS = -1, APART_ROWS = 8, QUERIES_ROUNDED = 24, SPAN_TOKENS = IG_ATTENTION_SPAN_BLOCKS * IG_KV_BLOCK_TOKENS };

/* What spans give before they are joined: of row t, span i and query head h at (t * n_spans + i) * n_heads + h. */
typedef struct parts {
    float *out, *m, *l; /* out: D each */
    int n_spans;        /* 0: there are no parts */
} parts;

typedef struct attention_job {
    const ig_run *r;
    const ig_attention *a;
    const ig_tensor *q;
    const ig_rows *rows;
    ig_tensor *y;
    float *lse; /* [T][n_heads], training */
    piece *piece;
    parts parts;
    uint8_t *scratch; /* one share a thread */
    size_t scratch_bytes;
    const float *blocks;    /* training: the batch's blocks, [n_blocks][n_kv_heads][128 D] */
    const int *first_block; /* training: [T] block of the row's position 0 */
    int n_pieces, n_splits; /* splits: of a kv head's query heads */
    int n_q_max, n_blocks_max, n_keys; /* n_keys: of a call, in tier l1; else 0 */
} attention_job;

static size_t round64(size_t n) {
    return (n + 63) / 64 * 64;
}
/* Scratch of one thread: q, out, kernel scratch, block pointers, positions, lse or m, l. */
static size_t attention_scratch(int n_q, int head_dim, int n_blocks, int n_keys) {
    size_t rows = round64((size_t)n_q * (size_t)head_dim * sizeof(float));
    return 2 * rows + round64(ig_attention_scratch_floats(n_q, head_dim, n_keys) * sizeof(float)) +
           round64((size_t)n_blocks * sizeof(void *)) + round64((size_t)n_q * (sizeof(int) + 2 * sizeof(float)));
}

/* The first key that row t sees. */
static int see_from(const attention_job *j, int t) {
    const int pos = j->rows->pos[t], window = j->a->window;
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Tier l1: does row t see its window in the order of a ring? Rows that mlx-lm ran one at a time do, once it is full. */
static bool in_ring(const ig_run *r, const ig_attention *a, const ig_rows *rows, int t) {
    const int pos = rows->pos[t];
    return ig_kern_table_rounds(r->kern) && a->window > 0 && pos >= a->window &&
           pos >= rows->kv_seq[rows->seq[t]]->ring_from;
}

/* Tier l2: how row t sums, by what the cache of mlx-optiq was when that row ran. Its tiles want a mask that says no more
 * than "causal": rows that ran together in a full window have one of their own. */
static ig_attention_form form_of(const ig_attention *a, const ig_rows *rows, int t) {
    const ig_kv_seq *s = rows->kv_seq[rows->seq[t]];
    const int pos = rows->pos[t];
    if (!a->kv_bits || pos < s->quantized_from) return IG_ATTENTION_PLAIN;
    if (a->kv_at_once || (a->kv_bits != 4 && a->kv_bits != 8)) return IG_ATTENTION_ROUNDED;
    if (a->window == 0 || pos >= s->ring_from) return IG_ATTENTION_TILED;
    const int begin = pos / s->chunk_tokens * s->chunk_tokens, past = begin < a->window ? begin : a->window - 1;
    const int n = s->ring_from - begin < s->chunk_tokens ? s->ring_from - begin : s->chunk_tokens;
    return n > a->window - past ? IG_ATTENTION_ROUNDED : IG_ATTENTION_TILED;
}

static const void *block_at(const attention_job *j, int row, int b, int head) {
    if (j->blocks)
        return j->blocks + (size_t)((j->first_block[row] + b) * j->a->n_kv_heads + head) *
                               (size_t)(2 * IG_KV_BLOCK_TOKENS * j->a->head_dim);
    const ig_kv_seq *seq = j->rows->kv_seq[j->rows->seq[row]];
    const int group = j->a->kv.group;
    ig_assert(b >= seq->first[group] && b < seq->n_blocks); /* what left the window is not there */
    return ig_kv_at(j->rows->kv, seq->block[group][b], j->a->kv, head);
}

static void attention_part(void *arg, int lo, int hi, int thread) {
    const attention_job *j = arg;
    const int n_d = j->a->head_dim, n_kv = j->a->n_kv_heads, group = j->a->n_heads / n_kv;
    const size_t d_bytes = (size_t)n_d * sizeof(float), rows_bytes = round64((size_t)j->n_q_max * d_bytes);
    uint8_t *s = j->scratch + (size_t)thread * j->scratch_bytes;
    float *q = (float *)(void *)s, *out = (float *)(void *)(s + rows_bytes),
          *work = (float *)(void *)(s + 2 * rows_bytes);
    s += 2 * rows_bytes + round64(ig_attention_scratch_floats(j->n_q_max, n_d, j->n_keys) * sizeof(float));
    const void **block = (const void **)(void *)s;
    int *pos = (int *)(void *)(s + round64((size_t)j->n_blocks_max * sizeof *block));
    float *lse = (float *)(void *)(pos + j->n_q_max), *m = lse, *l = m + j->n_q_max;

    for (int u = lo; u < hi; u++) {
        const piece p = j->piece[j->n_pieces - 1 - u / (n_kv * j->n_splits)]; /* later rows see more keys */
        const int head = u / j->n_splits % n_kv, split = u % j->n_splits;
        const int g0 = group * split / j->n_splits, n_g = group * (split + 1) / j->n_splits - g0;
        const int h0 = head * group + g0, n_q = p.n * n_g; /* query heads h0..h0 + n_g - 1 */
        for (int i = 0; i < n_q; i++) {
            const int t = p.row + i / n_g, h = h0 + i % n_g;
            memcpy(q + i * n_d, j->q->f + (size_t)t * (size_t)j->q->n_cols + (size_t)(h * n_d), d_bytes);
            pos[i] = j->rows->pos[t];
        }
        const int n_blocks = pos[n_q - 1] / IG_KV_BLOCK_TOKENS + 1;
        ig_assert(n_blocks <= j->n_blocks_max);
        for (int b = see_from(j, p.row) / IG_KV_BLOCK_TOKENS; b < n_blocks; b++)
            if (p.span == ALL_SPANS || b / IG_ATTENTION_SPAN_BLOCKS == p.span) block[b] = block_at(j, p.row, b, head);
        const bool part = p.span != ALL_SPANS;
        ig_attention_args a = {.out = out, .q = q, .pos = pos, .n_q = n_q, .head_dim = n_d,
                               .window = j->a->window, .softcap = j->a->softcap,
                               .kind = j->blocks ? IG_KV_F32 : j->a->kv_kind, .block = block,
                               .lse = j->lse ? lse : NULL, .scratch = work,
                               .m = part ? m : NULL, .l = part ? l : NULL, .span = p.span,
                               .in_ring = in_ring(j->r, j->a, j->rows, p.row)};
        if (j->a->kv_bits) a.form = form_of(j->a, j->rows, p.row);
        if (a.in_ring) a.ring_from = j->rows->kv_seq[j->rows->seq[p.row]]->ring_from;
        j->r->kern->op[IG_KERN_ATTENTION]->fn.attention(&a);
        for (int i = 0; i < n_q; i++) {
            const int t = p.row + i / n_g, h = h0 + i % n_g;
            if (part) {
                const size_t at = (size_t)(t * j->parts.n_spans + p.span) * (size_t)j->a->n_heads + (size_t)h;
                memcpy(j->parts.out + at * (size_t)n_d, out + i * n_d, d_bytes);
                j->parts.m[at] = m[i], j->parts.l[at] = l[i];
                continue;
            }
            op_tap(j->r, "attention", NULL, t, 1, h * n_d, n_d, out + i * n_d, 0);
            if (j->lse) j->lse[(size_t)t * (size_t)j->a->n_heads + (size_t)h] = lse[i];
            op_store_row(j->r, j->y, t, h * n_d, out + i * n_d, n_d);
        }
    }
}

static void join_part(void *arg, int lo, int hi, int thread) {
    const attention_job *j = arg;
    const size_t n_heads = (size_t)j->a->n_heads, n_d = (size_t)j->a->head_dim;
    float y[IG_HEAD_DIM_MAX];
    (void)thread;
    for (int t = lo; t < hi; t++) {
        const int first = see_from(j, t) / SPAN_TOKENS, last = j->rows->pos[t] / SPAN_TOKENS;
        for (size_t h = 0; h < n_heads; h++) {
            const size_t at = (size_t)(t * j->parts.n_spans + first) * n_heads + h;
            const ig_attention_join_args a = {.y = y, .out = j->parts.out + at * n_d, .m = j->parts.m + at,
                                              .l = j->parts.l + at, .out_step = n_heads * n_d, .step = n_heads,
                                              .n_parts = last - first + 1, .head_dim = (int)n_d};
            j->r->kern->op[IG_KERN_ATTENTION_JOIN]->fn.attention_join(&a);
            op_store_row(j->r, j->y, t, (int)(h * n_d), y, (int)n_d);
        }
    }
}

/* Neighbouring rows of one sequence that sum alike, at most `most` together; one that sees a ring is alone. */
static int cut_tiles(piece *tile, const ig_run *r, const ig_attention *a, const ig_rows *rows, int most) {
    int n = 0;
    for (int t = 0; t < rows->n_rows; t++) {
        bool joins = t > 0 && rows->seq[t] == rows->seq[t - 1] && tile[n - 1].n < most && !in_ring(r, a, rows, t) &&
                     (!a->kv_bits || form_of(a, rows, t) == form_of(a, rows, t - 1));
        if (joins)
            tile[n - 1].n++;
        else
            tile[n++] = (piece){t, 1, ALL_SPANS};
    }
    return n;
}

/* Tiles into spans, in place from the end: `piece` has room for all spans of every row. */
static int cut_spans(attention_job *j, int n_tiles) {
    int n = 0, at = 0;
    for (int i = 0; i < n_tiles; i++) {
        const piece *p = &j->piece[i];
        n += j->rows->pos[p->row + p->n - 1] / SPAN_TOKENS - see_from(j, p->row) / SPAN_TOKENS + 1;
    }
    at = n;
    for (int i = n_tiles - 1; i >= 0; i--) {
        piece p = j->piece[i];
        const int first = see_from(j, p.row) / SPAN_TOKENS;
        for (p.span = j->rows->pos[p.row + p.n - 1] / SPAN_TOKENS; p.span >= first; p.span--) j->piece[--at] = p;
    }
    return n;
}

/* Spans of keys that some row of a step of few rows has; 1: nothing to take apart. A plan reckons with all. */
static int spans_apart(const ig_run *r, const ig_rows *rows) {
    if (r->train || ig_kern_table_rounds(r->kern)) return 1;
    if (ig_run_planning(r)) return (rows->n_ctx - 1) / SPAN_TOKENS + 1;
    int n = 1;
    for (int t = 0; t < rows->n_rows && rows->n_rows <= APART_ROWS; t++)
        if (rows->pos[t] / SPAN_TOKENS >= n) n = rows->pos[t] / SPAN_TOKENS + 1;
    return n;
}

/* ---- training: k and v of the batch as blocks ----------------------------------------------------------- */

typedef struct blocks_job {
    const ig_attention *a;
    const ig_rows *rows;
    const ig_tensor *k, *v;
    const int *first_block;
    float *blocks;
    bool turned;
} blocks_job;

static void blocks_part(void *arg, int lo, int hi, int thread) {
    const blocks_job *j = arg;
    const int n_d = j->a->head_dim, n_kv = j->a->n_kv_heads;
    (void)thread;
    for (int t = lo; t < hi; t++)
        for (int h = 0; h < n_kv; h++) {
            const int pos = j->rows->pos[t], slot = pos % IG_KV_BLOCK_TOKENS;
            const size_t at = (size_t)t * (size_t)(n_kv * n_d) + (size_t)(h * n_d);
            float *kt = j->blocks + (size_t)((j->first_block[t] + pos / IG_KV_BLOCK_TOKENS) * n_kv + h) *
                                        (size_t)(2 * IG_KV_BLOCK_TOKENS * n_d);
            for (int d = 0; d < n_d; d++) kt[d * IG_KV_BLOCK_TOKENS + slot] = j->k->f[at + (size_t)d];
            float *v = kt + IG_KV_BLOCK_TOKENS * n_d;
            if (!j->turned) memcpy(v + slot * n_d, j->v->f + at, (size_t)n_d * sizeof *v);
            for (int d = 0; d < n_d && j->turned; d++) v[d * IG_KV_BLOCK_TOKENS + slot] = j->v->f[at + (size_t)d];
        }
}

/* Sequences follow each other; each begins at position 0 and its positions have no gaps. Every row shares at
 * most one begun block, so T + 63 a sequence bounds them. */
static int count_blocks(int *first_block, const ig_rows *rows) {
    int n = 0;
    for (int t = 0; t < rows->n_rows; t++) {
        const bool begins = t == 0 || rows->seq[t] != rows->seq[t - 1];
        ig_assert(rows->pos[t] == (begins ? 0 : rows->pos[t - 1] + 1));
        if (first_block) first_block[t] = begins ? n : first_block[t - 1];
        if (rows->pos[t] % IG_KV_BLOCK_TOKENS == 0) n++;
    }
    return n;
}

const float *op_lay_out_blocks(ig_run *r, const ig_attention *a, ig_qkv x, const ig_rows *rows,
                               int *first_block, bool turned) {
    /* a plan without positions is for one sequence */
    const int n = rows->pos ? count_blocks(first_block, rows) : ig_kv_blocks_for(rows->n_rows);
    const size_t floats = (size_t)n * (size_t)(a->n_kv_heads * 2 * IG_KV_BLOCK_TOKENS * a->head_dim);
    float *blocks = op_take(r, floats * sizeof *blocks);
    if (!blocks) return NULL;
    memset(blocks, 0, floats * sizeof *blocks); /* what a kernel reads past a sequence's end is finite */
    blocks_job job = {a, rows, x.k, x.v, first_block, blocks, turned};
    ig_pool_run(r->pool, blocks_part, &job, rows->n_rows, LIGHT_ROWS);
    return blocks;
}

ig_tensor *op_attention(ig_run *r, const ig_attention *a, ig_qkv x, const ig_rows *rows, int need) {
    if (op_stopped(r)) return NULL;
    const int group = a->n_heads / a->n_kv_heads, n_d = a->head_dim;
    const ig_tensor *q = x.q;
    ig_assert(q->n_cols == a->n_heads * n_d && group * a->n_kv_heads == a->n_heads &&
              group <= IG_ATTENTION_QUERIES_MAX);
    op_trace(r, a->kv_bits ? "attention over groups" : "attention", r->kern->op[IG_KERN_ATTENTION]);
    /* heads that are not whole activation blocks: quantise the finished rows instead */
    const bool whole = n_d % IG_ACT_BLOCK == 0;
    ig_tensor *y = op_tensor(r, q->n_rows, q->n_cols, whole ? need : need | IG_ACT_F32);
    float *lse = r->tape ? op_take(r, (size_t)q->n_rows * (size_t)a->n_heads * sizeof *lse) : NULL;
    size_t mark = ig_arena_mark(r->arena);
    /* tier l1 keeps all scores of its queries in scratch */
    const int queries = ig_kern_table_rounds(r->kern) ? QUERIES_ROUNDED : IG_ATTENTION_QUERIES_MAX;
    const int most = queries > group ? queries / group : 1;
    attention_job job = {.r = r,
                         .a = a,
                         .q = q,
                         .rows = rows,
                         .lse = lse,
                         .n_q_max = most * group,
                         .n_blocks_max = ig_kv_blocks_for(r->train ? rows->n_rows : rows->n_ctx)};
    if (r->train) {
        int *first_block = op_take(r, (size_t)rows->n_rows * sizeof *first_block);
        job.blocks = op_lay_out_blocks(r, a, x, rows, first_block, false);
        job.first_block = first_block;
    }
    if (ig_kern_table_rounds(r->kern)) {
        const int seen = a->window > 0 && a->window < rows->n_ctx ? a->window + most : rows->n_ctx;
        job.n_keys = (ig_kv_blocks_for(seen) + 1) * IG_KV_BLOCK_TOKENS;
    }
    job.scratch_bytes = attention_scratch(job.n_q_max, n_d, job.n_blocks_max, job.n_keys);
    const int n_threads = ig_pool_threads(r->pool), n_spans = spans_apart(r, rows);
    const int n_apart = n_spans == 1 ? 0 : rows->n_rows < APART_ROWS ? rows->n_rows : APART_ROWS;
    if (n_apart) {
        op_trace(r, "attention join", r->kern->op[IG_KERN_ATTENTION_JOIN]);
        const size_t n = (size_t)n_apart * (size_t)n_spans * (size_t)a->n_heads;
        job.parts.out = op_take(r, n * (size_t)n_d * sizeof(float));
        job.parts.m = op_take(r, n * sizeof(float)), job.parts.l = op_take(r, n * sizeof(float));
        job.parts.n_spans = n_spans;
    }
    /* in a plan rows and spans apart are not of one step, but then nothing else of the step is large */
    job.piece = op_take(r, (size_t)(rows->n_rows + n_apart * n_spans) * sizeof *job.piece);
    job.scratch = op_take(r, job.scratch_bytes * (size_t)n_threads);
    if (job.scratch) {
        ig_tensor f32_only = *y;
        if (!whole) f32_only.act.q = NULL, f32_only.act.q16 = NULL;
        job.y = whole ? y : &f32_only;
        job.n_pieces = cut_tiles(job.piece, r, a, rows, most);
        if (n_apart) job.n_pieces = cut_spans(&job, job.n_pieces);
        const int n_units = job.n_pieces * a->n_kv_heads;
        job.n_splits = (n_threads + n_units - 1) / n_units;
        if (job.n_splits > group) job.n_splits = group;
        ig_pool_run(r->pool, attention_part, &job, n_units * job.n_splits, 1);
        if (n_apart) ig_pool_run(r->pool, join_part, &job, rows->n_rows, LIGHT_ROWS);
        for (int t = 0; t < y->n_rows && !whole; t++)
            op_quant_row(r, y, t, 0, y->f + (size_t)t * (size_t)y->n_cols, y->n_cols);
    }
    ig_arena_rewind(r->arena, mark);
    if (op_stopped(r)) return NULL;
    y->needs_g = q->needs_g || (r->train && (x.k->needs_g || x.v->needs_g));
    const op_attention_note note = {*a, rows, x, y, lse};
    op_note(r, op_attention_back, &note, sizeof note, y, NULL, NULL);
    return y;
}

static const ig_tier_node nodes[] = {
    {.id = "kv.append", .does = "keys and values into their blocks, 16 bits", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3 kv-bits",
     .proof = "tests/parity", .steps = "kv append", .runs = IG_RUNS(TO_F16)},
    {.id = "kv.q_encode", .does = "keys and values into their blocks, 8 bits", .tier = IG_TIER_L3,
     .gate = IG_GATE_KL, .in = {NULL, NULL, NULL}, .flags = "kv-bits",
     .proof = "model: keys_and_values_of_8_bits_change_the_logits_a_little_and_no_more",
     .when = "--kv-bits 8", .steps = "kv append", .runs = IG_RUNS(TO_KV8)},
    {.id = "kv.q_groups", .does = "keys and values beside it as affine groups give them back", .tier = IG_TIER_L2,
     .oracle = "mlx-optiq", .gate = IG_GATE_EXACT, .in = {NULL, NULL, NULL}, .flags = "l2 kv-config",
     .proof = "tests/parity", .when = "--kv-config", .steps = "kv groups", .runs = IG_RUNS(TO_F16)},
    {.id = "attn.q_tiled", .does = "attention over what came back from groups, in tiles of 512 keys or at once",
     .tier = IG_TIER_L2, .oracle = "mlx-optiq", .gate = IG_GATE_EXACT, .in = {NULL, NULL, NULL},
     .flags = "l2 kv-config", .proof = "tests/parity", .when = "--kv-config", .steps = "attention over groups",
     .runs = IG_RUNS(ATTENTION)},
    {.id = "attn.scale", .does = "queries times the scale of the scores", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3",
     .proof = "tests/parity", .steps = "linear q", .also = IG_RUNS(SCALE)},
    {.id = "attn.sdpa", .does = "causal attention, in windows or over all", .tier = IG_TIER_L1,
     .oracle = "mlx-lm", .gate = IG_GATE_EXACT, .in = {"on", "on", "on"}, .flags = "l1 l2 l3 kv-bits kv-config",
     .proof = "tests/parity", .steps = "attention", .runs = IG_RUNS(ATTENTION)},
    {.id = "attn.join", .does = "parts of a long context made one", .tier = IG_TIER_L3,
     .gate = IG_GATE_ENVELOPE, .in = {NULL, NULL, "on"}, .flags = "l1 l2 l3",
     .proof = "tests/quality/test_envelope.py", .steps = "attention join", .runs = IG_RUNS(ATTENTION_JOIN)},
    {.id = "rope.back", .does = "gradient of the turn of heads and of their norms", .tier = IG_TIER_L3,
     .gate = IG_GATE_FD, .in = {"on", "on", "on"},
     .proof = "op: q_k_and_v_go_back_through_scale_rope_and_norms_of_heads", .steps = "rope back",
     .runs = IG_RUNS(ROPE_BACK), .also = IG_RUNS(NORM_BACK) | IG_RUNS(SCALE), .training = true},
};
NODE_EXPORT(attention, nodes);
