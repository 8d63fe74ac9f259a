/* SPDX-License-Identifier: MIT */
/* attend.gold: attention with every option, through sequences, through lists of tiles, and in two partial results. */
#include "golden.h"
#include "support/reference.h"

#include <math.h>

#define TOLERANCE 1e-5
#define MOST_CASES 100

enum { MOST_SEQS = 8, NAME = 32 };

typedef struct golden_case {
    char name[NAME];
    uint32_t n_seqs, n_q, n_kv, n_queries, n_keys, d_k, d_v;
    float scale;
    uint32_t causal, window, ring_tokens, ring_sinks;
    float softcap;
    uint32_t alibi, sinks, mask, mask_heads, v_in_k;
} golden_case;

/* A case with its arrays and what all ways of running it share. */
typedef struct loaded_case {
    golden_case c;
    const float *q, *k, *v, *alibi, *sinks, *mask;
    const int32_t *lens;
    const double *out, *lse;
    quire_attend_options options;
    quire_mask masks[MOST_SEQS];
    size_t n_rows; /* of the output */
    float *got, *max, *sum;
} loaded_case;

static uint32_t read_index(const gold_file *file, golden_case *cases)
{
    const gold_array *index = golden_array(file, "index");
    char *text = ref_alloc(index->bytes + 1, 1);
    memcpy(text, index->data, index->bytes);
    uint32_t n = 0;
    for (char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        golden_case *c = &cases[n];
        int got = sscanf(line + 1, "%31s %u %u %u %u %u %u %u %f %u %u %u %u %f %u %u %u %u %u", c->name,
                         &c->n_seqs, &c->n_q, &c->n_kv, &c->n_queries, &c->n_keys, &c->d_k, &c->d_v,
                         &c->scale, &c->causal, &c->window, &c->ring_tokens, &c->ring_sinks, &c->softcap,
                         &c->alibi, &c->sinks, &c->mask, &c->mask_heads, &c->v_in_k);
        if (got != 19 || c->n_seqs > MOST_SEQS) fail_msg("index line %u: %d fields", n, got);
        assert_true(++n < MOST_CASES);
    }
    free(text);
    return n;
}

static const float *floats(const gold_file *file, const char *name, const char *part, uint32_t wanted)
{
    if (!wanted) return NULL;
    const gold_array *array = golden_array(file, "%s_%s", name, part);
    assert_string_equal(array->type, "f32");
    return (const float *)array->data;
}

static loaded_case load(const gold_file *file, const golden_case *c)
{
    loaded_case l = {.c = *c, .n_rows = (size_t)c->n_seqs * c->n_queries * c->n_q};
    l.q = floats(file, c->name, "q", 1);
    l.k = floats(file, c->name, "k", 1);
    l.v = floats(file, c->name, "v", !c->v_in_k);
    l.alibi = floats(file, c->name, "alibi", c->alibi);
    l.sinks = floats(file, c->name, "sinks", c->sinks);
    l.mask = floats(file, c->name, "mask", c->mask);
    l.lens = (const int32_t *)golden_array(file, "%s_lens", c->name)->data;
    l.out = (const double *)golden_array(file, "%s_out", c->name)->data;
    l.lse = (const double *)golden_array(file, "%s_lse", c->name)->data;
    l.options = (quire_attend_options){.size = sizeof(quire_attend_options),
                                       .flags = c->causal ? 0 : QUIRE_ATTEND_BIDIRECTIONAL,
                                       .scale = c->scale,
                                       .softcap = c->softcap,
                                       .alibi = l.alibi,
                                       .sink_logits = l.sinks};
    for (uint32_t b = 0; b < c->n_seqs && c->mask; b++) /* [B, mask heads, L, S] */
        l.masks[b] = (quire_mask){
            .size = sizeof(quire_mask),
            .form = QUIRE_F32,
            .data = l.mask + (size_t)b * c->mask_heads * c->n_queries * c->n_keys,
            .query_stride = sizeof(float) * c->n_keys,
            .head_stride = c->mask_heads == 1 ? 0 : sizeof(float) * c->n_queries * c->n_keys,
            .n_keys = c->n_keys,
        };
    l.got = ref_alloc(l.n_rows * c->d_v, sizeof(float));
    l.max = ref_alloc(l.n_rows, sizeof(float));
    l.sum = ref_alloc(l.n_rows, sizeof(float));
    for (size_t i = 0; i < l.n_rows * c->d_v; i++) l.got[i] = NAN; /* every value must be written */
    return l;
}

static void unload(loaded_case *l)
{
    free(l->got);
    free(l->max);
    free(l->sum);
}

/* The sinks' term is not part of max and sum. */
static double lse_with_sink(const loaded_case *l, size_t row)
{
    double lse = l->sum[row] == 0 ? -INFINITY : (double)l->max[row] + log((double)l->sum[row]);
    double sink = l->sinks ? (double)l->sinks[row % l->c.n_q] : -INFINITY;
    double top = fmax(lse, sink);
    return top == -INFINITY ? top : top + log(exp(lse - top) + exp(sink - top));
}

/* Output and, unless it was divided elsewhere, log-sum-exp. Returns the number of rows that see nothing. */
static uint32_t compare(const loaded_case *l, const char *way)
{
    uint32_t d = l->c.d_v, n_blind = 0;
    for (size_t i = 0; i < l->n_rows; i++) {
        const float *got = l->got + i * d;
        const double *want = l->out + i * d;
        bool blind = l->sum[i] == 0;
        for (uint32_t c = 0; c < d; c++)
            if (blind && (got[c] != 0 || want[c] != 0))
                fail_msg("%s, %s, row %zu sees nothing: %.9g, expected %.9g", l->c.name, way, i,
                         (double)got[c], want[c]);
        n_blind += blind;
        double norm = 0, difference = 0, lse = lse_with_sink(l, i), lse_want = l->lse[i];
        for (uint32_t c = 0; c < d; c++) {
            norm += want[c] * want[c];
            difference += ((double)got[c] - want[c]) * ((double)got[c] - want[c]);
        }
        if (!(sqrt(difference) <= TOLERANCE * sqrt(norm)))
            fail_msg("%s, %s, row %zu (head %zu): error %.3g, first channel %.9g, expected %.9g", l->c.name,
                     way, i, i % l->c.n_q, sqrt(difference / norm), (double)got[0], want[0]);
        if (lse != lse_want && !(fabs(lse - lse_want) <= TOLERANCE * fmax(1, fabs(lse_want))))
            fail_msg("%s, %s, row %zu: log-sum-exp %.9g, expected %.9g", l->c.name, way, i, lse, lse_want);
    }
    return n_blind;
}

/* ---------------------------------------------------------------- sequences */

static void run_steps(loaded_case *l)
{
    const golden_case *c = &l->c;
    quire_layer layer = {c->n_q, c->n_kv, c->d_k, c->d_v, c->window, c->v_in_k};
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .layer_stride = sizeof(quire_layer),
                               .layers = &layer};
    ref_cache cache = ref_open(&geometry, "f32,window=f32", NULL, NULL);
    quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = c->ring_tokens,
                              .sinks = c->ring_sinks};
    quire_seq *seq[MOST_SEQS];
    uint32_t before[MOST_SEQS], now[MOST_SEQS];
    for (uint32_t b = 0; b < c->n_seqs; b++) {
        seq[b] = ref_seq(&cache, &ring);
        before[b] = (uint32_t)l->lens[b] - c->n_queries;
        now[b] = c->n_queries;
    }
    for (int part = 0; part < 2; part++) {
        quire_step *step = NULL;
        REF_OK(quire_step_begin(&step, cache.pool, seq, part ? now : before, c->n_seqs));
        for (uint32_t b = 0; b < c->n_seqs; b++) {
            size_t row = ((size_t)b * c->n_keys + (part ? before[b] : 0)) * c->n_kv;
            quire_rows k = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = l->k + row * c->d_k};
            quire_rows v = {
                .size = sizeof(quire_rows), .form = QUIRE_F32, .data = l->v ? l->v + row * c->d_v : NULL};
            REF_OK(quire_step_append_rows(step, 0, b, &k, &v));
        }
        if (part)
            REF_OK(quire_step_attend_with(step, 0,
                                          &(quire_step_queries){.size = sizeof(quire_step_queries),
                                                                .q = l->q,
                                                                .out = l->got,
                                                                .max = l->max,
                                                                .sum = l->sum,
                                                                .options = &l->options,
                                                                .masks = c->mask ? l->masks : NULL,
                                                                .mask_stride = sizeof *l->masks}));
        REF_OK(quire_step_commit(step));
    }
    for (uint32_t b = 0; b < c->n_seqs; b++) quire_seq_destroy(seq[b]);
    ref_close(&cache);
}

/* -------------------------------------------------------------------- tiles */

/* The tiles of one sequence, each of at most `rows` rows. */
typedef struct tile_list {
    quire_tile_format *k, *v;
    quire_tile_ref *tile;
    uint32_t n;
    uint8_t *memory;
} tile_list;

static tile_list make_tiles(const loaded_case *l, uint32_t b, uint32_t rows)
{
    const golden_case *c = &l->c;
    tile_list t = {.n = ((uint32_t)l->lens[b] + rows - 1) / rows};
    quire_tile_format_options k_options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = c->d_k,
                                           .d_v = c->v_in_k ? c->d_v : 0};
    quire_tile_format_options v_options = {sizeof(quire_tile_format_options), .side = QUIRE_V, .d = c->d_v};
    REF_OK(quire_tile_format_create(&t.k, "f32", &k_options));
    REF_OK(quire_tile_format_create(&t.v, "f32", &v_options));
    size_t k_bytes = quire_tile_bytes(t.k), v_bytes = quire_tile_bytes(t.v), used = 0;
    t.tile = ref_alloc(t.n, sizeof *t.tile);
    t.memory = aligned_alloc(64, t.n * c->n_kv * (k_bytes + v_bytes));
    memset(t.memory, 0, t.n * c->n_kv * (k_bytes + v_bytes));
    for (uint32_t i = 0; i < t.n; i++) {
        uint32_t first = i * rows, left = (uint32_t)l->lens[b] - first, n = left < rows ? left : rows;
        uint8_t *k = t.memory + used, *v = k + k_bytes; /* K and V of a head side by side */
        for (uint32_t h = 0; h < c->n_kv; h++) {
            size_t row = ((size_t)b * c->n_keys + first) * c->n_kv + h;
            quire_rows k_rows = {.size = sizeof(quire_rows),
                                 .form = QUIRE_F32,
                                 .data = l->k + row * c->d_k,
                                 .token_stride = sizeof(float) * c->n_kv * c->d_k};
            quire_rows v_rows = {.size = sizeof(quire_rows),
                                 .form = QUIRE_F32,
                                 .data = l->v ? l->v + row * c->d_v : NULL,
                                 .token_stride = sizeof(float) * c->n_kv * c->d_v};
            REF_OK(quire_tile_encode(t.k, h, k + h * (k_bytes + v_bytes), 0, n, &k_rows, NULL));
            if (l->v) REF_OK(quire_tile_encode(t.v, h, v + h * (k_bytes + v_bytes), 0, n, &v_rows, NULL));
        }
        t.tile[i] = (quire_tile_ref){.k = k,
                                     .v = l->v ? v : NULL,
                                     .k_head_stride = k_bytes + v_bytes,
                                     .v_head_stride = k_bytes + v_bytes,
                                     .k_format = t.k,
                                     .v_format = t.v,
                                     .first = first,
                                     .n_rows = n};
        used += c->n_kv * (k_bytes + v_bytes);
    }
    return t;
}

static void free_tiles(tile_list *t)
{
    quire_tile_format_destroy(t->k);
    quire_tile_format_destroy(t->v);
    free(t->tile);
    free(t->memory);
}

static quire_attend_job job_of(const loaded_case *l, uint32_t b, const quire_tile_ref *tiles, uint32_t n)
{
    const golden_case *c = &l->c;
    size_t row = (size_t)b * c->n_queries * c->n_q;
    return (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                              .tiles = tiles,
                              .n_tiles = n,
                              .n_q_heads = c->n_q,
                              .n_kv_heads = c->n_kv,
                              .d_k = c->d_k,
                              .d_v = c->d_v,
                              .n_queries = c->n_queries,
                              .first_query = (uint32_t)l->lens[b] - c->n_queries,
                              .window = c->window,
                              .ring_tokens = c->ring_tokens,
                              .ring_sinks = c->ring_sinks,
                              .q = l->q + row * c->d_k,
                              .out = l->got + row * c->d_v,
                              .max = l->max + row,
                              .sum = l->sum + row,
                              .mask = c->mask ? &l->masks[b] : NULL};
}

/* All sequences of a case in one call. */
static void run_tiles(loaded_case *l, uint32_t rows)
{
    quire_workspace *workspace = NULL;
    quire_attend_job job[MOST_SEQS];
    tile_list list[MOST_SEQS];
    REF_OK(quire_workspace_create(&workspace, NULL, NULL));
    for (uint32_t b = 0; b < l->c.n_seqs; b++) {
        list[b] = make_tiles(l, b, rows);
        job[b] = job_of(l, b, list[b].tile, list[b].n);
    }
    REF_OK(quire_attend(workspace, &l->options, job, l->c.n_seqs, sizeof(quire_attend_job)));
    for (uint32_t b = 0; b < l->c.n_seqs; b++) free_tiles(&list[b]);
    quire_workspace_destroy(workspace);
}

/* Each sequence as two jobs over parts of its tiles, joined afterwards. cut: tiles of the first, in tenths. */
static void run_parts(loaded_case *l, uint32_t rows, uint32_t cut)
{
    const golden_case *c = &l->c;
    size_t n_rows = (size_t)c->n_queries * c->n_q;
    float *acc = ref_alloc(n_rows * c->d_v, sizeof *acc), *max = ref_alloc(n_rows, sizeof *max),
          *sum = ref_alloc(n_rows, sizeof *sum);
    quire_attend_options options = l->options;
    options.flags |= QUIRE_ATTEND_PARTIAL;
    quire_workspace *workspace = NULL;
    REF_OK(quire_workspace_create(&workspace, NULL, NULL));
    for (uint32_t b = 0; b < c->n_seqs; b++) {
        tile_list list = make_tiles(l, b, rows);
        uint32_t n = list.n * cut / 10;
        quire_attend_job job[2] = {job_of(l, b, list.tile, n), job_of(l, b, list.tile + n, list.n - n)};
        job[1].out = acc;
        job[1].max = max;
        job[1].sum = sum;
        REF_OK(quire_attend(workspace, &options, job, 2, sizeof(quire_attend_job)));
        quire_attend_merge(job[0].out, job[0].max, job[0].sum, acc, max, sum, (uint32_t)n_rows, c->d_v);
        quire_attend_finish(job[0].out, job[0].max, job[0].sum, (uint32_t)n_rows, c->d_v, l->sinks, c->n_q);
        free_tiles(&list);
    }
    quire_workspace_destroy(workspace);
    free(acc);
    free(max);
    free(sum);
}

/* -------------------------------------------------------------------- tests */

typedef void way_fn(loaded_case *l, uint32_t a, uint32_t b);

static void way_steps(loaded_case *l, uint32_t a, uint32_t b)
{
    (void)a;
    (void)b;
    run_steps(l);
}

static void way_tiles(loaded_case *l, uint32_t rows, uint32_t b)
{
    (void)b;
    run_tiles(l, rows);
}

static void every_case(const char *way, way_fn *run, uint32_t a, uint32_t b)
{
    static golden_case cases[MOST_CASES];
    gold_file *file = golden_open("attend.gold");
    uint32_t n = read_index(file, cases), n_blind = 0;
    for (uint32_t i = 0; i < n; i++) {
        loaded_case l = load(file, &cases[i]);
        run(&l, a, b);
        n_blind += compare(&l, way);
        unload(&l);
    }
    assert_int_equal(n, 47);
    assert_true(n_blind > 0); /* rows that see nothing are among the cases */
    gold_close(file);
}

static void through_sequences(void **unused)
{
    (void)unused;
    every_case("steps", way_steps, 0, 0);
}

static void through_tiles(void **unused)
{
    (void)unused;
    every_case("tiles of 64", way_tiles, 64, 0);
    every_case("tiles of 7", way_tiles, 7, 0);
}

static void in_two_parts(void **unused)
{
    (void)unused;
    every_case("parts, tiles of 64", run_parts, 64, 5);
    every_case("parts, tiles of 7", run_parts, 7, 5);
    every_case("parts, the first one empty", run_parts, 16, 0);
    every_case("parts, the second one empty", run_parts, 16, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(through_sequences),
        cmocka_unit_test(through_tiles),
        cmocka_unit_test(in_two_parts),
    };
    return cmocka_run_group_tests_name("golden_attend", tests, NULL, NULL);
}
