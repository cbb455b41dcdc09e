/* fmt_common: what the weight formats share: numbers inside bytes, the codes of a panel, and the three functions of
 * a format made from two readers of its own.
 *
 * A format of blocks says how to read one block of 32 inputs of a row, from the file and from a panel
 *     of_file_<fmt>(&x, group, j)   of_panel_<fmt>(&x, group, lane, j)   block j of a group
 * and how a block joins a sum. FMT_ROWS makes dequant and unpack, FMT_LINEAR the linear. */
#ifndef IG_FMT_COMMON_H
#define IG_FMT_COMMON_H

#include "kern/simd.h"

#define INLINE static inline __attribute__((always_inline))

static inline float f32_at(const uint8_t *p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return x;
}
static inline float half_at(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return ig_f16_to_f32(h);
}
static inline float bf16_at(const uint8_t *p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return ig_bf16_to_f32(h);
}

/* ---- codes in a panel --------------------------------------------------------------------------------- */

/* 4-bit codes of 32 inputs and 16 lanes: [4 groups j][16 lanes][4 bytes], byte i of a lane holds input 4j + i
 * in the low nibble and 16 + 4j + i in the high one. */
enum { NIBBLES_BYTES = 256 };
static inline int nibble_at(const uint8_t *block, int lane, int k) {
    int b = block[((k & 15) / 4) * 64 + lane * 4 + (k & 3)];
    return k < 16 ? b & 15 : b >> 4;
}
static inline void pack_nibbles(uint8_t *block, const uint8_t code[32], int lane) {
    uint8_t b[16];
    for (int k = 0; k < 16; k++) b[k] = (uint8_t)((code[k] & 15) | code[k + 16] << 4);
    for (int j = 0; j < 4; j++) __builtin_memcpy(block + j * 64 + lane * 4, b + 4 * j, 4);
}
/* The codes of inputs 4j to 4j + 3, a byte each. */
static inline uint32_t codes_word(const uint8_t code[32], int j) {
    uint32_t w;
    __builtin_memcpy(&w, code + 4 * j, 4);
    return w;
}

/* Planes hold some bits of each code, those from bit `shift` on, where a code has another width than 4 or 8.
 * Two bits: [2 runs of 16 inputs][16 lanes][4 bytes], bits 2j and 2j + 1 of byte i: input 4j + i of the run. */
enum { PLANE2_BYTES = 128, PLANE1_BYTES = 64 };
static inline int plane2_at(const uint8_t *plane, int lane, int k) {
    return plane[k / 16 * 64 + lane * 4 + (k & 3)] >> (k & 15) / 4 * 2 & 3;
}
static inline void pack_plane2(uint8_t *plane, const uint8_t code[32], int shift, int lane) {
    for (int run = 0; run < 2; run++) {
        uint32_t w = 0;
        for (int j = 0; j < 4; j++) w |= (codes_word(code, 4 * run + j) >> shift & 0x03030303u) << 2 * j;
        __builtin_memcpy(plane + run * 64 + lane * 4, &w, 4);
    }
}
/* One bit: [16 lanes][4 bytes], bit j of byte i: input 4j + i. */
static inline int plane1_at(const uint8_t *plane, int lane, int k) {
    return plane[lane * 4 + (k & 3)] >> k / 4 & 1;
}
static inline void pack_plane1(uint8_t *plane, const uint8_t code[32], int shift, int lane) {
    uint32_t w = 0;
    for (int j = 0; j < 8; j++) w |= (codes_word(code, j) >> shift & 0x01010101u) << j;
    __builtin_memcpy(plane + lane * 4, &w, 4);
}

/* Bytes of the file as they are, 4 of a lane side by side: [n / 4][16 lanes][4 bytes]. */
static inline void pack_words(uint8_t *words, const uint8_t *bytes, int n, int lane) {
    for (int i = 0; i < n; i += 4) __builtin_memcpy(words + i * 16 + lane * 4, bytes + i, 4);
}

/* Where input k stands when the middle two of each four change places, so that the even and the odd bytes of
 * a vector are neighbouring inputs: what a kernel for int16 activations wants. Its own inverse. */
static inline int middle_turned(int k) {
    static const int place[4] = {0, 2, 1, 3};
    return (k & ~3) | place[k & 3];
}
static inline void turn_middle(uint8_t turned[32], const uint8_t code[32]) {
    for (int k = 0; k < 32; k++) turned[k] = code[middle_turned(k)];
}

/* 8-bit codes of 32 inputs and 16 lanes: [8 groups j][16 lanes][4 bytes], bytes 0, 2, 1, 3 of a lane hold
 * inputs 4j .. 4j + 3. */
enum { CODES8_BYTES = 512 };
static inline size_t code8_place(int lane, int k) {
    return (size_t)((k / 4) * 64 + lane * 4 + (middle_turned(k) & 3));
}
static inline void pack_codes8(uint8_t *block, const uint8_t code[32], int lane) {
    for (int j = 0; j < 8; j++) {
        const uint8_t *c = code + 4 * j, turned[4] = {c[0], c[2], c[1], c[3]};
        __builtin_memcpy(block + j * 64 + lane * 4, turned, 4);
    }
}

/* The codes of a lane all at once, four in a word: word j has inputs 4j to 4j + 3. This is what makes unpack fast. */
typedef struct fmt_words {
    uint32_t w[8];
} fmt_words;
INLINE uint32_t word_at(const uint8_t *words, int lane) {
    uint32_t w;
    __builtin_memcpy(&w, words + lane * 4, 4);
    return w;
}
INLINE fmt_words words_of_nibbles(const uint8_t *nibbles, int lane) {
    fmt_words x;
    for (int j = 0; j < 4; j++) {
        uint32_t w = word_at(nibbles + j * 64, lane);
        x.w[j] = w & 0x0f0f0f0fu, x.w[j + 4] = w >> 4 & 0x0f0f0f0fu;
    }
    return x;
}
INLINE fmt_words words_of_plane2(const uint8_t *plane, int lane) {
    fmt_words x;
    for (int j = 0; j < 8; j++) x.w[j] = word_at(plane + j / 4 * 64, lane) >> j % 4 * 2 & 0x03030303u;
    return x;
}
INLINE fmt_words words_of_plane1(const uint8_t *plane, int lane) {
    fmt_words x;
    for (int j = 0; j < 8; j++) x.w[j] = word_at(plane, lane) >> j & 0x01010101u;
    return x;
}
/* Bits of another plane above `shift`. */
INLINE void words_above(fmt_words *x, fmt_words high, int shift) {
    for (int j = 0; j < 8; j++) x->w[j] |= high.w[j] << shift;
}
INLINE void words_turn(fmt_words *x) {
    for (int j = 0; j < 8; j++) {
        uint32_t w = x->w[j];
        x->w[j] = (w & 0xff0000ffu) | (w >> 8 & 0xff00u) | (w << 8 & 0xff0000u);
    }
}

/* ---- a block as numbers -------------------------------------------------------------------------------- */

/* w[k] = (d * sc) * level[k] + m * mn, each operation rounded; the first 16 inputs have sc[0] and mn[0], the others
 * sc[1] and mn[1]. A format without a minimum has m = -0, whose sum changes nothing. */
typedef struct fmt_block {
    int8_t level[32];
    int sc[2], mn[2];
    float d, m;
} fmt_block;

INLINE void block_scales(fmt_block *x, float d, float m, int sc, int mn) {
    x->d = d, x->m = m, x->sc[0] = x->sc[1] = sc, x->mn[0] = x->mn[1] = mn;
}
INLINE void block_levels(fmt_block *x, fmt_words codes, const int offset) {
    uint8_t code[32];
    __builtin_memcpy(code, codes.w, 32);
    for (int k = 0; k < 32; k++) x->level[k] = (int8_t)(code[k] - offset);
}
INLINE void block_values(float out[32], const fmt_block *x) {
    for (int run = 0; run < 2; run++) {
        const float d = x->d * (float)x->sc[run], m = x->m * (float)x->mn[run];
        for (int k = 16 * run; k < 16 * run + 16; k++) out[k] = d * (float)x->level[k] + m;
    }
}

INLINE int32_t dot8(const int8_t *level, const int8_t *q, int n) {
    int32_t sum = 0;
    for (int k = 0; k < n; k++) sum += level[k] * q[k];
    return sum;
}
INLINE int32_t dot16(const int8_t *level, const int16_t *q, int n) {
    int32_t sum = 0;
    for (int k = 0; k < n; k++) sum += level[k] * q[k];
    return sum;
}

/* How a block joins a sum; `at` is the block of the activations. */
INLINE float add_q8(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    int32_t isum = dot8(w->level, x->q + 32 * at, 32);
    return __builtin_fmaf(w->d * (float)w->sc[0], x->scale[at] * (float)isum, acc);
}
INLINE float add_q8_min(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    return __builtin_fmaf(w->m * (float)w->mn[0], x->sum[at], add_q8(acc, w, x, at));
}
INLINE float add_q16(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    int32_t isum = dot16(w->level, x->q16 + 32 * at, 32);
    return __builtin_fmaf(w->d * (float)w->sc[0], x->scale16[at] * (float)isum, acc);
}
/* Runs of 16 with scales of their own, one after the other. */
INLINE float add_q16_runs(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    for (int run = 0; run < 2; run++) {
        int32_t isum = dot16(w->level + 16 * run, x->q16 + 32 * at + 16 * run, 16);
        acc = __builtin_fmaf(w->d * (float)w->sc[run], x->scale16[at] * (float)isum, acc);
    }
    return acc;
}
/* Runs of 16 with small integers as scales and minima: both runs in one exact sum. */
INLINE float add_q8_runs(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    const int8_t *q = x->q + 32 * at;
    int32_t isum = w->sc[0] * dot8(w->level, q, 16) + w->sc[1] * dot8(w->level + 16, q + 16, 16);
    return __builtin_fmaf(w->d, x->scale[at] * (float)isum, acc);
}
INLINE float add_q8_runs_min(float acc, const fmt_block *w, const ig_act *x, size_t at) {
    int32_t msum = w->mn[0] * x->qsum[2 * at] + w->mn[1] * x->qsum[2 * at + 1];
    return __builtin_fmaf(w->m, x->scale[at] * (float)msum, add_q8_runs(acc, w, x, at));
}

/* ---- a format's functions ------------------------------------------------------------------------------ */

/* Groups of `inputs` inputs, in file_bytes in the file and panel_bytes in a panel. */
#define FMT_ROWS(fmt, inputs, file_bytes, panel_bytes)                                              \
    static void dequant_##fmt(float *out, const uint8_t *row, int n_cols) {                         \
        for (int b = 0; b < n_cols / 32; b++, out += 32) {                                          \
            fmt_block x;                                                                                \
            of_file_##fmt(&x, row + (size_t)(b / (inputs / 32)) * file_bytes, b % (inputs / 32));   \
            block_values(out, &x);                                                                  \
        }                                                                                           \
    }                                                                                               \
    static void unpack_##fmt(float *out, const uint8_t *panel, int lane, int n_cols) {              \
        for (int b = 0; b < n_cols / 32; b++, out += 32) {                                          \
            const uint8_t *group = panel + (size_t)(b / (inputs / 32)) * panel_bytes;               \
            fmt_block x;                                                                                \
            of_panel_##fmt(&x, group, lane, b % (inputs / 32));                                     \
            block_values(out, &x);                                                                  \
        }                                                                                           \
    }

#define FMT_LINEAR(fmt, add, inputs, panel_bytes)                                                       \
    static void linear_##fmt(float *tile, const uint8_t *panel, const ig_act *x, int row, int m,        \
                             int n_cols) {                                                              \
        for (int i = 0; i < m * IG_PANEL_ROWS; i++) tile[i] = 0.0f;                                     \
        for (int b = 0; b < n_cols / 32; b++) {                                                         \
            const uint8_t *group = panel + (size_t)(b / (inputs / 32)) * panel_bytes;                   \
            for (int lane = 0; lane < IG_PANEL_ROWS; lane++) {                                          \
                fmt_block w;                                                                                \
                of_panel_##fmt(&w, group, lane, b % (inputs / 32));                                     \
                for (int r = 0; r < m; r++) {                                                           \
                    const size_t at = (size_t)(row + r) * (size_t)(x->n_cols / 32) + (size_t)b;         \
                    float *acc = tile + r * IG_PANEL_ROWS + lane;                                       \
                    *acc = add(*acc, &w, x, at);                                                        \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
    }

#define FMT_OBJECT(fmt, type, inputs, file_bytes_, panel_bytes_, act_)                                  \
    const ig_fmt ig_fmt_##fmt = {.name = #fmt,                                                          \
                                 .gguf_type = type,                                                     \
                                 .group = inputs,                                                       \
                                 .group_bytes = file_bytes_,                                            \
                                 .panel_group = inputs,                                                 \
                                 .panel_bytes = panel_bytes_,                                           \
                                 .act = act_,                                                           \
                                 .pack = pack_##fmt}

#define FMT_KERN_OF(tier_, op_, word, fmt_)                                                             \
    {.op = op_, .fmt = &ig_fmt_##fmt_, .tier = tier_, .cpu_needs = SIMD_NEEDS, .speed = SIMD_SPEED, \
     .name = KERN_NAME(#word "_" #fmt_), .proof = "equals scalar", .fn = {.word = word##_##fmt_}}
#define FMT_KERN(op_, word, fmt_) FMT_KERN_OF(IG_TIER_L3, op_, word, fmt_)
#define FMT_KERNS(fmt)                                                                     \
    FMT_KERN(IG_KERN_LINEAR, linear, fmt), FMT_KERN(IG_KERN_DEQUANT, dequant, fmt),        \
        FMT_KERN(IG_KERN_UNPACK, unpack, fmt)

#endif
