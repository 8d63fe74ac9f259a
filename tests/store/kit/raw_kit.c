/* SPDX-License-Identifier: MIT */
/* Pages that are a function of a number. */
#include "store/kit/raw_kit.h"

#include "store/chain.h"
#include "support/random.h"

#include <string.h>

#define MAX_PAGES 64u

void kit_raw_begin(kit_raw *r, quire_store *store, size_t page_bytes)
{
    quire_identity id = kit_identity(2);
    *r = (kit_raw){.store = store, .page_bytes = page_bytes};
    KIT_REQUIRE(!quire_namespace_create_raw(&r->ns, store, &id, "test pages", page_bytes));
}

void kit_raw_end(kit_raw *r)
{
    quire_namespace_destroy(r->ns);
}

void kit_raw_tokens(uint32_t *tokens, uint64_t text, uint32_t n_pages)
{
    rng r = {text * 977 + 5};
    KIT_REQUIRE(n_pages <= MAX_PAGES);
    for (uint32_t i = 0; i < n_pages * 64; i++) tokens[i] = (uint32_t)rng_bits(&r);
}

void kit_raw_page(const kit_raw *raw, uint64_t text, uint32_t page, uint8_t *bytes)
{
    size_t n = raw->page_bytes;
    rng r = {text * 1000003 + page + (raw->salt << 40)};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t bits = rng_bits(&r);
        memcpy(bytes + i, &bits, 8);
    }
    memset(bytes + n / 8 * 8, (int)page, n % 8);
}

void kit_raw_save(kit_raw *r, uint64_t text, uint32_t n_pages)
{
    uint32_t tokens[MAX_PAGES * 64];
    uint8_t *bytes = (uint8_t *)malloc(r->page_bytes);
    KIT_REQUIRE(bytes);
    kit_raw_tokens(tokens, text, n_pages);
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = n_pages * 64};
    for (uint32_t i = 0; i < n_pages; i++) {
        kit_raw_page(r, text, i, bytes);
        quire_status status = quire_namespace_save_raw(r->ns, &p, i, bytes);
        KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
    }
    free(bytes);
}

typedef struct expected {
    const kit_raw *raw;
    uint64_t text;
    uint8_t *bytes;
    size_t n;
    uint32_t next;
} expected;

static void compare(void *ctx, uint32_t page_index, const void *bytes)
{
    expected *e = (expected *)ctx;
    KIT_REQUIRE(page_index == e->next++);
    kit_raw_page(e->raw, e->text, page_index, e->bytes);
    KIT_REQUIRE(memcmp(bytes, e->bytes, e->n) == 0);
}

uint32_t kit_raw_load(kit_raw *r, uint64_t text, uint32_t n_pages, uint32_t timeout_ms)
{
    uint32_t tokens[MAX_PAGES * 64], n = 0;
    expected e = {.raw = r, .text = text, .bytes = (uint8_t *)malloc(r->page_bytes), .n = r->page_bytes};
    KIT_REQUIRE(e.bytes);
    kit_raw_tokens(tokens, text, n_pages);
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = n_pages * 64};
    quire_status status = quire_namespace_load_raw(r->ns, &p, timeout_ms, compare, &e, &n);
    KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
    KIT_REQUIRE(n == e.next * 64);
    free(e.bytes);
    return n / 64;
}

void kit_raw_objects(const kit_raw *r, uint64_t text, uint32_t n_pages, quire_key *keys, quire_key *objects)
{
    uint32_t tokens[MAX_PAGES * 64];
    quire_key root, own[MAX_PAGES];
    if (!keys) keys = own;
    kit_raw_tokens(tokens, text, n_pages);
    quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = n_pages * 64};
    quire_namespace_root(r->ns, root.byte);
    KIT_REQUIRE(!quire_chain_keys(keys, &root, &p, n_pages));
    KIT_REQUIRE(!quire_chain_objects(objects, keys, n_pages, 0));
}

/* ---------------------------------------------------------------- verifying */

typedef struct seen {
    uint8_t (*keys)[32];
    uint64_t n, cap;
} seen;

static quire_status see(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    seen *s = (seen *)ctx;
    (void)bytes;
    (void)n;
    if (info->damage) fprintf(stderr, "damaged: %s\n", quire_miss_text(info->damage));
    KIT_REQUIRE(!info->damage);
    if (s->n == s->cap) {
        s->cap = s->cap * 2 + 64;
        s->keys = (uint8_t(*)[32])realloc(s->keys, s->cap * 32);
        KIT_REQUIRE(s->keys);
    }
    memcpy(s->keys[s->n++], info->object, 32);
    return QUIRE_OK;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

uint64_t kit_verify(quire_store *store)
{
    seen s = {0};
    KIT_REQUIRE(!quire_store_each(store, 1, see, &s));
    if (s.n) qsort(s.keys, s.n, 32, by_bytes);
    for (uint64_t i = 1; i < s.n; i++) KIT_REQUIRE(memcmp(s.keys[i - 1], s.keys[i], 32));
    free(s.keys);
    KIT_REQUIRE(s.n == kit_stats(store).disk_objects);
    return s.n;
}
