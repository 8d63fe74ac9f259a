/* SPDX-License-Identifier: MIT */
/* tv: what the TurboQuant codecs of mlx-vlm (tv2 to tv6) derive from a head size. */
#ifndef QUIRE_CODEC_TV_H
#define QUIRE_CODEC_TV_H

#include "codec/codec.h"

#define QUIRE_TV_LEAST_BITS 2u
#define QUIRE_TV_WIDTHS 5u
#define QUIRE_TV_LEAST_D 16u
#define QUIRE_TV_MOST_D 512u
#define QUIRE_TV_SIZES 6u

/* One width at one head size. A value of mlx-vlm is norm * codebook[code]; the codebook is unit * table, rounded. */
struct quire_tv {
    float unit;
    int8_t table[64];
    /* The middles between entries of the codebook, in the order in which a search by halves asks for them: level l has
     * 2^l of them and begins at 2^l - 1. */
    float middle[64];
};

/* tv_table.c */
extern const quire_tv quire_tv_tables[QUIRE_TV_WIDTHS][QUIRE_TV_SIZES];
extern const uint64_t quire_tv_minus[2][QUIRE_TV_SIZES][QUIRE_TV_MOST_D / 64]; /* [side]: 1 changes a sign */

/* Which of the sizes d is; QUIRE_TV_SIZES: none. */
uint32_t quire_tv_size(uint32_t d);

#endif
