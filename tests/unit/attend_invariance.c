/* SPDX-License-Identifier: MIT */
/* Outputs have the same bits whatever the number of threads, the order of tasks, the other sequences of the step and
 * the chunks a prompt was cut into. */
#include "support/reference.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    D = 32,
    N_LAYERS = 2,
    N_TOKENS = 2600,
    MOST_KV = 2,
    MOST_Q = 4,
    MOST_SEQS = 3,
    MOST_STEP = 1100,
    N_LAST = 18
};

/* One layer sees everything, over three splits of 1024 tokens; the other has a window and more heads. */
static const quire_layer layers[N_LAYERS] = {
    {.n_q_heads = 2, .n_kv_heads = 1, .d_k = D, .d_v = D},
    {.n_q_heads = 4, .n_kv_heads = 2, .d_k = D, .d_v = D, .window = 300},
};
static const quire_geometry geometry = {sizeof(quire_geometry), .n_layers = N_LAYERS,
                                        .layer_stride = sizeof(quire_layer), .layers = layers};

static const char *const policies[] = {
    "f16,window=f16",         "a4g64,window=a4g64",         "k8v4,window=r4",         "r5/r3,window=r5/r3",
    "c:r4/r4,window=c:r4/r4", "q8_0/q4_0,window=q8_0/q4_0", "h:a4g64,window=h:a4g64", "tq3,window=tq3"};

/* Sanitizers slow kernels down ten to thirty times, and what they look for here does not depend on codecs. */
#if defined(__SANITIZE_THREAD__)
#define N_POLICIES 1u
#elif defined(__SANITIZE_ADDRESS__)
#define N_POLICIES 2u
#else
#define N_POLICIES (uint32_t) COUNT(policies)
#endif

/* Positions whose outputs are kept: edges of tiles and splits, the window's length, some in between. */
static const uint32_t kept[] = {0,    1,    63,   64,   65,   299,  300,  1023,        1024,
                                1025, 1303, 1500, 2047, 2048, 2303, 2560, N_TOKENS - 1};
#define N_KEPT COUNT(kept)

typedef float results[N_KEPT][N_LAYERS][MOST_Q * D];

/* Rows of both layers, the same for every run. */
static float all_k[N_LAYERS][N_TOKENS * MOST_KV * D], all_v[N_LAYERS][N_TOKENS * MOST_KV * D],
    all_q[N_LAYERS][N_TOKENS * MOST_Q * D];
static quire_profile *profile;

static int make_rows(void **unused)
{
    (void)unused;
    uint64_t state = 7;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        ref_k_rows(&state, all_k[l], N_TOKENS, layers[l].n_kv_heads, D);
        ref_normals(&state, all_v[l], (size_t)N_TOKENS * layers[l].n_kv_heads * D, 1);
        ref_q_rows(&state, all_q[l], N_TOKENS, layers[l].n_q_heads, D);
    }
    profile = ref_profile(&geometry);
    return 0;
}

static int drop_rows(void **unused)
{
    (void)unused;
    quire_profile_destroy(profile);
    return 0;
}

/* --------------------------------------------------------------------- runs */

typedef struct run_options {
    const char *policy, *what;
    uint32_t chunk;
    bool in_batch; /* two other sequences come first in every step */
    const quire_seq_options *ring;
    const quire_executor *executor;
} run_options;

static bool is_kept(uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < N_KEPT; i++)
        if (kept[i] >= from && kept[i] < to) return true;
    return false;
}

/* n rows of `width` floats from row `first` on, once per sequence. */
static const float *gather(const float *from, size_t width, const uint32_t *first, const uint32_t *n,
                           uint32_t n_seqs, float *to)
{
    float *at = to;
    for (uint32_t s = 0; s < n_seqs; s++) {
        memcpy(at, from + first[s] * width, sizeof *at * n[s] * width);
        at += n[s] * width;
    }
    return to;
}

/* One step of all sequences, the watched one last. */
static void take_step(const ref_cache *cache, quire_seq *const *seq, const uint32_t *n, uint32_t n_seqs,
                      results out)
{
    static float k[MOST_STEP * MOST_KV * D], v[MOST_STEP * MOST_KV * D], q[MOST_STEP * MOST_Q * D],
        got[MOST_STEP * MOST_Q * D];
    quire_step *step = NULL;
    uint32_t first[MOST_SEQS], before = 0, length = quire_seq_length(seq[n_seqs - 1]);
    for (uint32_t s = 0; s < n_seqs; s++) first[s] = quire_seq_length(seq[s]);
    for (uint32_t s = 0; s + 1 < n_seqs; s++) before += n[s];
    REF_OK(quire_step_begin(&step, cache->pool, seq, n, n_seqs));
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        size_t kv_width = (size_t)layers[l].n_kv_heads * D, q_width = (size_t)layers[l].n_q_heads * D;
        REF_OK(quire_step_append(step, l, gather(all_k[l], kv_width, first, n, n_seqs, k),
                                 gather(all_v[l], kv_width, first, n, n_seqs, v)));
        if (!is_kept(length, length + n[n_seqs - 1])) continue;
        REF_OK(quire_step_attend(step, l, gather(all_q[l], q_width, first, n, n_seqs, q), got));
        for (uint32_t i = 0; i < N_KEPT; i++)
            if (kept[i] >= length && kept[i] < length + n[n_seqs - 1])
                memcpy(out[i][l], got + (before + kept[i] - length) * q_width, sizeof *got * q_width);
    }
    REF_OK(quire_step_commit(step));
}

/* The whole prompt; the cache and the sequence stay open. */
static void run(const run_options *o, ref_cache *cache, quire_seq **seq, results out)
{
    quire_seq *all[MOST_SEQS];
    uint32_t n_seqs = o->in_batch ? MOST_SEQS : 1;
    memset(out, 0, sizeof(results));
    *cache = ref_open(&geometry, o->policy, profile, o->executor);
    for (uint32_t s = 0; s < n_seqs; s++) all[s] = ref_seq(cache, o->ring);
    *seq = all[n_seqs - 1];
    while (quire_seq_length(*seq) < N_TOKENS) {
        uint32_t left = N_TOKENS - quire_seq_length(*seq), n[MOST_SEQS] = {5, 33, 0};
        n[n_seqs - 1] = left < o->chunk ? left : o->chunk;
        take_step(cache, all, n, n_seqs, out);
    }
    for (uint32_t s = 0; s + 1 < n_seqs; s++) quire_seq_destroy(all[s]);
}

static void run_and_close(const run_options *o, results out)
{
    ref_cache cache;
    quire_seq *seq;
    run(o, &cache, &seq, out);
    quire_seq_destroy(seq);
    ref_close(&cache);
}

static void expect_same(const run_options *o, results got, results want)
{
    for (uint32_t i = 0; i < N_KEPT; i++)
        for (uint32_t l = 0; l < N_LAYERS; l++)
            for (uint32_t c = 0; c < layers[l].n_q_heads * D; c++)
                if (memcmp(&got[i][l][c], &want[i][l][c], sizeof(float)))
                    fail_msg("%s, %s: position %u, layer %u, value %u is %.9g, alone and token by token %.9g",
                             o->policy, o->what, kept[i], l, c, (double)got[i][l][c], (double)want[i][l][c]);
}

static void check_finite(const run_options *o, results got)
{
    for (uint32_t i = 0; i < N_KEPT; i++)
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            float sum = 0; /* of squares: a row of zeros or NaN would compare equal to itself */
            for (uint32_t c = 0; c < layers[l].n_q_heads * D; c++) sum += got[i][l][c] * got[i][l][c];
            if (!(sum > 1e-6f)) fail_msg("%s: position %u, layer %u: no output", o->policy, kept[i], l);
        }
}

/* -------------------------------------------------------------------- tests */

static void try_chunks(const char *policy, const quire_seq_options *ring)
{
    static results alone, got;
    run_options o = {.policy = policy, .what = "chunks of 1", .chunk = 1, .ring = ring};
    run_and_close(&o, alone);
    check_finite(&o, alone);
    static const uint32_t chunks[] = {17, 64, 1000};
    for (uint32_t i = 0; i < COUNT(chunks); i++) {
        char what[64];
        snprintf(what, sizeof what, "%schunks of %u", ring ? "ring, " : "", chunks[i]);
        o.what = what;
        o.chunk = chunks[i];
        run_and_close(&o, got);
        expect_same(&o, got, alone);
    }
    o.what = ring ? "ring, in a batch" : "in a batch";
    o.chunk = 64;
    o.in_batch = true;
    run_and_close(&o, got);
    expect_same(&o, got, alone);
}

static void chunks_and_batches(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < N_POLICIES; i++) try_chunks(policies[i], NULL);
}

/* Pages go at other times when chunks are larger; sinks of another codec make lists of two formats. */
static void chunks_and_batches_in_rings(void **unused)
{
    (void)unused;
    static const char *const of_rings[] = {"a4g64,window=a4g64", "c:r4/r4,window=r4", "r5/r3,sinks=4:f16"};
    static const quire_seq_options rings[] = {
        {sizeof(quire_seq_options), .max_tokens = 1300, .sinks = 4},
        {sizeof(quire_seq_options), .max_tokens = 200, .sinks = 70, .spare_tokens = 9}};
    for (uint32_t i = 0; i < COUNT(of_rings) && i < N_POLICIES; i++) try_chunks(of_rings[i], &rings[0]);
    try_chunks(of_rings[2], &rings[1]);
}

enum { N_EXECUTORS = 6 };

/* 1, 2, 3 and 7 threads, and one thread that takes the tasks of 1 or 5 from the back. */
static void make_executors(quire_threads **team, quire_executor *executor, const char **name)
{
    static const uint32_t n_threads[] = {1, 2, 3, 7};
    static const char *const names[] = {"1 thread",  "2 threads",    "3 threads",
                                        "7 threads", "backwards, 1", "backwards, 5"};
    for (uint32_t i = 0; i < 4; i++) {
        REF_OK(quire_threads_create(&team[i], n_threads[i]));
        executor[i].size = sizeof executor[i];
        REF_OK(quire_threads_executor(team[i], &executor[i]));
    }
    executor[4] = ref_backwards(1);
    executor[5] = ref_backwards(5);
    for (uint32_t i = 0; i < N_EXECUTORS; i++) name[i] = names[i];
}

static void executors_of_a_pool(void **unused)
{
    (void)unused;
    static const char *const of_pools[] = {"f16,window=a4g64", "r5/r3,window=c:r4/r4"};
    static results alone, got;
    quire_threads *team[4];
    quire_executor executor[N_EXECUTORS];
    const char *name[N_EXECUTORS];
    make_executors(team, executor, name);
    for (uint32_t i = 0; i < COUNT(of_pools); i++) {
        run_options o = {.policy = of_pools[i], .what = "no executor", .chunk = 140};
        run_and_close(&o, alone);
        for (uint32_t e = 0; e < N_EXECUTORS; e++) {
            if (executor[e].n_threads == 1) continue; /* decides nothing in a pool */
            o.what = name[e];
            o.executor = &executor[e];
            run_and_close(&o, got);
            expect_same(&o, got, alone);
        }
    }
    for (uint32_t i = 0; i < 4; i++) quire_threads_destroy(team[i]);
}

/* Three jobs over the tiles of a sequence: the last queries of both layers, a single one, and a list so long and thin
 * that its parts come in several rounds. */
typedef struct tile_jobs {
    quire_tile_ref tile[N_LAYERS][64], sparse[64];
    quire_attend_job job[4];
    float out[4][N_LAST * MOST_Q * D];
} tile_jobs;

static void make_jobs(tile_jobs *t, const quire_seq *seq)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t l = i == 1, n = i < 2 ? N_LAST : 1;
        const quire_layer *s = &layers[l];
        uint32_t n_tiles = quire_seq_tiles(seq, l, t->tile[l], 64, sizeof(quire_tile_ref));
        assert_true(n_tiles <= 64);
        t->job[i] = (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                                       .tiles = t->tile[l],
                                       .n_tiles = n_tiles,
                                       .n_q_heads = s->n_q_heads,
                                       .n_kv_heads = s->n_kv_heads,
                                       .d_k = D,
                                       .d_v = D,
                                       .n_queries = n,
                                       .first_query = N_TOKENS - n,
                                       .window = s->window,
                                       .q = all_q[l] + (size_t)(N_TOKENS - n) * s->n_q_heads * D,
                                       .out = t->out[i]};
    }
    memcpy(t->sparse, t->tile[0], sizeof t->sparse);
    for (uint32_t i = 0; i < t->job[3].n_tiles; i++) t->sparse[i].first = i * 2048;
    t->job[3].tiles = t->sparse;
    t->job[3].n_queries = N_LAST; /* two blocks of 41 splits each */
    t->job[3].first_query = 1 << 20;
    t->job[3].q = all_q[0];
}

static void attend_with(tile_jobs *t, const quire_executor *executor, uint32_t first, uint32_t n)
{
    quire_workspace *workspace = NULL;
    memset(t->out, 0xff, sizeof t->out); /* NaN */
    REF_OK(quire_workspace_create(&workspace, executor, NULL));
    REF_OK(quire_attend(workspace, NULL, t->job + first, n, sizeof(quire_attend_job)));
    quire_workspace_destroy(workspace);
}

static void executors_of_a_workspace(void **unused)
{
    (void)unused;
    static results out;
    static tile_jobs t;
    static float alone[4][N_LAST * MOST_Q * D];
    quire_threads *team[4];
    quire_executor executor[N_EXECUTORS];
    const char *name[N_EXECUTORS];
    make_executors(team, executor, name);
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        ref_cache cache;
        quire_seq *seq;
        run_options o = {.policy = policies[i], .what = "tiles", .chunk = 64};
        run(&o, &cache, &seq, out);
        make_jobs(&t, seq);
        attend_with(&t, NULL, 0, 4);
        memcpy(alone, t.out, sizeof alone);
        /* The last query of the step that ended the prompt saw the same tiles. */
        assert_memory_equal(alone[2], out[N_KEPT - 1][0], sizeof(float) * layers[0].n_q_heads * D);
        for (uint32_t e = 0; e < N_EXECUTORS; e++)
            for (uint32_t j = executor[e].n_threads > 3 ? 0 : 4; j <= 4; j++) {
                /* Every job alone where that spreads one block over threads, then all at once. */
                uint32_t first = j % 4, n_jobs = j < 4 ? 1 : 4;
                attend_with(&t, &executor[e], first, n_jobs);
                for (uint32_t k = first; k < first + n_jobs; k++) {
                    size_t n = (size_t)t.job[k].n_queries * t.job[k].n_q_heads * D;
                    if (memcmp(t.out[k], alone[k], n * sizeof(float)))
                        fail_msg("%s, %s, job %u%s: %.9g, without threads %.9g", policies[i], name[e], k,
                                 j < 4 ? " alone" : "", (double)t.out[k][0], (double)alone[k][0]);
                }
            }
        quire_seq_destroy(seq);
        ref_close(&cache);
    }
    for (uint32_t i = 0; i < 4; i++) quire_threads_destroy(team[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_batches),
        cmocka_unit_test(chunks_and_batches_in_rings),
        cmocka_unit_test(executors_of_a_pool),
        cmocka_unit_test(executors_of_a_workspace),
    };
    return cmocka_run_group_tests_name("attend_invariance", tests, make_rows, drop_rows);
}
