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

size_t choose_replica(uint64_t key, const choose_entry *entries, size_t n)
{
    uint64_t count = 0, total = 0, best_weight = 0;
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        count += entries[i].may;
        total += entries[i].may ? entries[i].load : 0;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t w = weight(key, entries[i].name);
        if (!entries[i].may || 4 * count * entries[i].load >= 5 * total + 4 * count) continue;
        if (best < n && w <= best_weight) continue;
        best = i;
        best_weight = w;
    }
    return best;
}
