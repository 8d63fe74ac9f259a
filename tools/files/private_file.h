/* SPDX-License-Identifier: MIT */
/*
 * private_file: files with data of users. Nobody but the owner can read one (mode 0600), not even while it is written, and it appears
 * under its name when it is whole.
 */
#ifndef QUIRE_TOOLS_PRIVATE_FILE_H
#define QUIRE_TOOLS_PRIVATE_FILE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct private_file {
    FILE *stream;
    char *path, *temporary; /* NULL: written in place, because it is no regular file (a pipe, a terminal) */
} private_file;

/* false: errno says why. */
bool private_open(private_file *f, const char *path);
/* keep: it gets its name if all was written; else it is removed, and what had the name before stays. false: errno says why. */
bool private_close(private_file *f, bool keep);

/* Whether others can read or change a file that should be its owner's alone. A group may read what belongs to somebody else, as the key
 * files that ssh accepts, and may never change it. What is no regular file is not judged: a pipe belongs to who made it. */
bool private_is_shared(int fd);

#endif
