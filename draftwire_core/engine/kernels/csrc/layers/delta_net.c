/* Gated delta nets between their projections, beside the recurrence: what a row's inputs and gates are, and how results are
 * normed and gated. Exponentials and logarithms are by fixed operations, the same with every kind of vectors.
 */
#include "layers/delta_net.h"
#include "logarithm.h"
#include "thread_pool.h"
#include "vectors.h"

#include <math.h>

#define LEAST_ELEMENTS 32768 /* with fewer, waking a thread costs more than it saves */

typedef struct {
    const DeltaNet *net;
    const Recurrence *work;
    const float *projected;
    float *results; /* [rows, value_heads, value_dim] */
} Rows;

/* The place of a part of a value head in a row of the projection's outputs. width: elements of a value head's part */
INLINE int64_t place_of(const Rows *a, int part, int64_t head, int64_t width) {
    const int64_t shared = a->work->value_heads / a->work->key_heads;
    return a->net->places[part] + head / shared * a->net->strides[part] + head % shared * width;
}

INLINE void copy_part(const float *from, void *to, int64_t at, int64_t width, int bf16) {
    for (int64_t c = 0; c < width; c += LANES) store_vec(to, at + c, load_vec(from, c, 0), bf16);
}

/* Writes the decays and the betas of a row. A decay is e^(rate * softplus(step + bias)). */
INLINE void write_gates(const Rows *a, const float *from, float *decays, float *betas) {
    const int64_t heads = a->work->value_heads;
    for (int64_t first = 0; first < heads; first += LANES) {
        const int64_t count = heads - first < LANES ? heads - first : LANES;
        float steps[LANES] = {0}, strengths[LANES] = {0}, rates[LANES] = {0}, small[LANES], soft[LANES];
        for (int64_t i = 0; i < count; i++) {
            steps[i] = from[place_of(a, DELTA_STEPS, first + i, 1)] + a->net->bias[first + i];
            strengths[i] = from[place_of(a, DELTA_STRENGTHS, first + i, 1)];
            rates[i] = a->net->rates[first + i];
        }
        store_vec(small, 0, exp_vec((vec)((uvec)load_vec(steps, 0, 0) | 0x80000000)), 0);
        for (int i = 0; i < LANES; i++) soft[i] = (steps[i] > 0 ? steps[i] : 0) + (float)logarithm(1.0 + (double)small[i]);
        const vec decay = exp_vec(load_vec(rates, 0, 0) * load_vec(soft, 0, 0));
        const vec beta = sigmoid_vec(load_vec(strengths, 0, 0)) * a->net->strength;
        memcpy(decays + first, &decay, count * sizeof(float));
        memcpy(betas + first, &beta, count * sizeof(float));
    }
}

INLINE void delta_inputs_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Rows *a = call;
    const Recurrence *work = a->work;
    const int64_t *places = a->net->places, *strides = a->net->strides, key = work->key_dim, heads = work->value_heads;
    const int64_t values = heads / work->key_heads * work->value_dim;
    (void)thread_id;
    for (int64_t row = first; row < last; row++) {
        const float *from = a->projected + row * a->net->width;
        void *inputs = (void *)work->inputs;
        const int64_t at = row * work->channels;
        for (int64_t k = 0; k < work->key_heads; k++) {
            copy_part(from + places[DELTA_QUERIES] + k * strides[DELTA_QUERIES], inputs, at + work->query_at + k * key, key,
                      work->bf16);
            copy_part(from + places[DELTA_KEYS] + k * strides[DELTA_KEYS], inputs, at + work->key_at + k * key, key,
                      work->bf16);
            copy_part(from + places[DELTA_VALUES] + k * strides[DELTA_VALUES], inputs, at + work->value_at + k * values,
                      values, work->bf16);
        }
        float *gates = (float *)work->gates + row * 2 * heads;
        write_gates(a, from, gates, gates + heads);
    }
}

CLONED_TASK(delta_inputs)

void draftwire_delta_inputs(const DeltaNet *net, const Recurrence *work, const float *projected, int64_t rows,
                            int32_t threads) {
    const Rows call = {net, work, projected, NULL};
    draftwire_parallel_for(delta_inputs, &call, rows, (LEAST_ELEMENTS + net->width - 1) / net->width, threads);
}

INLINE void delta_outputs_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Rows *a = call;
    const int64_t dim = a->work->value_dim, heads = a->work->value_heads;
    (void)thread_id;
    for (int64_t at = first; at < last; at++) {
        const float *gates = a->projected + at / heads * a->net->width + place_of(a, DELTA_GATES, at % heads, dim);
        float *head = a->results + at * dim;
        vec squares = {0};
        for (int64_t c = 0; c < dim; c += LANES) {
            const vec x = load_vec(head, c, 0);
            squares = squares + x * x;
        }
        const float scale = 1.0f / sqrtf(sum_vec(squares) / (float)dim + a->net->eps);
        for (int64_t c = 0; c < dim; c += LANES) {
            const vec x = load_vec(head, c, 0) * scale * load_vec(a->net->norm, c, 0), gate = load_vec(gates, c, 0);
            store_vec(head, c, gate * sigmoid_vec(gate) * x, 0);
        }
    }
}

CLONED_TASK(delta_outputs)

void draftwire_delta_outputs(const DeltaNet *net, const Recurrence *work, const float *projected, int64_t rows,
                             int32_t threads) {
    const Rows call = {net, work, projected, work->out};
    const int64_t heads = rows * work->value_heads;
    draftwire_parallel_for(delta_outputs, &call, heads, (LEAST_ELEMENTS + work->value_dim - 1) / work->value_dim, threads);
}

/* Copies rows of `width` bytes to their places. */
static void store_rows(const void *from, void *to, int64_t width, const StoredRows *stored) {
    for (int64_t i = 0; i < stored->count; i++)
        memcpy((char *)to + stored->places[i] * width, (const char *)from + stored->rows[i] * width, width);
}

void draftwire_delta_store(const Recurrence *work, const StoredRows *stored) {
    store_rows(work->inputs, (void *)work->stored_inputs, work->channels * (work->bf16 ? 2 : 4), stored);
    store_rows(work->gates, (void *)work->stored_gates, work->value_heads * 2 * sizeof(float), stored);
}
