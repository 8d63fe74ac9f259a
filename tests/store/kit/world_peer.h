/* SPDX-License-Identifier: MIT */
/* What the parts of the scripted world share. */
#ifndef QUIRE_TESTS_WORLD_PEER_H
#define QUIRE_TESTS_WORLD_PEER_H

#include "store/kit/world.h"

/* Bytes on their way from a peer; over TLS one record. */
typedef struct world_chunk {
    struct world_chunk *next;
    uint64_t time; /* when they arrive */
    size_t n, at;
    uint8_t bytes[];
} world_chunk;

struct quire_link {
    quire_link *next;
    world *world;
    int peer;
    uint64_t opens;
    bool is_open, is_lost, is_asking, is_readonly;
    uint8_t *in; /* commands that are not whole yet */
    size_t n_in, cap_in;
    uint64_t n_sent;
    uint64_t queued,
        drained_at; /* the last bytes of `in` that the socket took and the peer has not, as of then */
    world_chunk *first, *last;
    uint8_t *plain; /* decrypted and not read */
    size_t n_plain, at_plain, low_water;
};

/* Answers the whole commands that have come in. */
void world_serve(quire_link *l);

#endif
