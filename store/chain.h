/* SPDX-License-Identifier: MIT */
/* store: keys of pages and objects (docs/formats/store.md). A page key says everything about the prefix that ends with
 * its page. */
#ifndef QUIRE_STORE_CHAIN_H
#define QUIRE_STORE_CHAIN_H

#include "store/base.h"

/* The caller's prompt, checked. */
quire_status quire_prompt_read(quire_prompt *own, const quire_prompt *prompt);
/* keys[0..n_pages): keys of the first pages of the prompt, which must be that long. */
quire_status quire_chain_keys(quire_key *keys, const quire_key *root, const quire_prompt *prompt,
                              uint32_t n_pages);
/* objects[i] for keys[i], one group. */
quire_status quire_chain_objects(quire_key *objects, const quire_key *keys, uint32_t n, uint32_t group);

#endif
