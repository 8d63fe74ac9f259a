/* SPDX-License-Identifier: MIT */
/* batch.gold: mlx-lm's batch operations replayed on ours, and its left-padded arrays taken in and given back. */
#include "golden.h"
#include "support/reference.h"

#include <math.h>

enum { N_KV = 2, D_K = 32, D_V = 16, MOST_SEQS = 8, MOST_TOKENS = 512, D_PACKED = 128 };

static const quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = N_KV,
                                        .n_kv_heads = N_KV,     .d_k = D_K,    .d_v = D_V};

/* Every value says whose it is: token, layer, side, head and channel. Whole numbers in f32. */
static float value_of(uint32_t token, uint32_t layer, quire_side side, uint32_t head, uint32_t c)
{
    float x = (float)(token * 256 + layer * 128 + head * 64 + c);
    return side == QUIRE_K ? x : -x;
}

static uint32_t side_d(quire_side side)
{
    return side == QUIRE_K ? D_K : D_V;
}

static void fill_rows(float *to, const uint32_t *token, uint32_t n, uint32_t layer, quire_side side)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < N_KV; h++)
            for (uint32_t c = 0; c < side_d(side); c++) *to++ = value_of(token[t], layer, side, h, c);
}

/* --------------------------------------------------------- the operations */

/* token: those of all sequences, one sequence after the other. */
static void append(const ref_cache *cache, quire_seq *const *seqs, const uint32_t *n_tokens, uint32_t n_seqs,
                   const uint32_t *token)
{
    static float k[MOST_TOKENS * N_KV * D_K], v[MOST_TOKENS * N_KV * D_V];
    quire_step *step = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_seqs; i++) n += n_tokens[i];
    assert_true(n <= MOST_TOKENS);
    REF_OK(quire_step_begin(&step, cache->pool, seqs, n_tokens, n_seqs));
    for (uint32_t layer = 0; layer < geometry.n_layers; layer++) {
        fill_rows(k, token, n, layer, QUIRE_K);
        fill_rows(v, token, n, layer, QUIRE_V);
        REF_OK(quire_step_append(step, layer, k, v));
    }
    REF_OK(quire_step_commit(step));
}

/* A batch of sequences written "first:n ...", or of n empty ones. */
static quire_batch *make_batch(const ref_cache *cache, const char *args, uint32_t n_empty)
{
    quire_seq *seq[MOST_SEQS];
    quire_batch *batch = NULL;
    uint32_t n_seqs = 0, token[MOST_TOKENS];
    unsigned first, n;
    for (int used; sscanf(args, " %u:%u%n", &first, &n, &used) == 2; args += used) {
        for (uint32_t t = 0; t < n; t++) token[t] = first + t;
        assert_true(n_seqs < MOST_SEQS);
        seq[n_seqs] = ref_seq(cache, NULL);
        append(cache, &seq[n_seqs++], &(uint32_t){n}, 1, token);
    }
    for (; n_empty; n_empty--) seq[n_seqs++] = ref_seq(cache, NULL);
    REF_OK(quire_batch_merge(&batch, cache->pool, seq, n_seqs));
    for (uint32_t i = 0; i < n_seqs; i++) quire_seq_destroy(seq[i]);
    return batch;
}

/* Tokens written "T,T T ..." to the sequences of a batch. */
static void append_tokens(const ref_cache *cache, quire_batch *batch, const char *args)
{
    uint32_t n_tokens[MOST_SEQS] = {0}, token[MOST_TOKENS], n = 0, n_seqs;
    quire_seq *const *seqs = quire_batch_seqs(batch, &n_seqs);
    const char *at = args;
    for (uint32_t i = 0; i < n_seqs; i++) {
        do {
            char *end;
            assert_true(*at == ' ' || *at == ',');
            token[n++] = (uint32_t)strtoul(at + 1, &end, 10);
            n_tokens[i]++;
            at = end;
        } while (*at == ',');
    }
    append(cache, seqs, n_tokens, n_seqs, token);
}

static void filter(quire_batch *batch, const char *args)
{
    uint32_t index[MOST_SEQS], n = 0;
    for (char *end; *args == ' '; args = end) index[n++] = (uint32_t)strtoul(args + 1, &end, 10);
    REF_OK(quire_batch_filter(batch, index, n));
}

static void trim(quire_batch *batch, uint32_t n_tokens)
{
    uint32_t n;
    quire_seq *const *seqs = quire_batch_seqs(batch, &n);
    for (uint32_t i = 0; i < n; i++) REF_OK(quire_seq_trim(seqs[i], quire_seq_length(seqs[i]) - n_tokens));
}

/* ------------------------------------------------------------- comparison */

/* mlx-lm's array: [sequence][head][column][channel]. */
static quire_rows_out mlx_arrays(float *data, uint32_t n_columns, uint32_t d)
{
    size_t row = sizeof(float) * d;
    return (quire_rows_out){.size = sizeof(quire_rows_out),
                            .form = QUIRE_F32,
                            .data = data,
                            .token_stride = row,
                            .head_stride = row * n_columns,
                            .seq_stride = row * n_columns * N_KV};
}

static void compare_side(const char *op, const quire_batch *batch, uint32_t n, uint32_t layer,
                         quire_side side, const gold_array *rows, const int32_t *left)
{
    uint32_t n_columns = (uint32_t)rows->dim[1], d = side_d(side), padding[MOST_SEQS];
    size_t floats = (size_t)n * N_KV * n_columns * d;
    float *data = ref_alloc(floats, sizeof *data);
    for (size_t i = 0; i < floats; i++) data[i] = NAN;
    quire_rows_out out = mlx_arrays(data, n_columns, d);
    REF_OK(quire_batch_export(batch, layer, side, n_columns, padding, &out));
    for (uint32_t i = 0; i < n; i++) {
        if (padding[i] != (uint32_t)left[i])
            fail_msg("%s: sequence %u is padded by %u, expected %d", op, i, padding[i], left[i]);
        for (uint32_t h = 0; h < N_KV; h++)
            for (uint32_t t = 0; t < n_columns; t++)
                for (uint32_t c = 0; c < d; c++) {
                    uint32_t token = (uint32_t)((const int32_t *)rows->data)[i * n_columns + t];
                    float want = t < padding[i] ? 0 : value_of(token, layer, side, h, c);
                    float got = data[((i * N_KV + h) * n_columns + t) * d + c];
                    if (got != want)
                        fail_msg("%s: layer %u, side %d, sequence %u, column %u, head %u, channel %u is %g, "
                                 "expected %g",
                                 op, layer, (int)side, i, t, h, c, (double)got, (double)want);
                }
    }
    free(data);
}

static void compare(const gold_file *file, uint32_t number, const char *op, const quire_batch *batch)
{
    const gold_array *rows = golden_array(file, "s%u_rows", number);
    const int32_t *left = golden_array(file, "s%u_left", number)->data;
    const int32_t *offset = golden_array(file, "s%u_offset", number)->data;
    uint32_t n;
    quire_seq *const *seqs = quire_batch_seqs(batch, &n);
    assert_int_equal(n, rows->dim[0]);
    for (uint32_t i = 0; i < n; i++)
        if (quire_seq_length(seqs[i]) != (uint32_t)offset[i])
            fail_msg("%s: sequence %u has %u tokens, expected %d", op, i, quire_seq_length(seqs[i]),
                     offset[i]);
    for (uint32_t layer = 0; layer < geometry.n_layers; layer++) {
        compare_side(op, batch, n, layer, QUIRE_K, rows, left);
        compare_side(op, batch, n, layer, QUIRE_V, rows, left);
    }
}

/* One operation; the new batch if it makes one. */
static quire_batch *perform(const ref_cache *cache, quire_batch *batch, const char *op, const char *args)
{
    if (!strcmp(op, "merge")) return make_batch(cache, args, 0);
    if (!strcmp(op, "new")) return make_batch(cache, "", (uint32_t)atoi(args));
    if (!strcmp(op, "extend")) {
        quire_batch *other = make_batch(cache, args, 0);
        REF_OK(quire_batch_extend(batch, other));
        quire_batch_destroy(other);
    } else if (!strcmp(op, "append") || !strcmp(op, "prefill")) {
        append_tokens(cache, batch, args);
    } else if (!strcmp(op, "filter")) {
        filter(batch, args);
    } else if (!strcmp(op, "trim")) {
        trim(batch, (uint32_t)atoi(args));
    } else {
        fail_msg("unknown operation %s", op);
    }
    return batch;
}

static void operations_of_mlx(void **unused)
{
    (void)unused;
    gold_file *file = golden_open("batch.gold");
    const gold_array *ops = golden_array(file, "ops");
    char *text = ref_alloc(ops->bytes + 1, 1);
    memcpy(text, ops->data, ops->bytes);
    ref_cache cache = ref_open(&geometry, "f32", NULL, NULL);
    quire_batch *batch = NULL;
    uint32_t number = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), number++) {
        char op[16];
        assert_int_equal(sscanf(line, "%15s", op), 1);
        const char *args = line + strlen(op);
        if (!strcmp(op, "extract")) {
            quire_seq *seq = NULL;
            quire_batch *one = NULL;
            REF_OK(quire_batch_extract(&seq, batch, (uint32_t)atoi(args)));
            REF_OK(quire_batch_merge(&one, cache.pool, &seq, 1));
            compare(file, number, line, one);
            quire_batch_destroy(one);
            quire_seq_destroy(seq);
            continue;
        }
        quire_batch *next = perform(&cache, batch, op, args);
        if (next != batch) quire_batch_destroy(batch);
        batch = next;
        compare(file, number, line, batch);
    }
    assert_int_equal(number, 43);
    quire_batch_destroy(batch);
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(cache.pool, &stats);
    assert_int_equal(stats.n_pages, 0);
    ref_close(&cache);
    free(text);
    gold_close(file);
}

/* ------------------------------------------------------- left-padded arrays */

static const uint32_t left_padding[] = {3, 0, 69, 70}; /* the last sequence is empty */
enum { N_PADDED = 4, N_COLUMNS = 70, N_ROWS = N_PADDED * N_KV * N_COLUMNS };

/* Rows [sequence][head][column] of `bytes` bytes: equal from the padding on, zeros in it. */
static void expect_rows(const char *what, const uint8_t *got, const uint8_t *want, size_t bytes)
{
    for (uint32_t r = 0; r < N_ROWS; r++) {
        bool padded = r % N_COLUMNS < left_padding[r / (N_KV * N_COLUMNS)];
        for (size_t i = 0; i < bytes; i++)
            if (got[r * bytes + i] != (padded ? 0 : want[r * bytes + i]))
                fail_msg("%s: sequence %u, head %u, column %u, byte %zu: %u, expected %u", what,
                         r / (N_KV * N_COLUMNS), r / N_COLUMNS % N_KV, r % N_COLUMNS, i, got[r * bytes + i],
                         padded ? 0 : want[r * bytes + i]);
    }
}

static uint8_t *random_bytes(uint64_t *state, size_t n)
{
    uint8_t *bytes = ref_alloc(n, 1);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)ref_random(state);
    return bytes;
}

/* Values of a float form that every form holds exactly; the padding keeps its random bytes, NaN among them. */
static void make_values(uint64_t *state, quire_form form, uint8_t *bytes, size_t per_row)
{
    for (size_t r = 0; r < N_ROWS; r++) {
        if (r % N_COLUMNS < left_padding[r / (N_KV * N_COLUMNS)]) continue;
        for (size_t c = 0; c < per_row; c++)
            quire_store_value(form, bytes, r * per_row + c, ((float)ref_below(state, 255) - 127) / 64);
    }
}

static quire_rows block(quire_form form, quire_form scale_form, uint8_t *const *array, size_t bytes,
                        size_t scale_bytes)
{
    return (quire_rows){.size = sizeof(quire_rows),
                        .form = form,
                        .scale_form = scale_form,
                        .data = array[0],
                        .scales = array[1],
                        .biases = array[2],
                        .token_stride = bytes,
                        .head_stride = bytes * N_COLUMNS,
                        .seq_stride = bytes * N_COLUMNS * N_KV,
                        .scale_token_stride = scale_bytes,
                        .scale_head_stride = scale_bytes * N_COLUMNS,
                        .scale_seq_stride = scale_bytes * N_COLUMNS * N_KV};
}

/* K and V of d 128 and 64 in a form, in and out again. bits 0: a float form. */
static void import_and_export(const char *policy, quire_form form, quire_form scale_form, uint32_t bits,
                              uint32_t group)
{
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1,   .n_q_heads = N_KV,
                        .n_kv_heads = N_KV,     .d_k = D_PACKED, .d_v = D_PACKED / 2};
    ref_cache cache = ref_open(&g, policy, NULL, NULL);
    uint64_t state = bits * 100 + (uint64_t)form;
    uint8_t *array[2][3] = {{0}};
    quire_rows rows[2];
    size_t bytes[2], scale_bytes[2];
    for (int s = 0; s < 2; s++) {
        uint32_t d = s ? g.d_v : g.d_k, n_groups = bits ? (d + group - 1) / group : 0;
        bytes[s] = bits ? (size_t)d * bits / 8 : d * quire_value_bytes(form);
        scale_bytes[s] = n_groups * quire_value_bytes(scale_form);
        array[s][0] = random_bytes(&state, N_ROWS * bytes[s]);
        for (int i = 1; i < 3; i++) array[s][i] = random_bytes(&state, N_ROWS * scale_bytes[s]);
        if (bits) make_values(&state, scale_form, array[s][1], n_groups);
        if (bits) make_values(&state, scale_form, array[s][2], n_groups);
        if (!bits) make_values(&state, form, array[s][0], d);
        rows[s] = block(form, scale_form, array[s], bytes[s], scale_bytes[s]);
    }
    quire_batch *batch = NULL;
    REF_OK(quire_batch_import(&batch, cache.pool, N_PADDED, N_COLUMNS, left_padding, &rows[0], &rows[1],
                              sizeof(quire_rows)));
    for (int s = 0; s < 2; s++) {
        uint8_t *back[3];
        uint32_t padding[N_PADDED];
        for (int i = 0; i < 3; i++) back[i] = random_bytes(&state, N_ROWS * (i ? scale_bytes[s] : bytes[s]));
        quire_rows_out out = {.size = sizeof(quire_rows_out),
                              .form = form,
                              .scale_form = scale_form,
                              .data = back[0],
                              .scales = back[1],
                              .biases = back[2],
                              .token_stride = rows[s].token_stride,
                              .head_stride = rows[s].head_stride,
                              .seq_stride = rows[s].seq_stride,
                              .scale_token_stride = rows[s].scale_token_stride,
                              .scale_head_stride = rows[s].scale_head_stride,
                              .scale_seq_stride = rows[s].scale_seq_stride};
        REF_OK(quire_batch_export(batch, 0, s ? QUIRE_V : QUIRE_K, N_COLUMNS, padding, &out));
        assert_memory_equal(padding, left_padding, sizeof padding);
        char what[64];
        for (int i = 0; i < 3; i++) {
            snprintf(what, sizeof what, "%s, form %d, scales %d, side %d, array %d", policy, (int)form,
                     (int)scale_form, s, i);
            expect_rows(what, back[i], array[s][i], i ? scale_bytes[s] : bytes[s]);
            free(back[i]);
            free(array[s][i]);
        }
    }
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(cache.pool, &stats);
    assert_int_equal(stats.nan + stats.saturated + stats.recoded, 0);
    quire_batch_destroy(batch);
    ref_close(&cache);
}

static void padded_floats_come_back(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"f32", "f16", "bf16"};
    for (int p = 0; p < 3; p++) {
        import_and_export(policies[p], QUIRE_F32, QUIRE_F32, 0, 0);
        import_and_export(policies[p], QUIRE_F16, QUIRE_F32, 0, 0);
        import_and_export(policies[p], QUIRE_BF16, QUIRE_F32, 0, 0);
    }
}

static void padded_mlx_arrays_come_back(void **unused)
{
    (void)unused;
    static const quire_form scale_forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};
    for (int i = 0; i < 3; i++) {
        import_and_export("a4g64", QUIRE_MLX, scale_forms[i], 4, 64);
        import_and_export("a8g32", QUIRE_MLX, scale_forms[i], 8, 32);
        import_and_export("a3g64", QUIRE_MLX, scale_forms[i], 3, 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_of_mlx),
        cmocka_unit_test(padded_floats_come_back),
        cmocka_unit_test(padded_mlx_arrays_come_back),
    };
    return cmocka_run_group_tests_name("golden_batch", tests, NULL, NULL);
}
