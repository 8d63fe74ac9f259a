/* SPDX-License-Identifier: MIT */
/* prefix_parts: what the files of prefix share. */
#ifndef QUIRE_TOOLS_SERVE_PREFIX_PARTS_H
#define QUIRE_TOOLS_SERVE_PREFIX_PARTS_H

#include "files/slot_file.h"
#include "serve/body.h"
#include "serve/prefix.h"
#include "serve/states.h"
#include "serve/swap.h"

enum { PREFIX_LAYOUT_TEXT = 8192 };

struct prefix {
    prefix_options o;
    bool has_rows; /* of full attention, in pages */
    quire_namespace *ns;
    slot_layout layout;
    states *states; /* NULL: all that the server needs is in the pages */
    header_lines *headers;
    swap swap;
    atomic_bool has_left;
    atomic_size_t most_tail; /* bytes of the longest that was seen */
};

/* Has the server compute these tokens in a slot and nothing after them. */
bool prefix_compute(const prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n, bool reuse,
                    int client, body_timings *t);
/* in_states: like slot_map_state() does, which takes `like`. NULL, or what is wrong. */
const char *prefix_read_slot(prefix *p, uint32_t slot, bool in_states, const slot_layout *like,
                             slot_file *out);
bool prefix_has_same_rows(const slot_layout *a, const slot_layout *b);
/* Gives the server back what a slot held. */
bool prefix_put_back(const prefix *p, uint32_t slot, const slot_file *file, const uint8_t *tail,
                     size_t n_tail);
/* Whether the slot holds whole pages and the rows of all of them. */
bool prefix_is_whole(const prefix *p, const slot_file *file);

#endif
