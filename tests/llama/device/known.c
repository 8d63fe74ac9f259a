/* SPDX-License-Identifier: MIT */
/* Rows of another policy whose codec can be found out, and rows that have no mark, in tensors of the device and of the CPU. */
#define _DEFAULT_SOURCE
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { N_GIVEN = 16, FROM = 40, TO = 3 };

static const shape given[] = {
    {.k = F16,
     .v = F16,
     .d_k = 128,
     .d_v = 128,
     .heads = 2,
     .gqa = 2,
     .cells = 200,
     .streams = 1,
     .layers = 1},
    {.k = BF16,
     .v = F32,
     .d_k = 80,
     .d_v = 80,
     .heads = 2,
     .gqa = 1,
     .cells = 130,
     .streams = 2,
     .layers = 1},
    {.k = Q8_0,
     .v = Q5_1,
     .d_k = 64,
     .d_v = 64,
     .heads = 3,
     .gqa = 1,
     .cells = 100,
     .streams = 1,
     .layers = 1},
    {.k = F16,
     .d_k = 576,
     .d_v = 512,
     .heads = 1,
     .gqa = 2,
     .cells = 100,
     .streams = 1,
     .layers = 1,
     .v_in_k = true},
};
enum { N_SHAPES = sizeof given / sizeof *given };

/* What one process leaves: bytes of the rows, then their values. */
static uint8_t *place(int shape_no, side x)
{
    return shared_bytes + (size_t)(2 * shape_no + (int)x) * (SHARED_BYTES / (2 * N_SHAPES));
}

static float *values_of(int shape_no, side x, size_t row_bytes)
{
    return (float *)(void *)(place(shape_no, x) + N_GIVEN * row_bytes);
}

static int sides(const shape *s)
{
    return s->v_in_k ? 1 : 2;
}

static void fill(cache *c)
{
    int rows = cache_rows(c);
    int64_t *cell = KIT_NEW(int64_t, rows);
    float *x[2] = {KIT_NEW(float, rows * c->row[K]), KIT_NEW(float, rows *(c->row[V] ? c->row[V] : 1))};
    for (int i = 0; i < rows; i++) cell[i] = i;
    random_rows(x[K], c->row[K], rows, K);
    if (c->row[V]) random_rows(x[V], c->row[V], rows, V);
    batch b = {.n = rows, .cell = cell, .k = x[K], .v = c->row[V] ? x[V] : NULL};
    kit_check(cache_write(c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
    free(cell);
    free(x[K]);
    free(x[V]);
}

/* In a process with another policy. */
void test_known_give(void)
{
    for (int i = 0; i < N_SHAPES; i++) {
        cache c;
        kit_seed(60 + (uint64_t)i);
        kit_label("%s gives rows, %s", kit.policy, shape_text(&given[i]));
        if (cache_open(&c, &given[i])) {
            fill(&c);
            for (int x = K; x < sides(&given[i]); x++) {
                float *all = KIT_NEW(float, cache_rows(&c) * c.row[x]);
                cache_get(&c, 0, (side)x, FROM, N_GIVEN, place(i, (side)x));
                uint8_t *rows = place(i, (side)x);
                kit_check(rows[0] == 0x51 && rows[1] == 0x7e, "rows have no mark");
                if (cache_values(&c, 0, (side)x, all))
                    memcpy(values_of(i, (side)x, c.bytes[x]), all + FROM * c.row[x],
                           (size_t)(N_GIVEN * c.row[x]) * sizeof(float));
                free(all);
            }
        }
        cache_close(&c);
    }
}

static double allowed(kit_type t, bool coded)
{
    return coded ? 0.02 : t == Q5_1 ? 2e-3 : t == Q8_0 ? 1e-4 : t == BF16 ? 1e-5 : 1e-6;
}

/* ON_PLAIN: memory of the device that it has to give back, because the host reads it with an op of its own. */
enum where { ON_CPU, ON_PLAIN, ON_DEVICE, N_PLACES };

static void make_plain(cache *c)
{
    kit_job job;
    kit_job_begin(&job, kit.dev, kit.backend);
    gg_tensor *q = kit_job_input(&job, F32, c->s.d_k, 5, c->s.heads * c->s.gqa, 1);
    gg_tensor *k = gg.permute(job.ops, cache_view(c, job.ops, 0, K, c->s.cells, 0, 1), 0, 2, 1, 3);
    kit_check(!gg.backend_dev_supports_op(kit.dev, gg.mul_mat(job.ops, k, q)), "MUL_MAT is not refused");
    kit_check(gg.backend_buffer_is_host(c->buffer), "the cache is still no host memory");
    kit_job_end(&job);
}

/* Rows set into other cells, all at once or one by one; if the cache becomes plain, before or after that. */
static void check_known(cache *c, int shape_no, side x, enum where where, bool one)
{
    size_t row = c->bytes[x];
    float *got = KIT_NEW(float, cache_rows(c) * c->row[x]);
    uint8_t *bytes = kit_alloc((size_t)cache_rows(c), row);
    if (where == ON_DEVICE) fill(c);
    if (where == ON_PLAIN && one) make_plain(c);
    for (int i = 0; i < N_GIVEN; i += one ? 1 : N_GIVEN)
        cache_set(c, 0, x, TO + i, one ? 1 : N_GIVEN, place(shape_no, x) + (size_t)i * row);
    if (where == ON_PLAIN && !one) make_plain(c);
    if (where == ON_DEVICE) {
        cache_values(c, 0, x, got);
    } else {
        cache_get(c, 0, x, 0, cache_rows(c), bytes);
        kit_decode(cache_type(c, x), bytes, got, c->row[x], cache_rows(c));
    }
    double e = kit_nmse_f(got + TO * c->row[x], values_of(shape_no, x, row), (size_t)(N_GIVEN * c->row[x]));
    kit_note("%c: error %.2e", x == K ? 'K' : 'V', e);
    kit_check(e < allowed(cache_type(c, x), where == ON_DEVICE && kit.policy), "%c: error %.2e",
              x == K ? 'K' : 'V', e);
    free(got);
    free(bytes);
}

void test_known_take(void)
{
    static const char *const names[] = {"the CPU", "plain memory of the device", "the device"};
    for (int i = 0; i < N_SHAPES * N_PLACES * 4; i++) {
        const shape *s = &given[i % N_SHAPES];
        enum where where = (enum where)(i / N_SHAPES % N_PLACES);
        int x = i / N_SHAPES / N_PLACES % 2;
        cache c;
        if (x >= sides(s)) continue;
        kit_seed(70 + (uint64_t)i);
        kit_label("%s given rows of another policy on %s, %s", kit.policy ? kit.policy : "declared types",
                  names[where], shape_text(s));
        if (where == ON_DEVICE ? cache_open(&c, s)
                               : cache_alloc(&c, s, where == ON_CPU ? kit.cpu_buft : kit.buft, 0))
            check_known(&c, i % N_SHAPES, (side)x, where, i / N_SHAPES / N_PLACES / 2);
        cache_close(&c);
    }
}

/* Rows that no policy made come back byte for byte, whatever they hold: NaN, infinities, what looks like a mark by chance. */
void test_bare_rows(void)
{
    enum { D = 64, HEADS = 3, ROWS = 100, ROW = D * HEADS };
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        shape s = shape_of((kit_type)t, D, D, HEADS, ROWS, 1);
        cache c;
        kit_seed(80 + (uint64_t)t);
        kit_label("rows without a mark on the CPU, %s", kit_type_name((kit_type)t));
        if (cache_alloc(&c, &s, kit.cpu_buft, 0)) {
            float *x = KIT_NEW(float, ROWS *ROW);
            uint8_t *bytes = kit_alloc(ROWS, c.bytes[K]), *got = kit_alloc(ROWS, c.bytes[K]);
            random_rows(x, ROW, ROWS, K);
            for (int i = 0; i < ROWS; i++) {
                float *row = x + i * ROW;
                if (i % 10 == 1) row[0] = NAN;
                if (i % 10 == 2) row[0] = -NAN, row[40] = INFINITY;
                if (i % 10 == 3) row[0] = INFINITY;
                if (i % 10 == 4) row[0] = 7.0e37f; /* 51 7e as bf16, nearly */
                if (i % 10 == 5) memset(row, 0, ROW * sizeof *row);
                if (i % 10 == 6) memset(row + ROW / 2, 0, ROW / 2 * sizeof *row);
            }
            kit_encode((kit_type)t, x, bytes, ROW, ROWS);
            /* Only floats can begin like a mark by chance. */
            if (t == F32 || t == BF16)
                for (int i = 0; i < ROWS; i += 7) memcpy(bytes + (size_t)i * c.bytes[K], "\x51\x7e", 2);
            if (t == F32 || t == BF16) /* and then not in rows of zeros */
                for (int i = 0; i < ROWS; i += 7) bytes[(size_t)(i + 1) * c.bytes[K] - 1] |= 1;
            for (int i = 0; t != F32 && t != BF16 && i < ROWS; i++)
                kit_check(memcmp(bytes + (size_t)i * c.bytes[K], "\x51\x7e", 2),
                          "a row of stock begins like a mark");
            cache_set(&c, 0, K, 0, ROWS, bytes);
            cache_get(&c, 0, K, 0, ROWS, got);
            kit_same(got, bytes, ROWS * c.bytes[K], "rows set and got");
            /* Parts of rows are nobody's rows. */
            gg.backend_tensor_set(c.side[K][0], "\x51\x7e\x01\x02\x03\x04\x05\x06", c.bytes[K] * 5 + 8, 8);
            memcpy(bytes + c.bytes[K] * 5 + 8, "\x51\x7e\x01\x02\x03\x04\x05\x06", 8);
            cache_get(&c, 0, K, 0, ROWS, got);
            kit_same(got, bytes, ROWS * c.bytes[K], "a mark in the middle of a row");
            free(x);
            free(bytes);
            free(got);
        }
        cache_close(&c);
    }
}

/* As the host shifts positions in memory of the CPU. */
static int shift_on_cpu(cache *c, int by)
{
    kit_job job;
    int32_t *shifts = KIT_NEW(int32_t, c->s.cells);
    for (int i = 0; i < c->s.cells; i++) shifts[i] = by;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *shift = kit_job_input(&job, I32, c->s.cells, 1, 1, 1);
    gg_tensor *k = gg.view_3d(job.ops, c->side[K][0], c->s.d_k, c->s.heads, c->s.cells,
                              kit_row_bytes(c->s.k, c->s.d_k), c->bytes[K], 0);
    gg_tensor *x = kit_is_float(c->s.k) ? k : gg.cast(job.ops, k, kit_type_id(F32));
    x = (x == k ? gg.rope_ext_inplace : gg.rope_ext)(job.ops, x, shift, NULL, c->s.d_k, 0, 4096, 10000, 1, 0,
                                                     1, 32, 1);
    kit_job_add(&job, kit_is_float(c->s.k) ? x : gg.cpy(job.ops, x, k));
    int status = 1;
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(shift, shifts, 0, gg.nbytes(shift));
        status = kit_job_run(&job);
    }
    kit_job_end(&job);
    free(shifts);
    return status;
}

/* A row that nobody can read is not made valid by a shift: who saves it afterwards gets what nobody can read. */
void test_lost_shift(void)
{
    enum { LOST = 7, SHIFTED = 8 };
    static const kit_type types[] = {F16, F32, Q8_0, Q4_0};
    for (int i = 0; i < 4; i++) {
        shape s = shape_of(types[i], 64, 64, 2, 64, 1);
        cache c;
        kit_seed(90 + (uint64_t)i);
        kit_label("shift of a row that is lost, on the CPU, %s", shape_text(&s));
        if (cache_alloc(&c, &s, kit.cpu_buft, 0)) {
            float *x = KIT_NEW(float, s.cells *c.row[K]);
            uint8_t *rows = kit_alloc((size_t)s.cells, c.bytes[K]), *got = kit_alloc(2, c.bytes[K]);
            random_rows(x, c.row[K], s.cells, K);
            kit_encode(types[i], x, rows, c.row[K], s.cells);
            memset(rows + LOST * c.bytes[K], 0, c.bytes[K]);
            memcpy(rows + LOST * c.bytes[K], "\x51\x7e\x01\x02\x03\x04\x05", 7);
            cache_set(&c, 0, K, 0, s.cells, rows);
            kit_check(shift_on_cpu(&c, 5) == GG_SUCCESS, "the shift fails");
            cache_get(&c, 0, K, LOST, 2, got);
            kit_check(!memcmp(got, "\x51\x7e\xff\xff\xff\xff", 6), "the row is taken for values");
            kit_check(memcmp(got + c.bytes[K], rows + SHIFTED * c.bytes[K], c.bytes[K]),
                      "the row beside it is not shifted");
            free(x);
            free(rows);
            free(got);
        }
        cache_close(&c);
    }
}

/* Attention on the CPU whose mask is computed in the same graph, as models have it that select what they attend to. */
static int attend_with_sum(cache *c, const uint16_t *mask)
{
    kit_job job;
    const shape *s = &c->s;
    int n = s->cells, heads = s->heads * s->gqa;
    float *q = KIT_NEW(float, s->d_k *heads);
    uint16_t *zeros = KIT_NEW(uint16_t, n);
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *query = kit_job_input(&job, F32, s->d_k, 1, heads, 1),
              *a = kit_job_input(&job, F16, n, 1, 1, 1), *b = kit_job_input(&job, F16, n, 1, 1, 1);
    gg_tensor *k = gg.permute(job.ops, cache_view(c, job.ops, 0, K, n, 0, 1), 0, 2, 1, 3),
              *v = gg.permute(job.ops, cache_view(c, job.ops, 0, V, n, 0, 1), 0, 2, 1, 3);
    kit_job_add(&job, gg.flash_attn_ext(job.ops, query, k, v, gg.add(job.ops, a, b), 0.1f, 0, 0));
    int status = 1;
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(query, q, 0, gg.nbytes(query));
        gg.backend_tensor_set(a, zeros, 0, gg.nbytes(a));
        gg.backend_tensor_set(b, mask, 0, gg.nbytes(b));
        status = kit_job_run(&job);
    }
    kit_job_end(&job);
    free(q);
    free(zeros);
    return status;
}

void test_lost_mask(void)
{
    enum { LOST = 7, N = 64 };
    shape s = shape_of(F16, 64, 64, 2, N, 1);
    uint16_t hidden[N] = {0}, open[N] = {0};
    cache c;
    kit_label("a row that is lost under a mask that is computed");
    hidden[LOST] = 0xfc00;
    if (cache_alloc(&c, &s, kit.cpu_buft, 0)) {
        uint8_t *row = kit_alloc(1, c.bytes[K]);
        memcpy(row, "\x51\x7e\x01\x02\x03\x04\x05", 7);
        cache_set(&c, 0, K, LOST, 1, row);
        for (int i = 0; i < 4; i++) {
            kit_check(attend_with_sum(&c, hidden) == GG_SUCCESS, "the row is hidden, and attention fails");
            kit_check(attend_with_sum(&c, open) != GG_SUCCESS, "the row is visible, and attention succeeds");
        }
        free(row);
    }
    cache_close(&c);
}

/* A row as a graph of the CPU writes it. */
static int write_on_cpu(cache *c, int64_t cell, const float *row)
{
    kit_job job;
    int status = 1;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *rows = kit_job_input(&job, F32, c->row[K], 1, 1, 1),
              *cells = kit_job_input(&job, I64, 1, 1, 1, 1);
    kit_job_add(&job, gg.set_rows(job.ops, c->side[K][0], rows, cells));
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(rows, row, 0, gg.nbytes(rows));
        gg.backend_tensor_set(cells, &cell, 0, sizeof cell);
        status = kit_job_run(&job);
    }
    kit_job_end(&job);
    return status;
}

static void lose_row(cache *c, int cell)
{
    uint8_t *row = kit_alloc(1, c->bytes[K]);
    memcpy(row, "\x51\x7e\x01\x02\x03\x04\x05", 7);
    cache_set(c, 0, K, cell, 1, row);
    free(row);
}

/* When all rows that were lost are overwritten, nothing is looked for any more in that tensor: values that begin as lost rows do
 * are values again. Other tensors, and rows that are lost later, are not forgotten. */
void test_lost_ends(void)
{
    enum { LOST = 7, N = 64, ROW = 128 };
    static const uint16_t tiny[] = {0x0221, 0x0135, 0x024a, 0x0117};
    shape s = shape_of(F16, 64, 64, 2, N, 1);
    uint16_t open[N] = {0}, got[ROW], expected[ROW];
    float x[ROW];
    cache c[2];
    kit_seed(97);
    kit_label("lost rows are overwritten");
    random_rows(x, ROW, 1, K);
    bool right = cache_alloc(&c[0], &s, kit.cpu_buft, 0);
    if (cache_alloc(&c[1], &s, kit.cpu_buft, 0) && right) {
        for (int i = 0; i < 2; i++) lose_row(&c[i], LOST);
        kit_check(attend_with_sum(&c[0], open) != GG_SUCCESS, "a lost row is attended");
        kit_check(write_on_cpu(&c[0], LOST, x) == GG_SUCCESS, "a lost row cannot be overwritten");
        kit_check(attend_with_sum(&c[0], open) == GG_SUCCESS, "a row that is overwritten is still lost");
        gg.fp16_to_fp32_row(tiny, x, 4);
        gg.fp32_to_fp16_row(x, expected, ROW);
        kit_check(write_on_cpu(&c[0], LOST, x) == GG_SUCCESS, "a row cannot be written");
        cache_get(&c[0], 0, K, LOST, 1, got);
        kit_same(got, expected, sizeof got, "a row of tiny values");
        kit_check(attend_with_sum(&c[1], open) != GG_SUCCESS, "the lost row of another cache is attended");
        lose_row(&c[0], LOST + 1);
        kit_check(attend_with_sum(&c[0], open) != GG_SUCCESS, "a row that is lost later is attended");
    }
    for (int i = 0; i < 2; i++) cache_close(&c[i]);
}

/* --------------------------------------------------------------------- told */

enum { TOLD_CELLS = 100 };

/* A log of the host that uses the device when it is told of a codec: memory for one more context, and a row of a state
 * into memory of the CPU. */
static struct {
    cache c[2];
    int told, n_open;
} listener;

static void listen(int level, const char *text, void *user)
{
    (void)level;
    (void)user;
    if (!strstr(text, "rows in r5, ") || listener.told++) return;
    shape s = shape_of(F16, 64, 64, 2, TOLD_CELLS, 1);
    for (int i = 0; i < 2; i++)
        if (cache_alloc(&listener.c[i], &s, i ? kit.cpu_buft : kit.buft, 0)) listener.n_open++;
    if (listener.n_open == 2) cache_set(&listener.c[1], 0, K, 0, 1, shared_bytes);
}

/* In a process with the policy r5/r4. */
void test_told_give(void)
{
    shape s = shape_of(F16, 64, 64, 2, TOLD_CELLS, 1);
    cache c;
    kit_seed(95);
    kit_label("%s gives a row", kit.policy);
    if (cache_open(&c, &s)) {
        fill(&c);
        cache_get(&c, 0, K, 0, 1, shared_bytes);
        kit_check(shared_bytes[0] == 0x51 && shared_bytes[1] == 0x7e, "the row has no mark");
    }
    cache_close(&c);
}

/* The host's log may call whatever it likes, wherever the row is: it hangs if a lock of the device is held meanwhile. */
static void check_told(const char *name, enum where where, bool waits)
{
    shape s = shape_of(F16, 64, 64, 2, TOLD_CELLS, 1);
    cache c;
    kit_label("a row of r5 is told, %s", name);
    bool right = where == ON_CPU || waits ? cache_alloc(&c, &s, where == ON_CPU ? kit.cpu_buft : kit.buft, 0)
                                          : cache_open(&c, &s);
    if (right) {
        cache_set(&c, 0, K, 3, 1, shared_bytes);
        if (waits && where == ON_PLAIN) make_plain(&c);
        if (waits && where == ON_DEVICE && cache_reserve(&c)) fill(&c);
        kit_check(listener.told == 1 && listener.n_open == 2, "told %d times", listener.told);
    }
    cache_close(&c);
    for (int i = 0; i < listener.n_open; i++) cache_close(&listener.c[i]);
}

static void begin_told(void)
{
    alarm(60);
    kit_seed(96);
    gg.log_set(listen, NULL);
}

void test_told_cpu(void)
{
    begin_told();
    check_told("to the CPU", ON_CPU, false);
}

void test_told_device(void)
{
    begin_told();
    check_told("to the device", ON_DEVICE, false);
}

void test_told_planned(void)
{
    begin_told();
    check_told("when the plan is made", ON_DEVICE, true);
}

void test_told_plain(void)
{
    begin_told();
    check_told("when the memory becomes plain", ON_PLAIN, true);
}
