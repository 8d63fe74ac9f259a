/* SPDX-License-Identifier: MIT */
/* quire stat: what running hosts hold, from the counters that the device publishes. */
#include "commands.h"

#include "common/tool.h"
#include "files/stat_file.h"

#include <string.h>

typedef struct stat_options {
    uint64_t pid;
    bool json, prometheus;
} stat_options;

/* ----------------------------------------------------------------- options */

static const char *set_pid(void *ctx, const char *word)
{
    stat_options *o = ctx;
    if (o->pid) return "give only one process; the second one is";
    return tool_number(word, 0, 1, UINT32_MAX, &o->pid, NULL) ? NULL : "a process ID must be a number, not";
}

static const tool_option options[] = {
    {"--json", NULL, "print one JSON object per process and line", TOOL_FLAG(stat_options, json)},
    {"--prometheus", NULL, "print Prometheus metrics, for the textfile collector of node_exporter",
     TOOL_FLAG(stat_options, prometheus)},
};

static const tool_command command = {
    .name = "stat",
    .usage = "[--json | --prometheus] [PID]",
    .about =
        "Shows the caches of this user's running llama.cpp programs: tokens, memory by policy, memory saved compared with\n"
        "f16, the share of attention in the computing time, tiles read and skipped. Quire's device publishes these\n"
        "figures in a small file; set QUIRE_STAT=0 in the program's environment to turn that off. The exit code is 1 if\n"
        "the process PID has no such cache.",
    .examples = "  quire stat\n"
                "  quire stat $(pidof llama-server)\n"
                "  quire stat --prometheus >/var/lib/node_exporter/quire.prom\n",
    TOOL_OPTIONS(options),
    .set_name = set_pid,
};

/* -------------------------------------------------------------------- text */

#define EACH_POLICY(s, p)                                              \
    for (const quire_stat_policy *p = (s)->policies;                   \
         p < (s)->policies + QUIRE_STAT_POLICIES && p->policy[0]; p++) \
        if (p->n_contexts)

static double saved(const quire_stat_policy *p)
{
    return (double)p->f16_bytes - (double)p->bytes;
}

static double share(const quire_stat *s)
{
    return s->compute_ns ? (double)s->attend_ns / (double)s->compute_ns : 0;
}

static void print_text(void *ctx, const quire_stat *s)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE];
    (void)ctx;
    printf("%s (%llu), ggml %s, %s kernels\n", s->program, (unsigned long long)s->pid, s->ggml, s->isa);
    EACH_POLICY(s, p)
    {
        printf("  %-12s %llu of %llu tokens in %llu context%s\n", p->policy, (unsigned long long)p->tokens,
               (unsigned long long)p->cells, (unsigned long long)p->n_contexts,
               p->n_contexts == 1 ? "" : "s");
        printf("  %-12s %s instead of %s in f16, %s saved\n", "", tool_bytes(a, (double)p->bytes),
               tool_bytes(b, (double)p->f16_bytes), tool_bytes(c, saved(p)));
    }
    printf("  attention    %.1f s in %llu calls, %.0f %% of the computing time\n",
           1e-9 * (double)s->attend_ns, (unsigned long long)s->n_attend, 100 * share(s));
    printf("  tiles        %llu read, %llu skipped because no query sees them\n",
           (unsigned long long)s->tiles_read, (unsigned long long)s->tiles_skipped);
}

/* -------------------------------------------------------------------- JSON */

static void print_json(void *ctx, const quire_stat *s)
{
    const char *comma = "";
    (void)ctx;
    printf("{\"pid\":%llu,\"program\":", (unsigned long long)s->pid);
    tool_json_string(stdout, s->program);
    printf(",\"ggml\":");
    tool_json_string(stdout, s->ggml);
    printf(",\"isa\":");
    tool_json_string(stdout, s->isa);
    printf(
        ",\"attend_calls\":%llu,\"attend_seconds\":%.6f,\"compute_seconds\":%.6f,\"rows\":%llu,\"tiles_read\":%llu,\"tiles_skipped\":%llu,\"policies\":[",
        (unsigned long long)s->n_attend, 1e-9 * (double)s->attend_ns, 1e-9 * (double)s->compute_ns,
        (unsigned long long)s->n_rows, (unsigned long long)s->tiles_read,
        (unsigned long long)s->tiles_skipped);
    EACH_POLICY(s, p)
    {
        printf("%s{\"policy\":", comma);
        tool_json_string(stdout, p->policy);
        printf(
            ",\"contexts\":%llu,\"cells\":%llu,\"tokens\":%llu,\"bytes\":%llu,\"f16_bytes\":%llu,\"saved_bytes\":%.0f}",
            (unsigned long long)p->n_contexts, (unsigned long long)p->cells, (unsigned long long)p->tokens,
            (unsigned long long)p->bytes, (unsigned long long)p->f16_bytes, saved(p));
        comma = ",";
    }
    printf("]}\n");
}

/* -------------------------------------------------------------- Prometheus */

enum { MAX_PROCESSES = 64 };
typedef struct processes {
    quire_stat s[MAX_PROCESSES];
    size_t n;
} processes;

static void keep(void *ctx, const quire_stat *s)
{
    processes *all = ctx;
    if (all->n < MAX_PROCESSES) all->s[all->n++] = *s;
}

static void print_labels(const quire_stat *s, const quire_stat_policy *p)
{
    printf("{pid=\"%llu\",program=", (unsigned long long)s->pid);
    tool_json_string(stdout, s->program);
    if (p) printf(",policy="), tool_json_string(stdout, p->policy);
    printf("}");
}

/* The name of every metric comes once, with all its processes below it. */
static void print_prometheus(const processes *all)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } gauges[] = {
        {"quire_contexts", "Contexts of the host under the policy.", offsetof(quire_stat_policy, n_contexts)},
        {"quire_cells", "Cells that can hold a token.", offsetof(quire_stat_policy, cells)},
        {"quire_tokens", "Tokens held.", offsetof(quire_stat_policy, tokens)},
        {"quire_kv_bytes", "Memory of the KV cache.", offsetof(quire_stat_policy, bytes)},
        {"quire_kv_f16_bytes", "Memory that the same rows would take in f16.",
         offsetof(quire_stat_policy, f16_bytes)},
    };
    static const struct {
        const char *name, *help;
        size_t offset;
        double unit;
    } counters[] = {
        {"quire_attend_calls_total", "Attention calls.", offsetof(quire_stat, n_attend), 1},
        {"quire_attend_seconds_total", "Time spent in attention.", offsetof(quire_stat, attend_ns), 1e-9},
        {"quire_compute_seconds_total", "Time during which the host was computing.",
         offsetof(quire_stat, compute_ns), 1e-9},
        {"quire_rows_total", "Rows encoded.", offsetof(quire_stat, n_rows), 1},
        {"quire_tiles_read_total", "Tiles that attention read.", offsetof(quire_stat, tiles_read), 1},
        {"quire_tiles_skipped_total", "Tiles skipped because no query sees them.",
         offsetof(quire_stat, tiles_skipped), 1},
    };
    uint64_t value;
    for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++) {
        printf("# HELP %s %s\n# TYPE %s gauge\n", gauges[i].name, gauges[i].help, gauges[i].name);
        for (size_t j = 0; j < all->n; j++) EACH_POLICY(&all->s[j], p)
            {
                memcpy(&value, (const char *)p + gauges[i].offset, sizeof value);
                printf("%s", gauges[i].name);
                print_labels(&all->s[j], p);
                printf(" %llu\n", (unsigned long long)value);
            }
    }
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        printf("# HELP %s %s\n# TYPE %s counter\n", counters[i].name, counters[i].help, counters[i].name);
        for (size_t j = 0; j < all->n; j++) {
            memcpy(&value, (const char *)&all->s[j] + counters[i].offset, sizeof value);
            printf("%s", counters[i].name);
            print_labels(&all->s[j], NULL);
            printf(" %.9g\n", counters[i].unit * (double)value);
        }
    }
}

/* -------------------------------------------------------------------- main */

int cmd_stat(int argc, char **argv)
{
    stat_options o = {0};
    static processes all; /* large */
    int code = tool_parse(&command, argc, argv, &o);
    if (code >= 0) return code;
    if (o.json && o.prometheus) return tool_usage("stat", "--json and --prometheus cannot be combined");
    size_t n = o.prometheus ? stat_file_each(o.pid, keep, &all)
                            : stat_file_each(o.pid, o.json ? print_json : print_text, NULL);
    if (o.prometheus) print_prometheus(&all);
    if (!n && o.pid)
        return tool_failed("stat", "process %llu has no cache in Quire's device", (unsigned long long)o.pid);
    if (!n && !o.json && !o.prometheus) printf("no running program has a cache in Quire's device\n");
    return tool_finish("stat");
}
