/* SPDX-License-Identifier: MIT */
/* slot_reader: numbers out of the bytes of a slot file. After the first that is not there, all are 0. */
#ifndef QUIRE_TOOLS_SLOT_READER_H
#define QUIRE_TOOLS_SLOT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct slot_reader {
    const uint8_t *bytes;
    size_t n, at;
    bool failed;
} slot_reader;

static inline uint64_t slot_take(slot_reader *r, size_t n)
{
    uint64_t value = 0;
    if (r->failed || n > r->n - r->at) {
        r->failed = true;
        return 0;
    }
    for (size_t i = n; i--;) value = value << 8 | r->bytes[r->at + i];
    r->at += n;
    return value;
}

static inline void slot_skip(slot_reader *r, uint64_t n)
{
    if (r->failed || n > r->n - r->at)
        r->failed = true;
    else
        r->at += (size_t)n;
}

#endif
