/* SPDX-License-Identifier: MIT */
/* stat_file: the counter files of running hosts. */
#ifndef QUIRE_TOOLS_STAT_FILE_H
#define QUIRE_TOOLS_STAT_FILE_H

#include <quire_stat.h>

#include <stdbool.h>
#include <stddef.h>

/* A file that cannot be one is false; *is_stale: its process is gone. Strings are made to end. */
bool stat_file_read(quire_stat *out, const char *path, bool *is_stale);

/* Calls back for every process of this user, or for one (pid not 0), and removes what dead ones left. Returns how many. */
size_t stat_file_each(uint64_t pid, void (*look)(void *ctx, const quire_stat *s), void *ctx);

#endif
