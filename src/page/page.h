/* SPDX-License-Identifier: MIT */
/* page: 64 tokens of every layer in a group: one block of memory, one reference count. */
#ifndef QUIRE_PAGE_PAGE_H
#define QUIRE_PAGE_PAGE_H

#include "tile/tile.h"

#include <pthread.h>
#include <stdatomic.h>

/* Pages that hold this many tokens. */
static inline uint32_t quire_pages_for(uint32_t tokens)
{
    return tokens / QUIRE_PAGE_TOKENS + (tokens % QUIRE_PAGE_TOKENS != 0);
}

/* Where the tiles of one layer lie in a page: head h has its K tile at offset + h * head_stride, its V tile right after. */
typedef struct quire_page_layer {
    size_t offset;
    size_t head_stride;
    uint32_t n_heads;
    const quire_tile_format *k;
    const quire_tile_format *v; /* NULL: V is part of K */
} quire_page_layer;

/* What a page holds. Owned by a plan. */
typedef struct quire_page_layout {
    uint64_t fingerprint; /* of every format, shape and offset */
    size_t bytes;         /* a multiple of 64 */
    uint32_t n_layers;
    quire_page_layer *layer; /* in the order of the group */
} quire_page_layout;

/* Fills offsets, bytes and fingerprint from the formats and head counts of layer[]. */
void quire_page_layout_finish(quire_page_layout *layout);

typedef struct quire_page {
    atomic_uint refs;
    bool dirty;    /* memory may hold an earlier page's bytes */
    bool resident; /* in use, or kept for reuse */
    const quire_page_layout *layout;
    uint8_t *data;
    struct quire_page_class *size_class;
    struct quire_page *next_free;
} quire_page;

/* 2 MiB of a class's memory, aligned: the place of one huge OS page. Each count is at most 2 MiB / 64 bytes + 1. */
typedef struct quire_page_region {
    uint32_t next;               /* in the list of whole regions that wait */
    uint16_t n_live, n_resident; /* pages that lie in it, at least partly: in use; resident */
    uint8_t state;
    bool is_listed;
    uint8_t n_split,
        n_skip; /* times it was split since it was empty; times that it shall not wait when it is whole */
} quire_page_region;

/* Pages of one size: address space for as many as the budget allows. */
typedef struct quire_page_class {
    struct quire_pages *pages;      /* the memory that it is a part of */
    size_t bytes;                   /* of layouts it serves */
    size_t stride;                  /* bytes a page takes of the budget */
    uint32_t n_slots, n_used_slots; /* slots ever handed out */
    uint32_t n_promised;            /* pages that quire_pages_promise_page() has set memory aside for */
    uint8_t *memory;
    quire_page *page;              /* descriptors, in reserved address space too */
    size_t open_memory, open_page; /* bytes of both that are accessible */
    quire_page *free;              /* released, still resident */
    quire_page *clean;             /* released, memory given back */
    quire_page_region *region;     /* NULL: only small OS pages */
    uint32_t n_regions;
    uint32_t waiting; /* first region of those that became whole */
    uint32_t partly;  /* the region whose returned pages are still resident, because it is one huge page */
    struct quire_page_class *next;
} quire_page_class;

/* Bytes that a page takes of the budget: from 256 KiB on whole OS pages, which costs less than 1.6 %. */
static inline size_t quire_page_stride(size_t bytes)
{
    return bytes < 64 * 4096 ? bytes : (bytes + 4095) / 4096 * 4096;
}

/* Makes 2 MiB one huge OS page. 0, or what errno says. */
typedef int quire_collapse_fn(void *region, size_t os_page);

/* The page memory of a pool. */
typedef struct quire_pages {
    quire_allocator allocator;
    pthread_mutex_t lock;
    size_t budget, used, resident, peak;
    size_t os_page;
    size_t kept; /* part of resident: released pages whose memory was not given back */
    uint64_t n_pages, n_copies;
    quire_page_class *classes;
    quire_collapse_fn *collapse; /* NULL: no huge pages */
    atomic_uint n_waiting;       /* regions in lists */
    uint32_t n_failed, n_pause;  /* failures in a row; regions that are left as they are */
    uint64_t n_asked, n_huge;    /* regions that the system was asked for; with success */
} quire_pages;

quire_status quire_pages_init(quire_pages *pages, const quire_allocator *allocator, size_t budget);
void quire_pages_fini(quire_pages *pages);
/* Make pages of this layout available. */
quire_status quire_pages_add(quire_pages *pages, const quire_page_layout *layout);

/* One page of zeros with one reference, NULL if the budget or the system's memory is used up. The layout must have been
 * added. */
quire_page *quire_page_take(quire_pages *pages, const quire_page_layout *layout);
/* The same in two parts, so that all pages can be taken and settled before the first is touched. */
quire_page *quire_page_take_uncleared(quire_pages *pages, const quire_page_layout *layout);
void quire_page_clear(quire_page *page);
/* The same with undefined bytes, for who fills all of them at once. */
quire_page *quire_page_take_raw(quire_pages *pages, const quire_page_layout *layout);
/* Makes the memory of pages that will be filled resident at once: a fault for each OS page costs more than filling it. Nothing but
 * time depends on it. n at most QUIRE_POPULATE. */
#define QUIRE_POPULATE 16u
void quire_pages_populate(quire_pages *pages, quire_page *const *page, uint32_t n);
/* Asks for huge OS pages where pages in use now own 2 MiB whole. To be called after pages were taken and before they are filled: then
 * nothing needs to be copied. Nothing but time depends on it. */
void quire_pages_settle(quire_pages *pages);
/* A copy of the tiles of another page of the same layout. */
quire_page *quire_page_copy(quire_pages *pages, const quire_page *from);

static inline void quire_page_hold(quire_page *page)
{
    atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
}

/* The caller holds one of the references; nobody else can add one meanwhile if it is the only one. */
static inline bool quire_page_is_shared(quire_page *page)
{
    return atomic_load_explicit(&page->refs, memory_order_acquire) > 1;
}

/* NULL is accepted. */
void quire_page_drop(quire_pages *pages, quire_page *page);
/* The same for n owners at once. */
void quire_page_drop_many(quire_pages *pages, quire_page *page, uint32_t n);

/*
 * A share of the budget set aside, so that a series of takes and drops cannot fail half-way. take uses up the share,
 * a drop that frees its page gives to it.
 */
bool quire_pages_promise(quire_pages *pages, size_t bytes);
void quire_pages_forgive(quire_pages *pages, size_t bytes);
/* Also sets aside the memory of one page, which quire_page_take_promised() uses up. False: the system has none. */
bool quire_pages_promise_page(quire_pages *pages, const quire_page_layout *layout);
void quire_pages_forgive_page(quire_pages *pages, const quire_page_layout *layout);
quire_page *quire_page_take_promised(quire_pages *pages, const quire_page_layout *layout, size_t *promise);
void quire_page_drop_promised(quire_pages *pages, quire_page *page, size_t *promise);

/* Format of one side of a layer (number within the group); NULL: V is part of K. */
static inline const quire_tile_format *quire_page_format(const quire_page *page, uint32_t layer,
                                                         quire_side side)
{
    const quire_page_layer *l = &page->layout->layer[layer];
    return side == QUIRE_K ? l->k : l->v;
}

/* Tile of one side, layer and head. There is no V tile if V is part of K. */
static inline uint8_t *quire_page_tile(const quire_page *page, uint32_t layer, quire_side side, uint32_t head)
{
    const quire_page_layer *l = &page->layout->layer[layer];
    return page->data + l->offset + head * l->head_stride + (side == QUIRE_V ? l->k->tile_bytes : 0);
}

#endif
