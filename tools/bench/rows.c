/* SPDX-License-Identifier: MIT */
/* bench: rows as JSON, one object per line, and back. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bench_row *bench_rows_add(bench_rows *rows)
{
    if (rows->n == rows->cap) {
        size_t cap = rows->cap ? rows->cap * 2 : 64;
        bench_row *row = (bench_row *)realloc(rows->row, cap * sizeof *row);
        if (!row) return NULL;
        rows->row = row;
        rows->cap = cap;
    }
    const double none = (double)NAN;
    bench_row *row = &rows->row[rows->n++];
    *row = (bench_row){.ms = none,
                       .read_ms = none,
                       .err = none,
                       .median_ms = none,
                       .bytes = none,
                       .tokens = none,
                       .spread = none,
                       .tile_cycles = none,
                       .ns_per_row = none,
                       .k_ns = none,
                       .v_ns = none,
                       .page_ns = none,
                       .huge = none};
    return row;
}

void bench_rows_free(bench_rows *rows)
{
    free(rows->row);
    *rows = (bench_rows){0};
}

/* ------------------------------------------------------------------ writing */

/* The keys in their order. Those of the second list follow only where there is something to say. */
#define TEXT_KEYS(X) X(impl) X(op) X(k) X(v)
#define COUNT_KEYS(X) X(d) X(dv) X(kv_heads) X(q_heads) X(context) X(queries) X(sequences)
#define FIRST_NUMBERS(X) X(ms) X(read_ms) X(err)
#define MORE_NUMBERS(X) \
    X(median_ms) X(bytes) X(tokens) X(spread) X(tile_cycles) X(ns_per_row) X(k_ns) X(v_ns) X(page_ns) X(huge)

static const char *number_text(double x, char *text, size_t size)
{
    if (isnan(x))
        snprintf(text, size, "null");
    else
        snprintf(text, size, x == floor(x) && fabs(x) < 1e15 ? "%.0f" : "%.6g", x);
    return text;
}

static double number_of(const char *text)
{
    return strcmp(text, "null") == 0 ? (double)NAN : strtod(text, NULL);
}

void bench_rows_round(bench_rows *rows)
{
    char text[32];
    for (size_t i = 0; i < rows->n; i++) {
        bench_row *r = &rows->row[i];
#define ROUND(KEY) r->KEY = number_of(number_text(r->KEY, text, sizeof text));
        FIRST_NUMBERS(ROUND)
        MORE_NUMBERS(ROUND)
    }
}

static void print_row(const bench_row *r, FILE *file)
{
    char text[32];
    const char *comma = "{";
#define PRINT_TEXT(KEY)                      \
    fprintf(file, "%s\"" #KEY "\":", comma); \
    tool_json_string(file, r->KEY);          \
    comma = ",";
#define PRINT_COUNT(KEY) fprintf(file, ",\"" #KEY "\":%u", r->KEY);
#define PRINT_NUMBER(KEY) fprintf(file, ",\"" #KEY "\":%s", number_text(r->KEY, text, sizeof text));
#define PRINT_IF(KEY)     \
    if (!isnan(r->KEY)) { \
        PRINT_NUMBER(KEY) \
    }
    TEXT_KEYS(PRINT_TEXT)
    COUNT_KEYS(PRINT_COUNT)
    fprintf(file, ",\"cold\":%s", r->cold ? "true" : "false");
    PRINT_COUNT(threads)
    PRINT_TEXT(isa)
    FIRST_NUMBERS(PRINT_NUMBER)
    PRINT_COUNT(runs)
    MORE_NUMBERS(PRINT_IF)
    if (r->v_in_k) fprintf(file, ",\"v_in_k\":true");
    if (r->team[0]) {
        PRINT_TEXT(team)
    }
    fprintf(file, "}\n");
}

void bench_rows_print(const bench_rows *rows, FILE *file)
{
    for (size_t i = 0; i < rows->n; i++) print_row(&rows->row[i], file);
}

/* ------------------------------------------------------------------ reading */

/*
 * A value of a flat object as it stands in the line: text without its quotes, or the characters of a number or word.
 * Text with escapes is refused; the names in rows have none.
 */
typedef struct field {
    char key[32], value[64];
} field;

static const char *skip_space(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n') p++;
    return p;
}

static const char *read_text(const char *p, char *out, size_t size)
{
    size_t n = 0;
    if (*p++ != '"') return NULL;
    for (; *p && *p != '"'; p++) {
        if (*p == '\\' || n + 1 >= size) return NULL;
        out[n++] = *p;
    }
    out[n] = 0;
    return *p ? p + 1 : NULL;
}

/* The next field, or NULL if the line is not of this form. */
static const char *read_field(const char *p, field *f)
{
    p = read_text(skip_space(p), f->key, sizeof f->key);
    if (!p || *(p = skip_space(p)) != ':') return NULL;
    p = skip_space(p + 1);
    if (*p == '"') return read_text(p, f->value, sizeof f->value);
    size_t n = strcspn(p, ",} \t\r\n");
    if (!n || n >= sizeof f->value || strcspn(p, "[{\"") < n) return NULL;
    memcpy(f->value, p, n);
    f->value[n] = 0;
    return p + n;
}

static void take_field(bench_row *r, const field *f)
{
#define TAKE_TEXT(KEY) \
    if (strcmp(f->key, #KEY) == 0) snprintf(r->KEY, sizeof r->KEY, "%.*s", (int)sizeof r->KEY - 1, f->value);
#define TAKE_COUNT(KEY) \
    if (strcmp(f->key, #KEY) == 0) r->KEY = (uint32_t)strtoul(f->value, NULL, 10);
#define TAKE_NUMBER(KEY) \
    if (strcmp(f->key, #KEY) == 0) r->KEY = number_of(f->value);
#define TAKE_TRUTH(KEY) \
    if (strcmp(f->key, #KEY) == 0) r->KEY = strcmp(f->value, "true") == 0;
    TEXT_KEYS(TAKE_TEXT)
    TAKE_TEXT(isa)
    TAKE_TEXT(team)
    COUNT_KEYS(TAKE_COUNT)
    TAKE_COUNT(threads)
    TAKE_COUNT(runs)
    FIRST_NUMBERS(TAKE_NUMBER)
    MORE_NUMBERS(TAKE_NUMBER)
    TAKE_TRUTH(cold)
    TAKE_TRUTH(v_in_k)
}

/* Keys that are not known are left out: other programs may have more to say. */
static bool parse_row(const char *line, bench_row *r)
{
    field f;
    const char *p = skip_space(line);
    if (*p++ != '{') return false;
    while (*(p = skip_space(p)) != '}') {
        p = read_field(p, &f);
        if (!p) return false;
        take_field(r, &f);
        p = skip_space(p);
        if (*p == ',')
            p++;
        else if (*p != '}')
            return false;
    }
    return *skip_space(p + 1) == 0 && r->impl[0] && r->op[0];
}

int bench_rows_read(bench_rows *rows, const char *path)
{
    char line[4096];
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file) return tool_failed("bench", "%s cannot be opened", path);
    int code = TOOL_OK;
    for (unsigned n = 1; code == TOOL_OK && fgets(line, sizeof line, file); n++) {
        if (!*skip_space(line)) continue;
        bench_row *row = bench_rows_add(rows);
        if (!row)
            code = tool_failed("bench", "out of memory");
        else if (!parse_row(line, row))
            code = tool_failed("bench", "line %u of %s is not a row of quire bench --json", n, path);
    }
    if (code == TOOL_OK && ferror(file)) code = tool_failed("bench", "%s cannot be read", path);
    if (file != stdin) fclose(file);
    return code;
}

/* -------------------------------------------------------------------- words */

const char *bench_tokens_text(double tokens, char *text, size_t size)
{
    if (tokens >= 1024 && fmod(tokens, 1024) == 0)
        snprintf(text, size, "%.0fK", tokens / 1024);
    else
        snprintf(text, size, "%.0f", tokens);
    return text;
}

const char *bench_codec_text(const bench_row *row, char *text, size_t size)
{
    bool same = row->v_in_k || strcmp(row->k, row->v) == 0;
    snprintf(text, size, "%s%s%s", row->k, same ? "" : "/", same ? "" : row->v);
    return text;
}

bool bench_same_work(const bench_row *a, const bench_row *b)
{
    return strcmp(a->op, b->op) == 0 && a->d == b->d && a->dv == b->dv && a->v_in_k == b->v_in_k &&
           a->kv_heads == b->kv_heads && a->q_heads == b->q_heads && a->queries == b->queries &&
           a->sequences == b->sequences && a->cold == b->cold && a->threads == b->threads &&
           (a->spread == b->spread || (isnan(a->spread) && isnan(b->spread)));
}
