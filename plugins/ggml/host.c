/* SPDX-License-Identifier: MIT */
/* Binding to the host: its functions, its version, its numbers. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct host host;

/* ------------------------------------------------------------------ functions */

static void take_from(void *library)
{
#define X(name, result, arguments) \
    if (!host.name) *(void **)(&host.name) = dlsym(library, #name);
    HOST_FUNCTIONS(X)
    HOST_OPTIONAL(X)
#undef X
}

static const char *missing_function(void)
{
#define X(name, result, arguments) \
    if (!host.name) return #name;
    HOST_FUNCTIONS(X)
#undef X
    return NULL;
}

enum { MAX_LIBRARIES = 64 };
struct libraries {
    char *path[MAX_LIBRARIES];
    int n;
};

static int collect(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct libraries *l = arg;
    (void)size;
    if (info->dlpi_name && strstr(info->dlpi_name, "ggml") && l->n < MAX_LIBRARIES)
        l->path[l->n++] = strdup(info->dlpi_name);
    return 0;
}

/*
 * Hosts name their libraries differently and may have loaded them for themselves alone, and a process may have two of
 * them: the library that calls us and those it needs come first, then the global names, then every loaded library of
 * ggml. The handles are kept, so that what was bound stays loaded.
 */
static void take_functions(void *caller)
{
    struct libraries l = {.n = 0};
    Dl_info info;
    void *own =
        dladdr(caller, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (own) take_from(own);
    take_from(RTLD_DEFAULT);
    dl_iterate_phdr(collect, &l);
    for (int i = 0; i < l.n; i++) {
        void *library = l.path[i] && missing_function() ? dlopen(l.path[i], RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (library) take_from(library);
        free(l.path[i]);
    }
}

/* ------------------------------------------------------------------- versions */

static const struct host_buft_layout buft_v2 = {
    .get_name = 0, .alloc_buffer = 1, .get_alignment = 2, .get_alloc_size = 4, .is_host = 5, .n_entries = 6};
static const struct host_buft_layout buft_v3 = {
    .get_name = 0, .alloc_buffer = 1, .get_alignment = 3, .get_alloc_size = 5, .is_host = 7, .n_entries = 8};

static const struct known_version {
    int major, minor, api_version;
} known_versions[] = {
    {0, 25, 2},
    {0, 26, 3},
    {0, 27, 3},
#ifdef QUIRE_GGML_MAJOR /* built against headers of its own choice; abi_check.c compared them */
    {QUIRE_GGML_MAJOR, QUIRE_GGML_MINOR, QUIRE_GGML_API},
#endif
};

static const struct known_version *find_version(const char *text)
{
    int major, minor;
    if (!text || sscanf(text, "%d.%d", &major, &minor) != 2) return NULL;
    for (size_t i = 0; i < sizeof known_versions / sizeof *known_versions; i++)
        if (known_versions[i].major == major && known_versions[i].minor == minor) return &known_versions[i];
    return NULL;
}

/* -------------------------------------------------------------------- numbers */

static int number_by_name(const char *(*name_of)(int), const char *name, int n)
{
    for (int i = 0; i < n; i++) {
        const char *s = name_of(i);
        if (s && !strcmp(s, name)) return i;
    }
    return -1;
}

/* The names are looked up below the smallest counts that any known version has: past its own count a host may abort. */
enum { LOWEST_OP_COUNT = 90, LOWEST_TYPE_COUNT = 40 };

static const char *missing_number(void)
{
#define X(name) \
    if ((host.op.name = number_by_name(host.ggml_op_name, #name, LOWEST_OP_COUNT)) < 0) return "op " #name;
    HOST_OPS(X)
#undef X
#define X(name, text, codec)                                                                         \
    if ((host.type[TYPE_##name] = number_by_name(host.ggml_type_name, text, LOWEST_TYPE_COUNT)) < 0) \
        return "type " text;
    HOST_TYPES(X)
#undef X
    return NULL;
}

const char *host_codec(int type)
{
    static const char *const codec[] = {
#define X(name, text, codec_name) codec_name,
        HOST_TYPES(X)
#undef X
    };
    for (int i = 0; i < N_TYPES; i++)
        if (host.type[i] == type) return codec[i];
    return NULL;
}

bool host_is_float(int type)
{
    return type == host.type[TYPE_F32] || type == host.type[TYPE_F16] || type == host.type[TYPE_BF16];
}

void host_set_threads(struct host_backend *cpu, int n)
{
    struct host_reg *reg = host.ggml_backend_dev_backend_reg(host.ggml_backend_get_device(cpu));
    void (*set)(struct host_backend *, int);
    *(void **)&set = host.ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set) set(cpu, n);
}

/* ----------------------------------------------------------------------- bind */

static bool cpu_has_openmp(struct host_reg *cpu)
{
    struct host_feature *(*features)(struct host_reg *);
    if (!cpu) return false;
    *(void **)&features = host.ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features");
    for (struct host_feature *f = features ? features(cpu) : NULL; f && f->name; f++)
        if (!strcmp(f->name, "OPENMP")) return f->value && f->value[0] == '1';
    return false;
}

bool host_bind(void *caller, char *message, size_t size)
{
    take_functions(caller);
    /* The version first: a function may be missing because the version is another one. */
    const char *version =
        host.ggml_version ? host.ggml_version() : "older than 0.9 (it does not report its version)";
    const struct known_version *known = host.ggml_version ? find_version(version) : NULL;
    if (!known) {
        snprintf(
            message, size,
            "ggml %s is not supported by this build of the device, which supports 0.25 to 0.27; to build it for your version: "
            "cmake --preset release -DQUIRE_GGML_SOURCE=<folder of its source> && cmake --build --preset "
            "release --target ggml-quire",
            version);
        return false;
    }
    const char *missing = missing_function();
    if (!missing) missing = missing_number();
    if (missing) {
        snprintf(message, size, "ggml %s of this host does not have %s", version, missing);
        return false;
    }
    host.api_version = known->api_version;
    host.buft = known->api_version >= 3 ? buft_v3 : buft_v2;
    struct host_reg *cpu = host.ggml_backend_reg_by_name("CPU");
    if (cpu && cpu->api_version != host.api_version) {
        snprintf(message, size, "ggml %s has backend API version %d, but version %d was expected", version,
                 cpu->api_version, host.api_version);
        return false;
    }
    host.openmp = cpu_has_openmp(cpu);
    return true;
}
