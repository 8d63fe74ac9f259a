/* SPDX-License-Identifier: MIT */
/* profile: what a codec would do to the scores of a model, from its statistics alone. */
#include "codec/profile.h"

#include "core/float_mode.h"

#include <math.h>

enum { ROWS = 32 }; /* made-up rows per head, at least: the result varies by 2 % */

/* Sum of four uniform numbers, brought to variance 1: near enough to a normal one, and the same everywhere. */
static float bell(uint64_t *state)
{
    uint64_t z = quire_random(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++) sum += (int32_t)(z >> 16 * i & 0xFFFF);
    return ((float)sum - 131070.0f) / 37837.0f;
}

/* Rows around each of the head's means, coded and decoded; errors weigh as much as queries are large there. */
QUIRE_APART static double head_error(const quire_coder *coder, const quire_calibration *cal, uint64_t seed)
{
    bool calibrated = coder->codec->info.flags & QUIRE_CODEC_CALIBRATED;
    quire_calibration none = {0};
    quire_coded_row row;
    float x[QUIRE_MAX_D], y[QUIRE_MAX_D];
    uint32_t rows = (ROWS + cal->n_means - 1) / cal->n_means * cal->n_means;
    double sum = 0;
    for (uint32_t r = 0; r < rows; r++) {
        const float *mean = quire_mean_at(cal, coder->d, 1 + r % cal->n_means);
        for (uint32_t i = 0; i < coder->d; i++) {
            float spread = cal->q_rms[i] / (cal->weight[i] * cal->weight[i]); /* around the mean */
            x[i] = mean[i] + spread * bell(&seed);
        }
        quire_encode_row(coder, calibrated ? cal : &none, x, &row, NULL);
        quire_decode_row(coder, calibrated ? cal : &none, &row, y);
        for (uint32_t i = 0; i < coder->d; i++) {
            double e = (double)cal->q_rms[i] * ((double)y[i] - (double)x[i]);
            sum += e * e;
        }
    }
    return sum / rows / coder->d;
}

quire_status quire_profile_score_error(const quire_profile *profile, uint32_t layer, const char *codec,
                                       double *out)
{
    const quire_codec *c = codec ? quire_codec_get(codec) : NULL;
    quire_coder coder;
    if (!profile || !profile->finished || layer >= profile->n_layers || !c || !out) return QUIRE_EINVAL;
    const quire_profile_layer *l = &profile->layers[layer];
    quire_status status = quire_coder_init(&coder, c, QUIRE_K, l->d_k, 0);
    if (status) return status;
    uint32_t mode = quire_float_mode_enter();
    double sum = 0;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        quire_calibration cal = quire_profile_head(profile, layer, h);
        sum += head_error(&coder, &cal, h);
    }
    quire_float_mode_leave(mode);
    *out = sqrt(sum / l->n_kv_heads);
    return QUIRE_OK;
}
