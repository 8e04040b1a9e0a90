/* The product of rows and a weight quantised in blocks, for one kind of vectors. gemm_blocks.c includes this file once
 * per kind, with
 *
 *   BLOCK_NAME(NAME)      the name of a function for this kind
 *   BLOCK_TARGET          the instructions that it uses
 *   BLOCK_LANES           outputs per vector
 *   BLOCK_ROWS            rows whose sums of a block are held in registers at once
 *   BLOCK_MADDUBS         1 where pairs of products are summed in 16 bits, which must not saturate; 0 where four
 *                         products are added to a sum of 32 bits
 *   BLOCK_INT, BLOCK_FLOAT and the operations on them
 */
#define BLOCK_INLINE BLOCK_TARGET static inline __attribute__((always_inline))
#define BLOCK_VECTORS (GROUP / BLOCK_LANES)

/* Adds the products of `span` steps to the sums of `count` rows. `is_signed`: whether weights are signed; without
 * BLOCK_MADDUBS they never are. x: the first row's quants; those of the next row follow BLOCK bytes later. */
BLOCK_INLINE void BLOCK_NAME(add_steps)(BLOCK_INT *sums, const BLOCK_INT *weights, const int8_t *x, int count, int span,
                                        int is_signed) {
    for (int r = 0; r < count; r++, x += BLOCK) {
#if BLOCK_MADDUBS
        BLOCK_INT pairs;
        for (int i = 0; i < span; i++) {
            const BLOCK_INT given = BLOCK_FOUR(x + STEP * i);
            const BLOCK_INT products = is_signed ? BLOCK_PAIRS(BLOCK_ABS(weights[i]), BLOCK_SIGN(given, weights[i]))
                                                 : BLOCK_PAIRS(weights[i], given);
            pairs = i ? BLOCK_ADD16(pairs, products) : products;
        }
        sums[r] = BLOCK_ADD(sums[r], BLOCK_SUM_PAIRS(pairs));
#else
        (void)is_signed;
        for (int i = 0; i < span; i++) sums[r] = BLOCK_DOT(sums[r], weights[i], BLOCK_FOUR(x + STEP * i));
#endif
    }
}

/* Returns the unsigned weights of a step of a block: STEP inputs of each output of vector v. Weights of 8 bits are
 * signed where BLOCK_MADDUBS is set. */
BLOCK_INLINE BLOCK_INT BLOCK_NAME(weights_of)(const Packed *w, int64_t block, int step, int v, int type) {
    const int at = v * 4 * BLOCK_LANES;
    if (type == Q8_0_WEIGHT) {
        const BLOCK_INT bytes = BLOCK_LOAD(w->quants + (block * STEPS + step) * LINE + at);
        return BLOCK_MADDUBS ? bytes : BLOCK_XOR(bytes, BLOCK_BYTES(-128));
    }
    const BLOCK_INT both = BLOCK_LOAD(w->quants + (block * STEPS / 2 + step % 4) * LINE + at);
    const BLOCK_INT low = BLOCK_AND(step < 4 ? both : BLOCK_RIGHT(both, 4), BLOCK_BYTES(15));
    if (type == MXFP4_WEIGHT) return BLOCK_LOOK_UP(low);
    if (type == Q5_K_WEIGHT) {
        const BLOCK_INT bits = BLOCK_LOAD(w->high + block * LINE + at);
        const BLOCK_INT moved = step <= 4 ? BLOCK_LEFT(bits, 4 - step) : BLOCK_RIGHT(bits, step - 4);
        return BLOCK_OR(low, BLOCK_AND(moved, BLOCK_BYTES(16)));
    }
    if (type == Q6_K_WEIGHT) {
        const BLOCK_INT bits = BLOCK_LOAD(w->high + (2 * block + step / 4) * LINE + at);
        const int place = 4 - 2 * (step % 4);
        const BLOCK_INT moved = place >= 0 ? BLOCK_LEFT(bits, place) : BLOCK_RIGHT(bits, -place);
        return BLOCK_OR(low, BLOCK_AND(moved, BLOCK_BYTES(48)));
    }
    return low;
}

/* Adds a block's products to the totals of `count` rows. */
BLOCK_INLINE void BLOCK_NAME(add_block)(const Gemm *p, const Packed *w, BLOCK_FLOAT *totals, int64_t row,
                                        int64_t block, int count, int type) {
    const int64_t first = row * (p->inputs / BLOCK) + block * count;
    const Rounded rounded = rounded_rows(p);
    const int8_t *x = rounded.quants + first * BLOCK;
    const float *units = rounded.units + first;
    const float *sums_of_x = rounded.sums + 2 * first;
    const int span = !BLOCK_MADDUBS ? 4 : type == Q8_0_WEIGHT ? 1 : type == Q6_K_WEIGHT ? 2 : 4;
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        BLOCK_INT sums[2][BLOCK_ROWS];
        for (int half = 0; half < 2; half++) {
            BLOCK_INT *into = sums[type == Q6_K_WEIGHT ? half : 0];
            if (half == 0 || type == Q6_K_WEIGHT)
                for (int r = 0; r < count; r++) into[r] = BLOCK_ZERO();
            for (int step = 4 * half; step < 4 * half + 4; step += span) {
                BLOCK_INT weights[4];
                for (int i = 0; i < span; i++) weights[i] = BLOCK_NAME(weights_of)(w, block, step + i, v, type);
                BLOCK_NAME(add_steps)(into, weights, x + STEP * step, count, span, type == Q8_0_WEIGHT);
            }
        }
        const uint8_t *scales = w->scales + block * 32;
        BLOCK_FLOAT scale, least;
        BLOCK_FLOAT left, right;
        if (type == MXFP4_WEIGHT) {
            scale = BLOCK_E8M0(w->scales + block * GROUP + v * BLOCK_LANES);
        } else if (type == Q6_K_WEIGHT) {
            scale = BLOCK_HALVES(w->supers + block / 8 * 32 + v * 2 * BLOCK_LANES);
            left = BLOCK_TO_FLOAT(BLOCK_SIGNED(scales + v * BLOCK_LANES));
            right = BLOCK_TO_FLOAT(BLOCK_SIGNED(scales + GROUP + v * BLOCK_LANES));
        } else if (type == Q4_K_WEIGHT || type == Q5_K_WEIGHT) {
            const uint8_t *supers = w->supers + block / 8 * 64 + v * 2 * BLOCK_LANES;
            scale = BLOCK_MULTIPLY(BLOCK_HALVES(supers), BLOCK_TO_FLOAT(BLOCK_UNSIGNED(scales + v * BLOCK_LANES)));
            least = BLOCK_MULTIPLY(BLOCK_HALVES(supers + 32),
                                   BLOCK_TO_FLOAT(BLOCK_UNSIGNED(scales + GROUP + v * BLOCK_LANES)));
        } else {
            scale = BLOCK_HALVES(scales + v * 2 * BLOCK_LANES);
        }
        const int zero = type == Q8_0_WEIGHT ? (BLOCK_MADDUBS ? 0 : 128) : ZERO_OF(type);
        for (int r = 0; r < count; r++) {
            BLOCK_FLOAT *total = totals + r * BLOCK_VECTORS + v;
            const BLOCK_FLOAT unit = BLOCK_FLOATS(units[r]), of_all = BLOCK_FLOATS(sums_of_x[2 * r]);
            /* These are whole numbers below 2^24, so that float32 is exact. */
            BLOCK_FLOAT sum = BLOCK_TO_FLOAT(sums[0][r]);
            if (type == Q6_K_WEIGHT) {
                const BLOCK_FLOAT of_right = BLOCK_FLOATS(sums_of_x[2 * r + 1]), off = BLOCK_FLOATS(-zero);
                const BLOCK_FLOAT of_left = BLOCK_SUBTRACT(of_all, of_right);
                const BLOCK_FLOAT second = BLOCK_FMA(off, of_right, BLOCK_TO_FLOAT(sums[1][r]));
                sum = BLOCK_FMA(left, BLOCK_FMA(off, of_left, sum), BLOCK_MULTIPLY(right, second));
            } else if (zero) {
                sum = BLOCK_FMA(BLOCK_FLOATS(-zero), of_all, sum);
            }
            *total = BLOCK_FMA(BLOCK_MULTIPLY(scale, unit), sum, *total);
            if (type == Q4_K_WEIGHT || type == Q5_K_WEIGHT)
                *total = BLOCK_NEGATIVE_FMA(BLOCK_MULTIPLY(least, unit), of_all, *total);
        }
    }
}

/* Multiplies `count` rows, a constant in each inlined copy as `type` is, by a group of outputs. */
BLOCK_INLINE void BLOCK_NAME(multiply)(const Gemm *p, int64_t group, int64_t row, int count, int type) {
    const int64_t blocks = p->inputs / BLOCK;
    const Packed w = packed_group(p, group, type);
    BLOCK_FLOAT totals[BLOCK_ROWS * BLOCK_VECTORS];
    for (int i = 0; i < count * BLOCK_VECTORS; i++) totals[i] = BLOCK_FLOATS(0);
    const int bytes = type == Q8_0_WEIGHT ? STEPS * LINE : STEPS / 2 * LINE;
    for (int64_t block = 0; block < blocks; block++) {
        for (int at = 0; at < bytes; at += 64)
            __builtin_prefetch(w.quants + block * bytes + at + PREFETCH_AHEAD, 0, 2);
        BLOCK_NAME(add_block)(p, &w, totals, row, block, count, type);
    }
    for (int r = 0; r < count; r++) {
        float sums[GROUP];
        for (int v = 0; v < BLOCK_VECTORS; v++) BLOCK_STORE(sums + v * BLOCK_LANES, totals[r * BLOCK_VECTORS + v]);
        store_group(p, row + r, group, sums);
    }
}

#define BLOCK_CASE(COUNT)                                                                                              \
    case COUNT: BLOCK_NAME(multiply)(p, group, row, COUNT, type); break

BLOCK_INLINE void BLOCK_NAME(groups)(const Gemm *p, int64_t first, int64_t last, int type) {
    const int64_t blocks = (p->row_count + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t group = first; group < last; group++)
        for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
            end = p->row_count * (block + 1) / blocks;
            switch (end - row) {
                BLOCK_CASE(1);
                BLOCK_CASE(2);
                BLOCK_CASE(3);
                BLOCK_CASE(4);
                BLOCK_CASE(5);
                BLOCK_CASE(6);
                BLOCK_CASE(7);
                BLOCK_CASE(8);
            }
        }
}

#define BLOCK_TASK(NAME, TYPE)                                                                                         \
    BLOCK_TARGET static void BLOCK_NAME(NAME)(const void *call, int64_t first, int64_t last, int32_t thread_id) {      \
        (void)thread_id;                                                                                               \
        BLOCK_NAME(groups)(call, first, last, TYPE);                                                                   \
    }

BLOCK_TASK(q8_0, Q8_0_WEIGHT)
BLOCK_TASK(q4_0, Q4_0_WEIGHT)
BLOCK_TASK(q4_k, Q4_K_WEIGHT)
BLOCK_TASK(q5_k, Q5_K_WEIGHT)
BLOCK_TASK(q6_k, Q6_K_WEIGHT)
BLOCK_TASK(mxfp4, MXFP4_WEIGHT)

BLOCK_TARGET static void BLOCK_NAME(round_rows)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    round_blocks(call, first, last, BLOCK_ROWS);
}

static void BLOCK_NAME(gemm)(const Gemm *p, int32_t threads) {
    static const Task tasks[] = {BLOCK_NAME(q8_0), BLOCK_NAME(q4_0), BLOCK_NAME(q4_k),
                                 BLOCK_NAME(q5_k), BLOCK_NAME(q6_k), BLOCK_NAME(mxfp4)};
    run(p, BLOCK_NAME(round_rows), tasks[p->type - Q8_0_WEIGHT], BLOCK_ROWS, threads);
}

#undef BLOCK_ABS
#undef BLOCK_ADD
#undef BLOCK_ADD16
#undef BLOCK_AND
#undef BLOCK_BYTES
#undef BLOCK_CASE
#undef BLOCK_DOT
#undef BLOCK_E8M0
#undef BLOCK_FLOAT
#undef BLOCK_FLOATS
#undef BLOCK_FMA
#undef BLOCK_FOUR
#undef BLOCK_HALVES
#undef BLOCK_INLINE
#undef BLOCK_INT
#undef BLOCK_ZERO
#undef BLOCK_LANES
#undef BLOCK_LEFT
#undef BLOCK_LOAD
#undef BLOCK_LOOK_UP
#undef BLOCK_MADDUBS
#undef BLOCK_MULTIPLY
#undef BLOCK_NAME
#undef BLOCK_NEGATIVE_FMA
#undef BLOCK_OR
#undef BLOCK_PAIRS
#undef BLOCK_RIGHT
#undef BLOCK_ROWS
#undef BLOCK_SIGN
#undef BLOCK_SIGNED
#undef BLOCK_STORE
#undef BLOCK_SUM_PAIRS
#undef BLOCK_TARGET
#undef BLOCK_TASK
#undef BLOCK_SUBTRACT
#undef BLOCK_TO_FLOAT
#undef BLOCK_UNSIGNED
#undef BLOCK_VECTORS
#undef BLOCK_XOR
