/* SPDX-License-Identifier: MIT */
/* bench: the store itself, in sequences of a pool. */
#define _GNU_SOURCE
#include "store/bench/bench.h"
#include "store/kit/servers.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct mine {
    const bench *b;
    quire_plan *plan;
    quire_pool *pool;
    quire_store *store;
    quire_namespace *ns;
    quire_seq *seq;
    uint32_t tokens[BENCH_MAX_PAGES * 64];
    kit_server server;
    bool on_server;
    char *directory;
    uint32_t round;
} mine;

static quire_geometry geometry(void)
{
    return (quire_geometry){sizeof(quire_geometry), .n_layers = 32, .n_q_heads = 32,
                            .n_kv_heads = 8,        .d_k = 128,     .d_v = 128};
}

static quire_page *next_page(void *ctx, uint32_t group, uint32_t i)
{
    mine *m = (mine *)ctx;
    quire_page *page = NULL;
    KIT_REQUIRE(!quire_pool_take_page(&page, m->pool, m->plan, group, i));
    memcpy(quire_page_mutable_bytes(page), m->b->source + i * m->b->page_bytes, m->b->page_bytes);
    return page;
}

static void open_store(mine *m, const char *directory, uint32_t port)
{
    quire_store_options o = kit_options(directory, 1ull << 30, NULL);
    o.disk_threads = m->b->n_threads;
    quire_store_remote remote = kit_remote(port);
    remote.connections = m->b->n_threads;
    if (port) o.remote = &remote;
    o.queue_bytes = 1u << 30;
    KIT_REQUIRE(!quire_store_open(&m->store, &o));
    quire_identity id = kit_identity(1);
    KIT_REQUIRE(!quire_namespace_create(&m->ns, m->store, &id, m->plan, NULL));
}

static void close_store(mine *m)
{
    quire_namespace_destroy(m->ns);
    quire_store_close(m->store);
}

static double save(mine *m)
{
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = m->tokens, .n_tokens = bench_pages * 64};
    double start = bench_now();
    KIT_REQUIRE(!quire_namespace_save(m->ns, &p, m->seq) && !quire_store_flush(m->store, 600000));
    return bench_now() - start;
}

static mine *begin(const bench *b)
{
    quire_geometry g = geometry();
    mine *m = (mine *)calloc(1, sizeof *m);
    KIT_REQUIRE(m);
    m->b = b;
    m->plan = kit_plan(&g, "k4v4", NULL);
    m->pool = kit_pool(m->plan, 3 * bench_pages * (b->page_bytes + 4096), NULL);
    for (uint32_t i = 0; i < bench_pages * 64; i++) m->tokens[i] = i * 7;
    KIT_REQUIRE(!quire_seq_create(&m->seq, m->pool, NULL));
    KIT_REQUIRE(!quire_seq_adopt(m->seq, bench_pages, next_page, m));
    return m;
}

static void end(void *state)
{
    mine *m = (mine *)state;
    if (m->store) close_store(m);
    quire_seq_destroy(m->seq);
    quire_pool_destroy(m->pool);
    quire_plan_destroy(m->plan);
    if (m->on_server) kit_server_end(&m->server);
    if (m->directory) kit_remove(m->directory);
    free(m);
}

static void *disk_prepare(const bench *b)
{
    mine *m = begin(b);
    m->directory = kit_directory(b->directory);
    open_store(m, m->directory, 0);
    (void)save(m);
    return m;
}

/* A pool of its own each time: its memory is fresh, as that of a process that has just begun. */
static double load_measure(void *state)
{
    mine *m = (mine *)state;
    if (!m->store) return 0;
    quire_pool *pool = kit_pool(m->plan, (bench_pages + 2) * (m->b->page_bytes + 4096), NULL);
    quire_seq *seq = NULL;
    quire_load *load = NULL;
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = m->tokens, .n_tokens = bench_pages * 64};
    uint32_t n = 0;
    KIT_REQUIRE(!quire_seq_create(&seq, pool, NULL));
    double start = bench_now();
    KIT_REQUIRE(!quire_load_begin(&load, m->ns, &p, seq, 600000) && !quire_load_end(load, &n));
    double seconds = bench_now() - start;
    if (n != bench_pages * 64)
        fprintf(stderr, "only %u of %u pages from the %s\n", n / 64, bench_pages,
                m->on_server ? "server" : "disk");
    KIT_REQUIRE(n == bench_pages * 64);
    quire_seq_destroy(seq);
    KIT_REQUIRE(!quire_store_flush(m->store, 600000));
    quire_pool_destroy(pool);
    return seconds;
}

/* Loaded twice before: what is kept in memory for the next load is there. */
static void *warm_prepare(const bench *b)
{
    mine *m = (mine *)disk_prepare(b);
    for (int i = 0; i < 2; i++) (void)load_measure(m);
    return m;
}

/* Nothing of the files is in memory: closed, written back, forgotten, opened again. */
static void make_cold(const char *directory)
{
    char path[1200];
    DIR *dir = opendir(directory);
    KIT_REQUIRE(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        int fd = e->d_name[0] == '.' ? -1 : open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        KIT_REQUIRE(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        close(fd);
    }
    closedir(dir);
}

static double cold_measure(void *state)
{
    mine *m = (mine *)state;
    close_store(m);
    make_cold(m->directory);
    open_store(m, m->directory, 0);
    return load_measure(m);
}

static void *remote_prepare(const bench *b)
{
    mine *m = begin(b);
    if (system("command -v redis-server >/dev/null 2>&1")) return m;
    kit_server_start(&m->server, NULL);
    m->on_server = true;
    open_store(m, NULL, m->server.port);
    (void)save(m);
    return m;
}

static void *save_prepare(const bench *b)
{
    return begin(b);
}

/* The first load after saving, in the same process. */
static double saved_measure(void *state)
{
    mine *m = (mine *)state;
    char *directory = kit_directory(m->b->directory);
    open_store(m, directory, 0);
    (void)save(m);
    double seconds = load_measure(m);
    close_store(m);
    m->store = NULL;
    kit_remove(directory);
    return seconds;
}

static double save_measure(void *state)
{
    mine *m = (mine *)state;
    char *directory = kit_directory(m->b->directory);
    open_store(m, directory, 0);
    double seconds = save(m);
    close_store(m);
    m->store = NULL;
    kit_remove(directory);
    return seconds;
}

/* The server forgets, the store has not seen the pages. */
static void *remote_save_prepare(const bench *b)
{
    mine *m = begin(b);
    if (system("command -v redis-server >/dev/null 2>&1")) return m;
    kit_server_start(&m->server, NULL);
    m->on_server = true;
    return m;
}

static double remote_save_measure(void *state)
{
    mine *m = (mine *)state;
    if (!m->on_server) return 0;
    valkeyContext *c = kit_connect(m->server.port);
    freeReplyObject(valkeyCommand(c, "FLUSHALL SYNC"));
    valkeyFree(c);
    open_store(m, NULL, m->server.port);
    double seconds = save(m);
    close_store(m);
    m->store = NULL;
    return seconds;
}

const bench_way bench_quire_ways[] = {
    {"quire", "load", "warm",
     "from disk, verified, into a fresh pool; the third load of the same pages and later ones", warm_prepare,
     load_measure, end},
    {"quire", "load", "cold", "from disk, verified, into a fresh pool; the store was opened just before",
     disk_prepare, cold_measure, end},
    {"quire", "load", "saved", "from disk, verified, into a fresh pool; the first load after saving",
     save_prepare, saved_measure, end},
    {"quire", "save", NULL, "hashed, until flushed", save_prepare, save_measure, end},
    {"quire", "remote-load", NULL, "sealed, verified, into a fresh pool", remote_prepare, load_measure, end},
    {"quire", "remote-save", NULL, "sealed, until flushed", remote_save_prepare, remote_save_measure, end},
};
const size_t bench_n_quire = sizeof bench_quire_ways / sizeof *bench_quire_ways;
