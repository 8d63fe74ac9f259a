/* SPDX-License-Identifier: MIT */
/* Every request for memory fails once: no crash, no leak, and what was promised still holds. */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "support/fail_alloc.h"

static void is_memory(quire_status status)
{
    KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
}

/* A chain that could not grow is as it was. */
static void use_chain(kit_raw *raw)
{
    uint32_t tokens[4 * 64], n[2], n_tokens = 0;
    uint8_t bytes[4][5000];
    void *rooms[4] = {bytes[0], bytes[1], bytes[2], bytes[3]};
    const void *pages[4] = {bytes[0], bytes[1], bytes[2], bytes[3]};
    quire_media media = {.position = 100};
    quire_chain *c = NULL;
    quire_load *load = NULL;
    for (uint32_t i = 0; i < 4; i++) kit_raw_page(raw, 1, i, bytes[i]);
    kit_raw_tokens(tokens, 1, 4);
    quire_status status = quire_chain_create(&c, raw->ns);
    is_memory(status);
    if (status) return;
    for (uint32_t i = 0; i < 4; i++) {
        status = quire_chain_append(c, tokens + n_tokens, 64, &media, sizeof media, i == 1);
        is_memory(status);
        if (!status) n_tokens += 64;
        KIT_REQUIRE(quire_chain_length(c) == n_tokens);
        if (status) break;
    }
    is_memory(quire_chain_save_raw(c, 0, n_tokens / 64, pages, n));
    status = quire_load_begin_raw(&load, c, 0, n_tokens / 64, rooms, 1000);
    is_memory(status);
    if (!status) KIT_REQUIRE(!quire_load_end(load, n) && n[0] <= n_tokens);
    const quire_chain *both[2] = {c, c};
    is_memory(quire_chain_lookup_many(both, 2, 0, n));
    quire_chain_destroy(c);
}

/* One life of a store. Whatever fails is a miss or ENOMEM. */
static void live(const char *directory, const quire_allocator *a)
{
    quire_store_options o = kit_options(directory, 16u << 20, NULL);
    quire_store *store = NULL;
    o.allocator = a;
    o.disk_threads = 1;
    quire_status status = quire_store_open(&store, &o);
    KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
    if (status) return;
    kit_raw raw = {.store = store, .page_bytes = 5000};
    quire_identity id = kit_identity(2);
    status = quire_namespace_create_raw(&raw.ns, store, &id, "test pages", raw.page_bytes);
    KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
    if (!status) {
        uint32_t n = 0, tokens[256] = {0};
        quire_prompt p = {.size = sizeof(quire_prompt), .tokens = tokens, .n_tokens = 256};
        kit_raw_save(&raw, 1, 4);
        KIT_REQUIRE(!quire_store_flush(store, 20000));
        KIT_REQUIRE(kit_raw_load(&raw, 1, 4, 1000) <= 4);
        status = quire_namespace_lookup(raw.ns, &p, 0, &n);
        KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
        status = quire_namespace_pin(raw.ns, &p, 1, 1000, NULL);
        KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ENOMEM);
        use_chain(&raw);
        quire_namespace_destroy(raw.ns);
    }
    quire_store_close(store);
}

int main(void)
{
    char *dir = kit_directory(NULL);
    uint64_t n = 1;
    for (;; n++) {
        struct fail_alloc f;
        fail_alloc_init(&f, n);
        quire_allocator a = fail_alloc_allocator(&f);
        live(dir, &a);
        KIT_REQUIRE(f.outstanding == 0 && f.bytes == 0);
        if (f.calls < n) break;
    }
    printf("%llu requests, each has failed once\n", (unsigned long long)(n - 1));
    KIT_REQUIRE(n > 20);
    kit_remove(dir);
    return 0;
}
