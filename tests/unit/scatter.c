/* SPDX-License-Identifier: MIT */
/* quire_scatter(): memory has the bytes that quire_tile_encode() gives row by row, whatever the slots, the form and the threads;
 * what it refuses, and that nothing is written then. */
#include "paged_host.h"
#include "support/random.h"

#include "core/core.h"

#include <math.h>

enum { N_KV = 3, D = 48, D_V = 32, LAYERS = 2, BLOCKS = 5, BLOCK = 128, MOST = 400 };

typedef struct scene {
    paged p, expected;
    quire_threads *threads;
    quire_workspace *workspace[3]; /* one thread, four, backwards */
    uint8_t k[MOST * N_KV * D * 4], v[MOST * N_KV * D_V * 4];
    int64_t slots[MOST];
    uint32_t n;
    rng random;
} scene;

static scene *scene_open(const char *k, const char *v)
{
    scene *s = ref_alloc(1, sizeof *s);
    quire_executor e = {.size = sizeof e}, back = {.size = sizeof back, .run = run_backwards, .n_threads = 4};
    paged_open(&s->p, k, v, D, D_V, BLOCKS, BLOCK, N_KV, LAYERS);
    paged_open(&s->expected, k, v, D, D_V, BLOCKS, BLOCK, N_KV, LAYERS);
    REF_OK(quire_threads_create(&s->threads, 4));
    REF_OK(quire_threads_executor(s->threads, &e));
    REF_OK(quire_workspace_create(&s->workspace[0], NULL, NULL));
    REF_OK(quire_workspace_create(&s->workspace[1], &e, NULL));
    REF_OK(quire_workspace_create(&s->workspace[2], &back, NULL));
    s->random.state = 3;
    return s;
}

static void scene_close(scene *s)
{
    for (int i = 0; i < 3; i++) quire_workspace_destroy(s->workspace[i]);
    quire_threads_destroy(s->threads);
    paged_close(&s->p);
    paged_close(&s->expected);
    free(s);
}

/* Bytes of a row in a form. */
static size_t row_bytes(const char *codec, quire_form form, uint32_t d)
{
    return form == QUIRE_NATIVE ? quire_codec_row_bytes(codec, d) : d * quire_value_bytes(form);
}

/* New rows of one side; the codec's own form is made by encoding and decoding them. */
static void make_rows(scene *s, uint8_t *to, const quire_tile_format *f, const char *codec, quire_form form,
                      uint32_t d)
{
    _Alignas(64) static uint8_t tile[64 * 1024];
    size_t bytes = row_bytes(codec, form, d);
    assert_true(quire_tile_bytes(f) <= sizeof tile);
    for (uint32_t i = 0; i < s->n * N_KV; i++, to += bytes) {
        float x[D];
        for (uint32_t c = 0; c < d; c++) x[c] = rng_normal(&s->random) * 3;
        if (i % 17 == 0 && form != QUIRE_NATIVE) x[i % d] = NAN;
        if (i % 23 == 0 && form != QUIRE_NATIVE) x[i % d] = INFINITY;
        if (form != QUIRE_NATIVE) {
            for (uint32_t c = 0; c < d; c++) quire_store_value(form, to, c, x[c]);
            continue;
        }
        quire_rows in = {.size = sizeof in, .data = x};
        quire_rows_out out = {.size = sizeof out, .form = QUIRE_NATIVE, .data = to};
        memset(tile, 0, sizeof tile);
        REF_OK(quire_tile_encode(f, i % N_KV, tile, 0, 1, &in, NULL));
        REF_OK(quire_tile_decode(f, i % N_KV, tile, 0, 1, &out));
    }
}

/* Slots: runs that cross tiles and blocks, single ones, skipped ones, some twice. */
static void make_slots(scene *s)
{
    for (s->n = 0; s->n < MOST - 100;) {
        uint32_t kind = rng_below(&s->random, 4), run = kind == 0 ? rng_between(&s->random, 1, 99) : 1;
        int64_t first = rng_below(&s->random, BLOCKS * BLOCK - run + 1);
        if (kind == 1) first = -(int64_t)rng_between(&s->random, 1, 9);
        if (kind == 2 && s->n) first = s->slots[rng_below(&s->random, s->n)];
        if (s->n == 50) s->slots[s->n++] = INT64_MIN;
        for (uint32_t i = 0; i < run; i++) s->slots[s->n++] = first < 0 ? first : first + i;
    }
}

static quire_scatter_rows scatter_of(const scene *s, uint32_t layer, const quire_rows *k, const quire_rows *v,
                                     quire_counts *counts)
{
    return (quire_scatter_rows){.size = sizeof(quire_scatter_rows),
                                .memory = &s->p.m,
                                .k = k,
                                .v = v,
                                .slots = s->slots,
                                .n_tokens = s->n,
                                .layer = layer,
                                .counts = counts};
}

static void check_form(const char *k, const char *v, quire_form form)
{
    scene *s = scene_open(k, v);
    size_t k_bytes = row_bytes(k, form, D), v_bytes = v ? row_bytes(v, form, D_V) : 0;
    /* Later rounds write to blocks that hold other rows: they are not cleared. */
    for (int round = 0; round < 6; round++) {
        uint32_t layer = (uint32_t)round % LAYERS;
        make_slots(s);
        make_rows(s, s->k, s->p.k, k, form, D);
        if (v) make_rows(s, s->v, s->p.v, v, form, D_V);
        quire_counts expected = {.size = sizeof expected, .nan = 5}, counts = expected;
        for (uint32_t i = 0; i < s->n; i++)
            for (uint32_t h = 0; h < N_KV && s->slots[i] >= 0; h++) {
                size_t at = (size_t)i * N_KV + h;
                REF_OK(paged_put(&s->expected, QUIRE_K, layer, h, s->slots[i], form, s->k + at * k_bytes,
                                 &expected));
                if (v)
                    REF_OK(paged_put(&s->expected, QUIRE_V, layer, h, s->slots[i], form, s->v + at * v_bytes,
                                     &expected));
            }
        quire_rows k_rows = {.size = sizeof k_rows, .form = form, .data = s->k, .codec = k};
        quire_rows v_rows = {.size = sizeof v_rows, .form = form, .data = s->v, .codec = v};
        quire_scatter_rows rows = scatter_of(s, layer, &k_rows, v ? &v_rows : NULL, &counts);
        REF_OK(quire_scatter(s->workspace[round % 3], &rows));
        if (memcmp(s->p.memory, s->expected.memory, s->p.bytes))
            fail_msg("%s/%s, form %d, round %d: other bytes", k, v ? v : "", (int)form, round);
        assert_memory_equal(&counts, &expected, sizeof counts);
        if (form != QUIRE_NATIVE) assert_true(counts.nan > 5 && counts.saturated > 0);
    }
    scene_close(s);
}

static void same_as_row_by_row(void **unused)
{
    (void)unused;
    static const char *const pairs[][2] = {{"r4", "a4g64"},   {"q8_0", "r2"},    {"f16", "bf16"},
                                           {"f32", "h:q4_0"}, {"tq3", "iq4_nl"}, {"r8", NULL}};
    static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE};
    for (size_t i = 0; i < COUNT(pairs); i++)
        for (size_t f = 0; f < COUNT(forms); f++) check_form(pairs[i][0], pairs[i][1], forms[f]);
}

/* Rows that lie apart: [head][token], and more than a row between tokens. */
static void strided(void **unused)
{
    (void)unused;
    scene *s = scene_open("r4", "a4g64");
    make_slots(s);
    make_rows(s, s->k, s->p.k, "r4", QUIRE_F32, D);
    make_rows(s, s->v, s->p.v, "a4g64", QUIRE_F32, D_V);
    quire_rows v_rows = {.size = sizeof v_rows, .data = s->v};
    quire_rows k_rows = {.size = sizeof k_rows,
                         .data = s->k,
                         .token_stride = D * sizeof(float),
                         .head_stride = s->n * D * sizeof(float)};
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t h = 0; h < N_KV && s->slots[i] >= 0; h++) {
            REF_OK(paged_put(&s->expected, QUIRE_K, 1, h, s->slots[i], QUIRE_F32,
                             s->k + ((size_t)h * s->n + i) * D * sizeof(float), NULL));
            REF_OK(paged_put(&s->expected, QUIRE_V, 1, h, s->slots[i], QUIRE_F32,
                             s->v + ((size_t)i * N_KV + h) * D_V * sizeof(float), NULL));
        }
    quire_scatter_rows rows = scatter_of(s, 1, &k_rows, &v_rows, NULL);
    REF_OK(quire_scatter(s->workspace[1], &rows));
    assert_memory_equal(s->p.memory, s->expected.memory, s->p.bytes);
    scene_close(s);
}

#define REFUSED(expected_status, ...)                                                                     \
    do {                                                                                                  \
        quire_paged_memory m = s->p.m;                                                                    \
        quire_counts counts = {.size = sizeof counts, .nan = 7};                                          \
        quire_rows k = {.size = sizeof k, .form = form, .data = s->k};                                    \
        quire_rows v = {.size = sizeof v, .form = form, .data = s->v};                                    \
        quire_scatter_rows rows = scatter_of(s, 0, &k, &v, &counts);                                      \
        int64_t slots[MOST];                                                                              \
        memcpy(slots, s->slots, sizeof slots);                                                            \
        rows.slots = slots;                                                                               \
        rows.memory = &m;                                                                                 \
        __VA_ARGS__;                                                                                      \
        for (int w = 0; w < 3; w++) {                                                                     \
            quire_status got = quire_scatter(s->workspace[w], &rows);                                     \
            if (got != QUIRE_##expected_status) fail_msg("%s: %s", #__VA_ARGS__, quire_status_name(got)); \
            if (memcmp(s->p.memory, s->expected.memory, s->p.bytes))                                      \
                fail_msg("%s: something was written", #__VA_ARGS__);                                      \
            if (counts.nan != 7 || counts.saturated || counts.recoded)                                    \
                fail_msg("%s: something was counted", #__VA_ARGS__);                                      \
        }                                                                                                 \
    } while (0)

static void refusals(void **unused)
{
    (void)unused;
    scene *s = scene_open("r4", "a4g64");
    quire_form form = QUIRE_F32;
    make_slots(s);
    make_rows(s, s->k, s->p.k, "r4", form, D);
    make_rows(s, s->v, s->p.v, "a4g64", form, D_V);
    REFUSED(EINVAL, slots[s->n - 1] = BLOCKS * BLOCK);
    REFUSED(EINVAL, slots[0] = INT64_MAX);
    REFUSED(EINVAL, rows.layer = LAYERS);
    REFUSED(EINVAL, rows.slots = NULL);
    REFUSED(EINVAL, rows.slots = (const int64_t *)(const void *)((const uint8_t *)slots + 4));
    REFUSED(EINVAL, rows.memory = NULL);
    REFUSED(EINVAL, rows.k = NULL);
    REFUSED(EINVAL, rows.v = NULL);
    REFUSED(EINVAL, rows.size = 7);
    REFUSED(EINVAL, rows.size = 8);
    REFUSED(EINVAL, k.size = 0);
    REFUSED(EINVAL, v.data = NULL);
    REFUSED(EINVAL, v.form = QUIRE_MLX);
    REFUSED(EINVAL, v.form = (quire_form)9);
    REFUSED(EINVAL, v.token_stride = 4);
    REFUSED(EINVAL, counts.size = 7);
    REFUSED(EINVAL, m.size = 7);
    REFUSED(EINVAL, m.v = NULL);
    REFUSED(EINVAL, m.v = (uint8_t *)m.v + 16);
    REFUSED(EINVAL, m.v_format = m.k_format);
    REFUSED(EINVAL, m.k_format = m.v_format);
    REFUSED(EINVAL, m.n_kv_heads = 0);
    REFUSED(EINVAL, m.n_kv_heads = 65536); /* more than a model may have */
    REFUSED(EINVAL, m.n_layers = 4097);
    REFUSED(EINVAL, m.v_head_stride = quire_tile_bytes(s->p.v) - 64);
    REFUSED(EINVAL, m.k_tile_stride = 0);
    REFUSED(EINVAL, m.k_layer_stride = 0);
    REFUSED(EINVAL, m.v_block_stride = (size_t)1 << 62);
    REFUSED(EMISMATCH, v.form = QUIRE_NATIVE, v.codec = "r4");
    assert_int_equal(quire_scatter(NULL, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_scatter(s->workspace[0], NULL), QUIRE_EINVAL);
    quire_scatter_rows none = scatter_of(s, 0, NULL, NULL, NULL);
    none.n_tokens = 0;
    none.slots = NULL;
    REF_OK(quire_scatter(s->workspace[0], &none));
    assert_memory_equal(s->p.memory, s->expected.memory, s->p.bytes);
    scene_close(s);
}

/* The codec's own bytes can be damaged: a scale that is not finite. Rows before it are not written either. */
static void damaged_rows(void **unused)
{
    (void)unused;
    static const char *const codecs[] = {"r4", "a4g64", "q8_0", "tq3"};
    for (size_t i = 0; i < COUNT(codecs); i++) {
        scene *s = scene_open("r4", codecs[i]);
        quire_form form = QUIRE_NATIVE;
        make_slots(s);
        make_rows(s, s->k, s->p.k, "r4", form, D);
        make_rows(s, s->v, s->p.v, codecs[i], form, D_V);
        uint32_t last = s->n - 1;
        while (s->slots[last] < 0) last--;
        size_t bytes = row_bytes(codecs[i], form, D_V);
        memset(s->v + ((size_t)last * N_KV + N_KV - 1) * bytes, 0xff,
               bytes); /* the last head of the last token */
        REFUSED(EFORMAT, (void)0);
        scene_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_row_by_row), cmocka_unit_test(strided),
                                       cmocka_unit_test(refusals), cmocka_unit_test(damaged_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
