/* SPDX-License-Identifier: MIT */
/* pages_place: the directory of pages that is used if none is given, and the key that is made there. */
#ifndef QUIRE_TOOLS_SERVE_PAGES_PLACE_H
#define QUIRE_TOOLS_SERVE_PAGES_PLACE_H

#include <stdbool.h>
#include <stddef.h>

/* In the user's cache, never in a folder where others can put files. NULL, or what is wrong. */
const char *pages_find(char *path, size_t size);
/* With the directories above it. false: errno says why. */
bool pages_make(const char *path);
/*
 * The key of pages that are not shared: made if it is not there, whole or not at all. One that is there must be this user's. NULL, or
 * what is wrong.
 */
const char *pages_key(const char *path);

#endif
