/* What a Llama-like decoder does between its products, each in one pass over the numbers. All in float32, all row by
 * row: a row's result does not depend on its neighbours. */
#include <math.h>

#include "threads.h"
#include "vector.h"

/* Numbers from which more than one thread is worth waking, and rows that one takes at a time. */
enum { WORTH_SHARING = 32768, ROWS_AT_ONCE = 16 };

struct rows {
    int64_t rows;
    int32_t dim;
    float *hidden;
    const float *delta, *weight;
    float eps;
    float *out;
    /* rotation */
    int32_t turned;
    int64_t stride;
    const float *cos, *sin;
};

static void over_rows(void (*run)(const void *, long, int), const struct rows *all, int64_t numbers, int threads) {
    share_out(run, all, (all->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, numbers < WORTH_SHARING ? 1 : threads);
}

static int64_t last_of(const struct rows *all, long item) {
    int64_t end = (item + 1) * (int64_t)ROWS_AT_ONCE;
    return end < all->rows ? end : all->rows;
}

/* 1 / sqrt(mean(x^2) + eps) */
INLINE float scale_of(const float *x, int dim, float eps) {
    vec first = {0}, second = {0};
    int d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        vec a = load(x + d), b = load(x + d + LANES);
        first += a * a;
        second += b * b;
    }
    float total = sum_of(first + second);
    for (; d < dim; d++) total += x[d] * x[d];
    return 1.0f / sqrtf(total / (float)dim + eps);
}

INLINE void scaled(const float *x, const float *weight, float scale, int dim, float *out) {
    const vec by = splat(scale);
    int d = 0;
    for (; d + LANES <= dim; d += LANES) store(out + d, load(x + d) * by * load(weight + d));
    for (; d < dim; d++) out[d] = x[d] * scale * weight[d];
}

static void norm_rows(const void *data, long item, int worker) {
    (void)worker;
    const struct rows *all = data;
    const int dim = all->dim;
    for (int64_t row = item * (int64_t)ROWS_AT_ONCE; row < last_of(all, item); row++) {
        float *x = all->hidden + row * dim;
        if (all->delta != NULL) {
            const float *delta = all->delta + row * dim;
            int d = 0;
            for (; d + LANES <= dim; d += LANES) store(x + d, load(x + d) + load(delta + d));
            for (; d < dim; d++) x[d] += delta[d];
        }
        scaled(x, all->weight, scale_of(x, dim, all->eps), dim, all->out + row * dim);
    }
}

/* hidden += delta (unless it is NULL); out = hidden / sqrt(mean(hidden^2) + eps) * weight. All [rows, dim]. */
void add_norm(float *hidden, const float *delta, const float *weight, float eps, float *out, int64_t rows, int32_t dim,
              int32_t threads) {
    struct rows all = {.rows = rows, .dim = dim, .hidden = hidden, .delta = delta, .weight = weight, .eps = eps, .out = out};
    over_rows(norm_rows, &all, rows * dim, threads);
}

INLINE void turn_head(float *x, const float *cos, const float *sin, int dim) {
    const int half = dim / 2;
    int d = 0;
    for (; d + LANES <= half; d += LANES) {
        vec a = load(x + d), b = load(x + d + half);
        store(x + d, a * load(cos + d) - b * load(sin + d));
        store(x + d + half, b * load(cos + d + half) + a * load(sin + d + half));
    }
    for (; d < half; d++) {
        float a = x[d], b = x[d + half];
        x[d] = a * cos[d] - b * sin[d];
        x[d + half] = b * cos[d + half] + a * sin[d + half];
    }
}

static void turn_rows(const void *data, long item, int worker) {
    (void)worker;
    const struct rows *all = data;
    const int dim = all->dim;
    for (int64_t row = item * (int64_t)ROWS_AT_ONCE; row < last_of(all, item); row++)
        for (int head = 0; head < all->turned; head++) {
            float *x = all->hidden + row * all->stride + (long)head * dim;
            if (all->weight != NULL) scaled(x, all->weight + (long)head * dim, scale_of(x, dim, all->eps), dim, x);
            turn_head(x, all->cos + row * dim, all->sin + row * dim, dim);
        }
}

/* Turns the first `heads` heads of each row of joint [rows, stride] in place by cos and sin [rows, dim], halves against
 * each other; before that, where weight [heads, dim] is not NULL, each head is normed by itself. */
void rotate(float *joint, int64_t stride, const float *weight, float eps, const float *cos, const float *sin,
            int64_t rows, int32_t heads, int32_t dim, int32_t threads) {
    struct rows all = {.rows = rows, .dim = dim, .hidden = joint, .weight = weight, .eps = eps, .turned = heads,
                       .stride = stride, .cos = cos, .sin = sin};
    over_rows(turn_rows, &all, rows * heads * dim, threads);
}

static void gate_rows(const void *data, long item, int worker) {
    (void)worker;
    const struct rows *all = data;
    const int dim = all->dim;
    const vec most = splat(126.0f), one = splat(1.0f), to_powers_of_2 = splat(-1.44269504088896341f);
    for (int64_t row = item * (int64_t)ROWS_AT_ONCE; row < last_of(all, item); row++) {
        const float *gate = all->delta + row * 2 * dim, *up = gate + dim;
        float *out = all->out + row * dim;
        int d = 0;
        for (; d < dim; d += LANES) {
            /* The last few numbers go through the same instructions as the others. */
            int short_of = dim - d < LANES ? LANES - (dim - d) : 0;
            float ends[2][LANES] = {{0}};
            if (short_of) {
                memcpy(ends[0], gate + d, (size_t)(dim - d) * 4);
                memcpy(ends[1], up + d, (size_t)(dim - d) * 4);
            }
            vec x = load(short_of ? ends[0] : gate + d), power = x * to_powers_of_2;
            power = choose(power > most, most, power);
            vec found = x / (one + exp2_of(power)) * load(short_of ? ends[1] : up + d);
            if (short_of)
                memcpy(out + d, &found, (size_t)(dim - d) * 4);
            else
                store(out + d, found);
        }
    }
}

/* out [rows, dim] = silu(gate) * up, of gate_up [rows, 2 * dim]. */
void gate(const float *gate_up, float *out, int64_t rows, int32_t dim, int32_t threads) {
    struct rows all = {.rows = rows, .dim = dim, .delta = gate_up, .out = out};
    over_rows(gate_rows, &all, rows * dim, threads);
}
