/* Short vectors of floats as the compiler's own type: AVX-512, AVX2, NEON or plain code, by what it compiles for.
 *
 * Intrinsics stand only where compilers do not find the instruction by themselves.
 */
#ifndef RADIXLOOP_VECTOR_H
#define RADIXLOOP_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define EACH_LANE(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
#elif defined(__AVX__)
#define LANES 8
#define EACH_LANE(x) x, x, x, x, x, x, x, x
#else
#define LANES 4
#define EACH_LANE(x) x, x, x, x
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

INLINE vec load(const float *from) {
    vec found;
    memcpy(&found, from, sizeof found);
    return found;
}

INLINE void store(float *to, vec value) { memcpy(to, &value, sizeof value); }

INLINE vec splat(float value) { return (vec){EACH_LANE(value)}; }

INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }

/* b where either is NaN. */
INLINE vec larger(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE float sum_of(vec value) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)value);
#else
    float total = value[0];
    UNROLLED
    for (int i = 1; i < LANES; i++) total += value[i];
    return total;
#endif
}

INLINE float largest_of(vec value) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)value);
#else
    float most = value[0];
    UNROLLED
    for (int i = 1; i < LANES; i++) most = value[i] > most ? value[i] : most;
    return most;
#endif
}

INLINE int any_above(vec value, float limit) {
#if LANES == 16
    return _mm512_cmp_ps_mask((__m512)value, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
    return largest_of(value) > limit;
#endif
}

/* 2^x on [-0.5, 0.5]: the polynomial of degree 6 with the least relative error. */
INLINE vec exp2_near_0(vec x) {
    vec p = splat(1.53533590e-4f);
    p = p * x + splat(1.33988739e-3f);
    p = p * x + splat(9.61843692e-3f);
    p = p * x + splat(5.55033237e-2f);
    p = p * x + splat(2.40226477e-1f);
    p = p * x + splat(6.93147182e-1f);
    return p * x + splat(1.0f);
}

/* 2^x for x <= 127, to 1.2e-7 (relative); below -126 what is left of it, or 0; NaN of NaN. The whole part goes into the
 * exponent, the rest through a polynomial. */
INLINE vec exp2_of(vec x) {
#if LANES == 16 && defined(__AVX512DQ__)
    /* Both are 0 away from an infinity that the last step then takes for what it is. */
    const __m512 whole = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec rest = (vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (vec)_mm512_scalef_ps((__m512)exp2_near_0(rest), whole);
#else
    /* 1.5 * 2^23: adding it leaves the nearest whole number in the low bits. */
    const vec rounder = splat(12582912.0f), least = splat(-126.0f);
    vec clamped = choose(x < least, least, x);
    vec shifted = clamped + rounder;
    vec p = exp2_near_0(clamped - (shifted - rounder));
    vec found = (vec)((ivec)p + (((ivec)shifted - (ivec)rounder) << 23));
    return choose(x < least, (vec){0}, found);
#endif
}

/* Numbers of bfloat16. */
INLINE vec load_bfloat16(const uint16_t *from) {
    halves found;
    memcpy(&found, from, sizeof found);
    return (vec)(__builtin_convertvector(found, uvec) << 16);
}

/* Numbers of IEEE half precision. */
INLINE vec load_float16(const uint16_t *from) {
    halves found;
    memcpy(&found, from, sizeof found);
#if LANES == 16
    return (vec)_mm512_cvtph_ps((__m256i)found);
#else
    uvec wide = __builtin_convertvector(found, uvec);
    uvec size = (wide & 0x7fff) << 13;
    /* The exponents' biases differ by 112; multiplying takes care of numbers below the normal ones too. */
    uvec scaled = (uvec)((vec)size * splat(0x1p112f));
    uvec special = (uvec)(size >= (uvec){EACH_LANE(0x0f800000u)}) & 0x7f800000u;
    return (vec)(scaled | special | (wide & 0x8000) << 16);
#endif
}

#endif
