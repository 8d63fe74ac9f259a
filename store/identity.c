/* SPDX-License-Identifier: MIT */
/* store: the identity of a namespace. Every field has a tag and a length, so that no two sets of fields give the same
 * bytes to the hash. */
#include "store/identity.h"

#include <quire/page.h>

#include <openssl/evp.h>
#include <openssl/kdf.h>

#define IDENTITY_VERSION 1u

/* Tags. A new field gets a new number and raises the version; none is ever used for something else. */
enum {
    TAG_VERSION = 1,
    TAG_SECRET,
    TAG_WEIGHTS,
    TAG_TOKENIZER,
    TAG_ADAPTER,
    TAG_ADAPTER_SCALE,
    TAG_ROPE,
    TAG_PAGE_TOKENS,
    TAG_RING,
    TAG_PLAN,
    TAG_LAYER,
    TAG_RAW_LAYOUT,
    TAG_RAW_BYTES,
    TAG_END,
};

typedef struct fields {
    EVP_MD_CTX *md;
    bool failed;
} fields;

static void add(fields *f, uint32_t tag, const void *bytes, size_t n)
{
    uint8_t head[12];
    quire_store32(head, tag);
    quire_store64(head + 4, n);
    if (EVP_DigestUpdate(f->md, head, sizeof head) != 1 || (n && EVP_DigestUpdate(f->md, bytes, n) != 1))
        f->failed = true;
}

static void add_text(fields *f, uint32_t tag, const char *text)
{
    add(f, tag, text, strlen(text));
}

static void add_u32s(fields *f, uint32_t tag, const uint32_t *value, size_t n)
{
    uint8_t bytes[64];
    for (size_t i = 0; i < n; i++) quire_store32(bytes + 4 * i, value[i]);
    add(f, tag, bytes, 4 * n);
}

/* -0 and 0 are one number. */
static void add_double(fields *f, uint32_t tag, double value)
{
    uint8_t bytes[8];
    uint64_t u;
    if (value == 0) value = 0;
    memcpy(&u, &value, 8);
    quire_store64(bytes, u);
    add(f, tag, bytes, 8);
}

/* Codec names with their lengths, then shape and rotation. */
static quire_status add_layer(fields *f, const quire_plan *plan, uint32_t i)
{
    quire_plan_layer l = {.size = sizeof l};
    quire_status status = quire_plan_layer_info(plan, i, &l);
    if (status) return status;
    const char *names[] = {l.k, l.v, l.sink_k, l.sink_v};
    for (size_t j = 0; j < 4; j++) add_text(f, TAG_LAYER, names[j] ? names[j] : "");
    const quire_codec_info *k = quire_codec_find(l.k), *v = l.v ? quire_codec_find(l.v) : NULL;
    uint32_t rotated =
        (k && k->flags & QUIRE_CODEC_ROTATED ? 1u : 0u) | (v && v->flags & QUIRE_CODEC_ROTATED ? 2u : 0u);
    const uint32_t values[] = {i,        l.n_q_heads, l.n_kv_heads,  l.d_k,   l.d_v,
                               l.window, l.v_in_k,    l.sink_tokens, l.group, rotated};
    add_u32s(f, TAG_LAYER, values, sizeof values / sizeof *values);
    return QUIRE_OK;
}

static quire_status add_plan(fields *f, const quire_plan *plan, const quire_seq_options *ring)
{
    uint32_t bounds[] = {ring ? ring->max_tokens : 0, ring ? ring->sinks : 0}, n = 0;
    uint8_t fingerprint[8];
    quire_plan_layer layer = {.size = sizeof layer};
    add_u32s(f, TAG_RING, bounds, 2);
    quire_store64(fingerprint, quire_plan_fingerprint(plan)); /* revisions of codecs, layout, profile */
    add(f, TAG_PLAN, fingerprint, sizeof fingerprint);
    while (quire_plan_layer_info(plan, n, &layer) == QUIRE_OK) n++;
    add_u32s(f, TAG_PLAN, &n, 1);
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < n && !status; i++) status = add_layer(f, plan, i);
    return status;
}

static bool is_whole(const quire_identity *id)
{
    return id->weights && *id->weights && id->tokenizer && *id->tokenizer && id->adapter && id->rope &&
           *id->rope && id->secret && id->adapter_scale == id->adapter_scale &&
           (*id->adapter || id->adapter_scale == 0);
}

static quire_status add_all(fields *f, const quire_identity *id, const quire_plan *plan,
                            const quire_seq_options *ring, const quire_raw_layout *raw)
{
    uint32_t version = IDENTITY_VERSION, page_tokens = QUIRE_PAGE_TOKENS;
    quire_status status = QUIRE_OK;
    add_u32s(f, TAG_VERSION, &version, 1);
    add(f, TAG_SECRET, id->secret, 32);
    add_text(f, TAG_WEIGHTS, id->weights);
    add_text(f, TAG_TOKENIZER, id->tokenizer);
    add_text(f, TAG_ADAPTER, id->adapter);
    add_double(f, TAG_ADAPTER_SCALE, id->adapter_scale);
    add_text(f, TAG_ROPE, id->rope);
    add_u32s(f, TAG_PAGE_TOKENS, &page_tokens, 1);
    if (plan) {
        status = add_plan(f, plan, ring);
    } else {
        uint8_t bytes[8];
        quire_store64(bytes, raw->page_bytes);
        add_text(f, TAG_RAW_LAYOUT, raw->text);
        add(f, TAG_RAW_BYTES, bytes, sizeof bytes);
    }
    add(f, TAG_END, NULL, 0);
    return status;
}

quire_status quire_identity_root(quire_key *out, const quire_identity *identity, const quire_plan *plan,
                                 const quire_seq_options *ring, const quire_raw_layout *raw)
{
    if (!is_whole(identity) || (plan != NULL) == (raw != NULL)) return QUIRE_EINVAL;
    fields f = {.md = EVP_MD_CTX_new()};
    quire_key root;
    quire_status status = QUIRE_ENOMEM;
    if (f.md && EVP_DigestInit_ex(f.md, EVP_sha256(), NULL) == 1)
        status = add_all(&f, identity, plan, ring, raw);
    if (!status && (f.failed || EVP_DigestFinal_ex(f.md, root.byte, NULL) != 1)) status = QUIRE_ENOMEM;
    EVP_MD_CTX_free(f.md);
    if (!status) *out = root;
    return status;
}

/* HKDF-SHA256 of the secret. salt: 32 bytes. */
static bool derive(uint8_t *out, size_t n, const uint8_t *salt, const uint8_t *secret, const char *info)
{
    size_t n_out = n;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
    bool done = ctx && EVP_PKEY_derive_init(ctx) == 1 && EVP_PKEY_CTX_set_hkdf_md(ctx, EVP_sha256()) == 1 &&
                EVP_PKEY_CTX_set1_hkdf_salt(ctx, salt, 32) == 1 &&
                EVP_PKEY_CTX_set1_hkdf_key(ctx, secret, 32) == 1 &&
                EVP_PKEY_CTX_add1_hkdf_info(ctx, (const unsigned char *)info, (int)strlen(info)) == 1 &&
                EVP_PKEY_derive(ctx, out, &n_out) == 1 && n_out == n;
    EVP_PKEY_CTX_free(ctx);
    return done;
}

quire_status quire_identity_seal_key(quire_key *out, const quire_key *root, const uint8_t secret[32])
{
    return derive(out->byte, sizeof out->byte, root->byte, secret, "quire seal 1") ? QUIRE_OK : QUIRE_ENOMEM;
}

quire_status quire_identity_tenant(uint8_t out[QUIRE_TENANT], const uint8_t secret[32])
{
    static const uint8_t no_salt[32];
    return derive(out, QUIRE_TENANT, no_salt, secret, "quire tenant 1") ? QUIRE_OK : QUIRE_ENOMEM;
}

/* UTF-8 or any other text: bytes above 127 are left as they are. */
quire_status quire_identity_name(char out[QUIRE_NAME], const char *name)
{
    memset(out, 0, QUIRE_NAME);
    for (size_t i = 0; name && name[i]; i++) {
        unsigned char c = (unsigned char)name[i];
        if (i == QUIRE_NAME - 1 || c < 0x20 || c == 0x7f) return QUIRE_EINVAL;
        out[i] = name[i];
    }
    return QUIRE_OK;
}
