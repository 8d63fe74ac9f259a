/* SPDX-License-Identifier: MIT */
/*
 * program: the arithmetic around the integer products, written once in lanes of 16 and compiled for each instruction
 * set. A file includes its lanes_*.h, then sinks.h, then defines its engine for the products, then includes this:
 *
 *   dot_k   sums of z * code, and of r * code if asked for, over the channels [from, to) of K, for 64 tokens and n
 *           query rows; gives each to take_k()
 *   dot_v   sums of z * code over the 64 tokens of V, for blocks [from, to) of 16 channels and n rows; gives each to
 *           take_v()
 *
 * The sums are exact, and the functions here are the same for all engines of an instruction set; so what one query gets
 * depends neither on the engine nor on the queries it shares a call with.
 */
#ifndef QUIRE_KERNELS_PROGRAM_H
#define QUIRE_KERNELS_PROGRAM_H

/* Names of the functions of float_program.h. */
#ifndef FLOAT_NAME
#define FLOAT_NAME(role, form) role##_##form
#define FLOAT_CALL LANES_CALL
#endif

/* Called from soften() if it has more than four rows. */
#ifndef ENGINE_SLEEPS
LANES_FN void keep_engine_awake(void) {}
#endif

/* An engine may keep a tile's scales with its expanded form, and have the shifts of V in its codes. */
#ifndef ENGINE_KEEPS_SCALES
LANES_FN const key_scales *kept_key_scales(const quire_source *k)
{
    (void)k;
    return NULL;
}

LANES_FN const group_scales *kept_scales(const quire_source *v, uint32_t group)
{
    (void)v;
    (void)group;
    return NULL;
}

LANES_FN bool has_shift(const quire_source *v, uint32_t bits)
{
    (void)v;
    (void)bits;
    return false;
}
#endif

/* Scales and biases of the next tile; the engine cares for its codes. What is expanded has brought them. */
LANES_FN void fetch_scales(const quire_source *s)
{
    if (!s->next || s->expanded) return;
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes; at += 64)
        lanes_prefetch(s->next + at);
}

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
    bool calibrated = format->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED;
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
        float *mean_score = q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS;
        for (uint32_t m = 0; calibrated && m < QUIRE_MEAN_SLOTS; m++) mean_score[m] /= step;
    }
}

/* ------------------------------------------------------------------- scores */

/* What take_k() needs for one part. */
LANES_FN void open_k(k_sink *to, const quire_source *k, const key_scales *scales, const quire_queries *q,
                     uint32_t first, uint32_t n, uint32_t fine, uint32_t part, float *scores,
                     const bool has_bias)
{
    const quire_codec *codec = k->format->coder.codec;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    to->scales = scales;
    to->scores = scores;
    to->fine = fine;
    to->add = vm_of_bits(part ? 0xffff : 0);
    to->has_bias = has_bias;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *sum = q->sum + ((size_t)(first + i) * q->n_parts + part) * 2;
        to->offset[i] = -zero * sum[0];
        to->fine_offset[i] = -zero * sum[1];
        to->fine_unit[i] = fine >> i & 1 ? 1.0f / 256 : 0;
        to->weight[i] = (float)sum[0] + (float)sum[1] * to->fine_unit[i];
    }
}

/* What the means that were taken out of calibrated rows give. */
LANES_FN void add_means(const quire_source *k, const float *mean_score, uint32_t n, float *scores)
{
    vi mean[4];
    for (uint32_t j = 0; j < 4; j++) mean[j] = vi_mean_bits(k->tile + k->format->code_bytes + j * 32);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < 4; j++) {
            float *at = scores + i * QUIRE_TILE_ROWS + j * 16;
            vf_store(at, vf_add(vf_load(at), vf_pick(mean_score + (size_t)i * QUIRE_MEAN_SLOTS, mean[j])));
        }
    }
}

/* Bit i: row i needs its third plane. */
LANES_FN uint32_t fine_rows(float most, const quire_queries *q, uint32_t first, uint32_t n, uint32_t partial)
{
    uint32_t fine = partial;
    for (uint32_t i = 0; i < n; i++)
        if (!(most <= q->coarse[first + i])) fine |= 1u << i;
    return fine;
}

LANES_FN void score_planes(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                           uint32_t partial, float *scores, void *scratch, const code_loops *loops,
                           const bool has_bias)
{
    uint32_t part = quire_part_size(&k->format->coder), d = k->format->coder.d_pad;
    const key_scales *kept = kept_key_scales(k);
    uint32_t fine = fine_rows(kept ? kept->most : largest_value(k), q, first, n, partial);
    fetch_scales(k);
    for (uint32_t p = 0; p < q->n_parts; p++) {
        uint32_t to = (p + 1) * part < d ? (p + 1) * part : d;
        key_scales own;
        k_sink sink;
        if (!kept) load_key_scales(k, p, &own, has_bias);
        open_k(&sink, k, kept ? kept + p : &own, q, first, n, fine, p, scores, has_bias);
        loops->dot_k(k, p * part, to, q, first, n, &sink, scratch);
    }
    if (k->format->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED)
        add_means(k, q->mean_score + (size_t)first * QUIRE_MEAN_SLOTS, n, scores);
}

/* ------------------------------------------------------------------ softmax */

/* From here on a difference of scores is rounded so much that a weight might exceed 1 by more than planes have room. */
#define LARGE_SCORE 8192.0f

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

/* By lanes: the largest visible score. */
LANES_FN vf largest_scores(const float *x, uint64_t visible)
{
    if (visible == ~(uint64_t)0)
        return vf_max(vf_max(vf_load(x), vf_load(x + 16)), vf_max(vf_load(x + 32), vf_load(x + 48)));
    vf top = vf_set1(-INFINITY);
    for (uint32_t j = 0; j < 4; j++)
        top = vf_max(vf_select(vm_of_bits(visible >> j * 16), vf_load(x + j * 16), vf_set1(-INFINITY)), top);
    return top;
}

LANES_CALL void soften(float *scores, const uint64_t *visible, const float *unit, uint32_t n,
                       quire_softmax *s, float *factor)
{
    float top[16], by[16], most[16], shrink[16], share[16];
    vf_store(top, vf_set1(0));
    vf_store(most, vf_set1(0));
    for (uint32_t first = 0; first < n; first += 4) {
        vf each[4];
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = first + i < n ? first + i : n - 1;
            each[i] = largest_scores(scores + (size_t)row * QUIRE_TILE_ROWS, visible[row]);
        }
        vf_reduce_max4(each, top + first);
    }
    for (uint32_t i = 0; i < n; i++) {
        by[i] = unit[i];
        top[i] = visible[i] ? top[i] * by[i] : -INFINITY;
        if (visible[i] && !(fabsf(top[i]) < LARGE_SCORE)) {
            float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
            clamp_scores(x, by[i]);
            by[i] = 1;
            top[i] = vf_reduce_max(largest_scores(x, visible[i]));
        }
        most[i] = s->max[i];
    }
    vf old = vf_load(most), new = vf_max(vf_load(top), old);
    vf_store(most, new);
    vf_store(shrink, vf_exp2(vf_sub(old, new))); /* -inf - -inf: NaN, in rows that stay empty */
    vf_store(share, vf_exp2(vf_sub(vf_load(top), new)));
    for (uint32_t i = 0; i < n; i++) {
        float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
        if (s->between && i % 8 == 4) keep_engine_awake();
        factor[i] = 0;
        if (!visible[i]) {
            for (uint32_t j = 0; j < 4; j++) vf_store(x + j * 16, vf_set1(0));
            continue;
        }
        vf sum = vf_set1(0), by_i = vf_set1(by[i]), down = vf_set1(-top[i]);
        for (uint32_t j = 0; j < 4; j++) {
            vf p = vf_exp2(vf_fma(vf_load(x + j * 16), by_i, down));
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

/* Products that are small beside QUIRE_MAX_Z, in finer units. */
LANES_FN float refine(const vf product[4], vi z[4])
{
    vf most = vf_set1(1e-20f);
    for (uint32_t j = 0; j < 4; j++) most = vf_max(most, vf_abs(product[j]));
    float unit = vf_reduce_max(most) / QUIRE_MAX_Z;
    for (uint32_t j = 0; j < 4; j++) z[j] = vf_to_int(vf_mul(product[j], vf_set1(1 / unit)));
    return unit;
}

/* Weights of one row times scales as planes; the lanes beside the accumulator. */
LANES_FN int32_t weigh(const group_scales *s, const float *p, float factor, int8_t *plane, float *unit,
                       float *side, const bool has_bias, const bool shifted)
{
    vf beside = vf_set1(0), product[4];
    vi z[4];
    for (uint32_t j = 0; j < 4; j++) {
        vf w = vf_load(p + j * 16);
        product[j] = vf_mul(w, s->scale[j]);
        z[j] = vf_to_int(product[j]);
        if (has_bias) beside = vf_fma(w, s->rest[j], beside);
    }
    *unit = factor * s->most / QUIRE_MAX_Z;
    if (vi_all_within(z, QUIRE_SMALL_Z))
        *unit *= refine(product, z); /* the heaviest token has a small scale */
    vi_store_planes(z, plane, plane + 64);
    if (has_bias) vf_store(side, vf_fma(beside, vf_set1(factor), vf_load(side)));
    return shifted ? 0 : vi_reduce_add(vi_dot4(z, s->shift));
}

/* Planes of up to four groups lie in memory before the first product reads them: a tile that is loaded too soon after
 * it was stored waits. */
#define GROUPS_AT_ONCE 4u
#define GROUP_PLANES (2 * QUIRE_STRIP_ROWS * 64u)

/* All rows of one group. */
LANES_FN void weigh_group(const quire_source *v, uint32_t group, const float *p, const uint64_t *visible,
                          const float *factor, uint32_t n, int8_t *plane, float *side, size_t stride,
                          v_sink *to, const bool has_bias, const bool shifted)
{
    group_scales own, part;
    const group_scales *all = kept_scales(v, group);
    if (!all) {
        load_scales(v, group, ~(uint64_t)0, &own, has_bias);
        all = &own;
    }
    for (uint32_t i = 0; i < n; i++) {
        const group_scales *s = all;
        if (visible[i] != ~(uint64_t)0) {
            load_scales(v, group, visible[i], &part, has_bias);
            s = &part;
        }
        to->offset[i] = weigh(s, p + i * QUIRE_TILE_ROWS, factor[i], plane + i * 128, &to->unit[i],
                              side + i * stride, has_bias, shifted);
    }
}

LANES_FN void mix_planes(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                         const float *factor, uint32_t n, float *acc, size_t stride, void *scratch,
                         const code_loops *loops, const bool has_bias)
{
    const quire_coder *coder = &v->format->coder;
    int8_t *plane = (int8_t *)scratch;
    void *memory = plane + GROUPS_AT_ONCE * GROUP_PLANES;
    v_sink sink[GROUPS_AT_ONCE];
    uint32_t n_groups = (d_out + coder->group - 1) / coder->group;
    fetch_scales(v);
    for (uint32_t first = 0; first < n_groups; first += GROUPS_AT_ONCE) {
        uint32_t some = n_groups - first < GROUPS_AT_ONCE ? n_groups - first : GROUPS_AT_ONCE;
        for (uint32_t g = 0; g < some; g++) {
            float *side = acc + coder->d_pad + (size_t)(first + g) * QUIRE_SIDE_LANES;
            sink[g].acc = acc;
            sink[g].stride = stride;
            if (has_shift(v, loops->bits))
                weigh_group(v, first + g, p, visible, factor, n, plane + g * GROUP_PLANES, side, stride,
                            &sink[g], has_bias, true);
            else
                weigh_group(v, first + g, p, visible, factor, n, plane + g * GROUP_PLANES, side, stride,
                            &sink[g], has_bias, false);
        }
        for (uint32_t g = 0; g < some; g++) {
            uint32_t begin = (first + g) * coder->group,
                     end = begin + coder->group < d_out ? begin + coder->group : d_out;
            loops->dot_v(v, begin / 16, (end + 15) / 16, plane + g * GROUP_PLANES, n, &sink[g], memory);
        }
    }
}

LANES_CALL void settle(const quire_format *f, float *acc)
{
    if (!f->coder.codec->has_bias) return;
    for (uint32_t g = 0; g < f->coder.n_groups; g++) {
        uint32_t from = g * f->coder.group, to = from + f->coder.group;
        vf side = vf_set1(vf_reduce_add(vf_load(acc + f->coder.d_pad + (size_t)g * QUIRE_SIDE_LANES)));
        for (uint32_t c = from; c < to && c < f->coder.d_pad; c += 16)
            vf_store(acc + c, vf_add(vf_load(acc + c), side));
    }
}

/* What does not depend on how codes are packed is compiled twice: with biases and without. */
#define PROGRAM_BODIES(kind, has_bias)                                                                       \
    LANES_CALL void score_##kind(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,  \
                                 uint32_t partial, float *scores, void *scratch, const code_loops *loops)    \
    {                                                                                                        \
        score_planes(k, q, first, n, partial, scores, scratch, loops, has_bias);                             \
    }                                                                                                        \
    LANES_CALL void mix_##kind(const quire_source *v, uint32_t d_out, const float *p,                        \
                               const uint64_t *visible, const float *factor, uint32_t n, float *acc,         \
                               size_t stride, void *scratch, const code_loops *loops)                        \
    {                                                                                                        \
        mix_planes(v, d_out, p, visible, factor, n, acc, stride, scratch, loops, has_bias);                  \
    }

PROGRAM_BODIES(biased, true)
PROGRAM_BODIES(plain, false)

/* The loops of one way of packing. */
#define PROGRAM_LOOPS(name, bits, table)                                                                        \
    LANES_CALL void dot_k_##name(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,     \
                                 uint32_t first, uint32_t n, const k_sink *sink, void *memory)                  \
    {                                                                                                           \
        dot_k(k, from, to, q, first, n, sink, memory, bits, table);                                             \
    }                                                                                                           \
    LANES_CALL void dot_v_##name(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane,        \
                                 uint32_t n, const v_sink *sink, void *memory)                                  \
    {                                                                                                           \
        dot_v(v, from, to, plane, n, sink, memory, bits, table);                                                \
    }
/* For the table of all of them. */
#define PROGRAM_LOOPS_SLOT(name, bits, table) [QUIRE_PACKING_##name] = {bits, dot_k_##name, dot_v_##name},
#define PROGRAM_LOOPS_TABLE {CODE_PACKINGS(PROGRAM_LOOPS_SLOT)}

/* The functions of one integer family. LOOPS is the table. */
#define PROGRAM_FAMILY(name, packed, kind)                                                                      \
    LANES_CALL void score_##name(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,     \
                                 uint32_t partial, float *scores, void *scratch)                                \
    {                                                                                                           \
        score_##kind(k, q, first, n, partial, scores, scratch, &LOOPS[QUIRE_PACKING_##packed]);                                \
    }                                                                                                           \
    LANES_CALL void mix_##name(const quire_source *v, uint32_t d_out, const float *p,                           \
                               const uint64_t *visible, const float *factor, uint32_t n, float *acc,            \
                               size_t stride, void *scratch)                                                    \
    {                                                                                                           \
        mix_##kind(v, d_out, p, visible, factor, n, acc, stride, scratch, &LOOPS[QUIRE_PACKING_##packed]);                     \
    }

/* Families, how they pack, and whether they have biases. */
#define PROGRAM_FAMILIES(X) \
    X(a2, l2, biased)       \
    X(a3, l3, biased)       \
    X(a4, l4, biased)       \
    X(a5, l5, biased)       \
    X(a6, l6, biased)       \
    X(a8, l8, biased)       \
    X(z4, l4, plain)        \
    X(z5, l5, plain)        \
    X(z8, l8, plain)        \
    X(t2, t2, plain)        \
    X(t3, t3, plain)        \
    X(t4, t4, plain)        \
    X(t5, t5, plain)        \
    X(t6, t6, plain)

/* Slots of all families in order. */
#define PROGRAM_SLOTS(role)                                                                                  \
    {                                                                                                        \
        FLOAT_NAME(role, f32), FLOAT_NAME(role, f16), FLOAT_NAME(role, bf16), role##_a2, role##_a3,          \
            role##_a4, role##_a5, role##_a6, role##_a8, role##_z4, role##_z5, role##_z8, role##_t2,          \
            role##_t3, role##_t4, role##_t5, role##_t6                                                       \
    }

/* The same for roles that differ by packing only. */
#define PACKING_SLOTS(role)                                                                                  \
    {                                                                                                        \
        FLOAT_NAME(role, f32), FLOAT_NAME(role, f16), FLOAT_NAME(role, bf16), role##_l2, role##_l3,          \
            role##_l4, role##_l5, role##_l6, role##_l8, role##_l4, role##_l5, role##_l8, role##_t2,          \
            role##_t3, role##_t4, role##_t5, role##_t6                                                       \
    }

/* For expand_from, which has one number for each family. */
#define NEVER (QUIRE_MAX_QUERY_ROWS + 1)
_Static_assert(QUIRE_N_FAMILIES == 17, "expand_from has one number for each");

/* What the tables of all instruction sets have in common. */
#define PROGRAM_ROLES                                                                             \
    .soften = soften, .settle = settle, .score = PROGRAM_SLOTS(score), .mix = PROGRAM_SLOTS(mix), \
    .expand = PACKING_SLOTS(expand), .turn = PACKING_SLOTS(turn)

#endif
