/* SPDX-License-Identifier: MIT */
/* tv rows against mlx-vlm's TurboQuant: equal codes and norms, states in and out unchanged, attention over a state. */
#include "golden.h"

#include "support/reference.h"

#include <math.h>

static const struct type_case {
    const char *name;
    quire_form form;
    uint32_t most_bits;
} types[] = {{"f16", QUIRE_F16, 4}, {"bf16", QUIRE_BF16, 4}, {"f32", QUIRE_F32, 6}};
static const uint32_t sizes[] = {64, 128, 256};

/* What docs/formats/codecs.md states of values, as a part of a row's norm: at most, and the rms of random rows with d = 128. */
static const double rounding[7] = {0, 0, 9e-4, 4e-3, 1.1e-2, 1.4e-2, 1.4e-2},
                    usual[7] = {0, 0, 5.5e-4, 1.44e-3, 3.25e-3, 5.1e-3, 6e-3};

static void compare_rows(const gold_file *file, size_t type, uint32_t d, quire_side side, uint32_t bits)
{
    char codec[16], s = side == QUIRE_K ? 'K' : 'V';
    const char *dt = types[type].name;
    snprintf(codec, sizeof codec, "tv%u", bits);
    const gold_array *x = golden_array(file, "x_%s_d%u", dt, d);
    const uint8_t *words = golden_array(file, "%s_d%u_%c_b%u_words", dt, d, s, bits)->data;
    const uint8_t *norms = golden_array(file, "%s_d%u_%c_norms", dt, d, s)->data;
    uint32_t n_rows = (uint32_t)x->dim[0];
    quire_coder coder = golden_coder(codec, side, d);
    size_t n_bytes = (size_t)d * bits / 8, row_bytes = d * quire_value_bytes(types[type].form);
    assert_true(n_rows >= 18);
    for (uint32_t r = 0; r < n_rows; r++) {
        quire_coded_row coded, taken;
        quire_counts counts = {.size = sizeof(quire_counts)};
        uint8_t bytes[QUIRE_MAX_D];
        quire_encode_values(&coder, NULL, types[type].form, (const uint8_t *)x->data + r * row_bytes, &coded,
                            &counts);
        if (quire_row_to_mlx(&coder, &coded, bytes, bytes + n_bytes, NULL, QUIRE_F16) != QUIRE_OK)
            fail_msg("%s: no rows of mlx-vlm", codec);
        if (memcmp(bytes, words + r * n_bytes, n_bytes))
            fail_msg("%s %c %s d %u row %u (%s): codes differ", codec, s, dt, d, r, golden_family(file, r));
        if (memcmp(bytes + n_bytes, norms + 2 * r, 2))
            fail_msg("%s %c %s d %u row %u (%s): norm %04x, mlx-vlm has %04x", codec, s, dt, d, r,
                     golden_family(file, r), coded.scale[0], quire_load16(norms + 2 * r));
        if (counts.nan || counts.saturated) fail_msg("%s %s row %u: counted", codec, dt, r);
        if (quire_row_from_mlx(&coder, words + r * n_bytes, norms + 2 * r, NULL, QUIRE_F16, &taken) ||
            memcmp(taken.code, coded.code, d) || taken.scale[0] != coded.scale[0])
            fail_msg("%s %s row %u: imported and encoded rows differ", codec, dt, r);
    }
}

static void encode_as_mlx_vlm(void **state)
{
    (void)state;
    gold_file *file = golden_open("tv.gold");
    for (size_t t = 0; t < 3; t++)
        for (size_t s = 0; s < 3; s++)
            for (int side = QUIRE_K; side <= QUIRE_V; side++)
                for (uint32_t bits = 2; bits <= types[t].most_bits; bits++)
                    compare_rows(file, t, sizes[s], (quire_side)side, bits);
    gold_close(file);
}

/* ---------------------------------------------------- a state, in a sequence */

typedef struct side_state {
    uint32_t n, d, bits;
    const gold_array *words, *norms;
    const float *values; /* mlx-vlm's own */
    float *decoded;      /* Quire's */
} side_state;

static side_state open_side(const gold_file *file, quire_side side)
{
    char s = side == QUIRE_K ? 'K' : 'V';
    side_state a = {.words = golden_array(file, "state_%c_words", s),
                    .norms = golden_array(file, "state_%c_norms", s)};
    const gold_array *values = golden_array(file, "state_%c_values", s);
    a.values = (const float *)(const void *)values->data;
    a.n = (uint32_t)values->dim[0];
    a.d = (uint32_t)values->dim[1];
    a.bits = (uint32_t)a.words->dim[1] * 32 / a.d;
    a.decoded = ref_alloc((size_t)a.n * a.d, sizeof(float));
    return a;
}

static quire_rows rows_of(const side_state *a)
{
    return (quire_rows){.size = sizeof(quire_rows),
                        .form = QUIRE_MLX,
                        .scale_form = QUIRE_F16,
                        .data = a->words->data,
                        .scales = a->norms->data};
}

static double length_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* What comes out is what went in, and values differ from mlx-vlm's by the rounding of the tables alone. */
static void check_side(const quire_seq *seq, quire_side side, const side_state *a)
{
    uint8_t *words = ref_alloc(a->words->bytes, 1), *norms = ref_alloc(a->norms->bytes, 1);
    quire_rows_out out = {.size = sizeof(quire_rows_out),
                          .form = QUIRE_MLX,
                          .scale_form = QUIRE_F16,
                          .data = words,
                          .scales = norms};
    REF_OK(quire_seq_export(seq, 0, side, 0, a->n, &out));
    assert_memory_equal(words, a->words->data, a->words->bytes);
    assert_memory_equal(norms, a->norms->data, a->norms->bytes);
    ref_export(seq, 0, side, 0, a->n, a->decoded);
    double squares = 0;
    for (uint32_t t = 0; t < a->n; t++) {
        double rest[QUIRE_MAX_D], norm = (double)quire_f16_to_f32(quire_load16(norms + 2 * t));
        for (uint32_t c = 0; c < a->d; c++)
            rest[c] = (double)a->decoded[t * a->d + c] - (double)a->values[t * a->d + c];
        double e = length_of(rest, a->d) / norm;
        if (!(e <= rounding[a->bits]))
            fail_msg("tv%u token %u: differs from mlx-vlm by %g of its norm", a->bits, t, e);
        squares += e * e;
    }
    double rms = sqrt(squares / a->n);
    if (!(rms <= 1.02 * usual[a->bits])) fail_msg("tv%u differs from mlx-vlm by %g on average", a->bits, rms);
    free(words);
    free(norms);
}

/*
 * One query for each head at the last token. Over Quire's own values the kernels are exact to 5e-4 as always. Over mlx-vlm's
 * values the rounding of both tables comes on top: the scores here move by up to 0.02.
 */
#define OVER_THEIR_VALUES 5e-3

static void attention_over_a_state(void **state)
{
    (void)state;
    enum { N_Q = 4, D = 128 };
    gold_file *file = golden_open("tv.gold");
    side_state k = open_side(file, QUIRE_K), v = open_side(file, QUIRE_V);
    const double *theirs = (const double *)(const void *)golden_array(file, "state_out")->data;
    assert_int_equal(k.d, D);
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = N_Q,
                        .n_kv_heads = 1,        .d_k = D,      .d_v = D};
    float *q = ref_alloc((size_t)k.n * N_Q * D, sizeof *q),
          *out = ref_alloc((size_t)k.n * N_Q * D, sizeof *q);
    float *last = out + (size_t)(k.n - 1) * N_Q * D;
    memcpy(q + (size_t)(k.n - 1) * N_Q * D, golden_array(file, "q")->data, sizeof *q * N_Q * D);
    const char *isa;
    for (uint32_t i = 0; (isa = quire_isa_at(i)); i++) {
        REF_OK(quire_isa_use(isa));
        ref_cache cache = ref_open(&g, "tv3/tv4", NULL, NULL);
        quire_seq *seq = ref_seq(&cache, NULL);
        quire_step *step;
        quire_rows k_rows = rows_of(&k), v_rows = rows_of(&v);
        REF_OK(quire_step_begin(&step, cache.pool, &seq, &k.n, 1));
        REF_OK(quire_step_append_rows(step, 0, 0, &k_rows, &v_rows));
        REF_OK(quire_step_attend(step, 0, q, out));
        REF_OK(quire_step_commit(step));
        check_side(seq, QUIRE_K, &k);
        check_side(seq, QUIRE_V, &v);
        ref_job job = {.n_q_heads = N_Q,
                       .n_kv_heads = 1,
                       .d_k = D,
                       .d_v = D,
                       .n_keys = k.n,
                       .n_queries = 1,
                       .q = q + (size_t)(k.n - 1) * N_Q * D,
                       .first_query = k.n - 1,
                       .k = k.decoded,
                       .v = v.decoded};
        double exact[N_Q * D];
        ref_attend(&job, exact, NULL);
        double own = ref_worst_error(last, exact, N_Q, D, NULL),
               other = ref_worst_error(last, theirs, N_Q, D, NULL);
        print_message("%s: %.2e over Quire's values, %.2e over mlx-vlm's\n", isa, own, other);
        if (!(own <= REF_BOUND) || !(other <= OVER_THEIR_VALUES)) fail_msg("%s: too much", isa);
        quire_seq_destroy(seq);
        ref_close(&cache);
    }
    REF_OK(quire_isa_use(NULL));
    free(q);
    free(out);
    free(k.decoded);
    free(v.decoded);
    gold_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encode_as_mlx_vlm),
                                       cmocka_unit_test(attention_over_a_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
