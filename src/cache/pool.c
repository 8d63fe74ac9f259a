/* SPDX-License-Identifier: MIT */
/* cache: the pool: page memory, plans, workspaces. */
#include "cache/cache.h"

/* Budget bytes of the first page of every group: what quire_plan_bytes() gives for one token. Sink pages may be the smaller ones. */
static size_t first_page_each(const quire_plan *plan)
{
    size_t bytes = 0;
    for (uint32_t g = 0; g < plan->n_groups; g++)
        bytes += quire_page_stride(quire_plan_layout(plan, g, 0)->bytes);
    return bytes;
}

quire_status quire_pool_create(quire_pool **out, const quire_plan *plan, const quire_pool_options *options)
{
    quire_pool_options o;
    quire_allocator a;
    quire_executor executor;
    if (!out || !plan) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&o, sizeof o, options);
    if (!status) status = quire_allocator_read(&a, o.allocator);
    if (!status) status = quire_executor_read(&executor, o.executor);
    if (status) return status;
    if (o.budget_bytes < first_page_each(plan)) return QUIRE_EINVAL;
    quire_pool *pool = (quire_pool *)quire_alloc(&a, sizeof *pool);
    if (!pool) return QUIRE_ENOMEM;
    pool->allocator = a;
    pool->executor = executor;
    status = quire_pages_init(&pool->pages, &a, o.budget_bytes);
    if (status) {
        quire_free(&a, pool, sizeof *pool);
        return status;
    }
    pthread_mutex_init(&pool->lock, NULL);
    status = quire_pool_add_plan(pool, plan);
    if (status) {
        quire_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return QUIRE_OK;
}

void quire_pool_destroy(quire_pool *pool)
{
    if (!pool) return;
    quire_allocator a = pool->allocator;
    for (uint32_t i = 0; i < pool->n_spare; i++) quire_workspace_destroy(pool->spare[i]);
    for (uint32_t i = 0; i < pool->n_plans; i++) quire_plan_destroy(pool->plan[i]);
    quire_free(&a, pool->spare, sizeof *pool->spare * pool->cap_spare);
    quire_free(&a, pool->plan, sizeof *pool->plan * pool->cap_plans);
    quire_pages_fini(&pool->pages);
    pthread_mutex_destroy(&pool->lock);
    quire_free(&a, pool, sizeof *pool);
}

static quire_plan *find_plan(const quire_pool *pool, uint64_t fingerprint)
{
    for (uint32_t i = 0; i < pool->n_plans; i++)
        if (pool->plan[i]->fingerprint == fingerprint) return pool->plan[i];
    return NULL;
}

quire_plan *quire_pool_find_plan(quire_pool *pool, uint64_t fingerprint)
{
    pthread_mutex_lock(&pool->lock);
    quire_plan *plan = find_plan(pool, fingerprint);
    pthread_mutex_unlock(&pool->lock);
    return plan;
}

static quire_status add_plan_locked(quire_pool *pool, const quire_plan *plan)
{
    if (find_plan(pool, plan->fingerprint)) return QUIRE_OK;
    if (pool->n_plans && pool->plan[0]->geometry_fingerprint != plan->geometry_fingerprint)
        return QUIRE_EMISMATCH;
    if (!quire_grow(&pool->allocator, &pool->plan, &pool->cap_plans, pool->n_plans, pool->n_plans + 1,
                    sizeof *pool->plan))
        return QUIRE_ENOMEM;
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        quire_status status = quire_pages_add(&pool->pages, &plan->group[g].pages);
        if (!status && plan->group[g].n_sink_pages)
            status = quire_pages_add(&pool->pages, &plan->group[g].sinks);
        if (status) return status; /* page sizes added so far do no harm */
    }
    pool->plan[pool->n_plans++] = quire_plan_hold(plan);
    if (!pool->main_plan) pool->main_plan = pool->plan[0];
    return QUIRE_OK;
}

quire_status quire_pool_add_plan(quire_pool *pool, const quire_plan *plan)
{
    if (!pool || !plan) return QUIRE_EINVAL;
    pthread_mutex_lock(&pool->lock);
    quire_status status = add_plan_locked(pool, plan);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void quire_pool_count(quire_pool *pool, const quire_counts *counts)
{
    if (counts->nan) atomic_fetch_add_explicit(&pool->nan, counts->nan, memory_order_relaxed);
    if (counts->saturated)
        atomic_fetch_add_explicit(&pool->saturated, counts->saturated, memory_order_relaxed);
    if (counts->recoded) atomic_fetch_add_explicit(&pool->recoded, counts->recoded, memory_order_relaxed);
}

quire_status quire_pool_stats_get(quire_pool *pool, quire_pool_stats *out)
{
    if (!pool) return QUIRE_EINVAL;
    quire_pages *pages = &pool->pages;
    pthread_mutex_lock(&pages->lock);
    quire_pool_stats stats = {
        .budget_bytes = pages->budget,
        .used_bytes = pages->used,
        .resident_bytes = pages->resident,
        .peak_bytes = pages->peak,
        .n_pages = pages->n_pages,
        .n_copies = pages->n_copies,
    };
    pthread_mutex_unlock(&pages->lock);
    stats.nan = atomic_load_explicit(&pool->nan, memory_order_relaxed);
    stats.saturated = atomic_load_explicit(&pool->saturated, memory_order_relaxed);
    stats.recoded = atomic_load_explicit(&pool->recoded, memory_order_relaxed);
    return quire_write_sized(out, &stats, sizeof stats);
}

/* Room in the list is made when a workspace leaves, so that giving it back cannot fail. */
quire_workspace *quire_pool_borrow(quire_pool *pool)
{
    quire_workspace *w = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->n_spare) {
        w = pool->spare[--pool->n_spare];
    } else if (quire_grow(&pool->allocator, &pool->spare, &pool->cap_spare, 0, pool->n_lent + 1,
                          sizeof *pool->spare)) {
        if (quire_workspace_create(&w, &pool->executor, &pool->allocator) != QUIRE_OK) w = NULL;
    }
    if (w) pool->n_lent++;
    pthread_mutex_unlock(&pool->lock);
    return w;
}

void quire_pool_return(quire_pool *pool, quire_workspace *workspace)
{
    if (!workspace) return;
    pthread_mutex_lock(&pool->lock);
    pool->spare[pool->n_spare++] = workspace;
    pool->n_lent--;
    pthread_mutex_unlock(&pool->lock);
}
