/* A row of the KV cache: the key or the value of one head of one token. It is float32, bfloat16, float16, or Q8_0_KV:
 * 8-bit integers, the quants, followed by a bfloat16 scale for each block of 32 of them.
 *
 * An element of Q8_0_KV is its quant times its scale. That is exact in float32, which holds the product of 7 and 8
 * bits. Elements that are rounded to float16 keep to its range.
 */
#ifndef DRAFTWIRE_KV_ROWS_H
#define DRAFTWIRE_KV_ROWS_H

#include "ops.h"
#include "vectors.h"

#include <float.h>
#include <math.h>

#define KV_BLOCK 32
#define KV_AHEAD 6144 /* bytes */

/* Returns the bytes of an element, without its scale. */
INLINE int64_t kv_element_size(int type) { return type == Q8_0_KV ? 1 : type == FLOAT32_KV ? 4 : 2; }

/* Returns the bytes of a row of `dim` elements. */
INLINE int64_t kv_row_bytes(int64_t dim, int type) {
    return dim * kv_element_size(type) + (type == Q8_0_KV ? dim / KV_BLOCK * 2 : 0);
}

/* Returns the start of row `row` of `dim` elements. */
INLINE uint8_t *kv_row(const void *rows, int64_t row, int64_t dim, int type) {
    return (uint8_t *)rows + row * kv_row_bytes(dim, type);
}

/* Returns how many rows are prefetched ahead. Between two layers' attention a step reads weights, so that no cache holds
 * the rows, and they are too short and too few for the processor's own prefetching. */
INLINE int64_t kv_rows_ahead(int64_t dim, int type) { return KV_AHEAD / kv_row_bytes(dim, type); }

/* Prefetches the rows of slots `first` to `last` - 1 of those that a lane sees. */
INLINE void prefetch_kv_rows(const void *rows, const int64_t *seen, int64_t base, int64_t first, int64_t last, int64_t dim,
                             int type) {
    for (int64_t p = first; p < last; p++) {
        const uint8_t *const row = kv_row(rows, base + seen[p], dim, type);
        for (int64_t line = 0; line < kv_row_bytes(dim, type); line += 64) __builtin_prefetch(row + line, 0, 3);
    }
}

/* Returns the scale of a block of a Q8_0_KV row. */
INLINE float kv_scale(const uint8_t *row, int64_t dim, int64_t block) {
    uint16_t bits;
    memcpy(&bits, row + dim + block * 2, sizeof bits);
    const uint32_t wide = (uint32_t)bits << 16;
    float scale;
    memcpy(&scale, &wide, sizeof scale);
    return scale;
}

/* Rounds a block, from element `at` on, of a Q8_0_KV row: scale = m / 127 for the block's largest magnitude m, rounded
 * to bfloat16, and quants = x * (1 / scale), rounded to the nearest integer, ties to even. A scale below the normal
 * floats is 0; that of a block with an infinite element or one that is not a number is NaN. */
INLINE void round_kv_block(const float *block, uint8_t *row, int64_t dim, int64_t at) {
    float most = 0, bad = 0;
    for (int i = 0; i < KV_BLOCK; i++) {
        const float size = block[i] < 0 ? -block[i] : block[i];
        most = size > most ? size : most;
        bad += block[i] * 0;
    }
    const vec rounded = round_vec((vec){0} + most / 127.0f, 1);
    const float scale = bad != 0 ? NAN : rounded[0] < FLT_MIN ? 0 : rounded[0], per_unit = scale > 0 ? 1.0f / scale : 0;
    int8_t quants[KV_BLOCK];
    for (int i = 0; i < KV_BLOCK; i++) {
        const float scaled = per_unit > 0 ? block[i] * per_unit : 0;
        /* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. */
        quants[i] = (int8_t)((scaled + 12582912.0f) - 12582912.0f);
    }
    const uint16_t bits = (uint16_t)bf16_bits((vec){0} + scale)[0];
    memcpy(row + at, quants, sizeof quants);
    memcpy(row + dim + at / KV_BLOCK * 2, &bits, sizeof bits);
}

#endif
