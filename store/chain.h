/* SPDX-License-Identifier: MIT */
/* store: keys of pages and objects (docs/formats/store.md). A page key says everything about the prefix that ends with
 * its page. */
#ifndef QUIRE_STORE_CHAIN_H
#define QUIRE_STORE_CHAIN_H

#include "store/base.h"

/* A prompt and its keys. */
struct quire_chain {
    quire_namespace *ns;
    uint32_t *tokens;   /* all of them: a chain can be cut anywhere */
    quire_media *media; /* by position */
    quire_key *keys;    /* [page] */
    quire_key *objects; /* [group][cap_pages] */
    uint32_t *taken;    /* [group][cap_pages]: the second in which the page was handed in; 0: it was not */
    uint32_t n_tokens, n_media, n_pages;
    uint32_t cap_tokens, cap_media, cap_pages, n_groups;
    uint32_t n_forgotten; /* of the namespace, when `taken` was last valid */
    uint32_t n_untouched; /* pages that were used since the tiers were last told */
    uint64_t touched;     /* when they were told */
};

/* The caller's prompt, checked. */
quire_status quire_prompt_read(quire_prompt *own, const quire_prompt *prompt);
/* keys[0..n_pages): keys of the first pages of the prompt, which must be that long. */
quire_status quire_chain_keys(quire_key *keys, const quire_key *root, const quire_prompt *prompt,
                              uint32_t n_pages);
/* objects[i] for keys[i], one group. */
quire_status quire_chain_objects(quire_key *objects, const quire_key *keys, uint32_t n, uint32_t group);

/* Of the first n_tokens of a prompt that was read. */
quire_status quire_chain_of_prompt(quire_chain **out, quire_namespace *ns, const quire_prompt *prompt,
                                   uint32_t n_tokens);
/* The objects of one group. */
static inline const quire_key *quire_chain_group(const quire_chain *c, uint32_t group)
{
    return c->objects + (size_t)group * c->cap_pages;
}

#endif
