/* SPDX-License-Identifier: MIT */
/* Pages that are a function of a number, in raw namespaces: what comes back can be judged without computing attention. */
#ifndef QUIRE_TESTS_RAW_KIT_H
#define QUIRE_TESTS_RAW_KIT_H

#include "store/base.h"
#include "store/kit/store_kit.h"

typedef struct kit_raw {
    quire_store *store;
    quire_namespace *ns;
    size_t page_bytes;
    uint64_t salt; /* its pages differ from those of others */
} kit_raw;

void kit_raw_begin(kit_raw *r, quire_store *store, size_t page_bytes);
void kit_raw_end(kit_raw *r);
/* Their tokens: 64 for each page. */
void kit_raw_tokens(uint32_t *tokens, uint64_t text, uint32_t n_pages);
/* The bytes of one page. */
void kit_raw_page(const kit_raw *r, uint64_t text, uint32_t page, uint8_t *bytes);
/* Saves the first n pages of conversation number `text`. */
void kit_raw_save(kit_raw *r, uint64_t text, uint32_t n_pages);
/* Loads them; aborts if a byte is wrong. Returns how many came. */
uint32_t kit_raw_load(kit_raw *r, uint64_t text, uint32_t n_pages, uint32_t timeout_ms);

/* The keys of its pages (NULL: not wanted) and objects. */
void kit_raw_objects(const kit_raw *r, uint64_t text, uint32_t n_pages, quire_key *keys, quire_key *objects);

/* Verifies all that is on disk; aborts at damage or if an object is there twice. Returns how many there are. */
uint64_t kit_verify(quire_store *store);

#endif
