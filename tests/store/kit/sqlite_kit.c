/* SPDX-License-Identifier: MIT */
/* What the bytes of a SQLite file are for (https://www.sqlite.org/fileformat2.html). */
#include "store/kit/sqlite_kit.h"

#include "store/kit/store_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_INTERIOR = 2, TABLE_INTERIOR = 5, INDEX_LEAF = 10, TABLE_LEAF = 13, FILE_HEAD = 100 };

typedef struct file {
    const uint8_t *bytes;
    uint8_t *part;
    size_t n, page_bytes;
} file;

static uint32_t big(const uint8_t *at, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | at[i];
    return v;
}

/* A number of one to nine bytes. */
static size_t varint(const file *f, size_t at, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < 9 && at + i < f->n; i++) {
        uint8_t b = f->bytes[at + i];
        *out = i == 8 ? *out << 8 | b : *out << 7 | (b & 127);
        if (i == 8 || !(b & 128)) return i + 1;
    }
    return 9;
}

static void mark(const file *f, size_t at, size_t n, kit_part part)
{
    for (size_t i = at; i < at + n && i < f->n; i++) f->part[i] = (uint8_t)part;
}

/* Cells never continue on other pages here: rows are short. */
static void mark_cell(const file *f, size_t at, uint8_t type)
{
    uint64_t payload = 0, row;
    size_t n = type == INDEX_INTERIOR || type == TABLE_INTERIOR ? 4 : 0;
    if (type != TABLE_INTERIOR) n += varint(f, at + n, &payload);
    if (type == TABLE_LEAF || type == TABLE_INTERIOR) n += varint(f, at + n, &row);
    mark(f, at, n + (payload < f->page_bytes ? (size_t)payload : 0), KIT_PART_CELL);
}

static void mark_page(const file *f, size_t page)
{
    size_t begin = page * f->page_bytes, at = begin + (page ? 0 : FILE_HEAD);
    uint8_t type = f->bytes[at];
    if (type != INDEX_INTERIOR && type != TABLE_INTERIOR && type != INDEX_LEAF && type != TABLE_LEAF) return;
    size_t head = type == INDEX_INTERIOR || type == TABLE_INTERIOR ? 12 : 8;
    uint32_t n = big(f->bytes + at + 3, 2);
    if (at + head + 2 * n > begin + f->page_bytes) return;
    for (uint32_t i = 0; i < n; i++) mark_cell(f, begin + big(f->bytes + at + head + 2 * i, 2), type);
    mark(f, at, head + 2 * n, KIT_PART_TREE);
}

static void mark_free_pages(const file *f)
{
    size_t trunk = big(f->bytes + 32, 4);
    for (int i = 0; i < 1000 && trunk && trunk * f->page_bytes <= f->n; i++) {
        const uint8_t *at = f->bytes + (trunk - 1) * f->page_bytes;
        uint32_t n = big(at + 4, 4);
        for (uint32_t k = 0; k < n && k < f->page_bytes / 4 - 2; k++) {
            size_t leaf = big(at + 8 + 4 * k, 4);
            if (leaf && leaf * f->page_bytes <= f->n)
                mark(f, (leaf - 1) * f->page_bytes, f->page_bytes, KIT_PART_UNUSED);
        }
        mark(f, (trunk - 1) * f->page_bytes, f->page_bytes, KIT_PART_UNUSED);
        mark(f, (trunk - 1) * f->page_bytes, 8 + 4 * (size_t)n, KIT_PART_TREE);
        trunk = big(at, 4);
    }
}

uint8_t *kit_sqlite_parts(const char *path, size_t *n_bytes)
{
    FILE *in = fopen(path, "rb");
    KIT_REQUIRE(in && !fseek(in, 0, SEEK_END));
    size_t n = (size_t)ftell(in);
    uint8_t *bytes = (uint8_t *)malloc(n + 1), *part = (uint8_t *)calloc(n + 1, 1);
    KIT_REQUIRE(bytes && part && !fseek(in, 0, SEEK_SET) && fread(bytes, 1, n, in) == n);
    fclose(in);
    file f = {.bytes = bytes, .part = part, .n = n, .page_bytes = n > FILE_HEAD ? big(bytes + 16, 2) : 0};
    KIT_REQUIRE(f.page_bytes >= 512 && n % f.page_bytes == 0);
    for (size_t i = 0; i < n / f.page_bytes; i++) mark_page(&f, i);
    mark_free_pages(&f);
    mark(&f, 0, FILE_HEAD, KIT_PART_FILE);
    free(bytes);
    *n_bytes = n;
    return part;
}
