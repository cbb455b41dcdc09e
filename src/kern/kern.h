/* kern: loops over numbers. No tensors, no threads, no allocation, no errors: the caller has checked every
 * shape. docs/numerics.md defines every order of summation and every place of a rounding; the scalar
 * variant of a kernel is that text as a program, and any other variant gives the same bits.
 *
 * A file fmt_*.c or loop_*.c is compiled once per header in simd/, with that header's flags, and exports a
 * list of kernels; tuned/<name>.<isa>.c replaces single cells. The build lists the files
 * (gen/kern_list.h); the choice, the check and the bench read that one list.
 *
 * To add a format: one file fmt_<format>.c. To add an ISA: one header in simd/. Nothing else is edited.
 *
 * Letters: K inputs (columns of W), N outputs (rows of W), T rows of activations, D head size. */
#ifndef IG_KERN_H
#define IG_KERN_H

#include "base/base.h"

typedef enum ig_tier { IG_TIER_L1 = 1, IG_TIER_L2 = 2, IG_TIER_L3 = 3 } ig_tier;

/* What a linear layer of a format eats. */
typedef enum ig_act_kind {
    IG_ACT_F32 = 1, /* f32 rows */
    IG_ACT_Q8 = 2,  /* int8 rows with one scale per block of 32 */
    IG_ACT_Q16 = 4  /* int16 rows with one scale per block of 32 */
} ig_act_kind;

enum {
    IG_PANEL_ROWS = 16, /* outputs of a panel: two vectors of 8 lanes */
    IG_ACT_BLOCK = 32   /* inputs that share an activation scale */
};

/* Activations, rows of K values. */
typedef struct ig_act {
    const float *f;          /* [T][K] or NULL */
    int8_t *q;               /* [T][K] or NULL */
    float *scale;            /* [T][K/32] */
    int16_t *qsum;           /* [T][K/16] sum of 16 q */
    float *sum;              /* [T][K/32] scale * (float)(sum of the block's q) */
    int16_t *q16;            /* [T][K] or NULL */
    float *scale16;          /* [T][K/32] */
    int32_t *qsum16;         /* [T][K/16] sum of 16 q16 */
    float *sum16;            /* [T][K/32] scale16 * (float)(sum of the block's q16) */
    int n_cols;
} ig_act;

/* How MLX quantizes a matrix; its formats are found by mode, bits and group. */
typedef enum ig_mlx_mode { IG_MLX_NONE, IG_MLX_AFFINE, IG_MLX_MXFP4, IG_MLX_NVFP4, IG_MLX_MXFP8 } ig_mlx_mode;

/* A weight format: the layout in the file and the layout in a panel. Its address is its identity, on disk
 * it is its name. A row in the file is K / group groups of group_bytes. A panel is K / panel_group groups
 * of panel_bytes, each holding IG_PANEL_ROWS rows side by side; the groups of any range of inputs that starts
 * at a whole group are a panel too.
 * MLX keeps a matrix in two or three tensors; its row here is the row's codes, then its scales, then its
 * biases if it has any, which the loader brings together (fmt_affine.c, fmt_fp.c). */
typedef struct ig_fmt {
    const char *name;       /* "q4_1" */
    int gguf_type;          /* its number in GGUF, -1 none */
    int group, group_bytes; /* in the file */
    int panel_group, panel_bytes;
    ig_act_kind act;
    /* Row `lane` of a panel, from one row of the file. */
    void (*pack)(uint8_t *panel, const uint8_t *row, int lane, int n_cols);
    ig_mlx_mode mlx;     /* NONE: not one of MLX's */
    int bits, mlx_group; /* of a code; inputs that share a scale */
    bool f32_scales;     /* the loader makes scales and biases f32, else they stay as they are */
    bool rounds;         /* its products are summed in 16 bits: of no file, tier l1 makes it of MLX's (fmt_mlx.c) */
} ig_fmt;

static inline size_t ig_fmt_row_bytes(const ig_fmt *f, int n_cols) {
    ig_assert(n_cols % f->group == 0);
    return (size_t)(n_cols / f->group) * (size_t)f->group_bytes;
}
static inline size_t ig_fmt_panel_bytes(const ig_fmt *f, int n_cols) {
    ig_assert(n_cols % f->panel_group == 0);
    return (size_t)(n_cols / f->panel_group) * (size_t)f->panel_bytes;
}

typedef enum ig_kern_op {
    IG_KERN_LINEAR,  /* per format */
    IG_KERN_DEQUANT, /* per format: file layout to f32 */
    IG_KERN_UNPACK,  /* per format: one row of a panel to f32 */
    IG_KERN_QUANT,
    IG_KERN_QUANT16,
    IG_KERN_NORM,
    IG_KERN_ROPE,
    IG_KERN_SWIGLU,
    IG_KERN_GEGLU,
    IG_KERN_ADD,
    IG_KERN_TO_F16,
    IG_KERN_TO_KV8,
    IG_KERN_ATTENTION,
    IG_KERN_ATTENTION_JOIN,
    IG_KERN_EXP,
    IG_KERN_ARGMAX,
    IG_KERN_ROUND, /* per number format, tier l1 only */
    /* of training; orders of sums in docs/numerics.md, Backward */
    IG_KERN_MATMUL,
    IG_KERN_NORM_BACK,
    IG_KERN_SWIGLU_BACK,
    IG_KERN_GEGLU_BACK,
    IG_KERN_ROPE_BACK,
    IG_KERN_SOFTMAX_BACK,
    IG_KERN_DOT,
    IG_KERN_SCALE,
    IG_KERN_SOFTCAP,
    IG_KERN_SOFTMAX_STEP,
    IG_KERN_N_OPS
} ig_kern_op;

/* tile[m][16] = rows row..row+m-1 of x times the panel's 16 outputs. */
typedef void ig_linear_fn(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols);
typedef void ig_dequant_fn(float *out, const uint8_t *row, int n_cols);
typedef void ig_unpack_fn(float *out, const uint8_t *panel, int lane, int n_cols);
/* One row of n values (a multiple of 32) to int8 with its scales and sums. A block that holds a NaN or an
 * infinity gets a scale that is not finite, so that the row's logits tell. qsum of 16 values each, sum of 32. */
typedef void ig_quant_fn(int8_t *q, float *scale, int16_t *qsum, float *sum, const float *x, int n);
/* The same to int16. */
typedef void ig_quant16_fn(int16_t *q, float *scale, int32_t *qsum, float *sum, const float *x, int n);
/* y[i] = x[i] * (1 / sqrt(mean of squares + eps)) * w[i] */
typedef void ig_norm_fn(float *y, const float *x, const float *w, int n, float eps);
/* m rows of n pairs: lo[i], hi[i] rotated by the angle whose cosine and sine are given; n a multiple of 8. Rows are
 * x_row floats apart in lo and hi, angle_row in cos and sin. */
typedef void ig_rope_fn(float *lo, float *hi, size_t x_row, const float *cos, const float *sin, size_t angle_row, int m,
                        int n);
/* y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; y may be gate or up. */
typedef void ig_swiglu_fn(float *y, const float *gate, const float *up, int n);
/* y[i] = gelu(gate[i]) * up[i], the tanh form: x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
typedef void ig_geglu_fn(float *y, const float *gate, const float *up, int n);
/* y[i] = a[i] + b[i], m rows of n; each row begins so many floats after the one before. y may be a or b, or
 * begin where a does with rows that lie closer together: a row is read before it is written, and rows ascend. */
typedef void ig_add_fn(float *y, size_t y_row, const float *a, size_t a_row, const float *b, size_t b_row, int m,
                       int n);
typedef void ig_to_f16_fn(uint16_t *y, const float *x, int n);
/* y[i] = x[i] rounded to a 16-bit number (the kernel's fmt), nearest even; y may be x. */
typedef void ig_round_fn(float *y, const float *x, int n);
/* IG_KV_GROUP values to codes of -127..127 and the f16 scale that they share. When one is not finite, or too large
 * for such a scale, then neither is the scale, and the codes are 0. */
typedef void ig_to_kv8_fn(int8_t *q, uint16_t *scale, const float *x);
/* y[i] = exp(x[i]); 0 below -87.3, exp(88) above 88, NaN stays NaN. */
typedef void ig_exp_fn(float *y, const float *x, int n);
/* Index of the largest, the lowest on a tie; -1 when any is NaN or infinite above. */
typedef int ig_argmax_fn(const float *x, int n);

/* ---- training ---------------------------------------------------------------------------------------- */

/* C[m][n] = (add ? C : 0) + sum over k of A(i, k) B[k][n]: one fma chain an element that starts at C or 0,
 * k ascending, so that a long k may be cut into calls without changing a bit. A(i, k) is
 * a[i * a_row + k * a_k]: rows or columns of a matrix, as the caller likes. C overlaps neither. */
typedef struct ig_matmul_args {
    float *c;
    const float *a, *b;
    size_t c_row, a_row, a_k, b_row; /* in floats */
    int m, n, kk;
    bool add;
} ig_matmul_args;
typedef void ig_matmul_fn(const ig_matmul_args *a);
/* dx (+)= gradient of norm(x, w) given dy; w NULL: all ones. dx may be dy. */
typedef struct ig_norm_back_args {
    float *dx;
    const float *dy, *x, *w;
    int n;
    float eps;
    bool add;
} ig_norm_back_args;
typedef void ig_norm_back_fn(const ig_norm_back_args *a);
/* Gradients of the gated product from dy and what went in; dgate may be gate, dup may be up. */
typedef void ig_gate_back_fn(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                             int n);
/* From scores and dP of one query to P and dS, both in place: s[k] = exp(s[k] - lse) for k in [from, to)
 * and 0 elsewhere, dp[k] = s[k] * (dp[k] - delta). n a multiple of 8. */
typedef void ig_softmax_back_fn(float *s, float *dp, float lse, float delta, int from, int to, int n);
/* Sum of a[i] * b[i] as the norm sums its squares. */
typedef float ig_dot_fn(const float *a, const float *b, int n);
typedef void ig_scale_fn(float *y, const float *x, float s, int n);
/* y[i] = cap * tanh(x[i] / cap), slope[i] = 1 - tanh^2; y may be x. tanh to 2 ulp. */
typedef void ig_softcap_fn(float *y, float *slope, const float *x, float cap, int n);
/* One block of logits joins a running softmax: m' = max(m, l), l[i] = exp(l[i] - m'), and
 * d = d * exp(m - m') + sum of l. Gives exp(m - m'), by which the caller shrinks what it has summed. Starts
 * from m = -1e30, d = 0. A NaN or an infinity makes d NaN. */
typedef struct ig_softmax_state {
    float m, d;
} ig_softmax_state;
typedef float ig_softmax_step_fn(float *l, int n, ig_softmax_state *s);

/* What keys and values are kept in. 64 positions of one kv head are a part for K and then a part for V of
 * ig_kv_part_bytes each: K [D][64], V [64][D]. Of KV8 a part is int8 codes so laid out and then f16 scales
 * [D / 16][64], one for a position's 16 values that a panel of the weight gives: of K those of dimensions
 * 8 g .. 8 g + 7 of either half (IG_ROWS_ROPE), of V those of 16 g .. 16 g + 15. A value is (float)code * scale,
 * and what is kept is 64 times the scale, so that f16 has all its bits for all but tiny values. */
typedef enum ig_kv_kind {
    IG_KV_F16, IG_KV_8, IG_KV_F32 /* training */, IG_KV_BF16, /* tiers l1 and l2 */
    /* Tier l2: a part is two of 16 bits, the numbers and behind them those that came back from affine groups. */
    IG_KV_F16_TWICE, IG_KV_BF16_TWICE
} ig_kv_kind;
static inline bool ig_kv_is_twice(ig_kv_kind k) {
    return k == IG_KV_F16_TWICE || k == IG_KV_BF16_TWICE;
}
enum { IG_KV_GROUP = 16, IG_KV_BLOCK_TOKENS = 64 };
static inline size_t ig_kv_part_bytes(ig_kv_kind kind, int head_dim) {
    const size_t n = (size_t)head_dim * IG_KV_BLOCK_TOKENS;
    return kind == IG_KV_F32 || ig_kv_is_twice(kind) ? 4 * n : kind == IG_KV_8 ? n + n / IG_KV_GROUP * sizeof(uint16_t) : 2 * n;
}
/* The scales of a part of KV8. */
static inline uint16_t *ig_kv_scales(const void *part, int head_dim) {
    return (uint16_t *)(void *)((uint8_t *)(uintptr_t)part + (size_t)head_dim * IG_KV_BLOCK_TOKENS);
}

/* Tier l2: a row of n keys or values in place, as affine groups of 2 to 8 bits give it back (kv_affine.c). */
void ig_kv_affine_round(float *x, int n, int bits, int group, const ig_fmt *number);
/* How tiers l1 and l2 sum: plain, in f32 over the numbers; else over what came back from groups, each product and each
 * sum rounded, the softmax at once or in tiles of so many keys, counted from the first in the order of the sums. */
typedef enum ig_attention_form { IG_ATTENTION_PLAIN, IG_ATTENTION_ROUNDED, IG_ATTENTION_TILED } ig_attention_form;
enum { IG_ATTENTION_TILE_KEYS = 512 };

/* Attention of n_q queries of one sequence and one kv head. Query i, at position pos[i] (ascending), sees
 * keys 0..pos[i], or with a window the last `window` of them. Keys 64 b .. 64 b + 63 and their values are at
 * block[b], which is read only when a query sees a key of it; all of such a block must be finite. */
enum { IG_ATTENTION_QUERIES_MAX = 64, IG_HEAD_DIM_MAX = 256, IG_ATTENTION_SPAN_BLOCKS = 16 };
typedef struct ig_attention_args {
    float *out;     /* [n_q][D] */
    const float *q; /* [n_q][D], already scaled */
    const int *pos; /* [n_q] */
    int n_q, head_dim;
    int window;     /* 0: none */
    float softcap;  /* of scores: cap * tanh(score / cap); 0: none */
    ig_kv_kind kind; /* what the blocks hold */
    const void *const *block;
    float *lse;     /* [n_q] log of the sum of exp(score), or NULL */
    /* NULL: all spans. Else only `span`, as a part: out is the sum of exp(score - m) V, l that of exp(score - m). */
    float *m, *l;   /* [n_q] */
    int span;
    /* Tier l1. in_ring: the one position of all queries sees its window as a ring that is filled from position
     * ring_from on: the keys since slot 0 was last written, then those before. */
    bool in_ring;
    int ring_from;
    ig_attention_form form; /* tier l2; not plain: no softcap; tiled: no key has left a window, or in_ring */
    float *scratch; /* ig_attention_scratch_floats(n_q, head_dim, n_keys), aligned to 64 bytes */
} ig_attention_args;
typedef void ig_attention_fn(const ig_attention_args *a);
/* The parts of one query, the first span that it sees and those after it, made its attention. Part i is
 * out[i * out_step], m[i * step], l[i * step]. */
typedef struct ig_attention_join_args {
    float *y; /* [D] */
    const float *out, *m, *l;
    size_t out_step, step;
    int n_parts, head_dim;
} ig_attention_join_args;
typedef void ig_attention_join_fn(const ig_attention_join_args *a);
/* n_keys: 0, or in tier l1, which keeps all scores of a query, the most keys in whole blocks that one call reads. */
static inline size_t ig_attention_scratch_floats(int n_q, int head_dim, int n_keys) {
    /* for each query its scores and its sum; 64 keys or values, and their scales */
    return (size_t)n_q * (size_t)(64 + head_dim + n_keys) + (size_t)(64 + 2 * 64 / IG_KV_GROUP) * (size_t)head_dim +
           64;
}

typedef struct ig_kern {
    ig_kern_op op;
    const ig_fmt *fmt;   /* NULL: no format owns it */
    ig_tier tier;
    uint32_t cpu_needs;
    int speed;           /* rank inside one (op, fmt); changed only with a row in bench/results */
    const char *name;    /* <op>[_<fmt>][_<how>].<isa> */
    const char *proof;   /* L1/L2: the golden; L3: what holds instead */
    union {
        ig_linear_fn *linear;
        ig_dequant_fn *dequant;
        ig_unpack_fn *unpack;
        ig_quant_fn *quant;
        ig_quant16_fn *quant16;
        ig_norm_fn *norm;
        ig_rope_fn *rope;
        ig_swiglu_fn *swiglu;
        ig_geglu_fn *geglu;
        ig_add_fn *add;
        ig_to_f16_fn *to_f16;
        ig_to_kv8_fn *to_kv8;
        ig_attention_fn *attention;
        ig_attention_join_fn *attention_join;
        ig_exp_fn *exp;
        ig_argmax_fn *argmax;
        ig_round_fn *round;
        ig_matmul_fn *matmul;
        ig_norm_back_fn *norm_back;
        ig_gate_back_fn *gate_back;
        ig_softmax_back_fn *softmax_back;
        ig_dot_fn *dot;
        ig_scale_fn *scale;
        ig_softcap_fn *softcap;
        ig_softmax_step_fn *softmax_step;
    } fn;
} ig_kern;

typedef struct ig_kern_set {
    const ig_kern *v;
    int n;
} ig_kern_set;

/* The fastest variant for these CPU bits within the tier ceiling. Never NULL for a pair that exists. */
const ig_kern *ig_kern_pick(ig_kern_op op, const ig_fmt *fmt, ig_tier tier_max, uint32_t cpu);
const ig_kern *ig_kern_at(int i);            /* walk all; NULL at the end */
const ig_kern *ig_kern_reference(ig_kern_op op, const ig_fmt *fmt); /* the scalar one */
const ig_fmt *ig_fmt_of_gguf(uint32_t type); /* NULL: not one of ours */
/* NULL: not one of ours */
const ig_fmt *ig_fmt_of_mlx(ig_mlx_mode mode, int bits, int group, bool f32_scales);
const ig_fmt *ig_fmt_at(int i);              /* walk those of files; NULL at the end */
const char *ig_kern_op_name(ig_kern_op op);

/* Angles and bases in double by fixed steps of our own, the same on every machine (loop_math.c). */
double ig_math_exp(double x);
double ig_math_log(double x);
void ig_math_sincos(double x, double *s, double *c);

/* ---- math_mlx.c: the arithmetic of tier l1 ------------------------------------------------------------ */

/* The 16-bit formats that activations of tier l1 are rounded to after each step, and so the `fmt` of its kernels. */
extern const ig_fmt ig_fmt_bf16, ig_fmt_f16;
/* Panels of tier l1 for MLX's quantized weights, by what the codes share: a scale and a bias (the values of a row come
 * as numbers), or a scale for each run of 32 or 16 inputs. */
const ig_fmt *ig_fmt_mlx_exact(const ig_fmt *from, const ig_fmt *number);
/* One row of the file as that format packs it: numbers, and of formats with runs then their scales. */
void ig_mlx_row(uint16_t *out, const ig_fmt *from, const ig_fmt *number, const uint8_t *row, int n_cols);
float ig_number_round(const ig_fmt *number, float x);
/* exp, sine and cosine of MLX's own in f32; logf as glibc computes it; tanh in double, rounded once. */
float ig_mlx_exp(float x);
void ig_mlx_sincos(float x, float *s, float *c);
float ig_mlx_log(float x);
float ig_mlx_tanh(float x);
/* gelu of every 16-bit number, the tanh form, rounded after each step; by the bits of its argument. Made at the
 * first call; any thread. */
const uint16_t *ig_mlx_gelu(const ig_fmt *number);

/* Half floats, round to nearest even; the meaning of the hardware conversions. */
uint16_t ig_f32_to_f16(float x);
float ig_f16_to_f32(uint16_t h);
/* A scale of KV8, from and to what is kept. */
static inline uint16_t ig_kv_scale_kept(float scale) {
    return ig_f32_to_f16(scale * 64.0f);
}
static inline float ig_kv_scale(uint16_t kept) {
    return ig_f16_to_f32(kept) * 0x1p-6f;
}
uint16_t ig_f32_to_bf16(float x);
float ig_bf16_to_f32(uint16_t h);
/* The 8-bit float of 4 exponent and 3 mantissa bits; its NaN (0x7f, 0xff) as what its bits go on to, 480. */
float ig_e4m3_to_f32(uint8_t v);

#endif
