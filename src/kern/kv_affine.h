/* kv_affine: keys and values in groups of 2 to 8 bits with a scale and a bias, and attention over them, with
 * every rounding of the programs that tiers l1 and l2 equal. The definition, one value after the other: a
 * faster form has to give these bits. Floats hold values of the type (bf16 or f16); r() rounds to it.
 *
 *   row       D values in groups of `group`. Codes are a stream of bits, the first code lowest in the first
 *             byte; a scale and a bias a group, rounded to the type after the codes were found with the
 *             unrounded ones
 *   value     w = r(r(scale * code) + bias)
 *   chain     a = 0, then a = r(a + r(x * w)) in ascending order: scores over d, outputs over keys
 *   score     of x = r(r(scale) * q) and a key; the lowest finite value of the type where it is not seen
 *   at once   p = r(exp(s - max s) * (1 / sum)), the sum in f32 over the keys in order; out = chain of p
 *   in tiles  of 512 keys from the first: m' = max(m, max s), e = r(exp(r(s - m'))), f = r(exp(r(m - m'))),
 *             l = r(r(f * l) + r(sum of e)), o = r(r(o * f) + chain of e); out = r(o / l)
 *
 * The keys are in the order of the cache's rows: of a ring that is the order of its slots, not of time. A
 * query that sees no key of the first tile has no meaning in either form. */
#ifndef IG_KERN_KV_AFFINE_H
#define IG_KERN_KV_AFFINE_H

#include "kern/kern.h"

typedef enum ig_kv_affine_type { IG_KV_AFFINE_BF16, IG_KV_AFFINE_F16 } ig_kv_affine_type;
enum { IG_KV_AFFINE_TILE = IG_ATTENTION_TILE_KEYS };

/* bits 2, 3, 4, 5, 6 or 8; group 32, 64 or 128, which divides the row. */
typedef struct ig_kv_affine {
    int bits, group;
    ig_kv_affine_type type;
} ig_kv_affine;

/* Rows of one kv head. A row is n * bits / 8 bytes of codes, and n / group scales and as many biases. */
typedef struct ig_kv_affine_rows {
    uint8_t *code;
    uint16_t *scale, *bias; /* bits of the type */
} ig_kv_affine_rows;

/* n values, all finite, to row `row`. */
void ig_kv_affine_quant(const ig_kv_affine *f, ig_kv_affine_rows to, int row, const float *x, int n);
/* Row `row` as n values. */
void ig_kv_affine_dequant(const ig_kv_affine *f, ig_kv_affine_rows from, int row, float *x, int n);

/* n_q queries of one query head. Query i sees the keys from[i] .. to[i] - 1; NULL: all of them. */
typedef struct ig_attention_affine_args {
    const ig_kv_affine *fmt;
    ig_kv_affine_rows k, v;
    const float *q; /* [n_q][D], not scaled, q_row floats from one to the next */
    float *out;     /* [n_q][D], out_row floats from one to the next */
    size_t q_row, out_row;
    const int *from, *to;
    int n_q, n_keys, head_dim;
    float scale;
    float *scratch; /* ig_attention_affine_floats */
} ig_attention_affine_args;
static inline size_t ig_attention_affine_floats(int n_keys, int head_dim) {
    return (size_t)n_keys + 3 * (size_t)head_dim;
}
void ig_attention_affine(const ig_attention_affine_args *a);       /* at once */
void ig_attention_affine_tiled(const ig_attention_affine_args *a); /* in tiles */

#endif
