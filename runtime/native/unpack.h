/* Tiles of packed keys and values, as floats.
 *
 * Keys are turned, so that a vector holds one number of several keys, before they are unpacked: a word of 4 bytes holds
 * several codes, and turning words takes a fraction of the shuffles that turning floats takes.
 */
#ifndef RADIXLOOP_UNPACK_H
#define RADIXLOOP_UNPACK_H

#include "records.h"

enum { TILE = 64, PIECES = TILE / LANES };

/* The scales and offsets of a tile's records, one a record; 0 where there is none. */
struct scales {
    float scale[TILE], offset[TILE];
};

/* Words that hold the codes of a key of this kind; 0 where its numbers do not begin at whole words. */
static int words_of(int kind, int dim) {
    switch (kind) {
        case BFLOAT16: return (dim + 1) / 2;
        case INT8:
        case FLOAT8: return (dim + 3) / 4;
        case INT4_KEYS: return dim % 8 == 0 ? dim / 8 + (dim + 31) / 32 : 0;
        default: return 0;
    }
}

INLINE void read_halves(const char *const *records, int count, int at, float *to) {
    uint16_t bits[TILE] = {0};
    for (int j = 0; j < count; j++) memcpy(bits + j, records[j] + at, 2);
    UNROLLED
    for (int i = 0; i < PIECES; i++) store(to + i * LANES, load_float16(bits + i * LANES));
}

static void read_scales(const char *const *records, int kind, int count, int bytes, struct scales *to) {
    if (kind < INT8) return;
    read_halves(records, count, bytes - (kind == INT4_KEYS ? 4 : 2), to->scale);
    if (kind == INT4_KEYS) read_halves(records, count, bytes - 2, to->offset);
}

INLINE uvec words_at(const float *turned, long word, int column) { return (uvec)load(turned + word * TILE + column); }

INLINE vec from_whole(uvec x) { return __builtin_convertvector((ivec)x, vec); }

INLINE void unpack_brains(const float *words, int dim, float *to) {
    for (long w = 0; 2 * w < dim; w++, to += 2 * TILE)
        for (int c = 0; c < TILE; c += LANES) {
            uvec x = words_at(words, w, c);
            store(to + c, (vec)(x << 16));
            store(to + TILE + c, (vec)(x & 0xffff0000));
        }
}

INLINE void unpack_octets(const float *words, const int is_float, int dim, const struct scales *scales, float *to) {
    for (long w = 0; 4 * w < dim; w++, to += 4 * TILE)
        for (int c = 0; c < TILE; c += LANES) {
            uvec x = words_at(words, w, c);
            vec scale = load(scales->scale + c);
            UNROLLED
            for (int b = 0; b < 4; b++) {
                ivec top = (ivec)(x << (24 - 8 * b));
                /* E4M3's exponent has a bias of 7 and a float's one of 127. */
                vec number = is_float ? (vec)(top >> 4 & (int32_t)0x87f00000) * splat(0x1p120f)
                                      : from_whole((uvec)(top >> 24));
                store(to + b * TILE + c, number * scale);
            }
        }
}

INLINE void unpack_fifths(const float *words, int dim, const struct scales *scales, float *to) {
    const int half = dim / 2;
    const float *bits = words + (long)half / 4 * TILE;
    float *high = to + (long)half * TILE;
    for (int d = 0; d < half; d += 4, to += 4 * TILE, high += 4 * TILE)
        for (int c = 0; c < TILE; c += LANES) {
            uvec x = words_at(words, d / 4, c);
            uvec low_bits = words_at(bits, d / 32, c) >> (uint32_t)(d % 32);
            uvec high_bits = words_at(bits, (half + d) / 32, c) >> (uint32_t)((half + d) % 32);
            vec scale = load(scales->scale + c), offset = load(scales->offset + c);
            UNROLLED
            for (int b = 0; b < 4; b++) {
                uvec low_code = (x >> (8 * b) & 15) | (low_bits << (4 - b) & 16);
                uvec high_code = (x >> (8 * b + 4) & 15) | (high_bits << (4 - b) & 16);
                store(to + b * TILE + c, from_whole(low_code) * scale + offset);
                store(high + b * TILE + c, from_whole(high_code) * scale + offset);
            }
        }
}

/* Turned words of a tile of keys to turned numbers, [dim, TILE]; up to 3 more rows are written. */
static void unpack_turned(const float *words, int kind, int dim, const struct scales *scales, float *to) {
    switch (kind) {
        case BFLOAT16: unpack_brains(words, dim, to); break;
        case INT8: unpack_octets(words, 0, dim, scales, to); break;
        case FLOAT8: unpack_octets(words, 1, dim, scales, to); break;
        default: unpack_fifths(words, dim, scales, to);
    }
}

/* The heads of `count` tokens, `stride` floats apart. */
static void widen_all(const char *const *records, int count, int kind, int dim, int bytes, float *to, int stride) {
#define EACH_RECORD(KIND) \
    case KIND: \
        for (int j = 0; j < count; j++) widen(records[j], KIND, dim, bytes, to + (long)j * stride); \
        break
    /* One loop for each kind, which the compiler then knows. */
    switch (kind) {
        EACH_RECORD(FLOAT32);
        EACH_RECORD(BFLOAT16);
        EACH_RECORD(FLOAT16);
        EACH_RECORD(INT8);
        EACH_RECORD(FLOAT8);
        EACH_RECORD(INT4_VALUES);
        EACH_RECORD(INT4_KEYS);
    }
#undef EACH_RECORD
}

#endif
