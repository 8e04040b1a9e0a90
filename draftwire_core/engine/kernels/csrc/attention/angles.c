/* The angles of rotary position embeddings, by fixed operations: libraries of vector functions differ in last bits
 * between processors.
 *
 * Sines and cosines are computed in float64 and rounded to float32, which gives the nearest float32 but for about one
 * value in 2^28. The method and the coefficients are those of fdlibm (e_rem_pio2.c, k_sin.c and k_cos.c, Sun
 * Microsystems 1993). Angles beyond 2^20 quarter turns lose accuracy, not determinism.
 */
#include "ops.h"
#include "thread_pool.h"
#include "vectors.h"

#define LEAST_ANGLES 2048 /* with fewer, waking a thread costs more than it saves */

static float rounded(double x, float scaling, int32_t bf16) { return round_vec((vec){(float)x * scaling}, bf16)[0]; }

static inline void sine_and_cosine(double x, double *sine, double *cosine) {
    /* Adding 1.5 * 2^52 rounds to the nearest integer. */
    const double turns = (x * 6.36619772367581382433e-01 + 0x1.8p52) - 0x1.8p52; /* quarters */
    const double y = ((x - turns * 1.57079632673412561417e+00) - turns * 6.07710050630396597660e-11) -
                     turns * 2.02226624879595063154e-21;
    const double z = y * y;
    const double s = y + y * z * (-1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 +
                     z * (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 +
                     z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
    const double c = 1 - (0.5 * z - z * z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 +
                     z * (2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 +
                     z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))))));
    const int64_t quarter = (int64_t)turns & 3;
    const double first = quarter & 1 ? c : s, second = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -first : first;
    *cosine = (quarter + 1) & 2 ? -second : second;
}

static void store(void *to, int64_t at, float x, int32_t bf16) {
    if (!bf16) {
        ((float *)to)[at] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t *)to)[at] = (uint16_t)(bits >> 16);
}

static void angles_of_rows(const void *call, int64_t first, int64_t last, int32_t thread_id) {
    const Angles *a = call;
    const int64_t half = a->dim / 2;
    (void)thread_id;
    for (int64_t row = first; row < last; row++)
        for (int64_t i = 0; i < half; i++) {
            double sine, cosine;
            sine_and_cosine((double)((float)a->positions[row] * a->frequencies[i]), &sine, &cosine);
            for (int64_t at = row * a->dim + i; at < (row + 1) * a->dim; at += half) {
                store(a->cosines, at, rounded(cosine, a->scaling, a->bf16), a->bf16);
                store(a->sines, at, rounded(sine, a->scaling, a->bf16), a->bf16);
            }
        }
}

void draftwire_angles(const Angles *a, int32_t threads) {
    draftwire_parallel_for(angles_of_rows, a, a->rows, (2 * LEAST_ANGLES + a->dim - 1) / a->dim, threads);
}
