/* SPDX-License-Identifier: MIT */
/* Killed at any moment of saving and evicting, the store opens again, holds its cap and no wrong page.
 *   store_crash [KILLS [SEED]]        scripts/crash-store runs the long form */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "store/base.h"
#include "support/random.h"

#include <string.h>
#include <unistd.h>

#define CAP (24ull << 20)
static const size_t sizes[] = {37000, 120000, 300000};
#define N_SIZES 3

/* Saves, loads, pins and trims as fast as it can until it is killed. */
_Noreturn static void churn(const char *directory, uint64_t seed)
{
    rng r = {seed};
    kit_raw raw[N_SIZES];
    quire_store *store = kit_open(directory, CAP, NULL);
    for (int i = 0; i < N_SIZES; i++) kit_raw_begin(&raw[i], store, sizes[i]);
    for (;;) {
        kit_raw *at = &raw[rng_bits(&r) % N_SIZES];
        uint64_t text = rng_bits(&r) % 200;
        uint32_t n = 1 + (uint32_t)(rng_bits(&r) % 12);
        if (rng_bits(&r) % 4)
            kit_raw_save(at, text, n);
        else
            (void)kit_raw_load(at, text, n, 1000);
        if (rng_bits(&r) % 64 == 0) (void)quire_store_gc(store, 0, CAP / 2, NULL);
        if (rng_bits(&r) % 16 == 0) (void)quire_store_flush(store, 1000);
    }
}

static uint64_t check(const char *directory, uint64_t text)
{
    kit_raw raw[N_SIZES];
    quire_store *store = kit_open(directory, CAP, NULL);
    uint64_t n = kit_verify(store);
    KIT_REQUIRE(kit_directory_bytes(directory) <= CAP);
    for (int i = 0; i < N_SIZES; i++) {
        kit_raw_begin(&raw[i], store, sizes[i]);
        for (uint64_t t = 0; t < 200; t += 7)
            (void)kit_raw_load(&raw[i], t, 12, 5000); /* what comes is right */
    }
    kit_raw_save(&raw[0], 1000 + text, 3); /* and it can be used */
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    uint32_t came = kit_raw_load(&raw[0], 1000 + text, 3, 5000);
    if (came != 3) {
        quire_store_stats s = kit_stats(store);
        printf("%u of 3 pages came; saved %llu, known %llu, dropped %llu, failed %llu, evicted %llu\n", came,
               (unsigned long long)s.saved[0], (unsigned long long)s.known[0],
               (unsigned long long)s.dropped[0], (unsigned long long)s.failed[0],
               (unsigned long long)s.evicted);
    }
    KIT_REQUIRE(came == 3);
    for (int i = 0; i < N_SIZES; i++) kit_raw_end(&raw[i]);
    quire_store_close(store);
    return n;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "churn") == 0) churn(argv[2], strtoull(argv[3], NULL, 10));
    uint32_t kills = argc > 1 ? (uint32_t)atoi(argv[1]) : 12;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)getpid(), least = UINT64_MAX, most = 0;
    char *dir = kit_directory(NULL), number[32];
    rng r = {seed};
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu, %u kills\n", (unsigned long long)seed, kills);
    uint64_t begin = quire_now();
    for (uint32_t i = 0; i < kills; i++) {
        /* Early, too: while it opens. Later: in the middle of transactions. */
        uint32_t after =
            i % 5 == 0 ? 1000 + (uint32_t)(rng_bits(&r) % 30000) : 20000 + (uint32_t)(rng_bits(&r) % 250000);
        snprintf(number, sizeof number, "%llu", (unsigned long long)(rng_bits(&r) % 1000000));
        int rc = kit_run((const char *[]){"churn", dir, number, NULL}, after);
        if (rc != 128 + 9) {
            fprintf(stderr, "kill %u: the program ended by itself with %d (seed %llu)\n", i, rc,
                    (unsigned long long)seed);
            return 1;
        }
        uint64_t n = check(dir, i);
        if (n < least) least = n;
        if (n > most) most = n;
        if ((i + 1) % 50 == 0) printf("%u kills, %llu objects\n", i + 1, (unsigned long long)n);
    }
    printf("%u kills in %u s: opened and verified each time, %llu to %llu objects, no wrong page, cap held\n",
           kills, (unsigned)((quire_now() - begin) / QUIRE_SECOND), (unsigned long long)least,
           (unsigned long long)most);
    kit_remove(dir);
    return 0;
}
