/* math_mlx: what mlx's CPU backend (0.32.4, the x86-64 wheel) computes in scalar f32, step by step: its own exp, sine
 * and cosine, the C library's logf, gelu as a chain of rounded steps, and rows of quantized weights as numbers.
 * docs/numerics.md, Tier l1, has the steps around them; loop_mlx.c and fmt_mlx.c do those.
 * fmaf where mlx has an fma, and nowhere else: the whole program is compiled without contraction. */
#include "kern/kern.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

float ig_number_round(const ig_fmt *number, float x) {
    return number == &ig_fmt_bf16 ? ig_bf16_to_f32(ig_f32_to_bf16(x)) : ig_f16_to_f32(ig_f32_to_f16(x));
}
static uint16_t number_of(const ig_fmt *number, float x) {
    return number == &ig_fmt_bf16 ? ig_f32_to_bf16(x) : ig_f32_to_f16(x);
}

/* 2^n times a polynomial in the rest, n to the nearest with halves up; the exponent field alone makes the power, so that
 * results below 2^-126 are 0. */
float ig_mlx_exp(float x) {
    if (x != x) return x;
    if (x > 88.0f) return INFINITY;
    if (x < -88.0f) return 0.0f;
    const float t = x * 1.442695f, n = (float)floor((double)t + 0.5), f = t - n;
    float p = 1.535336188319500e-4f;
    p = fmaf(p, f, 1.339887440266574e-3f);
    p = fmaf(p, f, 9.618437357674640e-3f);
    p = fmaf(p, f, 5.550332471162809e-2f);
    p = fmaf(p, f, 2.402264791363012e-1f);
    p = fmaf(p, f, 6.931472028550421e-1f);
    p = fmaf(p, f, 1.0f);
    const uint32_t bits = (uint32_t)((int)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * p;
}

/* pi / 4 in three parts; odd octants go to the next even one. */
void ig_mlx_sincos(float x, float *s, float *c) {
    if (fabsf(x) > 8388608.0f) {
        *s = sinf(x), *c = cosf(x);
        return;
    }
    float a = fabsf(x);
    const uint32_t j = ((uint32_t)(a * 1.27323954473516f) + 1) & ~1u;
    const float y = (float)j;
    a = fmaf(y, -0.78515625f, a);
    a = fmaf(y, -2.4187564849853515625e-4f, a);
    a = fmaf(y, -3.77489497744594108e-8f, a);
    const float z = a * a;
    float pc = fmaf(z, 2.443315711809948e-5f, -1.388731625493765e-3f), ps = fmaf(z, -1.9515295891e-4f, 8.3321608736e-3f);
    pc = fmaf(pc, z, 4.166664568298827e-2f), ps = fmaf(ps, z, -1.6666654611e-1f);
    pc *= z, ps *= z;
    pc *= z, ps = fmaf(a, ps, a);
    pc = fmaf(z, -0.5f, pc);
    pc += 1.0f;
    const float sine = j & 2 ? pc : ps, cosine = j & 2 ? ps : pc;
    *s = (x < 0.0f) != ((j & 4) != 0) ? -sine : sine;
    *c = (j - 2) & 4 ? cosine : -cosine;
}

/* glibc's (2.27 and later) and musl's: log 2^k z = k ln 2 + log c + log(z / c), in double, 1 / c and log c from a
 * table of 16. Its numbers are facts of that algorithm. */
float ig_mlx_log(float x) {
    static const double table[16][2] = {
        {0x1.661ec79f8f3bep+0, -0x1.57bf7808caadep-2}, {0x1.571ed4aaf883dp+0, -0x1.2bef0a7c06ddbp-2},
        {0x1.49539f0f010bp+0, -0x1.01eae7f513a67p-2},  {0x1.3c995b0b80385p+0, -0x1.b31d8a68224e9p-3},
        {0x1.30d190c8864a5p+0, -0x1.6574f0ac07758p-3}, {0x1.25e227b0b8eap+0, -0x1.1aa2bc79c81p-3},
        {0x1.1bb4a4a1a343fp+0, -0x1.a4e76ce8c0e5ep-4}, {0x1.12358f08ae5bap+0, -0x1.1973c5a611cccp-4},
        {0x1.0953f419900a7p+0, -0x1.252f438e10c1ep-5}, {0x1p+0, 0x0p+0},
        {0x1.e608cfd9a47acp-1, 0x1.aa5aa5df25984p-5},  {0x1.ca4b31f026aap-1, 0x1.c5e53aa362eb4p-4},
        {0x1.b2036576afce6p-1, 0x1.526e57720db08p-3},  {0x1.9c2d163a1aa2dp-1, 0x1.bc2860d22477p-3},
        {0x1.886e6037841edp-1, 0x1.1058bc8a07ee1p-2},  {0x1.767dcf5534862p-1, 0x1.4043057b6ee09p-2}};
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (u == 0x3f800000u) return 0.0f;
    if (u << 1 == 0) return -INFINITY;
    if (u == 0x7f800000u) return x;
    if (u & 0x80000000u || u << 1 >= 0xff000000u) return x != x ? x : (float)NAN;
    if (u < 0x00800000u) { /* denormal */
        const float y = x * 0x1p23f;
        memcpy(&u, &y, sizeof u);
        u -= 23u << 23;
    }
    const uint32_t off = u - 0x3f330000u, top = u - (off & 0xff800000u);
    const int k = (int32_t)off >> 23;
    const double *e = table[off >> 19 & 15];
    float z;
    memcpy(&z, &top, sizeof z);
    const double r = (double)z * e[0] - 1.0, y0 = e[1] + (double)k * 0x1.62e42fefa39efp-1, r2 = r * r;
    double y = 0x1.5575b0be00b6ap-2 * r + -0x1.ffffef20a4123p-2;
    y = -0x1.00ea348b88334p-2 * r2 + y;
    y = y * r2 + (y0 + r);
    return (float)y;
}

float ig_mlx_tanh(float x) {
    const double a = fabs((double)x);
    double y;
    if (x != x) return x;
    if (a < 0x1p-5) { /* the series, where 1 - 2 / (exp + 1) would lose digits */
        const double z = a * a;
        y = a * (1.0 + z * (-1.0 / 3.0 + z * (2.0 / 15.0 + z * (-17.0 / 315.0 + z * (62.0 / 2835.0)))));
    } else {
        y = a > 20.0 ? 1.0 : 1.0 - 2.0 / (ig_math_exp(2.0 * a) + 1.0);
    }
    return (float)copysign(y, (double)x);
}

/* ---- gelu --------------------------------------------------------------------------------------------- */

static uint16_t gelu_table[2][65536];

static float gelu(const ig_fmt *n, float x) {
    const float a = ig_number_round(n, 0.044715f), b = ig_number_round(n, 0.7978845608028654f);
    float t = ig_number_round(n, (float)((double)x * (double)x * (double)x)); /* one power in f32 */
    t = ig_number_round(n, a * t);
    t = ig_number_round(n, x + t);
    t = ig_number_round(n, b * t);
    t = ig_number_round(n, ig_mlx_tanh(t));
    t = ig_number_round(n, 1.0f + t);
    return ig_number_round(n, ig_number_round(n, 0.5f * x) * t);
}
static void make_gelu(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        gelu_table[0][h] = ig_f32_to_bf16(gelu(&ig_fmt_bf16, ig_bf16_to_f32((uint16_t)h)));
        gelu_table[1][h] = ig_f32_to_f16(gelu(&ig_fmt_f16, ig_f16_to_f32((uint16_t)h)));
    }
}
const uint16_t *ig_mlx_gelu(const ig_fmt *number) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_gelu);
    return gelu_table[number != &ig_fmt_bf16];
}

/* ---- rows of quantized weights ------------------------------------------------------------------------ */

static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Code i of a little-endian stream of codes of `bits` bits. */
static uint32_t code_at(const uint8_t *row, int i, int bits) {
    const size_t at = (size_t)i * (size_t)bits;
    uint32_t v = row[at / 8];
    if ((int)(at % 8) + bits > 8) v |= (uint32_t)row[at / 8 + 1] << 8;
    return v >> at % 8 & ((1u << bits) - 1);
}
static float affine_scale(const ig_fmt *from, const uint8_t *p, size_t i) {
    float x;
    uint16_t h;
    if (from->f32_scales) return memcpy(&x, p + 4 * i, sizeof x), x;
    return memcpy(&h, p + 2 * i, sizeof h), ig_bf16_to_f32(h);
}
/* 2^(e - 127), denormal below */
static float e8m0(uint8_t e) {
    const uint32_t u = e > 0 ? (uint32_t)e << 23 : 0x00400000u;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* r(r(scale * code) + bias) */
static void affine_row(uint16_t *out, const ig_fmt *from, const ig_fmt *number, const uint8_t *row, int n_cols) {
    const uint8_t *scales = row + (size_t)n_cols * (size_t)from->bits / 8;
    const size_t n_groups = (size_t)(n_cols / from->mlx_group);
    for (int k = 0; k < n_cols; k++) {
        const size_t g = (size_t)(k / from->mlx_group);
        const float s = affine_scale(from, scales, g), b = affine_scale(from, scales, n_groups + g);
        const float q = (float)code_at(row, k, from->bits);
        out[k] = number_of(number, ig_number_round(number, s * q) + b);
    }
}

void ig_mlx_row(uint16_t *out, const ig_fmt *from, const ig_fmt *number, const uint8_t *row, int n_cols) {
    if (from->mlx == IG_MLX_AFFINE) {
        affine_row(out, from, number, row, n_cols);
        return;
    }
    const int run = from->mlx_group;
    const uint8_t *scales = row + (size_t)n_cols * (size_t)from->bits / 8;
    for (int k = 0; k < n_cols; k++)
        out[k] = number_of(number, from->bits == 4 ? e2m1[code_at(row, k, 4)] : ig_e4m3_to_f32(row[k]));
    for (int g = 0; g < n_cols / run; g++) {
        float s = from->mlx == IG_MLX_NVFP4 ? ig_e4m3_to_f32(scales[g]) : e8m0(scales[g]);
        if (from->f32_scales) memcpy(&s, scales + 4 * g, sizeof s);
        out[n_cols + g] = number_of(number, s);
    }
}
