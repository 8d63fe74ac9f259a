/* SPDX-License-Identifier: MIT */
#include "serve/choose.h"

/* FNV-1a. */
uint64_t choose_hash(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *at = (const uint8_t *)bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Weights of one key must not resemble each other, though the names of the replicas do (the last steps of splitmix64). */
static uint64_t weight(uint64_t key, uint64_t name)
{
    uint64_t x = key * UINT64_C(0x9e3779b97f4a7c15) ^ name;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The one with the largest weight among those with n * load below `limit`. */
static size_t best(uint64_t key, const choose_entry *entries, size_t n, uint64_t count, uint64_t limit)
{
    size_t found = n;
    for (size_t i = 0; i < n; i++)
        if (entries[i].may && count * entries[i].load < limit &&
            (found == n || weight(key, entries[i].name) > weight(key, entries[found].name)))
            found = i;
    return found;
}

size_t choose_replica(uint64_t key, const choose_entry *entries, size_t n)
{
    uint64_t count = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        count += entries[i].may;
        total += entries[i].may ? entries[i].load : 0;
    }
    size_t first = best(key, entries, n, count, UINT64_MAX);
    if (first == n || 4 * count * entries[first].load < 5 * total + 4 * count) return first;
    return best(key, entries, n, count, total);
}
