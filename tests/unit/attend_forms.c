/* SPDX-License-Identifier: MIT */
/* Queries and outputs in f16 and bf16, dense and strided: the bits of f32 attention on the converted queries, rounded to nearest. */
#include "attend_host.h"
#include "support/cache_kit.h"

#include "core/core.h"

static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};

/* [token][head][d] dense, rows apart, or [head][token][d]. */
typedef struct layout {
    size_t token, head; /* in values */
} layout;

enum { DENSE, APART, HEADS_FIRST, N_LAYOUTS };

static layout layout_of(int kind, uint32_t n_tokens, uint32_t n_heads, uint32_t d)
{
    if (kind == DENSE) return (layout){(size_t)n_heads * d, d};
    if (kind == APART) return (layout){(size_t)n_heads * (d + 3) + 5, d + 3};
    return (layout){d + 1, (size_t)n_tokens * (d + 1)};
}

/* What f32 attention has to round to. Written out again here: nearest, ties to even. */
static uint16_t half_of(quire_form form, float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if (form == QUIRE_BF16) {
        uint32_t low = u & 0xffff, up = low > 0x8000 || (low == 0x8000 && (u >> 16 & 1));
        return (uint16_t)((u >> 16) + up);
    }
    double a = fabs((double)x), step = 0x1p-24; /* of subnormal numbers */
    int e;
    (void)frexp(a, &e);
    if (e > -13) step = ldexp(1, e - 11);
    double n = a / step, whole = floor(n), rest = n - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) == 1)) whole++;
    double rounded = whole * step;
    uint16_t sign = (uint16_t)(u >> 31 << 15);
    if (rounded > 65504) return (uint16_t)(sign | 0x7c00);
    if (rounded < 0x1p-14) return (uint16_t)(sign | (uint16_t)(rounded / 0x1p-24));
    (void)frexp(rounded, &e);
    uint32_t exponent = (uint32_t)(e + 14), fraction = (uint32_t)((rounded / ldexp(1, e - 1) - 1) * 1024);
    return (uint16_t)(sign | (exponent << 10) | fraction);
}

typedef struct block { /* values of one form, some of them between rows */
    quire_form form;
    layout at;
    uint32_t n_tokens, n_heads, d;
    size_t bytes;
    uint8_t *data;
} block;

static block block_open(quire_form form, int kind, uint32_t n_tokens, uint32_t n_heads, uint32_t d)
{
    block b = {form, layout_of(kind, n_tokens, n_heads, d), n_tokens, n_heads, d, 0, NULL};
    size_t values = (n_tokens - 1) * b.at.token + (n_heads - 1) * b.at.head + d;
    b.bytes = values * quire_value_bytes(form);
    b.data = malloc(b.bytes);
    assert_non_null(b.data);
    memset(b.data, 0x5a, b.bytes);
    return b;
}

static size_t value_at(const block *b, uint32_t t, uint32_t h, uint32_t c)
{
    return t * b->at.token + h * b->at.head + c;
}

/* Fills b from dense floats, and the floats with what b holds. */
static void put_queries(block *b, const float *dense, float *converted)
{
    for (uint32_t t = 0, i = 0; t < b->n_tokens; t++)
        for (uint32_t h = 0; h < b->n_heads; h++)
            for (uint32_t c = 0; c < b->d; c++, i++) {
                quire_store_value(b->form, b->data, value_at(b, t, h, c), dense[i]);
                converted[i] = quire_load_value(b->form, b->data, value_at(b, t, h, c));
            }
}

/* The rows are the expected floats, rounded; what lies between them is as it was. */
static void check_output(const block *b, const float *expected, const char *what)
{
    uint8_t *full = malloc(b->bytes);
    assert_non_null(full);
    memset(full, 0x5a, b->bytes);
    for (uint32_t t = 0, i = 0; t < b->n_tokens; t++)
        for (uint32_t h = 0; h < b->n_heads; h++)
            for (uint32_t c = 0; c < b->d; c++, i++) {
                uint16_t half = b->form == QUIRE_F32 ? 0 : half_of(b->form, expected[i]);
                if (b->form == QUIRE_F32)
                    memcpy(full + 4 * value_at(b, t, h, c), &expected[i], 4);
                else
                    memcpy(full + 2 * value_at(b, t, h, c), &half, 2);
            }
    for (size_t i = 0; i < b->bytes; i++)
        if (full[i] != b->data[i])
            fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, b->bytes, b->data[i], full[i]);
    free(full);
}

static void jobs(void **unused)
{
    (void)unused;
    host *t = host_open(); /* four formats of each side */
    for (size_t fq = 0; fq < COUNT(forms); fq++)
        for (size_t fo = 0; fo < COUNT(forms); fo++)
            for (int kind = 0; kind < N_LAYOUTS * N_LAYOUTS; kind++) {
                block q = block_open(forms[fq], kind % N_LAYOUTS, N_QUERIES, N_Q, D);
                block out = block_open(forms[fo], kind / N_LAYOUTS, N_QUERIES, N_Q, D_V);
                float converted[N_QUERIES * N_Q * D], expected[N_OUT * D_V];
                float max[N_OUT], sum[N_OUT];
                put_queries(&q, t->q, converted);
                quire_attend_job job = host_job(t);
                job.q = converted;
                job.out = expected;
                REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof job));
                job.q = q.data;
                job.q_form = q.form;
                job.out = out.data;
                job.out_form = out.form;
                job.max = max;
                job.sum = sum;
                if (kind) { /* the first is dense because all strides are 0 */
                    job.q_token_stride = q.at.token * quire_value_bytes(q.form);
                    job.q_head_stride = q.at.head * quire_value_bytes(q.form);
                    job.out_token_stride = out.at.token * quire_value_bytes(out.form);
                    job.out_head_stride = out.at.head * quire_value_bytes(out.form);
                }
                REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof job));
                char what[64];
                (void)snprintf(what, sizeof what, "q form %d, out form %d, layouts %d", (int)forms[fq],
                               (int)forms[fo], kind);
                check_output(&out, expected, what);
                assert_memory_equal(max, t->max, sizeof max);
                assert_memory_equal(sum, t->sum, sizeof sum);
                free(q.data);
                free(out.data);
            }
    host_close(t);
}

/* If only the stride of tokens is 0, it is that of all heads. */
static void one_stride(void **unused)
{
    (void)unused;
    host *t = host_open();
    block out = block_open(QUIRE_F32, DENSE, N_QUERIES, 2 * N_Q, D_V); /* every second head is ours */
    quire_attend_job job = host_job(t);
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof job));
    job.out = out.data;
    job.out_head_stride = 2 * D_V * sizeof(float);
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof job));
    for (uint32_t i = 0; i < N_OUT; i++)
        assert_memory_equal(out.data + i * job.out_head_stride, t->out + (size_t)i * D_V,
                            D_V * sizeof(float));
    free(out.data);
    host_close(t);
}

static void refusals(void **unused)
{
    (void)unused;
    host *t = host_open();
    uint16_t half[N_OUT * D_V];
    memset(half, 0x5a, sizeof half);
    for (size_t f = 1; f < COUNT(forms); f++) {
        quire_attend_job job = host_job(t);
        quire_attend_options options = {.size = sizeof options, .flags = QUIRE_ATTEND_PARTIAL};
        job.out = half;
        job.out_form = forms[f];
        assert_int_equal(quire_attend(t->workspace, &options, &job, 1, sizeof job), QUIRE_EINVAL);
        job.out = (uint8_t *)half + 1;
        assert_int_equal(quire_attend(t->workspace, NULL, &job, 1, sizeof job), QUIRE_EINVAL);
        job = host_job(t);
        job.q = (const uint8_t *)t->q + 1;
        job.q_form = forms[f];
        assert_int_equal(quire_attend(t->workspace, NULL, &job, 1, sizeof job), QUIRE_EINVAL);
    }
    for (size_t i = 0; i < sizeof half; i++) assert_int_equal(((const uint8_t *)half)[i], 0x5a);
    host_close(t);
}

/* ------------------------------------------------------------------- steps */

enum { STEP_KV = 2, STEP_Q = 4, N_TOKENS = 9 };

static void check_steps(const char *policy)
{
    quire_geometry g = kit_geometry(STEP_KV, D, D_V);
    quire_plan *plan = kit_plan(&g, policy, NULL);
    quire_pool *pool = kit_pool(plan, (size_t)16 << 20, NULL);
    quire_seq *seqs[3] = {kit_seq(pool, 0, 0, 0), kit_seq(pool, 0, 0, 0), kit_seq(pool, 100, 7, 0)};
    const uint32_t n_tokens[3] = {5, 0, 4};
    quire_step *step = NULL;
    REF_OK(kit_append(pool, &g, seqs[0], 150, 1)); /* sink pages and others */
    REF_OK(kit_append(pool, &g, seqs[2], 300, 2));
    REF_OK(quire_step_begin(&step, pool, seqs, n_tokens, 3));
    for (uint32_t l = 0; l < KIT_LAYERS; l++) {
        float k[N_TOKENS * STEP_KV * D], v[N_TOKENS * STEP_KV * D_V], dense[N_TOKENS * STEP_Q * D];
        float converted[N_TOKENS * STEP_Q * D], expected[N_TOKENS * STEP_Q * D_V];
        float max[2][N_TOKENS * STEP_Q], sum[2][N_TOKENS * STEP_Q];
        kit_row(3, l, QUIRE_K, 1, k, COUNT(k));
        kit_row(3, l, QUIRE_V, 1, v, COUNT(v));
        kit_row(4, l, QUIRE_V, 1, dense, COUNT(dense));
        REF_OK(quire_step_append(step, l, k, v));
        for (size_t f = 0; f < COUNT(forms) * COUNT(forms); f++)
            for (int kind = 0; kind < N_LAYOUTS; kind++) {
                block q = block_open(forms[f % 3], (kind + 1) % N_LAYOUTS, N_TOKENS, STEP_Q, D);
                block out = block_open(forms[f / 3], kind, N_TOKENS, STEP_Q, D_V);
                put_queries(&q, dense, converted);
                quire_step_queries plain = {
                    .size = sizeof plain, .q = converted, .out = expected, .max = max[0], .sum = sum[0]};
                REF_OK(quire_step_attend_with(step, l, &plain));
                quire_step_queries other = {.size = sizeof other,
                                            .q_form = q.form,
                                            .out_form = out.form,
                                            .q = q.data,
                                            .q_token_stride = q.at.token * quire_value_bytes(q.form),
                                            .q_head_stride = q.at.head * quire_value_bytes(q.form),
                                            .out = out.data,
                                            .out_token_stride = out.at.token * quire_value_bytes(out.form),
                                            .out_head_stride = out.at.head * quire_value_bytes(out.form),
                                            .max = max[1],
                                            .sum = sum[1]};
                if (kind == DENSE) other.out_token_stride = other.out_head_stride = 0;
                REF_OK(quire_step_attend_with(step, l, &other));
                check_output(&out, expected, policy);
                assert_memory_equal(max[0], max[1], sizeof max[0]);
                assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
                quire_attend_options partial = {.size = sizeof partial, .flags = QUIRE_ATTEND_PARTIAL};
                other.options = &partial;
                assert_int_equal(quire_step_attend_with(step, l, &other),
                                 out.form == QUIRE_F32 ? QUIRE_OK : QUIRE_EINVAL);
                other.options = NULL;
                other.q_form = QUIRE_MLX;
                assert_int_equal(quire_step_attend_with(step, l, &other), QUIRE_EINVAL);
                free(q.data);
                free(out.data);
            }
    }
    REF_OK(quire_step_commit(step));
    for (int i = 0; i < 3; i++) quire_seq_destroy(seqs[i]);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

static void steps(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"r4/a4g64", "f32", "q8_0/r3,sinks=64:f16,window=a8g32",
                                           "f16/h:q4_0,edge=1:r8,sinks=70:bf16"};
    for (size_t i = 0; i < COUNT(policies); i++) check_steps(policies[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(jobs), cmocka_unit_test(one_stride),
                                       cmocka_unit_test(refusals), cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
