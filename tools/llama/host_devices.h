/* SPDX-License-Identifier: MIT */
/* host_devices: the GPUs that a llama.cpp program sees. */
#ifndef QUIRE_TOOLS_HOST_DEVICES_H
#define QUIRE_TOOLS_HOST_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

/* llama.cpp has no more than 16 devices. */
enum { HOST_DEVICES = 16, HOST_DEVICE_NAME = 64 };

typedef struct host_device_seen {
    char name[HOST_DEVICE_NAME];
    char backend[HOST_DEVICE_NAME], identity[HOST_DEVICE_NAME]; /* the second "-": none */
    bool is_integrated;
    double free;
} host_device_seen;

typedef struct host_devices {
    host_device_seen device[HOST_DEVICES];
    uint32_t n;
} host_devices;

/* Takes one line of plugins/ggml/devices.c; others are ignored. */
void host_devices_take(host_devices *d, const char *line);
/*
 * Starts the program with --list-devices and the device loaded, which lists the others. Only for programs named llama or
 * llama-*; whatever goes wrong, there are no devices. argv[0] need not be the path.
 */
void host_devices_find(host_devices *out, const char *path, const char *plugin, int argc, char **argv);

#endif
