/* SPDX-License-Identifier: MIT */
/* Faults that an earlier form of the disk tier had: damage in the index ends the process, the cap does not grow, pinned pages go when it
 * is lowered, opening deletes what others use, files are confused with those of other file systems, objects of unknown versions are
 * deleted. Every store is opened in a process of its own, so that a signal is a result. */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"
#include "store/base.h"
#include "support/random.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAP (32ull << 20)
#define TEXTS 12u
#define PAGES 4u
#define PAGE_BYTES 60000u

/* Program: fills a directory. */
static int fill(const char *dir)
{
    kit_raw raw;
    quire_store *store = kit_open(dir, CAP, NULL);
    kit_raw_begin(&raw, store, PAGE_BYTES);
    for (uint64_t t = 0; t < TEXTS; t++) kit_raw_save(&raw, t, PAGES);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    kit_raw_end(&raw);
    quire_store_close(store);
    return 0;
}

/* Program: opens, loads, saves, walks. What comes is right (kit_raw_load compares); whatever else happens is no signal. */
static int use(const char *dir)
{
    kit_raw raw;
    quire_store *store = NULL;
    quire_store_options o = kit_options(dir, CAP, NULL);
    if (quire_store_open(&store, &o)) return 0; /* refused: also an answer */
    kit_raw_begin(&raw, store, PAGE_BYTES);
    for (uint64_t t = 0; t < TEXTS; t++) (void)kit_raw_load(&raw, t, PAGES, 5000);
    for (uint64_t t = 100; t < 103; t++) kit_raw_save(&raw, t, PAGES);
    (void)quire_store_flush(store, 20000);
    for (uint64_t t = 100; t < 103; t++) (void)kit_raw_load(&raw, t, PAGES, 5000);
    (void)quire_store_gc(store, 0, CAP / 4, NULL);
    kit_raw_end(&raw);
    quire_store_close(store);
    return 0;
}

static void expect_ok(const char *what, int rc)
{
    if (!rc) return;
    fprintf(stderr, "%s: the program ended with %d%s\n", what, rc, rc > 128 ? " (a signal)" : "");
    exit(1);
}

/* One bit after the other, in blocks that are no page data. */
static void flips(void)
{
    enum { FLIPS = 150, MOST = 4096 };
    char *whole = kit_directory(NULL), *dir = kit_directory(NULL);
    uint64_t *blocks = (uint64_t *)malloc(MOST * sizeof *blocks);
    rng r = {3};
    KIT_REQUIRE(blocks);
    expect_ok("filling", kit_run((const char *[]){"fill", whole, NULL}, 0));
    for (uint32_t i = 0, done = 0; done < FLIPS && i < 10 * FLIPS; i++) {
        kit_files f;
        kit_files_copy(whole, dir);
        kit_files_list(&f, dir);
        const char *path = f.path[rng_bits(&r) % f.n];
        uint32_t n = strstr(path, "-lock") ? 0 : kit_plain_blocks(path, blocks, MOST);
        if (n) {
            uint64_t at = kit_used_byte(path, blocks[rng_bits(&r) % n], (uint32_t)rng_bits(&r));
            kit_flip_bit(path, at, (uint32_t)(rng_bits(&r) % 8));
            char what[600];
            snprintf(what, sizeof what, "a flipped bit in byte %llu of %s", (unsigned long long)at, path);
            expect_ok(what, kit_run((const char *[]){"use", dir, NULL}, 0));
            done++;
        }
        kit_files_free(&f);
    }
    printf("%d bits flipped outside of page data: no signal, no wrong page\n", FLIPS);
    free(blocks);
    kit_remove(whole);
    kit_remove(dir);
}

/* ---------------------------------------------------------------------- cap */

#define LARGE 1000000u

static void cap_grows(void)
{
    char *dir = kit_directory(NULL);
    kit_raw raw;
    quire_store *store = kit_open(dir, 64u << 20, NULL);
    kit_raw_begin(&raw, store, LARGE);
    kit_raw_save(&raw, 1, 10);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    kit_raw_end(&raw);
    quire_store_close(store);
    store = kit_open(dir, 1u << 30, NULL);
    kit_raw_begin(&raw, store, LARGE);
    for (uint64_t t = 2; t < 32; t++) { /* 300 MB */
        kit_raw_save(&raw, t, 10);
        KIT_REQUIRE(!quire_store_flush(store, 20000));
    }
    quire_store_stats s = kit_stats(store);
    printf("cap raised from 64 MiB to 1 GiB: %llu objects of 1 MB, %llu evicted\n",
           (unsigned long long)s.disk_objects, (unsigned long long)s.evicted);
    KIT_REQUIRE(s.evicted == 0 && s.disk_objects == 310 && s.dropped[0] + s.failed[0] == 0);
    for (uint64_t t = 1; t < 32; t++) KIT_REQUIRE(kit_raw_load(&raw, t, 10, 10000) == 10);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

static void pin_text(kit_raw *raw, uint64_t text, uint32_t n_pages)
{
    uint32_t tokens[64 * 64], n = 0;
    kit_raw_tokens(tokens, text, n_pages);
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = n_pages * 64};
    KIT_REQUIRE(!quire_namespace_pin(raw->ns, &p, 1, 20000, &n) && n == n_pages * 64);
}

static void lowered_cap_keeps_pins(void)
{
    char *dir = kit_directory(NULL);
    kit_raw raw;
    quire_store *store = kit_open(dir, 128u << 20, NULL);
    kit_raw_begin(&raw, store, LARGE);
    for (uint64_t t = 0; t < 10; t++) kit_raw_save(&raw, t, 10);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    pin_text(&raw, 3, 10);
    pin_text(&raw, 9, 10);
    kit_raw_end(&raw);
    quire_store_close(store);
    store = kit_open(dir, 32u << 20, NULL);
    kit_raw_begin(&raw, store, LARGE);
    kit_raw_save(&raw, 20, 5);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    KIT_REQUIRE(kit_raw_load(&raw, 3, 10, 10000) == 10);
    KIT_REQUIRE(kit_raw_load(&raw, 9, 10, 10000) == 10);
    KIT_REQUIRE(kit_raw_load(&raw, 20, 5, 10000) == 5);
    KIT_REQUIRE(kit_directory_bytes(dir) <= 32u << 20);
    printf("cap lowered from 128 to 32 MiB: 20 MB pinned are still there\n");
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------- damage while in use */

/* Program: loads texts 0 and 1 whole, or fails. */
static int load_both(const char *dir)
{
    kit_raw raw;
    quire_store *store = kit_open(dir, 0, NULL);
    kit_raw_begin(&raw, store, PAGE_BYTES);
    bool all = false;
    for (uint64_t end = quire_now() + 60 * QUIRE_SECOND; !all && quire_now() < end; usleep(20000))
        all = kit_raw_load(&raw, 0, PAGES, 5000) == PAGES && kit_raw_load(&raw, 1, PAGES, 5000) == PAGES;
    kit_raw_end(&raw);
    quire_store_close(store);
    return all ? 0 : 1;
}

/* Program: overwrites the beginning of every file that is no page data. */
static int spoil(const char *dir)
{
    kit_files f;
    uint8_t noise[8192];
    memset(noise, 0xa5, sizeof noise);
    kit_files_list(&f, dir);
    for (uint32_t i = 0; i < f.n; i++) {
        const char *name = strrchr(f.path[i], '/') + 1;
        if (f.size[i] >= sizeof noise && (!strcmp(name, "index") || !strcmp(name, "segment-00")))
            kit_overwrite(f.path[i], 0, noise, sizeof noise);
    }
    kit_files_free(&f);
    return 0;
}

static void opening_takes_nothing_away(void)
{
    char *dir = kit_directory(NULL);
    kit_raw raw;
    quire_store *store = kit_open(dir, CAP, NULL);
    kit_raw_begin(&raw, store, PAGE_BYTES);
    kit_raw_save(&raw, 0, PAGES);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    KIT_REQUIRE(kit_run((const char *[]){"spoil", dir, NULL}, 0) == 0);
    KIT_REQUIRE(kit_run((const char *[]){"use", dir, NULL}, 0) == 0); /* finds it damaged */
    uint32_t n = 0;
    for (int i = 0; i < 1000 && n < PAGES; i++) { /* a save may fail until the index is there again */
        kit_raw_save(&raw, 1, PAGES);
        KIT_REQUIRE(!quire_store_flush(store, 20000));
        n = kit_raw_load(&raw, 1, PAGES, 5000);
        if (n < PAGES) usleep(50000);
    }
    KIT_REQUIRE(n == PAGES);
    expect_ok("what two processes saved around the damage", kit_run((const char *[]){"both", dir, NULL}, 0));
    printf("index damaged under a process, opened by another: nothing lost\n");
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------ file systems */

/* Another file system has files with the same numbers, and the process has them mapped. */
static void other_file_systems(void)
{
    char *dir = kit_directory(NULL), *other = kit_directory(NULL);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64m,inode64") ||
        mount("tmpfs", other, "tmpfs", 0, "size=64m,inode64")) {
        printf("files of other file systems: left out, no file system can be mounted here\n");
        kit_remove(dir);
        kit_remove(other);
        return;
    }
    KIT_REQUIRE(kit_run((const char *[]){"fill", dir, NULL}, 0) == 0);
    kit_files f;
    uint32_t n_mapped = 0;
    kit_files_list(&f, dir);
    for (int i = 0; i < 400; i++) {
        char path[600];
        struct stat mine, theirs;
        snprintf(path, sizeof path, "%s/f%d", other, i);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        KIT_REQUIRE(fd >= 0 && fstat(fd, &mine) == 0 && ftruncate(fd, 1 << 20) == 0);
        for (uint32_t k = 0; k < f.n; k++) {
            if (stat(f.path[k], &theirs) || theirs.st_ino != mine.st_ino) continue;
            void *at =
                (void *)(uintptr_t)(0x10000000u + (uintptr_t)n_mapped++ * (2u << 20)); /* below all others */
            KIT_REQUIRE(mmap(at, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) == at);
        }
        close(fd);
    }
    kit_files_free(&f);
    KIT_REQUIRE(n_mapped > 0);
    kit_raw raw;
    quire_store *store = kit_open(dir, CAP, NULL);
    kit_raw_begin(&raw, store, PAGE_BYTES);
    for (uint64_t t = 0; t < TEXTS; t++) KIT_REQUIRE(kit_raw_load(&raw, t, PAGES, 5000) == PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);
    printf("%u mapped files of another file system have the numbers of ours: all pages come\n", n_mapped);
    (void)umount(dir);
    (void)umount(other);
    kit_remove(dir);
    kit_remove(other);
}

/* ----------------------------------------------------------------- versions */

static uint64_t count_version(const char *dir, const uint8_t *head, size_t n)
{
    kit_files f;
    uint64_t found = 0;
    kit_files_list(&f, dir);
    for (uint32_t i = 0; i < f.n; i++)
        for (uint64_t at = 0; (at = kit_find_bytes(f.path[i], at, head, n)) != UINT64_MAX; at++) found++;
    kit_files_free(&f);
    return found;
}

/* Program: loads what it can, tidies up, fills the directory several times over. */
static int churn(const char *dir)
{
    kit_raw raw;
    quire_store *store = kit_open(dir, 0, NULL);
    kit_raw_begin(&raw, store, PAGE_BYTES);
    for (uint64_t t = 0; t < TEXTS; t++) (void)kit_raw_load(&raw, t, PAGES, 5000);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    KIT_REQUIRE(!quire_store_gc(store, 0, UINT64_MAX, NULL));
    for (uint64_t t = 1000; t < 1400; t++) {
        kit_raw_save(&raw, t, PAGES);
        KIT_REQUIRE(!quire_store_flush(store, 20000));
    }
    KIT_REQUIRE(!quire_store_gc(store, 0, 0, NULL));
    kit_raw_end(&raw);
    quire_store_close(store);
    return 0;
}

static void unknown_versions_stay(void)
{
    static const uint8_t record[16] = {'Q', 'U', 'I', 'R', 'E',  'R',  'C',  0,
                                       1,   0,   0,   0,   0xfe, 0xff, 0xff, 0xff};
    static const uint8_t later[16] = {'Q', 'U', 'I', 'R', 'E',  'R',  'C',  0,
                                      7,   0,   0,   0,   0xf8, 0xff, 0xff, 0xff};
    static const uint8_t object[12] = {'Q', 'U', 'I', 'R', 'E', 'P', 'G', 0, 1, 0, 0, 0};
    static const uint8_t later_object[12] = {'Q', 'U', 'I', 'R', 'E', 'P', 'G', 0, 7, 0, 0, 0};
    char *dir = kit_directory(NULL);
    kit_files f;
    uint64_t n = 0;
    KIT_REQUIRE(kit_run((const char *[]){"fill", dir, NULL}, 0) == 0);
    bool slabs = count_version(dir, record, sizeof record) > 0;
    kit_files_list(&f, dir);
    for (uint32_t i = 0; i < f.n; i++)
        for (uint64_t at = 0; n < 3; at++) {
            at = slabs ? kit_find_bytes(f.path[i], at, record, sizeof record)
                       : kit_find_bytes(f.path[i], at, object, sizeof object);
            if (at == UINT64_MAX) break;
            if (slabs) { /* well-formed, of a version that will come */
                uint8_t head[40];
                int fd = open(f.path[i], O_RDONLY | O_CLOEXEC);
                KIT_REQUIRE(fd >= 0 && pread(fd, head, sizeof head, (off_t)at) == (ssize_t)sizeof head);
                close(fd);
                memcpy(head, later, sizeof later);
                quire_store64(head + 32, kit_record_check(f.path[i], head));
                kit_overwrite(f.path[i], at, head, sizeof head);
            } else {
                kit_overwrite(f.path[i], at, later_object, sizeof later_object);
            }
            n++;
        }
    kit_files_free(&f);
    KIT_REQUIRE(n == 3);
    expect_ok("using a directory with objects of a later version",
              kit_run((const char *[]){"churn", dir, NULL}, 0));
    uint64_t left = slabs ? count_version(dir, later, sizeof later) : count_version(dir, later_object, 12);
    printf("%llu of 3 objects of an unknown version are left\n", (unsigned long long)left);
    KIT_REQUIRE(left == 3);
    /* Also if the index is made anew. */
    KIT_REQUIRE(kit_run((const char *[]){"spoil", dir, NULL}, 0) == 0);
    expect_ok("the same without its index", kit_run((const char *[]){"churn", dir, NULL}, 0));
    KIT_REQUIRE(count_version(dir, later, sizeof later) == 3);
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *dir);
    } programs[] = {{"fill", fill}, {"use", use}, {"both", load_both}, {"spoil", spoil}, {"churn", churn}};
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"grow", cap_grows},
                 {"lower", lowered_cap_keeps_pins},
                 {"open", opening_takes_nothing_away},
                 {"versions", unknown_versions_stay},
                 {"flips", flips},
                 {"devices", other_file_systems}};
    for (size_t i = 0; argc == 3 && i < sizeof programs / sizeof *programs; i++)
        if (strcmp(argv[1], programs[i].name) == 0) return programs[i].run(argv[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || strcmp(argv[1], tests[i].name) == 0) tests[i].run();
    return 0;
}
