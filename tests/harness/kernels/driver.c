/* Runs calls of the library that a file lists, and writes their buffers to standard output.
 *
 *   driver CALLS KIND     KIND: of the gemm kernels, or -1 for the fastest, whose number is written to standard error
 *
 * A call is an operation's number, a count and as many float64, a count and as many buffers, each with its size in
 * bytes before it; 0 bytes are NULL. Integers are int64. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops.h"

enum { GEMM, NORM, ROPE, ANGLES, SILU, ATTENTION, SAMPLE, RECURRENCE };

static double n[24];
static void *b[24];

static void run(int64_t operation, int32_t kind) {
    if (operation == GEMM) {
        const int64_t rows = (int64_t)n[0], outputs = (int64_t)n[1], inputs = (int64_t)n[2];
        float *working = malloc((size_t)(rows * inputs) * sizeof(float));
        const Gemm p = {b[0], b[1], NULL, b[2], b[3], working, rows, outputs, outputs, inputs,
                        (int64_t)n[3], (int32_t)n[4], (int32_t)n[5], (int32_t)n[5]};
        draftwire_gemm(&p, kind, 1);
        free(working);
    } else if (operation == NORM) {
        draftwire_rms_norm(b[0], b[1], b[2], (int64_t)n[0], (int64_t)n[1], (float)n[2], (int32_t)n[3], (int32_t)n[3],
                           (int32_t)n[3], 1);
    } else if (operation == ROPE) {
        const Rope p = {b[0], b[1], b[2], b[3], b[4], NULL, b[5], b[6], b[7], b[8],
                        (int64_t)n[0], (int64_t)n[1], (int64_t)n[2], (int64_t)n[3], (int64_t)n[3], (int64_t)n[4],
                        (float)n[5], (float)n[6], (int32_t)n[7], (int32_t)n[7], 0, (int32_t)n[8], 0, 2};
        draftwire_rope(&p, 1);
    } else if (operation == ANGLES) {
        const Angles p = {b[0], b[1], b[2], b[3], (int64_t)n[0], (int64_t)n[1], (float)n[2], (int32_t)n[3]};
        draftwire_angles(&p, 1);
    } else if (operation == SILU) {
        draftwire_gate(b[0], b[1], (int64_t)n[0], (int64_t)n[1], SILU_GATE, (int32_t)n[2], 1);
    } else if (operation == ATTENTION) {
        const Attention p = {b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
                             (int64_t)n[0], (int64_t)n[1], (int64_t)n[2], (int64_t)n[3], (int64_t)n[4], (int64_t)n[5],
                             (int64_t)n[6], (int64_t)n[7], 0, (int64_t)n[8], (int64_t)n[9], (float)n[10], (int32_t)n[11]};
        draftwire_attention(&p, 1);
    } else if (operation == RECURRENCE) {
        const Recurrence p = {b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                              b[14], b[15], b[16], b[17],
                              (int64_t)n[0], (int64_t)n[1], (int64_t)n[2], (int64_t)n[3], (int64_t)n[4], (int64_t)n[5],
                              (int64_t)n[6], (int64_t)n[7], (int64_t)n[8], (int64_t)n[9], (int64_t)n[10], (int64_t)n[11],
                              (int64_t)n[12], (float)n[13], (float)n[14], (int32_t)n[15], (int32_t)n[16], (int32_t)n[17],
                              (int32_t)n[18], (int32_t)n[19], (int32_t)n[20]};
        draftwire_recurrence(&p, 1);
    } else {
        const Sample p = {b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
                          (int64_t)n[0], (int64_t)n[1], (int64_t)n[2], (int64_t)n[3], (int32_t)n[4]};
        if (draftwire_sample(&p)) exit(1);
    }
}

static int64_t whole(FILE *from) {
    int64_t found;
    if (fread(&found, sizeof found, 1, from) != 1) exit(feof(from) ? 0 : 1);
    return found;
}

int main(int count, char **arguments) {
    FILE *calls = count == 3 ? fopen(arguments[1], "rb") : NULL;
    if (!calls) return 2;
    const int32_t kind = atoi(arguments[2]) < 0 ? 31 - __builtin_clz((unsigned)draftwire_gemm_kinds()) : atoi(arguments[2]);
    fprintf(stderr, "%d\n", kind);
    draftwire_use_vectors(draftwire_vector_kind() < kind ? draftwire_vector_kind() : kind);
    for (;;) {
        const int64_t operation = whole(calls), numbers = whole(calls);
        int64_t sizes[24];
        if (fread(n, sizeof *n, (size_t)numbers, calls) != (size_t)numbers) return 1;
        const int64_t buffers = whole(calls);
        for (int64_t i = 0; i < buffers; i++) {
            sizes[i] = whole(calls);
            b[i] = sizes[i] ? malloc((size_t)sizes[i]) : NULL;
            if (fread(b[i], 1, (size_t)sizes[i], calls) != (size_t)sizes[i]) return 1;
        }
        run(operation, kind);
        for (int64_t i = 0; i < buffers; i++) {
            fwrite(b[i], 1, (size_t)sizes[i], stdout);
            free(b[i]);
        }
    }
}
