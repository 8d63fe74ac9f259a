/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/prefix_parts.h"

#include "serve/clock.h"
#include "serve/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = QUIRE_PAGE_TOKENS };
/* A state is saved if it is so many tokens after the last, and where two prompts part, if that is worth it for both. */
enum { ADVANCE_LEAST = 128, PART_LEAST = 256 };

static bool is_stopped(const prefix *p)
{
    return atomic_load(&p->has_left) || (p->o.is_stopped && atomic_load(p->o.is_stopped));
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

/* That the slot file of so many tokens takes. */
static size_t file_memory(const prefix *p, uint32_t n_tokens)
{
    return p->o.folder_is_memory ? slot_bytes(&p->layout, n_tokens) + atomic_load(&p->most_tail) : 0;
}

static void note_tail(prefix *p, size_t bytes)
{
    size_t most = atomic_load(&p->most_tail);
    while (bytes > most && !atomic_compare_exchange_weak(&p->most_tail, &most, bytes)) {
    }
}

/* Has the server compute these tokens in a slot and nothing after them. */
bool prefix_compute(const prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n, bool reuse,
                    int client, body_timings *t)
{
    const prompt_source from = {.to = &p->o.to,
                                .headers = p->headers,
                                .client = client,
                                .timeout_ms = client < 0 ? p->o.slot_timeout_ms : 0};
    return prompt_compute(&from, tokens, n, slot, reuse, t);
}

void prefix_remove_copy(const prefix_options *of, const char *name)
{
    swap_remove(of->folder, name);
}

bool prefix_copy_out(prefix *p, uint32_t slot, char name[SWAP_NAME])
{
    return !is_stopped(p) && swap_out(&p->swap, slot, name);
}

/* in_states: like slot_map_state() does, which takes `like`. */
const char *prefix_read_slot(prefix *p, uint32_t slot, bool in_states, const slot_layout *like,
                             slot_file *out)
{
    char path[SWAP_PATH], name[SWAP_NAME];
    if (!swap_out(&p->swap, slot, name))
        return "llama-server did not write its slot file; is there room for it in /dev/shm or /tmp?";
    swap_path(&p->swap, name, path);
    const char *wrong = in_states ? slot_map_state(out, path, like) : slot_map(out, path);
    unlink(path);
    if (!wrong) slot_keep_like(out, &p->layout);
    return wrong;
}

bool prefix_has_same_rows(const slot_layout *a, const slot_layout *b)
{
    static const size_t size = PREFIX_LAYOUT_TEXT;
    char *texts = (char *)malloc(2 * size);
    if (!texts) return false;
    slot_rows_print(a, texts, size);
    slot_rows_print(b, texts + size, size);
    bool same = !strcmp(texts, texts + size);
    free(texts);
    return same;
}

/* Gives the server back what a slot held. */
bool prefix_put_back(const prefix *p, uint32_t slot, const slot_file *file, const uint8_t *tail,
                     size_t n_tail)
{
    char path[SWAP_PATH], name[SWAP_NAME];
    uint32_t n_pages = file->n_tokens / PAGE;
    size_t page_bytes = p->layout.page_bytes;
    uint8_t *room = take_room(page_bytes * n_pages + 1);
    uint8_t **pages = (uint8_t **)calloc(n_pages + 1u, sizeof *pages);
    bool good = room && pages;
    for (uint32_t i = 0; good && p->has_rows && i < n_pages; i++)
        good = slot_get_page(file, i, pages[i] = room + i * page_bytes);
    swap_make_name(name);
    swap_path(&p->swap, name, path);
    good = good &&
           !slot_write_state(path, &p->layout, file->tokens, n_pages, pages, p->o.n_slots, tail, n_tail) &&
           swap_in(&p->swap, slot, name);
    unlink(path);
    free(room);
    free(pages);
    return good;
}

/* Whether the slot holds whole pages and the rows of all of them. */
bool prefix_is_whole(const prefix *p, const slot_file *file)
{
    return file->n_tokens % PAGE == 0 && file->tail_bytes &&
           (!p->has_rows ||
            (file->n_cells == file->n_tokens && file->layout.page_bytes == p->layout.page_bytes));
}

static quire_chain *chain_of(const prefix *p, const uint32_t *tokens, uint32_t n)
{
    quire_chain *chain = NULL;
    if (quire_chain_create(&chain, p->ns)) return NULL;
    if (!quire_chain_append(chain, tokens, n, NULL, 0, 0)) return chain;
    quire_chain_destroy(chain);
    return NULL;
}

bool prefix_has_states(const prefix *p)
{
    return p->states != NULL;
}

bool prefix_root(const prefix *p, uint8_t root[32])
{
    if (p->ns) quire_namespace_root(p->ns, root);
    return p->ns;
}

static uint32_t look_up_rows(const prefix *p, const uint32_t *tokens, uint32_t n)
{
    uint32_t found = 0;
    quire_chain *chain = n >= PAGE ? chain_of(p, tokens, n) : NULL;
    const quire_chain *one[] = {chain};
    if (chain && quire_chain_lookup_many(one, 1, p->o.timeout_ms, &found)) found = 0;
    quire_chain_destroy(chain);
    return found;
}

uint32_t prefix_look_up(prefix *p, const uint32_t *tokens, uint32_t n)
{
    if (is_stopped(p)) return 0;
    if (!p->states) return look_up_rows(p, tokens, n);
    if (n <= PAGE) return 0;
    uint32_t found = p->has_rows ? look_up_rows(p, tokens, n - 1) : n - 1;
    return states_find(p->states, tokens, found, p->o.window, p->o.timeout_ms);
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

/* Returns how many pages the file has. */
static uint32_t load_to(prefix *p, const uint32_t *tokens, uint32_t n_pages, const char *name,
                        prefix_times *times, prefix_lack *lack)
{
    char path[SWAP_PATH];
    uint32_t got = n_pages;
    size_t n_tail = 0;
    double begin = clock_ms();
    uint8_t *room = take_room(p->layout.page_bytes * (n_pages + 1));
    void **rooms = (void **)calloc(n_pages + 1, sizeof *rooms);
    uint8_t *tail =
        p->states ? states_load(p->states, tokens, n_pages * PAGE, p->o.timeout_ms, &n_tail) : NULL;
    note_tail(p, n_tail);
    *lack = room && rooms ? LACKS_PAGES : LACKS_MEMORY;
    if (*lack == LACKS_MEMORY || (p->states && !tail))
        got = 0;
    else if (p->has_rows)
        got = load(p, tokens, n_pages, room, rooms);
    if (p->states && got < n_pages) got = 0; /* a state is of no use after a shorter prefix */
    times->load = clock_ms() - begin;
    swap_path(&p->swap, name, path);
    if (got && slot_write_state(path, &p->layout, tokens, got, (uint8_t *const *)(void *)rooms, p->o.n_slots,
                                tail, n_tail)) {
        unlink(path);
        got = 0;
        *lack = LACKS_PLACE;
    }
    free(room);
    free(rooms);
    free(tail);
    times->write = clock_ms() - begin - times->load;
    return got;
}

uint32_t prefix_load(prefix *p, const uint32_t *tokens, uint32_t n_tokens, const budget_wait *wait,
                     prefix_times *times, prefix_file *file, prefix_lack *lack)
{
    uint32_t n_pages = n_tokens / PAGE;
    size_t of_pages = p->layout.page_bytes * n_pages + atomic_load(&p->most_tail);
    *file = (prefix_file){.bytes = file_memory(p, n_tokens)};
    *lack = LACKS_MEMORY;
    if (!budget_take(p->o.memory, of_pages + file->bytes, wait)) return 0;
    swap_make_name(file->name);
    *lack = LACKS_PAGES;
    /* The wait may have been long, and the server may have ended. */
    uint32_t got = is_stopped(p) ? 0 : load_to(p, tokens, n_pages, file->name, times, lack);
    budget_give(p->o.memory, got ? of_pages : of_pages + file->bytes);
    if (got) *lack = LACKS_NOTHING;
    return got * PAGE;
}

void prefix_drop(const prefix *p, const prefix_file *file)
{
    swap_remove(p->o.folder, file->name);
    budget_give(p->o.memory, file->bytes);
}

bool prefix_restore(prefix *p, uint32_t slot, const char *name, prefix_times *times)
{
    double begin = clock_ms();
    bool good = !is_stopped(p) && swap_in(&p->swap, slot, name);
    times->restore = clock_ms() - begin;
    return good;
}

/* ------------------------------------------------------------------- saving */

/* Half of what the store lets wait for a tier: pages that come faster than a tier takes them would be dropped there. */
enum { WAIT_AFTER_BYTES = 128 << 20 };

/* Pages of the first n_known tokens that the tiers still have. If nobody may wait, only the disk is asked, if there is one. */
static uint32_t known_pages(const prefix *p, const quire_chain *chain, uint32_t n_known, bool may_wait)
{
    uint32_t found = 0;
    if (!may_wait && !p->o.has_disk) return n_known / PAGE;
    if (n_known < PAGE || quire_chain_stored(chain, may_wait ? p->o.timeout_ms : 0, &found)) return 0;
    return (found < n_known ? found : n_known) / PAGE;
}

/* Until the store has taken what waits; false: it has not. */
static bool wait_for_room(const prefix *p, const prefix_patience *patience)
{
    enum { STEP_MS = 100 };
    while (patience && clock_ms() < patience->until && !(patience->is_over && atomic_load(patience->is_over)))
        if (!quire_store_flush(p->o.store, STEP_MS)) return true;
    return false;
}

static uint32_t save_pages(const prefix *p, const slot_file *slot, uint32_t n_known,
                           const prefix_patience *patience)
{
    size_t handed_in = 0;
    uint32_t n_pages = slot->n_cells / PAGE, done = 0;
    uint8_t *page = (uint8_t *)malloc(p->layout.page_bytes);
    const void *one[] = {page};
    quire_chain *chain = page ? chain_of(p, slot->tokens, n_pages * PAGE) : NULL;
    if (chain) done = known_pages(p, chain, n_known, patience);
    while (chain && done < n_pages) {
        uint32_t dropped = 0;
        if (!slot_get_page(slot, done, page)) break;
        if (quire_chain_save_raw(chain, done, 1, one, &dropped)) break;
        done += !dropped;
        handed_in += p->layout.page_bytes;
        if (!dropped && handed_in < WAIT_AFTER_BYTES) continue;
        bool has_room = wait_for_room(p, patience);
        if (dropped && !has_room) break; /* what remains is tried with the next save */
        handed_in = 0;
    }
    quire_chain_destroy(chain);
    free(page);
    return done * PAGE;
}

void prefix_set_left(prefix *p, bool has_left)
{
    atomic_store(&p->has_left, has_left);
}

struct prefix_image {
    slot_file file;
    budget *memory;
    size_t bytes; /* of it */
};

prefix_image *prefix_take_image(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                                const budget_wait *wait, const char **why, prefix_refusal *refusal)
{
    size_t bytes = file_memory(p, n);
    *refusal = REFUSED_FOR_NOW;
    if (!budget_take(p->o.memory, bytes, wait)) {
        *why = PREFIX_NO_MEMORY;
        return NULL;
    }
    *refusal = REFUSED_PLAINLY;
    prefix_image *i = (prefix_image *)calloc(1, sizeof *i);
    *why = i ? prefix_read_slot(p, slot, false, NULL, &i->file) : "out of memory";
    if (*why) {
        budget_give(p->o.memory, bytes);
        free(i);
        return NULL;
    }
    /* The slot also holds what was generated, and how much that is is seen only now. */
    i->memory = p->o.memory;
    i->bytes = p->o.folder_is_memory && i->file.n > bytes ? i->file.n : bytes;
    budget_add(i->memory, i->bytes - bytes);
    if (i->file.n_cells < n || memcmp(i->file.tokens, tokens, sizeof *tokens * n)) *refusal = REFUSED_OTHER;
    if (is_stopped(p))
        *why = "nothing of this server is kept";
    else if (*refusal == REFUSED_OTHER)
        *why = "the slot does not hold the prompt that was watched";
    else if (!prefix_has_same_rows(&i->file.layout, &p->layout))
        *why = "the slot has other types than before";
    if (!*why) return i;
    prefix_free_image(i);
    return NULL;
}

const uint32_t *prefix_image_tokens(const prefix_image *i, uint32_t *n)
{
    *n = i->file.n_cells;
    return i->file.tokens;
}

uint32_t prefix_store_image(const prefix *p, const prefix_image *i, uint32_t n_known,
                            const prefix_patience *patience)
{
    if (atomic_load(&p->has_left)) return 0;
    return save_pages(p, &i->file, n_known < i->file.n_cells ? n_known : i->file.n_cells, patience);
}

void prefix_free_image(prefix_image *i)
{
    if (!i) return;
    slot_free(&i->file);
    budget_give(i->memory, i->bytes);
    free(i);
}

/* -------------------------------------------------------------------- states */

/*
 * The slot must hold exactly these tokens. *is_lost: it holds nothing any more. A restored window has its cells in another order than one
 * that was just computed, and sums are rounded in the order of the cells: so the slot gets its window back as if it were restored, and
 * the prompt gives the same now and later.
 */
static bool save_state(prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n, uint32_t n_known,
                       prefix_progress *done)
{
    const budget_wait wait = {.ms = PREFIX_SAVE_WAIT_MS};
    slot_file file;
    size_t n_tail, memory = file_memory(p, n);
    done->is_lost = false;
    /* The state is given back to the slot through pages and a file of its own. */
    if (p->o.window) memory = 2 * memory + p->layout.page_bytes * (n / PAGE) + atomic_load(&p->most_tail);
    if (!budget_take(p->o.memory, memory, &wait)) {
        done->lacks_memory = true;
        return false;
    }
    if (prefix_read_slot(p, slot, true, &p->layout, &file)) {
        budget_give(p->o.memory, memory);
        return false;
    }
    const uint8_t *tail = file.bytes + file.tail_at;
    note_tail(p, file.tail_bytes);
    uint8_t *wide =
        p->o.window && file.layout.version == 3 ? slot_widen_tail(3, tail, file.tail_bytes, &n_tail) : NULL;
    if (wide)
        tail = wide;
    else
        n_tail = file.tail_bytes;
    bool good =
        file.n_tokens == n && !memcmp(file.tokens, tokens, sizeof *tokens * n) && prefix_is_whole(p, &file) &&
        (!p->has_rows || prefix_has_same_rows(&file.layout, &p->layout)) &&
        !is_stopped(
            p); /* now that the rows were read: a server that was started again may have written them */
    done->is_lost = good && p->o.window && !prefix_put_back(p, slot, &file, tail, n_tail);
    good = good && (!p->has_rows || save_pages(p, &file, n_known, NULL) == n) &&
           states_save(p->states, tokens, n, tail, n_tail, p->o.timeout_ms);
    free(wide);
    slot_free(&file);
    budget_give(p->o.memory, memory);
    return good;
}

/* Where the prompt and one that was seen before part, if that is worth a state of its own; else 0. */
static uint32_t parting(const prefix *p, const prefix_place *place, const uint32_t *tokens, uint32_t end)
{
    uint32_t rows = p->has_rows ? look_up_rows(p, tokens, end) : 0;
    uint32_t at = (rows > place->same ? rows : place->same) / PAGE * PAGE;
    return at >= place->have + PART_LEAST && at + PART_LEAST <= end && at > p->o.window ? at : 0;
}

prefix_progress prefix_advance(prefix *p, const prefix_place *place, const uint32_t *tokens, uint32_t n)
{
    prefix_progress done = {0};
    uint32_t end = n ? (n - 1) / PAGE * PAGE : 0, n_known = place->have;
    bool reuse = place->is_own;
    if (is_stopped(p) || end < place->have + ADVANCE_LEAST || end <= p->o.window) return done;
    const uint32_t stops[] = {parting(p, place, tokens, end), end};
    for (int i = 0; i < 2; i++) {
        body_timings t;
        if (!stops[i] || is_stopped(p)) continue;
        if (!prefix_compute(p, place->slot, tokens, stops[i], reuse, place->client, &t))
            return (prefix_progress){.is_lost = true};
        done.n_saved += save_state(p, place->slot, tokens, stops[i], n_known, &done);
        done.n_computed += t.prompt_n;
        done.compute_ms += t.prompt_ms;
        done.n_tokens = done.is_lost ? 0 : stops[i];
        n_known = stops[i];
        reuse = true; /* all that the slot holds is of this prompt */
    }
    return done;
}
