/* SPDX-License-Identifier: MIT */
/* What the declared types promise: the bytes that the CPU backend writes, and any bytes that are set come back. */
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>

static const struct {
    int d, heads;
} sizes[] = {{64, 3}, {128, 2}, {96, 1}, {256, 1}, {40, 2}, {80, 1}, {72, 3}};

/* Rows that are easy to get wrong: zeros, constants, ties, steps of the type, small and large numbers. */
static void edge_row(float *x, int n, int kind)
{
    for (int i = 0; i < n; i++) {
        float u = kit_normal();
        switch (kind % 11) {
        case 0: x[i] = 0; break;
        case 1: x[i] = -0.0f; break;
        case 2: x[i] = 0.7f; break;
        case 3: x[i] = (float)(i % 32 - 16); break; /* integers, the extreme one negative */
        case 4: x[i] = (float)(16 - i % 32); break;
        case 5: x[i] = (float)(i % 17) - 8 + 0.5f; break; /* ties */
        case 6: x[i] = u * 1e-6f; break;                  /* below the normal range of f16 */
        case 7: x[i] = u * 8000; break;
        case 8: x[i] = i % 32 == 9 ? 1000 * u : 0.01f * u; break; /* one value outweighs its block */
        case 9: x[i] = i % 32 == 0 ? -127 : (float)(i % 7) * 0.5f; break;
        default: x[i] = u; break;
        }
    }
}

/* Below what f32 holds in full: the scale of a block rounds to 0, its inverse to infinity. */
static void tiny_row(float *x, int n, int kind)
{
    static const float sizes_of[] = {1e-30f, 1e-36f, 1e-38f, 1e-39f, 1e-42f};
    for (int i = 0; i < n; i++) x[i] = kit_normal() * sizes_of[kind % 5];
}

static void write_on_cpu(const shape *s, int row, int n, const int64_t *cell, const float *x, uint8_t *all)
{
    kit_job job;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *to = kit_job_input(&job, s->k, row, s->cells * s->streams, 1, 1),
              *from = kit_job_input(&job, F32, row, n, 1, 1);
    gg_tensor *index = kit_job_input(&job, I64, n, 1, 1, 1);
    kit_job_add(&job, gg.set_rows(job.ops, to, from, index));
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(to, all, 0, gg.nbytes(to));
        gg.backend_tensor_set(from, x, 0, gg.nbytes(from));
        gg.backend_tensor_set(index, cell, 0, gg.nbytes(index));
        kit_check(kit_job_run(&job) == GG_SUCCESS, "SET_ROWS on the CPU fails");
        gg.backend_tensor_get(to, all, 0, gg.nbytes(to));
    }
    kit_job_end(&job);
}

/*
 * The codes of a block whose scale is 0 mean nothing. ggml leaves them undefined for iq4_nl if all values are below 1e-15;
 * ours are not those of zeros in rows of q8_0 that nobody wrote.
 */
static void drop_undefined(kit_type t, bool written, uint8_t *row, size_t size)
{
    size_t block = t == IQ4_NL ? 18 : t == Q8_0 && !written ? 34 : 0;
    for (size_t at = 0; block && at < size; at += block) {
        if (row[at] == 0 && row[at + 1] == 0) memset(row + at, 0, block);
    }
}

/* Rows that were written, or those that never were. */
static void compare(const cache *c, side x, const bool *written, bool which, uint8_t *got, uint8_t *expected)
{
    int wrong = 0, of = 0, first = -1;
    size_t size = c->bytes[x], at = 0;
    for (int r = 0; r < cache_rows(c); r++) {
        uint8_t *a = got + (size_t)r * size, *b = expected + (size_t)r * size;
        if (written[r] != which) continue;
        of++;
        drop_undefined(cache_type(c, x), which, a, size);
        drop_undefined(cache_type(c, x), which, b, size);
        if (memcmp(a, b, size) && !wrong++) first = r;
    }
    if (kit_check(first < 0, "%s: %d of %d rows %s differ", x == K ? "K" : "V", wrong, of,
                  which ? "that were written" : "never written")) {
        return;
    }
    got += (size_t)first * size;
    expected += (size_t)first * size;
    while (got[at] == expected[at]) at++;
    kit_say("byte %zu of row %d is %02x, expected %02x", at, first, got[at], expected[at]);
}

/* The same by value: 0 is 0 whatever its codes. */
static void compare_values(const cache *c, side x, const bool *written, const uint8_t *got,
                           const uint8_t *expected)
{
    int n = cache_rows(c) * c->row[x], wrong = 0;
    float *a = KIT_NEW(float, n), *b = KIT_NEW(float, n);
    kit_decode(cache_type(c, x), got, a, c->row[x], cache_rows(c));
    kit_decode(cache_type(c, x), expected, b, c->row[x], cache_rows(c));
    for (int i = 0; i < n; i++) wrong += written[i / c->row[x]] && !(a[i] == b[i]);
    kit_check(wrong == 0, "%s: %d of %d values differ from the CPU's", x == K ? "K" : "V", wrong, n);
    free(a);
    free(b);
}

typedef void filler(float *x, int n, int kind);

static void run_bytes(const shape *s, int kinds, filler *fill, bool by_value)
{
    cache c;
    if (cache_open(&c, s)) {
        int rows = cache_rows(&c), n = rows * 3 / 4, row = c.row[K];
        int64_t *cell = KIT_NEW(int64_t, rows);
        bool *written = KIT_NEW(bool, rows);
        uint8_t *expected = kit_alloc((size_t)rows, c.bytes[K]), *got = kit_alloc((size_t)rows, c.bytes[K]);
        float *x = KIT_NEW(float, n *row);
        for (int i = 0; i < rows; i++) cell[i] = i;
        kit_shuffle(cell, rows);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < n; i++) {
                fill(x + i * row, row, kinds + i);
                written[cell[i]] = true;
            }
            batch b = {.n = n, .cell = cell, .k = x, .v = x};
            kit_check(cache_write(&c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
            write_on_cpu(s, row, n, cell, x, expected);
            kit_shuffle(cell, n);
        }
        for (int i = K; i <= V; i++) {
            cache_get(&c, 0, (side)i, 0, rows, got);
            if (by_value)
                compare_values(&c, (side)i, written, got, expected);
            else
                compare(&c, (side)i, written, true, got, expected);
        }
        free(cell);
        free(written);
        free(expected);
        free(got);
        free(x);
    }
    cache_close(&c);
}

static void run_all(filler *fill, bool by_value, int n_types, const char *what)
{
    for (int t = F32; t < n_types; t++) {
        for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
            if (sizes[i].d % 32 && !kit_is_float((kit_type)t)) continue;
            shape s = {.k = (kit_type)t,
                       .v = (kit_type)t,
                       .d_k = sizes[i].d,
                       .d_v = sizes[i].d,
                       .heads = sizes[i].heads,
                       .gqa = 1,
                       .cells = i % 2 ? 100 : 128,
                       .streams = 1 + i % 2,
                       .layers = 1};
            kit_label("%s, %s", what, shape_text(&s));
            kit_seed((uint64_t)(t * 100 + i));
            run_bytes(&s, i, fill, by_value);
        }
    }
}

void test_bytes(void)
{
    run_all(edge_row, false, N_CACHE_TYPES, "edge rows");
}

/* Codes of a block of such values are undefined in ggml. */
void test_bytes_tiny(void)
{
    run_all(tiny_row, true, N_CACHE_TYPES, "tiny values");
}

/* A scale, or a value of a float type, that is not finite. */
static bool is_finite_at(kit_type t, const uint8_t *p)
{
    if (t == F32) return (p[3] & 0x7f) != 0x7f || !(p[2] & 0x80);
    if (t == BF16) return (p[1] & 0x7f) != 0x7f || !(p[0] & 0x80);
    return (p[1] & 0x7c) != 0x7c;
}

/* Bytes that were set come back: random codes, and random scales that are finite. */
static void run_any(kit_type t)
{
    shape s = shape_of(t, 128, 128, 2, 200, 1);
    kit_label("random bytes, %s", shape_text(&s));
    kit_seed((uint64_t)t + 40);
    cache c;
    if (cache_open(&c, &s)) {
        size_t n = c.bytes[K] * (size_t)s.cells, block = kit_row_bytes(t, 32) / (kit_is_float(t) ? 32 : 1);
        uint8_t *in = kit_alloc(n, 1), *out = kit_alloc(n, 1);
        bool *written = KIT_NEW(bool, s.cells);
        memset(written, true, (size_t)s.cells);
        for (size_t i = 0; i < n; i++) in[i] = (uint8_t)kit_random();
        for (size_t i = 0; i < n; i += block) {
            if (!is_finite_at(t, in + i)) in[i + (t == F32 ? 3 : 1)] &= 0xbf;
            if ((t == Q4_1 || t == Q5_1) && !is_finite_at(t, in + i + 2)) in[i + 3] &= 0xbf;
        }
        for (int x = K; x <= V; x++) {
            cache_set(&c, 0, (side)x, 0, s.cells, in);
            cache_get(&c, 0, (side)x, 0, s.cells, out);
            compare(&c, (side)x, written, true, out, in);
        }
        free(in);
        free(out);
        free(written);
    }
    cache_close(&c);
}

void test_bytes_any(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) run_any((kit_type)t);
}

/* A cleared buffer is all zeros to who reads it, before and after rows were written. */
void test_bytes_cleared(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = shape_of((kit_type)t, 64, 64, 3, 300, 1);
        kit_label("cleared, %s", shape_text(&s));
        cache c;
        if (cache_open(&c, &s)) {
            size_t n = c.bytes[K] * (size_t)s.cells;
            int64_t cell[1] = {70};
            float row[192] = {1, 2, 3};
            uint8_t *got = kit_alloc(n, 1), *zero = kit_alloc(n, 1);
            bool *written = KIT_NEW(bool, s.cells);
            batch b = {.n = 1, .cell = cell, .k = row, .v = row};
            kit_check(cache_write(&c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
            written[70] = true;
            for (int x = K; x <= V; x++) {
                cache_get(&c, 0, (side)x, 0, s.cells, got);
                compare(&c, (side)x, written, false, got, zero);
            }
            gg.backend_buffer_clear(c.buffer, 0);
            for (int x = K; x <= V; x++) {
                cache_get(&c, 0, (side)x, 0, s.cells, got);
                kit_same(got, zero, n, "after clear");
            }
            free(got);
            free(zero);
            free(written);
        }
        cache_close(&c);
    }
}

/* One row that means nothing, set together with good ones: the good ones are there afterwards. */
void test_bytes_one_bad(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = shape_of((kit_type)t, 128, 128, 2, 200, 1);
        kit_label("one bad row among 64, %s", shape_text(&s));
        kit_seed((uint64_t)t + 70);
        cache c;
        if (cache_open(&c, &s)) {
            int first = 64, bad = first + 5;
            size_t size = c.bytes[K];
            uint8_t *in = kit_alloc((size_t)s.cells, size), *out = kit_alloc((size_t)s.cells, size);
            bool *written = KIT_NEW(bool, s.cells);
            float *x = KIT_NEW(float, s.cells *c.row[K]);
            random_rows(x, c.row[K], s.cells, K);
            kit_encode((kit_type)t, x, in, c.row[K], s.cells);
            for (int i = 0; i < 64; i++) written[first + i] = first + i != bad;
            /* Infinity as f16, bf16 and the upper half of f32 in turn: it stands where every block has its scale. */
            uint8_t *row = in + (size_t)bad * size;
            row[0] = 0x00, row[1] = 0x7c;
            if (t == BF16) row[0] = 0x80, row[1] = 0x7f;
            if (t == F32) row[0] = row[1] = 0x00, row[2] = 0x80, row[3] = 0x7f;
            for (int i = K; i <= V; i++) {
                cache_set(&c, 0, (side)i, first, 64, in + (size_t)first * size);
                cache_get(&c, 0, (side)i, 0, s.cells, out);
                compare(&c, (side)i, written, true, out, in);
            }
            free(in);
            free(out);
            free(written);
            free(x);
        }
        cache_close(&c);
    }
}

/* Many rows, few heads, several threads: the same bytes as from one, where streams do not begin with a tile too. */
void test_bytes_threads(void)
{
    static const int cell_counts[] = {100, 256, 68};
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        for (int i = 0; i < 3; i++) {
            shape s = shape_of((kit_type)t, 256, 256, 1, cell_counts[i], 4);
            kit_label("threads, %s", shape_text(&s));
            kit_seed((uint64_t)t + 80);
            cache c;
            if (cache_open(&c, &s)) {
                int rows = cache_rows(&c), wrong[2] = {0, 0}, rounds = i == 1 ? 5 : 25;
                size_t n = (size_t)rows * c.bytes[K];
                float *x = KIT_NEW(float, rows * 256);
                int64_t *cell = KIT_NEW(int64_t, rows);
                uint8_t *expected = kit_alloc(n, 1), *got = kit_alloc(n, 1);
                for (int r = 0; r < rows; r++) cell[r] = r;
                for (int round = 0; round < rounds; round++) {
                    kit_threads(2 + round % 3);
                    /* Tile by tile: threads that share one then meet in it. */
                    for (int at = 0, n_tile; at < rows; at += n_tile) {
                        int left = s.cells - at % s.cells;
                        n_tile = left < 64 ? left : 64;
                        kit_shuffle(cell + at, n_tile);
                    }
                    random_rows(x, 256, rows, K);
                    batch b = {.n = rows, .cell = cell, .k = x, .v = x};
                    kit_check(cache_write(&c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
                    write_on_cpu(&s, 256, rows, cell, x, expected);
                    for (int y = K; y <= V; y++) {
                        cache_get(&c, 0, (side)y, 0, rows, got);
                        wrong[y] += memcmp(got, expected, n) != 0;
                    }
                }
                kit_threads(2);
                kit_check(!wrong[K] && !wrong[V],
                          "other bytes than the CPU's in %d (K) and %d (V) of %d rounds", wrong[K], wrong[V],
                          rounds);
                free(x);
                free(cell);
                free(expected);
                free(got);
            }
            cache_close(&c);
        }
    }
}
