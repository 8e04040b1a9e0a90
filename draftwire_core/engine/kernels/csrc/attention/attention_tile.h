/* The attention of one tile, for one kind of vectors. attention.c includes this file once per kind, with
 *
 *   ATTEND_NAME(NAME)     the name of a function or type for this kind
 *   ATTEND_TARGET         the instructions that it uses
 *   ATTEND_WIDTH          floats per vector
 *   ATTEND_KEYS           vectors of keys that are scored at once
 *   ATTEND_CHUNKS         vectors of value elements that are summed at once
 *   ATTEND_WIDEN(X)       a vector of 16-bit integers, widened to 32 bits
 *   ATTEND_SIGNED(FROM)   a vector of 8-bit integers in memory, widened to 32 bits
 *   ATTEND_HALF(X)        a vector of float16 numbers, widened
 *   ATTEND_FMA(A, B, C)   A * B + C, rounded once
 */
#define ATTEND_INLINE ATTEND_TARGET static inline __attribute__((always_inline))
#define ATTEND_VECTORS (LANES / ATTEND_WIDTH)
#define FLOATS ATTEND_NAME(floats)
#define INTS ATTEND_NAME(ints)
#define SIGNED ATTEND_NAME(signed)
#define BITS ATTEND_NAME(bits)

typedef float FLOATS __attribute__((vector_size(4 * ATTEND_WIDTH), aligned(4)));
typedef uint32_t INTS __attribute__((vector_size(4 * ATTEND_WIDTH), aligned(4)));
typedef int32_t SIGNED __attribute__((vector_size(4 * ATTEND_WIDTH), aligned(4)));
typedef uint16_t BITS __attribute__((vector_size(2 * ATTEND_WIDTH), aligned(2)));

/* Vectors in memory of any type. GCC copies more than 16 bytes by memcpy in parts, which a load of the whole waits for. */
typedef FLOATS ATTEND_NAME(floats_in_memory) __attribute__((may_alias));
typedef INTS ATTEND_NAME(ints_in_memory) __attribute__((may_alias));
#define FLOATS_AT(PLACE) (*(ATTEND_NAME(floats_in_memory) *)(PLACE))
#define INTS_AT(PLACE) (*(const ATTEND_NAME(ints_in_memory) *)(PLACE))

#if ATTEND_WIDTH == 16
#define ATTEND_EACH(LANE, SPAN)                                                                                        \
    LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN), LANE(4, SPAN), LANE(5, SPAN), LANE(6, SPAN),           \
        LANE(7, SPAN), LANE(8, SPAN), LANE(9, SPAN), LANE(10, SPAN), LANE(11, SPAN), LANE(12, SPAN), LANE(13, SPAN),   \
        LANE(14, SPAN), LANE(15, SPAN)
#elif ATTEND_WIDTH == 8
#define ATTEND_EACH(LANE, SPAN)                                                                                        \
    LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN), LANE(4, SPAN), LANE(5, SPAN), LANE(6, SPAN),           \
        LANE(7, SPAN)
#else
#define ATTEND_EACH(LANE, SPAN) LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN)
#endif
#define ATTEND_LOW(I, SPAN) ((I) & (SPAN) ? ATTEND_WIDTH + (I) - (SPAN) : (I))
#define ATTEND_HIGH(I, SPAN) ((I) & (SPAN) ? ATTEND_WIDTH + (I) : (I) + (SPAN))

#define EXP_NAME ATTEND_NAME(exponential)
#define EXP_TARGET ATTEND_TARGET
#define EXP_FLOATS FLOATS
#define EXP_INTS SIGNED
#define EXP_SMALL(X) ((X) < (FLOATS){0} - 87)
#include "exponential.h"

/* Replaces scores by their softmax, applying the soft cap first. Sums are over LANES scores at once, from `first` on. */
ATTEND_INLINE void ATTEND_NAME(softmax)(float *scores, int64_t first, int64_t last, float softcap, const float *sink) {
    const int64_t end = first + (last - first + LANES - 1) / LANES * LANES;
    if (softcap != 0) cap_scores(scores, first, end, softcap);
    for (int64_t p = last; p < end; p++) scores[p] = -INFINITY;
    FLOATS x, tops[ATTEND_VECTORS], parts[ATTEND_VECTORS];
    for (int v = 0; v < ATTEND_VECTORS; v++) tops[v] = (FLOATS){0} - INFINITY, parts[v] = (FLOATS){0};
    for (int64_t p = first; p < end; p += LANES)
        for (int v = 0; v < ATTEND_VECTORS; v++) {
            x = FLOATS_AT(scores + p + v * ATTEND_WIDTH);
            const SIGNED more = x > tops[v];
            tops[v] = (FLOATS)(((SIGNED)x & more) | ((SIGNED)tops[v] & ~more));
        }
    float top = largest_of_lanes(tops);
    if (sink && *sink > top) top = *sink;
    for (int64_t p = first; p < end; p += LANES)
        for (int v = 0; v < ATTEND_VECTORS; v++) {
            x = FLOATS_AT(scores + p + v * ATTEND_WIDTH);
            x = ATTEND_NAME(exponential)(x - top);
            parts[v] = parts[v] + x;
            FLOATS_AT(scores + p + v * ATTEND_WIDTH) = x;
        }
    float total = sum_of_lanes(parts);
    if (sink) total += ATTEND_NAME(exponential)((FLOATS){0} + (*sink - top))[0];
    for (int64_t p = first; p < last; p++) scores[p] /= total;
}

/* Swaps the blocks of SPAN elements off the diagonal, in each pair of rows that are SPAN apart. */
#define ATTEND_SWAP(ROWS, SPAN)                                                                                        \
    for (int i_ = 0; i_ < ATTEND_WIDTH; i_++)                                                                          \
        if (!(i_ & (SPAN))) {                                                                                          \
            const INTS upper_ = (ROWS)[i_], lower_ = (ROWS)[i_ + (SPAN)];                                              \
            (ROWS)[i_] = SHUFFLE(INTS, upper_, lower_, ATTEND_EACH(ATTEND_LOW, SPAN));                                 \
            (ROWS)[i_ + (SPAN)] = SHUFFLE(INTS, upper_, lower_, ATTEND_EACH(ATTEND_HIGH, SPAN));                       \
        }

/* Transposes as many vectors as they have elements. */
ATTEND_INLINE void ATTEND_NAME(transpose)(INTS *rows) {
#if ATTEND_WIDTH > 8
    ATTEND_SWAP(rows, 8)
#endif
#if ATTEND_WIDTH > 4
    ATTEND_SWAP(rows, 4)
#endif
    ATTEND_SWAP(rows, 2)
    ATTEND_SWAP(rows, 1)
}

/* Returns the scales of a block of Q8_0_KV keys, one per key, from key `first` on; zeros beyond `count`. */
ATTEND_INLINE FLOATS ATTEND_NAME(key_scales)(const Attention *a, const int64_t *seen, int64_t base, int first,
                                             int64_t count, int64_t block) {
    FLOATS scales = {0};
    for (int i = 0; i < ATTEND_WIDTH && first + i < count; i++)
        scales[i] = kv_scale(kv_row(a->keys, base + seen[first + i], a->key_dim, Q8_0_KV), a->key_dim, block);
    return scales;
}

/* Loads `vectors` of keys, transposed: out[d * vectors + v] holds dimension d of the keys of vector v. Keys beyond
 * `count` are zeros. Those in 16 bits are transposed as pairs of dimensions, those in 8 bits by four. */
ATTEND_INLINE void ATTEND_NAME(load_keys)(const Attention *a, const int64_t *seen, int64_t base, int64_t count,
                                          int vectors, int type, FLOATS *out) {
    const int64_t size = kv_element_size(type), words = a->key_dim * size / 4; /* of 4 bytes, per key */
    for (int v = 0; v < vectors; v++)
        for (int64_t word = 0; word < words; word += ATTEND_WIDTH) {
            const int64_t left = words - word; /* 8 at least */
            INTS rows[ATTEND_WIDTH];
            for (int i = 0; i < ATTEND_WIDTH; i++) {
                const int key = v * ATTEND_WIDTH + i;
                rows[i] = (INTS){0};
                if (key >= count) continue;
                const uint8_t *from = kv_row(a->keys, base + seen[key], a->key_dim, type) + word * 4;
                if (left >= ATTEND_WIDTH) rows[i] = INTS_AT(from);
                else memcpy(rows + i, from, sizeof(INTS) / 2);
            }
            ATTEND_NAME(transpose)(rows);
            FLOATS scales = {0};
            for (int i = 0; i < ATTEND_WIDTH && i < left; i++) {
                FLOATS *to = out + (word + i) * (4 / size) * vectors + v;
                if (type == Q8_0_KV) {
                    const int64_t element = (word + i) * 4;
                    if (i == 0 || element % KV_BLOCK == 0)
                        scales = ATTEND_NAME(key_scales)(a, seen, base, v * ATTEND_WIDTH, count, element / KV_BLOCK);
                    for (int k = 0; k < 4; k++) {
                        const SIGNED quants = (SIGNED)(rows[i] << (24 - 8 * k)) >> 24;
                        to[k * vectors] = __builtin_convertvector(quants, FLOATS) * scales;
                    }
                } else if (type == F16_KV) {
                    to[0] = ATTEND_HALF(__builtin_convertvector(rows[i] & 0xffff, BITS));
                    to[vectors] = ATTEND_HALF(__builtin_convertvector(rows[i] >> 16, BITS));
                } else if (type == BF16_KV) {
                    to[0] = (FLOATS)(rows[i] << 16);
                    to[vectors] = (FLOATS)(rows[i] & 0xffff0000);
                } else {
                    to[0] = (FLOATS)rows[i];
                }
            }
        }
}

/* Computes the scores of `count` heads for `vectors` of transposed keys. Both are constants in each inlined copy. */
ATTEND_INLINE void ATTEND_NAME(score)(const Head *heads, int count, const FLOATS *keys, int vectors, int64_t dim,
                                      int64_t position) {
    FLOATS sums[GROUP * ATTEND_KEYS];
    for (int i = 0; i < count * vectors; i++) sums[i] = (FLOATS){0};
    for (int64_t d = 0; d < dim; d++)
        for (int i = 0; i < count; i++) {
            const FLOATS element = heads[i].query[d] - (FLOATS){0};
            for (int v = 0; v < vectors; v++) {
                FLOATS *sum = sums + i * vectors + v;
                *sum = ATTEND_FMA(keys[d * vectors + v], element, *sum);
            }
        }
    for (int i = 0; i < count; i++)
        for (int v = 0; v < vectors; v++)
            FLOATS_AT(heads[i].weights + position + v * ATTEND_WIDTH) = sums[i * vectors + v];
}

/* Computes the scores of all heads of a tile for `vectors` of keys, a constant in each inlined copy. left: keys from
 * `position` on */
ATTEND_INLINE void ATTEND_NAME(score_all)(const Attention *a, const int64_t *seen, int64_t base, int64_t position,
                                          int64_t left, const Head *heads, int64_t count, int vectors, int type) {
    FLOATS keys[MOST_DIM * ATTEND_KEYS];
    const int64_t most = vectors * ATTEND_WIDTH;
    if (left >= most) ATTEND_NAME(load_keys)(a, seen + position, base, most, vectors, type, keys);
    else ATTEND_NAME(load_keys)(a, seen + position, base, left, vectors, type, keys);
    int64_t i = 0;
    for (; i + GROUP <= count; i += GROUP)
        ATTEND_NAME(score)(heads + i, GROUP, keys, vectors, a->key_dim, position);
    if (count - i == 3) ATTEND_NAME(score)(heads + i, 3, keys, vectors, a->key_dim, position);
    else if (count - i == 2) ATTEND_NAME(score)(heads + i, 2, keys, vectors, a->key_dim, position);
    else if (count - i == 1) ATTEND_NAME(score)(heads + i, 1, keys, vectors, a->key_dim, position);
}

/* Loads a vector of a row of values of `dim` elements, from one on. */
ATTEND_INLINE FLOATS ATTEND_NAME(load)(const uint8_t *row, int64_t dim, int64_t element, int type) {
    if (type == Q8_0_KV) {
        const FLOATS scale = kv_scale(row, dim, element / KV_BLOCK) - (FLOATS){0};
        return __builtin_convertvector(ATTEND_SIGNED(row + element), FLOATS) * scale;
    }
    if (type == BF16_KV || type == F16_KV) {
        BITS bits;
        memcpy(&bits, row + 2 * element, sizeof bits);
        if (type == F16_KV) return ATTEND_HALF(bits);
        return (FLOATS)((INTS)ATTEND_WIDEN(bits) << 16);
    }
    return FLOATS_AT(row + 4 * element);
}

ATTEND_INLINE void ATTEND_NAME(add_range)(const Attention *a, const int64_t *seen, int64_t base, int64_t first,
                                          int64_t last, int64_t element, const Head *heads, int count, int chunks,
                                          int type, FLOATS sum[GROUP][ATTEND_CHUNKS]) {
    const int64_t ahead = kv_rows_ahead(a->value_dim, type), offset = element * kv_element_size(type);
    for (int64_t p = first; p < last; p++) {
        const uint8_t *row = kv_row(a->values, base + seen[p], a->value_dim, type);
        if (p + ahead < last)
            __builtin_prefetch(kv_row(a->values, base + seen[p + ahead], a->value_dim, type) + offset, 0, 3);
        for (int c = 0; c < chunks; c++) {
            const FLOATS value = ATTEND_NAME(load)(row, a->value_dim, element + c * ATTEND_WIDTH, type);
            for (int i = 0; i < count; i++) {
                const FLOATS weight = heads[i].weights[p] - (FLOATS){0};
                sum[i][c] = ATTEND_FMA(value, weight, sum[i][c]);
            }
        }
    }
}

/* Sums the weighted values that `count` heads see, in the order of positions: `chunks` vectors of them, from an element
 * on. */
ATTEND_INLINE void ATTEND_NAME(add_part)(const Attention *a, const int64_t *seen, int64_t base, int64_t element,
                                         const Head *heads, int count, int chunks, int type) {
    int64_t all = 0, some = heads[0].end; /* start and end of the positions that all heads see */
    for (int i = 0; i < count; i++) {
        all = heads[i].start > all ? heads[i].start : all;
        some = heads[i].end < some ? heads[i].end : some;
    }
    if (some < all) some = all;
    FLOATS sum[GROUP][ATTEND_CHUNKS];
    for (int i = 0; i < count; i++)
        for (int c = 0; c < chunks; c++) sum[i][c] = (FLOATS){0};
    for (int i = 0; count > 1 && i < count; i++)
        ATTEND_NAME(add_range)(a, seen, base, heads[i].start, heads[i].end < all ? heads[i].end : all, element,
                               heads + i, 1, chunks, type, sum + i);
    ATTEND_NAME(add_range)(a, seen, base, all, some, element, heads, count, chunks, type, sum);
    for (int i = 0; i < count; i++) {
        if (count > 1)
            ATTEND_NAME(add_range)(a, seen, base, some, heads[i].end, element, heads + i, 1, chunks, type, sum + i);
        for (int c = 0; c < chunks; c++) FLOATS_AT(heads[i].out + element + c * ATTEND_WIDTH) = sum[i][c];
    }
}

ATTEND_INLINE void ATTEND_NAME(add_values)(const Attention *a, const int64_t *seen, int64_t base, const Head *heads,
                                           int count, int type) {
    const int64_t dim = a->value_dim, whole = ATTEND_CHUNKS * ATTEND_WIDTH;
    int64_t element = 0;
    for (; element + whole <= dim; element += whole)
        ATTEND_NAME(add_part)(a, seen, base, element, heads, count, ATTEND_CHUNKS, type);
    for (; element < dim; element += LANES) /* where `whole` is larger */
        ATTEND_NAME(add_part)(a, seen, base, element, heads, count, ATTEND_VECTORS, type);
}

/* Computes the attention of queries `first` to `last` - 1 of a lane, for the heads of one key-value head. */
ATTEND_INLINE void ATTEND_NAME(attend_tile)(const Attention *a, const int64_t *seen, int64_t first, int64_t last,
                                            int64_t kv_head, float *scratch, int type) {
    Head heads[QUERIES * a->shared];
    const int64_t base = kv_head * a->slots, count = (last - first) * a->shared, most = a->counts[last - 1];
    for (int64_t i = 0; i < count; i++) {
        const int64_t query = first + i / a->shared, head = kv_head * a->shared + i % a->shared, row = a->rows[query];
        const int64_t end = a->counts[query];
        heads[i] = (Head){
            a->query + (head * a->row_count + row) * a->key_dim,
            scratch + i * a->longest,
            first_seen(a, end),
            end,
            a->out + (row * a->kv_heads * a->shared + head) * a->value_dim,
        };
    }
    const int64_t start = heads[0].start, keys_ahead = kv_rows_ahead(a->key_dim, type);
    int64_t p = start, fetched = p;
    for (; most - p > LANES; p += ATTEND_KEYS * ATTEND_WIDTH) {
        const int64_t wanted = p + ATTEND_KEYS * ATTEND_WIDTH + keys_ahead, fetch = wanted < most ? wanted : most;
        prefetch_kv_rows(a->keys, seen, base, fetched, fetch, a->key_dim, type);
        fetched = fetch;
        ATTEND_NAME(score_all)(a, seen, base, p, most - p, heads, count, ATTEND_KEYS, type);
    }
    if (p < most) ATTEND_NAME(score_all)(a, seen, base, p, most - p, heads, count, ATTEND_VECTORS, type);
    /* The first rows that are read next: of values, and of the keys of the next head, which usually follows. */
    const int64_t values_ahead = start + kv_rows_ahead(a->value_dim, type);
    prefetch_kv_rows(a->values, seen, base, start, values_ahead < most ? values_ahead : most, a->value_dim, type);
    if (kv_head + 1 < a->kv_heads)
        prefetch_kv_rows(a->keys, seen, base + a->slots, start, start + keys_ahead < most ? start + keys_ahead : most,
                         a->key_dim, type);
    for (int64_t i = 0; i < count; i++)
        ATTEND_NAME(softmax)(heads[i].weights, heads[i].start, heads[i].end, a->softcap,
                             a->sinks ? a->sinks + kv_head * a->shared + i % a->shared : 0);
    int64_t i = 0;
    for (; i + GROUP <= count; i += GROUP) ATTEND_NAME(add_values)(a, seen, base, heads + i, GROUP, type);
    if (count - i == 3) ATTEND_NAME(add_values)(a, seen, base, heads + i, 3, type);
    else if (count - i == 2) ATTEND_NAME(add_values)(a, seen, base, heads + i, 2, type);
    else if (count - i == 1) ATTEND_NAME(add_values)(a, seen, base, heads + i, 1, type);
}

/* Tiles are ordered by lane, and within a lane by key-value head. */
ATTEND_TARGET static void ATTEND_NAME(attend_tiles)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Attention *a = call;
    float *scratch = a->scratch + thread_id * a->scratch_size;
    const int64_t queries = queries_of(a);
    int64_t begin = 0; /* first tile of the lane */
    for (int64_t l = 0; l < a->lane_count && begin < last; l++) {
        const int64_t *lane = a->lanes + 3 * l, tiles = tiles_of(a, l), end = begin + tiles * a->kv_heads;
        for (int64_t t = first > begin ? first : begin; t < last && t < end; t++) {
            int64_t query = lane[1] + (t - begin) % tiles * queries, head = (t - begin) / tiles;
            int64_t next = query + queries < lane[2] ? query + queries : lane[2];
            const int64_t *seen = a->seen + lane[0];
            if (a->kv_type == Q8_0_KV) ATTEND_NAME(attend_tile)(a, seen, query, next, head, scratch, Q8_0_KV);
            else if (a->kv_type == BF16_KV) ATTEND_NAME(attend_tile)(a, seen, query, next, head, scratch, BF16_KV);
            else if (a->kv_type == F16_KV) ATTEND_NAME(attend_tile)(a, seen, query, next, head, scratch, F16_KV);
            else ATTEND_NAME(attend_tile)(a, seen, query, next, head, scratch, FLOAT32_KV);
        }
        begin = end;
    }
}

#undef ATTEND_CHUNKS
#undef ATTEND_EACH
#undef ATTEND_FMA
#undef ATTEND_HALF
#undef ATTEND_HIGH
#undef ATTEND_INLINE
#undef ATTEND_KEYS
#undef ATTEND_LOW
#undef ATTEND_NAME
#undef ATTEND_SIGNED
#undef ATTEND_SWAP
#undef ATTEND_TARGET
#undef ATTEND_VECTORS
#undef ATTEND_WIDEN
#undef ATTEND_WIDTH
#undef BITS
#undef FLOATS
#undef FLOATS_AT
#undef INTS
#undef INTS_AT
#undef SIGNED
