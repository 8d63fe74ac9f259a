/* SPDX-License-Identifier: MIT */
/*
 * Searches, for each codec and instruction set, for the input on which attention comes nearest to its error bound, and fails if one exceeds
 * it. Without arguments as many steps as CI has time for; the same steps on every machine.
 *
 *     kernels_worst_input [SECONDS [SEED [ISA [K/V]]]]      that many seconds for each instruction set
 *     kernels_worst_input --quick                           for emulated kernels
 */
#include "worst.h"

#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct pair {
    const char *k, *v;
    uint32_t d_k, d_v, n_tokens;
} pair;

/* A codec of each family against floats, for K and for V; then both, over several tiles and splits. */
static const pair pairs[] = {
    {"f32", "f32", 64, 64, 64},     {"bf16", "f16", 64, 64, 64},     {"a8g64", "f32", 128, 16, 64},
    {"a4g64", "f32", 128, 16, 64},  {"a3g128", "f32", 128, 16, 64},  {"a2g32", "f32", 128, 16, 64},
    {"q8_0", "f32", 128, 16, 64},   {"q4_0", "f32", 128, 16, 64},    {"q5_1", "f32", 128, 16, 64},
    {"iq4_nl", "f32", 128, 16, 64}, {"r8", "f32", 128, 16, 64},      {"r4", "f32", 128, 16, 64},
    {"r2", "f32", 128, 16, 64},     {"tq3", "f32", 128, 16, 64},     {"h:a4g64", "f32", 128, 16, 64},
    {"c:r4", "f32", 128, 16, 64},   {"f32", "a8g64", 16, 128, 64},   {"f32", "a4g64", 16, 128, 64},
    {"f32", "a3g128", 16, 128, 64}, {"f32", "a2g32", 16, 128, 64},   {"f32", "q8_0", 16, 128, 64},
    {"f32", "q4_0", 16, 128, 64},   {"f32", "q5_1", 16, 128, 64},    {"f32", "iq4_nl", 16, 128, 64},
    {"f32", "r8", 16, 128, 64},     {"f32", "r4", 16, 128, 64},      {"f32", "r2", 16, 128, 64},
    {"f32", "tq3", 16, 128, 64},    {"f32", "h:a4g64", 16, 128, 64}, {"a4g64", "a4g64", 64, 64, 150},
    {"r5", "r4", 64, 64, 192},      {"q8_0", "q4_0", 80, 80, 100},   {"r8", "q4_1", 32, 32, 19 * 64 + 5},
};

typedef struct effort {
    uint32_t n_starts, n_moves; /* of each pair */
    double seconds;             /* of each instruction set; 0: not limited */
    uint64_t seed;
} effort;

static const quire_profile *profile;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* From one start; the worst of all that is met goes to *worst. */
static void climb(worst_input *in, const pair *p, uint32_t start, uint64_t seed, uint32_t n_moves,
                  worst_result *worst)
{
    bool by_lse = start % 5 == 4; /* which of the two errors shall become large */
    in->random.state = seed * 1000003 + start;
    worst_begin(in);
    worst_start(in, start);
    double best = 0;
    for (uint32_t i = 0; i <= n_moves; i++) {
        worst_result r = worst_measure(in);
        double reward = by_lse ? r.by_lse : r.by_bound;
        if (!(r.by_bound <= 1 && r.by_lse <= 1))
            fail_msg(
                "%s: K %s, V %s, d %u/%u, %u tokens, seed %llu, start %u, move %u: the error is %g of what "
                "is allowed, that of log-sum-exp %g",
                quire_isa_in_use(), p->k, p->v, p->d_k, p->d_v, p->n_tokens, (unsigned long long)seed, start,
                i, r.by_bound, r.by_lse);
        double lse = worst->by_lse < r.by_lse ? r.by_lse : worst->by_lse;
        if (worst->by_bound < r.by_bound) *worst = r;
        worst->by_lse = lse;
        if (reward < best)
            worst_undo_all(in);
        else
            best = reward;
        worst_begin(in);
        worst_move(in);
    }
    worst_undo_all(in);
}

static void try_pair(const pair *p, const effort *e)
{
    static worst_input in;
    worst_result worst = {0};
    double end = now() + e->seconds / (double)COUNT(pairs);
    uint32_t n_moves = p->n_tokens > 512 ? e->n_moves / 8 : e->n_moves;
    worst_open(&in, p->k, p->v, p->d_k, p->d_v, p->n_tokens, profile);
    for (uint32_t i = 0; e->seconds > 0 ? now() < end : i < e->n_starts; i++)
        climb(&in, p, i % worst_n_starts, e->seed + i / worst_n_starts, n_moves, &worst);
    worst_close(&in);
    print_message("%-8s %-8s %-8s %4u tokens: %5.3f of the bound (%.1e of A), log-sum-exp %5.3f\n",
                  quire_isa_in_use(), p->k, p->v, p->n_tokens, worst.by_bound, worst.by_range, worst.by_lse);
}

static effort wanted = {.n_starts = 24, .n_moves = 150, .seed = 1};
static const char *only_isa, *only_pair;

static void every_level(void **state)
{
    (void)state;
    quire_geometry geometry = {sizeof geometry, .n_layers = 1, .n_q_heads = 1,
                               .n_kv_heads = 1, .d_k = 128,    .d_v = 128};
    quire_profile *owned = ref_profile(&geometry);
    profile = owned;
    const char *isa;
    for (uint32_t at = 0; (isa = quire_isa_at(at)); at++) {
        if (only_isa && strcmp(isa, only_isa) != 0) continue;
        REF_OK(quire_isa_use(isa));
        worst_known();
        for (uint32_t i = 0; i < COUNT(pairs); i++) {
            char name[64];
            snprintf(name, sizeof name, "%s/%s", pairs[i].k, pairs[i].v);
            if (!only_pair || strcmp(name, only_pair) == 0) try_pair(&pairs[i], &wanted);
        }
    }
    REF_OK(quire_isa_use(NULL));
    quire_profile_destroy(owned);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--quick") == 0)
        wanted.n_moves = 20;
    else if (argc > 1)
        wanted.seconds = atof(argv[1]), wanted.n_moves = 2000;
    if (argc > 2) wanted.seed = strtoull(argv[2], NULL, 0);
    if (argc > 3) only_isa = argv[3];
    if (argc > 4) only_pair = argv[4];
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_level)};
    return cmocka_run_group_tests_name("worst_input", tests, NULL, NULL);
}
