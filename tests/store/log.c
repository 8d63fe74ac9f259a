/* SPDX-License-Identifier: MIT */
/*
 * What the log is told: each event that operators should know of, and not more lines than agreed, whatever happens. The library itself
 * writes nothing to standard output or standard error.
 */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"
#include "store/log.h"

#include <fcntl.h>
#include <libgen.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#define PAGE 60000u

static FILE *result; /* of this test: the standard files are watched */

#define EXPECT(condition)                                                             \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(result, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* ------------------------------------------------------------------- a log */

typedef struct heard {
    pthread_mutex_t lock;
    char lines[200][256];
    _Atomic uint32_t n;
    _Atomic(quire_store *) store; /* asked from within, as an engine may */
} heard;

static void hear(void *ctx, quire_log_level level, const char *sentence)
{
    heard *h = (heard *)ctx;
    quire_store_stats s = {.size = sizeof s};
    (void)level;
    if (h->store) EXPECT(quire_store_stats_get(h->store, &s) == QUIRE_OK);
    pthread_mutex_lock(&h->lock);
    if (h->n < 200) snprintf(h->lines[h->n++], sizeof h->lines[0], "%s", sentence);
    pthread_mutex_unlock(&h->lock);
}

static uint32_t count(heard *h, const char *words)
{
    uint32_t n = 0;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n; i++) n += strstr(h->lines[i], words) != NULL;
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* Once, within a minute or two. */
static void expect_line(heard *h, const char *words)
{
    for (int i = 0; i < 10000 && !count(h, words); i++) usleep(10000);
    if (count(h, words) != 1) {
        fprintf(result, "%u lines with \"%s\" among:\n", count(h, words), words);
        for (uint32_t i = 0; i < h->n; i++) fprintf(result, "  %s\n", h->lines[i]);
        exit(1);
    }
}

static heard *listen_to(quire_log *log)
{
    heard *h = (heard *)calloc(1, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    *log = (quire_log){.size = sizeof *log, .ctx = h, .write = hear};
    return h;
}

/* ------------------------------------------------------------------- limits */

static uint64_t test_clock = 1;

static uint64_t test_now(void *ctx)
{
    (void)ctx;
    return test_clock;
}

static void limits(void)
{
    quire_log log;
    heard *h = listen_to(&log);
    quire_store_log l;
    static quire_counters counters;
    quire_log_open(&l, &log);
    l.now = test_now;
    for (int i = 0; i < 1000000; i++)
        quire_log_say(&l, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page of number %d.", i);
    EXPECT(h->n == 5 && strcmp(h->lines[4], "A page of number 4.") == 0);
    quire_log_say(&l, QUIRE_EVENT_NODE_DOWN, QUIRE_LOG_WARNING, "Another kind.");
    EXPECT(h->n == 6);
    test_clock += 59 * QUIRE_SECOND;
    quire_log_tick(&l, &counters, QUIRE_DISK);
    EXPECT(h->n == 6);
    test_clock += 2 * QUIRE_SECOND;
    quire_log_tick(&l, &counters, QUIRE_DISK);
    EXPECT(h->n == 7 && strcmp(h->lines[6], "999995 more messages about damaged pages were left out.") == 0);
    for (int i = 0; i < 8; i++) quire_log_say(&l, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page.");
    EXPECT(h->n == 12);
    test_clock += 70 * QUIRE_SECOND; /* the next one of the kind tells, too */
    quire_log_say(&l, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page.");
    EXPECT(h->n == 14 && strstr(h->lines[12], "3 more"));
    /* Dropped pages: one line a minute, with a count. */
    for (int second = 0; second < 150; second++) {
        quire_count(&counters.dropped[QUIRE_REMOTE], 1000);
        quire_count(&counters.full[QUIRE_REMOTE], 999);
        quire_log_tick(&l, &counters, QUIRE_REMOTE);
        test_clock += QUIRE_SECOND;
    }
    EXPECT(h->n == 17);
    EXPECT(strcmp(h->lines[16], "60000 pages were not saved to the remote tier: the queue is full (59940), "
                                "they are too large or pinned pages take the space (60).") == 0);
    for (int i = 0; i < 9; i++) quire_log_say(&l, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page.");
    uint32_t before = h->n;
    quire_log_close(&l);
    EXPECT(h->n == before + 1 && strstr(h->lines[before], "4 more"));
    quire_log_open(&l, NULL); /* nobody listens */
    quire_log_say(&l, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page.");
    quire_log_say(NULL, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING, "A page.");
    quire_log_tick(NULL, &counters, QUIRE_DISK);
    free(h);
}

/* ------------------------------------------------------------------- events */

static quire_store *open_with(const char *dir, const quire_store_remote *remote, size_t queue_bytes,
                              const quire_log *log)
{
    quire_store *store = NULL;
    quire_store_options o = kit_options(dir, KIT_CAP, remote);
    o.log = log;
    o.queue_bytes = queue_bytes;
    EXPECT(quire_store_open(&store, &o) == QUIRE_OK);
    ((heard *)log->ctx)->store = store;
    return store;
}

static void end(quire_store *store, heard *h)
{
    h->store = NULL;
    quire_store_close(store);
}

static void save(quire_store *store, uint64_t text, uint32_t n)
{
    kit_raw raw;
    kit_raw_begin(&raw, store, PAGE);
    kit_raw_save(&raw, text, n);
    EXPECT(quire_store_flush(store, 20000) == QUIRE_OK);
    kit_raw_end(&raw);
}

static uint32_t load(quire_store *store, uint64_t text, uint32_t n)
{
    kit_raw raw;
    kit_raw_begin(&raw, store, PAGE);
    uint32_t came = kit_raw_load(&raw, text, n, 5000);
    kit_raw_end(&raw);
    return came;
}

/* An index that is lost while nobody has it open, damaged pages, pages of a later version. */
static void damaged_directory(void)
{
    static const uint8_t record[8] = "QUIRERC", later[] = {9, 0, 0, 0, 0xf6, 0xff, 0xff, 0xff};
    char *dir = kit_directory(NULL), path[600];
    quire_log log;
    heard *h = listen_to(&log);
    kit_files files;
    quire_store *store = open_with(dir, NULL, 0, &log);
    save(store, 1, 5);
    save(store, 2, 5);
    end(store, h);
    EXPECT(h->n == 0); /* nothing has happened */
    snprintf(path, sizeof path, "%s/index", dir);
    EXPECT(unlink(path) == 0);
    kit_files_list(&files, dir);
    for (uint32_t i = 0; i < files.n; i++) {
        if (!strstr(files.path[i], "/slab-")) continue;
        /* The first record is of a later version, the payload of the last has a wrong byte. */
        uint8_t head[40];
        uint64_t first = kit_find_bytes(files.path[i], 4096, record, sizeof record);
        int fd = open(files.path[i], O_RDONLY | O_CLOEXEC);
        EXPECT(fd >= 0 && pread(fd, head, sizeof head, (off_t)first) == (ssize_t)sizeof head);
        close(fd);
        memcpy(head + 8, later, sizeof later);
        quire_store64(head + 32, kit_record_check(files.path[i], head));
        kit_overwrite(files.path[i], first, head, sizeof head);
        uint64_t last = first;
        for (uint64_t at = first; at != UINT64_MAX;) {
            last = at;
            at = kit_find_bytes(files.path[i], at + 4096, record, sizeof record);
        }
        kit_flip_bit(files.path[i], last + 4096 + 1000, 3);
    }
    kit_files_free(&files);
    store = open_with(dir, NULL, 0, &log);
    expect_line(h, "was damaged or missing. It is made anew");
    expect_line(h, "is whole again: 9 pages found in ");
    expect_line(h, "has 1 pages of versions of Quire that this one does not know");
    (void)load(store, 1, 5);
    (void)load(store, 2, 5);
    expect_line(h, "A page of the disk tier is damaged and is removed: the page data is damaged.");
    quire_store_stats s = kit_stats(store);
    EXPECT(s.disk_unknown == 1 && !s.disk_rebuilding && !s.disk_failing);
    end(store, h);
    EXPECT(h->n == 4);
    kit_remove(dir);
    free(h);
}

static void dropped(void)
{
    char *dir = kit_directory(NULL);
    quire_log log;
    heard *h = listen_to(&log);
    quire_store *store = open_with(dir, NULL, 1, &log); /* one page at a time */
    kit_raw raw;
    kit_raw_begin(&raw, store, PAGE);
    for (uint64_t text = 0; text < 20; text++) kit_raw_save(&raw, text, 20);
    expect_line(h, "pages were not saved to the disk tier: the queue is full (");
    for (uint64_t text = 20; text < 40; text++) kit_raw_save(&raw, text, 20);
    sleep(2);
    expect_line(h, "pages were not saved to the disk tier: the queue is full ("); /* again in a minute */
    kit_raw_end(&raw);
    end(store, h);
    kit_remove(dir);
    free(h);
}

/* Of many pages that are handed in at once, too, the reason is the queue. */
static void dropped_of_a_chain(void)
{
    enum { N = 64 };
    static uint32_t tokens[N * 64];
    static uint8_t bytes[PAGE];
    const void *pages[N];
    char *dir = kit_directory(NULL);
    quire_log log;
    heard *h = listen_to(&log);
    quire_store *store = open_with(dir, NULL, 1, &log);
    quire_chain *chain = NULL;
    uint32_t n_dropped = 0;
    kit_raw raw;
    kit_raw_begin(&raw, store, PAGE);
    for (uint32_t i = 0; i < N; i++) pages[i] = bytes;
    for (uint32_t round = 0; round < 100 && !n_dropped; round++) {
        for (uint32_t i = 0; i < N * 64; i++) tokens[i] = round;
        EXPECT(quire_chain_create(&chain, raw.ns) == QUIRE_OK);
        EXPECT(quire_chain_append(chain, tokens, N * 64, NULL, 0, 0) == QUIRE_OK);
        EXPECT(quire_chain_save_raw(chain, 0, N, pages, &n_dropped) == QUIRE_OK);
        quire_chain_destroy(chain);
    }
    EXPECT(n_dropped > 1);
    expect_line(h, "pages were not saved to the disk tier: the queue is full (");
    for (uint32_t i = 0; i < h->n; i++) EXPECT(!strstr(h->lines[i], "too large"));
    kit_raw_end(&raw);
    end(store, h);
    kit_remove(dir);
    free(h);
}

static void failing_directory(void)
{
    char *dir = kit_directory(NULL), moved[600];
    quire_log log;
    heard *h = listen_to(&log);
    quire_store *store = open_with(dir, NULL, 0, &log);
    save(store, 1, 5);
    snprintf(moved, sizeof moved, "%s.away", dir);
    EXPECT(rename(dir, moved) == 0);
    for (uint64_t text = 2; text < 6; text++) save(store, text, 5);
    expect_line(h, "Pages cannot be saved to ");
    expect_line(h, ": the directory is gone.");
    EXPECT(kit_stats(store).disk_failing == 1);
    EXPECT(rename(moved, dir) == 0);
    for (int i = 0; i < 1000 && !count(h, "Pages can be saved"); i++) {
        save(store, 100 + (uint64_t)i, 2);
        usleep(50000);
    }
    expect_line(h, "Pages can be saved to ");
    EXPECT(kit_stats(store).disk_failing == 0);
    end(store, h);
    kit_remove(dir);
    free(h);
}

/* A real one, where one can be made. */
static void full_disk(void)
{
    char *dir = kit_directory(NULL);
    quire_log log;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", 0, "size=4m")) {
        fprintf(result, "no small file system can be made here\n");
        kit_remove(dir);
        return;
    }
    heard *h = listen_to(&log);
    quire_store *store = open_with(dir, NULL, 0, &log);
    for (uint64_t text = 0; text < 10; text++) save(store, text, 20);
    EXPECT(count(h, "Pages cannot be saved to ") && count(h, ": the file system is full."));
    EXPECT(h->n <= 5); /* however often it failed */
    end(store, h);
    (void)umount(dir);
    kit_remove(dir);
    free(h);
}

/* Nobody listens on this port. */
static void lost_node(void)
{
    quire_log log;
    heard *h = listen_to(&log);
    quire_store_remote remote = {.size = sizeof remote, .host = "127.0.0.1", .port = 1};
    quire_store_options o = {.size = sizeof o, .remote = &remote, .log = &log};
    quire_store *store = NULL;
    EXPECT(quire_store_open(&store, &o) == QUIRE_OK);
    for (int i = 0; i < 100 && !h->n; i++) (void)load(store, 1, 5);
    expect_line(h, "The remote node 127.0.0.1:1 does not answer and is considered down.");
    end(store, h);
    free(h);
}

/* ------------------------------------------------------------------ silence */

/* No function that prints is used by the library, whatever path a run takes. */
static void names(void)
{
    char self[1024] = {0}, command[2400], line[256];
    EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(
        command, sizeof command,
        "nm -u '%s/../lib/libquire_store.a' | grep -wE '(__)?(v?f?printf|puts|fputs|putchar|fputc|fwrite|perror|"
        "psignal|syslog|error|warnx?|err|errx)(_chk)?|stdout|stderr'",
        dirname(self));
    FILE *f = popen(command, "r");
    EXPECT(f);
    bool any = fgets(line, sizeof line, f) != NULL;
    if (any) fprintf(result, "the library uses %s", line);
    (void)pclose(f);
    EXPECT(!any);
    snprintf(command, sizeof command, "nm -u '%s/../lib/libquire_store.a' | grep -qw snprintf", self);
    EXPECT(system(command) == 0); /* names are found */
}

int main(void)
{
    char *watched = kit_directory(NULL), path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/output", watched);
    result = fdopen(dup(2), "w");
    setvbuf(result, NULL, _IOLBF, 0);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    KIT_REQUIRE(fd >= 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2);
    limits();
    names();
    damaged_directory();
    dropped();
    dropped_of_a_chain();
    failing_directory();
    lost_node();
    full_disk();
    fflush(stdout);
    EXPECT(fstat(fd, &st) == 0 && st.st_size == 0);
    kit_remove(watched);
    return 0;
}
