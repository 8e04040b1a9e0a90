/* Attention over KV slots. Keys and values are read in place, once for up to 16 queries of a lane.
 *
 * A row's result is a function of the row and of the slots that it sees, to the bit. Each of its sums has a fixed
 * order, over the dimensions of a key or over the positions that the row sees, and the same code computes it whatever
 * rows are computed with it.
 */
/* Each multiplication and its addition are one expression, of the same form for any number of rows. Fusing them is a
 * fifth faster and does not make a row's bits depend on other rows; tests/speculative_engine/kernels/test_attention.py
 * and the self-test at load check that. */
#pragma GCC optimize("fp-contract=fast")

#include "ops.h"
#include "vectors.h"
#include "thread_pool.h"

#include <math.h>

#define QUERIES 16 /* of one lane per tile: keys are read once for all of them */
#define GROUP 4    /* heads whose sums are held in registers at once */
#define CHUNKS 4   /* of LANES value elements that are summed at once */
#define MOST_DIM 512
#define LEAST_PRODUCTS 262144 /* with fewer, waking a thread costs more than it saves */

#define SWAPPED(A, B, LOW, HIGH)                                                                                       \
    do {                                                                                                               \
        vec low_ = __builtin_shuffle(A, B, LOW), high_ = __builtin_shuffle(A, B, HIGH);                                \
        A = low_, B = high_;                                                                                           \
    } while (0)

/* Transposes 16 vectors of 16 by swapping blocks of 8, then of 4, 2 and 1. */
INLINE void transpose(vec *rows) {
    const ivec low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const ivec low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const ivec low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const ivec low1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
    for (int i = 0; i < 8; i++) SWAPPED(rows[i], rows[i + 8], low8, low8 + 8);
    for (int i = 0; i < 16; i += i % 8 == 3 ? 5 : 1) SWAPPED(rows[i], rows[i + 4], low4, low4 + 4);
    for (int i = 0; i < 16; i += i % 4 == 1 ? 3 : 1) SWAPPED(rows[i], rows[i + 2], low2, low2 + 2);
    for (int i = 0; i < 16; i += 2) SWAPPED(rows[i], rows[i + 1], low1, low1 + 1);
}

/* Loads LANES keys, transposed: each vector holds one dimension of all keys. Keys beyond `count` are zeros. */
INLINE void load_keys(const Attention *a, const int64_t *seen, int64_t base, int64_t count, int bf16, vec *out) {
    for (int64_t c = 0; c < a->key_dim / LANES; c++) {
        vec *rows = out + c * LANES;
        for (int i = 0; i < LANES; i++)
            rows[i] = i < count ? load_vec(a->keys, (base + seen[i]) * a->key_dim + c * LANES, bf16) : (vec){0};
        transpose(rows);
    }
}

/* One head of one query of a tile. */
typedef struct {
    const float *query;
    float *weights;     /* by position; the scores, until softmax replaces them */
    int64_t start, end; /* positions that it sees */
    float *out;
} Head;

/* Computes the scores of `count` heads, a constant in each inlined copy, for LANES transposed keys. */
INLINE void score(const Head *heads, int count, const vec *keys, int64_t dim, int64_t position) {
    vec sum[GROUP];
    for (int i = 0; i < count; i++) sum[i] = (vec){0};
    for (int64_t d = 0; d < dim; d++)
        for (int i = 0; i < count; i++) sum[i] = sum[i] + keys[d] * heads[i].query[d];
    for (int i = 0; i < count; i++) memcpy(heads[i].weights + position, &sum[i], sizeof(vec));
}

INLINE void add_range(const Attention *a, const int64_t *seen, int64_t base, int64_t first, int64_t last, int64_t part,
                      const Head *heads, int count, int chunks, int bf16, vec sum[GROUP][CHUNKS]) {
    for (int64_t p = first; p < last; p++) {
        int64_t at = (base + seen[p]) * a->value_dim + part * LANES;
        for (int c = 0; c < chunks; c++) {
            vec value = load_vec(a->values, at + c * LANES, bf16);
            for (int i = 0; i < count; i++) sum[i][c] = sum[i][c] + value * heads[i].weights[p];
        }
    }
}

/* Sums the weighted values that `count` heads see, in the order of positions: `chunks` vectors of them, from vector
 * `part` on. */
INLINE void add_part(const Attention *a, const int64_t *seen, int64_t base, int64_t part, const Head *heads, int count,
                     int chunks, int bf16) {
    int64_t all = 0, some = heads[0].end; /* start and end of the positions that all heads see */
    for (int i = 0; i < count; i++) {
        all = heads[i].start > all ? heads[i].start : all;
        some = heads[i].end < some ? heads[i].end : some;
    }
    if (some < all) some = all;
    vec sum[GROUP][CHUNKS];
    for (int i = 0; i < count; i++)
        for (int c = 0; c < chunks; c++) sum[i][c] = (vec){0};
    for (int i = 0; count > 1 && i < count; i++)
        add_range(a, seen, base, heads[i].start, heads[i].end < all ? heads[i].end : all, part, heads + i, 1, chunks,
                  bf16, sum + i);
    add_range(a, seen, base, all, some, part, heads, count, chunks, bf16, sum);
    for (int i = 0; i < count; i++) {
        if (count > 1) add_range(a, seen, base, some, heads[i].end, part, heads + i, 1, chunks, bf16, sum + i);
        memcpy(heads[i].out + part * LANES, sum[i], chunks * sizeof(vec));
    }
}

INLINE void add_values(const Attention *a, const int64_t *seen, int64_t base, const Head *heads, int count, int bf16) {
    const int64_t chunks = a->value_dim / LANES;
    int64_t part = 0;
    for (; part + CHUNKS <= chunks; part += CHUNKS) add_part(a, seen, base, part, heads, count, CHUNKS, bf16);
    for (; part + 2 <= chunks; part += 2) add_part(a, seen, base, part, heads, count, 2, bf16);
    if (part < chunks) add_part(a, seen, base, part, heads, count, 1, bf16);
}

/* Replaces scores by their softmax, applying the soft cap first. */
INLINE void softmax(float *scores, int64_t first, int64_t last, float softcap, const float *sink) {
    if (softcap != 0)
        for (int64_t p = first; p < last; p++) scores[p] = tanhf(scores[p] / softcap) * softcap;
    float top = sink ? *sink : -INFINITY;
    for (int64_t p = first; p < last; p++) top = scores[p] > top ? scores[p] : top;
    int64_t end = first + (last - first + LANES - 1) / LANES * LANES;
    for (int64_t p = last; p < end; p++) scores[p] = -INFINITY;
    vec parts = {0};
    for (int64_t p = first; p < end; p += LANES) {
        vec x;
        memcpy(&x, scores + p, sizeof x);
        x = exp_vec(x - top);
        parts = parts + x;
        memcpy(scores + p, &x, sizeof x);
    }
    float total = sum_vec(parts);
    if (sink) total += expf(*sink - top);
    for (int64_t p = first; p < last; p++) scores[p] /= total;
}

/* Computes the attention of queries `first` to `last` - 1 of a lane, for the heads of one key-value head. */
INLINE void attend_tile(const Attention *a, const int64_t *seen, int64_t first, int64_t last, int64_t kv_head,
                        float *scratch, int bf16) {
    Head heads[QUERIES * a->shared];
    const int64_t base = kv_head * a->slots, count = (last - first) * a->shared, most = a->counts[last - 1];
    for (int64_t i = 0; i < count; i++) {
        const int64_t query = first + i / a->shared, head = kv_head * a->shared + i % a->shared, row = a->rows[query];
        const int64_t end = a->counts[query];
        heads[i] = (Head){
            a->query + (head * a->row_count + row) * a->key_dim,
            scratch + i * a->longest,
            a->window && end > a->window ? end - a->window : 0,
            end,
            a->out + (row * a->kv_heads * a->shared + head) * a->value_dim,
        };
    }
    vec keys[MOST_DIM];
    for (int64_t p = heads[0].start; p < most; p += LANES) {
        load_keys(a, seen + p, base, most - p, bf16, keys);
        int64_t i = 0;
        for (; i + GROUP <= count; i += GROUP) score(heads + i, GROUP, keys, a->key_dim, p);
        for (; i < count; i++) score(heads + i, 1, keys, a->key_dim, p);
    }
    for (int64_t i = 0; i < count; i++)
        softmax(heads[i].weights, heads[i].start, heads[i].end, a->softcap,
                a->sinks ? a->sinks + kv_head * a->shared + i % a->shared : 0);
    int64_t i = 0;
    for (; i + GROUP <= count; i += GROUP) add_values(a, seen, base, heads + i, GROUP, bf16);
    if (count - i >= 2) {
        add_values(a, seen, base, heads + i, 2, bf16);
        i += 2;
    }
    if (i < count) add_values(a, seen, base, heads + i, 1, bf16);
}

/* Returns the number of tiles of a lane's queries per key-value head. */
static int64_t tiles_of(const Attention *a, int64_t lane) {
    return (a->lanes[3 * lane + 2] - a->lanes[3 * lane + 1] + QUERIES - 1) / QUERIES;
}

/* Tiles are ordered by lane, and within a lane by key-value head. */
INLINE void attend_tiles_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Attention *a = call;
    float *scratch = a->scratch + thread_id * a->scratch_size;
    int64_t begin = 0; /* first tile of the lane */
    for (int64_t l = 0; l < a->lane_count && begin < last; l++) {
        const int64_t *lane = a->lanes + 3 * l, tiles = tiles_of(a, l), end = begin + tiles * a->kv_heads;
        for (int64_t t = first > begin ? first : begin; t < last && t < end; t++) {
            int64_t query = lane[1] + (t - begin) % tiles * QUERIES, head = (t - begin) / tiles;
            int64_t next = query + QUERIES < lane[2] ? query + QUERIES : lane[2];
            if (a->bf16) attend_tile(a, a->seen + lane[0], query, next, head, scratch, 1);
            else attend_tile(a, a->seen + lane[0], query, next, head, scratch, 0);
        }
        begin = end;
    }
}

CLONED_TASK(attend_tiles)

void draftwire_attention(const Attention *a, int32_t threads) {
    int64_t tiles = 0, scores = 0;
    for (int64_t l = 0; l < a->lane_count; l++) {
        tiles += tiles_of(a, l) * a->kv_heads;
        for (int64_t q = a->lanes[3 * l + 1]; q < a->lanes[3 * l + 2]; q++)
            scores += (a->window && a->counts[q] > a->window ? a->window : a->counts[q]) * a->kv_heads * a->shared;
    }
    const int64_t products = scores * (a->key_dim + a->value_dim) + 1;
    draftwire_parallel_for(attend_tiles, a, tiles, (tiles * LEAST_PRODUCTS + products - 1) / products, threads);
}
