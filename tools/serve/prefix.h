/* SPDX-License-Identifier: MIT */
/* prefix: prompts between the slots of a server and the store: looked up, restored, saved. */
#ifndef QUIRE_TOOLS_SERVE_PREFIX_H
#define QUIRE_TOOLS_SERVE_PREFIX_H

#include "serve/budget.h"
#include "serve/swap.h"
#include "serve/upstream.h"

#include <quire/store.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct prefix prefix;

typedef struct prefix_options {
    quire_store *store;
    const quire_identity *identity; /* of one tenant and model; copied by the store */
    const char *kv;                 /* the policy of the cache, or "stock" */
    upstream to;
    bool has_disk;      /* the store has a directory */
    const char *folder; /* where the server keeps slot files */
    bool folder_is_memory;
    budget *memory;               /* of slot files and of pages for them, of all tenants */
    const char *authorization;    /* value of the header for the server's own interface, or NULL */
    uint32_t n_slots, timeout_ms; /* timeout_ms: of the store */
    uint32_t slot_timeout_ms;     /* of the server, to save or restore a slot */
    uint32_t
        window; /* the longest of the model's sliding windows, in tokens; 0: it has none, or that is not known */
    bool swa_full; /* the server keeps all rows of windows */
    bool chunked;  /* windows begin at multiples of their length, as in Llama 4 */
    /* While it is true nothing is looked up, restored, copied or saved: the server is not the one that was learnt. Or NULL. */
    const atomic_bool *is_stopped;
} prefix_options;

/* What a restore or save took, in milliseconds. */
typedef struct prefix_times {
    double load, write, restore;
} prefix_times;

/*
 * Asks the server for a slot file of one token, to learn its types and sizes: slot 0 must be free. NULL: message has one sentence, and
 * prompts of this server cannot be kept.
 */
prefix *prefix_create(const prefix_options *options, char *message, size_t size);
/*
 * After the server was started again, with slot 0 free: NULL if its slots hold the same as before, as far as one can see; else what is wrong.
 */
const char *prefix_differs(const prefix *p);
/* The same server for another tenant. */
prefix *prefix_create_like(const prefix *p, const quire_identity *identity, char *message, size_t size);
void prefix_destroy(prefix *p);
/* The tenant has left, or is there again: nothing more is looked up, restored or saved for one that has left. */
void prefix_set_left(prefix *p, bool has_left);

/*
 * Models with windows or recurrent layers: a stored prefix can be used only where a state of the server was saved, and a slot can go on only
 * from its end. Images and copies of slots are not for them, but prefix_advance().
 */
bool prefix_has_states(const prefix *p);
/* The root of the keys of its pages. false: it has no pages, only states. */
bool prefix_root(const prefix *p, uint8_t root[32]);

/*
 * Tokens of the longest stored prefix. It may be the whole prompt: the server computes the last token again in any case. With states at
 * least one token of the prompt is left to compute, because the server cannot go back by one.
 */
uint32_t prefix_look_up(prefix *p, const uint32_t *tokens, uint32_t n);
/* A slot file, and what it has of the memory for all of them. */
typedef struct prefix_file {
    char name[SWAP_NAME];
    size_t bytes;
} prefix_file;

/* What was not there: pages of the prompt, the place for its slot file, memory for both. */
typedef enum prefix_lack { LACKS_NOTHING, LACKS_PAGES, LACKS_PLACE, LACKS_MEMORY } prefix_lack;

/*
 * Writes a slot file of the first n_tokens, a multiple of 64, as far as the store gives them in time, and there is memory.
 * Returns how many it has; 0: there is no file, and *lack says why. Else the caller drops it. No slot is touched.
 */
uint32_t prefix_load(prefix *p, const uint32_t *tokens, uint32_t n_tokens, const budget_wait *wait,
                     prefix_times *times, prefix_file *file, prefix_lack *lack);
void prefix_drop(const prefix *p, const prefix_file *file);
/* Fills the slot from that file. false: what the slot holds is not known. */
bool prefix_restore(prefix *p, uint32_t slot, const char *name, prefix_times *times);
/* A slot as a file of the server's, from which other slots can be filled. The caller removes it. */
bool prefix_copy_out(prefix *p, uint32_t slot, char name[SWAP_NAME]);
void prefix_remove_copy(const prefix_options *of, const char *name);

/*
 * What a slot holds, to be saved while the slot is used again. The server's own list of tokens decides under which keys; it must begin
 * with these. NULL: *why says it.
 */
typedef struct prefix_image prefix_image;
/* For others to give memory back, while a request waits to save what a slot holds. */
enum { PREFIX_SAVE_WAIT_MS = 1000 };
#define PREFIX_NO_MEMORY "its slot file would take more memory than there is for slot files (--slot-memory)"
/* What follows for the slot: nothing; it holds something else than these tokens; there is no memory now. */
typedef enum prefix_refusal { REFUSED_PLAINLY, REFUSED_OTHER, REFUSED_FOR_NOW } prefix_refusal;
/* How long storing may wait: to that time of clock_ms(), or until *is_over (may be NULL) is set. */
typedef struct prefix_patience {
    double until;
    const atomic_bool *is_over;
} prefix_patience;
prefix_image *prefix_take_image(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                                const budget_wait *wait, const char **why, prefix_refusal *refusal);
const uint32_t *prefix_image_tokens(const prefix_image *i, uint32_t *n);
/*
 * Returns how many of its tokens the store has taken or had. Pages of the first n_known tokens are left out as far as all tiers of the
 * store still have them. Where pages come faster than a tier takes them it waits, if it may; else the tier drops some.
 */
uint32_t prefix_store_image(const prefix *p, const prefix_image *i, uint32_t n_known,
                            const prefix_patience *patience /* NULL: it may not */);
void prefix_free_image(prefix_image *i);

typedef struct prefix_place {
    uint32_t slot;
    bool is_own;   /* what the slot holds may be used */
    uint32_t have; /* tokens from whose end the slot goes on */
    uint32_t
        same; /* tokens of the prompt that were seen before, as far as the caller knows; it may be that nothing of them is there */
    int client; /* socket of the client that waits, or -1 */
} prefix_place;

typedef struct prefix_progress {
    uint32_t n_tokens;            /* that the slot holds now; 0: it is as it was, or is_lost */
    uint32_t n_computed, n_saved; /* tokens, states */
    double compute_ms;            /* that computing them took, as the server says */
    bool is_lost;                 /* what the slot holds is not known */
    bool lacks_memory;            /* so that a state was not saved */
} prefix_progress;

/* Before a prompt is computed: has the server compute its whole pages, and saves the state there. */
prefix_progress prefix_advance(prefix *p, const prefix_place *place, const uint32_t *tokens, uint32_t n);

#endif
