/* SPDX-License-Identifier: MIT */
/* bench: plain files, plain LMDB, plain libvalkey. */
#define _GNU_SOURCE
#include "store/bench/bench.h"
#include "store/kit/servers.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct plain {
    const bench *b;
    int fd;
    MDB_env *env;
    MDB_dbi dbi;
    uint8_t *to;
    uint32_t round;
    kit_server server;
    valkeyContext *c[8];
    uint32_t n_lanes;
    char path[600];
} plain;

static plain *begin(const bench *b)
{
    plain *p = (plain *)calloc(1, sizeof *p);
    KIT_REQUIRE(p);
    p->b = b;
    p->fd = -1;
    return p;
}

static double with_fresh(plain *p, void (*one)(void *ctx, uint32_t i))
{
    size_t bytes = p->b->page_bytes * bench_pages;
    p->to = bench_fresh(bytes);
    double seconds = bench_spread(p->b->n_threads, one, p);
    bench_release(p->to, bytes);
    return seconds;
}

/* -------------------------------------------------------------------- files */

static void *file_prepare(const bench *b)
{
    plain *p = begin(b);
    snprintf(p->path, sizeof p->path, "%s/plain.bin", b->directory);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    KIT_REQUIRE(p->fd >= 0);
    for (uint32_t i = 0; i < bench_pages; i++)
        KIT_REQUIRE(write(p->fd, b->source + i * b->page_bytes, b->page_bytes) == (ssize_t)b->page_bytes);
    return p;
}

static void read_one(void *ctx, uint32_t i)
{
    plain *p = (plain *)ctx;
    size_t n = p->b->page_bytes;
    KIT_REQUIRE(pread(p->fd, p->to + i * n, n, (off_t)(i * n)) == (ssize_t)n);
}

static double file_measure(void *state)
{
    return with_fresh((plain *)state, read_one);
}

static void file_end(void *state)
{
    plain *p = (plain *)state;
    close(p->fd);
    unlink(p->path);
    free(p);
}

/* --------------------------------------------------------------------- LMDB */

static void make_env(plain *p, uint32_t number)
{
    snprintf(p->path, sizeof p->path, "%s/plain-%u.mdb", p->b->directory, number);
    KIT_REQUIRE(!mdb_env_create(&p->env) && !mdb_env_set_mapsize(p->env, 1ull << 30));
    KIT_REQUIRE(!mdb_env_open(p->env, p->path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC, 0600));
    MDB_txn *txn;
    KIT_REQUIRE(!mdb_txn_begin(p->env, NULL, 0, &txn) && !mdb_dbi_open(txn, NULL, 0, &p->dbi) &&
                !mdb_txn_commit(txn));
}

static void remove_env(plain *p)
{
    char lock[700];
    mdb_env_close(p->env);
    unlink(p->path);
    snprintf(lock, sizeof lock, "%s-lock", p->path);
    unlink(lock);
}

/* In batches of as many bytes as the store writes at once. */
static void put_all(plain *p)
{
    const bench *b = p->b;
    uint32_t batch = (uint32_t)((32u << 20) / b->page_bytes);
    for (uint32_t i = 0; i < bench_pages; i += batch) {
        MDB_txn *txn;
        KIT_REQUIRE(!mdb_txn_begin(p->env, NULL, 0, &txn));
        for (uint32_t j = i; j < i + batch && j < bench_pages; j++) {
            uint8_t name[32] = {(uint8_t)(j * 37), (uint8_t)j};
            MDB_val key = {32, name}, value = {b->page_bytes, NULL};
            KIT_REQUIRE(!mdb_put(txn, p->dbi, &key, &value, MDB_RESERVE));
            memcpy(value.mv_data, b->source + j * b->page_bytes, b->page_bytes);
        }
        KIT_REQUIRE(!mdb_txn_commit(txn));
    }
}

static void *lmdb_prepare(const bench *b)
{
    plain *p = begin(b);
    make_env(p, 0);
    put_all(p);
    return p;
}

static void get_one(void *ctx, uint32_t i)
{
    plain *p = (plain *)ctx;
    uint8_t name[32] = {(uint8_t)(i * 37), (uint8_t)i};
    MDB_val key = {32, name}, value;
    MDB_txn *txn;
    KIT_REQUIRE(!mdb_txn_begin(p->env, NULL, MDB_RDONLY, &txn) && !mdb_get(txn, p->dbi, &key, &value));
    memcpy(p->to + i * p->b->page_bytes, value.mv_data, value.mv_size);
    mdb_txn_abort(txn);
}

static double lmdb_measure(void *state)
{
    return with_fresh((plain *)state, get_one);
}

static void lmdb_end(void *state)
{
    remove_env((plain *)state);
    free(state);
}

static void *none_prepare(const bench *b)
{
    return begin(b);
}

static double lmdb_save_measure(void *state)
{
    plain *p = (plain *)state;
    make_env(p, 100 + p->round++);
    double start = bench_now();
    put_all(p);
    double seconds = bench_now() - start;
    remove_env(p);
    return seconds;
}

/* ---------------------------------------------------------------- libvalkey */

static void *valkey_prepare(const bench *b)
{
    plain *p = begin(b);
    if (system("command -v redis-server >/dev/null 2>&1")) return p;
    kit_server_start(&p->server, NULL);
    p->n_lanes = b->n_threads;
    for (uint32_t i = 0; i < p->n_lanes; i++) p->c[i] = kit_connect(p->server.port);
    for (uint32_t i = 0; i < bench_pages; i++)
        freeReplyObject(
            valkeyCommand(p->c[0], "SET page%u %b", i, b->source + i * b->page_bytes, b->page_bytes));
    return p;
}

/* Pages i, i + n, ... over connection i, up to 16 MiB of replies asked for ahead. */
static void lane_one(void *ctx, uint32_t lane)
{
    plain *p = (plain *)ctx;
    uint32_t ahead = (uint32_t)((16u << 20) / p->b->page_bytes), asked = lane, done = lane, n = p->n_lanes;
    while (done < bench_pages) {
        for (; asked < bench_pages && asked < done + ahead * n; asked += n)
            valkeyAppendCommand(p->c[lane], "GET page%u", asked);
        void *reply = NULL;
        KIT_REQUIRE(valkeyGetReply(p->c[lane], &reply) == VALKEY_OK &&
                    ((valkeyReply *)reply)->len == p->b->page_bytes);
        if (p->to) memcpy(p->to + done * p->b->page_bytes, ((valkeyReply *)reply)->str, p->b->page_bytes);
        freeReplyObject(reply);
        done += n;
    }
}

typedef struct lane_arg {
    plain *p;
    uint32_t lane;
} lane_arg;

static void *run_lane(void *arg)
{
    lane_arg *a = (lane_arg *)arg;
    lane_one(a->p, a->lane);
    return NULL;
}

static double valkey_measure(void *state)
{
    plain *p = (plain *)state;
    pthread_t thread[8];
    lane_arg arg[8];
    if (!p->n_lanes) return 0;
    double start = bench_now();
    for (uint32_t i = 0; i < p->n_lanes; i++) {
        arg[i] = (lane_arg){p, i};
        pthread_create(&thread[i], NULL, run_lane, &arg[i]);
    }
    for (uint32_t i = 0; i < p->n_lanes; i++) pthread_join(thread[i], NULL);
    return bench_now() - start;
}

/* As an engine would have to: the values go to memory like a pool's. */
static double valkey_place_measure(void *state)
{
    plain *p = (plain *)state;
    size_t bytes = p->b->page_bytes * bench_pages;
    p->to = bench_fresh(bytes);
    double seconds = valkey_measure(p);
    bench_release(p->to, bytes);
    p->to = NULL;
    return seconds;
}

static void valkey_end(void *state)
{
    plain *p = (plain *)state;
    for (uint32_t i = 0; i < p->n_lanes; i++) valkeyFree(p->c[i]);
    if (p->n_lanes) kit_server_end(&p->server);
    free(p);
}

static void plain_end(void *state)
{
    free(state);
}

const bench_way bench_plain_ways[] = {
    {"read()", "load", "a file, page cache warm, into fresh memory", file_prepare, file_measure, file_end},
    {"lmdb", "load", "get and copy, page cache warm, into fresh memory", lmdb_prepare, lmdb_measure,
     lmdb_end},
    {"libvalkey", "remote-load", "GET, pipelined, one connection per thread", valkey_prepare, valkey_measure,
     valkey_end},
    {"libvalkey+copy", "remote-load", "the same, and copied into fresh memory", valkey_prepare,
     valkey_place_measure, valkey_end},
    {"lmdb", "save", "put and commit in batches of 32 MiB", none_prepare, lmdb_save_measure, plain_end},
};
const size_t bench_n_plain = sizeof bench_plain_ways / sizeof *bench_plain_ways;
