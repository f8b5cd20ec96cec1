/* Finds, for each panel of a weight matrix, the narrowest format of weights.h that keeps every number to the last bit,
 * and writes the panel so.
 *
 * Nothing is rounded. Numbers that were made of a scale, an offset and small whole numbers give these away: the least
 * and the greatest of a group lie some steps of the scale apart. What is found so is tried on every number.
 */
#include <math.h>

#include "threads.h"
#include "weights.h"

struct matrix {
    const float *weight;
    int64_t stride; /* floats from row to row; a row is an output */
    int32_t inputs, outputs;
    uint8_t *formats;       /* of each panel */
    const int64_t *offsets; /* of each panel in `panels`, in bytes */
    uint8_t *panels;
};

/* The numbers `scale * code + offset`, codes being whole numbers from `least` to `most`. */
struct grid {
    float scale, offset;
    int least, most;
};

INLINE float as_half(float x) {
    const uint16_t bits = half_of(x);
    return half_at((const uint8_t *)&bits);
}

/* The codes of a group's numbers; 0 where one is not on the grid. */
static int on_grid(const float *numbers, const struct grid *grid, int32_t *codes) {
    const float inverse = grid->scale == 0 ? 0 : 1 / grid->scale, least = (float)grid->least, most = (float)grid->most;
    uint32_t off = 0;
    for (int i = 0; i < GROUP; i++) {
        float code = rintf((numbers[i] - grid->offset) * inverse);
        /* The least where it is NaN. */
        code = code > least ? code : least;
        /* Whole numbers have no -0; a compiler may not go through one on the way back. */
        code = (code < most ? code : most) + 0.0f;
        codes[i] = (int32_t)code;
        off |= bits_of(grid->scale * (float)codes[i] + grid->offset) ^ bits_of(numbers[i]);
    }
    return off == 0;
}

/* Grids on which the least and the greatest number are any two codes. */
static int find_offset_grid(const float *numbers, struct grid *grid, int32_t *codes) {
    float low = numbers[0], high = numbers[0];
    for (int i = 1; i < GROUP; i++) {
        low = numbers[i] < low ? numbers[i] : low;
        high = numbers[i] > high ? numbers[i] : high;
    }
    const int most = grid->most;
    for (int steps = most; steps > 0; steps--) {
        grid->scale = as_half((high - low) / (float)steps);
        for (int code = 0; code <= most - steps; code++) {
            grid->offset = as_half(low - grid->scale * (float)code);
            if (on_grid(numbers, grid, codes)) return 1;
        }
        /* All the same. */
        if (grid->scale == 0) break;
    }
    return 0;
}

/* Grids around 0 on which the number farthest from it is any code. */
static int find_scale_grid(const float *numbers, struct grid *grid, int32_t *codes) {
    float most = 0;
    for (int i = 0; i < GROUP; i++) most = fabsf(numbers[i]) > most ? fabsf(numbers[i]) : most;
    /* What adds nothing, not even to the sign of 0. */
    grid->offset = -0.0f;
    for (int code = -grid->least; code > 0; code--) {
        const float scale = most / (float)code;
        if (as_half(scale) != scale) continue;
        for (int sign = 1; sign >= -1; sign -= 2) {
            grid->scale = (float)sign * scale;
            if (on_grid(numbers, grid, codes)) return 1;
        }
    }
    return 0;
}

static int find_grid(int format, const float *numbers, struct grid *grid, int32_t *codes) {
    grid->least = format == NIBBLES ? 0 : format == OCTETS ? -128 : -8;
    grid->most = format == NIBBLES ? 15 : format == OCTETS ? 127 : 7;
    return has_offset(format) ? find_offset_grid(numbers, grid, codes) : find_scale_grid(numbers, grid, codes);
}

static int row_fits(int format, const float *row, int32_t inputs) {
    if (is_grouped(format)) {
        struct grid grid;
        int32_t codes[GROUP];
        if (inputs % GROUP != 0) return 0;
        for (int i = 0; i < inputs; i += GROUP)
            if (!find_grid(format, row + i, &grid, codes)) return 0;
        return 1;
    }
    uint32_t off = 0;
    if (format == BRAIN)
        for (int i = 0; i < inputs; i++) off |= bits_of(row[i]) & 0xffff;
    if (format == HALF)
        for (int i = 0; i < inputs && off == 0; i++) off |= bits_of(as_half(row[i])) ^ bits_of(row[i]);
    return off == 0;
}

INLINE int columns_of(const struct matrix *all, long panel) {
    const long left = all->outputs - panel * WIDTH;
    return left < WIDTH ? (int)left : WIDTH;
}

static void find_format(const void *data, long panel, int worker) {
    (void)worker;
    const struct matrix *all = data;
    const float *rows = all->weight + panel * WIDTH * all->stride;
    int format = 0;
    /* What does not fit one row does not fit the panel; the last format fits every row. */
    for (int c = 0; c < columns_of(all, panel); c++)
        while (!row_fits(format, rows + c * all->stride, all->inputs)) format++, c = 0;
    all->formats[panel] = (uint8_t)format;
}

static void write_group(int format, const float *numbers, int column, uint8_t *to) {
    struct grid grid;
    int32_t codes[GROUP];
    if (!find_grid(format, numbers, &grid, codes)) return;
    store_half(to + 2 * column, half_of(grid.scale));
    to += SCALES;
    if (has_offset(format)) {
        store_half(to + 2 * column, half_of(grid.offset));
        to += SCALES;
    }
    if (format == OCTETS) {
        for (int i = 0; i < GROUP; i++) to[i * WIDTH + column] = (uint8_t)codes[i];
        return;
    }
    for (int w = 0; w < NIBBLE_WORDS; w++) {
        uint32_t word = 0;
        for (int j = 0; j < 8; j++) word |= (uint32_t)(codes[8 * w + j] - grid.least) << 4 * j;
        memcpy(to + 4 * (w * WIDTH + column), &word, sizeof word);
    }
}

static void write_panel(const void *data, long panel, int worker) {
    (void)worker;
    const struct matrix *all = data;
    const float *rows = all->weight + panel * WIDTH * all->stride;
    const int format = all->formats[panel], columns = columns_of(all, panel);
    uint8_t *to = all->panels + all->offsets[panel];
    if (columns < WIDTH) memset(to, 0, (size_t)panel_bytes(format, all->inputs));
    if (is_grouped(format)) {
        for (int i = 0; i < all->inputs; i += GROUP, to += group_bytes(format))
            for (int c = 0; c < columns; c++) write_group(format, rows + c * all->stride + i, c, to);
        return;
    }
    for (int i = 0; i < all->inputs; i++)
        for (int c = 0; c < columns; c++) {
            const float number = rows[c * all->stride + i];
            const long at = (long)i * WIDTH + c;
            if (format == FLOATS)
                memcpy(to + 4 * at, &number, 4);
            else
                store_half(to + 2 * at, format == BRAIN ? (uint16_t)(bits_of(number) >> 16) : half_of(number));
        }
}

int32_t weights_width(void) { return WIDTH; }

int64_t weights_panel_bytes(int32_t format, int32_t inputs) { return panel_bytes(format, inputs); }

/* formats [ceil(outputs / WIDTH)]: the narrowest that keeps each panel of weight [outputs, inputs]. */
void find_formats(const float *weight, int64_t stride, int32_t outputs, int32_t inputs, uint8_t *formats,
                  int32_t threads) {
    const struct matrix all = {weight, stride, inputs, outputs, formats, NULL, NULL};
    share_out(find_format, &all, (outputs + WIDTH - 1) / WIDTH, threads);
}

/* Writes each panel in its format, which must keep it, to `offsets` bytes behind `panels`. */
void write_panels(const float *weight, int64_t stride, int32_t outputs, int32_t inputs, uint8_t *formats,
                  const int64_t *offsets, uint8_t *panels, int32_t threads) {
    const struct matrix all = {weight, stride, inputs, outputs, formats, offsets, panels};
    share_out(write_panel, &all, (outputs + WIDTH - 1) / WIDTH, threads);
}
