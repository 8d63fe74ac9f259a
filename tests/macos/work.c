/* SPDX-License-Identifier: MIT */
/* Work for a library, by its public interface: every codec that needs no profile, prompts and single tokens, a ring, trims, threads, memory
 * that is given back. It prints checksums of stored bytes, which must be equal on every machine, and outputs of attention. */
#include <quire/quire.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, Q_HEADS = 4, KV_HEADS = 2, MOST_D = 80, PROMPT = 150, TOKENS = 3 };
static uint32_t head_size = MOST_D;

#define MUST(call)                                                 \
    do {                                                           \
        quire_status status_ = (call);                             \
        if (status_) {                                             \
            printf("%s: %s\n", #call, quire_status_text(status_)); \
            exit(1);                                               \
        }                                                          \
    } while (0)

static uint64_t state;
static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(int32_t)(state >> 32) / 1e9);
    }
}

static quire_status add_up(void *ctx, const void *bytes, size_t n) /* FNV-1a */
{
    uint64_t *sum = ctx;
    for (size_t i = 0; i < n; i++) *sum = (*sum ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    return QUIRE_OK;
}

static quire_status print(void *ctx, const void *bytes, size_t n)
{
    (void)ctx;
    return fwrite(bytes, 1, n, stdout) == n ? QUIRE_OK : QUIRE_EIO;
}

static float q[PROMPT * Q_HEADS * MOST_D], k[PROMPT * KV_HEADS * MOST_D], v[PROMPT * KV_HEADS * MOST_D],
    out[PROMPT * Q_HEADS * MOST_D];

static void take(quire_pool *pool, quire_seq *seq, uint32_t n)
{
    quire_step *step;
    MUST(quire_step_begin(&step, pool, &seq, &n, 1));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill(q, n * Q_HEADS * head_size), fill(k, n * KV_HEADS * head_size),
            fill(v, n * KV_HEADS * head_size);
        MUST(quire_step_append(step, layer, k, v));
        MUST(quire_step_attend(step, layer, q, out));
    }
    MUST(quire_step_commit(step));
}

static void print_out(const char *name, uint32_t n)
{
    printf("out %s", name);
    for (uint32_t i = 0; i < 16; i++)
        printf(" %.9g", (double)out[(n - 1) * Q_HEADS * head_size + i * (Q_HEADS * head_size / 16)]);
    printf("\n");
}

static void print_bytes(const char *name, const quire_seq *seq)
{
    uint64_t sum = 14695981039346656037u;
    MUST(quire_seq_save(seq, add_up, &sum));
    printf("bytes %s %016llx\n", name, (unsigned long long)sum);
}

static quire_plan *plan_of(const char *policy)
{
    quire_plan *plan;
    quire_geometry g = {sizeof g,         .n_layers = LAYERS, .n_q_heads = Q_HEADS, .n_kv_heads = KV_HEADS,
                        .d_k = head_size, .d_v = head_size};
    char message[256] = "";
    quire_plan_options options = {.size = sizeof options, .message = message, .message_size = sizeof message};
    if (quire_plan_create(&plan, &g, policy, &options)) {
        printf("%s: %s\n", policy, message);
        exit(1);
    }
    return plan;
}

static void with_policy(const char *policy, quire_executor *executor, bool is_ring)
{
    quire_plan *plan = plan_of(policy);
    quire_pool *pool;
    quire_seq *seq;
    char name[160];
    quire_seq_options ring = {sizeof ring, .max_tokens = 100, .sinks = 4};
    MUST(quire_pool_create(
        &pool, plan,
        &(quire_pool_options){sizeof(quire_pool_options), .budget_bytes = 64u << 20, .executor = executor}));
    MUST(quire_seq_create(&seq, pool, is_ring ? &ring : NULL));
    snprintf(name, sizeof name, "%s%s", policy, is_ring ? ",ring" : "");
    state = 1;
    take(pool, seq, is_ring ? 90 : PROMPT);
    print_out(name, is_ring ? 90 : PROMPT);
    for (int i = 0; i < TOKENS; i++) take(pool, seq, 1);
    if (!is_ring) MUST(quire_seq_trim(seq, PROMPT - 20));
    take(pool, seq, 1);
    print_out(name, 1);
    print_bytes(name, seq);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* Many sequences that come and go in a small budget: pages are given back to the system and taken again. */
static void memory(void)
{
    enum { N = 12 };
    quire_plan *plan = plan_of("r8/r4");
    quire_pool *pool;
    quire_seq *seq[N] = {0};
    uint64_t sum = 14695981039346656037u;
    size_t bytes = 0;
    MUST(quire_plan_bytes(plan, NULL, PROMPT, PROMPT, &bytes));
    MUST(quire_pool_create(
        &pool, plan, &(quire_pool_options){sizeof(quire_pool_options), .budget_bytes = (N + 1) * bytes}));
    state = 2;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t i = round * 7 % N;
        if (seq[i]) MUST(quire_seq_save(seq[i], add_up, &sum));
        quire_seq_destroy(seq[i]);
        MUST(quire_seq_create(&seq[i], pool, NULL));
        take(pool, seq[i], 1 + round * 31 % PROMPT);
        if (round % 9 == 8)
            for (i = 0; i < N; i++) quire_seq_destroy(seq[i]), seq[i] = NULL;
    }
    for (uint32_t i = 0; i < N; i++) {
        if (seq[i]) MUST(quire_seq_save(seq[i], add_up, &sum));
        quire_seq_destroy(seq[i]);
    }
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    printf("bytes memory %016llx\n", (unsigned long long)sum);
}

/* work [N FIRST]: of the codecs, each N-th from FIRST on; the rest only if FIRST is 0 */
int main(int argc, char **argv)
{
    uint32_t n = argc > 2 ? (uint32_t)atoi(argv[1]) : 1, first = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    quire_threads *threads;
    quire_executor executor = {.size = sizeof executor};
    char policy[128];
    MUST(quire_isa_use_environment());
    printf("isa %s\n", quire_isa_in_use());
    MUST(quire_threads_create(&threads, 3));
    MUST(quire_threads_executor(threads, &executor));
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *codec = quire_codec_at(i);
        if (i % n != first || strncmp(codec->name, "c:", 2) == 0) continue;   /* c: needs a profile */
        head_size = quire_codec_row_bytes(codec->name, MOST_D) ? MOST_D : 64; /* tv takes powers of two */
        snprintf(policy, sizeof policy, "%s/%s", codec->name, codec->name);
        with_policy(policy, i % 2 ? &executor : NULL, i % 5 == 0);
    }
    head_size = MOST_D;
    if (!first) {
        with_policy("balanced,sinks=64:f16", &executor, false);
        quire_plan *plan = plan_of("small"); /* text that the library prints with numbers in it */
        MUST(quire_plan_describe(plan, print, NULL));
        quire_plan_destroy(plan);
        memory();
    }
    quire_threads_destroy(threads);
    return 0;
}
