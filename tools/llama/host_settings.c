/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/host_settings.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *trimmed(char *s)
{
    while (isspace((unsigned char)*s)) s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1])) *--end = 0;
    return s;
}

/* The value of the last line `key = value`, or NULL if there is none or it is empty. */
static char *read_key(const char *path, const char *key)
{
    char *line = NULL, *value = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    while (f && getline(&line, &room, f) >= 0) {
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = 0;
        if (strcmp(trimmed(line), key)) continue;
        free(value);
        value = strdup(trimmed(equals + 1));
    }
    free(line);
    if (f) fclose(f);
    if (value && !*value) { /* nothing is set */
        free(value);
        value = NULL;
    }
    return value;
}

/* Read once for each key. Values belong to the process, which becomes the host with them. */
static const char *setting_of_file(const char *path, const char *key)
{
    static struct {
        const char *key;
        char *value;
    } known[8];
    size_t i = 0;
    while (i < sizeof known / sizeof *known && known[i].key && strcmp(known[i].key, key)) i++;
    if (i == sizeof known / sizeof *known) return NULL; /* there are three keys */
    if (!known[i].key) {
        known[i].key = key;
        known[i].value = read_key(path, key);
    }
    return known[i].value;
}

const char *host_setting(const char *variable, const char *key)
{
    const char *value = getenv(variable), *path = getenv("QUIRE_CONFIG");
    if (!value && path && *path) value = setting_of_file(path, key);
    return value && *value ? value : NULL;
}

const char *host_setting_chain(void)
{
    const char *chain = host_setting("QUIRE_CHAIN", "chain"), *other = getenv("GGML_BACKEND_PATH");
    if (chain || getenv("QUIRE_CHAIN")) return chain;
    return other && *other && !strstr(other, "libggml-quire") ? other : NULL;
}
