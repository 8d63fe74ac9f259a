/* SPDX-License-Identifier: MIT */
/* growing: bytes that are added at the end. */
#ifndef QUIRE_TOOLS_GROWING_H
#define QUIRE_TOOLS_GROWING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct growing {
    char *bytes; /* from malloc(); NULL at first */
    size_t n, cap;
} growing;

/* false: out of memory, and nothing has changed. */
static inline bool growing_add(growing *g, const void *bytes, size_t n)
{
    if (n > g->cap - g->n) {
        size_t cap = g->cap ? g->cap : 256;
        while (cap - g->n < n) {
            if (cap > SIZE_MAX / 2) return false;
            cap *= 2;
        }
        char *more = (char *)realloc(g->bytes, cap);
        if (!more) return false;
        g->bytes = more;
        g->cap = cap;
    }
    if (n) memcpy(g->bytes + g->n, bytes, n);
    g->n += n;
    return true;
}

static inline bool growing_add_text(growing *g, const char *text)
{
    return growing_add(g, text, strlen(text));
}

static inline void growing_free(growing *g)
{
    free(g->bytes);
    *g = (growing){0};
}

#endif
