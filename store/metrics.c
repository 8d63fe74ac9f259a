/* SPDX-License-Identifier: MIT */
/* store: the statistics in the text format of Prometheus. */
#include "store/store.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct page {
    quire_write_fn write;
    void *ctx;
    const char *labels; /* "" or a list */
    quire_status status;
} page;

__attribute__((format(printf, 2, 3))) static void put(page *p, const char *format, ...)
{
    char text[512];
    va_list args;
    if (p->status) return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text || p->write(p->ctx, text, (size_t)n)) p->status = QUIRE_EIO;
}

static void put_labels(page *p, const char *own)
{
    size_t n = strlen(p->labels);
    if (!n && !*own) return;
    put(p, "{");
    if (n && !p->status && p->write(p->ctx, p->labels, n)) p->status = QUIRE_EIO;
    put(p, "%s%s}", n && *own ? "," : "", own);
}

static void begin(page *p, const char *name, const char *type, const char *help)
{
    put(p, "# HELP quire_store_%s %s\n# TYPE quire_store_%s %s\n", name, help, name, type);
}

static void sample(page *p, const char *name, const char *own, uint64_t value)
{
    put(p, "quire_store_%s", name);
    put_labels(p, own);
    put(p, " %llu\n", (unsigned long long)value);
}

static const char *const tiers[2] = {"tier=\"disk\"", "tier=\"remote\""};

/* ------------------------------------------------------------------ samples */

static void put_single(page *p, const quire_store_stats *s, bool disk, bool remote)
{
    const struct {
        const char *name, *type, *help;
        uint64_t value;
        bool is_there;
    } all[] = {
        {"loads_total", "counter", "Loads begun.", s->loads, true},
        {"evicted_pages_total", "counter", "Pages evicted from disk to make room.", s->evicted, disk},
        {"disk_bytes", "gauge", "Size of all files of the directory.", s->disk_bytes, disk},
        {"disk_cap_bytes", "gauge", "Limit of that size.", s->disk_cap_bytes, disk},
        {"disk_pages", "gauge", "Pages on disk.", s->disk_objects, disk},
        {"disk_pinned_pages", "gauge", "Pages on disk that are pinned.", s->pinned_objects, disk},
        {"disk_unknown_pages", "gauge", "Pages on disk of unknown versions.", s->disk_unknown, disk},
        {"disk_rebuilding", "gauge", "1 while the index of the directory is made anew.", s->disk_rebuilding,
         disk},
        {"disk_failing", "gauge", "1 if the last pages could not be saved to disk.", s->disk_failing, disk},
        {"shared_pages_total", "counter", "Pages that came with the request of another load.", s->shared,
         remote},
        {"nodes", "gauge", "Known nodes of the remote tier.", s->nodes, remote},
        {"nodes_down", "gauge", "Nodes of the remote tier that are considered down.", s->nodes_down, remote},
        {"nodes_refusing", "gauge", "Nodes of the remote tier that answer and refuse pages.",
         s->nodes_refusing, remote},
        {"node_breaks_total", "counter", "Times that a node was considered down.", s->breaks, remote},
        {"connections_total", "counter", "Connections to nodes that were opened.", s->reconnects, remote},
        {"queue_cap_bytes", "gauge", "Limit of the pages that wait to be saved, per tier.",
         s->queue_cap_bytes, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].is_there) continue;
        begin(p, all[i].name, all[i].type, all[i].help);
        sample(p, all[i].name, "", all[i].value);
    }
}

static void put_by_tier(page *p, const quire_store_stats *s, const bool has[2])
{
    const struct {
        const char *name, *type, *help;
        const uint64_t *value;
    } all[] = {
        {"loaded_pages_total", "counter", "Pages loaded.", s->loaded},
        {"loaded_bytes_total", "counter", "Bytes of the pages that were loaded.", s->loaded_bytes},
        {"saved_pages_total", "counter", "Pages saved.", s->saved},
        {"saved_bytes_total", "counter", "Bytes of the pages that were saved.", s->saved_bytes},
        {"known_pages_total", "counter", "Pages that the tier already had.", s->known},
        {"dropped_pages_total", "counter", "Pages not saved: queue full, daily limit, quota, or too large.",
         s->dropped},
        {"failed_pages_total", "counter", "Pages not saved because the tier failed.", s->failed},
        {"removed_pages_total", "counter", "Damaged pages that were deleted.", s->removed},
        {"queue_bytes", "gauge", "Bytes of the pages that wait to be saved.", s->queued_bytes},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        begin(p, all[i].name, all[i].type, all[i].help);
        for (int t = 0; t < 2; t++)
            if (has[t]) sample(p, all[i].name, tiers[t], all[i].value[t]);
    }
}

static void put_misses(page *p, const quire_store_stats *s)
{
    begin(p, "missed_pages_total", "counter", "Pages that could not be loaded, by reason.");
    for (int i = 1; i < QUIRE_MISS_COUNT; i++) {
        char own[64];
        (void)snprintf(own, sizeof own, "reason=\"%s\"", quire_miss_name((quire_miss)i));
        sample(p, "missed_pages_total", own, s->misses[i]);
    }
}

/* One sample of a histogram; own: "" or the label of the tier. */
static void put_bucket(page *p, const char *name, const char *own, const char *bound, uint64_t n)
{
    char both[128], metric[64];
    (void)snprintf(both, sizeof both, "%s%sle=\"%s\"", own, *own ? "," : "", bound);
    (void)snprintf(metric, sizeof metric, "%s_bucket", name);
    sample(p, metric, both, n);
}

static void put_times(page *p, quire_store *s, quire_timed what, const char *name, const char *own)
{
    quire_store_times t = {.size = sizeof t};
    char bound[32], metric[64];
    uint64_t sum = 0;
    (void)quire_store_times_get(s, what, &t);
    for (uint64_t i = 0; i < t.n_bounds; i++) {
        sum += t.counts[i];
        /* Not %g: the decimal point is a matter of the locale. */
        int n =
            snprintf(bound, sizeof bound, "%llu.%04llu", (unsigned long long)(t.bound_ns[i] / QUIRE_SECOND),
                     (unsigned long long)(t.bound_ns[i] % QUIRE_SECOND / (QUIRE_MS / 10)));
        while (n > 2 && bound[n - 1] == '0' && bound[n - 2] != '.') bound[--n] = 0;
        put_bucket(p, name, own, bound, sum);
    }
    put_bucket(p, name, own, "+Inf", t.n);
    put(p, "quire_store_%s_sum", name);
    put_labels(p, own);
    put(p, " %llu.%09llu\n", (unsigned long long)(t.sum_ns / QUIRE_SECOND),
        (unsigned long long)(t.sum_ns % QUIRE_SECOND));
    (void)snprintf(metric, sizeof metric, "%s_count", name);
    sample(p, metric, own, t.n);
}

static void put_histograms(page *p, quire_store *s, const bool has[2])
{
    static const struct {
        const char *name, *help;
        quire_timed what[2];
    } all[] = {
        {"read_seconds",
         "Time to read and verify one page.",
         {QUIRE_TIMED_DISK_READ, QUIRE_TIMED_REMOTE_READ}},
        {"save_seconds",
         "Time to save pages that are saved together.",
         {QUIRE_TIMED_DISK_SAVE, QUIRE_TIMED_REMOTE_SAVE}},
        {"queue_seconds",
         "Time that a page waited until its saving began.",
         {QUIRE_TIMED_DISK_QUEUE, QUIRE_TIMED_REMOTE_QUEUE}},
    };
    begin(p, "load_seconds", "histogram", "Time of whole loads.");
    put_times(p, s, QUIRE_TIMED_LOAD, "load_seconds", "");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        begin(p, all[i].name, "histogram", all[i].help);
        for (int t = 0; t < 2; t++)
            if (has[t]) put_times(p, s, all[i].what[t], all[i].name, tiers[t]);
    }
}

/* ------------------------------------------------------------------- labels */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* name="value", with commas between; \\, \" and \n are the only escapes. */
static bool are_labels(const char *at)
{
    for (;; at++) {
        if (!is_letter(*at)) return false;
        while (is_letter(*at) || (*at >= '0' && *at <= '9')) at++;
        if (at[0] != '=' || at[1] != '"') return false;
        for (at += 2; *at != '"'; at++) {
            if ((unsigned char)*at < ' ') return false;
            if (*at == '\\' && *++at != '\\' && *at != '"' && *at != 'n') return false;
        }
        if (!*++at) return true;
        if (*at != ',') return false;
    }
}

quire_status quire_store_write_metrics(quire_store *s, const char *labels, quire_write_fn write, void *ctx)
{
    page p = {.write = write, .ctx = ctx, .labels = labels ? labels : ""};
    if (!s || !write || (*p.labels && !are_labels(p.labels))) return QUIRE_EINVAL;
    quire_store_stats stats = {.size = sizeof stats};
    quire_status status = quire_store_stats_get(s, &stats);
    if (status) return status;
    const bool has[2] = {quire_store_has(s, QUIRE_DISK), quire_store_has(s, QUIRE_REMOTE)};
    put_single(&p, &stats, has[0], has[1]);
    put_misses(&p, &stats);
    put_by_tier(&p, &stats, has);
    put_histograms(&p, s, has);
    return p.status;
}
