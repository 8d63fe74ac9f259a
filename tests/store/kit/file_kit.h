/* SPDX-License-Identifier: MIT */
/* Files of a directory, changed from outside. Not from a process that has the directory open: closing a file drops the locks that the
 * process has on it. */
#ifndef QUIRE_TESTS_FILE_KIT_H
#define QUIRE_TESTS_FILE_KIT_H

#include "store/kit/store_kit.h"

#define KIT_FILES 64u
typedef struct kit_files {
    char *path[KIT_FILES];
    uint64_t size[KIT_FILES];
    uint32_t n;
} kit_files;

void kit_files_list(kit_files *f, const char *directory);
void kit_files_free(kit_files *f);
/* All of one directory in another, which is emptied first. */
void kit_files_copy(const char *from, const char *to);
void kit_flip_bit(const char *path, uint64_t at, uint32_t bit);
void kit_overwrite(const char *path, uint64_t at, const void *bytes, size_t n);
/* Blocks of 4 KiB that hold something else than random bytes: trees, headers. Up to cap of them. */
uint32_t kit_plain_blocks(const char *path, uint64_t *blocks, uint32_t cap);
/* One of the bytes of a block that are not zero. */
uint64_t kit_used_byte(const char *path, uint64_t block, uint32_t which);
/* The first place of these bytes at or after `from`; UINT64_MAX: there is none. */
uint64_t kit_find_bytes(const char *path, uint64_t from, const void *bytes, size_t n);
/* The hash of a record's first 32 bytes, with the seed of the slab that it lies in. */
uint64_t kit_record_check(const char *slab, const uint8_t *head);

#endif
