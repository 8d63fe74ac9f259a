/* SPDX-License-Identifier: MIT */
/*
 * profile: what positions do to means and spreads.
 *
 * RoPE turns pairs of channels by an angle that grows with the position. The mean of a slowly turning pair therefore
 * depends on the positions it was taken from, and a profile of short texts would be wrong for long ones. Turned back,
 * means and second moments do not depend on the position; turned forward again and averaged over the positions to be
 * served they are those that calibration needs. Single rows are turned to positions to be served.
 */
#include "codec/profile.h"

#include <math.h>

void quire_rope_pair(const quire_profile_layer *l, uint32_t pair, uint32_t *a, uint32_t *b)
{
    *a = l->interleaved ? 2 * pair : pair;
    *b = l->interleaved ? 2 * pair + 1 : pair + l->n_pairs;
}

void quire_rope_observe(const quire_profile_layer *l, quire_channel_sums *sums, const float *x,
                        uint32_t position, bool is_q)
{
    for (uint32_t i = 0; i < l->n_pairs; i++) {
        uint32_t ia, ib;
        quire_rope_pair(l, i, &ia, &ib);
        double c, s;
        quire_angle((double)l->frequencies[i] * position, &c, &s);
        double a = c * (double)x[ia] + s * (double)x[ib], b = c * (double)x[ib] - s * (double)x[ia];
        if (!isfinite(a) || !isfinite(b)) continue;
        quire_turned_sums *to = is_q ? &sums[ia].q_turned : &sums[ia].k_turned;
        to->a += a;
        to->b += b;
        to->aa += a * a;
        to->bb += b * b;
        to->ab += a * b;
        to->n++;
    }
}

/* Mean of cos(p x) and sin(p x) over the positions first <= p < end. */
static void mean_turn(double x, uint32_t first, uint32_t end, double *c, double *s)
{
    double n = (double)(end - first), unused, half, whole;
    quire_angle(0.5 * x, &unused, &half);
    quire_angle(0.5 * n * x, &unused, &whole);
    quire_angle(0.5 * x * ((double)first + (double)end - 1), c, s);
    double size = fabs(half) < 1e-12 ? 1 : whole / (n * half);
    *c *= size;
    *s *= size;
}

/* Mean and mean square of both channels of a pair. */
static void average(const quire_turned_sums *t, double frequency, uint32_t first, uint32_t end,
                    double mean[2], double square[2])
{
    double n = (double)t->n, c, s, c2, s2;
    double a = t->a / n, b = t->b / n, aa = t->aa / n, bb = t->bb / n, ab = t->ab / n;
    mean_turn(frequency, first, end, &c, &s);
    mean_turn(2 * frequency, first, end, &c2, &s2);
    mean[0] = a * c - b * s;
    mean[1] = a * s + b * c;
    square[0] = 0.5 * (aa + bb) + 0.5 * (aa - bb) * c2 - ab * s2;
    square[1] = 0.5 * (aa + bb) - 0.5 * (aa - bb) * c2 + ab * s2;
}

/* If the angles were not those of the model, turning back makes means smaller; with the right ones it never does. */
static bool is_plausible(const quire_profile_layer *l, const quire_channel_sums *sums)
{
    double turned = 0, plain = 0;
    for (uint32_t i = 0; i < l->n_pairs; i++) {
        uint32_t ia, ib;
        quire_rope_pair(l, i, &ia, &ib);
        const quire_turned_sums *t = &sums[ia].k_turned;
        if (!t->n || !sums[ia].q_turned.n || !sums[ia].n_k || !sums[ib].n_k) return false;
        double n = (double)t->n, ma = sums[ia].k / (double)sums[ia].n_k,
               mb = sums[ib].k / (double)sums[ib].n_k;
        turned += (t->a * t->a + t->b * t->b) / (n * n);
        plain += ma * ma + mb * mb;
    }
    return turned >= 0.9 * plain;
}

bool quire_rope_spread(const quire_profile_layer *l, quire_channel_sums *sums, uint32_t first, uint32_t end)
{
    if (!l->n_pairs || end <= first || !is_plausible(l, sums)) return false;
    for (uint32_t i = 0; i < l->n_pairs; i++) {
        uint32_t at[2];
        double k[2], kk[2], q[2], qq[2];
        quire_rope_pair(l, i, &at[0], &at[1]);
        average(&sums[at[0]].k_turned, (double)l->frequencies[i], first, end, k, kk);
        average(&sums[at[0]].q_turned, (double)l->frequencies[i], first, end, q, qq);
        for (int j = 0; j < 2; j++) {
            quire_channel_sums *c = &sums[at[j]];
            c->n_k = c->n_q = 1;
            c->k = k[j];
            c->kk = kk[j];
            c->qq = qq[j];
        }
    }
    return true;
}

void quire_rope_move(const quire_profile_layer *l, float *x, uint32_t position, uint32_t i, uint32_t first,
                     uint32_t end)
{
    /* Multiples of the golden ratio: rows beside each other are often of one text, and should not stay together. */
    uint32_t share = i * 2654435769u;
    double to = (double)first + (double)((uint64_t)share * (end - first) >> 32);
    for (uint32_t p = 0; p < l->n_pairs; p++) {
        uint32_t ia, ib;
        quire_rope_pair(l, p, &ia, &ib);
        double c, s;
        quire_angle((double)l->frequencies[p] * (to - (double)position), &c, &s);
        double a = (double)x[ia], b = (double)x[ib];
        x[ia] = (float)(c * a - s * b);
        x[ib] = (float)(s * a + c * b);
    }
}
