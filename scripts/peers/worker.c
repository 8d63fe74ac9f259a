// SPDX-License-Identifier: MIT
// What the measured programs in C have in common: rows from a file, one JSON line per configuration, requests on stdin.
#define _GNU_SOURCE
#include "worker.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONFIGS = 32, HUGE_BYTES = 1 << 21 };

void worker_fail(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

void *worker_huge(size_t bytes)
{
    bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    char *p = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) worker_fail("mmap", "no memory");
    p += (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    madvise(p, bytes, MADV_HUGEPAGE); // without effect where the system has none
    memset(p, 0, bytes);
    return p;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static worker_rows read_rows(const char *path, uint32_t context, uint32_t queries)
{
    size_t nq = (size_t)queries * WORKER_Q_HEADS * WORKER_D,
           nk = (size_t)context * WORKER_KV_HEADS * WORKER_D;
    size_t bytes = (nq + 2 * nk) * sizeof(float);
    int fd = open(path, O_RDONLY);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0 || (size_t)info.st_size != bytes)
        worker_fail(path, "is not the rows");
    const float *x = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (x == MAP_FAILED) worker_fail(path, "cannot be mapped");
    close(fd);
    return (worker_rows){context, queries, x, x + nq, x + nq + nk};
}

static void write_out(const char *folder, const worker_config *config, uint32_t queries)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s.out", folder, config->name);
    for (char *p = path + strlen(folder) + 1; *p; p++)
        if (*p == '/' || *p == ':') *p = '-';
    FILE *file = n < (int)sizeof path ? fopen(path, "wb") : NULL;
    size_t count = (size_t)queries * WORKER_Q_HEADS * WORKER_D;
    if (!file || fwrite(config->out, sizeof(float), count, file) != count || fclose(file) != 0)
        worker_fail(path, "cannot be written");
    printf("{\"config\": \"%s\", \"bytes\": %zu, \"isa\": \"%s\", \"out\": \"%s\"}\n", config->name,
           config->bytes, config->isa, path);
    fflush(stdout);
}

static void answer(void (*call)(void *object), void *object, int uncounted, int counted)
{
    for (int i = 0; i < uncounted; i++) call(object);
    printf("{\"ms\": [");
    for (int i = 0; i < counted; i++) {
        double start = now_ms();
        call(object);
        printf("%s%.4f", i ? ", " : "", now_ms() - start);
    }
    puts("]}");
    fflush(stdout);
}

int worker_main(int argc, char **argv,
                worker_config (*make)(const char *name, const worker_rows *rows, uint32_t n_threads))
{
    if (argc < 7 || argc - 6 > MAX_CONFIGS)
        worker_fail("arguments", "ROWS-FILE OUT-FOLDER CONTEXT QUERIES THREADS NAME...");
    worker_rows rows = read_rows(argv[1], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
    worker_config configs[MAX_CONFIGS];
    int n = argc - 6;
    for (int i = 0; i < n; i++) {
        configs[i] = make(argv[6 + i], &rows, (uint32_t)atoi(argv[5]));
        configs[i].run(configs[i].object);
        write_out(argv[2], &configs[i], rows.queries);
    }
    puts("ready");
    fflush(stdout);
    char what[16];
    int index, uncounted, counted;
    while (scanf("%15s %d %d %d", what, &index, &uncounted, &counted) == 4) {
        if (index < 0 || index >= n) worker_fail("request", "no such configuration");
        const worker_config *c = &configs[index];
        void (*call)(void *object) = !strcmp(what, "append") ? c->append : c->run;
        if (!call) worker_fail(what, "is not measured here");
        answer(call, c->object, uncounted, counted);
    }
    return 0;
}
