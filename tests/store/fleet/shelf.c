/* SPDX-License-Identifier: MIT */
/* A disk tier without a disk. All objects of a tier have one size. */
#include "store/fleet/shelf.h"

#include "store/fleet/table.h"

#include <stdlib.h>
#include <sys/stat.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* functions of the store that do nothing here */

static uint64_t clock_us = 1;

uint64_t quire_now(void)
{
    return clock_us * 1000;
}

uint64_t quire_now_us(void)
{
    return clock_us;
}

void shelf_set_clock(uint64_t us)
{
    clock_us = us;
}

/* ---------------------------------------------------------------- the index */

/* A row: what the index keeps of an object that its table does not. */
typedef struct row {
    uint64_t tick, at, bytes;
    uint32_t slab;
} row;

typedef struct shelf {
    quire_disk disk; /* first: found from it */
    table table;     /* by key, in the order of use */
    row *rows;       /* of the entries of the table */
    uint32_t n_rows;
    quire_index_head head;
    quire_place *free;
    size_t n_free, cap_free;
} shelf;

/* The path of the index is handed to each connection; here it leads to the shelf. */
static shelf *shelf_of(const quire_index *ix)
{
    return (shelf *)(void *)ix->path;
}

quire_index_rc quire_index_begin(quire_index *ix, bool write, uint32_t timeout_ms)
{
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_end(quire_index *ix, quire_index_rc rc)
{
    return rc;
}

quire_index_rc quire_index_read_head(quire_index *ix, quire_index_head *out)
{
    *out = shelf_of(ix)->head;
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_write_head(quire_index *ix, const quire_index_head *h)
{
    shelf_of(ix)->head = *h;
    return QUIRE_INDEX_OK;
}

static void fill(const shelf *s, uint32_t i, quire_entry *out)
{
    const row *r = &s->rows[i];
    *out = (quire_entry){.id = i,
                         .object = s->table.entries[i].key,
                         .ns = 1,
                         .place = {r->slab, r->at, r->bytes},
                         .version = QUIRE_RECORD_VERSION,
                         .tick = r->tick};
}

quire_index_rc quire_index_find(quire_index *ix, const quire_key *object, quire_entry *out)
{
    const shelf *s = shelf_of(ix);
    uint32_t i = table_find(&s->table, object);
    if (!i) return QUIRE_INDEX_NONE;
    fill(s, i, out);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_insert(quire_index *ix, const quire_entry *e)
{
    shelf *s = shelf_of(ix);
    uint32_t i = table_add(&s->table, &e->object);
    if (s->n_rows < s->table.cap) {
        s->n_rows = s->table.cap;
        s->rows = (row *)realloc(s->rows, sizeof *s->rows * s->n_rows);
        if (!s->rows) abort();
    }
    s->rows[i] = (row){e->tick, e->place.at, e->place.bytes, e->place.slab};
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_delete(quire_index *ix, const quire_entry *e)
{
    table_remove(&shelf_of(ix)->table, (uint32_t)e->id);
    return QUIRE_INDEX_OK;
}

/* Ticks only go up, so the order of calls is that of the ticks. */
quire_index_rc quire_index_touch(quire_index *ix, int64_t id, uint64_t tick)
{
    shelf *s = shelf_of(ix);
    if (tick < s->rows[s->table.newest].tick) abort();
    s->rows[id].tick = tick;
    table_use(&s->table, (uint32_t)id);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_oldest(quire_index *ix, quire_entry *out)
{
    const shelf *s = shelf_of(ix);
    if (!s->table.oldest) return QUIRE_INDEX_NONE;
    fill(s, s->table.oldest, out);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_covers(quire_index *ix, const quire_place *place)
{
    return QUIRE_INDEX_NONE;
}

quire_index_rc quire_index_namespace(quire_index *ix, const quire_namespace_row *of, int64_t *out)
{
    *out = 1;
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_tenant_bytes(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], uint64_t *bytes)
{
    *bytes = shelf_of(ix)->head.live_bytes;
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_oldest_of(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], quire_entry *out,
                                     uint64_t *until)
{
    *until = UINT64_MAX;
    return quire_index_oldest(ix, out);
}

quire_index_rc quire_index_oldest_in(quire_index *ix, int64_t ns, quire_entry *out)
{
    return quire_index_oldest(ix, out);
}

/* Free space: runs of one size, which need not be joined. */
quire_index_rc quire_index_add_free(quire_index *ix, const quire_place *place)
{
    shelf *s = shelf_of(ix);
    if (s->n_free == s->cap_free) {
        s->cap_free = s->cap_free ? 2 * s->cap_free : 64;
        s->free = (quire_place *)realloc(s->free, sizeof *s->free * s->cap_free);
        if (!s->free) abort();
    }
    s->free[s->n_free++] = *place;
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_take_free(quire_index *ix, uint64_t bytes, quire_place *out)
{
    shelf *s = shelf_of(ix);
    if (!s->n_free) return QUIRE_INDEX_NONE;
    if (s->free[s->n_free - 1].bytes != bytes) abort();
    *out = s->free[--s->n_free];
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_take_largest(quire_index *ix, quire_place *out)
{
    shelf *s = shelf_of(ix);
    if (!s->n_free) return QUIRE_INDEX_NONE;
    *out = s->free[--s->n_free];
    return QUIRE_INDEX_OK;
}

/* What a simulation does not do: pins, tenants, versions, checks. */
#define NEVER(name, ...)             \
    quire_index_rc name(__VA_ARGS__) \
    {                                \
        abort();                     \
    }
NEVER(quire_index_pin, quire_index *ix, const quire_entry *e, bool pinned)
NEVER(quire_index_set_version, quire_index *ix, const quire_entry *e, uint32_t version)
NEVER(quire_index_drop_free, quire_index *ix, uint32_t slab, uint64_t *bytes)
NEVER(quire_index_next_namespaces, quire_index *ix, int64_t after, quire_namespace_row *out, uint32_t cap,
      uint32_t *n)
NEVER(quire_index_next, quire_index *ix, int64_t after, quire_entry *out, uint32_t cap, uint32_t *n)

/* ------------------------------------------------------------------- slabs */

static quire_slab the_slab = {.fd = -1, .cached_fd = -1};
static uint8_t the_buffer[QUIRE_WRITE_BUFFER + 3 * QUIRE_BLOCK];

bool quire_buffer_create(quire_buffer *b, const quire_allocator *a, size_t bytes)
{
    *b = (quire_buffer){the_buffer, the_buffer, bytes};
    return bytes <= sizeof the_buffer;
}

void quire_buffer_destroy(quire_buffer *b, const quire_allocator *a)
{
    *b = (quire_buffer){0};
}

quire_slab *quire_slab_take(quire_slabs *s, uint32_t id)
{
    return &the_slab;
}

void quire_slab_give(quire_slabs *s, quire_slab *slab) {}

quire_slab *quire_slab_create(quire_slabs *s, uint32_t id, const uint8_t key[QUIRE_DIRECTORY_KEY])
{
    return quire_slab_take(s, id);
}

#define ALWAYS(type, name, value, ...) \
    type name(__VA_ARGS__)             \
    {                                  \
        return value;                  \
    }
ALWAYS(bool, quire_slab_is_gone, false, const quire_slabs *s, uint32_t id)
ALWAYS(bool, quire_slab_is_current, true, const quire_slabs *s, const quire_slab *slab)
ALWAYS(bool, quire_slab_remove, true, quire_slabs *s, uint32_t id)
ALWAYS(quire_miss, quire_slab_read_head, QUIRE_MISS_NONE, const quire_slabs *s, uint32_t id,
       uint8_t key[QUIRE_DIRECTORY_KEY])
ALWAYS(quire_miss, quire_slab_read, QUIRE_MISS_DISK, quire_slab *slab, void *to, size_t n, uint64_t at)
ALWAYS(quire_miss, quire_slab_read_parts, QUIRE_MISS_DISK, quire_slab *slab, struct iovec *v, int n,
       uint64_t at, bool cached)
ALWAYS(bool, quire_slab_open_cached, false, quire_slabs *s, quire_slab *slab)
ALWAYS(bool, quire_slab_write, true, quire_slab *slab, const void *from, size_t n, uint64_t at)
ALWAYS(bool, quire_slab_punch, true, quire_slab *slab, uint64_t at, uint64_t n)
ALWAYS(bool, quire_slab_each, true, const quire_slabs *s,
       void (*fn)(void *ctx, uint32_t id, uint64_t disk_bytes), void *ctx)
ALWAYS(void, quire_slab_forget, , quire_slabs *s, uint32_t id)
ALWAYS(void, quire_slab_prefetch, , quire_slab *slab, uint64_t at, uint64_t n)
ALWAYS(void, quire_slab_uncache, , quire_slab *slab, uint64_t at, uint64_t n)
ALWAYS(void, quire_slab_cut, , quire_slab *slab, uint64_t end)
ALWAYS(void, quire_slab_extend, , quire_slab *slab, uint64_t end)

/* One process, and no thread that keeps it in order. */
ALWAYS(bool, quire_disk_lock, true, quire_disk *d, int part, bool alone, uint32_t timeout_ms)
ALWAYS(void, quire_disk_unlock, , quire_disk *d, int part)
ALWAYS(void, quire_disk_wake_keeper, , quire_disk *d)

/* --------------------------------------------------------------------- open */

quire_disk *shelf_create(uint64_t cap_bytes, uint64_t page_cache_bytes, quire_counters *counters)
{
    static char nowhere[] = "", root[] = "/";
    static quire_mac *mac;
    static const uint8_t key[QUIRE_DIRECTORY_KEY];
    struct stat st;
    shelf *s = (shelf *)calloc(1, sizeof *s);
    if (!s || stat(root, &st)) abort();
    quire_disk *d = &s->disk;
    d->allocator = quire_mem_allocator(NULL);
    if (!mac) mac = quire_mac_create(&d->allocator, key);
    d->mac = mac;
    d->counters = counters;
    d->directory = root; /* is there, and is not written to */
    d->index_path = nowhere;
    d->directory_fd = d->head_fd = -1;
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    d->slabs.allocator = d->allocator;
    d->cap_bytes = s->head.cap_bytes = cap_bytes;
    s->head.next_slab = 1;
    d->writes_headers_only = true;
    pthread_mutex_init(&d->quotas.lock, NULL);
    pthread_mutex_init(&d->write_lock, NULL);
    for (uint32_t i = 0; i < QUIRE_READERS; i++) pthread_mutex_init(&d->reader_lock[i], NULL);
    for (uint32_t i = 0; i < QUIRE_READERS; i++) d->reader[i].path = (char *)s;
    d->writer.path = (char *)s;
    quire_warm_init(&d->warm, &d->slabs, page_cache_bytes);
    return d;
}

void shelf_destroy(quire_disk *d)
{
    shelf *s = (shelf *)d;
    if (!s) return;
    quire_warm_fini(&d->warm);
    table_free(&s->table);
    free(s->rows);
    free(s->free);
    free(s);
}

uint64_t shelf_objects(const quire_disk *d)
{
    return ((const shelf *)d)->head.n_objects;
}

uint64_t shelf_bytes(const quire_disk *d)
{
    return ((const shelf *)d)->head.live_bytes;
}

bool shelf_read(quire_disk *d, const quire_key *object)
{
    quire_entry e;
    quire_place place;
    if (quire_index_find(&d->reader[0], object, &e)) return false;
    bool kept = quire_warm_find(&d->warm, object, &place);
    bool through = quire_warm_begin(&d->warm, object, &e.place);
    if (through) quire_warm_end(&d->warm, object, &e.place, false);
    return kept && through;
}
