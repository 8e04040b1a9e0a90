/* What a decoder layer of the Llama kind does between its matrix products, one row after the other: root mean square
 * norms, rotary positions with the writing of keys and values, the gate.
 *
 * Every operation rounds to the model's type where transformers' code does, so that the results are the library's but
 * for the order of the norms' sums and the last bit of an exponential. All widths are multiples of LANES.
 */
#include "vectors.h"

#include <math.h>

INLINE void norm_row(const void *from, int64_t at, const void *weight, void *to, int64_t to_at, int64_t width, float eps,
                     int half) {
    vec squares = {0};
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = widened(from, at + c, half);
        squares = squares + x * x;
    }
    float scale = 1.0f / sqrtf(sum_of(squares) / (float)width + eps);
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = rounded(widened(from, at + c, half) * scale, half);
        stored(to, to_at + c, x * widened(weight, c, half), half);
    }
}

/* out [rows, width] = weight [width] * normalised from [rows, width] */
CLONES void draftwire_rms_norm(const void *from, const void *weight, void *out, int64_t rows, int64_t width, float eps,
                               int32_t half) {
    for (int64_t r = 0; r < rows; r++) {
        if (half) norm_row(from, r * width, weight, out, r * width, width, eps, 1);
        else norm_row(from, r * width, weight, out, r * width, width, eps, 0);
    }
}

/* One call's needs; speculative_engine/layer_steps.py has the same fields in the same order. */
typedef struct {
    void *projected;          /* [rows, (heads + 2 * kv_heads) * dim]: queries, keys, values; changed in place */
    const void *cosines;      /* [rows, dim] */
    const void *sines;        /* [rows, dim] */
    const void *query_weight; /* [dim] of the norm of each query head, or NULL */
    const void *key_weight;
    const int64_t *slots;     /* [rows] */
    float *query;             /* [heads, rows, dim], scaled */
    void *keys;               /* [kv_heads, capacity, dim] */
    void *values;             /* [kv_heads, capacity, dim] */
    int64_t rows, heads, kv_heads, dim, capacity;
    float scale, eps;
    int32_t half;
} Rotation;

/* 16 elements of a head in the first half of its width, and those as far into the second, which turn together. */
INLINE void turned(const Rotation *a, int64_t at, int64_t row, int64_t c, int half, vec *low, vec *high) {
    int64_t middle = a->dim / 2, angle = row * a->dim + c;
    vec first = widened(a->projected, at + c, half), second = widened(a->projected, at + middle + c, half);
    *low = rounded(rounded(first * widened(a->cosines, angle, half), half) +
                   rounded(-second * widened(a->sines, angle, half), half), half);
    *high = rounded(rounded(second * widened(a->cosines, angle + middle, half), half) +
                    rounded(first * widened(a->sines, angle + middle, half), half), half);
}

INLINE void rotate_row(const Rotation *a, int64_t row, int half) {
    const int64_t dim = a->dim, middle = dim / 2, start = row * (a->heads + 2 * a->kv_heads) * dim;
    vec low, high;
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t at = start + h * dim, to = (h * a->rows + row) * dim;
        if (a->query_weight) norm_row(a->projected, at, a->query_weight, a->projected, at, dim, a->eps, half);
        for (int64_t c = 0; c < middle; c += LANES) {
            turned(a, at, row, c, half, &low, &high);
            stored(a->query, to + c, low * a->scale, 0);
            stored(a->query, to + middle + c, high * a->scale, 0);
        }
    }
    for (int64_t h = 0; h < a->kv_heads; h++) {
        int64_t at = start + (a->heads + h) * dim, to = (h * a->capacity + a->slots[row]) * dim;
        if (a->key_weight) norm_row(a->projected, at, a->key_weight, a->projected, at, dim, a->eps, half);
        for (int64_t c = 0; c < middle; c += LANES) {
            turned(a, at, row, c, half, &low, &high);
            stored(a->keys, to + c, low, half);
            stored(a->keys, to + middle + c, high, half);
        }
        int64_t value = start + (a->heads + a->kv_heads + h) * dim;
        for (int64_t c = 0; c < dim; c += LANES) stored(a->values, to + c, widened(a->projected, value + c, half), half);
    }
}

/* Turns queries and keys to their positions, writes keys and values into their slots. */
CLONES void draftwire_rotate(const Rotation *a) {
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->half) rotate_row(a, r, 1);
        else rotate_row(a, r, 0);
    }
}

INLINE void gate_row(const void *both, void *out, int64_t row, int64_t width, int half) {
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = widened(both, 2 * row * width + c, half), up = widened(both, (2 * row + 1) * width + c, half);
        ivec negative = x < 0;
        vec e = exp_of((vec)((uvec)x | 0x80000000));
        vec above = (vec)(((ivec)e & negative) | ((ivec)(e * 0 + 1) & ~negative));
        vec silu = rounded(x * (above / (1 + e)), half);
        stored(out, row * width + c, silu * up, half);
    }
}

/* out [rows, width] = silu(gate) * up, of both [rows, 2 * width]: gate, up */
CLONES void draftwire_gate(const void *both, void *out, int64_t rows, int64_t width, int32_t half) {
    for (int64_t r = 0; r < rows; r++) {
        if (half) gate_row(both, out, r, width, 1);
        else gate_row(both, out, r, width, 0);
    }
}
