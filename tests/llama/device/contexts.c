/* SPDX-License-Identifier: MIT */
/* Several caches at once: windows in a buffer of their own, contexts side by side, copies of streams that are not full. */
#include "scene.h"
#include "tests.h"

#include <pthread.h>
#include <string.h>

/* One step of one layer, checked against what the cache holds. */
static void step(cache *c, int layer, int first_cell, int n)
{
    const shape *s = &c->s;
    int64_t *cell = KIT_NEW(int64_t, n);
    float *k = KIT_NEW(float, n * c->row[K]), *v = KIT_NEW(float, n * c->row[V]);
    float *q = KIT_NEW(float, n * s->heads * s->gqa * s->d_k);
    uint16_t *mask = KIT_NEW(uint16_t, n * s->cells);
    for (int i = 0; i < n; i++) cell[i] = (first_cell + 5 * i) % s->cells;
    random_rows(k, c->row[K], n, K);
    random_rows(v, c->row[V], n, V);
    for (int i = 0; i < n * s->heads * s->gqa * s->d_k; i++) q[i] = kit_normal();
    for (int i = 0; i < n * s->cells; i++) mask[i] = 0xfc00;
    for (int i = 0; i < n * n; i++) mask[i / n * s->cells + cell[i % n]] = 0;
    batch b = {.n = n, .cell = cell, .k = k, .v = v};
    attention a = {.n_q = n, .n_kv = s->cells, .streams = 1, .scale = 0.1f, .q = q, .mask = mask};
    size_t size = attention_out(s, &a);
    float *out = KIT_NEW(float, size);
    double *exact = KIT_NEW(double, size);
    kit_check(cache_step(c, layer, &b, &a, out) == GG_SUCCESS, "layer %d: a step fails", layer);
    if (cache_attend_exactly(c, layer, &a, exact)) {
        double e = kit_nmse(out, exact, size);
        kit_check(e < tolerance(s), "layer %d: error %.3e, allowed %.0e", layer, e, tolerance(s));
    }
    free(cell);
    free(k);
    free(v);
    free(q);
    free(mask);
    free(out);
    free(exact);
}

/* Layers 0 and 1 see everything, 2 and 3 a window: two buffers, made one after the other, used by turns. */
void test_window(void)
{
    static const kit_type types[] = {F16, Q8_0, Q4_0, BF16};
    for (int i = 0; i < 4; i++) {
        shape full = {.k = types[i],
                      .v = types[i],
                      .d_k = 64,
                      .d_v = 64,
                      .heads = 2,
                      .gqa = 2,
                      .cells = 512,
                      .streams = 1,
                      .layers = 2};
        shape window = full;
        window.cells = 256;
        cache a = {.s = full}, b = {.s = window};
        kit_seed(60 + (uint64_t)i);
        kit_label("full and window layers, %s", shape_text(&full));
        bool ok = cache_alloc(&a, &full, kit.buft, 0), ok_b = cache_alloc(&b, &window, kit.buft, 2);
        if (ok && ok_b && cache_reserve(&a) && cache_reserve(&b)) {
            for (int n = 0; n < 4; n++) {
                step(n / 2 ? &b : &a, n % 2, 17 * n, 1 + 6 * n);
                step(n / 2 ? &a : &b, n % 2, 40, 33);
            }
        }
        cache_close(&b);
        cache_close(&a);
    }
}

/* Two models in one process, reserved before either is used, with the same names and other shapes. */
void test_contexts(void)
{
    shape one = {.k = F16,
                 .v = F16,
                 .d_k = 64,
                 .d_v = 64,
                 .heads = 4,
                 .gqa = 2,
                 .cells = 256,
                 .streams = 1,
                 .layers = 2};
    shape two = {.k = Q8_0,
                 .v = Q5_1,
                 .d_k = 128,
                 .d_v = 128,
                 .heads = 2,
                 .gqa = 1,
                 .cells = 300,
                 .streams = 1,
                 .layers = 2};
    cache a = {.s = one}, b = {.s = two};
    kit_seed(61);
    kit_label("two models side by side");
    bool ok = cache_open(&a, &one), ok_b = cache_open(&b, &two);
    if (ok && ok_b) {
        gg_backend *first = kit.backend, *second = gg.backend_dev_init(kit.dev, NULL);
        for (int n = 0; n < 6; n++) {
            kit.backend = n % 2 ? second : first;
            step(&a, n % 2, 30 * n, 1 + 7 * n);
            step(&b, 1 - n % 2, 20 * n, 20);
        }
        kit.backend = first;
        gg.backend_free(second);
        cache_close(&a);
        step(&b, 0, 3, 4);
        ok = cache_open(&a, &two); /* another one where the first was */
        if (ok) step(&a, 1, 9, 40);
    }
    cache_close(&a);
    cache_close(&b);
}

/*
 * A cache that is never attended, as models have one to select what they attend to, must not become a part of the next
 * context: the layers of that one would look like those with a window.
 */
void test_apart(void)
{
    shape s = shape_of(F16, 64, 64, 2, 256, 1);
    cache unused, c;
    kit_seed(64);
    kit_label("a context after one with a cache that is not attended");
    bool ok = cache_alloc(&unused, &s, kit.buft, 0);
    gg_backend *another = gg.backend_dev_init(kit.dev, NULL);
    if (ok && cache_alloc(&c, &s, kit.buft, 1) && cache_reserve(&c)) {
        uint8_t *row = kit_alloc(1, c.bytes[K]);
        step(&c, 0, 0, 1);
        cache_get(&c, 0, K, 0, 1, row);
        kit_check(row[0] == 0x51 && row[1] == 0x7e, "the policy does not hold for the second context");
        free(row);
    }
    gg.backend_free(another);
    cache_close(&c);
    cache_close(&unused);
}

static void *alloc_in_thread(void *arg)
{
    cache *c = ((void **)arg)[0];
    kit = *(const kit_state *)((void **)arg)[1];
    kit_check(cache_alloc(c, &c->s, kit.buft, 0), "no memory in another thread");
    return NULL;
}

/* Another thread makes a context while this one has made only the first half of its own: windows stay windows. */
void test_two_makers(void)
{
    shape full = shape_of(F16, 64, 64, 2, 512, 1), small = shape_of(F16, 64, 64, 2, 256, 1);
    cache a, b, other = {.s = full};
    void *arguments[] = {&other, &kit};
    pthread_t thread;
    kit_seed(65);
    kit_label("contexts made by two threads at once");
    bool ok = cache_alloc(&a, &full, kit.buft, 0);
    if (ok && !pthread_create(&thread, NULL, alloc_in_thread, arguments)) {
        pthread_join(thread, NULL);
        if (cache_alloc(&b, &small, kit.buft, 1) && cache_reserve(&a) && cache_reserve(&b)) {
            uint8_t *row = kit_alloc(1, b.bytes[K]);
            step(&a, 0, 0, 1);
            step(&b, 0, 0, 1);
            cache_get(&b, 0, K, 0, 1, row);
            kit_check(row[0] != 0x51 || row[1] != 0x7e, "the window is taken for a context of its own");
            cache_get(&a, 0, K, 0, 1, row);
            kit_check(row[0] == 0x51 && row[1] == 0x7e, "the policy does not hold for the other layers");
            free(row);
        }
        cache_close(&b);
        cache_close(&other);
    }
    cache_close(&a);
}

/* Rows are set before the device has seen a graph: it does not know the heads yet. */
void test_early(void)
{
    static const kit_type types[] = {F16, Q8_0, F32, Q4_1};
    for (int i = 0; i < 4; i++) {
        shape s = {.k = types[i],
                   .v = types[i],
                   .d_k = 64,
                   .d_v = 64,
                   .heads = 2,
                   .gqa = 3,
                   .cells = 256,
                   .streams = 1,
                   .layers = 1};
        cache c;
        kit_seed(63);
        kit_label("rows before graphs, %s", shape_text(&s));
        if (cache_alloc(&c, &s, kit.buft, 0)) {
            float *rows = KIT_NEW(float, 256 * 128);
            uint8_t *in = kit_alloc(256, c.bytes[K]), *out = kit_alloc(256, c.bytes[K]);
            random_rows(rows, 128, 256, K);
            kit_encode(types[i], rows, in, 128, 256);
            cache_set(&c, 0, K, 0, 256, in);
            cache_set(&c, 0, V, 0, 256, in);
            cache_get(&c, 0, K, 0, 256, out);
            if (!kit.policy) kit_same(out, in, 256 * c.bytes[K], "rows");
            if (cache_reserve(&c)) {
                step(&c, 0, 3, 7);
                step(&c, 0, 100, 1);
            }
            free(rows);
            free(in);
            free(out);
        }
        cache_close(&c);
    }
}

/* A stream of which only some cells were written, copied over one that is full. */
void test_short_stream(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = shape_of((kit_type)t, 64, 64, 2, 256, 2);
        kit_label("a short stream over a full one, %s", shape_text(&s));
        kit_seed(62);
        cache c;
        if (cache_open(&c, &s)) {
            size_t n = 256 * c.bytes[K];
            int64_t cell[266];
            float *rows = KIT_NEW(float, 266 * 128);
            uint8_t *from = kit_alloc(n, 1), *to = kit_alloc(n, 1);
            for (int i = 0; i < 266; i++) cell[i] = i < 10 ? i : 246 + i;
            random_rows(rows, 128, 266, K);
            batch b = {.n = 266, .cell = cell, .k = rows, .v = rows};
            kit_check(cache_write(&c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
            for (int x = K; x <= V; x++) {
                gg.backend_tensor_copy(c.stream[x][0][0], c.stream[x][0][1]);
                cache_get(&c, 0, (side)x, 0, 256, from);
                cache_get(&c, 0, (side)x, 256, 256, to);
                kit_same(to, from, 10 * c.bytes[x], "cells that were written");
                kit_same(to, from, n, "the whole stream");
            }
            free(rows);
            free(from);
            free(to);
        }
        cache_close(&c);
    }
}

/* ------------------------------------------------------------------ all at once */

typedef struct worker_thread {
    pthread_t thread;
    kit_state kit;
    kit_counts counts;
    int number;
} worker_thread;

/* Rows that nobody can read, into memory of the CPU and of the device: attention that sees them fails, for this thread. */
static void lose_rows(cache *c, const shape *s)
{
    cache on_cpu;
    uint8_t *row = kit_alloc(1, c->bytes[K]);
    memcpy(row, "\x51\x7e\x01\x02\x03\x04", 6);
    row[3] = (uint8_t)kit_below(256);
    cache_set(c, 0, K, 3, 1, row);
    if (cache_alloc(&on_cpu, s, kit.cpu_buft, 0)) {
        cache_set(&on_cpu, 0, K, 3, 1, row);
        cache_get(&on_cpu, 0, K, 3, 1, row);
        kit_check(!memcmp(row, "\x51\x7e\xff\xff\xff\xff", 6), "a row on the CPU is not lost");
    }
    cache_close(&on_cpu);
    cache_get(c, 0, K, 3, 1, row);
    kit_check(!memcmp(row, "\x51\x7e\xff\xff\xff\xff", 6), "a row on the device is not lost");
    free(row);
}

static void *live(void *arg)
{
    worker_thread *w = arg;
    shape full = shape_of(F16, 64, 64, 2, 512, 1), window = shape_of(F16, 64, 64, 2, 256, 1);
    kit = w->kit;
    kit.counts = &w->counts;
    kit_seed(100 + (uint64_t)w->number);
    kit_label("thread %d", w->number);
    for (int i = 0; i < 4; i++) {
        cache a, b;
        kit.backend = gg.backend_dev_init(kit.dev, NULL);
        kit.cpu = gg.backend_dev_init(kit.cpu_dev, NULL);
        bool ok = cache_alloc(&a, &full, kit.buft, 0), ok_b = cache_alloc(&b, &window, kit.buft, 1);
        if (ok && ok_b) {
            uint8_t *rows = kit_alloc(256, b.bytes[K]);
            cache_set(&a, 0, V, 0, 256, rows); /* before a graph is seen */
            if (cache_reserve(&a) && cache_reserve(&b)) {
                step(&a, 0, 11, 9);
                step(&b, 0, 40, 33);
                cache_get(&b, 0, K, 0, 256, rows);
                kit_check(memcmp(rows + 40 * b.bytes[K], "\x51\x7e", 2), "a window in a codec");
                cache_set(&b, 0, K, 0, 256, rows);
                cache_get(&a, 0, K, 0, 256, rows);
                cache_set(&a, 0, K, 256, 256, rows);
                lose_rows(&a, &full);
                step(&b, 0, 7, 3);
            }
            free(rows);
        }
        cache_close(i % 2 ? &a : &b);
        cache_close(i % 2 ? &b : &a);
        gg.backend_free(kit.backend);
        gg.backend_free(kit.cpu);
    }
    return NULL;
}

/* Contexts are made, restored, computed and freed by several threads at once. */
void test_together(void)
{
    worker_thread w[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        w[i].kit = kit;
        w[i].number = i;
        kit_check(!pthread_create(&w[i].thread, NULL, live, &w[i]), "no thread");
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(w[i].thread, NULL);
        kit.counts->checks += w[i].counts.checks;
        kit.counts->failures += w[i].counts.failures;
    }
}
