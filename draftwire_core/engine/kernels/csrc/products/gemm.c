/* The product of rows and a packed weight of bfloat16 or float16 numbers, for few rows. Reading the weight dominates the
 * time, so it is read once, at memory bandwidth.
 *
 * Each sum adds the products in the order of inputs, with the same instructions for any number of rows. A row's bits
 * therefore do not depend on the other rows. Float16 weights have the same bits on every processor.
 *
 * The weight is packed as in tiles.h. A pair holds two inputs for each of 16 outputs: side by side in bfloat16, so that
 * a shift or a mask widens them, and one input after the other in float16.
 */
#include "products/gemm.h"
#include "products/tiles.h"

#define LEAST_WIDENED 32768 /* elements; with fewer, waking a thread costs more than it saves */

#define FMA_NAME(NAME) plain_##NAME
#define FMA_TARGET
#define FMA_WIDTH 4
#define FMA_ROWS 5
#define FMA_WIDE_ROWS 2
#define FMA_FEW 2
#define FMA_VECTOR vec4
#define FMA_STEP 8
#define FMA_EVEN(AT) (vec4)(*(const uvec4 *)(AT) << 16)
#define FMA_ODD(AT) (vec4)(*(const uvec4 *)(AT) & 0xffff0000)
#define FMA_SET(X) ((float)(X) - (vec4){0})
#define FMA_ADD fma_vec4
#define FMA_STORE(TO, X) memcpy(TO, &(X), sizeof(vec4))
#include "products/gemm_fma.h"

#define FMA_NAME(NAME) plain_half_##NAME
#define FMA_TARGET
#define FMA_WIDTH 4
#define FMA_ROWS 5
#define FMA_WIDE_ROWS 2
#define FMA_FEW 2
#define FMA_VECTOR vec4
#define FMA_STEP 4
#define FMA_EVEN(AT) widen_half4(*(const half4 *)(AT))
#define FMA_ODD(AT) widen_half4(*(const half4 *)((AT) + TILE))
#define FMA_SET(X) ((float)(X) - (vec4){0})
#define FMA_ADD fma_vec4
#define FMA_STORE(TO, X) memcpy(TO, &(X), sizeof(vec4))
#include "products/gemm_fma.h"

#if defined(__x86_64__)

#include <cpuid.h>

#include "products/dot_products.h"

#if defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

static int may_use_tiles(void) {
    const long request_permission = 0x1023, tile_data = 18;
    return !syscall(SYS_arch_prctl, request_permission, tile_data);
}

#else

static int may_use_tiles(void) { return 0; }

#endif

#define SIDE_BY_SIDE 2 /* groups of outputs that are read side by side for few rows */
#define SIDE_ROWS 6    /* at most */

/* Kept, since hypervisors take long to answer cpuid. */
int draftwire_has_avx_vnni(void) {
    static _Atomic int found = -1;
    unsigned a, b, c, d;
    if (found < 0) found = __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
    return found;
}

int32_t draftwire_gemm_kinds(void) {
    const int32_t vectors = draftwire_vector_kind();
    int32_t kinds = 1 << PLAIN_GEMM;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (vectors == BASELINE_VECTORS) return kinds;
    kinds |= 1 << AVX2_GEMM;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    const int wide = vectors == AVX512_VECTORS;
    const int vnni = wide && b & bit_AVX512BW && b & bit_AVX512VL && c & bit_AVX512VNNI;
    const int amx = d >> 22 & d >> 24 & d >> 25 & 1; /* products of bfloat16, tiles, products of 8-bit integers */
    __get_cpuid_count(7, 1, &a, &b, &c, &d);
    if (vnni || draftwire_has_avx_vnni()) kinds |= 1 << AVXVNNI_GEMM;
    if (wide) kinds |= 1 << AVX512_GEMM;
    if (vnni) kinds |= 1 << AVX512VNNI_GEMM;
    if (vnni && a >> 5 & 1) kinds |= 1 << AVX512BF16_GEMM | (amx && may_use_tiles()) << AMX_GEMM;
    return kinds;
}

#define FMA_NAME(NAME) avx2_##NAME
#define FMA_TARGET __attribute__((target("avx2,fma")))
#define FMA_WIDTH 8
#define FMA_ROWS 5
#define FMA_WIDE_ROWS 3
#define FMA_FEW 3
#define FMA_STREAMS 4
#define FMA_VECTOR __m256
#define FMA_STEP 16
#define FMA_EVEN(AT) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(AT)), 16))
#define FMA_ODD(AT)                                                                                                    \
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(AT)), _mm256_set1_epi32(-65536)))
#define FMA_SET _mm256_set1_ps
#define FMA_ADD _mm256_fmadd_ps
#define FMA_STORE _mm256_storeu_ps
#include "products/gemm_fma.h"

#define FMA_NAME(NAME) avx2_half_##NAME
#define FMA_TARGET __attribute__((target("avx2,fma,f16c")))
#define FMA_WIDTH 8
#define FMA_ROWS 5
#define FMA_WIDE_ROWS 3
#define FMA_FEW 3
#define FMA_STREAMS 4
#define FMA_VECTOR __m256
#define FMA_STEP 8
#define FMA_EVEN(AT) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(AT)))
#define FMA_ODD(AT) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((AT) + TILE)))
#define FMA_SET _mm256_set1_ps
#define FMA_ADD _mm256_fmadd_ps
#define FMA_STORE _mm256_storeu_ps
#include "products/gemm_fma.h"

#define FMA_NAME(NAME) avx512_##NAME
#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_WIDTH 16
#define FMA_ROWS 12
#define FMA_WIDE_ROWS 12
#define FMA_FEW 3
#define FMA_STREAMS 1
#define FMA_VECTOR __m512
#define FMA_STEP 32
#define FMA_EVEN(AT) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(AT), 16))
#define FMA_ODD(AT) _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(AT), _mm512_set1_epi32(-65536)))
#define FMA_SET _mm512_set1_ps
#define FMA_ADD _mm512_fmadd_ps
#define FMA_STORE _mm512_storeu_ps
#include "products/gemm_fma.h"

#define FMA_NAME(NAME) avx512_half_##NAME
#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_WIDTH 16
#define FMA_ROWS 12
#define FMA_WIDE_ROWS 12
#define FMA_FEW 3
#define FMA_STREAMS 1
#define FMA_VECTOR __m512
#define FMA_STEP 16
#define FMA_EVEN(AT) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(AT)))
#define FMA_ODD(AT) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((AT) + TILE)))
#define FMA_SET _mm512_set1_ps
#define FMA_ADD _mm512_fmadd_ps
#define FMA_STORE _mm512_storeu_ps
#include "products/gemm_fma.h"

/* Multiplies up to 32 rows by one group of outputs. With several blocks of rows, each prefetches its share of the next
 * group, `lines` cache lines per block of inputs, so that memory stays busy. A single block prefetches within its own
 * group. */
AMX static void amx_rows(const Gemm *p, int64_t group, int64_t row, int lower, int lines) {
    const int64_t inputs = p->inputs;
    const uint16_t *weight = (const uint16_t *)p->weight + group * OUTPUT_GROUP * inputs;
    const uint16_t *rows = (const uint16_t *)p->rows + row * inputs;
    const char *next = (const char *)(weight + OUTPUT_GROUP * inputs);
    next += row / ROW_BLOCK * (inputs / INPUT_BLOCK) * lines * 64;
    clear_sums(lower);
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK, weight += 2 * TILE_ELEMENTS) {
        if (lines)
            for (int line = 0; line < lines; line++, next += 64) _mm_prefetch(next, _MM_HINT_T1);
        else
            for (int line = 0; line < 4 * TILE_ELEMENTS; line += 64)
                _mm_prefetch((const char *)weight + PREFETCH_BYTES + line, _MM_HINT_T0);
        add_block(rows + k, inputs, weight, lower);
    }
    store_group(p, row, group, lower);
}

AMX static void amx_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int blocks = (int)((p->row_count + ROW_BLOCK - 1) / ROW_BLOCK);
    const int lines = blocks > 1 ? (4 * TILE_ELEMENTS / 64 + blocks - 1) / blocks : 0;
    (void)thread_id;
    AMX_ALL_GROUPS(p, first, last, lines);
}

AVX_INLINE __m512bh load_bf16(const uint16_t *at) { return (__m512bh)_mm512_loadu_si512(at); }

/* Multiplies all rows, `count` of them, by SIDE_BY_SIDE groups of outputs, `apart` from each other. Few rows are
 * multiplied so fast that a core waits for memory, which it reads faster in several streams and without prefetches of
 * ours. */
AVX_INLINE void avx_rows_side_by_side(const Gemm *p, int64_t group, int64_t apart, int count) {
    const int64_t inputs = p->inputs, size = OUTPUT_GROUP * inputs;
    const uint16_t *weight = (const uint16_t *)p->weight + group * size, *rows = p->rows;
    __m512 sums[2][SIDE_BY_SIDE][SIDE_ROWS];
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < SIDE_BY_SIDE; s++)
            for (int r = 0; r < count; r++) sums[t][s][r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK)
        for (int t = 0; t < 2; t++, weight += TILE_ELEMENTS)
            for (int pair = 0; pair < TILE; pair++) {
                __m512bh given[SIDE_ROWS];
                for (int r = 0; r < count; r++) {
                    int32_t both;
                    memcpy(&both, rows + r * inputs + k + 2 * pair, sizeof both);
                    given[r] = (__m512bh)_mm512_set1_epi32(both);
                }
                for (int s = 0; s < SIDE_BY_SIDE; s++) {
                    const uint16_t *at = weight + s * apart * size + pair * PAIR;
                    for (int r = 0; r < count; r++)
                        sums[t][s][r] = _mm512_dpbf16_ps(sums[t][s][r], load_bf16(at), given[r]);
                }
            }
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < SIDE_BY_SIDE; s++)
            for (int r = 0; r < count; r++)
                store_vector(p, r, (group + s * apart) * OUTPUT_GROUP + t * TILE, sums[t][s][r]);
}

/* Multiplies `count` rows, a constant in each inlined copy, by one group of outputs. A single block of rows prefetches
 * within the group. With several blocks, each prefetches its share of the next group, since memory would be idle while
 * later blocks find this group in the cache. All prefetches are T1: with T0, fewer lines can be in flight. */
AVX_INLINE void avx_rows(const Gemm *p, int64_t group, int64_t row, int count, int64_t block, int64_t blocks) {
    const int64_t inputs = p->inputs;
    const uint16_t *weight = (const uint16_t *)p->weight + group * OUTPUT_GROUP * inputs;
    const uint16_t *rows = (const uint16_t *)p->rows + row * inputs;
    const int64_t lines = (2 * TILE + blocks - 1) / blocks; /* of the next group, per block of inputs */
    const char *next = (const char *)(weight + OUTPUT_GROUP * inputs) + block * (inputs / INPUT_BLOCK) * lines * 64;
    __m512 left[AVX_ROWS], right[AVX_ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK, weight += 2 * TILE_ELEMENTS)
        for (int pair = 0; pair < TILE; pair++) {
            const uint16_t *at = weight + pair * PAIR;
            if (blocks == 1) {
                _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
                _mm_prefetch((const char *)(at + TILE_ELEMENTS) + PREFETCH_BYTES, _MM_HINT_T1);
            } else if (pair < lines) {
                _mm_prefetch(next, _MM_HINT_T1);
                next += 64;
            }
            add_pair(left, right, load_bf16(at), load_bf16(at + TILE_ELEMENTS), rows + k + 2 * pair, inputs, count);
        }
    for (int r = 0; r < count; r++) {
        store_vector(p, row + r, group * OUTPUT_GROUP, left[r]);
        store_vector(p, row + r, group * OUTPUT_GROUP + TILE, right[r]);
    }
}

AVX static void avx_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    (void)thread_id;
    if (p->row_count <= SIDE_ROWS) {
        /* Each stream goes through its own share of the groups. */
        const int64_t apart = (last - first) / SIDE_BY_SIDE, end = first + apart;
        for (int64_t group = first; group < end; group++) {
            switch (p->row_count) {
                case 1: avx_rows_side_by_side(p, group, apart, 1); break;
                case 2: avx_rows_side_by_side(p, group, apart, 2); break;
                case 3: avx_rows_side_by_side(p, group, apart, 3); break;
                case 4: avx_rows_side_by_side(p, group, apart, 4); break;
                case 5: avx_rows_side_by_side(p, group, apart, 5); break;
                case 6: avx_rows_side_by_side(p, group, apart, 6); break;
            }
        }
        first += SIDE_BY_SIDE * apart;
    }
    for (int64_t group = first; group < last; group++) AVX_ALL_ROWS(p, group);
}

void multiply_bf16(const Gemm *p, int32_t kind, int32_t threads) {
    if (kind == AMX_GEMM) for_all_groups(amx_groups, p, 2, threads);
    else if (kind == AVX512BF16_GEMM) for_all_groups(avx_groups, p, 2, threads);
    else if (kind >= AVX512_GEMM) avx512_gemm(p, threads);
    else if (kind >= AVX2_GEMM) avx2_gemm(p, threads);
    else plain_gemm(p, threads);
}

void multiply_f16(const Gemm *p, int32_t kind, int32_t threads) {
    if (kind >= AVX512_GEMM) avx512_half_gemm(p, threads);
    else if (kind >= AVX2_GEMM) avx2_half_gemm(p, threads);
    else plain_half_gemm(p, threads);
}

int64_t rows_of_bf16(int32_t kind) {
    if (kind == AMX_GEMM) return ROW_BLOCK;
    if (kind == AVX512BF16_GEMM) return AVX_ROWS;
    return kind >= AVX512_GEMM ? avx512_rows : kind >= AVX2_GEMM ? avx2_rows : plain_rows;
}

int64_t rows_of_f16(int32_t kind) {
    return kind >= AVX512_GEMM ? avx512_half_rows : kind >= AVX2_GEMM ? avx2_half_rows : plain_half_rows;
}

#else

#if defined(__aarch64__) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

int32_t draftwire_gemm_kinds(void) {
    const int dot = !!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP), matrix = dot && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
    return 1 << PLAIN_GEMM | 1 << NEON_GEMM | dot << DOTPROD_GEMM | matrix << I8MM_GEMM;
}

#else

int32_t draftwire_gemm_kinds(void) { return 1 << PLAIN_GEMM; }

#endif

void multiply_bf16(const Gemm *p, int32_t kind, int32_t threads) {
    (void)kind;
    plain_gemm(p, threads);
}

void multiply_f16(const Gemm *p, int32_t kind, int32_t threads) {
    (void)kind;
    plain_half_gemm(p, threads);
}

int64_t rows_of_bf16(int32_t kind) { return (void)kind, plain_rows; }

int64_t rows_of_f16(int32_t kind) { return (void)kind, plain_half_rows; }

#endif

INLINE void round_elements_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    (void)thread_id;
    for (int64_t at = first * LANES; at < last * LANES; at += LANES) store_vec(p->working, at, load_vec(p->rows, at, 0), 1);
}

CLONED_TASK(round_elements)

/* Whether a product takes bfloat16 rows alone. All others may use the working memory for rows that they widen. */
static int takes_bf16(int32_t type, int32_t kind) {
    return type == INT8_WEIGHT || (type == BF16_WEIGHT && (kind == AVX512BF16_GEMM || kind == AMX_GEMM));
}

void draftwire_gemm(const Gemm *call, int32_t kind, int32_t threads) {
    Gemm narrow = *call;
    const Gemm *p = call;
    if (p->wide_rows && takes_bf16(p->type, kind)) {
        draftwire_parallel_for(round_elements, p, p->row_count * p->inputs / LANES, LEAST_WIDENED / LANES, threads);
        narrow.rows = p->working, narrow.wide_rows = 0, p = &narrow;
    }
    if (p->type == BF16_WEIGHT) multiply_bf16(p, kind, threads);
    else if (p->type == F16_WEIGHT) multiply_f16(p, kind, threads);
    else if (p->type == INT8_WEIGHT) multiply_int8(p, kind, threads);
    else if (p->type == FP8_WEIGHT) multiply_fp8(p, kind, threads);
    else multiply_blocks(p, kind, threads);
}

int64_t draftwire_rows_at_once(int32_t type, int32_t kind, int64_t rows) {
    if (type == BF16_WEIGHT) return rows_of_bf16(kind);
    if (type == F16_WEIGHT) return rows_of_f16(kind);
    if (type == INT8_WEIGHT) return rows_of_int8(kind);
    if (type == FP8_WEIGHT) return rows_of_fp8(kind);
    return rows_of_blocks(type, kind, rows);
}
