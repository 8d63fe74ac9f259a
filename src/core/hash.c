/* SPDX-License-Identifier: MIT */
/* core: a 64-bit hash in four lanes of eight bytes. Each lane step (xor, multiply by an odd number, rotate) is a
 * bijection, so a change within one word always changes the lane. */
#include "core/core.h"

static const uint64_t odd[4] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0xbf58476d1ce4e5b9u,
                                0x94d049bb133111ebu};

static uint64_t rotate_left(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * odd[2];
    x = (x ^ x >> 27) * odd[3];
    return x ^ x >> 31;
}

static void block(quire_hash *h, const uint8_t *bytes)
{
    for (int i = 0; i < 4; i++)
        h->lane[i] = rotate_left((h->lane[i] ^ quire_load64(bytes + 8 * i)) * odd[i], 29);
}

void quire_hash_begin(quire_hash *h)
{
    memset(h, 0, sizeof *h);
    for (unsigned i = 0; i < 4; i++) h->lane[i] = mix(odd[i] + i);
}

void quire_hash_add(quire_hash *h, const void *bytes, size_t n)
{
    const uint8_t *p = (const uint8_t *)bytes;
    size_t used = (size_t)(h->total % 32);
    h->total += n;
    if (used) {
        size_t take = n < 32 - used ? n : 32 - used;
        memcpy(h->buffer + used, p, take);
        p += take;
        n -= take;
        if (used + take < 32) return;
        block(h, h->buffer);
    }
    for (; n >= 32; p += 32, n -= 32) block(h, p);
    if (n) memcpy(h->buffer, p, n);
}

void quire_hash_u64(quire_hash *h, uint64_t value)
{
    uint8_t bytes[8];
    quire_store64(bytes, value);
    quire_hash_add(h, bytes, sizeof bytes);
}

void quire_hash_text(quire_hash *h, const char *text)
{
    size_t n = strlen(text);
    quire_hash_u64(h, n);
    quire_hash_add(h, text, n);
}

uint64_t quire_hash_end(const quire_hash *h)
{
    quire_hash last = *h;
    size_t used = (size_t)(h->total % 32);
    if (used) {
        memset(last.buffer + used, 0, 32 - used);
        block(&last, last.buffer);
    }
    uint64_t x = mix(h->total);
    for (int i = 0; i < 4; i++) x = mix(x ^ last.lane[i]) + odd[i];
    return x ? x : 1;
}
