/* SPDX-License-Identifier: MIT */
/* cache: a sequence as bytes and back (docs/formats/snapshot.md). Reading trusts nothing: lengths come from the
 * pool's own plans, memory is taken only as bytes really arrive, every record carries a hash. */
#include "cache/cache.h"

#define HEADER_BYTES 56u
#define GROUP_BYTES 16u
#define SNAPSHOT_VERSION 1u
static const char magic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'E', 'Q'};

/* The hash of a record covers its number, so that records cannot change places. */
static uint64_t record_hash(uint64_t number, const void *head, size_t n_head, const void *bytes, size_t n)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_u64(&h, number);
    quire_hash_add(&h, head, n_head);
    if (n) quire_hash_add(&h, bytes, n);
    return quire_hash_end(&h);
}

/* ------------------------------------------------------------------- save */

typedef struct writer {
    quire_write_fn write;
    void *ctx;
    uint64_t n_records;
} writer;

/* head, then bytes, then the hash of both. */
static quire_status write_record(writer *w, const void *head, size_t n_head, const void *bytes, size_t n)
{
    uint8_t hash[8];
    quire_store64(hash, record_hash(w->n_records++, head, n_head, bytes, n));
    if (w->write(w->ctx, head, n_head) || (n && w->write(w->ctx, bytes, n)) || w->write(w->ctx, hash, 8))
        return QUIRE_EIO;
    return QUIRE_OK;
}

static quire_status write_page(writer *w, const quire_page *page, const uint8_t *data)
{
    uint8_t head[16];
    quire_store64(head, page->layout->fingerprint);
    quire_store64(head + 8, page->layout->bytes);
    return write_record(w, head, sizeof head, data, page->layout->bytes);
}

/* An unfinished page may still hold rows that were trimmed: they do not leave the process. */
static quire_status write_unfinished(writer *w, const quire_allocator *a, const quire_page *page,
                                     uint32_t n_rows)
{
    size_t bytes = page->layout->bytes;
    uint8_t *copy = (uint8_t *)quire_alloc(a, bytes);
    if (!copy) return QUIRE_ENOMEM;
    memcpy(copy, page->data, bytes);
    for (uint32_t i = 0; i < page->layout->n_layers; i++) {
        const quire_page_layer *l = &page->layout->layer[i];
        for (uint32_t h = 0; h < l->n_heads; h++) {
            uint8_t *k = copy + l->offset + h * l->head_stride;
            quire_tile_clear(l->k, k, n_rows, QUIRE_PAGE_TOKENS - n_rows);
            if (l->v) quire_tile_clear(l->v, k + l->k->tile_bytes, n_rows, QUIRE_PAGE_TOKENS - n_rows);
        }
    }
    quire_status status = write_page(w, page, copy);
    quire_free(a, copy, bytes);
    return status;
}

quire_status quire_seq_save(const quire_seq *seq, quire_write_fn write, void *ctx)
{
    if (!seq || !write) return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    writer w = {.write = write, .ctx = ctx};
    uint8_t header[HEADER_BYTES] = {0};
    memcpy(header, magic, sizeof magic);
    quire_store32(header + 8, SNAPSHOT_VERSION);
    quire_store32(header + 12, QUIRE_PAGE_TOKENS);
    quire_store64(header + 16, seq->plan->fingerprint);
    quire_store64(header + 24, seq->plan->geometry_fingerprint);
    quire_store32(header + 32, seq->length);
    quire_store32(header + 36, seq->ring.max_tokens);
    quire_store32(header + 40, seq->ring.sinks);
    quire_store32(header + 44, seq->ring.spare_tokens);
    quire_store32(header + 48, seq->plan->n_groups);
    size_t policy_bytes = strlen(seq->plan->policy);
    quire_store32(header + 52, (uint32_t)policy_bytes);
    quire_status status = write_record(&w, header, sizeof header, seq->plan->policy, policy_bytes);
    for (uint32_t g = 0; g < seq->plan->n_groups && !status; g++) {
        const quire_table *t = &seq->table[g];
        uint8_t head[GROUP_BYTES] = {0};
        quire_store32(head, t->n);
        quire_store32(head + 4, t->gap ? t->n_kept : 0);
        quire_store32(head + 8, t->gap);
        status = write_record(&w, head, sizeof head, NULL, 0);
        for (uint32_t i = 0; i < t->n && !status; i++) {
            uint32_t rows = seq->length - quire_table_index(t, i) * QUIRE_PAGE_TOKENS;
            if (rows >= QUIRE_PAGE_TOKENS)
                status = write_page(&w, t->page[i], t->page[i]->data);
            else
                status = write_unfinished(&w, &seq->pool->allocator, t->page[i], rows);
        }
    }
    return status;
}

/* ------------------------------------------------------------------- load */

typedef struct reader {
    quire_read_fn read;
    void *ctx;
    uint64_t n_records;
} reader;

/* head is read first and may be inspected by the caller before the rest: bytes, then the hash of both. */
static quire_status read_rest(reader *r, const void *head, size_t n_head, void *bytes, size_t n)
{
    uint8_t hash[8];
    if ((n && r->read(r->ctx, bytes, n)) || r->read(r->ctx, hash, 8)) return QUIRE_EIO;
    bool equal = quire_load64(hash) == record_hash(r->n_records++, head, n_head, bytes, n);
    return equal ? QUIRE_OK : QUIRE_EFORMAT;
}

/* The head of a snapshot, checked as far as that goes without a plan. */
typedef struct snapshot_head {
    quire_snapshot_info info;
    uint64_t geometry_fingerprint;
    uint32_t n_groups;
} snapshot_head;

static quire_status read_header(reader *r, snapshot_head *out)
{
    uint8_t header[HEADER_BYTES];
    snapshot_head h = {0};
    if (r->read(r->ctx, header, HEADER_BYTES)) return QUIRE_EIO;
    if (memcmp(header, magic, sizeof magic)) return QUIRE_EFORMAT;
    if (quire_load32(header + 8) != SNAPSHOT_VERSION) return QUIRE_EVERSION;
    uint32_t policy_bytes = quire_load32(header + 52);
    if (policy_bytes >= sizeof h.info.policy) return QUIRE_EFORMAT;
    quire_status status = read_rest(r, header, HEADER_BYTES, h.info.policy, policy_bytes);
    if (status) return status;
    h.info.plan_fingerprint = quire_load64(header + 16);
    h.geometry_fingerprint = quire_load64(header + 24);
    h.info.length = quire_load32(header + 32);
    h.info.max_tokens = quire_load32(header + 36);
    h.info.sinks = quire_load32(header + 40);
    h.info.spare_tokens = quire_load32(header + 44);
    h.n_groups = quire_load32(header + 48);
    for (uint32_t i = 0; i < policy_bytes; i++) /* it will be shown to people */
        if (h.info.policy[i] < ' ' || h.info.policy[i] > '~') return QUIRE_EFORMAT;
    if (quire_load32(header + 12) != QUIRE_PAGE_TOKENS || h.info.length > QUIRE_MAX_TOKENS)
        return QUIRE_EFORMAT;
    *out = h;
    return QUIRE_OK;
}

quire_status quire_snapshot_read_info(quire_snapshot_info *out, quire_read_fn read, void *ctx)
{
    if (!out || !read) return QUIRE_EINVAL;
    reader r = {.read = read, .ctx = ctx};
    snapshot_head h;
    quire_status status = read_header(&r, &h);
    return status ? status : quire_write_sized(out, &h.info, sizeof h.info);
}

/* Whether a table of this shape holds exactly the pages it must. */
static bool table_is_whole(const quire_seq *seq, uint32_t group, uint32_t n, uint32_t n_kept, uint32_t gap)
{
    uint32_t n_pages = quire_pages_for(seq->length);
    if (n > n_pages || gap != n_pages - n) return false;
    if (!gap) return n_kept == 0;
    if (n_kept > n || n_kept != quire_group_kept(seq, group)) return false;
    return quire_group_from(seq, group, seq->length, 0) / QUIRE_PAGE_TOKENS >= n_kept + gap;
}

/* The layout of that fingerprint which a page of this index may have. */
static const quire_page_layout *known_layout(quire_pool *pool, uint32_t group, uint32_t index,
                                             uint64_t fingerprint)
{
    const quire_page_layout *found = NULL;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_plans && !found; i++) {
        const quire_page_layout *layout = quire_plan_layout(pool->plan[i], group, index);
        if (layout->fingerprint == fingerprint) found = layout;
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

static bool page_is_finite(const quire_page *page)
{
    for (uint32_t i = 0; i < page->layout->n_layers; i++)
        for (uint32_t s = 0; s < 2; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            const quire_tile_format *f = quire_page_format(page, i, side);
            for (uint32_t h = 0; f && h < page->layout->layer[i].n_heads; h++)
                if (!quire_tile_finite(f, quire_page_tile(page, i, side, h))) return false;
        }
    return true;
}

static quire_status read_page(reader *r, quire_seq *seq, uint32_t group)
{
    quire_table *t = &seq->table[group];
    uint32_t index = quire_table_index(t, t->n);
    uint8_t head[16];
    if (r->read(r->ctx, head, sizeof head)) return QUIRE_EIO;
    const quire_page_layout *layout = known_layout(seq->pool, group, index, quire_load64(head));
    if (!layout || layout->bytes != quire_load64(head + 8)) return QUIRE_EMISMATCH;
    if (!quire_grow(&seq->pool->allocator, &t->page, &t->cap, t->n, t->n + 1, sizeof *t->page))
        return QUIRE_ENOMEM;
    quire_page *page = quire_page_take(&seq->pool->pages, layout);
    if (!page) return QUIRE_EFULL;
    t->page[t->n++] = page;
    quire_pages_settle(&seq->pool->pages);
    quire_status status = read_rest(r, head, sizeof head, page->data, layout->bytes);
    if (status) return status;
    return page_is_finite(page) ? QUIRE_OK : QUIRE_EFORMAT;
}

static quire_status read_group(reader *r, quire_seq *seq, uint32_t group)
{
    uint8_t head[GROUP_BYTES];
    if (r->read(r->ctx, head, sizeof head)) return QUIRE_EIO;
    quire_status status = read_rest(r, head, sizeof head, NULL, 0);
    if (status) return status;
    uint32_t n = quire_load32(head), n_kept = quire_load32(head + 4), gap = quire_load32(head + 8);
    if (quire_load32(head + 12) || !table_is_whole(seq, group, n, n_kept, gap)) return QUIRE_EFORMAT;
    seq->table[group].n_kept = n_kept;
    seq->table[group].gap = gap;
    for (uint32_t i = 0; i < n && !status; i++) status = read_page(r, seq, group);
    return status;
}

quire_status quire_seq_load(quire_seq **out, quire_pool *pool, quire_read_fn read, void *ctx)
{
    if (!out || !pool || !read) return QUIRE_EINVAL;
    reader r = {.read = read, .ctx = ctx};
    snapshot_head h;
    quire_status status = read_header(&r, &h);
    if (status) return status;
    const quire_plan *plan = quire_pool_find_plan(pool, h.info.plan_fingerprint);
    if (!plan || plan->geometry_fingerprint != h.geometry_fingerprint) return QUIRE_EMISMATCH;
    quire_seq_options ring = {
        .size = sizeof(quire_seq_options),
        .max_tokens = h.info.max_tokens,
        .sinks = h.info.sinks,
        .spare_tokens = h.info.spare_tokens,
    };
    if (!quire_ring_is_valid(&ring) || h.n_groups != plan->n_groups) return QUIRE_EFORMAT;
    quire_seq *seq = quire_seq_alloc(pool, plan, &ring);
    if (!seq) return QUIRE_ENOMEM;
    seq->length = h.info.length;
    for (uint32_t g = 0; g < plan->n_groups && !status; g++) status = read_group(&r, seq, g);
    if (!status && !quire_seq_layouts_fit(seq)) status = QUIRE_EFORMAT;
    if (status) {
        quire_seq_destroy(seq);
        return status;
    }
    *out = seq;
    return QUIRE_OK;
}
