/* SPDX-License-Identifier: MIT */
/* prefix_learn: what a server's slots hold, and the names under which that is kept. */
#define _GNU_SOURCE
#include "serve/prefix_parts.h"

#include "store/vouch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = QUIRE_PAGE_TOKENS };

/* Whether the server goes on from a state that it is given: not all do, and none says so. With windows the trial would be long. */
static const char *try_state(prefix *p)
{
    uint32_t tokens[PAGE + 1];
    body_timings t;
    slot_file slot;
    for (uint32_t i = 0; i <= PAGE; i++) tokens[i] = 1;
    if (!prefix_compute(p, 0, tokens, PAGE, true, -1, &t)) return "the server does not compute a first page";
    const char *wrong = prefix_read_slot(p, 0, true, &p->layout, &slot);
    if (wrong) return wrong;
    if (!prefix_is_whole(p, &slot) || (p->has_rows && !prefix_has_same_rows(&slot.layout, &p->layout)))
        wrong = "the server's slot files have an unknown form";
    else if (!prefix_put_back(p, 0, &slot, slot.bytes + slot.tail_at, slot.tail_bytes) ||
             !prefix_compute(p, 0, tokens, PAGE + 1, true, -1, &t) || t.cache_n != PAGE)
        wrong = "the server does not go on from a state of this model that it is given";
    slot_free(&slot);
    return wrong;
}

static const char *describe_rows(const prefix *p, char rows[PREFIX_LAYOUT_TEXT])
{
    slot_rows_print(&p->layout, rows, PREFIX_LAYOUT_TEXT);
    return strlen(rows) + 1 >= PREFIX_LAYOUT_TEXT ? "the layers of this model are too many to be described"
                                                  : NULL;
}

static const char *open_states(prefix *p)
{
    char text[PREFIX_LAYOUT_TEXT + 512], rows[PREFIX_LAYOUT_TEXT];
    const char *why = describe_rows(p, rows);
    if (why) return why;
    snprintf(text, sizeof text, "llama state %u streams=%u window=%u after %s kv=%s " VOUCHED,
             p->layout.version, p->o.n_slots, p->o.window, p->has_rows ? rows : "nothing", p->o.kv);
    p->states = states_create(p->o.store, p->o.identity, text, &why);
    return p->states ? NULL : why;
}

/* How much of a row is codes. A few rows might end in codes or scales that are 0. */
static const char *learn_kept(prefix *p)
{
    enum { N = 32 };
    uint32_t tokens[N];
    slot_file slot;
    body_timings t;
    for (uint32_t i = 0; i < N; i++) tokens[i] = i + 1;
    if (!prefix_compute(p, 0, tokens, N, true, -1, &t)) return "the server does not compute its first tokens";
    const char *wrong = prefix_read_slot(p, 0, true, &p->layout, &slot);
    if (wrong) return wrong;
    if (slot.n_cells == N) {
        slot_leave_out_zeros(&slot);
        p->layout = slot.layout;
    }
    slot_free(&slot);
    return NULL;
}

/* What slots of the server hold, seen in slot 0. */
static const char *look_at_slot(prefix *p, bool *has_states)
{
    static const uint32_t one[] = {1};
    slot_file slot;
    body_timings t;
    if (p->o.chunked)
        return "its windows begin at multiples of their length, and the server does not go on from such";
    if (!prefix_compute(p, 0, one, 1, true, -1, &t)) return "the server does not compute a first token";
    p->swap.erases = swap_needs_erasing(&p->swap);
    const char *wrong = prefix_read_slot(p, 0, true, NULL, &slot);
    if (wrong) return wrong;
    /* A model whose layers all have windows has one cache, which lacks rows as soon as the window is full. */
    *has_states = slot.tail_bytes > 0 || p->o.window > 0;
    p->has_rows = slot.n_cells > 0 && (slot.tail_bytes > 0 || !p->o.window);
    p->layout = slot.layout;
    if (p->o.swa_full && *has_states) /* whether there are windows is not known of every model */
        wrong =
            "with --swa-full the server takes rows of its windows as present that its slot files do not have";
    else if (p->o.window && slot.tail_bytes &&
             !slot_tail_is_cache(slot.layout.version, slot.bytes + slot.tail_at, slot.tail_bytes))
        wrong = "beside sliding windows it has other states, and such a mixture is not kept";
    if (!p->has_rows) p->layout = (slot_layout){.version = slot.layout.version};
    slot_free(&slot);
    if (!wrong && p->has_rows && strcmp(p->o.kv, "stock") != 0) wrong = learn_kept(p);
    return wrong;
}

/* A second look beside that at flags and files: rows of an adapter are nobody else's. */
static const char *look_for_adapters(const prefix *p)
{
    char *list;
    size_t n, kept = 0;
    const exchange_request r = {.method = "GET",
                                .target = "/lora-adapters",
                                .headers = p->headers,
                                .client = -1,
                                .timeout_ms = p->o.slot_timeout_ms};
    unsigned status = upstream_ask(&p->o.to, &r, 1u << 20, &list, &n);
    for (size_t i = 0; status && i < n; i++)
        if (!strchr(" \t\r\n", list[i])) list[kept++] = list[i];
    bool is_empty = status == 200 && kept == 2 && !memcmp(list, "[]", 2);
    free(list);
    if (is_empty) return NULL;
    return status == 200 ? "it has a LoRA adapter" : "the server does not say which LoRA adapters it has";
}

static const char *learn_layout(prefix *p)
{
    bool has_states = false;
    const char *wrong = look_for_adapters(p);
    if (!wrong) wrong = look_at_slot(p, &has_states);
    if (!wrong && has_states) wrong = open_states(p);
    if (!wrong && has_states && !p->o.window) wrong = try_state(p);
    return wrong;
}

const char *prefix_differs(const prefix *p)
{
    prefix now = {.o = p->o, .headers = p->headers, .swap = p->swap};
    bool has_states = false;
    const char *wrong = look_for_adapters(&now);
    if (!wrong) wrong = look_at_slot(&now, &has_states);
    if (wrong) return wrong;
    if (now.has_rows != p->has_rows || has_states != (p->states != NULL) ||
        now.layout.version != p->layout.version ||
        (p->has_rows && !prefix_has_same_rows(&now.layout, &p->layout)))
        return "its slots hold other rows than those of the server before it; start quire serve again";
    return NULL;
}

static const char *open_namespace(prefix *p)
{
    char text[PREFIX_LAYOUT_TEXT + 512], rows[PREFIX_LAYOUT_TEXT];
    if (!p->has_rows) return NULL;
    const char *wrong = describe_rows(p, rows);
    if (wrong) return wrong;
    snprintf(text, sizeof text, "%s%s kv=%s " VOUCHED, p->states ? "first cache of a state: " : "", rows,
             p->o.kv);
    quire_status status =
        quire_namespace_create_raw(&p->ns, p->o.store, p->o.identity, text, p->layout.page_bytes);
    return status ? quire_status_text(status) : NULL;
}

/* What another one has learnt of the same server. */
static const char *learn_from(prefix *p, const prefix *other)
{
    p->has_rows = other->has_rows;
    p->layout = other->layout;
    p->swap.erases = other->swap.erases;
    return other->states ? open_states(p) : NULL;
}

static prefix *make(const prefix_options *options, const prefix *like, char *message, size_t size)
{
    prefix *p = (prefix *)calloc(1, sizeof *p);
    const char *wrong = "out of memory";
    if (p) {
        p->o = *options;
        bool good = header_lines_of_own(&p->headers, options->authorization);
        p->swap = (swap){
            .to = &p->o.to, .headers = p->headers, .folder = p->o.folder, .timeout_ms = p->o.slot_timeout_ms};
        if (good) wrong = like ? learn_from(p, like) : learn_layout(p);
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
    return make(&options, p, message, size);
}

void prefix_destroy(prefix *p)
{
    if (!p) return;
    quire_namespace_destroy(p->ns);
    states_destroy(p->states);
    header_lines_free(p->headers);
    free(p);
}
