/* SPDX-License-Identifier: MIT */
#include "serve/metrics.h"

#include <stdio.h>

static quire_status add_bytes(void *ctx, const void *bytes, size_t n)
{
    return growing_add((growing *)ctx, bytes, n) ? QUIRE_OK : QUIRE_ENOMEM;
}

/* What keeps prompts from being found, if anything does. */
static const char *store_fault(const serve_health *now, const quire_store_stats *stats)
{
    if (!now->store && !now->has_lost_disk) return NULL;
    if (now->has_lost_disk) return "the directory of pages could not be used at the start";
    if (stats->disk_failing) return "pages cannot be saved to the disk";
    if (stats->nodes_down) return "nodes of the remote tier do not answer, or refuse the login";
    if (stats->nodes_refusing) return "nodes of the remote tier refuse pages";
    if (now->is_ready && !now->keeps) return "prompts of this server cannot be kept";
    if (now->is_ready && !now->restores) return "prompts are no longer restored";
    return NULL;
}

static quire_store_stats stats_of(const serve_health *now)
{
    quire_store_stats stats = {.size = sizeof stats};
    if (!now->store || quire_store_stats_get(now->store, &stats)) stats = (quire_store_stats){0};
    return stats;
}

/* Of a fleet they show what /quire/health tells of one server, and which servers share no pages with the others. */
static bool print_gauges(const serve_health *now, growing *text)
{
    char lines[1024], root[17] = "";
    const quire_store_stats stats = stats_of(now);
    for (int i = 0; now->has_root && i < 8; i++) snprintf(root + 2 * i, 3, "%02x", now->root[i]);
    snprintf(
        lines, sizeof lines,
        "# HELP quire_serve_ready 1 if requests are answered.\n# TYPE quire_serve_ready gauge\n"
        "quire_serve_ready %d\n"
        "# HELP quire_serve_degraded 1 if prompts are computed that need not be; /quire/health says why.\n"
        "# TYPE quire_serve_degraded gauge\nquire_serve_degraded %d\n"
        "# HELP quire_serve_info The version, and the beginning of the root of all keys of pages.\n"
        "# TYPE quire_serve_info gauge\nquire_serve_info{version=\"%s\",root=\"%s\"} 1\n",
        now->is_ready, now->is_ready && store_fault(now, &stats), quire_version(), root);
    return growing_add_text(text, lines);
}

bool serve_metrics_print(serve_counts *counts, const serve_health *now, growing *text)
{
    char line[512];
    bool good = print_gauges(now, text);
#define LINE(name, what)                                                              \
    snprintf(line, sizeof line,                                                       \
             "# HELP quire_serve_" #name "_total " what "\n# TYPE quire_serve_" #name \
             "_total counter\nquire_serve_" #name "_total %llu\n",                    \
             (unsigned long long)atomic_load(&counts->name));                         \
    good = growing_add_text(text, line) && good;
    SERVE_COUNTS(LINE)
#undef LINE
    if (now->store && quire_store_write_metrics(now->store, NULL, add_bytes, text)) good = false;
    return growing_add(text, "", 1) && good;
}

void serve_health_print(const serve_health *now, char text[SERVE_HEALTH_SIZE])
{
    const quire_store_stats stats = stats_of(now);
    const char *fault = store_fault(now, &stats);
    snprintf(
        text, SERVE_HEALTH_SIZE,
        "{\"status\":\"%s\",\"server\":\"%s\",\"store\":%s,\"restoring\":%s,\"disk\":\"%s\",\"remote_nodes\":%u,"
        "\"remote_nodes_down\":%u,\"remote_nodes_refusing\":%u,\"why\":\"%s\"}",
        !now->is_ready ? "the server is not ready"
        : fault        ? "degraded"
                       : "ok",
        now->is_ready ? "ready" : "starting", now->store ? "true" : "false", now->restores ? "true" : "false",
        now->has_lost_disk      ? "not used"
        : stats.disk_failing    ? "failing"
        : stats.disk_rebuilding ? "its index is being made anew"
                                : "ok",
        stats.nodes, stats.nodes_down, stats.nodes_refusing, fault ? fault : "");
}
