/* SPDX-License-Identifier: MIT */
/* Tenants with raw pages. */
#define _GNU_SOURCE
#include "store/kit/tenant_kit.h"

#include "store/identity.h"
#include "store/kit/file_kit.h"
#include "store/disk_inside.h"
#include "store/store.h"

#include <string.h>
#include <unistd.h>

void kit_tenant_id(uint8_t number, uint8_t tenant[16])
{
    quire_identity id = kit_identity(number);
    KIT_REQUIRE(!quire_identity_tenant(tenant, id.secret));
}

void kit_tenant_begin(kit_tenant *t, quire_store *store, uint8_t number, const char *tenant_name,
                      const char *model_name, size_t page_bytes)
{
    quire_identity id = kit_identity(number);
    id.tenant_name = tenant_name;
    id.model_name = model_name;
    *t = (kit_tenant){.raw = {.store = store, .page_bytes = page_bytes, .salt = number}};
    kit_tenant_id(number, t->tenant);
    KIT_REQUIRE(!quire_namespace_create_raw(&t->raw.ns, store, &id, "test pages", page_bytes));
}

void kit_tenant_end(kit_tenant *t)
{
    quire_namespace_destroy(t->raw.ns);
}

bool kit_is_in_files(const char *directory, const kit_tenant *t, uint64_t text, uint32_t page)
{
    kit_files f;
    size_t n = t->raw.page_bytes, at[] = {0, n / 2, n - 40};
    uint8_t *bytes = (uint8_t *)malloc(n);
    bool found = false;
    KIT_REQUIRE(bytes);
    kit_raw_page(&t->raw, text, page, bytes);
    kit_files_list(&f, directory);
    for (uint32_t i = 0; i < f.n && !found; i++)
        for (int k = 0; k < 3 && !found; k++)
            found = kit_find_bytes(f.path[i], 0, bytes + at[k], 32) != UINT64_MAX;
    kit_files_free(&f);
    free(bytes);
    return found;
}

void kit_tenants_flush(quire_store *store)
{
    KIT_REQUIRE(!quire_store_flush(store, 120000));
}

void kit_wait_for_scan(quire_store *store)
{
    quire_disk_usage u;
    for (uint64_t end = quire_now() + 60 * QUIRE_SECOND;;) {
        quire_disk_usage_get(store->disk, &u);
        if (!u.is_scanning && !store->disk->is_quota_due) return;
        KIT_REQUIRE(quire_now() < end);
        usleep(5000);
    }
}

static quire_status add(void *ctx, const quire_namespace_usage *u)
{
    kit_usage *all = (kit_usage *)ctx;
    KIT_REQUIRE(u->size == sizeof *u && all->n < KIT_NAMESPACES);
    all->one[all->n++] = *u;
    return QUIRE_OK;
}

kit_usage kit_usage_get(quire_store *store)
{
    kit_usage u = {.n = 0};
    KIT_REQUIRE(!quire_store_usage_each(store, add, &u));
    return u;
}

const quire_namespace_usage *kit_usage_of(const kit_usage *u, const kit_tenant *t)
{
    uint8_t root[32];
    quire_namespace_root(t->raw.ns, root);
    for (uint32_t i = 0; i < u->n; i++)
        if (!memcmp(u->one[i].root, root, 32) && !memcmp(u->one[i].tenant, t->tenant, 16)) return &u->one[i];
    return NULL;
}

void kit_log_write(void *ctx, quire_log_level level, const char *sentence)
{
    kit_log *l = (kit_log *)ctx;
    if (!strstr(sentence, "/quotas ")) return; /* there are others: of dropped pages, for one */
    l->n_warnings += level >= QUIRE_LOG_WARNING;
    snprintf(l->last, sizeof l->last, "%s", sentence);
}
