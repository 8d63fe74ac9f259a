/* SPDX-License-Identifier: MIT */
/* Processes that use one store while another one damages its files. */
#define _GNU_SOURCE
#include "store/kit/damage_kit.h"

#include "store/disk_inside.h"
#include "store/kit/raw_kit.h"
#include "store/store.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAP (64ull << 20)
#define PATIENCE 5 /* a machine that slept has let deadlines pass: once more */

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
    kit_raw_begin(&w->raw, w->store, DAMAGE_PAGE_BYTES);
}

static void close_all(worker *w)
{
    quire_store_stats s = kit_stats(w->store);
    for (int i = 0; i < QUIRE_MISS_COUNT; i++) w->misses[i] += s.misses[i];
    kit_raw_end(&w->raw);
    quire_store_close(w->store);
}

static void flush(worker *w)
{
    bool flushed = false;
    for (int i = 0; i < PATIENCE && !flushed; i++) flushed = quire_store_flush(w->store, 20000) == QUIRE_OK;
    KIT_REQUIRE(flushed);
}

/* Aborts if a byte is wrong. */
static long load(worker *w, uint64_t text)
{
    uint32_t n = 0;
    int reason = 0;
    for (int i = 0; i < PATIENCE && n < DAMAGE_PAGES; i++) {
        uint64_t before[QUIRE_MISS_COUNT];
        for (int m = 1; m < QUIRE_MISS_COUNT; m++) before[m] = quire_counted(&w->store->counters.misses[m]);
        n = kit_raw_load(&w->raw, text, DAMAGE_PAGES, 10000);
        bool again = false;
        for (int m = 1; m < QUIRE_MISS_COUNT; m++) {
            if (quire_counted(&w->store->counters.misses[m]) == before[m]) continue;
            if (m == QUIRE_MISS_DEADLINE || m == QUIRE_MISS_DISK)
                again = true;
            else if (m != QUIRE_MISS_ABSENT && !reason)
                reason = m;
        }
        if (!again) break;
    }
    return (long)n + (long)reason * DAMAGE_REASON;
}

static long load_all(worker *w)
{
    long n = 0;
    for (uint64_t t = 0; t < DAMAGE_TEXTS; t++) n += load(w, t) % DAMAGE_REASON;
    flush(w); /* damaged objects are removed */
    return n;
}

/* The namespace is new: it remembers what was handed in shortly before. */
static void save_texts(worker *w, uint64_t first, uint64_t n, uint32_t n_pages)
{
    kit_raw raw;
    kit_raw_begin(&raw, w->store, DAMAGE_PAGE_BYTES);
    for (uint64_t t = first; t < first + n; t++) kit_raw_save(&raw, t, n_pages);
    flush(w);
    kit_raw_end(&raw);
}

static void print_places(worker *w, uint64_t text)
{
    quire_key objects[DAMAGE_PAGES];
    kit_raw_objects(&w->raw, text, DAMAGE_PAGES, NULL, objects);
    for (uint32_t i = 0; i < DAMAGE_PAGES; i++) {
        quire_entry e = {0};
        quire_index_rc rc;
        quire_index *ix = quire_disk_begin_read(w->store->disk, &rc);
        KIT_REQUIRE(ix);
        rc = quire_index_find(ix, &objects[i], &e);
        KIT_REQUIRE(!quire_disk_end_read(w->store->disk, ix, rc));
        printf("%u\n%llu\n", e.place.slab, (unsigned long long)e.place.at);
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

static int read_whole_index(quire_disk *d)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    return (int)(ix ? quire_disk_end_read(d, ix, quire_index_check(ix)) : rc);
}

/* Counted in looks, not in seconds: a machine that sleeps does not look. */
static bool wait_until_whole(worker *w)
{
    quire_disk *d = w->store->disk;
    for (int i = 0; i < 20000; i++) {
        if (!d->is_damaged && !d->is_scanning) {
            quire_index_head h;
            quire_index_rc rc;
            quire_index *ix = quire_disk_begin_read(d, &rc);
            if (ix) rc = quire_disk_end_read(d, ix, quire_index_read_head(ix, &h));
            if (!rc && h.scan_slab >= h.scan_end) return true;
        }
        usleep(1000);
    }
    fprintf(stderr, "damaged %d, scanning %d, over cap %d, check due %d\n", (int)d->is_damaged,
            (int)d->is_scanning, (int)d->is_over_cap, (int)d->is_check_due);
    return false;
}

static long obey(worker *w, char what, uint64_t number)
{
    uint64_t n;
    switch (what) {
    case DAMAGE_LOAD: {
        long got = load(w, number);
        if (got != DAMAGE_PAGES) flush(w);
        return got;
    }
    case DAMAGE_LOAD_ALL: return load_all(w);
    case DAMAGE_SAVE: save_texts(w, number, 1, DAMAGE_PAGES); return 0;
    case DAMAGE_SAVE_ALL: save_texts(w, 0, DAMAGE_TEXTS, DAMAGE_PAGES); return 0;
    case DAMAGE_FLUSH: flush(w); return 0;
    case DAMAGE_FORGET: drop_connections(w->store->disk); return 0;
    case DAMAGE_CHECK:
        save_texts(w, 1000000 + w->extra++ + (uint64_t)getpid() * 1000000, 1, 1);
        return read_whole_index(w->store->disk);
    case DAMAGE_TRIM:
        return (long)quire_disk_trim(w->store->disk, 0,
                                     (DAMAGE_ALL + 8) * quire_record_bytes(DAMAGE_PAGE_BYTES), &n);
    case DAMAGE_WHOLE: return wait_until_whole(w);
    case DAMAGE_REOPEN:
        close_all(w);
        open_all(w);
        return 0;
    default: return 0;
    }
}

int damage_work(const char *dir)
{
    worker w = {.dir = dir};
    char line[64];
    setvbuf(stdout, NULL, _IOFBF, 4096);
    open_all(&w);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t number = strtoull(line + 1, NULL, 10);
        if (line[0] == DAMAGE_PLACES) {
            print_places(&w, number);
        } else if (line[0] == DAMAGE_MISSES) {
            close_all(&w);
            for (int i = 1; i < QUIRE_MISS_COUNT; i++) printf("%llu\n", (unsigned long long)w.misses[i]);
            break;
        } else {
            printf("%ld\n", obey(&w, line[0], number));
        }
        (void)fflush(stdout);
    }
    (void)fflush(stdout);
    return 0;
}

/* ------------------------------------------------------------- the other side */

char damage_last[700];

void damage_begin(damage_child *c, const char *dir)
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

long damage_answer(damage_child *c)
{
    char line[64];
    if (fgets(line, sizeof line, c->from)) return atol(line);
    int status = 0;
    (void)waitpid(c->pid, &status, 0);
    fprintf(stderr, "after %s: a process ended with %s %d\n", damage_last,
            WIFSIGNALED(status) ? "signal" : "status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    exit(1);
}

void damage_order(damage_child *c, char what, uint64_t number)
{
    if (fprintf(c->to, "%c%llu\n", what, (unsigned long long)number) < 0 || fflush(c->to))
        (void)damage_answer(c);
}

long damage_ask(damage_child *c, char what, uint64_t number)
{
    damage_order(c, what, number);
    return damage_answer(c);
}

long damage_ask_both(damage_child *c, char what, uint64_t number)
{
    damage_order(&c[0], what, number);
    damage_order(&c[1], what, number);
    long a = damage_answer(&c[0]), b = damage_answer(&c[1]);
    return a < b ? a : b;
}
