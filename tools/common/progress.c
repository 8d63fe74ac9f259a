/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "common/progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_start(progress *p, const char *what, const char *unit, double total)
{
    *p = (progress){.what = what, .unit = unit, .start = seconds(), .total = total};
}

void progress_show(progress *p, double done)
{
    enum { WIDTH = 24 };
    double used = seconds() - p->start;
    if (used < 2 || done <= 0 || p->total <= 0 || !isatty(2)) return;
    if (done > p->total) done = p->total;
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < (int)(done / p->total * (int)WIDTH) ? '#' : '.';
    bar[WIDTH] = 0;
    double left = used / done * (p->total - done);
    fprintf(stderr, "\r%s [%s] %.0f of %.0f %s, %.3g/s, %d:%02d left\033[K", p->what, bar, done, p->total,
            p->unit, done / used, (int)left / 60, (int)left % 60);
    fflush(stderr);
    p->shown = true;
}

void progress_end(progress *p)
{
    if (p->shown) fprintf(stderr, "\r\033[K");
    p->shown = false;
}
