/* SPDX-License-Identifier: MIT */
/* stat.h: counters for `quire stat` (quire_stat.h). Relaxed adds into a page that always exists: no branch asks
 * whether anybody wants them. */
#ifndef QUIRE_GGML_STAT_H
#define QUIRE_GGML_STAT_H

#include <quire_stat.h>

struct kv;
struct kv_context;

/* Makes the file, unless QUIRE_STAT=0 or it is there. Until then, and if it cannot be had, counts go nowhere. */
void stat_open(void);
/* The context holds its rows under this policy from now on. */
void stat_attach(struct kv_context *, const char *policy);
/* Rows of a stream that are in use: from so many to so many. */
void stat_rows(const struct kv *, uint32_t from, uint32_t to);
void stat_encoded(uint64_t n_rows);
void stat_detach(struct kv *); /* before it goes; its rows are taken out already */

uint64_t stat_now(void);               /* ns */
void stat_begin(uint64_t now);         /* the host hands over a graph */
void stat_attended(uint64_t duration); /* ns */
void stat_tiles(uint64_t n_read, uint64_t n_skipped);

#endif
