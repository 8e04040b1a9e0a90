/* The operations between the gemms of a Llama-style decoder layer, row by row: root mean square norms, rotary position
 * embedding with the writing of keys and values, and gates with multiplication.
 *
 * Results in bfloat16 are rounded where transformers rounds, and differ from its results only by the order of the norms'
 * sums and the last bit of exponentials. All widths are multiples of LANES.
 */
#include "ops.h"
#include "attention/kv_rows.h"
#include "vectors.h"
#include "thread_pool.h"

#include <math.h>

#define LEAST_ELEMENTS 32768 /* with fewer, waking a thread costs more than it saves */

static void for_all_rows(Task task, const void *call, int64_t rows, int64_t width, int32_t threads) {
    draftwire_parallel_for(task, call, rows, (LEAST_ELEMENTS + width - 1) / width, threads);
}

INLINE void rms_norm_row(const void *from, int from_bf16, int64_t at, const void *weight, int weight_bf16, void *to,
                         int to_bf16, int64_t width, float eps) {
    vec squares = {0};
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = load_vec(from, at + c, from_bf16);
        squares = squares + x * x;
    }
    float scale = 1.0f / sqrtf(sum_vec(squares) / (float)width + eps);
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = round_vec(load_vec(from, at + c, from_bf16) * scale, to_bf16);
        store_vec(to, at + c, x * load_vec(weight, c, weight_bf16), to_bf16);
    }
}

typedef struct {
    const void *from, *weight;
    void *out;
    int64_t width;
    float eps;
    int32_t from_bf16, weight_bf16, out_bf16;
} RmsNorm;

INLINE void rms_norm_rows_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const RmsNorm *a = call;
    (void)thread_id;
    for (int64_t r = first; r < last; r++) {
        const int64_t at = r * a->width;
        if (a->from_bf16) rms_norm_row(a->from, 1, at, a->weight, 1, a->out, 1, a->width, a->eps);
        else if (a->out_bf16 && a->weight_bf16) rms_norm_row(a->from, 0, at, a->weight, 1, a->out, 1, a->width, a->eps);
        else if (a->out_bf16) rms_norm_row(a->from, 0, at, a->weight, 0, a->out, 1, a->width, a->eps);
        else if (a->weight_bf16) rms_norm_row(a->from, 0, at, a->weight, 1, a->out, 0, a->width, a->eps);
        else rms_norm_row(a->from, 0, at, a->weight, 0, a->out, 0, a->width, a->eps);
    }
}

CLONED_TASK(rms_norm_rows)

void draftwire_rms_norm(const void *from, const void *weight, void *out, int64_t rows, int64_t width, float eps,
                        int32_t from_bf16, int32_t weight_bf16, int32_t out_bf16, int32_t threads) {
    const RmsNorm call = {from, weight, out, width, eps, from_bf16, weight_bf16, out_bf16};
    for_all_rows(rms_norm_rows, &call, rows, width, threads);
}

INLINE void join_features_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Features *a = call;
    (void)thread_id;
    for (int64_t r = first; r < last; r++) {
        const uint16_t *features = a->features + r * a->stride;
        float *residual = a->embedded + r * a->width, *left = a->out + 2 * r * a->width, *right = left + a->width;
        rms_norm_row(residual, 0, 0, a->embedded_norm, 0, left, 0, a->width, a->eps);
        rms_norm_row(features, 1, 0, a->feature_norm, 0, right, 0, a->width, a->eps);
        for (int64_t c = 0; c < a->width; c += LANES)
            store_vec(residual, c, a->normed_residual ? load_vec(right, c, 0) : load_vec(features, c, 1), 0);
    }
}

CLONED_TASK(join_features)

void draftwire_join_features(const Features *a, int32_t threads) {
    for_all_rows(join_features, a, a->rows, 2 * a->width, threads);
}

/* Norms a head in place, float32; rounds to bfloat16 where a norm of such rows does. */
INLINE void rms_norm_head(float *head, const void *weight, int weight_bf16, int rounds, int64_t dim, float eps) {
    vec squares = {0};
    for (int64_t c = 0; c < dim; c += LANES) {
        vec x = load_vec(head, c, 0);
        squares = squares + x * x;
    }
    float scale = 1.0f / sqrtf(sum_vec(squares) / (float)dim + eps);
    for (int64_t c = 0; c < dim; c += LANES) {
        vec x = round_vec(load_vec(head, c, 0) * scale, rounds);
        store_vec(head, c, round_vec(x * load_vec(weight, c, weight_bf16), rounds), 0);
    }
}

/* Stores the first `count` of 16 elements. */
INLINE void store_part(float *to, vec x, int64_t count) {
    if (count >= LANES) store_vec(to, 0, x, 0);
    else memcpy(to, &x, count * sizeof *to);
}

/* Loads the first `count` of 16 elements; zeros follow. */
INLINE vec load_part(const void *from, int64_t at, int64_t count, int bf16) {
    if (count >= LANES) return load_vec(from, at, bf16);
    float part[LANES] = {0};
    for (int64_t i = 0; i < count; i++) {
        if (bf16) {
            const uint32_t bits = (uint32_t)((const uint16_t *)from)[at + i] << 16;
            memcpy(part + i, &bits, sizeof bits);
        } else {
            part[i] = ((const float *)from)[at + i];
        }
    }
    return load_vec(part, 0, 0);
}

/* Rotates 16 elements of the first half of a head's rotary part with the corresponding 16 of the second half; fewer at
 * the end of a half that is no multiple of 16. */
INLINE void rope_pair(const Rope *a, int64_t at, int64_t row, int64_t c, int bf16, vec *low, vec *high) {
    int64_t middle = a->rotary / 2, angle = row * a->rotary + c;
    vec first = load_vec(a->projected, at + c, bf16), second = load_vec(a->projected, at + middle + c, bf16);
    *low = round_vec(round_vec(first * load_vec(a->cosines, angle, bf16), bf16) +
                   round_vec(-second * load_vec(a->sines, angle, bf16), bf16), bf16);
    const int64_t count = middle - c;
    *high = round_vec(round_vec(second * load_part(a->cosines, angle + middle, count, bf16), bf16) +
                    round_vec(first * load_part(a->sines, angle + middle, count, bf16), bf16), bf16);
}

/* Writes a head of keys or values, float32 [dim], to row `to` of the KV cache. */
INLINE void store_head(const float *head, void *rows, int64_t to, int64_t dim, int type) {
    if (type == Q8_0_KV)
        for (int64_t at = 0; at < dim; at += KV_BLOCK) round_kv_block(head + at, kv_row(rows, to, dim, type), dim, at);
    else if (type == F16_KV)
        for (int64_t c = 0; c < dim; c += LANES) {
            const u16vec bits = __builtin_convertvector(half_bits(load_vec(head, c, 0)), u16vec);
            memcpy((uint16_t *)rows + to * dim + c, &bits, sizeof bits);
        }
    else
        for (int64_t c = 0; c < dim; c += LANES) store_vec(rows, to * dim + c, load_vec(head, c, 0), type == BF16_KV);
}

/* Elements of a row of `projected`. */
INLINE int64_t projected_width(const Rope *a) {
    return (a->heads * (a->gated ? 2 : 1) + a->kv_heads * a->kv_parts) * a->dim;
}

INLINE void rope_row(const Rope *a, int64_t row, int bf16, int weight_bf16) {
    const int64_t dim = a->dim, middle = a->rotary / 2, start = row * projected_width(a);
    const int64_t query_step = a->gated ? 2 * dim : dim, first_key = start + a->heads * query_step;
    float head[MOST_DIM];
    vec low, high;
    if (a->query_weight && a->norms_whole) {
        const int64_t all = a->heads * dim, keys = a->kv_heads * dim;
        rms_norm_row(a->projected, bf16, start, a->query_weight, weight_bf16, a->projected, bf16, all, a->eps);
        rms_norm_row(a->projected, bf16, start + all, a->key_weight, weight_bf16, a->projected, bf16, keys, a->eps);
    }
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t at = start + h * query_step, to = (h * a->rows + row) * dim;
        if (a->query_weight && !a->norms_whole)
            rms_norm_row(a->projected, bf16, at, a->query_weight, weight_bf16, a->projected, bf16, dim, a->eps);
        for (int64_t c = 0; c < middle; c += LANES) {
            rope_pair(a, at, row, c, bf16, &low, &high);
            store_part(a->query + to + c, low * a->scale, middle - c);
            store_part(a->query + to + middle + c, high * a->scale, middle - c);
        }
        for (int64_t c = a->rotary; c < dim; c += LANES)
            store_vec(a->query, to + c, load_vec(a->projected, at + c, bf16) * a->scale, 0);
    }
    for (int64_t h = 0; a->kv_parts && h < a->kv_heads; h++) {
        int64_t at = first_key + h * dim, to = h * a->capacity + a->slots[row];
        /* Before the key, which is normed in place and may be the value. */
        int64_t value = first_key + ((a->kv_parts == 2 ? a->kv_heads : 0) + h) * dim;
        for (int64_t c = 0; c < dim; c += LANES) store_vec(head, c, load_vec(a->projected, value + c, bf16), 0);
        if (a->value_weight) rms_norm_head(head, a->value_weight, weight_bf16, bf16, dim, a->eps);
        store_head(head, a->values, to, dim, a->kv_type);
        if (a->key_weight && !a->norms_whole)
            rms_norm_row(a->projected, bf16, at, a->key_weight, weight_bf16, a->projected, bf16, dim, a->eps);
        for (int64_t c = 0; c < middle; c += LANES) {
            rope_pair(a, at, row, c, bf16, &low, &high);
            store_part(head + c, low, middle - c);
            store_part(head + middle + c, high, middle - c);
        }
        for (int64_t c = a->rotary; c < dim; c += LANES) store_vec(head, c, load_vec(a->projected, at + c, bf16), 0);
        store_head(head, a->keys, to, dim, a->kv_type);
    }
}

INLINE void rope_rows_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Rope *a = call;
    (void)thread_id;
    for (int64_t r = first; r < last; r++) {
        if (a->bf16) rope_row(a, r, 1, 1);
        else if (a->weight_bf16) rope_row(a, r, 0, 1);
        else rope_row(a, r, 0, 0);
    }
}

CLONED_TASK(rope_rows)

void draftwire_rope(const Rope *a, int32_t threads) {
    for_all_rows(rope_rows, a, a->rows, projected_width(a), threads);
}

/* The argument of the sigmoid that x is multiplied by: x itself for SiLU, and for GELU by tanh (Hendrycks and Gimpel
 * 2016), since (1 + tanh(u)) / 2 is the sigmoid of 2 u. */
INLINE vec gate_argument(vec x, int32_t gate) {
    return gate == GELU_TANH_GATE ? 1.5957691216057308f * (x + 0.044715f * (x * x * x)) : x;
}

INLINE void gate_row(const void *both, void *out, int64_t row, int64_t width, int bf16, int32_t gate) {
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = load_vec(both, 2 * row * width + c, bf16), up = load_vec(both, (2 * row + 1) * width + c, bf16);
        vec gated = round_vec(x * sigmoid_vec(gate_argument(x, gate)), bf16);
        store_vec(out, row * width + c, gated * up, bf16);
    }
}

typedef struct {
    const void *both;
    void *out;
    int64_t width;
    int32_t gate, bf16;
} Gate;

INLINE void gate_rows_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Gate *a = call;
    (void)thread_id;
    for (int64_t r = first; r < last; r++) {
        if (a->bf16) gate_row(a->both, a->out, r, a->width, 1, a->gate);
        else gate_row(a->both, a->out, r, a->width, 0, a->gate);
    }
}

CLONED_TASK(gate_rows)

void draftwire_gate(const void *both, void *out, int64_t rows, int64_t width, int32_t gate, int32_t bf16,
                    int32_t threads) {
    const Gate call = {both, out, width, gate, bf16};
    for_all_rows(gate_rows, &call, rows, width, threads);
}

typedef struct {
    const float *projected;
    float *attended;
    int64_t heads, dim, stride;
} HeadGates;

INLINE void gate_heads_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const HeadGates *a = call;
    (void)thread_id;
    for (int64_t at = first; at < last; at++) {
        const int64_t row = at / a->heads, head = at % a->heads;
        const int64_t gate = row * a->stride + (2 * head + 1) * a->dim;
        for (int64_t c = 0; c < a->dim; c += LANES) {
            const vec open = sigmoid_vec(load_vec(a->projected, gate + c, 0));
            store_vec(a->attended, at * a->dim + c, load_vec(a->attended, at * a->dim + c, 0) * open, 0);
        }
    }
}

CLONED_TASK(gate_heads)

void draftwire_gate_heads(const float *projected, float *attended, int64_t rows, int64_t heads, int64_t dim,
                          int64_t stride, int32_t threads) {
    const HeadGates call = {projected, attended, heads, dim, stride};
    for_all_rows(gate_heads, &call, rows * heads, dim, threads);
}
