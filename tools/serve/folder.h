/* SPDX-License-Identifier: MIT */
/* folder: where a llama-server behind this program listens and keeps slot files: in memory, and nobody else can read it. */
#ifndef QUIRE_TOOLS_SERVE_FOLDER_H
#define QUIRE_TOOLS_SERVE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* Removes folders of processes that were killed, and makes one. is_sealed: prompts are encrypted on disk, so that a line says it if slot
 * files, which are not, come to one. TOOL_OK, or what tool_failed() said. */
int folder_make(char *folder, size_t size, bool is_sealed);
/* Whether files there take memory. */
bool folder_is_memory(const char *path);
void folder_remove(const char *folder); /* "" is none */

#endif
