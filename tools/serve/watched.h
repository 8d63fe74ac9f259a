/* SPDX-License-Identifier: MIT */
/* watched: files on which the rows of a server depend; whether one of them is another than it was. */
#ifndef QUIRE_TOOLS_SERVE_WATCHED_H
#define QUIRE_TOOLS_SERVE_WATCHED_H

#include <stdbool.h>

typedef struct watched watched;

/* NULL: out of memory. */
watched *watched_create(void);
void watched_destroy(watched *w);
/* Before it is read. It need not exist: then it counts as changed when it does. false: out of memory. */
bool watched_add(watched *w, const char *path);
/* The first that is another file than it was, by device, inode, size and times, or came or went; NULL: none. */
const char *watched_change(const watched *w);

#endif
