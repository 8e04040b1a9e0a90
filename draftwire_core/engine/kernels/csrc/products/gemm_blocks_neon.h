/* The product of rows and a weight quantised in blocks, for one kind of ARM's instructions. gemm_blocks.c includes this
 * file once per kind, with
 *
 *   NEON_NAME(NAME)       the name of a function for this kind
 *   NEON_TARGET           the instructions that it uses
 *   NEON_I8MM             1 where rows are multiplied two by two
 *   NEON_DOT(S, W, X)     S plus the products of four weights and four quants for each of four outputs
 *
 * Weights are multiplied as signed bytes, which unsigned ones of at most 6 bits fit as well.
 */
#define NEON_INLINE NEON_TARGET static inline __attribute__((always_inline))
#define NEON_ROWS 4    /* rows whose sums are held in registers at once */
#define NEON_VECTORS 4 /* of a group of outputs */
#define NEON_AHEAD 4096 /* bytes ahead of which weights are prefetched */

/* Returns the weights of a step of a block: STEP inputs of each output of vector v, zero not yet subtracted. */
NEON_INLINE int8x16_t NEON_NAME(weights_of)(const Packed *w, int64_t block, int step, int v, int type) {
    const uint8_t *high = block_quants(w, block, type) + 16 * v, *quants = high + high_bytes(type);
    if (EIGHT_BITS(type)) return vld1q_s8((const int8_t *)quants + step * LINE);
    const uint8x16_t both = vld1q_u8(quants + step % 4 * LINE);
    uint8x16_t low = step < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
    if (type == MXFP4_WEIGHT) {
        static const uint8_t values[16] = {MXFP4_VALUES};
        low = vqtbl1q_u8(vld1q_u8(values), low);
    } else if (FIVE_BITS(type)) {
        const uint8x16_t bits = vld1q_u8(high);
        low = vorrq_u8(low, vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - step))), vdupq_n_u8(16)));
    } else if (type == Q6_K_WEIGHT) {
        const uint8x16_t bits = vld1q_u8(high + step / 4 * LINE);
        low = vorrq_u8(low, vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - 2 * (step % 4)))), vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(low);
}

/* Returns a step's quants of a row, once for each of four outputs. */
NEON_INLINE int8x16_t NEON_NAME(four)(const int8_t *x, int step) {
    int32_t bytes;
    memcpy(&bytes, x + STEP * step, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

/* Computes the sums of the products of half a block for `count` rows. x: the first row's quants; those of the next row
 * follow BLOCK bytes later. */
NEON_INLINE void NEON_NAME(sum_half)(const Packed *w, int64_t block, int half, const int8_t *x, int count, int type,
                                     int32x4_t *sums) {
    for (int i = 0; i < count * NEON_VECTORS; i++) sums[i] = vdupq_n_s32(0);
#if NEON_I8MM
    /* Of two rows and two outputs each: both rows of the first output, then of the second. */
    int32x4_t pairs[NEON_ROWS * NEON_VECTORS];
    for (int i = 0; i < NEON_ROWS * NEON_VECTORS; i++) pairs[i] = vdupq_n_s32(0);
    for (int step = 4 * half; step < 4 * half + 4; step += 2)
        for (int v = 0; v < NEON_VECTORS; v++) {
            const int8x16_t first = NEON_NAME(weights_of)(w, block, step, v, type);
            const int8x16_t second = NEON_NAME(weights_of)(w, block, step + 1, v, type);
            const int32x4_t one = vreinterpretq_s32_s8(first), other = vreinterpretq_s32_s8(second);
            const int8x16_t upper = vreinterpretq_s8_s32(vzip1q_s32(one, other));
            const int8x16_t lower = vreinterpretq_s8_s32(vzip2q_s32(one, other));
            for (int r = 0; r + 1 < count; r += 2) {
                const int8_t *at = x + r * BLOCK + STEP * step;
                const int8x16_t rows = vcombine_s8(vld1_s8(at), vld1_s8(at + BLOCK));
                int32x4_t *into = pairs + r * NEON_VECTORS + 2 * v;
                into[0] = vmmlaq_s32(into[0], upper, rows);
                into[1] = vmmlaq_s32(into[1], lower, rows);
            }
            if (count % 2) {
                int32x4_t *sum = sums + (count - 1) * NEON_VECTORS + v;
                *sum = NEON_DOT(*sum, first, NEON_NAME(four)(x + (count - 1) * BLOCK, step));
                *sum = NEON_DOT(*sum, second, NEON_NAME(four)(x + (count - 1) * BLOCK, step + 1));
            }
        }
    for (int r = 0; r + 1 < count; r += 2)
        for (int v = 0; v < NEON_VECTORS; v++) {
            const int32x4_t *from = pairs + r * NEON_VECTORS + 2 * v;
            sums[r * NEON_VECTORS + v] = vuzp1q_s32(from[0], from[1]);
            sums[(r + 1) * NEON_VECTORS + v] = vuzp2q_s32(from[0], from[1]);
        }
#else
    for (int step = 4 * half; step < 4 * half + 4; step++) {
        int8x16_t weights[NEON_VECTORS];
        for (int v = 0; v < NEON_VECTORS; v++) weights[v] = NEON_NAME(weights_of)(w, block, step, v, type);
        for (int r = 0; r < count; r++) {
            const int8x16_t given = NEON_NAME(four)(x + r * BLOCK, step);
            int32x4_t *sum = sums + r * NEON_VECTORS;
            for (int v = 0; v < NEON_VECTORS; v++) sum[v] = NEON_DOT(sum[v], weights[v], given);
        }
    }
#endif
}

NEON_INLINE float32x4_t NEON_NAME(halves)(const uint8_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}

/* Four bytes as integers. */
NEON_INLINE int32x4_t NEON_NAME(bytes)(const uint8_t *from, int is_signed) {
    int32_t found[4];
    for (int i = 0; i < 4; i++) found[i] = is_signed ? (int8_t)from[i] : from[i];
    return vld1q_s32(found);
}

/* Adds a block's products to the totals of `count` rows. block: within the superblock w. x: of the first row; those of
 * the next rows follow */
NEON_INLINE void NEON_NAME(add_block)(const Packed *w, float32x4_t *totals, Rounded x, int64_t block, int count, int type) {
    int32x4_t whole[NEON_ROWS * NEON_VECTORS], right[NEON_ROWS * NEON_VECTORS];
    prefetch_share(w, block, NEON_AHEAD, type);
    NEON_NAME(sum_half)(w, block, 0, x.quants, count, type, whole);
    NEON_NAME(sum_half)(w, block, 1, x.quants, count, type, right);
    for (int v = 0; v < NEON_VECTORS; v++) {
        const uint8_t *scales = block_scales(w, block, type);
        float32x4_t scale, minimum = vdupq_n_f32(0);
        int32x4_t zeros = vdupq_n_s32(ZERO_OF(type));
        if (IN_GROUPS(type)) {
            const int64_t place = (w->before + (uint32_t)block) / w->per_scale * GROUP + 4 * v;
            const int32x4_t stored_less = vdupq_n_s32(type == GROUP8_WEIGHT ? 128 : 0);
            zeros = vsubq_s32(NEON_NAME(bytes)(w->zeros + place, 0), stored_less);
            scale = vld1q_f32((const float *)w->scales + place);
        } else if (type == MXFP4_WEIGHT) {
            float found[4];
            for (int i = 0; i < 4; i++) found[i] = half_of_power(scales[4 * v + i]);
            scale = vld1q_f32(found);
        } else {
            scale = NEON_NAME(halves)(scales + 8 * v);
            if (WITH_MINIMUM(type)) minimum = NEON_NAME(halves)(scales + 2 * GROUP + 8 * v);
        }
        for (int r = 0; r < count; r++) {
            const int i = r * NEON_VECTORS + v;
            const int32x4_t sum = vmlsq_s32(vaddq_s32(whole[i], right[i]), zeros, vdupq_n_s32((int32_t)x.sums[r]));
            const float32x4_t unit = vdupq_n_f32(x.units[r]), whole_sum = vcvtq_f32_s32(sum);
            if (WITH_MINIMUM(type))
                totals[i] = vfmaq_f32(totals[i], unit,
                                      vfmaq_f32(vmulq_f32(scale, whole_sum), minimum, vdupq_n_f32(x.sums[r])));
            else totals[i] = vfmaq_f32(totals[i], vmulq_f32(scale, unit), whole_sum);
        }
    }
}

/* Adds a superblock's products to the totals of `count` rows. x: of the first row and block */
NEON_INLINE void NEON_NAME(add_super)(const Packed *w, float32x4_t *totals, Rounded x, int count, int type) {
    int32x4_t sums[NEON_ROWS * NEON_VECTORS], off[NEON_ROWS * NEON_VECTORS];
    for (int i = 0; i < count * NEON_VECTORS; i++) sums[i] = off[i] = vdupq_n_s32(0);
    for (int64_t block = 0; block < SUPERBLOCK; block++) {
        prefetch_share(w, block, NEON_AHEAD, type);
        for (int half = 0; half < 2; half++) {
            const uint8_t *scales = block_scales(w, block, type) + (type == Q6_K_WEIGHT ? half * GROUP : 0);
            int32x4_t found[NEON_ROWS * NEON_VECTORS];
            NEON_NAME(sum_half)(w, block, half, x.quants + block * count * BLOCK, count, type, found);
            for (int v = 0; v < NEON_VECTORS; v++) {
                const int32x4_t scale = NEON_NAME(bytes)(scales + 4 * v, type == Q6_K_WEIGHT);
                const int32x4_t beside = type == Q6_K_WEIGHT ? scale : NEON_NAME(bytes)(scales + GROUP + 4 * v, 0);
                for (int r = 0; r < count; r++) {
                    const int i = r * NEON_VECTORS + v;
                    const int16_t *parts = parts_of(x, r);
                    sums[i] = vmlaq_s32(sums[i], found[i], scale);
                    if (type == Q6_K_WEIGHT) off[i] = vmlaq_s32(off[i], beside, vdupq_n_s32(parts[2 * block + half]));
                    else if (!half) off[i] = vmlaq_s32(off[i], beside, vdupq_n_s32(parts[block]));
                }
            }
        }
    }
    for (int v = 0; v < NEON_VECTORS; v++)
        for (int r = 0; r < count; r++) {
            const int i = r * NEON_VECTORS + v;
            const int32x4_t sum = vmlsq_s32(sums[i], off[i], vdupq_n_s32(ZERO_OF(type)));
            float32x4_t found = vmulq_f32(NEON_NAME(halves)(w->supers + 8 * v), vcvtq_f32_s32(sum));
            if (WITH_LEAST(type))
                found = vfmsq_f32(found, NEON_NAME(halves)(w->supers + 32 + 8 * v), vcvtq_f32_s32(off[i]));
            totals[i] = vfmaq_f32(totals[i], found, vdupq_n_f32(x.units[r]));
        }
}

/* Multiplies `count` rows, a constant in each inlined copy as `type` is, by a group of outputs. */
NEON_INLINE void NEON_NAME(multiply)(const Gemm *p, int64_t group, int64_t row, int count, int type) {
    const int64_t blocks = p->inputs / BLOCK;
    const Rounded rounded = rounded_rows(p);
    float32x4_t totals[NEON_ROWS * NEON_VECTORS];
    for (int i = 0; i < count * NEON_VECTORS; i++) totals[i] = vdupq_n_f32(0);
    for (int64_t all = 0; all < blocks; all++) {
        const int64_t block = all % SUPERBLOCK;
        const Packed w = packed_superblock(p, group, all - block, type);
        const Rounded x = rounded_from(rounded, row * blocks + all * count);
        if (!IN_SUPERS(type)) NEON_NAME(add_block)(&w, totals, x, block, count, type);
        else if (!block) NEON_NAME(add_super)(&w, totals, x, count, type);
    }
    for (int r = 0; r < count; r++) {
        float sums[GROUP];
        for (int v = 0; v < NEON_VECTORS; v++) vst1q_f32(sums + 4 * v, totals[r * NEON_VECTORS + v]);
        store_sums(p, row + r, group * GROUP, sums);
    }
}

NEON_INLINE void NEON_NAME(groups)(const Gemm *p, int64_t first, int64_t last, int type) {
    const int64_t blocks = (p->row_count + NEON_ROWS - 1) / NEON_ROWS;
    for (int64_t group = first; group < last; group++)
        for (int64_t block = 0, row = 0, end; block < blocks; block++, row = end) {
            end = p->row_count * (block + 1) / blocks;
            switch (end - row) {
                case 1: NEON_NAME(multiply)(p, group, row, 1, type); break;
                case 2: NEON_NAME(multiply)(p, group, row, 2, type); break;
                case 3: NEON_NAME(multiply)(p, group, row, 3, type); break;
                case 4: NEON_NAME(multiply)(p, group, row, 4, type); break;
            }
        }
}

#define NEON_TASK(NAME, TYPE)                                                                                          \
    NEON_TARGET static void NEON_NAME(NAME)(const void *call, int64_t first, int64_t last, int32_t thread_id) {        \
        (void)thread_id;                                                                                               \
        NEON_NAME(groups)(call, first, last, TYPE);                                                                    \
    }

#define NEON_ENTRY(NAME, TYPE) [TYPE - Q8_0_WEIGHT] = NEON_NAME(NAME),

EVERY_BLOCK_TYPE(NEON_TASK)

static void NEON_NAME(round_rows)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    round_blocks(call, first, last, NEON_ROWS, 0);
}

enum { NEON_NAME(rows) = NEON_ROWS };

static void NEON_NAME(gemm)(const Gemm *p, int32_t threads) {
    static const Task tasks[] = {EVERY_BLOCK_TYPE(NEON_ENTRY)};
    run(p, NEON_NAME(round_rows), tasks[p->type - Q8_0_WEIGHT], NEON_ROWS, 1, threads);
}

#undef NEON_AHEAD
#undef NEON_DOT
#undef NEON_ENTRY
#undef NEON_I8MM
#undef NEON_INLINE
#undef NEON_NAME
#undef NEON_ROWS
#undef NEON_TARGET
#undef NEON_TASK
#undef NEON_VECTORS
