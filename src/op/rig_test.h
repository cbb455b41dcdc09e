/* rig_test: what the tests of op/ share: a run on an arena, random weights of any format with their exact
 * values in double, and comparison by norms. */
#ifndef IG_OP_RIG_TEST_H
#define IG_OP_RIG_TEST_H

#include "base/test.h"
#include "op/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* -1 to 1, the same on every machine */
static inline float rig_random(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return (float)(*s >> 8) / 8388608.0f - 1.0f;
}
static inline float *rig_floats(size_t n, float scale, uint32_t seed) {
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    seed = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < n; i++) x[i] = rig_random(&seed) * scale;
    return x;
}
static inline double *rig_doubles(size_t n) {
    double *x = calloc(n, sizeof *x);
    ig_assert(x != NULL);
    return x;
}

typedef struct rig {
    ig_arena arena, shapes;
    ig_pool *pool;
    ig_kern_table kern;
    ig_tape tape;
    ig_run run;
} rig;

/* cap 0: a planning run. */
static inline void rig_open(rig *g, size_t cap_bytes, int n_threads, uint32_t cpu) {
    *g = (rig){.shapes = {.cap_bytes = 1 << 20}};
    ig_assert(ig_pool_make(&g->pool, n_threads, NULL) == IG_OK);
    ig_kern_table_pick(&g->kern, IG_TIER_L3, NULL, cpu);
    g->shapes.base = aligned_alloc(64, g->shapes.cap_bytes);
    g->arena = (ig_arena){.cap_bytes = cap_bytes ? cap_bytes : SIZE_MAX, .counting = cap_bytes == 0};
    if (cap_bytes) g->arena.base = aligned_alloc(64, (cap_bytes + 63) / 64 * 64);
    g->run = (ig_run){.arena = &g->arena,
                      .shapes = &g->shapes,
                      .pool = g->pool,
                      .train = true,
                      .tape = &g->tape,
                      .kern = &g->kern};
}
static inline void rig_close(rig *g) {
    ig_pool_free(g->pool), free(g->arena.base), free(g->shapes.base);
}

typedef struct rig_weight {
    ig_weight w;
    double *exact; /* [n_rows][n_cols] */
    double *bias;  /* [n_rows], or NULL */
} rig_weight;

/* A number as the high bytes of an f32: f32 itself, or bf16. */
static inline void rig_put(uint8_t *p, float x, size_t bytes) {
    memcpy(p, (uint8_t *)&x + 4 - bytes, bytes);
}
/* One row in the layout of the file. MLX: random codes, then scales and biases apart. Others: random bytes, group
 * by group, until the group's values are of a usable size. */
static inline void rig_random_row(const ig_fmt *f, uint8_t *row, int n_cols, uint32_t *seed) {
    ig_dequant_fn *dequant = ig_kern_reference(IG_KERN_DEQUANT, f)->fn.dequant;
    const size_t n_bytes = ig_fmt_row_bytes(f, n_cols);
    if (f->mlx && f->mlx != IG_MLX_AFFINE) { /* E2M1 to 0.75 or E4M3 to 0.9; no NaN */
        uint8_t *scales = row + (size_t)n_cols * (size_t)f->bits / 8;
        for (size_t i = 0; i < n_bytes; i++) rig_random(seed), row[i] = (uint8_t)((*seed >> 16) & 0xfe);
        for (int i = 0; i < n_cols / f->mlx_group; i++)
            if (f->f32_scales) rig_put(scales + 4 * i, 0.1f + 0.02f * rig_random(seed), 4);
            else scales[i] = (uint8_t)((f->mlx == IG_MLX_NVFP4 ? 0x18 : f->bits == 4 ? 122 : 116) + i % 3);
        return;
    }
    if (f->mlx == IG_MLX_AFFINE) {
        const size_t bytes = f->f32_scales ? 4 : 2, n_groups = (size_t)(n_cols / f->group);
        for (size_t i = 0; i < n_bytes; i++) rig_random(seed), row[i] = (uint8_t)(*seed >> 16);
        uint8_t *at = row + (size_t)n_cols * (size_t)f->bits / 8;
        for (size_t i = 0; i < n_groups; i++, at += bytes) {
            const float scale = (0.7f + 0.2f * rig_random(seed)) / (float)(1 << f->bits);
            rig_put(at, scale, bytes),
                rig_put(at + n_groups * bytes, scale * -0.45f * (float)(1 << f->bits), bytes);
        }
        return;
    }
    for (size_t at = 0; at < n_bytes; at += (size_t)f->group_bytes) {
        float values[512];
        ig_assert(f->group <= 512);
        for (float top = 0.0f; !(top > 0.02f && top < 1.0f);) {
            top = 0.0f;
            for (int b = 0; b < f->group_bytes; b++)
                rig_random(seed), row[at + (size_t)b] = (uint8_t)(*seed >> 16);
            dequant(values, row + at, f->group);
            for (int k = 0; k < f->group; k++)
                top = fabsf(values[k]) > top || values[k] != values[k] ? fabsf(values[k]) : top;
        }
    }
}
static inline rig_weight rig_weight_make(const ig_fmt *f, int n_rows, int n_cols, ig_row_order order,
                                         int head_dim, uint32_t seed) {
    ig_dequant_fn *dequant = ig_kern_reference(IG_KERN_DEQUANT, f)->fn.dequant;
    const uint32_t cpu = ig_cpu_features();
    ig_weight w = {.name = "test",
                   .fmt = f,
                   .n_rows = n_rows,
                   .n_cols = n_cols,
                   .order = order,
                   .head_dim = head_dim,
                   .panel_bytes = ig_fmt_panel_bytes(f, n_cols)};
    w.kern = ig_kern_pick(IG_KERN_LINEAR, f, IG_TIER_L3, cpu), w.linear = w.kern->fn.linear;
    w.unpack = ig_kern_pick(IG_KERN_UNPACK, f, IG_TIER_L3, cpu);
    const size_t row_bytes = ig_fmt_row_bytes(f, n_cols), n_panels = (size_t)ig_weight_n_panels(&w);
    uint8_t *file = malloc(row_bytes * (size_t)n_rows);
    uint8_t *panels = aligned_alloc(64, (n_panels * w.panel_bytes + 63) / 64 * 64);
    rig_weight y = {.exact = rig_doubles((size_t)n_rows * (size_t)n_cols)};
    float *values = malloc((size_t)n_cols * sizeof *values);
    memset(panels, 0, n_panels * w.panel_bytes);
    for (int row = 0; row < n_rows; row++) {
        rig_random_row(f, file + (size_t)row * row_bytes, n_cols, &seed);
        dequant(values, file + (size_t)row * row_bytes, n_cols);
        for (int k = 0; k < n_cols; k++)
            y.exact[(size_t)row * (size_t)n_cols + (size_t)k] = (double)values[k];
    }
    for (int p = 0; p < (int)n_panels; p++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const int row = ig_weight_row(&w, p, lane);
            if (row >= 0)
                f->pack(panels + (size_t)p * w.panel_bytes, file + (size_t)row * row_bytes, lane, n_cols);
        }
    w.panels = panels, y.w = w;
    free(file), free(values);
    return y;
}
/* Gives it a bias; `scale` of its values. */
static inline void rig_weight_bias(rig_weight *w, float scale, uint32_t seed) {
    float *lanes = calloc((size_t)ig_weight_n_panels(&w->w) * IG_PANEL_ROWS, sizeof *lanes);
    float *values = rig_floats((size_t)w->w.n_rows, scale, seed);
    ig_assert(lanes != NULL);
    w->bias = rig_doubles((size_t)w->w.n_rows);
    for (int i = 0; i < ig_weight_n_panels(&w->w) * IG_PANEL_ROWS; i++) {
        const int row = ig_weight_row(&w->w, i / IG_PANEL_ROWS, i % IG_PANEL_ROWS);
        if (row >= 0) lanes[i] = values[row], w->bias[row] = (double)values[row];
    }
    w->w.bias = lanes;
    free(values);
}
static inline void rig_weight_free(rig_weight *w) {
    free((void *)(uintptr_t)w->w.panels), free((void *)(uintptr_t)w->w.bias), free(w->exact), free(w->bias);
}

/* |a - b| / |b| in the 2-norm. */
static inline double rig_distance(const float *a, const double *b, size_t n) {
    double far = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        far += d * d, size += b[i] * b[i];
    }
    return sqrt(far) / (sqrt(size) + 1e-300);
}

/* Rows of sequences of the lengths given (0 ends), positions from 0. */
enum { RIG_ROWS = 700 };
typedef struct rig_rows {
    int pos[RIG_ROWS], seq[RIG_ROWS];
    ig_rows rows;
} rig_rows;
static inline void rig_rows_make(rig_rows *r, const int *lengths) {
    int n = 0;
    for (int s = 0; lengths[s]; s++)
        for (int p = 0; p < lengths[s]; p++, n++) r->pos[n] = p, r->seq[n] = s;
    ig_assert(n <= RIG_ROWS);
    r->rows = (ig_rows){.n_rows = n, .pos = r->pos, .seq = r->seq, .n_ctx = n};
}

#endif
