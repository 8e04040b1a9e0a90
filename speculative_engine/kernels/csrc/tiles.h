/* What the products of few rows share: the shape of a packed weight, and the tile registers of AMX.
 *
 * A packed weight holds groups of 32 outputs; a group, blocks of 32 inputs; a block, two tiles of 16 outputs; a tile, 16
 * pairs of inputs. That is what the tile registers of AMX want, and the vectors of AVX-512's bfloat16 dot product.
 */
#ifndef DRAFTWIRE_TILES_H
#define DRAFTWIRE_TILES_H

#include <immintrin.h>
#include <stdint.h>

#define BLOCK 32                 /* inputs, and outputs of a group */
#define TILE 16                  /* rows, outputs and pairs of inputs of a tile */
#define TILE_ELEMENTS (TILE * 32)
#define AHEAD 8192               /* bytes */
#define AVX_ROWS 12              /* whose sums are held in registers at a time */
#define LEAST_BYTES 131072       /* of weight: in less, waking a thread takes longer than it saves */

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* All rows by avx_rows, in blocks as even as can be, which has a copy of its own for each number of rows that it takes at
 * a time. `blocks` of them fetch the next group between them. */
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

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];
    uint8_t rows[16];
} TileShapes;

/* Tiles 0 to 3 are sums, of the upper 16 rows and two times 16 outputs, then of the lower rows; 4 and 5 upper and lower
 * rows; 6 and 7 weights. */
AMX static inline void shape_tiles(int upper, int lower) {
    TileShapes shapes = {.palette = 1};
    const int rows[8] = {upper, upper, lower, lower, upper, lower, TILE, TILE};
    for (int t = 0; t < 8; t++)
        if (rows[t]) shapes.columns[t] = 64, shapes.rows[t] = (uint8_t)rows[t];
    _tile_loadconfig(&shapes);
}

#endif
