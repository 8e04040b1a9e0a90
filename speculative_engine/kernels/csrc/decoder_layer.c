/* A decoder layer of attention and a gated feed-forward block in one call, with weights of any type and float32 between its products. It computes the
 * same bits as one call per operation, without the gaps between calls in which threads would wait. */
#include "ops.h"
#include "vectors.h"
#include "thread_pool.h"

#define LEAST_ELEMENTS 32768 /* with fewer, waking a thread costs more than it saves */

static void multiply(const Layer *layer, const Linear *by, const Pass *pass, const float *rows, float *out) {
    int64_t stride = 0;
    for (const Linear *part = by; part; part = part->next) stride += part->outputs;
    for (; by; out += by->outputs, by = by->next) {
        const Gemm p = {rows, by->weight, by->scales, by->bias, out, pass->working,
                        pass->rows, by->outputs, stride, by->inputs, by->group, by->type, 1, 1};
        draftwire_gemm(&p, layer->kind, pass->threads);
    }
}

/* The residual stream. */
typedef struct {
    const float *added;
    float *residual;
    uint16_t *rounded; /* or NULL */
    float multiplier;
} Residual;

INLINE void add_vectors_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Residual *a = call;
    (void)thread_id;
    for (int64_t at = first * LANES; at < last * LANES; at += LANES) {
        const vec sum = load_vec(a->residual, at, 0) + load_vec(a->added, at, 0) * a->multiplier;
        store_vec(a->residual, at, sum, 0);
        if (a->rounded) store_vec(a->rounded, at, sum, 1);
    }
}

CLONED_TASK(add_vectors)

/* Returns the rows that a block takes: those of the residual stream, normed if the block has a norm. */
static const float *normed(const Pass *pass, const float *norm, int64_t width, float eps) {
    if (!norm) return pass->residual;
    draftwire_rms_norm(pass->residual, norm, pass->normed, pass->rows, width, eps, 0, 0, 0, pass->threads);
    return pass->normed;
}

/* Adds a block's output, normed if it has a norm, to the residual stream. */
static void add_output(const Layer *layer, const Pass *pass, const float *norm, int64_t width, uint16_t *rounded) {
    if (norm)
        draftwire_rms_norm(pass->product, norm, pass->product, pass->rows, width, layer->output_eps, 0, 0, 0, pass->threads);
    const Residual call = {pass->product, pass->residual, rounded, layer->multiplier};
    draftwire_parallel_for(add_vectors, &call, pass->rows * width / LANES, LEAST_ELEMENTS / LANES, pass->threads);
}

void draftwire_decoder_layer(const Layer *layer, const Pass *pass, void *keys, void *values) {
    const int64_t rows = pass->rows, width = layer->project.inputs, dim = layer->dim;
    const int32_t threads = pass->threads;
    multiply(layer, &layer->project, pass, normed(pass, layer->input_norm, width, layer->input_eps), pass->product);
    const Rope rope = {
        pass->product, pass->cosines, pass->sines, layer->query_norm, layer->key_norm, pass->slots,
        pass->query, keys, values,
        rows, layer->heads, layer->kv_heads, dim, layer->rotary, pass->capacity,
        layer->scale, layer->head_eps, 0, 0, layer->norms_whole, pass->kv_type,
    };
    draftwire_rope(&rope, threads);
    const Attention attention = {
        pass->query, keys, values, pass->attended, pass->scores, 0,
        pass->seen, pass->lanes, pass->lane_rows, pass->counts,
        rows, layer->kv_heads, layer->heads / layer->kv_heads, pass->capacity, dim, dim,
        pass->longest, layer->window, 0, pass->lane_count, pass->scratch_size,
        layer->softcap, pass->kv_type,
    };
    draftwire_attention(&attention, threads);
    multiply(layer, &layer->output, pass, pass->attended, pass->product);
    add_output(layer, pass, layer->attended_norm, width, NULL);
    multiply(layer, &layer->gate_and_up, pass, normed(pass, layer->output_norm, width, layer->output_eps), pass->product);
    draftwire_gate(pass->product, pass->gated, rows, layer->down.inputs, layer->gate, 0, threads);
    multiply(layer, &layer->down, pass, pass->gated, pass->product);
    add_output(layer, pass, layer->forwarded_norm, width, pass->hidden);
}
