/* SPDX-License-Identifier: MIT */
/* arch: what llama.cpp's code does with the cache of an architecture and the model file does not say. */
#ifndef QUIRE_TOOLS_ARCH_H
#define QUIRE_TOOLS_ARCH_H

#include <stdbool.h>
#include <stdint.h>

/* What the device makes of the cache. tests/llama/archs.py compares it with what it sees, for every architecture. */
typedef enum arch_kind {
    ARCH_TILES,  /* all of it is in tiles */
    ARCH_PARTLY, /* the caches beside attention's own are stored as without Quire */
    ARCH_PLAIN,  /* all of it is stored as without Quire */
    ARCH_NONE    /* there is no KV cache */
} arch_kind;

/* Which layers have a second cache, with the keys by which rows are selected. */
typedef enum arch_index {
    INDEX_NONE,
    INDEX_ALL,    /* all that keep rows */
    INDEX_LISTED, /* those that the file lists; all, if it lists none */
    INDEX_LATER,  /* all but the first dense ones; llama.cpp gives them a V that nothing uses */
    INDEX_COMPRESSED, /* those with a ratio of 4, which have compressed rows too, as those with a ratio of 128 have */
} arch_index;

typedef struct arch_rule {
    const char *name;
    arch_kind kind;
    const char *note; /* what the user should know about the cache; NULL: nothing */

    /* Windows: of every `period` layers all but the last one, or but the first one; 0: only what the file lists. */
    uint32_t period;
    uint32_t window;       /* where the file gives none */
    uint32_t fixed_window; /* not what the file gives, if that is not 0 */
    uint32_t only_layers;  /* only models with so many layers have windows; 0: all */
    bool first_is_full, all_windows;

    uint32_t
        interval; /* of so many layers only the last one keeps rows, where the file does not say; the others are recurrent */
    uint32_t n_own;      /* the first so many layers keep rows, the others read theirs; 0: the file says */
    bool k_only;         /* V is K */
    bool ffn_keeps_none; /* a layer with an FFN keeps no rows */
    arch_index index;
    bool index_is_plain; /* layers with an index or with compressed rows are stored as without Quire, too */
} arch_rule;

/* Never NULL: for an architecture without an entry, one in which everything is as the file says. */
const arch_rule *arch_find(const char *name);
const char *arch_kind_name(arch_kind kind);

#endif
