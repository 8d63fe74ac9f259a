/* SPDX-License-Identifier: MIT */
#include "serve/metrics.h"

#include <stdio.h>

static quire_status add_bytes(void *ctx, const void *bytes, size_t n)
{
    return growing_add((growing *)ctx, bytes, n) ? QUIRE_OK : QUIRE_ENOMEM;
}

bool serve_metrics_print(serve_counts *counts, quire_store *store, growing *text)
{
    char line[512];
    bool good = true;
#define LINE(name, what)                                                              \
    snprintf(line, sizeof line,                                                       \
             "# HELP quire_serve_" #name "_total " what "\n# TYPE quire_serve_" #name \
             "_total counter\nquire_serve_" #name "_total %llu\n",                    \
             (unsigned long long)atomic_load(&counts->name));                         \
    good = growing_add_text(text, line) && good;
    SERVE_COUNTS(LINE)
#undef LINE
    if (store && quire_store_write_metrics(store, NULL, add_bytes, text)) good = false;
    return growing_add(text, "", 1) && good;
}

/* What keeps prompts from being found, if anything does. */
static const char *store_fault(const serve_health *now, const quire_store_stats *stats)
{
    if (now->has_lost_disk) return "the directory of pages could not be used at the start";
    if (stats->disk_failing) return "pages cannot be saved to the disk";
    if (stats->nodes_down) return "nodes of the remote tier do not answer";
    if (now->is_ready && !now->keeps) return "prompts of this server cannot be kept";
    if (now->is_ready && !now->restores) return "prompts are no longer restored";
    return NULL;
}

void serve_health_print(const serve_health *now, char text[SERVE_HEALTH_SIZE])
{
    quire_store_stats stats = {.size = sizeof stats};
    if (!now->store || quire_store_stats_get(now->store, &stats)) stats = (quire_store_stats){0};
    const char *fault = now->store || now->has_lost_disk ? store_fault(now, &stats) : NULL;
    snprintf(
        text, SERVE_HEALTH_SIZE,
        "{\"status\":\"%s\",\"server\":\"%s\",\"store\":%s,\"restoring\":%s,\"disk\":\"%s\",\"remote_nodes\":%u,"
        "\"remote_nodes_down\":%u,\"why\":\"%s\"}",
        !now->is_ready ? "the server is not ready"
        : fault        ? "degraded"
                       : "ok",
        now->is_ready ? "ready" : "starting", now->store ? "true" : "false", now->restores ? "true" : "false",
        now->has_lost_disk      ? "not used"
        : stats.disk_failing    ? "failing"
        : stats.disk_rebuilding ? "its index is being made anew"
                                : "ok",
        stats.nodes, stats.nodes_down, fault ? fault : "");
}
