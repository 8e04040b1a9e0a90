/* The product of bfloat16 rows and a packed int8 weight with a scale per output, for few rows. It reads half the bytes
 * of a bfloat16 weight, at memory bandwidth.
 *
 * bfloat16 represents int8 exactly. Weights are converted to bfloat16 just before they are multiplied, and the dot
 * products are those of gemm.c: each sum adds the products in the order of inputs, with the same instructions for any
 * number of rows.
 *
 * The weight is packed as in tiles.h. A pair holds the even inputs of 16 outputs, then the odd ones.
 */
#include "products/gemm.h"
#include "thread_pool.h"

#if defined(__x86_64__)

#include <stdlib.h>

#include "products/dot_products.h"

#define LEAD 4 /* blocks that are converted ahead: tiles cannot be loaded from stores still in flight */
#define RING 8 /* converted blocks that are kept if no later rows need them */

AVX_INLINE __m512i bf16_pair(const int8_t *pair) {
    __m512 even = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)pair)));
    __m512 odd = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(pair + TILE))));
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
}

AMX_INLINE void convert_block(const int8_t *block, uint16_t *converted) {
    for (int at = 0; at < 2 * TILE_ELEMENTS; at += 2 * PAIR) {
        /* T0 reads a sixth slower: fewer lines can be in flight. */
        _mm_prefetch((const char *)block + PREFETCH_BYTES + at, _MM_HINT_T1);
        _mm512_store_si512(converted + at, bf16_pair(block + at));
        _mm512_store_si512(converted + at + PAIR, bf16_pair(block + at + PAIR));
    }
}

/* Multiplies up to 32 rows by one group of outputs. `converted` has room for `kept` blocks; if that is the whole group,
 * only the first rows convert it. */
AMX static void amx_rows(const Gemm *p, int64_t group, int64_t row, int lower, uint16_t *converted, int64_t kept) {
    const int64_t inputs = p->inputs, blocks = inputs / INPUT_BLOCK;
    const int8_t *weight = (const int8_t *)p->weight + group * OUTPUT_GROUP * inputs;
    const uint16_t *rows = (const uint16_t *)p->rows + row * inputs;
    const int converts = row == 0 || kept < blocks;
    clear_sums(lower);
    for (int64_t block = 0; converts && block < LEAD && block < blocks; block++)
        convert_block(weight + block * 2 * TILE_ELEMENTS, converted + block % kept * 2 * TILE_ELEMENTS);
    for (int64_t block = 0, next = LEAD; block < blocks; block++, next++) {
        if (converts && next < blocks)
            convert_block(weight + next * 2 * TILE_ELEMENTS, converted + next % kept * 2 * TILE_ELEMENTS);
        add_block(rows + block * INPUT_BLOCK, inputs, converted + block % kept * 2 * TILE_ELEMENTS, lower);
    }
    store_group(p, row, group, lower);
}

AMX static void amx_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    uint16_t ring[RING * 2 * TILE_ELEMENTS] __attribute__((aligned(64)));
    const int64_t blocks = p->inputs / INPUT_BLOCK;
    /* Later rows reuse the whole converted group. If memory for it cannot be allocated, they convert it again. */
    uint16_t *all = p->row_count > ROW_BLOCK ? aligned_alloc(64, (size_t)blocks * 4 * TILE_ELEMENTS) : NULL;
    uint16_t *converted = all ? all : ring;
    const int64_t kept = all ? blocks : RING;
    (void)thread_id;
    AMX_ALL_GROUPS(p, first, last, converted, kept);
    free(all);
}

/* Multiplies `count` rows, a constant in each inlined copy, by one group of outputs. Prefetches as gemm.c does. */
AVX_INLINE void avx_rows(const Gemm *p, int64_t group, int64_t row, int count, int64_t block, int64_t blocks) {
    const int64_t inputs = p->inputs;
    const int8_t *weight = (const int8_t *)p->weight + group * OUTPUT_GROUP * inputs;
    const uint16_t *rows = (const uint16_t *)p->rows + row * inputs;
    const int64_t lines = (TILE + blocks - 1) / blocks; /* of the next group, per block of inputs */
    const char *next = (const char *)(weight + OUTPUT_GROUP * inputs) + block * (inputs / INPUT_BLOCK) * lines * 64;
    __m512 left[AVX_ROWS], right[AVX_ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK, weight += 2 * TILE_ELEMENTS) {
        for (int pair = 0; pair < TILE; pair++) {
            const int8_t *at = weight + pair * PAIR;
            if (blocks == 1) _mm_prefetch((const char *)weight + PREFETCH_BYTES + pair * 64, _MM_HINT_T1);
            else if (pair < lines) {
                _mm_prefetch(next, _MM_HINT_T1);
                next += 64;
            }
            add_pair(left, right, (__m512bh)bf16_pair(at), (__m512bh)bf16_pair(at + TILE_ELEMENTS), rows + k + 2 * pair,
                     inputs, count);
        }
    }
    for (int r = 0; r < count; r++) {
        store_vector(p, row + r, group * OUTPUT_GROUP, left[r]);
        store_vector(p, row + r, group * OUTPUT_GROUP + TILE, right[r]);
    }
}

AVX static void avx_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    (void)thread_id;
    for (int64_t group = first; group < last; group++) AVX_ALL_ROWS(p, group);
}

void multiply_int8(const Gemm *p, int32_t kind, int32_t threads) {
    for_all_groups(kind == AMX_GEMM ? amx_groups : avx_groups, p, 1, threads);
}

int64_t rows_of_int8(int32_t kind) { return kind == AMX_GEMM ? ROW_BLOCK : AVX_ROWS; }

#else

void multiply_int8(const Gemm *p, int32_t kind, int32_t threads) { (void)p, (void)kind, (void)threads; }

int64_t rows_of_int8(int32_t kind) { return (void)kind, 1; }

#endif
