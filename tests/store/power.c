/* SPDX-License-Identifier: MIT */
/*
 * Power cuts. A process saves, evicts and pins while everything it writes is recorded, SQLite's files included: the functions of libc
 * that write are replaced in this program. From the record, states are built that a machine without power could leave: of the last
 * writes any 4 KiB pieces are missing, some are torn at 512 bytes. The store opens each, and no page is wrong.
 *   store_power [STATES [SEED]]
 * Not recorded: the order in which a file system makes names durable. Names appear and vanish as the process made them, up to a point.
 */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"
#include "store/disk_inside.h"
#include "store/store.h"
#include "support/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CAP (16ull << 20)
static const size_t sizes[] = {18000, 70000};
#define TEXTS 40u
#define PAGES 6u

/* ------------------------------------------------------------------ recording */

typedef enum op { OP_WRITE, OP_TRUNCATE, OP_PUNCH, OP_UNLINK, OP_RENAME } op;
typedef struct event {
    uint32_t op, n; /* n: bytes that follow */
    uint64_t at, length;
    char name[24], other[24];
} event;

static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
static int record_fd = -1;
static char record_directory[500];

/* The name of a file of the directory, or NULL. */
static const char *own_name(const char *path, char *name)
{
    size_t n = strlen(record_directory);
    if (record_fd < 0 || strncmp(path, record_directory, n) != 0 || path[n] != '/' ||
        strlen(path + n + 1) >= 24)
        return NULL;
    return strcpy(name, path + n + 1);
}

static const char *name_of_fd(int fd, char *name)
{
    char link[40], path[600];
    if (record_fd < 0 || fd == record_fd) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return NULL;
    path[n] = 0;
    return own_name(path, name);
}

static void record(op o, const char *name, const char *other, uint64_t at, uint64_t length, const void *bytes)
{
    event e = {.op = o, .n = bytes ? (uint32_t)length : 0, .at = at, .length = length};
    snprintf(e.name, sizeof e.name, "%s", name);
    if (other) snprintf(e.other, sizeof e.other, "%s", other);
    struct iovec v[2] = {{&e, sizeof e}, {(void *)(uintptr_t)bytes, e.n}};
    pthread_mutex_lock(&record_lock);
    (void)!syscall(SYS_writev, record_fd, v, e.n ? 2 : 1);
    pthread_mutex_unlock(&record_lock);
}

/* In place of libc's; visible, so that the calls of SQLite come here, too. */
#pragma GCC visibility push(default)
ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at);
ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    char name[24];
    ssize_t done = syscall(SYS_pwrite64, fd, bytes, n, at);
    if (done > 0 && name_of_fd(fd, name)) record(OP_WRITE, name, NULL, (uint64_t)at, (uint64_t)done, bytes);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return pwrite64(fd, bytes, n, at);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    char name[24];
    off_t at = record_fd < 0 ? -1 : (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
    ssize_t done = syscall(SYS_write, fd, bytes, n);
    if (done > 0 && at >= 0 && name_of_fd(fd, name))
        record(OP_WRITE, name, NULL, (uint64_t)at, (uint64_t)done, bytes);
    return done;
}

int ftruncate64(int fd, off64_t size)
{
    char name[24];
    int rc = (int)syscall(SYS_ftruncate, fd, size);
    if (!rc && name_of_fd(fd, name)) record(OP_TRUNCATE, name, NULL, (uint64_t)size, 0, NULL);
    return rc;
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int fallocate64(int fd, int mode, off64_t at, off64_t n)
{
    char name[24];
    int rc = (int)syscall(SYS_fallocate, fd, mode, at, n);
    if (!rc && name_of_fd(fd, name)) record(OP_PUNCH, name, NULL, (uint64_t)at, (uint64_t)n, NULL);
    return rc;
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    return fallocate64(fd, mode, at, n);
}

int unlink(const char *path)
{
    char name[24];
    int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!rc && own_name(path, name)) record(OP_UNLINK, name, NULL, 0, 0, NULL);
    return rc;
}

int unlinkat(int directory, const char *path, int flags)
{
    int rc = (int)syscall(SYS_unlinkat, directory, path, flags);
    if (!rc && record_fd >= 0 && strlen(path) < 24 && !strchr(path, '/'))
        record(OP_UNLINK, path, NULL, 0, 0, NULL);
    return rc;
}

int rename(const char *from, const char *to)
{
    char name[24], other[24];
    int rc = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!rc && own_name(from, name) && own_name(to, other)) record(OP_RENAME, name, other, 0, 0, NULL);
    return rc;
}

#pragma GCC visibility pop

/* Program: uses a store and records. */
static int live(const char *dir, const char *log, uint64_t seed)
{
    rng r = {seed};
    kit_raw raw[2];
    snprintf(record_directory, sizeof record_directory, "%s", dir);
    record_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    KIT_REQUIRE(record_fd >= 0);
    quire_store *store = kit_open(dir, CAP, NULL);
    for (int i = 0; i < 2; i++) kit_raw_begin(&raw[i], store, sizes[i]);
    for (uint32_t i = 0; i < 150; i++) {
        kit_raw *at = &raw[rng_bits(&r) % 2];
        uint64_t text = rng_bits(&r) % TEXTS;
        kit_raw_save(at, text, PAGES);
        if (rng_bits(&r) % 3 == 0) (void)kit_raw_load(at, rng_bits(&r) % TEXTS, PAGES, 2000);
        if (rng_bits(&r) % 4 == 0) KIT_REQUIRE(!quire_store_flush(store, 20000));
        if (rng_bits(&r) % 50 == 0) KIT_REQUIRE(!quire_store_gc(store, 0, CAP / 3, NULL));
        if (i == 100) { /* and an index that is made anew */
            store->disk->damaged_ino = store->disk->writer.ino;
            store->disk->is_damaged = true;
            quire_disk_wake_keeper(store->disk);
        }
    }
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    for (int i = 0; i < 2; i++) kit_raw_end(&raw[i]);
    quire_store_close(store);
    return 0;
}

/* Program: opens what is left as after a start of the machine. What comes is right: kit_raw_load() compares. */
static int judge(const char *dir)
{
    kit_raw raw[2];
    uint32_t n = 0;
    quire_store *store = NULL;
    quire_store_options o = kit_options(dir, CAP, NULL);
    quire_status status = quire_store_open(&store, &o);
    if (status) return 3;
    store->disk->is_check_due = true;
    quire_disk_wake_keeper(store->disk);
    for (int i = 0; i < 2; i++) kit_raw_begin(&raw[i], store, sizes[i]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++)
            for (uint64_t t = 0; t < TEXTS; t++) n += kit_raw_load(&raw[i], t, PAGES, 5000);
        for (uint64_t end = quire_now() + 60 * QUIRE_SECOND; quire_now() < end; usleep(1000))
            if (!store->disk->is_check_due && !store->disk->is_damaged && !store->disk->is_scanning) break;
    }
    kit_raw_save(&raw[0], 1000, PAGES); /* and it can be used */
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    bool can_save = kit_raw_load(&raw[0], 1000, PAGES, 5000) == PAGES;
    if (!can_save) {
        quire_store_stats t = kit_stats(store);
        fprintf(stderr, "saved %llu, known %llu, dropped %llu, failed %llu, damaged %d, scanning %d;",
                (unsigned long long)t.saved[0], (unsigned long long)t.known[0],
                (unsigned long long)t.dropped[0], (unsigned long long)t.failed[0],
                (int)store->disk->is_damaged, (int)store->disk->is_scanning);
        for (int m = 1; m < QUIRE_MISS_COUNT; m++)
            if (t.misses[m])
                fprintf(stderr, " %s %llu", quire_miss_name((quire_miss)m), (unsigned long long)t.misses[m]);
        fprintf(stderr, "\n");
    }
    bool fits = kit_directory_bytes(dir) <= CAP;
    for (int i = 0; i < 2; i++) kit_raw_end(&raw[i]);
    quire_store_close(store);
    return !can_save ? 4 : !fits ? 5 : n ? 0 : 2; /* 2: nothing is left */
}

/* ---------------------------------------------------------------- crash states */

typedef struct journal {
    uint8_t *bytes;
    size_t n;
    size_t *at; /* of each event */
    uint32_t n_events;
} journal;

static journal read_journal(const char *path)
{
    journal j = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0 && fstat(fd, &st) == 0);
    j.n = (size_t)st.st_size;
    j.bytes = (uint8_t *)malloc(j.n);
    j.at = (size_t *)malloc((j.n / sizeof(event) + 1) * sizeof *j.at);
    KIT_REQUIRE(j.bytes && j.at);
    for (size_t done = 0; done < j.n;) {
        ssize_t got = read(fd, j.bytes + done, j.n - done);
        KIT_REQUIRE(got > 0);
        done += (size_t)got;
    }
    close(fd);
    for (size_t at = 0; at + sizeof(event) <= j.n; j.n_events++) {
        event e;
        memcpy(&e, j.bytes + at, sizeof e);
        j.at[j.n_events] = at;
        at += sizeof e + e.n;
    }
    return j;
}

static void put_piece(int fd, const uint8_t *bytes, size_t n, uint64_t at)
{
    KIT_REQUIRE(syscall(SYS_pwrite64, fd, bytes, n, at) == (long)n);
}

/* certain: all of it is on disk. Otherwise any pieces of 4 KiB are, and some of those in part. */
static void apply(const char *dir, const event *e, const uint8_t *bytes, bool certain, rng *r)
{
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/%s", dir, e->name);
    snprintf(other, sizeof other, "%s/%s", dir, e->other);
    if (e->op == OP_UNLINK) (void)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (e->op == OP_RENAME) (void)syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, other, 0);
    if (e->op == OP_UNLINK || e->op == OP_RENAME) return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    KIT_REQUIRE(fd >= 0);
    if (e->op == OP_TRUNCATE && (certain || rng_bits(r) % 2)) KIT_REQUIRE(!syscall(SYS_ftruncate, fd, e->at));
    if (e->op == OP_PUNCH && (certain || rng_bits(r) % 2))
        (void)syscall(SYS_fallocate, fd, 3 /* punch, keep the size */, e->at, e->length);
    for (uint64_t at = 0; e->op == OP_WRITE && at < e->n;) {
        uint64_t part = 4096 - (e->at + at) % 4096;
        if (part > e->n - at) part = e->n - at;
        uint32_t luck = certain ? 0 : (uint32_t)(rng_bits(r) % 8);
        if (luck < 4) {
            put_piece(fd, bytes + at, part, e->at + at);
        } else if (luck == 4) { /* torn */
            for (uint64_t k = 0; k < part; k += 512)
                if (rng_bits(r) % 2)
                    put_piece(fd, bytes + at + k, part - k < 512 ? part - k : 512, e->at + at + k);
        }
        at += part;
    }
    close(fd);
}

static void build(const journal *j, const char *dir, rng *r)
{
    uint32_t end = 1 + (uint32_t)(rng_bits(r) % j->n_events), window = 1 + (uint32_t)(rng_bits(r) % 400);
    uint32_t certain = end > window ? end - window : 0;
    for (uint32_t i = 0; i < end; i++) {
        event e;
        memcpy(&e, j->bytes + j->at[i], sizeof e);
        apply(dir, &e, j->bytes + j->at[i] + sizeof e, i < certain, r);
    }
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "live") == 0) return live(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    if (argc == 3 && strcmp(argv[1], "judge") == 0) return judge(argv[2]);
    uint32_t n_states = argc > 1 ? (uint32_t)atoi(argv[1]) : 40, n_empty = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 20261116;
    const char *parent = access("/dev/shm", W_OK) ? NULL : "/dev/shm";
    char *scratch = kit_directory(parent), log[600], number[32];
    rng r = {seed};
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(log, sizeof log, "%s/log", scratch);
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    char *dir = kit_directory(parent);
    KIT_REQUIRE(kit_run((const char *[]){"live", dir, log, number, NULL}, 0) == 0);
    kit_remove(dir);
    journal j = read_journal(log);
    uint64_t of_sqlite = 0;
    for (uint32_t i = 0; i < j.n_events; i++) {
        event e;
        memcpy(&e, j.bytes + j.at[i], sizeof e);
        of_sqlite += strncmp(e.name, "index", 5) == 0;
    }
    printf("seed %llu: %u writes recorded, %llu of them by SQLite, %.0f MB\n", (unsigned long long)seed,
           j.n_events, (unsigned long long)of_sqlite, (double)j.n / 1e6);
    KIT_REQUIRE(of_sqlite > 100 && j.n_events > of_sqlite + 100);
    for (uint32_t i = 0; i < n_states; i++) {
        dir = kit_directory(parent);
        build(&j, dir, &r);
        int rc = kit_run((const char *[]){"judge", dir, NULL}, 0);
        if (rc && rc != 2) {
            fprintf(stderr, "state %u (seed %llu) in %s: the program ended with %d\n", i,
                    (unsigned long long)seed, dir, rc);
            return 1;
        }
        n_empty += rc == 2;
        kit_remove(dir);
    }
    printf(
        "%u power cuts: opened each time, no wrong page, saved and loaded again; %u times nothing was left\n",
        n_states, n_empty);
    free(j.bytes);
    free(j.at);
    kit_remove(scratch);
    return 0;
}
