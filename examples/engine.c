/* SPDX-License-Identifier: MIT */
/*
 * How an engine uses Quire, from the plan to a saved conversation: a shared prompt, two answers in one batch, a rejected draft
 * of speculative decoding, and the cache on disk. There is no real model: rows are computed from the token and its position.
 */
#include <quire/quire.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, Q_HEADS = 8, KV_HEADS = 2, D = 64, PROMPT = 100, ANSWER = 40, DRAFT = 4 };

/* Every call can fail. A real engine would release its resources and report the error. */
static void must(quire_status status, const char *what)
{
    if (status == QUIRE_OK) return;
    fprintf(stderr, "%s: %s (%s)\n", what, quire_status_text(status), quire_status_name(status));
    exit(1);
}

/* ---------------------------------------------------------- a model's rows */

static float noise(uint32_t a, uint32_t b)
{
    uint32_t x = a * 2654435761u ^ b * 40503u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return (float)(x & 0xffff) / 32768.0f - 1;
}

/* which: 0 K, 1 V, 2 Q. In a real model these are the results of the projections and RoPE. */
static void make_rows(float *to, uint32_t n, uint32_t layer, uint32_t position, uint32_t token,
                      uint32_t which)
{
    for (uint32_t i = 0; i < n; i++) to[i] = noise(token * 7 + position * 131 + layer * 17 + which, i);
}

/* ------------------------------------------------------------------- steps */

typedef struct engine {
    quire_pool *pool;
    float *k, *v, *q, *out; /* of one layer and step */
} engine;

/*
 * Processes n_tokens[i] new tokens of sequence i in all layers. Prefill (many tokens of one sequence) and a batch of decodes
 * (one token of each sequence) are the same call. Returns a number that represents the model's answer.
 */
static float step(const engine *e, quire_seq *const *seqs, const uint32_t *n_tokens, uint32_t n_seqs,
                  const uint32_t *tokens)
{
    quire_step *s;
    float answer = 0;
    must(quire_step_begin(&s, e->pool, seqs, n_tokens, n_seqs),
         "begin"); /* EFULL here: nothing has changed */
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t row = 0;
        for (uint32_t i = 0; i < n_seqs; i++)
            for (uint32_t t = 0; t < n_tokens[i]; t++, row++) {
                uint32_t position = quire_seq_length(seqs[i]) + t;
                make_rows(e->k + row * KV_HEADS * D, KV_HEADS * D, layer, position, tokens[row], 0);
                make_rows(e->v + row * KV_HEADS * D, KV_HEADS * D, layer, position, tokens[row], 1);
                make_rows(e->q + row * Q_HEADS * D, Q_HEADS * D, layer, position, tokens[row], 2);
            }
        must(quire_step_append(s, layer, e->k, e->v), "append"); /* encodes directly into tiles */
        must(quire_step_attend(s, layer, e->q, e->out), "attend");
        answer += e->out[(row - 1) * Q_HEADS * D];
    }
    must(quire_step_commit(s), "commit"); /* quire_step_abort() would discard the rows */
    return answer;
}

/* -------------------------------------------------------------------- disk */

static quire_status write_file(void *ctx, const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, (FILE *)ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

static quire_status read_file(void *ctx, void *bytes, size_t n)
{
    return fread(bytes, 1, n, (FILE *)ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

static quire_seq *save_and_load(quire_pool *pool, const quire_seq *seq)
{
    quire_seq *loaded;
    FILE *file = tmpfile();
    if (!file) exit(1);
    must(quire_seq_save(seq, write_file, file), "save");
    rewind(file);
    must(quire_seq_load(&loaded, pool, read_file, file),
         "load"); /* damaged data and data of other plans is rejected */
    fclose(file);
    return loaded;
}

/* -------------------------------------------------------------------- main */

int main(void)
{
    /* The shape of the model, and how its rows are stored. quire_plan_describe() prints the plan as text. */
    char why[256];
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = LAYERS, .n_q_heads = Q_HEADS,
                               .n_kv_heads = KV_HEADS, .d_k = D,           .d_v = D};
    quire_plan_options options = {sizeof(quire_plan_options), .message = why, .message_size = sizeof why};
    quire_plan *plan;
    if (quire_plan_create(&plan, &geometry, "balanced", &options)) {
        fprintf(stderr, "policy: %s\n", why);
        return 1;
    }
    must(quire_plan_describe(plan, write_file, stdout), "describe");

    /* Threads for attention, memory for three sequences of 200 tokens. */
    quire_threads *threads;
    must(quire_threads_create(&threads, 2), "threads");
    quire_executor executor = {.size = sizeof executor};
    quire_threads_executor(threads, &executor);
    engine e;
    size_t bytes;
    must(quire_plan_bytes(plan, NULL, 200, PROMPT, &bytes), "bytes");
    must(quire_pool_create(&e.pool, plan,
                           &(quire_pool_options){sizeof(quire_pool_options), .budget_bytes = 3 * bytes,
                                                 .executor = &executor}),
         "pool");
    e.k = (float *)malloc(sizeof(float) * PROMPT * KV_HEADS * D);
    e.v = (float *)malloc(sizeof(float) * PROMPT * KV_HEADS * D);
    e.q = (float *)malloc(sizeof(float) * PROMPT * Q_HEADS * D);
    e.out = (float *)malloc(sizeof(float) * PROMPT * Q_HEADS * D);
    if (!e.k || !e.v || !e.q || !e.out) return 1;

    /* Compute the prompt once, then generate two answers that share its pages. */
    uint32_t prompt[PROMPT], n_prompt = PROMPT, pair[2] = {1, 2}, ones[2] = {1, 1};
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = i % 50;
    quire_seq *seqs[2];
    must(quire_seq_create(&seqs[0], e.pool, NULL), "sequence");
    step(&e, seqs, &n_prompt, 1, prompt);
    must(quire_seq_fork(&seqs[1], seqs[0]), "fork");
    for (uint32_t i = 0; i < ANSWER; i++) step(&e, seqs, ones, 2, pair);

    /* A draft of four tokens, of which the model accepts one. Trimming restores the exact earlier state. */
    uint32_t draft[DRAFT] = {7, 8, 9, 10}, n_draft = DRAFT, length = quire_seq_length(seqs[0]);
    step(&e, seqs, &n_draft, 1, draft);
    must(quire_seq_trim(seqs[0], length + 1), "trim");

    /* A sequence that was loaded from disk gives the same bits. */
    quire_seq *loaded = save_and_load(e.pool, seqs[0]);
    uint32_t next = 11;
    float a = step(&e, &seqs[0], ones, 1, &next), b = step(&e, &loaded, ones, 1, &next);
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(e.pool, &stats);
    printf(
        "%u and %u tokens, %zu bytes in %llu pages, %llu copied because an answer wrote to a shared page\n",
        quire_seq_length(seqs[0]), quire_seq_length(seqs[1]), stats.used_bytes,
        (unsigned long long)stats.n_pages, (unsigned long long)stats.n_copies);
    printf("loaded from disk: %s\n", memcmp(&a, &b, sizeof a) ? "a different answer" : "the same answer");

    quire_seq_destroy(loaded);
    quire_seq_destroy(seqs[0]);
    quire_seq_destroy(seqs[1]);
    quire_pool_destroy(e.pool);
    quire_plan_destroy(plan);
    quire_threads_destroy(threads);
    free(e.k), free(e.v), free(e.q), free(e.out);
    return memcmp(&a, &b, sizeof a) ? 1 : 0;
}
