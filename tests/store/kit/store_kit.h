/* SPDX-License-Identifier: MIT */
/* What tests of the store share: directories, stores, scenes (plan, pool, namespace, prompt), programs run anew. */
#ifndef QUIRE_TESTS_STORE_KIT_H
#define QUIRE_TESTS_STORE_KIT_H

#include "support/cache_kit.h"

#include <quire/page.h>
#include <quire/store.h>

/* A new empty directory below TMPDIR; removed with all that is in it. */
char *kit_directory(const char *parent /* NULL: TMPDIR or /tmp */);
void kit_remove(char *directory); /* and frees the name */
uint64_t kit_directory_bytes(const char *directory);

/* Secret and revisions made from a number; equal numbers give equal identities. */
quire_identity kit_identity(uint8_t tenant);

typedef struct kit_scene {
    quire_geometry g;
    quire_plan *plan;
    quire_pool *pool;
    quire_store *store;
    quire_namespace *ns;
    uint32_t tokens[4096];
    quire_seq_options ring;
    uint64_t seed; /* of rows and tokens */
} kit_scene;

#define KIT_CAP (64u << 20)

quire_store_options kit_options(const char *directory, uint64_t cap, const quire_store_remote *remote);
quire_store *kit_open(const char *directory, uint64_t cap, const quire_store_remote *remote);
/* With "c:" in the policy a profile is made. */
void kit_scene_begin(kit_scene *s, quire_store *store, const char *policy, uint64_t seed);
void kit_scene_begin_with(kit_scene *s, quire_store *store, const quire_geometry *g, const char *policy,
                          uint64_t seed, uint32_t max_tokens, uint32_t sinks);
void kit_scene_end(kit_scene *s); /* not the store */

/* A sequence of n tokens, computed; saved after every page if save is set. */
quire_seq *kit_compute(kit_scene *s, uint32_t n, bool save);
/* A new sequence with what the store has of the first n tokens. */
quire_seq *kit_load(kit_scene *s, uint32_t n, uint32_t timeout_ms);
/* Everything that can be seen of a sequence, attention included. */
uint64_t kit_sight(kit_scene *s, const quire_seq *seq);
quire_prompt kit_prompt(const kit_scene *s, uint32_t n);
quire_store_stats kit_stats(quire_store *store);

/* Runs this program again with these arguments and returns its exit status (128 + signal if it was killed). */
int kit_run(const char *const *args, uint32_t kill_after_us /* 0: never */);

#endif
