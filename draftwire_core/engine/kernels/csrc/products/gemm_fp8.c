/* The product of rows and a packed weight of 8-bit floats (e4m3), with a scale for each group of inputs, for
 * few rows.
 *
 * Weights are widened to float32 in registers. The products of a group are summed in the order of inputs, by fused
 * multiply-add, and an output adds the sums of its groups in order, each times its scale, by fused multiply-add as
 * well. A row's bits therefore depend neither on the other rows nor on the kind of vectors: all kinds, and plain C,
 * give the same.
 *
 * An element is read as 2^-8 of its value, since e4m3 with its exponent's bits moved is a float16 of this value,
 * subnormal or not; scales are stored times 2^8.
 *
 * A packed weight is divided into groups of 16 outputs: for each pair of inputs the two elements of each output, then
 * for each group of inputs the scales, float32.
 */
#include "products/gemm.h"
#include "thread_pool.h"

#include <math.h>
#include <string.h>

#define GROUP 16            /* outputs */
#define LEAST_BYTES 131072  /* of weight; with less, waking a thread costs more than it saves */
#define LEAST_WIDENED 32768 /* elements, likewise */
#define PREFETCH_AHEAD 4096 /* bytes */
#define AVX2_ROWS 5         /* see FP8_ROWS */
#define AVX512_ROWS 10

static inline int64_t groups_of_inputs(const Gemm *p) { return (p->inputs + p->group - 1) / p->group; }

static inline const uint8_t *codes_of(const Gemm *p, int64_t group) {
    return (const uint8_t *)p->weight + group * GROUP * (p->inputs + groups_of_inputs(p) * (int64_t)sizeof(float));
}

static inline const float *scales_of(const Gemm *p, int64_t group) {
    return (const float *)(codes_of(p, group) + GROUP * p->inputs);
}

/* Widens blocks `first` to `last` - 1 of rows, of at most `most` rows each, interleaved: [inputs, rows of the block]. */
static inline void widen_blocks(const Gemm *p, int64_t first, int64_t last, int64_t most) {
    const int64_t blocks = (p->row_count + most - 1) / most, inputs = p->inputs;
    for (int64_t block = first; block < last; block++) {
        const int64_t begin = p->row_count * block / blocks, count = p->row_count * (block + 1) / blocks - begin;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < inputs; k++)
                p->working[begin * inputs + k * count + r] = element_of_rows(p, (begin + r) * inputs + k);
    }
}

static void run(const Gemm *p, Task widen, Task multiply, int64_t most, int32_t threads) {
    const int64_t groups = (p->outputs + GROUP - 1) / GROUP, blocks = (p->row_count + most - 1) / most;
    const int64_t widened = most * p->inputs, work = GROUP * p->inputs * (blocks ? blocks : 1);
    draftwire_parallel_for(widen, p, blocks, (LEAST_WIDENED + widened - 1) / widened, threads);
    draftwire_parallel_for(multiply, p, groups, (LEAST_BYTES + work - 1) / work, threads);
}

/* Plain C, one row at a time, for processors without the vectors below. */

static void plain_widen_blocks(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    widen_blocks(call, first, last, 1);
}

/* Returns 2^-8 of the value of an e4m3 number that is not a NaN. */
static float value_of(uint8_t code) {
    const uint32_t magnitude = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    const float small = (float)magnitude * 0x1p-17f; /* whose exponent is 0 */
    uint32_t bits = (magnitude << 20) + (112u << 23);
    if (magnitude < 8) memcpy(&bits, &small, sizeof bits);
    bits |= sign;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

static void plain_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    float values[256];
    (void)thread_id;
    for (int code = 0; code < 256; code++) values[code] = value_of((uint8_t)code);
    for (int64_t group = first; group < last; group++)
        for (int64_t row = 0; row < p->row_count; row++) {
            const uint8_t *codes = codes_of(p, group);
            const float *scales = scales_of(p, group), *x = p->working + row * p->inputs;
            float totals[GROUP] = {0}, sums[GROUP] = {0};
            for (int64_t k = 0; k < p->inputs; k++) {
                for (int o = 0; o < GROUP; o++)
                    sums[o] = fmaf(values[codes[k / 2 * 2 * GROUP + 2 * o + k % 2]], x[k], sums[o]);
                if ((k + 1) % p->group && k + 1 < p->inputs) continue;
                for (int o = 0; o < GROUP; o++) totals[o] = fmaf(scales[k / p->group * GROUP + o], sums[o], totals[o]);
                memset(sums, 0, sizeof sums);
            }
            store_sums(p, row, group * GROUP, totals);
        }
}

#if defined(__x86_64__)

#include <immintrin.h>

#define FP8_NAME(NAME) avx2_##NAME
#define FP8_TARGET __attribute__((target("avx2,fma,f16c")))
#define FP8_LANES 8
#define FP8_ROWS AVX2_ROWS
#define FP8_WIDE_ROWS 2
#define FP8_VECTOR __m256
#define FP8_LOAD(FROM) _mm_loadu_si128((const __m128i *)(FROM))
#define FP8_HALVES(BITS) _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(BITS, 1), _mm_set1_epi16((short)0xbf80)))
#define FP8_EVEN(PAIRS) FP8_HALVES(_mm_slli_epi16(PAIRS, 8))
#define FP8_ODD FP8_HALVES
#define FP8_SET _mm256_set1_ps
#define FP8_ADD _mm256_fmadd_ps
#define FP8_LOAD_FLOATS _mm256_loadu_ps
#define FP8_STORE _mm256_storeu_ps
#include "products/gemm_fp8.h"
#undef FP8_HALVES

#define FP8_NAME(NAME) avx512_##NAME
#define FP8_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
#define FP8_LANES 16
#define FP8_ROWS AVX512_ROWS
#define FP8_WIDE_ROWS 5
#define FP8_VECTOR __m512
#define FP8_LOAD(FROM) _mm256_loadu_si256((const __m256i *)(FROM))
#define FP8_HALVES(BITS)                                                                                               \
    _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(BITS, 1), _mm256_set1_epi16((short)0xbf80)))
#define FP8_EVEN(PAIRS) FP8_HALVES(_mm256_slli_epi16(PAIRS, 8))
#define FP8_ODD FP8_HALVES
#define FP8_SET _mm512_set1_ps
#define FP8_ADD _mm512_fmadd_ps
#define FP8_LOAD_FLOATS _mm512_loadu_ps
#define FP8_STORE _mm512_storeu_ps
#include "products/gemm_fp8.h"
#undef FP8_HALVES

#endif

void multiply_fp8(const Gemm *p, int32_t kind, int32_t threads) {
#if defined(__x86_64__)
    if (kind >= AVX512VNNI_GEMM) return run(p, avx512_widen_blocks, avx512_groups, AVX512_ROWS, threads);
    if (kind >= AVX2_GEMM) return run(p, avx2_widen_blocks, avx2_groups, AVX2_ROWS, threads);
#endif
    (void)kind;
    run(p, plain_widen_blocks, plain_groups, 1, threads);
}

int64_t rows_of_fp8(int32_t kind) {
#if defined(__x86_64__)
    if (kind >= AVX2_GEMM) return kind >= AVX512VNNI_GEMM ? AVX512_ROWS : AVX2_ROWS;
#endif
    return (void)kind, 1;
}
