/* The hash of this library's sources, and the sizes of its structs. library.py refuses a library where they differ. */
#include "ops.h"

#include <stddef.h>

#ifndef DRAFTWIRE_SOURCE_HASH
#error "build the library by draftwire_core/engine/kernels/build.py, which defines the hash of the sources"
#endif

#define SIZE_OF(NAME) {#NAME, sizeof(NAME)}

static const StructSize structs[] = {
    SIZE_OF(Gemm), SIZE_OF(Rope), SIZE_OF(KvRows), SIZE_OF(Angles), SIZE_OF(Attention), SIZE_OF(Linear),
    SIZE_OF(ExpertRows), SIZE_OF(Layer), SIZE_OF(Pass), SIZE_OF(LayerCall), SIZE_OF(Recurrence), SIZE_OF(DeltaNet),
    SIZE_OF(StoredRows), SIZE_OF(Filters), SIZE_OF(Sample), {NULL, 0},
};

const Abi *draftwire_abi(void) {
    static const Abi abi = {DRAFTWIRE_SOURCE_HASH, structs};
    return &abi;
}
