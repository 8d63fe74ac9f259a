/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/watched.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct one {
    struct one *next;
    char *path;
    bool exists;
    struct stat was;
} one;

struct watched {
    one *first;
};

watched *watched_create(void)
{
    return (watched *)calloc(1, sizeof(watched));
}

void watched_destroy(watched *w)
{
    if (!w) return;
    for (one *o = w->first, *next; o; o = next) {
        next = o->next;
        free(o->path);
        free(o);
    }
    free(w);
}

bool watched_add(watched *w, const char *path)
{
    one *o = (one *)calloc(1, sizeof *o);
    if (o) o->path = strdup(path);
    if (!o || !o->path) {
        free(o);
        return false;
    }
    o->exists = !stat(path, &o->was);
    o->next = w->first;
    w->first = o;
    return true;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           is_same_time(&a->st_mtim, &b->st_mtim) && is_same_time(&a->st_ctim, &b->st_ctim);
}

const char *watched_change(const watched *w)
{
    struct stat now;
    for (const one *o = w->first; o; o = o->next) {
        bool exists = !stat(o->path, &now);
        if (exists != o->exists || (exists && !is_same(&now, &o->was))) return o->path;
    }
    return NULL;
}
