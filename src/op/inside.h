/* inside: what the files of op/ share and nobody else sees. */
#ifndef IG_OP_INSIDE_H
#define IG_OP_INSIDE_H

#include "op/op.h"
#include "tier/tier.h"

#include <string.h>

/* Rows of a tile: divisible by the kernels' 6 and 4, and small enough that 48 rows of activations stay in
 * L1 while panels stream by. */
enum { TILE_ROWS = 48, TILE_FLOATS = TILE_ROWS * IG_PANEL_ROWS };
/* Rows of little work that a thread takes at least: to wake another for fewer would cost more. */
enum { LIGHT_ROWS = 4 };

static inline bool op_stopped(const ig_run *r) {
    return r->status != IG_OK;
}

/* Parts of a row of int8 activations. */
static inline int op_parts(const ig_run *r) {
    return r->two_parts && !r->train ? 2 : 1;
}

/* Arena memory that sticks the status when there is none; NULL while planning too. */
void *op_take(ig_run *r, size_t bytes);

/* A tensor with room for the forms `need`. While planning it has shapes and no memory. */
ig_tensor *op_tensor(ig_run *r, int n_rows, int n_cols, int need);

/* Runs fn for every (unit, rows) pair: units are panels or groups of them, rows of x come in chunks of at
 * most TILE_ROWS. n_tiles f32 tiles of scratch belong to the call, tile i at s->tiles + i * TILE_FLOATS. */
enum { UNIT_TILES = 4 };
typedef struct op_scratch {
    float *tiles;
    /* Training: slot i holds panel[i] of w[i] as f32 [n_cols][16]; consecutive chunks of a unit share it. */
    const ig_weight *w[UNIT_TILES];
    int panel[UNIT_TILES];
    float *unpacked, *row; /* [n_tiles][n_cols * 16], [n_cols] */
} op_scratch;
typedef void op_unit_fn(const void *job, int unit, int row, int m, op_scratch *s);
void op_run_units(ig_run *r, op_unit_fn *fn, const void *job, int n_units, const ig_tensor *x, int n_tiles);
/* Tile `slot`: rows row..row+m-1 of x times panel p of w, in the numbers of the run. Gives the tile. */
float *op_panel(const ig_run *r, op_scratch *s, int slot, const ig_weight *w, int p, const ig_tensor *x,
                int row, int m);

/* The lines that a unit will write once its products are there: one of each of m rows, `stride` bytes apart. They come
 * meanwhile; without this every store of a tile would wait for its own. */
static inline void op_ask_for(const void *p, size_t stride, int m) {
    for (int t = 0; t < m; t++) __builtin_prefetch((const char *)p + (size_t)t * stride, 1);
}

/* n values of a row, whole blocks of them, into the integer forms that y has; op_store_row: into all. */
void op_quant_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n);
void op_store_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n);

/* For ig_run.tap. */
static inline void op_tap(const ig_run *r, const char *what, const ig_weight *w, int row, int m, int col, int n,
                          const float *v, size_t v_row) {
    if (r->tap) r->tap(r->tap_ud, what, w, row, m, col, n, v, v_row);
}
/* Tier l1: the last step of what was made in m rows of n. */
static inline void op_round(const ig_run *r, float *y, int n) {
    const ig_kern *k = r->kern->op[IG_KERN_ROUND];
    if (k) k->fn.round(y, y, n);
}

void op_trace(ig_run *r, const char *op, const ig_kern *k);
void op_trace_weight(ig_run *r, const char *op, const ig_weight *w);

/* ---- training ---------------------------------------------------------------------------------------- */

/* A note on the tape: how to undo one op. What the op wants to remember follows in memory and is handed to
 * `back`, which comes only when one of the outputs has a gradient; outputs without one count as zero. */
typedef void op_back_fn(ig_run *r, const void *own);
enum { NOTE_OUTPUTS = 3 };
struct ig_node {
    op_back_fn *back;
    ig_tensor *y[NOTE_OUTPUTS]; /* NULL-ended when fewer */
    ig_node *prev;
};
/* Nothing is noted without a tape, or when no output needs a gradient. `own` is copied. */
void op_note(ig_run *r, op_back_fn *back, const void *own, size_t own_bytes, ig_tensor *y0, ig_tensor *y1,
             ig_tensor *y2);
/* Where the next contribution to t's gradient goes; *add: it joins what is there. NULL while planning.
 * Before any mark of scratch: the buffer outlives the op. */
float *op_grad(ig_run *r, ig_tensor *t, bool *add);
/* to's gradient (+)= from's, which is over after: moved when nothing is there yet. */
void op_grad_pass(ig_run *r, ig_tensor *from, ig_tensor *to);
/* The gradient of an output, zeros where nothing came. The op may use it as scratch. */
float *op_grad_of(ig_run *r, ig_tensor *y);

/* x's gradient (+)= dy W, through the frozen panels of w. dy is [n_rows of x][n_rows of w]. */
void op_linear_back(ig_run *r, const ig_weight *w, const float *dy, ig_tensor *x);

/* K of the batch as blocks of 64 positions, [n][kv heads]{[D][64], then V as [64][D] or, turned, [D][64]};
 * first_block[t]: block of position 0 of row t's sequence. In the arena above the caller's mark. */
typedef struct op_attention_note {
    ig_attention a;
    const ig_rows *rows;
    ig_qkv x;
    ig_tensor *y;
    const float *lse; /* [T][n_heads] */
} op_attention_note;
const float *op_lay_out_blocks(ig_run *r, const ig_attention *a, ig_qkv x, const ig_rows *rows,
                               int *first_block, bool turned);
void op_attention_back(ig_run *r, const void *own);

#endif
