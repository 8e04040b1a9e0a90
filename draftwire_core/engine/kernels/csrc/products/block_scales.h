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
    return widen_half4((half4){half, half, half, half})[0];
}

/* Half of 2 to the power of (exponent - 127). */
INLINE float half_of_power(uint8_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

#endif
