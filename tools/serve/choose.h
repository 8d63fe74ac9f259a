/* SPDX-License-Identifier: MIT */
/* choose: which replica of a fleet gets a request, from the beginning of its prompt and what the replicas do now. */
#ifndef QUIRE_TOOLS_SERVE_CHOOSE_H
#define QUIRE_TOOLS_SERVE_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct choose_entry {
    uint64_t name; /* choose_hash() of the replica's address: the same in every gateway */
    uint32_t load; /* requests that it answers now */
    bool may;      /* it can be chosen */
} choose_entry;

/* Of bytes that come in pieces: hash is what the pieces before gave, CHOOSE_START at first. Not for secrets. */
#define CHOOSE_START UINT64_C(0xcbf29ce484222325)
uint64_t choose_hash(uint64_t hash, const void *bytes, size_t n);

/*
 * Rendezvous hashing with a bound on load: the replica with the largest weight for this key, if its load is below 1.25 of the mean plus
 * 1; else the next one, in the order of weights, whose load is below the mean. So a key keeps its replica while that is not
 * overloaded, and its second choice is mostly the same; a replica that goes moves its own keys only. Returns n if none may be chosen.
 */
size_t choose_replica(uint64_t key, const choose_entry *entries, size_t n);

#endif
