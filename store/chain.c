/* SPDX-License-Identifier: MIT */
/* store: the chain of page keys. */
#include "store/chain.h"

#include "store/namespace.h"

#include <openssl/evp.h>

/* In place of the token that a medium replaces; no vocabulary has it. */
#define MEDIA_TOKEN 0xffffffffu
#define TAG_MEDIA 1u

/* Medium i of a prompt that was read. */
static quire_media media_at(const quire_prompt *prompt, uint32_t i)
{
    quire_media media = {0};
    (void)quire_read_element(&media, sizeof media, prompt->media, prompt->media_stride, i);
    return media;
}

quire_status quire_prompt_read(quire_prompt *own, const quire_prompt *prompt)
{
    quire_status status = quire_read_sized(own, sizeof *own, prompt);
    if (status) return status;
    if (own->n_tokens > (uint32_t)INT32_MAX || (own->n_tokens && !own->tokens)) return QUIRE_EINVAL;
    if (own->n_media && (!own->media || own->media_stride < sizeof(uint32_t) + 32)) return QUIRE_EINVAL;
    uint32_t last = 0;
    for (uint32_t i = 0; i < own->n_media; i++) {
        quire_media media;
        status = quire_read_element(&media, sizeof media, own->media, own->media_stride, i);
        if (status) return status;
        if (media.position >= own->n_tokens || (i && media.position <= last)) return QUIRE_EINVAL;
        last = media.position;
    }
    return QUIRE_OK;
}

/* parent, token count, token ids; then tag, offset in the page and digest of each medium. *medium: the next one. */
static bool page_key(EVP_MD_CTX *md, quire_key *out, const quire_key *parent, const quire_prompt *prompt,
                     uint32_t page, uint32_t *medium)
{
    uint8_t bytes[32 + 4 + 4 * QUIRE_PAGE_TOKENS];
    uint32_t first = page * QUIRE_PAGE_TOKENS, begin = *medium, end = begin;
    memcpy(bytes, parent->byte, 32);
    quire_store32(bytes + 32, QUIRE_PAGE_TOKENS);
    for (uint32_t i = 0; i < QUIRE_PAGE_TOKENS; i++) {
        bool is_media = end < prompt->n_media && media_at(prompt, end).position == first + i;
        quire_store32(bytes + 36 + 4 * i, is_media ? MEDIA_TOKEN : prompt->tokens[first + i]);
        end += is_media;
    }
    bool done =
        EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(md, bytes, sizeof bytes) == 1;
    for (uint32_t i = begin; i < end && done; i++) {
        uint8_t record[40];
        quire_media media = media_at(prompt, i);
        quire_store32(record, TAG_MEDIA);
        quire_store32(record + 4, media.position - first);
        memcpy(record + 8, media.digest, 32);
        done = EVP_DigestUpdate(md, record, sizeof record) == 1;
    }
    *medium = end;
    return done && EVP_DigestFinal_ex(md, out->byte, NULL) == 1;
}

/* Pages [first, n_pages), after the ones before. */
static quire_status add_keys(quire_key *keys, const quire_key *root, const quire_prompt *prompt,
                             uint32_t first, uint32_t n_pages)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint32_t medium = 0;
    bool done = md != NULL;
    for (uint32_t end = prompt->n_media; medium < end;) { /* the first one that is not before the page */
        uint32_t middle = medium + (end - medium) / 2;
        if (media_at(prompt, middle).position < first * QUIRE_PAGE_TOKENS)
            medium = middle + 1;
        else
            end = middle;
    }
    for (uint32_t i = first; i < n_pages && done; i++)
        done = page_key(md, &keys[i], i ? &keys[i - 1] : root, prompt, i, &medium);
    EVP_MD_CTX_free(md);
    return done ? QUIRE_OK : QUIRE_ENOMEM;
}

quire_status quire_chain_keys(quire_key *keys, const quire_key *root, const quire_prompt *prompt,
                              uint32_t n_pages)
{
    return add_keys(keys, root, prompt, 0, n_pages);
}

quire_status quire_chain_objects(quire_key *objects, const quire_key *keys, uint32_t n, uint32_t group)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool done = md != NULL;
    uint8_t bytes[36];
    quire_store32(bytes + 32, group);
    for (uint32_t i = 0; i < n && done; i++) {
        memcpy(bytes, keys[i].byte, 32);
        done = EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
               EVP_DigestUpdate(md, bytes, sizeof bytes) == 1 &&
               EVP_DigestFinal_ex(md, objects[i].byte, NULL) == 1;
    }
    EVP_MD_CTX_free(md);
    return done ? QUIRE_OK : QUIRE_ENOMEM;
}

/* ------------------------------------------------------------------- handle */

quire_status quire_chain_create(quire_chain **out, quire_namespace *ns)
{
    if (!out || !ns) return QUIRE_EINVAL;
    quire_chain *c = (quire_chain *)quire_mem_take(quire_namespace_allocator(ns), sizeof *c);
    if (!c) return QUIRE_ENOMEM;
    c->ns = ns;
    c->n_groups = ns->n_groups;
    *out = c;
    return QUIRE_OK;
}

static void free_pages(const quire_chain *c, quire_key *keys, quire_key *objects, uint32_t *taken, size_t cap)
{
    const quire_allocator *a = quire_namespace_allocator(c->ns);
    quire_mem_free(a, keys, sizeof *keys * cap);
    quire_mem_free(a, objects, sizeof *objects * cap * c->n_groups);
    quire_mem_free(a, taken, sizeof *taken * cap * c->n_groups);
}

void quire_chain_destroy(quire_chain *c)
{
    if (!c) return;
    const quire_allocator *a = quire_namespace_allocator(c->ns);
    quire_chain_touch(c, true);
    quire_mem_free(a, c->tokens, sizeof *c->tokens * c->cap_tokens);
    quire_mem_free(a, c->media, sizeof *c->media * c->cap_media);
    free_pages(c, c->keys, c->objects, c->taken, c->cap_pages);
    quire_mem_free(a, c, sizeof *c);
}

/* Twice as many, at least n. What is there is copied. */
static bool grow(const quire_chain *c, void **array, size_t one, uint32_t n_used, uint32_t *cap, uint32_t n)
{
    const quire_allocator *a = quire_namespace_allocator(c->ns);
    if (n <= *cap) return true;
    uint32_t more = n > *cap * 2 ? n : *cap * 2; /* both are below 2^31 */
    void *larger = quire_mem_take(a, one * more);
    if (!larger) return false;
    if (n_used) memcpy(larger, *array, one * n_used);
    quire_mem_free(a, *array, one * *cap);
    *array = larger;
    *cap = more;
    return true;
}

static bool grow_pages(quire_chain *c, uint32_t n)
{
    const quire_allocator *a = quire_namespace_allocator(c->ns);
    if (n <= c->cap_pages) return true;
    size_t cap = n > c->cap_pages * 2 ? n : c->cap_pages * 2;
    quire_key *keys = (quire_key *)quire_mem_take(a, sizeof *keys * cap);
    quire_key *objects = (quire_key *)quire_mem_take(a, sizeof *objects * cap * c->n_groups);
    uint32_t *taken = (uint32_t *)quire_mem_take(a, sizeof *taken * cap * c->n_groups);
    if (!keys || !objects || !taken) {
        free_pages(c, keys, objects, taken, cap);
        return false;
    }
    if (c->n_pages) memcpy(keys, c->keys, sizeof *keys * c->n_pages);
    for (size_t g = 0; g < c->n_groups && c->n_pages; g++) {
        memcpy(objects + g * cap, c->objects + g * c->cap_pages, sizeof *objects * c->n_pages);
        memcpy(taken + g * cap, c->taken + g * c->cap_pages, sizeof *taken * c->n_pages);
    }
    free_pages(c, c->keys, c->objects, c->taken, c->cap_pages);
    c->keys = keys;
    c->objects = objects;
    c->taken = taken;
    c->cap_pages = (uint32_t)cap;
    return true;
}

/* The media of a part, behind those of the chain. They count only when the append has succeeded. */
static quire_status read_media(quire_chain *c, const quire_media *media, size_t stride, uint32_t n,
                               uint32_t end)
{
    if (n > end - c->n_tokens || (n && (!media || stride < sizeof(uint32_t) + 32))) return QUIRE_EINVAL;
    if (!grow(c, (void **)&c->media, sizeof *c->media, c->n_media, &c->cap_media, c->n_media + n))
        return QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        quire_media *own = &c->media[c->n_media + i];
        quire_status status = quire_read_element(own, sizeof *own, media, stride, i);
        if (status) return status;
        if (own->position < c->n_tokens || own->position >= end || (i && own->position <= own[-1].position))
            return QUIRE_EINVAL;
    }
    return QUIRE_OK;
}

quire_status quire_chain_append(quire_chain *c, const uint32_t *tokens, uint32_t n_tokens,
                                const quire_media *media, size_t media_stride, uint32_t n_media)
{
    if (!c || (n_tokens && !tokens) || n_tokens > (uint32_t)INT32_MAX - c->n_tokens) return QUIRE_EINVAL;
    uint32_t end = c->n_tokens + n_tokens, n_pages = end / QUIRE_PAGE_TOKENS;
    quire_status status = read_media(c, media, media_stride, n_media, end);
    if (status) return status;
    if (!n_tokens) return QUIRE_OK;
    if (!grow(c, (void **)&c->tokens, sizeof *c->tokens, c->n_tokens, &c->cap_tokens, end) ||
        !grow_pages(c, n_pages))
        return QUIRE_ENOMEM;
    memcpy(c->tokens + c->n_tokens, tokens, sizeof *tokens * n_tokens);
    quire_prompt prompt = {.size = sizeof prompt,
                           .tokens = c->tokens,
                           .n_tokens = end,
                           .media = c->media,
                           .media_stride = sizeof *c->media,
                           .n_media = c->n_media + n_media};
    uint32_t first = c->n_pages;
    if (n_pages > first) status = add_keys(c->keys, &c->ns->root, &prompt, first, n_pages);
    for (uint32_t g = 0; g < c->n_groups && n_pages > first && !status; g++)
        status = quire_chain_objects(c->objects + (size_t)g * c->cap_pages + first, c->keys + first,
                                     n_pages - first, g);
    if (status) return status;
    c->n_tokens = end;
    c->n_media += n_media;
    c->n_pages = n_pages;
    return QUIRE_OK;
}

quire_status quire_chain_truncate(quire_chain *c, uint32_t n_tokens)
{
    if (!c || n_tokens > c->n_tokens) return QUIRE_EINVAL;
    quire_chain_touch(c, true); /* what is cut off was used, too */
    uint32_t n_pages = n_tokens / QUIRE_PAGE_TOKENS;
    for (size_t g = 0; g < c->n_groups && n_pages < c->n_pages; g++)
        memset(c->taken + g * c->cap_pages + n_pages, 0, sizeof *c->taken * (c->n_pages - n_pages));
    while (c->n_media && c->media[c->n_media - 1].position >= n_tokens) c->n_media--;
    c->n_tokens = n_tokens;
    c->n_pages = n_pages;
    return QUIRE_OK;
}

uint32_t quire_chain_length(const quire_chain *c)
{
    return c ? c->n_tokens : 0;
}

quire_status quire_chain_of_prompt(quire_chain **out, quire_namespace *ns, const quire_prompt *prompt,
                                   uint32_t n_tokens)
{
    quire_chain *c;
    uint32_t n_media = 0;
    quire_status status = quire_chain_create(&c, ns);
    if (status) return status;
    while (n_media < prompt->n_media && media_at(prompt, n_media).position < n_tokens) n_media++;
    status = quire_chain_append(c, prompt->tokens, n_tokens, prompt->media, prompt->media_stride, n_media);
    if (status)
        quire_chain_destroy(c);
    else
        *out = c;
    return status;
}
