/* SPDX-License-Identifier: MIT */
/* tenants: whose request it is, by its API key. A file names them; it holds digests of the keys, not the keys. */
#ifndef QUIRE_TOOLS_SERVE_TENANTS_H
#define QUIRE_TOOLS_SERVE_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tenants tenants;

enum { TENANT_NAME = 64 };

typedef struct tenant {
    uint32_t
        number; /* from 1 on, the same for all keys with the same secret, also after the file was read again */
    bool reads_metrics; /* a key for /quire/metrics alone: it has no secret and no number */
    uint8_t secret[32];
    char name[TENANT_NAME]; /* printable text */
} tenant;

/*
 * A line for each key: its SHA-256 in hex, the file of the tenant's secret or "-" for a key that only reads /quire/metrics, and a name,
 * which may be left out and stands for one secret. Empty lines, and what begins with #, do not count. Paths are relative to the file's folder. NULL: message has one
 * sentence.
 */
tenants *tenants_open(const char *path, char *message, size_t size);
/* Reads the file again. false: message has one sentence, and everything is as before. */
bool tenants_read_again(tenants *t, char *message, size_t size);
void tenants_close(tenants *t);

/* The tenant of a request with these headers, which may be NULL. false: the key is unknown, or there is none. From any thread. */
bool tenants_find(tenants *t, const char *authorization, const char *x_api_key, tenant *out);
uint32_t tenants_count(tenants *t); /* keys */
/* Whether a key of the file has this number. */
bool tenants_has(tenants *t, uint32_t number);

#endif
