/* SPDX-License-Identifier: MIT */
/* bench: what the system did with memory and threads: huge pages, and which processors threads can run on. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "bench/bench.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__linux__)

/* ------------------------------------------------------------------ memory */

static double share_between(FILE *file, uintptr_t first, uintptr_t last)
{
    char line[512];
    bool is_inside = false;
    double huge = 0, all = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long begin, end, kib;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_inside = begin < last && end > first;
        else if (is_inside && sscanf(line, "Rss: %lu kB", &kib) == 1)
            all += (double)kib;
        else if (is_inside && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
            huge += (double)kib;
    }
    return all > 0 ? huge / all : (double)NAN;
}

double bench_huge_share(const uint8_t *const *pieces, size_t n, size_t piece_bytes)
{
    uintptr_t first = UINTPTR_MAX, last = 0;
    for (size_t i = 0; i < n; i++) {
        uintptr_t at = (uintptr_t)pieces[i];
        if (at < first) first = at;
        if (at + piece_bytes > last) last = at + piece_bytes;
    }
    FILE *file = fopen("/proc/self/smaps", "r");
    if (!file) return (double)NAN;
    double share = share_between(file, first, last);
    fclose(file);
    return share;
}

/* ----------------------------------------------------------------- threads */

#define MAX_THREADS 512u
#define ALL_SECONDS 0.05 /* that all threads of a team have to come together */

typedef struct roll_call {
    atomic_uint n_here;
    uint32_t n_threads;
    double end;
    int processor[MAX_THREADS]; /* the only one; -1: several */
} roll_call;

static void answer(void *arg, uint32_t index)
{
    roll_call *r = (roll_call *)arg;
    cpu_set_t set;
    r->processor[index] = -1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set)) r->processor[index] = i;
    /* So that every thread has one task. */
    atomic_fetch_add(&r->n_here, 1);
    while (atomic_load(&r->n_here) < r->n_threads && bench_now() < r->end) sched_yield();
}

const char *bench_team_text(bench_team *team)
{
    roll_call r = {.n_threads = team->n_threads, .end = bench_now() + ALL_SECONDS};
    cpu_set_t set;
    if (!team->executor.run || team->n_threads > MAX_THREADS) return "";
    team->executor.run(team->executor.ctx, answer, &r, team->n_threads);
    bool is_pinned = true;
    for (uint32_t i = 0; i < team->n_threads; i++) {
        if (r.processor[i] < 0) is_pinned = false;
        for (uint32_t j = 0; j < i; j++)
            if (r.processor[i] >= 0 && r.processor[i] == r.processor[j]) return "shared";
    }
    if (is_pinned) return "pinned";
    if (sched_getaffinity(0, sizeof set, &set) == 0 && (uint32_t)CPU_COUNT(&set) < team->n_threads)
        return "shared";
    return "unpinned";
}

#else

double bench_huge_share(const uint8_t *const *pieces, size_t n, size_t piece_bytes)
{
    (void)pieces;
    (void)n;
    (void)piece_bytes;
    return (double)NAN;
}

const char *bench_team_text(bench_team *team)
{
    (void)team;
    return "";
}

#endif
