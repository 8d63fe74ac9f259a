/* SPDX-License-Identifier: MIT */
/* sized: the caller's structures, which may be shorter or longer than ours (rules: include/quire/base.h). */
#ifndef QUIRE_CORE_SIZED_H
#define QUIRE_CORE_SIZED_H

#include "quire/quire.h"

#include <stdbool.h>
#include <string.h>

/* A size above this is not one: somebody forgot to set it. */
#define QUIRE_LARGEST_STRUCTURE 65536u

/* n bytes of theirs to a structure of ours; members that they do not have become 0. */
static inline quire_status quire_read_bytes(void *own, size_t own_size, const void *theirs, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)theirs;
    if (n > QUIRE_LARGEST_STRUCTURE) return QUIRE_EINVAL;
    for (size_t i = own_size; i < n; i++)
        if (bytes[i]) return QUIRE_EUNSUPPORTED; /* asks for something that this version does not have */
    memset(own, 0, own_size);
    memcpy(own, theirs, n < own_size ? n : own_size);
    return QUIRE_OK;
}

/* A structure that begins with its size. *own is undefined after a failure. */
static inline quire_status quire_read_sized(void *own, size_t own_size, const void *theirs)
{
    size_t size;
    if (!theirs) return QUIRE_EINVAL;
    memcpy(&size, theirs, sizeof size);
    if (size < sizeof size) return QUIRE_EINVAL;
    quire_status status = quire_read_bytes(own, own_size, theirs, size);
    memcpy(own, &own_size, sizeof own_size);
    return status;
}

/* Element i of an array with a stride. */
static inline quire_status quire_read_element(void *own, size_t own_size, const void *array, size_t stride,
                                              size_t i)
{
    return stride ? quire_read_bytes(own, own_size, (const uint8_t *)array + i * stride, stride)
                  : QUIRE_EINVAL;
}

/* Element i of an array whose elements also begin with their size: one cannot reach into the next. */
static inline quire_status quire_read_sized_element(void *own, size_t own_size, const void *array,
                                                    size_t stride, size_t i)
{
    size_t size;
    if (stride < sizeof size) return QUIRE_EINVAL;
    const uint8_t *at = (const uint8_t *)array + i * stride;
    memcpy(&size, at, sizeof size);
    return size > stride ? QUIRE_EINVAL : quire_read_sized(own, own_size, at);
}

/* Fills an output structure that begins with its size, as far as it goes. */
static inline quire_status quire_write_sized(void *theirs, const void *own, size_t own_size)
{
    size_t size;
    if (!theirs) return QUIRE_EINVAL;
    memcpy(&size, theirs, sizeof size);
    if (size < sizeof size || size > QUIRE_LARGEST_STRUCTURE) return QUIRE_EINVAL;
    size_t n = size < own_size ? size : own_size;
    memset((uint8_t *)theirs + sizeof size, 0, size - sizeof size);
    memcpy((uint8_t *)theirs + sizeof size, (const uint8_t *)own + sizeof size, n - sizeof size);
    return QUIRE_OK;
}

#endif
