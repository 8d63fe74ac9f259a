/* SPDX-License-Identifier: MIT */
/* swap: slots of the server as files, which it writes and reads at our request. */
#ifndef QUIRE_TOOLS_SERVE_SWAP_H
#define QUIRE_TOOLS_SERVE_SWAP_H

#include "serve/upstream.h"

#include <stdbool.h>
#include <stdint.h>

enum { SWAP_NAME = 48, SWAP_PATH = 512 };

typedef struct swap {
    const upstream *to;
    const header_lines *headers;
    const char *folder; /* where the server keeps slot files */
    uint32_t timeout_ms;
    bool erases; /* what swap_needs_erasing() said */
} swap;

/* A name that no file had before: a server that is late must not find the file of another prompt under it. */
void swap_make_name(char name[SWAP_NAME]);
void swap_path(const swap *s, const char *name, char path[SWAP_PATH]);
void swap_remove(const char *folder, const char *name);

/* Writes the slot to a file with a new name. false: it was not done, and no file is left. */
bool swap_out(const swap *s, uint32_t slot, char name[SWAP_NAME]);
/* Fills the slot from the file. */
bool swap_in(const swap *s, uint32_t slot, const char *name);

/*
 * Whether a slot must be emptied before it is filled. A server that drafts has a second cache for that, which a slot file does not
 * have: rows of an earlier prompt would stay in it, and the next request that uses the slot, and all that run beside it, would fail.
 */
bool swap_needs_erasing(const swap *s);

#endif
