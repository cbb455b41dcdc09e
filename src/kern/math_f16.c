/* math_f16: half floats in integer arithmetic, so that a machine without the conversion instructions
 * gives the bits of one that has them: round to nearest even, NaN kept quiet, no flush of denormals. bf16 is the
 * upper half of an f32. */
#include "kern/kern.h"

#include <string.h>

uint16_t ig_f32_to_f16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x1ffu)); /* NaN */
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* from 65520 on: infinity */
    if (mag < 0x38800000u) {                                   /* below 2^-14: a denormal or zero */
        uint32_t shift = 126u - (mag >> 23);                   /* 14 for 2^-15's half, and so on */
        if (shift > 24u) return (uint16_t)sign;
        uint32_t m = (mag & 0x7fffffu) | 0x800000u;
        uint32_t half = m >> shift, rest = m & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
        if (rest > tie || (rest == tie && (half & 1u))) half++;
        return (uint16_t)(sign | half);
    }
    uint32_t r = mag - 0x38000000u; /* the exponent's bias from 127 to 15 */
    return (uint16_t)(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13));
}

float ig_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, m = h & 0x3ffu, u;
    if (exp == 31u) {
        u = sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u);
    } else if (exp != 0u) {
        u = sign | ((exp + 112u) << 23) | (m << 13);
    } else if (m == 0u) {
        u = sign;
    } else {
        uint32_t e = 113u;
        while (!(m & 0x400u)) {
            m <<= 1;
            e--;
        }
        u = sign | (e << 23) | ((m & 0x3ffu) << 13);
    }
    float x;
    memcpy(&x, &u, 4);
    return x;
}

uint16_t ig_f32_to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float ig_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

float ig_e4m3_to_f32(uint8_t v) {
    /* the bits of an f32 that is 2^-120 of it, denormals too */
    const uint32_t u = (uint32_t)(v & 128) << 24 | (uint32_t)(v & 127) << 20;
    float x;
    memcpy(&x, &u, 4);
    return x * 0x1p120f;
}
