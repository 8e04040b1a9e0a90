/* A decoder layer of the Llama kind in one call, in bfloat16: the same parts with the same bits as one by one, but nothing
 * between them for which threads would have to wait. */
#include "ops.h"
#include "vectors.h"
#include "thread_pool.h"

#define LEAST_ELEMENTS 32768 /* in less, waking a thread takes longer than it saves */

/* A linear layer; speculative_engine/decoder_layer.py has the same fields in the same order. */
typedef struct {
    const void *weight;   /* packed, as for the product by which it is multiplied */
    const float *scales;  /* of a weight of integers, or NULL */
    const uint16_t *bias; /* or NULL */
    int64_t outputs, inputs;
} Linear;

/* What a layer keeps; speculative_engine/decoder_layer.py has the same fields in the same order. */
typedef struct {
    Linear project, output, gate_and_up, down;
    const uint16_t *input_norm, *output_norm; /* [width] */
    const uint16_t *query_norm, *key_norm;    /* [dim], or NULL */
    int64_t heads, kv_heads, dim, window;
    float input_eps, output_eps, head_eps, scale;
    int32_t kind; /* what draftwire_gemm_kind has found */
} Layer;

/* What a forward pass is about; speculative_engine/decoder_layer.py has the same fields in the same order. */
typedef struct {
    uint16_t *hidden;                /* [rows, width], changed */
    const uint16_t *cosines, *sines; /* [rows, dim] */
    const int64_t *slots, *seen, *lanes, *lane_rows, *counts; /* see Rope and Attention */
    uint16_t *narrow;  /* [rows, width, or all heads if they are wider] */
    uint16_t *wide;    /* [rows, queries, keys and values, or gate and up if they are wider] */
    uint16_t *gated;   /* [rows, gate] */
    float *query;      /* [heads, rows, dim] */
    float *attended;   /* [rows, heads, dim] */
    float *scores;     /* [threads, scratch_size] */
    int64_t rows, capacity, longest, lane_count, scratch_size;
    int32_t threads;
} Pass;

static void multiply(const Layer *layer, const Linear *by, const Pass *pass, const uint16_t *rows, uint16_t *out) {
    if (by->scales) {
        const GemmInt8 p = {rows, by->weight, by->scales, by->bias, out, pass->rows, by->outputs, by->inputs};
        draftwire_gemm_int8(&p, layer->kind, pass->threads);
    } else {
        const Gemm p = {rows, by->weight, by->bias, out, pass->rows, by->outputs, by->inputs};
        draftwire_gemm(&p, layer->kind, pass->threads);
    }
}

/* Elements to which something is done in place. */
typedef struct {
    const void *from;
    uint16_t *to;
} Elements;

INLINE void round_vectors_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Elements *a = call;
    (void)thread_id;
    for (int64_t at = first * LANES; at < last * LANES; at += LANES) store_vec(a->to, at, load_vec(a->from, at, 0), 1);
}

CLONED_TASK(round_vectors)

INLINE void add_vectors_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Elements *a = call;
    (void)thread_id;
    for (int64_t at = first * LANES; at < last * LANES; at += LANES)
        store_vec(a->to, at, load_vec(a->to, at, 1) + load_vec(a->from, at, 1), 1);
}

CLONED_TASK(add_vectors)

static void share_vectors(Task task, const void *from, uint16_t *to, const Pass *pass, int64_t width) {
    const Elements call = {from, to};
    draftwire_parallel_for(task, &call, pass->rows * width / LANES, LEAST_ELEMENTS / LANES, pass->threads);
}

/* keys and values [kv_heads, capacity, dim]: the layer's own */
void draftwire_decoder_layer(const Layer *layer, const Pass *pass, uint16_t *keys, uint16_t *values) {
    const int64_t rows = pass->rows, width = layer->project.inputs, dim = layer->dim, gate = layer->down.inputs;
    const int32_t threads = pass->threads;
    draftwire_rms_norm(pass->hidden, layer->input_norm, pass->narrow, rows, width, layer->input_eps, 1, threads);
    multiply(layer, &layer->project, pass, pass->narrow, pass->wide);
    const Rope rope = {
        pass->wide, pass->cosines, pass->sines, layer->query_norm, layer->key_norm, pass->slots,
        pass->query, keys, values,
        rows, layer->heads, layer->kv_heads, dim, pass->capacity,
        layer->scale, layer->head_eps, 1,
    };
    draftwire_rope(&rope, threads);
    const Attention attention = {
        pass->query, keys, values, pass->attended, pass->scores, 0,
        pass->seen, pass->lanes, pass->lane_rows, pass->counts,
        rows, layer->kv_heads, layer->heads / layer->kv_heads, pass->capacity, dim, dim,
        pass->longest, layer->window, pass->lane_count, pass->scratch_size,
        0, 1,
    };
    draftwire_attention(&attention, threads);
    share_vectors(round_vectors, pass->attended, pass->narrow, pass, layer->heads * dim);
    multiply(layer, &layer->output, pass, pass->narrow, pass->wide);
    share_vectors(add_vectors, pass->wide, pass->hidden, pass, width);
    draftwire_rms_norm(pass->hidden, layer->output_norm, pass->narrow, rows, width, layer->output_eps, 1, threads);
    multiply(layer, &layer->gate_and_up, pass, pass->narrow, pass->wide);
    draftwire_silu_and_mul(pass->wide, pass->gated, rows, gate, 1, threads);
    multiply(layer, &layer->down, pass, pass->gated, pass->wide);
    share_vectors(add_vectors, pass->wide, pass->hidden, pass, width);
}
