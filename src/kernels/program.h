/* SPDX-License-Identifier: MIT */
/*
 * program: the arithmetic around the dot products, written once in lanes of 16 and compiled for each instruction set.
 * A file that includes it has included its lanes_*.h before and has an engine for the integer products:
 *
 *   dot_k   sums of z * code and r * code over the channels [from, to) of K, for 64 tokens and n query rows
 *   dot_v   sums of z * code over the 64 tokens of V, for channel blocks [from, to) of 16 and n rows
 *   at_k    lane j (16 tokens) of row i of what dot_k left, of z; at_k_fine of r, which is there if asked for
 *   at_v    block b of row i of what dot_v left
 *
 * The sums are exact, and the functions here round alike everywhere; so what one query gets depends neither on the
 * instruction set's engine nor on the queries it shares a call with.
 */
#ifndef QUIRE_KERNELS_PROGRAM_H
#define QUIRE_KERNELS_PROGRAM_H

/* ------------------------------------------------------------------ queries */

/* One row of n values as planes, and z and r as they are. Gives the step. */
LANES_FN float load_row(const float *x, uint32_t n, int8_t *high, int8_t *low, int8_t *rest, int32_t *z,
                        int32_t *r)
{
    vf most = vf_set1(0), wrong = vf_set1(0);
    for (uint32_t c = 0; c < n; c += 16) {
        most = vf_max(most, vf_abs(vf_load(x + c)));
        wrong = vf_fma(vf_load(x + c), vf_set1(0), wrong); /* NaN if a value is not finite */
    }
    float step = vf_reduce_max(most) / QUIRE_MAX_Z;
    if (!(step > 1e-30f)) step = 1e-30f;
    vf inverse = vf_set1(1.0f / step);
    for (uint32_t c = 0; c < n; c += 64) {
        vi whole[4], part[4];
        for (uint32_t j = 0; j < 4; j++) {
            vf y = vf_mul(vf_load(x + c + j * 16), inverse);
            whole[j] = vf_to_int(y);
            vf fraction = vf_mul(vf_sub(y, vi_to_float(whole[j])), vf_set1(256));
            part[j] = vf_to_int(vf_min(fraction, vf_set1(127)));
            vi_store(z + c + j * 16, whole[j]);
            vi_store(r + c + j * 16, part[j]);
        }
        vi_store_planes(whole, high + c, low + c);
        vi_store_bytes(part, rest + c);
    }
    return step + vf_reduce_add(wrong);
}

LANES_FN int32_t sum_of(const int32_t *x, uint32_t from, uint32_t to)
{
    vi sum = vi_set1(0);
    for (uint32_t c = from; c < to; c += 16) sum = vi_add(sum, vi_load(x + c));
    return vi_reduce_add(sum);
}

LANES_CALL void load_queries(const quire_format *format, quire_queries *q)
{
    uint32_t part = quire_part_size(&format->coder), n = q->plane_stride;
    if (!format->coder.n_groups) {
        for (uint32_t i = 0; i < q->n; i++) q->unit[i] = 1;
        return;
    }
    for (uint32_t i = 0; i < q->n; i++) {
        float x[QUIRE_MAX_D + 64];
        int32_t z[QUIRE_MAX_D + 64], r[QUIRE_MAX_D + 64];
        memcpy(x, q->row + (size_t)i * q->d, q->d * sizeof *x);
        memset(x + q->d, 0, (n - q->d) * sizeof *x);
        size_t stride = (size_t)q->copies * n;
        int8_t *high = q->plane + 2 * i * stride;
        float step = load_row(x, n, high, high + stride, q->fine + i * stride, z, r);
        for (uint32_t p = 0; p < q->n_parts; p++) {
            uint32_t end = (p + 1) * part < n ? (p + 1) * part : n;
            int32_t *sum = q->sum + ((size_t)i * q->n_parts + p) * 2;
            sum[0] = sum_of(z, p * part, end);
            sum[1] = sum_of(r, p * part, end);
        }
        q->unit[i] = step;
        q->mean_score[i] /= step;
    }
}

/* ------------------------------------------------------------------- scores */

/* Products of one part become scores: scale, bias, and zero point. */
LANES_FN void fold_k(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n, uint32_t fine,
                     uint32_t part, const int32_t *dots, float *scores)
{
    const quire_format *f = k->format;
    const quire_codec *codec = f->coder.codec;
    size_t group = part * quire_part_size(&f->coder) / f->coder.group * QUIRE_TILE_ROWS * 2;
    bool centred = codec->info.flags & QUIRE_CODEC_CALIBRATED, last = part + 1 == q->n_parts;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    vf scale[4], bias[4];
    vm with_mean[4];
    for (uint32_t j = 0; j < 4; j++) {
        scale[j] = vf_half(k->tile + f->code_bytes + group + j * 32);
        with_mean[j] = vm_not_negative(scale[j]);
        if (centred) scale[j] = vf_abs(scale[j]);
        bias[j] = codec->has_bias ? vf_half(k->tile + f->bias_offset + group + j * 32) : vf_set1(0);
    }
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *sum = q->sum + ((size_t)(first + i) * q->n_parts + part) * 2;
        bool is_fine = fine >> i & 1;
        vi offset = vi_set1(-zero * sum[0]), fine_offset = vi_set1(-zero * sum[1]);
        vf weight = vf_set1((float)sum[0] + (is_fine ? (float)sum[1] / 256 : 0));
        for (uint32_t j = 0; j < 4; j++) {
            float *to = scores + i * QUIRE_TILE_ROWS + j * 16;
            vf s = part ? vf_load(to) : vf_set1(0);
            vf product = vi_to_float(vi_add(at_k(dots, i, j), offset));
            if (is_fine) {
                vf rest = vi_to_float(vi_add(at_k_fine(dots, i, j), fine_offset));
                product = vf_fma(rest, vf_set1(1.0f / 256), product);
            }
            s = vf_fma(product, scale[j], s);
            if (codec->has_bias) s = vf_fma(bias[j], weight, s);
            if (centred && last) s = vf_add(s, vf_keep(with_mean[j], vf_set1(q->mean_score[first + i])));
            vf_store(to, s);
        }
    }
}

/* The largest absolute value that any row of a K tile may hold. */
LANES_FN float largest_value(const quire_source *k)
{
    const quire_format *f = k->format;
    const quire_codec *codec = f->coder.codec;
    uint32_t top = (1u << codec->info.bits) - 1;
    float span = codec->values == QUIRE_VALUES_TABLE ? 127.0f
                 : codec->has_bias                   ? (float)top
                                                     : (float)((top + 1) / 2);
    vf most = vf_set1(0);
    for (size_t at = 0; at < (size_t)f->coder.n_groups * QUIRE_TILE_ROWS * 2; at += 32) {
        vf far = vf_mul(vf_half(k->tile + f->code_bytes + at), vf_set1(span));
        if (codec->has_bias) {
            vf bias = vf_half(k->tile + f->bias_offset + at);
            most = vf_max(vf_abs(bias), most);
            far = vf_add(far, bias);
        }
        most = vf_max(most, vf_abs(far)); /* NaN wins */
    }
    return vf_reduce_max(most);
}

/* Bit i: row i needs its third plane. */
LANES_FN uint32_t fine_rows(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                            uint32_t partial)
{
    float most = largest_value(k);
    uint32_t fine = partial;
    for (uint32_t i = 0; i < n; i++)
        if (!(most <= q->coarse[first + i])) fine |= 1u << i;
    return fine;
}

LANES_FN void score_planes(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                           uint32_t partial, float *scores, void *scratch, const uint32_t bits,
                           const bool table)
{
    uint32_t part = quire_part_size(&k->format->coder), d = k->format->coder.d_pad;
    uint32_t fine = fine_rows(k, q, first, n, partial);
    for (uint32_t p = 0; p < q->n_parts; p++) {
        uint32_t to = (p + 1) * part < d ? (p + 1) * part : d;
        const int32_t *dots = dot_k(k, p * part, to, q, first, n, fine != 0, scratch, bits, table);
        fold_k(k, q, first, n, fine, p, dots, scores);
    }
}

/* ------------------------------------------------------------------ softmax */

/* Scores so large that their differences might not be finite. */
LANES_CALL void clamp_scores(float *x, float unit)
{
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        float s = x[t] * unit;
        if (s > QUIRE_LARGEST_SCORE) s = QUIRE_LARGEST_SCORE;
        if (s < -QUIRE_LARGEST_SCORE) s = -QUIRE_LARGEST_SCORE;
        x[t] = s;
    }
}

LANES_FN float largest_score(const float *x, uint64_t visible)
{
    vf top = vf_set1(-INFINITY);
    if (visible == ~(uint64_t)0) {
        top = vf_max(vf_max(vf_load(x), vf_load(x + 16)), vf_max(vf_load(x + 32), vf_load(x + 48)));
    } else {
        for (uint32_t j = 0; j < 4; j++)
            top = vf_max(vf_select(vm_of_bits(visible >> j * 16), vf_load(x + j * 16), vf_set1(-INFINITY)),
                         top);
    }
    return vf_reduce_max(top);
}

LANES_CALL void soften(float *scores, const uint64_t *visible, const float *unit, uint32_t n,
                       quire_softmax *s, float *factor)
{
    float top[16], by[16], most[16], shrink[16];
    vf_store(top, vf_set1(0));
    vf_store(most, vf_set1(0));
    for (uint32_t i = 0; i < n; i++) {
        float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
        by[i] = unit[i];
        top[i] = visible[i] ? largest_score(x, visible[i]) * by[i] : -INFINITY;
        if (visible[i] && !(top[i] < QUIRE_LARGEST_SCORE && top[i] > -QUIRE_LARGEST_SCORE)) {
            clamp_scores(x, by[i]);
            by[i] = 1;
            top[i] = largest_score(x, visible[i]);
        }
        most[i] = s->max[i];
    }
    vf old = vf_load(most), new = vf_max(vf_load(top), old);
    vf_store(most, new);
    vf_store(shrink, vf_exp2(vf_sub(old, new))); /* -inf - -inf: NaN, in rows that stay empty */
    float share[16];
    vf_store(share, vf_exp2(vf_sub(vf_load(top), new)));
    for (uint32_t i = 0; i < n; i++) {
        float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
        factor[i] = 0;
        if (!visible[i]) {
            for (uint32_t j = 0; j < 4; j++) vf_store(x + j * 16, vf_set1(0));
            continue;
        }
        vf sum = vf_set1(0);
        for (uint32_t j = 0; j < 4; j++) {
            vf p = vf_exp2(vf_sub(vf_mul(vf_load(x + j * 16), vf_set1(by[i])), vf_set1(top[i])));
            if (visible[i] != ~(uint64_t)0) p = vf_keep(vm_of_bits(visible[i] >> j * 16), p);
            sum = vf_add(sum, p);
            vf_store(x + j * 16, p);
        }
        float *total = s->sum + (size_t)i * 16;
        vf_store(total, vf_fma(vf_load(total), vf_set1(shrink[i]), vf_mul(sum, vf_set1(share[i]))));
        s->max[i] = most[i];
        factor[i] = share[i];
        if (shrink[i] != 1) {
            float *acc = s->acc + i * s->stride;
            for (size_t c = 0; c < s->stride; c += 16)
                vf_store(acc + c, vf_mul(vf_load(acc + c), vf_set1(shrink[i])));
        }
    }
}

/* ------------------------------------------------------------------- values */

/*
 * One group of V over the rows that a query sees. A value is scale * (code + shift) + rest: as much of the bias as
 * goes into whole steps is shift, so that rounding a weight changes a value in proportion to itself, not to its code.
 */
typedef struct group_scales {
    vf scale[4], rest[4];
    vi shift[4];
    float most; /* largest absolute scale; scale[] is in units of most / QUIRE_MAX_Z */
} group_scales;

LANES_FN void load_scales(const quire_source *v, uint32_t group, uint64_t visible, group_scales *s)
{
    const quire_format *f = v->format;
    const quire_codec *codec = f->coder.codec;
    bool calibrated = codec->info.flags & QUIRE_CODEC_CALIBRATED;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    size_t at = (size_t)group * QUIRE_TILE_ROWS * 2;
    vf most = vf_set1(1e-30f);
    for (uint32_t j = 0; j < 4; j++) {
        vf scale = vf_half(v->tile + f->code_bytes + at + j * 32), bias = vf_set1(0);
        if (codec->has_bias) bias = vf_half(v->tile + f->bias_offset + at + j * 32);
        if (calibrated) scale = vf_abs(scale);
        if (visible != ~(uint64_t)0) {
            scale = vf_keep(vm_of_bits(visible >> j * 16), scale);
            bias = vf_keep(vm_of_bits(visible >> j * 16), bias);
        }
        s->shift[j] = vi_set1(-zero);
        s->rest[j] = bias;
        if (codec->has_bias) {
            vf steps =
                vf_min(vf_max(vf_div(bias, scale), vf_set1(-256)), vf_set1(256)); /* 0 / 0: one of them */
            s->shift[j] = vf_to_int(steps);
            s->rest[j] = vf_fma(vf_mul(vi_to_float(s->shift[j]), vf_set1(-1)), scale, bias);
        }
        most = vf_max(most, vf_abs(scale));
        s->scale[j] = scale;
    }
    s->most = vf_reduce_max(most);
    vf k = vf_set1(QUIRE_MAX_Z / s->most);
    for (uint32_t j = 0; j < 4; j++) s->scale[j] = vf_mul(s->scale[j], k);
}

/* Weights of one row times scales as planes; the lanes beside the accumulator; the factor of the row's products. */
LANES_FN float weigh(const group_scales *s, bool has_rest, const float *p, float factor, int8_t *plane,
                     float *side)
{
    float unit = factor * s->most / QUIRE_MAX_Z;
    vf beside = vf_set1(0);
    vi z[4];
    for (uint32_t j = 0; j < 4; j++) {
        vf w = vf_load(p + j * 16);
        z[j] = vf_to_int(vf_mul(w, s->scale[j]));
        if (has_rest) beside = vf_fma(w, s->rest[j], beside);
    }
    vi_store_planes(z, plane, plane + 64);
    vf sum = vf_fma(vi_to_float(vi_dot4(z, s->shift)), vf_set1(unit), vf_load(side));
    if (has_rest) sum = vf_fma(beside, vf_set1(factor), sum);
    vf_store(side, sum);
    return unit;
}

/* Planes of up to four groups lie in memory before the first product reads them: a tile that is loaded too soon after
 * it was stored waits. */
#define GROUPS_AT_ONCE 4u
#define GROUP_PLANES (2 * QUIRE_STRIP_ROWS * 64u)

LANES_FN void mix_planes(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                         const float *factor, uint32_t n, float *acc, size_t stride, void *scratch,
                         const uint32_t bits, const bool table)
{
    const quire_coder *coder = &v->format->coder;
    int8_t *plane = (int8_t *)scratch;
    void *memory = plane + GROUPS_AT_ONCE * GROUP_PLANES;
    float unit[GROUPS_AT_ONCE][QUIRE_STRIP_ROWS];
    uint32_t n_groups = (d_out + coder->group - 1) / coder->group;
    for (uint32_t first = 0; first < n_groups; first += GROUPS_AT_ONCE) {
        uint32_t some = n_groups - first < GROUPS_AT_ONCE ? n_groups - first : GROUPS_AT_ONCE;
        for (uint32_t g = 0; g < some; g++) {
            float *side = acc + coder->d_pad + (size_t)(first + g) * QUIRE_SIDE_LANES;
            group_scales all, part;
            load_scales(v, first + g, ~(uint64_t)0, &all);
            for (uint32_t i = 0; i < n; i++) {
                bool whole = visible[i] == ~(uint64_t)0;
                if (!whole) load_scales(v, first + g, visible[i], &part);
                unit[g][i] = weigh(whole ? &all : &part, coder->codec->has_bias, p + i * QUIRE_TILE_ROWS,
                                   factor[i], plane + g * GROUP_PLANES + i * 128, side + i * stride);
            }
        }
        for (uint32_t g = 0; g < some; g++) {
            uint32_t begin = (first + g) * coder->group,
                     end = begin + coder->group < d_out ? begin + coder->group : d_out;
            for (uint32_t c = begin; c < end; c += 64) {
                uint32_t from = c / 16, to = ((end < c + 64 ? end : c + 64) + 15) / 16;
                const int32_t *dots = dot_v(v, from, to, plane + g * GROUP_PLANES, n, memory, bits, table);
                for (uint32_t i = 0; i < n; i++) {
                    for (uint32_t b = 0; b < to - from; b++) {
                        float *at = acc + i * stride + (from + b) * 16;
                        vf_store(at, vf_fma(vi_to_float(at_v(dots, i, b)), vf_set1(unit[g][i]), vf_load(at)));
                    }
                }
            }
        }
    }
}

LANES_CALL void settle(const quire_format *f, float *acc)
{
    for (uint32_t g = 0; g < f->coder.n_groups; g++) {
        uint32_t from = g * f->coder.group, to = from + f->coder.group;
        vf side = vf_set1(vf_reduce_add(vf_load(acc + f->coder.d_pad + (size_t)g * QUIRE_SIDE_LANES)));
        for (uint32_t c = from; c < to && c < f->coder.d_pad; c += 16)
            vf_store(acc + c, vf_add(vf_load(acc + c), side));
    }
}

/* The functions of one integer family. */
#define PROGRAM_FAMILY(name, bits, table)                                                                   \
    LANES_CALL void score_##name(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n, \
                                 uint32_t partial, float *scores, void *scratch)                            \
    {                                                                                                       \
        score_planes(k, q, first, n, partial, scores, scratch, bits, table);                                \
    }                                                                                                       \
    LANES_CALL void mix_##name(const quire_source *v, uint32_t d_out, const float *p,                       \
                               const uint64_t *visible, const float *factor, uint32_t n, float *acc,        \
                               size_t stride, void *scratch)                                                \
    {                                                                                                       \
        mix_planes(v, d_out, p, visible, factor, n, acc, stride, scratch, bits, table);                     \
    }

#define PROGRAM_FAMILIES(X) \
    X(l2, 2, false)         \
    X(l3, 3, false)         \
    X(l4, 4, false)         \
    X(l5, 5, false)         \
    X(l6, 6, false)         \
    X(l8, 8, false)         \
    X(t2, 2, true)          \
    X(t3, 3, true)          \
    X(t4, 4, true)          \
    X(t5, 5, true)          \
    X(t6, 6, true)

/* Slots of all families in order. */
#define PROGRAM_SLOTS(role)                                                                         \
    {                                                                                               \
        role##_f32, role##_f16, role##_bf16, role##_l2, role##_l3, role##_l4, role##_l5, role##_l6, \
            role##_l8, role##_t2, role##_t3, role##_t4, role##_t5, role##_t6                        \
    }

#endif
