/* SPDX-License-Identifier: MIT */
/*
 * page.h: access to finished pages, for a store that keeps pages after the process has ended. An engine does not
 * need it. A page is finished when all of its 64 tokens are committed. It never changes after that, so any thread may
 * read its bytes for as long as somebody owns it.
 */
#ifndef QUIRE_PAGE_H
#define QUIRE_PAGE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Interface: experimental. */

typedef struct quire_page quire_page;

/* A page of one group of a plan. Page index 0 holds the tokens 0 to 63. */
typedef struct quire_page_info {
    size_t size;
    size_t bytes;         /* size in memory */
    uint64_t fingerprint; /* of codecs, shapes and offsets */
} quire_page_info;

/* EINVAL: the plan has no such group. */
QUIRE_API quire_status quire_plan_page_info(const quire_plan *plan, uint32_t group, uint32_t page_index,
                                            quire_page_info *out);
/* Adds an owner of the plan; quire_plan_destroy() removes one. Any thread may call it. */
QUIRE_API quire_plan *quire_plan_hold(const quire_plan *plan);

/*
 * Which pages of a group a sequence with n_pages full pages must hold to continue: pages 0 to *kept - 1, and pages *first
 * to n_pages - 1. Without a ring or window it must hold all pages: *kept and *first are 0. options: as for
 * quire_seq_create(). EINVAL: the plan has no such group, n_pages are more than a sequence can have, or the options are
 * not valid.
 */
QUIRE_API quire_status quire_plan_page_range(const quire_plan *plan, const quire_seq_options *options,
                                             uint32_t group, uint32_t n_pages, uint32_t *kept,
                                             uint32_t *first);

/*
 * Adds an owner of a finished page of the sequence. Release the page with quire_pool_drop_page() before you destroy the
 * pool. Until then it counts towards the budget, and a sequence that trims into it and continues gets a copy. EINVAL: the
 * plan has no such group; ERANGE: the page is not finished or has been evicted; EMISMATCH: it is not encoded with the
 * codecs of the sequence's plan, because a conversion left it as it was.
 */
QUIRE_API quire_status quire_seq_hold_page(quire_page **out, const quire_seq *seq, uint32_t group,
                                           uint32_t page_index);
QUIRE_API const void *quire_page_bytes(const quire_page *page);
QUIRE_API void quire_page_share(quire_page *page); /* adds an owner of a page that the caller owns */

/*
 * Takes an empty page of a plan that the pool knows. Fill it through quire_page_mutable_bytes(), then give it to a sequence with
 * quire_seq_adopt(), or drop it. Its bytes are undefined until you write them. Any thread may call it. EINVAL: the plan
 * has no such group; EMISMATCH: the pool does not know the plan; EFULL: the budget is used up.
 */
QUIRE_API quire_status quire_pool_take_page(quire_page **out, quire_pool *pool, const quire_plan *plan,
                                            uint32_t group, uint32_t page_index);
QUIRE_API void *quire_page_mutable_bytes(quire_page *page);
/* Makes the memory of empty pages resident, which is faster for several pages at once. The call is optional and affects
 * only speed. Any thread may call it. */
QUIRE_API void quire_pool_populate(quire_pool *pool, quire_page *const *pages, uint32_t n);
/* Removes an owner of a page of this pool; NULL is accepted. Any thread may call it. */
QUIRE_API void quire_pool_drop_page(quire_pool *pool, quire_page *page);

/*
 * Extends a sequence by whole pages, to n_pages pages in total. Its length must be a multiple of 64. The function calls
 * find(ctx, group, page_index) for every page from the current length on that quire_plan_page_range() requires with the
 * sequence's ring. find passes one ownership of the page to the sequence. After any failure the sequence is unchanged,
 * and the pages that find returned belong to the caller again. One more page costs the same at every length. EINVAL:
 * n_pages is below the current length; EBUSY: the sequence is in an open step; ERANGE: pages before the current length
 * have been evicted; EMISMATCH: find returned NULL, or a page is not of the sequence's plan or not of its pool.
 */
typedef quire_page *(*quire_find_page_fn)(void *ctx, uint32_t group, uint32_t page_index);
QUIRE_API quire_status quire_seq_adopt(quire_seq *seq, uint32_t n_pages, quire_find_page_fn find, void *ctx);
QUIRE_API quire_pool *quire_seq_pool(const quire_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
