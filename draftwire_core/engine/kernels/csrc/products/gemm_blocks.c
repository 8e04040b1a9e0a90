/* The product of rows and a weight quantised in blocks of 32 inputs, for few rows.
 *
 * A row is rounded to 8 bits per block of 32 inputs, by x = unit * q with unit = max |x| / 127. The products of a block
 * are summed as integers, which is exact in any order. Then each output adds its blocks in the order of inputs, by one
 * fused multiply-add of float32 per block; blocks with a minimum (Q4_1, Q5_1) need another one for it. Q4_K, Q5_K and
 * Q6_K have superblocks of 8 blocks, whose own scales are integers: there a row is rounded per superblock, and so are its products summed as integers, scales and least values
 * included. A row's bits therefore depend neither on the other rows nor on the kind of vectors: all kinds, and plain C,
 * give the same.
 *
 * A packed weight is divided into groups of 16 outputs, a group into superblocks of 256 inputs, which lie in the order in
 * which they are read: a processor then reads a group as one stream. A superblock begins with its supers. Then come its
 * blocks, up to 8 in the last superblock: a line of 64 bytes with the scales of 1, 2 or 4 of them, followed by their quants.
 *
 *   supers  of the whole superblock: 16 float16 scales, then 16 units of least values (Q4_K, Q5_K) or nothing (Q6_K)
 *   scales  of a block: 16 float16 (Q8_0, Q4_0, Q5_0), followed by 16 minima of that type (Q4_1, Q5_1), 16 exponents
 *           (MXFP4), 16 scales and 16 least values in units of the superblock's (Q4_K, Q5_K), or 16 scales of the first and
 *           16 of the second half of a block (Q6_K), in 8 bits
 *   quants  of a block: its high bits, then the low 4 bits or all 8. A line of 64 bytes holds STEP inputs of each of 16
 *           outputs. A block of 8-bit weights has 8 lines, for steps 0 to 7; of others 4, which hold step s in the low
 *           halves of the bytes and step s + 4 in the high halves. The high bits are the fifth ones (Q5_0, Q5_1, Q5_K): a
 *           line, whose bit s belongs to step s; or bits 5 and 6 (Q6_K): two lines, for steps 0 to 3 and 4 to 7, two
 *           bits per step.
 *
 * GROUP4 and GROUP8 have quants alone there. Behind all superblocks of a group follow their scales, 16 float32 per group
 * of inputs, and their zero points, 16 per group of inputs, between 0 and the largest integer.
 *
 * GROUP4 and GROUP8 are integers with a float32 scale and a zero point per group of any number of blocks, such as all
 * inputs; those of 8 bits are stored less 128. The other formats are those of GGUF
 * (https://github.com/ggml-org/ggml) and of the OCP microscaling specification.
 */
#include "products/block_scales.h"
#include "products/gemm.h"
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
    DO(q8_0, Q8_0_WEIGHT) DO(q4_0, Q4_0_WEIGHT) DO(q4_1, Q4_1_WEIGHT) DO(q5_0, Q5_0_WEIGHT) DO(q5_1, Q5_1_WEIGHT)       \
    DO(q4_k, Q4_K_WEIGHT) DO(q5_k, Q5_K_WEIGHT) DO(q6_k, Q6_K_WEIGHT) DO(mxfp4, MXFP4_WEIGHT)                           \
    DO(group4, GROUP4_WEIGHT) DO(group8, GROUP8_WEIGHT)

#define EIGHT_BITS(TYPE) ((TYPE) == Q8_0_WEIGHT || (TYPE) == GROUP8_WEIGHT)
#define IN_SUPERS(TYPE) (WITH_LEAST(TYPE) || (TYPE) == Q6_K_WEIGHT)
#define WITH_LEAST(TYPE) ((TYPE) == Q4_K_WEIGHT || (TYPE) == Q5_K_WEIGHT)
#define WITH_MINIMUM(TYPE) ((TYPE) == Q4_1_WEIGHT || (TYPE) == Q5_1_WEIGHT)
#define FIVE_BITS(TYPE) ((TYPE) == Q5_0_WEIGHT || (TYPE) == Q5_1_WEIGHT || (TYPE) == Q5_K_WEIGHT)
#define IN_GROUPS(TYPE) ((TYPE) == GROUP4_WEIGHT || (TYPE) == GROUP8_WEIGHT)

/* The value that stands for zero in unsigned weights. */
#define ZERO_OF(TYPE)                                                                                                  \
    ((TYPE) == Q4_0_WEIGHT ? 8 : (TYPE) == Q5_0_WEIGHT ? 16 : (TYPE) == Q6_K_WEIGHT ? 32 : (TYPE) == MXFP4_WEIGHT ? 12 : 0)

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
    const uint8_t *supers, *blocks;
    const uint8_t *scales, *zeros; /* of GROUP4 and GROUP8, as the next two: those of all groups of inputs */
    uint32_t before, per_scale;    /* blocks before this one, and per group of inputs */
} Packed;

/* The rows as they are multiplied, in the working memory. Each part has an entry per row and block. The entries of the
 * first block of a superblock hold what is rounded or summed per superblock (Q4_K, Q5_K, Q6_K). */
typedef struct {
    int8_t *quants;  /* BLOCK each */
    float *units;    /* 1 each */
    float *sums;     /* 1 each: of all quants; whole numbers. Not of superblocks */
    int32_t *starts; /* 1 each: what a block's sums begin with so that unsigned weights need not be made signed. Not of
                      * superblocks */
    int16_t *parts;  /* 2 each, of superblocks alone: row by row, the sums of the quants of each block of a superblock
                      * (Q4_K, Q5_K), or of each half of its blocks (Q6_K) */
} Rounded;

INLINE Rounded rounded_rows(const Gemm *p) {
    const int64_t blocks = p->row_count * (p->inputs / BLOCK);
    float *units = p->working + blocks * BLOCK / 4, *sums = units + blocks;
    int32_t *starts = (int32_t *)(sums + blocks);
    return (Rounded){(int8_t *)p->working, units, sums, starts, (int16_t *)(starts + blocks)};
}

/* The entries from `at` on. */
INLINE Rounded rounded_from(Rounded x, int64_t at) {
    return (Rounded){x.quants + at * BLOCK, x.units + at, x.sums + at, x.starts + at, x.parts + 2 * at};
}

/* The sums of quants of row r of a superblock, of which x are the entries. */
INLINE int16_t *parts_of(Rounded x, int r) { return x.parts + 2 * SUPERBLOCK * r; }

/* The bytes of a block's high bits, and of all its quants. */
INLINE int64_t high_bytes(int type) { return LINE * (FIVE_BITS(type) ? 1 : type == Q6_K_WEIGHT ? 2 : 0); }
INLINE int64_t quant_bytes(int type) { return high_bytes(type) + (EIGHT_BITS(type) ? STEPS : STEPS / 2) * LINE; }

/* The bytes of a block's scales, and the blocks whose scales share a line; and that line's bytes. */
INLINE int64_t scale_bytes(int type) { return GROUP * (type == MXFP4_WEIGHT ? 1 : WITH_MINIMUM(type) ? 4 : 2); }
INLINE int64_t blocks_per_line(int type) { return IN_GROUPS(type) ? SUPERBLOCK : LINE / scale_bytes(type); }
INLINE int64_t line_bytes(int type) { return IN_GROUPS(type) ? 0 : LINE; }

/* The bytes of `count` blocks, from a line of scales on; of a superblock's supers; and of a whole superblock. */
INLINE int64_t blocks_bytes(int64_t count, int type) {
    return (count + blocks_per_line(type) - 1) / blocks_per_line(type) * line_bytes(type) + count * quant_bytes(type);
}
INLINE int64_t super_bytes(int type) { return IN_SUPERS(type) ? LINE : 0; }
INLINE int64_t superblock_bytes(int type) { return super_bytes(type) + blocks_bytes(SUPERBLOCK, type); }

/* Returns the parts of the superblock of a group of outputs that begins with block `before`. */
INLINE Packed packed_superblock(const Gemm *p, int64_t group, int64_t before, int type) {
    const int64_t blocks = p->inputs / BLOCK, parts = IN_GROUPS(type) ? p->inputs / p->group : 0;
    const int64_t size = blocks_bytes(blocks, type) + blocks / SUPERBLOCK * super_bytes(type);
    const uint8_t *first = (const uint8_t *)p->weight + group * (size + parts * 5 * GROUP), *behind = first + size;
    Packed w = {.supers = first + before / SUPERBLOCK * superblock_bytes(type)};
    w.blocks = w.supers + super_bytes(type);
    if (IN_GROUPS(type)) {
        w.scales = behind, w.zeros = behind + parts * 4 * GROUP;
        w.before = (uint32_t)before, w.per_scale = (uint32_t)(p->group / BLOCK);
    }
    return w;
}

/* Return where a block of a superblock has its quants, and its scales; those of GROUP4 and GROUP8 are elsewhere. */
INLINE const uint8_t *block_quants(const Packed *w, int64_t block, int type) {
    return w->blocks + (block / blocks_per_line(type) + 1) * line_bytes(type) + block * quant_bytes(type);
}
INLINE const uint8_t *block_scales(const Packed *w, int64_t block, int type) {
    const int64_t within = block % blocks_per_line(type);
    return w->blocks + blocks_bytes(block - within, type) + within * scale_bytes(type);
}

/* Makes a compiler forget what it knows about the value of a pointer. */
#define FORGET(POINTER) __asm__("" : "+r"(POINTER))

/* Prefetches a block's share of a superblock that lies `ahead` bytes behind w: as many lines in each, of which some are
 * the next block's. As GCC compiles them, the 5 lines of 4-bit weights take less time without a loop, the 9 of 8-bit
 * weights with one. */
INLINE void prefetch_share(const Packed *w, int64_t block, int64_t ahead, int type) {
    const int64_t lines = superblock_bytes(type) / LINE, share = (lines + SUPERBLOCK - 1) / SUPERBLOCK;
    const uint8_t *at = w->supers + lines * block / SUPERBLOCK * LINE + ahead;
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

/* How elements are rounded that share a unit. */
typedef struct {
    float per_unit; /* by which they are multiplied */
    float unit;     /* NaN if one of them is infinite or not a number; then all quants are 0 */
} Rounding;

/* Returns how to round elements of which the largest magnitude has these bits. */
INLINE Rounding rounding_of(int32_t largest) {
    if (largest >= 0x7f800000) return (Rounding){0, NAN};
    float most;
    memcpy(&most, &largest, sizeof most);
    const float per_unit = most > 0 ? 127.0f / most : 0; /* infinite for tiny elements */
    return (Rounding){per_unit > FLT_MAX ? FLT_MAX : per_unit, most / 127.0f};
}

/* Returns 8 magnitudes of a block, from index `at` on, the largest among them. They are integers: floats are ordered as
 * their bits are. These vectors are no wider than those of AVX2, as GCC passes wider ones through memory. */
INLINE ivec8 sizes_of(const void *rows, int64_t at, int bf16) {
    ivec8 sizes[EIGHTS];
    for (int i = 0; i < EIGHTS; i++) sizes[i] = (ivec8)load_vec8(rows, at + 8 * i, bf16) & 0x7fffffff;
    const ivec8 left = LARGER(sizes[0], sizes[1]), right = LARGER(sizes[2], sizes[3]);
    return LARGER(left, right);
}

/* Rounds a block, from index `at` on. sums: those of the quants of each half */
INLINE void round_block(const void *rows, int64_t at, int bf16, Rounding by, int8_t *quants, int32_t *sums) {
    ivec8 of_half[2] = {{0}, {0}};
    for (int i = 0; i < EIGHTS; i++) {
        /* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. */
        const vec8 x = load_vec8(rows, at + 8 * i, bf16) * by.per_unit;
        const ivec8 whole = __builtin_convertvector((x + 12582912.0f) - 12582912.0f, ivec8);
        const i8vec8 rounded = __builtin_convertvector(__builtin_convertvector(whole, i16vec8), i8vec8);
        memcpy(quants + 8 * i, &rounded, sizeof rounded);
        of_half[i / (EIGHTS / 2)] += whole;
    }
    sums[0] = sum_of_ivec8(of_half[0]), sums[1] = sum_of_ivec8(of_half[1]);
}

INLINE void round_blocks_of(const Gemm *p, int64_t first, int64_t last, int most, int zero, int bf16, int in_supers) {
    const int64_t blocks = (p->row_count + most - 1) / most, across = p->inputs / BLOCK;
    const int64_t at_once = in_supers ? SUPERBLOCK : 1;
    const Rounded into = rounded_rows(p);
    for (int64_t block = first; block < last; block++) {
        const int64_t begin = p->row_count * block / blocks, count = p->row_count * (block + 1) / blocks - begin;
        for (int64_t r = 0; r < count; r++)
            for (int64_t b = 0; b < across; b += at_once) {
                const int64_t at = (begin + r) * p->inputs + b * BLOCK;
                const Rounded to = rounded_from(into, begin * across + b * count);
                ivec8 sizes = sizes_of(p->rows, at, bf16);
                for (int64_t i = 1; i < at_once; i++) {
                    const ivec8 others = sizes_of(p->rows, at + i * BLOCK, bf16);
                    sizes = LARGER(sizes, others);
                }
                const Rounding by = rounding_of(largest_of_ivec8(sizes));
                to.units[r] = by.unit;
                for (int64_t i = 0; i < at_once; i++) {
                    int8_t *quants = to.quants + (i * count + r) * BLOCK;
                    int32_t sums[2] = {0, 0};
                    if (isnan(by.unit)) memset(quants, 0, BLOCK);
                    else round_block(p->rows, at + i * BLOCK, bf16, by, quants, sums);
                    int16_t *parts = parts_of(to, (int)r);
                    if (!in_supers) to.sums[r] = (float)(sums[0] + sums[1]), to.starts[r] = -zero * (sums[0] + sums[1]);
                    else if (p->type == Q6_K_WEIGHT) parts[2 * i] = (int16_t)sums[0], parts[2 * i + 1] = (int16_t)sums[1];
                    else parts[i] = (int16_t)(sums[0] + sums[1]);
                }
            }
    }
}

/* Rounds blocks `first` to `last` - 1 of rows, of at most `most` rows each. Those of a block of rows are interleaved:
 * [inputs / BLOCK, rows of the block, BLOCK]. zero: what stands for zero in the weights, where sums begin with its share */
INLINE void round_blocks(const Gemm *p, int64_t first, int64_t last, int most, int zero) {
    if (IN_SUPERS(p->type)) {
        if (p->wide_rows) round_blocks_of(p, first, last, most, zero, 0, 1);
        else round_blocks_of(p, first, last, most, zero, 1, 1);
    } else {
        if (p->wide_rows) round_blocks_of(p, first, last, most, zero, 0, 0);
        else round_blocks_of(p, first, last, most, zero, 1, 0);
    }
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
    if (FIVE_BITS(type)) return low | (*high >> step & 1) << 4;
    if (type == Q6_K_WEIGHT) return low | (high[step / 4 * LINE] >> 2 * (step % 4) & 3) << 4;
    return low;
}

/* Returns the sum of the products of half a block, for output `o` of a group. */
static int32_t plain_sum(const Packed *w, int64_t block, int half, int o, const int8_t *x, int type) {
    int32_t sum = 0;
    for (int step = 4 * half; step < 4 * half + 4; step++)
        for (int i = 0; i < STEP; i++) sum += plain_weight(w, block, step, o, i, type) * x[STEP * step + i];
    return sum;
}

/* Adds a block's products to the total of output `o` of a group. x: of one row */
static void plain_add_block(const Packed *w, int64_t block, int o, Rounded x, int type, float *total) {
    const int32_t of_all = (int32_t)*x.sums;
    int32_t sum = plain_sum(w, block, 0, o, x.quants, type) + plain_sum(w, block, 1, o, x.quants, type);
    const uint8_t *scales = block_scales(w, block, type);
    float scale;
    if (IN_GROUPS(type)) {
        const int64_t place = (w->before + block) / w->per_scale * GROUP + o;
        memcpy(&scale, w->scales + 4 * place, sizeof scale);
        sum -= (w->zeros[place] - (type == GROUP8_WEIGHT ? 128 : 0)) * of_all;
    } else if (type == MXFP4_WEIGHT) {
        scale = half_of_power(scales[o]);
    } else {
        scale = float_of_half(scales + 2 * o);
    }
    if (WITH_MINIMUM(type)) {
        const float found = fmaf(float_of_half(scales + 2 * GROUP + 2 * o), *x.sums, scale * (float)sum);
        *total = fmaf(*x.units, found, *total);
        return;
    }
    *total = fmaf(scale * *x.units, (float)(sum - ZERO_OF(type) * of_all), *total);
}

/* Adds a superblock's products to the total of output `o` of a group. x: of one row */
static void plain_add_super(const Packed *w, int o, Rounded x, int type, float *total) {
    int32_t sum = 0, off = 0; /* off: of quants times what all weights of a block share */
    for (int64_t block = 0; block < SUPERBLOCK; block++) {
        const uint8_t *scales = block_scales(w, block, type) + o;
        const int8_t *quants = x.quants + block * BLOCK;
        const int32_t left = plain_sum(w, block, 0, o, quants, type), right = plain_sum(w, block, 1, o, quants, type);
        if (type == Q6_K_WEIGHT) {
            const int32_t of_left = (int8_t)scales[0], of_right = (int8_t)scales[GROUP];
            sum += of_left * left + of_right * right;
            off += of_left * x.parts[2 * block] + of_right * x.parts[2 * block + 1];
        } else {
            sum += scales[0] * (left + right);
            off += scales[GROUP] * x.parts[block];
        }
    }
    float found = float_of_half(w->supers + 2 * o) * (float)(sum - ZERO_OF(type) * off);
    if (WITH_LEAST(type)) found = fmaf(-float_of_half(w->supers + 32 + 2 * o), (float)off, found);
    *total = fmaf(*x.units, found, *total);
}

static void plain_groups(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gemm *p = call;
    const int64_t blocks = p->inputs / BLOCK;
    const int type = p->type;
    (void)thread_id;
    for (int64_t group = first; group < last; group++)
        for (int64_t row = 0; row < p->row_count; row++) {
            float totals[GROUP] = {0};
            for (int64_t all = 0; all < blocks; all += IN_SUPERS(type) ? SUPERBLOCK : 1) {
                const int64_t block = all % SUPERBLOCK;
                const Packed w = packed_superblock(p, group, all - block, type);
                const Rounded x = rounded_from(rounded_rows(p), row * blocks + all);
                for (int o = 0; o < GROUP; o++) {
                    if (IN_SUPERS(type)) plain_add_super(&w, o, x, type, totals + o);
                    else plain_add_block(&w, block, o, x, type, totals + o);
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
#include "products/gemm_blocks_256.h"
#include "products/gemm_blocks.h"

#define BLOCK_NAME(NAME) avxvnni_##NAME
#define BLOCK_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define BLOCK_ROWS 16
#define BLOCK_STREAMS 4
#define BLOCK_AHEAD 2048
#define BLOCK_AHEAD_OF_ONE 0
#define BLOCK_WHOLE 0
#define BLOCK_MADDUBS 0
#define BLOCK_DOT _mm256_dpbusd_avx_epi32
#include "products/gemm_blocks_256.h"
#include "products/gemm_blocks.h"

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
#include "products/gemm_blocks_256.h"
#include "products/gemm_blocks.h"

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
#define BLOCK_ONES() _mm512_set1_epi16(1)
#define BLOCK_FLOATS _mm512_set1_ps
#define BLOCK_LOAD_FLOATS _mm512_loadu_ps
#define BLOCK_AND _mm512_and_si512
#define BLOCK_OR _mm512_or_si512
#define BLOCK_XOR _mm512_xor_si512
#define BLOCK_LEFT _mm512_slli_epi16
#define BLOCK_RIGHT _mm512_srli_epi16
#define BLOCK_DOT _mm512_dpbusd_epi32
#define BLOCK_ADD _mm512_add_epi32
#define BLOCK_SUBTRACT32 _mm512_sub_epi32
#define BLOCK_MULTIPLY32 _mm512_mullo_epi32
#define BLOCK_SCALE_PAIRS _mm512_madd_epi16
#define BLOCK_LEFT32 _mm512_slli_epi32
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
#define BLOCK_BESIDE vnni_beside
#define BLOCK_E8M0 vnni_half_of_power

BLOCK_TARGET static inline __m512i vnni_beside(const uint8_t *left, const uint8_t *right) {
    const __m128i a = _mm_loadu_si128((const __m128i *)left), b = _mm_loadu_si128((const __m128i *)right);
    return _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
}

BLOCK_TARGET static inline __m512 vnni_half_of_power(const uint8_t *exponents) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)exponents)), two = _mm512_set1_epi32(2);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, two), usual, small));
}

#include "products/gemm_blocks.h"
#include "products/gemm_blocks_amx.h"

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
#include "products/gemm_blocks_neon.h"

#define NEON_NAME(NAME) dotprod_##NAME
#define NEON_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define NEON_I8MM 0
#define NEON_DOT vdotq_s32
#include "products/gemm_blocks_neon.h"

#define NEON_NAME(NAME) i8mm_##NAME
#define NEON_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define NEON_I8MM 1
#define NEON_DOT vdotq_s32
#include "products/gemm_blocks_neon.h"

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

int64_t rows_of_blocks(int32_t type, int32_t kind, int64_t rows) {
    (void)type, (void)rows;
#if defined(__x86_64__)
    if (kind == AMX_GEMM && rows >= AMX_LEAST_ROWS(type)) return AMX_ROWS;
    if (kind >= AVX512VNNI_GEMM) return vnni_rows;
    if (kind >= AVX2_GEMM) return kind == AVXVNNI_GEMM ? avxvnni_rows : avx2_rows;
#elif defined(__aarch64__)
    if (kind >= NEON_GEMM) return kind == I8MM_GEMM ? i8mm_rows : kind == DOTPROD_GEMM ? dotprod_rows : neon_rows;
#endif
    return (void)kind, 1;
}
