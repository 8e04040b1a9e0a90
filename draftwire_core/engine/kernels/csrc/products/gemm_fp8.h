/* The product of rows and a packed weight of 8-bit floats, for one kind of vectors. gemm_fp8.c includes this file once
 * per kind, with
 *
 *   FP8_NAME(NAME)        the name of a function for this kind
 *   FP8_TARGET            the instructions that it uses
 *   FP8_LANES             outputs per vector
 *   FP8_ROWS              rows whose sums of a group of outputs are held in registers at once
 *   FP8_WIDE_ROWS         rows whose sums of two groups are held in registers at once
 *   FP8_VECTOR, FP8_LOAD, FP8_EVEN, FP8_ODD, FP8_SET, FP8_ADD, FP8_LOAD_FLOATS, FP8_STORE
 */
#define FP8_INLINE FP8_TARGET static inline __attribute__((always_inline))
#define FP8_VECTORS (GROUP / FP8_LANES) /* per group of outputs */

FP8_TARGET static void FP8_NAME(widen_blocks)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    widen_blocks(call, first, last, FP8_ROWS);
}

/* Multiplies `count` rows by `groups` groups of outputs from `group` on; both are constants in each inlined copy. */
FP8_INLINE void FP8_NAME(multiply)(const Gemm *p, int64_t group, int groups, int64_t row, int count) {
    const int vectors = groups * FP8_VECTORS;
    const float *rows = p->working + row * p->inputs;
    const uint8_t *codes[2] = {codes_of(p, group), codes_of(p, group + groups - 1)};
    const float *scales[2] = {scales_of(p, group), scales_of(p, group + groups - 1)};
    FP8_VECTOR totals[FP8_ROWS * 2 * FP8_VECTORS];
    for (int i = 0; i < count * vectors; i++) totals[i] = FP8_SET(0);
    for (int64_t first = 0; first < p->inputs; first += p->group) {
        const int64_t last = first + p->group < p->inputs ? first + p->group : p->inputs;
        FP8_VECTOR sums[FP8_ROWS * 2 * FP8_VECTORS];
        for (int i = 0; i < count * vectors; i++) sums[i] = FP8_SET(0);
        for (int64_t k = first; k < last; k += 2, rows += 2 * count) {
            FP8_VECTOR even[2 * FP8_VECTORS], odd[2 * FP8_VECTORS];
            for (int g = 0; g < groups; g++) {
                const uint8_t *pair = codes[g] + k * GROUP;
                __builtin_prefetch(pair + PREFETCH_AHEAD, 0, 2);
                for (int v = 0; v < FP8_VECTORS; v++) {
                    even[g * FP8_VECTORS + v] = FP8_EVEN(FP8_LOAD(pair + 2 * v * FP8_LANES));
                    odd[g * FP8_VECTORS + v] = FP8_ODD(FP8_LOAD(pair + 2 * v * FP8_LANES));
                }
            }
            for (int r = 0; r < count; r++)
                for (int v = 0; v < vectors; v++)
                    sums[r * vectors + v] = FP8_ADD(even[v], FP8_SET(rows[r]), sums[r * vectors + v]);
            for (int r = 0; r < count; r++)
                for (int v = 0; v < vectors; v++)
                    sums[r * vectors + v] = FP8_ADD(odd[v], FP8_SET(rows[count + r]), sums[r * vectors + v]);
        }
        for (int v = 0; v < vectors; v++) {
            const FP8_VECTOR scale =
                FP8_LOAD_FLOATS(scales[v / FP8_VECTORS] + v % FP8_VECTORS * FP8_LANES + first / p->group * GROUP);
            for (int r = 0; r < count; r++)
                totals[r * vectors + v] = FP8_ADD(scale, sums[r * vectors + v], totals[r * vectors + v]);
        }
    }
    for (int r = 0; r < count; r++)
        for (int g = 0; g < groups; g++) {
            float found[GROUP];
            for (int v = 0; v < FP8_VECTORS; v++)
                FP8_STORE(found + v * FP8_LANES, totals[r * vectors + g * FP8_VECTORS + v]);
            store_sums(p, row + r, (group + g) * GROUP, found);
        }
}

#define FP8_CASE(COUNT)                                                                                                \
    case COUNT:                                                                                                        \
        if (COUNT <= FP8_WIDE_ROWS && wide) {                                                                          \
            FP8_NAME(multiply)(p, group, 2, row, COUNT);                                                               \
        } else {                                                                                                       \
            FP8_NAME(multiply)(p, group, 1, row, COUNT);                                                               \
            if (wide) FP8_NAME(multiply)(p, group + 1, 1, row, COUNT);                                                 \
        }                                                                                                              \
        break

FP8_TARGET static void FP8_NAME(groups)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int64_t blocks = (p->row_count + FP8_ROWS - 1) / FP8_ROWS;
    (void)thread_id;
    for (int64_t group = first; group < last; group += 2) {
        const int wide = group + 1 < last;
        for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
            end = p->row_count * (block + 1) / blocks;
            switch (end - row) {
                FP8_CASE(1);
                FP8_CASE(2);
                FP8_CASE(3);
                FP8_CASE(4);
                FP8_CASE(5);
#if FP8_ROWS > 5
                FP8_CASE(6);
                FP8_CASE(7);
                FP8_CASE(8);
                FP8_CASE(9);
                FP8_CASE(10);
#endif
            }
        }
    }
}

#undef FP8_ADD
#undef FP8_CASE
#undef FP8_EVEN
#undef FP8_INLINE
#undef FP8_LANES
#undef FP8_LOAD
#undef FP8_LOAD_FLOATS
#undef FP8_NAME
#undef FP8_ODD
#undef FP8_ROWS
#undef FP8_SET
#undef FP8_STORE
#undef FP8_TARGET
#undef FP8_VECTOR
#undef FP8_VECTORS
#undef FP8_WIDE_ROWS
