/* SPDX-License-Identifier: MIT */
#include "llama/offload.h"

#include "llama/host_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE "QUIRE0"

/* More layers than any model has; llama.cpp takes it for all of them. */
#define ALL_LAYERS "999"

/* ----------------------------------------------------------------- arguments */

/* The first ones place layers. */
enum { DEVICES, LAYERS, SPLIT, MODE, MAIN, FIT = OFFLOAD_OPTIONS, TARGET, RPC, N_OPTIONS };

static const struct option {
    const char *names[HOST_LINE_NAMES], *variable;
} options[N_OPTIONS] = {
    [DEVICES] = {{"-dev", "--device"}, "LLAMA_ARG_DEVICE"},
    [LAYERS] = {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "LLAMA_ARG_N_GPU_LAYERS"},
    [SPLIT] = {{"-ts", "--tensor-split"}, "LLAMA_ARG_TENSOR_SPLIT"},
    [MODE] = {{"-sm", "--split-mode"}, "LLAMA_ARG_SPLIT_MODE"},
    [MAIN] = {{"-mg", "--main-gpu"}, "LLAMA_ARG_MAIN_GPU"},
    [FIT] = {{"-fit", "--fit"}, "LLAMA_ARG_FIT"},
    [TARGET] = {{"-fitt", "--fit-target"}, "LLAMA_ARG_FIT_TARGET"},
    [RPC] = {{"--rpc"}, "LLAMA_ARG_RPC"},
};

static const char *value_of(int option, int argc, char **argv)
{
    return host_line_value(argc, argv, options[option].names, options[option].variable);
}

static bool is_any(const char *value, const char *const *words)
{
    for (; value && *words; words++)
        if (!strcmp(value, *words)) return true;
    return false;
}

void offload_read(offload_arguments *out, int argc, char **argv)
{
    static const char *const off[] = {"off", "0", "false", "disabled", NULL};
    *out = (offload_arguments){.layers = value_of(LAYERS, argc, argv),
                               .devices = value_of(DEVICES, argc, argv),
                               .split = value_of(SPLIT, argc, argv),
                               .mode = value_of(MODE, argc, argv),
                               .main_gpu = value_of(MAIN, argc, argv),
                               .has_target = value_of(TARGET, argc, argv),
                               .has_rpc = value_of(RPC, argc, argv),
                               .is_bench = host_line_is_bench(argv[0])};
    out->fits = !out->is_bench && !is_any(value_of(FIT, argc, argv), off);
}

void offload_options(const offload *o, offload_option list[OFFLOAD_OPTIONS])
{
    const char *values[OFFLOAD_OPTIONS] = {[DEVICES] = o->devices, [LAYERS] = ALL_LAYERS, [SPLIT] = o->split};
    for (int i = 0; i < OFFLOAD_OPTIONS; i++)
        list[i] = (offload_option){options[i].names[0], options[i].variable, values[i]};
}

static bool places(const char *argument)
{
    for (int i = 0; i < OFFLOAD_OPTIONS; i++)
        if (host_line_is(argument, options[i].names)) return true;
    return false;
}

bool offload_is_placed(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (places(argv[i])) return true;
    return false;
}

char **offload_argv(const offload *o, int argc, char **argv)
{
    offload_option list[OFFLOAD_OPTIONS];
    char **all = calloc((size_t)argc + 2 * OFFLOAD_OPTIONS + 1, sizeof *all);
    int n = 0;
    if (!all) return NULL;
    for (int i = 0; i < argc; i++)
        if (i && places(argv[i]))
            i++;
        else
            all[n++] = argv[i];
    offload_options(o, list);
    for (int i = 0; i < OFFLOAD_OPTIONS; i++) {
        if (!list[i].value) continue;
        all[n++] = (char *)(size_t)list[i].name; /* argv of execv is not const for reasons of history */
        all[n++] = (char *)(size_t)list[i].value;
    }
    return all;
}

/* ------------------------------------------------------------------- devices */

typedef struct chosen {
    const host_device_seen *device[HOST_DEVICES];
    uint32_t n;
    bool has_ours, is_unknown; /* -dev names Quire's device, or one that is not there */
} chosen;

static bool is_seen(const chosen *c, const host_device_seen *d)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(d->identity, "-") && !strcmp(c->device[i]->identity, d->identity)) return true;
    return false;
}

/* As llama.cpp chooses without -dev: every GPU once; if there is none, the integrated ones of one backend. */
static void choose_default(chosen *c, const host_devices *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (!d->device[i].is_integrated && !is_seen(c, &d->device[i])) c->device[c->n++] = &d->device[i];
    if (c->n) return;
    for (uint32_t i = 0; i < d->n; i++)
        if (!c->n || !strcmp(c->device[0]->backend, d->device[i].backend)) c->device[c->n++] = &d->device[i];
}

static void choose_named(chosen *c, const host_devices *d, const char *names, const char *separators)
{
    while (*names) {
        size_t n = strcspn(names, separators);
        const host_device_seen *found = NULL;
        bool ours = n == strlen(DEVICE) && !strncmp(names, DEVICE, n);
        c->has_ours |= ours;
        for (uint32_t i = 0; i < d->n; i++)
            if (strlen(d->device[i].name) == n && !strncmp(d->device[i].name, names, n))
                found = &d->device[i];
        if (found && c->n < HOST_DEVICES)
            c->device[c->n++] = found;
        else if (!ours)
            c->is_unknown = true;
        names += n;
        names += strspn(names, separators);
    }
}

/* -sm none: only one. */
static void keep_main(chosen *c, const char *main_gpu)
{
    long index = main_gpu ? strtol(main_gpu, NULL, 10) : 0;
    if (index < 0 || index >= (long)c->n) {
        c->n = 0;
        return;
    }
    c->device[0] = c->device[index];
    c->n = 1;
}

/* --------------------------------------------------------------------- split */

/* How llama.cpp divides n layers among devices (load_tensors): the same floats, so that they round as there. */
static void divide(uint32_t n, const float *split, uint32_t n_devices, uint32_t *counts)
{
    float sum = 0, until[HOST_DEVICES];
    for (uint32_t i = 0; i < n_devices; i++) until[i] = sum += split[i];
    for (uint32_t i = 0; i < n_devices; i++) {
        until[i] /= sum;
        counts[i] = 0;
    }
    for (uint32_t layer = 0, i = 0; layer < n; layer++, i = 0) {
        while (i + 1 < n_devices && !(until[i] > (float)layer / (float)n)) i++;
        counts[i]++;
    }
}

static void read_split(float *split, const char *text, const chosen *c)
{
    bool any = false;
    for (uint32_t i = 0; i < c->n; i++) {
        char *end = NULL;
        split[i] = text ? strtof(text, &end) : 0;
        any |= split[i] > 0;
        text = end && *end ? end + strspn(end, ",;/") : NULL;
    }
    for (uint32_t i = 0; !any && i < c->n; i++)
        split[i] = c->device[i]->free > 0 ? (float)c->device[i]->free : 1;
}

static void write_lists(offload *o, const chosen *c, uint32_t own, const uint32_t *counts, char separator)
{
    size_t d = (size_t)snprintf(o->devices, sizeof o->devices, "%s", DEVICE);
    size_t s = (size_t)snprintf(o->split, sizeof o->split, "%u", own);
    for (uint32_t i = 0; i < c->n; i++) {
        d += (size_t)snprintf(o->devices + d, sizeof o->devices - d, "%c%s", separator, c->device[i]->name);
        s += (size_t)snprintf(o->split + s, sizeof o->split - s, "%c%u", separator, counts[i]);
    }
}

/* -------------------------------------------------------------------- arrange */

/* The value of -ngl: how many layers; AUTOMATIC; or NOT_A_NUMBER, which the program will refuse. */
enum { AUTOMATIC = -1, NOT_A_NUMBER = -2 };

static long read_layers(const offload_arguments *a, uint32_t all)
{
    char *end;
    const char *text = a->layers;
    if (!text || !strcmp(text, "auto") || !strcmp(text, "-1")) return a->fits ? AUTOMATIC : (long)all;
    if (!strcmp(text, "all")) return (long)all;
    long n = strtol(text, &end, 10);
    if (end == text || (a->is_bench && *end)) return NOT_A_NUMBER;
    return n < 0 || n > (long)all ? (long)all : n;
}

static void refuse(offload *o, const char *reason)
{
    o->state = OFFLOAD_NOTHING;
    snprintf(o->reason, sizeof o->reason, "%s", reason);
}

void offload_arrange(offload *out, const host_devices *d, const offload_arguments *a, uint32_t n_blocks)
{
    static const char *const no_layers[] = {"row", "tensor", NULL};
    chosen c = {.n = 0};
    float split[HOST_DEVICES];
    uint32_t counts[HOST_DEVICES], all = n_blocks + 1;
    *out = (offload){.state = OFFLOAD_NONE};
    if (a->devices)
        choose_named(&c, d, a->devices, a->is_bench ? "/" : ",");
    else
        choose_default(&c, d);
    if (c.has_ours && c.n) out->state = OFFLOAD_OWN;
    if (c.has_ours || c.is_unknown) return;
    if (a->mode && !strcmp(a->mode, "none")) keep_main(&c, a->main_gpu);
    if (!c.n) return;
    for (uint32_t i = 0; i < c.n; i++) out->free += c.device[i]->free;
    if (is_any(a->mode, no_layers)) {
        snprintf(out->reason, sizeof out->reason, "-sm %s divides no layers among devices, which Quire needs",
                 a->mode);
        out->state = OFFLOAD_NOTHING;
        return;
    }
    if (a->has_rpc) {
        refuse(out, "with --rpc Quire cannot see all devices");
        return;
    }
    long layers = read_layers(a, all);
    if (layers == AUTOMATIC) {
        refuse(out,
               "without -ngl llama.cpp itself chooses the layers of the GPU, and keeps the others' cache in "
               "plain memory; with -ngl N, Quire has those (quire plan --vram says which N fits)");
        return;
    }
    if (layers == NOT_A_NUMBER) {
        refuse(out, "-ngl is not one number");
        return;
    }
    if (!n_blocks) {
        refuse(out, "the arguments name no model file, so Quire cannot divide its layers beside the GPU");
        return;
    }
    out->ngl = (uint32_t)layers;
    if (out->ngl >= n_blocks + 1) {
        refuse(out, "all layers are on the GPU, and their cache with them");
        return;
    }
    read_split(split, a->split, &c);
    divide(out->ngl, split, c.n, counts);
    write_lists(out, &c, all - out->ngl, counts, a->is_bench ? '/' : ',');
    out->n_own = out->ngl ? all - out->ngl : n_blocks;
    out->state = OFFLOAD_ARRANGED;
}
