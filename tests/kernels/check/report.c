/* SPDX-License-Identifier: MIT */
/* check: where we are, failures, the summary. */
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* 2^-24 = 6e-8 is what one rounding costs. */
const check_bound check_bounds[N_BOUNDS] = {
    [BOUND_Q_WITH_R] = {"score with r", 1.3e-7,
                        "of max|q| * sum|k|: r counts 1/256 of a step of max|q| / 32600 and is cut at 127"},
    [BOUND_Q_WITHOUT_R] = {"score without r", 1.6e-5,
                           "of max|q| * sum|scale * code|, besides: half a step of max|q| / 32600"},
    [BOUND_SCORE] =
        {"score, rounding", 2e-6,
         "of sum |q| (|scale * code| + |bias|): 16 lanes in C and parts in kernels, 40 roundings"},
    [BOUND_SCORE_FLOAT] = {"score of floats, rounding", 6e-8,
                           "of sum |q||k|, for each channel: kernels add products one by one"},
    [BOUND_MIX_MODEL] = {"mix, rows of a model", 5e-4,
                         "of the norm of sum p|v|: what rows of models have (docs/kernels.md)"},
    [BOUND_MIX_STEP] =
        {"mix, steps", 1.55e-5,
         "of the largest visible scale, for each code: half a step of 1/32600, never more than "
         "the weight itself"},
    [BOUND_MIX] = {"mix, rounding", 4.5e-6,
                   "of sum p (|scale| (code + |shift|) + |rest|): 64 tokens one by one in C, 70 roundings"},
    [BOUND_WEIGHT] = {"weight", 4e-6, "of itself: 3e-6 and 3e-7 for 2^x in the two, and the product"},
    [BOUND_WEIGHT_SCORE] =
        {"weight, by score", 2.4e-7,
         "of itself, times the score: its last bit and that of the maximum, in each of the two"},
    [BOUND_SUM] = {"sum of weights", 1e-5, "of itself: 64 roundings in C, and the weights"},
    [BOUND_BIAS_SUMS] = {"add_bias_sums", 1e-6,
                         "of |value| + sum |lanes|: a tree of 16 and one more, 5 roundings"},
};

static const char *const role_names[N_ROLES] = {"score", "mix", "transpose", "softmax", "bias sums", "state"};

/* What became of one role on one instruction set. */
typedef struct tally {
    const char *isa;
    uint64_t values, failures;
    double worst; /* as a part of what is allowed */
    char where[96];
} tally;

check_where check_at;
check_options check_given;

static tally tallies[MOST_ISAS][N_ROLES];
static uint64_t n_failures;

static tally *tally_now(void)
{
    tally *t = &tallies[quire_isa_now()][check_at.role];
    t->isa = check_at.isa;
    return t;
}

/* One failure of a role with a codec and head size brings many of its kind. */
static bool is_new(void)
{
    static check_where last[256];
    static uint32_t n;
    for (uint32_t i = 0; i < n; i++)
        if (last[i].isa == check_at.isa && last[i].role == check_at.role && last[i].codec == check_at.codec)
            return false;
    if (n == COUNT(last)) return false;
    last[n++] = check_at;
    return true;
}

static void print_where(void)
{
    printf("%s %s:", check_at.isa, role_names[check_at.role]);
    if (check_at.codec) printf(" %s, d %u,", check_at.codec, check_at.d);
    if (check_at.n) printf(" n %u,", check_at.n);
    if (check_at.fill) printf(" %s,", check_at.fill);
    printf(" %s", check_at.call ? check_at.call : "");
}

void check_fail(const char *format, ...)
{
    n_failures++;
    tally_now()->failures++;
    if (!is_new()) return;
    printf("FAIL ");
    print_where();
    printf(": ");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n     again: quire_check --seed %llu%s", (unsigned long long)check_given.seed,
           check_given.quick ? " --quick" : "");
    if (check_at.codec) printf(" --codec %s --d %u", check_at.codec, check_at.d);
    printf("\n");
    fflush(stdout);
}

bool check_share(double error, double allowed)
{
    tally *t = tally_now();
    double share = error == 0 ? 0 : error / allowed;
    t->values++;
    if (!(share <= 1)) return true;
    if (share > t->worst) {
        t->worst = share;
        snprintf(t->where, sizeof t->where, "%s d %u, %s", check_at.codec ? check_at.codec : "any",
                 check_at.d, check_at.fill ? check_at.fill : "-");
    }
    return false;
}

uint64_t check_failures(void)
{
    return n_failures;
}

void check_summary(void)
{
    printf("%-8s %-9s %12s %9s %9s  %s\n", "isa", "role", "values", "failures", "of bound",
           "largest error at");
    for (uint32_t i = 0; i < MOST_ISAS; i++) {
        for (uint32_t r = 0; r < N_ROLES; r++) {
            const tally *t = &tallies[i][r];
            if (!t->values && !t->failures) continue;
            printf("%-8s %-9s %12llu %9llu %9.2g  %s\n", t->isa, role_names[r], (unsigned long long)t->values,
                   (unsigned long long)t->failures, t->worst, t->where);
        }
    }
}
