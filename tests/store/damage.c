/* SPDX-License-Identifier: MIT */
/*
 * Damage to every file of a store that two processes use: single bits flipped, files truncated, removed, replaced. No signal, no wrong
 * page; what was whole is still there.
 *   store_damage [FLIPS [SEED [DIRECTORY]]]        scripts/damage-store runs the long form
 *
 * Each flip is followed by reads that reach it, and it is shown that they did:
 * - A record: both processes load its page, which reads every byte of it. The page is missing, for a reason that one of them names; or
 *   the bit is in one of the two places that are not verified (the mark of pinned pages, the zeros behind the payload).
 * - The index: both processes drop their connections, so that nothing of it is cached, load every page, save one, and read every row
 *   and every page of every tree. What a byte is for is found out here from SQLite's file format: how many bits of
 *   rows and trees were flipped, and how many of them were noticed.
 * - The journal: its first byte, the only one that is read while it is not hot. SQLite writes a zero there again.
 * - The head file: one process opens the directory anew, and the file is what it was.
 * - The first blocks of slabs: the index is removed, so that the slabs are scanned.
 * This process never opens the store; it only changes files.
 */
#define _GNU_SOURCE
#include "store/kit/damage_kit.h"
#include "store/kit/file_kit.h"
#include "store/kit/sqlite_kit.h"
#include "store/record.h"
#include "support/random.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD, INDEX, JOURNAL, HEAD, SLAB_HEAD, KINDS };

typedef struct tally {
    uint64_t flips[KINDS], seen[KINDS]; /* those that were noticed */
    uint64_t parts[KIT_PARTS], parts_seen[KIT_PARTS];
    uint64_t n_rebuilt, n_changed;
    uint64_t unverified; /* of records */
    uint64_t n_again;    /* had to be saved more than once */
} tally;

static void fail(const char *what, long n)
{
    fprintf(stderr, "after %s: %s (%ld)\n", damage_last, what, n);
    exit(1);
}

/* Everything is there again, in both. */
static void expect_whole(damage_child *c, bool save)
{
    if (!damage_ask_both(c, DAMAGE_WHOLE, 0)) fail("the index did not become whole", 0);
    long n = damage_ask_both(c, DAMAGE_LOAD_ALL, 0);
    /* What is lost is noticed when it is loaded, and saved again. */
    for (int i = 0; save && n != (long)DAMAGE_ALL && i < 6; i++) {
        (void)damage_ask(&c[i % 2], DAMAGE_SAVE_ALL, 0);
        n = damage_ask_both(c, DAMAGE_LOAD_ALL, 0);
    }
    if (n != (long)DAMAGE_ALL) fail("pages are missing", n);
}

/* Nobody has anything of the index in memory any more; then both read it. */
static long reread(damage_child *c)
{
    (void)damage_ask_both(c, DAMAGE_FORGET, 0);
    return damage_ask_both(c, DAMAGE_LOAD_ALL, 0);
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : st.st_ino;
}

static void flip(const char *path, uint64_t byte, uint32_t bit)
{
    snprintf(damage_last, sizeof damage_last, "flipping bit %u of byte %llu of %s", bit,
             (unsigned long long)byte, path);
    kit_flip_bit(path, byte, bit);
}

/* ----------------------------------------------------------------- records */

enum { PINNED_MARK = 160, PINNED_END = 176, DESCRIPTION = 180 };

static bool flip_record(damage_child *c, const char *dir, rng *r, tally *t)
{
    uint64_t slab = 0, at = 0, text = rng_bits(r) % DAMAGE_TEXTS, page = rng_bits(r) % DAMAGE_PAGES;
    char path[600];
    damage_order(&c[0], DAMAGE_PLACES, text);
    for (uint64_t i = 0; i < DAMAGE_PAGES; i++) {
        uint64_t s = (uint64_t)damage_answer(&c[0]), a = (uint64_t)damage_answer(&c[0]);
        if (i == page) slab = s, at = a;
    }
    snprintf(path, sizeof path, "%s/slab-%08llx", dir, (unsigned long long)slab);
    /* As many in what describes the record as in the page. */
    uint64_t all = quire_record_bytes(DAMAGE_PAGE_BYTES);
    uint64_t byte = rng_bits(r) % 2        ? rng_bits(r) % DESCRIPTION
                    : rng_bits(r) % 4 == 0 ? rng_bits(r) % QUIRE_BLOCK
                                           : QUIRE_BLOCK + rng_bits(r) % (all - QUIRE_BLOCK);
    flip(path, at + byte, (uint32_t)(rng_bits(r) % 8));
    long n[2], reason[2];
    for (int i = 0; i < 2; i++) damage_order(&c[i], DAMAGE_LOAD, text);
    for (int i = 0; i < 2; i++) {
        n[i] = damage_answer(&c[i]);
        reason[i] = n[i] / DAMAGE_REASON;
        n[i] %= DAMAGE_REASON;
    }
    bool unverified = (byte >= PINNED_MARK && byte < PINNED_END) || byte >= QUIRE_BLOCK + DAMAGE_PAGE_BYTES;
    long expected = unverified ? (long)DAMAGE_PAGES : (long)page;
    t->flips[RECORD]++;
    t->seen[RECORD] += !unverified;
    t->unverified += unverified;
    if (n[0] != expected || n[1] != expected) fail("another number of pages came", n[0] * 100 + n[1]);
    if (!unverified && !reason[0] && !reason[1]) fail("nobody says why the page is missing", 0);
    if (unverified) return true;
    /* A removal that waited too long for a lock is made up for when the page is met again. */
    long again = 0;
    for (int i = 0; i < 4 && again != (long)DAMAGE_PAGES; i++) {
        (void)damage_ask(&c[rng_bits(r) % 2], DAMAGE_SAVE, text);
        long a = damage_ask(&c[0], DAMAGE_LOAD, text), b = damage_ask(&c[1], DAMAGE_LOAD, text);
        again = a % DAMAGE_REASON < b % DAMAGE_REASON ? a : b;
        t->n_again += i > 0;
    }
    if (again != (long)DAMAGE_PAGES) fail("what was saved again is not there", again);
    return true;
}

/* ------------------------------------------------------------------- index */

/* A byte of the index: mostly one that means something. */
static uint64_t choose_byte(rng *r, const uint8_t *part, size_t n)
{
    bool any = rng_bits(r) % 8 == 0;
    for (;;) {
        uint64_t byte = rng_bits(r) % n;
        if (any || part[byte] != KIT_PART_UNUSED) return byte;
    }
}

static bool flip_index(damage_child *c, const char *dir, rng *r, tally *t)
{
    char path[600];
    size_t n;
    snprintf(path, sizeof path, "%s/index", dir);
    (void)damage_ask_both(c, DAMAGE_FLUSH, 0); /* or a page that is cached is written over it */
    ino_t before = inode_of(path);
    uint8_t *parts = kit_sqlite_parts(path, &n);
    uint64_t byte = choose_byte(r, parts, n);
    kit_part part = (kit_part)parts[byte];
    free(parts);
    flip(path, byte, (uint32_t)(rng_bits(r) % 8));
    long left = reread(c);
    (void)damage_ask_both(c, DAMAGE_CHECK, 0);
    expect_whole(c, false); /* nothing was wrong with the records: all come back without being saved again */
    bool rebuilt = inode_of(path) != before, seen = rebuilt || left < (long)DAMAGE_ALL;
    t->flips[INDEX]++;
    t->seen[INDEX] += seen;
    t->n_rebuilt += rebuilt;
    t->parts[part]++;
    t->parts_seen[part] += seen;
    if (!seen && part != KIT_PART_UNUSED && getenv("DAMAGE_UNSEEN"))
        fprintf(stderr, "unseen, part %d: %s\n", (int)part, damage_last);
    if (rng_bits(r) % 16 == 0) (void)damage_ask(&c[0], DAMAGE_TRIM, 0);
    return true;
}

/* The byte that tells whether the journal is hot. */
static bool flip_journal(damage_child *c, const char *dir, rng *r, tally *t)
{
    char path[600];
    uint8_t first = 0xff;
    snprintf(path, sizeof path, "%s/index-journal", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool is_there = fd >= 0 && pread(fd, &first, 1, 0) == 1 && !first;
    if (is_there) {
        flip(path, 0, (uint32_t)(rng_bits(r) % 8));
        (void)reread(c);
        (void)damage_ask_both(c, DAMAGE_CHECK, 0);
        expect_whole(c, false);
        struct stat st;
        bool was_read =
            (pread(fd, &first, 1, 0) == 1 && !first) || (!fstat(fd, &st) && (!st.st_nlink || !st.st_size));
        if (!was_read) fail("nobody has looked at the journal", first);
        t->flips[JOURNAL]++;
        t->seen[JOURNAL]++;
    }
    if (fd >= 0) close(fd);
    return is_there;
}

/* ------------------------------------------------------------------- heads */

static void read_head(const char *path, uint8_t head[64])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0 && pread(fd, head, 64, 0) == 64);
    close(fd);
}

static bool flip_head(damage_child *c, const char *dir, rng *r, tally *t)
{
    char path[600];
    uint8_t before[64], after[64];
    snprintf(path, sizeof path, "%s/quire-store", dir);
    read_head(path, before);
    flip(path, rng_bits(r) % 64, (uint32_t)(rng_bits(r) % 8));
    (void)damage_ask(&c[rng_bits(r) % 2], DAMAGE_REOPEN, 0);
    expect_whole(c, false);
    read_head(path, after);
    if (memcmp(before, after, sizeof before)) fail("the head file is another one", 0);
    t->flips[HEAD]++;
    t->seen[HEAD]++;
    return true;
}

static bool flip_slab_head(damage_child *c, const char *dir, rng *r, tally *t)
{
    kit_files f;
    char path[600] = "", index[600];
    snprintf(index, sizeof index, "%s/index", dir);
    kit_files_list(&f, dir);
    for (uint32_t i = 0; i < f.n; i++)
        if (strstr(f.path[i], "/slab-")) snprintf(path, sizeof path, "%s", f.path[i]);
    kit_files_free(&f);
    uint64_t byte = rng_bits(r) % 64;
    uint32_t bit = (uint32_t)(rng_bits(r) % 8);
    ino_t before = inode_of(index);
    flip(path, byte, bit);
    KIT_REQUIRE(unlink(index) == 0);
    (void)reread(c);
    expect_whole(c, false);
    if (inode_of(index) == before) fail("the index was not made anew", 0);
    t->flips[SLAB_HEAD]++;
    kit_flip_bit(path, byte, bit); /* nobody else repairs it: the key is in the head file, too */
    return true;
}

/* ------------------------------------------------------------- whole files */

/* Whatever is done to a whole file. */
static void change_files(damage_child *c, const char *dir, tally *t)
{
    static const char *const actions[] = {
        "truncate -s 0 '%s'",
        "truncate -s -1 '%s'",
        "truncate -s 5000 '%s'",
        "truncate -s +100000 '%s'",
        "rm '%s'",
        "cp --sparse=always '%s' '%s.x' && mv '%s.x' '%s'",       /* the same under another number */
        "head -c 200000 /dev/urandom > '%s.x' && mv '%s.x' '%s'", /* noise in its place */
        "head -c 200000 /dev/urandom | dd of='%s' conv=notrunc status=none", /* noise within */
        "head -c 200000 /dev/zero > '%s'",
        ": > '%s.x' && mv '%s.x' '%s'",
    };
    char command[4000];
    for (size_t a = 0; a < sizeof actions / sizeof *actions; a++) {
        kit_files f;
        kit_files_list(&f, dir);
        for (uint32_t i = 0; i < f.n; i++) {
            const char *p = f.path[i];
            if (inode_of(p) == 0) continue;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            int n = snprintf(command, sizeof command, actions[a], p, p, p, p);
#pragma GCC diagnostic pop
            KIT_REQUIRE(n > 0 && n < (int)sizeof command);
            snprintf(damage_last, sizeof damage_last, "%.690s", command);
            if (system(command)) continue; /* not to be done to this one */
            (void)reread(c);
            (void)damage_ask_both(c, DAMAGE_CHECK, 0);
            (void)damage_ask_both(c, DAMAGE_LOAD_ALL, 0);
            (void)damage_ask(&c[0], DAMAGE_REOPEN, 0); /* opened by one while the other goes on */
            (void)damage_ask_both(c, DAMAGE_CHECK, 0);
            expect_whole(c, true);
            (void)damage_ask(&c[1], DAMAGE_REOPEN, 0);
            expect_whole(c, true);
            t->n_changed++;
        }
        kit_files_free(&f);
        (void)damage_ask(&c[0], DAMAGE_TRIM, 0);
    }
}

/* Without its index, and without its head file: every page comes back. */
static void lose_index(damage_child *c, const char *dir)
{
    static const char *const names[] = {"index", "quire-store", "index quire-store"};
    char command[2000];
    for (int i = 0; i < 3; i++) {
        (void)damage_ask(&c[0], DAMAGE_SAVE_ALL, 0);
        snprintf(command, sizeof command, "cd '%s' && rm -f %s", dir, names[i]);
        snprintf(damage_last, sizeof damage_last, "%.690s", command);
        KIT_REQUIRE(system(command) == 0);
        (void)reread(c);
        expect_whole(c, false);
        (void)damage_ask(&c[0], DAMAGE_REOPEN, 0);
        (void)damage_ask(&c[1], DAMAGE_REOPEN, 0);
        expect_whole(c, false);
    }
}

static void print(const tally *t)
{
    static const char *const names[] = {"unused room", "the file's first 100 bytes",
                                        "heads of pages and pointers", "rows and index entries"};
    printf(
        "%llu bits of records: %llu made their page a miss, %llu are in the two places that are not verified; %llu had "
        "to be saved again more than once\n",
        (unsigned long long)t->flips[RECORD], (unsigned long long)t->seen[RECORD],
        (unsigned long long)t->unverified, (unsigned long long)t->n_again);
    printf("%llu bits of the index, of which %llu were noticed; it was made anew %llu times:",
           (unsigned long long)t->flips[INDEX], (unsigned long long)t->seen[INDEX],
           (unsigned long long)t->n_rebuilt);
    for (int i = KIT_PARTS; i-- > 0;)
        printf(" %s: %llu, %llu noticed%s", names[i], (unsigned long long)t->parts[i],
               (unsigned long long)t->parts_seen[i], i ? ";" : "\n");
    printf("%llu bits of the journal's first byte, %llu of the head file, %llu of slabs' first blocks\n",
           (unsigned long long)t->flips[JOURNAL], (unsigned long long)t->flips[HEAD],
           (unsigned long long)t->flips[SLAB_HEAD]);
}

static void flip_one(damage_child *c, const char *dir, rng *r, tally *t)
{
    uint32_t kind = (uint32_t)(rng_bits(r) % 100);
    bool done = kind < 13   ? flip_index(c, dir, r, t)
                : kind < 15 ? flip_head(c, dir, r, t)
                : kind < 16 ? flip_slab_head(c, dir, r, t)
                            : kind < 17 && flip_journal(c, dir, r, t);
    if (!done) (void)flip_record(c, dir, r, t);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return damage_work(argv[2]);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    uint32_t n_flips = 200;
#else
    uint32_t n_flips = 2000;
#endif
    if (argc > 1) n_flips = (uint32_t)atoi(argv[1]);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 20261116;
    /* In memory: tens of thousands of rounds. A third argument names another place. */
    char *dir = kit_directory(argc > 3 ? argv[3] : access("/dev/shm", W_OK) ? NULL : "/dev/shm");
    damage_child c[2];
    tally t = {0};
    rng r = {seed};
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu, %u flips\n", (unsigned long long)seed, n_flips);
    uint64_t begin = quire_now();
    damage_begin(&c[0], dir);
    (void)damage_ask(&c[0], DAMAGE_SAVE_ALL, 0);
    damage_begin(&c[1], dir);
    expect_whole(c, false);
    change_files(c, dir, &t);
    printf("%llu times a file was truncated, removed or replaced while in use: no signal, no wrong page\n",
           (unsigned long long)t.n_changed);
    lose_index(c, dir);
    printf("index and head file removed: everything found again (%.0f s so far)\n",
           (double)(quire_now() - begin) / 1e9);
    for (uint32_t i = 0; i < n_flips; i++) {
        flip_one(c, dir, &r, &t);
        if ((i + 1) % 1000 == 0) printf("%u flips, %.0f s\n", i + 1, (double)(quire_now() - begin) / 1e9);
    }
    print(&t);
    for (int i = 0; i < 2; i++) damage_order(&c[i], DAMAGE_MISSES, 0);
    printf("misses by reason:");
    for (int m = 1; m < QUIRE_MISS_COUNT; m++) {
        long a = damage_answer(&c[0]) + damage_answer(&c[1]);
        if (a) printf(" %s %ld", quire_miss_name((quire_miss)m), a);
    }
    printf("\n%.0f s, 0 signals, 0 wrong pages\n", (double)(quire_now() - begin) / 1e9);
    for (int i = 0; i < 2; i++) {
        int status;
        KIT_REQUIRE(waitpid(c[i].pid, &status, 0) == c[i].pid && WIFEXITED(status) &&
                    WEXITSTATUS(status) == 0);
    }
    kit_remove(dir);
    return 0;
}
