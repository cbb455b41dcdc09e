/* op: one step of a model. It checks shapes, takes its output from the arena, runs a kernel over the pool,
 * and leaves a note on the tape when there is one.
 *
 * The same model code runs in three ways, by what is in ig_run:
 *   serve:  train false. Straight calls, nothing remembered; activations take the form that the next weight
 *           eats (int8 or f32) and no other.
 *   train:  train true. All numbers are f32: weights are dequantised exactly, K and V are tensors. With a
 *           tape nothing is overwritten and every op notes how to undo itself; op_backward walks the notes.
 *           Without one (a forward that only wants edges or a loss) the same bits and nothing remembered.
 *   plan:   arena counting. Nothing is computed; the arena counts bytes, the trace lists (op, kernel, tier):
 *           the memory plan and the tier map come from the code itself, a walk back included.
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

/* Whose memory a gradient is in. */
typedef enum ig_grad_owner { IG_GRAD_NONE, IG_GRAD_TAPE, IG_GRAD_CALLER } ig_grad_owner;

/* A matrix [T][n_cols] in one form or several. */
typedef struct ig_tensor {
    int n_rows, n_cols;
    float *f;   /* f32 rows, or NULL */
    ig_act act; /* act.q, act.q16 are NULL when there is no such form */
    /* Training. A gradient lives from its first contribution to the note that made the tensor; a tensor no
     * note made (a leaf) keeps it. */
    float *g;       /* [n_rows][n_cols] */
    size_t g_bytes; /* of the tape's buffer, which may be longer */
    ig_grad_owner g_owner;
    bool needs_g; /* something trained is below: the walk comes by here */
    bool has_g;   /* g holds a sum */
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
    const float *bias; /* [panels][16] in the order of the lanes, 0 past the end; NULL: none */
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
    const ig_kern *linear_f32; /* of panels [K][16] of f32, which training unpacks all others to */
} ig_kern_table;
/* number: NULL, or in tiers l1 and l2 what activations are rounded to after each step (ig_fmt_bf16, ig_fmt_f16): then
 * op[IG_KERN_ROUND] is there, ops of no use in serving are NULL. */
void ig_kern_table_pick(ig_kern_table *t, ig_tier tier_max, const ig_fmt *number, uint32_t cpu);
/* Are activations rounded to a number after each step? */
static inline bool ig_kern_table_rounds(const ig_kern_table *t) {
    return t->op[IG_KERN_ROUND] != NULL;
}

typedef struct ig_node ig_node; /* tape.c */
enum { IG_TAPE_SPARES = 32 };
typedef struct ig_tape {
    ig_node *last;
    int n_nodes;
    /* Buffers of gradients whose walk is over, for the next ones. All in the run's arena. */
    struct {
        float *p;
        size_t bytes;
    } spare[IG_TAPE_SPARES];
    int n_spare;
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

/* An op has begun that runs kernel k; w is the weight of a product, else NULL. An op of several kernels calls once
 * for each, all before it computes, so the time between calls is the time of ops. On the run's thread. */
typedef void ig_trace_fn(void *ud, const char *op, const ig_kern *k, const ig_weight *w);

/* Rows row .. row + m - 1, columns col .. col + n - 1 of what an op made, v_row floats apart: for comparing programs step
 * by step. w: of a product, else NULL; `what` is the op's name. From any thread of the pool, in any order. */
typedef void ig_tap_fn(void *ud, const char *what, const ig_weight *w, int row, int m, int col, int n, const float *v,
                       size_t v_row);

typedef struct ig_run {
    ig_arena *arena;
    ig_arena *shapes; /* plan: real memory for the tensors' headers, their values are only counted */
    ig_pool *pool;    /* NULL: here */
    bool train;
    /* Serving: what an IG_ACT_Q8 weight eats is a sum of two int8 parts, the second made of what the first rounded
     * away: nearly 16 bits. Part i of row t is row 2 t + i of ig_act's int8 forms. Each product runs twice, through the same kernel. */
    bool two_parts;
    ig_tape *tape; /* only with train */
    ig_trace_fn *trace; /* or NULL */
    void *trace_ud;
    ig_tap_fn *tap; /* or NULL */
    void *tap_ud;
    const ig_kern_table *kern;
    ig_status status;
    ig_err err;
} ig_run;

static inline bool ig_run_planning(const ig_run *r) {
    return r->arena->counting;
}

/* ---- tape.c: the walk back --------------------------------------------------------------------------- */

/* A tensor that no op made: f is the caller's [n_rows][n_cols]. */
ig_tensor *op_leaf(ig_run *r, float *f, int n_rows, int n_cols, bool needs_g);
/* The caller's buffer for t's gradient: holding a sum already (`has`), or to be written. May be used as
 * scratch and handed down by the walk when t is not a leaf. */
void op_grad_home(ig_tensor *t, float *g, bool has);
/* Undoes all notes, last first. Gradients start where op_grad_home or op_loss_seed put them, and end in
 * leaves. First contributions write, later ones add, in the order of the walk: that order is all that the
 * bits depend on. Takes buffers and scratch from the arena, to be given back by the caller's mark together
 * with what the forward took; values that the forward kept may be overwritten. The tape is empty after. */
void op_backward(ig_run *r);

/* ---- ops --------------------------------------------------------------------------------------------- */

/* Cosines and sines of the batch: [T][D/2] each, computed once a step in double, rounded to f32. */
typedef struct ig_rope {
    const float *cos, *sin;
    float before; /* tier l1: of what is turned, a number; 1: nothing to do */
    int half;
} ig_rope;
/* inv_freq[half] in double; angle = (double)pos * inv_freq[i]. Cosines and sines times scale, in double. */
const ig_rope *op_rope(ig_run *r, const ig_rows *rows, const double *inv_freq, int half, double scale);
/* Tier l1: all in f32, angle = (float)pos * step * freq[i], cosines and sines rounded to the number. What is turned is
 * multiplied by `before`, a number, first. */
const ig_rope *op_rope_rounded(ig_run *r, const ig_rows *rows, const float *freq, int half, float step,
                               float before);

/* h[t] = row token[t] of the table, times scale. f32. */
ig_tensor *op_embed(ig_run *r, const ig_weight *table, const ig_rows *rows, float scale);

/* RMS norm; the result in the forms `need` (ig_act_kind bits). `pick` (n_pick row numbers) or NULL: all. */
ig_tensor *op_norm(ig_run *r, ig_tensor *x, const float *w, float eps, int need, const int *pick,
                   int n_pick);

/* What the attention of one layer is. */
typedef struct ig_attention {
    int n_heads, n_kv_heads, head_dim;
    int window;                   /* positions that a row sees, itself included; 0: all before it */
    float scale;                  /* of q, after rope; of tier l1 a number */
    float softcap;                /* of scores: cap * tanh(score / cap); 0: none */
    const float *q_norm, *k_norm; /* [head_dim]: RMS norm of every head before rope; NULL: none */
    float norm_eps;
    ig_kv_layer kv;
    ig_kv_kind kv_kind; /* of the pool that rows->kv will be */
    int kv_bits, kv_group; /* tier l2: keys and values in affine groups; 0: they stay numbers */
    bool kv_at_once;       /* ... and never in tiles */
} ig_attention;

/* Queries [T][n_heads * D], scaled. k and v [T][n_kv_heads * D] are there when training only: otherwise they
 * went into the KV blocks of the rows, as kv_kind says. */
typedef struct ig_qkv {
    ig_tensor *q, *k, *v;
} ig_qkv;

/* Every product with a weight that has a bias is W x + bias: the finished sum, then one addition.
 *
 * q = rope(norm(Wq x)) * scale, k = rope(norm(Wk x)), v = Wv x. Without norms wq and wk are in order
 * IG_ROWS_ROPE and rope turns their tiles; with norms all are IG_ROWS_PLAIN. */
ig_qkv op_qkv(ig_run *r, const ig_attention *a, const ig_weight *wq, const ig_weight *wk, const ig_weight *wv,
              ig_tensor *x, const ig_rope *rope, const ig_rows *rows);

/* Causal attention, inside the window when there is one; forms `need`. Over the KV blocks of the rows'
 * sequences; when training over k and v of this batch, whose sequences begin at position 0. */
ig_tensor *op_attention(ig_run *r, const ig_attention *a, ig_qkv x, const ig_rows *rows, int need);

/* Rows pick[0..n_pick - 1] of x, f32; serving only. And rows->want as a batch of its own, for op_attention. */
ig_tensor *op_pick(ig_run *r, const ig_tensor *x, const int *pick, int n_pick);
void op_pick_rows(ig_run *r, const ig_rows *rows, ig_rows *picked);

/* y = W x, f32. */
ig_tensor *op_linear(ig_run *r, const ig_weight *w, ig_tensor *x);

/* h + W x: in place, returns h; with a tape a new tensor. */
ig_tensor *op_linear_add(ig_run *r, const ig_weight *w, ig_tensor *x, ig_tensor *h);

/* h + norm(x): in place, returns h; with a tape a new tensor. */
ig_tensor *op_norm_add(ig_run *r, ig_tensor *x, const float *w, float eps, ig_tensor *h);

typedef enum ig_glu { IG_GLU_SILU, IG_GLU_GELU } ig_glu;
/* act(Wg x) * (Wu x); forms `need`. GELU is the tanh form. */
ig_tensor *op_glu(ig_run *r, ig_glu act, const ig_weight *gate, const ig_weight *up, ig_tensor *x, int need);

/* ---- the head, alone and (head_loss.c) with its loss --------------------------------------------------- */

typedef enum ig_head_kind {
    IG_HEAD_FLASH,     /* one sweep over the vocabulary in blocks; no memory in V */
    IG_HEAD_TWO_SWEEP, /* log of the sum first, then probabilities again: the oracle of flash */
    IG_HEAD_NAIVE      /* all logits in memory, at most 1 GiB of them: the oracle of both */
} ig_head_kind;
typedef struct ig_head {
    const ig_weight *w; /* without a bias */
    float softcap;      /* logits = softcap * tanh(logits / softcap); 0: none */
    ig_head_kind kind;  /* of the loss */
} ig_head;
/* out[i][n_rows of w] = logits of x[i]; `out` is the caller's, stride out_stride floats. */
void op_head(ig_run *r, const ig_head *head, const ig_tensor *x, float *out, size_t out_stride);
typedef struct ig_loss {
    ig_tensor *x;
    float *logp; /* [n_rows of x] log of the target's probability, at most 0 */
    float *dx;   /* [n_rows][n_cols] d logp[t] / d x[t]; NULL: not asked for */
} ig_loss;
/* logp[t] = log softmax(head(x[t]))[target[t]], target < n_rows of w (the caller checked). `grad`: also dx.
 * A row depends on itself only. */
ig_loss *op_loss(ig_run *r, const ig_head *head, ig_tensor *x, const uint32_t *target, bool grad);
/* Gradient of x: row t is g[t] * dx[t] (g NULL while planning). Uses dx up: it becomes x's gradient. */
void op_loss_seed(ig_run *r, ig_loss *loss, const float *g);

#endif
