/* SPDX-License-Identifier: MIT */
/* store: a namespace: identity, plan or raw layout, what is under way for it. */
#ifndef QUIRE_STORE_NAMESPACE_H
#define QUIRE_STORE_NAMESPACE_H

#include "store/chain.h"
#include "store/object.h"

#include <quire/page.h>

/* Objects handed in a short while ago, by the first bytes of their keys: a save after every step offers the same pages again. */
#define QUIRE_RECENT 8192u
#define QUIRE_RECENT_SECONDS 30u

struct quire_namespace {
    struct quire_store *store;
    quire_key root, seal_key;
    uint8_t tenant[QUIRE_TENANT];
    quire_owner owner;      /* what the tiers use: counters, names, the key again */
    quire_plan *plan;       /* NULL: raw */
    quire_seq_options ring; /* of lookups */
    uint32_t n_groups;
    size_t raw_bytes;
    uint64_t raw_fingerprint;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint64_t n_under_way;         /* blobs and loads */
    _Atomic uint32_t n_forgotten; /* how often an object was to be handed in again */
    uint64_t n_removals;          /* of the store, as far as `recent` knows */
    uint64_t recent[QUIRE_RECENT];
    uint32_t recent_time[QUIRE_RECENT];
};

const quire_allocator *quire_namespace_allocator(const quire_namespace *ns);
void quire_namespace_enter(quire_namespace *ns);
void quire_namespace_leave(quire_namespace *ns);
quire_page_info quire_namespace_page(const quire_namespace *ns, uint32_t group, uint32_t page_index);
/* As quire_plan_page_range(). */
void quire_namespace_range(const quire_namespace *ns, const quire_seq_options *ring, uint32_t group,
                           uint32_t n_pages, uint32_t *kept, uint32_t *first);
/* keys: those of the chain; the object's own is computed by quire_chain_objects(). */
quire_object_id quire_namespace_object(quire_namespace *ns, const quire_key *keys, const quire_key *object,
                                       uint32_t group, uint32_t page_index);
/* Whether sequences like this one belong to the namespace. */
quire_status quire_namespace_check_seq(const quire_namespace *ns, const quire_seq *seq);
/* A blob with one owner: a page that the caller owns and goes on owning, or a copy of a raw page. NULL: no memory. */
struct quire_blob *quire_namespace_share(quire_namespace *ns, quire_pool *pool, quire_page *page);
struct quire_blob *quire_namespace_copy(quire_namespace *ns, const void *bytes);
/* The object is not there any more, or no good: it can be handed in again. */
void quire_namespace_forget(quire_namespace *ns, const quire_key *object);
/* Tell the tiers that these objects of a chain were used. */
void quire_namespace_touch(quire_namespace *ns, const quire_key *objects, uint32_t n);
/* Tell them of pages that a chain has saved: now, or only if that was not done a short while ago. */
void quire_chain_touch(quire_chain *chain, bool now);

#endif
