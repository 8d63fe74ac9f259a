/* SPDX-License-Identifier: MIT */
/* place: where the plug-in, shipped texts and other programs are. */
#ifndef QUIRE_TOOLS_PLACE_H
#define QUIRE_TOOLS_PLACE_H

#include <stdbool.h>
#include <stddef.h>

enum { PLACE_SIZE = 4096 };

/* Each fills path and returns true if the file is there. */
bool place_plugin(char *path);                   /* QUIRE_PLUGIN, or beside this program, or as installed */
bool place_shared(char *path, const char *name); /* a shipped file: "eval/text/calibrate.txt" */
bool place_program(char *path, const char *dir, const char *name); /* in dir, or if that is NULL in PATH */

#endif
