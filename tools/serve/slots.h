/* SPDX-License-Identifier: MIT */
/* slots: what each slot of the server holds, and who uses it. Several threads may call everything here. */
#ifndef QUIRE_TOOLS_SERVE_SLOTS_H
#define QUIRE_TOOLS_SERVE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct slots slots;

/* A slot that a request has for itself. */
typedef struct slot_lease {
    uint32_t slot;
    uint32_t
        n_same;    /* tokens at the beginning of the prompt that the slot holds already, as far as is known */
    bool is_whole; /* the prompt begins with all that the slot holds */
    uint32_t generation; /* of the server; a lease of an older one is void */
} slot_lease;

slots *slots_create(uint32_t n);
void slots_destroy(slots *s);

/* The server was started again: all slots are empty. Leases that exist are void. */
void slots_reset(slots *s, uint32_t generation);

/*
 * Waits for a free slot, and takes the one that is best for the prompt. has_left (may be NULL) is asked every 50 ms whether to give up:
 * false then.
 */
bool slots_take(slots *s, const uint32_t *tokens, uint32_t n, bool (*has_left)(void *ctx), void *ctx,
                slot_lease *out);
/* Instead of the slot of the lease, which is given back as it was: the one that is the least loss, if another is free. */
void slots_exchange(slots *s, slot_lease *lease);
/* Gives it back, with the tokens that it holds now from position 0 on (copied), and how many more that are not known. */
void slots_give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more);
/* Gives it back; what it holds is not known. */
void slots_give_unknown(slots *s, const slot_lease *lease);

/* A request whose slot the server chooses: between these calls, and after them, nothing is known of slots that are free. */
void slots_begin_unwatched(slots *s);
void slots_end_unwatched(slots *s);
bool slots_are_watched(slots *s); /* no such request is running */

/* A free slot that holds at least `least` more tokens than were stored of it; taken, as by slots_take(). Returns the tokens (copied). */
uint32_t *slots_take_unsaved(slots *s, uint32_t least, slot_lease *lease, uint32_t *n);
/* Gives it back: the store has been offered the first n_stored of these tokens. */
void slots_give_stored(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n,
                       uint32_t n_stored);
uint32_t slots_busy(slots *s);

#endif
