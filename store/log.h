/* SPDX-License-Identifier: MIT */
/*
 * store: what the engine's log is told. Each kind of event may take a number of lines per minute; the rest is counted, and the count is
 * told when the minute is over. A failing disk can thus not fill a log. Any thread; not under a lock of the store, because the
 * caller's function may take its time or ask for statistics.
 */
#ifndef QUIRE_STORE_LOG_H
#define QUIRE_STORE_LOG_H

#include "store/base.h"

/* name, lines per minute, what it is about */
#define QUIRE_EVENT_LIST(X)                             \
    X(NODE_DOWN, 20, "nodes that are considered down")  \
    X(NODE_BACK, 20, "nodes that answer again")         \
    X(REFUSAL, 2, "nodes that refuse commands")         \
    X(CLUSTER, 5, "changes of the cluster")             \
    X(DISK, 4, "the directory that fails and recovers") \
    X(INDEX, 6, "the index")                            \
    X(PAGE, 5, "damaged pages")                         \
    X(VERSION, 2, "pages of unknown versions")          \
    X(DROPPED, 2, "pages that were not saved")          \
    X(QUOTA, 5, "limits of tenants")

typedef enum quire_event {
#define QUIRE_EVENT_ENUM(name, lines, text) QUIRE_EVENT_##name,
    QUIRE_EVENT_LIST(QUIRE_EVENT_ENUM)
#undef QUIRE_EVENT_ENUM
        QUIRE_EVENT_COUNT
} quire_event;

#define QUIRE_LOG_WINDOW (60 * QUIRE_SECOND)

typedef struct quire_store_log {
    quire_log log;              /* write NULL: nobody listens */
    uint64_t (*now)(void *ctx); /* NULL: quire_now() */
    void *now_ctx;
    struct {
        _Atomic uint64_t begin, n; /* of a minute, and events since; begin 0: none yet */
    } kind[QUIRE_EVENT_COUNT];
    struct {
        uint64_t dropped, full, over_day, time; /* as last told; used by the thread that saves to the tier */
    } told[2];
} quire_store_log;

/* log NULL: nobody listens. A NULL quire_store_log may be passed to the functions below. */
void quire_log_open(quire_store_log *l, const quire_log *log);
/* What was counted and not told is told. */
void quire_log_close(quire_store_log *l);

__attribute__((format(printf, 4, 5))) void quire_log_say(quire_store_log *l, quire_event event,
                                                         quire_log_level level, const char *format, ...);
/* Called about every second by the thread that saves to the tier: tells of dropped pages, once a minute, and of what was counted. */
void quire_log_tick(quire_store_log *l, const quire_counters *counters, int tier);

#endif
