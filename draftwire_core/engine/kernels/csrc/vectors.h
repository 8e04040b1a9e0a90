/* Vectors of 16 floats in the vector extension of GCC and Clang, compiled to AVX-512, AVX2, SSE or NEON.
 *
 * Results must be functions of their inputs, to the bit, the same with every kind of vectors, compiler and C library.
 * The compiler must therefore neither reorder sums nor choose where to fuse multiplication and addition: -ffast-math is
 * not used, -ffp-contract is off, and what is fused is written as fma. Of the C library's functions on floats, only
 * those with exact results are called: sqrt and fma.
 */
#ifndef DRAFTWIRE_VECTORS_H
#define DRAFTWIRE_VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LANES 16

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float vec8 __attribute__((vector_size(2 * LANES), aligned(4)));
typedef float vec4 __attribute__((vector_size(LANES), aligned(4)));
typedef int32_t ivec4 __attribute__((vector_size(LANES), aligned(4)));
typedef uint32_t uvec4 __attribute__((vector_size(LANES), aligned(4), may_alias));
typedef uint16_t half4 __attribute__((vector_size(LANES / 2), aligned(2), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t u16vec __attribute__((vector_size(2 * LANES), aligned(2)));

#define INLINE static inline __attribute__((always_inline))

/* The elements of two vectors of a type that have the given indices; those of the second follow those of the first. */
#if defined(__clang__)
#define SHUFFLE(TYPE, FIRST, SECOND, ...) __builtin_shufflevector(FIRST, SECOND, __VA_ARGS__)
#else
#define SHUFFLE(TYPE, FIRST, SECOND, ...) __builtin_shuffle(FIRST, SECOND, (TYPE){__VA_ARGS__})
#endif

/* The kinds of vectors that code is compiled for, narrowest first. draftwire_use_vectors selects one of them. */
enum { BASELINE_VECTORS, AVX2_VECTORS, AVX512_VECTORS };
extern int32_t draftwire_vectors;

/* Defines the function NAME from the inlined NAME_body: one copy per kind of vectors, and the dispatch among them. */
#if defined(__x86_64__)
#define CLONED(NAME, PARAMETERS, ARGUMENTS)                                                                            \
    __attribute__((target("avx512f"))) static void NAME##_avx512 PARAMETERS { NAME##_body ARGUMENTS; }                 \
    __attribute__((target("avx2,fma"))) static void NAME##_avx2 PARAMETERS { NAME##_body ARGUMENTS; }                      \
    static void NAME##_baseline PARAMETERS { NAME##_body ARGUMENTS; }                                                  \
    static void NAME PARAMETERS {                                                                                      \
        if (draftwire_vectors == AVX512_VECTORS) NAME##_avx512 ARGUMENTS;                                              \
        else if (draftwire_vectors == AVX2_VECTORS) NAME##_avx2 ARGUMENTS;                                             \
        else NAME##_baseline ARGUMENTS;                                                                                \
    }
#else
#define CLONED(NAME, PARAMETERS, ARGUMENTS)                                                                            \
    static void NAME PARAMETERS { NAME##_body ARGUMENTS; }
#endif

/* CLONED for a Task of thread_pool.h. */
#define CLONED_TASK(NAME)                                                                                              \
    CLONED(NAME, (const void *call, int64_t first, int64_t last, int32_t thread_id), (call, first, last, thread_id))

/* Returns all ones where a < b, for integers whose difference is one as well. GCC splits comparisons of vectors that are
 * wider than the processor's into those of single elements, but not arithmetic. */
INLINE ivec less_ivec(ivec a, ivec b) { return (a - b) >> 31; }

/* Returns `yes` where all bits of `where` are set, and `no` where none is. */
INLINE vec select_vec(ivec where, vec yes, vec no) { return (vec)(((ivec)yes & where) | ((ivec)no & ~where)); }

/* Returns the bits of the magnitudes, which are ordered as these are. */
INLINE ivec size_bits(vec x) { return (ivec)x & 0x7fffffff; }

#define INFINITE_BITS ((ivec){0} + 0x7f800000)

/* Returns all ones where x is not a number. */
INLINE ivec is_nan_vec(vec x) { return less_ivec(INFINITE_BITS, size_bits(x)); }

/* Loads 16 elements, from index `at` on, as float32. */
INLINE vec load_vec(const void *from, int64_t at, int bf16) {
    if (bf16) {
        u16vec bits;
        memcpy(&bits, (const uint16_t *)from + at, sizeof bits);
        return (vec)(__builtin_convertvector(bits, uvec) << 16);
    }
    vec whole;
    memcpy(&whole, (const float *)from + at, sizeof whole);
    return whole;
}

/* Returns the sum of 16 floats, always added in the same order. */
INLINE float sum_vec(vec parts) {
    vec8 low, high;
    memcpy(&low, &parts, sizeof low);
    memcpy(&high, (char *)&parts + sizeof low, sizeof high);
    low = low + high;
    vec4 left, right;
    memcpy(&left, &low, sizeof left);
    memcpy(&right, (char *)&low + sizeof left, sizeof right);
    left = left + right;
    return (left[0] + left[2]) + (left[1] + left[3]);
}

#if defined(__aarch64__)

/* Returns a * b + c, rounded once. */
INLINE vec4 fma_vec4(vec4 a, vec4 b, vec4 c) { return (vec4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

/* Returns four 8-bit integers in memory, widened. */
INLINE ivec4 signed_vec4(const uint8_t *from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return (ivec4)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}

#else

INLINE ivec4 signed_vec4(const uint8_t *from) {
    return (ivec4){(int8_t)from[0], (int8_t)from[1], (int8_t)from[2], (int8_t)from[3]};
}

typedef double double4 __attribute__((vector_size(2 * 4 * sizeof(float)), aligned(4)));
typedef int64_t long4 __attribute__((vector_size(2 * 4 * sizeof(float)), aligned(4)));

/* Returns a * b + c, rounded once, without an instruction for it; code for AVX2 and AVX-512 uses theirs.
 *
 * The product is exact in float64. The sum is rounded to odd: where it is not exact, the neighbour with an odd last bit
 * is taken, and rounding that to float32 gives what rounding the exact sum gives (Boldo and Melquiond 2008). */
INLINE vec4 fma_vec4(vec4 a, vec4 b, vec4 c) {
    const double4 product = __builtin_convertvector(a, double4) * __builtin_convertvector(b, double4);
    const double4 addend = __builtin_convertvector(c, double4), sum = product + addend, back = sum - product;
    const double4 rest = (product - (sum - back)) + (addend - back); /* exact */
    const long4 above = rest > 0, below = rest < 0, positive = sum > 0, bits = (long4)sum;
    const long4 inexact_and_even = (above | below) & ((bits & 1) - 1);
    const long4 away_from_zero = ~(above ^ positive);
    return __builtin_convertvector((double4)(bits + (((away_from_zero & 2) - 1) & inexact_and_even)), vec4);
}

#endif

/* Returns the larger elements; those of either where one is not a number. The difference of unequal floats is not zero, so
 * that its sign compares them. */
INLINE vec larger_vec(vec a, vec b) { return select_vec((ivec)(b - a) >> 31, a, b); }

INLINE float largest_of_vec(vec parts) {
    float kept[LANES];
    memcpy(kept, &parts, sizeof kept);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) kept[i] = kept[i] > kept[i + width] ? kept[i] : kept[i + width];
    return kept[0];
}

/* Returns all ones where x < -87. x: at most 0, or not a number */
INLINE ivec exp_vec_vanishes(vec x) {
    const ivec size = size_bits(x), least = size_bits((vec){0} + 87);
    return ((least - size) & ~(INFINITE_BITS - size)) >> 31;
}

#define EXP_NAME exp_vec
#define EXP_TARGET
#define EXP_FLOATS vec
#define EXP_INTS ivec
#define EXP_SMALL exp_vec_vanishes
#include "exponential.h"

/* Returns 1 / (1 + e^-x). */
INLINE vec sigmoid_vec(vec x) {
    const vec e = exp_vec((vec)((uvec)x | 0x80000000));
    return select_vec((ivec)x >> 31, e, e * 0 + 1) / (1 + e);
}

/* Returns the hyperbolic tangent: an odd polynomial of degree 11 below 0.625 (Cephes), else by e^(-2 |x|). */
INLINE vec tanh_vec(vec x) {
    const uvec sign = (uvec)x & 0x80000000;
    const vec size = (vec)size_bits(x), square = x * x;
    const ivec small = less_ivec(size_bits(x), size_bits((vec){0} + 0.625f));
    vec p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    p = p * square * x + x;
    const vec e = exp_vec(size * -2), large = (vec)((uvec)((1 - e) / (1 + e)) | sign);
    return select_vec(small, p, large);
}

/* Returns the bits of x rounded to bfloat16 as torch rounds: to nearest, ties to even. */
INLINE uvec bf16_bits(vec x) {
    uvec bits = (uvec)x, odd = (bits >> 16) & 1;
    const uvec nan = (uvec)is_nan_vec(x);
    return (((bits + 0x7fff + odd) >> 16) & ~nan) | (0x7fc0 & nan);
}

/* Rounds to the model's dtype. */
INLINE vec round_vec(vec x, int bf16) { return bf16 ? (vec)(bf16_bits(x) << 16) : x; }

/* Widens four float16 numbers exactly. Their bits, moved to the places of float32's, are 2^-112 of their values. */
INLINE vec4 widen_half4(half4 half) {
    const uvec4 bits = __builtin_convertvector(half, uvec4), size = (bits & 0x7fff) << 13;
    const uvec4 whole = (uvec4)((vec4)size * 0x1p112f) | ((uvec4)(size >= 0x0f800000) & 0x7f800000);
    return (vec4)(whole | (bits & 0x8000) << 16);
}

/* Returns the bits of x rounded to float16, to nearest, ties to even, and to its range: at most 65504 in magnitude. */
INLINE uvec half_bits(vec x) {
    const uvec size = (uvec)size_bits(x), sign = (uvec)x >> 16 & 0x8000, nan = (uvec)is_nan_vec(x);
    const uvec large = (uvec)less_ivec((ivec){0} + 0x477fe000, (ivec)size);
    const uvec tiny = (uvec)less_ivec((ivec)size, (ivec){0} + 0x38800000);
    const uvec normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    /* Adding 1/2 rounds to multiples of 2^-24, the least float16. */
    const uvec subnormal = (uvec)((vec)(size & tiny) + 0.5f) - 0x3f000000;
    const uvec finite = (subnormal & tiny) | (normal & ~tiny & ~large) | (0x7bff & large);
    return (finite & ~nan) | (0x7e00 & nan) | sign;
}

/* Stores 16 elements, from index `at` on, rounded to the model's dtype. */
INLINE void store_vec(void *to, int64_t at, vec x, int bf16) {
    if (bf16) {
        u16vec bits = __builtin_convertvector(bf16_bits(x), u16vec);
        memcpy((uint16_t *)to + at, &bits, sizeof bits);
    } else {
        memcpy((float *)to + at, &x, sizeof x);
    }
}

#endif
