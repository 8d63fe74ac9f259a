/* SPDX-License-Identifier: MIT */
/* store: the keeper of the remote: learns who has which slots and probes nodes that are in trouble, in a thread of its own. So
 * neither depends on loads going on, and no load waits for either. */
#include "store/node.h"

#define PROBES 16u /* commands to a node that failed: one alone would not show that it answers slowly */
#define MAX_CALLS (QUIRE_DUE_MAX * (PROBES + 2))
#define PAUSE_TROUBLED (50 * QUIRE_MS)
#define PAUSE QUIRE_SECOND
#define LONGEST (4 * QUIRE_SECOND)

/* A probe for a value asks for as much as takes a window at the lowest rate. */
static size_t probe_bytes(const quire_remote *r, size_t bytes)
{
    uint64_t most = (uint64_t)r->options.min_bytes_per_second * r->options.stall_ms / 1000 * 5 / 4;
    return bytes < most ? bytes : (size_t)most;
}

static uint32_t add_probe(const quire_remote *r, const quire_due *due, uint32_t i, quire_call *calls,
                          uint32_t n)
{
    for (uint32_t k = 0; k < PROBES; k++)
        calls[n++] = (quire_call){
            .verb = QUIRE_EXISTS, .object = due->object[i], .is_pinned = true, .node = due->probe[i]};
    if (due->bytes[i])
        calls[n++] = (quire_call){.verb = QUIRE_GET,
                                  .object = due->object[i],
                                  .bytes = probe_bytes(r, due->bytes[i]),
                                  .is_pinned = true,
                                  .node = due->probe[i]};
    return n;
}

void quire_keeper_step(quire_remote *r, quire_lane *lane)
{
    quire_call calls[MAX_CALLS];
    quire_due due;
    uint32_t n = 0;
    quire_node_take_due(r, &due);
    for (uint32_t i = 0; i < due.n_ask; i++)
        calls[n++] = (quire_call){.verb = QUIRE_SLOTS_OF, .is_pinned = true, .node = due.ask[i]};
    for (uint32_t i = 0; i < due.n_probe; i++) n = add_probe(r, &due, i, calls, n);
    if (!n) return;
    uint64_t least = r->options.connect_ms * QUIRE_MS, most = least + 2 * r->options.stall_ms * QUIRE_MS;
    if (most > LONGEST) most = least + LONGEST / 4 > LONGEST ? least + LONGEST / 4 : LONGEST;
    quire_lane_run(lane, calls, n, quire_remote_now(r) + most);
    for (uint32_t i = 0; i < due.n_probe; i++) {
        bool good = true;
        for (uint32_t k = due.n_ask; k < n; k++) good &= calls[k].node != due.probe[i] || !calls[k].miss;
        if (good) quire_node_probed(r, due.probe[i]);
    }
}

static void *run(void *arg)
{
    quire_remote *r = (quire_remote *)arg;
    quire_lane *lane = quire_lane_create(r, &r->stop);
    pthread_mutex_lock(&r->lock);
    while (!r->stops_keeper && lane) {
        pthread_mutex_unlock(&r->lock);
        quire_keeper_step(r, lane);
        pthread_mutex_lock(&r->lock);
        /* Whoever finds something wrong wakes it; while something is wrong it looks again and again. */
        bool troubled = quire_node_is_troubled(r);
        uint64_t now = quire_now(), until = now + (troubled ? PAUSE_TROUBLED : PAUSE);
        while (!r->stops_keeper && (troubled || !quire_node_is_troubled(r)) &&
               quire_cond_wait_until(&r->work, &r->lock, until)) {
        }
    }
    pthread_mutex_unlock(&r->lock);
    quire_lane_destroy(lane);
    return NULL;
}

quire_status quire_keeper_start(quire_remote *r)
{
    r->has_keeper = quire_thread_start(&r->keeper, run, r);
    return r->has_keeper ? QUIRE_OK : QUIRE_ENOMEM;
}

void quire_keeper_stop(quire_remote *r)
{
    if (!r->has_keeper) return;
    pthread_mutex_lock(&r->lock);
    r->stops_keeper = true;
    atomic_store(&r->stop, true);
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->keeper, NULL);
    r->has_keeper = false;
}
