/* Keys and values of one head as the pool keeps them, widened to floats. runtime/kv/packing.py says how they are packed.
 */
#ifndef RADIXLOOP_RECORDS_H
#define RADIXLOOP_RECORDS_H

#include "numbers.h"

enum { FLOAT32, BFLOAT16, FLOAT16, INT8, FLOAT8, INT4_VALUES, INT4_KEYS };

/* Bits `at` and on of a string of bits, one a lane; 4 bytes are read. */
INLINE uvec bits_at(const uint8_t *from, int at) {
    uint32_t word;
    memcpy(&word, from + at / 8, sizeof word);
    uvec shift;
    UNROLLED
    for (int i = 0; i < LANES; i++) shift[i] = (uint32_t)(at % 8 + i);
    return (uvec){EACH_LANE(word)} >> shift & 1;
}

INLINE void widen_halves(const uint16_t *from, const int brain, int dim, float *to) {
    int d = 0;
    for (; d + LANES <= dim; d += LANES) store(to + d, brain ? load_bfloat16(from + d) : load_float16(from + d));
    if (d < dim) {
        uint16_t rest[LANES] = {0};
        memcpy(rest, from + d, (size_t)(dim - d) * 2);
        store(to + d, brain ? load_bfloat16(rest) : load_float16(rest));
    }
}

INLINE vec from_octets(octets codes, const int is_float) {
    ivec wide = widen_codes(codes, 1);
    /* E4M3's exponent has a bias of 7 and a float's one of 127. */
    return is_float ? (vec)(wide << 20 & (int32_t)0x87f00000) * splat(0x1p120f) : __builtin_convertvector(wide, vec);
}

INLINE void widen_octets(const uint8_t *from, const int is_float, float scale, int dim, float *to) {
    int d = 0;
    for (; d + LANES <= dim; d += LANES) store(to + d, from_octets(load_octets(from + d), is_float) * splat(scale));
    if (d < dim) {
        uint8_t rest[LANES] = {0};
        memcpy(rest, from + d, (size_t)(dim - d));
        store(to + d, from_octets(load_octets(rest), is_float) * splat(scale));
    }
}

/* A half of a head from its nibbles; fifth bits begin at `bits`, when there are any. */
INLINE void widen_nibbles(const uint8_t *from, const int high, const uint8_t *bits, int first, int count, float scale,
                          float offset, float *to) {
    int d = 0;
    for (; d + LANES <= count; d += LANES) {
        uvec codes = (uvec)widen_codes(load_octets(from + d), 0);
        codes = high ? codes >> 4 : codes & 15;
        if (bits != NULL) codes |= bits_at(bits, first + d) << 4;
        vec numbers = __builtin_convertvector((ivec)codes, vec);
        store(to + d, numbers * splat(scale) + splat(offset));
    }
    for (; d < count; d++) {
        int code = high ? from[d] >> 4 : from[d] & 15;
        if (bits != NULL) code |= (bits[(first + d) / 8] >> (first + d) % 8 & 1) << 4;
        to[d] = (float)code * scale + offset;
    }
}

/* One head of one token, `bytes` of it; what is behind `dim` numbers, up to a whole vector, becomes 0. */
INLINE void widen(const char *record, const int kind, int dim, int bytes, float *to) {
    const uint8_t *codes = (const uint8_t *)record, *end = codes + bytes;
    const int half = (dim + 1) / 2;
    float scale, offset;
    switch (kind) {
        case BFLOAT16: widen_halves((const uint16_t *)record, 1, dim, to); return;
        case FLOAT16: widen_halves((const uint16_t *)record, 0, dim, to); return;
        case INT8: widen_octets(codes, 0, half_at(end - 2), dim, to); return;
        case FLOAT8: widen_octets(codes, 1, half_at(end - 2), dim, to); return;
        case INT4_VALUES:
            scale = half_at(end - 2);
            widen_nibbles(codes, 0, NULL, 0, half, scale, -7.5f * scale, to);
            widen_nibbles(codes, 1, NULL, half, dim - half, scale, -7.5f * scale, to + half);
            break;
        case INT4_KEYS:
            scale = half_at(end - 4), offset = half_at(end - 2);
            widen_nibbles(codes, 0, codes + half, 0, half, scale, offset, to);
            widen_nibbles(codes, 1, codes + half, half, dim - half, scale, offset, to + half);
            break;
        default: memcpy(to, record, (size_t)dim * 4);
    }
    for (int d = dim; d % LANES != 0; d++) to[d] = 0;
}

#endif
