/* halves: what `make check-wide` puts before every kernel for AVX-512, its VNNI and AVX-VNNI: the intrinsics those files
 * use, each as two AVX2 ones, and the CPU bits they need taken as given. So check_kern compares the same sources with the
 * scalar kernels, bit for bit, on a machine that has none of this. What it cannot show is what the compiler makes of the
 * real ones, and how fast that is. An intrinsic that is missing here does not compile. */
#ifndef IG_TEST_WIDE_HALVES_H
#define IG_TEST_WIDE_HALVES_H

#include "kern/kern.h"

#include <immintrin.h>

#define IG_CPU_AVX512 0
#define IG_CPU_AVX512_VNNI 0
#define IG_CPU_AVX_VNNI 0

typedef struct wide_i {
    __m256i lo, hi;
} wide_i;
typedef struct wide_f {
    __m256 lo, hi;
} wide_f;
#define __m512i wide_i
#define __m512 wide_f
#define PIN16(a) (void)(a) /* not a register here */

/* ---- bits, int16 and int32 ------------------------------------------------------------------------------------- */

/* s + the four products of u8 a and i8 b in each int32, exact: the even bytes, then the odd ones. */
static inline __m256i wide_half_dpbusd(__m256i s, __m256i a, __m256i b) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(_mm256_add_epi32(s, even), odd);
}
static inline __m256i wide_half_dpwssd(__m256i s, __m256i a, __m256i b) {
    return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
}
static inline wide_i wide_add_epi16(wide_i a, wide_i b) {
    return (wide_i){_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
static inline wide_i wide_add_epi32(wide_i a, wide_i b) {
    return (wide_i){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
static inline wide_i wide_madd_epi16(wide_i a, wide_i b) {
    return (wide_i){_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
}
static inline wide_i wide_maddubs_epi16(wide_i a, wide_i b) {
    return (wide_i){_mm256_maddubs_epi16(a.lo, b.lo), _mm256_maddubs_epi16(a.hi, b.hi)};
}
static inline wide_i wide_shuffle_epi8(wide_i a, wide_i b) {
    return (wide_i){_mm256_shuffle_epi8(a.lo, b.lo), _mm256_shuffle_epi8(a.hi, b.hi)};
}
static inline wide_i wide_and_si512(wide_i a, wide_i b) {
    return (wide_i){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
static inline wide_i wide_or_si512(wide_i a, wide_i b) {
    return (wide_i){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
static inline wide_i wide_slli_epi16(wide_i a, int n) {
    return (wide_i){_mm256_slli_epi16(a.lo, n), _mm256_slli_epi16(a.hi, n)};
}
static inline wide_i wide_srli_epi16(wide_i a, int n) {
    return (wide_i){_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)};
}
static inline wide_i wide_srai_epi16(wide_i a, int n) {
    return (wide_i){_mm256_srai_epi16(a.lo, n), _mm256_srai_epi16(a.hi, n)};
}
static inline wide_i wide_slli_epi32(wide_i a, int n) {
    return (wide_i){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
static inline wide_i wide_set1_epi8(char a) {
    return (wide_i){_mm256_set1_epi8(a), _mm256_set1_epi8(a)};
}
static inline wide_i wide_set1_epi16(short a) {
    return (wide_i){_mm256_set1_epi16(a), _mm256_set1_epi16(a)};
}
static inline wide_i wide_set1_epi32(int a) {
    return (wide_i){_mm256_set1_epi32(a), _mm256_set1_epi32(a)};
}
static inline wide_i wide_broadcast_i32x4(__m128i a) {
    return (wide_i){_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(a)};
}
static inline wide_i wide_dpbusd_epi32(wide_i s, wide_i a, wide_i b) {
    return (wide_i){wide_half_dpbusd(s.lo, a.lo, b.lo), wide_half_dpbusd(s.hi, a.hi, b.hi)};
}
static inline wide_i wide_dpwssd_epi32(wide_i s, wide_i a, wide_i b) {
    return (wide_i){wide_half_dpwssd(s.lo, a.lo, b.lo), wide_half_dpwssd(s.hi, a.hi, b.hi)};
}
static inline wide_i wide_loadu_si512(const void *p) {
    wide_i y;
    __builtin_memcpy(&y, p, 64);
    return y;
}
static inline wide_i wide_cvtepi8_epi32(__m128i a) {
    return (wide_i){_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))};
}
static inline wide_i wide_cvtepu8_epi32(__m128i a) {
    return (wide_i){_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))};
}
static inline wide_i wide_cvtepu16_epi32(__m256i a) {
    return (wide_i){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
}

/* ---- f32 -------------------------------------------------------------------------------------------------------- */

static inline wide_f wide_mul_ps(wide_f a, wide_f b) {
    return (wide_f){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline wide_f wide_xor_ps(wide_f a, wide_f b) {
    return (wide_f){_mm256_xor_ps(a.lo, b.lo), _mm256_xor_ps(a.hi, b.hi)};
}
static inline wide_f wide_fmadd_ps(wide_f a, wide_f b, wide_f c) {
    return (wide_f){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline wide_f wide_set1_ps(float a) {
    return (wide_f){_mm256_set1_ps(a), _mm256_set1_ps(a)};
}
static inline wide_f wide_castsi512_ps(wide_i a) {
    return (wide_f){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
static inline wide_f wide_cvtepi32_ps(wide_i a) {
    return (wide_f){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
static inline wide_f wide_setzero_ps(void) { return wide_set1_ps(0.0f); }
static inline wide_f wide_cvtph_ps(__m256i h) {
    return (wide_f){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
static inline wide_f wide_loadu_ps(const float *p) { return (wide_f){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void wide_storeu_ps(float *p, wide_f a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
/* A lane that the mask leaves out is not touched. */
static inline wide_f wide_maskz_loadu_ps(__mmask16 mask, const float *p) {
    float v[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) v[i] = p[i];
    return wide_loadu_ps(v);
}
static inline void wide_mask_storeu_ps(float *p, __mmask16 mask, wide_f a) {
    float v[16];
    wide_storeu_ps(v, a);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) p[i] = v[i];
}

/* ---- in the place of the real ones ------------------------------------------------------------------------------ */

#undef _mm512_add_epi16
#define _mm512_add_epi16 wide_add_epi16
#undef _mm512_add_epi32
#define _mm512_add_epi32 wide_add_epi32
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 wide_madd_epi16
#undef _mm512_maddubs_epi16
#define _mm512_maddubs_epi16 wide_maddubs_epi16
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 wide_shuffle_epi8
#undef _mm512_and_si512
#define _mm512_and_si512 wide_and_si512
#undef _mm512_or_si512
#define _mm512_or_si512 wide_or_si512
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 wide_slli_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 wide_srli_epi16
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 wide_srai_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 wide_slli_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 wide_set1_epi8
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 wide_set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 wide_set1_epi32
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 wide_broadcast_i32x4
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 wide_dpbusd_epi32
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32 wide_dpwssd_epi32
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 wide_loadu_si512
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 wide_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 wide_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 wide_cvtepu16_epi32
#undef _mm512_mul_ps
#define _mm512_mul_ps wide_mul_ps
#undef _mm512_xor_ps
#define _mm512_xor_ps wide_xor_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps wide_fmadd_ps
#undef _mm512_set1_ps
#define _mm512_set1_ps wide_set1_ps
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps wide_castsi512_ps
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps wide_cvtepi32_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps wide_setzero_ps
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps wide_cvtph_ps
#undef _mm512_loadu_ps
#define _mm512_loadu_ps wide_loadu_ps
#undef _mm512_storeu_ps
#define _mm512_storeu_ps wide_storeu_ps
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps wide_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps wide_mask_storeu_ps
#define _mm256_dpbusd_avx_epi32 wide_half_dpbusd
#define _mm256_dpwssd_avx_epi32 wide_half_dpwssd

#endif
