/* The functions that Python calls (draftwire_parallel_for is in thread_pool.h), and the structs that it passes to them.
 * draftwire_core/engine/kernels/structs.py mirrors the structs under the same names, and library.py the functions. Tensors
 * are bfloat16 where a bf16 flag is set, float32 otherwise. `threads` is the largest number of threads that a call may
 * use, including the caller's. */
#ifndef DRAFTWIRE_OPS_H
#define DRAFTWIRE_OPS_H

#include <stdint.h>

/* The types of weights: bfloat16; float16; int8 with a scale per output; quantised in blocks of 32 inputs; integers of 4 or 8 bits
 * with a scale and a zero point per group of inputs; and 8-bit floats with a scale per group of inputs. */
enum {
    BF16_WEIGHT, F16_WEIGHT, INT8_WEIGHT,
    Q8_0_WEIGHT, Q4_0_WEIGHT, Q4_1_WEIGHT, Q5_0_WEIGHT, Q5_1_WEIGHT, Q4_K_WEIGHT, Q5_K_WEIGHT, Q6_K_WEIGHT, MXFP4_WEIGHT,
    GROUP4_WEIGHT, GROUP8_WEIGHT, FP8_WEIGHT
};

/* The product of rows and a packed weight. */
typedef struct {
    const void *rows;          /* [row_count, inputs], bfloat16 or float32 */
    const void *weight;        /* packed as in tiles.h, gemm_blocks.c or gemm_fp8.c; the last group is padded with zeros */
    const float *scales;       /* [groups * OUTPUT_GROUP] for INT8_WEIGHT, else NULL */
    const uint16_t *bias;      /* [outputs] or NULL */
    void *out;                 /* [row_count, stride], of which `outputs` are written */
    float *working;            /* [row_count, inputs]: working memory */
    int64_t row_count, outputs, stride;
    int64_t inputs;            /* a multiple of 32; of 256 for weights with superblocks (Q4_K, Q5_K, Q6_K) */
    int64_t group;             /* inputs per scale for GROUP4_WEIGHT, GROUP8_WEIGHT and FP8_WEIGHT, a multiple of 32 */
    int32_t type;
    int32_t wide;              /* whether `out` is float32 instead of bfloat16 */
    int32_t wide_rows;         /* whether `rows` are; bfloat16 products and those of INT8_WEIGHT round them */
} Gemm;

/* The gemm kernels: plain C, then those of x86 and those of ARM, slowest first. Those without bfloat16 products give
 * the same bits, and so do all for weights in blocks. AVXVNNI_GEMM has AVX2's vectors and products of 8-bit integers. */
enum {
    PLAIN_GEMM, AVX2_GEMM, AVXVNNI_GEMM, AVX512_GEMM, AVX512VNNI_GEMM, AVX512BF16_GEMM, AMX_GEMM,
    NEON_GEMM, DOTPROD_GEMM, I8MM_GEMM
};

/* Returns the gemm kernels that this processor supports: bit k is set for kernel k. Requests permission from the
 * operating system to use the tile registers of AMX. */
int32_t draftwire_gemm_kinds(void);

/* kind: one that this processor supports; AVX512BF16_GEMM or AMX_GEMM for INT8_WEIGHT */
void draftwire_gemm(const Gemm *p, int32_t kind, int32_t threads);

/* The most rows that a product of `rows` rows takes at once. With more it divides them into as few blocks as possible, and
 * goes through the weight once for each. */
int64_t draftwire_rows_at_once(int32_t type, int32_t kind, int64_t rows);

/* The values of units of a weight in blocks, of `size` bytes and `inputs` values each: to, bfloat16 [units, inputs]. type: one
 * of Q8_0_WEIGHT to MXFP4_WEIGHT */
void draftwire_block_values(const uint8_t *from, uint16_t *to, int64_t units, int64_t size, int64_t inputs, int32_t type);

/* out [rows, width] = weight [width] * from [rows, width] / root mean square of the row. from_bf16, weight_bf16 and
 * out_bf16 are of these tensors. Beside bfloat16 weights `from` may be float32, and then `out` as well */
void draftwire_rms_norm(const void *from, const void *weight, void *out, int64_t rows, int64_t width, float eps,
                        int32_t from_bf16, int32_t weight_bf16, int32_t out_bf16, int32_t threads);

/* What the attention of a layer that reads features takes: out [rows, 2 * width], the rows of `embedded` and of `features`,
 * each normed, side by side. embedded [rows, width] is then overwritten with the residual stream: the features, normed or
 * not. */
typedef struct {
    float *embedded;
    const uint16_t *features; /* bfloat16 [rows, width], in rows of `stride` elements */
    const float *embedded_norm, *feature_norm; /* [width] */
    float *out;
    int64_t rows, width, stride;
    float eps;
    int32_t normed_residual;
} Features;

void draftwire_join_features(const Features *a, int32_t threads);

/* The types of keys and values in their slots; kv_rows.h describes a row of each. */
enum { FLOAT32_KV, BF16_KV, Q8_0_KV, F16_KV };

#define MOST_DIM 512 /* elements of a head's key */

/* Rotary position embedding. Also scales queries, and writes keys and values to their slots. */
typedef struct {
    void *projected;          /* [rows, heads of all kinds * dim]: queries, keys, values; overwritten. If `gated`, a gate
                               * of dim elements follows each head's query */
    const void *cosines;      /* [rows, rotary] */
    const void *sines;        /* [rows, rotary] */
    const void *query_weight; /* [dim], weight of the query head norm, or NULL; [heads * dim] if `norms_whole` */
    const void *key_weight;   /* [dim], weight of the key head norm, or NULL; [kv_heads * dim] if `norms_whole` */
    const void *value_weight; /* [dim], weight of the value head norm, or NULL */
    const int64_t *slots;     /* [rows] */
    float *query;             /* [heads, rows, dim], scaled */
    void *keys;               /* [kv_heads, capacity] rows */
    void *values;             /* [kv_heads, capacity] rows */
    int64_t rows, heads, kv_heads;
    int64_t dim;              /* at most MOST_DIM */
    int64_t rotary;           /* leading elements of a head that are rotated, a multiple of LANES; 0 for none */
    int64_t capacity;
    float scale, eps;
    int32_t bf16;             /* of `projected` and the angles */
    int32_t weight_bf16;      /* of the norms' weights; set if bf16 is */
    int32_t norms_whole;      /* whether a norm is of all heads at once */
    int32_t kv_type;
    int32_t gated;
    int32_t kv_parts;         /* 2: keys and values; 1: keys that are the values, too; 0: queries alone */
} Rope;

void draftwire_rope(const Rope *a, int32_t threads);

/* Multiplies results of attention, [rows, heads, dim], by the sigmoids of gates, which follow the queries of each head in
 * rows of `stride` elements. */
void draftwire_gate_heads(const float *projected, float *attended, int64_t rows, int64_t heads, int64_t dim,
                          int64_t stride, int32_t threads);

/* Writes keys or values of several heads to their slots as Q8_0_KV. */
typedef struct {
    const void *source;   /* [heads, rows, dim], with these strides in elements: */
    int64_t head_stride, row_stride;
    const int64_t *slots; /* [rows] */
    void *to;             /* [heads, capacity] rows */
    int64_t heads, rows, dim, capacity;
    int32_t bf16;
} KvRows;

void draftwire_write_kv(const KvRows *a, int32_t threads);

/* The angles of rotary position embeddings: cosines and sines of position times frequency, a float32, in both halves of
 * a row, times `scaling`. */
typedef struct {
    const int64_t *positions;  /* [rows] */
    const float *frequencies;  /* [dim / 2] */
    void *cosines, *sines;     /* [rows, dim] */
    int64_t rows, dim;
    float scaling;
    int32_t bf16;
} Angles;

void draftwire_angles(const Angles *a, int32_t threads);

/* What a gate is activated by before it is multiplied. */
enum { SILU_GATE, GELU_TANH_GATE };

/* out [rows, width] = activated gate * up, where both [rows, 2 * width] holds each row's gate and up */
void draftwire_gate(const void *both, void *out, int64_t rows, int64_t width, int32_t gate, int32_t bf16,
                    int32_t threads);

/* Attention over KV slots. A lane is a path of the token tree: its slots, ordered by position, and its queries. */
typedef struct {
    const float *query;    /* [heads, rows, key_dim], scaled */
    const void *keys;      /* [kv_heads, slots] rows of key_dim elements */
    const void *values;    /* [kv_heads, slots] rows of value_dim elements */
    float *out;            /* [rows, heads, value_dim] */
    float *scratch;        /* [threads, queries per tile, shared, longest]; longest is a multiple of LANES */
    const float *sinks;    /* [heads] or NULL: extra scores in the softmax that have no value */
    const int64_t *seen;   /* the slots of all lanes, concatenated */
    const int64_t *lanes;  /* [lanes, 3]: start of its slots in seen, its first query, the query after its last */
    const int64_t *rows;   /* the row of each query */
    const int64_t *counts; /* number of leading slots of its lane that each query sees; ascending within a lane */
    int64_t row_count, kv_heads;
    int64_t shared;        /* query heads per key-value head */
    int64_t slots, key_dim, value_dim, longest;
    int64_t window;        /* 0 for none */
    int64_t chunk;         /* 0 for none: a query sees only keys of its own chunk of so many positions */
    int64_t lane_count;
    int64_t scratch_size;  /* floats per thread: room for the scores of a tile's queries, one at least */
    float softcap;         /* 0 for none */
    int32_t kv_type;
} Attention;

void draftwire_attention(const Attention *a, int32_t threads);

/* A linear layer of a decoder layer or of an expert, or a part of one whose outputs have weights of several types. */
typedef struct Linear {
    const void *weight;   /* packed as for Gemm */
    const float *scales;  /* as for Gemm */
    const uint16_t *bias; /* or NULL */
    const struct Linear *next; /* the part with the outputs that follow, or NULL */
    int64_t outputs, inputs;
    int64_t group;        /* as for Gemm */
    int32_t type;
} Linear;

/* The products of rows, sorted by expert, and the weights of their experts. */
typedef struct {
    const Linear *linears;  /* of each expert, all with the same sizes */
    const int64_t *experts; /* [row_count], ascending */
    const uint16_t *rows;   /* [row_count, inputs] */
    uint16_t *out;          /* [row_count, outputs] */
    float *working;         /* [row_count, inputs]: working memory */
    int64_t row_count, inputs, outputs;
} ExpertRows;

/* kind: as for draftwire_gemm */
void draftwire_expert_rows(const ExpertRows *a, int32_t kind, int32_t threads);

/* The weights and sizes of a decoder layer, the same for all passes. A block whose first linear layer has no outputs is
 * left to the caller. The third block adds what depends on a token's id (per-layer inputs). A layer with a feature_norm
 * reads features beside embeddings, see Features. */
typedef struct {
    Linear project, output, gate_and_up, down, token_gate, token_output;
    const float *input_norm, *output_norm;                   /* [width], of the inputs of the first blocks, or NULL */
    const float *attended_norm, *forwarded_norm, *token_norm; /* [width], of the outputs of the blocks, or NULL */
    const float *feature_norm;                                /* [width] or NULL */
    const float *query_norm, *key_norm, *value_norm;          /* as for Rope */
    const float *sinks;                                       /* as for Attention */
    int64_t width, heads, kv_heads, dim, rotary, window;
    float input_eps, output_eps, head_eps, scale;
    float softcap;    /* 0 for none */
    float multiplier; /* of the outputs of the blocks */
    float factor;     /* of the residual stream, after the blocks */
    int32_t gate, norms_whole, gated, kv_parts, normed_residual;
    int32_t kind; /* of the gemm kernels */
} Layer;

/* The rows and the working memory of a forward pass, the same for all layers. */
typedef struct {
    uint16_t *hidden;                                         /* [rows, width], overwritten: `residual`, rounded */
    float *residual;                                          /* [rows, width], overwritten */
    const float *cosines, *sines;                             /* [rows, rotary] */
    const int64_t *slots, *seen, *lanes, *lane_rows, *counts; /* see Rope and Attention */
    float *normed;   /* [rows, most inputs of a linear layer] */
    float *product;  /* [rows, most outputs of a linear layer] */
    float *gated;    /* [rows, inputs of the second linear layer of a block without attention] */
    float *query;    /* [heads, rows, dim] */
    float *attended; /* [rows, heads, dim] */
    float *scores;   /* [threads, scratch_size] */
    float *working;  /* [rows, most inputs of a linear layer] */
    int64_t rows, capacity, longest, lane_count, scratch_size;
    int32_t threads, kv_type;
} Pass;

/* keys and values: [kv_heads, capacity] rows of this layer. beside: what the layer reads beside the residual stream,
 * bfloat16, in rows of `stride` elements: features, or else the inputs of the third block; NULL if it reads neither */
void draftwire_decoder_layer(const Layer *layer, const Pass *pass, void *keys, void *values, const uint16_t *beside,
                             int64_t stride);

/* A layer with its keys and values, the same for all passes over one KV cache. */
typedef struct {
    const Layer *layer;
    void *keys, *values; /* as for draftwire_decoder_layer */
    int64_t angles;      /* index of the pass with its angles */
} LayerCall;

/* Runs `count` layers that read nothing beside the residual stream, one after the other. passes: of the same rows, each with
 * other angles */
void draftwire_decoder_layers(const LayerCall *calls, int64_t count, const Pass *passes);

/* How an element of a recurrent state decays: by a factor of its head or its head's key, by a factor of its value, or by
 * e^(step of its value * its own rate), where the value is multiplied by the step as well. MEAN_DECAYS: the result is the
 * mean of all values of a channel, weighted by e^key, which decays at the channel's rate; e^(key + bonus) for the token's
 * own. There are no gates, and a key for each value. The state is the sum of weighted values, that of the weights, and
 * the exponent that both are divided by e to the power of; rates: [rate, bonus, unused]. */
enum { HEAD_DECAYS, VALUE_DECAYS, RATE_DECAYS, MEAN_DECAYS };

/* Recurrent layers over the token trees of a batch. An item is a token of a path: a row of the batch, or a token of an
 * earlier pass whose inputs were stored. Each follows the items before it on its path. A group is a sequence. */
typedef struct {
    const void *inputs;           /* [rows, channels]: inputs of the convolution */
    const float *gates;           /* [rows, value_heads * (decays of a head + 1)]: all decays, then a beta for each head;
                                   * [rows, value_heads * value_dim] where `decays` is of each value: factors or steps */
    const void *stored_inputs;    /* as inputs, of tokens of earlier passes */
    const float *stored_gates;    /* as gates */
    void *windows;                /* [states, taps - 1, channels]: the last inputs before each state, oldest first */
    float *states;                /* [states, value_heads, key_dim, value_dim] */
    const float *weight, *bias;   /* [taps, channels], the row's own tap last; [channels] or NULL */
    const float *direct;          /* [value_heads] or NULL: the share of a value that is added to its result; for each
                                   * value, [value_heads * value_dim], where `decays` is */
    const float *rates;           /* [value_heads, key_dim, value_dim], at most 0, or NULL */
    float *mixed;                 /* [items, channels]: working memory; the convolution's results */
    float *out;                   /* [rows, value_heads, value_dim] */
    float *scratch;               /* [threads, levels * key_dim * value_dim + key_dim]: working memory */
    void *gathered;               /* [saves, taps - 1, channels]: working memory */
    const int64_t *items;         /* [items, 5]: its row or ~ (index of stored inputs); the state before it and the one
                                   * after it, each the index of a state, -1 for none or -2 - a level of scratch; the row
                                   * that gets its result or -1; the state that gets a copy or -1 */
    const int64_t *tap_sources;   /* [items, taps - 1]: inputs before the item's own, oldest first: a row, -1 for none,
                                   * -2 - 2 * an index of stored inputs, or -3 - 2 * an index of a window's row */
    const int64_t *groups;        /* [groups + 1]: the first item of each, then the number of items */
    const int64_t *saves;         /* [saves, 2]: an item and the state whose window ends with it */
    int64_t item_count, group_count, save_count;
    int64_t channels, taps;
    int64_t value_heads;          /* 0: no state, the convolution's results are the layer's */
    int64_t key_heads, key_dim, value_dim, query_at, key_at, value_at; /* places of heads among the channels */
    int64_t levels;
    float eps, scale;             /* of the norm of keys and queries; what normal queries are multiplied by */
    int32_t bf16;                 /* of inputs and windows; others are float32 */
    int32_t activates;            /* SiLU after the convolution */
    int32_t normalises;           /* keys and queries have length 1 */
    int32_t corrects;             /* delta rule: what the key finds in the state is subtracted from the value */
    int32_t decay_each_key;       /* a decay for each element of the key instead of one for each head */
    int32_t decays;
} Recurrence;

void draftwire_recurrence(const Recurrence *a, int32_t threads);

/* The parts of a gated delta net's projected row, each once for each key head. Queries and keys have key_dim elements; of
 * the others a key head has those of all its value heads in turn, value_dim or 1 for each. */
enum { DELTA_QUERIES, DELTA_KEYS, DELTA_VALUES, DELTA_GATES, DELTA_STEPS, DELTA_STRENGTHS, DELTA_PARTS };

/* A gated delta net (Yang et al. 2024): its projections, and what is between them beside the recurrence, which decays by
 * heads. key_dim and value_dim are multiples of LANES. */
typedef struct {
    Linear project, output;
    const float *input_norm, *output_norm; /* [width of the layer] or NULL */
    const float *rates, *bias;             /* [value_heads]: of decays, rates at most 0 */
    const float *norm;                     /* [value_dim], of each head's results */
    int64_t places[DELTA_PARTS];           /* in a row of the projection's outputs, of the first key head */
    int64_t strides[DELTA_PARTS];          /* from a key head to the next */
    int64_t width;                         /* elements of such a row */
    float input_eps, eps;                  /* of the norm of the inputs; of the norm of results */
    float strength;                        /* what betas are multiplied by */
} DeltaNet;

/* Rows of a batch whose inputs are kept. */
typedef struct {
    const int64_t *rows, *places; /* [count] */
    int64_t count;
} StoredRows;

/* The block of a decoder layer that is a gated delta net; adds its output to the residual stream. */
void draftwire_delta_block(const Layer *layer, const Pass *pass, const DeltaNet *net, const Recurrence *work,
                           const StoredRows *stored);

/* The token filters of one row. */
typedef struct {
    int64_t top_k;    /* 0 for none */
    double top_p;     /* 1 for none */
    double typical_p; /* 1 for none */
    float log_min_p;  /* -inf for none */
} Filters;

/* The best tokens of each row under coupled noise. */
typedef struct {
    const void *logits;        /* [row_count, stride] */
    const float *temperatures; /* [row_count]; 1 in greedy rows */
    const int64_t *seeds;      /* [row_count], the bits of a uint64 */
    const int64_t *positions;  /* [row_count] */
    const uint8_t *greedy;     /* [row_count] */
    const Filters *filters;    /* [row_count], or NULL where no row has any */
    int64_t *tokens;           /* [row_count, wanted]: best first, then -1 if a row has fewer */
    float *scores;             /* [row_count, wanted] */
    float *log_probs;          /* [row_count, wanted] of softmax(logits / temperature), or NULL */
    int64_t row_count, vocabulary, stride, wanted;
    int32_t bf16;
} Sample;

/* Returns 0, or 1 if memory cannot be allocated. */
int32_t draftwire_sample(const Sample *call);

/* Returns the widest kind of vectors that this processor supports (vectors.h). */
int32_t draftwire_vector_kind(void);

/* Selects the vectors of all later calls; must not run concurrently with other calls. kind: one that this processor
 * supports */
void draftwire_use_vectors(int32_t kind);

/* Selects how all later products read weights in blocks, which changes no result. in_order: whether groups of outputs are
 * read one after the other, instead of several side by side */
void draftwire_read_blocks_in_order(int32_t in_order);

typedef struct {
    const char *name;
    int64_t size; /* in bytes */
} StructSize;

/* The hash must remain the first field: it is compared before any other field is read. */
typedef struct {
    const char *source_hash;
    const StructSize *structs; /* terminated by one without a name */
} Abi;

const Abi *draftwire_abi(void);

#endif
