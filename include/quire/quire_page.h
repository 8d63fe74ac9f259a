/* SPDX-License-Identifier: MIT */
/*
 * quire_page.h: finished pages from outside. For a store that keeps pages beyond the process; an engine does not
 * need it. A page is finished when all of its 64 tokens are committed; it never changes after that, so its bytes
 * may be read by any thread for as long as it is held.
 */
#ifndef QUIRE_QUIRE_PAGE_H
#define QUIRE_QUIRE_PAGE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_page quire_page;

/* Pages of one group of a plan. Page index 0 holds the tokens 0 to 63. */
typedef struct quire_page_info {
    size_t bytes;         /* as they lie in memory */
    uint64_t fingerprint; /* of codecs, shapes and offsets */
} quire_page_info;

/* EINVAL: there is no such group. */
QUIRE_API quire_status quire_plan_page_info(const quire_plan *plan, uint32_t group, uint32_t page_index,
                                            quire_page_info *out);
/* One more owner of the plan; quire_plan_destroy() drops one. Any thread. */
QUIRE_API quire_plan *quire_plan_hold(const quire_plan *plan);
/* Shape of a layer, as the plan was made with. EINVAL: there is no such layer. */
QUIRE_API quire_status quire_plan_shape(const quire_plan *plan, uint32_t layer, quire_layer *out);

/*
 * The pages that a sequence of n_pages full pages must hold in a group so that it can go on: those before *kept, and those
 * from *first to the last. Without rings and windows all: *kept and *first are 0. options as in quire_seq_create().
 */
QUIRE_API void quire_plan_page_range(const quire_plan *plan, const quire_seq_options *options, uint32_t group,
                                     uint32_t n_pages, uint32_t *kept, uint32_t *first);

/*
 * One more owner of a finished page of the sequence; NULL if it is not finished, no longer held, or not coded as the
 * sequence's plan says. Release it with quire_pool_drop_page(), before the pool is destroyed. Until then the page counts
 * for the budget, and a sequence that trims into it and goes on gets a copy.
 */
QUIRE_API quire_page *quire_seq_hold_page(const quire_seq *seq, uint32_t group, uint32_t page_index);
QUIRE_API const void *quire_page_bytes(const quire_page *page);
QUIRE_API void quire_page_share(quire_page *page); /* one more owner of a page that the caller owns */

/*
 * An empty page of a plan that the pool knows, to be filled through quire_page_room() and then given to a sequence with
 * quire_seq_adopt(), or dropped. Its bytes are undefined. NULL: the budget is used up, or the pool does not know the
 * plan. Any thread.
 */
QUIRE_API quire_page *quire_pool_take_page(quire_pool *pool, const quire_plan *plan, uint32_t group,
                                           uint32_t page_index);
QUIRE_API void *quire_page_room(quire_page *page);
/* Makes the memory of empty pages resident, which is faster for several at once. Nothing but time depends on it. Any thread. */
QUIRE_API void quire_pool_populate(quire_pool *pool, quire_page *const *pages, uint32_t n);
/* One owner less; NULL is accepted. Any thread. */
QUIRE_API void quire_pool_drop_page(quire_pool *pool, quire_page *page);

/*
 * Make a sequence longer by whole pages, to n_pages pages. Its length must be a multiple of 64. find(ctx, group,
 * page_index) is asked for every page from the present length on that quire_plan_page_range() names for the sequence's
 * ring; it gives one owner to the sequence, and must not fail. EINVAL: n_pages is below the present length; EBUSY: it is in
 * an open step; ERANGE: pages before the present length are missing; EMISMATCH: a page is not of the sequence's plan. After
 * any failure the sequence is as before and the pages that were found belong to the caller again.
 */
typedef quire_page *(*quire_find_page_fn)(void *ctx, uint32_t group, uint32_t page_index);
QUIRE_API quire_status quire_seq_adopt(quire_seq *seq, uint32_t n_pages, quire_find_page_fn find, void *ctx);
QUIRE_API quire_pool *quire_seq_pool(const quire_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
