/* SPDX-License-Identifier: MIT */
/*
 * slot_file: files that llama-server writes for a slot (/slots?action=save): tokens, then for every layer the K rows and the V
 * rows of its cells, in the types the server was started with. Reading trusts nothing; writing gives a file that the server
 * restores.
 */
#ifndef QUIRE_TOOLS_SLOT_FILE_H
#define QUIRE_TOOLS_SLOT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SLOT_MAX_LAYERS 1024u
#define SLOT_ROTATION_UNKNOWN UINT32_MAX
#define SLOT_MAX_ROTATION 65536u
#define SLOT_FIRST_VERSION 3u
#define SLOT_LAST_VERSION 4u

/* K or V of one layer. */
typedef struct slot_rows {
    int32_t type; /* ggml's number */
    uint64_t row_bytes;
    uint64_t kept;          /* first bytes of a row that pages contain; the others are 0. At most row_bytes */
    uint32_t element_bytes; /* of V that lies transposed; else 0 */
    size_t at;              /* of the first row in the file */
} slot_rows;

/* What is the same for every prompt of a server: types and sizes. */
typedef struct slot_layout {
    uint32_t version; /* of the file: 3 or 4 */
    bool v_transposed;
    /* llama.cpp rotates quantized rows, by matrices of this size; 0: not rotated. Version 3 does not say it. */
    uint32_t rotation_k, rotation_v;
    uint32_t n_layers, n_v; /* layers with V: all or none */
    slot_rows k[SLOT_MAX_LAYERS], v[SLOT_MAX_LAYERS];
    size_t page_bytes; /* what is kept of the rows of 64 tokens, layer after layer, K then V */
} slot_layout;

typedef struct slot_file {
    uint8_t *bytes;
    size_t n;
    bool is_mapped; /* bytes are those of the file itself */
    slot_layout layout;
    uint32_t *tokens, n_tokens; /* at least n_cells */
    uint32_t n_cells;           /* cell i has position i */
    /* Of a state that was read as such: what follows the first cache, in a form that only the server knows. */
    size_t tail_at, tail_bytes;
    bool lacks_v; /* no V rows follow the K rows */
} slot_file;

/* NULL, or one sentence about what is wrong. */
const char *slot_read(slot_file *out, const char *path);
/* The same without a copy: of a file that nobody else changes or shortens as long as it is used. It may be removed. */
const char *slot_map(slot_file *out, const char *path);
/* The same of bytes from malloc(), which it takes over in any case. */
const char *slot_parse(slot_file *out, uint8_t *bytes, size_t n);
void slot_free(slot_file *slot);

/*
 * slot_map() and slot_parse() for models with windows or recurrent layers, whose state can be used at its end alone: rows of the first cache, if it has
 * those of all tokens, and a tail. Without such a first cache all is tail, and n_cells and layout.n_layers are 0. Checkpoints, which
 * servers of llama.cpp 0.7 append, are left out. like: the layout of another state of the server, which tells whether V and a first cache
 * are expected; NULL: not known, and then the state must be that of one token, because those of more can be read in two ways.
 */
const char *slot_map_state(slot_file *out, const char *path, const slot_layout *like);
const char *slot_parse_state(slot_file *out, uint8_t *bytes, size_t n, const slot_layout *like);
/* Bytes of a tail without checkpoints. One whose form is not known stays as it is. */
size_t slot_tail_size(uint32_t version, const uint8_t *tail, size_t n);
/* Whether the tail is the cache of window layers, and nothing else. */
bool slot_tail_is_cache(uint32_t version, const uint8_t *tail, size_t n);
/*
 * llama.cpp 0.5 (version 3) takes up a window only if it has a cell more than it uses. Returns a copy of the tail with that cell, its rows
 * 0, from malloc(), and *n_out; NULL: out of memory, or the tail is not a single cache whose first position is above 0.
 */
uint8_t *slot_widen_tail(uint32_t version, const uint8_t *tail, size_t n, size_t *n_out);

bool slot_version_known(uint32_t version);
/* Fills in what follows from the rest: page_bytes, and for version 3 what can be told of rotations. */
void slot_layout_complete(slot_layout *layout);
/* Of a file of so many tokens, without its head and tail. */
size_t slot_bytes(const slot_layout *layout, uint32_t n_tokens);
/* A text that says all of the layout; the same text gives the same layout. */
void slot_layout_print(const slot_layout *layout, char *text, size_t size);
/* What the rows are, whichever version the file has: slots with the same text can share pages. */
void slot_rows_print(const slot_layout *layout, char *text, size_t size);
const char *slot_layout_parse(slot_layout *out, const char *text);

/*
 * Rows of Quire's device are codes behind a mark, and zeros up to the size of the declared type (plugins/ggml/marks.h). Pages need not contain these zeros:
 * this sets `kept` of every K and V whose rows all have the mark, up to the last two bytes that are not 0 in all of them.
 */
void slot_leave_out_zeros(slot_file *slot);
/* Takes over `kept` from the layout of another slot, where the rows have the same types and sizes. */
void slot_keep_like(slot_file *slot, const slot_layout *like);
/* Rows of the positions 64 * page_index and following, which must be there. false: bytes that are not kept are not 0. */
bool slot_get_page(const slot_file *slot, uint32_t page_index, uint8_t *page);
/* pages[i]: page_bytes bytes each. n_streams as the server's that shall restore it. The file can be read by its owner alone. NULL, or
 * what is wrong. */
const char *slot_write(const char *path, const slot_layout *layout, const uint32_t *tokens,
                       uint8_t *const *pages, uint32_t n_pages, uint32_t n_streams);
/* The same with a tail; a layout without layers: the tail alone. pages may then be NULL. */
const char *slot_write_state(const char *path, const slot_layout *layout, const uint32_t *tokens,
                             uint32_t n_pages, uint8_t *const *pages, uint32_t n_streams, const uint8_t *tail,
                             size_t tail_bytes);

#endif
