/* SPDX-License-Identifier: MIT */
#include "serve/metrics.h"

#include <stdio.h>

void serve_metrics_print(serve_counts *counts, char text[SERVE_METRICS_SIZE])
{
    size_t n = 0;
#define LINE(name, what)                                                                           \
    n += (size_t)snprintf(text + n, SERVE_METRICS_SIZE - n,                                        \
                          "# HELP quire_serve_" #name "_total " what "\n# TYPE quire_serve_" #name \
                          "_total counter\nquire_serve_" #name "_total %llu\n",                    \
                          (unsigned long long)atomic_load(&counts->name));
    SERVE_COUNTS(LINE)
#undef LINE
}
