/* SPDX-License-Identifier: MIT */
/* store: the threads that save. */
#include "store/seal.h"
#include "store/store.h"

#define MAX_ITEMS 64u
#define MAX_TOUCHES 64u
#define TOUCH_DELAY (2 * QUIRE_SECOND) /* recency is written in batches */
#define DAY_US 86400000000ull
#define MAX_CALLS 256u
#define RENEWED 8192u /* objects whose time to live was renewed lately */

/* How long pages waited. */
static void note_waits(quire_times *times, quire_item *const *items, uint32_t n)
{
    for (uint32_t i = 0; i < n && items[i]->errand == QUIRE_SAVE; i++)
        quire_time_since(times, items[i]->queued);
}

/* -------------------------------------------------------------------- disk */

typedef struct disk_saver {
    quire_store *store;
    quire_item *touches[MAX_TOUCHES];
    uint32_t n_touches;
    uint64_t touch_deadline;
    uint64_t day, day_bytes; /* written on this day */
} disk_saver;

static void write_touches(disk_saver *s)
{
    quire_disk_touch touches[MAX_TOUCHES];
    for (uint32_t i = 0; i < s->n_touches; i++)
        touches[i] = (quire_disk_touch){s->touches[i]->objects, s->touches[i]->n_objects};
    quire_disk_touch_all(s->store->disk, touches, s->n_touches);
    quire_queue_done(&s->store->queue[QUIRE_DISK], s->touches, s->n_touches);
    s->n_touches = 0;
}

/* Whether one chain is the beginning of the other: equal keys have equal prefixes. */
static bool begins(const quire_item *part, const quire_item *whole)
{
    uint32_t n = part->n_objects;
    return n && n <= whole->n_objects && quire_key_equal(&part->objects[n - 1], &whole->objects[n - 1]);
}

static void add_touch(disk_saver *s, quire_item *item)
{
    for (uint32_t i = 0; i < s->n_touches; i++) { /* a prompt that grows page by page is written once */
        if (!begins(s->touches[i], item)) continue;
        quire_queue_done(&s->store->queue[QUIRE_DISK], &s->touches[i], 1);
        memmove(&s->touches[i], &s->touches[i + 1], sizeof *s->touches * (s->n_touches - i - 1));
        s->touches[s->n_touches - 1] = item; /* the last one is the most recent */
        return;
    }
    if (!s->n_touches) s->touch_deadline = quire_now() + TOUCH_DELAY;
    s->touches[s->n_touches++] = item;
    if (s->n_touches == MAX_TOUCHES) write_touches(s);
}

static bool is_within_day(disk_saver *s, uint64_t bytes)
{
    uint64_t limit = s->store->disk_bytes_per_day, day = quire_now_us() / DAY_US;
    if (!limit) return true;
    if (day != s->day) s->day_bytes = 0;
    s->day = day;
    return s->day_bytes + bytes <= limit;
}

static void write_items(disk_saver *s, quire_item **items, uint32_t n)
{
    quire_store *store = s->store;
    quire_disk_put puts[MAX_ITEMS];
    if (!is_within_day(s, items[0]->id.bytes * n)) {
        for (uint32_t i = 0; i < n; i++)
            QUIRE_COUNT(&store->counters, &items[i]->id.owner->counters, dropped[QUIRE_DISK], 1);
        quire_count(&store->counters.over_day, n);
        return;
    }
    /* What goes is decided by recency: that must be known by then. */
    if (s->n_touches && !quire_disk_has_room(store->disk, &items[0]->id, n)) write_touches(s);
    for (uint32_t i = 0; i < n; i++)
        puts[i] =
            (quire_disk_put){.id = items[i]->id, .payload = items[i]->blob->bytes, .seal = store->seal_disk};
    uint64_t before = quire_now(), known = quire_counted(&store->counters.known[QUIRE_DISK]);
    quire_store_tell_saved(store, quire_disk_write(store->disk, puts, n));
    quire_time_since(&store->counters.times[QUIRE_TIMED_DISK_SAVE], before);
    /* What the disk had already was not written. */
    known = quire_counted(&store->counters.known[QUIRE_DISK]) - known;
    s->day_bytes += items[0]->id.bytes * (n - (known < n ? known : n));
}

void *quire_save_to_disk(void *arg)
{
    disk_saver s = {.store = (quire_store *)arg};
    quire_queue *q = &s.store->queue[QUIRE_DISK];
    quire_item *items[MAX_ITEMS];
    for (;;) {
        bool flushing;
        uint64_t deadline = s.n_touches ? s.touch_deadline : quire_now() + QUIRE_SECOND;
        uint32_t n =
            quire_queue_take(q, items, MAX_ITEMS, quire_disk_batch(s.store->disk), deadline, &flushing);
        note_waits(&s.store->counters.times[QUIRE_TIMED_DISK_QUEUE], items, n);
        quire_log_tick(&s.store->log, &s.store->counters, QUIRE_DISK);
        if (n && items[0]->errand == QUIRE_TOUCH) {
            add_touch(&s, items[0]);
        } else if (n) {
            if (items[0]->errand == QUIRE_SAVE)
                write_items(&s, items, n);
            else
                quire_count(&s.store->counters.removed[QUIRE_DISK],
                            quire_disk_remove(s.store->disk, &items[0]->id.object, 1));
            quire_queue_done(q, items, n);
        }
        bool closed = !n && quire_queue_is_closed(q);
        if (s.n_touches && (closed || (flushing && !n) || quire_now() >= s.touch_deadline)) write_touches(&s);
        if (closed) return NULL;
    }
}

/* ------------------------------------------------------------------ remote */

typedef struct renewal {
    uint64_t mark, time; /* the first bytes of its key; when */
} renewal;

typedef struct remote_saver {
    quire_store *store;
    quire_lane *lane;
    quire_sealer *sealer;
    uint8_t *sealed; /* room for the batch */
    size_t cap;
    renewal *renewed; /* [RENEWED]; NULL: objects do not expire */
} remote_saver;

static void run(remote_saver *s, quire_call *calls, uint32_t n, size_t bytes)
{
    quire_lane_run(s->lane, calls, n, quire_now() + quire_remote_patience(s->store->remote, bytes));
}

/* Asks which are there already, so that a fleet does not send the same prefix over and over. */
static uint32_t ask_unknown(remote_saver *s, quire_item **items, uint32_t n, quire_item **unknown)
{
    quire_counters *count = &s->store->counters;
    quire_call calls[MAX_ITEMS];
    uint32_t n_unknown = 0;
    for (uint32_t i = 0; i < n; i++)
        calls[i] = (quire_call){.verb = QUIRE_EXISTS, .object = items[i]->id.object};
    run(s, calls, n, 0);
    for (uint32_t i = 0; i < n; i++) {
        quire_counters *own = &items[i]->id.owner->counters;
        if (calls[i].miss)
            QUIRE_COUNT(count, own, failed[QUIRE_REMOTE], 1);
        else if (calls[i].found)
            QUIRE_COUNT(count, own, known[QUIRE_REMOTE], 1);
        else
            unknown[n_unknown++] = items[i];
    }
    return n_unknown;
}

static void send_items(remote_saver *s, quire_item **items, uint32_t n)
{
    quire_counters *count = &s->store->counters;
    quire_call calls[MAX_ITEMS];
    quire_item *unknown[MAX_ITEMS];
    uint64_t before = quire_now();
    n = ask_unknown(s, items, n, unknown);
    if (!n) return;
    size_t bytes = quire_sealed_bytes(unknown[0]->id.bytes), stride = (bytes + 63) / 64 * 64;
    bool good = quire_mem_grow(&s->store->allocator, &s->sealed, &s->cap, stride * n);
    for (uint32_t i = 0; i < n && good; i++) {
        const quire_item *item = unknown[i];
        uint8_t *to = s->sealed + stride * i;
        good = quire_seal(s->sealer, to, &item->blob->ns->seal_key, &item->id, item->blob->bytes, NULL);
        calls[i] = (quire_call){.verb = QUIRE_SET,
                                .object = item->id.object,
                                .value = to,
                                .bytes = bytes,
                                .only_new = true}; /* another server may have sent the same page meanwhile */
    }
    if (good) run(s, calls, n, bytes * n);
    quire_time_since(&count->times[QUIRE_TIMED_REMOTE_SAVE], before);
    for (uint32_t i = 0; i < n; i++) {
        bool saved = good && !calls[i].miss && !calls[i].found;
        quire_counters *own = &unknown[i]->id.owner->counters;
        QUIRE_COUNT(count, own, saved[QUIRE_REMOTE], saved);
        QUIRE_COUNT(count, own, known[QUIRE_REMOTE], good && !calls[i].miss && !saved);
        QUIRE_COUNT(count, own, failed[QUIRE_REMOTE], !good || calls[i].miss);
        if (saved) QUIRE_COUNT(count, own, saved_bytes[QUIRE_REMOTE], unknown[i]->id.bytes);
    }
}

/* What a damaged object is now: another server may have replaced it since. */
typedef struct second_look {
    remote_saver *saver;
    const quire_item *item;
    uint8_t *room; /* for its payload */
    quire_miss miss;
} second_look;

static void on_value(void *ctx, const uint8_t *bytes, size_t n)
{
    second_look *look = (second_look *)ctx;
    look->miss =
        quire_unseal(look->saver->sealer, look->room, &look->item->seal_key, &look->item->id, bytes, n, NULL);
}

static void remove_item(remote_saver *s, const quire_item *item)
{
    size_t bytes = quire_sealed_bytes(item->id.bytes);
    if (!quire_mem_grow(&s->store->allocator, &s->sealed, &s->cap, bytes)) return;
    second_look look = {.saver = s, .item = item, .room = s->sealed, .miss = QUIRE_MISS_NONE};
    quire_call call = {
        .verb = QUIRE_GET, .object = item->id.object, .bytes = bytes, .on_value = on_value, .ctx = &look};
    run(s, &call, 1, bytes);
    if (call.miss || !quire_miss_is_damage(look.miss)) return;
    call = (quire_call){.verb = QUIRE_DEL, .object = item->id.object};
    run(s, &call, 1, 0);
    if (!call.miss && call.found) quire_count(&s->store->counters.removed[QUIRE_REMOTE], 1);
}

/* Whether the object's time to live must be renewed now: not if that was done an eighth of it ago. */
static bool is_due(remote_saver *s, const quire_key *object)
{
    uint64_t mark = quire_load64(object->byte) | 1, now = quire_now();
    renewal *r = &s->renewed[(mark >> 1) % RENEWED];
    if (r->mark == mark && now - r->time < quire_remote_ttl(s->store->remote) * QUIRE_SECOND / 8)
        return false;
    *r = (renewal){mark, now};
    return true;
}

/* A chain was used: all of it lives on, because pages behind one that is gone are of no use. */
static void renew(remote_saver *s, const quire_item *item)
{
    quire_call calls[MAX_CALLS];
    for (uint32_t i = 0, n = 0; i <= item->n_objects && s->renewed; i++) {
        if (i < item->n_objects && is_due(s, &item->objects[i]))
            calls[n++] = (quire_call){.verb = QUIRE_EXPIRE, .object = item->objects[i]};
        if (n && (n == MAX_CALLS || i == item->n_objects)) {
            run(s, calls, n, 0);
            n = 0;
        }
    }
}

void *quire_save_to_remote(void *arg)
{
    quire_store *store = (quire_store *)arg;
    remote_saver s = {.store = store,
                      .lane = quire_lane_create(store->remote, &store->stop),
                      .sealer = quire_sealer_create(&store->allocator)};
    if (quire_remote_ttl(store->remote))
        s.renewed = (renewal *)quire_mem_take(&store->allocator, sizeof *s.renewed * RENEWED);
    quire_queue *q = &store->queue[QUIRE_REMOTE];
    quire_item *items[MAX_ITEMS];
    for (;;) {
        bool flushing;
        uint32_t n = quire_queue_take(q, items, MAX_ITEMS, quire_remote_in_flight(store->remote),
                                      quire_now() + QUIRE_SECOND, &flushing);
        note_waits(&store->counters.times[QUIRE_TIMED_REMOTE_QUEUE], items, n);
        quire_log_tick(&store->log, &store->counters, QUIRE_REMOTE);
        if (!n && quire_queue_is_closed(q)) break;
        if (!n) continue;
        if (!s.lane || !s.sealer || atomic_load(&store->stop))
            for (uint32_t i = 0; i < n && items[0]->errand == QUIRE_SAVE; i++)
                QUIRE_COUNT(&store->counters, &items[i]->id.owner->counters, failed[QUIRE_REMOTE], 1);
        else if (items[0]->errand == QUIRE_SAVE)
            send_items(&s, items, n);
        else if (items[0]->errand == QUIRE_TOUCH)
            renew(&s, items[0]);
        else
            remove_item(&s, items[0]);
        quire_queue_done(q, items, n);
    }
    quire_lane_destroy(s.lane);
    quire_sealer_destroy(s.sealer);
    quire_mem_free(&store->allocator, s.sealed, s.cap);
    quire_mem_free(&store->allocator, s.renewed, sizeof *s.renewed * RENEWED);
    return NULL;
}
