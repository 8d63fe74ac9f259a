/* SPDX-License-Identifier: MIT */
/*
 * quire_stat.h: the counters that the llama.cpp device publishes while it holds a cache (docs/formats/stat.md).
 *
 * They lie in a file of this structure, which the device maps and changes in place: quire-stat.<uid>.<pid> in
 * XDG_RUNTIME_DIR, else /dev/shm, else /tmp. Read it once or map it; each number is whole, the set of them is not taken at
 * one moment. It is gone when the process ends in an orderly way; one that was killed leaves it behind, and
 * then pid and start tell that it means nothing any more.
 */
#ifndef QUIRE_QUIRE_STAT_H
#define QUIRE_QUIRE_STAT_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define QUIRE_STAT_MAGIC "QUIRSTAT"
#define QUIRE_STAT_VERSION 1u
#define QUIRE_STAT_POLICIES 8u

/* What is held under one policy. "declared": the types that the host declared keep their meaning. */
typedef struct quire_stat_policy {
    char policy[128];    /* canonical, ends with 0; empty: this one and those behind it are not used */
    uint64_t n_contexts; /* of the host */
    uint64_t cells;      /* that could hold a token, in full-attention layers */
    uint64_t tokens;     /* that hold or have held one since the cache was last cleared */
    uint64_t bytes;      /* of tiles in use, all layers */
    uint64_t f16_bytes;  /* that the same rows would take in f16 */
} quire_stat_policy;

typedef struct quire_stat {
    char magic[8]; /* QUIRE_STAT_MAGIC, without the 0 */
    uint32_t version;
    uint32_t size; /* of the structure; members may be added at its end */
    uint64_t pid;
    uint64_t start;      /* when the process started, as in /proc/PID/stat */
    char program[64];    /* name of the host */
    char ggml[32];       /* its version */
    char isa[32];        /* kernels in use */
    uint64_t n_attend;   /* calls: one for each layer and batch */
    uint64_t attend_ns;  /* time in them */
    uint64_t compute_ns; /* time in which the host was computing: pauses above 2 s do not count */
    uint64_t n_rows;     /* encoded, K and V of all layers and heads taken as one each */
    uint64_t tiles_read; /* by attention: quire_workspace_stats */
    uint64_t tiles_skipped;
    quire_stat_policy policies[QUIRE_STAT_POLICIES];
} quire_stat;

/* When a process started, for `start` (Linux); pid 0: this process. 0: there is none. Field 22 of /proc/PID/stat; the name in
 * field 2 may hold anything, but no ')' follows it. */
static inline uint64_t quire_stat_start_of(uint64_t pid)
{
    char path[64], text[1024], *at;
    unsigned long long start = 0;
    size_t n = 0;
    FILE *f;
    if (pid)
        (void)snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    else
        (void)snprintf(path, sizeof path, "/proc/self/stat");
    f = fopen(path, "r");
    if (f) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = 0;
    at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) (void)sscanf(at, " %llu", &start);
    return start;
}

#endif
