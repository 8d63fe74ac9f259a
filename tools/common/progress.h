/* SPDX-License-Identifier: MIT */
/* progress: shows how far a long piece of work is. */
#ifndef QUIRE_TOOLS_PROGRESS_H
#define QUIRE_TOOLS_PROGRESS_H

#include <stdbool.h>

/* One line on a terminal: what, a bar, rate and time left. Nothing if stderr is none, or within the first 2 seconds. */
typedef struct progress {
    const char *what, *unit;
    double start, total; /* seconds; units */
    bool shown;
} progress;

void progress_start(progress *p, const char *what, const char *unit, double total);
void progress_show(progress *p, double done);
void progress_end(progress *p); /* wipes the line */

#endif
