/* SPDX-License-Identifier: MIT */
/* store: threads, memory, names of misses. */
#define _POSIX_C_SOURCE 200809L
#include "store/base.h"

#include <signal.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ threads */

bool quire_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* ------------------------------------------------------------------- memory */

#define LARGE (64u << 10) /* aligned so that the disk can be read into it directly */

static void *plain_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    void *ptr = NULL;
    return posix_memalign(&ptr, bytes < LARGE ? 64 : 4096, bytes) ? NULL : ptr;
}

static void plain_free(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(ptr);
}

quire_allocator quire_mem_allocator(const quire_allocator *allocator)
{
    quire_allocator a = allocator ? *allocator : (quire_allocator){.size = sizeof(quire_allocator)};
    if (!a.alloc || !a.free) {
        a.alloc = plain_alloc;
        a.free = plain_free;
    }
    return a;
}

void *quire_mem_take_room(const quire_allocator *a, size_t bytes)
{
    return bytes < SIZE_MAX / 2 ? a->alloc(a->ctx, bytes ? bytes : 1) : NULL;
}

void *quire_mem_take(const quire_allocator *a, size_t bytes)
{
    void *ptr = quire_mem_take_room(a, bytes);
    if (ptr) memset(ptr, 0, bytes ? bytes : 1);
    return ptr;
}

void quire_mem_free(const quire_allocator *a, void *ptr, size_t bytes)
{
    if (ptr) a->free(a->ctx, ptr, bytes ? bytes : 1);
}

bool quire_mem_grow(const quire_allocator *a, uint8_t **buffer, size_t *cap, size_t bytes)
{
    if (bytes <= *cap) return true;
    uint8_t *fresh = (uint8_t *)quire_mem_take(a, bytes);
    if (!fresh) return false;
    quire_mem_free(a, *buffer, *cap);
    *buffer = fresh;
    *cap = bytes;
    return true;
}

char *quire_mem_text(const quire_allocator *a, const char *text)
{
    if (!text) return NULL;
    size_t n = strlen(text) + 1;
    char *copy = (char *)quire_mem_take(a, n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

void quire_mem_free_text(const quire_allocator *a, char *text)
{
    if (text) quire_mem_free(a, text, strlen(text) + 1);
}

/* ------------------------------------------------------------------- misses */

const char *quire_miss_name(quire_miss miss)
{
    switch (miss) {
#define NAME(name, text) \
    case QUIRE_MISS_##name: return #name;
        QUIRE_MISS_LIST(NAME)
#undef NAME
    case QUIRE_MISS_COUNT: break;
    }
    return "?";
}

const char *quire_miss_text(quire_miss miss)
{
    switch (miss) {
#define TEXT(name, text) \
    case QUIRE_MISS_##name: return text;
        QUIRE_MISS_LIST(TEXT)
#undef TEXT
    case QUIRE_MISS_COUNT: break;
    }
    return "?";
}
