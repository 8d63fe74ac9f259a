/* SPDX-License-Identifier: MIT */
/* Twenty times the capacity in three sizes: the cap holds, files do not grow, rates stay. */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "store/base.h"
#include "support/random.h"

#define CAP (24ull << 20)
#define TIMES 20u
#define PARTS 5u

int main(void)
{
    static const size_t sizes[] = {90000, 260000, 600000};
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, CAP, NULL);
    kit_raw raw[3];
    rng r = {5};
    uint64_t text = 0, evicted = 0, saved = 0;
    for (int i = 0; i < 3; i++) kit_raw_begin(&raw[i], store, sizes[i]);
    for (uint32_t part = 0; part < PARTS; part++) {
        uint64_t written = 0, target = CAP * TIMES / PARTS, begin = quire_now();
        while (written < target) {
            kit_raw *at = &raw[rng_bits(&r) % 3];
            uint32_t n = 1 + (uint32_t)(rng_bits(&r) % 4);
            kit_raw_save(at, ++text, n);
            written += n * at->page_bytes;
            KIT_REQUIRE(!quire_store_flush(store, 20000));
            KIT_REQUIRE(kit_raw_load(at, text, n, 5000) == n); /* what was saved last is there */
            KIT_REQUIRE(kit_directory_bytes(dir) <= CAP);
        }
        double rate = (double)written / (double)(quire_now() - begin) * 1e3;
        quire_store_stats s = kit_stats(store);
        printf("%u of %u: %.0f MB/s, %llu objects, %.1f of %.1f MB, %llu evicted\n", part + 1, PARTS, rate,
               (unsigned long long)s.disk_objects, (double)s.disk_bytes / 1e6, (double)CAP / 1e6,
               (unsigned long long)s.evicted);
        KIT_REQUIRE(s.failed[0] == 0 && s.dropped[0] == 0);
        KIT_REQUIRE(s.disk_objects > 40);
        /* One goes for each that comes. A free list that decays would cost more and more. */
        uint64_t n_saved = s.saved[0] - saved;
        KIT_REQUIRE(part == 0 || s.evicted - evicted < n_saved + n_saved / 2);
        evicted = s.evicted;
        saved = s.saved[0];
    }
    (void)kit_verify(store);
    for (int i = 0; i < 3; i++) kit_raw_end(&raw[i]);
    quire_store_close(store);
    kit_remove(dir);
    return 0;
}
