/* Any number of rows by tiles of 6, 3 and 1: for a linear_float_tile, which has defined INLINE and rows_tile. The first
 * tile streams the panel from memory, the others find it in the cache. */
#ifndef IG_KERN_TUNED_FLOAT_ROWS_H
#define IG_KERN_TUNED_FLOAT_ROWS_H

INLINE void linear(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                   const int kind) {
    int r = 0;
    if (m >= 6) rows_tile(tile, panel, x, row, n_cols, 6, kind, true), r = 6;
    else if (m >= 3) rows_tile(tile, panel, x, row, n_cols, 3, kind, true), r = 3;
    else {
        rows_tile(tile, panel, x, row, n_cols, 1, kind, true);
        r = 1;
    }
    for (; r + 6 <= m; r += 6) rows_tile(tile + r * 16, panel, x, row + r, n_cols, 6, kind, false);
    for (; r + 3 <= m; r += 3) rows_tile(tile + r * 16, panel, x, row + r, n_cols, 3, kind, false);
    for (; r < m; r++) rows_tile(tile + r * 16, panel, x, row + r, n_cols, 1, kind, false);
}

#endif
