/* Causal attention over paged keys and values, for a few queries (decoding) and for many (prefill) alike.
 *
 * A task is a set of query rows over a range of positions, taken a tile of keys at a time: the keys are turned so that
 * a vector holds one number of several keys, scores are a product of registers blocked by rows and keys, the softmax is
 * taken online (Milakov and Gimelshein, 2018) and the weighted values are a second such product. Keys and values are
 * read where they lie, through the block table. Tasks over parts of a context meet by log-sum-exp.
 */
#include <math.h>

#include "threads.h"
#include "unpack.h"

enum { ROWS = 6, COLUMNS = LANES == 16 ? 4 : 2 };
/* Groups of rows from which on each fetches a part of the next tile: all of it at once would wait for itself. */
enum { SPREAD = 4 };

#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f

/* One task, as runtime/attention/native_layout.py writes it. */
struct task {
    int32_t members, count; /* tokens: their place in `tokens` and `positions`, and how many */
    int32_t head, heads;    /* of keys and values */
    int32_t table;          /* where the sequence's block table begins in `blocks` */
    int32_t low, high;      /* positions that are attended */
    int32_t part;           /* the first of the task's partial results, one a token; -1 when they are whole */
};

/* A token whose partial results are to be joined. */
struct merge {
    int32_t token, begin, count;
};

struct attention {
    const struct task *tasks;
    const int32_t *tokens, *positions, *blocks;
    const struct merge *merges;
    const int32_t *parts;
    float *part_outs; /* [parts, heads, value_dim] */
    float *part_lses; /* [parts, heads], in powers of 2 */
    char *scratch;
    int64_t scratch_bytes; /* of each worker, as `attention_scratch` says */
    int64_t task_count, merge_count;
    int32_t block_size, kv_heads, group, key_dim, value_dim, window, threads;
    int32_t key_kind, key_bytes, value_kind, value_bytes; /* of one head, see records.h */
    float scale, softcap; /* softcap 0 is none */
};

struct call {
    const struct attention *step;
    const float *query;
    int64_t query_stride;
    const char *keys, *values;
    float *out, *lse;
};

static int padded(int dim) { return (dim + LANES - 1) / LANES * LANES; }

/* Bytes that a worker needs for tasks of up to `rows` query rows over all their KV heads together, of which there are
 * up to `heads`. */
int64_t attention_scratch(int32_t rows, int32_t heads, int32_t key_dim, int32_t value_dim) {
    int64_t vd = padded(value_dim), kd = padded(key_dim);
    int64_t tile = TILE * ((heads + 1) * kd + vd) + heads * kd + ROWS * TILE;
    int64_t state = rows * ((int64_t)padded(key_dim) + vd + LANES + 1);
    return (4 * (tile + state) + 127) / 64 * 64;
}

#if LANES == 16
/* Up to 16 numbers of each of 16 rows, turned; 16 rows are written. */
INLINE void turn_square(const float *const *rows, long at, int count, float *to) {
    const __mmask16 there = count < 16 ? (__mmask16)((1u << count) - 1) : (__mmask16)0xffff;
    __m512 a[16], b[16];
    UNROLLED
    for (int i = 0; i < 16; i++) a[i] = _mm512_maskz_loadu_ps(there, rows[i] + at);
    UNROLLED
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    UNROLLED
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
        a[4 * i + 1] = _mm512_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
        a[4 * i + 2] = _mm512_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
        a[4 * i + 3] = _mm512_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
    }
    UNROLLED
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLLED
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(to + i * TILE, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 4) * TILE, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_ps(to + (i + 8) * TILE, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_ps(to + (i + 12) * TILE, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
    }
}
#endif

/* `to[d][j] = rows[j][d]` for the keys of a tile, floats or words of codes. Meanwhile the `coming` keys of the next
 * tile are fetched, a line for each that is read: more at once would only wait for each other. */
INLINE void turn(const float *const *rows, int dim, float *to, const char *const *next, int coming, int next_bytes) {
#if LANES == 16
    for (int d = 0; d < dim; d += 16)
        for (int j = 0; j < TILE; j += 16) {
            for (int i = j; i < j + 16 && i < coming; i++)
                if (d * 4 < next_bytes) __builtin_prefetch(next[i] + d * 4, 0, 2);
            turn_square(rows + j, d, dim - d, to + (long)d * TILE + j);
        }
#else
    for (int d = 0; d < dim; d++) {
        if (d % 16 == 0 && d * 4 < next_bytes)
            for (int i = 0; i < coming; i++) __builtin_prefetch(next[i] + d * 4, 0, 2);
        for (int j = 0; j < TILE; j++) to[(long)d * TILE + j] = rows[j][d];
    }
#endif
}

/* Scores of `rows` queries with a tile of turned keys. */
INLINE void score(const int rows, const float *query, int dim, long stride, const float *turned, float *scores) {
    for (int c = 0; c < TILE; c += COLUMNS * LANES) {
        vec sum[ROWS][COLUMNS];
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int i = 0; i < COLUMNS; i++) sum[r][i] = (vec){0};
        for (int d = 0; d < dim; d++) {
            vec key[COLUMNS];
            UNROLLED
            for (int i = 0; i < COLUMNS; i++) key[i] = load(turned + (long)d * TILE + c + i * LANES);
            UNROLLED
            for (int r = 0; r < rows; r++) {
                vec q = splat(query[r * stride + d]);
                UNROLLED
                for (int i = 0; i < COLUMNS; i++) sum[r][i] += q * key[i];
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int i = 0; i < COLUMNS; i++) store(scores + r * TILE + c + i * LANES, sum[r][i]);
    }
}

/* out[r] += weights[r] times the values of `count` keys, `columns` vectors of them. Fetches `coming` values of the next
 * tile, as `turn` does with keys. */
INLINE void weigh(const int rows, const int columns, const float *weights, const float *const *values, int count,
                  int at, float *out, long stride, const char *const *next, int coming, int next_bytes) {
    vec sum[ROWS][COLUMNS];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int i = 0; i < columns; i++) sum[r][i] = load(out + r * stride + at + i * LANES);
    for (int j = 0; j < count; j++) {
        vec value[COLUMNS];
        UNROLLED
        for (int i = 0; i < columns; i++) value[i] = load(values[j] + at + i * LANES);
        if (j < coming) {
            UNROLLED
            for (int i = 0; i < columns * LANES; i += 16)
                if ((at + i) * 4 < next_bytes) __builtin_prefetch(next[j] + (at + i) * 4, 0, 2);
        }
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vec w = splat(weights[r * TILE + j]);
            UNROLLED
            for (int i = 0; i < columns; i++) sum[r][i] += w * value[i];
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int i = 0; i < columns; i++) store(out + r * stride + at + i * LANES, sum[r][i]);
}

static void cap(float *scores, int rows, float softcap) {
    const vec limit = splat(softcap * LOG2E), twice = splat(2.0f / softcap), most = splat(126.0f);
    for (int i = 0; i < rows * TILE; i += LANES) {
        vec x = load(scores + i) * twice;
        /* tanh(y) = 1 - 2 / (1 + e^2y) */
        x = choose(x > most, most, x);
        store(scores + i, limit * (splat(1.0f) - splat(2.0f) / (splat(1.0f) + exp2_of(x))));
    }
}

/* Turns a row of scores into weights against the largest score so far, and what was summed so far with it. Keys outside
 * `low : high` of the tile are not seen. */
INLINE void soften(float *scores, int low, int high, float *peak, float *total, float *out, int value_dim) {
    vec part[PIECES];
    UNROLLED
    for (int i = 0; i < PIECES; i++) part[i] = load(scores + i * LANES);
    if (low > 0 || high < TILE) {
        float seen[TILE];
        for (int j = 0; j < TILE; j++) seen[j] = j >= low && j < high ? 0.0f : -INFINITY;
        UNROLLED
        for (int i = 0; i < PIECES; i++) part[i] += load(seen + i * LANES);
    }
    vec most = part[0];
    UNROLLED
    for (int i = 1; i < PIECES; i++) most = larger(most, part[i]);
    if (any_above(most, *peak)) {
        float risen = largest_of(most);
        vec fade = splat(exp2f(*peak - risen));
        *peak = risen;
        store(total, load(total) * fade);
        for (int d = 0; d < value_dim; d += LANES) store(out + d, load(out + d) * fade);
    }
    vec origin = splat(*peak == -INFINITY ? 0.0f : *peak), sum = {0};
    UNROLLED
    for (int i = 0; i < PIECES; i++) {
        vec weight = exp2_of(part[i] - origin);
        store(scores + i * LANES, weight);
        sum += weight;
    }
    store(total, load(total) + sum);
}

/* What a task holds for the rows of one KV head, one behind the other. */
struct rows {
    float *query, *out, *total, *peak;
};

struct tile {
    const float *turned;
    const float *values[TILE];
    int count; /* keys in it */
    int base;  /* position of the first */
    const char *next_keys[TILE], *next_values[TILE];
    int coming; /* keys in the next tile, to be fetched meanwhile */
    int groups; /* of rows that are taken one after the other */
};

/* A few rows of one KV head over a tile. */
INLINE void step_rows(const int rows, const struct attention *step, const struct rows *mine, const struct tile *tile,
                      const int *low, const int *high, int coming, float *scores) {
    const int kd = padded(step->key_dim), vd = padded(step->value_dim);
    score(rows, mine->query, step->key_dim, kd, tile->turned, scores);
    if (step->softcap > 0) cap(scores, rows, step->softcap);
    for (int r = 0; r < rows; r++)
        soften(scores + r * TILE, low[r], high[r], mine->peak + r, mine->total + r * LANES, mine->out + (long)r * vd, vd);
    int d = 0;
    for (; d + COLUMNS * LANES <= vd; d += COLUMNS * LANES)
        weigh(rows, COLUMNS, scores, tile->values, tile->count, d, mine->out, vd, tile->next_values, coming,
              step->value_bytes);
    for (; d < vd; d += LANES)
        weigh(rows, 1, scores, tile->values, tile->count, d, mine->out, vd, tile->next_values, coming,
              step->value_bytes);
}

static void any_rows(int rows, const struct attention *step, const struct rows *mine, const struct tile *tile,
                     const int *low, const int *high, int coming, float *scores) {
    switch (rows) {
        case 6: step_rows(6, step, mine, tile, low, high, coming, scores); break;
        case 5: step_rows(5, step, mine, tile, low, high, coming, scores); break;
        case 4: step_rows(4, step, mine, tile, low, high, coming, scores); break;
        case 3: step_rows(3, step, mine, tile, low, high, coming, scores); break;
        case 2: step_rows(2, step, mine, tile, low, high, coming, scores); break;
        default: step_rows(1, step, mine, tile, low, high, coming, scores);
    }
}

/* Fetches the share of the next tile that falls to a group of rows. */
INLINE void fetch(const struct attention *step, const struct tile *tile, int group) {
    const int first = tile->coming * group / tile->groups, end = tile->coming * (group + 1) / tile->groups;
    for (int j = first; j < end; j++) {
        for (int at = 0; at < step->key_bytes; at += 64) __builtin_prefetch(tile->next_keys[j] + at, 0, 2);
        for (int at = 0; at < step->value_bytes; at += 64) __builtin_prefetch(tile->next_values[j] + at, 0, 2);
    }
}

/* All rows of one KV head over a tile. */
static void take_tile(const struct attention *step, const struct rows *all, const struct task *task,
                      const struct tile *tile, float *scores) {
    const int rows = task->count * step->group;
    const int kd = padded(step->key_dim), vd = padded(step->value_dim);
    const int spread = tile->groups >= SPREAD;
    int coming = spread ? 0 : tile->coming;
    for (int first = 0; first < rows; first += ROWS) {
        if (spread) fetch(step, tile, first / ROWS);
        int count = rows - first < ROWS ? rows - first : ROWS, low[ROWS], high[ROWS], some = 0;
        for (int r = 0; r < count; r++) {
            int at = step->positions[task->members + (first + r) / step->group] - tile->base;
            high[r] = at + 1 < tile->count ? at + 1 : tile->count;
            low[r] = step->window > 0 && at - step->window + 1 > 0 ? at - step->window + 1 : 0;
            some |= low[r] < high[r];
        }
        if (!some) continue;
        struct rows mine = {all->query + (long)first * kd, all->out + (long)first * vd, all->total + first * LANES,
                            all->peak + first};
        any_rows(count, step, &mine, tile, low, high, coming, scores);
        coming = 0;
    }
}

/* The keys of a tile, turned. `wide` is room for as many. */
static void read_keys(const struct attention *step, const char **records, const struct tile *tile, float *wide,
                      const float *nothing, float *turned) {
    const int dim = step->key_dim, kind = step->key_kind, bytes = step->key_bytes, words = words_of(kind, dim);
    const int coming = tile->groups < SPREAD ? tile->coming : 0;
    if (kind != FLOAT32 && words == 0) {
        widen_all(records, tile->count, kind, dim, bytes, wide, padded(dim));
        for (int j = 0; j < tile->count; j++) records[j] = (const char *)(wide + (long)j * padded(dim));
    }
    for (int j = tile->count; j < TILE; j++) records[j] = (const char *)nothing;
    const float *const *rows = (const float *const *)records;
    if (words == 0) {
        turn(rows, dim, turned, tile->next_keys, coming, bytes);
        return;
    }
    struct scales scales = {{0}, {0}};
    read_scales(records, kind, tile->count, bytes, &scales);
    turn(rows, words, wide, tile->next_keys, coming, bytes);
    unpack_turned(wide, kind, dim, &scales, turned);
}

/* Whether the keys of all KV heads of a task are turned at once: they lie side by side, and memory that is read from one
 * end to the other comes faster. With many rows reading is not what takes the time. */
INLINE int turned_at_once(const struct attention *step, const struct task *task, int groups) {
    return LANES == 16 && task->heads > 1 && groups < SPREAD && step->key_kind == FLOAT32 && step->key_dim % 16 == 0;
}

/* Turns `dim` numbers of each of `count` keys, and fetches as many of the `coming` keys of the next tile. */
static void turn_heads(const float **rows, int count, int dim, const float *nothing, const char *const *next, int coming,
                       float *turned) {
#if LANES == 16
    for (int j = count; j < TILE; j++) rows[j] = nothing;
    for (int j = 0; j < TILE; j += 16)
        for (int d = 0; d < dim; d += 16) {
            for (int i = j; i < j + 16 && i < coming; i++) __builtin_prefetch(next[i] + d * 4, 0, 2);
            turn_square(rows + j, d, 16, turned + (long)d * TILE + j);
        }
#else
    (void)rows, (void)count, (void)dim, (void)nothing, (void)next, (void)coming, (void)turned;
#endif
}

/* The values of a tile where they lie, or in `wide`. */
static void read_values(const struct attention *step, const char *const *records, struct tile *tile, float *wide) {
    const int dim = step->value_dim, room = padded(dim), where_they_lie = step->value_kind == FLOAT32 && room == dim;
    if (!where_they_lie) widen_all(records, tile->count, step->value_kind, dim, step->value_bytes, wide, room);
    for (int j = 0; j < tile->count; j++)
        tile->values[j] = where_they_lie ? (const float *)records[j] : wide + (long)j * room;
}

/* Where in the pool `count` positions from `base` on are kept. */
INLINE void find_slots(const struct attention *step, const int32_t *blocks, int base, int count, long *slots) {
    int block = base / step->block_size, offset = base % step->block_size;
    for (int j = 0; j < count; j++) {
        slots[j] = (long)blocks[block] * step->block_size + offset;
        if (++offset == step->block_size) offset = 0, block++;
    }
}

static void run_task(const void *data, long item, int worker) {
    const struct call *call = data;
    const struct attention *step = call->step;
    const struct task *task = step->tasks + item;
    const int rows = task->count * step->group, heads = step->kv_heads * step->group;
    const int key_dim = step->key_dim, value_dim = step->value_dim, kd = padded(key_dim), vd = padded(value_dim);
    float *turned = (float *)(step->scratch + step->scratch_bytes * worker);
    float *wide_keys = turned + (long)TILE * kd * task->heads, *wide_values = wide_keys + (long)TILE * kd;
    float *nothing = wide_values + (long)TILE * vd, *scores = nothing + (long)kd * task->heads;
    float *query = scores + ROWS * TILE, *out = query + (long)rows * task->heads * kd;
    float *total = out + (long)rows * task->heads * vd, *peak = total + (long)rows * task->heads * LANES;

    const int groups = (rows + ROWS - 1) / ROWS, at_once = turned_at_once(step, task, groups);

    memset(nothing, 0, (size_t)kd * task->heads * 4);
    memset(out, 0, (size_t)rows * task->heads * (vd + LANES) * 4);
    const vec scale = splat(step->scale * LOG2E);
    for (int h = 0; h < task->heads; h++)
        for (int r = 0; r < rows; r++) {
            const float *from = call->query + step->tokens[task->members + r / step->group] * call->query_stride +
                                (long)((task->head + h) * step->group + r % step->group) * key_dim;
            float *to = query + (long)(h * rows + r) * kd;
            memcpy(to, from, (size_t)key_dim * 4);
            for (int d = 0; d < kd; d += LANES) store(to + d, load(to + d) * scale);
            peak[h * rows + r] = -INFINITY;
        }

    const long key_token = (long)step->kv_heads * step->key_bytes;
    const long value_token = (long)step->kv_heads * step->value_bytes;
    const int32_t *blocks = step->blocks + task->table;
    for (int base = task->low; base < task->high; base += TILE) {
        int count = task->high - base < TILE ? task->high - base : TILE;
        int ahead = task->high - base - TILE < TILE ? task->high - base - TILE : TILE;
        long slot[TILE], next[TILE];
        find_slots(step, blocks, base, count, slot);
        find_slots(step, blocks, base + TILE, ahead, next);
        if (at_once) {
            const float *key_rows[TILE];
            const char *next_keys[TILE], *keys = call->keys + (long)task->head * step->key_bytes;
            for (int j = 0; j < count; j++) key_rows[j] = (const float *)(keys + slot[j] * key_token);
            for (int j = 0; j < ahead; j++) next_keys[j] = keys + next[j] * key_token;
            turn_heads(key_rows, count, task->heads * key_dim, nothing, next_keys, ahead, turned);
        }
        for (int h = 0; h < task->heads; h++) {
            const char *keys = call->keys + (long)(task->head + h) * step->key_bytes;
            const char *values = call->values + (long)(task->head + h) * step->value_bytes;
            struct tile tile;
            tile.turned = at_once ? turned + (long)h * kd * TILE : turned;
            tile.count = count, tile.base = base, tile.coming = ahead < 0 ? 0 : ahead, tile.groups = groups;
            const char *key_rows[TILE], *value_rows[TILE];
            for (int j = 0; j < ahead; j++) {
                tile.next_keys[j] = keys + next[j] * key_token;
                tile.next_values[j] = values + next[j] * value_token;
            }
            for (int j = 0; j < count; j++) {
                key_rows[j] = keys + slot[j] * key_token;
                value_rows[j] = values + slot[j] * value_token;
            }
            if (!at_once) read_keys(step, key_rows, &tile, wide_keys, nothing, turned);
            read_values(step, value_rows, &tile, wide_values);
            struct rows all = {query + (long)h * rows * kd, out + (long)h * rows * vd, total + h * rows * LANES,
                               peak + h * rows};
            take_tile(step, &all, task, &tile, scores);
        }
    }

    for (int h = 0; h < task->heads; h++)
        for (int r = 0; r < rows; r++) {
            long head = (long)(task->head + h) * step->group + r % step->group;
            float sum = sum_of(load(total + (long)(h * rows + r) * LANES));
            float *from = out + (long)(h * rows + r) * vd;
            const vec share = splat(sum == 0 ? 0.0f : 1.0f / sum);
            for (int d = 0; d < vd; d += LANES) store(from + d, load(from + d) * share);
            float lse = sum == 0 ? -INFINITY : peak[h * rows + r] + log2f(sum);
            long place = task->part < 0 ? step->tokens[task->members + r / step->group] : task->part + r / step->group;
            place = place * heads + head;
            memcpy((task->part < 0 ? call->out : step->part_outs) + place * value_dim, from, (size_t)value_dim * 4);
            if (task->part >= 0)
                step->part_lses[place] = lse;
            else if (call->lse != NULL)
                call->lse[place] = lse * LN2;
        }
}

static void run_merge(const void *data, long item, int worker) {
    (void)worker;
    const struct call *call = data;
    const struct attention *step = call->step;
    const struct merge *merge = step->merges + item;
    const int heads = step->kv_heads * step->group, dim = step->value_dim;
    const int32_t *parts = step->parts + merge->begin;
    for (int head = 0; head < heads; head++) {
        float peak = -INFINITY, total = 0;
        for (int i = 0; i < merge->count; i++) peak = fmaxf(peak, step->part_lses[(long)parts[i] * heads + head]);
        float *out = call->out + ((long)merge->token * heads + head) * dim;
        memset(out, 0, (size_t)dim * 4);
        for (int i = 0; i < merge->count; i++) {
            float weight = exp2f(step->part_lses[(long)parts[i] * heads + head] - (peak == -INFINITY ? 0 : peak));
            const float *part = step->part_outs + ((long)parts[i] * heads + head) * dim;
            for (int d = 0; d < dim; d++) out[d] += weight * part[d];
            total += weight;
        }
        float share = total == 0 ? 0 : 1 / total;
        for (int d = 0; d < dim; d++) out[d] *= share;
        if (call->lse != NULL)
            call->lse[(long)merge->token * heads + head] = total == 0 ? -INFINITY : (peak + log2f(total)) * LN2;
    }
}

/* query [T, heads, key_dim] with `query_stride` floats from token to token; out [T, heads, value_dim]; lse [T, heads],
 * natural, or NULL. */
void attend(const struct attention *step, const float *query, int64_t query_stride, const void *keys,
            const void *values, float *out, float *lse) {
    struct call call = {step, query, query_stride, keys, values, out, lse};
    share_out(run_task, &call, step->task_count, step->threads);
    /* Joining a few takes less time than waking anybody. */
    share_out(run_merge, &call, step->merge_count, step->merge_count > 16 ? step->threads : 1);
}
