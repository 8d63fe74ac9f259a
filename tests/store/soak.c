/* SPDX-License-Identifier: MIT */
/* Eight threads load, save, look up, pin and collect over both tiers for a while: for the sanitizers.
 *   store_soak [SECONDS]        scripts/soak-store runs the long form */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "store/kit/servers.h"
#include "store/base.h"
#include "support/random.h"

#include <unistd.h>

#define THREADS 8
#define CAP (24ull << 20)

typedef struct worker {
    pthread_t thread;
    quire_store *store;
    kit_raw *raw; /* shared by all */
    uint64_t seed, end;
    uint32_t n_loaded, n_saved;
} worker;

static void use_sequences(worker *w, rng *r)
{
    kit_scene s;
    kit_scene_begin(&s, w->store, rng_bits(r) % 2 ? "k4v4" : "r8/r4", rng_bits(r) % 6);
    uint32_t n = 64 * (1 + (uint32_t)(rng_bits(r) % 4));
    quire_seq *loaded = kit_load(&s, n, 200), *computed = kit_compute(&s, n, true);
    if (quire_seq_length(loaded) == n) KIT_REQUIRE(kit_sight(&s, loaded) == kit_sight(&s, computed));
    w->n_loaded += quire_seq_length(loaded) / 64;
    quire_seq_destroy(loaded);
    quire_seq_destroy(computed);
    kit_scene_end(&s);
}

static void *run(void *arg)
{
    worker *w = (worker *)arg;
    rng r = {w->seed};
    while (quire_now() < w->end) {
        kit_raw *at = &w->raw[rng_bits(&r) % 3];
        uint64_t text = rng_bits(&r) % 100;
        uint32_t n = 1 + (uint32_t)(rng_bits(&r) % 8), tokens[64] = {0}, found;
        quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = 64};
        switch (rng_bits(&r) % 12) {
        case 0: use_sequences(w, &r); break;
        case 1: (void)quire_namespace_lookup(at->ns, &p, 50, &found); break;
        case 2: (void)quire_namespace_pin(at->ns, &p, (uint32_t)(rng_bits(&r) % 2), 500, NULL); break;
        case 3:
            if (rng_bits(&r) % 16 == 0) (void)quire_store_gc(w->store, 0, CAP / 3, NULL);
            break;
        case 4: (void)kit_stats(w->store); break;
        case 5:
        case 6:
        case 7: w->n_saved += n, kit_raw_save(at, text, n); break;
        default: w->n_loaded += kit_raw_load(at, text, n, rng_bits(&r) % 4 ? 500 : 1); break;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t seconds = argc > 1 ? (uint64_t)atoi(argv[1]) : 30;
    worker w[THREADS];
    kit_raw raw[3];
    static const size_t sizes[] = {20000, 90000, 250000};
    kit_server server;
    kit_need_redis();
    kit_server_start(&server,
                     (const char *[]){"--maxmemory", "32mb", "--maxmemory-policy", "allkeys-lru", NULL});
    char *dir = kit_directory(NULL);
    quire_store_remote remote = kit_remote(server.port);
    quire_store *store = kit_open(dir, CAP, &remote);
    for (int i = 0; i < 3; i++) kit_raw_begin(&raw[i], store, sizes[i]);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.store = store,
                        .raw = raw,
                        .seed = 100 + (uint64_t)i,
                        .end = quire_now() + seconds * QUIRE_SECOND};
        KIT_REQUIRE(pthread_create(&w[i].thread, NULL, run, &w[i]) == 0);
    }
    uint32_t n_loaded = 0, n_saved = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        n_loaded += w[i].n_loaded;
        n_saved += w[i].n_saved;
    }
    KIT_REQUIRE(!quire_store_flush(store, 60000));
    quire_store_stats s = kit_stats(store);
    (void)kit_verify(store);
    printf(
        "%llu s: %u pages loaded (%llu from disk, %llu from the remote), %u handed in, %llu + %llu saved, %llu evicted, %llu dropped\n",
        (unsigned long long)seconds, n_loaded, (unsigned long long)s.loaded[0],
        (unsigned long long)s.loaded[1], n_saved, (unsigned long long)s.saved[0],
        (unsigned long long)s.saved[1], (unsigned long long)s.evicted,
        (unsigned long long)(s.dropped[0] + s.dropped[1]));
    KIT_REQUIRE(n_loaded > 0 && s.saved[0] > 0 && s.saved[1] > 0);
    for (int i = QUIRE_MISS_MAGIC; i <= QUIRE_MISS_DISK; i++) KIT_REQUIRE(s.misses[i] == 0);
    KIT_REQUIRE(kit_directory_bytes(dir) <= CAP);
    for (int i = 0; i < 3; i++) kit_raw_end(&raw[i]);
    quire_store_close(store);
    kit_remove(dir);
    kit_server_end(&server);
    return 0;
}
