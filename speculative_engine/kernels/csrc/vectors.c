/* Which vectors the vector code uses. */
#include "vectors.h"

int32_t draftwire_vectors = BASELINE_VECTORS;

/* The best kind of vectors that this processor has. */
int32_t draftwire_vector_kind(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return AVX512_VECTORS;
    if (__builtin_cpu_supports("avx2")) return AVX2_VECTORS;
#endif
    return BASELINE_VECTORS;
}

/* kind: one that this processor has. Not to be called while other calls run. */
void draftwire_use_vectors(int32_t kind) { draftwire_vectors = kind; }
