/* Attention over KV slots. Keys and values are read in place, once for up to 16 queries of a lane.
 *
 * A row's result is a function of the row and of the slots that it sees, to the bit. Each of its sums has a fixed
 * order, over the dimensions of a key or over the positions that the row sees, and is a chain of fused multiply-adds.
 * The same code computes it whatever rows are computed with it, and all kinds of vectors give the same bits.
 */
#include "ops.h"
#include "attention/kv_rows.h"
#include "vectors.h"
#include "thread_pool.h"

#include <math.h>

#define QUERIES 16 /* of one lane per tile, at most: keys are read once for all of them */
#define GROUP 4    /* heads whose sums are held in registers at once */
#define LEAST_PRODUCTS 262144 /* with fewer, waking a thread costs more than it saves */

/* One head of one query of a tile. */
typedef struct {
    const float *query;
    float *weights;     /* by position; the scores, until softmax replaces them */
    int64_t start, end; /* positions that it sees */
    float *out;
} Head;

/* Return the largest of LANES floats, and their sum. Clang refuses `vec` as an argument of code for AVX2. */
INLINE float largest_of_lanes(const void *lanes) { return largest_of_vec(load_vec(lanes, 0, 0)); }
INLINE float sum_of_lanes(const void *lanes) { return sum_vec(load_vec(lanes, 0, 0)); }

/* Applies a soft cap to scores, from `first` on in whole vectors. */
INLINE void cap_scores(float *scores, int64_t first, int64_t end, float softcap) {
    for (int64_t p = first; p < end; p += LANES)
        store_vec(scores, p, tanh_vec(load_vec(scores, p, 0) / softcap) * softcap, 0);
}

/* Returns the most queries of a tile: as many as a thread has room for the scores of. */
static int64_t queries_of(const Attention *a) {
    const int64_t room = a->scratch_size / (a->shared * a->longest);
    return room < QUERIES ? room : QUERIES;
}

/* Returns the number of tiles of a lane's queries per key-value head. */
static int64_t tiles_of(const Attention *a, int64_t lane) {
    const int64_t queries = queries_of(a);
    return (a->lanes[3 * lane + 2] - a->lanes[3 * lane + 1] + queries - 1) / queries;
}

/* Returns the first slot that a query at the end of `count` slots sees. */
static int64_t first_seen(const Attention *a, int64_t count) {
    int64_t first = a->window && count > a->window ? count - a->window : 0;
    if (a->chunk) {
        const int64_t begin = (count - 1) / a->chunk * a->chunk;
        if (begin > first) first = begin;
    }
    return first;
}

#if defined(__x86_64__)

#include <immintrin.h>

#define ATTEND_NAME(NAME) avx512_##NAME
#define ATTEND_TARGET __attribute__((target("avx512f")))
#define ATTEND_WIDTH 16
#define ATTEND_KEYS 2
#define ATTEND_CHUNKS 4
#define ATTEND_WIDEN(X) _mm512_cvtepu16_epi32((__m256i)(X))
#define ATTEND_SIGNED(FROM) (avx512_signed)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(FROM)))
#define ATTEND_HALF(X) (avx512_floats)_mm512_cvtph_ps((__m256i)(X))
#define ATTEND_FMA(A, B, C) (avx512_floats)_mm512_fmadd_ps((__m512)(A), (__m512)(B), (__m512)(C))
#include "attention/attention_tile.h"

#define ATTEND_NAME(NAME) avx2_##NAME
#define ATTEND_TARGET __attribute__((target("avx2,fma,f16c")))
#define ATTEND_WIDTH 8
#define ATTEND_KEYS 2
#define ATTEND_CHUNKS 2
#define ATTEND_WIDEN(X) _mm256_cvtepu16_epi32((__m128i)(X))
#define ATTEND_SIGNED(FROM) (avx2_signed)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(FROM)))
#define ATTEND_HALF(X) (avx2_floats)_mm256_cvtph_ps((__m128i)(X))
#define ATTEND_FMA(A, B, C) (avx2_floats)_mm256_fmadd_ps((__m256)(A), (__m256)(B), (__m256)(C))
#include "attention/attention_tile.h"

#endif

#define ATTEND_NAME(NAME) baseline_##NAME
#define ATTEND_TARGET
#define ATTEND_WIDTH 4
#define ATTEND_KEYS 4
#define ATTEND_CHUNKS 4
#define ATTEND_WIDEN(X) __builtin_convertvector(X, baseline_ints)
#define ATTEND_SIGNED signed_vec4
#define ATTEND_HALF widen_half4
#define ATTEND_FMA fma_vec4
#include "attention/attention_tile.h"

void draftwire_attention(const Attention *a, int32_t threads) {
    int64_t tiles = 0, scores = 0;
    for (int64_t l = 0; l < a->lane_count; l++) {
        tiles += tiles_of(a, l) * a->kv_heads;
        for (int64_t q = a->lanes[3 * l + 1]; q < a->lanes[3 * l + 2]; q++)
            scores += (a->counts[q] - first_seen(a, a->counts[q])) * a->kv_heads * a->shared;
    }
    const int64_t products = scores * (a->key_dim + a->value_dim) + 1;
    Task attend_tiles = baseline_attend_tiles;
#if defined(__x86_64__)
    if (draftwire_vectors == AVX512_VECTORS) attend_tiles = avx512_attend_tiles;
    else if (draftwire_vectors == AVX2_VECTORS) attend_tiles = avx2_attend_tiles;
#endif
    draftwire_parallel_for(attend_tiles, a, tiles, (tiles * LEAST_PRODUCTS + products - 1) / products, threads);
}
