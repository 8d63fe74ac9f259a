/* SPDX-License-Identifier: MIT */
/* Reader of golden files (".gold"), the vectors in tests/golden.
 *
 * A file is the ASCII line "quire-gold 1", one line per array
 * "name type ndim d0 d1 ... offset bytes", the line "end", then the data: every array at a
 * 64-byte aligned absolute offset, little endian, C order. Two arrays may share bytes.
 * Types: u8 u16 u32 i8 i32 i64 f32 f64; f16 and bf16 are raw bits of two bytes each.
 */
#ifndef QUIRE_TESTS_GOLD_H
#define QUIRE_TESTS_GOLD_H

#include <stddef.h>
#include <stdint.h>

#define GOLD_MAX_DIM 6

typedef struct gold_array {
    char name[64];
    char type[8];
    int ndim;
    int64_t dim[GOLD_MAX_DIM]; /* dim[ndim..] are 1 */
    const void *data;          /* 64-byte aligned */
    size_t bytes;
} gold_array;

typedef struct gold_file gold_file;

/* Reads a whole file. NULL on any error, with the reason on stderr. */
gold_file *gold_open(const char *path);

/* The array of that name, or NULL. The array and its data live until gold_close. */
const gold_array *gold_find(const gold_file *file, const char *name);

/* Arrays by number, 0 .. gold_count - 1, in file order. */
size_t gold_count(const gold_file *file);
const gold_array *gold_at(const gold_file *file, size_t i);

void gold_close(gold_file *file);

#endif
