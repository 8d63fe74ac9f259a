/* SPDX-License-Identifier: MIT */
/* See gold.h. */
#include "gold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN ((size_t)64)

struct gold_file {
    char *bytes; /* the whole file, 64-byte aligned, one NUL after its end */
    size_t size;
    gold_array *array;
    size_t count;
};

static const char magic[] = "quire-gold 1\n";

static size_t type_size(const char *type)
{
    static const struct {
        const char *name;
        size_t size;
    } known[] = {{"u8", 1},  {"i8", 1},  {"u16", 2}, {"f16", 2}, {"bf16", 2},
                 {"u32", 4}, {"i32", 4}, {"f32", 4}, {"i64", 8}, {"f64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(type, known[i].name) == 0) return known[i].size;
    return 0;
}

/* One non-negative decimal number after blanks; -1 if there is none. */
static int64_t number(const char **at)
{
    char *end;
    if (**at != ' ') return -1;
    long long n = strtoll(*at, &end, 10);
    if (end == *at || n < 0) return -1;
    *at = end;
    return (int64_t)n;
}

/* One header line into a; the reason if it is wrong. */
static const char *parse_line(const gold_file *f, const char *line, gold_array *a)
{
    int used = 0;
    if (sscanf(line, "%63s %7s%n", a->name, a->type, &used) != 2) return "bad array line";
    const char *at = line + used;
    uint64_t size = type_size(a->type);
    if (size == 0) return "unknown type";
    int64_t ndim = number(&at);
    if (ndim < 0 || ndim > GOLD_MAX_DIM) return "bad number of dimensions";
    a->ndim = (int)ndim;
    for (int i = 0; i < GOLD_MAX_DIM; i++) {
        a->dim[i] = i < a->ndim ? number(&at) : 1;
        if (a->dim[i] < 0 || a->dim[i] > (int64_t)1 << 31) return "bad dimension";
        size *= (uint64_t)a->dim[i];
        if (size > f->size) return "array larger than the file";
    }
    int64_t offset = number(&at), bytes = number(&at);
    if (offset < 0 || bytes < 0 || *at != '\0') return "bad array line";
    if ((uint64_t)bytes != size) return "byte count does not match the shape";
    if ((uint64_t)offset % ALIGN != 0) return "unaligned data";
    if ((uint64_t)offset > f->size || (uint64_t)bytes > f->size - (uint64_t)offset)
        return "data past the end of the file";
    a->data = f->bytes + offset;
    a->bytes = (size_t)bytes;
    return NULL;
}

/* The text lines up to "end"; the reason if one is wrong. */
static const char *parse(gold_file *f)
{
    if (f->size < sizeof magic - 1 || memcmp(f->bytes, magic, sizeof magic - 1) != 0)
        return "not a gold file";
    char *line = f->bytes + sizeof magic - 1;
    for (;;) {
        char *nl = memchr(line, '\n', f->size - (size_t)(line - f->bytes));
        if (nl == NULL) return "no end line";
        *nl = '\0';
        if (strcmp(line, "end") == 0) return NULL;
        gold_array *more = realloc(f->array, (f->count + 1) * sizeof *more);
        if (more == NULL) return "out of memory";
        f->array = more;
        memset(&more[f->count], 0, sizeof *more);
        const char *why = parse_line(f, line, &more[f->count]);
        if (why != NULL) return why;
        f->count++;
        line = nl + 1;
    }
}

static const char *load(gold_file *f, FILE *in)
{
    if (fseek(in, 0, SEEK_END) != 0) return "cannot seek";
    long size = ftell(in);
    if (size < 0 || fseek(in, 0, SEEK_SET) != 0) return "cannot seek";
    if (size > 1L << 30) return "too large";
    f->size = (size_t)size;
    f->bytes = aligned_alloc(ALIGN, (f->size + ALIGN) / ALIGN * ALIGN);
    if (f->bytes == NULL) return "out of memory";
    if (fread(f->bytes, 1, f->size, in) != f->size) return "cannot read";
    f->bytes[f->size] = '\0';
    return parse(f);
}

gold_file *gold_open(const char *path)
{
    const char *why = "out of memory";
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        fprintf(stderr, "gold: %s: cannot open\n", path);
        return NULL;
    }
    gold_file *f = calloc(1, sizeof *f);
    if (f != NULL) why = load(f, in);
    fclose(in);
    if (why != NULL) {
        fprintf(stderr, "gold: %s: %s\n", path, why);
        gold_close(f);
        return NULL;
    }
    return f;
}

const gold_array *gold_find(const gold_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->array[i].name, name) == 0) return &file->array[i];
    return NULL;
}

size_t gold_count(const gold_file *file)
{
    return file->count;
}

const gold_array *gold_at(const gold_file *file, size_t i)
{
    return &file->array[i];
}

void gold_close(gold_file *file)
{
    if (file == NULL) return;
    free(file->array);
    free(file->bytes);
    free(file);
}
