/* SPDX-License-Identifier: MIT */
/* bench: rows as Markdown tables, one for each kind of work, then how many times faster than ggml. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

/* Three digits; nothing for what is not known. */
static const char *number_text(double x, char *text, size_t size)
{
    if (isnan(x))
        snprintf(text, size, "%s", "");
    else
        snprintf(text, size, "%.*f", x < 10 ? 2 : x < 100 ? 1 : 0, x);
    return text;
}

static const char *error_text(double x, char *text, size_t size)
{
    if (isnan(x))
        snprintf(text, size, "%s", "");
    else
        snprintf(text, size, x == 0 ? "%.0f" : "%.1e", x);
    return text;
}

static bool has_impl(const bench_rows *rows, const char *impl)
{
    for (size_t i = 0; i < rows->n; i++)
        if (strcmp(rows->row[i].impl, impl) == 0) return true;
    return false;
}

/* Whether an earlier row did the same work: its table holds this row too. */
static bool is_first_of_work(const bench_rows *rows, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (bench_same_work(&rows->row[j], &rows->row[i])) return false;
    return true;
}

static const char *plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

static void print_title(const bench_row *r, FILE *file)
{
    fprintf(file, "**%s**: ", r->op);
    if (strcmp(r->op, "append") == 0)
        fprintf(file, "%u KV head%s of %u", r->kv_heads, plural(r->kv_heads), r->d);
    else
        fprintf(file, "%u KV head%s, %u query head%s of %u", r->kv_heads, plural(r->kv_heads), r->q_heads,
                plural(r->q_heads), r->d);
    if (r->dv != r->d) fprintf(file, r->v_in_k ? ", V the first %u channels of K" : ", V of %u", r->dv);
    if (r->queries > 1) fprintf(file, ", %u queries", r->queries);
    if (r->sequences > 1) fprintf(file, ", %u sequences", r->sequences);
    fprintf(file, ", %u thread%s", r->threads, plural(r->threads));
    if (strcmp(r->team, "pinned") == 0) fprintf(file, " (pinned, one per processor)");
    if (strcmp(r->team, "unpinned") == 0) fprintf(file, " (not pinned)");
    if (strcmp(r->team, "shared") == 0) fprintf(file, " (more than there are processors)");
    if (r->cold) fprintf(file, ", nothing in cache");
    if (!isnan(r->spread)) fprintf(file, ", scores with a deviation of %g", r->spread);
    fprintf(file, "\n\n");
}

/* Multiplications and additions of both products; a query sees the rows up to its own. */
static double operations(const bench_row *r)
{
    double q = r->queries, seen = q * r->tokens - r->sequences * q * (q - 1) / 2;
    return 2 * seen * r->q_heads * ((double)r->d + r->dv);
}

/* A table has a column only if a row of the same work has something to put there. */
typedef struct columns {
    bool impl, tiles, bandwidth;
} columns;

static void print_row(const bench_row *r, columns has, FILE *file)
{
    char codec[64], text[32];
    fprintf(file, "| ");
    if (has.impl) fprintf(file, "%s | ", r->impl);
    fprintf(file, "%s | %s | ", bench_codec_text(r, codec, sizeof codec), r->isa);
    fprintf(file, "%s | ", bench_tokens_text(isnan(r->tokens) ? r->context : r->tokens, text, sizeof text));
    fprintf(file, "%s | ", number_text(r->ms, text, sizeof text));
    fprintf(file, "%s | ", number_text(r->median_ms, text, sizeof text));
    if (has.bandwidth) {
        fprintf(file, "%s | ", number_text(r->bytes / r->ms / 1e6, text, sizeof text));
        number_text(100 * r->read_ms / r->ms, text, sizeof text);
        fprintf(file, "%s%s | ", text, *text ? " %" : "");
    } else {
        fprintf(file, "%s | ", number_text(operations(r) / r->ms / 1e6, text, sizeof text));
    }
    fprintf(file, "%s |", error_text(r->err, text, sizeof text));
    if (has.tiles) fprintf(file, " %s |", number_text(r->tile_cycles, text, sizeof text));
    fprintf(file, "\n");
}

static void print_attention(const bench_rows *rows, size_t first, FILE *file)
{
    const bench_row *work = &rows->row[first];
    columns has = {.impl = has_impl(rows, "ggml"), .bandwidth = strcmp(work->op, "prefill") != 0};
    for (size_t i = first; i < rows->n; i++)
        if (bench_same_work(&rows->row[i], work) && !isnan(rows->row[i].tile_cycles)) has.tiles = true;
    fprintf(file, "%s codec | isa | tokens | ms | median |%s error |%s\n", has.impl ? "| impl |" : "|",
            has.bandwidth ? " GB/s | of read speed |" : " GFLOP/s |", has.tiles ? " tile cycles |" : "");
    fprintf(file, "%s---|---|---:|---:|---:|%s---:|%s\n", has.impl ? "|---|" : "|",
            has.bandwidth ? "---:|---:|" : "---:|", has.tiles ? "---:|" : "");
    for (size_t i = first; i < rows->n; i++)
        if (bench_same_work(&rows->row[i], work)) print_row(&rows->row[i], has, file);
}

static void print_append(const bench_rows *rows, size_t first, FILE *file)
{
    fprintf(file, "| codec | isa | ns per row | K | V | in pages of 64 | bytes unlike those of C |\n"
                  "|---|---|---:|---:|---:|---:|---:|\n");
    for (size_t i = first; i < rows->n; i++) {
        const bench_row *r = &rows->row[i];
        char codec[64], row[32], k[32], v[32], page[32], error[32];
        if (!bench_same_work(r, &rows->row[first])) continue;
        fprintf(file, "| %s | %s | %s | %s | %s | %s | %s |\n", bench_codec_text(r, codec, sizeof codec),
                r->isa, number_text(isnan(r->ns_per_row) ? r->ms * 1e3 : r->ns_per_row, row, sizeof row),
                number_text(r->k_ns, k, sizeof k), number_text(r->v_ns, v, sizeof v),
                number_text(r->page_ns, page, sizeof page), error_text(r->err, error, sizeof error));
    }
}

/* ------------------------------------------------------------------ ratios */

static const bench_pair ggml_types[] = {{"f16", "f16"}, {"q8_0", "q8_0"}, {"q8_0", "q4_0"}, {"q4_0", "q4_0"}};
#define N_TYPES (sizeof ggml_types / sizeof ggml_types[0])

static const bench_row *find_ggml(const bench_rows *rows, const bench_row *r, const bench_pair *types)
{
    for (size_t i = 0; i < rows->n; i++) {
        const bench_row *g = &rows->row[i];
        if (strcmp(g->impl, "ggml") == 0 && strcmp(g->k, types->k) == 0 && strcmp(g->v, types->v) == 0 &&
            bench_same_work(g, r) && g->context == r->context &&
            (g->tokens == r->tokens || (isnan(g->tokens) && isnan(r->tokens))))
            return g;
    }
    return NULL;
}

static void print_ratios(const bench_rows *rows, size_t first, FILE *file)
{
    fprintf(file, "\nTimes faster than ggml, minimum against minimum:\n\n| codec | isa | tokens | ms |");
    for (size_t t = 0; t < N_TYPES; t++) {
        bool same = strcmp(ggml_types[t].k, ggml_types[t].v) == 0;
        fprintf(file, " ggml %s%s%s |", ggml_types[t].k, same ? "" : "/", same ? "" : ggml_types[t].v);
    }
    fprintf(file, "\n|---|---|---:|---:|");
    for (size_t t = 0; t < N_TYPES; t++) fprintf(file, "---:|");
    fprintf(file, "\n");
    for (size_t i = first; i < rows->n; i++) {
        const bench_row *r = &rows->row[i];
        char codec[64], context[32], text[32];
        if (strcmp(r->impl, "quire") != 0 || !bench_same_work(r, &rows->row[first])) continue;
        fprintf(file, "| %s | %s | %s | %s |", bench_codec_text(r, codec, sizeof codec), r->isa,
                bench_tokens_text(isnan(r->tokens) ? r->context : r->tokens, context, sizeof context),
                number_text(r->ms, text, sizeof text));
        for (size_t t = 0; t < N_TYPES; t++) {
            const bench_row *g = find_ggml(rows, r, &ggml_types[t]);
            fprintf(file, " %s |", number_text(g ? g->ms / r->ms : (double)NAN, text, sizeof text));
        }
        fprintf(file, "\n");
    }
}

void bench_rows_markdown(const bench_rows *rows, FILE *file)
{
    bool again = false;
    for (size_t i = 0; i < rows->n; i++) {
        if (!is_first_of_work(rows, i)) continue;
        if (again) fprintf(file, "\n");
        again = true;
        print_title(&rows->row[i], file);
        if (strcmp(rows->row[i].op, "append") == 0) {
            print_append(rows, i, file);
            continue;
        }
        print_attention(rows, i, file);
        bool compared = false;
        for (size_t j = i; j < rows->n; j++)
            if (bench_same_work(&rows->row[i], &rows->row[j]) && strcmp(rows->row[j].impl, "ggml") == 0)
                compared = true;
        if (compared) print_ratios(rows, i, file);
    }
}
