/* SPDX-License-Identifier: MIT */
/* profile_file: a finished profile as bytes, and its digest. */
#include "codec/profile.h"

#include "core/geometry.h"

#include <math.h>

/*
 * Little-endian throughout:
 *   "QUIREPRF", u32 version, u32 n_layers
 *   per layer   u32 n_kv_heads, u32 d_k, u32 n_means, f32 [n_kv_heads][n_means + 2][d_k]: means, weight, q_rms
 *   u64 hash of all bytes before it; the digest of the profile is the same number
 * Version 1 has no n_means and always one mean. It is read; its digest is that of the same profile in version 2.
 */
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'P', 'R', 'F'};

#define VERSION 2u
#define VERSION_OF_ONE_MEAN 1u
/* Floats that are moved at once. A file that promises more than it has costs no more memory than this and half of
 * what was really there. */
#define CHUNK 4096u

/* --------------------------------------------------------------------- save */

typedef struct sink {
    quire_hash hash;
    quire_write_fn write; /* NULL: only the hash is wanted */
    void *ctx;
} sink;

static bool put(sink *s, const void *bytes, size_t n)
{
    quire_hash_add(&s->hash, bytes, n);
    return !s->write || s->write(s->ctx, bytes, n) == QUIRE_OK;
}

static bool put_layer(sink *s, const quire_profile_layer *l)
{
    uint8_t bytes[CHUNK * 4];
    quire_store32(bytes, l->n_kv_heads);
    quire_store32(bytes + 4, l->d_k);
    quire_store32(bytes + 8, l->n_means);
    if (!put(s, bytes, 12)) return false;
    size_t total = (size_t)quire_profile_floats(l);
    for (size_t at = 0, n; at < total; at += n) {
        n = total - at < CHUNK ? total - at : CHUNK;
        for (size_t i = 0; i < n; i++) quire_store32(bytes + 4 * i, quire_bits_of(l->vectors[at + i]));
        if (!put(s, bytes, 4 * n)) return false;
    }
    return true;
}

static bool put_profile(sink *s, const quire_profile *p)
{
    uint8_t head[16];
    memcpy(head, magic, sizeof magic);
    quire_store32(head + 8, VERSION);
    quire_store32(head + 12, p->n_layers);
    quire_hash_begin(&s->hash);
    bool good = put(s, head, sizeof head);
    for (uint32_t i = 0; good && i < p->n_layers; i++) good = put_layer(s, &p->layers[i]);
    return good;
}

quire_status quire_profile_save(const quire_profile *profile, quire_write_fn write, void *ctx)
{
    if (!profile || !profile->finished || !write) return QUIRE_EINVAL;
    sink s = {.write = write, .ctx = ctx};
    uint8_t tail[8];
    if (!put_profile(&s, profile)) return QUIRE_EIO;
    quire_store64(tail, quire_hash_end(&s.hash));
    return write(ctx, tail, sizeof tail) == QUIRE_OK ? QUIRE_OK : QUIRE_EIO;
}

uint64_t quire_profile_compute_digest(const quire_profile *profile)
{
    sink s = {.write = NULL};
    put_profile(&s, profile);
    return quire_hash_end(&s.hash);
}

uint64_t quire_profile_layer_digest(const quire_profile *profile, uint32_t layer)
{
    sink s = {.write = NULL};
    if (!profile || !profile->finished || layer >= profile->n_layers) return 0;
    quire_hash_begin(&s.hash);
    put_layer(&s, &profile->layers[layer]);
    return quire_hash_end(&s.hash);
}

/* --------------------------------------------------------------------- load */

typedef struct source {
    quire_hash hash;
    quire_read_fn read;
    void *ctx;
    uint32_t version;
} source;

static quire_status get(source *s, void *bytes, size_t n)
{
    if (s->read(s->ctx, bytes, n) != QUIRE_OK) return QUIRE_EIO;
    quire_hash_add(&s->hash, bytes, n);
    return QUIRE_OK;
}

static bool good_vectors(const quire_profile_layer *l)
{
    uint32_t d = l->d_k;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        const float *mean = quire_profile_vectors(l, h), *weight = mean + (size_t)l->n_means * d,
                    *q_rms = weight + d;
        for (uint32_t i = 0; i < l->n_means * d; i++)
            if (!(fabsf(mean[i]) <= QUIRE_F16_MAX)) return false;
        for (uint32_t i = 0; i < d; i++) {
            if (!(weight[i] >= QUIRE_WEIGHT_MIN && weight[i] <= QUIRE_WEIGHT_MAX)) return false;
            if (!(q_rms[i] >= 0 && q_rms[i] <= QUIRE_Q_RMS_MAX)) return false;
        }
    }
    return true;
}

static quire_status get_shape(source *s, quire_profile_layer *l)
{
    uint8_t bytes[12];
    bool one_mean = s->version == VERSION_OF_ONE_MEAN;
    quire_status status = get(s, bytes, one_mean ? 8 : 12);
    if (status != QUIRE_OK) return status;
    l->n_kv_heads = quire_load32(bytes);
    l->d_k = quire_load32(bytes + 4);
    l->n_means = one_mean ? 1 : quire_load32(bytes + 8);
    l->n_q_heads = l->n_kv_heads;
    if (l->n_kv_heads < 1 || l->n_kv_heads > QUIRE_MAX_HEADS || l->d_k < 1 || l->d_k > QUIRE_MAX_D)
        return QUIRE_EFORMAT;
    return l->n_means < 1 || l->n_means > QUIRE_MAX_MEANS ? QUIRE_EFORMAT : QUIRE_OK;
}

static quire_status get_layer(source *s, const quire_allocator *a, quire_profile_layer *l, uint64_t *floats)
{
    uint8_t bytes[CHUNK * 4];
    quire_status status = get_shape(s, l);
    if (status != QUIRE_OK) return status;
    *floats += quire_profile_floats(l);
    if (*floats > QUIRE_PROFILE_MAX_FLOATS) return QUIRE_EFORMAT;

    uint32_t total = (uint32_t)quire_profile_floats(l);
    for (uint32_t at = 0, n; at < total; at += n) {
        n = total - at < CHUNK ? total - at : CHUNK;
        status = get(s, bytes, 4 * (size_t)n);
        if (status != QUIRE_OK) return status;
        if (!quire_grow(a, &l->vectors, &l->n_vectors, at, at + n, sizeof(float))) return QUIRE_ENOMEM;
        for (uint32_t i = 0; i < n; i++) l->vectors[at + i] = quire_float_of(quire_load32(bytes + 4 * i));
    }
    return good_vectors(l) ? QUIRE_OK : QUIRE_EFORMAT;
}

static quire_status get_tail(source *s, uint64_t *digest)
{
    uint8_t tail[8];
    *digest = quire_hash_end(&s->hash);
    quire_status status = get(s, tail, sizeof tail);
    if (status != QUIRE_OK) return status;
    return quire_load64(tail) == *digest ? QUIRE_OK : QUIRE_EFORMAT;
}

quire_status quire_profile_load(quire_profile **out, quire_read_fn read, void *ctx,
                                const quire_allocator *allocator)
{
    quire_allocator a;
    if (!out || !read) return QUIRE_EINVAL;
    quire_status status = quire_allocator_read(&a, allocator);
    if (status != QUIRE_OK) return status;
    source s = {.read = read, .ctx = ctx};
    uint8_t head[16];
    quire_hash_begin(&s.hash);
    status = get(&s, head, sizeof head);
    if (status != QUIRE_OK) return status;
    if (memcmp(head, magic, sizeof magic)) return QUIRE_EFORMAT;
    s.version = quire_load32(head + 8);
    if (s.version != VERSION && s.version != VERSION_OF_ONE_MEAN) return QUIRE_EVERSION;
    uint32_t n_layers = quire_load32(head + 12);
    if (n_layers < 1 || n_layers > QUIRE_MAX_LAYERS) return QUIRE_EFORMAT;

    quire_profile *p = quire_profile_new(n_layers, &a);
    if (!p) return QUIRE_ENOMEM;
    uint64_t floats = 0;
    for (uint32_t i = 0; i < n_layers && status == QUIRE_OK; i++)
        status = get_layer(&s, &p->allocator, &p->layers[i], &floats);
    if (status == QUIRE_OK) status = get_tail(&s, &p->digest);
    if (status != QUIRE_OK) {
        quire_profile_destroy(p);
        return status;
    }
    p->finished = true;
    if (s.version != VERSION) p->digest = quire_profile_compute_digest(p);
    *out = p;
    return QUIRE_OK;
}
