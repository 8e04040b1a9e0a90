/* Code that the gemm kernels share: the layout of a packed weight, the loop over groups of outputs, and the storing of
 * sums.
 *
 * A packed weight is divided into groups of 32 outputs, a group into blocks of 32 inputs, a block into two tiles of 16
 * outputs, and a tile into 16 pairs of inputs, each with the weights of 16 outputs. The tile registers of AMX require
 * this order, and the bfloat16 dot product of AVX-512 can use it.
 */
#ifndef DRAFTWIRE_TILES_H
#define DRAFTWIRE_TILES_H

#include <stdint.h>

#include "products/gemm.h"
#include "thread_pool.h"
#include "vectors.h"

#define TILE 16                   /* rows, outputs, and pairs of inputs per tile */
#define INPUT_BLOCK (2 * TILE)    /* inputs per block of two tiles */
#define OUTPUT_GROUP (2 * TILE)   /* outputs per block of two tiles */
#define ROW_BLOCK (2 * TILE)      /* rows that AMX multiplies at once */
#define PAIR (2 * TILE)           /* elements per pair of inputs: two per output of a tile */
#define TILE_ELEMENTS (TILE * PAIR)
#define PREFETCH_BYTES 8192       /* prefetch distance */
#define LEAST_BYTES 131072        /* of weight; with less, waking a thread costs more than it saves */

/* Runs a kernel on all groups of outputs. weight_bytes: bytes per element of the weight */
static inline void for_all_groups(Task kernel, const Gemm *p, int64_t weight_bytes, int32_t threads) {
    const int64_t groups = (p->outputs + OUTPUT_GROUP - 1) / OUTPUT_GROUP;
    const int64_t blocks = (p->row_count + ROW_BLOCK - 1) / ROW_BLOCK;
    const int64_t work = weight_bytes * OUTPUT_GROUP * p->inputs * (blocks ? blocks : 1); /* of a group */
    draftwire_parallel_for(kernel, p, groups, (LEAST_BYTES + work - 1) / work, threads);
}

#endif
