/* SPDX-License-Identifier: MIT */
/*
 * compare: random attention jobs on one library, and the bits that come out. scripts/compare-builds links it with two
 * libraries and compares. It uses the public interface only, so that it can be linked with an older library.
 *
 *   compare [--isa NAME] [--jobs N] [--seed N] [--values FILE]
 *
 * Prints a line for each instruction set and job: what it was, how many words came out, and their hash. FILE gets the words
 * themselves: encoded tiles, outputs, largest scores and sums.
 */
#include "quire/quire.h"

#include "support/random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { TOKENS = 64, MOST_TILES = 7, MOST_D = 576, MOST_KV = 2, MOST_PER_KV = 8, MOST_QUERIES = 40 };

static const uint32_t sizes[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 256};

/* V as a part of K: the first d_v channels. */
static const uint32_t parts[][2] = {{64, 32},   {96, 64},   {160, 128}, {192, 128},
                                    {256, 192}, {320, 256}, {576, 512}};

#define CHECKED(call)                                                               \
    do {                                                                            \
        quire_status status = (call);                                               \
        if (status) {                                                               \
            fprintf(stderr, "compare: %s: %s\n", #call, quire_status_name(status)); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* --------------------------------------------------------------------- a job */

typedef struct shape {
    uint32_t d_k, d_v, n_kv, per_kv, n_queries, n_tiles, window;
    bool v_in_k;
    float query_size, scale;
} shape;

typedef struct job {
    shape s;
    char name[160];
    quire_tile_format *k[2], *v[2]; /* tiles of two kinds take turns; [1] may be the same codec again */
    uint8_t *memory;
    size_t bytes;
    quire_tile_ref tile[MOST_TILES];
    float *q, *out, *max, *sum;
} job;

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) exit(1);
    memset(p, 0, (bytes + 63) / 64 * 64);
    return p;
}

/* Rows with a large mean in some channels, as K has them. */
static void fill_rows(rng *r, float *x, uint32_t n, uint32_t d)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t c = 0; c < d; c++) {
            float mean = (float)((c * 37 + 11) % 19) / 6 - 1.5f;
            x[t * d + c] = (rng_normal(r) + mean) * (c % 16 == 3 ? 6.0f : 1.0f);
        }
}

static quire_profile *make_profile(const shape *s)
{
    static float rows[MOST_KV * MOST_PER_KV * 128 * MOST_D];
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = s->n_kv, .n_kv_heads = s->n_kv,
                        .d_k = s->d_k,          .d_v = s->d_v, .v_in_k = s->v_in_k};
    quire_profile *profile = NULL;
    rng r = {s->d_k};
    CHECKED(quire_profile_create(&profile, &g, NULL));
    fill_rows(&r, rows, s->n_kv * 128, s->d_k);
    CHECKED(quire_profile_observe_k(profile, 0, 4, rows, 128));
    fill_rows(&r, rows, s->n_kv * 128, s->d_k);
    CHECKED(quire_profile_observe_q(profile, 0, 0, rows, 128));
    CHECKED(quire_profile_finish(profile));
    return profile;
}

/* False: the codec does not take this side or head size. */
static bool make_format(quire_tile_format **out, const char *codec, quire_side side, const shape *s)
{
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = side,
                                         .d = side == QUIRE_K ? s->d_k : s->d_v,
                                         .d_v = side == QUIRE_K && s->v_in_k ? s->d_v : 0};
    quire_profile *profile = strncmp(codec, "c:", 2) ? NULL : make_profile(s);
    options.profile = profile;
    quire_status status = quire_tile_format_create(out, codec, &options);
    quire_profile_destroy(profile);
    return status == QUIRE_OK;
}

/* Decode of one token by one to eight query heads, a few tokens at once, or a part of a prompt. */
static shape random_shape(rng *r, uint32_t number)
{
    static const float query_sizes[] = {0.02f, 0.3f, 1, 3,
                                        20}; /* with small ones the third plane is left out */
    shape s = {.n_kv = rng_between(r, 1, MOST_KV), .n_tiles = rng_between(r, 1, MOST_TILES)};
    s.v_in_k = number % 5 == 4;
    s.d_k = s.d_v = sizes[rng_below(r, COUNT(sizes))];
    if (s.v_in_k) {
        const uint32_t *part = parts[rng_below(r, COUNT(parts))];
        s.d_k = part[0];
        s.d_v = part[1];
    } else if (rng_below(r, 6) == 0) {
        s.d_v = sizes[rng_below(r, COUNT(sizes))];
    }
    uint32_t kind = rng_below(r, 4);
    s.n_queries = kind < 2 ? 1 : kind == 2 ? rng_between(r, 2, 4) : rng_between(r, 5, MOST_QUERIES);
    /* Blocks of 1 to 16 rows each have loops of their own: the number of rows is drawn, not only its factors. */
    s.per_kv = kind < 2 ? rng_between(r, 1, MOST_PER_KV * 2) : rng_between(r, 1, MOST_PER_KV);
    if (s.d_k > 256) s.n_kv = 1;
    s.window = rng_below(r, 4) == 0 ? rng_between(r, 3, 150) : 0;
    s.query_size = query_sizes[rng_below(r, COUNT(query_sizes))];
    s.scale = rng_below(r, 3) == 0 ? 0.02f : 0;
    return s;
}

static const char *random_codec(rng *r)
{
    return quire_codec_at(rng_below(r, quire_codec_count()))->name;
}

/* Every codec gets its turn as K; V, and the second kind of tiles, are drawn. */
static void open_formats(job *j, rng *r, uint32_t number)
{
    const char *k = quire_codec_at(number % quire_codec_count())->name, *v = "-", *k2 = k, *v2;
    /* Some codecs take no V as a part of K, which goes by the number. */
    for (uint32_t other = number; !make_format(&j->k[0], k, QUIRE_K, &j->s);) j->s = random_shape(r, ++other);
    if (!j->s.v_in_k) do
            v = random_codec(r);
        while (!make_format(&j->v[0], v, QUIRE_V, &j->s));
    v2 = v;
    if (rng_below(r, 4) == 0) {
        do k2 = random_codec(r);
        while (!make_format(&j->k[1], k2, QUIRE_K, &j->s));
        if (!j->s.v_in_k) do
                v2 = random_codec(r);
            while (!make_format(&j->v[1], v2, QUIRE_V, &j->s));
    } else {
        make_format(&j->k[1], k, QUIRE_K, &j->s);
        if (!j->s.v_in_k) make_format(&j->v[1], v, QUIRE_V, &j->s);
    }
    snprintf(j->name, sizeof j->name,
             "%s/%s%s%s%s%s d %u/%u, %u x %u heads, %u queries, %u tiles, window %u, size %g", k, v,
             k2 != k || v2 != v ? " " : "", k2 != k || v2 != v ? k2 : "", k2 != k || v2 != v ? "/" : "",
             k2 != k || v2 != v ? v2 : "", j->s.d_k, j->s.d_v, j->s.n_kv, j->s.per_kv, j->s.n_queries,
             j->s.n_tiles, j->s.window, (double)j->s.query_size);
}

static void encode(const quire_tile_format *f, uint32_t head, uint8_t *tile, uint32_t n, uint32_t d, rng *r)
{
    static float x[TOKENS * MOST_D];
    fill_rows(r, x, n, d);
    quire_rows rows = {.size = sizeof rows, .form = QUIRE_F32, .data = x};
    CHECKED(quire_tile_encode(f, head, tile, 0, n, &rows, NULL));
}

static void open_job(job *j, uint64_t seed, uint32_t number)
{
    rng r = {seed * 1000003 + number};
    memset(j, 0, sizeof *j);
    j->s = random_shape(&r, number);
    open_formats(j, &r, number);
    const shape *s = &j->s;
    size_t at[MOST_TILES][2];
    for (uint32_t i = 0; i < s->n_tiles; i++) {
        at[i][0] = j->bytes;
        j->bytes += s->n_kv * quire_tile_bytes(j->k[i % 2]);
        at[i][1] = j->bytes;
        if (!s->v_in_k) j->bytes += s->n_kv * quire_tile_bytes(j->v[i % 2]);
    }
    j->memory = zeroed(j->bytes);
    for (uint32_t i = 0; i < s->n_tiles; i++) {
        const quire_tile_format *k = j->k[i % 2], *v = j->v[i % 2];
        uint32_t n = i + 1 < s->n_tiles ? TOKENS : rng_between(&r, 1, TOKENS);
        quire_tile_ref *t = &j->tile[i];
        *t = (quire_tile_ref){.k = j->memory + at[i][0], .k_format = k, .first = i * TOKENS, .n_rows = n};
        for (uint32_t h = 0; h < s->n_kv; h++)
            encode(k, h, j->memory + at[i][0] + h * quire_tile_bytes(k), n, s->d_k, &r);
        if (s->v_in_k) continue;
        t->v = j->memory + at[i][1];
        t->v_format = v;
        for (uint32_t h = 0; h < s->n_kv; h++)
            encode(v, h, j->memory + at[i][1] + h * quire_tile_bytes(v), n, s->d_v, &r);
    }
    size_t rows = (size_t)s->n_queries * s->n_kv * s->per_kv;
    j->q = zeroed(rows * s->d_k * sizeof(float));
    j->out = zeroed(rows * s->d_v * sizeof(float));
    j->max = zeroed(rows * sizeof(float));
    j->sum = zeroed(rows * sizeof(float));
    for (size_t i = 0; i < rows * s->d_k; i++) j->q[i] = s->query_size * rng_normal(&r);
}

static void close_job(job *j)
{
    for (uint32_t i = 0; i < 2; i++) {
        quire_tile_format_destroy(j->k[i]);
        quire_tile_format_destroy(j->v[i]);
    }
    free(j->memory);
    free(j->q);
    free(j->out);
    free(j->max);
    free(j->sum);
}

static void attend(job *j)
{
    const shape *s = &j->s;
    uint32_t n_rows = (s->n_tiles - 1) * TOKENS + j->tile[s->n_tiles - 1].n_rows;
    quire_attend_options options = {.size = sizeof(quire_attend_options), .scale = s->scale};
    quire_attend_job attend = {.tile_stride = sizeof(quire_tile_ref),
                               .tiles = j->tile,
                               .n_tiles = s->n_tiles,
                               .n_q_heads = s->n_kv * s->per_kv,
                               .n_kv_heads = s->n_kv,
                               .d_k = s->d_k,
                               .d_v = s->d_v,
                               .n_queries = s->n_queries,
                               .first_query = n_rows > s->n_queries ? n_rows - s->n_queries : 0,
                               .window = s->window,
                               .q = j->q,
                               .out = j->out,
                               .max = j->max,
                               .sum = j->sum};
    quire_workspace *workspace = NULL;
    CHECKED(quire_workspace_create(&workspace, NULL, NULL));
    CHECKED(quire_attend(workspace, &options, &attend, 1, sizeof attend));
    quire_workspace_destroy(workspace);
}

/* ------------------------------------------------------------------- results */

typedef struct sink {
    FILE *values; /* NULL: none */
    uint64_t hash;
    size_t words;
} sink;

static void put(sink *to, const void *from, size_t bytes)
{
    if (to->values && fwrite(from, 1, bytes, to->values) != bytes) exit(1);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)from + i, sizeof word);
        to->hash = (to->hash ^ word) * 0x100000001b3u;
        to->hash ^= to->hash >> 29;
    }
    to->words += bytes / 4;
}

static void try_job(uint64_t seed, uint32_t number, FILE *values)
{
    job j;
    sink to = {.values = values, .hash = 0xcbf29ce484222325u};
    open_job(&j, seed, number);
    attend(&j);
    size_t rows = (size_t)j.s.n_queries * j.s.n_kv * j.s.per_kv;
    put(&to, j.memory, j.bytes);
    put(&to, j.out, rows * j.s.d_v * sizeof(float));
    put(&to, j.max, rows * sizeof(float));
    put(&to, j.sum, rows * sizeof(float));
    printf("%s\t%u\t%zu\t%016llx\t%s\n", quire_isa_in_use(), number, to.words, (unsigned long long)to.hash,
           j.name);
    close_job(&j);
}

int main(int argc, char **argv)
{
    const char *only = NULL, *values_to = NULL, *isa;
    uint32_t n_jobs = 330;
    uint64_t seed = 1;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--isa") == 0)
            only = value;
        else if (strcmp(argv[i], "--jobs") == 0)
            n_jobs = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--values") == 0)
            values_to = value;
        else {
            fprintf(stderr, "usage: compare [--isa NAME] [--jobs N] [--seed N] [--values FILE]\n");
            return 2;
        }
    }
    FILE *values = values_to ? fopen(values_to, "wb") : NULL;
    if (values_to && !values) {
        perror(values_to);
        return 1;
    }
    for (uint32_t i = 0; (isa = quire_isa_at(i)); i++) {
        if (only && strcmp(only, isa)) continue;
        CHECKED(quire_isa_use(isa));
        for (uint32_t number = 0; number < n_jobs; number++) try_job(seed, number, values);
    }
    return values && fclose(values) ? 1 : 0;
}
