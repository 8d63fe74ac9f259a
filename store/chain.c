/* SPDX-License-Identifier: MIT */
/* store: the chain of page keys. */
#include "store/chain.h"

#include <openssl/evp.h>

/* In place of the token that a medium replaces; no vocabulary has it. */
#define MEDIA_TOKEN 0xffffffffu
#define TAG_MEDIA 1u

bool quire_prompt_is_valid(const quire_prompt *prompt)
{
    if (!prompt || prompt->n_tokens > (uint32_t)INT32_MAX || (prompt->n_tokens && !prompt->tokens))
        return false;
    if (prompt->n_media && !prompt->media) return false;
    for (uint32_t i = 0; i < prompt->n_media; i++) {
        if (prompt->media[i].position >= prompt->n_tokens) return false;
        if (i && prompt->media[i].position <= prompt->media[i - 1].position) return false;
    }
    return true;
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
        bool is_media = end < prompt->n_media && prompt->media[end].position == first + i;
        quire_store32(bytes + 36 + 4 * i, is_media ? MEDIA_TOKEN : prompt->tokens[first + i]);
        end += is_media;
    }
    bool done =
        EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(md, bytes, sizeof bytes) == 1;
    for (uint32_t i = begin; i < end && done; i++) {
        uint8_t record[40];
        quire_store32(record, TAG_MEDIA);
        quire_store32(record + 4, prompt->media[i].position - first);
        memcpy(record + 8, prompt->media[i].digest, 32);
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
