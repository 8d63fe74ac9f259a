/* SPDX-License-Identifier: MIT */
/* Objects by their keys, in the order of their last use. */
#include "store/fleet/table.h"

#include <stdlib.h>

void table_free(table *t)
{
    free(t->entries);
    free(t->buckets);
    *t = (table){0};
}

static uint32_t *bucket_of(const table *t, const quire_key *key)
{
    return &t->buckets[quire_load64(key->byte) & (t->cap - 1)]; /* keys are hashes, cap a power of two */
}

static void grow(table *t)
{
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    t->entries = (table_entry *)realloc(t->entries, sizeof *t->entries * cap);
    free(t->buckets);
    t->buckets = (uint32_t *)calloc(cap, sizeof *t->buckets);
    if (!t->entries || !t->buckets) abort();
    uint32_t first = t->cap ? t->cap : 1;
    t->cap = cap;
    for (uint32_t i = t->oldest; i; i = t->entries[i].newer) {
        uint32_t *bucket = bucket_of(t, &t->entries[i].key);
        t->entries[i].next = *bucket;
        *bucket = i;
    }
    for (uint32_t i = first; i < cap; i++) t->entries[i].next = i + 1 < cap ? i + 1 : 0;
    t->unused = first; /* grown only when none was left */
}

uint32_t table_find(const table *t, const quire_key *key)
{
    uint32_t i = t->cap ? *bucket_of(t, key) : 0;
    while (i && !quire_key_equal(&t->entries[i].key, key)) i = t->entries[i].next;
    return i;
}

static void put_newest(table *t, uint32_t i)
{
    table_entry *e = &t->entries[i];
    e->newer = 0;
    e->older = t->newest;
    if (t->newest) t->entries[t->newest].newer = i;
    t->newest = i;
    if (!t->oldest) t->oldest = i;
}

static void take_out(table *t, uint32_t i)
{
    const table_entry *e = &t->entries[i];
    if (e->newer)
        t->entries[e->newer].older = e->older;
    else
        t->newest = e->older;
    if (e->older)
        t->entries[e->older].newer = e->newer;
    else
        t->oldest = e->newer;
}

uint32_t table_add(table *t, const quire_key *key)
{
    if (!t->unused) grow(t);
    uint32_t i = t->unused, *bucket = bucket_of(t, key);
    t->unused = t->entries[i].next;
    t->entries[i].key = *key;
    t->entries[i].next = *bucket;
    *bucket = i;
    put_newest(t, i);
    t->n++;
    return i;
}

void table_use(table *t, uint32_t i)
{
    if (t->newest == i) return;
    take_out(t, i);
    put_newest(t, i);
}

void table_remove(table *t, uint32_t i)
{
    uint32_t *at = bucket_of(t, &t->entries[i].key);
    while (*at != i) at = &t->entries[*at].next;
    *at = t->entries[i].next;
    take_out(t, i);
    t->entries[i].next = t->unused;
    t->unused = i;
    t->n--;
}
