/* SPDX-License-Identifier: MIT */
/* store: what the engine's log is told. */
#include "store/log.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    uint32_t lines;
    const char *about;
} kinds[] = {
#define KIND(name, lines, text) {lines, text},
    QUIRE_EVENT_LIST(KIND)
#undef KIND
};

void quire_log_open(quire_store_log *l, const quire_log *log)
{
    memset(l, 0, sizeof *l);
    if (log) l->log = *log;
}

static bool is_heard(const quire_store_log *l)
{
    return l && l->log.write;
}

static uint64_t now_of(const quire_store_log *l)
{
    uint64_t now = l->now ? l->now(l->now_ctx) : quire_now();
    return now ? now : 1;
}

/* Ends the minute of a kind, if it is over or shall be. Returns how many events were not told. */
static uint64_t end_minute(quire_store_log *l, quire_event event, uint64_t now, bool over, bool again)
{
    uint64_t begin = atomic_load(&l->kind[event].begin);
    over |= !begin || now - begin >= QUIRE_LOG_WINDOW;
    if (!over || !atomic_compare_exchange_strong(&l->kind[event].begin, &begin, again ? now : 0)) return 0;
    uint64_t n = atomic_exchange(&l->kind[event].n, 0);
    return n > kinds[event].lines ? n - kinds[event].lines : 0;
}

static void tell_left_out(quire_store_log *l, quire_event event, uint64_t n)
{
    char sentence[160];
    if (!n) return;
    (void)snprintf(sentence, sizeof sentence, "%llu more messages about %s were left out.",
                   (unsigned long long)n, kinds[event].about);
    l->log.write(l->log.ctx, QUIRE_LOG_INFO, sentence);
}

void quire_log_say(quire_store_log *l, quire_event event, quire_log_level level, const char *format, ...)
{
    char sentence[1024];
    va_list args;
    if (!is_heard(l)) return;
    tell_left_out(l, event, end_minute(l, event, now_of(l), false, true));
    if (atomic_fetch_add(&l->kind[event].n, 1) >= kinds[event].lines) return;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    l->log.write(l->log.ctx, level, sentence);
}

static void tell_all_left_out(quire_store_log *l, bool over)
{
    uint64_t now = now_of(l);
    for (int i = 0; i < QUIRE_EVENT_COUNT; i++)
        tell_left_out(l, (quire_event)i, end_minute(l, (quire_event)i, now, over, false));
}

void quire_log_close(quire_store_log *l)
{
    if (is_heard(l)) tell_all_left_out(l, true);
}

/* ------------------------------------------------------------------ dropped */

static size_t add_reason(char *text, size_t size, size_t at, uint64_t n, const char *why)
{
    if (!n || at >= size) return at;
    return at +
           (size_t)snprintf(text + at, size - at, "%s%s (%llu)", at ? ", " : "", why, (unsigned long long)n);
}

void quire_log_tick(quire_store_log *l, const quire_counters *c, int tier)
{
    char why[256] = "";
    if (!is_heard(l)) return;
    tell_all_left_out(l, false);
    uint64_t now = now_of(l), dropped = quire_counted(&c->dropped[tier]),
             full = quire_counted(&c->full[tier]),
             over_day = tier == QUIRE_DISK ? quire_counted(&c->over_day) : 0;
    uint64_t n = dropped - l->told[tier].dropped;
    if (!n || (l->told[tier].time && now - l->told[tier].time < QUIRE_LOG_WINDOW)) return;
    uint64_t n_full = full - l->told[tier].full, n_day = over_day - l->told[tier].over_day;
    size_t at = add_reason(why, sizeof why, 0, n_full, "the queue is full");
    at = add_reason(why, sizeof why, at, n_day, "the daily limit is reached");
    if (n_full + n_day < n)
        (void)add_reason(why, sizeof why, at, n - n_full - n_day,
                         "they are too large or pinned pages take the space");
    l->told[tier].dropped = dropped;
    l->told[tier].full = full;
    l->told[tier].over_day = over_day;
    l->told[tier].time = now;
    quire_log_say(l, QUIRE_EVENT_DROPPED, QUIRE_LOG_WARNING, "%llu pages were not saved to the %s tier: %s.",
                  (unsigned long long)n, tier == QUIRE_DISK ? "disk" : "remote", why);
}
