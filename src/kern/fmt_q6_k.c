/* fmt_q6_k: Q6_K of GGUF. Superblocks of 256 inputs, in each 16 runs of 16 with a signed 8-bit scale.
 *     file:  {u8 low[128], u8 high[64], i8 sc[16], f16 d}   w = (d * sc) * (code - 32)
 *            128 inputs have 64 bytes of low and 32 of high. Byte l of high has two bits each for the inputs
 *            l, l + 32, l + 64, l + 96; bytes l and l + 32 of low: the first two, high nibbles the others
 *     panel: 8 times {nibbles, then a plane of the two top bits, as in fmt_common.h; sc i8[2 runs][16]}, then
 *            d[16]; the middle two of each four inputs change places
 * Activations are int16, as for Q8_0 and for its reason: files keep in Q6_K what they fear to round.
 * Sum, runs ascending, isum = exact sum of code * q16 over the run, ds = d * (float)sc, rounded:
 *     acc = fma(ds, a.scale16 * (float)(isum - 32 * a.qsum16), acc) */
#include "kern/fmt_common.h"

FMT_DECLARE(q6_k);

enum { GROUP = 256, FILE_BYTES = 210, HIGH_AT = 128, FILE_SC_AT = 192, FILE_D_AT = 208 }; /* in the file */
enum {
    TOP_AT = NIBBLES_BYTES, /* in a block of the panel */
    SC_AT = TOP_AT + PLANE2_BYTES,
    BLOCK_BYTES = SC_AT + 32,
    D_AT = 8 * BLOCK_BYTES, /* in a group of the panel */
    GROUP_BYTES = D_AT + 32
};

/* The block j of 32 inputs. */
static void codes_of_file(uint8_t code[32], const uint8_t *group, int j) {
    const uint8_t *low = group + j / 4 * 64 + (j & 1) * 32, *high = group + HIGH_AT + j / 4 * 32;
    const int low_shift = j & 2 ? 4 : 0, high_shift = (j & 3) * 2;
    for (int k = 0; k < 32; k++)
        code[k] = (uint8_t)((low[k] >> low_shift & 15) | (high[k] >> high_shift & 3) << 4);
}
static inline int code_at(const uint8_t *block, int lane, int input) {
    int k = middle_turned(input);
    return nibble_at(block, lane, k) | plane2_at(block + TOP_AT, lane, k) << 4;
}
static inline float signed_at(const uint8_t *p) {
    return (float)(int8_t)*p;
}

static void linear_q6_k(float *tile, const uint8_t *panel, const ig_act *x, int row, int m, int n_cols) {
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(row + r);
        for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {
            float acc = 0.0f;
            for (int run = 0; run < n_cols / 16; run++) {
                const uint8_t *group = panel + (size_t)(run / 16) * GROUP_BYTES;
                const uint8_t *w = group + run % 16 / 2 * BLOCK_BYTES;
                const int16_t *q = x->q16 + at * (size_t)x->n_cols + (size_t)run * 16;
                int32_t isum = -32 * x->qsum16[at * (size_t)(x->n_cols / 16) + (size_t)run];
                for (int k = 0; k < 16; k++) isum += code_at(w, lane, run % 2 * 16 + k) * q[k];
                float ds = half_at(group + D_AT + lane * 2) * signed_at(w + SC_AT + run % 2 * 16 + lane);
                float scale = x->scale16[at * (size_t)(x->n_cols / 32) + (size_t)run / 2];
                acc = __builtin_fmaf(ds, scale * (float)isum, acc);
            }
            tile[r * IG_PANEL_ROWS + lane] = acc;
        }
    }
}
static void dequant_q6_k(float *out, const uint8_t *row, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, row += FILE_BYTES)
        for (int j = 0; j < 8; j++, out += 32) {
            uint8_t code[32];
            codes_of_file(code, row, j);
            for (int k = 0; k < 32; k++) {
                float ds = half_at(row + FILE_D_AT) * signed_at(row + FILE_SC_AT + 2 * j + k / 16);
                out[k] = ds * (float)(code[k] - 32);
            }
        }
}
static void unpack_q6_k(float *out, const uint8_t *panel, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += GROUP_BYTES)
        for (int j = 0; j < 8; j++, out += 32) {
            const uint8_t *w = panel + j * BLOCK_BYTES;
            for (int k = 0; k < 32; k++) {
                float ds = half_at(panel + D_AT + lane * 2) * signed_at(w + SC_AT + k / 16 * 16 + lane);
                out[k] = ds * (float)(code_at(w, lane, k) - 32);
            }
        }
}

#ifdef SIMD_REFERENCE
static void pack_q6_k(uint8_t *panel, const uint8_t *row, int lane, int n_cols) {
    for (int g = 0; g < n_cols / GROUP; g++, panel += GROUP_BYTES, row += FILE_BYTES) {
        for (int j = 0; j < 8; j++) {
            uint8_t *w = panel + j * BLOCK_BYTES, code[32], turned[32];
            codes_of_file(code, row, j);
            for (int k = 0; k < 32; k++) turned[k] = code[middle_turned(k)]; /* its own inverse */
            pack_nibbles(w, turned, lane);
            pack_plane2(w + TOP_AT, turned, 4, lane);
            for (int run = 0; run < 2; run++) w[SC_AT + run * 16 + lane] = row[FILE_SC_AT + 2 * j + run];
        }
        __builtin_memcpy(panel + D_AT + lane * 2, row + FILE_D_AT, 2);
    }
}
const ig_fmt ig_fmt_q6_k = {.name = "q6_k",
                            .gguf_type = 14,
                            .group = GROUP,
                            .group_bytes = FILE_BYTES,
                            .panel_group = GROUP,
                            .panel_bytes = GROUP_BYTES,
                            .act = IG_ACT_Q16,
                            .pack = pack_q6_k};
#endif

static const ig_kern kerns[] = {FMT_KERNS(q6_k)};
KERN_EXPORT(fmt_q6_k, kerns);
