/* What a decoder layer of the Llama kind does between its matrix products, one row after the other: root mean square
 * norms, rotary positions with the writing of keys and values, the gate.
 *
 * Every operation rounds to the model's type where transformers' code does, so that the results are the library's but
 * for the order of the norms' sums and the last bit of an exponential. All widths are multiples of LANES.
 */
#include "layer_parts.h"
#include "vectors.h"
#include "worker_pool.h"

#include <math.h>

#define LEAST_ELEMENTS 32768 /* in less, waking a thread takes longer than it saves */

static void share_rows(Task task, const void *call, int64_t rows, int64_t width, int32_t threads) {
    draftwire_share(task, call, rows, (LEAST_ELEMENTS + width - 1) / width, threads);
}

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

typedef struct {
    const void *from, *weight;
    void *out;
    int64_t width;
    float eps;
    int32_t half;
} Norm;

INLINE void norm_rows_body(const void *call, int64_t first, int64_t last, int32_t seat) {
    const Norm *a = call;
    (void)seat;
    for (int64_t r = first; r < last; r++) {
        if (a->half) norm_row(a->from, r * a->width, a->weight, a->out, r * a->width, a->width, a->eps, 1);
        else norm_row(a->from, r * a->width, a->weight, a->out, r * a->width, a->width, a->eps, 0);
    }
}

CLONED_TASK(norm_rows)

void draftwire_rms_norm(const void *from, const void *weight, void *out, int64_t rows, int64_t width, float eps,
                        int32_t half, int32_t threads) {
    const Norm call = {from, weight, out, width, eps, half};
    share_rows(norm_rows, &call, rows, width, threads);
}

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

INLINE void rotate_rows_body(const void *call, int64_t first, int64_t last, int32_t seat) {
    const Rotation *a = call;
    (void)seat;
    for (int64_t r = first; r < last; r++) {
        if (a->half) rotate_row(a, r, 1);
        else rotate_row(a, r, 0);
    }
}

CLONED_TASK(rotate_rows)

void draftwire_rotate(const Rotation *a, int32_t threads) {
    share_rows(rotate_rows, a, a->rows, (a->heads + 2 * a->kv_heads) * a->dim, threads);
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

typedef struct {
    const void *both;
    void *out;
    int64_t width;
    int32_t half;
} Gate;

INLINE void gate_rows_body(const void *call, int64_t first, int64_t last, int32_t seat) {
    const Gate *a = call;
    (void)seat;
    for (int64_t r = first; r < last; r++) {
        if (a->half) gate_row(a->both, a->out, r, a->width, 1);
        else gate_row(a->both, a->out, r, a->width, 0);
    }
}

CLONED_TASK(gate_rows)

void draftwire_gate(const void *both, void *out, int64_t rows, int64_t width, int32_t half, int32_t threads) {
    const Gate call = {both, out, width, half};
    share_rows(gate_rows, &call, rows, width, threads);
}
