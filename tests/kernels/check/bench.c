/* SPDX-License-Identifier: MIT */
/* check: times of the calls that attend makes for one tile. The tile lies in the cache; the instruction sets take turns
 * within each round, and the smallest time of all rounds counts. */
#define _GNU_SOURCE /* clock_gettime */
#include "check.h"

#include "core/float_mode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SAMPLE_NS 20000.0 /* a sample takes at least this long */
#define N_ROUNDS 200u

typedef enum work_id {
    WORK_LOAD,
    WORK_EXPAND_K,
    WORK_SCORE,
    WORK_SOFTMAX,
    WORK_EXPAND_V,
    WORK_MIX,
    WORK_TRANSPOSE,
    WORK_BIAS_SUMS,
    N_WORKS
} work_id;

static const char *const work_names[N_WORKS] = {"load",     "expand K", "score",     "softmax",
                                                "expand V", "mix",      "transpose", "bias sums"};

/* Everything the calls of one instruction set need. */
typedef struct kit {
    const quire_kernels *kernels;
    quire_source k, v, k_as_v;
    bool expands_k, expands_v;
    quire_queries q;
    uint32_t rows;
    float *scores, *kept_scores; /* [rows][64]; softmax_update works in place, so it gets a copy each time */
    float *max, *sum, *acc, factor[QUIRE_MAX_QUERY_ROWS], unit[QUIRE_MAX_QUERY_ROWS];
    uint64_t visible[QUIRE_MAX_QUERY_ROWS];
    size_t stride;
    void *expanded_k, *expanded_v, *transposed, *scratch;
} kit;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Nanoseconds of a cycle: a multiplication waits three for the one before it. 0: not known on this processor. */
static double cycle_ns(void)
{
#if defined(QUIRE_X86)
    static double best = 1e9;
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t x = 3;
        double start = now_ns();
        for (uint32_t i = 0; i < 1000; i++)
            __asm__ volatile("imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0" : "+r"(x));
        double took = (now_ns() - start) / (3 * 4 * 1000);
        if (took < best) best = took;
    }
    return best;
#else
    return 0;
#endif
}

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) abort();
    memset(p, 0, (bytes + 63) / 64 * 64);
    return p;
}

/* --------------------------------------------------------------------- kits */

static void open_queries(kit *x, const quire_tile_format *f, rng *r)
{
    const uint32_t d = f->coder.d, whole = (x->rows + ROWS - 1) / ROWS * ROWS, stride = quire_z_stride(d);
    x->q = (quire_queries){
        .n = x->rows,
        .d = d,
        .n_parts = quire_n_parts(&f->coder),
        .z_stride = stride,
        .copies = 1,
        .row = (float *)zeroed(sizeof(float) * x->rows * d),
        .z = (int8_t *)zeroed((size_t)4 * whole * stride),
        .r = (int8_t *)zeroed((size_t)2 * whole * stride),
        .sum = (int32_t *)zeroed(sizeof(int32_t) * 2 * x->rows * quire_n_parts(&f->coder)),
        .unit = (float *)zeroed(sizeof(float) * x->rows),
        .mean_score = (float *)zeroed(sizeof(float) * x->rows * QUIRE_MEAN_SLOTS),
        .skip_r_below = (float *)zeroed(sizeof(float) * x->rows),
    };
    for (uint32_t i = 0; i < x->rows * d; i++) x->q.row[i] = rng_normal(r);
}

static void open_kit(kit *x, const quire_kernels *kernels, const check_case *c, const uint8_t *k,
                     const uint8_t *v, uint32_t rows)
{
    const quire_tile_format *value = c->v ? c->v : c->k;
    const uint32_t d_pad = c->k->coder.d_pad;
    rng r = check_rng(c->codec, c->d, 300);
    *x = (kit){.kernels = kernels, .rows = rows, .stride = quire_acc_floats(value) + QUIRE_BIAS_LANES};
    x->k = x->k_as_v = (quire_source){.format = c->k, .tile = k};
    x->v = (quire_source){.format = value, .tile = v};
    x->expands_k = quire_must_expand(kernels, c->k, rows);
    x->expands_v = c->v && quire_must_expand(kernels, value, rows);
    x->expanded_k = zeroed(quire_expanded_bytes(d_pad));
    x->expanded_v = zeroed(quire_expanded_bytes(d_pad));
    x->transposed = zeroed(quire_expanded_bytes(d_pad));
    x->scratch = zeroed(quire_kernel_scratch(d_pad));
    x->scores = (float *)zeroed(sizeof(float) * rows * TOKENS);
    x->kept_scores = (float *)zeroed(sizeof(float) * rows * TOKENS);
    x->max = (float *)zeroed(sizeof(float) * rows);
    x->sum = (float *)zeroed(sizeof(float) * rows * QUIRE_BIAS_LANES);
    x->acc = (float *)zeroed(sizeof(float) * rows * x->stride);
    open_queries(x, c->k, &r);
    for (uint32_t i = 0; i < rows * TOKENS; i++) x->kept_scores[i] = 3 * rng_normal(&r);
    for (uint32_t i = 0; i < rows; i++) {
        x->visible[i] = ALL_TOKENS;
        x->unit[i] = x->factor[i] = 1;
        x->q.skip_r_below[i] = INFINITY; /* most tiles of most models do without r */
    }
}

static void close_kit(kit *x)
{
    void *const all[] = {
        x->q.row,          x->q.z,        x->q.r,        x->q.sum,      x->q.unit,  x->q.mean_score,
        x->q.skip_r_below, x->expanded_k, x->expanded_v, x->transposed, x->scratch, x->scores,
        x->kept_scores,    x->max,        x->sum,        x->acc};
    for (uint32_t i = 0; i < COUNT(all); i++) free(all[i]);
}

/* -------------------------------------------------------------------- calls */

static quire_family family_of(const quire_source *s)
{
    return quire_family_of(s->format->coder.codec);
}

/* Whether attend makes this call at all. */
static bool applies(const kit *x, work_id w)
{
    switch (w) {
    case WORK_EXPAND_K: return x->expands_k;
    case WORK_EXPAND_V: return x->expands_v;
    case WORK_MIX: return x->v.format->coder.side == QUIRE_V;
    case WORK_TRANSPOSE: return x->kernels->transpose_k_to_v[family_of(&x->k)];
    case WORK_BIAS_SUMS: return x->kernels != &quire_kernels_c;
    default: return true;
    }
}

static void run(kit *x, work_id w)
{
    const quire_kernels *kernels = x->kernels;
    switch (w) {
    case WORK_LOAD: kernels->load_queries(x->k.format, &x->q); return;
    case WORK_EXPAND_K: kernels->expand[family_of(&x->k)](&x->k, x->expanded_k); return;
    case WORK_EXPAND_V: kernels->expand[family_of(&x->v)](&x->v, x->expanded_v); return;
    case WORK_TRANSPOSE: kernels->transpose_k_to_v[family_of(&x->k)](&x->k_as_v, x->transposed); return;
    case WORK_BIAS_SUMS: kernels->add_bias_sums(x->v.format, x->acc); return;
    default: break;
    }
    quire_source k = x->k, v = x->v;
    if (x->expands_k) k.expanded = x->expanded_k;
    if (x->expands_v) v.expanded = x->expanded_v;
    if (w == WORK_SOFTMAX) memcpy(x->scores, x->kept_scores, sizeof(float) * x->rows * TOKENS);
    for (uint32_t first = 0; first < x->rows; first += ROWS) {
        uint32_t n = x->rows - first < ROWS ? x->rows - first : ROWS;
        float *scores = x->scores + (size_t)first * TOKENS, *acc = x->acc + first * x->stride;
        if (w == WORK_SCORE) {
            kernels->score[family_of(&k)](&k, &x->q, first, n, 0, scores, x->scratch);
        } else if (w == WORK_SOFTMAX) {
            quire_softmax s = {x->max + first, x->sum + (size_t)first * QUIRE_BIAS_LANES, acc, x->stride,
                               false};
            kernels->softmax_update(scores, x->visible + first, x->unit + first, n, &s, x->factor + first);
        } else {
            kernels->mix[family_of(&v)](&v, v.format->coder.d, scores, x->visible + first, x->factor + first,
                                        n, acc, x->stride, x->scratch);
        }
    }
}

/* Nanoseconds of one of `times` calls. */
static double sample(kit *x, work_id w, uint32_t times)
{
    _Alignas(64) uint8_t saved[64];
    uint32_t mode =
        quire_float_mode_set(x->kernels == &quire_kernels_c ? QUIRE_FLOAT_MODE_KEEP : QUIRE_FLOAT_MODE_FLUSH);
    if (x->kernels->enter) x->kernels->enter(saved, x->rows);
    run(x, w);
    double start = now_ns();
    for (uint32_t i = 0; i < times; i++) run(x, w);
    double took = (now_ns() - start) / times;
    if (x->kernels->leave) x->kernels->leave(saved);
    quire_float_mode_leave(mode);
    return took;
}

static void measure(kit *kits, const check_isas *isas, work_id w, double *ns)
{
    uint32_t times[MOST_ISAS];
    for (uint32_t i = 0; i < isas->n; i++) {
        if (!applies(&kits[i], w)) continue;
        check_use(isas, i);
        ns[i] = sample(&kits[i], w, 1);
        times[i] = (uint32_t)(SAMPLE_NS / (ns[i] + 1)) + 1;
    }
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        for (uint32_t i = 0; i < isas->n; i++) {
            if (ns[i] < 0 || (ns[i] > 10 * SAMPLE_NS && round > N_ROUNDS / 10)) continue;
            check_use(isas, i);
            double took = sample(&kits[i], w, times[i]);
            if (took < ns[i]) ns[i] = took;
        }
    }
}

/* -------------------------------------------------------------------- table */

void check_bench_head(const check_isas *isas)
{
    printf("%-9s %-9s %4s %4s", "codec", "call", "d", "rows");
    for (uint32_t i = 0; i < isas->n; i++) printf(" | %8s ns %7s", isas->name[i], "cycles");
    printf("\n");
}

void check_bench(const check_isas *isas, const check_case *c)
{
    static kit kits[MOST_ISAS];
    static _Alignas(64) uint8_t k[CHECK_TILE_BYTES];
    static _Alignas(64) uint8_t v[CHECK_TILE_BYTES];
    rng r = check_rng(c->codec, c->d, 301);
    check_use(isas, 0);
    check_tile(c->k, FILL_MODEL, &r, k);
    if (c->v) check_tile(c->v, FILL_MODEL, &r, v);
    for (uint32_t i = 0; i < isas->n; i++) open_kit(&kits[i], isas->kernels[i], c, k, v, check_given.rows);
    for (uint32_t w = 0; w < N_WORKS; w++) {
        double ns[MOST_ISAS], cycle = cycle_ns();
        for (uint32_t i = 0; i < isas->n; i++) ns[i] = -1;
        measure(kits, isas, (work_id)w, ns);
        bool any = false;
        for (uint32_t i = 0; i < isas->n; i++) any |= ns[i] >= 0;
        if (!any) continue;
        printf("%-9s %-9s %4u %4u", c->codec, work_names[w], c->d, check_given.rows);
        for (uint32_t i = 0; i < isas->n; i++) {
            if (ns[i] < 0)
                printf(" | %11s %7s", "-", "-");
            else if (cycle == 0)
                printf(" | %11.0f %7s", ns[i], "-");
            else
                printf(" | %11.0f %7.0f", ns[i], ns[i] / cycle);
        }
        printf("\n");
        fflush(stdout);
    }
    for (uint32_t i = 0; i < isas->n; i++) close_kit(&kits[i]);
}
