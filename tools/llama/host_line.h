/* SPDX-License-Identifier: MIT */
/* host_line: how the programs of llama.cpp read their command line. */
#ifndef QUIRE_TOOLS_HOST_LINE_H
#define QUIRE_TOOLS_HOST_LINE_H

#include <stdbool.h>

enum { HOST_LINE_NAMES = 3 }; /* an option has so many at the most; those it lacks are NULL */

/* Whether an argument is one of these names; in long ones llama.cpp takes _ for -. */
bool host_line_is(const char *argument, const char *const names[HOST_LINE_NAMES]);
/* The last value that an option is given, or that of its variable (NULL: it has none). NULL: none, or an empty one. */
const char *host_line_value(int argc, char **argv, const char *const names[HOST_LINE_NAMES],
                            const char *variable);

/* A program without its folder. */
const char *host_line_program(const char *path);
/* llama-bench takes lists, and reads some options in other ways. */
bool host_line_is_bench(const char *path);

#endif
