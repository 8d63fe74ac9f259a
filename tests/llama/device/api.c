/* SPDX-License-Identifier: MIT */
/* Finding and opening the libraries of a ggml host. */
#define _POSIX_C_SOURCE 200809L

#include "api.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

gg_api gg;

enum { MAX_PATH = 1024 };

/* "libggml" + stem + anything with ".so" in it: libggml.so, libggml.so.0, libggml.v0.5.0.so. The shortest name wins. */
static bool find(const char *dir, const char *stem, char *path)
{
    DIR *d = opendir(dir);
    if (!d) return false;
    char begin[64];
    snprintf(begin, sizeof begin, "libggml%s.", stem);
    size_t best = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, begin, strlen(begin)) != 0 || !strstr(e->d_name, ".so")) continue;
        if (best && n >= best) continue;
        best = n;
        snprintf(path, MAX_PATH, "%s/%s", dir, e->d_name);
    }
    closedir(d);
    return best != 0;
}

/* Warnings and errors; the host is talkative otherwise. */
static void print(int level, const char *text, void *user)
{
    (void)user;
    if (level >= 3) fputs(text, stderr);
}

static void *open_library(const char *dir, const char *stem, bool local)
{
    char path[MAX_PATH];
    if (!find(dir, stem, path)) {
        fprintf(stderr, "no libggml%s in %s\n", stem, dir);
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | (local ? RTLD_LOCAL : RTLD_GLOBAL));
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    return handle;
}

bool gg_open(const char *dir, const char *backends, bool local)
{
    void *base = open_library(dir, "-base", local);
    void *ggml = base ? open_library(dir, "", local) : NULL;
    if (!ggml) return false;

    bool whole = true;
#define X(result, name, parameters)                              \
    {                                                            \
        void *f = dlsym(base, "ggml_" #name);                    \
        if (!f) f = dlsym(ggml, "ggml_" #name);                  \
        if (!f) fprintf(stderr, "no function ggml_" #name "\n"); \
        if (!f) whole = false;                                   \
        memcpy(&gg.name, &f, sizeof f);                          \
    }
    GG_FUNCTIONS(X)
#undef X
    if (!whole) return false;
    gg.log_set(print, NULL);

    /* One CPU library, or several from which ggml chooses, or one that is linked in. */
    char path[MAX_PATH];
    if (!backends) backends = dir;
    if (!gg.backend_dev_by_name("CPU") && find(backends, "-cpu", path)) gg.backend_load(path);
    if (!gg.backend_dev_by_name("CPU")) gg.backend_load_all_from_path(backends);
    if (gg.backend_dev_by_name("CPU")) return true;
    fprintf(stderr, "no CPU backend in %s\n", backends);
    return false;
}
