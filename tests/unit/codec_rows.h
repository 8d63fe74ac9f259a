/* SPDX-License-Identifier: MIT */
/* What the tests of codecs share: random rows, coders, a calibration, and comparing coded rows. */
#ifndef QUIRE_TESTS_CODEC_ROWS_H
#define QUIRE_TESTS_CODEC_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec/codec.h"
#include "support/codec_sizes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Head sizes of models, and odd ones around the edges of groups, padding and lanes. */
static const uint32_t head_sizes[] = {1,  2,  3,   7,   15,  16,  17,  31,  32,  33,  40,  48,  63,   64,  65,
                                      80, 96, 100, 112, 127, 128, 160, 192, 256, 320, 512, 576, 1023, 1024};

/* splitmix64, and a normal number from four of its uniform ones each. */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline double random_uniform(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

static inline float random_normal(uint64_t *state)
{
    double u = random_uniform(state), v = random_uniform(state);
    return (float)(sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v));
}

static inline void random_row(uint64_t *state, float *x, uint32_t d, float size)
{
    for (uint32_t i = 0; i < d; i++) x[i] = size * random_normal(state);
}

/* False: the codec does not exist for this side ("c:" for V) or head size (tv), which is all a caller may skip. */
static inline bool make_coder(quire_coder *coder, uint32_t index, quire_side side, uint32_t d)
{
    const quire_codec_info *info = quire_codec_at(index);
    quire_status status = quire_coder_init(coder, quire_codec_get(info->name), side, d, 0);
    bool takes = codec_takes(info, d, 0);
    if (status == QUIRE_OK && takes) return true;
    if (status == QUIRE_EUNSUPPORTED && !takes) return false;
    if (status != QUIRE_EUNSUPPORTED || side != QUIRE_V || !(info->flags & QUIRE_CODEC_CALIBRATED))
        fail_msg("%s side %d d %u: %s", info->name, (int)side, d, quire_status_name(status));
    return false;
}

/* A calibration unlike any identity: unequal weights, means as large as the rows. For every d up to the largest. */
typedef struct test_calibration {
    float mean[QUIRE_MAX_MEANS * QUIRE_MAX_D], weight[QUIRE_MAX_D], q_rms[QUIRE_MAX_D];
    quire_calibration view;
} test_calibration;

static inline const quire_calibration *make_calibration(test_calibration *c, uint64_t seed)
{
    for (uint32_t i = 0; i < COUNT(c->mean); i++) c->mean[i] = 3 * random_normal(&seed);
    for (uint32_t i = 0; i < QUIRE_MAX_D; i++) {
        c->weight[i] = (float)exp2(4 * random_uniform(&seed) - 2);
        c->q_rms[i] = (float)exp2(4 * random_uniform(&seed) - 2);
    }
    c->view = (quire_calibration){c->mean, c->weight, c->q_rms, QUIRE_MAX_MEANS};
    return &c->view;
}

/* Row number r lies around mean r % 16, of which 0 is none. */
static inline void add_mean(const quire_calibration *cal, uint32_t d, uint32_t r, float *x)
{
    const float *mean = quire_mean_at(cal, d, r % QUIRE_MEAN_SLOTS);
    for (uint32_t i = 0; mean && i < d; i++) x[i] += mean[i];
}

/* Everything that a coder says of a row, padding included. */
static inline bool same_coded(const quire_coder *coder, const quire_coded_row *a, const quire_coded_row *b)
{
    if (!coder->n_groups) return memcmp(a->value, b->value, coder->d_pad * sizeof(float)) == 0;
    if (memcmp(a->code, b->code, coder->d_pad)) return false;
    if (memcmp(a->scale, b->scale, 2 * coder->n_groups)) return false;
    return !coder->codec->has_bias || memcmp(a->bias, b->bias, 2 * coder->n_groups) == 0;
}

static inline double squared_distance(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

static inline double energy(const float *a, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)a[i];
    return sum;
}

#endif
