/* op: one step of a model. It checks shapes, takes its output from the arena, runs a kernel over the pool,
 * and leaves a note on the tape when there is one.
 *
 * The same model code runs in three ways, by what is in ig_run:
 *   serve:  tape NULL, trace NULL. Straight calls, nothing remembered; activations take the form that the
 *           next weight eats (int8 or f32) and no other.
 *   train:  tape set. f32 activations are kept as well, and every op notes what it did.
 *   plan:   arena counting. Nothing is computed; the arena counts bytes, the trace lists (op, kernel, tier):
 *           the memory plan and the tier map come from the code itself.
 *
 * Errors:  a failed run keeps going through ops that do nothing: the status in ig_run sticks and the caller
 *          looks once, at the end.
 * Exact:   every number of row t depends on row t and its sequence only, for any T, split and thread count.
 * Threads: called by the one thread that owns the run; work goes to run->pool.
 * Not here: which ops make a model (model/family_*.c), what a kernel does with its lanes (kern/). */
#ifndef IG_OP_H
#define IG_OP_H

#include "kern/kern.h"
#include "kv/kv.h"

/* A matrix [T][n_cols] in one form or several. */
typedef struct ig_tensor {
    int n_rows, n_cols;
    float *f;   /* f32 rows, or NULL */
    ig_act act; /* act.q, act.q16 are NULL when there is no such form */
} ig_tensor;

/* Where a row of the panels comes from, and so where its output goes. */
typedef enum ig_row_order {
    IG_ROWS_PLAIN,
    /* Panels of a head hold pairs (i, i + D/2): lanes 0..7 are dims i..i+7, lanes 8..15 their partners, so
     * that rope turns a tile in registers. */
    IG_ROWS_ROPE
} ig_row_order;

/* A weight matrix W [n_rows][n_cols] repacked into panels. */
typedef struct ig_weight {
    const char *name;
    const ig_fmt *fmt;
    ig_linear_fn *linear; /* the chosen kernel */
    const ig_kern *kern, *unpack;
    const uint8_t *panels; /* [ceil(n_rows / 16)][panel_bytes], aligned to 64 */
    size_t panel_bytes;
    int n_rows, n_cols;
    ig_row_order order;
    int head_dim; /* for IG_ROWS_ROPE */
} ig_weight;

static inline int ig_weight_n_panels(const ig_weight *w) {
    return (w->n_rows + IG_PANEL_ROWS - 1) / IG_PANEL_ROWS;
}
/* The row of W that sits in lane `lane` of panel `p`; -1 past the end. */
int ig_weight_row(const ig_weight *w, int p, int lane);

/* The forms (ig_act_kind bits) that weights a, b, c of an array eat. */
static inline int op_eats(const ig_weight *w, int a, int b, int c) {
    return (int)w[a].fmt->act | (int)w[b].fmt->act | (int)w[c].fmt->act;
}

/* The kernels that no format owns, picked once. */
typedef struct ig_kern_table {
    const ig_kern *op[IG_KERN_N_OPS];
} ig_kern_table;
void ig_kern_table_pick(ig_kern_table *t, ig_tier tier_max, uint32_t cpu);

typedef struct ig_node ig_node; /* tape.c */
typedef struct ig_tape {
    ig_node *last;
    int n_nodes;
} ig_tape;

/* The ragged batch as attention sees it: rows of one sequence are neighbours with ascending positions. */
typedef struct ig_rows {
    int n_rows;
    const uint32_t *token; /* [n_rows] */
    const int *pos;        /* [n_rows] */
    const int *seq;        /* [n_rows], index into kv_seq */
    ig_kv_seq *const *kv_seq;
    const ig_kv_pool *kv; /* NULL while planning */
    int n_ctx;            /* longest position + 1 that may come (plan: bounds scratch) */
    const int *want;      /* [n_want] rows whose logits are wanted, ascending */
    int n_want;
} ig_rows;

typedef struct ig_run {
    ig_arena *arena;
    ig_arena *shapes; /* plan: real memory for the tensors' headers, their values are only counted */
    ig_pool *pool;    /* NULL: here */
    ig_tape *tape;
    void (*trace)(void *ud, const char *op, const ig_kern *k);
    void *trace_ud;
    const ig_kern_table *kern;
    ig_status status;
    ig_err err;
} ig_run;

static inline bool ig_run_planning(const ig_run *r) {
    return r->arena->counting;
}

/* Cosines and sines of the batch: [T][D/2] each, computed once a step in double, rounded to f32. */
typedef struct ig_rope {
    const float *cos, *sin;
    int half;
} ig_rope;
/* inv_freq[half] in double; angle = (double)pos * inv_freq[i]. */
const ig_rope *op_rope(ig_run *r, const ig_rows *rows, const double *inv_freq, int half);

/* h[t] = row token[t] of the table, times scale. f32. */
ig_tensor *op_embed(ig_run *r, const ig_weight *table, const ig_rows *rows, float scale);

/* RMS norm; the result in the forms `need` (ig_act_kind bits). `pick` (n_pick row numbers) or NULL: all. */
ig_tensor *op_norm(ig_run *r, const ig_tensor *x, const float *w, float eps, int need, const int *pick,
                   int n_pick);

/* What the attention of one layer is. */
typedef struct ig_attention {
    int n_heads, n_kv_heads, head_dim;
    int window;                   /* positions that a row sees, itself included; 0: all before it */
    float scale;                  /* of q, after rope */
    const float *q_norm, *k_norm; /* [head_dim]: RMS norm of every head before rope; NULL: none */
    float norm_eps;
    ig_kv_layer kv;
} ig_attention;

/* Queries [T][n_heads * D], scaled. k and v [T][n_kv_heads * D] are there when training only: otherwise they
 * went into the KV blocks of the rows, as f16. */
typedef struct ig_qkv {
    ig_tensor *q, *k, *v;
} ig_qkv;

/* q = rope(norm(Wq x)) * scale, k = rope(norm(Wk x)), v = Wv x. Without norms wq and wk are in order
 * IG_ROWS_ROPE and rope turns their tiles; with norms all are IG_ROWS_PLAIN. */
ig_qkv op_qkv(ig_run *r, const ig_attention *a, const ig_weight *wq, const ig_weight *wk, const ig_weight *wv,
              const ig_tensor *x, const ig_rope *rope, const ig_rows *rows);

/* Causal attention, inside the window when there is one; forms `need`. Over the KV blocks of the rows'
 * sequences; when training over k and v of this batch, whose sequences begin at position 0. */
ig_tensor *op_attention(ig_run *r, const ig_attention *a, ig_qkv x, const ig_rows *rows, int need);

/* y = W x, f32. */
ig_tensor *op_linear(ig_run *r, const ig_weight *w, const ig_tensor *x);

/* h += W x, in place. Returns h. */
ig_tensor *op_linear_add(ig_run *r, const ig_weight *w, const ig_tensor *x, ig_tensor *h);

/* h += norm(x), in place. Returns h. */
ig_tensor *op_norm_add(ig_run *r, const ig_tensor *x, const float *w, float eps, ig_tensor *h);

typedef enum ig_glu { IG_GLU_SILU, IG_GLU_GELU } ig_glu;
/* act(Wg x) * (Wu x); forms `need`. GELU is the tanh form. */
ig_tensor *op_glu(ig_run *r, ig_glu act, const ig_weight *gate, const ig_weight *up, const ig_tensor *x,
                  int need);

/* out[i][n_rows of w] = W x[i]; `out` is the caller's, stride out_stride floats. */
void op_head(ig_run *r, const ig_weight *w, const ig_tensor *x, float *out, size_t out_stride);

#endif
