/* SPDX-License-Identifier: MIT */
/* store: which pages of a load the tiers have. */
#include "store/store.h"

#define STATE(s) (1u << QUIRE_SLOT_##s)
#define NOT_ASKED UINT32_MAX

/* The objects that are asked for, each once: the prompts of a survey often begin alike. */
typedef struct question {
    const quire_allocator *allocator;
    size_t n_slots; /* of all parts */
    uint32_t n;
    quire_key *objects; /* [n] */
    uint32_t *at;       /* [n_slots]: which one, or NOT_ASKED */
    uint32_t
        *table; /* [n_table], a power of two: objects by the first bytes of their keys, plus 1; 0: none */
    uint32_t n_table;
} question;

static void question_end(question *q)
{
    const quire_allocator *a = q->allocator;
    quire_mem_free(a, q->objects, sizeof *q->objects * q->n_slots);
    quire_mem_free(a, q->at, sizeof *q->at * q->n_slots);
    quire_mem_free(a, q->table, sizeof *q->table * q->n_table);
    *q = (question){.allocator = a};
}

static uint32_t add_object(question *q, const quire_key *object)
{
    uint32_t i = quire_load32(object->byte) & (q->n_table - 1);
    for (; q->table[i]; i = (i + 1) & (q->n_table - 1))
        if (quire_key_equal(&q->objects[q->table[i] - 1], object)) return q->table[i] - 1;
    q->objects[q->n] = *object;
    q->table[i] = ++q->n;
    return q->n - 1;
}

/* The slots in this state. Pages that the engine has already are not asked for. false: no memory. */
static bool question_begin(question *q, const quire_allocator *a, const quire_load *load,
                           quire_slot_state state)
{
    *q = (question){.allocator = a, .n_table = 2};
    for (const quire_load *part = load; part; part = part->part) q->n_slots += quire_load_n_slots(part);
    if (q->n_slots >= UINT32_MAX / 4) return false;
    while (q->n_table < 2 * q->n_slots) q->n_table *= 2;
    q->objects = (quire_key *)quire_mem_take(a, sizeof *q->objects * q->n_slots);
    q->at = (uint32_t *)quire_mem_take(a, sizeof *q->at * q->n_slots);
    q->table = (uint32_t *)quire_mem_take(a, sizeof *q->table * q->n_table);
    if (!q->objects || !q->at || !q->table) {
        question_end(q);
        return false;
    }
    uint32_t *at = q->at;
    for (const quire_load *part = load; part; part = part->part) {
        size_t n = quire_load_n_slots(part);
        for (size_t i = 0; i < n; i++) {
            bool asks = part->slots[i].state == state && i % part->n_pages >= part->first_page;
            *at++ = asks ? add_object(q, &part->objects[i]) : NOT_ASKED;
        }
    }
    return true;
}

static void end_survey(quire_loader *l, quire_load *load, bool ask_remote)
{
    bool asks = false;
    for (const quire_load *part = load; part && ask_remote; part = part->part) {
        uint32_t n = quire_load_choose(part, STATE(ON_DISK));
        asks |= load->every_tier ? n > 0 : n < part->n_pages;
    }
    if (!asks && !load->survey_only) {
        quire_load_begin_fetch(l, load);
        return;
    }
    load->stage = asks ? QUIRE_STAGE_REMOTE : QUIRE_STAGE_DONE;
    quire_load_advance(l, load);
}

/* -------------------------------------------------------------------- disk */

static bool *ask_disk(quire_store *store, const quire_load *load, question *q)
{
    if (!question_begin(q, &store->allocator, load, QUIRE_SLOT_UNKNOWN)) return NULL;
    bool *has = (bool *)quire_mem_take(&store->allocator, q->n_slots);
    if (has && store->disk) quire_disk_has(store->disk, q->objects, q->n, has);
    return has;
}

static void apply_disk(const quire_store *store, quire_load *load, const question *q, const bool *has)
{
    const uint32_t *at = q->at;
    for (quire_load *part = load; part; part = part->part) {
        size_t n = quire_load_n_slots(part);
        for (size_t i = 0; i < n; i++) {
            bool found = has && *at != NOT_ASKED && has[*at];
            part->slots[i].state = found           ? QUIRE_SLOT_ON_DISK
                                   : store->remote ? QUIRE_SLOT_UNKNOWN
                                                   : QUIRE_SLOT_ABSENT;
            if (has) at++;
        }
    }
}

void quire_survey_now(quire_store *store, quire_load *load)
{
    question q;
    bool *has = ask_disk(store, load, &q);
    apply_disk(store, load, &q, has);
    quire_mem_free(&store->allocator, has, q.n_slots);
    question_end(&q);
}

void quire_survey_disk(quire_loader *l, quire_load *load)
{
    question q;
    load->stage = QUIRE_STAGE_SURVEYING;
    load->refs++;
    pthread_mutex_unlock(&l->lock);
    bool *has = ask_disk(l->store, load, &q);
    pthread_mutex_lock(&l->lock);
    if (load->stage == QUIRE_STAGE_SURVEYING) { /* else the engine has left */
        apply_disk(l->store, load, &q, has);
        end_survey(l, load, l->store->remote != NULL);
    }
    quire_load_unref(l, load);
    quire_mem_free(&l->store->allocator, has, q.n_slots);
    question_end(&q);
}

/* ------------------------------------------------------------------ remote */

/*
 * Leaves what the remote has too; what it did not answer counts as there, and so does all while pages of ours wait to be sent: they may
 * be these. What it lacks can be handed in again.
 */
static void leave_common(const quire_store *store, quire_load *load, const question *q,
                         const quire_call *calls)
{
    bool waits = quire_counted(&store->counters.queued_bytes[QUIRE_REMOTE]) > 0;
    size_t n = calls && !waits ? quire_load_n_slots(load) : 0;
    for (size_t i = 0; i < n; i++) {
        const quire_call *call = q->at[i] == NOT_ASKED ? NULL : &calls[q->at[i]];
        if (!call || call->miss || call->found) continue;
        load->slots[i].state = QUIRE_SLOT_ABSENT;
        quire_namespace_forget(load->ns, &load->objects[i]);
    }
}

static void apply_remote(quire_loader *l, quire_load *load, const question *q, const quire_call *calls)
{
    const uint32_t *at = q->at;
    quire_miss why = QUIRE_MISS_NONE;
    for (quire_load *part = load; part; part = part->part) {
        size_t n = quire_load_n_slots(part);
        for (size_t i = 0; i < n; i++) {
            uint32_t call = calls ? *at++ : NOT_ASKED;
            quire_slot *slot = &part->slots[i];
            if (slot->state != QUIRE_SLOT_UNKNOWN) continue;
            bool answered = call != NOT_ASKED && !calls[call].miss;
            bool found = answered && calls[call].found;
            if (call != NOT_ASKED && calls[call].miss && !why) why = calls[call].miss;
            slot->state = found ? QUIRE_SLOT_ON_REMOTE : QUIRE_SLOT_ABSENT;
            slot->from_remote = found;
        }
    }
    if (!why || load->survey_only) return; /* one miss for the page at which the prefix ends because of it */
    QUIRE_COUNT(&l->store->counters, &load->ns->owner.counters, misses[why], 1);
    load->n_failed++;
}

void quire_survey_remote(quire_loader *l, quire_load *load, quire_lane *lane)
{
    const quire_allocator *a = &l->store->allocator;
    uint64_t deadline = load->deadline;
    question q;
    load->stage = QUIRE_STAGE_SURVEYING;
    load->refs++;
    pthread_mutex_unlock(&l->lock);
    /* Nobody else touches slots during a survey. */
    bool asks = question_begin(&q, a, load, load->every_tier ? QUIRE_SLOT_ON_DISK : QUIRE_SLOT_UNKNOWN);
    size_t n = q.n;
    quire_call *calls = asks ? (quire_call *)quire_mem_take(a, sizeof *calls * n) : NULL;
    for (uint32_t i = 0; i < n && calls; i++)
        calls[i] = (quire_call){.verb = QUIRE_EXISTS, .object = q.objects[i]};
    if (calls) quire_lane_run(lane, calls, q.n, deadline);
    pthread_mutex_lock(&l->lock);
    if (load->stage == QUIRE_STAGE_SURVEYING) { /* else the engine has left */
        if (load->every_tier)
            leave_common(l->store, load, &q, calls);
        else
            apply_remote(l, load, &q, calls);
        end_survey(l, load, false);
    }
    quire_load_unref(l, load);
    quire_mem_free(a, calls, sizeof *calls * n);
    question_end(&q);
}
