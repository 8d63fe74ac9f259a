/* SPDX-License-Identifier: MIT */
/* One server of the fleet: slots, an engine that does one thing at a time, a disk, a network card. */
#include "store/fleet/fleet.h"

#include <stdlib.h>

bool counting;

#define COUNT(member, n)               \
    do {                               \
        if (counting) (member) += (n); \
    } while (0)

#define SAVE_EVERY_S 0.1 /* of tools/serve/sidecar.c */
#define SAVE_AT_LATEST_S 5.0
enum { MOST_PUTS = 64 }; /* of store/save.c */
#define GB 1e9

/* As many as the records of its pages take, its own included. */
uint64_t stretch_bytes(void)
{
    return (uint64_t)set.grain * quire_record_bytes((uint64_t)set.page_bytes);
}

static uint64_t pages_bytes(uint32_t pages)
{
    return pages * (uint64_t)set.page_bytes;
}

void server_begin(server *s)
{
    s->slots = slots_create((uint32_t)set.slots);
    s->held = (slot_state *)calloc((size_t)set.slots, sizeof *s->held);
    if (!s->slots || !s->held) abort();
    slots_reset(s->slots, 1);
    if (set.ssd_gb > 0)
        s->disk = shelf_create((uint64_t)(set.ssd_gb * GB), (uint64_t)(set.page_cache_gb * GB), &s->counters);
}

void server_end(server *s)
{
    shelf_destroy(s->disk);
    slots_destroy(s->slots);
    for (uint32_t i = 0; i < (uint32_t)set.slots; i++) free(s->held[i].keys);
    free(s->held);
    free(s->queue);
    s->disk = NULL;
    s->slots = NULL;
    s->held = NULL;
    s->queue = NULL;
}

/* One after the other: the card, the disk, the engine. Returns when it is done. */
static double take_turn(double *free_at, double now, double seconds, double *busy)
{
    double from = now > *free_at ? now : *free_at;
    *free_at = from + seconds;
    COUNT(*busy, seconds);
    return *free_at;
}

/* ------------------------------------------------------------------- saving */

static void write_to_disk(server *s, const quire_key *const *keys, uint32_t n)
{
    uint64_t payload = stretch_bytes() - QUIRE_BLOCK;
    quire_disk_put puts[MOST_PUTS] = {0};
    uint32_t most = (uint32_t)(quire_disk_batch(s->disk) / payload);
    most = most < 1 ? 1 : most > MOST_PUTS ? MOST_PUTS : most;
    for (uint32_t i = 0, part; i < n; i += part) {
        part = n - i < most ? n - i : most;
        for (uint32_t k = 0; k < part; k++)
            puts[k].id = (quire_object_id){.object = *keys[i + k], .bytes = payload};
        (void)quire_disk_write(s->disk, puts, part);
    }
}

static void touch(server *s, const quire_key *keys, uint32_t n)
{
    const quire_disk_touch chain = {keys, n};
    if (s->disk && n) quire_disk_touch_all(s->disk, &chain, 1);
}

/* SET of what EXISTS denies; the nodes evict what was used least recently. */
static void send_to_remote(server *s, remote *far, const quire_key *key, double now)
{
    uint64_t bytes = stretch_bytes();
    if (!far->cap || table_find(&far->table, key)) return;
    while (far->bytes + bytes > far->cap && far->table.oldest) {
        table_remove(&far->table, far->table.oldest);
        far->bytes -= bytes;
        COUNT(far->n_evicted, 1);
    }
    if (far->bytes + bytes > far->cap) return;
    (void)table_add(&far->table, key);
    far->bytes += bytes;
    if (far->bytes > far->most) far->most = far->bytes;
    COUNT(s->net_out, bytes);
    (void)take_turn(&s->nic_free, now, (double)bytes / GB / set.nic_gbs, &s->nic_busy);
    if (set.remote_gbs > 0)
        (void)take_turn(&far->free_at, now, (double)bytes / GB / set.remote_gbs, &far->busy);
}

/* Hands the stretches of a prompt to the tiers, at most so many bytes of new ones. Returns how many are stored, from the first on. */
static uint32_t hand_in(server *s, remote *far, const quire_key *keys, uint32_t n, double most, double now)
{
    const quire_key *fresh[MOST_PUTS];
    uint32_t n_fresh = 0, done = 0;
    uint64_t before = quire_counted(&s->counters.saved_bytes[QUIRE_DISK]);
    double bytes = 0;
    bool *on_disk = (bool *)calloc(n + 1, 1);
    if (!on_disk) abort();
    if (s->disk) quire_disk_has(s->disk, keys, n, on_disk);
    for (; done < n; done++) {
        bool has = !s->disk || on_disk[done];
        bool far_has = !far->cap || table_find(&far->table, &keys[done]);
        if (has && far_has) continue;
        if (bytes > 0 && bytes + (double)stretch_bytes() > most) break;
        bytes += (double)stretch_bytes();
        if (!has) fresh[n_fresh++] = &keys[done];
        if (n_fresh == MOST_PUTS) {
            write_to_disk(s, fresh, n_fresh);
            n_fresh = 0;
        }
        if (!far_has) send_to_remote(s, far, &keys[done], now);
    }
    if (n_fresh) write_to_disk(s, fresh, n_fresh);
    free(on_disk);
    touch(s, keys, done);
    uint64_t written = quire_counted(&s->counters.saved_bytes[QUIRE_DISK]) - before;
    COUNT(s->ssd_written, written);
    if (written) (void)take_turn(&s->ssd_free, now, (double)written / GB / set.ssd_write_gbs, &s->ssd_busy);
    return done;
}

/* What a queue takes from one save: its size, and what leaves it while pages are copied into it. */
static double queue_takes(const server *s)
{
    double out = s->disk ? set.ssd_write_gbs : set.nic_gbs;
    if (out >= set.copy_gbs) return 1e30;
    return set.queue_gb * GB / (1 - out / set.copy_gbs);
}

enum { ONE_OWNER = 1 }; /* there are no tenants here */

double server_save(server *s, remote *far, double now)
{
    slot_lease lease;
    uint32_t n, n_stored;
    if ((set.saving > 0 && set.saving < 1.5) || (!s->disk && !far->cap)) return 0;
    if (slots_busy(s->slots) && now - s->last_save <= SAVE_AT_LATEST_S)
        return s->last_save + SAVE_AT_LATEST_S + 0.01;
    uint32_t *marks = slots_take_unsaved(s->slots, 1, 0, &lease, &n, &n_stored);
    if (!marks) return 0;
    slot_state *h = &s->held[lease.slot];
    uint32_t done = n;
    if (n * set.grain * PAGE >= set.min_tokens) {
        /* The engine does nothing else meanwhile: the whole slot goes to a file. */
        double cost = (double)pages_bytes(h->pages) / GB / set.save_gbs;
        now = take_turn(&s->engine_free, now, cost, &s->busy);
        COUNT(s->busy_saving, cost);
        COUNT(s->saves, 1);
        done = hand_in(s, far, h->keys, n, queue_takes(s), now);
        COUNT(s->saves_cut, done < n);
    }
    h->stored = done;
    slots_give_stored(s->slots, &lease, marks, n, done);
    free(marks);
    s->last_save = now;
    return now + SAVE_EVERY_S;
}

/* --------------------------------------------------------------- one request */

/* How many stretches the store has from the beginning, and where the first one lies that is not on disk. */
static uint32_t look_up(server *s, const remote *far, const request *r, bool *on_disk)
{
    uint32_t n = 0;
    memset(on_disk, 0, r->n);
    if (s->disk) quire_disk_has(s->disk, r->keys, r->n, on_disk);
    while (n < r->n && (on_disk[n] || table_find(&far->table, &r->keys[n]))) n++;
    return n;
}

/* Pages of the prompt that come with so many stretches: all that the request before had if they reach so far. */
static uint32_t pages_of(const request *r, uint32_t stretches)
{
    uint32_t grain = (uint32_t)set.grain, pages = stretches * grain;
    uint32_t usable = r->tokens ? (r->tokens - 1) / PAGE : 0; /* at least one token is computed */
    if (grain > 1 && stretches == r->shared / grain && r->shared > pages) pages = r->shared;
    return pages < usable ? pages : usable;
}

/* Reads them; returns when they are there. */
static double fetch(server *s, remote *far, request *r, uint32_t n, uint32_t pages, const bool *on_disk,
                    double now)
{
    uint32_t grain = (uint32_t)set.grain, rest = pages > n * grain ? pages - n * grain : 0;
    uint64_t from_disk = 0, from_far = 0;
    double disk_done = now, far_done = now;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = i + 1 < n ? grain : grain + rest;
        if (pages < n * grain && i + 1 == n) p = pages - i * grain;
        if (on_disk[i]) {
            bool cached = shelf_read(s->disk, &r->keys[i]);
            r->from[cached ? IN_CACHE : ON_SSD] += p;
            if (!cached) from_disk += pages_bytes(p);
        } else {
            table_use(&far->table, table_find(&far->table, &r->keys[i]));
            r->from[IN_REMOTE] += p;
            from_far += pages_bytes(p);
        }
    }
    COUNT(s->ssd_read, from_disk);
    COUNT(s->net_in, from_far);
    if (from_disk)
        disk_done = take_turn(&s->ssd_free, now, (double)from_disk / GB / set.ssd_read_gbs, &s->ssd_busy);
    if (from_far) far_done = take_turn(&s->nic_free, now, (double)from_far / GB / set.nic_gbs, &s->nic_busy);
    if (from_far && set.remote_gbs > 0) {
        double all = take_turn(&far->free_at, now, (double)from_far / GB / set.remote_gbs, &far->busy);
        far_done = far_done > all ? far_done : all;
    }
    if (from_far && s->disk) { /* they go to the disk too */
        uint64_t before = quire_counted(&s->counters.saved_bytes[QUIRE_DISK]);
        for (uint32_t i = 0; i < n; i++) {
            const quire_key *one = &r->keys[i];
            if (!on_disk[i]) write_to_disk(s, &one, 1);
        }
        COUNT(s->ssd_written, quire_counted(&s->counters.saved_bytes[QUIRE_DISK]) - before);
    }
    touch(s, r->keys, n);
    return disk_done > far_done ? disk_done : far_done;
}

/* What the slot holds and nobody has yet goes to the store before it is lost. */
static void save_before(server *s, remote *far, const request *r, double now)
{
    slot_state *h = &s->held[r->lease.slot];
    bool is_same = h->session == session_number(r->session) && h->pages <= r->warm;
    if (set.saving < 1.5 || is_same || h->stored >= h->n || h->pages * PAGE < set.min_tokens) return;
    double cost = (double)pages_bytes(h->pages) / GB / set.save_gbs;
    now = take_turn(&s->engine_free, now, cost, &s->busy);
    COUNT(s->busy_saving, cost);
    COUNT(s->saves, 1);
    (void)hand_in(s, far, h->keys, h->n, 1e30, now);
}

double server_load(server *s, remote *far, request *r, double now)
{
    uint32_t grain = (uint32_t)set.grain;
    if (!slots_take(s->slots, ONE_OWNER, r->marks, r->n, NULL, NULL, &r->lease)) abort();
    slot_state *h = &s->held[r->lease.slot];
    r->warm = pages_of(r, r->lease.n_same);
    if (h->session != session_number(r->session) && r->warm > r->lease.n_same * grain)
        r->warm = r->lease.n_same * grain;
    if (!s->disk && !far->cap) return now;
    if (r->tokens < r->warm * PAGE + set.restore_least) {
        save_before(s, far, r, now);
        return now;
    }
    bool *on_disk = (bool *)malloc(r->n + 1);
    if (!on_disk) abort();
    uint32_t n = look_up(s, far, r, on_disk), pages = pages_of(r, n);
    while (n && (n - 1) * grain >= pages) n--;
    if (pages * PAGE >= r->warm * PAGE + set.restore_least) { /* as visit.c decides until it has measured */
        slots_exchange(s->slots, &r->lease);
        r->warm = 0;
        now = fetch(s, far, r, n, pages, on_disk, now);
    }
    free(on_disk);
    save_before(s, far, r, now);
    return now;
}

double server_compute(server *s, request *r, double now)
{
    uint32_t restored = r->from[IN_CACHE] + r->from[ON_SSD] + r->from[IN_REMOTE];
    double from = (double)(r->warm + restored) * PAGE, to = r->tokens;
    if (set.trace && r->warm &&
        r->warm == s->held[r->lease.slot].pages) { /* a slot keeps parts of pages, too */
        from = s->held[r->lease.slot].tokens;
        if (from > to - 1) from = to - 1;
    }
    r->from[IN_SLOT] = r->warm;
    double flops = (to - from) * set.flops_per_token + (to * to - from * from) / 2 * set.flops_per_pair;
    double cost = flops / set.flops + (double)pages_bytes(restored) / GB / set.restore_gbs;
    return take_turn(&s->engine_free, now, cost, &s->busy);
}

void server_answered(server *s, remote *far, request *r, double now)
{
    slot_state *h = &s->held[r->lease.slot];
    if (set.saving > 0 && set.saving < 1.5) (void)hand_in(s, far, r->keys, r->n, 1e30, now);
    slots_give(s->slots, &r->lease, r->marks, r->n, 0);
    uint32_t stored = 0;
    while (stored < h->stored && stored < r->n && quire_key_equal(&h->keys[stored], &r->keys[stored]))
        stored++;
    free(h->keys);
    *h = (slot_state){r->keys, r->n, r->pages, r->tokens, stored, session_number(r->session)};
    r->keys = NULL;
}
