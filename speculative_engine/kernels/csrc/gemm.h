/* The products behind draftwire_gemm, by type of weight. kind: as for draftwire_gemm */
#ifndef DRAFTWIRE_GEMM_H
#define DRAFTWIRE_GEMM_H

#include "ops.h"

void multiply_bf16(const Gemm *p, int32_t kind, int32_t threads);
void multiply_int8(const Gemm *p, int32_t kind, int32_t threads);
void multiply_blocks(const Gemm *p, int32_t kind, int32_t threads);
void multiply_fp8(const Gemm *p, int32_t kind, int32_t threads);

#endif
