/* The kind of vectors that is in use. */
#include "vectors.h"
#include "ops.h"

int32_t draftwire_vectors = BASELINE_VECTORS;

int32_t draftwire_vector_kind(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return AVX512_VECTORS;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2_VECTORS;
#endif
    return BASELINE_VECTORS;
}

void draftwire_use_vectors(int32_t kind) { draftwire_vectors = kind; }
