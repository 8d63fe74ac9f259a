/* SPDX-License-Identifier: MIT */
/* slot_file: slots of llama-server, state version 3 with one KV cache. */
#define _POSIX_C_SOURCE 200809L
#include "files/slot_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x67677371u
#define VERSION 3u
#define PAGE_TOKENS 64u
#define TOKENS_VERSION 1u
#define MAX_STREAMS 256u

/* ------------------------------------------------------------------ reading */

typedef struct reader {
    const uint8_t *bytes;
    size_t n, at;
    bool failed;
} reader;

static uint64_t take(reader *r, size_t n)
{
    uint64_t value = 0;
    if (r->failed || n > r->n - r->at) {
        r->failed = true;
        return 0;
    }
    for (size_t i = n; i--;) value = value << 8 | r->bytes[r->at + i];
    r->at += n;
    return value;
}

static void skip(reader *r, uint64_t n)
{
    if (r->failed || n > r->n - r->at)
        r->failed = true;
    else
        r->at += (size_t)n;
}

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = NULL;
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    if (size >= 0 && fseek(f, 0, SEEK_SET) == 0) bytes = (uint8_t *)malloc((size_t)size + 1);
    if (bytes && fread(bytes, 1, (size_t)size, f) != (size_t)size) {
        free(bytes);
        bytes = NULL;
    }
    if (f) fclose(f);
    *n = (size_t)size;
    return bytes;
}

/* The server's form (a marker, its version, tokens, media) or a plain list. */
static const char *read_tokens(slot_file *s, reader *r)
{
    uint32_t n = (uint32_t)take(r, 4);
    reader words = {.bytes = r->bytes, .n = r->at + 4 * (size_t)n, .at = r->at};
    skip(r, 4 * (uint64_t)n);
    if (r->failed) return "the file ends within the tokens";
    bool packed = n && take(&words, 4) == UINT32_MAX;
    if (packed) {
        if (take(&words, 4) != TOKENS_VERSION) return "the tokens have an unknown format";
        n = (uint32_t)take(&words, 4);
        if (words.failed || n > (words.n - words.at) / 4) return "the tokens are damaged";
    } else {
        words.at = words.n - 4 * (size_t)n;
    }
    s->tokens = (uint32_t *)malloc(4 * (size_t)n + 4);
    if (!s->tokens) return "out of memory";
    for (uint32_t i = 0; i < n; i++) s->tokens[i] = (uint32_t)take(&words, 4);
    s->n_tokens = n;
    if (packed && take(&words, 4) != 0) return "the slot contains images, which cannot be stored";
    return NULL;
}

static const char *read_cells(slot_file *s, reader *r)
{
    uint32_t n = s->n_cells;
    if (n > s->n / 12) return "the file ends within the cells";
    s->cell_of = (uint32_t *)malloc(4 * (size_t)n + 4);
    if (!s->cell_of) return "out of memory";
    memset(s->cell_of, 0xff, 4 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t position = take(r, 4), n_seq = take(r, 4);
        (void)take(r, 4);
        if (r->failed || n_seq != 1)
            return "the cells belong to several sequences, or their positions have several dimensions";
        if (position >= n || s->cell_of[position] != UINT32_MAX)
            return "the positions are not 0 to the last, each exactly once";
        s->cell_of[position] = i;
    }
    return NULL;
}

static bool read_rows(slot_file *s, reader *r, slot_rows *rows, bool transposed)
{
    rows->type = (int32_t)take(r, 4);
    if (transposed) {
        rows->element_bytes = (uint32_t)take(r, 4);
        rows->row_bytes = take(r, 4) * rows->element_bytes;
    } else {
        rows->row_bytes = take(r, 8);
    }
    rows->at = r->at;
    if (!rows->row_bytes || rows->row_bytes > 1u << 24) return false;
    skip(r, rows->row_bytes * s->n_cells);
    return !r->failed;
}

static const char *read_layers(slot_file *s, reader *r)
{
    slot_layout *l = &s->layout;
    l->v_transposed = take(r, 4) != 0;
    l->n_layers = (uint32_t)take(r, 4);
    if (r->failed || !l->n_layers || l->n_layers > SLOT_MAX_LAYERS)
        return "the file ends within the list of layers, or that list is damaged";
    for (uint32_t i = 0; i < l->n_layers; i++)
        if (!read_rows(s, r, &l->k[i], false)) return "the file ends within the K rows";
    l->n_v = r->at < r->n ? l->n_layers : 0; /* caches of latent attention have no V */
    for (uint32_t i = 0; i < l->n_v; i++)
        if (!read_rows(s, r, &l->v[i], l->v_transposed))
            return "the file ends within the V rows, or contains a second cache";
    for (uint32_t i = 0; i < l->n_layers; i++)
        l->page_bytes += (size_t)(l->k[i].row_bytes + (l->n_v ? l->v[i].row_bytes : 0)) * PAGE_TOKENS;
    return NULL;
}

static const char *read_state(slot_file *s, reader *r)
{
    uint32_t n_streams = (uint32_t)take(r, 4);
    const char *wrong = NULL;
    if (r->failed || !n_streams || n_streams > MAX_STREAMS)
        return "the file does not contain the state of a KV cache";
    for (uint32_t i = 0; i < n_streams && !wrong; i++) {
        uint32_t n = (uint32_t)take(r, 4);
        if (r->failed) return "the file ends early";
        if (!n) continue;
        if (s->n_cells) return "the file contains cells of several streams";
        s->n_cells = n;
        wrong = read_cells(s, r);
        if (!wrong) wrong = read_layers(s, r);
    }
    if (!wrong && r->at != r->n)
        wrong =
            "the model has more than one cache (layers with a sliding window or recurrent state), which cannot be stored";
    if (!wrong && !s->n_cells) wrong = "the slot is empty";
    return wrong;
}

const char *slot_parse(slot_file *s, uint8_t *bytes, size_t n)
{
    memset(s, 0, sizeof *s);
    s->bytes = bytes;
    s->n = n;
    reader r = {.bytes = s->bytes, .n = s->n};
    const char *wrong = NULL;
    if (take(&r, 4) != MAGIC || r.failed)
        wrong = "the file is not a slot file of llama-server";
    else if ((s->layout.version = (uint32_t)take(&r, 4)) != VERSION)
        wrong = "the slot file has another version";
    if (!wrong) wrong = read_tokens(s, &r);
    if (!wrong) wrong = read_state(s, &r);
    if (wrong) slot_free(s);
    return wrong;
}

const char *slot_read(slot_file *s, const char *path)
{
    size_t n;
    uint8_t *bytes = read_file(path, &n);
    return bytes ? slot_parse(s, bytes, n) : strerror(errno);
}

void slot_free(slot_file *s)
{
    free(s->bytes);
    free(s->tokens);
    free(s->cell_of);
    memset(s, 0, sizeof *s);
}

/* ------------------------------------------------------------------- layout */

/* Runs of equal layers: "llama slot 3 vt=0 v=1: 30x1/384,1/384". */
void slot_layout_print(const slot_layout *l, char *text, size_t size)
{
    int n = snprintf(text, size, "llama slot %u vt=%d v=%d:", l->version, l->v_transposed, l->n_v != 0);
    for (uint32_t i = 0, run; i < l->n_layers && n > 0 && (size_t)n < size; i += run) {
        const slot_rows *k = &l->k[i], *v = &l->v[i];
        for (run = 1; i + run < l->n_layers; run++) {
            const slot_rows *k2 = &l->k[i + run], *v2 = &l->v[i + run];
            if (k->type != k2->type || k->row_bytes != k2->row_bytes || v->type != v2->type ||
                v->row_bytes != v2->row_bytes || v->element_bytes != v2->element_bytes)
                break;
        }
        n += snprintf(text + n, size - (size_t)n, " %ux%d/%llu,%d/%llu/%u", run, k->type,
                      (unsigned long long)k->row_bytes, v->type, (unsigned long long)v->row_bytes,
                      v->element_bytes);
    }
}

const char *slot_layout_parse(slot_layout *l, const char *text)
{
    int vt, v, n = 0;
    memset(l, 0, sizeof *l);
    if (sscanf(text, "llama slot %u vt=%d v=%d:%n", &l->version, &vt, &v, &n) != 3 || !n ||
        l->version != VERSION)
        return "the text is not a slot layout";
    l->v_transposed = vt != 0;
    for (text += n; *text == ' '; text += n) {
        unsigned run, element;
        slot_rows k = {0}, one = {0};
        unsigned long long k_bytes, v_bytes;
        if (sscanf(text, " %ux%d/%llu,%d/%llu/%u%n", &run, &k.type, &k_bytes, &one.type, &v_bytes, &element,
                   &n) != 6 ||
            run > SLOT_MAX_LAYERS - l->n_layers || !k_bytes || k_bytes > 1u << 24 || v_bytes > 1u << 24)
            return "the slot layout is damaged";
        k.row_bytes = k_bytes;
        one.row_bytes = v_bytes;
        one.element_bytes = element;
        for (unsigned i = 0; i < run; i++) {
            l->k[l->n_layers] = k;
            l->v[l->n_layers++] = one;
            l->page_bytes += (size_t)(k_bytes + (v ? v_bytes : 0)) * PAGE_TOKENS;
        }
    }
    l->n_v = v ? l->n_layers : 0;
    return *text || !l->n_layers ? "the slot layout is damaged" : NULL;
}

/* -------------------------------------------------------------------- pages */

static void get_rows(const slot_file *s, const slot_rows *rows, uint32_t first, uint8_t *to)
{
    const uint8_t *from = s->bytes + rows->at;
    size_t element = rows->element_bytes, row = (size_t)rows->row_bytes;
    for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
        size_t cell = s->cell_of[first + t];
        if (!element) memcpy(to + t * row, from + cell * row, row);
        for (size_t j = 0; element && j < row / element; j++)
            memcpy(to + t * row + j * element, from + (j * s->n_cells + cell) * element, element);
    }
}

void slot_get_page(const slot_file *s, uint32_t page_index, uint8_t *page)
{
    const slot_layout *l = &s->layout;
    for (uint32_t i = 0; i < l->n_layers; i++) {
        get_rows(s, &l->k[i], page_index * PAGE_TOKENS, page);
        page += l->k[i].row_bytes * PAGE_TOKENS;
        if (!l->n_v) continue;
        get_rows(s, &l->v[i], page_index * PAGE_TOKENS, page);
        page += l->v[i].row_bytes * PAGE_TOKENS;
    }
}

/* ------------------------------------------------------------------ writing */

static void put(FILE *f, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++) fputc((int)(value >> 8 * i & 0xff), f);
}

static void put_rows(FILE *f, const slot_rows *rows, size_t at, uint8_t *const *pages, uint32_t n_pages)
{
    size_t element = rows->element_bytes, row = (size_t)rows->row_bytes;
    put(f, (uint32_t)rows->type, 4);
    if (!element) {
        put(f, row, 8);
        for (uint32_t p = 0; p < n_pages; p++) fwrite(pages[p] + at, 1, row * PAGE_TOKENS, f);
        return;
    }
    put(f, element, 4);
    put(f, row / element, 4);
    for (size_t j = 0; j < row / element; j++)
        for (uint32_t p = 0; p < n_pages; p++)
            for (uint32_t t = 0; t < PAGE_TOKENS; t++)
                fwrite(pages[p] + at + t * row + j * element, 1, element, f);
}

const char *slot_write(const char *path, const slot_layout *l, const uint32_t *tokens, uint8_t *const *pages,
                       uint32_t n_pages, uint32_t n_streams)
{
    uint32_t n = n_pages * PAGE_TOKENS;
    FILE *f = fopen(path, "wb");
    if (!f) return strerror(errno);
    put(f, MAGIC, 4);
    put(f, l->version, 4);
    put(f, n + 4, 4); /* words of the tokens in the server's form */
    put(f, UINT32_MAX, 4);
    put(f, TOKENS_VERSION, 4);
    put(f, n, 4);
    for (uint32_t i = 0; i < n; i++) put(f, tokens[i], 4);
    put(f, 0, 4); /* no media */
    put(f, n_streams, 4);
    put(f, n, 4);
    for (uint32_t i = 0; i < n; i++) {
        put(f, i, 4);
        put(f, 1, 4);
        put(f, 0, 4);
    }
    put(f, l->v_transposed, 4);
    put(f, l->n_layers, 4);
    for (int side = 0; side < (l->n_v ? 2 : 1); side++) {
        size_t at = 0;
        for (uint32_t i = 0; i < l->n_layers; i++) {
            size_t k_bytes = (size_t)l->k[i].row_bytes * PAGE_TOKENS;
            put_rows(f, side ? &l->v[i] : &l->k[i], side ? at + k_bytes : at, pages, n_pages);
            at += k_bytes + (l->n_v ? (size_t)l->v[i].row_bytes * PAGE_TOKENS : 0);
        }
    }
    for (uint32_t i = 1; i < n_streams; i++) put(f, 0, 4);
    bool good = !ferror(f);
    if (fclose(f)) good = false;
    return good ? NULL : "the file could not be written";
}
