/* Recurrent layers over the token trees of a batch: a causal convolution of each path's inputs, and a state per head that
 * each token updates by an outer product (gated delta rule, Mamba-2 and, with a decay for each element, Mamba).
 *
 * Tokens are processed in turn, each from the state of the token before it on its path. The order of an element's
 * operations depends on its path alone: no chunks, no sums split among threads. Heads are independent of each other, and
 * so are the columns of a head's state. All widths are multiples of LANES.
 */
#include "ops.h"
#include "thread_pool.h"
#include "vectors.h"

#include <math.h>
#include <stddef.h>

#define LEAST_ELEMENTS 32768 /* with fewer, waking a thread costs more than it saves */
#define WIDE 4               /* vectors of columns that stay in registers */

/* Fields of an item, see Recurrence. */
enum { SOURCE, FROM, TO, OUT, COPY, FIELDS };

INLINE const char *row_of(const void *rows, int64_t index, int64_t width, int bf16) {
    return (const char *)rows + index * width * (bf16 ? 2 : 4);
}

INLINE const void *inputs_of(const Recurrence *a, int64_t source) {
    return source >= 0 ? row_of(a->inputs, source, a->channels, a->bf16)
                       : row_of(a->stored_inputs, ~source, a->channels, a->bf16);
}

/* The inputs of a convolution's tap, or NULL before the first token. */
INLINE const void *tap_of(const Recurrence *a, int64_t tap) {
    if (tap >= 0) return inputs_of(a, tap);
    if (tap == -1) return NULL;
    const int64_t index = (-tap - 2) >> 1;
    return (-tap - 2) & 1 ? row_of(a->windows, index, a->channels, a->bf16)
                          : row_of(a->stored_inputs, index, a->channels, a->bf16);
}

INLINE void normalise(float *head, int64_t dim, float eps, float scale) {
    vec squares = {0};
    for (int64_t c = 0; c < dim; c += LANES) {
        const vec x = load_vec(head, c, 0);
        squares = squares + x * x;
    }
    const float factor = scale / sqrtf(sum_vec(squares) + eps);
    for (int64_t c = 0; c < dim; c += LANES) store_vec(head, c, load_vec(head, c, 0) * factor, 0);
}

INLINE void convolve_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Recurrence *a = call;
    const int64_t before = a->taps - 1;
    (void)thread_id;
    for (int64_t i = first; i < last; i++) {
        const int64_t *item = a->items + i * FIELDS;
        if (!a->value_heads && item[OUT] < 0) continue;
        const void *own = inputs_of(a, item[SOURCE]);
        float *mixed = a->mixed + i * a->channels;
        for (int64_t c = 0; c < a->channels; c += LANES) {
            vec sum = {0};
            for (int64_t t = 0; t < before; t++) {
                const void *from = tap_of(a, a->tap_sources[i * before + t]);
                if (from) sum = sum + load_vec(from, c, a->bf16) * load_vec(a->weight + t * a->channels, c, 0);
            }
            sum = sum + load_vec(own, c, a->bf16) * load_vec(a->weight + before * a->channels, c, 0);
            if (a->bias) sum = sum + load_vec(a->bias, c, 0);
            sum = round_vec(sum, a->bf16);
            if (a->activates) sum = round_vec(sum * sigmoid_vec(sum), a->bf16);
            store_vec(mixed, c, sum, 0);
        }
        for (int64_t h = 0; a->normalises && h < a->key_heads; h++) {
            normalise(mixed + a->query_at + h * a->key_dim, a->key_dim, a->eps, a->scale);
            normalise(mixed + a->key_at + h * a->key_dim, a->key_dim, a->eps, 1);
        }
    }
}

CLONED_TASK(convolve)

/* A head's parts for a token; those of columns begin with the first of the columns. */
typedef struct {
    const float *from; /* state before the token or NULL */
    float *to, *out;   /* out: or NULL */
    const float *key, *decayed, *query, *value;
    const float *decay; /* HEAD_DECAYS */
    int64_t decay_step;
    const float *steps;   /* of columns; factors VALUE_DECAYS */
    const float *rates;   /* of columns, RATE_DECAYS */
    const float *directs; /* of columns, or NULL */
    float beta, direct;
} Head;

/* Updates `vectors` vectors of columns of a head's state, and multiplies them by the query. decayed: the key times the
 * decays */
INLINE void advance_columns(const Recurrence *a, const Head *head, int64_t column, const int vectors, const int decays) {
    const int64_t width = a->value_dim;
    const float *from = head->from ? head->from + column : NULL;
    float *to = head->to + column;
    vec change[WIDE], sum[WIDE], step[WIDE];
    for (int b = 0; b < vectors; b++) {
        change[b] = sum[b] = (vec){0};
        if (decays != HEAD_DECAYS) step[b] = load_vec(head->steps, column + b * LANES, 0);
    }
    if (a->corrects && from)
        for (int64_t i = 0; i < a->key_dim; i++)
            for (int b = 0; b < vectors; b++)
                change[b] = change[b] + load_vec(from + i * width, b * LANES, 0) * head->decayed[i];
    for (int b = 0; b < vectors; b++) {
        const vec value = load_vec(head->value, column + b * LANES, 0);
        change[b] = decays == HEAD_DECAYS   ? (value - change[b]) * head->beta
                    : decays == RATE_DECAYS ? value * step[b]
                                            : value;
    }
    for (int64_t i = 0; i < a->key_dim; i++) {
        const float factor = decays == HEAD_DECAYS ? head->decay[i * head->decay_step] : 0;
        for (int b = 0; b < vectors; b++) {
            vec state = change[b] * head->key[i];
            if (from) {
                const vec before = load_vec(from + i * width, b * LANES, 0);
                if (decays == HEAD_DECAYS) state = before * factor + state;
                else if (decays == VALUE_DECAYS) state = before * step[b] + state;
                else state = before * exp_vec(step[b] * load_vec(head->rates + i * width, column + b * LANES, 0)) + state;
            }
            store_vec(to + i * width, b * LANES, state, 0);
            sum[b] = sum[b] + state * head->query[i];
        }
    }
    if (head->out)
        for (int b = 0; b < vectors; b++) {
            const int64_t at = column + b * LANES;
            const vec value = load_vec(head->value, at, 0);
            store_vec(head->out, at,
                      head->directs ? sum[b] + value * load_vec(head->directs, at, 0) : sum[b] + value * head->direct, 0);
        }
}

/* Updates a vector of columns of a mean (RWKV). */
INLINE void advance_mean(const Recurrence *a, const Head *head, int64_t column) {
    const int64_t width = a->value_dim;
    const vec key = load_vec(head->key, column, 0), value = load_vec(head->value, column, 0);
    const vec rate = load_vec(head->rates, column, 0), bonus = load_vec(head->rates + width, column, 0);
    vec sum = {0}, weights = {0}, exponent = sum - 1e38f;
    if (head->from) {
        sum = load_vec(head->from, column, 0);
        weights = load_vec(head->from + width, column, 0);
        exponent = load_vec(head->from + 2 * width, column, 0);
    }
    if (head->out) {
        const vec own = key + bonus, top = larger_vec(exponent, own);
        const vec before = exp_vec(exponent - top), now = exp_vec(own - top);
        store_vec(head->out, column, (before * sum + now * value) / (before * weights + now), 0);
    }
    exponent = exponent + rate;
    const vec top = larger_vec(exponent, key), before = exp_vec(exponent - top), now = exp_vec(key - top);
    store_vec(head->to, column, before * sum + now * value, 0);
    store_vec(head->to + width, column, before * weights + now, 0);
    store_vec(head->to + 2 * width, column, top, 0);
}

INLINE void advance_head(const Recurrence *a, const Head *head, const int decays) {
    int64_t c = 0;
    for (; c + WIDE * LANES <= a->value_dim; c += WIDE * LANES) advance_columns(a, head, c, WIDE, decays);
    for (; c < a->value_dim; c += LANES) advance_columns(a, head, c, 1, decays);
}

INLINE void advance_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Recurrence *a = call;
    const int64_t size = a->key_dim * a->value_dim, heads = a->value_heads;
    const int each_value = a->decays != HEAD_DECAYS;
    const int64_t decay_width = each_value ? a->value_dim : a->decay_each_key ? a->key_dim : 1;
    const int64_t gates = a->decays == MEAN_DECAYS ? 0 : heads * (decay_width + (each_value ? 0 : 1));
    float *scratch = a->scratch + thread_id * (a->levels * size + a->key_dim), *decayed = scratch + a->levels * size;
    for (int64_t task = first; task < last; task++) {
        const int64_t group = task / heads, h = task % heads, key_head = h / (heads / a->key_heads);
        for (int64_t i = a->groups[group]; i < a->groups[group + 1]; i++) {
            const int64_t *item = a->items + i * FIELDS;
            const float *mixed = a->mixed + i * a->channels;
            const float *own_gates = item[SOURCE] >= 0 ? a->gates + item[SOURCE] * gates
                                                       : a->stored_gates + ~item[SOURCE] * gates;
            const float *decay = own_gates + h * decay_width;
            Head head = {
                .from = item[FROM] == -1  ? NULL
                        : item[FROM] >= 0 ? a->states + (item[FROM] * heads + h) * size
                                          : scratch + (-item[FROM] - 2) * size,
                .to = item[TO] >= 0 ? a->states + (item[TO] * heads + h) * size : scratch + (-item[TO] - 2) * size,
                .out = item[OUT] >= 0 ? a->out + (item[OUT] * heads + h) * a->value_dim : NULL,
                .key = mixed + a->key_at + key_head * a->key_dim,
                .decayed = decayed,
                .query = mixed + a->query_at + key_head * a->key_dim,
                .value = mixed + a->value_at + h * a->value_dim,
            };
            if (a->decays == MEAN_DECAYS) {
                head.key = mixed + a->key_at + h * a->value_dim;
                head.rates = a->rates + h * size;
                for (int64_t c = 0; c < a->value_dim; c += LANES) advance_mean(a, &head, c);
            } else if (each_value) {
                head.steps = decay;
                head.rates = a->rates ? a->rates + h * size : NULL;
                head.directs = a->direct ? a->direct + h * a->value_dim : NULL;
                if (a->decays == RATE_DECAYS) advance_head(a, &head, RATE_DECAYS);
                else advance_head(a, &head, VALUE_DECAYS);
            } else {
                head.decay = decay;
                head.decay_step = a->decay_each_key;
                head.beta = own_gates[heads * decay_width + h];
                head.direct = a->direct ? a->direct[h] : 0;
                for (int64_t k = 0; k < a->key_dim; k++) decayed[k] = head.key[k] * decay[k * head.decay_step];
                advance_head(a, &head, HEAD_DECAYS);
            }
            if (item[COPY] >= 0) memcpy(a->states + (item[COPY] * heads + h) * size, head.to, size * sizeof *head.to);
        }
    }
}

CLONED_TASK(advance)

/* Stores the last inputs of the paths to some items as windows. All are gathered before the first is overwritten. */
static void save_windows(const Recurrence *a) {
    const int64_t before = a->taps - 1, bytes = a->channels * (a->bf16 ? 2 : 4);
    char *gathered = a->gathered;
    for (int64_t s = 0; s < a->save_count; s++) {
        const int64_t item = a->saves[2 * s];
        for (int64_t t = 0; t < before; t++) {
            const void *from = t + 1 < before ? tap_of(a, a->tap_sources[item * before + t + 1])
                                              : inputs_of(a, a->items[item * FIELDS + SOURCE]);
            char *to = gathered + (s * before + t) * bytes;
            if (from) memcpy(to, from, bytes);
            else memset(to, 0, bytes);
        }
    }
    for (int64_t s = 0; s < a->save_count; s++)
        memcpy((char *)a->windows + a->saves[2 * s + 1] * before * bytes, gathered + s * before * bytes, before * bytes);
}

void draftwire_recurrence(const Recurrence *a, int32_t threads) {
    draftwire_parallel_for(convolve, a, a->item_count, (LEAST_ELEMENTS + a->channels - 1) / a->channels, threads);
    if (a->value_heads) draftwire_parallel_for(advance, a, a->group_count * a->value_heads, 1, threads);
    save_windows(a);
}
