/* The product of rows and a weight quantised in blocks, for one kind of vectors. gemm_blocks.c includes this file once
 * per kind, with
 *
 *   BLOCK_NAME(NAME)      the name of a function for this kind
 *   BLOCK_TARGET          the instructions that it uses
 *   BLOCK_LANES           outputs per vector
 *   BLOCK_ROWS            rows that are multiplied while a block of weights is in registers
 *   BLOCK_STREAMS         groups of outputs that are read side by side, unless groups are read in order
 *   BLOCK_AHEAD           bytes ahead of which weights are prefetched for several rows, side by side; 0 where the
 *                         processor's own prefetching is faster
 *   BLOCK_AHEAD_OF_ONE    the same for one row
 *   BLOCK_WHOLE           1 where registers hold a whole block of weights beside the totals; 0 where they hold half of it
 *   BLOCK_MADDUBS         1 where pairs of products are summed in 16 bits, which must not saturate; 0 where four
 *                         products are added to a sum of 32 bits
 *   BLOCK_INT, BLOCK_FLOAT and the operations on them
 */
#define BLOCK_INLINE BLOCK_TARGET static inline __attribute__((always_inline))
#define BLOCK_VECTORS (GROUP / BLOCK_LANES)

/* Returns the unsigned weights of a step of a block: STEP inputs of each output of vector v. Weights of 8 bits are
 * signed where BLOCK_MADDUBS is set. of: the block's quants */
BLOCK_INLINE BLOCK_INT BLOCK_NAME(weights_of)(const uint8_t *of, int step, int v, int type) {
    const uint8_t *high = of + v * 4 * BLOCK_LANES, *quants = high + high_bytes(type);
    if (EIGHT_BITS(type)) {
        const BLOCK_INT bytes = BLOCK_LOAD(quants + step * LINE);
        return BLOCK_MADDUBS ? bytes : BLOCK_XOR(bytes, BLOCK_BYTES(-128));
    }
    const BLOCK_INT both = BLOCK_LOAD(quants + step % 4 * LINE);
    const BLOCK_INT low = BLOCK_AND(step < 4 ? both : BLOCK_RIGHT(both, 4), BLOCK_BYTES(15));
    if (type == MXFP4_WEIGHT) return BLOCK_LOOK_UP(low);
    if (FIVE_BITS(type)) {
        const BLOCK_INT bits = BLOCK_LOAD(high);
        const BLOCK_INT moved = step <= 4 ? BLOCK_LEFT(bits, 4 - step) : BLOCK_RIGHT(bits, step - 4);
        return BLOCK_OR(low, BLOCK_AND(moved, BLOCK_BYTES(16)));
    }
    if (type == Q6_K_WEIGHT) {
        const BLOCK_INT bits = BLOCK_LOAD(high + step / 4 * LINE);
        const int place = 4 - 2 * (step % 4);
        const BLOCK_INT moved = place >= 0 ? BLOCK_LEFT(bits, place) : BLOCK_RIGHT(bits, -place);
        return BLOCK_OR(low, BLOCK_AND(moved, BLOCK_BYTES(48)));
    }
    return low;
}

/* Whether the products of a whole block are summed in 16 bits, two sums per output, which they do not exceed. */
#define BLOCK_NARROW(TYPE)                                                                                             \
    (BLOCK_MADDUBS && ((TYPE) == Q4_0_WEIGHT || (TYPE) == Q4_1_WEIGHT || (TYPE) == Q4_K_WEIGHT || (TYPE) == GROUP4_WEIGHT))

/* Returns what stands for zero in the weights that weights_of returns. */
BLOCK_INLINE int BLOCK_NAME(zero_of)(int type) {
    return type == Q8_0_WEIGHT ? (BLOCK_MADDUBS ? 0 : 128) : ZERO_OF(type);
}

/* Returns what a block's sum begins with. */
BLOCK_INLINE BLOCK_INT BLOCK_NAME(start)(const int32_t *start, int type) {
    return BLOCK_MADDUBS || IN_SUPERS(type) || !BLOCK_NAME(zero_of)(type) ? BLOCK_NONE() : BLOCK_FOUR(start);
}

/* The factors of a block for one vector of outputs. */
typedef struct {
    BLOCK_FLOAT scale;     /* of the block, not in superblocks */
    BLOCK_FLOAT off;       /* less the zero point of a group; or the minimum of a block */
    BLOCK_INT left, right; /* of the halves of a block in a superblock; with BLOCK_MADDUBS, 1 of others. Each of these in
                            * 32 bits, or twice in 16 bits with BLOCK_MADDUBS */
} BLOCK_NAME(Factors);

BLOCK_INLINE BLOCK_NAME(Factors) BLOCK_NAME(factors_of)(const Packed *w, int64_t block, int v, int type) {
    const uint8_t *scales = block_scales(w, block, type);
    BLOCK_NAME(Factors) of;
    of.left = of.right = BLOCK_MADDUBS ? BLOCK_ONES() : BLOCK_NONE();
    if (IN_GROUPS(type)) {
        const int64_t at = (w->before + (uint32_t)block) / w->per_scale * GROUP + v * BLOCK_LANES;
        const int moved = type == GROUP8_WEIGHT && BLOCK_MADDUBS ? 128 : 0;
        of.scale = BLOCK_LOAD_FLOATS(w->scales + at * 4);
        of.off = BLOCK_SUBTRACT(BLOCK_FLOATS(moved), BLOCK_TO_FLOAT(BLOCK_UNSIGNED(w->zeros + at)));
    } else if (type == MXFP4_WEIGHT) {
        of.scale = BLOCK_E8M0(scales + v * BLOCK_LANES);
    } else if (IN_SUPERS(type)) {
        const uint8_t *left = scales + v * BLOCK_LANES, *right = left + (type == Q6_K_WEIGHT ? GROUP : 0);
        of.left = BLOCK_MADDUBS ? BLOCK_BESIDE(left, left) : BLOCK_SIGNED(left);
        of.right = BLOCK_MADDUBS ? BLOCK_BESIDE(right, right) : BLOCK_SIGNED(right);
    } else {
        of.scale = BLOCK_HALVES(scales + v * 2 * BLOCK_LANES);
        if (WITH_MINIMUM(type)) of.off = BLOCK_HALVES(scales + 2 * GROUP + v * 2 * BLOCK_LANES);
    }
    return of;
}

/* Returns the sums of the products of half a block: added to `sum`, or with BLOCK_MADDUBS by themselves, times `scales`.
 * These are in 16 bits and without scales where BLOCK_NARROW is set; of others, as many steps are summed in 16 bits as do
 * not exceed them. x: the row's quants of this half */
BLOCK_INLINE BLOCK_INT BLOCK_NAME(half_sums)(BLOCK_INT sum, const BLOCK_INT *weights, BLOCK_INT scales, const int8_t *x,
                                             int type) {
#if BLOCK_MADDUBS
    const int span = EIGHT_BITS(type) ? 1 : type == Q6_K_WEIGHT ? 2 : 4;
    BLOCK_INT pairs;
    for (int i = 0; i < STEPS / 2; i++) {
        const BLOCK_INT given = BLOCK_FOUR(x + STEP * i);
        const BLOCK_INT products = EIGHT_BITS(type)
                                       ? BLOCK_PAIRS(BLOCK_ABS(weights[i]), BLOCK_SIGN(given, weights[i]))
                                       : BLOCK_PAIRS(weights[i], given);
        pairs = i % span ? BLOCK_ADD16(pairs, products) : products;
        if (i % span != span - 1 || BLOCK_NARROW(type)) continue;
        sum = i < span ? BLOCK_SCALE_PAIRS(pairs, scales) : BLOCK_ADD(sum, BLOCK_SCALE_PAIRS(pairs, scales));
    }
    return BLOCK_NARROW(type) ? pairs : sum;
#else
    (void)scales, (void)type;
    for (int i = 0; i < STEPS / 2; i++) sum = BLOCK_DOT(sum, weights[i], BLOCK_FOUR(x + STEP * i));
    return sum;
#endif
}

/* Returns the sums of a block from what half_sums returns for its halves. */
BLOCK_INLINE BLOCK_INT BLOCK_NAME(block_sums)(BLOCK_INT first, BLOCK_INT second, BLOCK_NAME(Factors) of, int type) {
#if BLOCK_MADDUBS
    return BLOCK_NARROW(type) ? BLOCK_SCALE_PAIRS(BLOCK_ADD16(first, second), of.left) : BLOCK_ADD(first, second);
#else
    if (type == Q6_K_WEIGHT) return BLOCK_ADD(BLOCK_MULTIPLY32(first, of.left), BLOCK_MULTIPLY32(second, of.right));
    return IN_SUPERS(type) ? BLOCK_MULTIPLY32(second, of.left) : second; /* which continues the first one */
#endif
}

/* Adds a block's sums to the total of row x. */
BLOCK_INLINE void BLOCK_NAME(add_sums)(BLOCK_FLOAT *total, BLOCK_INT sums, Rounded x, BLOCK_NAME(Factors) of, int type) {
    const BLOCK_FLOAT of_all = BLOCK_FLOATS(*x.sums);
    /* These are whole numbers below 2^24, so that float32 is exact. */
    BLOCK_FLOAT sum = BLOCK_TO_FLOAT(sums);
    if (BLOCK_MADDUBS && BLOCK_NAME(zero_of)(type)) sum = BLOCK_FMA(BLOCK_FLOATS(-BLOCK_NAME(zero_of)(type)), of_all, sum);
    if (WITH_MINIMUM(type)) {
        *total = BLOCK_FMA(BLOCK_FLOATS(*x.units), BLOCK_FMA(of.off, of_all, BLOCK_MULTIPLY(of.scale, sum)), *total);
        return;
    }
    if (IN_GROUPS(type)) sum = BLOCK_FMA(of.off, of_all, sum);
    *total = BLOCK_FMA(BLOCK_MULTIPLY(of.scale, BLOCK_FLOATS(*x.units)), sum, *total);
}

/* Adds a superblock's sums, [rows, vectors], to the totals of `count` rows. With any weights these sums, and `off` times
 * the zero of weights, stay below 2^29. x: of the first row and block */
BLOCK_INLINE void BLOCK_NAME(add_super)(const Packed *w, const BLOCK_INT *sums, BLOCK_FLOAT *totals, Rounded x, int count,
                                        int type) {
    const int pairs = type == Q6_K_WEIGHT ? SUPERBLOCK : SUPERBLOCK / 2;
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const uint8_t *supers = w->supers + v * 2 * BLOCK_LANES;
        BLOCK_INT factors[SUPERBLOCK]; /* of the sums of quants, two in a pair: scales (Q6_K), or least values */
        for (int i = 0; i < pairs; i++) {
            const int whole = type == Q6_K_WEIGHT; /* both of a pair are of one block */
            const uint8_t *left = block_scales(w, whole ? i : 2 * i, type) + v * BLOCK_LANES;
            const uint8_t *right = block_scales(w, whole ? i : 2 * i + 1, type) + v * BLOCK_LANES;
            factors[i] = BLOCK_BESIDE(whole ? left : left + GROUP, right + GROUP);
        }
        for (int r = 0; r < count; r++) {
            const int16_t *parts = parts_of(x, r);
            BLOCK_INT off = BLOCK_SCALE_PAIRS(factors[0], BLOCK_FOUR(parts)), sum = sums[r * BLOCK_VECTORS + v];
            for (int i = 1; i < pairs; i++) off = BLOCK_ADD(off, BLOCK_SCALE_PAIRS(factors[i], BLOCK_FOUR(parts + 2 * i)));
            if (type == Q6_K_WEIGHT) sum = BLOCK_SUBTRACT32(sum, BLOCK_LEFT32(off, 5)); /* its weights' zero is 32 */
            BLOCK_FLOAT found = BLOCK_MULTIPLY(BLOCK_HALVES(supers), BLOCK_TO_FLOAT(sum));
            if (WITH_LEAST(type)) found = BLOCK_NEGATIVE_FMA(BLOCK_HALVES(supers + 32), BLOCK_TO_FLOAT(off), found);
            BLOCK_FLOAT *total = totals + r * BLOCK_VECTORS + v;
            *total = BLOCK_FMA(BLOCK_FLOATS(x.units[r]), found, *total);
        }
    }
}

/* Adds what half_sums returns for the halves of a block to a superblock's sum or to the total, of row x. */
BLOCK_INLINE void BLOCK_NAME(add_halves)(BLOCK_INT *sum, BLOCK_FLOAT *total, BLOCK_INT first, BLOCK_INT second, Rounded x,
                                         BLOCK_NAME(Factors) of, int type) {
    const BLOCK_INT sums = BLOCK_NAME(block_sums)(first, second, of, type);
    if (IN_SUPERS(type)) *sum = BLOCK_ADD(*sum, sums);
    else BLOCK_NAME(add_sums)(total, sums, x, of, type);
}

#if BLOCK_WHOLE
/* Adds a block's products to the sums of a superblock, or to the totals, of `count` rows. x: of the first row; the next
 * row's entries follow */
BLOCK_INLINE void BLOCK_NAME(add_block)(const Packed *w, BLOCK_INT *sums, BLOCK_FLOAT *totals, Rounded x, int64_t block,
                                        int count, int type) {
    const uint8_t *quants = block_quants(w, block, type);
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        BLOCK_INT weights[STEPS];
        for (int i = 0; i < STEPS; i++) weights[i] = BLOCK_NAME(weights_of)(quants, i, v, type);
        const BLOCK_NAME(Factors) of = BLOCK_NAME(factors_of)(w, block, v, type);
        for (int r = 0; r < count; r++) {
            const int8_t *given = x.quants + r * BLOCK;
            const int at = r * BLOCK_VECTORS + v;
            const BLOCK_INT start = BLOCK_NAME(start)(x.starts + r, type);
            const BLOCK_INT first = BLOCK_NAME(half_sums)(start, weights, of.left, given, type);
            const BLOCK_INT begun = type == Q6_K_WEIGHT ? BLOCK_NONE() : first;
            const BLOCK_INT second =
                BLOCK_NAME(half_sums)(begun, weights + STEPS / 2, of.right, given + BLOCK / 2, type);
            BLOCK_NAME(add_halves)(sums + at, totals + at, first, second, rounded_from(x, r), of, type);
        }
    }
}
#else
/* Adds a block's products to the sums of a superblock, or to the totals, of `count` rows: first those of half the inputs,
 * of all rows, so that weights stay in registers. Several rows share what they load between vectors of outputs. x: of the
 * first row; the next row's entries follow. The address of the quants is forgotten before each half: a compiler that
 * knows it keeps the bytes of the first half on the stack for the second, and an index for each load */
BLOCK_INLINE void BLOCK_NAME(add_block)(const Packed *w, BLOCK_INT *sums, BLOCK_FLOAT *totals, Rounded x, int64_t block,
                                        int count, int type) {
    const int vectors = count == 1 ? 1 : BLOCK_VECTORS;
    const uint8_t *quants = block_quants(w, block, type);
    FORGET(quants);
    for (int begin = 0; begin < BLOCK_VECTORS; begin += vectors) {
        BLOCK_INT first[BLOCK_ROWS][BLOCK_VECTORS], weights[BLOCK_VECTORS][STEPS / 2];
        BLOCK_NAME(Factors) of[BLOCK_VECTORS];
        for (int v = 0; v < vectors; v++) {
            of[v] = BLOCK_NAME(factors_of)(w, block, begin + v, type);
            for (int i = 0; i < STEPS / 2; i++) weights[v][i] = BLOCK_NAME(weights_of)(quants, i, begin + v, type);
        }
        for (int r = 0; r < count; r++)
            for (int v = 0; v < vectors; v++)
                first[r][v] = BLOCK_NAME(half_sums)(BLOCK_NAME(start)(x.starts + r, type), weights[v], of[v].left,
                                                    x.quants + r * BLOCK, type);
        FORGET(quants);
        for (int v = 0; v < vectors; v++) {
            of[v] = BLOCK_NAME(factors_of)(w, block, begin + v, type);
            for (int i = 0; i < STEPS / 2; i++)
                weights[v][i] = BLOCK_NAME(weights_of)(quants, STEPS / 2 + i, begin + v, type);
        }
        for (int r = 0; r < count; r++)
            for (int v = 0; v < vectors; v++) {
                const int at = r * BLOCK_VECTORS + begin + v;
                const BLOCK_INT begun = type == Q6_K_WEIGHT ? BLOCK_NONE() : first[r][v];
                const BLOCK_INT second =
                    BLOCK_NAME(half_sums)(begun, weights[v], of[v].right, x.quants + r * BLOCK + BLOCK / 2, type);
                BLOCK_NAME(add_halves)(sums + at, totals + at, first[r][v], second, rounded_from(x, r), of[v], type);
            }
    }
}
#endif

/* Multiplies `count` rows by `streams` groups of outputs, `apart` from each other. `streams` and `type` are constants in
 * each inlined copy, and so is a count of one; other counts are slower as constants. */
BLOCK_INLINE void BLOCK_NAME(multiply)(const Gemm *p, int64_t group, int64_t apart, int streams, int64_t row, int count,
                                       int type) {
    const int64_t blocks = p->inputs / BLOCK;
    const int64_t side_by_side = count == 1 ? BLOCK_AHEAD_OF_ONE : BLOCK_AHEAD;
    const int64_t ahead = streams > 1 ? side_by_side : count == 1 ? IN_ORDER_AHEAD_OF_ONE : IN_ORDER_AHEAD;
    BLOCK_FLOAT totals[BLOCK_STREAMS][BLOCK_ROWS * BLOCK_VECTORS];
    for (int g = 0; g < streams; g++)
        for (int i = 0; i < count * BLOCK_VECTORS; i++) totals[g][i] = BLOCK_FLOATS(0);
    const Rounded rounded = rounded_rows(p);
    for (int64_t before = 0; before < blocks; before += SUPERBLOCK) {
        const int64_t left = blocks - before, here = left < SUPERBLOCK ? left : SUPERBLOCK;
        Packed w[BLOCK_STREAMS];
        BLOCK_INT sums[BLOCK_STREAMS][BLOCK_ROWS * BLOCK_VECTORS]; /* of superblocks */
        for (int g = 0; g < streams; g++) {
            w[g] = packed_superblock(p, group + g * apart, before, type);
            for (int i = 0; i < count * BLOCK_VECTORS && IN_SUPERS(type); i++) sums[g][i] = BLOCK_NONE();
        }
        for (int64_t block = 0; block < here; block++) {
            const Rounded x = rounded_from(rounded, row * blocks + (before + block) * count);
            for (int g = 0; g < streams; g++) {
                if (ahead) prefetch_share(w + g, block, ahead, type);
                BLOCK_NAME(add_block)(w + g, sums[g], totals[g], x, block, count, type);
            }
        }
        const Rounded x = rounded_from(rounded, row * blocks + before * count);
        for (int g = 0; g < streams && IN_SUPERS(type); g++)
            BLOCK_NAME(add_super)(w + g, sums[g], totals[g], x, count, type);
    }
    for (int g = 0; g < streams; g++)
        for (int r = 0; r < count; r++) {
            float sums[GROUP];
            for (int v = 0; v < BLOCK_VECTORS; v++)
                BLOCK_STORE(sums + v * BLOCK_LANES, totals[g][r * BLOCK_VECTORS + v]);
            store_sums(p, row + r, (group + g * apart) * GROUP, sums);
        }
}

/* Multiplies all rows by `streams` groups of outputs, `apart` from each other. */
BLOCK_INLINE void BLOCK_NAME(all_rows)(const Gemm *p, int64_t group, int64_t apart, int streams, int type) {
    const int64_t blocks = (p->row_count + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
        end = p->row_count * (block + 1) / blocks;
        const int count = (int)(end - row);
        if (count == 1) BLOCK_NAME(multiply)(p, group, apart, streams, row, 1, type);
        else BLOCK_NAME(multiply)(p, group, apart, streams, row, count, type);
    }
}

/* Multiplies all rows by groups BLOCK_STREAMS * `from` to BLOCK_STREAMS * `to` - 1. Side by side, BLOCK_STREAMS of these
 * groups are read at once, each from its own share of them, so that every stream goes through memory in order. */
BLOCK_INLINE void BLOCK_NAME(groups)(const Gemm *p, int64_t from, int64_t to, int type) {
    const int64_t first = BLOCK_STREAMS * from, all = (p->outputs + GROUP - 1) / GROUP;
    const int64_t last = BLOCK_STREAMS * to < all ? BLOCK_STREAMS * to : all;
    const int64_t apart = blocks_in_order ? 0 : (last - first) / BLOCK_STREAMS;
    for (int64_t group = first; group < first + apart; group++)
        BLOCK_NAME(all_rows)(p, group, apart, BLOCK_STREAMS, type);
    for (int64_t group = first + BLOCK_STREAMS * apart; group < last; group++)
        BLOCK_NAME(all_rows)(p, group, 0, 1, type);
}

#define BLOCK_TASK(NAME, TYPE)                                                                                         \
    BLOCK_TARGET static void BLOCK_NAME(NAME)(const void *call, int64_t first, int64_t last, int32_t thread_id) {      \
        (void)thread_id;                                                                                               \
        BLOCK_NAME(groups)(call, first, last, TYPE);                                                                   \
    }

#define BLOCK_ENTRY(NAME, TYPE) [TYPE - Q8_0_WEIGHT] = BLOCK_NAME(NAME),

EVERY_BLOCK_TYPE(BLOCK_TASK)

BLOCK_TARGET static void BLOCK_NAME(round_rows)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    const Gemm *p = call;
    round_blocks(p, first, last, BLOCK_ROWS, BLOCK_NAME(zero_of)(p->type));
}

enum { BLOCK_NAME(rows) = BLOCK_ROWS };

static void BLOCK_NAME(gemm)(const Gemm *p, int32_t threads) {
    static const Task tasks[] = {EVERY_BLOCK_TYPE(BLOCK_ENTRY)};
    run(p, BLOCK_NAME(round_rows), tasks[p->type - Q8_0_WEIGHT], BLOCK_ROWS, BLOCK_STREAMS, threads);
}

#undef BLOCK_ABS
#undef BLOCK_ADD
#undef BLOCK_ADD16
#undef BLOCK_AHEAD
#undef BLOCK_AHEAD_OF_ONE
#undef BLOCK_AND
#undef BLOCK_BESIDE
#undef BLOCK_BYTES
#undef BLOCK_DOT
#undef BLOCK_E8M0
#undef BLOCK_ENTRY
#undef BLOCK_FLOAT
#undef BLOCK_FLOATS
#undef BLOCK_FMA
#undef BLOCK_FOUR
#undef BLOCK_HALVES
#undef BLOCK_INLINE
#undef BLOCK_INT
#undef BLOCK_LANES
#undef BLOCK_LEFT
#undef BLOCK_LEFT32
#undef BLOCK_LOAD
#undef BLOCK_LOAD_FLOATS
#undef BLOCK_LOOK_UP
#undef BLOCK_MADDUBS
#undef BLOCK_MULTIPLY
#undef BLOCK_MULTIPLY32
#undef BLOCK_NAME
#undef BLOCK_NARROW
#undef BLOCK_NEGATIVE_FMA
#undef BLOCK_NONE
#undef BLOCK_ONES
#undef BLOCK_OR
#undef BLOCK_PAIRS
#undef BLOCK_RIGHT
#undef BLOCK_ROWS
#undef BLOCK_SCALE_PAIRS
#undef BLOCK_SIGN
#undef BLOCK_SIGNED
#undef BLOCK_STORE
#undef BLOCK_STREAMS
#undef BLOCK_TARGET
#undef BLOCK_TASK
#undef BLOCK_SUBTRACT
#undef BLOCK_SUBTRACT32
#undef BLOCK_TO_FLOAT
#undef BLOCK_UNSIGNED
#undef BLOCK_VECTORS
#undef BLOCK_WHOLE
#undef BLOCK_XOR
