/* Rows times a packed weight of 8-bit integers with one scale for each output, for few rows in bfloat16: bf16 of the bytes
 * of a bfloat16 weight, read at the memory's speed.
 *
 * Integers of 8 bits are exact in bfloat16, so they are load_vec a few blocks ahead of the dot products, which are those of
 * gemm.c: each sum runs over the inputs in order, by the same instructions whatever the number of rows.
 *
 * The weight is packed as tiles.h says. A pair holds the even inputs of 16 outputs, then the odd ones.
 */
#include "ops.h"
#include "thread_pool.h"

#if defined(__x86_64__) && defined(__linux__)

#include <stdlib.h>
#include <string.h>

#include "tiles.h"

#define PAIR 32                  /* elements */
#define LEAD 4                   /* blocks that are load_vec ahead: tiles cannot be loaded from stores still under way */
#define RING 8                   /* blocks that are kept where no later rows need them */

AVX static inline __attribute__((always_inline)) __m512i widened_pair(const int8_t *pair) {
    __m512 even = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)pair)));
    __m512 odd = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(pair + TILE))));
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
}

AVX static void store_scaled(const GemmInt8 *p, int64_t row, int64_t output, __m512 sums) {
    int64_t left = p->outputs - output;
    if (left <= 0) return;
    __mmask16 which = left < TILE ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
    sums = _mm512_mul_ps(sums, _mm512_loadu_ps(p->scales + output));
    if (p->bias) {
        __m512i bias = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, p->bias + output));
        sums = _mm512_add_ps(sums, _mm512_castsi512_ps(_mm512_slli_epi32(bias, 16)));
    }
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums);
    _mm256_mask_storeu_epi16(p->out + row * p->outputs + output, which, rounded);
}

AMX static void store_tile(const GemmInt8 *p, int64_t row, int64_t output, const float *tile) {
    for (int64_t r = 0; r < TILE && row + r < p->row_count; r++)
        store_scaled(p, row + r, output, _mm512_loadu_ps(tile + r * TILE));
}

AMX static inline __attribute__((always_inline)) void widen(const int8_t *block, uint16_t *wide) {
    for (int at = 0; at < 2 * TILE_ELEMENTS; at += 2 * PAIR) {
        _mm_prefetch((const char *)block + AHEAD + at, _MM_HINT_T1); /* T0 reads a sixth slower: few lines can be under way */
        _mm512_store_si512(wide + at, widened_pair(block + at));
        _mm512_store_si512(wide + at + PAIR, widened_pair(block + at + PAIR));
    }
}

/* One group of outputs for up to 32 rows. `wide` holds `kept` blocks; the first rows widen them. */
AMX static void amx_rows(const GemmInt8 *p, int64_t group, int64_t row, int lower, uint16_t *wide, int64_t kept) {
    float sums[4][TILE * TILE] __attribute__((aligned(64)));
    const int64_t inputs = p->inputs, stride = 2 * inputs, blocks = inputs / BLOCK;
    const int8_t *weight = p->weight + group * BLOCK * inputs;
    const uint16_t *rows = p->rows + row * inputs;
    const int widens = row == 0 || kept < blocks;
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t block = 0; widens && block < LEAD && block < blocks; block++)
        widen(weight + block * 2 * TILE_ELEMENTS, wide + block % kept * 2 * TILE_ELEMENTS);
    for (int64_t block = 0, next = LEAD; block < blocks; block++, next++) {
        if (widens && next < blocks) widen(weight + next * 2 * TILE_ELEMENTS, wide + next % kept * 2 * TILE_ELEMENTS);
        const uint16_t *tiles = wide + block % kept * 2 * TILE_ELEMENTS;
        _tile_loadd(4, rows + block * BLOCK, stride);
        _tile_loadd(6, tiles, 64);
        _tile_loadd(7, tiles + TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (lower) {
            _tile_loadd(5, rows + TILE * inputs + block * BLOCK, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    store_tile(p, row, group * BLOCK, sums[0]);
    store_tile(p, row, group * BLOCK + TILE, sums[1]);
    if (lower) {
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        store_tile(p, row + TILE, group * BLOCK, sums[2]);
        store_tile(p, row + TILE, group * BLOCK + TILE, sums[3]);
    }
}

AMX static void amx_gemm(const GemmInt8 *p, int64_t first, int64_t last) {
    uint16_t ring[RING * 2 * TILE_ELEMENTS] __attribute__((aligned(64)));
    const int64_t whole = p->row_count / (2 * TILE) * (2 * TILE), blocks = p->inputs / BLOCK;
    const int left = (int)(p->row_count - whole), upper = left < TILE ? left : TILE, lower = left - upper;
    /* For later rows the whole group is kept; without the memory for it, it is load_vec for them again. */
    uint16_t *all = p->row_count > 2 * TILE ? aligned_alloc(64, (size_t)blocks * 4 * TILE_ELEMENTS) : NULL;
    uint16_t *wide = all ? all : ring;
    const int64_t kept = all ? blocks : RING;
    TileShapes before; /* others on this thread may rely on theirs */
    _tile_storeconfig(&before);
    if (!whole) shape_tiles(upper, lower);
    else if (!left) shape_tiles(TILE, TILE);
    for (int64_t group = first; group < last; group++) {
        if (whole && left) shape_tiles(TILE, TILE);
        for (int64_t row = 0; row < whole; row += 2 * TILE) amx_rows(p, group, row, TILE, wide, kept);
        if (whole && left) shape_tiles(upper, lower);
        if (left) amx_rows(p, group, whole, lower, wide, kept);
    }
    _tile_loadconfig(&before);
    free(all);
}

/* `count` is a constant where this is inlined; fetches as the product of bfloat16 weights does (gemm.c). */
AVX static inline __attribute__((always_inline)) void avx_rows(const GemmInt8 *p, int64_t group, int64_t row, int count,
                                                               int64_t block, int64_t blocks) {
    const int64_t inputs = p->inputs;
    const int8_t *weight = p->weight + group * BLOCK * inputs;
    const uint16_t *rows = p->rows + row * inputs;
    const int64_t lines = (TILE + blocks - 1) / blocks; /* of the next group, for each block of inputs */
    const char *next = (const char *)(weight + BLOCK * inputs) + block * (inputs / BLOCK) * lines * 64;
    __m512 left[AVX_ROWS], right[AVX_ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += BLOCK, weight += 2 * TILE_ELEMENTS) {
        for (int pair = 0; pair < TILE; pair++) {
            const int8_t *at = weight + pair * PAIR;
            if (blocks == 1) _mm_prefetch((const char *)weight + AHEAD + pair * 64, _MM_HINT_T1);
            else if (pair < lines) {
                _mm_prefetch(next, _MM_HINT_T1);
                next += 64;
            }
            __m512bh first = (__m512bh)widened_pair(at);
            __m512bh second = (__m512bh)widened_pair(at + TILE_ELEMENTS);
            for (int r = 0; r < count; r++) {
                int32_t both;
                memcpy(&both, rows + r * inputs + k + 2 * pair, sizeof both);
                __m512bh inputs_of_row = (__m512bh)_mm512_set1_epi32(both);
                left[r] = _mm512_dpbf16_ps(left[r], first, inputs_of_row);
                right[r] = _mm512_dpbf16_ps(right[r], second, inputs_of_row);
            }
        }
    }
    for (int r = 0; r < count; r++) {
        store_scaled(p, row + r, group * BLOCK, left[r]);
        store_scaled(p, row + r, group * BLOCK + TILE, right[r]);
    }
}

AVX static void avx_gemm(const GemmInt8 *p, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; group++) AVX_ALL_ROWS(p, group);
}

static void amx_groups(const void *p, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    amx_gemm(p, first, last);
}

static void avx_groups(const void *p, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    avx_gemm(p, first, last);
}

void draftwire_gemm_int8(const GemmInt8 *p, int32_t kind, int32_t threads) {
    const int64_t groups = (p->outputs + BLOCK - 1) / BLOCK, blocks = (p->row_count + BLOCK - 1) / BLOCK;
    const int64_t work = BLOCK * p->inputs * (blocks ? blocks : 1); /* of a group */
    draftwire_parallel_for(kind == 2 ? amx_groups : avx_groups, p, groups, (LEAST_BYTES + work - 1) / work, threads);
}

#else

void draftwire_gemm_int8(const GemmInt8 *p, int32_t kind, int32_t threads) { (void)p, (void)kind, (void)threads; }

#endif
