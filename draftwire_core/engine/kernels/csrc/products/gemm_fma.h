/* The product of rows and a packed weight of bfloat16 or float16 numbers without products of these types: weights are
 * widened to float32 in registers and multiplied by fused multiply-add. gemm.c includes this file once per type and kind
 * of vectors, with
 *
 *   FMA_NAME(NAME)        the name of a function for this kind
 *   FMA_TARGET            the instructions that it uses
 *   FMA_WIDTH             floats per vector
 *   FMA_ROWS              rows whose sums of one tile are held in registers at once
 *   FMA_WIDE_ROWS         rows whose sums of both tiles of a group are held in registers at once
 *   FMA_FEW               rows whose elements are held in registers besides
 *   FMA_STREAMS           groups of outputs that are read side by side for a single row, and half as many for up to
 *                         FMA_FEW rows, where the processor reads several streams faster than one; otherwise 1
 *   FMA_VECTOR, FMA_SET, FMA_ADD, FMA_STORE
 *   FMA_EVEN, FMA_ODD     widen the weights of the even and the odd input of a pair for FMA_WIDTH outputs, read at an
 *                         address
 *   FMA_STEP              elements from one such address to that of the next FMA_WIDTH outputs
 *
 * Each sum adds the products in the order of inputs and rounds once per product. A row's bits therefore depend neither
 * on the other rows nor on the kind of vectors.
 *
 * The rows of a block are widened once per call and interleaved: [inputs, rows of the block].
 */
#define FMA_INLINE FMA_TARGET static inline __attribute__((always_inline))
#define FMA_VECTORS (TILE / FMA_WIDTH) /* per tile */

FMA_TARGET static void FMA_NAME(widen_blocks)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int64_t blocks = (p->row_count + FMA_ROWS - 1) / FMA_ROWS, inputs = p->inputs;
    (void)thread_id;
    for (int64_t block = first; block < last; block++) {
        const int64_t begin = p->row_count * block / blocks, count = p->row_count * (block + 1) / blocks - begin;
        float *widened = p->working + begin * inputs;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < inputs; k++) widened[k * count + r] = element_of_rows(p, (begin + r) * inputs + k);
    }
}

/* Adds the products of a block of inputs. `count` and `tiles` are constants in each inlined copy. With few rows, their
 * elements stay in registers and weights are widened one vector at a time; with more, the reverse. weight: the block's
 * first tile; next: of the weight, to be prefetched, `lines` cache lines */
FMA_INLINE void FMA_NAME(add_block)(FMA_VECTOR *sums, const uint16_t *weight, const float *rows, int count, int tiles,
                                    const char *next, int64_t lines) {
    const int vectors = tiles * FMA_VECTORS;
    for (int pair = 0; pair < TILE; pair++, rows += 2 * count) {
        const uint16_t *at[2 * FMA_VECTORS];
        for (int v = 0; v < vectors; v++)
            at[v] = weight + v / FMA_VECTORS * TILE_ELEMENTS + pair * PAIR + v % FMA_VECTORS * FMA_STEP;
        for (int line = pair * tiles; line < (pair + 1) * tiles; line++)
            if (line < lines) __builtin_prefetch(next + line * 64, 0, 2);
        if (count <= FMA_FEW) {
            FMA_VECTOR even[FMA_FEW], odd[FMA_FEW];
            for (int r = 0; r < count; r++) even[r] = FMA_SET(rows[r]), odd[r] = FMA_SET(rows[count + r]);
            for (int v = 0; v < vectors; v++)
                for (int r = 0; r < count; r++) {
                    FMA_VECTOR *sum = sums + r * vectors + v;
                    *sum = FMA_ADD(FMA_EVEN(at[v]), even[r], *sum);
                    *sum = FMA_ADD(FMA_ODD(at[v]), odd[r], *sum);
                }
        } else {
            FMA_VECTOR part[2 * FMA_VECTORS];
            for (int v = 0; v < vectors; v++) part[v] = FMA_EVEN(at[v]);
            for (int r = 0; r < count; r++)
                for (int v = 0; v < vectors; v++)
                    sums[r * vectors + v] = FMA_ADD(part[v], FMA_SET(rows[r]), sums[r * vectors + v]);
            for (int v = 0; v < vectors; v++) part[v] = FMA_ODD(at[v]);
            for (int r = 0; r < count; r++)
                for (int v = 0; v < vectors; v++)
                    sums[r * vectors + v] = FMA_ADD(part[v], FMA_SET(rows[count + r]), sums[r * vectors + v]);
        }
    }
}

/* Multiplies `count` rows by `tiles` tiles of a group of outputs. With a single block of rows, memory is read ahead
 * within the group; with several, each block prefetches its share of the next group. */
FMA_INLINE void FMA_NAME(multiply)(const Gemm *p, int64_t group, int tile, int tiles, int64_t row, int count,
                                   int64_t block, int64_t blocks) {
    const int64_t inputs = p->inputs, all = 2 * TILE; /* cache lines of a block of inputs */
    const uint16_t *weight = (const uint16_t *)p->weight + group * OUTPUT_GROUP * inputs + tile * TILE_ELEMENTS;
    const float *rows = p->working + row * inputs;
    const int64_t parts = blocks * 2 / tiles, part = block * 2 / tiles + tile;
    const int64_t lines = blocks == 1 ? TILE * tiles : (all + parts - 1) / parts;
    const char *next = blocks == 1 ? (const char *)weight + PREFETCH_BYTES
                                   : (const char *)((const uint16_t *)p->weight + (group + 1) * OUTPUT_GROUP * inputs) +
                                         part * (inputs / INPUT_BLOCK) * lines * 64;
    FMA_VECTOR sums[FMA_ROWS * 2 * FMA_VECTORS];
    for (int i = 0; i < count * tiles * FMA_VECTORS; i++) sums[i] = FMA_SET(0);
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK) {
        FMA_NAME(add_block)(sums, weight, rows + k * count, count, tiles, next, lines);
        weight += 2 * TILE_ELEMENTS;
        next += blocks == 1 ? 4 * TILE_ELEMENTS : lines * 64;
    }
    for (int r = 0; r < count; r++)
        for (int t = 0; t < tiles; t++) {
            float parts_of_tile[TILE];
            for (int v = 0; v < FMA_VECTORS; v++)
                FMA_STORE(parts_of_tile + v * FMA_WIDTH, sums[(r * tiles + t) * FMA_VECTORS + v]);
            store_sums(p, row + r, group * OUTPUT_GROUP + (tile + t) * TILE, parts_of_tile);
        }
}

#if FMA_STREAMS > 1
/* Multiplies all rows, `count` of them, by `streams` groups of outputs, reading a cache line of each in turn. Nothing is
 * prefetched, which would make the processor's own prefetching slower. */
FMA_INLINE void FMA_NAME(multiply_side_by_side)(const Gemm *p, int64_t group, int streams, int count) {
    const int64_t inputs = p->inputs, apart = OUTPUT_GROUP * inputs;
    const uint16_t *weight = (const uint16_t *)p->weight + group * apart;
    const float *rows = p->working;
    const int size = streams * FMA_VECTORS * count; /* sums of a tile of each group */
    FMA_VECTOR sums[2][FMA_STREAMS / 2 * FMA_VECTORS * FMA_FEW];
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < size; i++) sums[t][i] = FMA_SET(0);
    for (int64_t k = 0; k < inputs; k += INPUT_BLOCK, rows += INPUT_BLOCK * count)
        for (int t = 0; t < 2; t++, weight += TILE_ELEMENTS) {
            FMA_VECTOR held[FMA_STREAMS / 2 * FMA_VECTORS * FMA_FEW];
            for (int i = 0; i < size; i++) held[i] = sums[t][i];
            for (int pair = 0; pair < TILE; pair++) {
                FMA_VECTOR even[FMA_FEW], odd[FMA_FEW];
                for (int r = 0; r < count; r++) {
                    even[r] = FMA_SET(rows[2 * pair * count + r]);
                    odd[r] = FMA_SET(rows[(2 * pair + 1) * count + r]);
                }
                for (int i = 0; i < streams * FMA_VECTORS; i++) {
                    const uint16_t *at = weight + i / FMA_VECTORS * apart + pair * PAIR + i % FMA_VECTORS * FMA_STEP;
                    for (int r = 0; r < count; r++) {
                        FMA_VECTOR *sum = held + i * count + r;
                        *sum = FMA_ADD(FMA_EVEN(at), even[r], *sum);
                        *sum = FMA_ADD(FMA_ODD(at), odd[r], *sum);
                    }
                }
            }
            for (int i = 0; i < size; i++) sums[t][i] = held[i];
        }
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < streams; s++)
            for (int r = 0; r < count; r++) {
                float of_tile[TILE];
                for (int v = 0; v < FMA_VECTORS; v++)
                    FMA_STORE(of_tile + v * FMA_WIDTH, sums[t][(s * FMA_VECTORS + v) * count + r]);
                store_sums(p, r, (group + s) * OUTPUT_GROUP + t * TILE, of_tile);
            }
}

/* Multiplies all rows by groups of outputs side by side, if there are few rows and enough groups from `group` to
 * `last` - 1. Returns the number of groups. */
FMA_INLINE int FMA_NAME(several_groups)(const Gemm *p, int64_t group, int64_t last) {
    const int streams = p->row_count == 1 ? FMA_STREAMS : FMA_STREAMS / 2;
    if (p->row_count > FMA_FEW || last - group < streams) return 0;
    switch (p->row_count) {
        case 1: FMA_NAME(multiply_side_by_side)(p, group, FMA_STREAMS, 1); break;
        case 2: FMA_NAME(multiply_side_by_side)(p, group, FMA_STREAMS / 2, 2); break;
        case 3: FMA_NAME(multiply_side_by_side)(p, group, FMA_STREAMS / 2, 3); break;
    }
    return streams;
}
#else
FMA_INLINE int FMA_NAME(several_groups)(const Gemm *p, int64_t group, int64_t last) {
    (void)p, (void)group, (void)last;
    return 0;
}
#endif

#define FMA_CASE(COUNT)                                                                                                \
    case COUNT:                                                                                                        \
        if (COUNT <= FMA_WIDE_ROWS) {                                                                                  \
            FMA_NAME(multiply)(p, group, 0, 2, row, COUNT, block, blocks);                                             \
        } else {                                                                                                       \
            FMA_NAME(multiply)(p, group, 0, 1, row, COUNT, block, blocks);                                             \
            FMA_NAME(multiply)(p, group, 1, 1, row, COUNT, block, blocks);                                             \
        }                                                                                                              \
        break

FMA_TARGET static void FMA_NAME(groups)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int64_t blocks = (p->row_count + FMA_ROWS - 1) / FMA_ROWS;
    (void)thread_id;
    for (int64_t group = first, done; group < last; group += done) {
        done = FMA_NAME(several_groups)(p, group, last);
        if (done) continue;
        done = 1;
        for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
            end = p->row_count * (block + 1) / blocks;
            switch (end - row) {
                FMA_CASE(1);
                FMA_CASE(2);
                FMA_CASE(3);
                FMA_CASE(4);
                FMA_CASE(5);
#if FMA_ROWS > 5
                FMA_CASE(6);
                FMA_CASE(7);
                FMA_CASE(8);
                FMA_CASE(9);
                FMA_CASE(10);
                FMA_CASE(11);
                FMA_CASE(12);
#endif
            }
        }
    }
}

enum { FMA_NAME(rows) = FMA_ROWS };

static void FMA_NAME(gemm)(const Gemm *p, int32_t threads) {
    const int64_t blocks = (p->row_count + FMA_ROWS - 1) / FMA_ROWS, elements = FMA_ROWS * p->inputs;
    draftwire_parallel_for(FMA_NAME(widen_blocks), p, blocks, (LEAST_WIDENED + elements - 1) / elements, threads);
    for_all_groups(FMA_NAME(groups), p, 2, threads);
}

#undef FMA_CASE
#undef FMA_FEW
#undef FMA_STREAMS
#undef FMA_INLINE
#undef FMA_VECTORS
#undef FMA_NAME
#undef FMA_TARGET
#undef FMA_WIDTH
#undef FMA_ROWS
#undef FMA_WIDE_ROWS
#undef FMA_VECTOR
#undef FMA_EVEN
#undef FMA_ODD
#undef FMA_SET
#undef FMA_ADD
#undef FMA_STORE
#undef FMA_STEP
