/* Attention over KV slots, one row after the other: each row reads the keys and values it may see where they lie.
 *
 * A row's result is a function of the row and of what it sees, to the bit: its sums run in the order of its positions,
 * each by one piece of code, whatever rows are beside it.
 */
#include "vectors.h"

#include <math.h>

#define QUERIES 16 /* of one lane at a time: keys are read once for all of them */
#define GROUP 4    /* heads at a time whose sums are held in registers */

/* What one call needs to know; speculative_engine/slot_attention.py has the same fields in the same order. */
typedef struct {
    const float *query;    /* [heads, rows, key_dim], scaled */
    const void *keys;      /* [kv_heads, slots, key_dim] */
    const void *values;    /* [kv_heads, slots, value_dim] */
    float *out;            /* [rows, heads, value_dim] */
    float *scratch;        /* [a lane's queries, at most QUERIES, * shared, longest], longest a multiple of LANES */
    const float *sinks;    /* [heads] or NULL: scores that take probability and give no value */
    const int64_t *seen;   /* the lanes' slots by position, one lane after the other */
    const int64_t *lanes;  /* [lanes, 3]: where its slots begin in seen, its first query, the query after its last */
    const int64_t *rows;   /* row of each query */
    const int64_t *counts; /* positions each query sees, of its lane's first ones; rising within a lane */
    int64_t row_count, kv_heads, shared, slots, key_dim, value_dim, longest, window;
    int64_t lane_count, first_head, last_head; /* key-value heads this call computes */
    float softcap; /* 0: none */
    int32_t half;  /* keys and values are bfloat16, else float32 */
} Attention;

/* Scores of up to GROUP queries' heads with one key. `chunks` is a constant where this is inlined. */
INLINE void score(const float *const *query, const void *keys, int64_t at, int count, int chunks, int half,
                  float *scores, int64_t stride) {
    vec sum[GROUP];
    for (int i = 0; i < GROUP; i++) sum[i] = (vec){0};
    for (int c = 0; c < chunks; c++) {
        vec key = widened(keys, at + c * LANES, half);
        for (int i = 0; i < GROUP; i++) {
            vec part;
            memcpy(&part, query[i < count ? i : 0] + c * LANES, sizeof part);
            sum[i] = sum[i] + part * key;
        }
    }
    for (int i = 0; i < count; i++) scores[i * stride] = sum_of(sum[i]);
}

INLINE void add_values(const Attention *a, const int64_t *seen, int64_t base, int64_t first, int64_t last,
                       const float *weights, int count, int chunks, int half, float *const *out) {
    vec sum[GROUP][8];
    for (int part = 0; part < chunks; part += 8) {
        int here = chunks - part < 8 ? chunks - part : 8;
        for (int i = 0; i < GROUP; i++)
            for (int c = 0; c < here; c++) sum[i][c] = (vec){0};
        for (int64_t p = first; p < last; p++) {
            int64_t at = (base + seen[p]) * a->value_dim + part * LANES;
            for (int c = 0; c < here; c++) {
                vec value = widened(a->values, at + c * LANES, half);
                for (int i = 0; i < GROUP; i++) sum[i][c] = sum[i][c] + value * weights[(i < count ? i : 0) * a->longest + p];
            }
        }
        for (int i = 0; i < count; i++) memcpy(out[i] + part * LANES, sum[i], here * sizeof(vec));
    }
}

/* Turns scores into weights that sum up to 1, in place. */
INLINE void normalise(float *scores, int64_t first, int64_t last, float softcap, const float *sink) {
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
        x = exp_of(x - top);
        parts = parts + x;
        memcpy(scores + p, &x, sizeof x);
    }
    float total = sum_of(parts);
    if (sink) total += expf(*sink - top);
    for (int64_t p = first; p < last; p++) scores[p] /= total;
}

INLINE void attend_tile(const Attention *a, const int64_t *seen, int64_t first, int64_t last, int64_t head,
                        int key_chunks, int value_chunks, int half) {
    const int64_t heads = a->kv_heads * a->shared, base = head * a->slots;
    const int64_t most = a->counts[last - 1];
    const int64_t from = a->window && a->counts[first] > a->window ? a->counts[first] - a->window : 0;
    int64_t begun = first; /* queries before it do not see this far */
    for (int64_t p = from; p < most; p++) {
        while (a->counts[begun] <= p) begun++;
        int64_t at = (base + seen[p]) * a->key_dim;
        const int64_t vectors = (last - begun) * a->shared;
        for (int64_t v = 0; v < vectors; v += GROUP) {
            const float *query[GROUP];
            int count = vectors - v < GROUP ? (int)(vectors - v) : GROUP;
            for (int i = 0; i < GROUP; i++) {
                int64_t which = v + (i < count ? i : 0);
                int64_t row = a->rows[begun + which / a->shared];
                query[i] = a->query + ((head * a->shared + which % a->shared) * a->row_count + row) * a->key_dim;
            }
            float *to = a->scratch + ((begun - first) * a->shared + v) * a->longest + p;
            score(query, a->keys, at, count, key_chunks, half, to, a->longest);
        }
    }
    for (int64_t q = first; q < last; q++) {
        int64_t end = a->counts[q], start = a->window && end > a->window ? end - a->window : 0;
        for (int64_t h = 0; h < a->shared; h += GROUP) {
            float *weights = a->scratch + ((q - first) * a->shared + h) * a->longest, *out[GROUP];
            int count = a->shared - h < GROUP ? (int)(a->shared - h) : GROUP;
            for (int i = 0; i < count; i++) {
                int64_t which = head * a->shared + h + i;
                out[i] = a->out + (a->rows[q] * heads + which) * a->value_dim;
                normalise(weights + i * a->longest, start, end, a->softcap, a->sinks ? a->sinks + which : 0);
            }
            add_values(a, seen, base, start, end, weights, count, value_chunks, half, out);
        }
    }
}

/* The usual sizes are compiled with constant loops. */
INLINE void attend_sized(const Attention *a, const int64_t *seen, int64_t first, int64_t last, int64_t head) {
    int key = (int)(a->key_dim / LANES), value = (int)(a->value_dim / LANES);
    if (!a->half) attend_tile(a, seen, first, last, head, key, value, 0);
    else if (key == 2 && value == 2) attend_tile(a, seen, first, last, head, 2, 2, 1);
    else if (key == 4 && value == 4) attend_tile(a, seen, first, last, head, 4, 4, 1);
    else if (key == 8 && value == 8) attend_tile(a, seen, first, last, head, 8, 8, 1);
    else attend_tile(a, seen, first, last, head, key, value, 1);
}

CLONES void draftwire_attend(const Attention *a) {
    for (int64_t l = 0; l < a->lane_count; l++) {
        const int64_t *seen = a->seen + a->lanes[3 * l], end = a->lanes[3 * l + 2];
        for (int64_t head = a->first_head; head < a->last_head; head++) {
            for (int64_t first = a->lanes[3 * l + 1]; first < end; first += QUERIES) {
                int64_t last = first + QUERIES < end ? first + QUERIES : end;
                attend_sized(a, seen, first, last, head);
            }
        }
    }
}
