/* SPDX-License-Identifier: MIT */
/* cache: what an engine holds. Inside of the rung. */
#ifndef QUIRE_CACHE_CACHE_H
#define QUIRE_CACHE_CACHE_H

#include "attend/tile_list.h"
#include "cache/plan.h"

#define QUIRE_MAX_TOKENS ((uint32_t)INT32_MAX)
#define QUIRE_MAX_LAYOUTS \
    16u /* of the pages that a group of one sequence may hold: attend takes that many formats */

struct quire_pool {
    quire_allocator allocator;
    quire_executor executor;
    quire_pages pages;
    pthread_mutex_t lock; /* plans and spare workspaces */
    uint32_t n_plans, cap_plans;
    quire_plan **plan;
    const quire_plan *main_plan; /* plan[0], what new sequences use; needs no lock, the list may move */
    uint32_t n_spare, cap_spare, n_lent;
    quire_workspace **spare;
    atomic_ullong nan, saturated, recoded;
};

void quire_pool_count(quire_pool *pool, const quire_counts *counts);
/* A workspace nobody uses; NULL if memory is out. Always room to give it back. */
quire_workspace *quire_pool_borrow(quire_pool *pool);
void quire_pool_return(quire_pool *pool, quire_workspace *workspace);
/* The pool's own object for an equal plan, or NULL. */
quire_plan *quire_pool_find_plan(quire_pool *pool, uint64_t fingerprint);

/*
 * Pages of one group, oldest first. The page index of entry i is i for the first n_kept entries, i + gap after
 * them: in a ring the pages between the sinks and the window are gone.
 */
typedef struct quire_table {
    quire_page **page;
    uint32_t n, cap;
    uint32_t n_kept, gap;
} quire_table;

struct quire_seq {
    quire_pool *pool;
    const quire_plan *plan; /* one of the pool's */
    uint32_t length;
    quire_seq_options ring;
    quire_table *table;     /* one per group */
    const quire_step *step; /* the open step it is part of */
};

static inline uint32_t quire_table_index(const quire_table *t, uint32_t entry)
{
    return entry < t->n_kept ? entry : entry + t->gap;
}

/* Entry that holds a page index, or UINT32_MAX. */
static inline uint32_t quire_table_entry(const quire_table *t, uint32_t page_index)
{
    if (page_index < t->n_kept) return page_index < t->n ? page_index : UINT32_MAX;
    if (page_index < t->n_kept + t->gap || page_index - t->gap >= t->n) return UINT32_MAX;
    return page_index - t->gap;
}

/* ring.c: which rows a group still needs when the next query stands at position `next`. */

/* The same of a window and a ring, for who has no sequence. */
uint32_t quire_ring_from(uint32_t window, const quire_seq_options *ring, uint32_t next, uint32_t spare);
uint32_t quire_ring_kept(uint32_t window, const quire_seq_options *ring);
/* Oldest position, sinks aside, that queries from `next` on may see, `spare` more tokens kept. */
uint32_t quire_group_from(const quire_seq *seq, uint32_t group, uint32_t next, uint32_t spare);
/* Pages at the start that stay however far the ring has moved. */
uint32_t quire_group_kept(const quire_seq *seq, uint32_t group);
/* Give up the pages nobody will see once the length is `next`. */
void quire_seq_release(quire_seq *seq, uint32_t next);
/* Whether everything visible at this length is held. */
bool quire_seq_can_trim(const quire_seq *seq, uint32_t length);

/* seq.c */
quire_seq *quire_seq_alloc(quire_pool *pool, const quire_plan *plan, const quire_seq_options *ring);
/* Adds the pages of a group, rows up to `length`, to a list. */
quire_status quire_seq_list_tiles(quire_tile_list *list, const quire_seq *seq, uint32_t group,
                                  uint32_t length);
/* Destroys n sequences of the pool; faster than one by one where neighbours in the list share pages. */
void quire_seqs_destroy(quire_pool *pool, quire_seq *const *seqs, uint32_t n);
bool quire_ring_is_valid(const quire_seq_options *ring);
/* The caller's options, checked; NULL: no ring. */
quire_status quire_ring_read(quire_seq_options *out, const quire_seq_options *options);
/* Whether these rows can be exported, to blocks of n_columns tokens per sequence; fills in the strides. */
quire_status quire_seq_check_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                    uint32_t n, uint32_t n_columns, quire_rows *rows);

/* convert.c: whether attend can take all the formats of its pages. */
bool quire_seq_layouts_fit(const quire_seq *seq);
/* Several sequences of one pool at once; pages they share stay shared. */
quire_status quire_seqs_convert(quire_pool *pool, quire_seq *const *seqs, uint32_t n, const quire_plan *plan,
                                uint32_t flags);

#endif
