/* SPDX-License-Identifier: MIT */
/* Finds out in which codec a row of a saved state is, and turns it into values. */
#include "marks.h"
#include "config.h"
#include "kv.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t mark_bytes[2] = {0x51, 0x7e};
const char lost_bytes[LOST_BYTES] = {0x21, 0x02, 0x35, 0x01, 0x4a, 0x02, 0x17, 0x01};

bool all_zero(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* ----------------------------------------------------------------------- marks */

uint32_t mark_of(const quire_tile_format *format)
{
    uint64_t fingerprint = quire_tile_format_fingerprint(format);
    return (uint32_t)(fingerprint ^ fingerprint >> 32);
}

void mark_put(char *row, uint32_t mark)
{
    memcpy(row, mark_bytes, 2);
    for (int i = 0; i < 4; i++) row[2 + i] = (char)(mark >> 8 * i);
}

void mark_put_nobody(char *row, size_t row_bytes)
{
    memset(row, 0, row_bytes);
    if (row_bytes >= MARK_BYTES) mark_put(row, UINT32_MAX);
}

static uint32_t get_mark(const char *row)
{
    uint32_t mark = 0;
    for (int i = 0; i < 4; i++) mark |= (uint32_t)(uint8_t)row[2 + i] << 8 * i;
    return mark;
}

bool mark_is(const char *row, uint32_t mark)
{
    return !memcmp(row, mark_bytes, 2) && get_mark(row) == mark;
}

bool marks_shape(const struct host_tensor *t, struct row_shape *s)
{
    const struct host_tensor *root = host_root(t);
    if (!kv_is_root(root, &s->side, &s->layer)) return false;
    s->name = root->name;
    s->rows = root->data;
    s->type = root->type;
    s->row = (uint32_t)root->ne[0];
    s->row_bytes = root->nb[1];
    return s->row_bytes >= LOST_BYTES;
}

/* ------------------------------------------------------------------- codings */

/* Every codec in every shape that the heads of such a row can have, by mark. Made once for each size of rows and side; those
 * that need a profile once more for each layer, for the one that is loaded. */
struct candidate {
    uint32_t mark;
    const char *codec;
    uint16_t d, d_v;
};

struct table {
    struct table *next;
    uint32_t row, layer;
    quire_side side;
    bool calibrated;
    size_t n;
    struct candidate *list;
};

/* A coding that was met. Those of a profile differ from layer to layer, and so do their marks. */
struct met {
    struct met *next;
    uint32_t row;
    quire_side side;
    bool is_untold; /* the first one of its codec */
    struct coding coding;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the two lists; what is in them stays */
static struct table *tables;
static struct met *all_met;
static atomic_bool any_untold;

static quire_tile_format *make_format(const struct row_shape *s, const char *codec, uint32_t d, uint32_t d_v)
{
    quire_tile_format *format = NULL;
    quire_tile_format_options options = {.size = sizeof(quire_tile_format_options),
                                         .side = s->side,
                                         .d = d,
                                         .d_v = d_v,
                                         .profile = config.loaded_profile,
                                         .layer = s->layer};
    return quire_tile_format_create(&format, codec, &options) ? NULL : format;
}

static int by_mark(const void *a, const void *b)
{
    uint32_t x = ((const struct candidate *)a)->mark, y = ((const struct candidate *)b)->mark;
    return (x > y) - (x < y);
}

/* If the values of V are a part of K, that changes what is rotated together: the largest power of two that divides both
 * sizes. So the powers of two stand for all sizes of V. */
static void add_candidates(struct table *t, const struct row_shape *s, const char *codec, uint32_t d)
{
    for (uint32_t d_v = 0; d_v < d && (s->side == QUIRE_K || !d_v); d_v = d_v ? 2 * d_v : 1) {
        quire_tile_format *format = make_format(s, codec, d, d_v);
        if (!format) return;
        uint32_t mark = mark_of(format);
        quire_tile_format_destroy(format);
        if (t->n && d_v && t->list[t->n - 1].mark == mark) continue;
        t->list[t->n++] = (struct candidate){mark, codec, (uint16_t)d, (uint16_t)d_v};
    }
}

enum { MOST_D = 1024, MOST_V_SIZES = 12 };

static const struct table *table_for(const struct row_shape *s, bool calibrated)
{
    uint32_t n_codecs = quire_codec_count(), n_d = 0;
    for (const struct table *t = tables; t; t = t->next)
        if (t->row == s->row && t->side == s->side && t->calibrated == calibrated &&
            (!calibrated || t->layer == s->layer))
            return t;
    for (uint32_t d = 1; d <= s->row && d <= MOST_D; d++) n_d += s->row % d == 0;
    struct table *t = calloc(1, sizeof *t);
    if (t) t->list = calloc((size_t)n_codecs * n_d * MOST_V_SIZES, sizeof *t->list);
    if (!t || !t->list) {
        free(t);
        return NULL;
    }
    t->row = s->row;
    t->side = s->side;
    t->layer = s->layer;
    t->calibrated = calibrated;
    for (uint32_t d = 8; d <= s->row && d <= MOST_D; d++)
        for (uint32_t i = 0; s->row % d == 0 && i < n_codecs; i++)
            if (calibrated == !!(quire_codec_at(i)->flags & QUIRE_CODEC_CALIBRATED))
                add_candidates(t, s, quire_codec_at(i)->name, d);
    qsort(t->list, t->n, sizeof *t->list, by_mark);
    struct candidate *less =
        realloc(t->list, (t->n + 1) * sizeof *less); /* far fewer than there was room for */
    if (less) t->list = less;
    t->next = tables;
    tables = t;
    return t;
}

static bool was_met(const char *codec)
{
    for (const struct met *m = all_met; m; m = m->next)
        if (!strcmp(m->coding.codec, codec)) return true;
    return false;
}

/* The codec of one that nobody was told of; NULL: there is none. */
static const char *next_untold(void)
{
    const char *codec = NULL;
    pthread_mutex_lock(&lock);
    for (struct met *m = all_met; m && !codec; m = m->next)
        if (m->is_untold) {
            codec = m->coding.codec;
            m->is_untold = false;
        }
    if (!codec) atomic_store(&any_untold, false);
    pthread_mutex_unlock(&lock);
    return codec;
}

void marks_tell(void)
{
    const char *codec;
    while (atomic_load(&any_untold) && (codec = next_untold()))
        say_info("a restored state has rows in %s, which are converted", codec);
}

static const struct coding *keep(const struct row_shape *s, const char *codec, uint32_t d,
                                 quire_tile_format *format)
{
    struct met *m = calloc(1, sizeof *m);
    if (!m) {
        quire_tile_format_destroy(format);
        return NULL;
    }
    *m = (struct met){.next = all_met,
                      .row = s->row,
                      .side = s->side,
                      .is_untold = !was_met(codec),
                      .coding = {.mark = mark_of(format),
                                 .d = d,
                                 .n_heads = s->row / d,
                                 .head_bytes = quire_codec_row_bytes(codec, d),
                                 .codec = codec,
                                 .format = format}};
    all_met = m;
    if (m->is_untold) atomic_store(&any_untold, true);
    return &m->coding;
}

static const struct coding *find_locked(const struct row_shape *s, uint32_t mark)
{
    for (const struct met *m = all_met; m; m = m->next)
        if (m->coding.mark == mark && m->row == s->row && m->side == s->side) return &m->coding;
    for (int calibrated = 0; calibrated <= (config.loaded_profile && s->side == QUIRE_K); calibrated++) {
        const struct table *t = table_for(s, calibrated);
        struct candidate key = {.mark = mark};
        const struct candidate *found = t ? bsearch(&key, t->list, t->n, sizeof key, by_mark) : NULL;
        quire_tile_format *format = found ? make_format(s, found->codec, found->d, found->d_v) : NULL;
        if (format) return keep(s, found->codec, found->d, format);
    }
    return NULL;
}

/* Whether a row has the length that the coding gives it, and nothing behind that. */
static bool fits(const struct row_shape *s, const struct coding *c, const char *row, size_t *behind)
{
    size_t used = MARK_BYTES + c->n_heads * c->head_bytes;
    if (used > s->row_bytes) return false;
    *behind = s->row_bytes - used;
    return all_zero(row + used, *behind);
}

/*
 * Half of an f32 can look like the mark by chance, and an enormous bf16 value does: there, a mark that is not known must
 * end in zeros to be one. The other way round, a row of a known fingerprint and zeros behind it had a mark before it
 * was damaged.
 */
enum row_kind marks_look(const struct row_shape *s, const char *row, const struct coding **out)
{
    bool marked = !memcmp(row, mark_bytes, 2);
    bool chance = s->type == host.type[TYPE_F32] || s->type == host.type[TYPE_BF16];
    size_t behind = 0, tail = s->row_bytes < 64 ? s->row_bytes / 2 : 32;
    bool ends_in_zeros = all_zero(row + s->row_bytes - tail, tail);
    if (!memcmp(row, lost_bytes, LOST_BYTES)) return ROW_LOST;
    if (!marked && !ends_in_zeros) return ROW_BARE; /* nearly always */
    if (!marked && all_zero(row, MARK_BYTES)) return ROW_BARE;
    pthread_mutex_lock(&lock);
    const struct coding *c = find_locked(s, get_mark(row));
    pthread_mutex_unlock(&lock);
    bool known = c && fits(s, c, row, &behind);
    *out = c;
    if (marked && known) return ROW_CODED;
    if (marked) return chance && !ends_in_zeros ? ROW_BARE : ROW_LOST;
    return known && behind >= tail ? ROW_LOST : ROW_BARE;
}

/* ---------------------------------------------------------------------- values */

bool marks_read(const struct row_shape *s, const struct coding *c, const char *rows, uint32_t n,
                float *values)
{
    void *tile = tile_create(c->format);
    bool ok = tile;
    for (uint32_t h = 0; ok && h < c->n_heads; h++)
        ok = tile_recode(c->format, tile, h, n, QUIRE_NATIVE, rows + MARK_BYTES + h * c->head_bytes,
                         s->row_bytes, QUIRE_F32, values + (size_t)h * c->d, s->row * sizeof(float));
    free(tile);
    return ok;
}

/* Rows of the declared type are recoded in pieces that a tile has room for, each of whole blocks. */
static bool recode_bare(const struct row_shape *s, uint32_t n, const char *rows, char *to, float *values)
{
    bool ok = true;
    for (uint32_t at = 0, d; ok && at < s->row; at += d) {
        d = s->row - at < MOST_D ? s->row - at : MOST_D;
        size_t offset = host.ggml_row_size(s->type, at);
        quire_tile_format_options options = {
            .size = sizeof(quire_tile_format_options), .side = QUIRE_K, .d = d};
        quire_tile_format *format = NULL;
        if (quire_tile_format_create(&format, host_codec(s->type), &options)) return false;
        void *tile = tile_create(format);
        ok = tile && (to ? tile_recode(format, tile, 0, n, QUIRE_F32, values + at, s->row * sizeof(float),
                                       QUIRE_NATIVE, to + offset, s->row_bytes)
                         : tile_recode(format, tile, 0, n, QUIRE_NATIVE, rows + offset, s->row_bytes,
                                       QUIRE_F32, values + at, s->row * sizeof(float)));
        free(tile);
        quire_tile_format_destroy(format);
    }
    return ok;
}

bool marks_read_bare(const struct row_shape *s, const char *rows, uint32_t n, float *values)
{
    return recode_bare(s, n, rows, NULL, values);
}

bool marks_write_bare(const struct row_shape *s, const float *values, uint32_t n, char *rows)
{
    return recode_bare(s, n, NULL, rows, (float *)(uintptr_t)values);
}
