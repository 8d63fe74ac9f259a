/* SPDX-License-Identifier: MIT */
/* store: statistics: counters and durations as the caller sees them. */
#include "store/store.h"

const uint64_t quire_time_bounds[QUIRE_TIME_BOUNDS] = {
    QUIRE_MS / 10,     QUIRE_MS / 5,      QUIRE_MS / 2,      QUIRE_MS,         2 * QUIRE_MS,
    5 * QUIRE_MS,      10 * QUIRE_MS,     20 * QUIRE_MS,     50 * QUIRE_MS,    100 * QUIRE_MS,
    200 * QUIRE_MS,    500 * QUIRE_MS,    1 * QUIRE_SECOND,  2 * QUIRE_SECOND, 5 * QUIRE_SECOND,
    10 * QUIRE_SECOND, 20 * QUIRE_SECOND, 60 * QUIRE_SECOND,
};

quire_status quire_store_stats_get(quire_store *s, quire_store_stats *theirs)
{
    if (!s) return QUIRE_EINVAL;
    quire_store_stats stats, *out = &stats;
    const quire_counters *c = &s->counters;
    quire_disk_usage usage = {0};
    *out = (quire_store_stats){.size = sizeof(quire_store_stats),
                               .loads = quire_counted(&c->loads),
                               .evicted = quire_counted(&c->evicted),
                               .breaks = quire_counted(&c->breaks),
                               .reconnects = quire_counted(&c->reconnects),
                               .shared = quire_counted(&c->shared),
                               .queue_cap_bytes = s->queue_cap_bytes,
                               .disk_failing = atomic_load(&s->is_disk_failing)};
    for (int i = 0; i < QUIRE_MISS_COUNT; i++) out->misses[i] = quire_counted(&c->misses[i]);
    for (int t = 0; t < 2; t++) {
        out->loaded[t] = quire_counted(&c->loaded[t]);
        out->loaded_bytes[t] = quire_counted(&c->loaded_bytes[t]);
        out->saved[t] = quire_counted(&c->saved[t]);
        out->saved_bytes[t] = quire_counted(&c->saved_bytes[t]);
        out->known[t] = quire_counted(&c->known[t]);
        out->dropped[t] = quire_counted(&c->dropped[t]);
        out->failed[t] = quire_counted(&c->failed[t]);
        out->removed[t] = quire_counted(&c->removed[t]);
        out->queued_bytes[t] = quire_counted(&c->queued_bytes[t]);
    }
    if (s->disk) quire_disk_usage_get(s->disk, &usage);
    out->disk_bytes = usage.file_bytes;
    out->disk_cap_bytes = usage.cap_bytes;
    out->disk_objects = usage.n_objects;
    out->pinned_objects = usage.n_pinned;
    out->disk_unknown = usage.n_unknown;
    out->disk_rebuilding = usage.is_scanning;
    if (s->remote) {
        quire_node_counts of = quire_remote_nodes(s->remote);
        out->nodes = of.n;
        out->nodes_down = of.n_down;
        out->nodes_refusing = of.n_refusing;
    }
    return quire_write_sized(theirs, out, sizeof *out);
}

quire_status quire_store_times_get(quire_store *s, quire_timed what, quire_store_times *theirs)
{
    if (!s || (uint32_t)what >= QUIRE_TIMED_COUNT) return QUIRE_EINVAL;
    const quire_times *t = &s->counters.times[what];
    quire_store_times own = {
        .size = sizeof own, .n_bounds = QUIRE_TIME_BOUNDS, .sum_ns = quire_counted(&t->sum_ns)};
    memcpy(own.bound_ns, quire_time_bounds, sizeof quire_time_bounds);
    for (uint32_t i = 0; i <= QUIRE_TIME_BOUNDS; i++) {
        own.counts[i] = quire_counted(&t->counts[i]);
        own.n += own.counts[i];
    }
    return quire_write_sized(theirs, &own, sizeof own);
}
