/* The scales of weights in blocks, as GGUF stores them. */
#ifndef DRAFTWIRE_BLOCK_SCALES_H
#define DRAFTWIRE_BLOCK_SCALES_H

#include <stdint.h>
#include <string.h>

#include "vectors.h"

/* Returns a float16 number in memory. */
INLINE float float_of_half(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    const float small = (float)fraction * 0x1p-24f;
    uint32_t bits = (exponent + (exponent == 31 ? 224 : 112)) << 23 | fraction << 13;
    if (!exponent) memcpy(&bits, &small, sizeof bits);
    bits |= sign;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* Half of 2 to the power of (exponent - 127). */
INLINE float half_of_power(uint8_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

#endif
