/* SPDX-License-Identifier: MIT */
/* bench: the rounds. */
#include "bench/bench.h"
#include "common/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_SECONDS 1.0 /* a call that takes longer is measured in fewer rounds, if asked for */

typedef struct lane {
    bench_case *c;
    const char *isa;
    uint32_t rounds, n_reads;
    double *time, *read, *tile; /* one per round */
    double err;
    double part[BENCH_N_PARTS]; /* minima */
} lane;

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_size);
}

/* Of sorted numbers. */
static double median(const double *x, uint32_t n)
{
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static bool is_amx(const lane *l)
{
    return !l->c->isa && strcmp(l->isa, "amx") == 0;
}

static int failed_run(const lane *l)
{
    return tool_failed("bench", "%s %s with %s/%s failed on %s", l->c->impl->name,
                       bench_op_name(l->c->shape.op), l->c->shape.codecs.k, l->c->shape.codecs.v, l->isa);
}

static bool timed_run(lane *l, uint32_t layer, bench_times *times)
{
    bench_case *c = l->c;
    const double none = (double)NAN;
    *times = (bench_times){none, {none, none, none}};
    if (c->impl->before) c->impl->before(c);
    double start = bench_now();
    bool ok = c->impl->run(c, layer, times);
    double took = bench_now() - start;
    if (c->impl->after) c->impl->after(c);
    if (isnan(times->all)) times->all = took;
    return ok;
}

/* The first call, which is not counted: it grows scratch memory, is checked, and tells whether the lane is slow. */
static int warm_up(lane *l, const bench_plan *plan)
{
    bench_times times;
    if (!l->c->isa) quire_isa_use(l->isa);
    if (!timed_run(l, 0, &times)) return failed_run(l);
    if (!l->c->impl->check(l->c, &l->err)) return failed_run(l);
    bool slow = times.all > SLOW_SECONDS && plan->slow_rounds && l->c->shape.op != BENCH_APPEND;
    l->rounds = slow && plan->slow_rounds < plan->rounds ? plan->slow_rounds : plan->rounds;
    l->time = (double *)malloc(sizeof(double) * l->rounds * 3);
    if (!l->time) return tool_failed("bench", "out of memory");
    l->read = l->time + l->rounds;
    l->tile = l->read + l->rounds;
    return TOOL_OK;
}

/*
 * Reading comes directly before the call: it is the yardstick, it leaves the caches as the shape wants them, and the
 * team is awake when the call begins. Cold lanes read another layer than the one that is measured, half a turn away.
 */
static void read_memory(lane *l, uint32_t round)
{
    bench_case *c = l->c;
    uint32_t layer = (round + (c->shape.cold ? c->n_layers / 2 : 0)) % c->n_layers;
    const uint8_t *const *pieces = c->pieces + (size_t)layer * c->n_pieces;
    if (!c->shape.cold) bench_read(c->team, pieces, c->n_pieces, c->piece_bytes);
    l->read[l->n_reads++] = bench_read(c->team, pieces, c->n_pieces, c->piece_bytes);
}

static int measure(lane *l, uint32_t round)
{
    bench_times times;
    if (!l->c->isa) quire_isa_use(l->isa);
    if (is_amx(l)) l->tile[round] = bench_tile_cycles();
    bench_wake(l->c->team);
    if (l->c->pieces) read_memory(l, round);
    if (!timed_run(l, round % l->c->n_layers, &times)) return failed_run(l);
    l->time[round] = times.all;
    for (int i = 0; i < BENCH_N_PARTS; i++)
        if (isnan(l->part[i]) || times.part[i] < l->part[i]) l->part[i] = times.part[i];
    return TOOL_OK;
}

static int make_row(const lane *l, bench_rows *rows)
{
    const bench_shape *s = &l->c->shape;
    bench_row *r = bench_rows_add(rows);
    if (!r) return tool_failed("bench", "out of memory");
    snprintf(r->impl, sizeof r->impl, "%s", l->c->impl->name);
    snprintf(r->op, sizeof r->op, "%s", bench_op_name(s->op));
    snprintf(r->k, sizeof r->k, "%s", s->codecs.k);
    snprintf(r->v, sizeof r->v, "%s", s->v_in_k ? s->codecs.k : s->codecs.v);
    snprintf(r->isa, sizeof r->isa, "%s", l->isa);
    r->d = s->d;
    r->dv = s->d_v;
    r->v_in_k = s->v_in_k;
    r->kv_heads = s->n_kv_heads;
    r->q_heads = s->n_q_heads;
    r->context = s->context;
    r->queries = s->n_queries;
    r->sequences = s->n_seqs;
    r->cold = s->cold;
    r->threads = s->n_threads;
    r->runs = l->rounds;
    r->err = l->err;
    sort(l->time, l->rounds);
    r->ms = l->time[0] * 1e3;
    r->median_ms = median(l->time, l->rounds) * 1e3;
    if (is_amx(l)) {
        sort(l->tile, l->rounds);
        r->tile_cycles = median(l->tile, l->rounds);
    }
    if (s->op == BENCH_APPEND) {
        r->ns_per_row = r->ms * 1e3; /* ms for 1000 rows */
        r->k_ns = l->part[BENCH_PART_K] * 1e9;
        r->v_ns = l->part[BENCH_PART_V] * 1e9;
        r->page_ns = l->part[BENCH_PART_PAGE] * 1e9;
        return TOOL_OK;
    }
    if (l->n_reads) {
        sort(l->read, l->n_reads);
        r->read_ms = l->read[0] * 1e3;
    }
    r->bytes = (double)l->c->layer_bytes;
    r->tokens = (double)s->n_tokens;
    r->spread = s->spread;
    r->huge = bench_huge_share(l->c->pieces, (size_t)l->c->n_pieces * l->c->n_layers, l->c->piece_bytes);
    if (!l->c->isa) snprintf(r->team, sizeof r->team, "%s", bench_team_text(l->c->team));
    return TOOL_OK;
}

static size_t make_lanes(const bench_plan *plan, lane *lanes)
{
    const double none = (double)NAN;
    size_t n = 0;
    for (size_t i = 0; i < plan->n_cases; i++) {
        bench_case *c = plan->cases[i];
        size_t n_isas = c->isa || !plan->n_isas ? 1 : plan->n_isas;
        for (size_t j = 0; j < n_isas; j++)
            lanes[n++] = (lane){.c = c,
                                .isa = c->isa         ? c->isa
                                       : plan->n_isas ? plan->isas[j]
                                                      : quire_isa_in_use(),
                                .part = {none, none, none}};
    }
    return n;
}

int bench_measure(const bench_plan *plan, bench_rows *rows)
{
    lane *lanes = (lane *)calloc(plan->n_cases * (plan->n_isas + 1), sizeof *lanes);
    if (!lanes) return tool_failed("bench", "out of memory");
    size_t n = make_lanes(plan, lanes);
    int code = TOOL_OK;
    progress bar;
    progress_start(&bar, "measuring", "rounds", plan->rounds);
    for (size_t i = 0; code == TOOL_OK && i < n; i++) code = warm_up(&lanes[i], plan);
    for (uint32_t round = 0; code == TOOL_OK && round < plan->rounds; round++) {
        progress_show(&bar, round);
        for (size_t i = 0; code == TOOL_OK && i < n; i++)
            if (round < lanes[i].rounds) code = measure(&lanes[i], round);
    }
    progress_end(&bar);
    for (size_t i = 0; code == TOOL_OK && i < n; i++) code = make_row(&lanes[i], rows);
    for (size_t i = 0; i < n; i++) free(lanes[i].time);
    free(lanes);
    quire_isa_use(NULL);
    return code;
}
