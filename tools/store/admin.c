/* SPDX-License-Identifier: MIT */
/* store_admin: quire store stat, ls, verify, gc. */
#define _POSIX_C_SOURCE 200809L
#include "common/progress.h"
#include "store/options.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* -------------------------------------------------------------------- stat */

static quire_status print_bytes(void *ctx, const void *bytes, size_t n)
{
    return fwrite(bytes, n, 1, (FILE *)ctx) == 1 ? QUIRE_OK : QUIRE_EIO;
}

static void print_stat(const quire_store_stats *s)
{
    printf("objects  %llu, %llu pinned\nfiles    %.3f of %.3f GB\n", (unsigned long long)s->disk_objects,
           (unsigned long long)s->pinned_objects, (double)s->disk_bytes / 1e9,
           (double)s->disk_cap_bytes / 1e9);
    if (s->disk_unknown)
        printf("unknown  %llu objects of other versions of Quire\n", (unsigned long long)s->disk_unknown);
    if (s->disk_rebuilding) printf("index    is being made anew; not all objects are found yet\n");
}

int store_stat(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store stat",
        .usage = "--dir DIRECTORY [--json | --prometheus]",
        .about =
            "Shows how many objects and bytes a store has on disk. Counters of loads and saves belong to the process that\n"
            "makes them: engines write them with quire_store_write_metrics(). With --prometheus this command writes the\n"
            "same metrics for the directory, for the textfile collector of node_exporter; its own counters are 0.",
        .examples =
            "  quire store stat --dir /var/cache/quire\n"
            "  quire store stat --dir /var/cache/quire --prometheus >/var/lib/node_exporter/store.prom\n",
    };
    static const tool_option more[] = {
        {"--prometheus", NULL, "print Prometheus metrics", TOOL_FLAG(store_options, prometheus)},
    };
    store_options o;
    quire_store *store;
    quire_store_stats s = {.size = sizeof s};
    int code = store_parse(&o, STORE_DISK, &about, more, 1, argc, argv);
    if (code >= 0) return code;
    if (o.json && o.prometheus) return tool_usage(about.name, "--json and --prometheus cannot be combined");
    code = store_open(&o, &store);
    if (code) return code;
    quire_store_stats_get(store, &s);
    if (o.prometheus) (void)quire_store_write_metrics(store, NULL, print_bytes, stdout);
    quire_store_close(store);
    if (o.json)
        printf("{\"objects\":%llu,\"pinned\":%llu,\"unknown\":%llu,\"file_bytes\":%llu,\"cap_bytes\":%llu,"
               "\"rebuilding\":%s}\n",
               (unsigned long long)s.disk_objects, (unsigned long long)s.pinned_objects,
               (unsigned long long)s.disk_unknown, (unsigned long long)s.disk_bytes,
               (unsigned long long)s.disk_cap_bytes, s.disk_rebuilding ? "true" : "false");
    else if (!o.prometheus)
        print_stat(&s);
    return tool_finish(o.command);
}

/* ------------------------------------------------------------- ls and verify */

typedef struct walk {
    const store_options *options;
    progress progress;
    bool list;
    uint64_t n, n_damaged;
    double bytes;
} walk;

static void print_object(const walk *w, const quire_object_info *info)
{
    time_t used = (time_t)(info->used_us / 1000000);
    struct tm tm;
    char when[32];
    gmtime_r(&used, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (w->options->json) {
        printf("{\"object\":\"");
        store_print_hex(stdout, info->object, 32);
        printf("\",\"root\":\"");
        store_print_hex(stdout, info->root, 32);
        printf("\",\"group\":%u,\"page\":%u,\"bytes\":%llu,\"used\":\"%s\",\"pinned\":%s,\"damage\":",
               info->group, info->page_index, (unsigned long long)info->payload_bytes, when,
               info->pinned ? "true" : "false");
        printf(info->damage ? "\"%s\"}\n" : "null}\n", quire_miss_name(info->damage));
    } else {
        store_print_hex(stdout, info->object, 8);
        printf("  ");
        store_print_hex(stdout, info->root, 4);
        printf("  %3u %6u %10llu  %s  %s%s\n", info->group, info->page_index,
               (unsigned long long)info->payload_bytes, when, info->pinned ? "pinned " : "",
               info->damage ? quire_miss_text(info->damage) : "");
    }
}

static quire_status visit(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    walk *w = (walk *)ctx;
    (void)bytes;
    w->n++;
    w->bytes += (double)n;
    if (info->damage) w->n_damaged++;
    if (w->list || info->damage) print_object(w, info);
    if (!w->list) progress_show(&w->progress, (double)w->n);
    return ferror(stdout) ? QUIRE_EIO : QUIRE_OK;
}

int store_ls(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store ls",
        .usage = "--dir DIRECTORY [--json] | --remote HOST:PORT [--long] [--json]",
        .about =
            "Lists the objects on disk: object key, root of the namespace, group, page, bytes, time of last use. The text\n"
            "form shows only the beginning of each key; --json shows whole keys.\n\n"
            "With --remote: objects, bytes and times to live of the remote tier, per master; with --long also each key.\n"
            "The login needs the rights +scan +strlen +ttl in addition to those of an engine. Objects in the remote tier\n"
            "are encrypted and their keys are hashes: which tenant one belongs to cannot be told without the secret.",
        .examples = "  quire store ls --dir /var/cache/quire\n"
                    "  quire store ls --dir /var/cache/quire --json\n"
                    "  quire store ls --remote cache:6379 --user admin --password-file password --tls\n",
    };
    static const tool_option more[] = {
        {"--long", NULL, "with --remote: list each key", TOOL_FLAG(store_options, list_long)},
    };
    store_options o;
    quire_store *store;
    int code = store_parse(&o, STORE_DISK | STORE_REMOTE, &about, more, 1, argc, argv);
    if (code >= 0) return code;
    if (o.directory && o.remote.host) return tool_usage(about.name, "give --dir or --remote, not both");
    if (o.remote.host) return store_list_remote(&o);
    code = store_open(&o, &store);
    if (code) return code;
    walk w = {.options = &o, .list = true};
    quire_status status = quire_store_each(store, 0, visit, &w);
    quire_store_close(store);
    return status ? tool_failed(o.command, "the disk could not be read") : tool_finish(o.command);
}

int store_verify(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store verify",
        .usage = "--dir DIRECTORY [--json]",
        .about =
            "Reads every object on disk and checks its header and its data. Lists the damaged objects; quire store gc\n"
            "removes them. The exit code is 1 if there are any.",
        .examples = "  quire store verify --dir /var/cache/quire\n",
    };
    store_options o;
    quire_store *store;
    quire_store_stats s = {.size = sizeof s};
    struct timespec a, b;
    int code = store_begin(&o, STORE_DISK, &about, NULL, 0, argc, argv, &store);
    if (code >= 0) return code;
    quire_store_stats_get(store, &s);
    walk w = {.options = &o};
    progress_start(&w.progress, "verify", "objects", (double)s.disk_objects);
    clock_gettime(CLOCK_MONOTONIC, &a);
    quire_status status = quire_store_each(store, 1, visit, &w);
    clock_gettime(CLOCK_MONOTONIC, &b);
    progress_end(&w.progress);
    quire_store_close(store);
    if (status) return tool_failed(o.command, "the disk could not be read");
    double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    if (o.json)
        printf("{\"objects\":%llu,\"damaged\":%llu,\"bytes\":%.0f,\"seconds\":%.3f}\n",
               (unsigned long long)w.n, (unsigned long long)w.n_damaged, w.bytes, seconds);
    else
        printf("%llu objects, %llu damaged, %.3f GB, %.2f GB/s\n", (unsigned long long)w.n,
               (unsigned long long)w.n_damaged, w.bytes / 1e9, seconds > 0 ? w.bytes / 1e9 / seconds : 0);
    code = tool_finish(o.command);
    return code ? code : w.n_damaged ? TOOL_FAILED : TOOL_OK;
}

/* ---------------------------------------------------------------------- gc */

static const char *set_max_age(void *ctx, const char *value)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    const size_t n = sizeof units / sizeof units[0];
    size_t i = 0;
    char *end;
    double x = strtod(value, &end);
    while (i < n && strcmp(end, units[i].name) != 0) i++;
    if (i < n) x *= units[i].seconds;
    if (end == value || i == n || !(x >= 1 && x <= 1e10)) return "a time such as 30d, 12h or 90m";
    ((store_options *)ctx)->max_age_s = (uint64_t)x;
    return NULL;
}

int store_gc(int argc, char **argv)
{
    static const tool_option more[] = {
        {"--max-bytes", "BYTES", "remove the least recently used objects until the rest has this size",
         TOOL_BYTES(store_options, max_bytes, 0, STORE_MAX_BYTES)},
        {"--max-age", "TIME", "remove objects that were not used for this time, such as 30d or 12h",
         .set = set_max_age},
    };
    static const tool_command about = {
        .name = "store gc",
        .usage = "--dir DIRECTORY [--max-age TIME] [--max-bytes BYTES] [--json]",
        .about =
            "Removes damaged objects. With --max-age or --max-bytes it also removes old or excess ones, except pinned\n"
            "objects. The files do not shrink; their free space is used again.",
        .examples = "  quire store gc --dir /var/cache/quire\n"
                    "  quire store gc --dir /var/cache/quire --max-age 30d --max-bytes 200G\n",
    };
    store_options o;
    quire_store *store;
    uint64_t n = 0;
    int code = store_begin(&o, STORE_DISK, &about, more, 2, argc, argv, &store);
    if (code >= 0) return code;
    quire_status status = quire_store_gc(store, o.max_age_s, o.max_bytes, &n);
    quire_store_close(store);
    if (status) return tool_failed(o.command, "the disk could not be read or written");
    printf(o.json ? "{\"removed\":%llu}\n" : "%llu removed\n", (unsigned long long)n);
    return tool_finish(o.command);
}
