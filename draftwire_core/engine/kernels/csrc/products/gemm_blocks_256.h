/* Vectors of 256 bits and the operations on them, as gemm_blocks.h takes them. BLOCK_NAME and BLOCK_TARGET are defined
 * before. */
#define BLOCK_LANES 8
#define BLOCK_INT __m256i
#define BLOCK_FLOAT __m256
#define BLOCK_LOAD(FROM) _mm256_loadu_si256((const __m256i *)(FROM))
#define BLOCK_FOUR(FROM) _mm256_set1_epi32(*(const unaligned_int *)(FROM))
#define BLOCK_BYTES _mm256_set1_epi8
#define BLOCK_NONE _mm256_setzero_si256
#define BLOCK_FLOATS _mm256_set1_ps
#define BLOCK_LOAD_FLOATS(FROM) _mm256_loadu_ps((const float *)(FROM))
#define BLOCK_AND _mm256_and_si256
#define BLOCK_OR _mm256_or_si256
#define BLOCK_XOR _mm256_xor_si256
#define BLOCK_LEFT _mm256_slli_epi16
#define BLOCK_RIGHT _mm256_srli_epi16
#define BLOCK_ABS _mm256_abs_epi8
#define BLOCK_SIGN _mm256_sign_epi8
#define BLOCK_PAIRS _mm256_maddubs_epi16
#define BLOCK_ADD16 _mm256_add_epi16
#define BLOCK_ONES() _mm256_set1_epi16(1)
#define BLOCK_SCALE_PAIRS _mm256_madd_epi16
#define BLOCK_ADD _mm256_add_epi32
#define BLOCK_SUBTRACT32 _mm256_sub_epi32
#define BLOCK_MULTIPLY32 _mm256_mullo_epi32
#define BLOCK_LEFT32 _mm256_slli_epi32
#define BLOCK_SUBTRACT _mm256_sub_ps
#define BLOCK_TO_FLOAT _mm256_cvtepi32_ps
#define BLOCK_MULTIPLY _mm256_mul_ps
#define BLOCK_FMA _mm256_fmadd_ps
#define BLOCK_NEGATIVE_FMA _mm256_fnmadd_ps
#define BLOCK_STORE _mm256_storeu_ps
#define BLOCK_HALVES(FROM) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(FROM)))
#define BLOCK_SIGNED(FROM) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(FROM)))
#define BLOCK_UNSIGNED(FROM) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(FROM)))
#define BLOCK_LOOK_UP(BYTES) \
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_setr_epi8(MXFP4_VALUES)), BYTES)
#define BLOCK_BESIDE(LEFT, RIGHT) \
    _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(LEFT)), _mm_loadl_epi64((const __m128i *)(RIGHT))))
#define BLOCK_E8M0 BLOCK_NAME(half_of_power)

BLOCK_TARGET static inline __m256 BLOCK_NAME(half_of_power)(const uint8_t *exponents) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)exponents)), two = _mm256_set1_epi32(2);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(usual, small, _mm256_cmpgt_epi32(two, e)));
}
