/* tile: what the AVX2 tiles of the linear layers share: loads, and a way to keep sums in registers. */
#ifndef IG_TILE_AVX2_H
#define IG_TILE_AVX2_H

#include "kern/simd.h"

#define INLINE static inline __attribute__((always_inline))
/* Pins two sums where they are: without it gcc 12 moves all the products up and spills them. */
#define PIN(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

enum { PREFETCH_BYTES = 1024 };
INLINE void ask_ahead(const uint8_t *w, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes + 63; i += 64)
        _mm_prefetch((const char *)w + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* 4 bytes, in every lane */
INLINE __m256i word_of(const void *p) {
    int v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
INLINE __m256i bytes32(const uint8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
INLINE __m128i bytes16(const uint8_t *p) { return _mm_load_si128((const __m128i *)(const void *)p); }
INLINE __m128i bytes8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
/* 8 numbers widened to f32 */
INLINE __m256 f32_of(const uint8_t *p) { return _mm256_load_ps((const float *)(const void *)p); }
INLINE __m256 f16_of(const uint8_t *p) { return _mm256_cvtph_ps(bytes16(p)); }
INLINE __m256 bf16_of(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes16(p)), 16));
}
INLINE __m256 u8_of(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes8(p))); }
INLINE __m256 i8_of(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes8(p))); }

#endif
