/* SPDX-License-Identifier: MIT */
/* bench: plain files, plain libvalkey. */
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

/* ------------------------------------------------------- past the page cache */

static void *direct_prepare(const bench *b)
{
    plain *p = (plain *)file_prepare(b);
    KIT_REQUIRE(fsync(p->fd) == 0);
    close(p->fd);
    p->fd = open(p->path, O_RDONLY | O_DIRECT);
    if (p->fd < 0) p->fd = open(p->path, O_RDONLY);
    KIT_REQUIRE(p->fd >= 0);
    return p;
}

static void *none_prepare(const bench *b)
{
    return begin(b);
}

static double direct_save_measure(void *state)
{
    plain *p = (plain *)state;
    size_t n = p->b->page_bytes;
    void *aligned = NULL;
    KIT_REQUIRE(posix_memalign(&aligned, 4096, n) == 0);
    snprintf(p->path, sizeof p->path, "%s/plain-%u.bin", p->b->directory, p->round++);
    double start = bench_now();
    int fd = open(p->path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (fd < 0) fd = open(p->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    KIT_REQUIRE(fd >= 0);
    for (uint32_t i = 0; i < bench_pages; i++) {
        memcpy(aligned, p->b->source + i * n, n);
        KIT_REQUIRE(write(fd, aligned, n) == (ssize_t)n);
    }
    double seconds = bench_now() - start;
    close(fd);
    unlink(p->path);
    free(aligned);
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
    {"read()", "load", "warm", "a file, into fresh memory", file_prepare, file_measure, file_end},
    {"direct", "load", NULL, "a file, past the page cache, into fresh memory", direct_prepare, file_measure,
     file_end},
    {"libvalkey", "remote-load", NULL, "GET, pipelined, one connection per thread", valkey_prepare,
     valkey_measure, valkey_end},
    {"libvalkey+copy", "remote-load", NULL, "the same, and copied into fresh memory", valkey_prepare,
     valkey_place_measure, valkey_end},
    {"direct", "save", NULL, "a file, past the page cache", none_prepare, direct_save_measure, plain_end},
};
const size_t bench_n_plain = sizeof bench_plain_ways / sizeof *bench_plain_ways;
