/* SPDX-License-Identifier: MIT */
/* scales: those of a tile as scores and values need them. In lanes; included after the header of an instruction set. */
#ifndef QUIRE_KERNELS_SCALES_H
#define QUIRE_KERNELS_SCALES_H

/* Scales and biases of the next tile; the engine cares for its codes. What is expanded has brought them. */
SIMD_FN void fetch_scales(const quire_source *s)
{
    if (!s->next || s->expanded) return;
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes; at += 64) simd_prefetch(s->next + at);
}

/* 16 scales as numbers: without the bits of the mean, where a codec has them. */
SIMD_FN vf scales_at(const uint8_t *p, const bool calibrated)
{
    return calibrated ? vf_load_f16_and(p, ~QUIRE_MEAN_BITS) : vf_load_f16(p);
}

/* One part of K. */
typedef struct key_scales {
    float scale[QUIRE_TILE_ROWS], bias[QUIRE_TILE_ROWS];
    float most; /* in the first part of scales that an engine keeps: largest_value() of the tile */
} key_scales;

SIMD_FN void load_key_scales(const quire_source *k, uint32_t part, key_scales *to, const bool has_bias)
{
    const quire_tile_format *f = k->format;
    bool calibrated = !has_bias && f->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED;
    size_t group = part * quire_part_size(&f->coder) / f->coder.group * QUIRE_TILE_ROWS * 2;
    for (uint32_t j = 0; j < 4; j++) {
        vf_store(to->scale + j * 16, scales_at(k->tile + f->code_bytes + group + j * 32, calibrated));
        if (has_bias) vf_store(to->bias + j * 16, vf_load_f16(k->tile + f->bias_offset + group + j * 32));
    }
}

/*
 * What r is multiplied with in a tile of K, at most: the largest absolute value without bias; with a bias, as far as values lie
 * from the middle of their range.
 */
SIMD_FN float largest_value(const quire_source *k)
{
    const quire_tile_format *f = k->format;
    const quire_codec *codec = f->coder.codec;
    bool calibrated = codec->info.flags & QUIRE_CODEC_CALIBRATED;
    float top = (float)((1u << codec->info.bits) - 1);
    float span = codec->values == QUIRE_VALUES_TABLE ? 127.0f : codec->has_bias ? top / 2 : (top + 1) / 2;
    vf most = vf_set1(0);
    for (size_t at = 0; at < (size_t)f->coder.n_groups * QUIRE_TILE_ROWS * 2; at += 32)
        most = vf_max(most, vf_abs(scales_at(k->tile + f->code_bytes + at, calibrated)));
    return vf_reduce_max(most) * span;
}

/*
 * One group of V over the rows that a query sees. A value is scale * (code + shift) + rest: as much of the bias as
 * goes into whole steps is shift, so that rounding a weight changes a value in proportion to itself, not to its code. A shift
 * never makes a code larger than codes can be: what is left of a bias that is farther from 0 than all of its codes is rest,
 * which weights are not rounded for.
 */
typedef struct group_scales {
    vf scale[4], rest[4];
    vi shift[4];
    float most; /* largest absolute scale; scale[] is in units of most / QUIRE_MAX_Z */
} group_scales;

SIMD_FN void load_scales(const quire_source *v, uint32_t group, uint64_t visible, group_scales *s,
                         const bool has_bias)
{
    const quire_tile_format *f = v->format;
    const quire_codec *codec = f->coder.codec;
    bool calibrated = !has_bias && codec->info.flags & QUIRE_CODEC_CALIBRATED;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    vf least = vf_set1(-(float)((1u << codec->info.bits) - 1));
    size_t at = (size_t)group * QUIRE_TILE_ROWS * 2;
    vf most = vf_set1(1e-30f);
    for (uint32_t j = 0; j < 4; j++) {
        vf scale = scales_at(v->tile + f->code_bytes + at + j * 32, calibrated), bias = vf_set1(0);
        if (has_bias) bias = vf_load_f16(v->tile + f->bias_offset + at + j * 32);
        if (visible != ~(uint64_t)0) {
            scale = vf_keep(vm_of_bits(visible >> j * 16), scale);
            bias = vf_keep(vm_of_bits(visible >> j * 16), bias);
        }
        s->shift[j] = vi_set1(-zero);
        s->rest[j] = bias;
        if (has_bias) {
            vf steps = vf_min(vf_max(vf_div_approx(bias, scale), least), vf_set1(0)); /* 0 / 0: one of them */
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

#endif
