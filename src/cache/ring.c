/* SPDX-License-Identifier: MIT */
/* cache: which pages a sequence still needs. A query at p of a ring sees the sinks and the last R = max_tokens -
 * sinks rows, itself included; in a window layer also only the last `window` rows. */
#include "cache/cache.h"

bool quire_ring_is_valid(const quire_seq_options *ring)
{
    if (ring->max_tokens > QUIRE_MAX_TOKENS || ring->spare_tokens > QUIRE_MAX_TOKENS) return false;
    return ring->max_tokens ? ring->sinks < ring->max_tokens : !ring->sinks;
}

quire_status quire_ring_read(quire_seq_options *out, const quire_seq_options *options)
{
    quire_seq_options ring = {.size = sizeof ring};
    quire_status status = options ? quire_read_sized(&ring, sizeof ring, options) : QUIRE_OK;
    if (status) return status;
    if (ring.reserved || !quire_ring_is_valid(&ring)) return QUIRE_EINVAL;
    *out = ring;
    return QUIRE_OK;
}

/* Rows back from the query, itself included, that layers of a window see; 0: all. */
static uint32_t reach_of(uint32_t window, const quire_seq_options *ring)
{
    uint32_t last = ring->max_tokens - ring->sinks;
    if (!ring->max_tokens) return window;
    return !window || last < window ? last : window;
}

uint32_t quire_ring_kept(uint32_t window, const quire_seq_options *ring)
{
    /* A window no longer than the ring hides the sinks before the ring does. */
    if (window && window <= ring->max_tokens - ring->sinks) return 0;
    return quire_pages_for(ring->sinks);
}

static uint32_t reach(const quire_seq *seq, uint32_t group)
{
    return reach_of(seq->plan->group[group].window, &seq->ring);
}

uint32_t quire_ring_from(uint32_t window, const quire_seq_options *ring, uint32_t next, uint32_t spare)
{
    uint64_t back = reach_of(window, ring);
    if (!back) return 0;
    back += spare;
    return (uint64_t)next + 1 > back ? (uint32_t)(next + 1 - back) : 0;
}

uint32_t quire_group_from(const quire_seq *seq, uint32_t group, uint32_t next, uint32_t spare)
{
    return quire_ring_from(seq->plan->group[group].window, &seq->ring, next, spare);
}

uint32_t quire_group_kept(const quire_seq *seq, uint32_t group)
{
    return quire_ring_kept(seq->plan->group[group].window, &seq->ring);
}

/* Adds n * size to *sum; false: that does not fit. */
static bool add_bytes(size_t *sum, uint64_t n, size_t size)
{
    size_t more = quire_bytes((size_t)n, size);
    if (n > SIZE_MAX || more > SIZE_MAX - 1 - *sum) return false;
    *sum += more;
    return true;
}

quire_status quire_plan_bytes(const quire_plan *plan, const quire_seq_options *options, uint32_t n_tokens,
                              uint32_t step_tokens, size_t *out)
{
    quire_seq_options ring;
    size_t bytes = 0;
    if (!plan || !out || n_tokens > QUIRE_MAX_TOKENS) return QUIRE_EINVAL;
    quire_status status = quire_ring_read(&ring, options);
    if (status) return status;
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const quire_group *group = &plan->group[g];
        uint64_t n = quire_pages_for(n_tokens), back = reach_of(group->window, &ring);
        if (back) {
            /* What a step may see and what it adds, at the worst place within pages. */
            uint64_t span = back - 1 + ring.spare_tokens + step_tokens;
            uint64_t held = quire_ring_kept(group->window, &ring) +
                            (span + 2 * QUIRE_PAGE_TOKENS - 2) / QUIRE_PAGE_TOKENS;
            if (held < n) n = held;
        }
        uint64_t n_sinks = group->n_sink_pages < n ? group->n_sink_pages : n;
        size_t page = quire_page_stride(group->pages.bytes), sink = quire_page_stride(group->sinks.bytes);
        if (back && sink < page) sink = page; /* a ring may let them go and hold ordinary pages instead */
        if (!add_bytes(&bytes, n_sinks, sink) || !add_bytes(&bytes, n - n_sinks, page)) return QUIRE_EINVAL;
    }
    *out = bytes;
    return QUIRE_OK;
}

void quire_seq_release(quire_seq *seq, uint32_t next)
{
    for (uint32_t g = 0; g < seq->plan->n_groups; g++) {
        quire_table *t = &seq->table[g];
        uint32_t first = quire_group_from(seq, g, next, seq->ring.spare_tokens) / QUIRE_PAGE_TOKENS;
        uint32_t kept = quire_group_kept(seq, g);
        if (kept > t->n) kept = t->n;
        if (t->gap) kept = t->n_kept; /* the hole stays where it is and grows */
        if (first <= kept + t->gap) continue;
        uint32_t n_gone = first - kept - t->gap;
        if (n_gone > t->n - kept) n_gone = t->n - kept;
        if (!n_gone) continue;
        for (uint32_t i = kept; i < kept + n_gone; i++) quire_page_drop(&seq->pool->pages, t->page[i]);
        memmove(t->page + kept, t->page + kept + n_gone, sizeof *t->page * (t->n - kept - n_gone));
        t->n -= n_gone;
        t->n_kept = kept;
        t->gap += n_gone;
    }
}

/* Length from which on everything visible is held, given that the hole of a table ends at its first later page. */
static uint32_t group_floor(const quire_seq *seq, uint32_t g)
{
    const quire_table *t = &seq->table[g];
    if (!t->gap) return 0;
    uint64_t oldest = (uint64_t)(t->n_kept + t->gap) * QUIRE_PAGE_TOKENS;
    uint64_t floor = oldest + reach(seq, g) - 1;
    return floor < seq->length ? (uint32_t)floor : seq->length;
}

uint32_t quire_seq_trim_floor(const quire_seq *seq)
{
    uint32_t floor = 0;
    for (uint32_t g = 0; g < seq->plan->n_groups; g++) {
        uint32_t f = group_floor(seq, g);
        if (f > floor) floor = f;
    }
    return floor;
}

bool quire_seq_can_trim(const quire_seq *seq, uint32_t length)
{
    if (length > seq->length) return false;
    for (uint32_t g = 0; g < seq->plan->n_groups; g++)
        if (length < group_floor(seq, g) && length > seq->table[g].n_kept * QUIRE_PAGE_TOKENS) return false;
    return true;
}
