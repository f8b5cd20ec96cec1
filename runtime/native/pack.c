/* Keys and values of a step's tokens, written to the pool as it keeps them: turned, quantised and put in their slots.
 *
 * The bytes are those of runtime/kv/packing.py and of `rotate_by_sums`, to the last bit: the same operations in the same
 * order. Every head of a token is packed by itself, from its own numbers.
 */
#include <math.h>

#include "records.h"
#include "threads.h"

/* Numbers from which more than one thread is worth waking, tokens that one takes at a time, and numbers of a head. */
enum { WORTH_SHARING = 32768, TOKENS_AT_ONCE = 16, MOST_DIM = 1024 };

/* The keys or the values of a layer: where slot 0 begins, and how a head lies in `bytes`, see records.h. */
struct half {
    char *pool;
    int32_t kind, bytes, dim, turned;
};

struct layer {
    struct half keys, values;
    int32_t heads;
};

struct write {
    const struct layer *layer;
    const int64_t *slots;
    int64_t count;
    const float *keys, *values;
    int64_t key_stride, value_stride;
};

/* Numbers of a head times the normalised Hadamard matrix, by sums and differences of ever longer pieces. */
INLINE void turn_pairs(float *x, const int step, int dim) {
    for (int at = 0; at < dim; at += 2 * step)
        for (int i = at; i < at + step; i++) {
            float low = x[i], high = x[i + step];
            x[i] = low + high;
            x[i + step] = low - high;
        }
}

static void turn_head(float *x, int dim) {
    const int piece = dim & -dim;
    if (piece > 1) turn_pairs(x, 1, dim);
    if (piece > 2) turn_pairs(x, 2, dim);
    if (piece > 4) turn_pairs(x, 4, dim);
    if (piece > 8) turn_pairs(x, 8, dim);
    for (int step = 16; step < piece; step *= 2)
        for (int at = 0; at < dim; at += 2 * step)
            for (int i = at; i < at + step; i += LANES) {
                vec low = load(x + i), high = load(x + i + step);
                store(x + i, low + high);
                store(x + i + step, low - high);
            }
    const float norm = (float)(1.0 / sqrt((double)piece));
    for (int d = 0; d < dim; d++) x[d] *= norm;
    /* What follows must not be fused with this product: it would be rounded once instead of twice. */
    __asm__ volatile("" ::: "memory");
}

INLINE float limited(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* Rounds `wanted` to the scale that will be read, and stores it. */
INLINE float put_scale(float wanted, uint8_t *to) {
    store_half(to, half_of(limited(wanted, 0x1p-24f, 65504.0f)));
    return half_at(to);
}

/* The largest size; NaN where any number is. Sizes are in the order of their bits. */
static float largest_size(const float *x, int dim) {
    ivec most = {0};
    for (int d = 0; d < dim; d += LANES) {
        ivec size = (ivec)load(x + d) & 0x7fffffff;
        most = (ivec)choose(size > most, (vec)size, (vec)most);
    }
    int32_t found = 0;
    for (int i = 0; i < LANES; i++) found = most[i] > found ? most[i] : found;
    return as_float((uint32_t)found);
}

INLINE vec limited_all(vec x, float low, float high) {
    x = choose(x < splat(low), splat(low), x);
    return choose(x > splat(high), splat(high), x);
}

/* To the nearest whole number, ties to even, for sizes below 2^22. */
INLINE vec rounded(vec x) {
    const vec rounder = splat(12582912.0f);
    return (x + rounder) - rounder;
}

INLINE void store_codes(uint8_t *to, ivec codes) {
#if LANES == 16
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
#else
    octets narrow = __builtin_convertvector((uvec)codes & 255, octets);
    memcpy(to, &narrow, sizeof narrow);
#endif
}

INLINE ivec whole(vec x) { return __builtin_convertvector(x, ivec); }

/* To bfloat16, or to IEEE half precision. */
INLINE void store_narrow(uint16_t *to, vec x, const int brain) {
#if LANES == 16
    if (!brain) {
        __m256i found = _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
        memcpy(to, &found, sizeof found);
        return;
    }
#endif
    uvec bits = (uvec)x, kept = bits + 0x7fff + (bits >> 16 & 1);
    kept = (uvec)choose(x == x, (vec)kept, (vec)(bits | 0x400000)) >> 16;
#if LANES == 16
    __m256i found = _mm512_cvtepi32_epi16((__m512i)kept);
    memcpy(to, &found, sizeof found);
#else
    for (int i = 0; i < LANES; i++) to[i] = brain ? (uint16_t)kept[i] : half_of(x[i]);
#endif
}

static void pack_int8(const float *x, int dim, uint8_t *codes, uint8_t *scale_at) {
    const vec scale = splat(put_scale(largest_size(x, dim) / 127.0f, scale_at));
    for (int d = 0; d < dim; d += LANES)
        store_codes(codes + d, whole(rounded(limited_all(load(x + d) / scale, -127.0f, 127.0f))));
}

static void pack_float8(const float *x, int dim, uint8_t *codes, uint8_t *scale_at) {
    const vec scale = splat(put_scale(largest_size(x, dim) / 448.0f, scale_at));
    for (int d = 0; d < dim; d += LANES) {
        uvec bits = (uvec)limited_all(load(x + d) / scale, -448.0f, 448.0f), size = bits & 0x7fffffff;
        uvec normal = (size - (120u << 23) + 0x7ffff + (size >> 20 & 1)) >> 20;
        /* A float from 2^14 on has steps of the size that numbers below the normal ones have. */
        uvec small = (uvec)((vec)size + splat(16384.0f)) - (uvec)splat(16384.0f);
        ivec is_small = (ivec)size < 0x3c800000, is_none = (ivec)size > 0x7f800000;
        uvec code = (uvec)choose(is_small, (vec)small, (vec)normal);
        code = (uvec)choose(is_none, (vec)(uvec){EACH_LANE(0x7f)}, (vec)code);
        store_codes(codes + d, (ivec)(code | (bits >> 24 & 0x80)));
    }
}

/* Codes from -8 to 7, as 0 to 15. */
static void pack_int4_values(const float *x, int dim, uint8_t *codes, uint8_t *scale_at) {
    const vec scale = splat(put_scale(largest_size(x, dim) / 7.5f, scale_at));
    for (int d = 0; d < dim; d += LANES) {
        vec ratio = limited_all(load(x + d) / scale, -8.0f, 7.5f);
        ivec below = whole(ratio);
        /* A comparison is -1 where it holds. */
        below += (ivec)(__builtin_convertvector(below, vec) > ratio);
        store_codes(codes + d, (below + 8) & (ivec)(ratio == ratio));
    }
}

static void pack_int4_keys(const float *x, int dim, uint8_t *codes, uint8_t *scale_at) {
    float low = x[0], high = x[0];
    for (int d = 1; d < dim; d++) {
        low = x[d] < low || x[d] != x[d] ? x[d] : low;
        high = x[d] > high || x[d] != x[d] ? x[d] : high;
    }
    const vec scale = splat(put_scale((high - low) / 31.0f, scale_at));
    store_half(scale_at + 2, half_of(limited(low, -65504.0f, 65504.0f)));
    const vec offset = splat(half_at(scale_at + 2));
    for (int d = 0; d < dim; d += LANES)
        store_codes(codes + d, whole(rounded(limited_all((load(x + d) - offset) / scale, 0.0f, 31.0f))));
}

/* The lowest bits of 8 bytes, as the bits of one. */
INLINE uint8_t eight_bits(const uint8_t *from) {
    uint64_t octet;
    memcpy(&octet, from, sizeof octet);
    return (uint8_t)((octet & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

/* Nibbles of `dim` codes, the first half in the low ones; what is behind the codes is 0. */
INLINE void join_nibbles(const uint8_t *codes, int half, uint8_t *to) {
    for (int i = 0; i < half; i++) to[i] = (uint8_t)((codes[i] & 15) | codes[half + i] << 4);
}

static void pack_head(const float *x, int kind, int dim, int bytes, uint8_t *to) {
    uint8_t codes[MOST_DIM + 64];
    const int half = (dim + 1) / 2, fifths = (dim + 7) / 8;
    /* Whoever makes a layer has looked; the compiler has not. */
    if (dim < 1 || dim > MOST_DIM) return;
    switch (kind) {
        case INT8: pack_int8(x, dim, codes, to + bytes - 2); break;
        case FLOAT8: pack_float8(x, dim, codes, to + bytes - 2); break;
        case INT4_VALUES: pack_int4_values(x, dim, codes, to + bytes - 2); break;
        default: pack_int4_keys(x, dim, codes, to + bytes - 4);
    }
    memset(codes + dim, 0, 8);
    if (kind == INT8 || kind == FLOAT8) {
        memcpy(to, codes, (size_t)bytes - 2);
        return;
    }
    join_nibbles(codes, half, to);
    int end = half;
    if (kind == INT4_KEYS) {
        for (int i = 0; i < dim; i++) codes[i] >>= 4;
        for (int i = 0; i < fifths; i++) to[end++] = eight_bits(codes + 8 * i);
    }
    if (end % 2) to[end] = 0;
}

static void narrow_head(const float *x, int kind, int dim, uint8_t *to) {
    if (kind == FLOAT32) {
        memcpy(to, x, (size_t)dim * 4);
        return;
    }
    for (int d = 0; d < dim; d += LANES) {
        uint16_t found[LANES];
        store_narrow(found, load(x + d), kind == BFLOAT16);
        memcpy(to + (long)d * 2, found, (size_t)(dim - d < LANES ? dim - d : LANES) * 2);
    }
}

static void write_half(const struct half *half, int heads, const float *from, int64_t slot) {
    float x[MOST_DIM + LANES] __attribute__((aligned(64)));
    const int dim = half->dim;
    char *to = half->pool + slot * heads * half->bytes;
    if (half->kind == FLOAT32 && !half->turned) {
        memcpy(to, from, (size_t)heads * half->bytes);
        return;
    }
    for (int head = 0; head < heads; head++, from += dim, to += half->bytes) {
        memcpy(x, from, (size_t)dim * 4);
        memset(x + dim, 0, LANES * 4);
        if (half->turned) turn_head(x, dim);
        if (half->kind <= FLOAT16)
            narrow_head(x, half->kind, dim, (uint8_t *)to);
        else
            pack_head(x, half->kind, dim, half->bytes, (uint8_t *)to);
    }
}

static void write_tokens(const void *data, long item, int worker) {
    (void)worker;
    const struct write *write = data;
    const struct layer *layer = write->layer;
    int64_t end = (item + 1) * (int64_t)TOKENS_AT_ONCE;
    for (int64_t token = item * (int64_t)TOKENS_AT_ONCE; token < end && token < write->count; token++) {
        write_half(&layer->keys, layer->heads, write->keys + token * write->key_stride, write->slots[token]);
        write_half(&layer->values, layer->heads, write->values + token * write->value_stride, write->slots[token]);
    }
}

/* Writes keys and values [count, heads, dim] to their slots; a stride is that from token to token, in floats. */
void write_kv(const struct layer *layer, const int64_t *slots, int64_t count, const float *keys, int64_t key_stride,
              const float *values, int64_t value_stride, int32_t threads) {
    struct write write = {layer, slots, count, keys, values, key_stride, value_stride};
    int64_t numbers = count * layer->heads * (layer->keys.dim + layer->values.dim);
    share_out(write_tokens, &write, (count + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE,
              numbers < WORTH_SHARING ? 1 : threads);
}

struct turn {
    const float *from;
    float *to;
    int64_t stride, count;
    int32_t heads, dim;
};

static void turn_tokens(const void *data, long item, int worker) {
    (void)worker;
    const struct turn *turn = data;
    int64_t end = (item + 1) * (int64_t)TOKENS_AT_ONCE;
    for (int64_t token = item * (int64_t)TOKENS_AT_ONCE; token < end && token < turn->count; token++) {
        float *to = turn->to + token * turn->heads * turn->dim;
        memcpy(to, turn->from + token * turn->stride, (size_t)turn->heads * turn->dim * 4);
        for (int head = 0; head < turn->heads; head++) turn_head(to + (long)head * turn->dim, turn->dim);
    }
}

/* `to` [count, heads, dim] = `from` turned, whose tokens are `stride` floats apart. */
void turn_heads(const float *from, int64_t stride, float *to, int64_t count, int32_t heads, int32_t dim,
                int32_t threads) {
    struct turn turn = {from, to, stride, count, heads, dim};
    int64_t numbers = count * heads * dim;
    share_out(turn_tokens, &turn, (count + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE, numbers < WORTH_SHARING ? 1 : threads);
}
