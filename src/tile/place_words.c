/* SPDX-License-Identifier: MIT */
/*
 * place_words: codes of a K row as words. 16 channels lie in four neighbouring vectors, beginning at a multiple of four; the four
 * bytes of each vector are one 32-bit piece. Vectors that share bytes in a plane belong to the same row, so whole bytes
 * are written, except in planes of one bit: there the other half of each byte may be another row's.
 */
#include "tile/place_kernels.h"

typedef struct word_pair {
    uint64_t a, b; /* channels 0 to 7 and 8 to 15 */
} word_pair;

static inline uint64_t every_byte(uint32_t x)
{
    return x * 0x0101010101010101u;
}

static inline uint32_t load_piece(const uint8_t *at)
{
    uint32_t piece;
    memcpy(&piece, at, 4);
    return piece;
}

static inline void store_piece(uint8_t *at, uint32_t piece)
{
    memcpy(at, &piece, 4);
}

/* The upper four bytes moved into the bits above those of the lower four. */
static inline uint32_t fold(uint64_t x, uint32_t width)
{
    return (uint32_t)x | (uint32_t)(x >> 32) << width;
}

static inline uint64_t unfold(uint32_t piece, uint32_t width)
{
    uint32_t mask = (uint32_t)every_byte((1u << width) - 1);
    return (piece & mask) | (uint64_t)(piece >> width & mask) << 32;
}

/* at: line of the first vector in this plane; first: that vector's place in its block, 0 or 4. x has width bits per byte. */
static inline void put_pieces(uint8_t *at, uint32_t first, uint32_t width, word_pair x)
{
    switch (width) {
    case 8:
        store_piece(at, (uint32_t)x.a);
        store_piece(at + 64, (uint32_t)(x.a >> 32));
        store_piece(at + 128, (uint32_t)x.b);
        store_piece(at + 192, (uint32_t)(x.b >> 32));
        break;
    case 4:
        store_piece(at, fold(x.a, 4));
        store_piece(at + 64, fold(x.b, 4));
        break;
    case 2: store_piece(at, fold(x.a, 2) | fold(x.b, 2) << 4); break;
    default: {
        uint32_t piece = fold(x.a, 1) | fold(x.b, 1) << 2, keep = ~((uint32_t)every_byte(15) << first);
        store_piece(at, (load_piece(at) & keep) | piece << first);
    }
    }
}

static inline word_pair get_pieces(const uint8_t *at, uint32_t first, uint32_t width)
{
    switch (width) {
    case 8:
        return (word_pair){load_piece(at) | (uint64_t)load_piece(at + 64) << 32,
                           load_piece(at + 128) | (uint64_t)load_piece(at + 192) << 32};
    case 4: return (word_pair){unfold(load_piece(at), 4), unfold(load_piece(at + 64), 4)};
    case 2: return (word_pair){unfold(load_piece(at), 2), unfold(load_piece(at) >> 4, 2)};
    default: return (word_pair){unfold(load_piece(at) >> first, 1), unfold(load_piece(at) >> first >> 2, 1)};
    }
}

/* One plane of a row: where its 16 channels lie that begin at a given vector. */
typedef struct piece_walk {
    size_t at;
    size_t to_second,
        to_next; /* from the first to the second half of a block, from there to the next block */
    uint32_t first;
} piece_walk;

static inline piece_walk walk_begin(const quire_coder *coder, uint32_t t, uint32_t offset, uint32_t width)
{
    uint32_t bits = coder->codec->info.bits, vector = t / 16 * (coder->d_pad / 4);
    size_t half = 32 * (size_t)width;
    return (piece_walk){
        .at = (size_t)(vector / 8) * 64 * bits + offset + (vector % 8 ? half : 0) / 64 * 64 + t % 16 * 4,
        .to_second = half / 64 * 64,
        .to_next = 64 * (size_t)bits - half / 64 * 64,
        .first = vector % 8,
    };
}

static inline void walk_on(piece_walk *w)
{
    w->at += w->first ? w->to_next : w->to_second;
    w->first ^= 4;
}

static inline void put_plane(const quire_coder *coder, uint8_t *tile, uint32_t t, const uint8_t *code,
                             uint32_t offset, uint32_t low, uint32_t width)
{
    piece_walk w = walk_begin(coder, t, offset, width);
    uint64_t mask = every_byte((1u << width) - 1);
    for (uint32_t c = 0; c < coder->d_pad; c += 16, walk_on(&w)) {
        word_pair x;
        memcpy(&x, code + c, 16);
        put_pieces(tile + w.at, w.first, width, (word_pair){x.a >> low & mask, x.b >> low & mask});
    }
}

static inline void get_plane(const quire_coder *coder, const uint8_t *tile, uint32_t t, uint8_t *code,
                             uint32_t offset, uint32_t low, uint32_t width)
{
    piece_walk w = walk_begin(coder, t, offset, width);
    for (uint32_t c = 0; c < coder->d_pad; c += 16, walk_on(&w)) {
        word_pair x = get_pieces(tile + w.at, w.first, width), below = {0, 0};
        if (low) memcpy(&below, code + c, 16);
        x = (word_pair){x.a << low | below.a, x.b << low | below.b};
        memcpy(code + c, &x, 16);
    }
}

/* Planes of each width, so that every loop has a constant one. */
#define FOR_PLANES(DO)                                \
    switch (coder->codec->info.bits) {                \
    case 2: DO(coder, tile, t, code, 0, 0, 2); break; \
    case 3:                                           \
        DO(coder, tile, t, code, 0, 0, 2);            \
        DO(coder, tile, t, code, 128, 2, 1);          \
        break;                                        \
    case 4: DO(coder, tile, t, code, 0, 0, 4); break; \
    case 5:                                           \
        DO(coder, tile, t, code, 0, 0, 4);            \
        DO(coder, tile, t, code, 256, 4, 1);          \
        break;                                        \
    case 6:                                           \
        DO(coder, tile, t, code, 0, 0, 4);            \
        DO(coder, tile, t, code, 256, 4, 2);          \
        break;                                        \
    default: DO(coder, tile, t, code, 0, 0, 8);       \
    }

void quire_put_codes_words(const quire_coder *coder, uint8_t *tile, uint32_t t, const uint8_t *code)
{
    FOR_PLANES(put_plane)
}

void quire_get_codes_words(const quire_coder *coder, const uint8_t *tile, uint32_t t, uint8_t *code)
{
    FOR_PLANES(get_plane)
}
