/* The parts of a decoder layer: what each is called with, and what it does on up to `threads` threads. */
#ifndef DRAFTWIRE_OPS_H
#define DRAFTWIRE_OPS_H

#include <stdint.h>

/* Rows times a weight; speculative_engine/row_product.py has the same fields in the same order. */
typedef struct {
    const uint16_t *rows;   /* [row_count, inputs] */
    const uint16_t *weight; /* packed; outputs beyond the last are zeros */
    const uint16_t *bias;   /* [outputs] or NULL */
    uint16_t *out;          /* [row_count, outputs] */
    int64_t row_count, outputs, inputs; /* inputs: a multiple of BLOCK */
} Gemm;

/* kind: what draftwire_gemm_kind has found. */
void draftwire_gemm(const Gemm *p, int32_t kind, int32_t threads);

/* The same with a weight of integers; speculative_engine/int8_product.py has the same fields in the same order. */
typedef struct {
    const uint16_t *rows;   /* [row_count, inputs] */
    const int8_t *weight;   /* packed; outputs beyond the last are zeros */
    const float *scales;    /* [groups * BLOCK] */
    const uint16_t *bias;   /* [outputs] or NULL */
    uint16_t *out;          /* [row_count, outputs] */
    int64_t row_count, outputs, inputs; /* inputs: a multiple of BLOCK */
} GemmInt8;

void draftwire_gemm_int8(const GemmInt8 *p, int32_t kind, int32_t threads);

/* Heads to turn; speculative_engine/layer_steps.py has the same fields in the same order. */
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
    int32_t bf16;
} Rope;

/* Turns queries and keys to their positions, writes keys and values into their slots. */
void draftwire_rope(const Rope *a, int32_t threads);

/* What attends to what; speculative_engine/slot_attention.py has the same fields in the same order. */
typedef struct {
    const float *query;    /* [heads, rows, key_dim], scaled */
    const void *keys;      /* [kv_heads, slots, key_dim] */
    const void *values;    /* [kv_heads, slots, value_dim] */
    float *out;            /* [rows, heads, value_dim] */
    float *scratch;        /* [threads, queries of a tile, shared, longest], longest a multiple of LANES */
    const float *sinks;    /* [heads] or NULL: scores that take probability and give no value */
    const int64_t *seen;   /* the lanes' slots by position, one lane after the other */
    const int64_t *lanes;  /* [lanes, 3]: where its slots begin in seen, its first query, the query after its last */
    const int64_t *rows;   /* row of each query */
    const int64_t *counts; /* positions each query sees, of its lane's first ones; rising within a lane */
    int64_t row_count, kv_heads, shared, slots, key_dim, value_dim, longest, window;
    int64_t lane_count, scratch_size; /* of one thread */
    float softcap; /* 0: none */
    int32_t bf16;  /* keys and values are bfloat16, else float32 */
} Attention;

void draftwire_attention(const Attention *a, int32_t threads);

/* out [rows, width] = weight [width] * normalised from [rows, width] */
void draftwire_rms_norm(const void *from, const void *weight, void *out, int64_t rows, int64_t width, float eps,
                        int32_t bf16, int32_t threads);

/* out [rows, width] = silu(gate) * up, of both [rows, 2 * width]: gate, up */
void draftwire_silu_and_mul(const void *both, void *out, int64_t rows, int64_t width, int32_t bf16, int32_t threads);

#endif
