/* SPDX-License-Identifier: MIT */
/*
 * The host's devices in words, for `quire run`, which has to know what the host would choose by itself: its own list
 * (--list-devices) has neither their type nor their identity. QUIRE_DEVICES=1 asks for it; one line each, on stdout:
 *
 *   quire-device NAME TYPE BACKEND IDENTITY FREE     TYPE gpu or igpu; IDENTITY - if there is none; bytes that are free
 */
#include "device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields are words. */
static bool is_word(const char *text)
{
    return text && *text && !strpbrk(text, " \t\r\n");
}

void devices_tell(void)
{
    const char *wanted = getenv("QUIRE_DEVICES");
    if (!wanted || strcmp(wanted, "1") || !host.ggml_backend_dev_count || !host.ggml_backend_dev_get) return;
    for (size_t i = 0; i < host.ggml_backend_dev_count(); i++) {
        struct host_device_props props = {0};
        struct host_device *d = host.ggml_backend_dev_get(i);
        int type = host.ggml_backend_dev_type(d);
        if (type != HOST_DEVICE_GPU && type != HOST_DEVICE_IGPU) continue;
        host.ggml_backend_dev_get_props(d, &props);
        const char *name = host.ggml_backend_dev_name(d),
                   *backend = host.ggml_backend_reg_name(host.ggml_backend_dev_backend_reg(d));
        if (!is_word(name) || !is_word(backend)) continue;
        printf("quire-device %s %s %s %s %zu\n", name, type == HOST_DEVICE_GPU ? "gpu" : "igpu", backend,
               is_word(props.device_id) ? props.device_id : "-", props.memory_free);
    }
    fflush(stdout);
}
