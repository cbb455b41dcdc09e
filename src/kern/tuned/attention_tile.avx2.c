/* attention_tile: all queries of a tile against one key block at a time, as two small matrix products with
 * 16 columns in registers (loop_attention.c has the definition). Blocks that are not f32 are widened once into
 * scratch when enough queries use them, and in registers otherwise. */
#include "kern/simd.h"
#include "kern/tuned/like_tiles.h"

#include <string.h>

enum { WIDEN_FROM_QUERIES = 12 };
#define INLINE static inline __attribute__((always_inline))
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* The right side of a product: half a block in the form it has, [kk][row]. */
typedef enum form { F32, F16, KEYS8, VALUES8 } form;
typedef struct right {
    const void *p;
    const float *scale; /* of codes, as f32: of keys [D / 8][64], both halves; of values [D / 16][64] */
    size_t row;
    ptrdiff_t ahead; /* bytes from here to what will be read next: asked for meanwhile */
} right;

/* 8 values of row k from column j on. */
INLINE __m256 at(const right *b, int k, int j, const form f) {
    const size_t i = (size_t)k * b->row + (size_t)j;
    if (f == F32) return _mm256_loadu_ps((const float *)b->p + i);
    if (f == F16) return vf_from_f16((const uint16_t *)b->p + i);
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)((const int8_t *)b->p + i));
    const __m256 s = f == KEYS8 ? _mm256_loadu_ps(b->scale + k / 8 * 64 + j)
                                : _mm256_broadcast_ss(b->scale + j / IG_KV_GROUP * 64 + k);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), s);
}

INLINE void ask_ahead(const right *b, int k, int j, const form f) {
    const size_t bytes = f == F32 ? 4 : f == F16 ? 2 : 1;
    _mm_prefetch((const char *)b->p + ((size_t)k * b->row + (size_t)j) * bytes + b->ahead, _MM_HINT_T0);
}

/* C[n][j..j + 15] (+)= A[n][kk] B[kk][j..], one fma chain an element, k ascending. */
INLINE void product_16(float *c, size_t ldc, const float *a, size_t lda, const right *b, int j, int kk, const int n,
                       const form f, const bool add) {
    c += j;
#define X(r)                                                       \
    __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0;       \
    if (n > r && add) f##r##0 = _mm256_loadu_ps(c + r * ldc), f##r##1 = _mm256_loadu_ps(c + r * ldc + 8);
    ROWS(X)
#undef X
    for (int k = 0; k < kk; k++) {
        const __m256 b0 = at(b, k, j, f), b1 = at(b, k, j + 8, f);
#define X(r)                                                   \
    if (n > r) {                                               \
        __m256 x = _mm256_broadcast_ss(a + r * lda + k);       \
        f##r##0 = _mm256_fmadd_ps(x, b0, f##r##0);             \
        f##r##1 = _mm256_fmadd_ps(x, b1, f##r##1);             \
    }
        ROWS(X)
#undef X
    }
#define X(r) \
    if (n > r) _mm256_storeu_ps(c + r * ldc, f##r##0), _mm256_storeu_ps(c + r * ldc + 8, f##r##1);
    ROWS(X)
#undef X
}

/* The same by 32 columns for few rows, whose chains would be too few to hide the latency. */
INLINE void product_32(float *c, size_t ldc, const float *a, size_t lda, const right *b, int j, int kk, const int n,
                       const form f, const bool add) {
    c += j;
#define FEW_ROWS(X) X(0) X(1) X(2)
#define X(r)                                                                                                     \
    __m256 f##r##0 = _mm256_setzero_ps(), f##r##1 = f##r##0, f##r##2 = f##r##0, f##r##3 = f##r##0;               \
    if (n > r && add) {                                                                                          \
        f##r##0 = _mm256_loadu_ps(c + r * ldc), f##r##1 = _mm256_loadu_ps(c + r * ldc + 8);                      \
        f##r##2 = _mm256_loadu_ps(c + r * ldc + 16), f##r##3 = _mm256_loadu_ps(c + r * ldc + 24);                \
    }
    FEW_ROWS(X)
#undef X
    for (int k = 0; k < kk; k++) { /* a vector of B at a time: 12 sums and 3 values of A leave one register */
        ask_ahead(b, k, j, f);
#define X(r) __m256 x##r = _mm256_setzero_ps(); if (n > r) x##r = _mm256_broadcast_ss(a + r * lda + k);
        FEW_ROWS(X)
#undef X
#define COLS(i)                                                                                      \
    do {                                                                                             \
        const __m256 v = at(b, k, j + 8 * (i), f);                                                   \
        f0##i = _mm256_fmadd_ps(x0, v, f0##i);                                                       \
        if (n > 1) f1##i = _mm256_fmadd_ps(x1, v, f1##i);                                            \
        if (n > 2) f2##i = _mm256_fmadd_ps(x2, v, f2##i);                                            \
    } while (0)
        COLS(0);
        COLS(1);
        COLS(2);
        COLS(3);
#undef COLS
    }
#define X(r)                                                                                         \
    if (n > r) {                                                                                     \
        vf_store(c + r * ldc, f##r##0), vf_store(c + r * ldc + 8, f##r##1);                          \
        vf_store(c + r * ldc + 16, f##r##2), vf_store(c + r * ldc + 24, f##r##3);                    \
    }
    FEW_ROWS(X)
#undef X
#undef FEW_ROWS
}

/* C[m][n_cols] (+)= A[m][kk] B[kk][n_cols]; n_cols a multiple of 16. */
INLINE void product_of(float *c, size_t ldc, const float *a, size_t lda, const right *b, int m, int n_cols, int kk,
                       const form f, const bool add) {
    int j = 0;
    for (; m <= 3 && j + 32 <= n_cols; j += 32) {
        if (m == 1) product_32(c, ldc, a, lda, b, j, kk, 1, f, add);
        else if (m == 2) product_32(c, ldc, a, lda, b, j, kk, 2, f, add);
        else product_32(c, ldc, a, lda, b, j, kk, 3, f, add);
    }
    for (; j < n_cols; j += 16) {
#define TILE(r, n) product_16(c + (size_t)(r) * ldc, ldc, a + (size_t)(r) * lda, lda, b, j, kk, n, f, add)
        IN_LIKE_TILES(m, TILE);
#undef TILE
    }
}

INLINE void product(float *c, size_t ldc, const float *a, size_t lda, const right *b, int m, int n_cols, int kk, form f,
                    const form f8, const bool add) {
    if (f == F32) product_of(c, ldc, a, lda, b, m, n_cols, kk, F32, add);
    else if (f == F16) product_of(c, ldc, a, lda, b, m, n_cols, kk, F16, add);
    else product_of(c, ldc, a, lda, b, m, n_cols, kk, f8, add);
}

INLINE void widen(float *y, const uint16_t *x, size_t n) {
#pragma GCC unroll 4
    for (size_t i = 0; i < n; i += 8) _mm256_store_ps(y + i, vf_from_f16(x + i));
}

/* Rows 0..n_rows - 1 of half a block, made f32 in y when that pays, else where they are. */
INLINE right half_block(float *y, const void *part, const uint8_t *next, int n_d, int n_rows, int n_cols, form *f, const form f8, bool wide) {
    float *scale = wide ? y + (size_t)n_d * 64 : y;
    right b = {part, scale, (size_t)n_cols, next ? next - (const uint8_t *)part : 0};
    if (*f == F32) return b;
    if (*f == F16) {
        if (wide) widen(y, part, (size_t)n_rows * (size_t)n_cols);
    } else {
        const size_t n_scales = (size_t)(n_d / IG_KV_GROUP) * 64;
        const uint16_t *kept = ig_kv_scales(part, n_d);
        for (size_t i = 0; i < n_scales; i += 8) _mm256_store_ps(scale + i, vf_kv_scale(kept + i));
        if (f8 == KEYS8) memcpy(scale + n_scales, scale, n_scales * sizeof *scale);
        for (int k = 0; k < n_rows && wide; k++)
            for (int j = 0; j < n_cols; j += 8) _mm256_store_ps(y + (size_t)k * b.row + (size_t)j, at(&b, k, j, f8));
    }
    if (wide) b.p = y, b.ahead = 0, *f = F32;
    return b;
}

static float exp1(float x) {
    return _mm256_cvtss_f32(vf_exp(_mm256_set1_ps(x)));
}

typedef struct state {
    float m, l;         /* of the span */
    float top, sum;     /* of the spans before */
    float high;         /* the block's m; NaN: a score is one */
} state;

static void cap_scores(float *s, float cap) {
    const __m256 c = _mm256_set1_ps(cap);
    for (int k = 0; k < 64; k += 8) vf_store(s + k, vf_softcap(vf_load(s + k), c));
}

/* vf_exp for 0 and below, which it gives the bits of. */
INLINE __m256 exp_below(__m256 x) {
    const __m256 magic = _mm256_set1_ps(12582912.0f), low = _mm256_set1_ps(-87.3f);
    const __m256 t = vf_fma(vf_max(low, x), vf_set(1.44269504f), magic), n = vf_sub(t, magic);
    __m256 r = vf_fma(n, vf_set(-0.693359375f), vf_max(low, x));
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    __m256 p = vf_fma(vf_set(1.9875691500e-4f), r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, vf_set(1.0f)));
    return _mm256_and_ps(vf_scale_exponent(p, t), _mm256_cmp_ps(x, low, _CMP_NLT_UQ));
}

/* Scores of one query in one block, of which it sees from..n_keys - 1: the others are hidden, and the largest found.
 * Apart from the next so that the queries of a block overlap: alone each waits for its own maximum. */
INLINE void find_high(float *s, int from, int n_keys, state *st) {
    for (int k = 0; k < from; k++) s[k] = -1e30f;
    for (int k = n_keys; k < 64; k++) s[k] = -1e30f;
    __m256 v = _mm256_loadu_ps(s), nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    for (int k = 8; k < 64; k += 8) {
        __m256 w = _mm256_loadu_ps(s + k);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(w, w, _CMP_UNORD_Q));
        v = _mm256_max_ps(v, w);
    }
    float high = vf_max_of(v);
    if (high < st->m) high = st->m;
    st->high = _mm256_movemask_ps(nan) ? __builtin_nanf("") : high;
}

/* Then to weights; gives the factor by which the query's accumulator shrinks. */
INLINE float softmax_block(float *s, state *st) {
    const float high = st->high;
    __m256 vm = _mm256_set1_ps(high), lanes = _mm256_setzero_ps();
    if (high != high) { /* NaN to all: its bits would not stand the steps of exp_below */
        for (int k = 0; k < 64; k += 8) _mm256_storeu_ps(s + k, vm);
        lanes = vm;
    } else {
#pragma GCC unroll 8
        for (int k = 0; k < 64; k += 8) {
            __m256 e = exp_below(_mm256_sub_ps(_mm256_loadu_ps(s + k), vm));
            _mm256_storeu_ps(s + k, e);
            lanes = _mm256_add_ps(lanes, e);
        }
    }
    float c = 1.0f;
    if (high != st->m) {
        c = exp1(st->m - high);
        st->l = st->l * c;
        st->m = high;
    }
    st->l = st->l + vf_sum(lanes);
    return c;
}

/* The span's result joins the total. */
static void close_span(float *total, float *acc, state *st, int n_d, bool first) {
    if (first) {
        st->top = st->m, st->sum = st->l;
        memcpy(total, acc, (size_t)n_d * sizeof *acc);
    } else {
        float both = st->top > st->m ? st->top : st->m, c = exp1(st->top - both), e = exp1(st->m - both);
        st->sum = __builtin_fmaf(st->l, e, st->sum * c);
        __m256 vc = _mm256_set1_ps(c), ve = _mm256_set1_ps(e);
        for (int d = 0; d < n_d; d += 8)
            vf_store(total + d, vf_fma(vf_load(acc + d), ve, vf_mul(vf_load(total + d), vc)));
        st->top = both;
    }
    st->m = -1e30f, st->l = 0.0f;
    memset(acc, 0, (size_t)n_d * sizeof *acc);
}

static int see_from(const ig_attention_args *a, int i) {
    return a->window > 0 && a->pos[i] >= a->window ? a->pos[i] - a->window + 1 : 0;
}

static void attention(const ig_attention_args *a) {
    const int n_q = a->n_q, n_d = a->head_dim, span_from = a->m ? a->span * IG_ATTENTION_SPAN_BLOCKS : 0;
    int last = a->pos[n_q - 1] / 64;
    if (a->m && last >= span_from + IG_ATTENTION_SPAN_BLOCKS) last = span_from + IG_ATTENTION_SPAN_BLOCKS - 1;
    const size_t row = (size_t)n_d;
    const form kept = a->kind == IG_KV_F32 ? F32 : a->kind == IG_KV_F16 ? F16 : KEYS8;
    const bool wide = n_q >= WIDEN_FROM_QUERIES;
    float *s = a->scratch, *acc = s + (size_t)n_q * 64, *block32 = acc + (size_t)n_q * row, *total = a->out;
    if (a->m) acc = a->out;
    state st[IG_ATTENTION_QUERIES_MAX];
    memset(acc, 0, (size_t)n_q * row * sizeof *acc);
    for (int i = 0; i < n_q; i++) st[i] = (state){.m = -1e30f};

    /* Queries first..end - 1 see keys of block b: those before ended in an earlier one, those after begin
     * in a later one. */
    int first = 0, end = 0;
    const int from_block = see_from(a, 0) / 64;
    for (int b = from_block > span_from ? from_block : span_from; b <= last; b++) {
        while (a->pos[first] < b * 64) first++;
        while (end < n_q && see_from(a, end) / 64 <= b) end++;
        if (first == end) continue;
        const uint8_t *keys = a->block[b], *values = keys + ig_kv_part_bytes(a->kind, n_d);
        const int m = end - first;
        float *sf = s + (size_t)first * 64, *af = acc + (size_t)first * row;
        int top_keys = a->pos[end - 1] - b * 64 + 1; /* positions ascend */
        if (top_keys > 64) top_keys = 64;
        form f = kept;
        right half = half_block(block32, keys, values, n_d, n_d, 64, &f, KEYS8, wide);
        product(sf, 64, a->q + (size_t)first * row, row, &half, m, (top_keys + 15) / 16 * 16, n_d, f, KEYS8, false);
        for (int i = first; i < end; i++) {
            int n_keys = a->pos[i] - b * 64 + 1, from = see_from(a, i) - b * 64;
            if (n_keys > 64) n_keys = 64;
            if (a->softcap > 0.0f) cap_scores(s + (size_t)i * 64, a->softcap);
            find_high(s + (size_t)i * 64, from, n_keys, st + i);
        }
        for (int i = first; i < end; i++) {
            const float c = softmax_block(s + (size_t)i * 64, st + i);
            if (c != 1.0f) {
                __m256 vc = _mm256_set1_ps(c);
                for (int d = 0; d < n_d; d += 8)
                    vf_store(acc + (size_t)i * row + d, vf_mul(vf_load(acc + (size_t)i * row + d), vc));
            }
        }
        f = kept;
        half = half_block(block32, values, b < last ? a->block[b + 1] : NULL, n_d, top_keys, n_d, &f, VALUES8, wide);
        product(af, row, sf, 64, &half, m, n_d, top_keys, f, VALUES8, true);
        bool ends = (b + 1) % IG_ATTENTION_SPAN_BLOCKS == 0;
        for (int i = first; i < end && !a->m; i++)
            if (ends || a->pos[i] / 64 == b)
                close_span(total + (size_t)i * row, acc + (size_t)i * row, st + i, n_d,
                           b / IG_ATTENTION_SPAN_BLOCKS == see_from(a, i) / 64 / IG_ATTENTION_SPAN_BLOCKS);
    }
    for (int i = 0; i < n_q && a->m; i++) a->m[i] = st[i].m, a->l[i] = st[i].l;
    for (int i = 0; i < n_q && !a->m; i++) {
        __m256 inv = _mm256_set1_ps(1.0f / st[i].sum), zero = _mm256_setzero_ps();
        float *o = total + (size_t)i * row;
        for (int d = 0; d < n_d; d += 8) vf_store(o + d, vf_add(vf_mul(vf_load(o + d), inv), zero));
        if (a->lse) a->lse[i] = (float)((double)st[i].top + ig_math_log((double)st[i].sum));
    }
}

static const ig_kern kerns[] = {
    {IG_KERN_ATTENTION, NULL, IG_TIER_L3, SIMD_NEEDS, SIMD_SPEED + 5, KERN_NAME("attention_tile"),
     "equals scalar", {.attention = attention}},
};
KERN_EXPORT(attention_tile, kerns);
