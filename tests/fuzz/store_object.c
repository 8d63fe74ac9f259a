/* SPDX-License-Identifier: MIT */
/* Any bytes as a stored or sealed page object: refused, or exactly the object that was asked for. The first byte chooses what is
 * made right before it is looked at, so that the checks behind the hashes are reached. */
#include "support/fuzz.h"

#include "store/seal.h"

#include <stdlib.h>

#define PAYLOAD 64u

static void check(bool ok)
{
    if (!ok) abort();
}

static quire_object_id expected(void)
{
    quire_object_id id = {.group = 1, .page_index = 2, .bytes = PAYLOAD, .fingerprint = 77};
    memset(&id.root, 1, 32);
    memset(&id.key, 2, 32);
    memset(&id.parent, 3, 32);
    memset(&id.object, 4, 32);
    return id;
}

/* The bytes of the one object that is right, with this payload. */
static void make(uint8_t *out, const quire_object_id *id, const uint8_t *payload)
{
    quire_payload_hash h;
    quire_payload_begin(&h);
    quire_payload_copy(&h, out + QUIRE_OBJECT_HEADER, payload, PAYLOAD);
    quire_object_write_header(out, id, &h);
}

static void plain(const uint8_t *data, size_t n)
{
    quire_object_id id = expected();
    quire_object_info info;
    quire_miss read = quire_object_read_header(data, n, &info),
               miss = quire_object_check_header(data, n, &id);
    check(read < QUIRE_MISS_COUNT && (miss || !read));
    if (miss) return;
    quire_payload_hash h;
    quire_payload_begin(&h);
    quire_payload_add(&h, data + QUIRE_OBJECT_HEADER, PAYLOAD);
    if (quire_object_check_payload(data, &h)) return;
    uint8_t again[QUIRE_OBJECT_HEADER + PAYLOAD];
    make(again, &id, data + QUIRE_OBJECT_HEADER);
    check(n == sizeof again && memcmp(again, data, n) == 0);
}

static void sealed(const uint8_t *data, size_t n)
{
    static quire_sealer *sealer;
    quire_allocator a = quire_mem_allocator(NULL);
    quire_object_id id = expected();
    quire_key key = {{5}};
    uint8_t payload[PAYLOAD];
    if (!sealer) sealer = quire_sealer_create(&a);
    check(sealer != NULL);
    check(quire_unseal(sealer, payload, &key, &id, data, n, NULL) !=
          QUIRE_MISS_NONE); /* nobody guesses a seal */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy;
    if (n < 1) return 0;
    uint8_t mode = data[0];
    copy = malloc(n); /* its own block, so that reading beyond it is seen */
    check(copy != NULL);
    memcpy(copy, data + 1, n - 1);
    n--;
    if (n >= QUIRE_OBJECT_HEADER && mode & 1) { /* hashes put right over whatever fields there are */
        quire_object_id id = expected();
        uint8_t whole[QUIRE_OBJECT_HEADER + PAYLOAD], zeros[PAYLOAD] = {0};
        make(whole, &id, n >= sizeof whole ? copy + QUIRE_OBJECT_HEADER : zeros);
        if (mode & 2) memcpy(copy, whole, 16);
        if (mode & 4) memcpy(copy + 144, whole + 144, 16);
        XXH64_hash_t hash = XXH3_64bits(copy, 184);
        quire_store64(copy + 184, hash);
    }
    if (mode & 8)
        sealed(copy, n);
    else
        plain(copy, n);
    free(copy);
    return 0;
}
