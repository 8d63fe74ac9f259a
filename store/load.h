/* SPDX-License-Identifier: MIT */
/*
 * store: loads. A load is a table of slots, one per group and page. Threads survey which slots the tiers hold, choose the
 * longest prefix whose pages are all held, fetch its pages, and choose again if some could not be had. The engine takes
 * what is there at its deadline; threads that are still inside keep the load alive and drop what they bring.
 *
 * Rooms are the caller's memory. A thread reads or writes them only while it is counted in n_in_rooms, nobody is counted any
 * more once the load has ended, and the engine's end waits for those that are.
 */
#ifndef QUIRE_STORE_LOAD_H
#define QUIRE_STORE_LOAD_H

#include "store/namespace.h"

struct quire_lane;

typedef enum quire_slot_state {
    QUIRE_SLOT_UNKNOWN, /* not on disk; the remote was not asked yet */
    QUIRE_SLOT_ABSENT,  /* cannot be had */
    QUIRE_SLOT_ON_DISK,
    QUIRE_SLOT_ON_REMOTE,
    QUIRE_SLOT_UNDER_WAY, /* a thread fetches it */
    QUIRE_SLOT_LOADED,
} quire_slot_state;

typedef struct quire_slot {
    quire_slot_state state;
    bool wanted, from_remote;
    quire_page *page; /* or */
    void *raw;        /* unless the load has rooms */
    /* Under way for another load: who waits for the same page. */
    struct quire_load *follower;
    struct quire_slot *next_follower;
} quire_slot;

typedef enum quire_load_stage {
    QUIRE_STAGE_DISK,      /* wants a survey of the disk */
    QUIRE_STAGE_REMOTE,    /* wants a survey of the remote */
    QUIRE_STAGE_SURVEYING, /* a thread does it */
    QUIRE_STAGE_FETCH,     /* wanted slots are fetched */
    QUIRE_STAGE_DONE,
} quire_load_stage;

struct quire_load {
    quire_load *next; /* in the loader's list */
    quire_namespace *ns;
    quire_pool *pool; /* NULL: raw */
    quire_seq *seq;   /* of the engine; threads do not touch it */
    quire_seq_options ring;
    uint64_t began, deadline;
    uint32_t refs; /* engine and threads; under the loader's lock, like all that follows */
    quire_load_stage stage;
    bool survey_only, listed, cancelled;
    bool every_tier;         /* a survey of what all tiers have: the remote is asked for what the disk has */
    atomic_bool ended;       /* the engine has left, or will not wait any more */
    struct quire_load *part; /* the next prompt of a survey; the first one counts for all */
    void **rooms;            /* [n_pages - first_page], of the caller; NULL: threads allocate */
    uint32_t n_in_rooms;     /* threads that read or write them */
    uint32_t n_pages, first_page; /* wanted at most; held by the sequence already */
    uint32_t n_chosen;            /* pages of the chosen prefix */
    uint32_t n_under_way;         /* slots */
    uint32_t n_failed;            /* slots whose miss was counted by its reason */
    uint32_t cursor[2];           /* by tier: slots before it, page after page, need nothing */
    quire_key *keys;              /* [n_pages] */
    quire_key *objects;           /* [group][n_pages] */
    quire_slot *slots;            /* [group][n_pages] */
    uint32_t *held;               /* scratch of choosing: [n_pages + 1] */
};

#define QUIRE_FLIGHTS 256u

typedef struct quire_loader {
    struct quire_store *store;
    pthread_mutex_t lock;
    pthread_cond_t disk_work, remote_work, progress;
    quire_load *loads; /* with work to do, oldest first */
    struct quire_fetch
        *flights[QUIRE_FLIGHTS]; /* pages that are fetched from the remote, by the first byte of their keys */
    bool stop;
    uint32_t n_threads, n_disk, n_remote;
    pthread_t *threads;
    uint32_t cap_threads;
} quire_loader;

/* n_disk threads that read the disk, n_remote that ask the remote. */
quire_status quire_loader_start(quire_loader *l, struct quire_store *store, uint32_t n_disk,
                                uint32_t n_remote);
void quire_loader_stop(quire_loader *l);

/* choose.c: the longest prefix, at most n_pages, all of whose slots are held in one of the states (bits). */
uint32_t quire_load_choose(const quire_load *load, uint32_t states);

/* survey.c: which slots the tiers have. Under the loader's lock, which is given up meanwhile. */
void quire_survey_disk(quire_loader *l, quire_load *load);
void quire_survey_remote(quire_loader *l, quire_load *load, struct quire_lane *lane);
/* The same for the disk, without the lock: the load is in nobody else's hands. */
void quire_survey_now(struct quire_store *store, quire_load *load);

/* fetch.c: threads. arg: the loader. */
void *quire_load_from_disk(void *arg);
void *quire_load_from_remote(void *arg);
/* Under the loader's lock. */
void quire_load_unref(quire_loader *l, quire_load *load);
void quire_load_advance(quire_loader *l, quire_load *load);
void quire_load_begin_fetch(quire_loader *l, quire_load *load); /* all is known that can be */

static inline quire_slot *quire_load_slot(const quire_load *load, uint32_t group, uint32_t page_index)
{
    return &load->slots[(size_t)group * load->n_pages + page_index];
}

static inline size_t quire_load_n_slots(const quire_load *load)
{
    return (size_t)load->n_pages * load->ns->n_groups;
}

#endif
