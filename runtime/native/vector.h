/* Short vectors of floats as the compiler's own type: AVX-512, AVX2, NEON or plain code, by what it compiles for. */
#ifndef RADIXLOOP_VECTOR_H
#define RADIXLOOP_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) {
    vec found;
    memcpy(&found, from, sizeof found);
    return found;
}

INLINE void store(float *to, vec value) { memcpy(to, &value, sizeof value); }

INLINE vec splat(float value) { return value - (vec){0}; }

INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }

INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }

INLINE float sum_of(vec value) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
}

INLINE float largest_of(vec value) {
    float most = value[0];
    for (int i = 1; i < LANES; i++) most = value[i] > most ? value[i] : most;
    return most;
}

/* 2^x for x <= 127, to 2e-7 (relative); 0 below -126. Cody and Waite: whole part by rounding, the rest by a polynomial
 * (minimax on [-0.5, 0.5]). */
INLINE vec exp2_of(vec x) {
    const vec rounder = splat(12582912.0f); /* 1.5 * 2^23: adding it leaves the nearest whole number in the low bits */
    vec clamped = larger(x, splat(-126.0f));
    vec shifted = clamped + rounder;
    vec rest = clamped - (shifted - rounder);
    vec p = splat(1.5353361e-4f);
    p = p * rest + splat(1.3398874e-3f);
    p = p * rest + splat(9.6184373e-3f);
    p = p * rest + splat(5.5503324e-2f);
    p = p * rest + splat(2.4022648e-1f);
    p = p * rest + splat(6.9314720e-1f);
    p = p * rest + splat(1.0f);
    ivec whole = (ivec)shifted - (ivec)rounder;
    vec found = (vec)((ivec)p + (whole << 23));
    return choose(x < splat(-126.0f), (vec){0}, found);
}

#endif
