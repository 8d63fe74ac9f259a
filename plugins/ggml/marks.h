/* SPDX-License-Identifier: MIT */
/*
 * marks.h: rows of a saved state that are codes behind a mark, wherever they come back.
 *
 * A row of a codec that is not the declared type travels inside the declared row: a mark, the codec's own bytes head after
 * head, zeros. It may come back to a tensor with another codec, or to one that is not the device's at all.
 *
 *   mark   2 bytes   51 7e: a NaN as f16, which is where every quantized type has its first scale
 *          4 bytes   fingerprint of codec, shape and profile
 */
#ifndef QUIRE_GGML_MARKS_H
#define QUIRE_GGML_MARKS_H

#include "host.h"

#include <quire/quire.h>

#define MARK_BYTES 6u

/* A row that was lost begins with this where it lies in plain memory (bare.c). Tiny values in every type: beside rows that
 * are masked out, a NaN would spoil the others in ggml's attention. */
#define LOST_BYTES 8u
extern const char lost_bytes[LOST_BYTES];

struct row_shape { /* of a K or V tensor of the host */
    const char *name;
    const char *rows; /* the first one, where the host thinks it is */
    int type;         /* declared */
    uint32_t row;     /* values */
    size_t row_bytes;
    quire_side side;
    uint32_t layer;
};

/* Whether a tensor, or what it is a view of, is one of the cache by its name and shape, wherever it lies. */
bool marks_shape(const struct host_tensor *, struct row_shape *);

uint32_t mark_of(const quire_tile_format *);
void mark_put(char *row, uint32_t mark);
bool mark_is(const char *row, uint32_t mark);
/* What is saved of a row that cannot be read: it stays so wherever it is taken. */
void mark_put_nobody(char *row, size_t row_bytes);

bool all_zero(const char *bytes, size_t n);

/* A codec in which rows of a state can be, bound to the shape of their heads. */
struct coding {
    uint32_t mark;
    uint32_t d, n_heads;
    size_t head_bytes;
    const char *codec;
    quire_tile_format *format;
};

/*
 * What a row is. BARE: no mark, values of the declared type. CODED: *out has the codec. LOST: a mark that is not known here
 * or is damaged, or a row that was lost before; what it means cannot be said.
 */
enum row_kind { ROW_BARE, ROW_CODED, ROW_LOST };
enum row_kind marks_look(const struct row_shape *, const char *row, const struct coding **out);
/* Says which codecs were met for the first time. Not under a lock: the host may do anything when it is told something. */
void marks_tell(void);

/* Up to 64 rows of one coding, or of the declared type, as floats [n][row]. false: no memory, or a scale that is not finite. */
bool marks_read(const struct row_shape *, const struct coding *, const char *rows, uint32_t n, float *values);
bool marks_read_bare(const struct row_shape *, const char *rows, uint32_t n, float *values);
/* Floats to rows of the declared type. */
bool marks_write_bare(const struct row_shape *, const float *values, uint32_t n, char *rows);

#endif
