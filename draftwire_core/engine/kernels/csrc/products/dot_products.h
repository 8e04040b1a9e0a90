/* Code that the gemm kernels with bfloat16 products of AVX-512 and AMX share: the tile registers, the loops over rows,
 * and the storing of sums. */
#ifndef DRAFTWIRE_DOT_PRODUCTS_H
#define DRAFTWIRE_DOT_PRODUCTS_H

#include <immintrin.h>

#include "products/tile_registers.h"
#include "products/tiles.h"

#define AVX_ROWS 12 /* rows whose sums are held in registers at once */

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX_INLINE AVX static inline __attribute__((always_inline))
#define AMX_INLINE AMX static inline __attribute__((always_inline))

/* Stores the sums of 16 outputs of a row: scaled, with the bias added, rounded unless `wide`. Skips outputs beyond the last. */
AVX static inline void store_vector(const Gemm *p, int64_t row, int64_t output, __m512 sums) {
    const int64_t left = p->outputs - output;
    if (left <= 0) return;
    const __mmask16 which = left < TILE ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
    if (p->scales) sums = _mm512_mul_ps(sums, _mm512_loadu_ps(p->scales + output));
    if (p->bias) {
        __m512i bias = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, p->bias + output));
        sums = _mm512_add_ps(sums, _mm512_castsi512_ps(_mm512_slli_epi32(bias, 16)));
    }
    const int64_t at = row * p->stride + output;
    if (p->wide) _mm512_mask_storeu_ps((float *)p->out + at, which, sums);
    else _mm256_mask_storeu_epi16((uint16_t *)p->out + at, which, (__m256i)_mm512_cvtneps_pbh(sums));
}

AMX static inline void store_tile(const Gemm *p, int64_t row, int64_t output, const float *tile) {
    for (int64_t r = 0; r < TILE && row + r < p->row_count; r++)
        store_vector(p, row + r, output, _mm512_loadu_ps(tile + r * TILE));
}

/* Tile registers 0 to 3 hold the sums of a group of outputs for up to 32 rows: 0 and 1 those of the first 16 rows, 2
 * and 3 those of the `lower` rows. */
AMX_INLINE void clear_sums(int lower) {
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* Adds the products of a block of inputs to the sums. rows: [., inputs], from this block on; block: two tiles of the
 * weight */
AMX_INLINE void add_block(const uint16_t *rows, int64_t inputs, const uint16_t *block, int lower) {
    _tile_loadd(4, rows, 2 * inputs);
    _tile_loadd(6, block, 64);
    _tile_loadd(7, block + TILE_ELEMENTS, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_loadd(5, rows + TILE * inputs, 2 * inputs);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

AMX_INLINE void store_group(const Gemm *p, int64_t row, int64_t group, int lower) {
    float sums[4][TILE * TILE] __attribute__((aligned(64)));
    const int64_t output = group * OUTPUT_GROUP;
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    store_tile(p, row, output, sums[0]);
    store_tile(p, row, output + TILE, sums[1]);
    if (lower) {
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        store_tile(p, row + TILE, output, sums[2]);
        store_tile(p, row + TILE, output + TILE, sums[3]);
    }
}

/* Adds the products of a pair of inputs with 32 outputs to the sums of `count` rows, constant in each inlined copy. */
AVX_INLINE void add_pair(__m512 *left, __m512 *right, __m512bh first, __m512bh second, const uint16_t *inputs_of_pair,
                         int64_t inputs, int count) {
    for (int r = 0; r < count; r++) {
        int32_t both;
        __builtin_memcpy(&both, inputs_of_pair + r * inputs, sizeof both);
        __m512bh inputs_of_row = (__m512bh)_mm512_set1_epi32(both);
        left[r] = _mm512_dpbf16_ps(left[r], first, inputs_of_row);
        right[r] = _mm512_dpbf16_ps(right[r], second, inputs_of_row);
    }
}

/* Calls avx_rows for all rows of a group, in blocks of nearly equal numbers of rows. avx_rows is inlined once per
 * number of rows. Several blocks share the prefetching of the next group. */
#define AVX_ALL_ROWS(P, GROUP)                                                                                         \
    do {                                                                                                               \
        const int64_t rows_ = (P)->row_count, blocks_ = (rows_ + AVX_ROWS - 1) / AVX_ROWS;                             \
        for (int64_t block_ = 0, row_ = 0; block_ < blocks_; block_++) {                                               \
            const int64_t end_ = rows_ * (block_ + 1) / blocks_;                                                       \
            switch (end_ - row_) {                                                                                     \
                case 1: avx_rows(P, GROUP, row_, 1, block_, blocks_); break;                                           \
                case 2: avx_rows(P, GROUP, row_, 2, block_, blocks_); break;                                           \
                case 3: avx_rows(P, GROUP, row_, 3, block_, blocks_); break;                                           \
                case 4: avx_rows(P, GROUP, row_, 4, block_, blocks_); break;                                           \
                case 5: avx_rows(P, GROUP, row_, 5, block_, blocks_); break;                                           \
                case 6: avx_rows(P, GROUP, row_, 6, block_, blocks_); break;                                           \
                case 7: avx_rows(P, GROUP, row_, 7, block_, blocks_); break;                                           \
                case 8: avx_rows(P, GROUP, row_, 8, block_, blocks_); break;                                           \
                case 9: avx_rows(P, GROUP, row_, 9, block_, blocks_); break;                                           \
                case 10: avx_rows(P, GROUP, row_, 10, block_, blocks_); break;                                         \
                case 11: avx_rows(P, GROUP, row_, 11, block_, blocks_); break;                                         \
                case 12: avx_rows(P, GROUP, row_, 12, block_, blocks_); break;                                         \
            }                                                                                                          \
            row_ = end_;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Configures the tile registers for `upper` and `lower` rows: 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights. */
AMX static inline void shape_tiles(int upper, int lower) {
    TileShapes shapes = {.palette = 1};
    const int rows[8] = {upper, upper, lower, lower, upper, lower, TILE, TILE};
    for (int t = 0; t < 8; t++)
        if (rows[t]) shapes.columns[t] = 64, shapes.rows[t] = (uint8_t)rows[t];
    _tile_loadconfig(&shapes);
}

/* Calls amx_rows(P, group, first row, lower rows, ...) for all rows of groups FIRST to LAST - 1, 32 rows at a time, and
 * for the remaining rows. */
#define AMX_ALL_GROUPS(P, FIRST, LAST, ...)                                                                            \
    do {                                                                                                               \
        const int64_t whole_ = (P)->row_count / ROW_BLOCK * ROW_BLOCK;                                                 \
        const int left_ = (int)((P)->row_count - whole_);                                                              \
        const int upper_ = left_ < TILE ? left_ : TILE, lower_ = left_ - upper_;                                       \
        TileShapes before_; /* other code of this thread may rely on its own shapes */                                 \
        _tile_storeconfig(&before_);                                                                                   \
        if (!whole_) shape_tiles(upper_, lower_);                                                                      \
        else if (!left_) shape_tiles(TILE, TILE);                                                                      \
        for (int64_t group_ = (FIRST); group_ < (LAST); group_++) {                                                    \
            if (whole_ && left_) shape_tiles(TILE, TILE);                                                              \
            for (int64_t row_ = 0; row_ < whole_; row_ += ROW_BLOCK) amx_rows(P, group_, row_, TILE, __VA_ARGS__);     \
            if (whole_ && left_) shape_tiles(upper_, lower_);                                                          \
            if (left_) amx_rows(P, group_, whole_, lower_, __VA_ARGS__);                                               \
        }                                                                                                              \
        _tile_loadconfig(&before_);                                                                                    \
    } while (0)

#endif
