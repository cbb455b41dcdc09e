// flags: -mavx2 -mfma -mf16c
#include <immintrin.h>

#define SIMD_NEEDS (IG_CPU_AVX2 | IG_CPU_FMA | IG_CPU_F16C)
#define SIMD_SPEED 20

typedef __m256 vf;
static inline vf vf_set(float a) { return _mm256_set1_ps(a); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
static inline vf vf_below(vf a, vf limit, vf b, vf otherwise) {
    return _mm256_blendv_ps(otherwise, b, _mm256_cmp_ps(a, limit, _CMP_LT_OQ));
}
static inline vf vf_keep_nan(vf x, vf a) {
    return _mm256_blendv_ps(a, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline vf vf_scale_exponent(vf a, vf b) {
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(b), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}
static inline float vf_sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float vf_max_of(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline vf vf_from_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vf vf_from_bf16(const uint16_t *p) {
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline void vf_to_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf vf_bf16_number(vf a) {
    const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000)));
}
static inline vf vf_bf16(vf a) { return vf_keep_nan(a, vf_bf16_number(a)); }
static inline vf vf_f16(vf a) { return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
static inline void vf_to_bf16(uint16_t *p, vf a) {
    const __m256i u = _mm256_srli_epi32(_mm256_castps_si256(vf_bf16(a)), 16);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}
static inline float block_amax(const float *x) {
    const __m256i *p = (const __m256i *)(const void *)x;
    const __m256i abs = _mm256_set1_epi32(0x7fffffff);
    __m256i a = _mm256_and_si256(_mm256_loadu_si256(p), abs), b = _mm256_and_si256(_mm256_loadu_si256(p + 1), abs);
    __m256i c = _mm256_and_si256(_mm256_loadu_si256(p + 2), abs), d = _mm256_and_si256(_mm256_loadu_si256(p + 3), abs);
    a = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}
static inline void block_quant(int8_t *q, int16_t sum[2], const float *x, float inv) {
    const __m256 iv = _mm256_set1_ps(inv);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), iv));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), iv));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), iv));
    __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), iv));
    __m256i s = _mm256_hadd_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)); /* pairs: 2 and 2, per half */
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    __m256i y = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    y = _mm256_permutevar8x32_epi32(y, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, y);
    sum[0] = (int16_t)_mm_cvtsi128_si32(h), sum[1] = (int16_t)_mm_extract_epi32(h, 2);
}
static inline void block_quant16(int16_t *q, int32_t sum[2], const float *x, float inv) {
    const __m256 iv = _mm256_set1_ps(inv);
    for (int i = 0; i < 32; i += 16) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), iv));
        __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), iv));
        __m256i y = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8), s = _mm256_add_epi32(a, b);
        __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
        _mm256_storeu_si256((__m256i *)(void *)(q + i), y);
        sum[i / 16] = _mm_cvtsi128_si32(h);
    }
}
