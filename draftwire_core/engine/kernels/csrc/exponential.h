/* e^x of each element of a vector, for one kind of vectors. A file includes this one once per kind, with
 *
 *   EXP_NAME             the function's name
 *   EXP_TARGET           the instructions that it uses
 *   EXP_FLOATS, EXP_INTS vectors of float32 and of int32, of the same size
 *   EXP_SMALL(X)         all ones where X < -87
 *
 * For x <= 0, and 0 below -87, by Cody and Waite's range reduction and a polynomial of degree 7. The error is at most 2
 * units in the last place. */
EXP_TARGET static inline __attribute__((always_inline)) EXP_FLOATS EXP_NAME(EXP_FLOATS x) {
    const EXP_INTS small = EXP_SMALL(x), least = (EXP_INTS)((EXP_FLOATS){0} - 88);
    x = (EXP_FLOATS)((least & small) | ((EXP_INTS)x & ~small));
    EXP_INTS whole = __builtin_convertvector(x * 1.44269504f - 0.5f, EXP_INTS);
    EXP_FLOATS n = __builtin_convertvector(whole, EXP_FLOATS);
    EXP_FLOATS f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    EXP_FLOATS p = f * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    return p * (EXP_FLOATS)((whole + 127) << 23); /* by 0 at -88 */
}

#undef EXP_FLOATS
#undef EXP_INTS
#undef EXP_NAME
#undef EXP_SMALL
#undef EXP_TARGET
