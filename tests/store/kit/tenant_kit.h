/* SPDX-License-Identifier: MIT */
/* Tenants with raw pages, and what the directory says about them. */
#ifndef QUIRE_TESTS_TENANT_KIT_H
#define QUIRE_TESTS_TENANT_KIT_H

#include "store/kit/raw_kit.h"

typedef struct kit_tenant {
    kit_raw raw;
    uint8_t tenant[16];
} kit_tenant;

/* number: as of kit_identity(). */
void kit_tenant_begin(kit_tenant *t, quire_store *store, uint8_t number, const char *tenant_name,
                      const char *model_name, size_t page_bytes);
void kit_tenant_end(kit_tenant *t);
void kit_tenant_id(uint8_t number, uint8_t tenant[16]);

/* Whether any file of the directory holds bytes of this page. Not while this process has the directory open. */
bool kit_is_in_files(const char *directory, const kit_tenant *t, uint64_t text, uint32_t page);

void kit_tenants_flush(quire_store *store);
/* Until an index that is made anew is whole. */
void kit_wait_for_scan(quire_store *store);

#define KIT_NAMESPACES 64u
typedef struct kit_usage {
    quire_namespace_usage one[KIT_NAMESPACES];
    uint32_t n;
} kit_usage;

kit_usage kit_usage_get(quire_store *store);
/* The one of this tenant and root; NULL: it has nothing. */
const quire_namespace_usage *kit_usage_of(const kit_usage *u, const kit_tenant *t);

/* What is said about the file of limits. */
typedef struct kit_log {
    char last[4400];
    uint32_t n_warnings;
} kit_log;
void kit_log_write(void *ctx, quire_log_level level, const char *sentence);

#endif
