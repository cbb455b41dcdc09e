/* rig: what check_kern and check_speed feed to kernels: random weights in any format's file layout,
 * activations, keys, and memory between pages that nobody may touch. */
#ifndef IG_KERN_CHECK_RIG_H
#define IG_KERN_CHECK_RIG_H

#include "kern/kern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t rng_state = 88172645463325252ull;

static inline uint32_t rnd(void) {
    rng_state ^= rng_state << 13, rng_state ^= rng_state >> 7, rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}
static inline float uniform(void) {
    return (float)rnd() / 4294967296.0f * 2.0f - 1.0f;
}
static inline float bell(void) {
    return (uniform() + uniform() + uniform()) * 0.8f;
}

/* n bytes that end at a page nobody may touch (or begin after one), 64-aligned when `aligned`. */
typedef struct guarded {
    uint8_t *map, *p;
    size_t map_bytes;
} guarded;
static inline guarded guard(size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (n + 63) / 64 * 64,
           body = (inner + page - 1) / page * page;
    guarded g = {.map_bytes = body + 2 * page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    mprotect(g.map, page, PROT_NONE);
    mprotect(g.map + page + body, page, PROT_NONE);
    g.p = g.map + page + body - inner;
    return g;
}
static inline void unguard(guarded g) {
    munmap(g.map, g.map_bytes);
}

/* What random weights look like. */
typedef enum weights { ORDINARY, WILD } weights;

/* A scale or a minimum: about 0.1 in size, either sign; a wild one may be nothing, tiny or as large as it goes. */
static inline float random_scale(weights kind, float top) {
    const float list[] = {0.0f, -0.0f, 5.9e-8f, -5.9e-8f, 6.1e-5f, top, -top};
    if (kind == WILD && rnd() % 2) return list[rnd() % (sizeof list / sizeof *list)];
    return bell() * 0.1f;
}
static inline void put_half(uint8_t *p, float x) {
    uint16_t h = ig_f32_to_f16(x);
    memcpy(p, &h, 2);
}
static inline void put_number(uint8_t *p, float x, size_t bytes) { /* bf16 or f32 */
    memcpy(p, (uint8_t *)&x + 4 - bytes, bytes);
}

/* The scale of small floats: 2^(e - 127), or E4M3. */
static inline uint8_t random_exponent(weights kind) {
    const uint8_t list[] = {0, 1, 2, 40, 180};
    return kind == WILD && rnd() % 2 ? list[rnd() % sizeof list] : (uint8_t)(120 + rnd() % 8);
}
static inline uint8_t random_e4m3(weights kind) {
    const uint8_t list[] = {0, 1, 7, 8, 0x7e};
    return kind == WILD && rnd() % 2 ? list[rnd() % sizeof list] : (uint8_t)(0x18 + rnd() % 0x20);
}
/* Scales of a row of MLX, and MXFP8's codes: no NaN, which the loader refuses. */
static inline void random_small_floats(const ig_fmt *f, uint8_t *row, int n_cols, weights kind) {
    uint8_t *scales = row + (size_t)n_cols * (size_t)f->bits / 8;
    for (int k = 0; k < n_cols && f->mlx == IG_MLX_MXFP8; k++)
        if ((row[k] & 0x7f) == 0x7f) row[k] ^= 1;
    for (int i = 0; i < n_cols / f->mlx_group; i++) {
        if (f->f32_scales)
            put_number(scales + i * 4, random_scale(kind, 1e9f), 4);
        else
            scales[i] = f->mlx == IG_MLX_NVFP4 ? random_e4m3(kind) : random_exponent(kind);
        if (f->mlx == IG_MLX_NVFP4 && !f->f32_scales && rnd() % 2) scales[i] ^= 128;
    }
}

/* A row of valid weights in the file layout: codes and small integers are any bytes (in a wild row some runs
 * of them all ones or all zeros), numbers are finite. */
static inline void random_row(const ig_fmt *f, uint8_t *row, int n_cols, weights kind) {
    static const struct {
        int gguf_type, half_at[2], n_halves;
    } scales[] = {{2, {0}, 1},       {3, {0, 2}, 2},  {6, {0}, 1},   {7, {0, 2}, 2}, {8, {0}, 1},
                  {10, {80, 82}, 2}, {11, {108}, 1},  {12, {0, 2}, 2}, {13, {0, 2}, 2}, {14, {208}, 1},
                  {20, {0}, 1},      {23, {0}, 1},    {34, {52}, 1}, {35, {64}, 1}};
    size_t n = ig_fmt_row_bytes(f, n_cols), n_groups = (size_t)(n_cols / f->group);
    for (size_t i = 0; i < n; i++) row[i] = (uint8_t)rnd();
    if (kind == WILD)
        for (size_t i = 0; i + 16 <= n; i += 16)
            if (rnd() % 4 == 0) memset(row + i, rnd() % 2 ? 0xff : 0, 16);
    if (f->rounds) /* rows of numbers */
        for (size_t i = 0; i + 2 <= n; i += 2) {
            if (f->name[0] == 'f') put_half(row + i, random_scale(kind, 60.0f));
            else put_number(row + i, random_scale(kind, 1e9f), 2);
        }
    for (size_t g = 0; g < n_groups; g++) {
        uint8_t *p = row + g * (size_t)f->group_bytes;
        if (f->gguf_type == 0 || f->gguf_type == 30)
            put_number(p, bell(), (size_t)f->group_bytes);
        else if (f->gguf_type == 1)
            put_half(p, bell() * 0.1f);
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
            for (int j = 0; f->gguf_type == scales[i].gguf_type && j < scales[i].n_halves; j++)
                put_half(p + scales[i].half_at[j], random_scale(kind, 65504.0f));
        if (f->mlx == IG_MLX_AFFINE) {
            size_t bytes = f->f32_scales ? 4 : 2;
            uint8_t *at = row + (size_t)n_cols * (size_t)f->bits / 8 + g * bytes;
            float scale = random_scale(kind, 1e9f);
            put_number(at, scale, bytes);
            float bias = rnd() % 4 ? scale * -127.0f : random_scale(kind, 1e9f);
            put_number(at + n_groups * bytes, bias, bytes);
        }
    }
    if (f->gguf_type == 39)
        for (size_t g = 0; g < n_groups; g++) row[g * (size_t)f->group_bytes] = random_exponent(kind);
    if (f->gguf_type == 40)
        for (size_t g = 0; g < n_groups; g++)
            for (int i = 0; i < 4; i++) row[g * (size_t)f->group_bytes + (size_t)i] = random_e4m3(kind);
    if (f->mlx && f->mlx != IG_MLX_AFFINE) random_small_floats(f, row, n_cols, kind);
}

typedef struct acts {
    float *f;
    ig_act act;
} acts;
static inline acts random_acts(int n_rows, int n_cols) {
    const ig_kern *quant = ig_kern_reference(IG_KERN_QUANT, NULL),
                  *quant16 = ig_kern_reference(IG_KERN_QUANT16, NULL);
    acts a = {.f = aligned_alloc(64, ((size_t)n_rows * (size_t)n_cols * 4 + 63) / 64 * 64)};
    size_t n_blocks = (size_t)n_rows * (size_t)((n_cols + 31) / 32);
    for (int i = 0; i < n_rows * n_cols; i++) a.f[i] = bell() * (rnd() % 64 == 0 ? 30.0f : 1.0f);
    a.act = (ig_act){.f = a.f, .n_cols = n_cols};
    if (n_cols % 32 == 0) {
        a.act.q = malloc((size_t)n_rows * (size_t)n_cols);
        a.act.q16 = malloc((size_t)n_rows * (size_t)n_cols * 2), a.act.scale16 = malloc(n_blocks * 4);
        a.act.qsum16 = malloc(n_blocks * 8), a.act.sum16 = malloc(n_blocks * 4);
        a.act.scale = malloc(n_blocks * 4), a.act.sum = malloc(n_blocks * 4),
        a.act.qsum = malloc(n_blocks * 4);
        for (int r = 0; r < n_rows; r++) {
            size_t b = (size_t)r * (size_t)(n_cols / 32);
            quant->fn.quant(a.act.q + (size_t)r * (size_t)n_cols, a.act.scale + b, a.act.qsum + 2 * b,
                            a.act.sum + b, a.f + (size_t)r * (size_t)n_cols, n_cols);
            quant16->fn.quant16(a.act.q16 + (size_t)r * (size_t)n_cols, a.act.scale16 + b,
                                a.act.qsum16 + 2 * b, a.act.sum16 + b, a.f + (size_t)r * (size_t)n_cols, n_cols);
        }
    }
    return a;
}
static inline void free_acts(acts a) {
    free(a.f), free(a.act.q), free(a.act.scale), free(a.act.sum), free(a.act.qsum);
    free(a.act.q16), free(a.act.scale16), free(a.act.qsum16), free(a.act.sum16);
}

/* The panel of 16 random rows, guarded; the rows in `rows`. */
static inline guarded random_panel(const ig_fmt *f, int n_cols, uint8_t *rows, weights kind) {
    size_t row_bytes = ig_fmt_row_bytes(f, n_cols);
    guarded g = guard(ig_fmt_panel_bytes(f, n_cols));
    for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
        random_row(f, rows + (size_t)lane * row_bytes, n_cols, kind);
        f->pack(g.p, rows + (size_t)lane * row_bytes, lane, n_cols);
    }
    return g;
}

/* Blocks of keys and values. */
typedef struct keys {
    uint8_t *mem;
    const void **block;
    ig_kv_kind kind;
    int n_d;
} keys;
static inline keys random_keys(int n_blocks, int n_d, ig_kv_kind kind) {
    const size_t n = 64 * (size_t)n_d, bytes = ig_kv_part_bytes(kind, n_d);
    keys k = {aligned_alloc(64, 2 * (size_t)n_blocks * bytes), malloc((size_t)n_blocks * sizeof *k.block), kind, n_d};
    for (int part = 0; part < 2 * n_blocks; part++) {
        uint8_t *p = k.mem + (size_t)part * bytes;
        for (size_t i = 0; i < n; i++) {
            float x = bell();
            if (kind == IG_KV_F32) ((float *)(void *)p)[i] = x;
            else if (kind == IG_KV_F16) ((uint16_t *)(void *)p)[i] = ig_f32_to_f16(x);
            else if (kind == IG_KV_BF16) ((uint16_t *)(void *)p)[i] = ig_f32_to_bf16(x);
            else ((int8_t *)p)[i] = (int8_t)(fminf(fmaxf(x, -2.54f), 2.54f) * 50.0f);
        }
        for (size_t i = 0; i < n / IG_KV_GROUP && kind == IG_KV_8; i++)
            ig_kv_scales(p, n_d)[i] = ig_kv_scale_kept(0.02f * (1.0f + 0.5f * uniform()));
    }
    for (int b = 0; b < n_blocks; b++) k.block[b] = k.mem + 2 * (size_t)b * bytes;
    return k;
}

/* A kernel over one row. x and w hold 2 n values, out has room for 8 n bytes. False: it has other arguments. */
static inline bool run_row(const ig_kern *k, uint8_t *out, const float *x, const float *w, int n) {
    float *y = (float *)(void *)out;
    switch (k->op) {
    case IG_KERN_NORM: k->fn.norm(y, x, w, n, 1e-5f); break;
    case IG_KERN_SWIGLU: k->fn.swiglu(y, x, w, n); break;
    case IG_KERN_GEGLU: k->fn.geglu(y, x, w, n); break;
    case IG_KERN_ADD: /* two rows, the last b again as a bias is, or one */
        if (n % 2) k->fn.add(y, (size_t)n, x, (size_t)n, w, 0, 2, n);
        else k->fn.add(y, 0, x, 0, w, 0, 1, n);
        break;
    case IG_KERN_EXP: k->fn.exp(y, x, n); break;
    case IG_KERN_ROUND: k->fn.round(y, x, n); break;
    case IG_KERN_TO_F16: k->fn.to_f16((uint16_t *)(void *)out, x, n); break;
    case IG_KERN_TO_KV8: /* codes, and behind them the scales */
        for (int i = 0; i + IG_KV_GROUP <= n; i += IG_KV_GROUP)
            k->fn.to_kv8((int8_t *)out + i, (uint16_t *)(void *)(out + 2 * n + i / IG_KV_GROUP * 2), x + i);
        break;
    case IG_KERN_QUANT: {
        size_t b = (size_t)n / 32;
        k->fn.quant((int8_t *)out, y + n, (int16_t *)(void *)(y + n + b), y + n + 2 * b, x, n);
        break;
    }
    case IG_KERN_QUANT16: {
        size_t b = (size_t)n / 32;
        k->fn.quant16((int16_t *)(void *)out, y + n, (int32_t *)(y + n + b), y + n + 3 * b, x, n);
        break;
    }
    case IG_KERN_ROPE:
    case IG_KERN_ROPE_BACK: /* rows of 8 pairs, or one of all */
        memcpy(out, x, (size_t)n * 8);
        if (n % 16) k->fn.rope(y, y + n, 8, w, w + n, 8, n / 8, 8);
        else k->fn.rope(y, y + n, 0, w, w + n, 0, 1, n);
        break;
    case IG_KERN_NORM_BACK: {
        memcpy(y, w + n, (size_t)n * 4);
        k->fn.norm_back(&(ig_norm_back_args){y, x, w, n % 3 ? x + n : NULL, n, 1e-5f, n % 2 == 0});
        break;
    }
    case IG_KERN_SWIGLU_BACK:
    case IG_KERN_GEGLU_BACK: k->fn.gate_back(y, y + n, w, x, x + n, n); break;
    case IG_KERN_DOT: y[0] = k->fn.dot(x, w, n); break;
    case IG_KERN_SCALE: k->fn.scale(y, x, w[0], n); break;
    case IG_KERN_SOFTCAP: k->fn.softcap(y, y + n, x, 30.0f, n); break;
    case IG_KERN_SOFTMAX_BACK:
        memcpy(out, x, (size_t)n * 8);
        k->fn.softmax_back(y, y + n, 1.5f, w[0], n / 3, n - n / 4, n);
        break;
    case IG_KERN_SOFTMAX_STEP: {
        ig_softmax_state s = {-1e30f, 0.0f};
        memcpy(out, x, (size_t)n * 8);
        k->fn.softmax_step(y, n - 1, &s);
        y[n - 1] = k->fn.softmax_step(y + n, n - 1, &s);
        y[2 * n - 1] = s.m + s.d;
        break;
    }
    default: return false;
    }
    return true;
}

#endif
