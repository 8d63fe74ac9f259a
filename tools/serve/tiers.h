/* SPDX-License-Identifier: MIT */
/*
 * tiers: where quire serve keeps pages: the directory and the remote that its options name. A directory that cannot be used (a disk that
 * is full, read-only or broken, a format of a later version) is left out with a line on stderr: the server must start as it would
 * without us.
 */
#ifndef QUIRE_TOOLS_SERVE_TIERS_H
#define QUIRE_TOOLS_SERVE_TIERS_H

#include "common/place.h"
#include "store/options.h"

typedef struct tiers {
    store_options *o;
    bool has_tenants; /* each with a secret of its own */
    bool has_lost_disk;
    char directory[PLACE_SIZE];
} tiers;

/* The smallest size of a directory. */
enum { TIERS_LEAST_BYTES = 16 << 20 };

/* Completes the options: the directory and the secret, if they are not given. TOOL_OK, or what tool_failed() and tool_usage() said. */
int tiers_find(tiers *t);
/* Whether pages are kept anywhere. */
bool tiers_exist(const tiers *t);
/* *out is NULL if the only tier cannot be used. */
int tiers_open(tiers *t, quire_store **out);

#endif
