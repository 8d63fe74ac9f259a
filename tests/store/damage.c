/* SPDX-License-Identifier: MIT */
/*
 * Damage to every file of a store that two processes use: single bits flipped, files truncated, removed, replaced. No signal, no wrong
 * page; what was whole is still there.
 *   store_damage [FLIPS [SEED [DIRECTORY]]]        scripts/damage-store runs the long form
 *
 * Each flip is followed by reads that reach it. A record: both processes load every page, which reads every byte of every record.
 * The index: both drop their connections, so that nothing of it is cached, look up and load every page, save one, and have
 * SQLite read every page of the file. The head file and the first blocks of slabs: one process opens the directory anew. This process
 * never opens the store; it only changes files.
 */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"
#include "store/disk_inside.h"
#include "store/store.h"
#include "support/random.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAP (64ull << 20)
#define TEXTS 6u
#define PAGES 4u
#define PAGE_BYTES 18000u
#define ALL (TEXTS * PAGES)

/* ----------------------------------------------------------------- a process */

typedef struct worker {
    quire_store *store;
    kit_raw raw;
    uint64_t misses[QUIRE_MISS_REASONS];
    uint64_t extra; /* texts that were saved once */
    const char *dir;
} worker;

static void open_all(worker *w)
{
    char message[256] = "";
    quire_store_options o = kit_options(w->dir, CAP, NULL);
    o.message = message;
    o.message_size = sizeof message;
    quire_status status = quire_store_open(&w->store, &o);
    if (status) fprintf(stderr, "open: %s\n", message);
    KIT_REQUIRE(!status);
    kit_raw_begin(&w->raw, w->store, PAGE_BYTES);
}

static void close_all(worker *w)
{
    quire_store_stats s = kit_stats(w->store);
    for (int i = 0; i < QUIRE_MISS_COUNT; i++) w->misses[i] += s.misses[i];
    kit_raw_end(&w->raw);
    quire_store_close(w->store);
}

/* Aborts if a byte is wrong. */
static uint32_t load_all(worker *w)
{
    uint32_t n = 0;
    for (uint64_t t = 0; t < TEXTS; t++) n += kit_raw_load(&w->raw, t, PAGES, 10000);
    KIT_REQUIRE(!quire_store_flush(w->store, 20000)); /* damaged objects are removed */
    return n;
}

/* The namespace is new: it remembers what was handed in shortly before. */
static void save_texts(worker *w, uint64_t first, uint64_t n)
{
    kit_raw raw;
    kit_raw_begin(&raw, w->store, PAGE_BYTES);
    for (uint64_t t = first; t < first + n; t++) kit_raw_save(&raw, t, PAGES);
    KIT_REQUIRE(!quire_store_flush(w->store, 20000));
    kit_raw_end(&raw);
}

/* Where the pages lie: slab and offset. */
static void print_places(worker *w)
{
    for (uint64_t t = 0; t < TEXTS; t++) {
        uint32_t tokens[PAGES * 64];
        quire_key keys[PAGES], objects[PAGES];
        kit_raw_tokens(tokens, t, PAGES);
        quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = PAGES * 64};
        KIT_REQUIRE(!quire_chain_keys(keys, &w->raw.ns->root, &p, PAGES) &&
                    !quire_chain_objects(objects, keys, PAGES, 0));
        for (uint32_t i = 0; i < PAGES; i++) {
            quire_entry e = {0};
            quire_index_rc rc;
            quire_index *ix = quire_disk_begin_read(w->store->disk, &rc);
            KIT_REQUIRE(ix);
            rc = quire_index_find(ix, &objects[i], &e);
            KIT_REQUIRE(!quire_disk_end_read(w->store->disk, ix, rc));
            printf("%u\n%llu\n", e.place.slab, (unsigned long long)e.place.at);
        }
    }
}

static void drop_connections(quire_disk *d)
{
    for (uint32_t i = 0; i < QUIRE_READERS; i++) {
        pthread_mutex_lock(&d->reader_lock[i]);
        quire_index_close(&d->reader[i]);
        pthread_mutex_unlock(&d->reader_lock[i]);
    }
    pthread_mutex_lock(&d->write_lock);
    quire_index_close(&d->writer);
    pthread_mutex_unlock(&d->write_lock);
}

static void read_whole_index(quire_disk *d)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (ix) (void)quire_disk_end_read(d, ix, quire_index_check(ix));
}

/* Until the index is whole, and all is found that it lacked. */
static bool wait_until_whole(worker *w)
{
    for (uint64_t end = quire_now() + 20 * QUIRE_SECOND; quire_now() < end; usleep(1000)) {
        quire_disk_usage usage;
        if (w->store->disk->is_damaged || w->store->disk->is_scanning) continue;
        quire_disk_usage_get(w->store->disk, &usage);
        if (!w->store->disk->is_damaged && !usage.is_scanning) return true;
    }
    return false;
}

static int work(const char *dir)
{
    worker w = {.dir = dir};
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_all(&w);
    while (fgets(line, sizeof line, stdin)) {
        switch (line[0]) {
        case 'L': printf("%u\n", load_all(&w)); break;
        case 'S':
            save_texts(&w, 0, TEXTS);
            printf("0\n");
            break;
        case 'D': /* everything that is known of the index is forgotten and read again */
            drop_connections(w.store->disk);
            printf("%u\n", load_all(&w));
            break;
        case 'X': /* saving and evicting read the rest */
            save_texts(&w, 1000000 + w.extra++ * 2 + (uint64_t)getpid() * 1000000, 1);
            read_whole_index(w.store->disk);
            printf("0\n");
            break;
        case 'T': {
            uint64_t n;
            printf("%d\n",
                   (int)quire_disk_trim(w.store->disk, 0, (ALL + 8) * quire_record_bytes(PAGE_BYTES), &n));
            break;
        }
        case 'P': print_places(&w); break;
        case 'W': printf("%d\n", wait_until_whole(&w)); break;
        case 'O':
            close_all(&w);
            open_all(&w);
            printf("0\n");
            break;
        case 'M':
            close_all(&w);
            for (int i = 1; i < QUIRE_MISS_COUNT; i++) printf("%llu\n", (unsigned long long)w.misses[i]);
            return 0;
        default: break;
        }
    }
    return 0;
}

/* ------------------------------------------------------------- the other side */

typedef struct child {
    pid_t pid;
    FILE *to, *from;
} child;

static void begin_child(child *c, const char *dir)
{
    int in[2], out[2];
    KIT_REQUIRE(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    c->pid = fork();
    KIT_REQUIRE(c->pid >= 0);
    if (!c->pid) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", "store_damage", "worker", dir, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    c->to = fdopen(in[1], "w");
    c->from = fdopen(out[0], "r");
    KIT_REQUIRE(c->to && c->from);
}

static char last[700]; /* what was done last */

static long answer(child *c)
{
    char line[64];
    if (fgets(line, sizeof line, c->from)) return atol(line);
    int status = 0;
    (void)waitpid(c->pid, &status, 0);
    fprintf(stderr, "after %s: a process ended with %s %d\n", last, WIFSIGNALED(status) ? "signal" : "status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    exit(1);
}

static void order(child *c, char what)
{
    if (fprintf(c->to, "%c\n", what) < 0 || fflush(c->to)) (void)answer(c);
}

static long ask(child *c, char what)
{
    order(c, what);
    return answer(c);
}

/* Both at the same time; the smaller answer. */
static long ask_both(child *c, char what)
{
    order(&c[0], what);
    order(&c[1], what);
    long a = answer(&c[0]), b = answer(&c[1]);
    return a < b ? a : b;
}

typedef struct tally {
    uint64_t flips[3], seen[3]; /* records, index, heads; those that were noticed */
    uint64_t n_rebuilt, n_changed;
} tally;
enum { RECORD, INDEX, HEAD };

static void fail(const char *what, long n)
{
    fprintf(stderr, "after %s: %s (%ld)\n", last, what, n);
    exit(1);
}

/* Everything is there again, in both. */
static void expect_whole(child *c, bool save)
{
    if (!ask_both(c, 'W')) fail("the index did not become whole", 0);
    long n = ask_both(c, 'L');
    /* What is lost is noticed when it is loaded, and saved again. */
    for (int i = 0; save && n != (long)ALL && i < 6; i++) {
        (void)ask(&c[i % 2], 'S');
        n = ask_both(c, 'L');
    }
    if (n != (long)ALL) fail("pages are missing", n);
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : st.st_ino;
}

static void flip_record(child *c, const char *dir, rng *r, tally *t)
{
    uint64_t slab = 0, at = 0, which = rng_bits(r) % ALL;
    char path[600];
    order(&c[0], 'P');
    for (uint64_t i = 0; i < ALL; i++) {
        uint64_t s = (uint64_t)answer(&c[0]), a = (uint64_t)answer(&c[0]);
        if (i == which) slab = s, at = a;
    }
    snprintf(path, sizeof path, "%s/slab-%08llx", dir, (unsigned long long)slab);
    /* As many in what describes the record as in the page. */
    uint64_t byte = rng_bits(r) % 2 ? at + rng_bits(r) % 180
                    : rng_bits(r) % 4 == 0
                        ? at + rng_bits(r) % 4096
                        : at + 4096 + rng_bits(r) % (quire_record_bytes(PAGE_BYTES) - 4096);
    uint32_t bit = (uint32_t)(rng_bits(r) % 8);
    snprintf(last, sizeof last, "flipping bit %u of byte %llu of %s (a record)", bit,
             (unsigned long long)byte, path);
    kit_flip_bit(path, byte, bit);
    char index[600];
    snprintf(index, sizeof index, "%s/index", dir);
    ino_t before = inode_of(index);
    long left = ask_both(c, 'L');
    t->flips[RECORD]++;
    t->seen[RECORD] += left < (long)ALL;
    if (left < (long)(ALL - PAGES)) {
        snprintf(path, sizeof path, "%s/index", dir);
        fprintf(stderr, "index %lu before, %lu now; again %ld", (unsigned long)before,
                (unsigned long)inode_of(path), ask_both(c, 'L'));
        fprintf(stderr, ", %ld\n", ask_both(c, 'L'));
        fail("one record was damaged, more than its chain is gone", left);
    }
    if (left < (long)ALL) (void)ask(&c[rng_bits(r) % 2], 'S');
    left = ask_both(c, 'L');
    if (left != (long)ALL) fail("what was saved again is not there", left);
}

static void flip_index(child *c, const char *dir, rng *r, tally *t)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/index", dir);
    KIT_REQUIRE(stat(path, &st) == 0 && st.st_size);
    uint64_t byte = rng_bits(r) % (uint64_t)st.st_size;
    /* Half of them where something is: pages of SQLite have much room left. */
    if (rng_bits(r) % 2) byte = kit_used_byte(path, byte / 4096 * 4096, (uint32_t)rng_bits(r));
    uint32_t bit = (uint32_t)(rng_bits(r) % 8);
    snprintf(last, sizeof last, "flipping bit %u of byte %llu of %s", bit, (unsigned long long)byte, path);
    kit_flip_bit(path, byte, bit);
    long left = ask_both(c, 'D');
    (void)ask_both(c, 'X');
    t->flips[INDEX]++;
    expect_whole(c, false); /* nothing was wrong with the records: all come back without being saved again */
    bool rebuilt = inode_of(path) != st.st_ino;
    t->seen[INDEX] += rebuilt || left < (long)ALL;
    t->n_rebuilt += rebuilt;
    if (rng_bits(r) % 16 == 0) (void)ask(&c[0], 'T');
}

static void flip_head(child *c, const kit_files *f, const char *dir, rng *r, tally *t)
{
    char path[600];
    snprintf(path, sizeof path, "%s/quire-store", dir);
    uint64_t byte = rng_bits(r) % 64;
    if (rng_bits(r) % 2)
        for (uint32_t i = 0; i < f->n; i++)
            if (strstr(f->path[i], "/slab-")) snprintf(path, sizeof path, "%s", f->path[i]);
    uint32_t bit = (uint32_t)(rng_bits(r) % 8);
    struct stat before, after;
    snprintf(last, sizeof last, "flipping bit %u of byte %llu of %s", bit, (unsigned long long)byte, path);
    kit_flip_bit(path, byte, bit);
    (void)stat(path, &before);
    (void)ask(&c[rng_bits(r) % 2], 'O');
    t->flips[HEAD]++;
    expect_whole(c, false);
    (void)stat(path, &after);
    bool is_slab = strstr(path, "/slab-") != NULL;
    t->seen[HEAD] += !is_slab;
    if (is_slab) kit_flip_bit(path, byte, bit); /* nobody needs it as long as the head file is whole */
}

/* Whatever is done to a whole file. */
static void change_files(child *c, const char *dir, tally *t)
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
            snprintf(last, sizeof last, "%.690s", command);
            if (system(command)) continue; /* not to be done to this one */
            (void)ask_both(c, 'D');
            (void)ask_both(c, 'X');
            (void)ask_both(c, 'L');
            (void)ask(&c[0], 'O'); /* opened by one while the other goes on */
            (void)ask_both(c, 'X');
            expect_whole(c, true);
            (void)ask(&c[1], 'O');
            expect_whole(c, true);
            t->n_changed++;
        }
        kit_files_free(&f);
        (void)ask(&c[0], 'T');
    }
}

/* Without its index, and without its head file: every page comes back. */
static void lose_index(child *c, const char *dir)
{
    static const char *const names[] = {"index", "quire-store", "index quire-store"};
    char command[2000];
    for (int i = 0; i < 3; i++) {
        (void)ask(&c[0], 'S');
        snprintf(command, sizeof command, "cd '%s' && rm -f %s", dir, names[i]);
        snprintf(last, sizeof last, "%.690s", command);
        KIT_REQUIRE(system(command) == 0);
        (void)ask_both(c, 'D');
        expect_whole(c, false);
        (void)ask(&c[0], 'O');
        (void)ask(&c[1], 'O');
        expect_whole(c, false);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return work(argv[2]);
    uint32_t n_flips = argc > 1 ? (uint32_t)atoi(argv[1]) : 2000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 20261116;
    /* In memory: tens of thousands of rounds. A third argument names another place. */
    char *dir = kit_directory(argc > 3 ? argv[3] : access("/dev/shm", W_OK) ? NULL : "/dev/shm");
    child c[2];
    tally t = {0};
    rng r = {seed};
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu, %u flips\n", (unsigned long long)seed, n_flips);
    uint64_t begin = quire_now();
    begin_child(&c[0], dir);
    (void)ask(&c[0], 'S');
    begin_child(&c[1], dir);
    expect_whole(c, false);
    change_files(c, dir, &t);
    printf("%llu times a file was truncated, removed or replaced while in use: no signal, no wrong page\n",
           (unsigned long long)t.n_changed);
    lose_index(c, dir);
    printf("index and head file removed: everything found again (%.0f s so far)\n",
           (double)(quire_now() - begin) / 1e9);
    for (uint32_t i = 0; i < n_flips; i++) {
        kit_files f;
        kit_files_list(&f, dir);
        uint32_t kind = (uint32_t)(rng_bits(&r) % 20);
        if (kind < 12)
            flip_record(c, dir, &r, &t);
        else if (kind < 19)
            flip_index(c, dir, &r, &t);
        else
            flip_head(c, &f, dir, &r, &t);
        kit_files_free(&f);
        if ((i + 1) % 1000 == 0) printf("%u flips, %.0f s\n", i + 1, (double)(quire_now() - begin) / 1e9);
    }
    printf(
        "%llu bits of records flipped, %llu of them made a page a miss; %llu of the index, %llu of them were noticed and it was "
        "made anew %llu times; %llu of heads\n",
        (unsigned long long)t.flips[RECORD], (unsigned long long)t.seen[RECORD],
        (unsigned long long)t.flips[INDEX], (unsigned long long)t.seen[INDEX],
        (unsigned long long)t.n_rebuilt, (unsigned long long)t.flips[HEAD]);
    for (int i = 0; i < 2; i++) order(&c[i], 'M');
    printf("misses by reason:");
    for (int m = 1; m < QUIRE_MISS_COUNT; m++) {
        long a = answer(&c[0]) + answer(&c[1]);
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
