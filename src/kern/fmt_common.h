/* fmt_common: what the weight formats share: numbers inside bytes, the 4-bit codes of a panel, and a format's
 * three rows in the list of kernels. */
#ifndef IG_FMT_COMMON_H
#define IG_FMT_COMMON_H

#include "kern/simd.h"

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
    uint32_t u = (uint32_t)h << 16;
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}

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

/* Where input k stands when the middle two of each four change places, so that the even and the odd bytes of
 * a vector are neighbouring inputs: what a kernel for int16 activations wants. */
static inline int middle_turned(int k) {
    static const int place[4] = {0, 2, 1, 3};
    return (k & ~3) | place[k & 3];
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

#define FMT_KERN(op_, word, fmt_)                                                                       \
    {.op = op_, .fmt = &ig_fmt_##fmt_, .tier = IG_TIER_L3, .cpu_needs = SIMD_NEEDS, .speed = SIMD_SPEED, \
     .name = KERN_NAME(#word "_" #fmt_), .proof = "equals scalar", .fn = {.word = word##_##fmt_}}
#define FMT_KERNS(fmt)                                                                     \
    FMT_KERN(IG_KERN_LINEAR, linear, fmt), FMT_KERN(IG_KERN_DEQUANT, dequant, fmt),        \
        FMT_KERN(IG_KERN_UNPACK, unpack, fmt)

#endif
