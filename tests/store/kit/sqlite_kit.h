/* SPDX-License-Identifier: MIT */
/* What the bytes of a SQLite file are for, read by the file format alone: without SQLite, and without what is tested. */
#ifndef QUIRE_TESTS_SQLITE_KIT_H
#define QUIRE_TESTS_SQLITE_KIT_H

#include <stddef.h>
#include <stdint.h>

typedef enum kit_part {
    KIT_PART_UNUSED, /* free pages, room that is left in pages */
    KIT_PART_FILE,   /* the first 100 bytes */
    KIT_PART_TREE,   /* headers of pages of trees, pointers to cells */
    KIT_PART_CELL,   /* rows, and entries of indexes */
    KIT_PARTS
} kit_part;

/* A kit_part for each byte of the file, to be freed. */
uint8_t *kit_sqlite_parts(const char *path, size_t *n_bytes);

#endif
