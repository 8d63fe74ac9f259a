/* SPDX-License-Identifier: MIT */
#include "llama/host_devices.h"

#include "common/child.h"
#include "llama/host_line.h"
#include "llama/host_settings.h"

#include <stdio.h>
#include <string.h>

/* Starting a GPU's driver for the first time can take a while. */
enum { SECONDS = 30 };

void host_devices_take(host_devices *d, const char *line)
{
    host_device_seen s;
    char type[8];
    if (d->n == HOST_DEVICES || sscanf(line, "quire-device %63s %7s %63s %63s %lf", s.name, type, s.backend,
                                       s.identity, &s.free) != 5)
        return;
    s.is_integrated = !strcmp(type, "igpu");
    d->device[d->n++] = s;
}

typedef struct listing {
    host_devices *devices;
    char line[512];
    size_t n;
} listing;

static void listen(void *ctx, const char *text, size_t n)
{
    listing *l = ctx;
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n') {
            if (l->n + 1 < sizeof l->line) l->line[l->n++] = text[i];
            continue;
        }
        l->line[l->n] = 0;
        host_devices_take(l->devices, l->line);
        l->n = 0;
    }
}

static bool is_llama(const char *path)
{
    const char *name = host_line_program(path);
    return !strncmp(name, "llama-", 6) || !strcmp(name, "llama");
}

void host_devices_find(host_devices *out, const char *path, const char *plugin, int argc, char **argv)
{
    /* `llama serve` has its sub-command first. */
    const char *first = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    const char *arguments[] = {path, first ? first : "--list-devices", first ? "--list-devices" : NULL, NULL};
    /* A backend of the user's is loaded too, as it will be. No other setting matters, or can be wrong here. */
    const child_variable variables[] = {{"GGML_BACKEND_PATH", plugin},
                                        {"QUIRE_CHAIN", host_setting_chain()},
                                        {"QUIRE_DEVICES", "1"},
                                        {"QUIRE_STAT", "0"},
                                        {"QUIRE_KV", NULL},
                                        {"QUIRE_CONFIG", NULL},
                                        {"QUIRE_PROFILE", NULL},
                                        {"QUIRE_PROFILE_RECORD", NULL},
                                        {"QUIRE_ROWS_RECORD", NULL},
                                        {NULL, NULL}};
    listing l = {.devices = out};
    *out = (host_devices){.n = 0};
    if (!is_llama(path)) return;
    child run = {.argv = arguments, .variables = variables, .output = listen, .ctx = &l, .seconds = SECONDS};
    if (child_run(&run)) out->n = 0;
}
