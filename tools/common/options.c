/* SPDX-License-Identifier: MIT */
/* options: command lines, help, numbers. */
#include "common/tool.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void complain(const char *command, const char *format, va_list args)
{
    fflush(stdout);
    fprintf(stderr, "quire%s%s: ", *command ? " " : "", command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int tool_usage(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_USAGE;
}

int tool_failed(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_FAILED;
}

int tool_finish(const char *command)
{
    return fflush(stdout) || ferror(stdout) ? tool_failed(command, "the output could not be written")
                                            : TOOL_OK;
}

/* --------------------------------------------------------------- parsing */

const tool_entry *tool_find(const tool_entry *entries, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, entries[i].name) == 0) return &entries[i];
    return NULL;
}

static const tool_option *find_option(const tool_command *c, const char *name, size_t length)
{
    for (size_t i = 0; i < c->n_options; i++)
        if (strlen(c->options[i].name) == length && memcmp(c->options[i].name, name, length) == 0)
            return &c->options[i];
    return NULL;
}

/* 1048576 is written 1M, 100000 as it is. */
static int print_limit(char *text, size_t size, uint64_t n)
{
    const uint64_t mega = 1u << 20, giga = 1u << 30;
    if (n >= giga && n % giga == 0) return snprintf(text, size, "%lluG", (unsigned long long)(n / giga));
    if (n >= mega && n % mega == 0) return snprintf(text, size, "%lluM", (unsigned long long)(n / mega));
    return snprintf(text, size, "%llu", (unsigned long long)n);
}

static const char *wish_of(const tool_option *o)
{
    static char text[80];
    if (o->wish) return o->wish;
    if (o->kind == TOOL_KIND_BYTES) return "bytes, such as 512M, 16G or 2T";
    int n = snprintf(text, sizeof text, "a number from ");
    n += print_limit(text + n, sizeof text - (size_t)n, o->min);
    n += snprintf(text + n, sizeof text - (size_t)n, " to ");
    print_limit(text + n, sizeof text - (size_t)n, o->max);
    return text;
}

static const char *set_option(const tool_option *o, void *ctx, const char *value)
{
    if (o->set) return o->set(ctx, value);
    void *to = (char *)ctx + o->at;
    uint64_t n = 0;
    switch (o->kind) {
    case TOOL_KIND_FLAG: *(bool *)to = true; return NULL;
    case TOOL_KIND_WORD: *(const char **)to = value; return *value ? NULL : o->wish;
    case TOOL_KIND_U32:
        if (!tool_number(value, 0, o->min, o->max, &n, NULL)) return wish_of(o);
        *(uint32_t *)to = (uint32_t)n;
        return NULL;
    case TOOL_KIND_U64: return tool_number(value, 0, o->min, o->max, to, NULL) ? NULL : wish_of(o);
    case TOOL_KIND_BYTES: return tool_size(value, o->min, o->max, to) ? NULL : wish_of(o);
    }
    return NULL;
}

/* -1: go on. *at is the index of the option and moves over a value that is a word of its own. */
static int parse_option(const tool_command *c, int argc, char **argv, int *at, void *ctx)
{
    const char *word = argv[*at], *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const tool_option *o = find_option(c, word, length);
    if (!o)
        return tool_usage(c->name, "unknown option %.*s; quire %s --help lists the options", (int)length,
                          word, c->name);
    const char *value = equals ? equals + 1 : NULL;
    if (!o->value && value) return tool_usage(c->name, "%s does not take a value", o->name);
    if (o->value && !value) {
        if (*at + 1 >= argc) return tool_usage(c->name, "%s needs a value (%s)", o->name, o->value);
        value = argv[++*at];
    }
    const char *wish = set_option(o, ctx, value);
    if (wish) return tool_usage(c->name, "%s expects %s, not \"%s\"", o->name, wish, value ? value : "");
    return -1;
}

static bool wants_help(const tool_command *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (c->set_rest && (argv[i][0] != '-' || strcmp(argv[i], "--") == 0)) return false;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    }
    return false;
}

int tool_parse(const tool_command *c, int argc, char **argv, void *ctx)
{
    if (wants_help(c, argc, argv)) return tool_help(c);
    for (int i = 1; i < argc; i++) {
        if (c->set_rest && (argv[i][0] != '-' || strcmp(argv[i], "--") == 0)) {
            i += argv[i][0] == '-';
            c->set_rest(ctx, argc - i, argv + i);
            return -1;
        }
        if (argv[i][0] == '-' && argv[i][1]) {
            int code = parse_option(c, argc, argv, &i, ctx);
            if (code >= 0) return code;
        } else if (c->one) {
            const char **to = (const char **)(void *)((char *)ctx + c->one_at);
            if (*to)
                return tool_usage(c->name, "give only one %s; the second one is \"%s\"", c->one, argv[i]);
            *to = argv[i];
        } else if (c->set_name) {
            const char *wish = c->set_name(ctx, argv[i]);
            if (wish) return tool_usage(c->name, "%s \"%s\"", wish, argv[i]);
        } else {
            return tool_usage(c->name, "unexpected argument \"%s\"; quire %s --help lists the options",
                              argv[i], c->name);
        }
    }
    return -1;
}

/* --------------------------------------------------------------- numbers */

/* K, M, G or T as a power of two; 0: none of them. */
static unsigned unit_shift(char letter)
{
    return letter == 'K' || letter == 'k' ? 10
           : letter == 'M'                ? 20
           : letter == 'G'                ? 30
           : letter == 'T'                ? 40
                                          : 0;
}

bool tool_number(const char *text, char end, uint64_t min, uint64_t max, uint64_t *out, const char **next)
{
    char *stop;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    uint64_t n = strtoull(text, &stop, 10);
    unsigned shift = unit_shift(*stop);
    if (shift) stop++;
    if (errno || (*stop && *stop != end) || n > UINT64_MAX >> shift) return false;
    n <<= shift;
    if (n < min || n > max) return false;
    *out = n;
    if (next) *next = stop;
    return true;
}

bool tool_size(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *stop;
    double x = strtod(text, &stop);
    if (stop == text) return false;
    unsigned shift = unit_shift(*stop);
    x *= (double)(UINT64_C(1) << shift);
    if (stop[shift > 0] || !(x >= (double)min && x <= (double)max))
        return false; /* so written, NaN is refused too */
    *out = (uint64_t)x;
    return true;
}

bool tool_real(const char *text, double min, double max, double *out)
{
    char *stop;
    double x = strtod(text, &stop);
    if (stop == text || *stop || !isfinite(x) || x < min || x > max) return false;
    *out = x;
    return true;
}

bool tool_word(const char **text, char *word, size_t size)
{
    size_t n = strcspn(*text, ",");
    if (!n || n >= size) return false;
    memcpy(word, *text, n);
    word[n] = 0;
    *text += n;
    if (**text == ',') (*text)++;
    return true;
}

const char *tool_bytes(char *text, double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    for (; bytes >= 999.5 && i + 1 < sizeof units / sizeof units[0]; i++) bytes /= 1024;
    int digits = i == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(text, TOOL_BYTES_SIZE, "%.*f %s", digits, bytes, units[i]);
    return text;
}

char *tool_plain(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c < 0x20 || *c == 0x7f) *c = '?';
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) c[0] = c[1] = '?'; /* the same in UTF-8 */
    }
    return text;
}

void tool_json_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}
