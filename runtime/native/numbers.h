/* Single numbers in few bits, and octets as whole numbers. */
#ifndef RADIXLOOP_NUMBERS_H
#define RADIXLOOP_NUMBERS_H

#include "vector.h"

typedef uint8_t octets __attribute__((vector_size(LANES)));
typedef int8_t signed_octets __attribute__((vector_size(LANES)));

INLINE octets load_octets(const uint8_t *from) {
    octets found;
    memcpy(&found, from, sizeof found);
    return found;
}

/* Octets as whole numbers, with a sign or without one. */
INLINE ivec widen_codes(octets codes, const int with_sign) {
#if LANES == 16
    /* Compilers unpack in several steps. */
    return with_sign ? (ivec)_mm512_cvtepi8_epi32((__m128i)codes) : (ivec)_mm512_cvtepu8_epi32((__m128i)codes);
#elif LANES == 8 && defined(__AVX2__)
    __m128i low = _mm_loadl_epi64((const __m128i *)&codes);
    return with_sign ? (ivec)_mm256_cvtepi8_epi32(low) : (ivec)_mm256_cvtepu8_epi32(low);
#else
    return with_sign ? __builtin_convertvector((signed_octets)codes, ivec) : (ivec)__builtin_convertvector(codes, uvec);
#endif
}

INLINE float as_float(uint32_t bits) {
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* The number of IEEE half precision at `from`. */
INLINE float half_at(const uint8_t *from) {
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0, sign = (uint32_t)(bits & 0x8000) << 16, scaled;
    /* The exponents' biases differ by 112. Below the normal numbers this would pass through floats below the normal
     * ones, which a thread may have set to be taken for 0. */
    float size =
        bits & 0x7c00 ? as_float((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f : (float)(bits & 0x3ff) * 0x1p-24f;
    memcpy(&scaled, &size, sizeof scaled);
    return as_float(scaled | special | sign);
}

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* IEEE half precision, to nearest, ties to even. */
static inline uint16_t half_of(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    /* A float from .5 on has steps of the size that numbers below the normal ones have. */
    if (size < 0x38800000) return (uint16_t)(sign | (bits_of(as_float(size) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13);
}

INLINE void store_half(uint8_t *to, uint16_t bits) { memcpy(to, &bits, sizeof bits); }

#endif
