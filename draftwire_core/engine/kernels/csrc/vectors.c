/* The kind of vectors that is in use. */
#include "vectors.h"
#include "ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

int32_t draftwire_vectors = BASELINE_VECTORS;

#if defined(__x86_64__)

#define SAVES_AVX 0x6     /* of XCR0: the system saves SSE and AVX registers */
#define SAVES_AVX512 0xe6 /* and masks and the rest of AVX-512's */

/* The state that the system saves when it switches threads (XCR0). */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* By cpuid, as __builtin_cpu_supports needs a runtime that not every compiler brings. */
int32_t draftwire_vector_kind(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA) || !(c & bit_F16C)) return BASELINE_VECTORS;
    const uint64_t saved = saved_state();
    if ((saved & SAVES_AVX) != SAVES_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return BASELINE_VECTORS;
    if ((saved & SAVES_AVX512) == SAVES_AVX512 && b & bit_AVX512F) return AVX512_VECTORS;
    return b & bit_AVX2 ? AVX2_VECTORS : BASELINE_VECTORS;
}

#else

int32_t draftwire_vector_kind(void) { return BASELINE_VECTORS; }

#endif

void draftwire_use_vectors(int32_t kind) { draftwire_vectors = kind; }
