/* SPDX-License-Identifier: MIT */
/* How much of the slab files loads leave in the operating system's page cache; pages that come from there are verified like all others. */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CAP (512ull << 20)
#define BOUND (16ull << 20)
#define PAGE_BYTES 500000u
#define PAGES 8u
#define TEXTS 32u            /* 128 MB: eight times the bound */
#define SLACK (256ull << 10) /* heads of slabs, which opening a directory reads */
#define WARM_TEXTS 3u        /* 12 MB: within the bound */

typedef struct scene {
    char *dir;
    quire_store *store;
    kit_raw raw;
} scene;

static void begin(scene *s, char *dir, uint64_t bound)
{
    *s = (scene){.dir = dir};
    quire_store_options o = kit_options(dir, CAP, NULL);
    o.disk_cache_bytes = bound;
    KIT_REQUIRE(!quire_store_open(&s->store, &o));
    kit_raw_begin(&s->raw, s->store, PAGE_BYTES);
}

static void end(scene *s)
{
    kit_raw_end(&s->raw);
    quire_store_close(s->store);
}

static void load_all(scene *s, uint64_t first, uint64_t n)
{
    for (uint64_t t = first; t < first + n; t++) KIT_REQUIRE(kit_raw_load(&s->raw, t, PAGES, 60000) == PAGES);
}

static bool is_slab(const char *path)
{
    return strstr(path, "/slab-") != NULL;
}

/* Bytes of slabs that are in the page cache. */
static uint64_t resident(const char *dir)
{
    kit_files f;
    uint64_t n = 0;
    kit_files_list(&f, dir);
    for (uint32_t i = 0; i < f.n; i++) {
        if (!is_slab(f.path[i]) || !f.size[i]) continue;
        int fd = open(f.path[i], O_RDONLY | O_CLOEXEC);
        size_t pages = (size_t)(f.size[i] + 4095) / 4096;
        uint8_t *in = (uint8_t *)malloc(pages);
        void *map = mmap(NULL, (size_t)f.size[i], PROT_READ, MAP_SHARED, fd, 0);
        KIT_REQUIRE(fd >= 0 && in && map != MAP_FAILED && mincore(map, (size_t)f.size[i], in) == 0);
        for (size_t k = 0; k < pages; k++) n += 4096u * (in[k] & 1u);
        munmap(map, (size_t)f.size[i]);
        free(in);
        close(fd);
    }
    kit_files_free(&f);
    return n;
}

static uint64_t report(const char *what, const char *dir)
{
    uint64_t n = resident(dir);
    printf("%s: %.2f MiB of the slabs are in the page cache\n", what, (double)n / (1 << 20));
    return n;
}

typedef struct crowd {
    scene *s;
    uint64_t seed;
} crowd;

/* Loads of several threads, in another order each, some again at once and some after a while. */
static void *one_of_crowd(void *arg)
{
    const crowd *c = (const crowd *)arg;
    for (uint64_t i = 0; i < 2 * TEXTS; i++) load_all(c->s, (i * (2 * c->seed + 3) / 2 + c->seed) % TEXTS, 1);
    return NULL;
}

static void bounded(char *dir)
{
    scene s;
    crowd c[4];
    pthread_t thread[4];
    begin(&s, dir, BOUND);
    for (uint64_t t = 0; t < TEXTS; t++) {
        kit_raw_save(&s.raw, t, PAGES);
        KIT_REQUIRE(!quire_store_flush(s.store, 60000));
    }
    KIT_REQUIRE(report("128 MB saved", dir) <= SLACK);
    load_all(&s, 0, TEXTS);
    KIT_REQUIRE(report("all loaded once", dir) <= SLACK);
    for (int i = 0; i < 3; i++) load_all(&s, 0, TEXTS);
    KIT_REQUIRE(report("all loaded three times more, eight times the bound in between", dir) <= SLACK);
    for (int i = 0; i < 3; i++) load_all(&s, 0, WARM_TEXTS);
    uint64_t warm = report("12 MB loaded three times in a row", dir);
    KIT_REQUIRE(warm > BOUND / 4 && warm <= BOUND + SLACK);
    load_all(&s, WARM_TEXTS, TEXTS - WARM_TEXTS);
    KIT_REQUIRE(report("all others loaded once", dir) >= warm / 2);
    for (uint64_t t = 0; t < TEXTS; t++)
        for (int i = 0; i < 3; i++) load_all(&s, t, 1);
    warm = report("each loaded three times in a row", dir);
    KIT_REQUIRE(warm > BOUND / 4 && warm <= BOUND + SLACK);
    for (uint64_t i = 0; i < 4; i++) {
        c[i] = (crowd){&s, i};
        KIT_REQUIRE(pthread_create(&thread[i], NULL, one_of_crowd, &c[i]) == 0);
    }
    for (uint64_t i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    KIT_REQUIRE(report("four threads", dir) <= BOUND + SLACK);
    end(&s);
    KIT_REQUIRE(report("closed", dir) <= SLACK);
    begin(&s, dir, 1);
    for (int i = 0; i < 3; i++) load_all(&s, 0, WARM_TEXTS);
    KIT_REQUIRE(report("12 MB loaded three times in a row, with a bound of 1 byte", dir) <= SLACK);
    end(&s);
}

/* Slabs are changed while their pages are kept; a miss each time, and right pages after saving again. */
static void still_verified(char *dir)
{
    enum { FLIPS = 40 };
    scene s;
    kit_files f;
    uint32_t n_missed = 0;
    begin(&s, dir, BOUND);
    for (uint32_t i = 0; i < FLIPS; i++) {
        uint64_t text = 1000 + i;
        kit_raw_save(&s.raw, text, 1);
        KIT_REQUIRE(!quire_store_flush(s.store, 60000));
        for (int k = 0; k < 3; k++) KIT_REQUIRE(kit_raw_load(&s.raw, text, 1, 60000) == 1);
        quire_key object;
        kit_raw_objects(&s.raw, text, 1, NULL, &object);
        kit_files_list(&f, dir);
        for (uint32_t k = 0; k < f.n; k++) {
            uint64_t at = is_slab(f.path[k]) ? kit_find_bytes(f.path[k], 0, object.byte, 32) : UINT64_MAX;
            if (at == UINT64_MAX) continue;
            kit_flip_bit(f.path[k], at / 4096 * 4096 + 4096 + (uint64_t)i * (PAGE_BYTES / FLIPS), i % 8);
            n_missed += kit_raw_load(&s.raw, text, 1, 60000) == 0;
        }
        kit_files_free(&f);
        kit_raw_save(&s.raw, text, 1);
        KIT_REQUIRE(!quire_store_flush(s.store, 60000));
        for (int k = 0; k < 3; k++) KIT_REQUIRE(kit_raw_load(&s.raw, text, 1, 60000) == 1);
    }
    printf("%u bits of kept pages flipped: %u misses\n", FLIPS, n_missed);
    KIT_REQUIRE(n_missed == FLIPS);
    for (int k = 0; k < 3; k++) load_all(&s, 1, 1);
    kit_files_list(&f, dir);
    for (uint32_t k = 0; k < f.n; k++)
        if (is_slab(f.path[k])) KIT_REQUIRE(truncate(f.path[k], 4096) == 0);
    kit_files_free(&f);
    KIT_REQUIRE(kit_raw_load(&s.raw, 1, PAGES, 60000) == 0);
    printf("slabs truncated under kept pages: misses\n");
    end(&s);
}

int main(void)
{
    char *dir = kit_directory(NULL);
    struct statfs fs;
    KIT_REQUIRE(statfs(dir, &fs) == 0);
    if (fs.f_type == TMPFS_MAGIC) {
        printf("left out: files of tmpfs are always in memory\n");
        kit_remove(dir);
        return 77;
    }
    bounded(dir);
    still_verified(dir);
    kit_remove(dir);
    return 0;
}
