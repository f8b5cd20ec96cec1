/* Rows of numbers times a weight matrix that was packed into panels of columns.
 *
 * A panel holds `WIDTH` outputs for all inputs, input by input, so that it is read from its beginning to its end. A few
 * rows at a time are held against a panel in registers. Rows are taken in chunks that stay in a core's cache; so does
 * a panel while a chunk passes it. A number of the result is summed input by input whatever rows are beside it.
 */
#include "threads.h"
#include "vector.h"

enum { COLUMNS = 3, WIDTH = COLUMNS * LANES, ROWS = LANES == 8 ? 4 : 8 };
/* Bytes of a chunk of rows, and inputs by which a panel is fetched ahead. */
enum { CHUNK_BYTES = 384 << 10, AHEAD = 32 };
/* Pieces of a product for each thread, so that one that is held up does not hold up the rest. */
enum { SHARES = 4 };

struct product {
    const float *x;
    int64_t stride; /* floats from row to row of x */
    const float *panels, *bias;
    float *out;
    int64_t rows, chunk; /* rows of a chunk */
    int32_t inputs, outputs, panel_count;
    int32_t each, share_count; /* neighbouring panels that one worker reads in one go, and how often there are so many */
};

int32_t product_width(void) { return WIDTH; }

INLINE void multiply(const int rows, const struct product *all, int64_t row, int panel) {
    const float *x = all->x + row * all->stride, *weights = all->panels + (long)panel * all->inputs * WIDTH;
    const long stride = all->stride;
    vec sum[ROWS][COLUMNS];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) sum[r][i] = (vec){0};
    for (int k = 0; k < all->inputs; k++, weights += WIDTH) {
        vec weight[COLUMNS];
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) {
            weight[i] = load(weights + i * LANES);
            __builtin_prefetch(weights + AHEAD * WIDTH + i * LANES);
        }
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vec number = splat(x[r * stride + k]);
            UNROLLED
            for (int i = 0; i < COLUMNS; i++) sum[r][i] += number * weight[i];
        }
    }
    const int first = panel * WIDTH, width = all->outputs - first < WIDTH ? all->outputs - first : WIDTH;
    for (int r = 0; r < rows; r++) {
        float found[WIDTH], *out = all->out + (row + r) * all->outputs + first;
        UNROLLED
        for (int i = 0; i < COLUMNS; i++) store(found + i * LANES, sum[r][i]);
        if (all->bias != NULL)
            for (int i = 0; i < width; i++) found[i] += all->bias[first + i];
        memcpy(out, found, (size_t)width * 4);
    }
}

static void any_rows(int rows, const struct product *all, int64_t row, int panel) {
    switch (rows) {
#if LANES != 8
        case 8: multiply(8, all, row, panel); break;
        case 7: multiply(7, all, row, panel); break;
        case 6: multiply(6, all, row, panel); break;
        case 5: multiply(5, all, row, panel); break;
#endif
        case 4: multiply(4, all, row, panel); break;
        case 3: multiply(3, all, row, panel); break;
        case 2: multiply(2, all, row, panel); break;
        default: multiply(1, all, row, panel);
    }
}

static void run_panels(const void *data, long item, int worker) {
    (void)worker;
    const struct product *all = data;
    const int64_t begin = item / all->share_count * all->chunk;
    const int64_t end = begin + all->chunk < all->rows ? begin + all->chunk : all->rows;
    const int first = (int)(item % all->share_count) * all->each;
    const int last = first + all->each < all->panel_count ? first + all->each : all->panel_count;
    for (int panel = first; panel < last; panel++)
        for (int64_t row = begin; row < end; row += ROWS)
            any_rows(end - row < ROWS ? (int)(end - row) : ROWS, all, row, panel);
}

/* out [rows, outputs] = x [rows, inputs] times the weights, plus bias [outputs] unless it is NULL. panels is
 * [ceil(outputs / WIDTH), inputs, WIDTH], filled up with zeros. */
void product(const float *x, int64_t stride, const float *panels, const float *bias, float *out, int64_t rows,
             int32_t inputs, int32_t outputs, int32_t threads) {
    int64_t chunk = CHUNK_BYTES / (4 * (int64_t)inputs) / ROWS * ROWS;
    if (chunk < ROWS) chunk = ROWS;
    const int32_t panel_count = (outputs + WIDTH - 1) / WIDTH;
    const int32_t each = panel_count / (SHARES * threads) > 1 ? panel_count / (SHARES * threads) : 1;
    const int32_t share_count = (panel_count + each - 1) / each;
    struct product all = {x,    stride, panels,  bias,        out,  rows,
                          chunk, inputs, outputs, panel_count, each, share_count};
    share_out(run_panels, &all, (rows + chunk - 1) / chunk * share_count, threads);
}
