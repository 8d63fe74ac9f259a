/* SPDX-License-Identifier: MIT */
/* store: the chain of page keys. */
#include "store/chain.h"

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

quire_status quire_chain_keys(quire_key *keys, const quire_key *root, const quire_prompt *prompt,
                              uint32_t n_pages)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint32_t medium = 0;
    bool done = md != NULL;
    for (uint32_t i = 0; i < n_pages && done; i++)
        done = page_key(md, &keys[i], i ? &keys[i - 1] : root, prompt, i, &medium);
    EVP_MD_CTX_free(md);
    return done ? QUIRE_OK : QUIRE_ENOMEM;
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
