/* SPDX-License-Identifier: MIT */
/* bench: clock, memory, random numbers, and the two yardsticks: reading memory and bare tile products. */
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#include "bench/bench.h"

#include "common/system.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE ((size_t)2 << 20)

static double clock_seconds(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

void bench_wait_quiet(void)
{
    const struct timespec nap = {0, 1000000};
    for (int i = 0; i < 250; i++) {
        double cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        nanosleep(&nap, NULL);
        /* A thread that spins takes all of the millisecond. */
        if (clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu < 2e-4) return;
    }
}

static void spin(void *arg, uint32_t index)
{
    const double *end = (const double *)arg;
    (void)index;
    while (bench_now() < *end) continue;
}

void bench_wake(bench_team *team)
{
    double end = bench_now() + BENCH_WAKE_SECONDS;
    if (team->executor.run) team->executor.run(team->executor.ctx, spin, &end, team->n_threads);
}

/* ------------------------------------------------------------------ memory */

static size_t mapped_bytes(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void *bench_map(size_t bytes)
{
    size_t size = mapped_bytes(bytes);
    uint8_t *base =
        (uint8_t *)mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    uint8_t *start = base + (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (start > base) munmap(base, (size_t)(start - base));
    size_t rest = (size_t)(base + HUGE_PAGE - start);
    if (rest) munmap(start + size, rest);
#if defined(MADV_HUGEPAGE)
    (void)madvise(start, size, MADV_HUGEPAGE); /* a wish: without huge pages it is slower, not wrong */
#endif
    return start;
}

void bench_unmap(void *memory, size_t bytes)
{
    if (memory) munmap(memory, mapped_bytes(bytes));
}

size_t bench_free_memory(void)
{
    uint64_t bytes = system_free_bytes();
    return bytes ? (size_t)bytes : SIZE_MAX;
}

/* ------------------------------------------------------------------ random */

uint64_t bench_random(uint64_t *state) /* splitmix64 */
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Sum of 8 uniform numbers of 16 bits: deviation 65536 * sqrt(8/12), at most 4.9 deviations from the mean. */
void bench_gauss(uint64_t *state, float *x, size_t n)
{
    const float mean = 8 * 65535 / 2.0f, factor = 1.0f / (65536.0f * 0.81649658f);
    for (size_t i = 0; i < n; i++) {
        uint64_t a = bench_random(state), b = bench_random(state), sum = 0;
        for (int j = 0; j < 4; j++, a >>= 16, b >>= 16) sum += (a & 0xffff) + (b & 0xffff);
        x[i] = ((float)sum - mean) * factor;
    }
}

/* ------------------------------------------------------------------ reading */

/*
 * 64 bytes per load and eight sums that do not wait for each other. The target decides what a 64-byte vector is made
 * of: one register of AVX-512, two of AVX2, four of SSE or NEON. Lines are asked for in advance, because the hardware's
 * own prefetch ends at 4 KiB.
 */
typedef uint64_t wide __attribute__((vector_size(64), aligned(64), may_alias));

#define READ_STEP 512u
#define READ_AHEAD 2048u

#define DEFINE_READ(NAME, TARGET)                                                                \
    TARGET static uint64_t NAME(const uint8_t *p, size_t bytes)                                  \
    {                                                                                            \
        wide s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};     \
        for (; bytes >= READ_STEP; bytes -= READ_STEP, p += READ_STEP) {                         \
            const wide *v = (const wide *)(const void *)p;                                       \
            for (uint32_t i = 0; i < READ_STEP; i += 64) __builtin_prefetch(p + READ_AHEAD + i); \
            s0 ^= v[0], s1 ^= v[1], s2 ^= v[2], s3 ^= v[3];                                      \
            s4 ^= v[4], s5 ^= v[5], s6 ^= v[6], s7 ^= v[7];                                      \
        }                                                                                        \
        for (; bytes >= 64; bytes -= 64, p += 64) s0 ^= *(const wide *)(const void *)p;          \
        s0 ^= s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7;                                                  \
        uint64_t x = 0;                                                                          \
        for (int i = 0; i < 8; i++) x ^= s0[i];                                                  \
        return x;                                                                                \
    }

DEFINE_READ(read_plain, )
#if defined(__x86_64__) && defined(__GNUC__)
DEFINE_READ(read_avx2, __attribute__((target("avx2"))))
DEFINE_READ(read_avx512, __attribute__((target("avx512f"))))
#endif

typedef struct read_call {
    const uint8_t *const *pieces;
    size_t piece_bytes, chunk; /* of a piece */
    uint32_t n_pieces, per_task, chunks_per_piece;
    uint64_t (*read)(const uint8_t *p, size_t bytes);
} read_call;

static volatile uint64_t read_sink; /* so that the loads are not left out */

/* Some small pieces, or a part of a large one. */
static void read_task(void *arg, uint32_t index)
{
    const read_call *c = (const read_call *)arg;
    uint32_t first = index / c->chunks_per_piece * c->per_task, end = first + c->per_task;
    size_t begin = index % c->chunks_per_piece * c->chunk, bytes = c->piece_bytes - begin;
    uint64_t sum = 0;
    if (bytes > c->chunk) bytes = c->chunk;
    for (uint32_t i = first; i < end && i < c->n_pieces; i++) sum ^= c->read(c->pieces[i] + begin, bytes);
    if (sum == 0x5a5a5a5a5a5a5a5au) read_sink = index;
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Not __builtin_cpu_supports(), which needs a part of the compiler's library that not every compiler brings. */
static bool machine_has(const char *isa)
{
    const char *name;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++)
        if (!strcmp(name, isa)) return true;
    return false;
}
#endif

double bench_read(bench_team *team, const uint8_t *const *pieces, uint32_t n, size_t piece_bytes)
{
    read_call c = {.pieces = pieces,
                   .piece_bytes = piece_bytes / 64 * 64,
                   .n_pieces = n,
                   .per_task = 1,
                   .chunks_per_piece = 1,
                   .read = read_plain};
#if defined(__x86_64__) && defined(__GNUC__)
    if (machine_has("avx512vnni"))
        c.read = read_avx512;
    else if (machine_has("avx2"))
        c.read = read_avx2;
#endif
    /* Small enough that no thread waits long for the last task. */
    size_t want = (size_t)n * piece_bytes / (team->n_threads * 32u) / READ_STEP * READ_STEP;
    if (want < 64 * 1024) want = 64 * 1024;
    c.chunk = c.piece_bytes;
    if (c.piece_bytes > want) {
        c.chunk = want;
        c.chunks_per_piece = (uint32_t)((c.piece_bytes + want - 1) / want);
    } else if (c.piece_bytes) {
        c.per_task = (uint32_t)(want / c.piece_bytes);
    }
    uint32_t n_tasks = (n + c.per_task - 1) / c.per_task * c.chunks_per_piece;
    double start = bench_now();
    if (team->executor.run)
        team->executor.run(team->executor.ctx, read_task, &c, n_tasks);
    else
        for (uint32_t i = 0; i < n_tasks; i++) read_task(&c, i);
    return bench_now() - start;
}

/* -------------------------------------------------------------------- tiles */

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

/* Seconds per cycle: imul needs three cycles and waits for the one before. The counter of rdtsc runs at another rate. */
static double cycle_seconds(void)
{
    double best = INFINITY;
    for (int r = 0; r < 4; r++) {
        uint64_t x = (uint64_t)r;
        double start = bench_now();
        for (int i = 0; i < 1000; i++)
            __asm__ volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0" : "+r"(x));
        double took = bench_now() - start;
        if (took < best) best = took;
    }
    return best / (1000 * 4 * 3);
}

#define TILE_PRODUCTS 512

/* Four sums in turn, as a kernel has them; the operands are zero. */
__attribute__((target("amx-int8,amx-tile"))) static double tile_seconds(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    double best = INFINITY;
    for (int r = 0; r < 4; r++) {
        double start = bench_now();
        for (int i = 0; i < TILE_PRODUCTS / 4; i++) {
            _tile_dpbssd(0, 4, 5);
            _tile_dpbssd(1, 4, 5);
            _tile_dpbssd(2, 4, 5);
            _tile_dpbssd(3, 4, 5);
        }
        double took = bench_now() - start;
        if (took < best) best = took;
    }
    _tile_release();
    return best / TILE_PRODUCTS;
}

/* The library lists "amx" only after the system has given tiles to the process. */
static bool has_amx(void)
{
    const char *name;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++)
        if (strcmp(name, "amx") == 0) return true;
    return false;
}

double bench_tile_cycles(void)
{
    return has_amx() ? tile_seconds() / cycle_seconds() : (double)NAN;
}

#else

double bench_tile_cycles(void)
{
    return (double)NAN;
}

#endif
