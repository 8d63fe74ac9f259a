/* SPDX-License-Identifier: MIT */
/*
 * ring.gold: the rows a ring shows are those of mlx-lm's RotatingKVCache. What our ring shows is read off its own
 * outputs: the query is 0, so that all visible rows weigh the same, and row t of V is 1 in channel t and 0 elsewhere.
 */
#include "golden.h"
#include "support/reference.h"

#include <math.h>

enum { N_CASES = 6, STEPS = 100, D_K = 16, D_SEEN = 512, N_KV = 2, N_Q = 4, D = 64 };

typedef struct ring_case {
    uint32_t number, max_size, keep, prefill;
    const int32_t *step_rows; /* [STEPS][max_size], -1 after the last */
} ring_case;

static uint32_t read_index(const gold_file *file, ring_case *cases)
{
    const gold_array *index = golden_array(file, "index");
    char *text = ref_alloc(index->bytes + 1, 1);
    memcpy(text, index->data, index->bytes);
    uint32_t n = 0, steps, attention, attended = UINT32_MAX;
    for (char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n'), n++) {
        assert_true(n < N_CASES);
        ring_case *c = &cases[n];
        assert_int_equal(sscanf(line + 1, "c%u %u %u %u %u %u", &c->number, &c->max_size, &c->keep,
                                &c->prefill, &steps, &attention),
                         6);
        assert_int_equal(steps, STEPS);
        assert_true(c->prefill > c->max_size && c->prefill + STEPS <= D_SEEN);
        c->step_rows = (const int32_t *)golden_array(file, "c%u_step_rows", c->number)->data;
        if (attention) attended = n;
    }
    assert_int_equal(n, N_CASES);
    free(text);
    return attended;
}

/* ------------------------------------------------------------ what is seen */

typedef struct seen_rows {
    ref_cache cache;
    quire_seq *seq;
} seen_rows;

static seen_rows seen_open(const quire_seq_options *ring)
{
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                               .n_kv_heads = 1,        .d_k = D_K,    .d_v = D_SEEN};
    seen_rows s = {.cache = ref_open(&geometry, "f32", NULL, NULL)};
    s.seq = ref_seq(&s.cache, ring);
    return s;
}

static void seen_close(seen_rows *s)
{
    quire_seq_destroy(s->seq);
    ref_close(&s->cache);
}

/* Appends n tokens; seen[i][j] says whether query i saw row j. */
static void append_and_look(const seen_rows *s, uint32_t n, bool (*seen)[D_SEEN])
{
    uint32_t first = quire_seq_length(s->seq);
    float *k = ref_alloc((size_t)n * D_K, sizeof *k), *v = ref_alloc((size_t)n * D_SEEN, sizeof *v);
    float *q = ref_alloc((size_t)n * D_K, sizeof *q), *out = ref_alloc((size_t)n * D_SEEN, sizeof *out);
    float *sum = ref_alloc(n, sizeof *sum);
    uint64_t state = first;
    ref_normals(&state, k, (size_t)n * D_K, 1);
    for (uint32_t t = 0; t < n; t++) v[(size_t)t * D_SEEN + first + t] = 1;
    quire_step *step = NULL;
    REF_OK(quire_step_begin(&step, s->cache.pool, &s->seq, &n, 1));
    REF_OK(quire_step_append(step, 0, k, v));
    quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out, .sum = sum};
    REF_OK(quire_step_attend_with(step, 0, &queries));
    REF_OK(quire_step_commit(step));
    for (uint32_t t = 0; t < n; t++) {
        uint32_t n_seen = 0;
        for (uint32_t c = 0; c < D_SEEN; c++) {
            float x = out[(size_t)t * D_SEEN + c];
            seen[t][c] = x != 0;
            n_seen += seen[t][c];
            if (x != 0 && fabsf(x * sum[t] - 1) > 1e-6f)
                fail_msg("query %u weighs row %u with %g, expected %g", first + t, c, (double)x,
                         1 / (double)sum[t]);
        }
        assert_int_equal((uint32_t)sum[t], n_seen); /* exp(0) each: whole numbers */
    }
    free(k);
    free(v);
    free(q);
    free(out);
    free(sum);
}

static void expect_seen(const char *what, uint32_t p, const bool *seen, const bool *expected)
{
    for (uint32_t j = 0; j < D_SEEN; j++)
        if (seen[j] != expected[j])
            fail_msg("%s: the query at %u %s row %u", what, p, seen[j] ? "sees" : "does not see", j);
}

/* The rule of the header. */
static void rule(uint32_t max_tokens, uint32_t sinks, uint32_t p, bool *expected)
{
    for (uint32_t j = 0; j < D_SEEN; j++)
        expected[j] = j <= p && (j < sinks || (int64_t)j > (int64_t)p - (max_tokens - sinks));
}

static void steps_see_what_mlx_sees(void **unused)
{
    (void)unused;
    static bool seen[D_SEEN][D_SEEN], expected[D_SEEN];
    ring_case cases[N_CASES];
    gold_file *file = golden_open("ring.gold");
    read_index(file, cases);
    for (uint32_t i = 0; i < N_CASES; i++) {
        const ring_case *c = &cases[i];
        quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = c->max_size, .sinks = c->keep};
        seen_rows s = seen_open(&ring);
        char what[32];
        snprintf(what, sizeof what, "ring %u/%u", c->max_size, c->keep);
        append_and_look(&s, c->prefill, seen);
        for (uint32_t t = 0; t < c->prefill; t++) {
            rule(c->max_size, c->keep, t, expected);
            expect_seen(what, t, seen[t], expected);
        }
        for (uint32_t t = 0; t < STEPS; t++) {
            append_and_look(&s, 1, seen);
            memset(expected, 0, sizeof expected);
            for (uint32_t r = 0; r < c->max_size && c->step_rows[t * c->max_size + r] >= 0; r++)
                expected[c->step_rows[t * c->max_size + r]] = true;
            expect_seen(what, c->prefill + t, seen[0], expected);
        }
        seen_close(&s);
    }
    gold_close(file);
}

/* mlx-lm's mask of a chunk, by token number. */
static void mlx_chunk(const gold_file *file, uint32_t number, const char *part, uint32_t query,
                      bool *expected)
{
    const gold_array *mask = golden_array(file, "c%u_%s_mask", number, part);
    const gold_array *rows = golden_array(file, "c%u_%s_rows", number, part);
    memset(expected, 0, D_SEEN);
    for (int64_t j = 0; j < mask->dim[1]; j++)
        expected[((const int32_t *)rows->data)[j]] =
            ((const uint8_t *)mask->data)[(int64_t)query * mask->dim[1] + j];
}

/* The one difference: in chunks mlx-lm hides the kept rows from later queries and shows as many more of the others.
 * Without kept rows there is none. */
static void chunks_keep_the_sinks_in_sight(void **unused)
{
    (void)unused;
    static bool seen[D_SEEN][D_SEEN], mlx[D_SEEN], expected[D_SEEN];
    ring_case cases[N_CASES];
    gold_file *file = golden_open("ring.gold");
    read_index(file, cases);
    uint32_t n_hidden = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const ring_case *c = &cases[i];
        quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = c->max_size, .sinks = c->keep};
        seen_rows s = seen_open(&ring);
        uint32_t n_tokens[3] = {c->prefill, STEPS, 3}, p = 0;
        for (uint32_t part = 0; part < 3; p += n_tokens[part], part++) {
            append_and_look(&s, n_tokens[part], seen);
            for (uint32_t t = 0; t < n_tokens[part]; t++) {
                rule(c->max_size, c->keep, p + t, expected);
                expect_seen("chunk", p + t, seen[t], expected);
                for (uint32_t j = 0; j < c->keep && j <= p + t; j++) assert_true(seen[t][j]);
                if (part == 1) continue; /* mlx-lm made these one by one */
                mlx_chunk(file, c->number, part ? "chunk2" : "chunk", t, mlx);
                if (!c->keep) expect_seen("chunk without sinks", p + t, seen[t], mlx);
                for (uint32_t j = 0; j < c->keep && j <= p + t; j++) n_hidden += !mlx[j];
            }
        }
        seen_close(&s);
    }
    if (!n_hidden) fail_msg("mlx-lm's masks show the kept rows: the difference in README.md is gone");
    gold_close(file);
}

/* --------------------------------------------------------------- attention */

/* The whole run of the attention case. decoded: NULL, or a ring-less twin tells what the rows decode to. */
static void run_attention(const gold_file *file, const ring_case *c, const char *policy, float *out,
                          float *k_decoded, float *v_decoded)
{
    const float *k = golden_array(file, "attn_k")->data, *v = golden_array(file, "attn_v")->data,
                *q = golden_array(file, "attn_q")->data;
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = N_Q,
                               .n_kv_heads = N_KV,     .d_k = D,      .d_v = D};
    ref_cache cache = ref_open(&geometry, policy, NULL, NULL);
    quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = c->max_size, .sinks = c->keep};
    quire_seq *seq = ref_seq(&cache, &ring), *twin = ref_seq(&cache, NULL);
    uint32_t all = c->prefill + STEPS, one = 1, row = N_KV * D;
    ref_step(&cache, &seq, &c->prefill, 1, k, v, NULL, NULL);
    for (uint32_t t = 0; t < STEPS; t++)
        ref_step(&cache, &seq, &one, 1, k + (c->prefill + t) * row, v + (c->prefill + t) * row,
                 q + t * N_Q * D, out + t * N_Q * D);
    ref_step(&cache, &twin, &all, 1, k, v, NULL, NULL);
    ref_export(twin, 0, QUIRE_K, 0, all, k_decoded);
    ref_export(twin, 0, QUIRE_V, 0, all, v_decoded);

    /* Rows do not know that they are in a ring. */
    float *held = ref_alloc((size_t)c->max_size * row, sizeof *held);
    uint32_t last = c->max_size - c->keep;
    ref_export(seq, 0, QUIRE_K, 0, c->keep, held);
    assert_memory_equal(held, k_decoded, sizeof *held * c->keep * row);
    ref_export(seq, 0, QUIRE_V, all - last, last, held);
    assert_memory_equal(held, v_decoded + (all - last) * row, sizeof *held * last * row);
    free(held);
    quire_seq_destroy(seq);
    quire_seq_destroy(twin);
    ref_close(&cache);
}

static void attention_of_the_ring(void **unused)
{
    (void)unused;
    /* Also K and V of different bits, and one with mixed page formats: the sinks in another codec. */
    static const char *const policies[] = {
        "f32", "a8g64", "k8v4", "r5/r3", "a4g64", "q8_0/q4_0", "a4g64,sinks=4:f16"};
    ring_case cases[N_CASES];
    gold_file *file = golden_open("ring.gold");
    const ring_case *c = &cases[read_index(file, cases)];
    size_t floats = (size_t)(c->prefill + STEPS) * N_KV * D, n_out = (size_t)STEPS * N_Q * D, row = 0;
    float *k = ref_alloc(floats, sizeof *k), *v = ref_alloc(floats, sizeof *v);
    float *out = ref_alloc(n_out, sizeof *out);
    double *expected = ref_alloc(n_out, sizeof *expected);
    for (uint32_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        run_attention(file, c, policies[i], out, k, v);
        ref_job job = {.n_q_heads = N_Q,
                       .n_kv_heads = N_KV,
                       .d_k = D,
                       .d_v = D,
                       .n_keys = c->prefill + STEPS,
                       .n_queries = STEPS,
                       .first_query = c->prefill,
                       .ring_tokens = c->max_size,
                       .ring_sinks = c->keep,
                       .q = golden_array(file, "attn_q")->data,
                       .k = k,
                       .v = v};
        ref_attend(&job, expected, NULL);
        double error = ref_worst_error(out, expected, STEPS * N_Q, D, &row);
        if (!(error <= REF_BOUND)) fail_msg("%s: error %g in row %zu", policies[i], error, row);
        if (i) continue;
        error = ref_worst_error(out, golden_array(file, "attn_out")->data, STEPS * N_Q, D, &row);
        if (!(error <= 1e-5)) fail_msg("%s against numpy: error %g in row %zu", policies[i], error, row);
    }
    free(k);
    free(v);
    free(out);
    free(expected);
    gold_close(file);
}

/* --------------------------------------------------------------------- trim */

static void look_on(const seen_rows *s, uint32_t n, uint32_t max_tokens, uint32_t sinks, const char *what)
{
    static bool seen[D_SEEN][D_SEEN], expected[D_SEEN];
    uint32_t first = quire_seq_length(s->seq);
    append_and_look(s, n, seen);
    for (uint32_t t = 0; t < n; t++) {
        rule(max_tokens, sinks, first + t, expected);
        expect_seen(what, first + t, seen[t], expected);
    }
}

static uint32_t held_rows(const quire_seq *seq)
{
    quire_tile_ref tile[16];
    uint32_t n = quire_seq_tiles(seq, 0, tile, 16, sizeof(quire_tile_ref)), rows = 0;
    assert_true(n <= 16);
    for (uint32_t i = 0; i < n; i++) rows += tile[i].n_rows;
    return rows;
}

static void trim_after_the_ring_has_wrapped(void **unused)
{
    (void)unused;
    enum { MAX = 100, SINKS = 4 };
    for (uint32_t spare = 0; spare <= 150; spare += 30) {
        quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = MAX, .sinks = SINKS,
                                  .spare_tokens = spare};
        seen_rows s = seen_open(&ring);
        look_on(&s, 400, MAX, SINKS, "before the trim");
        if (held_rows(s.seq) > 64 + MAX + spare + 64)
            fail_msg("spare %u: %u rows held", spare, held_rows(s.seq));
        /* As promised, that many tokens can go at any time; what is seen then is what was seen at that length. */
        for (uint32_t round = 0; round < 3; round++) {
            uint32_t length = quire_seq_length(s.seq);
            if (quire_seq_trim_floor(s.seq) > length - spare)
                fail_msg("spare %u: the floor is %u at length %u", spare, quire_seq_trim_floor(s.seq),
                         length);
            REF_OK(quire_seq_trim(s.seq, length - spare));
            look_on(&s, 1, MAX, SINKS, "after the trim");
            look_on(&s, spare + 12, MAX, SINKS, "a chunk after the trim");
        }
        uint32_t length = quire_seq_length(s.seq), floor = quire_seq_trim_floor(s.seq);
        assert_true(floor > 64);
        assert_int_equal(quire_seq_trim(s.seq, floor - 1), QUIRE_ERANGE);
        assert_int_equal(quire_seq_trim(s.seq, length + 1), QUIRE_EINVAL);
        assert_int_equal(quire_seq_length(s.seq), length);
        look_on(&s, 1, MAX, SINKS, "after refused trims");
        REF_OK(quire_seq_trim(s.seq, floor));
        look_on(&s, 2, MAX, SINKS, "after the largest trim");
        static const uint32_t early[] = {64, 30, 0}; /* all that is seen there lies in the sinks' page */
        for (uint32_t i = 0; i < 3; i++) {
            REF_OK(quire_seq_trim(s.seq, early[i]));
            look_on(&s, 300, MAX, SINKS, "nearly from the beginning");
            look_on(&s, 1, MAX, SINKS, "nearly from the beginning, one more");
        }
        seen_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_see_what_mlx_sees),
        cmocka_unit_test(chunks_keep_the_sinks_in_sight),
        cmocka_unit_test(attention_of_the_ring),
        cmocka_unit_test(trim_after_the_ring_has_wrapped),
    };
    return cmocka_run_group_tests_name("golden_ring", tests, NULL, NULL);
}
