/* SPDX-License-Identifier: MIT */
/* States in slot files: what is rows, what is tail, which checkpoints are left out, and the cell that older servers want. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files/slot_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, WINDOW = 16 };

typedef struct bytes {
    uint8_t *at;
    size_t n, cap;
} bytes;

static void add(bytes *b, uint64_t value, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * b->cap + n + 64;
        b->at = (uint8_t *)realloc(b->at, b->cap);
        assert_non_null(b->at);
    }
    for (size_t i = 0; i < n; i++) b->at[b->n++] = (uint8_t)(value >> 8 * i);
}

static void add_head(bytes *b, uint32_t version)
{
    add(b, 0x67677371, 4);
    add(b, version, 4);
    add(b, N + 4, 4);
    add(b, UINT32_MAX, 4);
    add(b, 1, 4);
    add(b, N, 4);
    for (uint32_t i = 0; i < N; i++) add(b, 3 * i + 1, 4);
    add(b, 0, 4);
}

typedef struct cache {
    uint32_t version, first, n, n_layers, n_streams;
    bool transposed, has_v, is_wrapped;
} cache;

static void add_rows(bytes *b, const cache *c, uint32_t layer, uint32_t side)
{
    bool turned = side && c->transposed;
    add(b, 1, 4);
    if (turned) add(b, 2, 4);
    add(b, turned ? 4 : 8, turned ? 4 : 8);
    for (uint32_t i = 0; i < 8 * c->n; i++) add(b, i * 7 + layer + side * 3, 1);
}

static void add_cache(bytes *b, const cache *c)
{
    add(b, c->n_streams, 4);
    for (uint32_t s = 0; s + 1 < c->n_streams; s++) add(b, 0, 4);
    add(b, c->n, 4);
    for (uint32_t i = 0; i < c->n; i++) {
        add(b, c->first + (c->is_wrapped ? (i + 5) % c->n : i), 4);
        add(b, 1, 4);
        add(b, 2, 4);
    }
    add(b, c->transposed, 4);
    add(b, c->n_layers, 4);
    if (c->version > 3) add(b, 0, 8);
    for (uint32_t side = 0; side < (c->has_v ? 2u : 1u); side++)
        for (uint32_t l = 0; l < c->n_layers; l++) add_rows(b, c, l, side);
}

static void add_recurrent(bytes *b)
{
    const uint32_t head[] = {1, N - 1, 0, 0, 5};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) add(b, head[i], 4);
    for (uint32_t l = 0; l < 4; l++) {
        add(b, 0, 4);
        add(b, 12, 8);
        for (uint32_t i = 0; i < 12; i++) add(b, i + l, 1);
    }
}

static void add_checkpoints(bytes *b)
{
    add(b, 0x504b4353, 4);
    for (uint32_t i = 0; i < 30; i++) add(b, i, 4);
}

static const cache full = {.n = N, .n_layers = 2, .n_streams = 2, .has_v = true};

static slot_file parse(const bytes *b, const slot_layout *like)
{
    slot_file s;
    uint8_t *copy = (uint8_t *)malloc(b->n + 1);
    memcpy(copy, b->at, b->n);
    assert_null(slot_parse_state(&s, copy, b->n, like));
    return s;
}

static void assert_state(const bytes *b, const slot_layout *like, uint32_t n_cells, uint32_t n_v,
                         size_t tail_at, size_t tail_bytes)
{
    static slot_file s;
    s = parse(b, like);
    assert_int_equal(s.n_tokens, N);
    assert_int_equal(s.n_cells, n_cells);
    assert_int_equal(s.layout.n_v, n_v);
    assert_int_equal(s.tail_at, tail_at);
    assert_int_equal(s.tail_bytes, tail_bytes);
    slot_free(&s);
}

static void windows(void **state)
{
    (void)state;
    for (uint32_t version = 3; version <= 4; version++)
        for (int transposed = 0; transposed < 2; transposed++) {
            bytes b = {0};
            cache rows = full, window = {version, N - WINDOW, WINDOW, 3, 2, transposed, true, true};
            rows.version = version;
            rows.transposed = transposed;
            add_head(&b, version);
            add_cache(&b, &rows);
            size_t at = b.n;
            add_cache(&b, &window);
            size_t end = b.n;
            assert_state(&b, NULL, N, 2, at, end - at);
            add_checkpoints(&b);
            assert_state(&b, NULL, N, 2, at, end - at);
            assert_true(slot_tail_is_cache(version, b.at + at, end - at));
            assert_false(slot_tail_is_cache(version, b.at + at, end - at - 1));

            /* The wider window has one more cell in front, and everything else as it was. */
            size_t n;
            uint8_t *wide = slot_widen_tail(version, b.at + at, end - at, &n);
            assert_non_null(wide);
            assert_int_equal(n, end - at + 12 + (size_t)2 * 3 * 8);
            assert_true(slot_tail_is_cache(version, wide, n));
            bytes again = {0};
            add(&again, 2, 4);
            add(&again, 0, 4);
            add(&again, WINDOW + 1, 4);
            add(&again, N - WINDOW - 1, 4);
            assert_memory_equal(wide, again.at, again.n);
            size_t cells = (size_t)12 * WINDOW;
            assert_memory_equal(wide + 24, b.at + at + 12, cells + 8);
            size_t row = 24 + cells + 8 + (version > 3 ? 8 : 0) + 12, old = row - 12;
            for (size_t i = 0; i < 8; i++) assert_int_equal(wide[row + i], 0);
            assert_memory_equal(wide + row + 8, b.at + at + old, (size_t)8 * WINDOW);
            free(wide);
            free(again.at);
            free(b.at);
        }
    /* A window that begins at position 0 has no cell before it. */
    bytes b = {0};
    cache window = {3, 0, WINDOW, 3, 1, false, true, false};
    size_t n;
    add_cache(&b, &window);
    assert_null(slot_widen_tail(3, b.at, b.n, &n));
    free(b.at);
}

static void recurrent(void **state)
{
    (void)state;
    bytes b = {0};
    add_head(&b, 4);
    size_t at = b.n;
    add_recurrent(&b);
    size_t end = b.n;
    assert_state(&b, NULL, 0, 0, at, end - at);
    add_checkpoints(&b);
    assert_state(&b, NULL, 0, 0, at, end - at);
    assert_false(slot_tail_is_cache(4, b.at + at, end - at));
    free(b.at);

    /* Latent attention before it: K without V, which only the layout of another state can tell. */
    slot_layout like = {.version = 3, .n_layers = 2};
    cache rows = full;
    b = (bytes){0};
    rows.version = 3;
    rows.has_v = false;
    rows.n_streams = 1;
    add_head(&b, 3);
    add_cache(&b, &rows);
    at = b.n;
    add_recurrent(&b);
    assert_state(&b, &like, N, 0, at, b.n - at);
    like.n_layers = 0; /* no rows are expected */
    size_t head = 4 * (6 + N + 1);
    assert_state(&b, &like, 0, 0, head, b.n - head);
    free(b.at);
}

/* Latent attention in the first of two streams: what follows the K rows is the second stream, which is empty, and not V. */
static void latent(void **state)
{
    (void)state;
    static slot_file s;
    bytes b = {0};
    cache rows = full;
    rows.version = 3;
    rows.has_v = false;
    rows.n_streams = 1;
    add_head(&b, 3);
    size_t count = b.n;
    add_cache(&b, &rows);
    b.at[count] = 2;
    add(&b, 0, 4);
    uint8_t *copy = (uint8_t *)malloc(b.n);
    memcpy(copy, b.at, b.n);
    assert_null(slot_parse(&s, copy, b.n));
    assert_int_equal(s.n_cells, N);
    assert_int_equal(s.layout.n_v, 0);
    slot_free(&s);
    free(b.at);
}

/* Cut anywhere, a state is read as something shorter, or refused; nothing is read behind its end. */
static void cut(void **state)
{
    (void)state;
    bytes b = {0};
    cache rows = full, window = {4, N - WINDOW, WINDOW, 1, 1, true, true, false};
    rows.version = 4;
    add_head(&b, 4);
    add_cache(&b, &rows);
    add_cache(&b, &window);
    add_recurrent(&b);
    for (size_t n = 0; n < b.n; n++) {
        static slot_file s;
        uint8_t *copy = (uint8_t *)malloc(n ? n : 1);
        memcpy(copy, b.at, n);
        const char *wrong = slot_parse_state(&s, copy, n, NULL);
        size_t size;
        if (wrong) continue;
        assert_true(s.tail_at + s.tail_bytes <= n);
        free(slot_widen_tail(4, s.bytes + s.tail_at, s.tail_bytes, &size));
        slot_free(&s);
    }
    free(b.at);
}

/* A state that is written is the one that was read. */
static void there_and_back(void **state)
{
    (void)state;
    char path[] = "/tmp/quire-slot-state.XXXXXX";
    assert_int_not_equal(mkstemp(path), -1);
    for (uint32_t version = 3; version <= 4; version++)
        for (int with_rows = 0; with_rows < 2; with_rows++) {
            static slot_file s, again;
            bytes b = {0};
            cache rows = full;
            rows.version = version;
            add_head(&b, version);
            if (with_rows) add_cache(&b, &rows);
            add_recurrent(&b);
            s = parse(&b, NULL);
            uint8_t *page = (uint8_t *)malloc(s.layout.page_bytes + 1), *const pages[] = {page};
            if (with_rows) slot_get_page(&s, 0, page);
            assert_null(
                slot_write_state(path, &s.layout, s.tokens, 1, pages, 2, s.bytes + s.tail_at, s.tail_bytes));
            assert_null(slot_map_state(&again, path, &s.layout));
            assert_int_equal(again.n_cells, s.n_cells);
            assert_int_equal(again.tail_bytes, s.tail_bytes);
            assert_int_equal(again.n, s.n);
            assert_memory_equal(again.bytes + again.tail_at, s.bytes + s.tail_at, s.tail_bytes);
            uint8_t *page2 = (uint8_t *)malloc(s.layout.page_bytes + 1);
            if (with_rows) slot_get_page(&again, 0, page2);
            if (with_rows) assert_memory_equal(page, page2, s.layout.page_bytes);
            free(page);
            free(page2);
            slot_free(&s);
            slot_free(&again);
            free(b.at);
        }
    remove(path);
}

/* Rows are a mark, two codes and zeros. A row that has more than the others gives no page, because its page would lack a part of it. */
static void zeros(void **state)
{
    (void)state;
    static slot_file s, again;
    static slot_layout parsed, plain;
    char path[] = "/tmp/quire-slot-state.XXXXXX", text[256];
    uint8_t page[N * 8 * 6], *const pages[] = {page};
    assert_int_not_equal(mkstemp(path), -1);
    for (int turned = 0; turned < 2; turned++) {
        bytes b = {0};
        cache rows = full;
        rows.version = 4;
        rows.transposed = turned;
        add_head(&b, 4);
        add_cache(&b, &rows);
        add_recurrent(&b);
        s = parse(&b, NULL);
        for (uint32_t i = 0; i < 2 * s.layout.n_layers; i++) {
            const slot_rows *r = i % 2 ? &s.layout.v[i / 2] : &s.layout.k[i / 2];
            for (uint32_t t = 0; t < N; t++) memcpy(s.bytes + r->at + 8 * t, "\x51\x7e\5\6\0\0\0\0", 8);
        }
        size_t whole = s.layout.page_bytes;
        slot_leave_out_zeros(&s);
        /* V that lies transposed has no rows to cut. */
        assert_int_equal(s.layout.page_bytes, turned ? whole / 4 * 3 : whole / 2);
        slot_layout_print(&s.layout, text, sizeof text);
        assert_null(slot_layout_parse(&parsed, text));
        assert_int_equal(parsed.page_bytes, s.layout.page_bytes);
        assert_true(slot_get_page(&s, 0, page));
        assert_null(slot_write_state(path, &parsed, s.tokens, 1, pages, rows.n_streams, s.bytes + s.tail_at,
                                     s.tail_bytes));
        assert_null(slot_map_state(&again, path, &s.layout));
        assert_int_equal(again.n, s.n);
        for (uint32_t i = 0; i < s.layout.n_layers; i++) {
            assert_memory_equal(again.bytes + again.layout.k[i].at, s.bytes + s.layout.k[i].at, 8 * N);
            assert_memory_equal(again.bytes + again.layout.v[i].at, s.bytes + s.layout.v[i].at, 8 * N);
        }
        slot_free(&again);
        assert_null(slot_map_state(&again, path, &s.layout));
        slot_keep_like(&again, &s.layout);
        assert_int_equal(again.layout.page_bytes, s.layout.page_bytes);
        slot_free(&again);
        if (!turned) plain = s.layout;
        /* Rows that lie otherwise are not cut like these. */
        assert_null(slot_map_state(&again, path, &s.layout));
        slot_keep_like(&again, &plain);
        assert_int_equal(again.layout.v[0].kept, turned ? 8 : 4);
        slot_free(&again);
        s.bytes[s.layout.k[0].at + 8 * 63 + 7] = 1;
        assert_false(slot_get_page(&s, 0, page));
        slot_leave_out_zeros(&s);
        assert_int_equal(s.layout.k[0].kept, 8);
        assert_true(slot_get_page(&s, 0, page));
        s.bytes[s.layout.k[0].at] = 0; /* no mark: values of the declared type */
        s.bytes[s.layout.k[0].at + 8 * 63 + 7] = 0;
        slot_leave_out_zeros(&s);
        assert_int_equal(s.layout.k[0].kept, 8);
        /* A scale of which the upper byte is 0 in all rows. */
        for (uint32_t t = 0; t < N; t++)
            memcpy(s.bytes + s.layout.k[1].at + 8 * t, "\x51\x7e\5\0\0\0\0\0", 8);
        slot_leave_out_zeros(&s);
        assert_int_equal(s.layout.k[1].kept, 4);
        slot_free(&s);
        free(b.at);
    }
    assert_non_null(slot_layout_parse(&parsed, "llama slot 3 vt=0 v=1: 1x1/9of8,1/8/0"));
    assert_non_null(slot_layout_parse(&parsed, "llama slot 3 vt=1 v=1: 1x1/8,1/6of8/2"));
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows),        cmocka_unit_test(recurrent),
                                       cmocka_unit_test(latent),         cmocka_unit_test(cut),
                                       cmocka_unit_test(there_and_back), cmocka_unit_test(zeros)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
