/* SPDX-License-Identifier: MIT */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#else
#define _GNU_SOURCE
#endif
#include "common/system.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__APPLE__)

#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/sysctl.h>

bool system_program_path(char *path, size_t size)
{
    uint32_t n = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
    return _NSGetExecutablePath(path, &n) == 0;
}

uint64_t system_free_bytes(void)
{
    vm_statistics64_data_t now;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    kern_return_t failed = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&now, &n);
    mach_port_deallocate(mach_task_self(), host);
    if (failed) return 0;
    return ((uint64_t)now.free_count + now.inactive_count) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t system_group_bytes(const char *list, const char *root, bool keeps_mapped)
{
    (void)list;
    (void)root;
    (void)keeps_mapped;
    return UINT64_MAX;
}

uint64_t system_spare_bytes(void)
{
    return system_free_bytes();
}

uint64_t system_memory_bytes(void)
{
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &n, NULL, 0) ? 0 : bytes;
}

#else

bool system_program_path(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return true;
}

/* The number after `name` in a file of lines; "": the first one. UINT64_MAX: it is not there, or no number. */
static uint64_t read_number(const char *folder, const char *path, const char *name)
{
    char full[1200], line[128];
    unsigned long long found = UINT64_MAX;
    snprintf(full, sizeof full, "%s/%s", folder, path);
    FILE *file = fopen(full, "r");
    if (!file) return UINT64_MAX;
    while (found == UINT64_MAX && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), "%llu", &found) != 1)
            found = UINT64_MAX;
    fclose(file);
    return found;
}

/* Pages of files can be read again: they are as good as free. */
static uint64_t group_bytes(const char *folder, bool keeps_mapped)
{
    static const char *const files[] = {"inactive_file ", "active_file "};
    uint64_t most = read_number(folder, "memory.max", ""), high = read_number(folder, "memory.high", "");
    uint64_t used = read_number(folder, "memory.current", ""), cached = 0;
    if (high < most) most = high;
    if (most == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint64_t bytes = read_number(folder, "memory.stat", files[i]);
        if (bytes != UINT64_MAX) cached += bytes;
    }
    uint64_t mapped = keeps_mapped ? read_number(folder, "memory.stat", "file_mapped ") : UINT64_MAX;
    if (mapped != UINT64_MAX) cached -= mapped < cached ? mapped : cached;
    used -= cached < used ? cached : used;
    return most > used ? most - used : 1; /* 0 says that it is not known */
}

uint64_t system_group_bytes(const char *list, const char *root, bool keeps_mapped)
{
    char folder[1024];
    uint64_t least = UINT64_MAX;
    const char *group = !strncmp(list, "0::", 3) ? list : strstr(list, "\n0::");
    if (!group) return least; /* version 1, or none */
    group = strchr(group, '/');
    int n = group ? snprintf(folder, sizeof folder, "%s%.*s", root, (int)strcspn(group, "\n"), group) : -1;
    if (n < 0 || (size_t)n >= sizeof folder) return least;
    for (;;) {
        uint64_t bytes = group_bytes(folder, keeps_mapped);
        if (bytes < least) least = bytes;
        char *end = strrchr(folder, '/');
        if (!end || end < folder + strlen(root)) return least;
        *end = 0;
    }
}

static uint64_t free_bytes(bool keeps_mapped)
{
    char list[4096];
    uint64_t kib = read_number("/proc", "meminfo", "MemAvailable:");
    uint64_t mapped = keeps_mapped ? read_number("/proc", "meminfo", "Mapped:") : UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "r");
    size_t n = file ? fread(list, 1, sizeof list - 1, file) : 0;
    if (file) fclose(file);
    list[n] = 0;
    if (kib == UINT64_MAX) return 0;
    if (mapped != UINT64_MAX) kib = kib > mapped ? kib - mapped : 1;
    uint64_t most = system_group_bytes(list, "/sys/fs/cgroup", keeps_mapped);
    return most < kib * 1024 ? most : kib * 1024;
}

uint64_t system_free_bytes(void)
{
    return free_bytes(false);
}

uint64_t system_spare_bytes(void)
{
    return free_bytes(true);
}

uint64_t system_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

#endif
