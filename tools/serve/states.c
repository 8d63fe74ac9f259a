/* SPDX-License-Identifier: MIT */
/*
 * A state is a chain of its own in a raw namespace: the tokens of its first page are made from a digest of the prefix, so that one question
 * to the store tells which of many prefixes have one. Its pages are pieces of the state, the first with a head before it: the size and the
 * digest of the whole.
 *
 * A prefix that is computed twice can give two states, and of what it is given under one key the store keeps the first. So the digest is
 * also a part of the keys of all pieces but the first: those of two states are never mixed. The store can lose the others and keep the
 * first, which cannot be replaced. A state that is saved after that gets the next of some places, each with keys of its own.
 */
#define _POSIX_C_SOURCE 200809L
#include "serve/states.h"

#include "serve/clock.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE = QUIRE_PAGE_TOKENS,
    PIECE = 256 << 10,
    SIZE = 8,
    HEAD = SIZE + 32,
    MOST_ASKED = 512,
    PLACES = 8
};
/* Changes with the form of the pieces: what was saved in another form is not found. */
#define FORM "pieces with a digest, of "
/* What a state of a real model does not reach. */
#define MOST_BYTES (UINT64_C(8) << 30)

struct states {
    quire_namespace *ns;
};

typedef struct digest {
    uint8_t bytes[32];
} digest;

/* Where a state is kept. */
typedef struct place {
    digest prefix;
    uint32_t n_tokens, number;
} place;

typedef struct head {
    uint64_t size; /* 0: it is not valid */
    digest whole;
} head;

states *states_create(quire_store *store, const quire_identity *identity, const char *text, const char **why)
{
    states *s = (states *)calloc(1, sizeof *s);
    *why = "out of memory";
    size_t room = strlen(text) + sizeof FORM;
    char *layout = (char *)malloc(room);
    if (s && layout) {
        snprintf(layout, room, FORM "%s", text);
        quire_status status = quire_namespace_create_raw(&s->ns, store, identity, layout, PIECE);
        if (status) *why = quire_status_text(status);
    }
    free(layout);
    if (s && s->ns) return s;
    states_destroy(s);
    return NULL;
}

void states_destroy(states *s)
{
    if (!s) return;
    quire_namespace_destroy(s->ns);
    free(s);
}

/* --------------------------------------------------------------------- keys */

/* of[i]: of the first i + 1 pages. Each is made from the one before and the tokens of its page. */
static bool digest_pages(const uint32_t *tokens, uint32_t n_pages, digest *of)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = ctx;
    for (uint32_t i = 0; i < n_pages && good; i++) {
        uint8_t words[4 * PAGE];
        for (uint32_t t = 0; t < PAGE; t++)
            for (uint32_t b = 0; b < 4; b++)
                words[4 * t + b] = (uint8_t)(tokens[(size_t)i * PAGE + t] >> 8 * b);
        good = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) &&
               (!i || EVP_DigestUpdate(ctx, of[i - 1].bytes, sizeof of->bytes)) &&
               EVP_DigestUpdate(ctx, words, sizeof words) && EVP_DigestFinal_ex(ctx, of[i].bytes, NULL);
    }
    EVP_MD_CTX_free(ctx);
    return good;
}

static void put_digest(const digest *d, uint32_t *words)
{
    for (uint32_t i = 0; i < 8; i++) memcpy(&words[i], d->bytes + (size_t)4 * i, 4);
}

/* A chain for so many pieces. whole: of the state; NULL: for the first piece alone. */
static quire_chain *chain_of(const states *s, const place *at, const digest *whole, uint32_t n_pieces)
{
    quire_chain *chain = NULL;
    uint32_t page[PAGE] = {at->n_tokens};
    put_digest(&at->prefix, page + 1);
    page[9] = at->number;
    quire_status status = quire_chain_create(&chain, s->ns);
    for (uint32_t i = 0; i < n_pieces && !status; i++) {
        status = quire_chain_append(chain, page, PAGE, NULL, 0, 0);
        memset(page, 0, sizeof page);
        if (!i && whole) put_digest(whole, page);
    }
    if (!status) return chain;
    quire_chain_destroy(chain);
    return NULL;
}

static uint32_t pieces_of(uint64_t size)
{
    return (uint32_t)((size + HEAD + PIECE - 1) / PIECE);
}

static bool digest_state(const uint8_t *bytes, size_t size, digest *out)
{
    return EVP_Digest(bytes, size, out->bytes, NULL, EVP_sha256(), NULL) == 1;
}

/* The digest of a prefix of whole pages. */
static bool digest_of(const uint32_t *tokens, uint32_t n, digest *out)
{
    uint32_t n_pages = n / PAGE;
    digest *all = (digest *)malloc(sizeof *all * (n_pages + 1u));
    bool good = all && n_pages && digest_pages(tokens, n_pages, all);
    if (good) *out = all[n_pages - 1];
    free(all);
    return good;
}

/* ------------------------------------------------------------------ looking up */

uint32_t states_find(states *s, const uint32_t *tokens, uint32_t n, uint32_t least, uint32_t timeout_ms)
{
    uint32_t n_pages = n / PAGE, from = least / PAGE, found = 0;
    if (n_pages > from + MOST_ASKED) from = n_pages - MOST_ASKED;
    if (n_pages <= from) return 0;
    uint32_t n_asked = n_pages - from, made = 0;
    digest *of = (digest *)malloc(sizeof *of * n_pages);
    quire_chain **chains = (quire_chain **)calloc(n_asked, sizeof *chains);
    uint32_t *got = (uint32_t *)calloc(n_asked, sizeof *got);
    bool good = of && chains && got && digest_pages(tokens, n_pages, of);
    for (; good && made < n_asked; made++) {
        uint32_t page = from + made;
        place at = {of[page], (page + 1) * PAGE, 0}; /* others are used only while this one is */
        chains[made] = chain_of(s, &at, NULL, 1);
        if (!chains[made]) good = false;
    }
    const quire_chain *const *asked = (const quire_chain *const *)(void *)chains;
    if (good && !quire_chain_lookup_many(asked, n_asked, timeout_ms, got))
        for (uint32_t i = 0; i < n_asked; i++)
            if (got[i]) found = (from + i + 1) * PAGE;
    for (uint32_t i = 0; i < made; i++) quire_chain_destroy(chains[i]);
    free(of);
    free(chains);
    free(got);
    return found;
}

/* --------------------------------------------------------------------- loading */

static bool load_pieces(const quire_chain *chain, uint32_t first, uint32_t n, uint8_t *room,
                        uint32_t timeout_ms)
{
    quire_load *l = NULL;
    uint32_t got = 0;
    void **rooms = (void **)calloc(n + 1u, sizeof *rooms);
    for (uint32_t i = 0; rooms && i < n; i++) rooms[i] = room + (size_t)i * PIECE;
    bool good = rooms && !quire_load_begin_raw(&l, chain, first, n, rooms, timeout_ms) &&
                !quire_load_end(l, &got) && got == (first + n) * PAGE;
    free(rooms);
    return good;
}

/* Loads the first piece. false: it is not there. */
static bool load_first(const states *s, const place *at, uint8_t *first, uint32_t timeout_ms, head *h)
{
    quire_chain *chain = chain_of(s, at, NULL, 1);
    bool good = chain && load_pieces(chain, 0, 1, first, timeout_ms);
    quire_chain_destroy(chain);
    if (!good) return false;
    h->size = 0;
    for (int i = SIZE; i--;) h->size = h->size << 8 | first[i];
    if (h->size > MOST_BYTES) h->size = 0;
    memcpy(h->whole.bytes, first + SIZE, sizeof h->whole.bytes);
    return true;
}

/* The state with this first piece; NULL: others are lost, or do not belong to it. */
static uint8_t *load_whole(const states *s, const place *at, const head *h, const uint8_t *first,
                           uint32_t timeout_ms)
{
    digest d;
    uint32_t n_pieces = pieces_of(h->size);
    quire_chain *chain = chain_of(s, at, &h->whole, n_pieces);
    uint8_t *all = h->size && chain ? (uint8_t *)malloc((size_t)n_pieces * PIECE) : NULL;
    bool good = all && (n_pieces == 1 || load_pieces(chain, 1, n_pieces - 1, all + PIECE, timeout_ms));
    quire_chain_destroy(chain);
    if (good) {
        memcpy(all, first, PIECE);
        memmove(all, all + HEAD, (size_t)h->size);
        good = digest_state(all, (size_t)h->size, &d) && !memcmp(&d, &h->whole, sizeof d);
    }
    if (good) return all;
    free(all);
    return NULL;
}

uint8_t *states_load(states *s, const uint32_t *tokens, uint32_t n, uint32_t timeout_ms, size_t *size)
{
    head h;
    place at = {.n_tokens = n};
    double begin = clock_ms();
    uint8_t *first = (uint8_t *)malloc(PIECE), *all = NULL;
    bool more = first && digest_of(tokens, n, &at.prefix);
    while (more && !all && at.number < PLACES) {
        more = load_first(s, &at, first, timeout_ms, &h);
        if (more) all = load_whole(s, &at, &h, first, timeout_ms);
        more = more && clock_ms() - begin < timeout_ms;
        at.number++;
    }
    free(first);
    if (all) *size = (size_t)h.size;
    return all;
}

/* ---------------------------------------------------------------------- saving */

static bool has_all(const states *s, const place *at, const head *h, uint32_t timeout_ms)
{
    uint32_t n_pieces = pieces_of(h->size), found = 0;
    quire_chain *chain = h->size ? chain_of(s, at, &h->whole, n_pieces) : NULL;
    const quire_chain *one[] = {chain};
    bool good = chain && !quire_chain_lookup_many(one, 1, timeout_ms, &found) && found / PAGE == n_pieces;
    quire_chain_destroy(chain);
    return good;
}

/* The first place that is free or has this very state, maybe not all of it. false: there is none. *is_kept: one before has a whole state. */
static bool choose_place(const states *s, place *at, const digest *whole, uint8_t *room, uint32_t timeout_ms,
                         bool *is_kept)
{
    head h;
    double begin = clock_ms();
    *is_kept = false;
    for (at->number = 0; at->number < PLACES; at->number++) {
        if (!load_first(s, at, room, timeout_ms, &h) || !memcmp(&h.whole, whole, sizeof *whole)) return true;
        *is_kept = has_all(s, at, &h, timeout_ms);
        if (*is_kept || clock_ms() - begin >= timeout_ms) return false;
    }
    return false;
}

bool states_save(states *s, const uint32_t *tokens, uint32_t n, const uint8_t *bytes, size_t size,
                 uint32_t timeout_ms)
{
    place at = {.n_tokens = n};
    digest whole;
    bool is_kept = false;
    uint32_t n_pieces = pieces_of(size);
    uint8_t *piece = (uint8_t *)malloc(PIECE);
    const void *one[] = {piece};
    bool good = size && size <= MOST_BYTES && piece && digest_of(tokens, n, &at.prefix) &&
                digest_state(bytes, size, &whole) &&
                choose_place(s, &at, &whole, piece, timeout_ms, &is_kept);
    quire_chain *chain = good ? chain_of(s, &at, &whole, n_pieces) : NULL;
    /* The first piece is the last that is handed in: where it is, the others have been before. */
    for (uint32_t i = n_pieces; i-- && chain && good;) {
        size_t from = i ? (size_t)i * PIECE - HEAD : 0, before = i ? 0 : HEAD;
        size_t take = size - from < PIECE - before ? size - from : PIECE - before;
        uint32_t dropped = 0;
        memset(piece, 0, PIECE);
        for (int b = 0; !i && b < SIZE; b++) piece[b] = (uint8_t)((uint64_t)size >> 8 * b);
        if (!i) memcpy(piece + SIZE, whole.bytes, sizeof whole.bytes);
        memcpy(piece + before, bytes + from, take);
        good = !quire_chain_save_raw(chain, i, 1, one, &dropped) && !dropped;
    }
    good = is_kept || (good && chain);
    quire_chain_destroy(chain);
    free(piece);
    return good;
}
