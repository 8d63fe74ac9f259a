/* SPDX-License-Identifier: MIT */
#include "llama/host_line.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(const char *argument, const char *name)
{
    bool is_long = !strncmp(argument, "--", 2);
    if (!name) return false;
    for (; *argument && *name; argument++, name++)
        if (*argument != *name && !(is_long && *argument == '_' && *name == '-')) return false;
    return *argument == *name;
}

bool host_line_is(const char *argument, const char *const names[HOST_LINE_NAMES])
{
    for (int i = 0; i < HOST_LINE_NAMES; i++)
        if (is_name(argument, names[i])) return true;
    return false;
}

const char *host_line_value(int argc, char **argv, const char *const names[HOST_LINE_NAMES],
                            const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    for (int i = 1; i + 1 < argc; i++)
        if (host_line_is(argv[i], names)) value = argv[i + 1];
    return value && *value ? value : NULL;
}

const char *host_line_program(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool host_line_is_bench(const char *path)
{
    return !strncmp(host_line_program(path), "llama-bench", 11);
}
