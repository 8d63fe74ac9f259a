/* SPDX-License-Identifier: MIT */
#include "serve/sidecar.h"

#include <stdio.h>

void sidecar_metrics(const sidecar_counts *counts, char text[SIDECAR_METRICS_SIZE])
{
    size_t n = 0;
#define LINE(name, what)                                                                           \
    n += (size_t)snprintf(text + n, SIDECAR_METRICS_SIZE - n,                                      \
                          "# HELP quire_serve_" #name "_total " what "\n# TYPE quire_serve_" #name \
                          "_total counter\nquire_serve_" #name "_total %llu\n",                    \
                          (unsigned long long)counts->name);
    SIDECAR_COUNTS(LINE)
#undef LINE
}
