/* SPDX-License-Identifier: MIT */
/*
 * Rows as the host saves, restores and copies them.
 *
 * A tensor whose codec is its declared type gives and takes exactly the bytes that stock llama.cpp would. Any other
 * codec travels behind a mark inside the declared row (marks.h). Rows that come back in another codec are decoded and
 * encoded anew.
 *
 * The host has no way to hear that a row cannot be taken. Such a row is noted as refused: attention that would see it
 * fails, until it is overwritten.
 */
#include "kv.h"
#include "bare.h"
#include "config.h"

#include <stdlib.h>
#include <string.h>

static struct row_shape shape_of(const struct kv *kv)
{
    return (struct row_shape){.name = kv->name,
                              .rows = kv->declared,
                              .type = kv->type,
                              .row = kv->row,
                              .row_bytes = kv->row_bytes,
                              .side = kv->side,
                              .layer = kv->layer};
}

/* ------------------------------------------------------------------ whole rows */

/* n rows of one tile. */
static void get_rows(const struct kv *kv, uint64_t row, uint32_t n, char *bytes)
{
    if (!kv->format) {
        memcpy(bytes, kv->declared + row * kv->row_bytes, n * kv->row_bytes);
        return;
    }
    char *at = bytes + (kv->marked ? MARK_BYTES : 0);
    kv_decode(kv, row, n, QUIRE_NATIVE, at, kv->head_bytes, kv->row_bytes);
    for (uint32_t i = 0; i < n; i++) {
        char *one = bytes + i * kv->row_bytes;
        if (kv_is_refused(kv, row + i)) {
            mark_put_nobody(one, kv->row_bytes);
        } else if (kv->marked) {
            size_t used = MARK_BYTES + kv->n_heads * kv->head_bytes;
            mark_put(one, kv->mark);
            memset(one + used, 0, kv->row_bytes - used);
        } else if (kv_is_unwritten(kv, row + i)) {
            memset(one, 0, kv->row_bytes);
        }
    }
}

/* A row with a scale that is not finite stands for no values: it becomes zeros, and the others are taken. */
static void take_head(const struct kv *kv, uint32_t head, char *tile, uint32_t at, uint32_t n,
                      quire_rows rows)
{
    if (!quire_tile_encode(kv->format, head, tile, at, n, &rows, NULL)) return;
    for (uint32_t i = 0; i < n; i++) {
        if (quire_tile_encode(kv->format, head, tile, at + i, 1, &rows, NULL))
            quire_tile_clear(kv->format, tile, at + i, 1);
        rows.data = (const char *)rows.data + rows.token_stride;
    }
}

/* Rows whose head h begins at bytes + h * head_bytes. */
static void take_rows(struct kv *kv, uint64_t row, uint32_t n, const char *bytes, quire_form form,
                      size_t head_bytes)
{
    char *tile = kv_tile(kv, row);
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        quire_rows rows = {.size = sizeof(quire_rows),
                           .form = form,
                           .data = bytes + h * head_bytes,
                           .token_stride = kv->row_bytes};
        take_head(kv, h, tile + h * kv->tile_bytes, kv_tile_row(kv, row), n, rows);
    }
    kv_wrote(kv, row, n);
}

static void refuse_row(struct kv *kv, uint64_t row)
{
    if (!kv->owner->said_refused) bare_say_lost(kv->name);
    kv->owner->said_refused = true;
    kv_refuse(kv, row);
}

/* BLOCKS: a quantized declared type, as stock has it. CODED: behind the mark of another codec. */
enum origin { OWN, FLOATS, ZEROS, BLOCKS, CODED, FOREIGN };

static enum origin origin_of(const struct kv *kv, const char *row, const struct coding **coding)
{
    struct row_shape s = shape_of(kv);
    if (kv->marked && mark_is(row, kv->mark)) return OWN;
    enum row_kind kind = kv->row_bytes < LOST_BYTES ? ROW_BARE : marks_look(&s, row, coding);
    if (kind != ROW_BARE) return kind == ROW_CODED ? CODED : FOREIGN;
    if (!kv->marked) return OWN;
    if (host_is_float(kv->type)) return FLOATS;
    return all_zero(row, kv->row_bytes) ? ZEROS : BLOCKS;
}

/* Rows that are neither in this tensor's codec nor floats, by way of floats. */
static void take_values(struct kv *kv, uint64_t row, uint32_t n, const char *bytes, enum origin origin,
                        const struct coding *coding)
{
    struct row_shape s = shape_of(kv);
    float *values = malloc((size_t)n * kv->row * sizeof *values);
    bool ok = values && (origin == CODED ? marks_read(&s, coding, bytes, n, values)
                                         : marks_read_bare(&s, bytes, n, values));
    if (ok)
        kv_write(kv, row, n, values);
    else if (n == 1 || !values)
        for (uint32_t i = 0; i < n; i++) refuse_row(kv, row + i);
    else
        for (uint32_t i = 0; i < n; i++)
            take_values(kv, row + i, 1, bytes + i * kv->row_bytes, origin, coding);
    free(values);
}

static void take_run(struct kv *kv, uint64_t row, uint32_t n, const char *bytes, enum origin origin,
                     const struct coding *coding)
{
    switch (origin) {
    case BLOCKS:
    case CODED: take_values(kv, row, n, bytes, origin, coding); break;
    case OWN:
        take_rows(kv, row, n, bytes + (kv->marked ? MARK_BYTES : 0), QUIRE_NATIVE, kv->head_bytes);
        break;
    case FLOATS: take_rows(kv, row, n, bytes, kv_float_form(kv->type), kv->row_bytes / kv->n_heads); break;
    case ZEROS:
        for (uint32_t h = 0; h < kv->n_heads; h++)
            quire_tile_clear(kv->format, kv_tile(kv, row) + h * kv->tile_bytes, kv_tile_row(kv, row), n);
        kv_wrote(kv, row, n);
        break;
    case FOREIGN:
        for (uint32_t i = 0; i < n; i++) refuse_row(kv, row + i);
        break;
    }
}

/* n rows of one tile. */
static void put_rows(struct kv *kv, uint64_t row, uint32_t n, const char *bytes)
{
    if (!kv->format) {
        memcpy(kv->declared + row * kv->row_bytes, bytes, n * kv->row_bytes);
        return;
    }
    for (uint32_t i = 0, run; i < n; i += run) {
        const struct coding *coding = NULL, *other = NULL;
        enum origin origin = origin_of(kv, bytes + i * kv->row_bytes, &coding);
        for (run = 1; i + run < n && origin_of(kv, bytes + (i + run) * kv->row_bytes, &other) == origin &&
                      (origin != CODED || other == coding);
             run++) {
        }
        take_run(kv, row + i, run, bytes + i * kv->row_bytes, origin, coding);
    }
}

/* ------------------------------------------------------------- any offset, size */

static void get_part(struct kv *kv, uint64_t row, size_t from, size_t n, char *bytes)
{
    char *whole = malloc(kv->row_bytes);
    if (!whole) return;
    get_rows(kv, row, 1, whole);
    memcpy(bytes, whole + from, n);
    free(whole);
}

static void set_part(struct kv *kv, uint64_t row, size_t from, size_t n, const char *bytes)
{
    char *whole = malloc(kv->row_bytes);
    if (!whole) return;
    get_rows(kv, row, 1, whole);
    memcpy(whole + from, bytes, n);
    put_rows(kv, row, 1, whole);
    free(whole);
}

static bool in_bounds(const struct kv *kv, size_t offset, size_t size)
{
    size_t all = (size_t)kv->cells * kv->streams * kv->row_bytes;
    return offset <= all && size <= all - offset;
}

/* How many of the bytes at an offset can be treated together: rows of one tile, or a part of one row. */
static size_t next_part(const struct kv *kv, size_t offset, size_t size, bool *whole)
{
    size_t within = offset % kv->row_bytes;
    *whole = !within && size >= kv->row_bytes;
    if (*whole) return kv_run(kv, offset / kv->row_bytes, size / kv->row_bytes) * kv->row_bytes;
    return size < kv->row_bytes - within ? size : kv->row_bytes - within;
}

/* Rows that come before any attention was seen wait as declared; the plan takes them in. */
bool state_is_waiting(const struct kv *kv)
{
    return kv->owner->state == KV_OPEN && !kv->d;
}

void state_import(struct kv *kv)
{
    for (uint32_t s = 0; s < kv->streams; s++) {
        uint64_t row = (uint64_t)s * kv->cells, end = row + kv->high[s];
        for (uint32_t n; row < end; row += n) {
            n = kv_run(kv, row, end - row);
            put_rows(kv, row, n, kv->declared + row * kv->row_bytes);
        }
    }
}

void state_make_plain(struct kv *kv)
{
    struct row_shape s = shape_of(kv);
    for (uint32_t i = 0; i < kv->streams && kv->row_bytes >= LOST_BYTES; i++)
        bare_settle(&s, kv->declared + (size_t)i * kv->cells * kv->row_bytes, kv->high[i]);
}

void state_get(struct kv *kv, size_t offset, size_t size, char *bytes)
{
    bool whole;
    if (in_bounds(kv, offset, size) && state_is_waiting(kv)) {
        memcpy(bytes, kv->declared + offset, size);
        return;
    }
    if (!in_bounds(kv, offset, size) || kv->owner->state != KV_SETTLED) {
        memset(bytes, 0, size);
        return;
    }
    for (size_t n; size; offset += n, size -= n, bytes += n) {
        n = next_part(kv, offset, size, &whole);
        uint64_t row = offset / kv->row_bytes;
        if (whole)
            get_rows(kv, row, (uint32_t)(n / kv->row_bytes), bytes);
        else
            get_part(kv, row, offset % kv->row_bytes, n, bytes);
    }
}

void state_set(struct kv *kv, size_t offset, size_t size, const char *bytes)
{
    bool whole;
    if (!in_bounds(kv, offset, size) || !size) return;
    if (state_is_waiting(kv)) {
        uint64_t first = offset / kv->row_bytes, last = (offset + size - 1) / kv->row_bytes;
        memcpy(kv->declared + offset, bytes, size);
        for (uint64_t row = first; row <= last; row++) kv_wrote(kv, row, 1);
        return;
    }
    if (kv->owner->state != KV_SETTLED) return;
    for (size_t n; size; offset += n, size -= n, bytes += n) {
        n = next_part(kv, offset, size, &whole);
        uint64_t row = offset / kv->row_bytes;
        if (whole)
            put_rows(kv, row, (uint32_t)(n / kv->row_bytes), bytes);
        else
            set_part(kv, row, offset % kv->row_bytes, n, bytes);
    }
}

void state_fill(struct kv *kv, size_t offset, size_t size, uint8_t value)
{
    size_t room = kv->row_bytes * CELLS;
    char *bytes = malloc(room);
    if (!bytes) return;
    memset(bytes, value, room);
    for (size_t n; size; offset += n, size -= n) {
        n = size < room ? size : room;
        if (offset % kv->row_bytes && n > kv->row_bytes - offset % kv->row_bytes)
            n = kv->row_bytes - offset % kv->row_bytes;
        state_set(kv, offset, n, bytes);
    }
    free(bytes);
}

/* --------------------------------------------------------------------- values */

/* n rows of one tile as values of the declared type, whatever the codec. */
static bool get_values(const struct kv *kv, uint64_t row, uint32_t n, char *bytes,
                       quire_tile_format *declared, void *tile)
{
    size_t head_bytes = kv->row_bytes / kv->n_heads;
    if (host_is_float(kv->type)) {
        kv_decode(kv, row, n, kv_float_form(kv->type), bytes, head_bytes, kv->row_bytes);
        return true;
    }
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        const char *from = kv_tile(kv, row) + h * kv->tile_bytes;
        float values[CELLS * 1024];
        quire_rows_out decoded = {.size = sizeof(quire_rows_out),
                                  .form = QUIRE_F32,
                                  .data = values,
                                  .token_stride = kv->d * sizeof(float)};
        if (quire_tile_decode(kv->format, h, from, kv_tile_row(kv, row), n, &decoded) ||
            !tile_recode(declared, tile, 0, n, QUIRE_F32, values, kv->d * sizeof(float), QUIRE_NATIVE,
                         bytes + h * head_bytes, kv->row_bytes))
            return false;
    }
    return true;
}

void state_get_values(struct kv *kv, size_t offset, size_t size, char *bytes)
{
    uint64_t first = offset / kv->row_bytes, end = (offset + size + kv->row_bytes - 1) / kv->row_bytes;
    quire_tile_format_options options = {
        .size = sizeof(quire_tile_format_options), .side = kv->side, .d = kv->d};
    quire_tile_format *declared = NULL;
    memset(bytes, 0, size);
    if (!in_bounds(kv, offset, size) || kv->owner->state != KV_SETTLED) return;
    if (!kv->marked) {
        state_get(kv, offset, size, bytes);
        return;
    }
    char *rows = malloc(kv->row_bytes * CELLS);
    if (rows && !quire_tile_format_create(&declared, host_codec(kv->type), &options)) {
        void *tile = tile_create(declared);
        for (uint32_t n; tile && first < end; first += n) {
            n = kv_run(kv, first, end - first);
            if (kv_is_unwritten(kv, first) || !get_values(kv, first, n, rows, declared, tile)) continue;
            size_t from = (size_t)first * kv->row_bytes, to = from + n * kv->row_bytes;
            size_t begin = from > offset ? from : offset, stop = to < offset + size ? to : offset + size;
            memcpy(bytes + (begin - offset), rows + (begin - from), stop - begin);
        }
        free(tile);
    }
    quire_tile_format_destroy(declared);
    free(rows);
}

/* ----------------------------------------------------------------------- copy */

static void copy_run(struct kv *to, uint64_t to_row, const struct kv *from, uint64_t from_row, uint32_t n,
                     char *bytes)
{
    if (n == CELLS) {
        memcpy(kv_tile(to, to_row), kv_tile(from, from_row), to->n_heads * to->tile_bytes);
        kv_wrote(to, to_row, n);
    } else {
        get_rows(from, from_row, n, bytes);
        put_rows(to, to_row, n, bytes);
    }
    for (uint32_t i = 0; from->n_refused && i < n; i++)
        if (kv_is_refused(from, from_row + i)) kv_refuse(to, to_row + i);
}

bool state_copy(struct kv *to, uint64_t to_row, const struct kv *from, uint64_t from_row, uint64_t n)
{
    if (to->owner->state != KV_SETTLED || from->owner->state != KV_SETTLED || !to->format || !from->format ||
        to->mark != from->mark || to->n_heads != from->n_heads || to->row_bytes != from->row_bytes)
        return false;
    char *bytes = malloc(to->row_bytes * CELLS);
    if (!bytes) return false;
    bool whole = n == to->cells && n == from->cells; /* a stream: then they end alike too */
    uint64_t to_stream = to_row / to->cells, from_stream = from_row / from->cells;
    for (uint32_t run; n; n -= run, to_row += run, from_row += run) {
        run = kv_run(from, from_row, kv_run(to, to_row, n));
        /* Neither was ever written: copying would make memory resident for nothing. */
        if (!kv_is_unwritten(from, from_row) || !kv_is_unwritten(to, to_row) || from->n_refused)
            copy_run(to, to_row, from, from_row, run, bytes);
    }
    if (whole) kv_set_high(to, to_stream, from->high[from_stream]);
    free(bytes);
    return true;
}
