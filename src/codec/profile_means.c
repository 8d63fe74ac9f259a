/* SPDX-License-Identifier: MIT */
/*
 * profile: the means of a head, found in a sample of its rows.
 *
 * A calibrated row is coded without the nearest mean, and its error grows with what remains. So the means are those of
 * k-means clustering, with the distance that the codec measures and with "none" as one more place that rows may choose.
 */
#include "codec/row_kernels.h"
#include "codec/profile.h"

#include <math.h>

#define MAX_ROWS 4096u
#define MAX_BYTES ((size_t)64 << 20) /* of a profile's samples, and of the memory to work on them */
#define ROUNDS 16                    /* more gain less than a thousandth */
#define SEED 0x51C64E6Du
#define ROWS_PER_MEAN 4u /* from which on spreads around means are known */

/* ------------------------------------------------------------------- sample */

static size_t channels(const quire_profile_layer *l)
{
    return (size_t)l->n_kv_heads * l->d_k;
}

/* Rows that fit into MAX_BYTES. There are two at least: QUIRE_PROFILE_MAX_FLOATS bounds the channels. */
static uint32_t rows_that_fit(const quire_profile *p)
{
    size_t bytes = (p->work.d + 1) * sizeof(float);
    for (uint32_t i = 0; i < p->n_layers; i++)
        bytes += channels(&p->layers[i]) * sizeof(uint16_t) + sizeof(uint32_t);
    return MAX_BYTES / bytes < MAX_ROWS ? (uint32_t)(MAX_BYTES / bytes) : MAX_ROWS;
}

bool quire_samples_create(quire_profile *p)
{
    quire_means_work *w = &p->work;
    for (uint32_t i = 0; i < p->n_layers; i++)
        if (p->layers[i].d_k > w->d) w->d = p->layers[i].d_k;
    w->room = rows_that_fit(p);
    w->rows = quire_alloc(&p->allocator, (size_t)w->room * w->d * sizeof *w->rows);
    w->distance = quire_alloc(&p->allocator, w->room * sizeof *w->distance);
    w->sums = quire_alloc(&p->allocator, (size_t)QUIRE_MEAN_SLOTS * w->d * sizeof *w->sums);
    if (!w->rows || !w->distance || !w->sums) return false;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        quire_sample *s = &p->layers[i].sample;
        s->random = SEED;
        s->position = quire_alloc(&p->allocator, w->room * sizeof *s->position);
        s->k = quire_alloc(&p->allocator, w->room * channels(&p->layers[i]) * sizeof *s->k);
        if (!s->position || !s->k) return false;
    }
    return true;
}

void quire_samples_destroy(quire_profile *p)
{
    quire_means_work *w = &p->work;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        quire_sample *s = &p->layers[i].sample;
        quire_free(&p->allocator, s->position, w->room * sizeof *s->position);
        quire_free(&p->allocator, s->k, w->room * channels(&p->layers[i]) * sizeof *s->k);
        *s = (quire_sample){0};
    }
    quire_free(&p->allocator, w->rows, (size_t)w->room * w->d * sizeof *w->rows);
    quire_free(&p->allocator, w->distance, w->room * sizeof *w->distance);
    quire_free(&p->allocator, w->sums, (size_t)QUIRE_MEAN_SLOTS * w->d * sizeof *w->sums);
    *w = (quire_means_work){0};
}

static bool all_finite(const float *x, size_t n)
{
    bool all = true;
    for (size_t i = 0; i < n; i++) all &= isfinite(x[i]) != 0;
    return all;
}

/* Every row takes a place while there are free ones, then row n one of them with the probability room / n. */
void quire_sample_add(const quire_profile *p, quire_profile_layer *l, uint32_t position, const float *k)
{
    quire_sample *s = &l->sample;
    size_t n = channels(l);
    if (!all_finite(k, n)) return;
    uint64_t at = s->n_seen++;
    if (at >= p->work.room) at = quire_random(&s->random) % s->n_seen;
    if (at >= p->work.room) return;
    s->position[at] = position;
    for (size_t i = 0; i < n; i++) quire_store_finite(QUIRE_F16, s->k, at * n + i, k[i]);
}

static uint32_t sample_size(const quire_profile *p, const quire_profile_layer *l)
{
    return l->sample.n_seen < p->work.room ? (uint32_t)l->sample.n_seen : p->work.room;
}

uint32_t quire_sample_means(const quire_profile *p, const quire_profile_layer *l)
{
    uint32_t n = sample_size(p, l);
    return n < QUIRE_MAX_MEANS ? n : QUIRE_MAX_MEANS;
}

/* -------------------------------------------------------------------- means */

/* One head on its way. */
typedef struct cluster {
    const quire_means_work *work;
    uint32_t d, n_rows;
    float *mean;           /* what cal reads */
    quire_calibration cal; /* with the means that there are */
} cluster;

static const float *row_at(const cluster *c, uint32_t i)
{
    return c->work->rows + (size_t)i * c->d;
}

/* The sums of rows as mean number m, from 1 on. */
static void set_mean(cluster *c, uint32_t m, const double *sums, uint64_t n)
{
    float *mean = c->mean + (size_t)(m - 1) * c->d;
    for (uint32_t i = 0; i < c->d; i++)
        mean[i] = (float)quire_within(sums[i] / (double)n, (double)-QUIRE_F16_MAX, (double)QUIRE_F16_MAX);
}

static void set_mean_to_row(cluster *c, uint32_t m, uint32_t row)
{
    double *sums = c->work->sums; /* of slot 0, which nothing else needs */
    for (uint32_t i = 0; i < c->d; i++) sums[i] = (double)row_at(c, row)[i];
    set_mean(c, m, sums, 1);
}

/* A row, the likelier the farther it is from what there is. */
static uint32_t draw_row(const cluster *c, uint64_t *random)
{
    double total = 0;
    for (uint32_t i = 0; i < c->n_rows; i++) total += (double)c->work->distance[i];
    double left = total * ((double)(quire_random(random) >> 11) * 0x1p-53);
    uint32_t i = 0;
    while (i + 1 < c->n_rows && (left -= (double)c->work->distance[i]) >= 0) i++;
    return i;
}

/* One mean of all rows, then rows that lie far from the means before. */
static void begin_means(cluster *c, uint32_t n_means)
{
    const quire_row_kernels *ops = quire_row_kernels_for(c->d);
    float *distance = c->work->distance;
    uint64_t random = SEED;
    memset(c->work->sums, 0, c->d * sizeof *c->work->sums);
    for (uint32_t i = 0; i < c->n_rows; i++)
        for (uint32_t k = 0; k < c->d; k++) c->work->sums[k] += (double)row_at(c, i)[k];
    set_mean(c, 1, c->work->sums, c->n_rows);
    c->cal.n_means = 1;
    for (uint32_t i = 0; i < c->n_rows; i++) quire_nearest_mean(&c->cal, row_at(c, i), c->d, &distance[i]);
    for (uint32_t m = 2; m <= n_means; m++) {
        set_mean_to_row(c, m, draw_row(c, &random));
        c->cal.n_means = m;
        for (uint32_t i = 0; i < c->n_rows; i++) {
            float e = ops->distance(row_at(c, i), quire_mean_at(&c->cal, c->d, m), c->cal.weight, c->d);
            if (e < distance[i]) distance[i] = e;
        }
    }
}

static uint32_t farthest_row(const cluster *c)
{
    uint32_t far = 0;
    for (uint32_t i = 1; i < c->n_rows; i++)
        if (c->work->distance[i] > c->work->distance[far]) far = i;
    return far;
}

/* Every row to its nearest mean, every mean to the middle of its rows. A mean without rows takes one that has it farthest.
 * Gives the sum of the distances there were. */
static double improve_means(cluster *c)
{
    uint64_t n[QUIRE_MEAN_SLOTS] = {0};
    double *sums = c->work->sums, total = 0;
    memset(sums, 0, (size_t)QUIRE_MEAN_SLOTS * c->d * sizeof *sums);
    for (uint32_t i = 0; i < c->n_rows; i++) {
        uint32_t m = quire_nearest_mean(&c->cal, row_at(c, i), c->d, &c->work->distance[i]);
        for (uint32_t k = 0; k < c->d; k++) sums[(size_t)m * c->d + k] += (double)row_at(c, i)[k];
        n[m]++;
        total += (double)c->work->distance[i];
    }
    for (uint32_t m = 1; m <= c->cal.n_means; m++)
        if (n[m]) set_mean(c, m, sums + (size_t)m * c->d, n[m]);
    for (uint32_t m = 1; m <= c->cal.n_means; m++) {
        if (n[m]) continue;
        uint32_t row = farthest_row(c);
        set_mean_to_row(c, m, row);
        c->work->distance[row] = 0;
    }
    return total;
}

static void fetch_rows(const quire_profile *p, const quire_profile_layer *l, uint32_t head, uint32_t first,
                       uint32_t end)
{
    const quire_sample *s = &l->sample;
    uint32_t n = sample_size(p, l), d = l->d_k;
    for (uint32_t i = 0; i < n; i++) {
        float *row = p->work.rows + (size_t)i * d;
        size_t from = i * channels(l) + (size_t)head * d;
        for (uint32_t k = 0; k < d; k++) row[k] = quire_f16_to_f32(s->k[from + k]);
        if (end) quire_rope_move(l, row, s->position[i], i, first, end);
    }
}

/* Of each channel, around the mean of every row. */
static const double *variances(const cluster *c)
{
    double *sums = c->work->sums;
    memset(sums, 0, c->d * sizeof *sums);
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const float *row = row_at(c, i);
        const float *mean = quire_mean_at(&c->cal, c->d, quire_nearest_mean(&c->cal, row, c->d, NULL));
        for (uint32_t k = 0; k < c->d; k++) {
            double e = (double)row[k] - (mean ? (double)mean[k] : 0);
            sums[k] += e * e;
        }
    }
    /* Means lie nearer to the rows they were made of than to others. */
    for (uint32_t k = 0; k < c->d; k++) sums[k] /= (double)(c->n_rows - c->cal.n_means);
    return sums;
}

const double *quire_means_find(const quire_profile *p, const quire_profile_layer *l, uint32_t head,
                               uint32_t first, uint32_t end)
{
    float *mean = quire_profile_vectors(l, head), *weight = mean + (size_t)l->n_means * l->d_k;
    cluster c = {.work = &p->work,
                 .d = l->d_k,
                 .n_rows = sample_size(p, l),
                 .mean = mean,
                 .cal = {.mean = mean, .weight = weight}};
    fetch_rows(p, l, head, first, end);
    begin_means(&c, l->n_means);
    double last = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        double total = improve_means(&c);
        if (!(total < last)) break;
        last = total;
    }
    return c.n_rows < ROWS_PER_MEAN * l->n_means ? NULL : variances(&c);
}
