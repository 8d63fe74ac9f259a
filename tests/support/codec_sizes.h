/* SPDX-License-Identifier: MIT */
/* codec_sizes: which codecs exist for which head sizes, as the documentation says it. */
#ifndef QUIRE_TESTS_CODEC_SIZES_H
#define QUIRE_TESTS_CODEC_SIZES_H

#include <quire/quire.h>

#include <stdbool.h>

/* d_v: V is the first d_v values of K; 0: it is not. Only tv codecs do not take everything. */
static inline bool codec_takes(const quire_codec_info *codec, uint32_t d, uint32_t d_v)
{
    if (!(codec->flags & QUIRE_CODEC_MLX_VLM)) return true;
    return d >= 16 && d <= 512 && (d & (d - 1)) == 0 && (!d_v || d_v == d);
}

#endif
