/* SPDX-License-Identifier: MIT */
/* What a query does not see cannot reach its output: NaN, infinities and stray bytes in other sequences, in unused rows
 * and in hidden rows leave its bits as they are. */
#include "support/codec_sizes.h"
#include "support/reference.h"

#include "tile/tile.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    N_KV = 2,
    N_Q = 4,
    D = 64,
    D_LATENT = 32,
    N_TILES = 3,
    N_ROWS = 64 + 64 + 37,
    N_QUERIES = 6,
    N_CLEAN = 70
};

static quire_profile *profile;

static quire_geometry shape(bool v_in_k)
{
    return (quire_geometry){sizeof(quire_geometry), .n_layers = 1, .n_q_heads = N_Q,
                            .n_kv_heads = N_KV,     .d_k = D,      .d_v = v_in_k ? D_LATENT : D,
                            .v_in_k = v_in_k};
}

static int make_profile(void **unused)
{
    (void)unused;
    quire_geometry g = shape(false);
    profile = ref_profile(&g);
    return 0;
}

static int drop_profile(void **unused)
{
    (void)unused;
    quire_profile_destroy(profile);
    return 0;
}

/* "c:" codecs are for K; their plain form goes with them. */
static const char *v_codec(const char *k)
{
    return k[0] == 'c' && k[1] == ':' ? k + 2 : k;
}

static float bad_value(uint64_t *state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e38f, -65505.0f, 1e-45f};
    return bad[ref_below(state, COUNT(bad))];
}

static void expect_bits(const float *got, const float *want, size_t n, const char *codec, const char *what,
                        uint32_t query)
{
    for (size_t i = 0; i < n; i++)
        if (quire_bits_of(got[i]) != quire_bits_of(want[i]))
            fail_msg("%s, %s: query %u, value %zu is %.9g, expected %.9g", codec, what, query, i,
                     (double)got[i], (double)want[i]);
}

/* --------------------------------------------------------------- sequences */

typedef struct rows_of_seq {
    float k[N_CLEAN * N_KV * D], v[N_CLEAN * N_KV * D], q[N_CLEAN * N_Q * D];
} rows_of_seq;

static void make_seq_rows(rows_of_seq *r, uint64_t seed, bool bad)
{
    ref_k_rows(&seed, r->k, N_CLEAN, N_KV, D);
    ref_normals(&seed, r->v, COUNT(r->v), 1);
    ref_q_rows(&seed, r->q, N_CLEAN, N_Q, D);
    for (size_t i = 0; i < COUNT(r->k) && bad; i++) r->k[i] = bad_value(&seed);
    for (size_t i = 0; i < COUNT(r->v) && bad; i++) r->v[i] = bad_value(&seed);
    for (size_t i = 0; i < COUNT(r->q) && bad; i++) r->q[i] = bad_value(&seed);
}

/* Prefill of all but 5 tokens and single steps, attending at all of them. with_bad: the bad sequence comes first in every
 * step. */
static void run_batch(const ref_cache *cache, bool v_in_k, const rows_of_seq *clean, const rows_of_seq *bad,
                      float *out)
{
    static float k[2 * N_CLEAN * N_KV * D], v[2 * N_CLEAN * N_KV * D], q[2 * N_CLEAN * N_Q * D],
        got[2 * N_CLEAN * N_Q * D];
    uint32_t n_seqs = bad ? 2 : 1, d_v = v_in_k ? D_LATENT : D;
    const rows_of_seq *rows[2] = {bad ? bad : clean, clean};
    quire_seq *seq[2];
    for (uint32_t s = 0; s < n_seqs; s++) seq[s] = ref_seq(cache, NULL);
    for (uint32_t first = 0, n; first < N_CLEAN; first += n) {
        n = first ? 1 : N_CLEAN - 5;
        for (uint32_t s = 0; s < n_seqs; s++) {
            memcpy(k + s * n * N_KV * D, rows[s]->k + first * N_KV * D, sizeof *k * n * N_KV * D);
            memcpy(v + s * n * N_KV * d_v, rows[s]->v + first * N_KV * d_v, sizeof *v * n * N_KV * d_v);
            memcpy(q + s * n * N_Q * D, rows[s]->q + first * N_Q * D, sizeof *q * n * N_Q * D);
        }
        uint32_t n_tokens[2] = {n, n};
        ref_step(cache, seq, n_tokens, n_seqs, k, v_in_k ? NULL : v, q, got);
        memcpy(out + first * N_Q * d_v, got + (n_seqs - 1) * n * N_Q * d_v, sizeof *out * n * N_Q * d_v);
    }
    for (uint32_t s = 0; s < n_seqs; s++) quire_seq_destroy(seq[s]);
}

static void sequences_of_one_step(void **unused)
{
    (void)unused;
    static rows_of_seq clean, bad;
    static float alone[N_CLEAN * N_Q * D], beside[N_CLEAN * N_Q * D], after[N_CLEAN * N_Q * D];
    make_seq_rows(&clean, 1, false);
    make_seq_rows(&bad, 2, true);
    for (uint32_t i = 0; i < quire_codec_count(); i += REF_STRIDE)
        for (int v_in_k = 0; v_in_k < 2; v_in_k++) {
            if (v_in_k && !codec_takes(quire_codec_at(i), D, D_LATENT)) continue;
            const char *name = quire_codec_at(i)->name;
            char policy[64];
            snprintf(policy, sizeof policy, "%s/%s", name, v_codec(name));
            quire_geometry g = shape(v_in_k);
            ref_cache cache = ref_open(&g, policy, profile, NULL);
            size_t n = (size_t)N_Q * g.d_v;
            run_batch(&cache, v_in_k, &clean, NULL, alone);
            run_batch(&cache, v_in_k, &clean, &bad, beside);
            run_batch(&cache, v_in_k, &bad, NULL, after); /* leaves its bytes in the pool's pages */
            run_batch(&cache, v_in_k, &clean, NULL, after);
            for (uint32_t t = 0; t < N_CLEAN; t++) {
                expect_bits(beside + t * n, alone + t * n, n, policy, "beside a bad sequence", t);
                expect_bits(after + t * n, alone + t * n, n, policy, "in pages of a bad sequence", t);
            }
            float sum = 0;
            for (size_t c = 0; c < N_CLEAN * n; c++) sum += fabsf(alone[c]);
            if (!(sum > 1 && sum < FLT_MAX)) fail_msg("%s: the outputs are not numbers", policy);
            ref_close(&cache);
        }
}

/* ------------------------------------------------------------------- tiles */

/* Tiles of N_ROWS tokens. K and V of a head lie side by side, all in one block. */
typedef struct tile_list {
    quire_tile_format *k, *v;
    size_t stride; /* of a head */
    uint8_t *memory;
    quire_tile_ref tile[N_TILES];
    uint32_t d_v;
} tile_list;

static uint8_t *head_tile(const tile_list *t, quire_side side, uint32_t tile, uint32_t head)
{
    return t->memory + (tile * N_KV + head) * t->stride + (side == QUIRE_K ? 0 : t->k->tile_bytes);
}

typedef enum filling { ZEROS, ONES, NOISE, N_FILLINGS } filling;
static const char *const filling_name[] = {"zeros", "bytes of ff", "random bytes"};

static tile_list make_tiles(const char *codec, bool v_in_k, filling fill)
{
    tile_list t = {.d_v = v_in_k ? D_LATENT : D};
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = D,
                                         .d_v = v_in_k ? D_LATENT : 0, .profile = profile};
    REF_OK(quire_tile_format_create(&t.k, codec, &options));
    options = (quire_tile_format_options){sizeof(quire_tile_format_options), .side = QUIRE_V, .d = t.d_v};
    REF_OK(quire_tile_format_create(&t.v, v_codec(codec), &options));
    t.stride = t.k->tile_bytes + t.v->tile_bytes;
    t.memory = aligned_alloc(64, N_TILES * N_KV * t.stride);
    uint64_t noise = 98, state = 99;
    for (size_t i = 0; i < N_TILES * N_KV * t.stride; i++)
        t.memory[i] = fill == ZEROS ? 0 : fill == ONES ? 0xff : (uint8_t)ref_random(&noise);
    float row[D];
    for (uint32_t j = 0; j < N_ROWS; j++)
        for (uint32_t h = 0; h < N_KV; h++) {
            quire_rows rows = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = row};
            ref_k_rows(&state, row, 1, 1, D);
            REF_OK(quire_tile_encode(t.k, h, head_tile(&t, QUIRE_K, j / 64, h), j % 64, 1, &rows, NULL));
            if (!v_in_k)
                REF_OK(quire_tile_encode(t.v, h, head_tile(&t, QUIRE_V, j / 64, h), j % 64, 1, &rows, NULL));
        }
    for (uint32_t i = 0; i < N_TILES; i++)
        t.tile[i] = (quire_tile_ref){.k = head_tile(&t, QUIRE_K, i, 0),
                                     .v = v_in_k ? NULL : head_tile(&t, QUIRE_V, i, 0),
                                     .k_head_stride = t.stride,
                                     .v_head_stride = t.stride,
                                     .k_format = t.k,
                                     .v_format = t.v,
                                     .first = i * 64,
                                     .n_rows = N_ROWS - i * 64 < 64 ? N_ROWS - i * 64 : 64};
    return t;
}

static void free_tiles(tile_list *t)
{
    quire_tile_format_destroy(t->k);
    quire_tile_format_destroy(t->v);
    free(t->memory);
}

/* What no encoder writes: scales that are NaN or infinite, the largest codes, values that are not numbers. */
static void spoil_row(const tile_list *t, uint32_t j, uint64_t *state)
{
    static const uint16_t bad_half[] = {0x7e00, 0xfe00, 0x7c00, 0xfc00, 0x7bff, 0x7c01};
    quire_coded_row row;
    for (uint32_t c = 0; c < QUIRE_MAX_D; c++) {
        row.code[c] = (uint8_t)(ref_random(state) | 0x80);
        row.value[c] = bad_value(state);
    }
    for (uint32_t g = 0; g < QUIRE_MAX_GROUPS; g++) {
        row.scale[g] = bad_half[ref_below(state, COUNT(bad_half))];
        row.bias[g] = bad_half[ref_below(state, COUNT(bad_half))];
    }
    for (uint32_t h = 0; h < N_KV; h++) {
        quire_tile_put(t->k, head_tile(t, QUIRE_K, j / 64, h), j % 64, &row);
        if (t->tile[0].v) quire_tile_put(t->v, head_tile(t, QUIRE_V, j / 64, h), j % 64, &row);
    }
}

static void clear_row(const tile_list *t, uint32_t j)
{
    for (uint32_t h = 0; h < N_KV; h++) {
        quire_tile_clear(t->k, head_tile(t, QUIRE_K, j / 64, h), j % 64, 1);
        if (t->tile[0].v) quire_tile_clear(t->v, head_tile(t, QUIRE_V, j / 64, h), j % 64, 1);
    }
}

/* Which rows are spoiled and how they are hidden from the clean queries; the other queries see some of them. */
typedef struct scene {
    const char *name;
    uint32_t first_query, window, ring_tokens, ring_sinks;
    uint32_t bad_from, bad_to;     /* rows; with a mask every fifth of them */
    uint32_t clean_from, clean_to; /* queries; with a mask every second of them */
    float hide;                    /* -inf or NaN: by mask; 0: by position */
} scene;

static const scene scenes[] = {
    {"mask of -inf", N_ROWS - N_QUERIES, 0, 0, 0, 0, N_ROWS, 0, N_QUERIES, -INFINITY},
    {"mask of NaN", N_ROWS - N_QUERIES, 0, 0, 0, 0, N_ROWS, 0, N_QUERIES, NAN},
    {"later rows", 100, 0, 0, 0, 103, N_ROWS, 0, 3, 0},
    {"rows before the window", 150, 20, 0, 0, 0, 133, 2, N_QUERIES, 0},
    {"rows between sinks and ring", 150, 0, 40, 4, 4, 117, 2, N_QUERIES, 0},
};

static bool is_bad(const scene *s, uint32_t j)
{
    return j >= s->bad_from && j < s->bad_to && (s->hide == 0 || j % 5 == 0);
}

static bool is_clean(const scene *s, uint32_t query)
{
    return query >= s->clean_from && query < s->clean_to && (s->hide == 0 || query % 2 == 0);
}

static void attend_scene(const tile_list *t, const scene *s, const float *q, float *out)
{
    static float bias[N_QUERIES * N_ROWS];
    for (uint32_t i = 0; i < N_QUERIES; i++)
        for (uint32_t j = 0; j < N_ROWS; j++)
            bias[i * N_ROWS + j] = is_clean(s, i) && is_bad(s, j) ? s->hide : 0.25f;
    quire_mask mask = {.size = sizeof(quire_mask),
                       .form = QUIRE_F32,
                       .data = bias,
                       .query_stride = sizeof(float) * N_ROWS,
                       .n_keys = N_ROWS};
    quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                            .tiles = t->tile,
                            .n_tiles = N_TILES,
                            .n_q_heads = N_Q,
                            .n_kv_heads = N_KV,
                            .d_k = D,
                            .d_v = t->d_v,
                            .n_queries = N_QUERIES,
                            .first_query = s->first_query,
                            .window = s->window,
                            .ring_tokens = s->ring_tokens,
                            .ring_sinks = s->ring_sinks,
                            .q = q,
                            .out = out,
                            .mask = s->hide == 0 ? NULL : &mask};
    quire_workspace *workspace = NULL;
    REF_OK(quire_workspace_create(&workspace, NULL, NULL));
    REF_OK(quire_attend(workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    quire_workspace_destroy(workspace);
}

/* Clean queries with the bad rows cleared, then with them spoiled and bad queries among the clean ones. */
static void try_scene(const char *codec, bool v_in_k, const scene *s)
{
    float q[N_QUERIES * N_Q * D], want[N_QUERIES * N_Q * D], got[N_QUERIES * N_Q * D];
    tile_list t = make_tiles(codec, v_in_k, ZEROS);
    uint64_t state = 5;
    uint32_t n = N_Q * t.d_v, n_reached = 0;
    ref_q_rows(&state, q, N_QUERIES, N_Q, D);
    for (uint32_t j = 0; j < N_ROWS; j++)
        if (is_bad(s, j)) clear_row(&t, j);
    attend_scene(&t, s, q, want);
    for (uint32_t j = 0; j < N_ROWS; j++)
        if (is_bad(s, j)) spoil_row(&t, j, &state);
    attend_scene(&t, s, q, got);
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        if (is_clean(s, i)) expect_bits(got + i * n, want + i * n, n, codec, s->name, i);
        n_reached += !is_clean(s, i) && memcmp(got + i * n, want + i * n, n * sizeof *got);
    }
    /* The others do see what was spoiled; otherwise the scene would show nothing. */
    if (!n_reached) fail_msg("%s, %s: no query saw a spoiled row", codec, s->name);
    for (uint32_t i = 0; i < N_QUERIES; i++)
        for (uint32_t c = 0; c < N_Q * D && !is_clean(s, i); c++) q[i * N_Q * D + c] = bad_value(&state);
    attend_scene(&t, s, q, got);
    for (uint32_t i = 0; i < N_QUERIES; i++)
        if (is_clean(s, i)) expect_bits(got + i * n, want + i * n, n, codec, s->name, i);
    free_tiles(&t);
}

static void hidden_rows_of_a_tile(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < quire_codec_count(); i += REF_STRIDE)
        for (uint32_t s = 0; s < COUNT(scenes); s++)
            for (int v_in_k = 0; v_in_k < 2; v_in_k++)
                if (!v_in_k || codec_takes(quire_codec_at(i), D, D_LATENT))
                    try_scene(quire_codec_at(i)->name, v_in_k, &scenes[s]);
}

/* Rows from n_rows on have whatever the host's memory had. */
static void unused_rows_of_a_tile(void **unused)
{
    (void)unused;
    static const scene plain = {"unused rows", N_ROWS - N_QUERIES, 0, 0, 0, 0, 0, 0, N_QUERIES, 0};
    for (uint32_t i = 0; i < quire_codec_count(); i += REF_STRIDE)
        for (int v_in_k = 0; v_in_k < 2; v_in_k++) {
            if (v_in_k && !codec_takes(quire_codec_at(i), D, D_LATENT)) continue;
            float q[N_QUERIES * N_Q * D], out[N_FILLINGS][N_QUERIES * N_Q * D];
            const char *codec = quire_codec_at(i)->name;
            uint64_t state = 6;
            ref_q_rows(&state, q, N_QUERIES, N_Q, D);
            for (int f = ZEROS; f < N_FILLINGS; f++) {
                tile_list t = make_tiles(codec, v_in_k, (filling)f);
                t.tile[0].n_rows = 50; /* not only the last tile may be short */
                for (uint32_t j = 50; j < 64 && f != ZEROS; j++) spoil_row(&t, j, &state);
                attend_scene(&t, &plain, q, out[f]);
                uint32_t n = N_Q * t.d_v;
                for (uint32_t k = 0; k < N_QUERIES; k++)
                    expect_bits(out[f] + k * n, out[ZEROS] + k * n, n, codec, filling_name[f], k);
                free_tiles(&t);
            }
        }
}

/* NaN in a query makes all of its output NaN. What an infinity makes is not stated. Neither reaches another head or query. */
static void bad_queries(void **unused)
{
    (void)unused;
    static const scene plain = {"bad query", N_ROWS - N_QUERIES, 0, 0, 0, 0, 0, 0, N_QUERIES, 0};
    enum { BAD = 2 * N_Q + 1 }; /* head 1 of query 2 */
    for (uint32_t isa = 0; quire_isa_at(isa); isa++)
        for (uint32_t i = 0; i < quire_codec_count(); i += REF_STRIDE) {
            float q[N_QUERIES * N_Q * D], want[N_QUERIES * N_Q * D], got[N_QUERIES * N_Q * D];
            const char *codec = quire_codec_at(i)->name;
            uint64_t state = 7;
            REF_OK(quire_isa_use(quire_isa_at(isa)));
            ref_q_rows(&state, q, N_QUERIES, N_Q, D);
            tile_list t = make_tiles(codec, false, ZEROS);
            attend_scene(&t, &plain, q, want);
            for (uint32_t b = 0; b < 3; b++) {
                q[BAD * D + 17] = b == 0 ? NAN : b == 1 ? INFINITY : -INFINITY;
                attend_scene(&t, &plain, q, got);
                for (uint32_t row = 0; row < N_QUERIES * N_Q; row++)
                    if (row != BAD)
                        expect_bits(got + row * D, want + row * D, D, codec, "bad query", row / N_Q);
                for (uint32_t c = 0; c < D && b == 0; c++)
                    if (!isnan(got[BAD * D + c])) fail_msg("%s: NaN in a query gives a number", codec);
            }
            free_tiles(&t);
        }
    REF_OK(quire_isa_use(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_of_one_step),
        cmocka_unit_test(hidden_rows_of_a_tile),
        cmocka_unit_test(unused_rows_of_a_tile),
        cmocka_unit_test(bad_queries),
    };
    return cmocka_run_group_tests_name("attend_poison", tests, make_profile, drop_profile);
}
