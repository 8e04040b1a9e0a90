/* The blocks of a decoder layer in one call, with weights of any type and float32 between its products: attention, a gated
 * feed-forward block, and a gate of inputs that depend on a token's id. It computes the same bits as one call per
 * operation, without the gaps between calls in which threads would wait. */
#include "layers/delta_net.h"
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
    float multiplier, factor;
} Residual;

INLINE void add_vectors_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Residual *a = call;
    (void)thread_id;
    for (int64_t at = first * LANES; at < last * LANES; at += LANES) {
        const vec sum = (load_vec(a->residual, at, 0) + load_vec(a->added, at, 0) * a->multiplier) * a->factor;
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

/* Adds a block's output, normed if it has a norm, to the residual stream. last: whether the layer ends with this block */
static void add_output(const Layer *layer, const Pass *pass, float *output, const float *norm, int last) {
    const int64_t rows = pass->rows, width = layer->width;
    if (norm) draftwire_rms_norm(output, norm, output, rows, width, layer->output_eps, 0, 0, 0, pass->threads);
    const Residual call = {output, pass->residual, last ? pass->hidden : NULL, layer->multiplier, last ? layer->factor : 1};
    draftwire_parallel_for(add_vectors, &call, rows * width / LANES, LEAST_ELEMENTS / LANES, pass->threads);
}

/* Returns the rows that attention takes. */
static const float *attended_rows(const Layer *layer, const Pass *pass, const uint16_t *features, int64_t stride) {
    if (!layer->feature_norm) return normed(pass, layer->input_norm, layer->width, layer->input_eps);
    const Features call = {pass->residual, features, layer->input_norm, layer->feature_norm, pass->normed,
                           pass->rows, layer->width, stride, layer->input_eps, layer->normed_residual};
    draftwire_join_features(&call, pass->threads);
    return pass->normed;
}

static void attend(const Layer *layer, const Pass *pass, void *keys, void *values, const uint16_t *features,
                   int64_t stride) {
    const int64_t rows = pass->rows, dim = layer->dim, heads = layer->heads;
    const int32_t threads = pass->threads;
    multiply(layer, &layer->project, pass, attended_rows(layer, pass, features, stride), pass->product);
    const Rope rope = {
        pass->product, pass->cosines, pass->sines, layer->query_norm, layer->key_norm, layer->value_norm, pass->slots,
        pass->query, keys, values,
        rows, heads, layer->kv_heads, dim, layer->rotary, pass->capacity,
        layer->scale, layer->head_eps, 0, 0, layer->norms_whole, pass->kv_type, layer->gated, layer->kv_parts,
    };
    draftwire_rope(&rope, threads);
    const Attention attention = {
        pass->query, keys, values, pass->attended, pass->scores, layer->sinks,
        pass->seen, pass->lanes, pass->lane_rows, pass->counts,
        rows, layer->kv_heads, heads / layer->kv_heads, pass->capacity, dim, dim,
        pass->longest, layer->window, 0, pass->lane_count, pass->scratch_size,
        layer->softcap, pass->kv_type,
    };
    draftwire_attention(&attention, threads);
    if (layer->gated)
        draftwire_gate_heads(pass->product, pass->attended, rows, heads, dim,
                             (2 * heads + layer->kv_parts * layer->kv_heads) * dim, threads);
    multiply(layer, &layer->output, pass, pass->attended, pass->product);
    add_output(layer, pass, pass->product, layer->attended_norm, 0);
}

void draftwire_delta_block(const Layer *layer, const Pass *pass, const DeltaNet *net, const Recurrence *work,
                           const StoredRows *stored) {
    const int32_t threads = pass->threads;
    multiply(layer, &net->project, pass, normed(pass, net->input_norm, layer->width, net->input_eps), pass->product);
    draftwire_delta_inputs(net, work, pass->product, pass->rows, threads);
    draftwire_recurrence(work, threads);
    draftwire_delta_store(work, stored);
    draftwire_delta_outputs(net, work, pass->product, pass->rows, threads);
    multiply(layer, &net->output, pass, work->out, pass->product);
    add_output(layer, pass, pass->product, net->output_norm, 0);
}

static void feed_forward(const Layer *layer, const Pass *pass) {
    const int64_t width = layer->width;
    multiply(layer, &layer->gate_and_up, pass, normed(pass, layer->output_norm, width, layer->output_eps), pass->product);
    draftwire_gate(pass->product, pass->gated, pass->rows, layer->down.inputs, layer->gate, 0, pass->threads);
    multiply(layer, &layer->down, pass, pass->gated, pass->product);
    add_output(layer, pass, pass->product, layer->forwarded_norm, !layer->token_gate.outputs);
}

/* The gates of a row and its token's inputs, side by side. */
typedef struct {
    const float *gates;
    const uint16_t *tokens;
    float *both;
    int64_t width, stride;
} TokenGates;

INLINE void join_token_gates_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const TokenGates *a = call;
    (void)thread_id;
    for (int64_t row = first; row < last; row++)
        for (int64_t c = 0; c < a->width; c += LANES) {
            store_vec(a->both, 2 * row * a->width + c, load_vec(a->gates, row * a->width + c, 0), 0);
            store_vec(a->both, (2 * row + 1) * a->width + c, load_vec(a->tokens, row * a->stride + c, 1), 0);
        }
}

CLONED_TASK(join_token_gates)

static void add_tokens(const Layer *layer, const Pass *pass, const uint16_t *tokens, int64_t stride) {
    const int64_t width = layer->token_output.inputs;
    multiply(layer, &layer->token_gate, pass, pass->residual, pass->product);
    const TokenGates call = {pass->product, tokens, pass->gated, width, stride};
    draftwire_parallel_for(join_token_gates, &call, pass->rows, (LEAST_ELEMENTS + width - 1) / width, pass->threads);
    draftwire_gate(pass->gated, pass->product, pass->rows, width, layer->gate, 0, pass->threads);
    multiply(layer, &layer->token_output, pass, pass->product, pass->normed);
    add_output(layer, pass, pass->normed, layer->token_norm, 1);
}

void draftwire_decoder_layer(const Layer *layer, const Pass *pass, void *keys, void *values, const uint16_t *beside,
                             int64_t stride) {
    if (layer->project.outputs) attend(layer, pass, keys, values, beside, stride);
    if (layer->gate_and_up.outputs) feed_forward(layer, pass);
    if (layer->token_gate.outputs) add_tokens(layer, pass, beside, stride);
}

void draftwire_decoder_layers(const LayerCall *calls, int64_t count, const Pass *passes) {
    for (const LayerCall *call = calls; call < calls + count; call++)
        draftwire_decoder_layer(call->layer, passes + call->angles, call->keys, call->values, NULL, 0);
}
