/* Rows of numbers times a weight matrix that was packed into panels of columns.
 *
 * A panel holds `WIDTH` outputs for all inputs, input by input, so that it is read from its beginning to its end, in one
 * of the formats of weights.h. A few rows at a time are held against a panel in registers. Rows are taken in chunks that
 * stay in a core's cache; so does a panel while a chunk passes it. A number of the result is summed input by input
 * whatever rows are beside it and whatever format its weights are in.
 */
#include <stdlib.h>

#include "threads.h"
#include "weights.h"

enum { ROWS = LANES == 8 ? 4 : 8 };
/* Bytes of a chunk of rows, and bytes by which a panel is fetched ahead. */
enum { CHUNK_BYTES = 384 << 10, AHEAD = 32 * WIDTH * 4 };
/* Pieces of a product for each thread, so that one that is held up does not hold up the rest. */
enum { SHARES = 4 };
/* Rows from which on a panel is unpacked once for all of them. */
enum { MANY = ROWS + 1 };

struct product {
    const float *x;
    int64_t stride; /* floats from row to row of x */
    const uint8_t *panels;
    const int64_t *offsets;
    const uint8_t *formats;
    const float *bias;
    float *out;
    int64_t rows, chunk; /* rows of a chunk */
    int32_t inputs, outputs, panel_count;
    int32_t each, share_count; /* neighbouring panels that one worker reads in one go, and how often there are so many */
};

/* Where a thread unpacks panels; kept for the next product. */
static _Thread_local struct {
    float *floats;
    long bytes;
} own;

/* What becomes of weights: they are added to the sums of rows, or stored where there are none. */
struct sink {
    const float *x; /* input 0 of the first row */
    long stride;
    vec sum[ROWS][COLUMNS];
    float *to;
};

/* The weights of input k. */
INLINE void take(const int rows, struct sink *sink, long k, const vec weight[COLUMNS]) {
    if (rows == 0) {
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) store(sink->to + k * WIDTH + i * LANES, weight[i]);
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        const vec number = splat(sink->x[r * sink->stride + k]);
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) sink->sum[r][i] += number * weight[i];
    }
}

INLINE void fetch(const uint8_t *from, const int bytes) {
    UNROLLED
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + AHEAD + i);
}

INLINE void scales_at(const uint8_t *from, vec scale[COLUMNS]) {
    fetch(from, SCALES);
    UNROLLED
    for (int i = 0; i < COLUMNS; i++) scale[i] = load_float16((const uint16_t *)from + i * LANES);
}

/* The lowest four bits of each lane as a number, 8 less with a sign. */
INLINE vec nibble(uvec word, const int with_sign) {
#if LANES == 16
    const vec plain = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, centred = plain - 8;
    return (vec)_mm512_permutexvar_ps((__m512i)word, (__m512)(with_sign ? centred : plain));
#else
    const ivec code = (ivec)(word & 15);
    return __builtin_convertvector(with_sign ? code - 8 : code, vec);
#endif
}

INLINE void take_nibbles(const int format, const int rows, struct sink *sink, long k, const uint8_t *group) {
    vec scale[COLUMNS], offset[COLUMNS], weight[COLUMNS];
    scales_at(group, scale);
    group += SCALES;
    if (has_offset(format)) {
        scales_at(group, offset);
        group += SCALES;
    }
    float kept[2][WIDTH] __attribute__((aligned(64)));
    const float *scales = kept[0];
    if (rows > ROWS / 2) {
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) {
            store(kept[0] + i * LANES, scale[i]);
            if (has_offset(format)) store(kept[1] + i * LANES, offset[i]);
        }
    }
    for (int w = 0; w < NIBBLE_WORDS; w++, group += 4 * WIDTH) {
        fetch(group, 4 * WIDTH);
        UNROLLED
        for (int j = 0; j < 8; j++) {
            /* The sums of many rows fill the registers: what is behind these pointers is to be read again each time. */
            if (rows > ROWS / 2) __asm__("" : "+r"(group), "+r"(scales));
            UNROLLED
            for (int i = 0; i < COLUMNS; i++) {
                if (rows > ROWS / 2) {
                    scale[i] = load(scales + i * LANES);
                    if (has_offset(format)) offset[i] = load(scales + WIDTH + i * LANES);
                }
                uvec word;
                memcpy(&word, group + 4 * i * LANES, sizeof word);
                const vec code = nibble(word >> 4 * j, !has_offset(format));
                weight[i] = has_offset(format) ? scale[i] * code + offset[i] : scale[i] * code;
            }
            take(rows, sink, k + 8 * w + j, weight);
        }
    }
}

INLINE void take_octets(const int rows, struct sink *sink, long k, const uint8_t *group) {
    vec scale[COLUMNS], weight[COLUMNS];
    scales_at(group, scale);
    group += SCALES;
    for (int j = 0; j < GROUP; j++, group += WIDTH) {
        fetch(group, WIDTH);
        UNROLLED
        for (int i = 0; i < COLUMNS; i++)
            weight[i] = scale[i] * __builtin_convertvector(widen_codes(load_octets(group + i * LANES), 1), vec);
        take(rows, sink, k + j, weight);
    }
}

INLINE void take_single(const int format, const int rows, struct sink *sink, long k, const uint8_t *from) {
    const uint16_t *halves = (const uint16_t *)from;
    vec weight[COLUMNS];
    fetch(from, (int)panel_bytes(format, 1));
    UNROLLED
    for (int i = 0; i < COLUMNS; i++)
        weight[i] = format == FLOATS  ? load((const float *)from + i * LANES)
                    : format == BRAIN ? load_bfloat16(halves + i * LANES)
                                      : load_float16(halves + i * LANES);
    take(rows, sink, k, weight);
}

/* All weights of a panel, input by input. */
INLINE void read_panel(const int format, const int rows, struct sink *sink, const uint8_t *panel, long inputs) {
    if (!is_grouped(format)) {
        for (long k = 0; k < inputs; k++, panel += panel_bytes(format, 1)) take_single(format, rows, sink, k, panel);
        return;
    }
    for (long k = 0; k < inputs; k += GROUP, panel += group_bytes(format)) {
        if (format == OCTETS)
            take_octets(rows, sink, k, panel);
        else
            take_nibbles(format, rows, sink, k, panel);
    }
}

INLINE void multiply(const int format, const int rows, const struct product *all, const uint8_t *weights, int64_t row,
                     int panel) {
    struct sink sink = {.x = all->x + row * all->stride, .stride = all->stride};
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) sink.sum[r][i] = (vec){0};
    read_panel(format, rows, &sink, weights, all->inputs);
    const int first = panel * WIDTH, width = all->outputs - first < WIDTH ? all->outputs - first : WIDTH;
    for (int r = 0; r < rows; r++) {
        float found[WIDTH], *out = all->out + (row + r) * all->outputs + first;
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) store(found + i * LANES, sink.sum[r][i]);
        if (all->bias != NULL)
            for (int i = 0; i < width; i++) found[i] += all->bias[first + i];
        memcpy(out, found, (size_t)width * 4);
    }
}

INLINE void any_rows(const int format, int rows, const struct product *all, const uint8_t *weights, int64_t row,
                     int panel) {
    switch (rows) {
#if LANES != 8
        case 8: multiply(format, 8, all, weights, row, panel); break;
        case 7: multiply(format, 7, all, weights, row, panel); break;
        case 6: multiply(format, 6, all, weights, row, panel); break;
        case 5: multiply(format, 5, all, weights, row, panel); break;
#endif
        case 4: multiply(format, 4, all, weights, row, panel); break;
        case 3: multiply(format, 3, all, weights, row, panel); break;
        case 2: multiply(format, 2, all, weights, row, panel); break;
        default: multiply(format, 1, all, weights, row, panel);
    }
}

/* A function for each format, so that nothing is asked about it inside. */
#define IN_FORMAT(format)                                                                                               \
    static void rows_of_##format(int rows, const struct product *all, const uint8_t *weights, int64_t row, int panel) { \
        any_rows(format, rows, all, weights, row, panel);                                                               \
    }                                                                                                                   \
    static void unpack_##format(struct sink *sink, const uint8_t *panel, long inputs) {                                 \
        read_panel(format, 0, sink, panel, inputs);                                                                     \
    }
IN_FORMAT(SIGNED_NIBBLES)
IN_FORMAT(NIBBLES)
IN_FORMAT(OCTETS)
IN_FORMAT(BRAIN)
IN_FORMAT(HALF)
IN_FORMAT(FLOATS)

static void (*const some_rows[FORMATS])(int, const struct product *, const uint8_t *, int64_t, int) = {
    [SIGNED_NIBBLES] = rows_of_SIGNED_NIBBLES, [NIBBLES] = rows_of_NIBBLES, [OCTETS] = rows_of_OCTETS,
    [BRAIN] = rows_of_BRAIN, [HALF] = rows_of_HALF, [FLOATS] = rows_of_FLOATS};
static void (*const unpack[FORMATS])(struct sink *, const uint8_t *, long) = {
    [SIGNED_NIBBLES] = unpack_SIGNED_NIBBLES, [NIBBLES] = unpack_NIBBLES, [OCTETS] = unpack_OCTETS,
    [BRAIN] = unpack_BRAIN, [HALF] = unpack_HALF, [FLOATS] = unpack_FLOATS};

/* A panel as plain floats, in memory of the calling thread; NULL where there is none. */
static const uint8_t *as_floats(int format, const uint8_t *panel, long inputs) {
    const long wanted = panel_bytes(FLOATS, inputs);
    if (own.bytes < wanted) {
        free(own.floats);
        own.floats = aligned_alloc(64, (size_t)(wanted + 63) / 64 * 64);
        own.bytes = own.floats == NULL ? 0 : wanted;
    }
    if (own.floats == NULL) return NULL;
    struct sink sink = {.to = own.floats};
    unpack[format](&sink, panel, inputs);
    return (const uint8_t *)own.floats;
}

static void run_panels(const void *data, long item, int worker) {
    (void)worker;
    const struct product *all = data;
    const int64_t begin = item / all->share_count * all->chunk;
    const int64_t end = begin + all->chunk < all->rows ? begin + all->chunk : all->rows;
    const int first = (int)(item % all->share_count) * all->each;
    const int last = first + all->each < all->panel_count ? first + all->each : all->panel_count;
    for (int panel = first; panel < last; panel++) {
        const uint8_t *weights = all->panels + all->offsets[panel];
        int format = all->formats[panel];
        if (format != FLOATS && end - begin >= MANY) {
            const uint8_t *floats = as_floats(format, weights, all->inputs);
            if (floats != NULL) weights = floats, format = FLOATS;
        }
        for (int64_t row = begin; row < end; row += ROWS)
            some_rows[format](end - row < ROWS ? (int)(end - row) : ROWS, all, weights, row, panel);
    }
}

/* out [rows, outputs] = x [rows, inputs] times the weights, plus bias [outputs] unless it is NULL. Panel i of
 * ceil(outputs / WIDTH) begins `offsets[i]` bytes behind `panels` and is in `formats[i]`. */
void product(const float *x, int64_t stride, const uint8_t *panels, const int64_t *offsets, const uint8_t *formats,
             const float *bias, float *out, int64_t rows, int32_t inputs, int32_t outputs, int32_t threads) {
    int64_t chunk = CHUNK_BYTES / (4 * (int64_t)inputs) / ROWS * ROWS;
    if (chunk < ROWS) chunk = ROWS;
    const int32_t panel_count = (outputs + WIDTH - 1) / WIDTH;
    const int32_t each = panel_count / (SHARES * threads) > 1 ? panel_count / (SHARES * threads) : 1;
    const int32_t share_count = (panel_count + each - 1) / each;
    struct product all = {x,   stride, panels, offsets, formats, bias,        out,
                          rows, chunk,  inputs, outputs, panel_count, each, share_count};
    share_out(run_panels, &all, (rows + chunk - 1) / chunk * share_count, threads);
}
