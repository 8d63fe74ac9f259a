/* SPDX-License-Identifier: MIT */
/* store: what a namespace is, as 32 bytes; and the key that seals its remote objects (docs/formats/store.md). */
#ifndef QUIRE_STORE_IDENTITY_H
#define QUIRE_STORE_IDENTITY_H

#include "store/object.h"

typedef struct quire_raw_layout {
    const char *text;
    size_t page_bytes;
} quire_raw_layout;

/* Exactly one of plan and raw. EINVAL: a member is missing. */
quire_status quire_identity_root(quire_key *out, const quire_identity *identity, const quire_plan *plan,
                                 const quire_seq_options *ring, const quire_raw_layout *raw);
/* HKDF-SHA256 of the tenant's secret, salted with the root. */
quire_status quire_identity_seal_key(quire_key *out, const quire_key *root, const uint8_t secret[32]);
/* What names the tenant on disk: HKDF-SHA256 of the secret, from which nobody gets back to it. */
quire_status quire_identity_tenant(uint8_t out[QUIRE_TENANT], const uint8_t secret[32]);

/* Copies a name for operators into QUIRE_NAME bytes, with zeros behind it; NULL is "". EINVAL: too long, or not printable. */
quire_status quire_identity_name(char out[QUIRE_NAME], const char *name);

#endif
