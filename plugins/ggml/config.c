/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "config.h"
#include "host.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config config;

/* A value as messages show it: on one line, and not so long that the reason after it is cut off. */
enum { SHOWN = 100 };

static const char *shown(char out[SHOWN + 4], const char *value)
{
    size_t n = 0;
    for (; value[n] && n < SHOWN; n++) out[n] = iscntrl((unsigned char)value[n]) ? '?' : value[n];
    strcpy(out + n, value[n] ? "..." : "");
    return out;
}

/* ----------------------------------------------------------------------- file */

static char *trimmed(char *s)
{
    while (isspace((unsigned char)*s)) s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1])) *--end = 0;
    return s;
}

/* Empty: not given. */
static void give(char **slot, const char *value)
{
    free(*slot);
    *slot = *value ? strdup(value) : NULL;
}

static char **slot_of(const char *key)
{
#define X(name, variable) \
    if (!strcmp(key, #name)) return &config.name;
    CONFIG_KEYS(X)
#undef X
    return NULL;
}

/* key = value, one per line; # begins a comment line. */
static bool read_line(const char *path, int number, char *line, char *message, size_t size)
{
    char *key = trimmed(line), *equals = strchr(key, '=');
    if (!*key || *key == '#') return true;
    if (equals) *equals = 0;
    char **slot = slot_of(trimmed(key)), text[SHOWN + 4];
    if (!equals || !slot) {
        snprintf(
            message, size,
            "%s:%d: \"%s\" is not a setting; the settings are kv, profile, profile_record, profile_length, rows_record, chain and log",
            path, number, shown(text, trimmed(key)));
        return false;
    }
    give(slot, trimmed(equals + 1));
    return true;
}

static bool read_file(const char *path, char *message, size_t size)
{
    char *line = NULL;
    size_t room = 0;
    bool right = true;
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(message, size, "QUIRE_CONFIG: %s: %s", path, strerror(errno));
        return false;
    }
    errno = 0;
    for (int number = 1; right && getline(&line, &room, f) >= 0; number++)
        right = read_line(path, number, line, message, size);
    if (right && ferror(f)) { /* a folder can be opened, but not read */
        snprintf(message, size, "QUIRE_CONFIG: %s: %s", path, strerror(errno));
        right = false;
    }
    free(line);
    fclose(f);
    return right;
}

/* ---------------------------------------------------------------- environment */

static void take_variable(char **slot, const char *name)
{
    const char *value = getenv(name);
    if (value) give(slot, value);
}

/* -------------------------------------------------------------------- profile */

static quire_status read_bytes(void *ctx, void *bytes, size_t n)
{
    return fread(bytes, 1, n, ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

static bool load_profile(char *message, size_t size)
{
    FILE *f = fopen(config.profile, "rb");
    if (!f) {
        snprintf(message, size, "QUIRE_PROFILE: %s: %s", config.profile, strerror(errno));
        return false;
    }
    quire_status status = quire_profile_load(&config.loaded_profile, read_bytes, f, NULL);
    fclose(f);
    if (status) snprintf(message, size, "QUIRE_PROFILE: %s: %s", config.profile, quire_status_text(status));
    return !status;
}

static bool read_length(char *message, size_t size)
{
    char *end, text[SHOWN + 4];
    const char *value = config.profile_length;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    config.profile_tokens = (uint32_t)n;
    if (isdigit((unsigned char)*value) && !*end && !errno && n <= UINT32_MAX) return true;
    snprintf(message, size, "QUIRE_PROFILE_LENGTH=%s: it is not a number of tokens", shown(text, value));
    return false;
}

/* --------------------------------------------------------------------- policy */

/* The model is not known yet; this finds what is wrong with any model. */
static bool check_policy(char *message, size_t size)
{
    char why[512], text[SHOWN + 4];
    quire_plan *plan = NULL;
    quire_geometry geometry = {.size = sizeof(quire_geometry),
                               .n_layers = 1,
                               .n_q_heads = 8,
                               .n_kv_heads = 8,
                               .d_k = 128,
                               .d_v = 128};
    quire_plan_options options = {
        .size = sizeof(quire_plan_options), .message = why, .message_size = sizeof why};
    if (strstr(config.kv, "sinks=")) {
        snprintf(
            message, size,
            "QUIRE_KV=%s: sinks= cannot be used with llama.cpp, because its cache cells are not in order of position",
            shown(text, config.kv));
        return false;
    }
    if (config.loaded_profile) return true; /* it belongs to a model; the plan will tell */
    quire_status status = quire_plan_create(&plan, &geometry, config.kv, &options);
    quire_plan_destroy(plan);
    if (!status) return true;
    snprintf(message, size, "QUIRE_KV=%s: %s%s", shown(text, config.kv), why,
             strstr(why, "profile")
                 ? "; QUIRE_PROFILE=<file> loads one, QUIRE_PROFILE_RECORD=<file> records one"
                 : "");
    return false;
}

bool config_read(char *message, size_t size)
{
    const char *file = getenv("QUIRE_CONFIG");
    if (file && *file && !read_file(file, message, size)) return false;
#define X(key, variable) take_variable(&config.key, variable);
    CONFIG_KEYS(X)
#undef X
    if (config.profile && !load_profile(message, size)) return false;
    if (config.profile_length && !read_length(message, size)) return false;
    if (config.kv && !check_policy(message, size)) return false;
    return true;
}

/* ------------------------------------------------------------------- arguments */

/* llama-bench takes lists. */
static bool names_tensor(const char *modes)
{
    const char *found = modes ? strstr(modes, "tensor") : NULL;
    return found && (found == modes || found[-1] == ',') && (!found[6] || found[6] == ',');
}

static bool is_split_mode(const char *argument)
{
    return !strcmp(argument, "-sm") || !strcmp(argument, "--split-mode") || !strcmp(argument, "--split_mode");
}

bool config_splits_tensors(void)
{
    char *argument = NULL;
    size_t size = 0;
    bool is_mode = false, splits = names_tensor(getenv("LLAMA_ARG_SPLIT_MODE"));
    FILE *f = fopen("/proc/self/cmdline", "r");
    while (f && getdelim(&argument, &size, 0, f) > 0) {
        if (is_mode) splits = names_tensor(argument);
        is_mode = is_split_mode(argument);
    }
    if (f) fclose(f);
    free(argument);
    return splits;
}

/* ------------------------------------------------------------------------ log */

static void say(int level, bool to_stderr, const char *format, va_list args)
{
    char line[1024];
    vsnprintf(line, sizeof line, format, args);
    if (to_stderr)
        fprintf(stderr, "quire: %s\n", line);
    else if (host.ggml_log_internal)
        host.ggml_log_internal(level, "quire: %s\n", line);
}

void say_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(HOST_LOG_INFO, config.log && strcmp(config.log, "0"), format, args);
    va_end(args);
}

void say_trouble(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(HOST_LOG_ERROR, true, format, args);
    va_end(args);
}
