/* The attention of one tile, for one kind of vectors. attention.c includes this file once per kind, with
 *
 *   ATTEND_NAME(NAME)     the name of a function or type for this kind
 *   ATTEND_TARGET         the instructions that it uses
 *   ATTEND_WIDTH          floats per vector
 *   ATTEND_CHUNKS         vectors of value elements that are summed at once
 *   ATTEND_FMA(A, B, C)   A * B + C, rounded once
 */
#define ATTEND_INLINE ATTEND_TARGET static inline __attribute__((always_inline))
#define ATTEND_VECTORS (LANES / ATTEND_WIDTH)
#define FLOATS ATTEND_NAME(floats)
#define INTS ATTEND_NAME(ints)
#define BITS ATTEND_NAME(bits)

typedef float FLOATS __attribute__((vector_size(4 * ATTEND_WIDTH), aligned(4)));
typedef uint32_t INTS __attribute__((vector_size(4 * ATTEND_WIDTH), aligned(4)));
typedef uint16_t BITS __attribute__((vector_size(2 * ATTEND_WIDTH), aligned(2)));

#if ATTEND_WIDTH == 16
#define ATTEND_EACH(LANE, SPAN)                                                                                        \
    LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN), LANE(4, SPAN), LANE(5, SPAN), LANE(6, SPAN),           \
        LANE(7, SPAN), LANE(8, SPAN), LANE(9, SPAN), LANE(10, SPAN), LANE(11, SPAN), LANE(12, SPAN), LANE(13, SPAN),   \
        LANE(14, SPAN), LANE(15, SPAN)
#elif ATTEND_WIDTH == 8
#define ATTEND_EACH(LANE, SPAN)                                                                                        \
    LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN), LANE(4, SPAN), LANE(5, SPAN), LANE(6, SPAN),           \
        LANE(7, SPAN)
#else
#define ATTEND_EACH(LANE, SPAN) LANE(0, SPAN), LANE(1, SPAN), LANE(2, SPAN), LANE(3, SPAN)
#endif
#define ATTEND_LOW(I, SPAN) ((I) & (SPAN) ? ATTEND_WIDTH + (I) - (SPAN) : (I))
#define ATTEND_HIGH(I, SPAN) ((I) & (SPAN) ? ATTEND_WIDTH + (I) : (I) + (SPAN))

/* Swaps the blocks of SPAN elements off the diagonal, in each pair of rows that are SPAN apart. */
#define ATTEND_SWAP(ROWS, SPAN)                                                                                        \
    for (int i_ = 0; i_ < ATTEND_WIDTH; i_++)                                                                          \
        if (!(i_ & (SPAN))) {                                                                                          \
            const INTS upper_ = (ROWS)[i_], lower_ = (ROWS)[i_ + (SPAN)];                                              \
            (ROWS)[i_] = SHUFFLE(INTS, upper_, lower_, ATTEND_EACH(ATTEND_LOW, SPAN));                                 \
            (ROWS)[i_ + (SPAN)] = SHUFFLE(INTS, upper_, lower_, ATTEND_EACH(ATTEND_HIGH, SPAN));                       \
        }

/* Transposes as many vectors as they have elements. */
ATTEND_INLINE void ATTEND_NAME(transpose)(INTS *rows) {
#if ATTEND_WIDTH > 8
    ATTEND_SWAP(rows, 8)
#endif
#if ATTEND_WIDTH > 4
    ATTEND_SWAP(rows, 4)
#endif
    ATTEND_SWAP(rows, 2)
    ATTEND_SWAP(rows, 1)
}

/* Loads LANES keys, transposed: out[d * ATTEND_VECTORS + v] holds dimension d of the keys of vector v. Keys beyond
 * `count` are zeros. Those in bfloat16 are transposed as pairs of dimensions. */
ATTEND_INLINE void ATTEND_NAME(load_keys)(const Attention *a, const int64_t *seen, int64_t base, int64_t count,
                                          int bf16, FLOATS *out) {
    const int64_t size = bf16 ? 2 : 4, words = a->key_dim * size / 4; /* of 4 bytes, per key */
    for (int v = 0; v < ATTEND_VECTORS; v++)
        for (int64_t word = 0; word < words; word += ATTEND_WIDTH) {
            const int64_t left = words - word; /* 8 at least */
            INTS rows[ATTEND_WIDTH];
            for (int i = 0; i < ATTEND_WIDTH; i++) {
                const int key = v * ATTEND_WIDTH + i;
                rows[i] = (INTS){0};
                if (key >= count) continue;
                const char *from = (const char *)a->keys + (base + seen[key]) * a->key_dim * size + word * 4;
                if (left >= ATTEND_WIDTH) memcpy(rows + i, from, sizeof(INTS));
                else memcpy(rows + i, from, sizeof(INTS) / 2);
            }
            ATTEND_NAME(transpose)(rows);
            for (int i = 0; i < ATTEND_WIDTH && i < left; i++) {
                FLOATS *to = out + (word + i) * (4 / size) * ATTEND_VECTORS + v;
                if (bf16) {
                    to[0] = (FLOATS)(rows[i] << 16);
                    to[ATTEND_VECTORS] = (FLOATS)(rows[i] & 0xffff0000);
                } else {
                    to[0] = (FLOATS)rows[i];
                }
            }
        }
}

/* Computes the scores of `count` heads, a constant in each inlined copy, for LANES transposed keys. */
ATTEND_INLINE void ATTEND_NAME(score)(const Head *heads, int count, const FLOATS *keys, int64_t dim, int64_t position) {
    FLOATS sums[GROUP * ATTEND_VECTORS];
    for (int i = 0; i < count * ATTEND_VECTORS; i++) sums[i] = (FLOATS){0};
    for (int64_t d = 0; d < dim; d++)
        for (int i = 0; i < count; i++) {
            const FLOATS element = heads[i].query[d] - (FLOATS){0};
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                FLOATS *sum = sums + i * ATTEND_VECTORS + v;
                *sum = ATTEND_FMA(keys[d * ATTEND_VECTORS + v], element, *sum);
            }
        }
    for (int i = 0; i < count; i++)
        memcpy(heads[i].weights + position, sums + i * ATTEND_VECTORS, LANES * sizeof(float));
}

ATTEND_INLINE FLOATS ATTEND_NAME(load)(const void *from, int64_t at, int bf16) {
    if (bf16) {
        BITS bits;
        memcpy(&bits, (const uint16_t *)from + at, sizeof bits);
        return (FLOATS)(__builtin_convertvector(bits, INTS) << 16);
    }
    FLOATS whole;
    memcpy(&whole, (const float *)from + at, sizeof whole);
    return whole;
}

ATTEND_INLINE void ATTEND_NAME(add_range)(const Attention *a, const int64_t *seen, int64_t base, int64_t first,
                                          int64_t last, int64_t element, const Head *heads, int count, int chunks,
                                          int bf16, FLOATS sum[GROUP][ATTEND_CHUNKS]) {
    for (int64_t p = first; p < last; p++) {
        const int64_t at = (base + seen[p]) * a->value_dim + element;
        for (int c = 0; c < chunks; c++) {
            const FLOATS value = ATTEND_NAME(load)(a->values, at + c * ATTEND_WIDTH, bf16);
            for (int i = 0; i < count; i++) {
                const FLOATS weight = heads[i].weights[p] - (FLOATS){0};
                sum[i][c] = ATTEND_FMA(value, weight, sum[i][c]);
            }
        }
    }
}

/* Sums the weighted values that `count` heads see, in the order of positions: `chunks` vectors of them, from an element
 * on. */
ATTEND_INLINE void ATTEND_NAME(add_part)(const Attention *a, const int64_t *seen, int64_t base, int64_t element,
                                         const Head *heads, int count, int chunks, int bf16) {
    int64_t all = 0, some = heads[0].end; /* start and end of the positions that all heads see */
    for (int i = 0; i < count; i++) {
        all = heads[i].start > all ? heads[i].start : all;
        some = heads[i].end < some ? heads[i].end : some;
    }
    if (some < all) some = all;
    FLOATS sum[GROUP][ATTEND_CHUNKS];
    for (int i = 0; i < count; i++)
        for (int c = 0; c < chunks; c++) sum[i][c] = (FLOATS){0};
    for (int i = 0; count > 1 && i < count; i++)
        ATTEND_NAME(add_range)(a, seen, base, heads[i].start, heads[i].end < all ? heads[i].end : all, element,
                               heads + i, 1, chunks, bf16, sum + i);
    ATTEND_NAME(add_range)(a, seen, base, all, some, element, heads, count, chunks, bf16, sum);
    for (int i = 0; i < count; i++) {
        if (count > 1)
            ATTEND_NAME(add_range)(a, seen, base, some, heads[i].end, element, heads + i, 1, chunks, bf16, sum + i);
        memcpy(heads[i].out + element, sum[i], (size_t)chunks * sizeof(FLOATS));
    }
}

ATTEND_INLINE void ATTEND_NAME(add_values)(const Attention *a, const int64_t *seen, int64_t base, const Head *heads,
                                           int count, int bf16) {
    const int64_t dim = a->value_dim, whole = ATTEND_CHUNKS * ATTEND_WIDTH;
    int64_t element = 0;
    for (; element + whole <= dim; element += whole)
        ATTEND_NAME(add_part)(a, seen, base, element, heads, count, ATTEND_CHUNKS, bf16);
    for (; element < dim; element += LANES) /* where `whole` is larger */
        ATTEND_NAME(add_part)(a, seen, base, element, heads, count, ATTEND_VECTORS, bf16);
}

/* Computes the attention of queries `first` to `last` - 1 of a lane, for the heads of one key-value head. */
ATTEND_INLINE void ATTEND_NAME(attend_tile)(const Attention *a, const int64_t *seen, int64_t first, int64_t last,
                                            int64_t kv_head, float *scratch, int bf16) {
    Head heads[QUERIES * a->shared];
    const int64_t base = kv_head * a->slots, count = (last - first) * a->shared, most = a->counts[last - 1];
    for (int64_t i = 0; i < count; i++) {
        const int64_t query = first + i / a->shared, head = kv_head * a->shared + i % a->shared, row = a->rows[query];
        const int64_t end = a->counts[query];
        heads[i] = (Head){
            a->query + (head * a->row_count + row) * a->key_dim,
            scratch + i * a->longest,
            a->window && end > a->window ? end - a->window : 0,
            end,
            a->out + (row * a->kv_heads * a->shared + head) * a->value_dim,
        };
    }
    FLOATS keys[MOST_DIM * ATTEND_VECTORS];
    for (int64_t p = heads[0].start; p < most; p += LANES) {
        if (most - p >= LANES) ATTEND_NAME(load_keys)(a, seen + p, base, LANES, bf16, keys);
        else ATTEND_NAME(load_keys)(a, seen + p, base, most - p, bf16, keys);
        int64_t i = 0;
        for (; i + GROUP <= count; i += GROUP) ATTEND_NAME(score)(heads + i, GROUP, keys, a->key_dim, p);
        for (; i + 2 <= count; i += 2) ATTEND_NAME(score)(heads + i, 2, keys, a->key_dim, p);
        if (i < count) ATTEND_NAME(score)(heads + i, 1, keys, a->key_dim, p);
    }
    for (int64_t i = 0; i < count; i++)
        softmax(heads[i].weights, heads[i].start, heads[i].end, a->softcap,
                a->sinks ? a->sinks + kv_head * a->shared + i % a->shared : 0);
    int64_t i = 0;
    for (; i + GROUP <= count; i += GROUP) ATTEND_NAME(add_values)(a, seen, base, heads + i, GROUP, bf16);
    if (count - i >= 2) {
        ATTEND_NAME(add_values)(a, seen, base, heads + i, 2, bf16);
        i += 2;
    }
    if (i < count) ATTEND_NAME(add_values)(a, seen, base, heads + i, 1, bf16);
}

/* Tiles are ordered by lane, and within a lane by key-value head. */
ATTEND_TARGET static void ATTEND_NAME(attend_tiles)(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Attention *a = call;
    float *scratch = a->scratch + thread_id * a->scratch_size;
    int64_t begin = 0; /* first tile of the lane */
    for (int64_t l = 0; l < a->lane_count && begin < last; l++) {
        const int64_t *lane = a->lanes + 3 * l, tiles = tiles_of(a, l), end = begin + tiles * a->kv_heads;
        for (int64_t t = first > begin ? first : begin; t < last && t < end; t++) {
            int64_t query = lane[1] + (t - begin) % tiles * QUERIES, head = (t - begin) / tiles;
            int64_t next = query + QUERIES < lane[2] ? query + QUERIES : lane[2];
            if (a->bf16) ATTEND_NAME(attend_tile)(a, a->seen + lane[0], query, next, head, scratch, 1);
            else ATTEND_NAME(attend_tile)(a, a->seen + lane[0], query, next, head, scratch, 0);
        }
        begin = end;
    }
}

#undef ATTEND_CHUNKS
#undef ATTEND_EACH
#undef ATTEND_FMA
#undef ATTEND_HIGH
#undef ATTEND_INLINE
#undef ATTEND_LOW
#undef ATTEND_NAME
#undef ATTEND_SWAP
#undef ATTEND_TARGET
#undef ATTEND_VECTORS
#undef ATTEND_WIDTH
#undef BITS
#undef FLOATS
#undef INTS
