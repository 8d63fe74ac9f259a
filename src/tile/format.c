/* SPDX-License-Identifier: MIT */
/* tile: a codec bound to a shape, and the sizes that follow from it. */
#include "tile/tile.h"

static uint64_t fingerprint(const quire_tile_format *f)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_u64(&h, QUIRE_TILE_LAYOUT);
    quire_coder_hash(&f->coder, &h);
    quire_hash_u64(&h, f->profile ? quire_profile_layer_digest(f->profile, f->layer) : 0);
    return quire_hash_end(&h);
}

quire_status quire_tile_format_init(quire_tile_format *format, const quire_codec *codec, quire_side side,
                                    uint32_t d, uint32_t d_v, const quire_profile *profile, uint32_t layer)
{
    quire_tile_format f = {.layer = layer, .n_heads = UINT32_MAX};
    quire_status status = quire_coder_init(&f.coder, codec, side, d, d_v);
    if (status) return status;
    if (codec->info.flags & QUIRE_CODEC_CALIBRATED) {
        if (!profile) return QUIRE_EINVAL;
        uint32_t n_heads = quire_profile_n_heads(profile, layer);
        if (!n_heads || !quire_profile_fits(profile, layer, n_heads, d)) return QUIRE_EMISMATCH;
        f.profile = profile;
        f.n_heads = n_heads;
    }
    size_t values = (size_t)f.coder.d_pad * QUIRE_TILE_ROWS;
    if (codec->values == QUIRE_VALUES_FLOAT) {
        f.code_bytes = values * quire_value_bytes(codec->float_form);
    } else {
        f.code_bytes = values / 8 * codec->info.bits;
    }
    size_t scale_bytes = (size_t)f.coder.n_groups * QUIRE_TILE_ROWS * 2;
    f.bias_offset = f.code_bytes + scale_bytes;
    f.tile_bytes = f.bias_offset + (codec->has_bias ? scale_bytes : 0);
    f.fingerprint = fingerprint(&f);
    *format = f;
    return QUIRE_OK;
}

quire_status quire_tile_format_create(quire_tile_format **out, const char *codec,
                                      const quire_tile_format_options *options)
{
    quire_tile_format_options o;
    if (!out || !codec) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&o, sizeof o, options);
    if (status) return status;
    const quire_codec *found = quire_codec_get(codec);
    if (!found) return QUIRE_EINVAL;
    quire_tile_format f;
    status = quire_tile_format_init(&f, found, o.side, o.d, o.d_v, o.profile, o.layer);
    if (!status) status = quire_allocator_read(&f.allocator, o.allocator);
    if (status) return status;
    quire_tile_format *format = (quire_tile_format *)quire_alloc(&f.allocator, sizeof *format);
    if (!format) return QUIRE_ENOMEM;
    if (f.profile) f.owned_profile = quire_profile_hold(f.profile);
    *format = f;
    *out = format;
    return QUIRE_OK;
}

void quire_tile_format_destroy(quire_tile_format *format)
{
    if (!format) return;
    quire_allocator a = format->allocator;
    quire_profile_destroy(format->owned_profile);
    quire_free(&a, format, sizeof *format);
}

size_t quire_tile_bytes(const quire_tile_format *format)
{
    return format->tile_bytes;
}

uint64_t quire_tile_format_fingerprint(const quire_tile_format *format)
{
    return format->fingerprint;
}
