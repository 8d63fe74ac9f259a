/* SPDX-License-Identifier: MIT */
/* attend: spreads jobs over the executor. Who computes which part never changes a result: a partial result depends on
 * the tiles of its split alone, and partial results are folded in order. */
#include "attend/workspace.h"

#include "core/float_mode.h"

#include <math.h>

#define KNOWN_FLAGS (uint32_t)(QUIRE_ATTEND_BIDIRECTIONAL | QUIRE_ATTEND_PARTIAL)
/* Partial results kept at once when splits are spread over threads: at least so many, and as many as so many bytes hold. */
#define PARTIALS_IN_FLIGHT 64u
#define PARTIAL_BYTES ((size_t)2 << 20)
#define BLOCK_BYTES \
    ((size_t)320 << 10)       /* of the accumulators of a block of more than QUIRE_MIN_BLOCK_ROWS rows */
#define BLOCKS_PER_THREAD 16u /* at least, if blocks have more rows than that */
#define FOLD_FLOATS 16384u    /* from here on folding takes longer than waking the threads for it */
#define FOLD_PIECES 4u        /* for each thread, at least, if there are as many rows */

typedef struct call {
    const quire_attend_options *options;
    quire_job *jobs;
    uint32_t n_jobs, n_workers;
    uint64_t n_blocks;
    quire_scratch *scratch; /* one per worker */
    float *states;          /* of partial results in flight, if splits are spread */
    size_t state_floats;
    const quire_kernels *kernels;
    uint32_t float_mode; /* the same wherever a part of the call runs */
    uint32_t max_rows;   /* of a block */
    atomic_ullong next;
    atomic_bool cancelled;
    /* Spread splits: partial results [first, first + n) of the list of all (block, split). */
    uint64_t first_partial, n_partials, in_flight;
    /* Folding them: pieces of at most piece_rows rows of one block, pieces_per_block of each. */
    uint64_t first_block, n_pieces;
    uint32_t piece_rows, pieces_per_block;
    float *carried[2]; /* totals from the round before and for the next one */
} call;

static bool is_cancelled(call *c)
{
    if (!c->options->cancelled) return false;
    if (!atomic_load_explicit(&c->cancelled, memory_order_relaxed) &&
        c->options->cancelled(c->options->cancelled_ctx))
        atomic_store_explicit(&c->cancelled, true, memory_order_relaxed);
    return atomic_load_explicit(&c->cancelled, memory_order_relaxed);
}

static quire_block block_at(const call *c, uint64_t index)
{
    uint32_t lo = 0, hi = c->n_jobs; /* the last job that begins at or before index */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->jobs[mid].first_block <= index)
            lo = mid;
        else
            hi = mid;
    }
    const quire_job *job = &c->jobs[lo];
    index -= job->first_block;
    uint32_t first = (uint32_t)(index % job->blocks_per_head) * job->block_rows;
    uint32_t rows = job->n_rows - first;
    return (quire_block){
        .job = job,
        .head = (uint32_t)(index / job->blocks_per_head),
        .first_row = first,
        .n_rows = rows < job->block_rows ? rows : job->block_rows,
    };
}

/* What kernels change on a thread. */
typedef struct thread_state {
    _Alignas(64) uint8_t tiles[64];
    uint32_t mode;
} thread_state;

static thread_state enter(const call *c)
{
    thread_state found;
    found.mode = quire_float_mode_set(c->float_mode);
    if (c->kernels->enter) c->kernels->enter(found.tiles, c->max_rows);
    return found;
}

static void leave(const call *c, thread_state *found)
{
    if (c->kernels->leave) c->kernels->leave(found->tiles);
    quire_float_mode_leave(found->mode);
}

/* A block, split after split. The first partial result is the total so far. */
static void whole_block(call *c, const quire_block *b, quire_scratch *s)
{
    quire_state partial = quire_state_at(b->job, b->n_rows, s->partial);
    quire_state total = quire_state_at(b->job, b->n_rows, s->total);
    quire_sight sight = quire_block_sight(b, c->options->flags);
    bool any = false;
    quire_block_prepare(b, s);
    for (uint32_t k = 0; k < b->job->n_splits; k++) {
        const quire_split *split = &b->job->split[k];
        if (is_cancelled(c)) return;
        if (quire_split_is_hidden(&sight, b->job, split)) {
            s->stats.tiles_skipped += split->end - split->begin;
            continue;
        }
        quire_block_split(b, c->options, split, s, any ? &partial : &total);
        if (any) quire_state_fold(b, 0, b->n_rows, &total, &partial);
        any = true;
    }
    if (!any) quire_state_clear(b, &total);
    quire_block_finish(b, c->options, 0, b->n_rows, &total, s);
}

static void whole_blocks(void *arg, uint32_t worker)
{
    call *c = (call *)arg;
    thread_state found = enter(c);
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_blocks &&
           !is_cancelled(c)) {
        quire_block b = block_at(c, i);
        whole_block(c, &b, &c->scratch[worker]);
    }
    leave(c, &found);
}

/* Partial result number i of the whole call: a block and one of its splits. Those of a block follow each other. */
static quire_block partial_at(const call *c, uint64_t i, uint64_t *block, uint32_t *split)
{
    uint32_t lo = 0,
             hi = c->n_jobs; /* the last job that begins at or before i; those without tiles come last */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->jobs[mid].first_partial <= i && c->jobs[mid].n_splits)
            lo = mid;
        else
            hi = mid;
    }
    i -= c->jobs[lo].first_partial;
    *block = c->jobs[lo].first_block + i / c->jobs[lo].n_splits;
    *split = (uint32_t)(i % c->jobs[lo].n_splits);
    return block_at(c, *block);
}

static quire_state state_of(const call *c, const quire_block *b, uint64_t i)
{
    return quire_state_at(b->job, b->n_rows, c->states + (size_t)i * c->state_floats);
}

static void spread_partials(void *arg, uint32_t worker)
{
    call *c = (call *)arg;
    quire_scratch *s = &c->scratch[worker];
    thread_state found = enter(c);
    uint64_t i, block, prepared = UINT64_MAX;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_partials &&
           !is_cancelled(c)) {
        uint32_t k;
        quire_block b = partial_at(c, c->first_partial + i, &block, &k);
        quire_state partial = state_of(c, &b, i);
        if (block != prepared) quire_block_prepare(&b, s);
        prepared = block;
        quire_block_split(&b, c->options, &b.job->split[k], s, &partial);
    }
    leave(c, &found);
}

/*
 * Some rows of a block: its partial results of this round are folded in order, into the first of them. What does not fit into a
 * round is carried on: from the last block of one round to the first of the next. There are two places for that, because a round
 * may end one such block and begin another.
 */
static void fold_piece(call *c, uint64_t piece, quire_scratch *s)
{
    quire_block b = block_at(c, c->first_block + piece / c->pieces_per_block);
    uint32_t from = (uint32_t)(piece % c->pieces_per_block) * c->piece_rows, to = from + c->piece_rows;
    if (!b.job->n_splits || from >= b.n_rows) return;
    if (to > b.n_rows) to = b.n_rows;
    uint64_t in_job = c->first_block + piece / c->pieces_per_block - b.job->first_block;
    uint64_t begin = b.job->first_partial + in_job * b.job->n_splits, end = begin + b.job->n_splits;
    uint64_t round_end = c->first_partial + c->n_partials;
    uint64_t i = begin > c->first_partial ? begin : c->first_partial;
    quire_state total = quire_state_at(b.job, b.n_rows, c->carried[0]);
    quire_state carried = quire_state_at(b.job, b.n_rows, c->carried[1]);
    if (begin >= c->first_partial) total = state_of(c, &b, i++ - c->first_partial);
    for (; i < end && i < round_end; i++) {
        quire_state partial = state_of(c, &b, i - c->first_partial);
        quire_state_fold(&b, from, to, &total, &partial);
    }
    if (end <= round_end)
        quire_block_finish(&b, c->options, from, to, &total, s);
    else
        quire_state_copy(&b, from, to, &carried, &total);
}

static void fold_pieces(void *arg, uint32_t worker)
{
    call *c = (call *)arg;
    uint32_t mode = quire_float_mode_set(c->float_mode);
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_pieces)
        fold_piece(c, i, &c->scratch[worker]);
    quire_float_mode_leave(mode);
}

static void run(const quire_workspace *w, call *c, void (*task)(void *, uint32_t), uint32_t n)
{
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    quire_workspace_run(w, task, c, n);
}

/* The partial results of a round, on all threads if that is worth waking them. */
static void fold_round(const quire_workspace *w, call *c)
{
    uint64_t last;
    uint32_t k, n_workers = c->n_partials * c->state_floats < FOLD_FLOATS ? 1 : c->n_workers;
    partial_at(c, c->first_partial, &c->first_block, &k);
    partial_at(c, c->first_partial + c->n_partials - 1, &last, &k);
    uint64_t n_blocks = last - c->first_block + 1;
    c->piece_rows = c->max_rows;
    while (c->piece_rows > 1 && n_workers > 1 &&
           n_blocks * (c->max_rows / c->piece_rows) < (uint64_t)FOLD_PIECES * n_workers)
        c->piece_rows = (c->piece_rows + 1) / 2;
    c->pieces_per_block = (c->max_rows + c->piece_rows - 1) / c->piece_rows;
    c->n_pieces = n_blocks * c->pieces_per_block;
    run(w, c, fold_pieces, n_workers);
}

/* Few blocks, many tiles: the splits of a block go to different workers, a bounded number at a time. */
static void run_spread(const quire_workspace *w, call *c, uint64_t n_partials)
{
    quire_scratch *s = &c->scratch[0];
    c->carried[0] = s->total; /* nobody else needs these two while splits are spread */
    c->carried[1] = s->partial;
    for (uint64_t i = 0; i < c->n_blocks; i++) { /* a job without tiles has no partial results */
        quire_block b = block_at(c, i);
        if (b.job->n_splits) continue;
        quire_state total = quire_state_at(b.job, b.n_rows, s->total);
        quire_state_clear(&b, &total);
        quire_block_finish(&b, c->options, 0, b.n_rows, &total, s);
    }
    for (c->first_partial = 0; c->first_partial < n_partials; c->first_partial += c->in_flight) {
        uint64_t left = n_partials - c->first_partial;
        c->n_partials = left < c->in_flight ? left : c->in_flight;
        run(w, c, spread_partials, c->n_workers);
        if (is_cancelled(c)) return;
        fold_round(w, c);
        float *next = c->carried[1];
        c->carried[1] = c->carried[0];
        c->carried[0] = next;
    }
}

/* Whether the blocks alone would leave threads idle for more than a tenth of the time. */
static bool is_uneven(uint64_t n_blocks, uint32_t n_threads)
{
    if (n_threads < 2 || n_blocks >= 8 * (uint64_t)n_threads) return false;
    uint64_t turns = (n_blocks + n_threads - 1) / n_threads;
    return n_blocks < 2 * (uint64_t)n_threads || 10 * turns * n_threads > 11 * n_blocks;
}

/*
 * Long jobs first: what is left at the end is short. Which job a result belongs to does not change it.
 * A Shell sort: in place (qsort may allocate) and quick for jobs that are in order.
 */
static void sort_longer_first(quire_job *jobs, uint32_t n)
{
    uint32_t gap = 1;
    while (gap < n / 3) gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            if (jobs[i - gap].n_tiles >= jobs[i].n_tiles) continue;
            quire_job moved = jobs[i];
            uint32_t to = i;
            for (; to >= gap && jobs[to - gap].n_tiles < moved.n_tiles; to -= gap) jobs[to] = jobs[to - gap];
            jobs[to] = moved;
        }
}

/* Checks all jobs. Tiles that come as arrays become lists first: a list that grows may move. */
static quire_status read_jobs(quire_workspace *w, const quire_attend_options *o,
                              const quire_attend_job *theirs, uint32_t n_jobs, size_t stride)
{
    quire_status status = QUIRE_OK;
    quire_tile_list_clear(&w->list);
    for (uint32_t i = 0; i < n_jobs && !status; i++) {
        quire_attend_job *spec = &w->jobs[i].spec;
        status = quire_read_element(spec, sizeof *spec, theirs, stride, i);
        w->jobs[i].list = spec->list;
        if (status || spec->list) continue;
        if (spec->list_seq || spec->list_layer) return QUIRE_EINVAL;
        status = quire_tile_list_add_tiles(&w->list, spec->tiles, spec->n_tiles, spec->tile_stride,
                                           spec->n_kv_heads);
        spec->list_seq = w->list.n_seqs - 1;
        w->jobs[i].list = &w->list;
    }
    for (uint32_t i = 0; i < n_jobs && !status; i++) {
        quire_attend_job spec = w->jobs[i].spec;
        status = quire_job_read(&w->jobs[i], &spec, o);
    }
    return status;
}

/*
 * The more rows a block has, the less often a tile is expanded. Their accumulators must stay in the second cache, and threads
 * must have enough blocks to end at about the same time.
 */
static void choose_block_rows(quire_job *job, uint32_t n_threads)
{
    size_t row_bytes = quire_acc_stride(job) * sizeof(float);
    for (uint32_t rows = 2 * job->block_rows; rows <= QUIRE_MAX_QUERY_ROWS; rows *= 2) {
        uint32_t per_head = (job->n_rows + rows - 1) / rows;
        if (rows * row_bytes > BLOCK_BYTES) return;
        if ((uint64_t)per_head * job->spec.n_kv_heads < (uint64_t)BLOCKS_PER_THREAD * n_threads) return;
        job->block_rows = rows;
        job->blocks_per_head = per_head;
    }
}

static void add_needs(quire_call_needs *n, const quire_job *job)
{
    uint32_t rows = job->n_rows < job->block_rows ? job->n_rows : job->block_rows;
    size_t floats = quire_state_floats(job, rows);
    uint32_t d = job->spec.d_k > job->spec.d_v ? job->spec.d_k : job->spec.d_v;
    if (job->n_k > n->n_k) n->n_k = job->n_k;
    for (uint32_t f = 0; f < job->n_k; f++)
        if (quire_n_parts(&job->k[f]->coder) > n->n_sums) n->n_sums = quire_n_parts(&job->k[f]->coder);
    if (rows > n->rows) n->rows = rows;
    if ((d + 15) / 16 * 16 > n->d) n->d = (d + 15) / 16 * 16;
    if (floats > n->state_floats) n->state_floats = floats;
    n->n_layouts += job->n_layouts;
}

static uint64_t in_flight(size_t state_floats, uint32_t n_threads, uint64_t n_partials)
{
    uint64_t n = PARTIAL_BYTES / (state_floats * sizeof(float));
    if (n < PARTIALS_IN_FLIGHT) n = PARTIALS_IN_FLIGHT;
    if (n < 4 * (uint64_t)n_threads) n = 4 * (uint64_t)n_threads;
    return n < n_partials ? n : n_partials;
}

QUIRE_APART static quire_status attend(quire_workspace *w, const quire_attend_options *options,
                                       const quire_attend_job *jobs, uint32_t n_jobs, size_t job_stride)
{
    if (options->reserved || options->flags & ~KNOWN_FLAGS) return QUIRE_EINVAL;
    if (!isfinite(options->scale) || !isfinite(options->softcap) || options->softcap < 0) return QUIRE_EINVAL;
    if (!quire_grow(&w->allocator, &w->jobs, &w->cap_jobs, 0, n_jobs, sizeof *w->jobs)) return QUIRE_ENOMEM;
    quire_status status = read_jobs(w, options, jobs, n_jobs, job_stride);
    if (status) return status;

    call c = {.options = options, .jobs = w->jobs, .n_jobs = n_jobs, .kernels = quire_kernels_get()};
    quire_call_needs needs = {.n_k = 1, .n_sums = 1, .rows = 1, .d = 16};
    uint64_t n_partials = 0;
    sort_longer_first(c.jobs, n_jobs);
    for (uint32_t i = 0; i < n_jobs; i++) {
        quire_job *job = &c.jobs[i];
        choose_block_rows(job, w->executor.n_threads);
        uint64_t blocks = (uint64_t)job->blocks_per_head * job->spec.n_kv_heads;
        add_needs(&needs, job);
        job->kernels = c.kernels;
        job->first_block = c.n_blocks;
        job->first_partial = n_partials;
        n_partials += blocks * job->n_splits;
        c.n_blocks += blocks;
    }
    if (!c.n_blocks) return QUIRE_OK;
    bool spread = is_uneven(c.n_blocks, w->executor.n_threads) && n_partials > c.n_blocks;
    c.in_flight = in_flight(needs.state_floats, w->executor.n_threads, n_partials);
    uint64_t pieces = spread ? n_partials : c.n_blocks;
    c.n_workers = pieces < w->executor.n_threads ? (uint32_t)pieces : w->executor.n_threads;
    c.state_floats = needs.state_floats;
    c.float_mode = c.kernels == &quire_kernels_c ? QUIRE_FLOAT_MODE_KEEP : QUIRE_FLOAT_MODE_FLUSH;
    c.max_rows = needs.rows;

    needs.n_workers = c.n_workers;
    needs.n_states = spread ? c.in_flight : 0;
    quire_call_memory memory;
    status = quire_workspace_lay_out(w, &needs, &memory);
    if (status) return status;
    c.scratch = memory.scratch;
    c.states = memory.states;
    for (uint32_t i = 0; i < n_jobs; i++) {
        c.jobs[i].layout = memory.layouts;
        memory.layouts += c.jobs[i].n_layouts;
        quire_job_fill_layouts(&c.jobs[i]);
    }
    uint32_t mode = quire_float_mode_set(c.float_mode);
    if (spread)
        run_spread(w, &c, n_partials);
    else
        run(w, &c, whole_blocks, c.n_workers);
    for (uint32_t i = 0; i < c.n_workers; i++) {
        w->stats.tiles_read += c.scratch[i].stats.tiles_read;
        w->stats.tiles_skipped += c.scratch[i].stats.tiles_skipped;
    }
    quire_float_mode_leave(mode);
    return atomic_load_explicit(&c.cancelled, memory_order_relaxed) ? QUIRE_ECANCELED : QUIRE_OK;
}

quire_status quire_attend(quire_workspace *w, const quire_attend_options *options,
                          const quire_attend_job *jobs, uint32_t n_jobs, size_t job_stride)
{
    quire_attend_options o = {.size = sizeof o};
    if (!w || (n_jobs && !jobs)) return QUIRE_EINVAL;
    quire_status status = options ? quire_read_sized(&o, sizeof o, options) : QUIRE_OK;
    if (status) return status;
    uint32_t mode = quire_float_mode_enter();
    status = attend(w, &o, jobs, n_jobs, job_stride);
    quire_float_mode_leave(mode);
    return status;
}
