/* SPDX-License-Identifier: MIT */
/*
 * store: which records may be in the operating system's page cache. A record that is loaded for the first time is read past it. One that is
 * loaded again soon is read through it and stays there. Soon, and how much stays: a bound in bytes each, so that a long row of loads that do not
 * repeat leaves the page cache alone.
 */
#ifndef QUIRE_STORE_WARM_H
#define QUIRE_STORE_WARM_H

#include "store/slab.h"

typedef struct quire_warm_entry {
    quire_key object;
    quire_place place;
    uint32_t is_kept; /* which list it is in: loaded once, or kept in the page cache */
    uint32_t newer, older, next_in_bucket;
} quire_warm_entry;

typedef struct quire_warm_list {
    uint64_t bytes;
    uint32_t newest, oldest;
} quire_warm_list;

typedef struct quire_warm {
    quire_slabs *slabs;
    pthread_mutex_t lock;
    uint64_t bound; /* bytes of each list; 0: nothing is kept */
    quire_warm_list list[2];
    quire_warm_entry *entries; /* taken at the first load; entry 0 is not used, it stands for none */
    uint32_t *buckets;
    uint32_t n_entries, unused;
} quire_warm;

void quire_warm_init(quire_warm *w, quire_slabs *slabs, uint64_t bound);
/* What was kept leaves the page cache. */
void quire_warm_fini(quire_warm *w);

/* Where an object lay that is kept; the index need not be asked. */
bool quire_warm_find(quire_warm *w, const quire_key *object, quire_place *out);
/* An object is to be loaded. true: through the page cache, and quire_warm_end() afterwards. */
bool quire_warm_begin(quire_warm *w, const quire_key *object, const quire_place *place);
/* failed: it is not there any more, or damaged. */
void quire_warm_end(quire_warm *w, const quire_key *object, const quire_place *place, bool failed);

/* The default: 1 GiB, on small machines a sixteenth of the memory. */
uint64_t quire_warm_default(void);

#endif
