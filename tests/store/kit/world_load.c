/* SPDX-License-Identifier: MIT */
/* Values of the scripted world, and loads that compare what comes. */
#include "store/kit/world_peer.h"

#include <string.h>

static void name_of(char key[80], const quire_key *object)
{
    size_t n = (size_t)snprintf(key, 80, "q1:");
    for (int i = 0; i < 32; i++) n += (size_t)snprintf(key + n, 80 - n, "%02x", object->byte[i]);
}

quire_key world_object(uint32_t first, uint32_t last, uint32_t n)
{
    for (uint64_t i = 0, found = 0;; i++) {
        quire_key object = {{0}};
        quire_store64(object.byte, i * 0x9e3779b97f4a7c15ull);
        quire_store64(object.byte + 8, i);
        quire_call call = {.object = object};
        uint32_t slot = quire_call_slot(&call);
        if (slot >= first && slot <= last && found++ == n) return object;
    }
}

world_value *world_find(world *w, const quire_key *object)
{
    char key[80];
    name_of(key, object);
    for (world_value *v = w->values; v; v = v->next)
        if (!strcmp(v->key, key)) return v;
    return NULL;
}

uint8_t world_byte(const quire_key *object, size_t at)
{
    return (uint8_t)(object->byte[at % 16] ^ at * 31 ^ at >> 8);
}

void world_put(world *w, const quire_key *object, size_t bytes)
{
    quire_call call = {.object = *object};
    int owner = w->is_single ? 0 : w->owner[quire_call_slot(&call)];
    world_value *v = (world_value *)calloc(1, sizeof *v);
    name_of(v->key, object);
    v->n = bytes;
    v->bytes = (uint8_t *)malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) v->bytes[i] = world_byte(object, i);
    for (uint32_t i = 0; i < w->n_peers; i++) v->on[i] = (int)i == owner || w->peer[i].master == owner;
    v->next = w->values;
    w->values = v;
}

typedef struct arrival {
    const quire_key *object;
    size_t bytes;
    bool came;
} arrival;

static void on_value(void *ctx, const uint8_t *bytes, size_t n)
{
    arrival *a = (arrival *)ctx;
    KIT_REQUIRE(!a->came && n == a->bytes);
    for (size_t i = 0; i < n; i++) KIT_REQUIRE(bytes[i] == world_byte(a->object, i));
    a->came = true;
}

static world_load run(world *w, quire_lane *lane, quire_verb verb, const quire_key *objects, uint32_t n,
                      size_t bytes, uint64_t timeout)
{
    static quire_call calls[WORLD_CALLS];
    static arrival arrivals[WORLD_CALLS];
    world_load out = {.n = n};
    uint8_t *values = verb == QUIRE_SET ? (uint8_t *)malloc(bytes * n) : NULL;
    KIT_REQUIRE(n <= WORLD_CALLS);
    for (uint32_t i = 0; i < n; i++) {
        arrivals[i] = (arrival){.object = &objects[i], .bytes = bytes};
        calls[i] = (quire_call){.verb = verb,
                                .object = objects[i],
                                .bytes = bytes,
                                .value = values ? values + bytes * i : NULL,
                                .on_value = on_value,
                                .ctx = &arrivals[i]};
        for (size_t j = 0; j < bytes && values; j++) values[bytes * i + j] = world_byte(&objects[i], j);
    }
    uint64_t before = w->clock;
    quire_lane_run(lane, calls, n, w->clock + timeout);
    out.took = w->clock - before;
    for (uint32_t i = 0; i < n; i++) {
        if (calls[i].miss && !out.miss) out.miss = calls[i].miss;
        KIT_REQUIRE(!arrivals[i].came || (!calls[i].miss && calls[i].found));
        out.n_whole += verb == QUIRE_GET ? arrivals[i].came : !calls[i].miss;
        out.n_found += calls[i].found;
    }
    free(values);
    return out;
}

world_load world_get(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, size_t bytes,
                     uint64_t timeout)
{
    return run(w, lane, QUIRE_GET, objects, n, bytes, timeout);
}

world_load world_ask(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, uint64_t timeout)
{
    return run(w, lane, QUIRE_EXISTS, objects, n, 0, timeout);
}

world_load world_set(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, size_t bytes,
                     uint64_t timeout)
{
    return run(w, lane, QUIRE_SET, objects, n, bytes, timeout);
}
