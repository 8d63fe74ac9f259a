/* SPDX-License-Identifier: MIT */
/* A cache that is an array of rows. */
#include "support/cache_model.h"

#include "support/cache_kit.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------------- pages */

static model_page *take(const row_world *w, model_pool *pool, uint32_t layout)
{
    model_page *page = (model_page *)calloc(1, sizeof *page);
    KIT_REQUIRE(page);
    *page = (model_page){.refs = 1, .layout = layout};
    pool->used += w->layout[layout].page_bytes;
    pool->n_pages++;
    KIT_REQUIRE(pool->used <= pool->budget);
    return page;
}

static void drop(const row_world *w, model_pool *pool, model_page *page)
{
    if (!page || --page->refs) return;
    pool->used -= w->layout[page->layout].page_bytes;
    pool->n_pages--;
    free(page);
}

static void grow(const row_world *w, model_seq *s, uint32_t length)
{
    if (length <= s->cap) return;
    uint32_t cap = (length + length / 2) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS + 2 * QUIRE_PAGE_TOKENS;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        s->node[g] = (uint32_t *)realloc(s->node[g], sizeof(uint32_t) * cap);
        s->page[g] = (model_page **)realloc(s->page[g], sizeof(model_page *) * (cap / QUIRE_PAGE_TOKENS));
        KIT_REQUIRE(s->node[g] && s->page[g]);
        for (uint32_t i = s->cap / QUIRE_PAGE_TOKENS; i < cap / QUIRE_PAGE_TOKENS; i++) s->page[g][i] = NULL;
    }
    s->cap = cap;
}

/* ------------------------------------------------------------------ sequences */

model_seq *model_seq_create(model_pool *pool, uint32_t plan, const quire_seq_options *ring)
{
    model_seq *s = (model_seq *)calloc(1, sizeof *s);
    KIT_REQUIRE(s);
    s->pool = pool;
    s->plan = plan;
    if (ring) s->ring = *ring;
    return s;
}

void model_seq_destroy(const row_world *w, model_seq *s)
{
    for (uint32_t g = 0; g < w->n_groups; g++) {
        for (uint32_t i = 0; i < model_pages(s->length); i++) drop(w, s->pool, s->page[g][i]);
        free(s->node[g]);
        free(s->page[g]);
    }
    free(s);
}

static model_seq *copy(const row_world *w, const model_seq *s, model_pool *pool, bool share)
{
    model_seq *c = model_seq_create(pool, s->plan, &s->ring);
    grow(w, c, s->length);
    c->length = s->length;
    for (uint32_t g = 0; g < w->n_groups && s->length; g++) {
        memcpy(c->node[g], s->node[g], sizeof(uint32_t) * s->length);
        for (uint32_t i = 0; i < model_pages(s->length); i++) {
            model_page *page = s->page[g][i];
            if (page && share) page->refs++;
            c->page[g][i] = page && !share ? take(w, pool, page->layout) : page;
        }
    }
    return c;
}

model_seq *model_seq_fork(const row_world *w, const model_seq *s)
{
    return copy(w, s, s->pool, true);
}

model_seq *model_seq_restore(const row_world *w, const model_seq *s, model_pool *pool)
{
    return copy(w, s, pool, false);
}

size_t model_seq_bytes(const row_world *w, const model_seq *s)
{
    size_t bytes = 0;
    for (uint32_t g = 0; g < w->n_groups; g++)
        for (uint32_t i = 0; i < model_pages(s->length); i++)
            if (s->page[g][i]) bytes += w->layout[s->page[g][i]->layout].page_bytes;
    return bytes;
}

/* ----------------------------------------------------------------- visibility */

bool model_sees(const row_world *w, const model_seq *s, uint32_t group, uint32_t p, uint32_t j)
{
    uint32_t window = w->window[group], max = s->ring.max_tokens, sinks = s->ring.sinks;
    if (j > p) return false;
    if (window && p - j >= window) return false;
    return !max || j < sinks || p - j < max - sinks;
}

bool model_holds(const model_seq *s, uint32_t group, uint32_t j)
{
    return s->page[group][j / QUIRE_PAGE_TOKENS] != NULL;
}

bool model_can_trim(const row_world *w, const model_seq *s, uint32_t length)
{
    for (uint32_t g = 0; g < w->n_groups; g++)
        for (uint32_t i = 0; i < model_pages(length); i++) {
            if (s->page[g][i]) continue;
            uint32_t end = (i + 1) * QUIRE_PAGE_TOKENS;
            for (uint32_t j = i * QUIRE_PAGE_TOKENS; j < end && j < length; j++)
                if (model_sees(w, s, g, length, j)) return false;
        }
    return true;
}

void model_trim(const row_world *w, model_seq *s, uint32_t length)
{
    for (uint32_t g = 0; g < w->n_groups; g++)
        for (uint32_t i = model_pages(length); i < model_pages(s->length); i++) {
            drop(w, s->pool, s->page[g][i]);
            s->page[g][i] = NULL;
        }
    s->length = length;
}

/*
 * Pages of which no row is seen from `length` - spare on are given up. Pages with sinks stay, unless a window that
 * is not longer than the ring hides them anyway.
 */
static void release(const row_world *w, model_seq *s)
{
    for (uint32_t g = 0; g < w->n_groups; g++) {
        uint32_t window = w->window[g], max = s->ring.max_tokens, sinks = s->ring.sinks;
        if (!window && !max) continue;
        uint32_t reach = !max ? window : !window || max - sinks < window ? max - sinks : window;
        uint32_t kept = max && (!window || window > max - sinks) ? model_pages(sinks) : 0;
        for (uint32_t i = kept; i < model_pages(s->length); i++) {
            uint64_t last = (uint64_t)i * QUIRE_PAGE_TOKENS + QUIRE_PAGE_TOKENS - 1;
            /* The query at length - spare sees j > length - spare - reach. */
            if (last + s->ring.spare_tokens + reach > s->length) break;
            drop(w, s->pool, s->page[g][i]);
            s->page[g][i] = NULL;
        }
    }
}

/* ---------------------------------------------------------------------- steps */

static bool must_copy(const model_seq *s, uint32_t group, uint32_t n)
{
    return n && s->length % QUIRE_PAGE_TOKENS && s->page[group][s->length / QUIRE_PAGE_TOKENS]->refs > 1;
}

size_t model_append_bytes(const row_world *w, const model_seq *s, uint32_t n)
{
    size_t bytes = 0;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        for (uint32_t i = model_pages(s->length); i < model_pages(s->length + n); i++)
            bytes += w->layout[row_layout_of(w, s->plan, g, i)].page_bytes;
        if (must_copy(s, g, n))
            bytes += w->layout[s->page[g][s->length / QUIRE_PAGE_TOKENS]->layout].page_bytes;
    }
    return bytes;
}

void model_reserve(row_world *w, model_seq *s, const uint32_t *tokens, uint32_t n, model_page **replaced)
{
    grow(w, s, s->length + n);
    for (uint32_t g = 0; g < w->n_groups; g++) {
        replaced[g] = NULL;
        if (must_copy(s, g, n)) {
            model_page **at = &s->page[g][s->length / QUIRE_PAGE_TOKENS];
            replaced[g] = *at;
            *at = take(w, s->pool, replaced[g]->layout);
            s->pool->n_copies++;
        }
        for (uint32_t i = model_pages(s->length); i < model_pages(s->length + n); i++)
            s->page[g][i] = take(w, s->pool, row_layout_of(w, s->plan, g, i));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t p = s->length + i;
            s->node[g][p] = row_encoded(w, tokens[i], s->page[g][p / QUIRE_PAGE_TOKENS]->layout);
        }
    }
}

void model_commit(const row_world *w, model_seq *s, uint32_t n, model_page **replaced)
{
    for (uint32_t g = 0; g < w->n_groups; g++) drop(w, s->pool, replaced[g]);
    s->length += n;
    release(w, s);
}

void model_abort(const row_world *w, model_seq *s, uint32_t n, model_page **replaced)
{
    for (uint32_t g = 0; g < w->n_groups; g++) {
        for (uint32_t i = model_pages(s->length); i < model_pages(s->length + n); i++) {
            drop(w, s->pool, s->page[g][i]);
            s->page[g][i] = NULL;
        }
        if (!replaced[g]) continue;
        drop(w, s->pool, s->page[g][s->length / QUIRE_PAGE_TOKENS]);
        s->page[g][s->length / QUIRE_PAGE_TOKENS] = replaced[g];
    }
}

/* ----------------------------------------------------------------- conversion */

/* Whether page i is coded anew, and as what. */
static bool is_recoded(const row_world *w, const model_seq *s, uint32_t g, uint32_t i, uint32_t plan,
                       uint32_t flags, uint32_t *layout)
{
    if (!s->page[g][i]) return false;
    if (flags & QUIRE_CONVERT_NEW && s->length - i * QUIRE_PAGE_TOKENS >= QUIRE_PAGE_TOKENS) return false;
    *layout = row_layout_of(w, plan, g, i);
    return !row_layouts_equal(w, s->page[g][i]->layout, *layout);
}

/* Sequences that hold this page and want it changed; *first is the first of them. */
static uint32_t holders(const row_world *w, model_seq *const *seqs, uint32_t n, uint32_t g, uint32_t i,
                        const model_page *page, uint32_t plan, uint32_t flags, uint32_t *first)
{
    uint32_t found = 0, layout;
    for (uint32_t o = n; o-- > 0;) {
        const model_seq *s = seqs[o];
        if (i >= model_pages(s->length) || s->page[g][i] != page) continue;
        if (!is_recoded(w, s, g, i, plan, flags, &layout)) continue;
        *first = o;
        found++;
    }
    return found;
}

size_t model_convert_bytes(const row_world *w, model_seq *const *seqs, uint32_t n, uint32_t plan,
                           uint32_t flags)
{
    int64_t now = 0, peak = 0;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t g = 0; g < w->n_groups; g++)
            for (uint32_t i = 0; i < model_pages(seqs[k]->length); i++) {
                uint32_t layout, first = 0;
                const model_page *page = seqs[k]->page[g][i];
                if (!is_recoded(w, seqs[k], g, i, plan, flags, &layout)) continue;
                uint32_t n_holders = holders(w, seqs, n, g, i, page, plan, flags, &first);
                if (first < k) continue;
                if (page->refs == n_holders) now -= (int64_t)w->layout[page->layout].page_bytes;
                now += (int64_t)w->layout[layout].page_bytes;
                if (now > peak) peak = now;
            }
    return (size_t)peak;
}

void model_convert(row_world *w, model_seq *const *seqs, uint32_t n, uint32_t plan, uint32_t flags)
{
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t g = 0; g < w->n_groups; g++)
            for (uint32_t i = 0; i < model_pages(seqs[k]->length); i++) {
                model_page *page = seqs[k]->page[g][i];
                uint32_t layout, same[64], n_same = 0;
                if (!is_recoded(w, seqs[k], g, i, plan, flags, &layout)) continue;
                for (uint32_t o = k; o < n; o++) { /* those before it are done */
                    if (i >= model_pages(seqs[o]->length) || seqs[o]->page[g][i] != page) continue;
                    if (is_recoded(w, seqs[o], g, i, plan, flags, &layout)) same[n_same++] = o;
                }
                for (uint32_t h = 0; h < n_same; h++) drop(w, seqs[k]->pool, page);
                model_page *fresh = take(w, seqs[k]->pool, layout);
                fresh->refs = n_same;
                for (uint32_t h = 0; h < n_same; h++) {
                    model_seq *s = seqs[same[h]];
                    uint32_t p = i * QUIRE_PAGE_TOKENS, end = p + QUIRE_PAGE_TOKENS;
                    s->page[g][i] = fresh;
                    for (; p < end && p < s->length; p++)
                        s->node[g][p] = row_converted(w, s->node[g][p], layout);
                }
            }
        seqs[k]->plan = plan;
    }
}

/* ------------------------------------------------------------------ attention */

void model_attend(const row_world *w, const model_seq *s, uint32_t layer, uint32_t q_head, uint32_t p,
                  const float *q, double *out)
{
    const quire_layer *l = &w->layer[layer];
    uint32_t g = w->group[layer], head = q_head / (l->n_q_heads / l->n_kv_heads);
    double *score = (double *)calloc((size_t)p + 1, sizeof(double)), top = -INFINITY, sum = 0;
    KIT_REQUIRE(score);
    for (uint32_t j = 0; j <= p; j++) {
        if (!model_sees(w, s, g, p, j)) continue;
        const float *k = row_values(w, s->node[g][j], layer, QUIRE_K) + (size_t)head * l->d_k;
        for (uint32_t c = 0; c < l->d_k; c++) score[j] += (double)q[c] * (double)k[c];
        score[j] /= sqrt((double)l->d_k);
        if (score[j] > top) top = score[j];
    }
    memset(out, 0, sizeof(double) * l->d_v);
    for (uint32_t j = 0; j <= p; j++) {
        if (!model_sees(w, s, g, p, j)) continue;
        const float *v = row_values(w, s->node[g][j], layer, QUIRE_V) + (size_t)head * l->d_v;
        double weight = exp(score[j] - top);
        sum += weight;
        for (uint32_t c = 0; c < l->d_v; c++) out[c] += weight * (double)v[c];
    }
    for (uint32_t c = 0; c < l->d_v; c++) out[c] /= sum;
    free(score);
}
