/* inside: what the files of op/ share and nobody else sees. */
#ifndef IG_OP_INSIDE_H
#define IG_OP_INSIDE_H

#include "op/op.h"

#include <string.h>

/* Rows of a tile: divisible by the kernels' 6 and 4, and small enough that 48 rows of activations stay in
 * L1 while panels stream by. */
enum { TILE_ROWS = 48, TILE_FLOATS = TILE_ROWS * IG_PANEL_ROWS };
/* Up to this many rows a loop streams weights: one contiguous part a thread. Beyond, chunks are balanced. */
enum { STREAM_ROWS = 4 };

static inline bool op_stopped(const ig_run *r) {
    return r->status != IG_OK;
}

/* Arena memory that sticks the status when there is none; NULL while planning too. */
void *op_take(ig_run *r, size_t bytes);

/* A tensor with room for the forms `need`. While planning it has shapes and no memory. */
ig_tensor *op_tensor(ig_run *r, int n_rows, int n_cols, int need);

/* Runs fn for every (unit, rows) pair: units are panels or groups of them, rows come in chunks of at most
 * TILE_ROWS. `tiles` f32 tiles of scratch belong to the call. */
typedef void op_unit_fn(const void *job, int unit, int row, int m, float *tiles);
void op_run_units(ig_run *r, op_unit_fn *fn, const void *job, int n_units, int n_rows, int n_tiles);

/* n values of a row, whole blocks of them, into the integer forms that y has; op_store_row: into all. */
void op_quant_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n);
void op_store_row(const ig_run *r, ig_tensor *y, int row, int col, const float *x, int n);

void op_trace(ig_run *r, const char *op, const ig_kern *k);

/* A note on the tape: what was done with what. The walk back over these notes is the backward pass. */
struct ig_node {
    const char *op;
    const ig_tensor *y, *a, *b;
    const ig_weight *w[3];
    ig_node *prev;
};
void op_note(ig_run *r, ig_node note);

#endif
