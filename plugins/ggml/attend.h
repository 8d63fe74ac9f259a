/* SPDX-License-Identifier: MIT */
/* attend.h: what attention over all tiles (attend.c) and over selected rows (select.c) share. */
#ifndef QUIRE_GGML_ATTEND_H
#define QUIRE_GGML_ATTEND_H

#include "device.h"

struct operand { /* K or V of one attention op */
    const struct host_tensor *t;
    struct kv *kv; /* NULL: not of the cache, or kept as declared */
    quire_tile_format *format;
    char *tiles; /* not of the cache: [stream][tile][head] */
    size_t tile_bytes;
    uint32_t n_tiles;
    uint64_t first_row; /* of the cache: where the view begins */
    bool heads_apart;   /* of the cache: its streams are the heads of one stream */
};

/* The tile of head 0; those of the others follow it. */
char *operand_tile(const struct operand *, uint32_t stream, uint32_t tile);

/* All there is to an op besides its jobs. slopes: room for one of each head. */
quire_attend_options attend_options(const struct host_tensor *op, float *slopes);
/* Shape, queries and results of a job: those of one stream, n queries from the first one on. */
quire_attend_job attend_job(const struct host_tensor *op, uint32_t stream, uint32_t first, uint32_t n);
int attend_jobs(struct worker *, const quire_attend_options *, const quire_attend_job *, uint32_t n);

/*
 * select.c: attention over single rows, which are copied side by side. false: no query is known to see few rows of
 * the tiles, or to copy them would cost more. Else *status is the op's.
 */
bool select_attend(struct worker *, struct host_tensor *op, const struct operand *k, const struct operand *v,
                   bool v_in_k, int *status);

#endif
