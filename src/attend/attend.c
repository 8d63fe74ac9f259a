/* SPDX-License-Identifier: MIT */
/* attend: checking jobs and spreading them over the executor. Who does which part never changes a result: a split's
 * partial result depends on its tiles alone, and partial results are folded in order. */
#include "attend/attend.h"

#include "core/float_mode.h"

#include <math.h>

#define EXPANDED_BYTES ((size_t)1 << 20) /* of a worker at most: half of the second cache */
#define KNOWN_FLAGS (uint32_t)(QUIRE_ATTEND_BIDIRECTIONAL | QUIRE_ATTEND_PARTIAL)
#define PARTS_IN_FLIGHT 64u /* partial results kept at once, at least, when splits are spread over threads */

struct quire_workspace {
    quire_allocator allocator;
    quire_executor executor;
    quire_checked_job *jobs; /* of the call, after checking */
    uint32_t cap_jobs;
    uint8_t *memory; /* everything else a call needs, laid out anew by each */
    size_t bytes;
    quire_workspace_stats stats;
};

quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                    const quire_allocator *allocator)
{
    if (!out) return QUIRE_EINVAL;
    quire_allocator a = quire_allocator_or_default(allocator);
    quire_workspace *w = (quire_workspace *)quire_alloc(&a, sizeof *w);
    if (!w) return QUIRE_ENOMEM;
    w->allocator = a;
    if (executor && executor->run) w->executor = *executor;
    if (!w->executor.n_threads) w->executor.n_threads = 1;
    *out = w;
    return QUIRE_OK;
}

void quire_workspace_destroy(quire_workspace *w)
{
    if (!w) return;
    quire_allocator a = w->allocator;
    quire_free(&a, w->jobs, sizeof *w->jobs * w->cap_jobs);
    quire_free(&a, w->memory, w->bytes);
    quire_free(&a, w, sizeof *w);
}

void quire_workspace_stats_get(const quire_workspace *w, quire_workspace_stats *out)
{
    *out = w->stats;
}

/* ------------------------------------------------------------------ checks */

/*
 * The list stays in order of fingerprints. So results do not depend on which tile comes first, nor on which of several equal
 * format objects a tile refers to.
 */
static bool add_format(const quire_format **list, uint32_t *n, const quire_format *format)
{
    uint32_t at = 0;
    while (at < *n && list[at]->fingerprint < format->fingerprint) at++;
    if (at < *n && list[at]->fingerprint == format->fingerprint) return true;
    if (*n == QUIRE_MAX_FORMATS) return false;
    memmove(list + at + 1, list + at, sizeof *list * (*n - at));
    list[at] = format;
    (*n)++;
    return true;
}

static bool mask_is_valid(const quire_mask *m)
{
    return !m || !m->n_keys || (m->data && quire_form_is_float(m->form));
}

/* Whether the tiles of all heads lie apart and aligned. */
static bool heads_are_apart(const void *tile, size_t stride, const quire_format *f, uint32_t n_heads)
{
    if (!quire_tile_is_aligned(tile)) return false;
    return !stride || n_heads == 1 || (stride % 64 == 0 && stride >= f->tile_bytes);
}

static quire_status check_tile(quire_checked_job *c, const quire_attend_job *job, const quire_tile_ref *tile)
{
    if (!tile->k || !tile->k_format || tile->n_rows > QUIRE_TILE_ROWS) return QUIRE_EINVAL;
    if (tile->first > (uint32_t)INT32_MAX) return QUIRE_EINVAL;
    const quire_format *value = tile->v ? tile->v_format : tile->k_format;
    if (!value || tile->k_format->coder.side != QUIRE_K || tile->k_format->coder.d != job->d_k)
        return QUIRE_EINVAL;
    if (tile->v ? value->coder.side != QUIRE_V || value->coder.d != job->d_v : value->coder.d_v != job->d_v)
        return QUIRE_EINVAL;
    if (!heads_are_apart(tile->k, tile->k_head_stride, tile->k_format, job->n_kv_heads)) return QUIRE_EINVAL;
    if (tile->v && !heads_are_apart(tile->v, tile->v_head_stride, value, job->n_kv_heads))
        return QUIRE_EINVAL;
    if (job->n_kv_heads > tile->k_format->n_heads || job->n_kv_heads > value->n_heads) return QUIRE_EINVAL;
    if (!add_format(c->k, &c->n_k, tile->k_format) || !add_format(c->v, &c->n_v, value))
        return QUIRE_EUNSUPPORTED;
    size_t floats = quire_acc_floats(value) + QUIRE_MEAN_SLOTS;
    if (floats > c->v_stride) c->v_stride = (uint32_t)floats;
    return QUIRE_OK;
}

static quire_status check_job(quire_checked_job *c, const quire_attend_job *job,
                              const quire_attend_options *o)
{
    *c = (quire_checked_job){.job = job};
    if (!job->n_kv_heads || !job->n_q_heads || job->n_q_heads % job->n_kv_heads) return QUIRE_EINVAL;
    if (!job->d_k || job->d_k > QUIRE_MAX_D || !job->d_v || job->d_v > QUIRE_MAX_D) return QUIRE_EINVAL;
    if (job->n_queries && (!job->q || !job->out)) return QUIRE_EINVAL;
    if (job->n_queries > (uint32_t)INT32_MAX || job->first_query > (uint32_t)INT32_MAX) return QUIRE_EINVAL;
    if ((job->n_tiles && !job->tiles) || !mask_is_valid(job->mask)) return QUIRE_EINVAL;
    if (o->flags & QUIRE_ATTEND_PARTIAL && job->n_queries && (!job->max || !job->sum)) return QUIRE_EINVAL;
    if ((job->out_stride && job->out_stride < job->d_v) ||
        (job->out_head_stride && job->out_head_stride < job->d_v))
        return QUIRE_EINVAL;
    if (job->ring_tokens ? job->ring_sinks >= job->ring_tokens : job->ring_sinks) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < job->n_tiles; i++) {
        quire_status status = check_tile(c, job, &job->tiles[i]);
        if (status) return status;
        if (!i || job->tiles[i].first / QUIRE_SPLIT_TOKENS != job->tiles[i - 1].first / QUIRE_SPLIT_TOKENS)
            c->n_splits++;
    }
    c->n_per_kv = job->n_q_heads / job->n_kv_heads;
    uint64_t rows = (uint64_t)job->n_queries * c->n_per_kv;
    if (rows > UINT32_MAX - QUIRE_MAX_QUERY_ROWS) return QUIRE_EINVAL;
    c->n_rows = (uint32_t)rows;
    c->blocks_per_head = (c->n_rows + QUIRE_MAX_QUERY_ROWS - 1) / QUIRE_MAX_QUERY_ROWS;
    c->q_head_stride = job->q_head_stride ? job->q_head_stride : job->d_k;
    c->q_stride = job->q_stride ? job->q_stride : (size_t)job->n_q_heads * job->d_k;
    c->out_head_stride = job->out_head_stride ? job->out_head_stride : job->d_v;
    c->out_stride = job->out_stride ? job->out_stride : (size_t)job->n_q_heads * job->d_v;
    c->scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)job->d_k);
    return QUIRE_OK;
}

static void cut_splits(quire_checked_job *c)
{
    const quire_tile_ref *tile = c->job->tiles;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->job->n_tiles; i++) {
        if (!i || tile[i].first / QUIRE_SPLIT_TOKENS != tile[i - 1].first / QUIRE_SPLIT_TOKENS)
            c->split[n++] = (quire_split){i, i};
        c->split[n - 1].end = i + 1;
    }
}

/* ------------------------------------------------------------------ memory */

/* What the largest job needs. */
typedef struct needs {
    uint32_t n_k, n_parts, rows, d;
    size_t state_floats;
} needs;

typedef struct call {
    const quire_attend_options *options;
    quire_checked_job *jobs;
    uint32_t n_jobs, n_workers;
    uint64_t n_blocks;
    quire_split *splits;
    quire_scratch *scratch; /* one per worker */
    float *parts;           /* PARTS_IN_FLIGHT states of state_floats, if splits are spread */
    size_t state_floats;
    const quire_kernels *kernels;
    uint32_t float_mode; /* the same wherever a part of the call runs */
    uint32_t max_rows;   /* of a block */
    atomic_ullong next;
    /* Spread splits: parts [first, first + n) of the list of all (block, split). */
    uint64_t first_part, n_parts, in_flight;
} call;

/* Hands out pieces of one block of memory; with base NULL it only counts. */
typedef struct carver {
    uint8_t *base;
    size_t used;
} carver;

static void *carve(carver *c, size_t n, size_t size)
{
    size_t at = c->used, bytes = quire_bytes(n, size);
    c->used = bytes > SIZE_MAX / 2 - at ? SIZE_MAX / 2 : (at + bytes + 63) / 64 * 64;
    return c->base ? c->base + at : NULL;
}

static void lay_out_queries(carver *m, const needs *n, quire_queries *q)
{
    size_t rows = n->rows;
    size_t whole =
        (rows + QUIRE_STRIP_ROWS - 1) / QUIRE_STRIP_ROWS * QUIRE_STRIP_ROWS; /* kernels read whole strips */
    size_t bytes = 2 * (size_t)quire_z_stride(n->d);
    quire_queries laid = {
        .row = (float *)carve(m, rows * n->d, sizeof(float)),
        .z = (int8_t *)carve(m, 2 * whole, bytes),
        .r = (int8_t *)carve(m, whole, bytes),
        .sum = (int32_t *)carve(m, 2 * rows * n->n_parts, sizeof(int32_t)),
        .unit = (float *)carve(m, rows, sizeof(float)),
        .mean_score = (float *)carve(m, rows * QUIRE_MEAN_SLOTS, sizeof(float)),
        .skip_r_below = (float *)carve(m, rows, sizeof(float)),
    };
    if (m->base) *q = laid;
}

/*
 * Accumulators of many rows do not fit into the first cache, and each tile changes all of them. So a strip of rows goes
 * over a few tiles before the next one does; those lie expanded in the second cache.
 */
static uint32_t tiles_at_once(size_t rows, size_t expanded)
{
    size_t n = EXPANDED_BYTES / (2 * expanded);
    if (rows <= QUIRE_STRIP_ROWS || n < 1) return 1;
    return n < QUIRE_TILES_AT_ONCE ? (uint32_t)n : QUIRE_TILES_AT_ONCE;
}

static void lay_out_scratch(carver *m, const needs *n, quire_scratch *s)
{
    size_t rows = n->rows, expanded = quire_expanded_bytes(n->d);
    uint32_t n_tiles = tiles_at_once(n->rows, expanded);
    quire_scratch laid = {
        .queries = (quire_queries *)carve(m, n->n_k, sizeof(quire_queries)),
        .log_unit = (float *)carve(m, n->n_k * rows, sizeof(float)),
        .visible = (uint64_t *)carve(m, n_tiles * rows, sizeof(uint64_t)),
        .scores = (float *)carve(m, (size_t)2 * QUIRE_STRIP_ROWS * QUIRE_TILE_ROWS, sizeof(float)),
        .k = (uint8_t *)carve(m, n_tiles, expanded),
        .v = (uint8_t *)carve(m, n_tiles, expanded),
        .expanded_bytes = expanded,
        .n_tiles = n_tiles,
        .kernel = carve(m, 1, quire_kernel_scratch(n->d)),
        .row = (float *)carve(m, QUIRE_MAX_D, sizeof(float)),
        .part = (float *)carve(m, n->state_floats, sizeof(float)),
        .total = (float *)carve(m, n->state_floats, sizeof(float)),
    };
    for (uint32_t i = 0; i < n->n_k; i++) lay_out_queries(m, n, m->base ? &laid.queries[i] : NULL);
    if (m->base) *s = laid;
}

/* Lays out all memory of a call. Called once to count, once to place. */
static void lay_out(carver *m, call *c, const needs *n, uint64_t n_splits, bool spread)
{
    c->splits = (quire_split *)carve(m, (size_t)n_splits, sizeof *c->splits);
    c->scratch = (quire_scratch *)carve(m, c->n_workers, sizeof *c->scratch);
    for (uint32_t i = 0; i < c->n_workers; i++) lay_out_scratch(m, n, m->base ? &c->scratch[i] : NULL);
    c->parts = spread ? (float *)carve(m, (size_t)c->in_flight, n->state_floats * sizeof(float)) : NULL;
}

static quire_status ensure(quire_workspace *w, size_t bytes)
{
    if (bytes <= w->bytes) return QUIRE_OK;
    uint8_t *memory = (uint8_t *)quire_alloc(&w->allocator, bytes);
    if (!memory) return QUIRE_ENOMEM;
    quire_free(&w->allocator, w->memory, w->bytes);
    w->memory = memory;
    w->bytes = bytes;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------- tasks */

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
    const quire_checked_job *job = &c->jobs[lo];
    index -= job->first_block;
    uint32_t first = (uint32_t)(index % job->blocks_per_head) * QUIRE_MAX_QUERY_ROWS;
    uint32_t rows = job->n_rows - first;
    return (quire_block){
        .job = job,
        .head = (uint32_t)(index / job->blocks_per_head),
        .first_row = first,
        .n_rows = rows < QUIRE_MAX_QUERY_ROWS ? rows : QUIRE_MAX_QUERY_ROWS,
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

/* One worker: whole blocks, split after split. */
static void whole_blocks(void *arg, uint32_t worker)
{
    call *c = (call *)arg;
    quire_scratch *s = &c->scratch[worker];
    thread_state found = enter(c);
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_blocks) {
        quire_block b = block_at(c, i);
        quire_state part = quire_state_at(b.job, b.n_rows, s->part);
        quire_state total = quire_state_at(b.job, b.n_rows, s->total);
        quire_state_clear(&b, &total);
        quire_block_prepare(&b, s);
        for (uint32_t k = 0; k < b.job->n_splits; k++) {
            quire_block_split(&b, c->options, &b.job->split[k], s, &part);
            quire_state_fold(&b, &total, &part);
        }
        quire_block_finish(&b, c->options, &total, s);
    }
    leave(c, &found);
}

/* Part number i of the whole call: a block and one of its splits. Parts of a block follow each other. */
static quire_block part_at(const call *c, uint64_t i, uint64_t *block, uint32_t *split)
{
    uint32_t lo = 0,
             hi = c->n_jobs; /* the last job that begins at or before i; those without parts come last */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->jobs[mid].first_part <= i && c->jobs[mid].n_splits)
            lo = mid;
        else
            hi = mid;
    }
    i -= c->jobs[lo].first_part;
    *block = c->jobs[lo].first_block + i / c->jobs[lo].n_splits;
    *split = (uint32_t)(i % c->jobs[lo].n_splits);
    return block_at(c, *block);
}

static void spread_parts(void *arg, uint32_t worker)
{
    call *c = (call *)arg;
    quire_scratch *s = &c->scratch[worker];
    thread_state found = enter(c);
    uint64_t i, block, prepared = UINT64_MAX;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_parts) {
        uint32_t k;
        quire_block b = part_at(c, c->first_part + i, &block, &k);
        quire_state part = quire_state_at(b.job, b.n_rows, c->parts + (size_t)i * c->state_floats);
        if (block != prepared) quire_block_prepare(&b, s);
        prepared = block;
        quire_block_split(&b, c->options, &b.job->split[k], s, &part);
    }
    leave(c, &found);
}

static void run(const quire_workspace *w, call *c, void (*task)(void *, uint32_t), uint32_t n)
{
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (w->executor.run && n > 1)
        w->executor.run(w->executor.ctx, task, c, n);
    else
        task(c, 0);
}

/* Few blocks, many tiles: the splits of a block go to different workers, a bounded number at a time. */
static void run_spread(const quire_workspace *w, call *c, uint64_t n_parts)
{
    quire_scratch *s = &c->scratch[0];
    for (uint64_t i = 0; i < c->n_blocks; i++) { /* a job without tiles has no parts */
        quire_block b = block_at(c, i);
        if (b.job->n_splits) continue;
        quire_state total = quire_state_at(b.job, b.n_rows, s->total);
        quire_state_clear(&b, &total);
        quire_block_finish(&b, c->options, &total, s);
    }
    for (c->first_part = 0; c->first_part < n_parts; c->first_part += c->in_flight) {
        c->n_parts = n_parts - c->first_part < c->in_flight ? n_parts - c->first_part : c->in_flight;
        run(w, c, spread_parts, c->n_workers);
        for (uint64_t i = 0; i < c->n_parts; i++) {
            uint64_t block;
            uint32_t k;
            quire_block b = part_at(c, c->first_part + i, &block, &k);
            quire_state part = quire_state_at(b.job, b.n_rows, c->parts + (size_t)i * c->state_floats);
            quire_state total = quire_state_at(b.job, b.n_rows, s->total); /* lives on between rounds */
            if (k == 0) quire_state_clear(&b, &total);
            quire_state_fold(&b, &total, &part);
            if (k + 1 == b.job->n_splits) quire_block_finish(&b, c->options, &total, s);
        }
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
static void sort_longer_first(quire_checked_job *jobs, uint32_t n)
{
    uint32_t gap = 1;
    while (gap < n / 3) gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            if (jobs[i - gap].job->n_tiles >= jobs[i].job->n_tiles) continue;
            quire_checked_job moved = jobs[i];
            uint32_t to = i;
            for (; to >= gap && jobs[to - gap].job->n_tiles < moved.job->n_tiles; to -= gap)
                jobs[to] = jobs[to - gap];
            jobs[to] = moved;
        }
}

QUIRE_APART static quire_status attend(quire_workspace *w, const quire_attend_options *options,
                                       const quire_attend_job *jobs, uint32_t n_jobs)
{
    if (!quire_options_are_known(options->version) || options->flags & ~KNOWN_FLAGS) return QUIRE_EINVAL;
    if (!isfinite(options->scale) || !isfinite(options->softcap) || options->softcap < 0) return QUIRE_EINVAL;

    if (!quire_grow(&w->allocator, &w->jobs, &w->cap_jobs, 0, n_jobs, sizeof *w->jobs)) return QUIRE_ENOMEM;
    call c = {.options = options, .jobs = w->jobs, .n_jobs = n_jobs};
    needs n = {.n_k = 1, .n_parts = 1, .rows = 1, .d = 16};
    const quire_kernels *kernels = quire_kernels_get();
    uint64_t n_splits = 0, n_parts = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        quire_checked_job *job = &c.jobs[i];
        quire_status status = check_job(job, &jobs[i], options);
        if (status) return status;
        uint32_t rows = job->n_rows < QUIRE_MAX_QUERY_ROWS ? job->n_rows : QUIRE_MAX_QUERY_ROWS;
        size_t floats = quire_state_floats(job, rows);
        uint32_t d = jobs[i].d_k > jobs[i].d_v ? jobs[i].d_k : jobs[i].d_v;
        job->kernels = kernels;
        if (job->n_k > n.n_k) n.n_k = job->n_k;
        for (uint32_t f = 0; f < job->n_k; f++)
            if (quire_n_parts(&job->k[f]->coder) > n.n_parts) n.n_parts = quire_n_parts(&job->k[f]->coder);
        if (rows > n.rows) n.rows = rows;
        if ((d + 15) / 16 * 16 > n.d) n.d = (d + 15) / 16 * 16;
        if (floats > n.state_floats) n.state_floats = floats;
    }
    sort_longer_first(c.jobs, n_jobs);
    for (uint32_t i = 0; i < n_jobs; i++) {
        quire_checked_job *job = &c.jobs[i];
        uint64_t blocks = (uint64_t)job->blocks_per_head * job->job->n_kv_heads;
        job->first_block = c.n_blocks;
        job->first_part = n_parts;
        n_splits += job->n_splits;
        n_parts += blocks * job->n_splits;
        c.n_blocks += blocks;
    }
    if (!c.n_blocks) return QUIRE_OK;
    bool spread = is_uneven(c.n_blocks, w->executor.n_threads) && n_parts > c.n_blocks;
    uint64_t in_flight = 4 * (uint64_t)w->executor.n_threads;
    c.in_flight = in_flight > PARTS_IN_FLIGHT ? in_flight : PARTS_IN_FLIGHT;
    if (c.in_flight > n_parts) c.in_flight = n_parts;
    uint64_t pieces = spread ? n_parts : c.n_blocks;
    c.n_workers = pieces < w->executor.n_threads ? (uint32_t)pieces : w->executor.n_threads;
    c.state_floats = n.state_floats;
    c.kernels = kernels;
    c.float_mode = kernels == &quire_kernels_c ? QUIRE_FLOAT_MODE_KEEP : QUIRE_FLOAT_MODE_FLUSH;
    c.max_rows = n.rows;

    carver count = {0};
    lay_out(&count, &c, &n, n_splits, spread);
    quire_status status = ensure(w, count.used);
    if (status) return status;
    carver place = {.base = w->memory};
    lay_out(&place, &c, &n, n_splits, spread);
    quire_split *split = c.splits;
    for (uint32_t i = 0; i < n_jobs; i++) {
        c.jobs[i].split = split;
        cut_splits(&c.jobs[i]);
        split += c.jobs[i].n_splits;
    }
    uint32_t mode = quire_float_mode_set(c.float_mode);
    if (spread)
        run_spread(w, &c, n_parts);
    else
        run(w, &c, whole_blocks, c.n_workers);
    for (uint32_t i = 0; i < c.n_workers; i++) {
        w->stats.tiles_read += c.scratch[i].stats.tiles_read;
        w->stats.tiles_skipped += c.scratch[i].stats.tiles_skipped;
    }
    quire_float_mode_leave(mode);
    return QUIRE_OK;
}

quire_status quire_attend(quire_workspace *w, const quire_attend_options *options,
                          const quire_attend_job *jobs, uint32_t n_jobs)
{
    static const quire_attend_options plain = {.version = QUIRE_OPTIONS};
    if (!w || (n_jobs && !jobs)) return QUIRE_EINVAL;
    uint32_t mode = quire_float_mode_enter();
    quire_status status = attend(w, options ? options : &plain, jobs, n_jobs);
    quire_float_mode_leave(mode);
    return status;
}
