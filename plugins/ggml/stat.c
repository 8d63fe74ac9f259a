/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "stat.h"
#include "config.h"
#include "kv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS UINT64_C(2000000000)

static quire_stat nowhere;
static quire_stat *stats = &nowhere;
static char path[512];
static pid_t owner; /* a fork of the host must not take the file away */
static uint64_t last_begin;

static void add(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------------- file */

static void fill_head(quire_stat *s)
{
    memcpy(s->magic, QUIRE_STAT_MAGIC, sizeof s->magic);
    s->version = QUIRE_STAT_VERSION;
    s->size = sizeof *s;
    s->pid = (uint64_t)getpid();
    s->start = quire_stat_start_of(0);
    snprintf(s->program, sizeof s->program, "%s", program_invocation_short_name);
    snprintf(s->ggml, sizeof s->ggml, "%s", host.ggml_version());
    snprintf(s->isa, sizeof s->isa, "%s", quire_isa_in_use());
}

static bool make_in(const char *folder)
{
    if (!folder || !*folder ||
        snprintf(path, sizeof path, "%s/quire-stat.%u.%u", folder, (unsigned)getuid(), (unsigned)getpid()) >=
            (int)sizeof path)
        return false;
    unlink(
        path); /* of an earlier process with this number; not of anyone else, who may not be removed from there */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    void *p = ftruncate(fd, sizeof *stats)
                  ? MAP_FAILED
                  : mmap(NULL, sizeof *stats, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        unlink(path);
        return false;
    }
    owner = getpid();
    fill_head(p);
    __atomic_store_n(&stats, p, __ATOMIC_RELEASE);
    return true;
}

static void open_once(void)
{
    const char *wanted = getenv("QUIRE_STAT");
    if (wanted && !strcmp(wanted, "0")) return;
    if (!make_in(getenv("XDG_RUNTIME_DIR")) && !make_in("/dev/shm") && !make_in("/tmp")) path[0] = 0;
}

void stat_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
}

/* The mapping stays: threads of the host may still be on their way out. */
__attribute__((destructor)) static void remove_file(void)
{
    if (path[0] && owner == getpid()) unlink(path);
}

/* ------------------------------------------------------------------- policies */

static quire_stat_policy *entry_for(const char *policy)
{
    uint32_t i = 0;
    for (; i + 1 < QUIRE_STAT_POLICIES && stats->policies[i].policy[0]; i++)
        if (!strncmp(stats->policies[i].policy, policy, sizeof stats->policies[i].policy - 1)) break;
    quire_stat_policy *e = &stats->policies[i]; /* the last one takes what has no place of its own */
    if (!e->policy[0]) snprintf(e->policy, sizeof e->policy, "%s", policy);
    return e;
}

/* The tensor whose rows are the tokens: a K with the most cells. */
static struct kv *token_tensor(const struct kv_context *c)
{
    struct kv *best = NULL;
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++) {
            struct kv *kv = c->buffer[i]->kv[j];
            if (kv->format && kv->side == QUIRE_K && (!best || kv->cells > best->cells)) best = kv;
        }
    return best;
}

/* Under the lock of the contexts. */
void stat_attach(struct kv_context *c, const char *policy)
{
    struct kv *tokens = token_tensor(c);
    if (!tokens) return;
    stat_open();
    quire_stat_policy *e = entry_for(policy);
    tokens->holds_tokens = true;
    add(&e->n_contexts, 1);
    add(&e->cells, (uint64_t)tokens->cells * tokens->streams);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++) {
            struct kv *kv = c->buffer[i]->kv[j];
            if (!kv->format) continue;
            kv->stat = e;
            for (uint32_t s = 0; s < kv->streams; s++) stat_rows(kv, 0, kv->high[s]);
        }
}

void stat_detach(struct kv *kv)
{
    if (!kv->stat || !kv->holds_tokens) return;
    add(&kv->stat->n_contexts, UINT64_MAX);
    add(&kv->stat->cells, -((uint64_t)kv->cells * kv->streams));
}

/* --------------------------------------------------------------------- counts */

void stat_rows(const struct kv *kv, uint32_t from, uint32_t to)
{
    quire_stat_policy *e = kv->stat;
    if (!e || from == to) return;
    uint64_t rows = (uint64_t)to - from; /* may go down: sums wrap */
    uint64_t tiles = (uint64_t)((to + CELLS - 1) / CELLS) - (from + CELLS - 1) / CELLS;
    add(&e->f16_bytes, rows * kv->row * 2);
    if (tiles) add(&e->bytes, tiles * kv->n_heads * kv->tile_bytes);
    if (kv->holds_tokens) add(&e->tokens, rows);
}

void stat_encoded(uint64_t n_rows)
{
    add(&stats->n_rows, n_rows);
}

uint64_t stat_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void stat_begin(uint64_t now)
{
    uint64_t last = __atomic_exchange_n(&last_begin, now, __ATOMIC_RELAXED);
    if (last && now > last && now - last < PAUSE_NS) add(&stats->compute_ns, now - last);
}

void stat_attended(uint64_t duration)
{
    add(&stats->n_attend, 1);
    add(&stats->attend_ns, duration);
}

void stat_tiles(uint64_t n_read, uint64_t n_skipped)
{
    add(&stats->tiles_read, n_read);
    add(&stats->tiles_skipped, n_skipped);
}
