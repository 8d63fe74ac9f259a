/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* realpath */
#include "common/place.h"

#include "common/system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "libggml-quire.so"

static bool is_there(char *path, const char *dir, const char *name, int mode)
{
    return snprintf(path, PLACE_SIZE, "%s/%s", dir, name) < PLACE_SIZE && !access(path, mode);
}

/* Directory of this program. */
static bool own_directory(char *dir)
{
    if (!system_program_path(dir, PLACE_SIZE)) return false;
    char *slash = strrchr(dir, '/');
    if (!slash) return false;
    *slash = 0;
    return true;
}

/* Beside bin/: an installation or a build folder can be moved. */
static bool near(char *path, const char *below, const char *name)
{
    char dir[PLACE_SIZE], there[2 * PLACE_SIZE], *real;
    if (!own_directory(dir)) return false;
    snprintf(there, sizeof there, "%s/../%s", dir, below);
    if (!is_there(path, there, name, R_OK) || !(real = realpath(path, NULL))) return false;
    bool fits = snprintf(path, PLACE_SIZE, "%s", real) < PLACE_SIZE;
    free(real);
    return fits;
}

bool place_plugin(char *path)
{
    const char *given = getenv("QUIRE_PLUGIN");
    if (given && *given) return snprintf(path, PLACE_SIZE, "%s", given) < PLACE_SIZE && !access(path, R_OK);
    return near(path, "lib", PLUGIN) || near(path, "lib/quire", PLUGIN);
}

bool place_shared(char *path, const char *name)
{
    return near(path, "share/quire", name) || near(path, "../..", name); /* build/release/bin in the source */
}

bool place_program(char *path, const char *dir, const char *name)
{
    if (dir) return is_there(path, dir, name, X_OK);
    const char *list = getenv("PATH");
    char one[PLACE_SIZE];
    while (list && *list) {
        size_t n = strcspn(list, ":");
        if (n && n < sizeof one) {
            memcpy(one, list, n);
            one[n] = 0;
            if (is_there(path, one, name, X_OK)) return true;
        }
        list += n + (list[n] == ':');
    }
    return false;
}
