/* SPDX-License-Identifier: MIT */
/* Reading and writing rows as saving, restoring and copying sequences do. */
#include "scene.h"
#include "tests.h"

#include <string.h>

/* Both sides, all rows of layer 0. */
static bool fill(cache *c, uint64_t seed)
{
    int rows = cache_rows(c);
    int64_t *cell = KIT_NEW(int64_t, rows);
    float *k = KIT_NEW(float, rows * c->row[K]), *v = KIT_NEW(float, rows * c->row[V]);
    kit_seed(seed);
    for (int i = 0; i < rows; i++) cell[i] = i;
    kit_shuffle(cell, rows);
    random_rows(k, c->row[K], rows, K);
    random_rows(v, c->row[V], rows, V);
    batch b = {.n = rows, .cell = cell, .k = k, .v = v};
    bool ok = kit_check(cache_write(c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
    free(cell);
    free(k);
    free(v);
    return ok;
}

static uint8_t *rows_of(cache *c, side x)
{
    uint8_t *bytes = kit_alloc((size_t)cache_rows(c), c->bytes[x]);
    cache_get(c, 0, x, 0, cache_rows(c), bytes);
    return bytes;
}

/* Rows of a to other cells of b, one by one and in ranges. */
static void check_rows(cache *a, cache *b, side x)
{
    size_t size = a->bytes[x];
    int rows = cache_rows(a);
    uint8_t *from = rows_of(a, x), *to = rows_of(b, x), *got, *one = kit_alloc(64, size);
    for (int i = 0; i < 40; i++) {
        int n = i % 2 ? 1 : 1 + kit_below(63), at = kit_below(rows - n), where = kit_below(rows - n);
        cache_get(a, 0, x, at, n, one);
        kit_same(one, from + (size_t)at * size, (size_t)n * size, "a range of rows and all of them");
        cache_set(b, 0, x, where, n, one);
        memcpy(to + (size_t)where * size, one, (size_t)n * size);
    }
    got = rows_of(b, x);
    kit_same(got, to, (size_t)rows * size, "rows set into another cache");
    free(got);

    /* Everything at once, as restoring a whole stream does. */
    cache_set(b, 0, x, 0, rows, from);
    got = rows_of(b, x);
    kit_same(got, from, (size_t)rows * size, "all rows set into another cache");
    free(got);
    free(from);
    free(to);
    free(one);
}

/* Offsets and lengths that are no multiples of a row. */
static void check_parts(cache *c, side x)
{
    size_t all = c->bytes[x] * (size_t)cache_rows(c);
    uint8_t *now = rows_of(c, x), *part = kit_alloc(all, 1), *got;
    for (int i = 0; i < 60; i++) {
        size_t at = kit_random() % all, n = 1 + kit_random() % (i % 3 ? 40 : 3 * c->bytes[x]);
        if (n > all - at) n = all - at;
        gg.backend_tensor_get(c->side[x][0], part, at, n);
        kit_same(part, now + at, n, "a part of the tensor");
        /* Bytes of another place at the same place within a block: they mean something there too. */
        size_t from = (at + c->bytes[x] * 5) % all;
        if (n > all - from) n = all - from;
        memcpy(part, now + from, n);
        gg.backend_tensor_set(c->side[x][0], part, at, n);
        memcpy(now + at, part, n);
    }
    got = rows_of(c, x);
    kit_same(got, now, all, "after setting parts");
    free(got);

    static const uint8_t fills[] = {0, 0x11, 0x3c};
    for (int i = 0; i < 6; i++) {
        size_t row = c->bytes[x], at = row * (size_t)(10 * i), n = row * (size_t)(1 + i);
        if (i >= 3) at += row / 2 + 1, n -= 3; /* parts of rows */
        gg.backend_tensor_memset(c->side[x][0], fills[i % 3], at, n);
        memset(now + at, fills[i % 3], n);
    }
    got = rows_of(c, x);
    kit_same(got, now, all, "after memset");
    free(got);
    free(now);
    free(part);
}

void test_state(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = {.k = (kit_type)t,
                   .v = (kit_type)((t + 4) % N_CACHE_TYPES),
                   .d_k = 64,
                   .d_v = 64,
                   .heads = 3,
                   .gqa = 1,
                   .cells = 300,
                   .streams = 1,
                   .layers = 1};
        cache a = {.s = s}, b = {.s = s};
        kit_label("state, %s", shape_text(&s));
        bool ok = cache_open(&a, &s), ok_b = cache_open(&b, &s);
        if (ok && ok_b && fill(&a, 5 + (uint64_t)t) && fill(&b, 50 + (uint64_t)t)) {
            check_rows(&a, &b, K);
            check_rows(&a, &b, V);
            check_parts(&a, K);
            check_parts(&a, V);
        }
        cache_close(&a);
        cache_close(&b);
    }
}

/* Whole streams: within a cache, to another one, and to memory of the CPU. */
void test_streams(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = {.k = (kit_type)t,
                   .v = (kit_type)t,
                   .d_k = 64,
                   .d_v = 64,
                   .heads = 2,
                   .gqa = 1,
                   .cells = t % 2 ? 256 : 100,
                   .streams = 3,
                   .layers = 1};
        cache a = {.s = s}, b = {.s = s}, host = {.s = s};
        kit_label("streams, %s", shape_text(&s));
        bool ok = cache_open(&a, &s), ok_b = cache_open(&b, &s),
             ok_h = cache_alloc(&host, &s, kit.cpu_buft, 0);
        if (ok && ok_b && ok_h && fill(&a, 7 + (uint64_t)t) && fill(&b, 70 + (uint64_t)t)) {
            for (int x = K; x <= V; x++) {
                size_t n = (size_t)s.cells * a.bytes[x];
                uint8_t *from = rows_of(&a, (side)x), *to = rows_of(&b, (side)x), *got;
                gg.backend_tensor_copy(a.stream[x][0][2], b.stream[x][0][0]);
                gg.backend_tensor_copy(b.stream[x][0][1], b.stream[x][0][2]);
                memcpy(to, from + 2 * n, n);
                memcpy(to + 2 * n, to + n, n);
                got = rows_of(&b, (side)x);
                kit_same(got, to, 3 * n, "streams copied");
                free(got);
                gg.backend_tensor_copy(a.stream[x][0][1], host.stream[x][0][0]);
                gg.backend_tensor_get(host.side[x][0], to, 0, n);
                kit_same(to, from + n, n, "a stream copied to the CPU");
                gg.backend_tensor_copy(host.stream[x][0][0], a.stream[x][0][0]);
                memcpy(from, from + n, n);
                got = rows_of(&a, (side)x);
                kit_same(got, from, 3 * n, "a stream copied from the CPU");
                free(got);
                free(from);
                free(to);
            }
        }
        cache_close(&a);
        cache_close(&b);
        cache_close(&host);
    }
}

/* CPY to f32 is the CPU's decoding, and CPY of f32 the CPU's encoding. */
void test_copy(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = shape_of((kit_type)t, 128, 64, 2, 200, 1);
        kit_label("CPY, %s", shape_text(&s));
        cache c;
        if (cache_open(&c, &s) && fill(&c, 9 + (uint64_t)t)) {
            for (int x = K; x <= V; x++) {
                int n = s.cells * c.row[x], d = x == K ? s.d_k : s.d_v;
                float *by_get = KIT_NEW(float, n), *by_copy = KIT_NEW(float, n);
                uint8_t *expected = kit_alloc((size_t)s.cells, c.bytes[x]), *got;
                cache_values(&c, 0, (side)x, by_get);
                if (cache_values_copied(&c, 0, (side)x, by_copy)) {
                    kit_same(by_copy, by_get, (size_t)n * sizeof(float), "CPY to f32 and the CPU's decoding");
                }
                random_rows(by_get, c.row[x], s.cells, K);
                kit_encode((kit_type)t, by_get, expected, c.row[x], s.cells);
                kit_job job;
                kit_job_begin(&job, kit.dev, kit.backend);
                gg_tensor *from = kit_job_input(&job, F32, d, s.heads, s.cells, 1);
                gg_tensor *to = gg.view_3d(job.ops, c.side[x][0], d, s.heads, s.cells,
                                           kit_row_bytes((kit_type)t, d), c.bytes[x], 0);
                kit_job_add(&job, gg.cpy(job.ops, from, to));
                if (kit_job_ready(&job)) {
                    gg.backend_tensor_set(from, by_get, 0, gg.nbytes(from));
                    kit_check(kit_job_run(&job) == GG_SUCCESS, "CPY from f32 fails");
                    got = rows_of(&c, (side)x);
                    kit_same(got, expected, (size_t)s.cells * c.bytes[x],
                             "CPY from f32 and the CPU's encoding");
                    free(got);
                }
                kit_job_end(&job);
                free(by_get);
                free(by_copy);
                free(expected);
            }
        }
        cache_close(&c);
    }
}
