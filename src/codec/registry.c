/* SPDX-License-Identifier: MIT */
/* registry: every codec by name, and codecs bound to a head size. */
#include "codec/registry.h"
#include "codec/tv.h"

#define FLOAT(NAME, BITS, FORM)                             \
    {                                                       \
        .info = {.size = sizeof(quire_codec_info),          \
                 .name = #NAME,                             \
                 .summary = #NAME " values, not quantized", \
                 .bits = BITS,                              \
                 .flags = QUIRE_CODEC_FLOAT},               \
        .values = QUIRE_VALUES_FLOAT,                       \
        .float_form = FORM,                                 \
        .revision = 1,                                      \
        .encode = quire_encode_float,                       \
        .pack = quire_pack_float,                           \
        .unpack = quire_unpack_float,                       \
    },

#define AFFINE_FORM(PREFIX, TEXT, FLAGS, ROTATION, BITS, GROUP)                                      \
    {                                                                                                \
        .info = {.size = sizeof(quire_codec_info),                                                   \
                 .name = PREFIX "a" #BITS "g" #GROUP,                                                \
                 .summary = TEXT "MLX affine, " #BITS " bits, scale and bias per " #GROUP " values", \
                 .bits = BITS,                                                                       \
                 .group = GROUP,                                                                     \
                 .flags = FLAGS},                                                                    \
        .values = QUIRE_VALUES_LINEAR,                                                               \
        .has_bias = true,                                                                            \
        .rotation = ROTATION,                                                                        \
        .revision = 1,                                                                               \
        .encode = quire_encode_affine,                                                               \
    },

#define GGML_FORM(PREFIX, TEXT, FLAGS, ROTATION, NAME, BITS, VALUES, ZERO, BIAS, ENTRIES) \
    {                                                                                     \
        .info = {.size = sizeof(quire_codec_info),                                        \
                 .name = PREFIX #NAME,                                                    \
                 .summary = TEXT "ggml " #NAME ", " #BITS " bits, blocks of 32 values",   \
                 .bits = BITS,                                                            \
                 .group = 32,                                                             \
                 .flags = FLAGS},                                                         \
        .values = QUIRE_VALUES_##VALUES,                                                  \
        .has_bias = BIAS,                                                                 \
        .zero = ZERO,                                                                     \
        .table = ENTRIES,                                                                 \
        .rotation = ROTATION,                                                             \
        .revision = 1,                                                                    \
        .encode = quire_encode_##NAME,                                                    \
        .pack = quire_pack_ggml,                                                          \
        .unpack = quire_unpack_ggml,                                                      \
    },

#define ROW_FORM(NAME, TEXT, FLAGS, REVISION, BITS, VALUES, ZERO, ENTRIES, ENCODE) \
    {                                                                              \
        .info = {.size = sizeof(quire_codec_info),                                 \
                 .name = NAME,                                                     \
                 .summary = TEXT ", " #BITS " bits, one scale per row",            \
                 .bits = BITS,                                                     \
                 .flags = QUIRE_CODEC_ROTATED | (FLAGS)},                          \
        .values = QUIRE_VALUES_##VALUES,                                           \
        .zero = ZERO,                                                              \
        .table = ENTRIES,                                                          \
        .rotation = QUIRE_ROTATION_SIGNED,                                         \
        .revision = REVISION,                                                      \
        .encode = ENCODE,                                                          \
    },

#define NONE(...)
#define AFFINE(...) AFFINE_FORM("", "", QUIRE_CODEC_MLX, QUIRE_ROTATION_NONE, __VA_ARGS__)
#define GGML(...) GGML_FORM("", "", QUIRE_CODEC_GGML, QUIRE_ROTATION_NONE, __VA_ARGS__)
#define ROW_SCALE_TABLE "rotated row, scale found by search"
#define ROW_SCALE_LINEAR "rotated row, scale from the largest value"
#define ROW(BITS, VALUES, ...) ROW_FORM("r" #BITS, ROW_SCALE_##VALUES, 0, 1, BITS, VALUES, __VA_ARGS__)
#define TURBO(BITS, ENTRIES) \
    ROW_FORM("tq" #BITS, "TurboQuant with norm correction", 0, 1, BITS, TABLE, 0, ENTRIES, quire_encode_tq)

/* Revision 2: the nearest of several means instead of one, its number in the scale. */
#define C_ROW(BITS, ...) \
    ROW_FORM("c:r" #BITS, "calibrated K row", QUIRE_CODEC_CALIBRATED, 2, BITS, __VA_ARGS__)

/* The bytes are those of the plain codec, but of rotated values: to take them for MLX's or ggml's own would
 * change what they mean, so these carry neither flag. */
#define H_AFFINE(...) AFFINE_FORM("h:", "rotated, ", QUIRE_CODEC_ROTATED, QUIRE_ROTATION_PLAIN, __VA_ARGS__)
#define H_GGML(...) GGML_FORM("h:", "rotated, ", QUIRE_CODEC_ROTATED, QUIRE_ROTATION_PLAIN, __VA_ARGS__)

/* mlx-vlm's TurboQuant. What depends on the head size is in entries of their own, which coders are bound to. */
#define TV_FORM(BITS, TABLE, TV)                                                                 \
    {                                                                                            \
        .info = {.size = sizeof(quire_codec_info),                                               \
                 .name = "tv" #BITS,                                                             \
                 .summary = "TurboQuant as in mlx-vlm 0.7.10, " #BITS " bits, one norm per row", \
                 .bits = BITS,                                                                   \
                 .flags = QUIRE_CODEC_ROTATED | QUIRE_CODEC_MLX_VLM},                            \
        .values = QUIRE_VALUES_TABLE,                                                            \
        .table = TABLE,                                                                          \
        .rotation = QUIRE_ROTATION_TV,                                                           \
        .revision = 1,                                                                           \
        .sized = tv_sized[BITS - QUIRE_TV_LEAST_BITS],                                           \
        .tv = TV,                                                                                \
        .encode = quire_encode_tv,                                                               \
    },
#define TV(BITS) TV_FORM(BITS, NULL, NULL)
#define TV_AT(BITS, I)                                                  \
    TV_FORM(BITS, quire_tv_tables[BITS - QUIRE_TV_LEAST_BITS][I].table, \
            &quire_tv_tables[BITS - QUIRE_TV_LEAST_BITS][I])
#define TV_SIZES(BITS) \
    {TV_AT(BITS, 0) TV_AT(BITS, 1) TV_AT(BITS, 2) TV_AT(BITS, 3) TV_AT(BITS, 4) TV_AT(BITS, 5)},

static const quire_codec tv_sized[QUIRE_TV_WIDTHS][QUIRE_TV_SIZES];

/* clang-format off */
static const quire_codec tv_sized[QUIRE_TV_WIDTHS][QUIRE_TV_SIZES] = {
    TV_SIZES(2) TV_SIZES(3) TV_SIZES(4) TV_SIZES(5) TV_SIZES(6)
};

static const quire_codec codecs[] = {
    QUIRE_CODEC_LIST(FLOAT, AFFINE, GGML, ROW, TURBO)
    QUIRE_CODEC_LIST(NONE, NONE, NONE, C_ROW, NONE)
    QUIRE_CODEC_LIST(NONE, H_AFFINE, H_GGML, NONE, NONE)
    TV(2) TV(3) TV(4) TV(5) TV(6)
};
/* clang-format on */

#define N_CODECS ((uint32_t)(sizeof codecs / sizeof codecs[0]))

uint32_t quire_codec_count(void)
{
    return N_CODECS;
}

const quire_codec_info *quire_codec_at(uint32_t index)
{
    return index < N_CODECS ? &codecs[index].info : NULL;
}

const quire_codec *quire_codec_get(const char *name)
{
    for (uint32_t i = 0; name && i < N_CODECS; i++)
        if (strcmp(codecs[i].info.name, name) == 0) return &codecs[i];
    return NULL;
}

const quire_codec_info *quire_codec_find(const char *name)
{
    const quire_codec *codec = quire_codec_get(name);
    return codec ? &codec->info : NULL;
}

size_t quire_codec_row_bytes(const char *name, uint32_t d)
{
    quire_coder coder;
    if (quire_coder_init(&coder, quire_codec_get(name), QUIRE_K, d, 0) != QUIRE_OK) return 0;
    return quire_row_bytes(&coder);
}

double quire_codec_bits(const char *name, uint32_t d)
{
    quire_coder coder;
    if (quire_coder_init(&coder, quire_codec_get(name), QUIRE_K, d, 0) != QUIRE_OK) return 0;
    uint32_t halves = coder.n_groups * (coder.codec->has_bias ? 2 : 1);
    return ((double)coder.d_pad * coder.codec->info.bits + 16.0 * halves) / d;
}

/* Largest power of two that divides n. */
static uint32_t power_in(uint32_t n)
{
    return n & (~n + 1u);
}

static uint32_t rotation_block(const quire_codec *codec, quire_side side, uint32_t d, uint32_t d_v)
{
    if (codec->rotation == QUIRE_ROTATION_NONE) return 1;
    /* llama.cpp rotates V in blocks of 64 and K as a whole. */
    if (codec->rotation == QUIRE_ROTATION_PLAIN && side == QUIRE_V && d % 64 == 0) return 64;
    return power_in(d | d_v);
}

/* mlx-vlm rotates whole heads, and other head sizes by a matrix of LAPACK's, whose last bits nobody can promise. */
static const quire_codec *of_size(const quire_codec *codec, uint32_t d, uint32_t d_v)
{
    uint32_t i = quire_tv_size(d);
    return i < QUIRE_TV_SIZES && (!d_v || d_v == d) ? &codec->sized[i] : NULL;
}

quire_status quire_coder_init(quire_coder *coder, const quire_codec *codec, quire_side side, uint32_t d,
                              uint32_t d_v)
{
    if (!codec || d < 1 || d > QUIRE_MAX_D || d_v > d) return QUIRE_EINVAL;
    if (side != QUIRE_K && (side != QUIRE_V || d_v)) return QUIRE_EINVAL;
    if (side == QUIRE_V && (codec->info.flags & QUIRE_CODEC_CALIBRATED)) return QUIRE_EUNSUPPORTED;
    if (codec->sized) codec = of_size(codec, d, d_v);
    if (!codec) return QUIRE_EUNSUPPORTED;

    uint32_t d_pad = (d + 15) / 16 * 16;
    uint32_t group = codec->info.group ? codec->info.group : d_pad;
    *coder = (quire_coder){
        .codec = codec,
        .side = side,
        .d = d,
        .d_v = d_v,
        .d_pad = d_pad,
        .group = group,
        .n_groups = codec->values == QUIRE_VALUES_FLOAT ? 0 : (d + group - 1) / group,
        .block = rotation_block(codec, side, d, d_v),
    };
    return QUIRE_OK;
}

void quire_coder_hash(const quire_coder *coder, quire_hash *h)
{
    quire_hash_text(h, coder->codec->info.name);
    quire_hash_u64(h, coder->codec->revision);
    quire_hash_u64(h, (uint64_t)coder->side);
    quire_hash_u64(h, coder->d);
    quire_hash_u64(h, coder->block);
}
