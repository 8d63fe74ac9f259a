/* SPDX-License-Identifier: MIT */
/*
 * A state is a chain of its own in a raw namespace: the tokens of its first page are made from a digest of the prefix, so that one question
 * to the store tells which of many prefixes have one. Its pages are pieces of the state, the first with the size before it.
 */
#define _POSIX_C_SOURCE 200809L
#include "serve/states.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = QUIRE_PAGE_TOKENS, PIECE = 256 << 10, HEAD = 8, MOST_ASKED = 512 };
/* What a state of a real model does not reach. */
#define MOST_BYTES (UINT64_C(8) << 30)

struct states {
    quire_namespace *ns;
};

typedef struct digest {
    uint8_t bytes[32];
} digest;

states *states_create(quire_store *store, const quire_identity *identity, const char *text, const char **why)
{
    states *s = (states *)calloc(1, sizeof *s);
    *why = "out of memory";
    if (!s) return NULL;
    quire_status status = quire_namespace_create_raw(&s->ns, store, identity, text, PIECE);
    if (!status) return s;
    *why = quire_status_text(status);
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

/* A chain for so many pieces. */
static quire_chain *chain_of(const states *s, const digest *d, uint32_t n_tokens, uint32_t n_pieces)
{
    quire_chain *chain = NULL;
    uint32_t page[PAGE] = {n_tokens};
    for (uint32_t i = 0; i < 8; i++) memcpy(&page[1 + i], d->bytes + (size_t)4 * i, 4);
    quire_status status = quire_chain_create(&chain, s->ns);
    for (uint32_t i = 0; i < n_pieces && !status; i++) {
        status = quire_chain_append(chain, page, PAGE, NULL, 0, 0);
        memset(page, 0, sizeof page);
    }
    if (!status) return chain;
    quire_chain_destroy(chain);
    return NULL;
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
        chains[made] = chain_of(s, &of[page], (page + 1) * PAGE, 1);
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

uint8_t *states_load(states *s, const uint32_t *tokens, uint32_t n, uint32_t timeout_ms, size_t *size)
{
    digest d;
    uint8_t *first = (uint8_t *)malloc(PIECE), *all = NULL;
    quire_chain *chain = first && digest_of(tokens, n, &d) ? chain_of(s, &d, n, 1) : NULL;
    uint64_t bytes = 0;
    if (chain && load_pieces(chain, 0, 1, first, timeout_ms))
        for (int i = HEAD; i--;) bytes = bytes << 8 | first[i];
    quire_chain_destroy(chain);
    if (bytes && bytes <= MOST_BYTES) {
        uint32_t n_pieces = (uint32_t)((bytes + HEAD + PIECE - 1) / PIECE);
        chain = n_pieces > 1 ? chain_of(s, &d, n, n_pieces) : NULL;
        all = (uint8_t *)malloc((size_t)n_pieces * PIECE);
        if (all) memcpy(all, first, PIECE);
        if (all && n_pieces > 1 &&
            (!chain || !load_pieces(chain, 1, n_pieces - 1, all + PIECE, timeout_ms))) {
            free(all);
            all = NULL;
        }
        quire_chain_destroy(chain);
    }
    free(first);
    if (!all) return NULL;
    memmove(all, all + HEAD, (size_t)bytes);
    *size = (size_t)bytes;
    return all;
}

/* ---------------------------------------------------------------------- saving */

bool states_save(states *s, const uint32_t *tokens, uint32_t n, const uint8_t *bytes, size_t size)
{
    digest d;
    uint32_t n_pieces = (uint32_t)((size + HEAD + PIECE - 1) / PIECE);
    uint8_t *piece = (uint8_t *)malloc(PIECE);
    const void *one[] = {piece};
    bool good = size && size <= MOST_BYTES && piece && digest_of(tokens, n, &d);
    quire_chain *chain = good ? chain_of(s, &d, n, n_pieces) : NULL;
    /* The first piece is the last that is handed in: where it is, the others have been before. */
    for (uint32_t i = n_pieces; i-- && chain && good;) {
        size_t at = i ? (size_t)i * PIECE - HEAD : 0, head = i ? 0 : HEAD;
        size_t take = size - at < PIECE - head ? size - at : PIECE - head;
        uint32_t dropped = 0;
        memset(piece, 0, PIECE);
        for (int b = 0; !i && b < HEAD; b++) piece[b] = (uint8_t)((uint64_t)size >> 8 * b);
        memcpy(piece + head, bytes + at, take);
        good = !quire_chain_save_raw(chain, i, 1, one, &dropped) && !dropped;
    }
    good = good && chain;
    quire_chain_destroy(chain);
    free(piece);
    return good;
}
