/* SPDX-License-Identifier: MIT */
/*
 * A large directory: how long opening and looking up take, and that the cap goes down and up while the directory is in use. And many
 * sizes in a small one: how much of the cap is page data after many times the capacity.
 *   store_capacity [OBJECTS [DIRECTORY]]      475,000 objects of 2.25 MiB are 1 TB; their pages are not written, only their headers
 */
#define _GNU_SOURCE
#include "store/kit/store_kit.h"
#include "store/disk_inside.h"
#include "support/random.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_BYTES (2359296ull - 4096) /* a record of 2.25 MiB */
#define CHAIN 2048u

static quire_counters counters;

static quire_disk *open_disk(const char *dir, uint64_t cap, double *seconds)
{
    char message[256] = "";
    quire_allocator a = quire_mem_allocator(NULL);
    quire_disk *d = NULL;
    uint64_t begin = quire_now();
    quire_status status = quire_disk_open(&d, dir, cap, &a, &counters, NULL, message, sizeof message);
    if (status) fprintf(stderr, "open: %s\n", message);
    KIT_REQUIRE(!status);
    if (seconds) *seconds = (double)(quire_now() - begin) / 1e9;
    return d;
}

/* Keys are as evenly spread as those of a hash. */
static quire_key key_of(uint64_t i)
{
    quire_key k;
    rng r = {i * 7919 + 1};
    for (int j = 0; j < 4; j++) {
        uint64_t bits = rng_bits(&r);
        memcpy(k.byte + 8 * j, &bits, 8);
    }
    return k;
}

static void put(quire_disk *d, uint64_t first, uint32_t n, uint64_t bytes, const void *payload)
{
    quire_disk_put puts[64];
    memset(puts, 0, sizeof puts);
    for (uint32_t i = 0; i < n; i++) {
        puts[i].id.object = key_of(first + i);
        puts[i].id.key = puts[i].id.object;
        puts[i].id.bytes = bytes;
        puts[i].payload = payload;
    }
    KIT_REQUIRE(quire_disk_write(d, puts, n));
}

/* Milliseconds for a chain that ends here; *found: how much of it is there. */
static double look_up(quire_disk *d, uint64_t first, uint32_t n, uint32_t *found)
{
    quire_key *keys = (quire_key *)malloc(n * sizeof *keys);
    bool *has = (bool *)calloc(n, sizeof *has);
    KIT_REQUIRE(keys && has);
    for (uint32_t i = 0; i < n; i++) keys[i] = key_of(first + i);
    uint64_t begin = quire_now();
    quire_disk_has(d, keys, n, has);
    double ms = (double)(quire_now() - begin) / 1e6;
    *found = 0;
    for (uint32_t i = 0; i < n; i++) *found += has[i];
    free(keys);
    free(has);
    return ms;
}

/* Program: opens the directory with another cap, and keeps it open until that is reached. */
static int set_cap(const char *dir, uint64_t cap)
{
    double seconds;
    quire_disk *d = open_disk(dir, cap, &seconds);
    printf("  another process opened it with a cap of %.0f GB in %.3f s\n", (double)cap / 1e9, seconds);
    for (uint64_t end = quire_now() + 600 * QUIRE_SECOND; d->is_over_cap && quire_now() < end;) usleep(10000);
    KIT_REQUIRE(!d->is_over_cap);
    quire_disk_close(d);
    return 0;
}

static void change_cap(quire_disk *d, const char *dir, uint64_t n, uint64_t cap)
{
    char text[32];
    double most = 0;
    uint32_t found;
    snprintf(text, sizeof text, "%llu", (unsigned long long)cap);
    uint64_t begin = quire_now();
    pid_t pid = fork();
    KIT_REQUIRE(pid >= 0);
    if (!pid) {
        int rc = kit_run((const char *[]){"cap", dir, text, NULL}, 0);
        _exit(rc);
    }
    /* Used meanwhile. */
    quire_disk_usage u;
    do {
        double ms = look_up(d, n - CHAIN, CHAIN, &found);
        if (ms > most) most = ms;
        KIT_REQUIRE(found == CHAIN); /* the most recent ones stay */
        usleep(20000);
        quire_disk_usage_get(d, &u);
    } while (u.cap_bytes != cap || u.record_bytes > cap);
    int status;
    KIT_REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
    printf(
        "cap %.0f GB: %llu objects, reached in %.1f s; a chain of %u looked up meanwhile in at most %.1f ms\n",
        (double)cap / 1e9, (unsigned long long)u.n_objects, (double)(quire_now() - begin) / 1e9, CHAIN, most);
}

static void large(uint64_t n, const char *parent)
{
    char *dir = kit_directory(parent);
    uint64_t record = quire_record_bytes(PAGE_BYTES), cap = n * record + n * record / 50 + (64u << 20);
    double seconds;
    uint32_t found;
    quire_disk *d = open_disk(dir, cap, NULL);
    d->writes_headers_only = true;
    uint64_t begin = quire_now();
    for (uint64_t i = 0; i < n; i += 64) put(d, i, (uint32_t)(n - i < 64 ? n - i : 64), PAGE_BYTES, "");
    quire_disk_usage u;
    quire_disk_usage_get(d, &u);
    printf("%llu objects, %.2f TB of records, written in %.0f s; %.2f GB on disk\n",
           (unsigned long long)u.n_objects, (double)u.record_bytes / 1e12,
           (double)(quire_now() - begin) / 1e9, (double)u.file_bytes / 1e9);
    KIT_REQUIRE(u.n_objects == n && quire_counted(&counters.evicted) == 0);
    quire_disk_close(d);
    d = open_disk(dir, 0, &seconds);
    double first = look_up(d, n - 2 * CHAIN, CHAIN, &found), again = look_up(d, n / 2, CHAIN, &found);
    KIT_REQUIRE(found == CHAIN);
    printf("opened in %.3f s; a chain of %u looked up in %.1f ms, another in %.1f ms\n", seconds, CHAIN,
           first, again);
    KIT_REQUIRE(seconds < 2);
    change_cap(d, dir, n, cap / 2);
    change_cap(d, dir, n, cap);
    d->writes_headers_only = true;
    uint64_t evicted = quire_counted(&counters.evicted);
    put(d, n, 64, PAGE_BYTES, "");
    KIT_REQUIRE(quire_counted(&counters.evicted) == evicted && look_up(d, n, 64, &found) >= 0 && found == 64);
    quire_disk_close(d);

    /* Without its index: opened at once, and everything found again. */
    char path[600];
    snprintf(path, sizeof path, "%s/index", dir);
    KIT_REQUIRE(unlink(path) == 0);
    d = open_disk(dir, 0, &seconds);
    quire_disk_usage_get(d, &u);
    begin = quire_now();
    while (u.is_scanning) {
        usleep(20000);
        quire_disk_usage_get(d, &u);
    }
    printf("without its index: opened in %.3f s, %llu objects found again in %.1f s\n", seconds,
           (unsigned long long)u.n_objects, (double)(quire_now() - begin) / 1e9);
    KIT_REQUIRE(seconds < 2);
    (void)look_up(d, n - CHAIN, CHAIN, &found);
    KIT_REQUIRE(found == CHAIN);
    quire_disk_close(d);
    kit_remove(dir);
}

/* ---------------------------------------------------------------- many sizes */

#define SIZES 1000u
#define MIXED_CAP (192ull << 20)

static void many_sizes(const char *parent, uint32_t times)
{
    char *dir = kit_directory(parent);
    quire_disk *d = open_disk(dir, MIXED_CAP, NULL);
    rng r = {11};
    size_t largest = 32000 + 1000 * SIZES;
    uint8_t *payload = (uint8_t *)malloc(largest);
    uint64_t written = 0, i = 1ull << 40, live = 0, least = UINT64_MAX;
    enum { MOST = 1 << 16 };
    uint32_t *sizes = (uint32_t *)malloc(MOST * sizeof *sizes); /* of the newest objects */
    KIT_REQUIRE(payload && sizes);
    for (size_t k = 0; k < largest; k += 8) {
        uint64_t bits = rng_bits(&r);
        memcpy(payload + k, &bits, 8);
    }
    uint64_t first = i, before = quire_counted(&counters.dropped[0]) + quire_counted(&counters.failed[0]);
    for (uint64_t round = 0; written < times * MIXED_CAP; round++) {
        /* Small ones are frequent at first, large ones later. */
        double u = (double)(rng_bits(&r) % 1000000) / 1e6, v = u * u * u;
        if (written > times * MIXED_CAP / 2) v = 1 - v;
        uint64_t bytes = 32000 + 1000 * (uint64_t)(v * (SIZES - 1));
        put(d, i, 1, bytes, payload);
        sizes[(i - first) % MOST] = (uint32_t)bytes;
        written += bytes;
        i++;
        if (round % 50 == 0) KIT_REQUIRE(kit_directory_bytes(dir) <= MIXED_CAP);
        if (written > MIXED_CAP * 3 / 2 && round % 200 == 0) { /* live page data, counted from the keys */
            live = 0;
            uint32_t found;
            for (uint64_t k = i; k > first && i - k < MOST && k > i - 8192;) {
                k--;
                (void)look_up(d, k, 1, &found);
                if (!found) break; /* the oldest go first */
                live += sizes[(k - first) % MOST];
            }
            if (live < least) least = live;
        }
    }
    uint64_t refused = quire_counted(&counters.dropped[0]) + quire_counted(&counters.failed[0]) - before;
    printf(
        "%u capacities of %u sizes, the mix reversed halfway: at least %.1f %% of the cap is page data, %llu objects refused\n",
        times, SIZES, 100.0 * (double)least / (double)MIXED_CAP, (unsigned long long)refused);
    KIT_REQUIRE(refused == 0 && (double)least >= 0.85 * (double)MIXED_CAP);
    free(payload);
    free(sizes);
    quire_disk_close(d);
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "cap") == 0) return set_cap(argv[2], strtoull(argv[3], NULL, 10));
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 12000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    large(n, argc > 2 ? argv[2] : NULL);
    many_sizes(argc > 2 ? argv[2] : NULL, argc > 1 ? 20 : 5);
    return 0;
}
