/* SPDX-License-Identifier: MIT */
/*
 * store: slab files, which hold the records. They grow at their end and give space back by holes. Read and written in whole blocks past
 * the page cache, so that loads do not push an engine's weights out of memory. Some reads go through it: warm.h.
 */
#ifndef QUIRE_STORE_SLAB_H
#define QUIRE_STORE_SLAB_H

#include "store/record.h"

#include <sys/types.h>

/* Memory that begins at a multiple of a block. */
typedef struct quire_buffer {
    uint8_t *memory, *bytes;
    size_t cap;
} quire_buffer;

bool quire_buffer_create(quire_buffer *b, const quire_allocator *a, size_t bytes);
void quire_buffer_destroy(quire_buffer *b, const quire_allocator *a);

/* One file, shared by the threads of the process. */
typedef struct quire_slab {
    struct quire_slab *next;
    uint32_t id;
    int fd;
    atomic_bool is_direct; /* past the page cache; otherwise the page cache is told to forget */
    uint64_t dev, ino;
    _Atomic int cached_fd; /* for reads through the page cache; -1: not open */
    uint32_t refs;         /* the rest: under the lock of the table */
    bool is_retired;
} quire_slab;

typedef struct quire_slabs {
    quire_allocator allocator;
    const char *directory;
    int directory_fd;
    pthread_mutex_t lock;
    quire_slab *first;
} quire_slabs;

void quire_slabs_init(quire_slabs *s, const quire_allocator *a, const char *directory, int directory_fd);
void quire_slabs_fini(quire_slabs *s);

/* NULL: there is no such file, or it cannot be opened. Give it back. */
quire_slab *quire_slab_take(quire_slabs *s, uint32_t id);
void quire_slab_give(quire_slabs *s, quire_slab *slab);
/* A new file; errno is EEXIST if there is one. */
quire_slab *quire_slab_create(quire_slabs *s, uint32_t id, const uint8_t key[QUIRE_DIRECTORY_KEY]);
/* Whether there is no such file: what could not be taken may be taken later otherwise. */
bool quire_slab_is_gone(const quire_slabs *s, uint32_t id);
/* Whether the name still stands for this file. */
bool quire_slab_is_current(const quire_slabs *s, const quire_slab *slab);
/* The next one who takes it opens the file anew. */
void quire_slab_forget(quire_slabs *s, uint32_t id);
bool quire_slab_remove(quire_slabs *s, uint32_t id); /* the file; false: something has the name still */
/* Calls fn for every slab file. false: there may be more. */
bool quire_slab_each(const quire_slabs *s, void (*fn)(void *ctx, uint32_t id, uint64_t disk_bytes),
                     void *ctx);

/* The directory's key from a slab's first block. VERSION: another version. MAGIC or HEADER: no slab, or damaged. */
quire_miss quire_slab_read_head(const quire_slabs *s, uint32_t id, uint8_t key[QUIRE_DIRECTORY_KEY]);

/* Whole blocks. LENGTH: the file ends before; DISK: an error. */
quire_miss quire_slab_read(quire_slab *slab, void *to, size_t n, uint64_t at);
/* Up to three runs of memory, one after the other from `at` on, in one call; changes v. cached: through the page cache, where it stays. */
struct iovec;
quire_miss quire_slab_read_parts(quire_slab *slab, struct iovec *v, int n, uint64_t at, bool cached);
/* Whether it can be read through the page cache. */
bool quire_slab_open_cached(quire_slabs *s, quire_slab *slab);
/* Begins to read it into the page cache; the file is open for that. */
void quire_slab_prefetch(quire_slab *slab, uint64_t at, uint64_t n);
void quire_slab_uncache(quire_slab *slab, uint64_t at, uint64_t n);
bool quire_slab_write(quire_slab *slab, const void *from, size_t n, uint64_t at);
/* Gives the space back. */
bool quire_slab_punch(quire_slab *slab, uint64_t at, uint64_t n);
/* The file ends here at the latest: what a writer that died left behind goes. */
void quire_slab_cut(quire_slab *slab, uint64_t end);
/* At least so long. */
void quire_slab_extend(quire_slab *slab, uint64_t end);
/* Where data begins, from `at` on; UINT64_MAX: nowhere. */
uint64_t quire_slab_next_data(quire_slab *slab, uint64_t at);
uint64_t quire_slab_disk_bytes(const quire_slab *slab);
/* What a transfer needs: offsets in the file are multiples of a block always. */
static inline bool quire_is_aligned(const void *memory)
{
    return (uintptr_t)memory % 512 == 0;
}

#endif
