/* SPDX-License-Identifier: MIT */
/*
 * states: what a server needs beside the rows of full attention to go on after a prefix, kept in the store under the tokens of that prefix.
 * Prefixes are whole pages of 64 tokens. A state is of use at the end of its prefix alone.
 */
#ifndef QUIRE_TOOLS_SERVE_STATES_H
#define QUIRE_TOOLS_SERVE_STATES_H

#include <quire/store.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct states states;

/* text says what the states are of, and becomes a part of the keys. NULL: *why says it. */
states *states_create(quire_store *store, const quire_identity *identity, const char *text, const char **why);
void states_destroy(states *s);

/* The longest prefix of at most n tokens, in whole pages and above `least`, that has a state; 0: none. Asks for the last 512 pages. */
uint32_t states_find(states *s, const uint32_t *tokens, uint32_t n, uint32_t least, uint32_t timeout_ms);
/* The state after exactly n tokens, from malloc(), and *size; NULL: it is not there, or a part of it is lost. What is loaded has exactly
 * the bytes of one that was saved. Can take three times timeout_ms. */
uint8_t *states_load(states *s, const uint32_t *tokens, uint32_t n, uint32_t timeout_ms, size_t *size);
/* Hands it to the store, which copies it, unless the store has a whole one of this prefix; to ask for that can take three times
 * timeout_ms. false: no room in its queue, out of memory, the time was over, or the store has parts of eight others. */
bool states_save(states *s, const uint32_t *tokens, uint32_t n, const uint8_t *bytes, size_t size,
                 uint32_t timeout_ms);

#endif
