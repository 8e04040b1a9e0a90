/* The product of rows and a weight quantised in blocks by AMX's tile registers, for many rows. gemm_blocks.c includes
 * this file after its code for AVX-512 with VNNI, which computes everything but the sums of integers.
 *
 * A block's weights of 16 outputs are a tile of 8 lines, as they are packed. Together with up to 16 rows of the same 32
 * inputs, one instruction gives the block's sums of all of these. The tiles: 0 sums, 1 of Q6_K those of the second
 * half; 2 rows, 3 their second half; 4 weights, 5 those of the second half.
 */
#include "products/tile_registers.h"

#define AMX_TARGET __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512vnni")))
#define AMX_TILE_INLINE AMX_TARGET static inline __attribute__((always_inline))
#define AMX_ROWS 16
/* Rows from which tiles are faster than AVX-512's code, as measured: the sooner, the more that code unpacks and scales. */
#define AMX_LEAST_ROWS(TYPE) (WITH_LEAST(TYPE) ? 4 : (TYPE) == Q6_K_WEIGHT ? 6 : 9)
#define AMX_AHEAD 4096    /* bytes ahead of which weights are prefetched */
#define LEAD 4            /* blocks that are unpacked ahead: tiles cannot be loaded from stores still in flight */
#define RING 8            /* unpacked blocks that are kept */

AMX_TILE_INLINE void shape_block(int count) {
    TileShapes shapes = {.palette = 1};
    const uint16_t columns[] = {LINE, LINE, BLOCK, BLOCK / 2, LINE, LINE};
    const int lines[] = {count, count, count, count, STEPS, STEPS / 2};
    for (int tile = 0; tile < 6; tile++) shapes.columns[tile] = columns[tile], shapes.rows[tile] = (uint8_t)lines[tile];
    TILE_SHAPE(&shapes);
}

/* Unpacks a block of a group of outputs, and prefetches its share of a superblock ahead. */
AMX_TILE_INLINE void unpack_block(const Gemm *p, int64_t group, int64_t block, uint8_t *into, int type) {
    const int64_t at = block % SUPERBLOCK;
    const Packed w = packed_superblock(p, group, block - at, type);
    prefetch_share(&w, at, AMX_AHEAD, type);
    const uint8_t *quants = block_quants(&w, at, type);
    for (int step = 0; step < STEPS; step++)
        _mm512_store_si512(into + step * LINE, vnni_weights_of(quants, step, 0, type));
}

/* Adds a block's sums to those of a superblock, or to the totals, of `count` rows. block: within the superblock w. x: of
 * the first row; those of the next rows follow */
AMX_TILE_INLINE void add_tile(const Packed *w, __m512i *sums, __m512 *totals, Rounded x, int64_t block,
                              const int32_t *whole, const int32_t *right, int count, int type) {
    const vnni_Factors of = vnni_factors_of(w, block, 0, type);
    const __m512i more = _mm512_sub_epi32(of.right, of.left); /* that the second half's scale is */
    for (int r = 0; r < count; r++) {
        const __m512i sum = _mm512_load_si512(whole + r * GROUP);
        if (IN_SUPERS(type)) sums[r] = _mm512_add_epi32(sums[r], _mm512_mullo_epi32(sum, of.left));
        else vnni_add_sums(totals + r, _mm512_add_epi32(sum, vnni_start(x.starts + r, type)), rounded_from(x, r), of, type);
        if (type == Q6_K_WEIGHT)
            sums[r] = _mm512_add_epi32(sums[r], _mm512_mullo_epi32(_mm512_load_si512(right + r * GROUP), more));
    }
}

/* Multiplies `count` rows by a group of outputs. The sums of a block are added while the next block is multiplied. */
AMX_TILE_INLINE void amx_multiply(const Gemm *p, int64_t group, int64_t row, int count, int type) {
    const int64_t blocks = p->inputs / BLOCK;
    const Rounded rounded = rounded_rows(p);
    uint8_t unpacked[RING][STEPS * LINE] __attribute__((aligned(64)));
    int32_t whole[2][AMX_ROWS * GROUP] __attribute__((aligned(64)));
    int32_t right[2][AMX_ROWS * GROUP] __attribute__((aligned(64)));
    __m512 totals[AMX_ROWS];
    __m512i sums[AMX_ROWS]; /* of a superblock */
    for (int r = 0; r < count; r++) totals[r] = _mm512_setzero_ps(), sums[r] = _mm512_setzero_si512();
    for (int64_t block = 0; block < LEAD && block < blocks; block++) unpack_block(p, group, block, unpacked[block], type);
    for (int64_t block = 0; block <= blocks; block++) {
        if (block + LEAD < blocks) unpack_block(p, group, block + LEAD, unpacked[(block + LEAD) % RING], type);
        if (block < blocks) {
            const int8_t *quants = rounded.quants + (row * blocks + block * count) * BLOCK;
            const uint8_t *weights = unpacked[block % RING];
            TILE_ZERO(0);
            TILE_LOAD(2, quants, BLOCK);
            TILE_LOAD(4, weights, LINE);
            TILE_DOT(0, 2, 4);
            TILE_STORE(0, whole[block % 2], LINE);
            if (type == Q6_K_WEIGHT) {
                TILE_ZERO(1);
                TILE_LOAD(3, quants + BLOCK / 2, BLOCK);
                TILE_LOAD(5, weights + STEPS / 2 * LINE, LINE);
                TILE_DOT(1, 3, 5);
                TILE_STORE(1, right[block % 2], LINE);
            }
        }
        if (block) {
            const int64_t last = block - 1, at = last % SUPERBLOCK;
            const Packed w = packed_superblock(p, group, last - at, type);
            const Rounded x = rounded_from(rounded, row * blocks + last * count);
            add_tile(&w, sums, totals, x, at, whole[last % 2], right[last % 2], count, type);
            if (!IN_SUPERS(type) || at < SUPERBLOCK - 1) continue;
            vnni_add_super(&w, sums, totals, rounded_from(rounded, row * blocks + (last - at) * count), count, type);
            for (int r = 0; r < count; r++) sums[r] = _mm512_setzero_si512();
        }
    }
    for (int r = 0; r < count; r++) {
        float found[GROUP];
        _mm512_storeu_ps(found, totals[r]);
        store_sums(p, row + r, group * GROUP, found);
    }
}

AMX_TILE_INLINE void amx_groups(const Gemm *p, int64_t first, int64_t last, int type) {
    const int64_t blocks = (p->row_count + AMX_ROWS - 1) / AMX_ROWS;
    TileShapes before; /* other code of this thread may rely on its own shapes */
    TILE_KEEP_SHAPE(&before);
    int shaped = 0;
    for (int64_t group = first; group < last; group++)
        for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
            end = p->row_count * (block + 1) / blocks;
            if (shaped != end - row) shape_block(shaped = (int)(end - row));
            amx_multiply(p, group, row, shaped, type);
        }
    TILE_SHAPE(&before);
}

#define AMX_TASK(NAME, TYPE)                                                                                           \
    AMX_TARGET static void amx_##NAME(const void *call, int64_t first, int64_t last, int32_t thread_id) {              \
        (void)thread_id;                                                                                               \
        amx_groups(call, first, last, TYPE);                                                                           \
    }

#define AMX_ENTRY(NAME, TYPE) [TYPE - Q8_0_WEIGHT] = amx_##NAME,

EVERY_BLOCK_TYPE(AMX_TASK)

AMX_TARGET static void amx_round_rows(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    (void)thread_id;
    round_blocks(p, first, last, AMX_ROWS, vnni_zero_of(p->type));
}

static void amx_gemm(const Gemm *p, int32_t threads) {
    static const Task tasks[] = {EVERY_BLOCK_TYPE(AMX_ENTRY)};
    if (p->row_count < AMX_LEAST_ROWS(p->type)) return vnni_gemm(p, threads);
    run(p, amx_round_rows, tasks[p->type - Q8_0_WEIGHT], AMX_ROWS, 1, threads);
}
