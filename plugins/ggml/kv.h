/* SPDX-License-Identifier: MIT */
/*
 * kv.h: the host's KV cache as tiles.
 *
 * The host declares one K and one V tensor per layer: rows (all KV heads of one cell) x cells x streams, in some type.
 * We give it the addresses it wants and keep something else: tiles of 64 cells, a page for 64 cells of every tensor of
 * the buffer. Nothing is resident before a cell is written.
 *
 *   open      tensors are known, head sizes are learned from the attention ops that the host asks about
 *   settled   at the first use: the plan is made, every tensor has its codec and its place in the page
 *   plain     the host needs the bytes itself (an op we do not run): ordinary host memory, as if we were not there
 *
 * A tensor becomes plain with the other side of its layer, not with the whole buffer: to the host each tensor of the cache
 * is in a buffer of its own, whose type says whether the CPU may touch it.
 */
#ifndef QUIRE_GGML_KV_H
#define QUIRE_GGML_KV_H

#include "host.h"

#include <quire/quire.h>

#include <pthread.h>

#define CELLS QUIRE_PAGE_TOKENS /* of a tile */

struct kv_buffer;
struct kv_context;

struct kv { /* a K or V tensor of the host */
    struct kv_buffer *owner;
    struct host_buffer *host; /* the one that the host finds in the tensor */
    char *declared;           /* the address the host knows; holds the bytes while the tensor has no format */
    const struct host_tensor *
        *streams_of; /* views that the host made together with it, to save and copy rows */
    uint32_t n_streams_of;
    char name[HOST_MAX_NAME];
    int type; /* declared */
    uint32_t layer;
    quire_side side;
    uint32_t row, cells, streams; /* values per row; cells per stream */
    size_t row_bytes;             /* declared */

    /* Learned from attention; 0 until then. d_v: V is the first d_v channels of this K. */
    uint32_t n_q_heads, n_heads, d, d_v;

    bool stored; /* a graph was laid out that writes it */
    bool plain;

    /* Settled. format NULL: plain. */
    const char *codec;
    quire_tile_format *format;
    size_t tile_bytes, head_bytes; /* of one head: a tile, a row in the codec's own bytes */
    size_t page_offset;
    bool marked; /* rows travel as code bytes behind a mark (marks.h) */
    uint32_t mark;
    uint64_t *refused; /* a bit for each row that could not be restored; NULL: none */
    uint64_t n_refused;
    uint32_t *high;                 /* per stream: cells from here on were never written */
    struct quire_stat_policy *stat; /* where its rows are counted; NULL: not yet */
    bool holds_tokens;              /* its rows are counted as tokens */
};

enum kv_state { KV_OPEN, KV_SETTLED, KV_PLAIN };

struct kv_buffer { /* context of a host buffer */
    char *base;    /* address space of the declared size */
    size_t size;
    struct host_buffer *host;
    enum kv_state state;
    struct kv **kv;
    uint32_t n_kv;
    struct kv_context *context; /* NULL: no KV tensors here */

    bool said_refused;
    bool cleared; /* as the host does when all tensors are made: what comes later belongs to graphs */

    char *pages; /* settled */
    size_t page_bytes, pages_size;
    uint32_t stream_pages;
};

/* A context of the host: its full and window layers may lie in two buffers. */
enum { MAX_BUFFERS = 8 };

struct kv_context {
    struct kv_buffer *buffer[MAX_BUFFERS];
    uint32_t n_buffers;
    bool settled;
    bool said_plain, said_slow;
    struct recorder *recorder;
    char *report;            /* the plan in words, lines; told once */
    struct kv_context *next; /* while its buffers are being made: the one that another thread makes */
    pthread_t maker;
};

/* --------------------------------------------------------------------- buffer */

void *kv_reserve(size_t size); /* address space that costs nothing until it is touched; NULL: there is none */
struct kv_buffer *kv_buffer_create(size_t size); /* NULL: no memory */
void kv_buffer_destroy(struct kv_buffer *);
void kv_buffer_clear(struct kv_buffer *);

/* ---------------------------------------------------------------------- tensors */

/* The device's buffer types. KV memory begins as host memory; with the first tensor of the cache it becomes ours alone. */
extern struct host_buffer_type buft_host, buft_kv;
bool kv_owns(const struct host_buffer *);
/* Whether a tensor is one of the cache by its name and shape. */
bool kv_is_root(const struct host_tensor *, quire_side *, uint32_t *layer);
/* Whether a tensor, or what it is a view of, is of the cache by name and buffer; data may not exist yet. */
bool kv_is_cache(const struct host_tensor *);
/* The record of a tensor of the cache, or NULL: not ours, or plain. */
struct kv *kv_of(const struct host_tensor *);
/* Of the cache, and not given back to the host. Without data yet (the host measures): by name alone. */
bool kv_is_ours(const struct host_tensor *);

/* ------------------------------------------------------------------------ rows */

/* Row numbers run over all streams, as the host counts them. Every stream begins a page. */
static inline uint64_t kv_page(const struct kv *kv, uint64_t row)
{
    return row / kv->cells * kv->owner->stream_pages + row % kv->cells / CELLS;
}

static inline char *kv_tile(const struct kv *kv, uint64_t row)
{
    return kv->owner->pages + kv_page(kv, row) * kv->owner->page_bytes + kv->page_offset;
}

/* Whether a view for attention has the heads of one stream where others have streams, each with its own mask: a model that
 * selects rows for each head does that. */
bool kv_has_heads_apart(const struct kv *, const struct host_tensor *);

/* A row that nobody has written; what lies there means nothing. */
static inline bool kv_is_unwritten(const struct kv *kv, uint64_t row)
{
    return row % kv->cells >= kv->high[row / kv->cells];
}

/* How many of n rows from this one on lie in the same tile. */
static inline uint32_t kv_run(const struct kv *kv, uint64_t row, uint64_t n)
{
    uint32_t cell = (uint32_t)(row % kv->cells), left = CELLS - cell % CELLS;
    if (left > kv->cells - cell) left = kv->cells - cell;
    return n < left ? (uint32_t)n : left;
}

static inline uint32_t kv_tile_row(const struct kv *kv, uint64_t row)
{
    return (uint32_t)(row % kv->cells % CELLS);
}

/* Notes that rows were written: memory in use, and no longer refused. */
void kv_wrote(struct kv *, uint64_t row, uint64_t n);
void kv_set_high(struct kv *, uint64_t stream, uint32_t high);
void kv_refuse(struct kv *, uint64_t row);
bool kv_is_refused(const struct kv *, uint64_t row);

quire_form kv_float_form(int type); /* of f32, f16 and bf16 */
/* n rows of one tile, each head head_stride after the one before. Only for tensors with a format, as the next two. */
void kv_decode(const struct kv *, uint64_t row, uint32_t n, quire_form, void *to, size_t head_stride,
               size_t row_stride);
/* The same as floats, [n][row], and back. */
void kv_read(const struct kv *, uint64_t row, uint32_t n, float *values);
void kv_write(struct kv *, uint64_t row, uint32_t n, const float *values);

/* A tile of zeros beside the cache, for free(); NULL: no memory. */
void *tile_create(const quire_tile_format *);
/* n rows through it, from one form to another. false: a scale is not finite. */
bool tile_recode(const quire_tile_format *, void *tile, uint32_t head, uint32_t n, quire_form from_form,
                 const void *from, size_t from_stride, quire_form to_form, void *to, size_t to_stride);

/* ----------------------------------------------------------------------- state */

/* Bytes of rows as the host sees them, any offset and size within the tensor. The plan is made, or nothing was learned yet
 * that one could be made of: then rows wait as declared. */
void state_get(struct kv *, size_t offset, size_t size, char *bytes);
/* The same for an op that the host runs itself: values of the declared type, never a mark. */
void state_get_values(struct kv *, size_t offset, size_t size, char *bytes);
void state_set(struct kv *, size_t offset, size_t size, const char *bytes);
bool state_is_waiting(const struct kv *);
void state_import(struct kv *);     /* rows that were set before the plan was made */
void state_make_plain(struct kv *); /* the same before the tensor becomes plain memory instead */
void state_fill(struct kv *, size_t offset, size_t size, uint8_t value);
/* Whole rows from one tensor to another of the same format. false: get and set instead. */
bool state_copy(struct kv *to, uint64_t to_row, const struct kv *from, uint64_t from_row, uint64_t n);

/* -------------------------------------------------------------------- recorder */

struct recorder; /* writes down the rows that pass by, or what a profile needs of them */
struct recorder *recorder_create(const quire_geometry *);
/* k: the rows of K that are about to be shown; where they come from tells how positions turn them. *positions: theirs, or
 * NULL: the cells they go to. false: the positions are lost, and the rows are not to be shown. */
bool recorder_begin(struct recorder *, uint32_t layer, const struct host_tensor *k,
                    const int32_t **positions);
void recorder_row(struct recorder *, uint32_t layer, quire_side, uint32_t position, const float *row);
/* behind: how many tokens of the same batch come after this one. */
void recorder_q(struct recorder *, uint32_t layer, uint32_t behind, const float *row);
void recorder_finish(struct recorder *); /* writes the files and frees it; NULL: nothing */

#endif
