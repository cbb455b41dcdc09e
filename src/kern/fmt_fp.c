/* fmt_fp: codes that are small floats, with a scale for each run of inputs.
 *     MXFP4  E2M1 codes, runs of 32, scale 2^(e - 127)      GGUF: {u8 e, u8 qs[16]} for 32 inputs
 *     NVFP4  E2M1 codes, runs of 16, scale E4M3             GGUF: {u8 s[4], u8 qs[32]} for 64 inputs
 *     MXFP8  E4M3 codes, runs of 32, scale 2^(e - 127)
 * GGUF's qs hold inputs j and j + half of a run in a byte, its E4M3 scales have no sign and 0x7f is 0. A row of
 * MLX is its codes (two in a byte, the lower first), then its scales: bytes, or for NVFP4 with a scale of the
 * whole tensor f32 (the loader multiplies). A NaN among MLX scales or codes does not come here.
 *     panel  E2M1: nibbles as in fmt_common.h, then e[16] or s[2 runs][16];  MXFP8: codes [32][16], then e[16]
 * E2M1 counts halves, T = 0 1 2 3 4 6 8 12 and the same less than zero; d = scale / 2. isum = exact sum of T * q:
 *     MXFP4, NVFP4  acc = fma(d, a.scale * (float)isum, acc), runs ascending
 *     MXFP8         as f32 weights (fmt_float.c), w = code * scale, rounded */
#include "kern/fmt_common.h"


enum kind { MXFP4, NVFP4, NVFP4_F32 };
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Inputs that share a scale, and bytes of one. */
INLINE int run_of(const enum kind kind) {
    return kind == MXFP4 ? 32 : 16;
}
INLINE int scale_bytes(const enum kind kind) {
    return kind == NVFP4_F32 ? 4 : 1;
}
INLINE int block_bytes(const enum kind kind) {
    return NIBBLES_BYTES + 32 / run_of(kind) * IG_PANEL_ROWS * scale_bytes(kind);
}
/* 2^(e - bias), bias 127 or 128; denormal where e is small */
static inline float e8m0(uint8_t e, int bias) {
    const int exponent = e - (bias - 127);
    const uint32_t u = exponent > 0 ? (uint32_t)exponent << 23 : 0x00400000u >> -exponent;
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}
/* Its bits as those of an f32 are 2^-120 of it, denormals too. */
static inline float e4m3(uint8_t v) {
    const uint32_t u = (uint32_t)(v & 128) << 24 | (uint32_t)(v & 127) << 20;
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x * 0x1p120f;
}
/* d of the scale at p */
INLINE float half_scale(const uint8_t *p, const enum kind kind) {
    return kind == MXFP4 ? e8m0(*p, 128) : 0.5f * (kind == NVFP4 ? e4m3(*p) : f32_at(p));
}
INLINE const uint8_t *scale_place(const uint8_t *block, int run, int lane, const enum kind kind) {
    return block + NIBBLES_BYTES + (run * IG_PANEL_ROWS + lane) * scale_bytes(kind);
}

INLINE void linear_e2m1(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols,
                        const enum kind kind) {
    for (int r = 0; r < m; r++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const size_t at = (size_t)(row + r) * (size_t)x->n_cols;
            float acc = 0.0f;
            for (int k0 = 0; k0 < n_cols; k0 += run_of(kind)) {
                const uint8_t *block = panel + (size_t)(k0 / 32) * (size_t)block_bytes(kind);
                const int in = k0 % 32;
                int32_t isum = 0;
                for (int k = 0; k < run_of(kind); k++)
                    isum += doubled[nibble_at(block, lane, in + k)] * x->q[at + (size_t)(k0 + k)];
                acc = __builtin_fmaf(half_scale(scale_place(block, in / 16, lane, kind), kind),
                                     x->scale[(at + (size_t)k0) / 32] * (float)isum, acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
}
INLINE void unpack_e2m1(float *out, const uint8_t *panel, int lane, int n_cols, const enum kind kind) {
    for (int k0 = 0; k0 < n_cols; k0 += 32, panel += block_bytes(kind))
        for (int k = 0; k < 32; k++)
            *out++ = half_scale(scale_place(panel, k / run_of(kind), lane, kind), kind) *
                     (float)doubled[nibble_at(panel, lane, k)];
}
/* A row of MLX */
static inline int mlx_code(const uint8_t *row, int k) {
    return row[k / 2] >> (k & 1) * 4 & 15;
}
INLINE void dequant_mlx(float *out, const uint8_t *row, int n_cols, const enum kind kind) {
    const uint8_t *scales = row + n_cols / 2;
    for (int k = 0; k < n_cols; k++)
        out[k] = half_scale(scales + k / run_of(kind) * scale_bytes(kind), kind) *
                 (float)doubled[mlx_code(row, k)];
}

#define E2M1(fmt, kind)                                                                                      \
    FMT_DECLARE(fmt);                                                                                        \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,             \
                             int n_cols) {                                                                   \
        linear_e2m1(tile, panel, x, row, m, n_cols, kind);                                                   \
    }                                                                                                        \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {                       \
        unpack_e2m1(out, panel, lane, n_cols, kind);                                                         \
    }
E2M1(mxfp4, MXFP4)
E2M1(nvfp4, NVFP4)
E2M1(mxfp4_mlx, MXFP4)
E2M1(nvfp4_mlx, NVFP4)
E2M1(nvfp4_mlx_f32, NVFP4_F32)

static void dequant_mxfp4_mlx(float *out, const uint8_t *row, int n_cols) {
    dequant_mlx(out, row, n_cols, MXFP4);
}
static void dequant_nvfp4_mlx(float *out, const uint8_t *row, int n_cols) {
    dequant_mlx(out, row, n_cols, NVFP4);
}
static void dequant_nvfp4_mlx_f32(float *out, const uint8_t *row, int n_cols) {
    dequant_mlx(out, row, n_cols, NVFP4_F32);
}

/* ---- GGUF -------------------------------------------------------------------------------------------- */

enum { MXFP4_BYTES = 17, NVFP4_BYTES = 36 };

/* Codes of 32 inputs whose qs are in runs of that many. */
INLINE void codes_of_gguf(uint8_t code[32], const uint8_t *qs, const int run) {
    for (int at = 0; at < 32; at += run)
        for (int j = 0; j < run / 2; j++) {
            code[at + j] = qs[at / 2 + j] & 15;
            code[at + run / 2 + j] = qs[at / 2 + j] >> 4;
        }
}
static inline uint8_t scale_of_gguf(uint8_t s) {
    return s == 0x7f ? 0 : s & 0x7f;
}
static void dequant_mxfp4(float *out, const uint8_t *row, int n_cols) {
    for (int k0 = 0; k0 < n_cols; k0 += 32, row += MXFP4_BYTES) {
        uint8_t code[32];
        codes_of_gguf(code, row + 1, 32);
        for (int k = 0; k < 32; k++) *out++ = e8m0(row[0], 128) * (float)doubled[code[k]];
    }
}
static void dequant_nvfp4(float *out, const uint8_t *row, int n_cols) {
    for (int k0 = 0; k0 < n_cols; k0 += 32) {
        const uint8_t *group = row + k0 / 64 * NVFP4_BYTES, *s = group + k0 % 64 / 16;
        uint8_t code[32];
        codes_of_gguf(code, group + 4 + k0 % 64 / 2, 16);
        for (int k = 0; k < 32; k++)
            *out++ = 0.5f * e4m3(scale_of_gguf(s[k / 16])) * (float)doubled[code[k]];
    }
}

/* ---- MXFP8 ------------------------------------------------------------------------------------------- */

enum { MXFP8_BLOCK = 32 * IG_PANEL_ROWS + IG_PANEL_ROWS };
FMT_DECLARE(mxfp8);

static inline float mxfp8_at(const uint8_t *block, int lane, int k) {
    return e4m3(block[k * IG_PANEL_ROWS + lane]) * e8m0(block[32 * IG_PANEL_ROWS + lane], 127);
}
static void linear_mxfp8(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    for (int r = 0; r < m; r++)
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            const float *xr = x->f + (size_t)(row + r) * (size_t)x->n_cols;
            float acc = 0.0f;
            for (int k = 0; k < n_cols; k++)
                acc = __builtin_fmaf(mxfp8_at(panel + k / 32 * MXFP8_BLOCK, lane, k % 32), xr[k], acc);
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
}
static void unpack_mxfp8(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++) out[k] = mxfp8_at(panel + k / 32 * MXFP8_BLOCK, lane, k % 32);
}
static void dequant_mxfp8(float *out, const uint8_t *row, int n_cols) {
    for (int k = 0; k < n_cols; k++) out[k] = e4m3(row[k]) * e8m0(row[n_cols + k / 32], 127);
}

/* ---- what the formats are ---------------------------------------------------------------------------- */

#ifdef SIMD_REFERENCE
INLINE void pack_mlx(uint8_t *panel, const uint8_t *row, int lane, int n_cols, const enum kind kind) {
    const uint8_t *scales = row + n_cols / 2;
    for (int k0 = 0; k0 < n_cols; k0 += 32, panel += block_bytes(kind)) {
        uint8_t code[32];
        for (int k = 0; k < 32; k++) code[k] = (uint8_t)mlx_code(row, k0 + k);
        pack_nibbles(panel, code, lane);
        for (int run = 0; run < 32 / run_of(kind); run++, scales += scale_bytes(kind))
            __builtin_memcpy(panel + NIBBLES_BYTES + (run * IG_PANEL_ROWS + lane) * scale_bytes(kind), scales,
                             (size_t)scale_bytes(kind));
    }
}
static void pack_mxfp4_mlx(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    pack_mlx(panel, row, lane, n_cols, MXFP4);
}
static void pack_nvfp4_mlx(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    pack_mlx(panel, row, lane, n_cols, NVFP4);
}
static void pack_nvfp4_mlx_f32(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    pack_mlx(panel, row, lane, n_cols, NVFP4_F32);
}
static void pack_mxfp4(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k0 = 0; k0 < n_cols; k0 += 32, row += MXFP4_BYTES, panel += block_bytes(MXFP4)) {
        uint8_t code[32];
        codes_of_gguf(code, row + 1, 32);
        pack_nibbles(panel, code, lane);
        panel[NIBBLES_BYTES + lane] = row[0];
    }
}
static void pack_nvfp4(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k0 = 0; k0 < n_cols; k0 += 32, panel += block_bytes(NVFP4)) {
        const uint8_t *group = row + k0 / 64 * NVFP4_BYTES, *s = group + k0 % 64 / 16;
        uint8_t code[32];
        codes_of_gguf(code, group + 4 + k0 % 64 / 2, 16);
        pack_nibbles(panel, code, lane);
        panel[NIBBLES_BYTES + lane] = scale_of_gguf(s[0]);
        panel[NIBBLES_BYTES + IG_PANEL_ROWS + lane] = scale_of_gguf(s[1]);
    }
}
static void pack_mxfp8(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int k = 0; k < n_cols; k++)
        panel[k / 32 * MXFP8_BLOCK + k % 32 * IG_PANEL_ROWS + lane] = row[k];
    for (int b = 0; b < n_cols / 32; b++)
        panel[b * MXFP8_BLOCK + 32 * IG_PANEL_ROWS + lane] = row[n_cols + b];
}

const ig_fmt ig_fmt_mxfp4 = {.name = "mxfp4",
                             .gguf_type = 39,
                             .group = 32,
                             .group_bytes = MXFP4_BYTES,
                             .panel_group = 32,
                             .panel_bytes = NIBBLES_BYTES + 16,
                             .act = IG_ACT_Q8,
                             .pack = pack_mxfp4};
const ig_fmt ig_fmt_nvfp4 = {.name = "nvfp4",
                             .gguf_type = 40,
                             .group = 64,
                             .group_bytes = NVFP4_BYTES,
                             .panel_group = 32,
                             .panel_bytes = NIBBLES_BYTES + 32,
                             .act = IG_ACT_Q8,
                             .pack = pack_nvfp4};
#define OF_MLX(fmt, mode, bits_, run, act_, row_bytes, block_bytes, is_f32)                                  \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                               \
                                 .gguf_type = -1,                                                            \
                                 .group = 32,                                                                \
                                 .group_bytes = row_bytes,                                                   \
                                 .panel_group = 32,                                                          \
                                 .panel_bytes = block_bytes,                                                 \
                                 .act = act_,                                                                \
                                 .pack = pack_##fmt,                                                         \
                                 .mlx = mode,                                                                \
                                 .bits = bits_,                                                              \
                                 .mlx_group = run,                                                           \
                                 .f32_scales = is_f32}
OF_MLX(mxfp4_mlx, IG_MLX_MXFP4, 4, 32, IG_ACT_Q8, 17, NIBBLES_BYTES + 16, false);
OF_MLX(nvfp4_mlx, IG_MLX_NVFP4, 4, 16, IG_ACT_Q8, 18, NIBBLES_BYTES + 32, false);
OF_MLX(nvfp4_mlx_f32, IG_MLX_NVFP4, 4, 16, IG_ACT_Q8, 24, NIBBLES_BYTES + 128, true);
OF_MLX(mxfp8, IG_MLX_MXFP8, 8, 32, IG_ACT_F32, 33, MXFP8_BLOCK, false);
#endif

static const ig_kern kerns[] = {FMT_KERNS(mxfp4),     FMT_KERNS(nvfp4),         FMT_KERNS(mxfp4_mlx),
                                FMT_KERNS(nvfp4_mlx), FMT_KERNS(nvfp4_mlx_f32), FMT_KERNS(mxfp8)};
KERN_EXPORT(fmt_fp, kerns);
