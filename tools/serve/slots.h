/* SPDX-License-Identifier: MIT */
/* slots: what each slot of the server holds, and who uses it. Several threads may call everything here. */
#ifndef QUIRE_TOOLS_SERVE_SLOTS_H
#define QUIRE_TOOLS_SERVE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct slots slots;

/*
 * Whose rows a slot holds. Those of one owner are never reused for another. SLOT_NOBODY: they are not known, or of a client that is no
 * tenant; they are reused for nobody. Without tenants all clients are one owner.
 */
enum { SLOT_NOBODY = 0 };

/* A slot that a request has for itself. */
typedef struct slot_lease {
    uint32_t slot;
    uint32_t
        n_same;    /* tokens at the beginning of the prompt that the slot holds already, as far as is known */
    bool is_whole; /* the prompt begins with all that the slot holds */
    uint32_t generation;  /* of the server; a lease of an older one is void */
    uint32_t owner;       /* of the request */
    bool is_own;          /* all rows in the slot are the owner's; if not, none may be reused */
    uint32_t n_unwatched; /* requests whose slot the server chose, until this one was taken */
    bool is_after_left;   /* the request of a client that left may still begin in the slot */
} slot_lease;

slots *slots_create(uint32_t n);
void slots_destroy(slots *s);

/* The server was started again: nothing is known of its slots. Leases that exist are void. generation 0: there is no server, and nobody gets a slot; so it
 * is at first. */
void slots_reset(slots *s, uint32_t generation);

/*
 * Waits for a free slot, and takes the one that is best for the prompt. has_left (may be NULL) is asked every 50 ms whether to give up:
 * false then.
 */
bool slots_take(slots *s, uint32_t owner, const uint32_t *tokens, uint32_t n, bool (*has_left)(void *ctx),
                void *ctx, slot_lease *out);
/* The same for all slots at once, for a request whose slot the server chooses and that must not meet another's. */
bool slots_take_all(slots *s, bool (*has_left)(void *ctx), void *ctx, slot_lease *out);
void slots_give_all(slots *s, const slot_lease *lease);
/* The server has not been started again since, and no request whose slot it chose came between. */
bool slots_are_undisturbed(slots *s, const slot_lease *lease);
bool slots_is_valid(slots *s, const slot_lease *lease);
/* Tokens at the beginning of the prompt that a free slot of the owner holds. */
uint32_t slots_look_up(slots *s, uint32_t owner, const uint32_t *tokens, uint32_t n);
/* The same for all free slots other than that of the lease: the most that one of them shares, whosever its rows are. */
uint32_t slots_most_shared(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n);
/* The server will choose the slot of a request, and is meant to choose that of the lease: others may be disturbed if it does not. Returns
 * whether all other slots are free. */
bool slots_point(slots *s, slot_lease *lease);
/* Instead of the slot of the lease, which is given back as it was: the one that is the least loss, if another is free. */
void slots_exchange(slots *s, slot_lease *lease);
/* Gives it back, with the tokens that it holds now from position 0 on (copied), and how many more that are not known. */
void slots_give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more);
/* Before it is given back: its client left without an answer. The server may not have seen that, and begin its request in the slot. */
void slots_note_left(slots *s, const slot_lease *lease);
/* Gives it back; what it holds is not known. If the lease says that it is the owner's alone, it still is. */
void slots_give_unknown(slots *s, const slot_lease *lease);

/* A request whose slot the server chooses: between these calls, and after them, nothing is known of slots that are free. */
void slots_begin_unwatched(slots *s);
void slots_end_unwatched(slots *s);
bool slots_are_watched(slots *s); /* no such request is running */

/*
 * A free slot that holds at least `least` more tokens than were stored of it; taken, as by slots_take(). Returns the tokens (copied), and
 * *n_stored, those that are known to be stored. wait_ms: for so long the next slot of this kind that is given back comes here before any
 * request that waits for one.
 */
uint32_t *slots_take_unsaved(slots *s, uint32_t least, uint32_t wait_ms, slot_lease *lease, uint32_t *n,
                             uint32_t *n_stored);
/* Gives it back: the store has been offered the first n_stored of these tokens. */
void slots_give_stored(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n,
                       uint32_t n_stored);
/*
 * What the slot of a lease holds and would be lost to the request: at least `least` tokens that are not stored, behind those that the
 * prompt shares with it. Returns all of them (copied), whose they are, and how many are known to be stored; NULL: nothing.
 */
uint32_t *slots_unsaved(slots *s, const slot_lease *lease, uint32_t least, uint32_t *n, uint32_t *n_stored,
                        uint32_t *owner);
/* A slot that is taken, and stays so, holds these tokens now. The store has the first n_stored of them. */
void slots_hold(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_stored);
uint32_t slots_busy(slots *s);

#endif
