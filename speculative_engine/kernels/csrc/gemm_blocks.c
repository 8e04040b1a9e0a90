/* The product of rows and a weight quantised in blocks of 32 inputs, for few rows.
 *
 * A row is rounded to 8 bits per block of 32 inputs, by x = unit * q with unit = max |x| / 127. The products of a block
 * are summed as integers, which is exact in any order. Then each output adds its blocks in the order of inputs, by one
 * fused multiply-add of float32 per block (two where blocks have a least value). A row's bits therefore depend neither
 * on the other rows nor on the kind of vectors: all kinds, and plain C, give the same.
 *
 * A packed weight is divided into groups of 16 outputs, a group into superblocks of 256 inputs, which lie in the order in
 * which they are read: a processor then reads a group as one stream. A superblock consists of these parts, each of them
 * for its 8 blocks, of which the last superblock's quants may have fewer:
 *
 *   scales  16 float16 (Q8_0, Q4_0), 16 exponents (MXFP4), 16 scales and 16 least values in units of the superblock's
 *           (Q4_K, Q5_K), or 16 scales of the first and 16 of the second half of a block (Q6_K), in 8 bits
 *   supers  of the whole superblock: 16 float16 scales, then 16 units of least values (Q4_K, Q5_K) or nothing (Q6_K)
 *   quants  of each block its high bits, then the low 4 bits or all 8. A line of 64 bytes holds STEP inputs of each of 16
 *           outputs. A block of 8-bit weights has 8 lines, for steps 0 to 7; of others 4, which hold step s in the low
 *           halves of the bytes and step s + 4 in the high halves. The high bits are the fifth ones (Q5_K): a line, whose
 *           bit s belongs to step s; or bits 5 and 6 (Q6_K): two lines, for steps 0 to 3 and 4 to 7, two bits per step.
 *
 * GROUP4 and GROUP8 have quants alone there. Behind all superblocks of a group follow their scales, 16 float32 per group
 * of inputs, and their zero points, 16 per group of inputs, between 0 and the largest integer.
 *
 * GROUP4 and GROUP8 are integers with a float32 scale and a zero point per group of any number of blocks, such as all
 * inputs; those of 8 bits are stored less 128. The other formats are those of GGUF
 * (https://github.com/ggml-org/ggml) and of the OCP microscaling specification.
 */
#include "block_scales.h"
#include "gemm.h"
#include "thread_pool.h"
#include "vectors.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define GROUP 16            /* outputs */
#define BLOCK 32            /* inputs */
#define STEP 4              /* inputs that are multiplied at once */
#define STEPS (BLOCK / STEP)
#define SUPERBLOCK 8        /* blocks */
#define LINE 64             /* bytes */
#define LEAST_BYTES 131072  /* of weight; with less, waking a thread costs more than it saves */
#define LEAST_ROUNDED 32768 /* elements, likewise */

/* Bytes ahead of which weights are prefetched where groups are read in order. A processor that reads them faster so than
 * side by side prefetches little by itself. */
#define IN_ORDER_AHEAD 12288
#define IN_ORDER_AHEAD_OF_ONE 6144

/* Calls a macro with the name and the number of every type in blocks. */
#define EVERY_BLOCK_TYPE(DO)                                                                                           \
    DO(q8_0, Q8_0_WEIGHT) DO(q4_0, Q4_0_WEIGHT) DO(q4_k, Q4_K_WEIGHT) DO(q5_k, Q5_K_WEIGHT) DO(q6_k, Q6_K_WEIGHT)       \
    DO(mxfp4, MXFP4_WEIGHT) DO(group4, GROUP4_WEIGHT) DO(group8, GROUP8_WEIGHT)

#define EIGHT_BITS(TYPE) ((TYPE) == Q8_0_WEIGHT || (TYPE) == GROUP8_WEIGHT)
#define IN_SUPERS(TYPE) (WITH_LEAST(TYPE) || (TYPE) == Q6_K_WEIGHT)
#define WITH_LEAST(TYPE) ((TYPE) == Q4_K_WEIGHT || (TYPE) == Q5_K_WEIGHT)
#define IN_GROUPS(TYPE) ((TYPE) == GROUP4_WEIGHT || (TYPE) == GROUP8_WEIGHT)

/* The value that stands for zero in unsigned weights. */
#define ZERO_OF(TYPE) ((TYPE) == Q4_0_WEIGHT ? 8 : (TYPE) == Q6_K_WEIGHT ? 32 : (TYPE) == MXFP4_WEIGHT ? 12 : 0)

#define EIGHTS (BLOCK / 8) /* vectors of eight elements per block */

typedef int32_t ivec8 __attribute__((vector_size(2 * LANES), aligned(4)));
typedef uint32_t uvec8 __attribute__((vector_size(2 * LANES), aligned(4)));
typedef int16_t i16vec8 __attribute__((vector_size(LANES), aligned(2)));
typedef uint16_t u16vec8 __attribute__((vector_size(LANES), aligned(2)));
typedef int8_t i8vec8 __attribute__((vector_size(LANES / 2), aligned(1)));

/* Twice the values of MXFP4, plus 12. */
#define MXFP4_VALUES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

/* Whether groups of outputs are read one after the other, instead of several side by side. */
static int32_t blocks_in_order;

void draftwire_read_blocks_in_order(int32_t in_order) { blocks_in_order = in_order; }

/* The parts of a superblock of one group of outputs. */
typedef struct {
    const uint8_t *first, *quants, *scales, *supers;
    uint32_t before, per_scale; /* of GROUP4 and GROUP8: blocks before this one, and per group of inputs */
} Packed;

/* The rows as they are multiplied, in the working memory. Each part has an entry per row and block. */
typedef struct {
    int8_t *quants; /* BLOCK each */
    float *units;   /* 1 each */
    float *shares;  /* 1 each: the sum of all quants times the unit, which least values (Q4_K, Q5_K) are multiplied by */
    float *sums;    /* 2 each: of all quants, and of those of the second half; whole numbers */
    int32_t *starts; /* 2 each: what a block's sums begin with so that unsigned weights need not be made signed: of the
                      * whole block, or of each half (Q6_K) */
} Rounded;

INLINE Rounded rounded_rows(const Gemm *p) {
    const int64_t blocks = p->row_count * (p->inputs / BLOCK);
    float *units = p->working + blocks * BLOCK / 4, *shares = units + blocks, *sums = shares + blocks;
    return (Rounded){(int8_t *)p->working, units, shares, sums, (int32_t *)(sums + 2 * blocks)};
}

/* The entries from `at` on. */
INLINE Rounded rounded_from(Rounded x, int64_t at) {
    return (Rounded){x.quants + at * BLOCK, x.units + at, x.shares + at, x.sums + 2 * at, x.starts + 2 * at};
}

/* The bytes of a block's high bits, and of all its quants. */
INLINE int64_t high_bytes(int type) { return LINE * (type == Q5_K_WEIGHT ? 1 : type == Q6_K_WEIGHT ? 2 : 0); }
INLINE int64_t quant_bytes(int type) { return high_bytes(type) + (EIGHT_BITS(type) ? STEPS : STEPS / 2) * LINE; }

/* The bytes of a superblock's scales, and of its supers. */
INLINE int64_t scale_bytes(int type) {
    return IN_GROUPS(type) ? 0 : SUPERBLOCK * (type == MXFP4_WEIGHT ? GROUP : 2 * GROUP);
}
INLINE int64_t super_bytes(int type) { return IN_SUPERS(type) ? LINE : 0; }

/* The bytes of a whole superblock. */
INLINE int64_t superblock_bytes(int type) {
    return scale_bytes(type) + super_bytes(type) + SUPERBLOCK * quant_bytes(type);
}

/* Returns the parts of the superblock of a group of outputs that begins with block `before`. */
INLINE Packed packed_superblock(const Gemm *p, int64_t group, int64_t before, int type) {
    const int64_t blocks = p->inputs / BLOCK, missing = -blocks & (SUPERBLOCK - 1);
    const int64_t parts = IN_GROUPS(type) ? p->inputs / p->group : 0;
    const int64_t size = (blocks + missing) / SUPERBLOCK * superblock_bytes(type) - missing * quant_bytes(type);
    const uint8_t *first = (const uint8_t *)p->weight + group * (size + parts * 5 * GROUP), *behind = first + size;
    const uint8_t *at = first + before / SUPERBLOCK * superblock_bytes(type);
    Packed w = {.first = at, .scales = at, .supers = at + scale_bytes(type)};
    w.quants = w.supers + super_bytes(type);
    if (IN_GROUPS(type)) {
        w.scales = behind, w.supers = behind + parts * 4 * GROUP;
        w.before = (uint32_t)before, w.per_scale = (uint32_t)(p->group / BLOCK);
    }
    return w;
}

/* Returns where a block of a superblock has its quants. */
INLINE const uint8_t *block_quants(const Packed *w, int64_t block, int type) {
    return w->quants + block * quant_bytes(type);
}

/* Makes a compiler forget what it knows about the value of a pointer. */
#define FORGET(POINTER) __asm__("" : "+r"(POINTER))

/* Prefetches a block's share of a superblock that lies `ahead` bytes behind w: as many lines in each, of which some are
 * the next block's. As GCC compiles them, the 5 lines of 4-bit weights take less time without a loop, the 9 of 8-bit
 * weights with one. */
INLINE void prefetch_share(const Packed *w, int64_t block, int64_t ahead, int type) {
    const int64_t lines = superblock_bytes(type) / LINE, share = (lines + SUPERBLOCK - 1) / SUPERBLOCK;
    const uint8_t *at = w->first + lines * block / SUPERBLOCK * LINE + ahead;
#ifndef __clang__
#pragma GCC unroll 5
#endif
    for (int64_t i = 0; i < share; i++) __builtin_prefetch(at + i * LINE, 0, 2);
}

/* Returns the larger integers, of which none is negative. */
#define LARGER(A, B) ((A) - (((A) - (B)) & ((A) - (B)) >> 31))

/* Returns the largest of 8 integers, of which none is negative. */
INLINE int32_t largest_of_ivec8(ivec8 x) {
    ivec4 a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, (char *)&x + sizeof a, sizeof b);
    a = LARGER(a, b);
    const int32_t left = a[0] > a[1] ? a[0] : a[1], right = a[2] > a[3] ? a[2] : a[3];
    return left > right ? left : right;
}

/* Returns the sum of 8 integers. */
INLINE int32_t sum_of_ivec8(ivec8 x) {
    ivec4 a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, (char *)&x + sizeof a, sizeof b);
    a += b;
    return a[0] + a[1] + a[2] + a[3];
}

/* Loads 8 elements, from index `at` on, as float32. */
INLINE vec8 load_vec8(const void *from, int64_t at, int bf16) {
    typedef vec8 vec8_in_memory __attribute__((may_alias));
    if (!bf16) return *(const vec8_in_memory *)((const float *)from + at);
    u16vec8 bits;
    memcpy(&bits, (const uint16_t *)from + at, sizeof bits);
    return (vec8)(__builtin_convertvector(bits, uvec8) << 16);
}

/* Rounds a block of a row. A block with an infinite element or one that is not a number gets the unit NaN. These vectors
 * are no wider than those of AVX2, as GCC passes wider ones through memory. */
INLINE void round_block(const vec8 *x, Rounded to, int zero, int halves) {
    ivec8 sizes[EIGHTS]; /* are ordered as their bits are */
    for (int i = 0; i < EIGHTS; i++) sizes[i] = (ivec8)x[i] & 0x7fffffff;
    const ivec8 left = LARGER(sizes[0], sizes[1]), right = LARGER(sizes[2], sizes[3]);
    const int32_t largest = largest_of_ivec8(LARGER(left, right));
    if (largest >= 0x7f800000) {
        memset(to.quants, 0, BLOCK);
        *to.units = *to.shares = NAN, to.sums[0] = to.sums[1] = 0, to.starts[0] = to.starts[1] = 0;
        return;
    }
    float most;
    memcpy(&most, &largest, sizeof most);
    float per_unit = most > 0 ? 127.0f / most : 0;
    if (per_unit > FLT_MAX) per_unit = FLT_MAX; /* of a block of tiny elements */
    *to.units = most / 127.0f;
    ivec8 sums[2] = {{0}, {0}}; /* of each half */
    for (int i = 0; i < EIGHTS; i++) {
        /* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. */
        const ivec8 whole = __builtin_convertvector((x[i] * per_unit + 12582912.0f) - 12582912.0f, ivec8);
        const i8vec8 quants = __builtin_convertvector(__builtin_convertvector(whole, i16vec8), i8vec8);
        memcpy(to.quants + 8 * i, &quants, sizeof quants);
        sums[i / (EIGHTS / 2)] += whole;
    }
    const int32_t of_all = sum_of_ivec8(sums[0] + sums[1]), of_right = sum_of_ivec8(sums[1]);
    to.sums[0] = (float)of_all, to.sums[1] = (float)of_right;
    *to.shares = to.sums[0] * *to.units;
    to.starts[0] = -zero * (halves ? of_all - of_right : of_all), to.starts[1] = -zero * of_right;
}

INLINE void round_blocks_of(const Gemm *p, int64_t first, int64_t last, int most, int zero, int bf16) {
    const int64_t blocks = (p->row_count + most - 1) / most, across = p->inputs / BLOCK;
    const Rounded into = rounded_rows(p);
    const int halves = p->type == Q6_K_WEIGHT;
    for (int64_t block = first; block < last; block++) {
        const int64_t begin = p->row_count * block / blocks, count = p->row_count * (block + 1) / blocks - begin;
        for (int64_t r = 0; r < count; r++)
            for (int64_t b = 0; b < across; b++) {
                const int64_t at = (begin + r) * p->inputs + b * BLOCK;
                vec8 x[EIGHTS];
                for (int i = 0; i < EIGHTS; i++) x[i] = load_vec8(p->rows, at + 8 * i, bf16);
                round_block(x, rounded_from(into, begin * across + b * count + r), zero, halves);
            }
    }
}

/* Rounds blocks `first` to `last` - 1 of rows, of at most `most` rows each. Those of a block of rows are interleaved:
 * [inputs / BLOCK, rows of the block, BLOCK]. zero: what stands for zero in the weights, where sums begin with its share */
INLINE void round_blocks(const Gemm *p, int64_t first, int64_t last, int most, int zero) {
    if (p->wide_rows) round_blocks_of(p, first, last, most, zero, 0);
    else round_blocks_of(p, first, last, most, zero, 1);
}

/* Rounds all rows, and multiplies them by all groups of outputs. most: rows that are rounded together. beside: groups that
 * are multiplied side by side; the units that `multiply` takes are so many groups */
static void run(const Gemm *p, Task round_rows, Task multiply, int64_t most, int64_t beside, int32_t threads) {
    const int64_t units = (p->outputs + beside * GROUP - 1) / (beside * GROUP), blocks = (p->row_count + most - 1) / most;
    const int64_t rounded = most * p->inputs, work = beside * GROUP * p->inputs * (blocks ? blocks : 1);
    draftwire_parallel_for(round_rows, p, blocks, (LEAST_ROUNDED + rounded - 1) / rounded, threads);
    draftwire_parallel_for(multiply, p, units, (LEAST_BYTES + work - 1) / work, threads);
}

/* Plain C, one row at a time, for processors without the vectors below. */

/* Returns the weight of input `i` of a step for output `o` of a group; unsigned, except for 8 bits. */
static int plain_weight(const Packed *w, int64_t block, int step, int o, int i, int type) {
    static const uint8_t values[16] = {MXFP4_VALUES};
    const int at = o * STEP + i;
    const uint8_t *high = block_quants(w, block, type) + at, *quants = high + high_bytes(type);
    if (EIGHT_BITS(type)) return (int8_t)quants[step * LINE];
    const int low = quants[step % 4 * LINE] >> (step < 4 ? 0 : 4) & 15;
    if (type == MXFP4_WEIGHT) return values[low];
    if (type == Q5_K_WEIGHT) return low | (*high >> step & 1) << 4;
    if (type == Q6_K_WEIGHT) return low | (high[step / 4 * LINE] >> 2 * (step % 4) & 3) << 4;
    return low;
}

static void plain_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int64_t blocks = p->inputs / BLOCK;
    const int type = p->type, zero = ZERO_OF(type);
    const Rounded x = rounded_rows(p);
    (void)thread_id;
    for (int64_t group = first; group < last; group++)
        for (int64_t row = 0; row < p->row_count; row++) {
            float totals[GROUP] = {0};
            for (int64_t all = 0; all < blocks; all++) {
                const int64_t at = row * blocks + all, block = all % SUPERBLOCK;
                const Packed w = packed_superblock(p, group, all - block, type);
                for (int o = 0; o < GROUP; o++) {
                    const float unit = x.units[at];
                    const int32_t of_all = (int32_t)x.sums[2 * at], of_right = (int32_t)x.sums[2 * at + 1];
                    const uint8_t *scales = w.scales + block * 32;
                    int32_t left = -zero * (of_all - of_right), right = -zero * of_right, sum;
                    for (int step = 0; step < STEPS; step++)
                        for (int i = 0; i < STEP; i++) {
                            const int32_t weight = plain_weight(&w, block, step, o, i, type);
                            *(step < 4 ? &left : &right) += weight * x.quants[at * BLOCK + STEP * step + i];
                        }
                    sum = left + right;
                    float scale;
                    if (IN_GROUPS(type)) {
                        const int64_t place = (w.before + block) / w.per_scale * GROUP + o;
                        memcpy(&scale, w.scales + 4 * place, sizeof scale);
                        sum -= (w.supers[place] - (type == GROUP8_WEIGHT ? 128 : 0)) * of_all;
                    } else if (type == MXFP4_WEIGHT) {
                        scale = half_of_power(w.scales[block * GROUP + o]);
                    } else if (type == Q6_K_WEIGHT) {
                        scale = float_of_half(w.supers + 2 * o);
                        sum = (int8_t)scales[o] * left + (int8_t)scales[GROUP + o] * right;
                    } else if (WITH_LEAST(type)) {
                        scale = float_of_half(w.supers + 2 * o) * (float)scales[o];
                    } else {
                        scale = float_of_half(scales + 2 * o);
                    }
                    totals[o] = fmaf(scale * unit, (float)sum, totals[o]);
                    if (WITH_LEAST(type)) {
                        const float least = float_of_half(w.supers + 32 + 2 * o) * (float)scales[GROUP + o];
                        totals[o] = fmaf(-least, x.shares[at], totals[o]);
                    }
                }
            }
            store_sums(p, row, group * GROUP, totals);
        }
}

static void plain_round_rows(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    round_blocks(call, first, last, 1, 0);
}

#if defined(__x86_64__)

#include <immintrin.h>

typedef int32_t unaligned_int __attribute__((may_alias, aligned(1)));

#define BLOCK_NAME(NAME) avx2_##NAME
#define BLOCK_TARGET __attribute__((target("avx2,fma,f16c")))
#define BLOCK_ROWS 16
#define BLOCK_STREAMS 4
#define BLOCK_AHEAD 2048
#define BLOCK_AHEAD_OF_ONE 0
#define BLOCK_WHOLE 0
#define BLOCK_MADDUBS 1
#include "gemm_blocks_256.h"
#include "gemm_blocks.h"

#define BLOCK_NAME(NAME) avxvnni_##NAME
#define BLOCK_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define BLOCK_ROWS 16
#define BLOCK_STREAMS 4
#define BLOCK_AHEAD 2048
#define BLOCK_AHEAD_OF_ONE 0
#define BLOCK_WHOLE 0
#define BLOCK_MADDUBS 0
#define BLOCK_DOT _mm256_dpbusd_avx_epi32
#include "gemm_blocks_256.h"
#include "gemm_blocks.h"

/* The same for processors with AVX-512's encoding of it, on which the code above is thus tried. */
#define BLOCK_NAME(NAME) vnni256_##NAME
#define BLOCK_TARGET __attribute__((target("avx2,fma,f16c,avx512vl,avx512vnni")))
#define BLOCK_ROWS 16
#define BLOCK_STREAMS 4
#define BLOCK_AHEAD 2048
#define BLOCK_AHEAD_OF_ONE 0
#define BLOCK_WHOLE 0
#define BLOCK_MADDUBS 0
#define BLOCK_DOT _mm256_dpbusd_epi32
#include "gemm_blocks_256.h"
#include "gemm_blocks.h"

#define BLOCK_NAME(NAME) vnni_##NAME
#define BLOCK_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define BLOCK_LANES 16
#define BLOCK_ROWS 8
#define BLOCK_STREAMS 4
#define BLOCK_AHEAD 2048
#define BLOCK_AHEAD_OF_ONE 1024
#define BLOCK_WHOLE 1
#define BLOCK_MADDUBS 0
#define BLOCK_INT __m512i
#define BLOCK_FLOAT __m512
#define BLOCK_LOAD _mm512_loadu_si512
#define BLOCK_FOUR(FROM) _mm512_set1_epi32(*(const unaligned_int *)(FROM))
#define BLOCK_BYTES _mm512_set1_epi8
#define BLOCK_NONE _mm512_setzero_si512
#define BLOCK_FLOATS _mm512_set1_ps
#define BLOCK_LOAD_FLOATS _mm512_loadu_ps
#define BLOCK_AND _mm512_and_si512
#define BLOCK_OR _mm512_or_si512
#define BLOCK_XOR _mm512_xor_si512
#define BLOCK_LEFT _mm512_slli_epi16
#define BLOCK_RIGHT _mm512_srli_epi16
#define BLOCK_DOT _mm512_dpbusd_epi32
#define BLOCK_ADD _mm512_add_epi32
#define BLOCK_SUBTRACT _mm512_sub_ps
#define BLOCK_TO_FLOAT _mm512_cvtepi32_ps
#define BLOCK_MULTIPLY _mm512_mul_ps
#define BLOCK_FMA _mm512_fmadd_ps
#define BLOCK_NEGATIVE_FMA _mm512_fnmadd_ps
#define BLOCK_STORE _mm512_storeu_ps
#define BLOCK_HALVES(FROM) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(FROM)))
#define BLOCK_SIGNED(FROM) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(FROM)))
#define BLOCK_UNSIGNED(FROM) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(FROM)))
#define BLOCK_LOOK_UP(BYTES) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_setr_epi8(MXFP4_VALUES)), BYTES)
#define BLOCK_E8M0 vnni_half_of_power

BLOCK_TARGET static inline __m512 vnni_half_of_power(const uint8_t *exponents) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)exponents)), two = _mm512_set1_epi32(2);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, two), usual, small));
}

#include "gemm_blocks.h"
#include "gemm_blocks_amx.h"

#endif

#if defined(__aarch64__)

/* NEON_DOT without an instruction for it. */
static inline int32x4_t dot_of_pairs(int32x4_t sum, int8x16_t weights, int8x16_t x) {
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(x)), high = vmull_high_s8(weights, x);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

#define NEON_NAME(NAME) neon_##NAME
#define NEON_TARGET
#define NEON_I8MM 0
#define NEON_DOT dot_of_pairs
#include "gemm_blocks_neon.h"

#define NEON_NAME(NAME) dotprod_##NAME
#define NEON_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define NEON_I8MM 0
#define NEON_DOT vdotq_s32
#include "gemm_blocks_neon.h"

#define NEON_NAME(NAME) i8mm_##NAME
#define NEON_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define NEON_I8MM 1
#define NEON_DOT vdotq_s32
#include "gemm_blocks_neon.h"

#endif

void multiply_blocks(const Gemm *p, int32_t kind, int32_t threads) {
#if defined(__x86_64__)
    if (kind == AMX_GEMM) amx_gemm(p, threads);
    else if (kind >= AVX512VNNI_GEMM) vnni_gemm(p, threads);
    else if (kind == AVXVNNI_GEMM) draftwire_has_avx_vnni() ? avxvnni_gemm(p, threads) : vnni256_gemm(p, threads);
    else if (kind >= AVX2_GEMM) avx2_gemm(p, threads);
    else run(p, plain_round_rows, plain_groups, 1, 1, threads);
#elif defined(__aarch64__)
    if (kind == I8MM_GEMM) i8mm_gemm(p, threads);
    else if (kind == DOTPROD_GEMM) dotprod_gemm(p, threads);
    else if (kind == NEON_GEMM) neon_gemm(p, threads);
    else run(p, plain_round_rows, plain_groups, 1, 1, threads);
#else
    (void)kind;
    run(p, plain_round_rows, plain_groups, 1, 1, threads);
#endif
}
