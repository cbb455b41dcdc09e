/* tile16: the 16 outputs of a panel in one vector, for the linear tiles beyond AVX2: a zmm, or two ymm where only the
 * VEX form of VNNI is there. Products are exact in int32, so any way to sum them gives the bits of AVX2; without VNNI
 * those of bytes wait in int16 (NARROW) as they do there. Where scales come from and the list of a file are
 * tile.avx2.h's. */
#ifndef IG_TILE16_H
#define IG_TILE16_H

#include "kern/tuned/tile.avx2.h"

/* 4 bytes of activations, for every output */
INLINE int word_at(const void *p) {
    int v;
    __builtin_memcpy(&v, p, 4);
    return v;
}

#ifdef SIMD_ZMM

enum { TOP_BYTES = 8, TOP_SHORTS = 8 }; /* rows at once: 32 registers hold their sums */
typedef __m512i ints;
typedef __m512 floats;

INLINE ints ints_all(int v) { return _mm512_set1_epi32(v); }
INLINE ints bytes_all(int v) { return _mm512_set1_epi8((char)v); }
INLINE ints bytes64(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE ints ints_add(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints ints_and(ints a, ints b) { return _mm512_and_si512(a, b); }
INLINE ints ints_or(ints a, ints b) { return _mm512_or_si512(a, b); }
/* of int16; n is a constant */
#define ints_left(a, n) _mm512_slli_epi16(a, n)
#define ints_right(a, n) _mm512_srli_epi16(a, n)
#define ints_right_signed(a, n) _mm512_srai_epi16(a, n)
/* Bytes 0..15 as places in a table of 16. */
INLINE ints bytes_of_table(__m128i table, ints at) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), at);
}

INLINE floats floats_all(float v) { return _mm512_set1_ps(v); }
INLINE floats floats_of(ints a) { return _mm512_cvtepi32_ps(a); }
INLINE floats floats_mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats floats_fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE floats floats_neg(floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
INLINE void floats_store(float *p, floats a) { _mm512_storeu_ps(p, a); }
/* 16 numbers, widened */
INLINE floats f32_16(const uint8_t *p) { return _mm512_loadu_ps((const float *)(const void *)p); }
INLINE floats f16_16(const uint8_t *p) { return _mm512_cvtph_ps(bytes32(p)); }
INLINE floats bf16_16(const uint8_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bytes32(p)), 16));
}
INLINE floats u8_16(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes16(p))); }
INLINE floats i8_16(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(p))); }

#ifdef SIMD_VNNI
enum { NARROW = 0 };
INLINE ints dot_bytes(ints sum, ints codes, int q) { return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(q)); }
INLINE ints dot_shorts(ints sum, ints codes, int q) { return _mm512_dpwssd_epi32(sum, codes, _mm512_set1_epi32(q)); }
INLINE ints widened(ints sum) { return sum; }
#else
enum { NARROW = 1 };
/* Pins a sum where it is, as PIN does: without it compilers move the products up and spill them. */
#ifndef PIN16
#define PIN16(a) __asm__ volatile("" : "+v"(a))
#endif
INLINE ints dot_bytes(ints sum, ints codes, int q) {
    sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, _mm512_set1_epi32(q)));
    PIN16(sum);
    return sum;
}
INLINE ints dot_shorts(ints sum, ints codes, int q) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(codes, _mm512_set1_epi32(q)));
    PIN16(sum);
    return sum;
}
INLINE ints widened(ints sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
#endif

#else

enum { TOP_BYTES = 6, TOP_SHORTS = 4 }; /* rows at once: 16 registers, two of them a row */
enum { NARROW = 0 };
typedef struct ints {
    __m256i lo, hi;
} ints;
typedef struct floats {
    __m256 lo, hi;
} floats;

INLINE ints ints_all(int v) { return (ints){_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
INLINE ints bytes_all(int v) { return (ints){_mm256_set1_epi8((char)v), _mm256_set1_epi8((char)v)}; }
INLINE ints bytes64(const uint8_t *p) { return (ints){bytes32(p), bytes32(p + 32)}; }
INLINE ints ints_add(ints a, ints b) { return (ints){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
INLINE ints ints_and(ints a, ints b) { return (ints){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
INLINE ints ints_or(ints a, ints b) { return (ints){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
INLINE ints ints_left(ints a, const int n) {
    return (ints){_mm256_slli_epi16(a.lo, n), _mm256_slli_epi16(a.hi, n)};
}
INLINE ints ints_right(ints a, const int n) {
    return (ints){_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)};
}
INLINE ints ints_right_signed(ints a, const int n) {
    return (ints){_mm256_srai_epi16(a.lo, n), _mm256_srai_epi16(a.hi, n)};
}
INLINE ints bytes_of_table(__m128i table, ints at) {
    const __m256i twice = _mm256_broadcastsi128_si256(table);
    return (ints){_mm256_shuffle_epi8(twice, at.lo), _mm256_shuffle_epi8(twice, at.hi)};
}

INLINE floats floats_all(float v) { return (floats){_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
INLINE floats floats_of(ints a) { return (floats){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
INLINE floats floats_mul(floats a, floats b) {
    return (floats){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
INLINE floats floats_fma(floats a, floats b, floats c) {
    return (floats){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE floats floats_neg(floats a) { return (floats){vf_neg(a.lo), vf_neg(a.hi)}; }
INLINE void floats_store(float *p, floats a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
INLINE floats f32_16(const uint8_t *p) { return (floats){f32_of(p), f32_of(p + 32)}; }
INLINE floats f16_16(const uint8_t *p) { return (floats){f16_of(p), f16_of(p + 16)}; }
INLINE floats bf16_16(const uint8_t *p) { return (floats){bf16_of(p), bf16_of(p + 16)}; }
INLINE floats u8_16(const uint8_t *p) { return (floats){u8_of(p), u8_of(p + 8)}; }
INLINE floats i8_16(const uint8_t *p) { return (floats){i8_of(p), i8_of(p + 8)}; }

INLINE ints dot_bytes(ints sum, ints codes, int q) {
    const __m256i a = _mm256_set1_epi32(q);
    return (ints){_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, a), _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, a)};
}
INLINE ints dot_shorts(ints sum, ints codes, int q) {
    const __m256i a = _mm256_set1_epi32(q);
    return (ints){_mm256_dpwssd_avx_epi32(sum.lo, codes.lo, a), _mm256_dpwssd_avx_epi32(sum.hi, codes.hi, a)};
}
INLINE ints widened(ints sum) { return sum; }

#endif

/* ---- scales ---------------------------------------------------------------------------------------------- */

/* gcc would make a function, and in it a loop, for each value of what is asked once a block: this is one, and a variable
 * that is hidden at the top of the loop leaves that one. */
#ifdef __clang__
#define ONE_BODY static __attribute__((noinline)) void
#else
#define ONE_BODY static __attribute__((noinline, noclone)) void
#endif
#define HIDE(x) __asm__("" : "+r"(x))

/* Scale and minimum of all outputs. Where they come from shows once a block: formats that differ in that alone share a
 * body, and the compiler has few to make. */
INLINE floats scale16_of(const uint8_t *own, const uint8_t *shared, enum scales from) {
    if (from == FLOAT) return f32_16(shared);
    if (from == BF16) return bf16_16(shared);
    if (from == D_SC) return floats_mul(f16_16(shared), i8_16(own));
    if (from == D_SC_MN) return floats_mul(f16_16(shared), u8_16(own));
    return f16_16(shared);
}
INLINE floats min16_of(const uint8_t *own, const uint8_t *shared, enum scales from) {
    if (from == FLOAT) return f32_16(shared + 64);
    if (from == BF16) return bf16_16(shared + 32);
    if (from == D_SC_MN) return floats_neg(floats_mul(f16_16(shared + 32), u8_16(own + 16)));
    return f16_16(shared + 32);
}

/* acc += d * (scale * isum), then min * sum when there is a minimum */
INLINE floats finish(floats acc, ints isum, floats d, floats min, float scale, const float *sum, const bool mins) {
    acc = floats_fma(d, floats_mul(floats_all(scale), floats_of(isum)), acc);
    return mins ? floats_fma(min, floats_all(*sum), acc) : acc;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* As in tile.avx2.h, with one sum f<r> a row. */
#define EIGHT_ROWS(X) SIX_ROWS(X) X(6) X(7)
#define START_ROW16(r) floats f##r = floats_all(0.0f);
#define STORE_ROW16(r) \
    if (n > r) floats_store(tile + r * 16, f##r);

/* Where row r of a tile is, from pointers to its rows 0 and 4 and the distances of one row, two and three: those reach
 * all eight from registers. gcc keeps many more distances unless two and three are hidden from it. */
#define OF_ROW(r, first, fifth, one, two, three) \
    (((r) < 4 ? first : fifth) + ((r) % 4 == 3 ? three : (r) % 4 == 2 ? two : (r) % 4 == 1 ? one : 0))

/* m rows as tiles of `top` (8, 6 or 4), then 4 and 1: TILE(from, n). The first pulls the panel in, from memory. */
#define IN_TILES16(m, top, TILE)                            \
    do {                                                    \
        int r = 0;                                          \
        for (; r + (top) <= (m); r += (top)) TILE(r, top);  \
        if ((top) > 4 && r + 4 <= (m)) TILE(r, 4), r += 4;  \
        for (; r < (m); r++) TILE(r, 1);                    \
    } while (0)

#endif
