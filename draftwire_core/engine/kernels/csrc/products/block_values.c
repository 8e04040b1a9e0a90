/* The values of weights in blocks, as they lie in a GGUF file: the rows of an embedding that a step looks up. They are those
 * of GGUF's reference conversion (the package gguf), rounded to bfloat16. */
#include "products/block_scales.h"
#include "ops.h"
#include "vectors.h"

#define BLOCK 32
#define BLOCKS 8 /* of a superblock */

/* Stores LANES values, rounded. */
INLINE void store_values(uint16_t *to, const float *values) {
    vec x;
    memcpy(&x, values, sizeof x);
    store_vec(to, 0, x, 1);
}

/* Stores a block: scale * (quants - zero) - least. */
INLINE void store_block(uint16_t *to, const int *quants, int zero, float scale, float least) {
    float values[BLOCK];
    for (int i = 0; i < BLOCK; i++) values[i] = scale * (float)(quants[i] - zero) - least;
    store_values(to, values);
    store_values(to + LANES, values + LANES);
}

/* The 4-bit quants of a block: the low halves of 16 bytes, then the high ones. */
INLINE void nibbles(const uint8_t *from, int *quants) {
    for (int i = 0; i < BLOCK / 2; i++) quants[i] = from[i] & 15, quants[i + BLOCK / 2] = from[i] >> 4;
}

static void q8_0_values(const uint8_t *from, uint16_t *to) {
    int quants[BLOCK];
    for (int i = 0; i < BLOCK; i++) quants[i] = (int8_t)from[2 + i];
    store_block(to, quants, 0, float_of_half(from), 0);
}

static void q4_0_values(const uint8_t *from, uint16_t *to) {
    int quants[BLOCK];
    nibbles(from + 2, quants);
    store_block(to, quants, 8, float_of_half(from), 0);
}

/* Adds the fifth bits of a block, bit i that of input i. */
INLINE void fifth_bits(const uint8_t *from, int *quants) {
    for (int i = 0; i < BLOCK; i++) quants[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}

static void q4_1_values(const uint8_t *from, uint16_t *to) {
    int quants[BLOCK];
    nibbles(from + 4, quants);
    store_block(to, quants, 0, float_of_half(from), -float_of_half(from + 2));
}

static void q5_0_values(const uint8_t *from, uint16_t *to) {
    int quants[BLOCK];
    nibbles(from + 6, quants), fifth_bits(from + 2, quants);
    store_block(to, quants, 16, float_of_half(from), 0);
}

static void q5_1_values(const uint8_t *from, uint16_t *to) {
    int quants[BLOCK];
    nibbles(from + 8, quants), fifth_bits(from + 4, quants);
    store_block(to, quants, 0, float_of_half(from), -float_of_half(from + 2));
}

static void mxfp4_values(const uint8_t *from, uint16_t *to) {
    static const int8_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int quants[BLOCK];
    nibbles(from + 1, quants);
    for (int i = 0; i < BLOCK; i++) quants[i] = twice[quants[i]];
    store_block(to, quants, 0, half_of_power(*from), 0);
}

/* Q4_K and Q5_K: high has a fifth bit for each block of an input, or is NULL. */
INLINE void k_values(const uint8_t *from, const uint8_t *high, const uint8_t *low, uint16_t *to) {
    const float unit = float_of_half(from), least_unit = float_of_half(from + 2);
    const uint8_t *first = from + 4, *second = from + 8, *third = from + 12; /* of the scales */
    for (int b = 0; b < BLOCKS; b++) {
        const int i = b % 4;
        const int scale = b < 4 ? first[i] & 63 : (third[i] & 15) | first[i] >> 6 << 4;
        const int least = b < 4 ? second[i] & 63 : third[i] >> 4 | second[i] >> 6 << 4;
        int quants[BLOCK];
        for (int k = 0; k < BLOCK; k++) {
            quants[k] = low[b / 2 * BLOCK + k] >> b % 2 * 4 & 15;
            if (high) quants[k] |= (high[k] >> b & 1) << 4;
        }
        store_block(to + b * BLOCK, quants, 0, unit * (float)scale, least_unit * (float)least);
    }
}

static void q4_k_values(const uint8_t *from, uint16_t *to) { k_values(from, NULL, from + 16, to); }

static void q5_k_values(const uint8_t *from, uint16_t *to) { k_values(from, from + 16, from + 48, to); }

static void q6_k_values(const uint8_t *from, uint16_t *to) {
    const float unit = float_of_half(from + 208);
    for (int b = 0; b < BLOCKS; b++) {
        const uint8_t *low = from + b / 4 * 64 + b % 2 * BLOCK, *high = from + 128 + b / 4 * BLOCK;
        const int8_t *scales = (const int8_t *)from + 192 + 2 * b;
        float values[BLOCK];
        for (int k = 0; k < BLOCK; k++) {
            const int quant = (low[k] >> b % 4 / 2 * 4 & 15) | (high[k] >> b % 4 * 2 & 3) << 4;
            values[k] = unit * (float)scales[k / 16] * (float)(quant - 32);
        }
        store_values(to + b * BLOCK, values);
        store_values(to + b * BLOCK + LANES, values + LANES);
    }
}

void draftwire_block_values(const uint8_t *from, uint16_t *to, int64_t units, int64_t size, int64_t inputs, int32_t type) {
    for (int64_t unit = 0; unit < units; unit++, from += size, to += inputs) {
        if (type == Q8_0_WEIGHT) q8_0_values(from, to);
        else if (type == Q4_0_WEIGHT) q4_0_values(from, to);
        else if (type == Q4_1_WEIGHT) q4_1_values(from, to);
        else if (type == Q5_0_WEIGHT) q5_0_values(from, to);
        else if (type == Q5_1_WEIGHT) q5_1_values(from, to);
        else if (type == Q4_K_WEIGHT) q4_k_values(from, to);
        else if (type == Q5_K_WEIGHT) q5_k_values(from, to);
        else if (type == Q6_K_WEIGHT) q6_k_values(from, to);
        else mxfp4_values(from, to);
    }
}
