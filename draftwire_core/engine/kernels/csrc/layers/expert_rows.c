/* Rows of a mixture of experts times the weights of their experts, in one call. */
#include "ops.h"

static void multiply(const Linear *part, const ExpertRows *a, int64_t first, int64_t count, int32_t kind,
                     int32_t threads) {
    uint16_t *out = a->out + first * a->outputs;
    for (; part; out += part->outputs, part = part->next) {
        const Gemm p = {a->rows + first * a->inputs, part->weight, part->scales, part->bias, out, a->working,
                        count, part->outputs, a->outputs, part->inputs, part->group, part->type, 0, 0};
        draftwire_gemm(&p, kind, threads);
    }
}

void draftwire_expert_rows(const ExpertRows *a, int32_t kind, int32_t threads) {
    for (int64_t first = 0, end; first < a->row_count; first = end) {
        for (end = first + 1; end < a->row_count && a->experts[end] == a->experts[first];) end++;
        multiply(&a->linears[a->experts[first]], a, first, end - first, kind, threads);
    }
}
