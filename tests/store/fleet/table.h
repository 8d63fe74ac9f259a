/* SPDX-License-Identifier: MIT */
/* Objects by their keys, in the order of their last use. */
#ifndef QUIRE_TESTS_TABLE_H
#define QUIRE_TESTS_TABLE_H

#include "store/base.h"

typedef struct table_entry {
    quire_key key;
    uint32_t newer, older, next; /* next: in its bucket, or of those that are not used */
} table_entry;

/* All zeros: empty. Entry 0 stands for none. */
typedef struct table {
    table_entry *entries;
    uint32_t *buckets;
    uint32_t n, cap; /* used, and entries in all */
    uint32_t unused, newest, oldest;
} table;

void table_free(table *t);
uint32_t table_find(const table *t, const quire_key *key); /* 0: not there */
uint32_t table_add(table *t, const quire_key *key);        /* as the newest; must not be there */
void table_use(table *t, uint32_t i);                      /* becomes the newest */
void table_remove(table *t, uint32_t i);

#endif
