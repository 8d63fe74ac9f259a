/* SPDX-License-Identifier: MIT */
/* Profiles: gathering, the file, its damage, and running out of memory. */
#include "codec_rows.h"

#include "support/fail_alloc.h"

#include <stdlib.h>

enum { LAYERS = 3, D0 = 8, TOKENS = 400 };

/* Layer 0: two query heads per KV head. Layer 1: another shape. Layer 2 sees nothing. */
static const quire_layer shapes[LAYERS] = {
    {.n_q_heads = 4, .n_kv_heads = 2, .d_k = D0, .d_v = 8},
    {.n_q_heads = 1, .n_kv_heads = 1, .d_k = 80, .d_v = 16},
    {.n_q_heads = 2, .n_kv_heads = 2, .d_k = 4, .d_v = 4},
};
static const quire_geometry geometry = {.size = sizeof(quire_geometry),
                                        .n_layers = LAYERS,
                                        .layer_stride = sizeof(quire_layer),
                                        .layers = shapes};

/* Bytes in memory, read and written through callbacks. */
typedef struct memory {
    uint8_t bytes[8192];
    size_t size, at, fail_at; /* reading and writing fail once they would pass fail_at */
} memory;

static quire_status write_memory(void *ctx, const void *bytes, size_t n)
{
    memory *m = ctx;
    if (m->size + n > m->fail_at) return QUIRE_EINVAL;
    assert_true(m->size + n <= sizeof m->bytes);
    memcpy(m->bytes + m->size, bytes, n);
    m->size += n;
    return QUIRE_OK;
}

static quire_status read_memory(void *ctx, void *bytes, size_t n)
{
    memory *m = ctx;
    if (m->at + n > m->size || m->at + n > m->fail_at) return QUIRE_EINVAL;
    memcpy(bytes, m->bytes + m->at, n);
    m->at += n;
    return QUIRE_OK;
}

static void observe_layer(quire_profile *p, uint32_t layer, uint64_t seed)
{
    const quire_layer *l = &shapes[layer];
    uint32_t nk = l->n_kv_heads * l->d_k, nq = l->n_q_heads * l->d_k;
    for (uint32_t t = 0; t < TOKENS; t += 2) {
        float k[2 * 80], q[2 * 80];
        for (uint32_t i = 0; i < 2 * nk; i++) {
            uint32_t c = i % nk;
            k[i] = (float)c + 0.5f * (float)(1 + c % 3) * random_normal(&seed);
            if (t + i / nk < 4) k[i] = 1e6f; /* positions that must not count */
        }
        for (uint32_t i = 0; i < 2 * nq; i++) q[i] = (float)(1 + i % nq / l->d_k) * random_normal(&seed);
        if (t == 50) k[0] = NAN, k[1] = INFINITY, q[2] = -INFINITY;
        assert_int_equal(quire_profile_observe_k(p, layer, t, k, 2), QUIRE_OK);
        assert_int_equal(quire_profile_observe_q(p, layer, t, q, 2), QUIRE_OK);
    }
}

static quire_profile *gathered(uint64_t seed, const quire_allocator *allocator)
{
    quire_profile *p = NULL;
    if (quire_profile_create(&p, &geometry, allocator) != QUIRE_OK) return NULL;
    observe_layer(p, 0, seed);
    observe_layer(p, 1, seed + 1);
    assert_int_equal(quire_profile_digest(p), 0);
    assert_int_equal(quire_profile_finish(p), QUIRE_OK);
    return p;
}

static void statistics(void **state)
{
    (void)state;
    quire_profile *p = gathered(1, NULL);
    for (uint32_t h = 0; h < 2; h++) {
        quire_calibration c = quire_profile_head(p, 0, h);
        /* heads 0 and 1 of KV head 0 have Q of size 1 and 2, heads 2 and 3 of KV head 1 have 3 and 4 */
        double q_rms = h ? sqrt((9 + 16) / 2.0) : sqrt((1 + 4) / 2.0);
        for (uint32_t i = 0; i < D0; i++) {
            uint32_t channel = h * D0 + i;
            double sd = 0.5 * (1 + channel % 3), weight = sqrt(q_rms / sd);
            double mean = 0;
            for (uint32_t m = 0; m < c.n_means; m++) mean += (double)c.mean[m * D0 + i] / c.n_means;
            if (fabs(mean - channel) > sd) fail_msg("head %u channel %u: mean %g", h, i, mean);
            if (fabs((double)c.q_rms[i] / q_rms - 1) > 0.15) fail_msg("q_rms %g", (double)c.q_rms[i]);
            /* what remains around 15 means is less than around one */
            if (!(c.weight[i] > 0.95 * weight && c.weight[i] < 1.5 * weight))
                fail_msg("head %u channel %u: weight %g, expected %g", h, i, (double)c.weight[i], weight);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        quire_calibration c = quire_profile_head(p, 2, 1);
        assert_true(c.n_means == 1 && c.mean[i] == 0 && c.weight[i] == 1 && c.q_rms[i] == 1);
    }
    assert_true(quire_profile_fits(p, 0, 2, D0) && quire_profile_fits(p, 1, 1, 80));
    assert_false(quire_profile_fits(p, 0, 1, D0) || quire_profile_fits(p, 0, 2, D0 + 1));
    assert_false(quire_profile_fits(p, 3, 2, D0) || quire_profile_fits(NULL, 0, 2, D0));
    assert_int_equal(quire_profile_n_heads(p, 0), 2);
    assert_int_equal(quire_profile_n_heads(p, 3), 0);
    assert_null(quire_profile_head(NULL, 0, 0).mean);
    assert_null(quire_profile_head(NULL, 0, 0).weight);
    quire_profile_destroy(p);
}

/* The same numbers computed another way: exactly, from a handful of rows. */
static void exact_statistics(void **state)
{
    (void)state;
    const quire_geometry one = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 2, .n_kv_heads = 1, .d_k = 3, .d_v = 3};
    const float k[] = {9, 9, 9, /* position 3: left out */ 1, 5, 1e30f, 3, 5, -1e30f};
    const float q[] = {3, 0, 1, 4, 0, 1};
    quire_profile *p = NULL;
    assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_observe_k(p, 0, 3, k, 3), QUIRE_OK);
    assert_int_equal(quire_profile_observe_q(p, 0, 4, q, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_OK);
    quire_calibration c = quire_profile_head(p, 0, 0);
    assert_int_equal(c.n_means, 2); /* as many as rows, which end where f16 does */
    for (uint32_t m = 0; m < 2; m++)
        assert_true(c.mean[3 * m + 1] == 5 && c.mean[3 * m + 2] == (c.mean[3 * m] < 2 ? 65504 : -65504));
    assert_true(c.mean[0] + c.mean[3] == 4 && c.mean[0] * c.mean[3] == 3);
    assert_true(c.q_rms[0] == (float)sqrt(12.5 + 1e-12) && c.q_rms[1] == 1e-6f);
    assert_true(fabs((double)c.weight[0] - sqrt(sqrt(12.5))) < 1e-6); /* sd 1 */
    assert_true(fabs((double)c.weight[1] - 1) < 1e-6);                /* both at their floors */
    assert_true(c.weight[2] == 1e-4f);                                /* clamped */
    quire_profile_destroy(p);

    /* a mean that f16 cannot hold */
    const float large[] = {1e6f, -1e6f, 0};
    assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_observe_k(p, 0, UINT32_MAX, large, 1), QUIRE_OK);
    assert_int_equal(quire_profile_observe_q(p, 0, 4, q, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_OK);
    c = quire_profile_head(p, 0, 0);
    assert_true(c.n_means == 1 && c.mean[0] == 65504 && c.mean[1] == -65504 && c.mean[2] == 0);
    assert_true(c.weight[0] == (float)sqrt((double)sqrt(12.5 + 1e-12) / 1e-6));
    quire_profile_destroy(p);
}

/* Fewer bits, larger errors; taking means and weights out makes them smaller, and floats hardly err. */
static void score_errors(void **state)
{
    (void)state;
    static const char *const falling[] = {"r2", "r3", "r4", "r5", "r6", "r8", "f16", "f32"};
    quire_profile *p = gathered(3, NULL);
    assert_non_null(p);
    double last = 1e9, e, calibrated;
    for (size_t i = 0; i < sizeof falling / sizeof falling[0]; i++) {
        assert_int_equal(quire_profile_score_error(p, 0, falling[i], &e), QUIRE_OK);
        assert_true(e < last);
        last = e;
    }
    assert_true(last == 0);
    assert_int_equal(quire_profile_score_error(p, 1, "r4", &e), QUIRE_OK);
    assert_int_equal(quire_profile_score_error(p, 1, "c:r4", &calibrated), QUIRE_OK);
    assert_true(calibrated < e);
    assert_int_equal(quire_profile_score_error(p, 1, "r4", &last), QUIRE_OK);
    assert_true(last == e);
    assert_int_equal(quire_profile_score_error(NULL, 0, "r4", &e), QUIRE_EINVAL);
    assert_int_equal(quire_profile_score_error(p, LAYERS, "r4", &e), QUIRE_EINVAL);
    assert_int_equal(quire_profile_score_error(p, 0, "x4", &e), QUIRE_EINVAL);
    assert_int_equal(quire_profile_score_error(p, 0, NULL, &e), QUIRE_EINVAL);
    assert_int_equal(quire_profile_score_error(p, 0, "r4", NULL), QUIRE_EINVAL);
    quire_profile_destroy(p);
    assert_int_equal(quire_profile_create(&p, &geometry, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_score_error(p, 0, "r4", &e), QUIRE_EINVAL); /* not finished */
    quire_profile_destroy(p);
}

static void misuse(void **state)
{
    (void)state;
    quire_profile *p = NULL;
    float rows[2 * D0] = {0};
    quire_geometry bad = geometry;
    bad.size = 0;
    assert_int_equal(quire_profile_create(&p, &bad, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_profile_create(&p, NULL, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_profile_create(NULL, &geometry, NULL), QUIRE_EINVAL);
    bad = (quire_geometry){.size = sizeof(quire_geometry),
                           .n_layers = 4096,
                           .n_q_heads = 65535,
                           .n_kv_heads = 65535,
                           .d_k = 1024,
                           .d_v = 1};
    assert_int_equal(quire_profile_create(&p, &bad, NULL), QUIRE_EINVAL);
    assert_null(p);
    assert_int_equal(quire_profile_create(&p, &geometry, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_observe_k(p, LAYERS, 0, rows, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_k(p, 0, 0, NULL, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_q(p, LAYERS, 4, rows, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_k(NULL, 0, 0, rows, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_k(p, 0, 0, NULL, 0), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_EINVAL); /* nothing seen */
    assert_int_equal(quire_profile_observe_k(p, 0, 3, rows, 1),
                     QUIRE_OK); /* a position that does not count */
    assert_int_equal(quire_profile_observe_q(p, 0, 4, (float[4 * D0]){0}, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_EINVAL);
    assert_false(quire_profile_fits(p, 0, 2, D0));
    memory m = {.fail_at = SIZE_MAX};
    assert_int_equal(quire_profile_save(p, write_memory, &m), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_k(p, 0, 4, rows, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_k(p, 0, 4, rows, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_observe_q(p, 0, 4, rows, 1), QUIRE_EINVAL);
    assert_int_equal(quire_profile_digest(NULL), 0);
    quire_profile_destroy(p);
    quire_profile_destroy(NULL);
}

static void same_vectors(const quire_profile *a, const quire_profile *b)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_true(quire_profile_fits(b, l, shapes[l].n_kv_heads, shapes[l].d_k));
        assert_true(quire_profile_layer_digest(a, l) == quire_profile_layer_digest(b, l));
        for (uint32_t h = 0; h < shapes[l].n_kv_heads; h++) {
            quire_calibration x = quire_profile_head(a, l, h), y = quire_profile_head(b, l, h);
            assert_int_equal(x.n_means, y.n_means);
            assert_memory_equal(x.mean, y.mean, x.n_means * shapes[l].d_k * sizeof(float));
            assert_memory_equal(x.weight, y.weight, shapes[l].d_k * sizeof(float));
            assert_memory_equal(x.q_rms, y.q_rms, shapes[l].d_k * sizeof(float));
        }
    }
}

static void save_load_and_hold(void **state)
{
    (void)state;
    quire_profile *p = gathered(1, NULL), *q = NULL, *other = gathered(2, NULL);
    memory m = {.fail_at = SIZE_MAX};
    assert_int_equal(quire_profile_save(p, write_memory, &m), QUIRE_OK);
    assert_int_equal(m.size, 16 + LAYERS * 12 + 4 * (17 * (2 * 8 + 80) + 3 * 2 * 4) + 8);
    assert_int_equal(quire_profile_load(&q, read_memory, &m, NULL), QUIRE_OK);
    assert_int_equal(m.at, m.size);
    same_vectors(p, q);
    uint64_t digest = quire_profile_digest(p);
    assert_true(digest != 0 && digest == quire_profile_digest(q));
    assert_true(digest != quire_profile_digest(other));
    assert_true(quire_profile_layer_digest(p, 0) != quire_profile_layer_digest(other, 0));
    assert_true(quire_profile_layer_digest(p, 2) == quire_profile_layer_digest(other, 2)); /* saw nothing */
    assert_int_equal(quire_profile_layer_digest(p, LAYERS), 0);
    quire_profile *copy = quire_profile_hold(q);
    quire_profile_destroy(q); /* the other owner goes on */
    same_vectors(p, copy);
    assert_true(digest == quire_profile_digest(copy));
    memory again = {.fail_at = SIZE_MAX};
    assert_int_equal(quire_profile_save(copy, write_memory, &again), QUIRE_OK);
    assert_memory_equal(again.bytes, m.bytes, m.size);
    quire_profile_destroy(copy);
    quire_profile_destroy(p);
    quire_profile_destroy(other);
}

static void save_to(memory *m)
{
    quire_profile *p = gathered(1, NULL);
    *m = (memory){.fail_at = SIZE_MAX};
    assert_int_equal(quire_profile_save(p, write_memory, m), QUIRE_OK);
    quire_profile_destroy(p);
}

static quire_status load_from(memory *m)
{
    quire_profile *untouched = (quire_profile *)m, *q = untouched;
    m->at = 0;
    quire_status status = quire_profile_load(&q, read_memory, m, NULL);
    if (status == QUIRE_OK)
        quire_profile_destroy(q);
    else
        assert_ptr_equal(q, untouched);
    return status;
}

static void truncated_files(void **state)
{
    (void)state;
    static memory m;
    save_to(&m);
    size_t size = m.size;
    for (m.size = 0; m.size < size; m.size++)
        if (load_from(&m) != QUIRE_EIO) fail_msg("%zu of %zu bytes are taken", m.size, size);
    assert_int_equal(load_from(&m), QUIRE_OK);
}

/* The n-th byte cannot be written. */
static void failing_writes(void **state)
{
    (void)state;
    static memory full;
    save_to(&full);
    quire_profile *p = gathered(1, NULL);
    for (size_t n = 0; n < full.size; n++) {
        memory m = {.fail_at = n};
        if (quire_profile_save(p, write_memory, &m) != QUIRE_EIO)
            fail_msg("failure at byte %zu is not noticed", n);
    }
    quire_profile_destroy(p);
}

static void damaged_files(void **state)
{
    (void)state;
    static memory m;
    save_to(&m);
    for (size_t i = 0; i < m.size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            m.bytes[i] ^= (uint8_t)(1 << bit);
            quire_status status = load_from(&m);
            if (status == QUIRE_OK) fail_msg("bit %d of byte %zu may change", bit, i);
            quire_status expected = i < 8 ? QUIRE_EFORMAT : i < 12 ? QUIRE_EVERSION : status;
            if (status != expected) fail_msg("bit %d of byte %zu: %s", bit, i, quire_status_name(status));
            m.bytes[i] ^= (uint8_t)(1 << bit);
        }
    }
    assert_int_equal(load_from(&m), QUIRE_OK);
}

/* A right hash over wrong contents. */
static void seal(memory *m)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_add(&h, m->bytes, m->size - 8);
    quire_store64(m->bytes + m->size - 8, quire_hash_end(&h));
}

static void sealed_rubbish(void **state)
{
    (void)state;
    static memory m;
    save_to(&m);
    const size_t mean = 28, last = mean + 4 * (15 * D0 - 1), weight = last + 4, q_rms = weight + 4 * D0;
    const struct {
        size_t at;
        float value;
        quire_status expected;
    } cases[] = {
        {mean, 1, QUIRE_OK},          {mean, NAN, QUIRE_EFORMAT},       {mean, INFINITY, QUIRE_EFORMAT},
        {mean, 65505, QUIRE_EFORMAT}, {mean, -65504, QUIRE_OK},         {weight, NAN, QUIRE_EFORMAT},
        {weight, 0, QUIRE_EFORMAT},   {weight, -1, QUIRE_EFORMAT},      {weight, 9e-5f, QUIRE_EFORMAT},
        {weight, 1e-4f, QUIRE_OK},    {weight, 1e4f, QUIRE_OK},         {weight, 1.1e4f, QUIRE_EFORMAT},
        {q_rms, NAN, QUIRE_EFORMAT},  {q_rms, INFINITY, QUIRE_EFORMAT}, {q_rms, -1, QUIRE_EFORMAT},
        {q_rms, 65504, QUIRE_OK},     {q_rms, 65505, QUIRE_EFORMAT},    {q_rms, 3e38f, QUIRE_EFORMAT},
        {q_rms, 0, QUIRE_OK},         {last, NAN, QUIRE_EFORMAT},       {last, 65504, QUIRE_OK},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        memory changed = m;
        quire_store32(changed.bytes + cases[i].at, quire_bits_of(cases[i].value));
        seal(&changed);
        if (load_from(&changed) != cases[i].expected)
            fail_msg("%g at %zu: %s", (double)cases[i].value, cases[i].at,
                     quire_status_name(load_from(&changed)));
    }
}

/* The ends of the ranges that a file may have: estimates stay finite, and the warning of a plan a sentence. */
static void extreme_files(void **state)
{
    (void)state;
    const quire_geometry one = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 16, .d_v = 16};
    const float ends[][3] = {
        {65504, 1e-4f, 65504}, {-65504, 1e4f, 65504}, {0, 1e-4f, 65504}, {65504, 1e4f, 0}};
    for (size_t i = 0; i < COUNT(ends); i++) {
        memory m = {.fail_at = sizeof m.bytes, .size = 28 + 3 * 64 + 8};
        memcpy(m.bytes, "QUIREPRF", 8);
        const uint32_t head[] = {2, 1, 1, 16, 1}; /* version, layers, KV heads, d_k, means */
        for (size_t j = 0; j < 5; j++) quire_store32(m.bytes + 8 + 4 * j, head[j]);
        for (size_t j = 0; j < 48; j++) quire_store32(m.bytes + 28 + 4 * j, quire_bits_of(ends[i][j / 16]));
        seal(&m);
        quire_profile *p = NULL;
        assert_int_equal(quire_profile_load(&p, read_memory, &m, NULL), QUIRE_OK);
        for (uint32_t c = 0; c < quire_codec_count(); c++) {
            double e = NAN;
            assert_int_equal(quire_profile_score_error(p, 0, quire_codec_at(c)->name, &e), QUIRE_OK);
            if (!isfinite(e) || e < 0) fail_msg("case %zu, %s: %g", i, quire_codec_at(c)->name, e);
        }
        quire_plan *plan = NULL;
        quire_plan_options options = {.size = sizeof(quire_plan_options), .profile = p};
        assert_int_equal(quire_plan_create(&plan, &one, "a4g64", &options), QUIRE_OK);
        const char *warning = quire_plan_warning(plan);
        if (i < 3 && ends[i][1] < 1) {
            assert_non_null(warning);
            assert_non_null(strstr(warning, "an error of more than 1000 with this model"));
        }
        quire_plan_destroy(plan);
        quire_profile_destroy(p);
    }
}

/* Queries beyond the range that a file may have end at its end, so that every profile can be saved and loaded. */
static void large_queries(void **state)
{
    (void)state;
    const quire_geometry one = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 2, .d_v = 2};
    static memory m;
    m = (memory){.fail_at = sizeof m.bytes};
    quire_profile *p = NULL;
    assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_observe_k(p, 0, 4, (const float[]){1, 2}, 1), QUIRE_OK);
    assert_int_equal(quire_profile_observe_q(p, 0, 4, (const float[]){3e38f, 1}, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(p), QUIRE_OK);
    assert_true(quire_profile_head(p, 0, 0).q_rms[0] == 65504);
    assert_int_equal(quire_profile_save(p, write_memory, &m), QUIRE_OK);
    assert_int_equal(load_from(&m), QUIRE_OK);
    quire_profile_destroy(p);
}

/* Reads zeros for ever after a header, to see how much a promise of many floats makes us allocate. */
typedef struct endless {
    uint8_t head[28];
    size_t at, size;
} endless;

static quire_status read_endless(void *ctx, void *bytes, size_t n)
{
    endless *e = ctx;
    if (e->at + n > e->size) return QUIRE_EIO;
    for (size_t i = 0; i < n; i++) {
        size_t at = e->at + i;
        ((uint8_t *)bytes)[i] = at < sizeof e->head ? e->head[at] : 0;
    }
    e->at += n;
    return QUIRE_OK;
}

static uint64_t peak_bytes, held_bytes;

static void *count_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    void *ptr = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!ptr) return NULL;
    held_bytes += bytes;
    if (held_bytes > peak_bytes) peak_bytes = held_bytes;
    return ptr;
}

static void count_free(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    held_bytes -= bytes;
    free(ptr);
}

/* Version 1 does not say n_means. */
static quire_status load_means(uint32_t n_layers, uint32_t n_kv_heads, uint32_t d_k, uint32_t version,
                               uint32_t n_means, size_t size)
{
    endless e = {.head = "QUIREPRF", .size = size};
    quire_allocator a = {.size = sizeof(quire_allocator), .alloc = count_alloc, .free = count_free};
    quire_profile *p = NULL;
    quire_store32(e.head + 8, version);
    quire_store32(e.head + 12, n_layers);
    quire_store32(e.head + 16, n_kv_heads);
    quire_store32(e.head + 20, d_k);
    quire_store32(e.head + 24, n_means);
    peak_bytes = 0;
    quire_status status = quire_profile_load(&p, read_endless, &e, &a);
    assert_int_equal(held_bytes, 0);
    assert_null(p);
    return status;
}

static quire_status load_header(uint32_t n_layers, uint32_t n_kv_heads, uint32_t d_k, size_t size)
{
    quire_status one = load_means(n_layers, n_kv_heads, d_k, 1, 0, size);
    uint64_t peak = peak_bytes;
    assert_int_equal(load_means(n_layers, n_kv_heads, d_k, 2, 15, size), one);
    peak_bytes = peak > peak_bytes ? peak : peak_bytes;
    return one;
}

static void hostile_headers(void **state)
{
    (void)state;
    assert_int_equal(load_header(0, 1, 1, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(4097, 1, 1, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(UINT32_MAX, 1, 1, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(1, 0, 64, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(1, 65536, 64, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(1, UINT32_MAX, UINT32_MAX, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(1, 1, 0, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_header(1, 1, 1025, 1000), QUIRE_EFORMAT);
    /* large promises with little behind them */
    assert_int_equal(load_header(1, 15000, 1024, 1000), QUIRE_EIO);
    assert_true(peak_bytes < 4096);
    assert_int_equal(load_header(4096, 15000, 1024, 1000), QUIRE_EIO);
    assert_true(peak_bytes < 400000);
    assert_int_equal(load_header(2, 15000, 1024, (size_t)1 << 20), QUIRE_EIO);
    assert_int_equal(load_means(1, 65535, 1024, 2, 15, 1000), QUIRE_EFORMAT); /* more than 2^28 floats */
    assert_true(peak_bytes < 4u << 20);
    assert_int_equal(load_header(1, 1, 1, 1000), QUIRE_EFORMAT); /* a weight of 0 */
    assert_int_equal(load_means(1, 1, 1, 2, 0, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_means(1, 1, 1, 2, 16, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_means(1, 1, 1, 2, UINT32_MAX, 1000), QUIRE_EFORMAT);
    assert_int_equal(load_means(1, 1, 1, 3, 15, 1000), QUIRE_EVERSION);
    assert_int_equal(load_means(1, 1, 1, 0, 0, 1000), QUIRE_EVERSION);
}

static void out_of_memory(void **state)
{
    (void)state;
    static memory m;
    save_to(&m);
    for (int what = 0; what < 2; what++) {
        for (uint64_t n = 1;; n++) {
            struct fail_alloc f;
            fail_alloc_init(&f, n);
            quire_allocator a = fail_alloc_allocator(&f);
            quire_profile *q = NULL;
            quire_status status;
            m.at = 0;
            if (what == 0)
                status = quire_profile_create(&q, &geometry, &a);
            else
                status = quire_profile_load(&q, read_memory, &m, &a);
            bool done = f.calls < n;
            assert_int_equal(status, done ? QUIRE_OK : QUIRE_ENOMEM);
            quire_profile_destroy(q);
            assert_int_equal(f.outstanding, 0);
            assert_int_equal(f.bytes, 0);
            if (done) break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics),         cmocka_unit_test(exact_statistics),
        cmocka_unit_test(score_errors),       cmocka_unit_test(misuse),
        cmocka_unit_test(save_load_and_hold), cmocka_unit_test(truncated_files),
        cmocka_unit_test(failing_writes),     cmocka_unit_test(damaged_files),
        cmocka_unit_test(sealed_rubbish),     cmocka_unit_test(extreme_files),
        cmocka_unit_test(large_queries),      cmocka_unit_test(hostile_headers),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
