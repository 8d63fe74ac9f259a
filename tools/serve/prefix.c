/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/prefix.h"

#include "files/slot_file.h"
#include "serve/clock.h"
#include "store/vouch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = QUIRE_PAGE_TOKENS, LAYOUT_TEXT = 8192, PATH_SIZE = 512 };
/* Of an answer of the server about a slot. */
#define MOST_ANSWER (1u << 20)

struct prefix {
    prefix_options o;
    quire_namespace *ns;
    slot_layout layout;
    header_lines *headers;
};

static unsigned post(const prefix *p, const char *target, const char *text)
{
    char *answer;
    size_t n;
    const exchange_request r = {.method = "POST",
                                .target = target,
                                .headers = p->headers,
                                .body = text,
                                .body_size = strlen(text),
                                .has_body = true,
                                .client = -1,
                                .timeout_ms = p->o.slot_timeout_ms};
    unsigned status = upstream_ask(&p->o.to, &r, MOST_ANSWER, &answer, &n);
    free(answer);
    return status;
}

static void path_of(const prefix *p, const char *name, char *path)
{
    snprintf(path, PATH_SIZE, "%s/%s", p->o.folder, name);
}

void prefix_remove_copy(const prefix_options *of, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", of->folder, name);
    unlink(path);
}

/* A name that no file had before: a server that is late must not find the file of another prompt under it. */
static void make_name(char name[PREFIX_NAME])
{
    static _Atomic unsigned long long last;
    snprintf(name, PREFIX_NAME, "slot-%llu.bin", atomic_fetch_add(&last, 1) + 1);
}

/* The server writes the slot to a file, or reads it from there. */
static bool exchange_slot(const prefix *p, uint32_t slot, const char *action, const char *name)
{
    char target[64], text[96];
    snprintf(target, sizeof target, "/slots/%u?action=%s", slot, action);
    snprintf(text, sizeof text, "{\"filename\":\"%s\"}", name);
    return post(p, target, text) == 200;
}

bool prefix_copy_out(prefix *p, uint32_t slot, char name[PREFIX_NAME])
{
    make_name(name);
    if (exchange_slot(p, slot, "save", name)) return true;
    prefix_remove_copy(&p->o, name);
    return false;
}

bool prefix_copy_in(prefix *p, uint32_t slot, const char *name)
{
    return exchange_slot(p, slot, "restore", name);
}

static const char *read_slot(prefix *p, uint32_t slot, slot_file *out)
{
    char path[PATH_SIZE], name[PREFIX_NAME];
    if (!prefix_copy_out(p, slot, name)) return "the server does not save its slots";
    path_of(p, name, path);
    const char *wrong = slot_map(out, path);
    unlink(path);
    return wrong;
}

static const char *learn_layout(prefix *p)
{
    slot_file slot;
    if (post(p, "/completion", "{\"prompt\":[1],\"n_predict\":0,\"id_slot\":0,\"cache_prompt\":true}") != 200)
        return "the server does not compute a first token";
    const char *wrong = read_slot(p, 0, &slot);
    if (wrong) return wrong;
    p->layout = slot.layout;
    slot_free(&slot);
    return NULL;
}

static const char *open_namespace(prefix *p)
{
    char text[LAYOUT_TEXT + 512], rows[LAYOUT_TEXT];
    slot_rows_print(&p->layout, rows, sizeof rows);
    if (strlen(rows) + 1 >= sizeof rows) return "the layers of this model are too many to be described";
    snprintf(text, sizeof text, "%s kv=%s " VOUCHED, rows, p->o.kv);
    quire_status status =
        quire_namespace_create_raw(&p->ns, p->o.store, p->o.identity, text, p->layout.page_bytes);
    return status ? quire_status_text(status) : NULL;
}

static prefix *make(const prefix_options *options, const slot_layout *layout, char *message, size_t size)
{
    prefix *p = (prefix *)calloc(1, sizeof *p);
    const char *wrong = "out of memory";
    if (p) {
        p->o = *options;
        bool good = header_lines_add(&p->headers, "Content-Type", "application/json") &&
                    (!options->authorization ||
                     header_lines_add(&p->headers, "Authorization", options->authorization));
        if (good && layout) p->layout = *layout;
        if (good) wrong = layout ? NULL : learn_layout(p);
        if (good && !wrong) wrong = open_namespace(p);
    }
    if (!wrong) return p;
    snprintf(message, size, "%s", wrong);
    prefix_destroy(p);
    return NULL;
}

prefix *prefix_create(const prefix_options *options, char *message, size_t size)
{
    return make(options, NULL, message, size);
}

prefix *prefix_create_like(const prefix *p, const quire_identity *identity, char *message, size_t size)
{
    prefix_options options = p->o;
    options.identity = identity;
    return make(&options, &p->layout, message, size);
}

void prefix_destroy(prefix *p)
{
    if (!p) return;
    quire_namespace_destroy(p->ns);
    header_lines_free(p->headers);
    free(p);
}

static quire_chain *chain_of(const prefix *p, const uint32_t *tokens, uint32_t n)
{
    quire_chain *chain = NULL;
    if (quire_chain_create(&chain, p->ns)) return NULL;
    if (!quire_chain_append(chain, tokens, n, NULL, 0, 0)) return chain;
    quire_chain_destroy(chain);
    return NULL;
}

uint32_t prefix_look_up(prefix *p, const uint32_t *tokens, uint32_t n)
{
    uint32_t found = 0;
    quire_chain *chain = n >= PAGE ? chain_of(p, tokens, n) : NULL;
    const quire_chain *one[] = {chain};
    if (chain && quire_chain_lookup_many(one, 1, p->o.timeout_ms, &found)) found = 0;
    quire_chain_destroy(chain);
    return found;
}

/* ---------------------------------------------------------------- restoring */

static uint32_t load(const prefix *p, const uint32_t *tokens, uint32_t n_pages, uint8_t *room, void **rooms)
{
    uint32_t n = 0;
    quire_load *l = NULL;
    quire_chain *chain = chain_of(p, tokens, n_pages * PAGE);
    for (uint32_t i = 0; i < n_pages; i++) rooms[i] = room + (size_t)i * p->layout.page_bytes;
    if (!chain || quire_load_begin_raw(&l, chain, 0, n_pages, rooms, p->o.timeout_ms) ||
        quire_load_end(l, &n))
        n = 0;
    quire_chain_destroy(chain);
    return n / PAGE;
}

/* Room that is written once: large pages of the system, where they are allowed, take a third of the time of small ones. */
static uint8_t *take_room(size_t bytes)
{
    enum { LARGE = 2 << 20 };
    void *room = NULL;
    if (posix_memalign(&room, LARGE, (bytes + LARGE - 1) / LARGE * LARGE)) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(room, (bytes + LARGE - 1) / LARGE * LARGE, MADV_HUGEPAGE);
#endif
    return (uint8_t *)room;
}

uint32_t prefix_restore(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n_tokens,
                        prefix_times *times)
{
    char path[PATH_SIZE], name[PREFIX_NAME];
    uint32_t n_pages = n_tokens / PAGE;
    uint8_t *room = take_room(p->layout.page_bytes * (n_pages + 1));
    void **rooms = (void **)calloc(n_pages + 1, sizeof *rooms);
    double begin = clock_ms();
    make_name(name);
    path_of(p, name, path);
    uint32_t got = room && rooms ? load(p, tokens, n_pages, room, rooms) : 0;
    times->load = clock_ms() - begin;
    const char *wrong =
        got ? slot_write(path, &p->layout, tokens, (uint8_t *const *)(void *)rooms, got, p->o.n_slots) : "";
    free(room);
    free(rooms);
    times->write = clock_ms() - begin - times->load;
    bool good = !wrong && exchange_slot(p, slot, "restore", name);
    times->restore = clock_ms() - begin - times->load - times->write;
    unlink(path);
    return good ? got * PAGE : 0;
}

/* ------------------------------------------------------------------- saving */

/* Pages of the first n_known tokens that the store still has. Only the disk is asked, if there is one. */
static uint32_t known_pages(const prefix *p, const quire_chain *chain, uint32_t n_known)
{
    uint32_t found = 0;
    if (n_known < PAGE || quire_chain_lookup_many(&chain, 1, p->o.has_disk ? 0 : p->o.timeout_ms, &found))
        return 0;
    return (found < n_known ? found : n_known) / PAGE;
}

static uint32_t save_pages(const prefix *p, const slot_file *slot, uint32_t n_known)
{
    uint32_t n_pages = slot->n_cells / PAGE, done = 0;
    uint8_t *page = (uint8_t *)malloc(p->layout.page_bytes);
    const void *one[] = {page};
    quire_chain *chain = page ? chain_of(p, slot->tokens, n_pages * PAGE) : NULL;
    if (chain) done = known_pages(p, chain, n_known);
    for (bool full = false; chain && done < n_pages && !full;) {
        uint32_t dropped = 0;
        slot_get_page(slot, done, page);
        if (quire_chain_save_raw(chain, done, 1, one, &dropped)) break;
        full = dropped; /* its queue is full: what remains is tried with the next save */
        done += !dropped;
    }
    quire_chain_destroy(chain);
    free(page);
    return done * PAGE;
}

static bool has_same_rows(const slot_layout *a, const slot_layout *b)
{
    static const size_t size = LAYOUT_TEXT;
    char *texts = (char *)malloc(2 * size);
    if (!texts) return false;
    slot_rows_print(a, texts, size);
    slot_rows_print(b, texts + size, size);
    bool same = !strcmp(texts, texts + size);
    free(texts);
    return same;
}

struct prefix_image {
    slot_file file;
};

prefix_image *prefix_take_image(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                                const char **why)
{
    prefix_image *i = (prefix_image *)calloc(1, sizeof *i);
    *why = i ? read_slot(p, slot, &i->file) : "out of memory";
    if (*why) {
        free(i);
        return NULL;
    }
    if (i->file.n_cells < n || memcmp(i->file.tokens, tokens, sizeof *tokens * n))
        *why = "the slot does not hold the prompt that was watched";
    else if (!has_same_rows(&i->file.layout, &p->layout))
        *why = "the slot has other types than before";
    if (!*why) return i;
    prefix_free_image(i);
    return NULL;
}

uint32_t prefix_image_tokens(const prefix_image *i)
{
    return i->file.n_cells;
}

uint32_t prefix_store_image(const prefix *p, const prefix_image *i, uint32_t n_known)
{
    return save_pages(p, &i->file, n_known < i->file.n_cells ? n_known : i->file.n_cells);
}

void prefix_free_image(prefix_image *i)
{
    if (!i) return;
    slot_free(&i->file);
    free(i);
}

uint32_t *prefix_save(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n, uint32_t n_known,
                      uint32_t *n_held, uint32_t *n_stored, const char **why)
{
    prefix_image *i = prefix_take_image(p, slot, tokens, n, why);
    uint32_t *list = i ? (uint32_t *)malloc(sizeof *list * (i->file.n_cells + 1u)) : NULL;
    if (i && !list) *why = "out of memory";
    if (list) {
        *n_held = i->file.n_cells;
        memcpy(list, i->file.tokens, sizeof *list * *n_held);
        *n_stored = prefix_store_image(p, i, n_known < n ? n_known : n);
    }
    prefix_free_image(i);
    return list;
}
