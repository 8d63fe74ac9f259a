/* SPDX-License-Identifier: MIT */
/* The records of a snapshot. */
#include "support/snapshot_records.h"

#include "core/core.h"

#define HEADER 56u
#define GROUP 16u
#define PAGE 16u
#define HASH 8u

typedef struct walk {
    const uint8_t *data;
    size_t n, at, n_found, max;
    snapshot_record *out;
} walk;

/* A record of `bytes` bytes here. 0: it is not all there. */
static int found(walk *w, char kind, uint64_t bytes)
{
    if (bytes > w->n || w->n - w->at < HASH || bytes > w->n - w->at - HASH || w->n_found == w->max) return 0;
    w->out[w->n_found++] = (snapshot_record){w->at, (size_t)bytes, kind};
    w->at += (size_t)bytes + HASH;
    return 1;
}

static uint32_t u32_at(const walk *w, size_t at)
{
    return at + 4 <= w->n ? quire_load32(w->data + at) : 0;
}

size_t snapshot_records(const uint8_t *data, size_t n, snapshot_record *out, size_t max)
{
    walk w = {.data = data, .n = n, .max = max, .out = out};
    if (n < HEADER || !found(&w, 'h', HEADER + (uint64_t)u32_at(&w, 52))) return w.n_found;
    uint32_t n_groups = u32_at(&w, 48);
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t n_pages = u32_at(&w, w.at);
        if (!found(&w, 'g', GROUP)) return w.n_found;
        for (uint32_t i = 0; i < n_pages; i++) {
            if (n - w.at < PAGE) return w.n_found;
            uint64_t bytes = quire_load64(data + w.at + 8);
            if (bytes > n || !found(&w, 'p', PAGE + bytes)) return w.n_found;
        }
    }
    return w.n_found;
}

void snapshot_fix_hashes(uint8_t *data, size_t n)
{
    snapshot_record record[256];
    size_t n_records = snapshot_records(data, n, record, 256);
    for (size_t i = 0; i < n_records; i++) {
        quire_hash h;
        quire_hash_begin(&h);
        quire_hash_u64(&h, i);
        quire_hash_add(&h, data + record[i].at, record[i].bytes);
        quire_store64(data + record[i].at + record[i].bytes, quire_hash_end(&h));
    }
}
