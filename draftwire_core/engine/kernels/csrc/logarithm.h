/* The natural logarithm in float64, by fixed operations: C libraries differ in the last bit, as do their versions for
 * different processors. */
#ifndef DRAFTWIRE_LOGARITHM_H
#define DRAFTWIRE_LOGARITHM_H

#include <stdint.h>
#include <string.h>

/* x: positive, normal. The error is below one unit in the last place: the method and the coefficients are those of
 * fdlibm (e_log.c, Sun Microsystems 1993). */
static inline double logarithm(double x) {
    const uint64_t half_root = 0x3fe6a09e00000000; /* sqrt(2) / 2 */
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int64_t moved = (int64_t)(bits - half_root);
    const double power = (double)(moved >> 52);
    bits = (uint64_t)(moved & 0x000fffffffffffff) + half_root;
    memcpy(&x, &bits, sizeof x); /* between sqrt(2) / 2 and sqrt(2) */
    const double f = x - 1, half_square = 0.5 * f * f, s = f / (2 + f), z = s * s, w = z * z;
    const double even = w * (3.999999999940941908e-1 + w * (2.222219843214978396e-1 + w * 1.531383769920937332e-1));
    const double odd = z * (6.666666666666735130e-1 + w * (2.857142874366239149e-1 + w * (1.818357216161805012e-1 +
                       w * 1.479819860511658591e-1)));
    return s * (half_square + (even + odd)) + power * 1.90821492927058770002e-10 - half_square + f +
           power * 6.93147180369123816490e-01;
}

#endif
