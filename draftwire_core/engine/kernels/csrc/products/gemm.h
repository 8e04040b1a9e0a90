/* The products behind draftwire_gemm, by type of weight. kind: as for draftwire_gemm */
#ifndef DRAFTWIRE_GEMM_H
#define DRAFTWIRE_GEMM_H

#include <string.h>

#include "ops.h"
#include "vectors.h"

void multiply_bf16(const Gemm *p, int32_t kind, int32_t threads);
void multiply_f16(const Gemm *p, int32_t kind, int32_t threads);
void multiply_int8(const Gemm *p, int32_t kind, int32_t threads);
void multiply_blocks(const Gemm *p, int32_t kind, int32_t threads);
void multiply_fp8(const Gemm *p, int32_t kind, int32_t threads);

/* As for draftwire_rows_at_once. */
int64_t rows_of_bf16(int32_t kind);
int64_t rows_of_f16(int32_t kind);
int64_t rows_of_int8(int32_t kind);
int64_t rows_of_blocks(int32_t type, int32_t kind, int64_t rows);
int64_t rows_of_fp8(int32_t kind);

#if defined(__x86_64__)
/* Whether AVXVNNI_GEMM may use AVX-VNNI's own encoding; if not, and it is supported, AVX-512's. */
int draftwire_has_avx_vnni(void);
#endif

/* Returns an element of the rows. */
INLINE float element_of_rows(const Gemm *p, int64_t at) {
    if (p->wide_rows) return ((const float *)p->rows)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)p->rows)[at] << 16;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* Stores a row's sums of LANES outputs from `output` on, with the bias added, rounded unless `wide`. Skips outputs beyond
 * the last. */
INLINE void store_sums(const Gemm *p, int64_t row, int64_t output, const float *sums) {
    const int64_t left = p->outputs - output, at = row * p->stride + output;
    if (left <= 0) return;
    vec x;
    memcpy(&x, sums, sizeof x);
    if (left >= LANES) { /* needs no copies of varying size, which are calls of memcpy */
        if (p->bias) x = x + load_vec(p->bias, output, 1);
        store_vec(p->out, at, x, !p->wide);
        return;
    }
    uint16_t part[LANES] = {0};
    if (p->bias) {
        memcpy(part, p->bias + output, (size_t)left * sizeof *part);
        x = x + load_vec(part, 0, 1);
    }
    if (p->wide) {
        memcpy((float *)p->out + at, &x, (size_t)left * sizeof(float));
        return;
    }
    store_vec(part, 0, x, 1);
    memcpy((uint16_t *)p->out + at, part, (size_t)left * sizeof *part);
}

#endif
