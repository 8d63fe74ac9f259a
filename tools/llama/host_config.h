/* SPDX-License-Identifier: MIT */
/*
 * host_config: the files config.ini of llama.cpp, which its programs apply before variables and flags: that of the system, then that of
 * the user. Read as common/preset.cpp reads them: a key is the name of a flag without its dashes, or of its variable; only the section
 * "*" and the section "default", which is also what stands before any section, count.
 */
#ifndef QUIRE_TOOLS_HOST_CONFIG_H
#define QUIRE_TOOLS_HOST_CONFIG_H

#include "common/place.h"
#include "llama/row_flags.h"

#include <stdbool.h>
#include <stddef.h>

enum { HOST_CONFIG_FILES = 2 };

typedef struct host_config_entry {
    const char *file, *key, *value;
} host_config_entry;

typedef struct host_config {
    char path[HOST_CONFIG_FILES][PLACE_SIZE]; /* "" if there is no place for it */
    char *bytes[HOST_CONFIG_FILES];           /* of the files, cut into texts */
    host_config_entry
        *entries; /* in the order in which they are applied: of two for one flag the later counts */
    size_t n;
} host_config;

/* Where a program looks. */
typedef struct host_config_place {
    const char *root;                   /* before all paths: "", or /proc/PID/root of another process */
    const char *xdg, *home, *user_home; /* XDG_CONFIG_HOME, HOME, the directory of the account; or NULL */
} host_config_place;

/* Of a program that this one starts. */
host_config_place host_config_here(void);
/* NULL, or a sentence: a file is there and cannot be read, or not as llama.cpp reads it. To be freed in either case. */
const char *host_config_read(host_config *c, const host_config_place *where, char *message, int size);
void host_config_free(host_config *c);

/*
 * The rows' entry of a key, as row_flag_of_word() finds that of a word; NULL: rows do not depend on it. *says_no: the value switches it
 * off.
 */
const row_flag *host_config_row_flag(const host_config_entry *e, bool *says_no);
/* Whether a key stands for a flag ("--ctx-size", "-c") or for its variable. */
bool host_config_is_flag(const host_config_entry *e, const char *flag);
bool host_config_is_variable(const host_config_entry *e, const char *variable);
/* The value that counts; NULL: none of the files has one. */
const char *host_config_value(const host_config *c, const char *brief, const char *flag,
                              const char *variable);
/* llama.cpp takes such values, and no others, for "yes". */
bool host_config_says_yes(const char *value);

#endif
