/* Writes keys and values to their slots in 8 bits, for layers whose other operations are not compiled. */
#include "attention/kv_rows.h"
#include "thread_pool.h"

#define LEAST_ELEMENTS 32768 /* with fewer, waking a thread costs more than it saves */

INLINE void write_kv_rows_body(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const KvRows *a = call;
    float block[KV_BLOCK];
    (void)thread_id;
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t at = 0; at < a->dim; at += KV_BLOCK) {
                const int64_t from = h * a->head_stride + r * a->row_stride + at;
                store_vec(block, 0, load_vec(a->source, from, a->bf16), 0);
                store_vec(block, LANES, load_vec(a->source, from + LANES, a->bf16), 0);
                round_kv_block(block, kv_row(a->to, h * a->capacity + a->slots[r], a->dim, Q8_0_KV), a->dim, at);
            }
}

CLONED_TASK(write_kv_rows)

void draftwire_write_kv(const KvRows *a, int32_t threads) {
    const int64_t width = a->heads * a->dim;
    draftwire_parallel_for(write_kv_rows, a, a->rows, (LEAST_ELEMENTS + width - 1) / width, threads);
}
