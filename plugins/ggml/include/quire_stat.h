/* SPDX-License-Identifier: MIT */
/*
 * quire_stat.h: the counters that the llama.cpp device publishes while it holds a cache (docs/formats/stat.md).
 *
 * The counters are in a file with the structure below, which the device maps and updates in place: quire-stat.<uid>.<pid>
 * in XDG_RUNTIME_DIR, else /dev/shm, else /tmp. You can read the file or map it. Each number is consistent in itself, but
 * the numbers are not all from the same moment. The device removes the file when the process exits normally. A process
 * that was killed leaves its file behind; use pid and start to recognise such a stale file.
 */
#ifndef QUIRE_GGML_QUIRE_STAT_H
#define QUIRE_GGML_QUIRE_STAT_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define QUIRE_STAT_MAGIC "QUIRSTAT"
#define QUIRE_STAT_VERSION 1u
#define QUIRE_STAT_POLICIES 8u

/* What the device holds under one policy. The name "declared" means that the cache types the host chose are used as they
 * are. */
typedef struct quire_stat_policy {
    char policy[128];    /* canonical form, ends with 0; if empty, this entry and all later ones are unused */
    uint64_t n_contexts; /* contexts of the host */
    uint64_t cells;      /* cells that can hold a token, in full-attention layers */
    uint64_t tokens;     /* cells that hold or have held a token since the cache was last cleared */
    uint64_t bytes;      /* bytes of tiles in use, all layers */
    uint64_t f16_bytes;  /* bytes that the same rows would take in f16 */
} quire_stat_policy;

typedef struct quire_stat {
    char magic[8]; /* QUIRE_STAT_MAGIC, without the 0 */
    uint32_t version;
    uint32_t size; /* size of the structure; later versions may append members */
    uint64_t pid;
    uint64_t start;      /* when the process started, as in /proc/PID/stat */
    char program[64];    /* name of the host program */
    char ggml[32];       /* version of the host's ggml */
    char isa[32];        /* instruction set in use */
    uint64_t n_attend;   /* attention calls: one for each layer and batch */
    uint64_t attend_ns;  /* time spent in these calls */
    uint64_t compute_ns; /* time during which the host was computing; pauses above 2 s are not counted */
    uint64_t n_rows;     /* rows encoded: per token and layer one for K and one for V, all heads together */
    uint64_t tiles_read; /* tiles read by attention, as in quire_workspace_stats */
    uint64_t tiles_skipped;
    quire_stat_policy policies[QUIRE_STAT_POLICIES];
} quire_stat;

/* When a process started, to compare with `start` (Linux). pid 0: this process. Returns 0 if there is no such process. It
 * reads field 22 of /proc/PID/stat; the name in field 2 may contain anything, but no ')' follows it. */
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
