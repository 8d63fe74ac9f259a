/* SPDX-License-Identifier: MIT */
/* The records of a snapshot, found as docs/formats/snapshot.md says: to exchange them, or to make their hashes right. */
#ifndef QUIRE_TESTS_SNAPSHOT_RECORDS_H
#define QUIRE_TESTS_SNAPSHOT_RECORDS_H

#include <stddef.h>
#include <stdint.h>

typedef struct snapshot_record {
    size_t at, bytes; /* hash not included; it follows */
    char kind;        /* 'h' header, 'g' group, 'p' page */
} snapshot_record;

/* Records that lie wholly within the bytes, at most max. Trusts nothing. */
size_t snapshot_records(const uint8_t *data, size_t n, snapshot_record *out, size_t max);
/* Give every record found the hash it should have. */
void snapshot_fix_hashes(uint8_t *data, size_t n);

#endif
