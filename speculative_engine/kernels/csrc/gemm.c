/* Rows times a packed weight, bfloat16, for few rows: what takes time is to read the weight, once, at the memory's speed.
 *
 * Each sum runs over the inputs in order, by the same instructions whatever the number of rows, so a row has the same
 * bits in any company.
 *
 * The weight is packed as tiles.h says. A pair holds 16 outputs with 2 inputs each.
 */
#include "ops.h"
#include "thread_pool.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiles.h"

#define PACED_ROWS 3      /* at most; more of them take long enough */
#define PACE 4            /* pairs of inputs at a time */
#define PACED_AHEAD 16384 /* bytes */

/* 2: AMX, 1: AVX-512 with bfloat16, 0: neither. Asks the kernel for the tile registers. */
int32_t draftwire_gemm_kind(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const int amx = (d >> 22 & 1) && (d >> 24 & 1);
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1) || !__builtin_cpu_supports("avx512vl")) return 0;
    const long request_permission = 0x1023, tile_data = 18;
    return amx && !syscall(SYS_arch_prctl, request_permission, tile_data) ? 2 : 1;
}

AVX static void store_outputs(const Gemm *p, int64_t row, int64_t output, __m512 sums) {
    int64_t left = p->outputs - output;
    if (left <= 0) return;
    __mmask16 which = left < TILE ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
    if (p->bias) {
        __m512i bias = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, p->bias + output));
        sums = _mm512_add_ps(sums, _mm512_castsi512_ps(_mm512_slli_epi32(bias, 16)));
    }
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums);
    _mm256_mask_storeu_epi16(p->out + row * p->outputs + output, which, rounded);
}

AMX static void store_tile(const Gemm *p, int64_t row, int64_t output, const float *tile) {
    for (int64_t r = 0; r < TILE && row + r < p->row_count; r++)
        store_outputs(p, row + r, output, _mm512_loadu_ps(tile + r * TILE));
}

/* One group of outputs for up to 32 rows. One of several blocks of rows fetches its share of the next group, `lines` for
 * each block of inputs, as the memory would rest otherwise; the only one fetches what it comes to soon itself. */
AMX static void amx_rows(const Gemm *p, int64_t group, int64_t row, int lower, int lines) {
    float sums[4][TILE * TILE] __attribute__((aligned(64)));
    const int64_t inputs = p->inputs, stride = 2 * inputs;
    const uint16_t *weight = p->weight + group * BLOCK * inputs, *rows = p->rows + row * inputs;
    const char *next = (const char *)(weight + BLOCK * inputs) + row / BLOCK * (inputs / BLOCK) * lines * 64;
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < inputs; k += BLOCK, weight += 2 * TILE_ELEMENTS) {
        if (lines)
            for (int line = 0; line < lines; line++, next += 64) _mm_prefetch(next, _MM_HINT_T1);
        else
            for (int line = 0; line < 4 * TILE_ELEMENTS; line += 64)
                _mm_prefetch((const char *)weight + AHEAD + line, _MM_HINT_T0);
        _tile_loadd(4, rows + k, stride);
        _tile_loadd(6, weight, 64);
        _tile_loadd(7, weight + TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (lower) {
            _tile_loadd(5, rows + TILE * inputs + k, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    store_tile(p, row, group * BLOCK, sums[0]);
    store_tile(p, row, group * BLOCK + TILE, sums[1]);
    if (lower) {
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        store_tile(p, row + TILE, group * BLOCK, sums[2]);
        store_tile(p, row + TILE, group * BLOCK + TILE, sums[3]);
    }
}

AMX static void amx_gemm(const Gemm *p, int64_t first, int64_t last) {
    const int64_t whole = p->row_count / (2 * TILE) * (2 * TILE);
    const int left = (int)(p->row_count - whole), upper = left < TILE ? left : TILE, lower = left - upper;
    const int blocks = (int)((p->row_count + BLOCK - 1) / BLOCK);
    const int lines = blocks > 1 ? (4 * TILE_ELEMENTS / 64 + blocks - 1) / blocks : 0;
    TileShapes before; /* others on this thread may rely on theirs */
    _tile_storeconfig(&before);
    if (!whole) shape_tiles(upper, lower);
    else if (!left) shape_tiles(TILE, TILE);
    for (int64_t group = first; group < last; group++) {
        if (whole && left) shape_tiles(TILE, TILE);
        for (int64_t row = 0; row < whole; row += 2 * TILE) amx_rows(p, group, row, TILE, lines);
        if (whole && left) shape_tiles(upper, lower);
        if (left) amx_rows(p, group, whole, lower, lines);
    }
    _tile_loadconfig(&before);
}

AVX static inline __m512bh load_bf16(const uint16_t *at) { return (__m512bh)_mm512_loadu_si512(at); }

/* Adds the products of a pair of inputs for 32 outputs to the sums of `count` rows. */
AVX static inline __attribute__((always_inline)) void add_pair(__m512 *left, __m512 *right, __m512bh first,
                                                               __m512bh second, const uint16_t *inputs_of_pair,
                                                               int64_t inputs, int count) {
    for (int r = 0; r < count; r++) {
        int32_t both;
        memcpy(&both, inputs_of_pair + r * inputs, sizeof both);
        __m512bh inputs_of_row = (__m512bh)_mm512_set1_epi32(both);
        left[r] = _mm512_dpbf16_ps(left[r], first, inputs_of_row);
        right[r] = _mm512_dpbf16_ps(right[r], second, inputs_of_row);
    }
}

/* All inputs, for few rows: these multiply so fast that loads of what is still on its way would take the places of fetches,
 * and on a Zen 4 one row read the memory at two thirds of the speed of six. So PACE pairs are load_bf16 while the PACE before
 * them are multiplied, and the fence lets nothing begin before those loads are done. */
AVX static inline __attribute__((always_inline)) void add_paced(__m512 *left, __m512 *right, const uint16_t *weight,
                                                                const uint16_t *rows, int64_t inputs, int count) {
    __m512bh first[PACE], second[PACE], next_first[PACE], next_second[PACE];
    for (int i = 0; i < PACE; i++) {
        first[i] = load_bf16(weight + i * BLOCK);
        second[i] = load_bf16(weight + i * BLOCK + TILE_ELEMENTS);
    }
    for (int64_t k = 0; k < inputs; k += BLOCK, weight += 2 * TILE_ELEMENTS) {
        for (int pair = 0; pair < TILE; pair += PACE) {
            const uint16_t *at = weight + pair * BLOCK;
            const uint16_t *next = at + PACE * BLOCK;
            if (pair + PACE == TILE) next = k + BLOCK < inputs ? weight + 2 * TILE_ELEMENTS : at; /* the last are there */
            _mm_lfence();
            for (int i = 0; i < PACE; i++) {
                _mm_prefetch((const char *)(at + i * BLOCK) + PACED_AHEAD, _MM_HINT_T1);
                _mm_prefetch((const char *)(at + i * BLOCK + TILE_ELEMENTS) + PACED_AHEAD, _MM_HINT_T1);
            }
            for (int i = 0; i < PACE; i++) {
                next_first[i] = load_bf16(next + i * BLOCK);
                next_second[i] = load_bf16(next + i * BLOCK + TILE_ELEMENTS);
            }
            for (int i = 0; i < PACE; i++)
                add_pair(left, right, first[i], second[i], rows + k + 2 * (pair + i), inputs, count);
            for (int i = 0; i < PACE; i++) first[i] = next_first[i], second[i] = next_second[i];
        }
    }
}

/* `count` is a constant where this is inlined. The only block of rows fetches what it comes to soon; one of several, its
 * share of the next group, as the memory would rest while later ones find this group in the cache. All by T1: by T0 fewer
 * lines can be under way. */
AVX static inline __attribute__((always_inline)) void avx_rows(const Gemm *p, int64_t group, int64_t row, int count,
                                                               int64_t block, int64_t blocks) {
    const int64_t inputs = p->inputs;
    const uint16_t *weight = p->weight + group * BLOCK * inputs, *rows = p->rows + row * inputs;
    const int64_t lines = (2 * TILE + blocks - 1) / blocks; /* of the next group, for each block of inputs */
    const char *next = (const char *)(weight + BLOCK * inputs) + block * (inputs / BLOCK) * lines * 64;
    __m512 left[AVX_ROWS], right[AVX_ROWS];
    for (int r = 0; r < count; r++) left[r] = right[r] = _mm512_setzero_ps();
    if (blocks == 1 && count <= PACED_ROWS) {
        add_paced(left, right, weight, rows, inputs, count);
    } else {
        for (int64_t k = 0; k < inputs; k += BLOCK, weight += 2 * TILE_ELEMENTS) {
            for (int pair = 0; pair < TILE; pair++) {
                const uint16_t *at = weight + pair * BLOCK;
                if (blocks == 1) {
                    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
                    _mm_prefetch((const char *)(at + TILE_ELEMENTS) + AHEAD, _MM_HINT_T1);
                } else if (pair < lines) {
                    _mm_prefetch(next, _MM_HINT_T1);
                    next += 64;
                }
                add_pair(left, right, load_bf16(at), load_bf16(at + TILE_ELEMENTS), rows + k + 2 * pair, inputs, count);
            }
        }
    }
    for (int r = 0; r < count; r++) {
        store_outputs(p, row + r, group * BLOCK, left[r]);
        store_outputs(p, row + r, group * BLOCK + TILE, right[r]);
    }
}

AVX static void avx_gemm(const Gemm *p, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; group++) AVX_ALL_ROWS(p, group);
}

static void amx_groups(const void *p, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    amx_gemm(p, first, last);
}

static void avx_groups(const void *p, int64_t first, int64_t last, int32_t thread_id) {
    (void)thread_id;
    avx_gemm(p, first, last);
}

void draftwire_gemm(const Gemm *p, int32_t kind, int32_t threads) {
    const int64_t groups = (p->outputs + BLOCK - 1) / BLOCK, blocks = (p->row_count + BLOCK - 1) / BLOCK;
    const int64_t work = 2 * BLOCK * p->inputs * (blocks ? blocks : 1); /* of a group */
    draftwire_parallel_for(kind == 2 ? amx_groups : avx_groups, p, groups, (LEAST_BYTES + work - 1) / work, threads);
}

#else

int32_t draftwire_gemm_kind(void) { return 0; }

void draftwire_gemm(const Gemm *p, int32_t kind, int32_t threads) { (void)p, (void)kind, (void)threads; }

#endif
