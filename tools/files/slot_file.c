/* SPDX-License-Identifier: MIT */
/* slot_file: slots of llama-server, state versions 3 and 4: their first cache. Version 4 also says how the rows are rotated. */
#define _GNU_SOURCE
#include "files/slot_file.h"

#include "files/private_file.h"
#include "files/slot_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MAP_POPULATE /* of Linux: all pages at once, instead of a fault for each */
#define MAP_POPULATE 0
#endif

#define MAGIC 0x67677371u
#define PAGE_TOKENS 64u
#define TOKENS_VERSION 1u
#define MAX_STREAMS 256u

/* ------------------------------------------------------------------ reading */

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
static const char *read_tokens(slot_file *s, slot_reader *r)
{
    uint32_t n = (uint32_t)slot_take(r, 4);
    slot_reader words = {.bytes = r->bytes, .n = r->at + 4 * (size_t)n, .at = r->at};
    slot_skip(r, 4 * (uint64_t)n);
    if (r->failed) return "the file ends within the tokens";
    bool packed = n && slot_take(&words, 4) == UINT32_MAX;
    if (packed) {
        if (slot_take(&words, 4) != TOKENS_VERSION) return "the tokens have an unknown format";
        n = (uint32_t)slot_take(&words, 4);
        if (words.failed || n > (words.n - words.at) / 4) return "the tokens are damaged";
    } else {
        words.at = words.n - 4 * (size_t)n;
    }
    s->tokens = (uint32_t *)malloc(4 * (size_t)n + 4);
    if (!s->tokens) return "out of memory";
    for (uint32_t i = 0; i < n; i++) s->tokens[i] = (uint32_t)slot_take(&words, 4);
    s->n_tokens = n;
    if (packed && slot_take(&words, 4) != 0) return "the slot contains images, which cannot be stored";
    return NULL;
}

/* A slot that was computed from its first token on has its positions in order. After a shift (--context-shift, --cache-reuse)
 * new tokens fill the cells that became free in the middle. */
static const char *read_cells(slot_file *s, slot_reader *r)
{
    uint64_t first_sequence = 0;
    if (s->n_cells > s->n / 12) return "the file ends within the cells";
    if (s->n_tokens < s->n_cells) return "the slot has fewer tokens than cells";
    for (uint32_t i = 0; i < s->n_cells; i++) {
        uint64_t position = slot_take(r, 4), n_seq = slot_take(r, 4), sequence = slot_take(r, 4);
        if (!i) first_sequence = sequence;
        if (r->failed || n_seq != 1 || sequence != first_sequence)
            return "the cells belong to several sequences, or their positions have several dimensions";
        if (position != i)
            return "the positions are not 0, 1, 2 and so on in the order of the cells, as after a context shift or a re-use of cached parts";
    }
    return NULL;
}

static bool read_rows(slot_file *s, slot_reader *r, slot_rows *rows, bool transposed)
{
    rows->type = (int32_t)slot_take(r, 4);
    if (transposed) {
        rows->element_bytes = (uint32_t)slot_take(r, 4);
        rows->row_bytes = slot_take(r, 4) * rows->element_bytes;
    } else {
        rows->row_bytes = slot_take(r, 8);
    }
    rows->kept = rows->row_bytes;
    rows->at = r->at;
    if (!rows->row_bytes || rows->row_bytes > 1u << 24) return false;
    slot_skip(r, rows->row_bytes * s->n_cells);
    return !r->failed;
}

static const char *read_layers(slot_file *s, slot_reader *r, const slot_layout *like)
{
    slot_layout *l = &s->layout;
    l->v_transposed = slot_take(r, 4) != 0;
    l->n_layers = (uint32_t)slot_take(r, 4);
    if (l->version > SLOT_FIRST_VERSION) {
        l->rotation_k = (uint32_t)slot_take(r, 4);
        l->rotation_v = (uint32_t)slot_take(r, 4);
        if (l->rotation_k > SLOT_MAX_ROTATION || l->rotation_v > SLOT_MAX_ROTATION)
            return "the sizes of the rotations are damaged";
    }
    if (r->failed || !l->n_layers || l->n_layers > SLOT_MAX_LAYERS)
        return "the file ends within the list of layers, or that list is damaged";
    for (uint32_t i = 0; i < l->n_layers; i++)
        if (!read_rows(s, r, &l->k[i], false)) return "the file ends within the K rows";
    /* Caches of latent attention have no V, and what follows them then has another form. */
    slot_reader before_v = *r;
    l->n_v = (like ? like->n_v > 0 : r->at < r->n) ? l->n_layers : 0;
    for (uint32_t i = 0; i < l->n_v; i++)
        if (!read_rows(s, r, &l->v[i], l->v_transposed)) {
            memset(l->v, 0, sizeof l->v);
            l->n_v = 0;
            s->lacks_v = true;
            *r = before_v;
        }
    slot_layout_complete(l);
    return NULL;
}

/* The first cache of the state. like NULL: it is not known whether it has V. */
static const char *read_cache(slot_file *s, slot_reader *r, const slot_layout *like)
{
    uint32_t n_streams = (uint32_t)slot_take(r, 4);
    const char *wrong = NULL;
    if (r->failed || !n_streams || n_streams > MAX_STREAMS)
        return "the file does not contain the state of a KV cache";
    for (uint32_t i = 0; i < n_streams && !wrong; i++) {
        uint32_t n = (uint32_t)slot_take(r, 4);
        if (r->failed) return "the file ends early";
        if (!n) continue;
        if (s->n_cells) return "the file contains cells of several streams";
        s->n_cells = n;
        wrong = read_cells(s, r);
        if (!wrong) wrong = read_layers(s, r, like);
    }
    if (!wrong && !s->n_cells) wrong = "the slot is empty";
    return wrong;
}

static const char *read_head(slot_file *s, slot_reader *r, uint8_t *bytes, size_t n, bool is_mapped)
{
    memset(s, 0, sizeof *s);
    s->bytes = bytes;
    s->n = n;
    s->is_mapped = is_mapped;
    *r = (slot_reader){.bytes = bytes, .n = n};
    if (slot_take(r, 4) != MAGIC || r->failed) return "the file is not a slot file of llama-server";
    if (!slot_version_known((s->layout.version = (uint32_t)slot_take(r, 4))))
        return "the slot file has an unknown version (known are 3 and 4)";
    return read_tokens(s, r);
}

static const char *parse(slot_file *s, uint8_t *bytes, size_t n, bool is_mapped)
{
    slot_reader r;
    const char *wrong = read_head(s, &r, bytes, n, is_mapped);
    if (!wrong) wrong = read_cache(s, &r, NULL);
    if (!wrong && r.at != r.n && s->lacks_v)
        wrong = "the file ends within the V rows, or contains a second cache";
    if (!wrong && r.at != r.n)
        wrong =
            "the model has more than one cache (layers with a sliding window or recurrent state), which cannot be stored";
    if (wrong) slot_free(s);
    return wrong;
}

static const char *parse_state(slot_file *s, uint8_t *bytes, size_t n, bool is_mapped,
                               const slot_layout *like)
{
    slot_reader r, begin;
    const char *wrong = read_head(s, &r, bytes, n, is_mapped);
    begin = r;
    if (!wrong && ((like && !like->n_layers) || read_cache(s, &r, like))) {
        uint32_t version = s->layout.version;
        memset(&s->layout, 0, sizeof s->layout);
        s->layout.version = version;
        s->n_cells = 0;
        r = begin;
    }
    if (!wrong) {
        s->tail_at = r.at;
        s->tail_bytes = slot_tail_size(s->layout.version, bytes + r.at, n - r.at);
    }
    if (wrong) slot_free(s);
    return wrong;
}

const char *slot_parse(slot_file *s, uint8_t *bytes, size_t n)
{
    return parse(s, bytes, n, false);
}

const char *slot_parse_state(slot_file *s, uint8_t *bytes, size_t n, const slot_layout *like)
{
    return parse_state(s, bytes, n, false, like);
}

static const char *map_file(const char *path, uint8_t **out, size_t *n)
{
    struct stat st = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *bytes = MAP_FAILED;
    if (fd >= 0 && !fstat(fd, &st) && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    const char *wrong = fd < 0 || (st.st_size > 0 && bytes == MAP_FAILED) ? strerror(errno) : NULL;
    if (fd >= 0) close(fd);
    if (!wrong && bytes == MAP_FAILED) wrong = "the file is empty";
    *out = (uint8_t *)bytes;
    *n = (size_t)st.st_size;
    return wrong;
}

const char *slot_map(slot_file *s, const char *path)
{
    uint8_t *bytes;
    size_t n;
    const char *wrong = map_file(path, &bytes, &n);
    return wrong ? wrong : parse(s, bytes, n, true);
}

const char *slot_map_state(slot_file *s, const char *path, const slot_layout *like)
{
    uint8_t *bytes;
    size_t n;
    const char *wrong = map_file(path, &bytes, &n);
    return wrong ? wrong : parse_state(s, bytes, n, true, like);
}

const char *slot_read(slot_file *s, const char *path)
{
    size_t n;
    uint8_t *bytes = read_file(path, &n);
    return bytes ? slot_parse(s, bytes, n) : strerror(errno);
}

void slot_free(slot_file *s)
{
    if (s->is_mapped)
        munmap(s->bytes, s->n);
    else
        free(s->bytes);
    free(s->tokens);
    memset(s, 0, sizeof *s);
}

/* -------------------------------------------------------------------- pages */

static bool is_zero(const uint8_t *bytes, size_t n)
{
    return !n || (!bytes[0] && !memcmp(bytes, bytes + 1, n - 1));
}

static bool get_rows(const slot_file *s, const slot_rows *rows, uint32_t first, uint8_t *to)
{
    const uint8_t *from = s->bytes + rows->at;
    size_t element = rows->element_bytes, row = (size_t)rows->row_bytes, kept = (size_t)rows->kept;
    for (size_t j = 0; element && j < row / element; j++)
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            memcpy(to + t * row + j * element, from + (j * s->n_cells + first + t) * element, element);
    if (element) return true;
    from += first * row;
    if (kept == row) memcpy(to, from, PAGE_TOKENS * row);
    for (size_t t = 0; kept < row && t < PAGE_TOKENS; t++, from += row) {
        memcpy(to + t * kept, from, kept);
        if (!is_zero(from + kept, row - kept)) return false;
    }
    return true;
}

bool slot_get_page(const slot_file *s, uint32_t page_index, uint8_t *page)
{
    const slot_layout *l = &s->layout;
    for (uint32_t i = 0; i < l->n_layers; i++) {
        if (!get_rows(s, &l->k[i], page_index * PAGE_TOKENS, page)) return false;
        page += l->k[i].kept * PAGE_TOKENS;
        if (!l->n_v) continue;
        if (!get_rows(s, &l->v[i], page_index * PAGE_TOKENS, page)) return false;
        page += l->v[i].kept * PAGE_TOKENS;
    }
    return true;
}

/* The rows of one K or V up to the last byte that is not 0, if all of them begin with the mark of codes: a NaN in f16. */
static uint64_t used_bytes(const slot_file *s, const slot_rows *rows)
{
    size_t row = (size_t)rows->row_bytes, used = 0;
    if (rows->element_bytes || row < 2) return row;
    for (uint32_t i = 0; i < s->n_cells; i++) {
        const uint8_t *from = s->bytes + rows->at + i * row;
        size_t n = row;
        if (from[0] != 0x51 || from[1] != 0x7e) return row;
        while (n > used && !from[n - 1]) n--;
        used = n;
    }
    /* Rows end with a scale in f16, whose upper byte is 0 if it is tiny. */
    return used % 2 && used < row ? used + 1 : used;
}

void slot_leave_out_zeros(slot_file *s)
{
    slot_layout *l = &s->layout;
    for (uint32_t i = 0; i < l->n_layers; i++) {
        l->k[i].kept = used_bytes(s, &l->k[i]);
        if (l->n_v) l->v[i].kept = used_bytes(s, &l->v[i]);
    }
    slot_layout_complete(l);
}

static void keep_like(slot_rows *rows, const slot_rows *like)
{
    bool same = rows->type == like->type && rows->row_bytes == like->row_bytes &&
                rows->element_bytes == like->element_bytes;
    if (same) rows->kept = like->kept;
}

void slot_keep_like(slot_file *s, const slot_layout *like)
{
    slot_layout *l = &s->layout;
    for (uint32_t i = 0; i < l->n_layers && i < like->n_layers; i++) {
        keep_like(&l->k[i], &like->k[i]);
        keep_like(&l->v[i], &like->v[i]);
    }
    slot_layout_complete(l);
}

/* ------------------------------------------------------------------ writing */

static void put(FILE *f, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++) fputc((int)(value >> 8 * i & 0xff), f);
}

/* Rows of which not all bytes are in the page. */
static void put_padded(FILE *f, const slot_rows *rows, const uint8_t *kept)
{
    size_t n = (size_t)rows->kept, rest = (size_t)rows->row_bytes - n;
    static const uint8_t zeros[4096];
    for (uint32_t t = 0; t < PAGE_TOKENS; t++, kept += n) {
        fwrite(kept, 1, n, f);
        for (size_t left = rest, part; left; left -= part) {
            part = left < sizeof zeros ? left : sizeof zeros;
            fwrite(zeros, 1, part, f);
        }
    }
}

static void put_rows(FILE *f, const slot_rows *rows, size_t at, uint8_t *const *pages, uint32_t n_pages)
{
    size_t element = rows->element_bytes, row = (size_t)rows->row_bytes;
    put(f, (uint32_t)rows->type, 4);
    if (!element) {
        put(f, row, 8);
        for (uint32_t p = 0; p < n_pages; p++)
            if (rows->kept == row)
                fwrite(pages[p] + at, 1, row * PAGE_TOKENS, f);
            else
                put_padded(f, rows, pages[p] + at);
        return;
    }
    put(f, element, 4);
    put(f, row / element, 4);
    for (size_t j = 0; j < row / element; j++)
        for (uint32_t p = 0; p < n_pages; p++)
            for (uint32_t t = 0; t < PAGE_TOKENS; t++)
                fwrite(pages[p] + at + t * row + j * element, 1, element, f);
}

static void put_cache(FILE *f, const slot_layout *l, uint8_t *const *pages, uint32_t n_pages,
                      uint32_t n_streams)
{
    uint32_t n = n_pages * PAGE_TOKENS;
    put(f, n_streams, 4);
    put(f, n, 4);
    for (uint32_t i = 0; i < n; i++) {
        put(f, i, 4);
        put(f, 1, 4);
        put(f, 0, 4);
    }
    put(f, l->v_transposed, 4);
    put(f, l->n_layers, 4);
    if (l->version > SLOT_FIRST_VERSION) {
        put(f, l->rotation_k, 4);
        put(f, l->rotation_v, 4);
    }
    for (int side = 0; side < (l->n_v ? 2 : 1); side++) {
        size_t at = 0;
        for (uint32_t i = 0; i < l->n_layers; i++) {
            size_t k_bytes = (size_t)l->k[i].kept * PAGE_TOKENS;
            put_rows(f, side ? &l->v[i] : &l->k[i], side ? at + k_bytes : at, pages, n_pages);
            at += k_bytes + (l->n_v ? (size_t)l->v[i].kept * PAGE_TOKENS : 0);
        }
    }
    for (uint32_t i = 1; i < n_streams; i++) put(f, 0, 4);
}

const char *slot_write_state(const char *path, const slot_layout *l, const uint32_t *tokens, uint32_t n_pages,
                             uint8_t *const *pages, uint32_t n_streams, const uint8_t *tail,
                             size_t tail_bytes)
{
    uint32_t n = n_pages * PAGE_TOKENS;
    private_file file;
    if (!private_open(&file, path)) return strerror(errno);
    FILE *f = file.stream;
    put(f, MAGIC, 4);
    put(f, l->version, 4);
    put(f, n + 4, 4); /* words of the tokens in the server's form */
    put(f, UINT32_MAX, 4);
    put(f, TOKENS_VERSION, 4);
    put(f, n, 4);
    for (uint32_t i = 0; i < n; i++) put(f, tokens[i], 4);
    put(f, 0, 4); /* no media */
    if (l->n_layers) put_cache(f, l, pages, n_pages, n_streams);
    if (tail_bytes) fwrite(tail, 1, tail_bytes, f);
    return private_close(&file, true) ? NULL : strerror(errno);
}

const char *slot_write(const char *path, const slot_layout *l, const uint32_t *tokens, uint8_t *const *pages,
                       uint32_t n_pages, uint32_t n_streams)
{
    return slot_write_state(path, l, tokens, n_pages, pages, n_streams, NULL, 0);
}
